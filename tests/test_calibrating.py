"""Guards of answers that were drawn: what was asked is kept over many draws, all of it at once."""

import math
import re
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from softkv.errors import InputError
from softkv.guard.calibrating import Promise, calibrate
from softkv.guard.guard import Seen

NORMAL = NormalDist()


def seen_with(evidence: np.ndarray) -> Seen:
    """Answers of a store of one item that are numbers, with this evidence."""
    nothing = np.zeros(len(evidence))
    return Seen(nothing, evidence, np.ones(len(evidence)), None, nothing, nothing)


@pytest.mark.ci
@pytest.mark.parametrize(("apart", "fewest"), [(2.2, 0), (3.0, 200)])
def test_strangers_and_queries_turned_away_are_both_as_rare_as_promised(apart: float, fewest: int) -> None:
    """Values are neither right nor wrong; 95 of 100 draws hold, less 3.3 deviations; few are refused needlessly."""
    rng, kept, made = np.random.default_rng(21), 0, 0
    for _ in range(300):
        seen, strangers = seen_with(rng.standard_normal(400)), seen_with(rng.standard_normal(400) - apart)
        try:
            guard = calibrate(seen, None, strangers, Promise(0.1, 0.2, 0.95), coded=False, widths=None, items=1)
        except InputError:
            kept += 1  # nothing was promised
            continue
        made += 1
        away, known = NORMAL.cdf(guard.threshold), 1.0 - NORMAL.cdf(guard.threshold + apart)
        kept += away <= 0.1 and known <= 0.2
    assert kept >= 300 * 0.95 - 3.3 * math.sqrt(300 * 0.95 * 0.05)
    assert made >= fewest


def test_strangers_that_are_like_the_items_conflict_with_turning_few_away() -> None:
    """Where strangers are like the items no guard is made, and how many strangers would be known is said."""
    rng = np.random.default_rng(22)
    seen, strangers = seen_with(rng.standard_normal(400)), seen_with(rng.standard_normal(400) - 1.0)
    with pytest.raises(InputError, match=r"no threshold keeps.*wrong_at_most.*[67]\d\.\d% of strangers are known"):
        calibrate(seen, None, strangers, Promise(0.05, 0.2, 0.95), coded=False, widths=None, items=1)
    found = calibrate(seen, None, strangers, Promise(0.7, 0.2, 0.95), coded=False, widths=None, items=1)
    assert found.found["known"] > 0.3
    assert found.found["strangers"] < 0.2


@pytest.mark.parametrize(("items", "count"), [(300, 100), (400, 37)])
def test_few_strangers_that_are_far_away_seldom_refuse_a_guard(items: int, count: int) -> None:
    """No stranger is ever known, and 88 of 100 draws make a guard that turns away as few as promised."""
    rng, away = np.random.default_rng(38), []
    for _ in range(100):
        seen, strangers = seen_with(rng.standard_normal(items)), seen_with(rng.standard_normal(count) - 30.0)
        try:
            guard = calibrate(seen, None, strangers, Promise(0.1, 0.1, 0.95), coded=False, widths=None, items=1)
        except InputError:
            continue
        away.append(NORMAL.cdf(guard.threshold))
        assert guard.threshold > -20.0
    assert len(away) >= 88
    assert np.sum(np.array(away) > 0.1) <= 100 * 0.05 + 3.3 * math.sqrt(100 * 0.05 * 0.95)


def test_a_refusal_for_want_of_points_names_no_conflict() -> None:
    """Of strangers that are far away none is known, but 40 items are few to show that few queries are unknown."""
    rng = np.random.default_rng(39)
    seen, strangers = seen_with(rng.standard_normal(40)), seen_with(rng.standard_normal(100) - 30.0)
    with pytest.raises(InputError, match=r" 0\.0% of strangers are known, but it takes more .* to show"):
        calibrate(seen, None, strangers, Promise(0.1, 0.1, 0.95), coded=False, widths=None, items=1)


def labels_with(evidence: np.ndarray, rng: np.random.Generator) -> tuple[Seen, np.ndarray, np.ndarray]:
    """Answers that are labels, with this evidence, what is right, and which are wrong: most where evidence is low."""
    wrong = rng.random(len(evidence)) < 0.5 / (1.0 + np.exp(2.0 * evidence))
    nothing, sure = np.zeros(len(evidence)), np.tile([0.5, 0.5], (len(evidence), 1))
    return Seen(sure, evidence, np.ones(len(evidence)), None, nothing, nothing), wrong.astype(np.int64), wrong


@pytest.mark.ci
@pytest.mark.parametrize(("share", "fewest"), [(0.1, 0.3), (0.15, 0.5)])
def test_of_what_is_known_no_more_is_wrong_than_promised(share: float, fewest: float) -> None:
    """95 of 100 draws hold, less 3.3 deviations, by the share among all that are known; and many are."""
    rng, grid = np.random.default_rng(35), np.linspace(-4.0, 6.0, 4001)
    density = np.exp(-(grid**2) / 2.0)
    known = np.cumsum(density[::-1])[::-1]
    risks = np.cumsum((density * 0.5 / (1.0 + np.exp(2.0 * grid)))[::-1])[::-1] / known
    kept, shares = 0, []
    for _ in range(500):
        seen, aims, _ = labels_with(rng.standard_normal(1000), rng)
        try:
            guard = calibrate(seen, aims, None, Promise(share, None, 0.95), coded=True, widths=None, items=1)
        except InputError:
            kept += 1  # nothing was promised
            continue
        place = int(np.searchsorted(grid, guard.threshold))
        kept += risks[place] <= share
        shares.append(known[place] / known[0])
    assert kept >= 500 * 0.95 - 3.3 * math.sqrt(500 * 0.95 * 0.05)
    assert len(shares) > 250
    assert np.mean(shares) > fewest


@pytest.mark.ci
def test_points_that_choose_what_is_tried_do_not_try_it() -> None:
    """Where as many answers are wrong as was asked, at any evidence, a guard is made in 5 of 100 draws at the most."""
    rng, made = np.random.default_rng(37), 0
    for _ in range(400):
        seen, _, _ = labels_with(rng.standard_normal(600), rng)
        aims = (rng.random(600) < 0.1).astype(np.int64)
        try:
            calibrate(seen, aims, None, Promise(0.1, None, 0.95), coded=True, widths=None, items=1)
        except InputError:
            continue
        made += 1
    assert made <= 400 * 0.05 + 3.3 * math.sqrt(400 * 0.05 * 0.95)


@pytest.mark.parametrize(("share", "count"), [(0.05, 19), (0.05, 60), (0.1, 9), (0.1, 45)])
@pytest.mark.parametrize("rounded", [False, True])
def test_few_points_keep_what_is_known_and_wrong_rare_on_average(share: float, count: int, rounded: bool) -> None:
    """Many queries may have equal evidence; over 2,000 draws, of which a refused one has none known."""
    rng, held, known = np.random.default_rng(31), [], []
    for _ in range(2000):
        evidence = rng.standard_normal(count + 200)
        seen, aims, wrong = labels_with(np.round(evidence) if rounded else evidence, rng)
        some = np.arange(count + 200) < count
        try:
            guard = calibrate(
                seen.taken(some), aims[some], None, Promise(share, None, None), coded=True, widths=None, items=1
            )
        except InputError:
            held.append(0.0)
            continue
        told = np.asarray(guard.known(seen.taken(~some)), np.bool_)
        held.append(float((told & wrong[~some]).mean()))
        known.append(told.mean())
    assert np.mean(held) <= share + 3.3 * np.std(held) / math.sqrt(2000)
    assert np.mean(known) > 0.25


@pytest.mark.parametrize("strangers", [False, True])
def test_few_points_turn_away_and_let_in_as_few_as_asked_on_average(strangers: bool) -> None:
    """Values may be neither right nor wrong; where there are no strangers, as many may be turned away as asked."""
    rng, away, known = np.random.default_rng(32), [], []
    promise = Promise(0.1, 0.2 if strangers else None, None)
    for _ in range(2000):
        seen, others = seen_with(rng.standard_normal(29)), seen_with(rng.standard_normal(19) - 4.0)
        try:
            threshold = calibrate(seen, None, others, promise, coded=False, widths=None, items=1).threshold
        except InputError:  # the two conflict, and nothing is promised
            threshold = math.nan
        away.append(np.nan_to_num(NORMAL.cdf(threshold)))
        known.append(np.nan_to_num(1.0 - NORMAL.cdf(threshold + 4.0)))
    assert np.mean(away) <= 0.1 + 3.3 * np.std(away) / math.sqrt(2000)
    assert np.mean(known) <= 0.2
    assert np.mean(np.array(away) > 0.0) > 0.9
    assert strangers or abs(np.mean(away) - 0.1) <= 3.3 * np.std(away) / math.sqrt(2000)


def test_few_points_of_which_none_is_known_or_that_conflict_make_no_guard() -> None:
    """Nearly all may be wrong, or strangers like the items."""
    rng, promise = np.random.default_rng(33), Promise(0.1, None, None)
    seen, aims, _ = labels_with(rng.standard_normal(40), rng)
    with pytest.raises(InputError, match=r"no threshold keeps.*Of all, \d\d\.\d% are wrong"):
        calibrate(seen, 1 - aims, None, promise, coded=True, widths=None, items=1)
    seen, others = seen_with(rng.standard_normal(40)), seen_with(rng.standard_normal(40))
    with pytest.raises(InputError, match="the two conflict"):
        calibrate(seen, None, others, Promise(0.1, 0.1, None), coded=False, widths=None, items=1)


@pytest.mark.parametrize("confidence", [0.95, None])
@pytest.mark.parametrize("kind", ["label", "number", "strangers"])
def test_equal_queries_are_known_and_familiar_however_their_evidence_is_rounded(
    kind: str, confidence: float | None
) -> None:
    """A query that is asked alone has evidence that differs in the last places from that among others."""
    for seed in range(20):
        rng = np.random.default_rng([36, seed])
        few = rng.normal(-3.0 * seed, 3.0, 9)
        evidence = few[rng.integers(0, 9, 600)]
        aims = (rng.random(600) < 0.03).astype(np.int64) if kind == "label" else None
        others = seen_with(few.min() + rng.standard_normal(300)) if kind == "strangers" else None
        promise = Promise(0.1, 0.9 if others else None, confidence)
        seen = seen_with(evidence)
        if aims is not None:
            seen = seen._replace(value=np.tile([0.5, 0.5], (600, 1)))
        guard = calibrate(seen, aims, others, promise, coded=aims is not None, widths=None, items=1)
        off = 2e-6 * np.maximum(1.0, np.abs(evidence))
        for moved in (evidence - off, evidence + off, evidence + rng.uniform(-1, 1, 600) * off):
            again = seen._replace(log_mass=moved)
            assert guard.known(again).tolist() == guard.known(seen).tolist()
            assert (guard.familiarity(again) >= guard.evidence.p_values(evidence)).all()


@pytest.mark.parametrize("confidence", [0.95, None])
def test_a_refusal_names_the_least_share_that_is_kept(confidence: float | None) -> None:
    """It is told of wrong answers, and of strangers; a hundredth less is refused."""
    rng = np.random.default_rng(34)
    seen, aims, _ = labels_with(rng.standard_normal(1000) - 2.0, rng)
    others = seen_with(rng.standard_normal(1000) - 3.0)
    how: dict[str, Any] = {"widths": None, "items": 1}
    for promise, given, outside in (
        (Promise(0.05, None, confidence), {"aims": aims, "coded": True}, None),
        (Promise(0.05, 0.2, confidence), {"aims": None, "coded": False}, others),
    ):
        with pytest.raises(InputError, match=r"The least that can be kept here is \w+=0\.\d+") as refused:
            calibrate(seen, strangers=outside, promise=promise, **given, **how)
        named = re.findall(r"(\w+)=(0\.\d+)", str(refused.value).split("The least")[1])
        assert [name for name, _ in named] == ["wrong_at_most", "strangers_at_most"][: 1 + (outside is not None)]
        for name, share in named:
            least = promise._replace(**{name: float(share)})
            calibrate(seen, strangers=outside, promise=least, **given, **how)
            with pytest.raises(InputError, match="no threshold keeps"):
                calibrate(
                    seen, strangers=outside, promise=least._replace(**{name: float(share) - 0.01}), **given, **how
                )
