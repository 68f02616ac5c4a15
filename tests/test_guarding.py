"""Guards of stores: what is promised of answers, kept over many draws; and what makes a guard go stale."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking.profile import Profile
from softkv.database import import_from, repair, restore
from softkv.database.held_out import held_out
from softkv.errors import EmptyStore, InputError, KindError, ShapeError, StoreDamaged, StoreError
from softkv.guard.conformal import heavier
from softkv.guard.judged import seen_of
from softkv.portrait import short

from .databases import KINDS, filled, values_of, vectors_of
from .scales import scaled

FAR = np.full(2, 60.0)


def spots(seed: int, count: int) -> np.ndarray:
    """Points around four places."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 2)) + 4.4 * rng.integers(-1, 1, (count, 2)) + 2.2


def labels_of(points: np.ndarray) -> list[str]:
    """The quadrant, which is noisy near its borders."""
    noise = np.random.default_rng(len(points)).standard_normal(points.shape) * 0.4
    return [f"{x > 0}-{y > 0}" for x, y in (points + noise).tolist()]


def numbers_of(points: np.ndarray) -> np.ndarray:
    """A wave whose noise grows to the right."""
    noise = np.random.default_rng(len(points)).standard_normal(len(points))
    return np.sin(points[:, 0]) + points[:, 1] + 0.1 * np.exp(points[:, 0] / 2) * noise


def store_of(path: Path, kind: str, seed: int = 0, count: int = 600) -> softkv.SoftKV:
    """A tuned store of points."""
    points = spots(seed, count)
    values: Any = labels_of(points) if kind == "label" else numbers_of(points)
    if kind == "vector":
        values = np.stack([values, points[:, 0]], axis=1)
    if kind == "text":
        values = [f"{value:.1f}" for value in values.tolist()]
    embedder = (
        (lambda texts: np.array([[len(text), sum(map(ord, text)) % 7] for text in texts])) if kind == "text" else None
    )
    db = softkv.open(path, value=kind, compatibility="gaussian", embedder=embedder)
    db.add([f"spot {seed} {number}" for number in range(count)], values, vectors=points)
    db.tune()
    return db


@pytest.fixture
def labels(tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """A store of labels with a guard, checked at the end."""
    with store_of(tmp_path / "labels", "label") as db:
        db.guard(wrong_at_most=0.1)
        yield db
        assert db.check().ok


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """A store of numbers with a guard, checked at the end."""
    with store_of(tmp_path / "numbers", "number") as db:
        db.guard()
        yield db
        assert db.check().ok


def without_held(db: softkv.SoftKV) -> np.ndarray:
    """A mask over the items in their order: those that took part in learning."""
    with db.snapshot() as frozen:
        view = frozen._view()
        return ~held_out(view, 0.2)[view.order]


def test_scores_are_those_of_items_asked_of_a_store_without_them(labels: softkv.SoftKV) -> None:
    """Lookups with a mask give them, one item after the other; or of all others, where one of a rank is larger."""
    mask = without_held(labels)
    places = np.flatnonzero(~mask)
    items = [item for item, kept in zip(labels.select(), mask, strict=True) if not kept]
    names, scores = labels.lookup(items[0].vector).labels, []
    for place, item in zip(places, items, strict=True):
        for some in (mask, np.arange(len(mask)) != place):
            found = labels.lookup(item.vector, mask=some, tolerance=0.0)
            scores.append(float(heavier(found.value[None], np.array([names.index(item.value)]))[0]))
    guard = labels.lookup(FAR).guard
    assert guard.scores.count == len(items)
    assert guard.scores.values == pytest.approx(np.maximum(*np.sort(np.reshape(scores, (-1, 2)), axis=0).T), abs=1e-6)
    assert guard.items == mask.sum()


@pytest.mark.slow
def test_promises_hold_over_independent_stores(tmp_path: Path) -> None:
    """Sets and intervals of answers given without those held out; over 12 stores and 200 queries each."""
    held = {(kind, share): 0 for kind in ("label", "number") for share in (0.8, 0.9)}
    wrong = []
    for seed in range(1, 13):
        queries = spots(1000 + seed, 200)
        for kind in ("label", "number"):
            with store_of(tmp_path / f"{kind} {seed}", kind, seed, 400) as db:
                guard = db.guard(wrong_at_most=0.15)
                part = db.lookup(queries, mask=without_held(db), tolerance=0.0)
                found = replace(part, guard=guard)
                for share in (0.8, 0.9):
                    if kind == "label":
                        wanted = labels_of(queries)
                        inside = guard.labels_within(seen_of(found), share)
                        held[kind, share] += sum(
                            inside[n, part.labels.index(one)] for n, one in enumerate(wanted) if one in part.labels
                        )
                    else:
                        low, high = found.interval(share).T
                        truth = numbers_of(queries)
                        held[kind, share] += int(((low <= truth) & (truth <= high)).sum())
                if kind == "label":
                    right = np.array(part.label) == np.array(labels_of(queries))
                    wrong.append((~right[found.known]).mean())
    for (kind, share), count in held.items():
        # The deviation of a mean over 12 beta-binomial shares, each calibrated on about 80 points.
        deviation = math.sqrt(share * (1 - share) * (1 / 80 + 1 / 200) / 12)
        assert count / 2400 >= share - 3.3 * deviation, (kind, share)
        if kind == "number":
            assert count / 2400 <= share + 1 / 80 + 3.3 * deviation
    assert np.mean(np.array(wrong) <= 0.15) >= 0.8  # each is told by a few queries only
    assert np.mean(wrong) < 0.13


@pytest.mark.slow
def test_items_that_share_few_keys_are_known_and_their_intervals_hold(tmp_path: Path) -> None:
    """Equal items move together when all items answer, by a hair, which no threshold may turn on; over 20 stores."""
    held = 0
    for seed in range(20):
        rng = np.random.default_rng([3, seed])
        keys, fresh = 10.0 * rng.integers(0, 2, (1000, 1)), 10.0 * rng.integers(0, 2, (200, 1))
        with softkv.open(tmp_path / str(seed), value="number", compatibility="gaussian") as db:
            db.add(vectors=keys, values=keys[:, 0] + rng.standard_normal(1000))
            db.tune()
            db.guard()
            found = db.lookup(fresh, tolerance=0.0)
        assert found.known.all()
        assert (found.familiarity > 0.3).all()  # half of the items have either key
        held += (np.abs(found.value - fresh[:, 0] - rng.standard_normal(200)) <= found.radius(0.9)).sum()
    # The deviation of a mean over 20 beta-binomial shares, each calibrated on about 200 points.
    assert abs(held / 4000 - 0.9) <= 3.3 * math.sqrt(0.09 * (1 / 200 + 1 / 200) / 20) + 1 / 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["label", "number"])
def test_thresholds_that_keep_wrong_answers_or_strangers_rare_do_not_part_items_that_share_a_key(
    tmp_path: Path, kind: str
) -> None:
    """Each of four keys is known to all who ask by it, as it was to the items held out; over 12 stores."""
    wrong = []
    for seed in range(12):
        rng = np.random.default_rng([4, seed])
        keys, fresh = 3.0 * rng.integers(0, 2, (1000, 2)), 3.0 * rng.integers(0, 2, (500, 2))
        with softkv.open(tmp_path / str(seed), value=kind, compatibility="gaussian") as db:
            names, asked = (np.where(rng.random(len(x)) < 0.04, "?", x[:, 0].astype(str)) for x in (keys, fresh))
            db.add(vectors=keys, values=names.tolist() if kind == "label" else rng.standard_normal(1000))
            db.tune()
            options = {} if kind == "label" else {"strangers_at_most": 0.3, "strangers": spots(seed, 200) + 50.0}
            guard = db.guard(0.12, **options)
            found = db.lookup(fresh, tolerance=0.0)
        assert guard.found["known"] == found.known.mean() == 1.0
        wrong += [] if found.label is None else (np.array(found.label) != asked).tolist()
    assert kind == "number" or np.mean(wrong) < 0.06


@pytest.mark.parametrize("kind", ["label", "number"])
def test_a_small_store_has_a_guard_that_keeps_its_promise_on_average(tmp_path: Path, kind: str) -> None:
    """With too few items for a confidence it says how many that takes; it is kept, and told in words."""
    with store_of(tmp_path / "s", kind, count=150) as db:
        with pytest.raises(InputError, match=r"at least (59|74) items.*confidence=None, on average, takes 19\."):
            db.guard()
        with pytest.raises(InputError, match=r"at least 99 items that took no part.*so much on average, got"):
            db.guard(0.01, confidence=None)
        guard = db.guard(confidence=None)
        assert guard.evidence.count < 40
        wrong = f"{guard.found['known'] * (guard.found['wrong'] or 0.0):.1%} of all are known and wrong (at most 5% "
        assert (wrong if kind == "label" else "(at least 95% ") + "promised, on average)" in str(guard)
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.info().guard == str(guard)
        assert db.lookup([[2.2, 2.2], FAR]).known.tolist() == [True, False]
        assert db.lookup([2.2, 2.2]).promised["share"] == 0.9


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["label", "number"])
def test_familiarity_of_queries_like_those_that_calibrate_is_uniform(tmp_path: Path, kind: str) -> None:
    """Over 12 stores, 200 real lookups each have it so; sets of labels are empty where nothing is known alone."""
    levels, held = np.array([0.1, 0.25, 0.5, 0.75, 0.9]), np.zeros(5)
    for seed in range(12):
        asked, answers = spots(2000 + seed, 199), labels_of if kind == "label" else numbers_of
        with store_of(tmp_path / str(seed), kind, seed, 300) as db:
            db.guard(0.2, queries=asked, answers=answers(asked))
            found = db.lookup(spots(3000 + seed, 200), tolerance=0.0)
        held += (found.familiarity[:, None] <= levels).mean(0) / 12
        if kind == "label":
            assert [bool(one) for one in found.labels_within(0.9)] == found.known.tolist()
    # The deviation of a mean over 12 beta-binomial shares, each calibrated on 199 points.
    assert (np.abs(held - levels) <= 3.3 * np.sqrt(levels * (1 - levels) * (1 / 200 + 1 / 201) / 12)).all(), held


def test_evidence_is_the_log_mass_per_item_and_of_labels_four_logits_of_the_largest_share(tmp_path: Path) -> None:
    """Evidence is worked out by hand from what the answer says."""
    for kind in ("label", "number"):
        with store_of(tmp_path / kind, kind) as db:
            db.guard(0.2)
            found = db.lookup([2.2, 0.3])
        largest = float(np.max(found.value)) if kind == "label" else 0.5
        by_hand = found.log_mass - math.log(600) + 4.0 * math.log(largest / (1.0 - largest))
        assert found.guard.evidence_of(seen_of(found)) == pytest.approx([by_hand], rel=1e-6)


def test_intervals_go_by_how_far_items_lie_from_planes(tmp_path: Path) -> None:
    """Where numbers rise steeply they are as wide as the noise is there, and not as the slope is high."""
    rng = np.random.default_rng(8)
    x, asked = rng.uniform(-3, 3, (1200, 2)), rng.uniform(-2.5, 2.5, (1000, 2))
    values, wanted = (40 * one[:, 0] + np.exp(one[:, 0]) * rng.standard_normal(len(one)) for one in (x, asked))
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        db.add(vectors=x, values=values)
        db.tune()
        assert db.fit(planes=True).planes
        db.guard()
        found = db.lookup(asked, tolerance=0.0)
        assert found.routes == {"scan": 1000}
    radii, noisy = found.radius(0.9), asked[:, 0] > 0
    # The deviation of a beta-binomial share, calibrated on about 240 points.
    assert abs((np.abs(found.value - wanted) <= radii).mean() - 0.9) <= 3.3 * math.sqrt(0.09 * (1 / 240 + 1 / 1000))
    assert radii[noisy].mean() > 2.5 * radii[~noisy].mean()
    assert radii[~noisy].mean() < 3.0


def test_observed_figures_are_told_in_words_and_in_info(labels: softkv.SoftKV) -> None:
    """How many are known, how many of these wrong, and what was promised."""
    found = labels.guard(wrong_at_most=0.1, strangers_at_most=0.2, strangers=spots(9, 100) + 40.0)
    assert found.found["strangers"] == 0.0
    assert 0.5 < found.found["known"] <= 0.99
    assert found.found["wrong"] < 0.1
    assert 0.8 < found.found["within"] <= 1.0
    assert labels.info().guard == str(found)
    assert str(found).split("; ") == [
        f"{found.found['known']:.1%} of {found.evidence.count} items that took no part in learning are known",
        f"{found.found['wrong']:.1%} of the known are wrong (at most 10% promised, sure to 95%)",
        "0.0% of strangers are known (at most 20% promised, sure to 95%)",
        f"where all items answer, labels_within(0.9) held what is right for {found.found['within']:.1%}",
    ]


@pytest.mark.parametrize(("kind", "what"), [("number", "interval"), ("vector", "radius")])
def test_figures_name_what_an_answer_is_asked_for(tmp_path: Path, kind: str, what: str) -> None:
    """How many are known is what is promised there; strangers without a share are measured, which is said."""
    with store_of(tmp_path / "s", kind) as db:
        told = str(db.guard(strangers=spots(9, 100) + 40.0))
    assert "are known (at least 95% promised, sure to 95%); 0.0% of strangers are known (measured, not promised" in told
    assert f"where all items answer, {what}(0.9) held what is right for " in told


def test_a_guard_that_was_made_before_says_what_was_seen(numbers: softkv.SoftKV) -> None:
    """The share that is known had another name."""
    settings, told = Profile.of(numbers._store.settings).settings(), numbers.info().guard
    found = {"answered" if name == "known" else name: one for name, one in settings["guard"]["found"].items()}
    assert "answered" in found
    numbers._store.configure({**settings, "guard": {**settings["guard"], "found": found}})
    assert numbers.info().guard == told


@pytest.mark.parametrize("kind", KINDS)
def test_far_queries_are_not_known_and_near_ones_are(tmp_path: Path, kind: str) -> None:
    """Any kind of value tells, alone and among others, in tables and JSON, and from the store opened anew."""
    with store_of(tmp_path / "s", kind) as db:
        assert db.lookup(FAR).known is None
        assert db.lookup(FAR).familiarity is None
        assert db.lookup(FAR).why_unknown is None
        guard = db.guard(wrong_at_most=0.1)
    with softkv.open(tmp_path / "s", "r") as db:
        middle, far = db.lookup([2.2, 2.2]), db.lookup(FAR)
        assert (middle.known, far.known) == (True, False)
        assert middle.why_unknown is None
        assert far.why_unknown.endswith(f"below the threshold of {guard.threshold:.4g}")
        assert far.familiarity == pytest.approx(1 / (guard.evidence.count + 1))
        assert 0.1 < middle.familiarity <= 1.0
        assert repr(far).startswith("not known (closest: ")
        assert not repr(middle).startswith("not known")
        told = json.loads(far.to_json())
        assert (told["known"], told["why_unknown"]) == (False, far.why_unknown)
        assert far.promised is None
        assert "promised" not in told
        assert "in 9 of 10" not in repr(far)
        many = db.lookup(np.stack([[2.2, 2.2], FAR]))
        assert many.known.tolist() == [True, False]
        assert many.why_unknown is None
        assert many.familiarity.tolist() == [middle.familiarity, far.familiarity]
        assert [one.known for one in many] == [True, False]


def test_labels_come_as_sets(labels: softkv.SoftKV) -> None:
    """One label where it is clear, more at a border, none where nothing is known; the heaviest first."""
    clear, border = labels.lookup([2.2, 2.2]), labels.lookup([2.2, 0.0])
    assert clear.labels_within(0.9) == ("True-True",)
    assert (clear.known, border.known) == (True, False)
    assert border.labels_within(0.95) == ()
    wide = replace(border, guard=replace(border.guard, threshold=-math.inf)).labels_within(0.99)
    assert set(wide) == {"True-True", "True-False"}
    assert wide[0] == border.label
    assert labels.lookup(FAR).labels_within(0.9) == ()
    many = labels.lookup([[2.2, 2.2], [2.2, 0.0], FAR]).labels_within(0.95)
    assert [len(one) for one in many] == [1, 0, 0]
    assert clear.to_dict()["promised"] == {"share": 0.9, "labels_within": ["True-True"]}
    with pytest.raises(KindError, match="numbers or vectors"):
        clear.interval()


def test_no_set_is_promised_where_too_many_labels_are_of_no_item(tmp_path: Path) -> None:
    """None is of items held out whose labels nobody that answers has, nor of queries."""
    points = spots(4, 600)
    with softkv.open(tmp_path / "s", value="label", compatibility="gaussian") as db:
        alone = np.random.default_rng(0).random(600) < 0.2
        named = zip(labels_of(points), alone, strict=True)
        db.add(values=[f"alone {n}" if one else label for n, (label, one) in enumerate(named)], vectors=points)
        db.tune()
        db.guard(wrong_at_most=0.4)
        found = db.lookup([2.2, 2.2])
        assert found.known
        assert found.promised is None
        assert found.labels_within(0.5) == ("True-True",)
        for one in (found, db.lookup(spots(5, 3))):
            with pytest.raises(InputError, match=r"at most 0\.[78].*some with labels of no item.*got 0\.9"):
                one.labels_within(0.9)


def test_numbers_come_with_intervals_that_are_wider_where_values_are_noisier(numbers: softkv.SoftKV) -> None:
    """Around the value, wider for more; of one answer a pair, of many a matrix; told in the place of the spread."""
    here = numbers.lookup([-2.2, 2.2])
    low, high = here.interval(0.9)
    assert repr(here).startswith(f"{short(here.value)}, {short(low)} to {short(high)} in 9 of 10\n")
    assert f"(values spread by {short(here.spread)})" in repr(replace(here, guard=None))
    assert low < here.value < high
    assert here.radius(0.9) == pytest.approx((high - low) / 2)
    assert here.radius(0.5) < here.radius(0.95)
    assert numbers.lookup([3.5, 2.2]).radius(0.9) > here.radius(0.9)
    assert numbers.lookup([[-2.2, 2.2], [2.2, 2.2]]).interval(0.9)[0].tolist() == pytest.approx([low, high])
    assert here.to_dict()["promised"] == {"share": 0.9, "interval": [low, high]}
    with pytest.raises(KindError, match="labels"):
        here.labels_within()


def test_vectors_have_a_radius(tmp_path: Path) -> None:
    """A guard of vectors says a radius, and no interval."""
    with store_of(tmp_path / "s", "vector") as db:
        db.guard()
        found = db.lookup([2.2, 2.2])
        assert f", within {short(found.radius(0.9))} in 9 of 10\n" in repr(found)
        assert 0.0 < found.radius(0.8) < found.radius(0.95)
        assert found.to_dict()["promised"] == {"share": 0.9, "radius": found.radius(0.9)}
        with pytest.raises(KindError, match="radius"):
            found.interval()


@pytest.mark.parametrize(("kind", "precision"), [("vector", 2.0**-23), ("number", 2.0**-52)])
def test_values_that_repeat_are_held_whatever_rounds_them(tmp_path: Path, kind: str, precision: float) -> None:
    """A value for each of ten clusters, in float64; calibration finds no distance, others find a few roundings."""
    rng = np.random.default_rng(0)
    middles, values = 10.0 * rng.standard_normal((10, 3)), rng.standard_normal((10, 3))
    clusters, asked = rng.integers(0, 10, 6000), rng.integers(0, 10, 500)
    if kind == "number":
        values = values[:, 0]

    def points(some: np.ndarray) -> np.ndarray:
        return middles[some] + 0.1 * rng.standard_normal((len(some), 3))

    with softkv.open(tmp_path / "s", compatibility="gaussian", value=kind) as db:
        db.add(vectors=points(clusters), values=values[clusters])
        db.tune()
        db.guard()
        found = db.lookup(points(asked))
        apart = np.linalg.norm((found.value - values[asked]).reshape(500, -1), axis=1)
        assert (apart > 0.0).mean() > 0.1
        assert (apart <= found.radius(0.9)).mean() >= 0.9
        size = np.linalg.norm(found.value.reshape(500, -1), axis=1)
        assert (found.radius(0.9) <= 8.0 * precision * size).all()


def test_texts_are_known_or_not_and_promise_no_more(tmp_path: Path) -> None:
    """Their means are right for nobody."""
    with store_of(tmp_path / "s", "text") as db:
        db.guard()
        found = db.lookup([2.2, 2.2])
        assert "promised" not in found.to_dict()
        for ask in (found.radius, found.labels_within):
            with pytest.raises(KindError, match="for `known`"):
                ask()


def test_an_estimate_that_straddles_the_threshold_is_neither_known_nor_unknown(numbers: softkv.SoftKV) -> None:
    """Neither known nor unknown is an estimate that straddles the threshold, or whose error nobody knows."""
    found = numbers.lookup([[2.2, 2.2], FAR])
    guard = found.guard
    edge = replace(guard, threshold=float(guard.evidence_of(seen_of(found))[0]) - 0.1)
    told = {"guard": edge, "error_kind": "calibrated", "error": np.full(2, 0.01)}
    assert found.known.tolist() == [True, False]
    assert replace(found, **told, log_mass_error=np.array([0.05, 0.05])).known.tolist() == [True, False]
    unsure = replace(found, **told, log_mass_error=np.array([0.2, 0.2]))
    assert unsure.known.tolist() == [None, False]
    assert unsure[0].known is None
    assert unsure.familiarity.tolist() == [None, found.familiarity[1]]
    assert unsure[0].familiarity is None
    assert unsure[0].why_unknown.endswith("tolerance=0.")
    assert replace(found, **told, log_mass_error=None).known.tolist() == [None, None]


def test_an_estimate_is_at_least_as_familiar_as_the_exact_answer(numbers: softkv.SoftKV) -> None:
    """A share of queries that is told too small would say that too many are strange."""
    found, rng = numbers.lookup(spots(6, 400)), np.random.default_rng(6)
    off = {"log_mass": found.log_mass + rng.uniform(-0.1, 0.1, 400), "log_mass_error": np.full(400, 0.1)}
    rough = replace(found, error_kind="calibrated", error=np.full(400, 0.01), **off).familiarity
    told = [(mine, exact) for mine, exact in zip(rough, found.familiarity, strict=True) if mine is not None]
    assert len(told) > 350
    assert all(exact <= mine <= exact + 0.2 for mine, exact in told)


def test_the_interval_of_an_estimate_holds_that_of_the_exact_answer(numbers: softkv.SoftKV) -> None:
    """Value and width may be off in any way within the errors that are stated."""
    found, rng = numbers.lookup(spots(6, 400)), np.random.default_rng(6)
    exact = found.interval(0.9)
    errors = {"value": 0.3, "log_mass": 0.2, "spread": found.spread * 0.5, "effective": 5.0}
    for scale in (0.0, 0.1, 1.0):
        estimate = replace(
            found,
            **{one: getattr(found, one) + rng.uniform(-scale, scale, 400) * off for one, off in errors.items()},
            error_kind="measured",
            **{f"{one}_error".replace("value_", ""): np.full(400, scale * off) for one, off in errors.items()},
        )
        wide = estimate.interval(0.9)
        assert (wide[:, 0] <= exact[:, 0] + 1e-9).all()
        assert (wide[:, 1] >= exact[:, 1] - 1e-9).all()


def test_the_set_of_an_answer_by_an_index_holds_that_of_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does where the error that it states holds, which is in 99 of 100 answers at the least."""
    scaled(monkeypatch, cheap=0)
    queries = spots(78, 200)
    with store_of(tmp_path / "s", "label", count=3000) as db:
        guard = db.guard(0.1)
        exact = db.lookup(queries, tolerance=0.0)
        db.build_index()
        found = db.lookup(queries)
        assert found.routes["calibrated"] > 100
        sound = np.linalg.norm(found.value - exact.value, axis=1) <= found.error
        sets = [guard.labels_within(seen_of(one), 0.99) for one in (exact, found)]
    assert sound.mean() > 0.98
    assert (sets[1] >= sets[0])[sound].all()


def test_answers_by_an_index_are_known_as_scans_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers by an index are known as those of scans are, or not told where the error straddles the threshold."""
    scaled(monkeypatch, cheap=0)
    queries = spots(77, 200)
    with store_of(tmp_path / "s", "number", count=3000) as db:
        db.guard()
        scanned = db.lookup(queries, tolerance=0.0).known
        db.build_index()
        found = db.lookup(queries)
        assert found.routes["calibrated"] > 150
        told = [(a, b) for a, b in zip(found.known.tolist(), scanned.tolist(), strict=True) if a is not None]
        assert len(told) > 150
        assert all(a == b for a, b in told)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda db: db.set_temperature(3.0), "is about temperature"),
        (lambda db: db.tune(compatibility="laplace"), "is about comparing by 'gaussian'"),
        (lambda db: db.fit(planes=False), "has learned to compare otherwise"),
        (lambda db: db.delete([f"spot 0 {n}" for n in range(60)]), "60 items changed"),
        (lambda db: db.add(values=values_of("number", 60), vectors=vectors_of(60, 2)), "60 items changed"),
        (lambda db: db.set_values([f"spot 0 {n}" for n in range(60)], [0.0] * 60), "60 items changed"),
    ],
)
def test_a_guard_goes_stale_and_answers_say_why(numbers: softkv.SoftKV, change: Any, why: str) -> None:
    """Nothing is known or unknown then, and nothing is promised, until it is made again."""
    change(numbers)
    found = numbers.lookup([2.2, 2.2])
    assert (found.known, found.familiarity) == (None, None)
    assert why in found.why_unknown
    assert why in found.to_dict()["why_unknown"]
    with pytest.raises(InputError, match=why):
        found.interval()
    assert why in numbers.info().guard


def test_a_guard_goes_stale_when_items_are_embedded_anew(tmp_path: Path) -> None:
    """Its evidence was that of other vectors."""
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        db.add([f"{word} {n}" for word in ("tea", "sea") for n in range(200)], np.arange(400.0))
        db.tune()
        db.guard()
        assert db.lookup("tea 3").known
        db.reembed(lambda texts: np.array([[len(text), 1.0, ord(text[0])] for text in texts], np.float32))
        assert "embedded anew" in db.lookup("tea 3").why_unknown
        assert "embedded anew" in db.info().guard


def test_few_changes_leave_a_guard_also_through_a_compaction(numbers: softkv.SoftKV) -> None:
    """Those before and after it add up, to less than a tenth and then to one."""
    numbers.delete([f"spot 0 {n}" for n in range(30)])
    numbers.compact()  # to 570 items
    numbers.add(values=values_of("number", 26), vectors=vectors_of(26, 2))
    assert numbers.lookup([2.2, 2.2]).known
    numbers.set_values(["spot 0 40"], [0.0])
    assert numbers.lookup([2.2, 2.2]).known is None


def test_a_compaction_while_it_is_made_refuses_a_guard(numbers: softkv.SoftKV) -> None:
    """It counts changes by rows, which have moved; the guard there was stays."""
    before = numbers.info().guard
    numbers.delete([f"spot 0 {n}" for n in range(30)])
    with pytest.raises(StoreError, match="compacted while the guard was made"):
        numbers.guard(0.1, progress=lambda *_: numbers.compact())
    assert numbers.info().guard == before


@pytest.mark.parametrize(
    "options", [{"k": 5}, {"where": {"a": 1}}, {"temperature": 0.123}, {"compatibility": "laplace"}, {"mask": True}]
)
def test_answers_to_other_questions_are_not_judged(numbers: softkv.SoftKV, options: dict[str, Any]) -> None:
    """They are not those that the guard was calibrated on."""
    numbers.add(["a"], [1.0], vectors=[[0.0, 0.0]], payloads=[{"a": 1}])
    if "mask" in options:
        options = {"mask": np.ones(len(numbers), np.bool_)}
    found = numbers.lookup([2.2, 2.2], **options)
    assert found.known is None
    assert "the guard is about" in found.why_unknown


def test_answers_to_items_that_ask_are_not_judged(numbers: softkv.SoftKV) -> None:
    """Each is among those that answer it."""
    found = numbers.self_attention()
    assert found.known is None
    with pytest.raises(InputError, match="not about items that ask"):
        found.interval()


def embedded(texts: list[str]) -> np.ndarray:
    """Places that numbers in texts tell."""
    told = np.array([int("".join(filter(str.isdigit, text)) or len(text)) for text in texts])
    return np.stack([np.sin(told), told / 100.0 + 1.0], axis=1).astype(np.float32)


def indexed_twice(db: softkv.SoftKV) -> None:
    """Make lists, and refine them for a replaced item."""
    db.build_index()
    db.set_values(["spot 3"], [0.0])
    db.build_index()


@pytest.mark.parametrize(
    "road",
    [
        softkv.SoftKV.compact,
        softkv.SoftKV.build_index,
        indexed_twice,
        lambda db: db.reembed(embedded),
        lambda db: (db.reembed(lambda texts: 2.0 * embedded(texts)), db.reembed(embedded)),
    ],
    ids=["compact", "build_index", "refine", "reembed", "there and back"],
)
def test_a_stale_guard_stays_stale_wherever_rows_are_laid_out_anew(tmp_path: Path, road: Any) -> None:
    """No row tells any more that an item was replaced; what had changed until then is not forgotten."""
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian", embedder=embedded) as db:
        db.add([f"spot {n}" for n in range(400)], numbers_of(embedded([f"spot {n}" for n in range(400)])))
        db.tune()
        db.guard()
        assert db.lookup("spot 7").known
        db.set_values([f"spot {n}" for n in range(100)], [0.0] * 100)
        assert "100 items changed" in db.info().guard
        temperature = db.info().temperature
        road(db)
        db.set_temperature(temperature)
        assert re.search("10[01] items changed", db.info().guard)
        assert db.lookup("spot 7").known is None
        assert db.check().ok


def test_an_interrupted_reembedding_goes_on_with_what_a_guard_counted(tmp_path: Path) -> None:
    """It is begun and ended with the same settings, and a guard of few changes holds all the time."""

    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian", embedder=embedded) as db:
        db.add([f"spot {n}" for n in range(400)], numbers_of(embedded([f"spot {n}" for n in range(400)])))
        db.tune()
        db.guard()
        temperature = db.info().temperature
        db.set_values([f"spot {n}" for n in range(30)], [0.0] * 30)
        with pytest.raises(KeyboardInterrupt):
            db.reembed(embedded, progress=interrupted)
        assert db.lookup("spot 7").known
        assert db.reembed(embedded) == 400
        db.set_temperature(temperature)
        assert db.lookup("spot 7").known
        db.set_values([f"spot {n}" for n in range(30, 40)], [0.0] * 10)
        assert "40 items changed" in db.info().guard


@pytest.mark.parametrize("suffix", [".jsonl", ".npz", ".parquet"])
def test_a_guard_travels_with_its_items(numbers: softkv.SoftKV, tmp_path: Path, suffix: str) -> None:
    """Export and import, repair, backup and restore take it along; and what had changed is not forgotten."""
    numbers.delete([f"spot 0 {n}" for n in range(20)])
    numbers.set_values([f"spot 0 {n}" for n in range(20, 40)], [0.0] * 20)
    before = numbers.lookup(spots(5, 20))
    numbers.export(tmp_path / f"out{suffix}")
    import_from(tmp_path / f"out{suffix}", tmp_path / "new")
    repair(numbers.path, tmp_path / "repaired")
    numbers.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    for name in ("new", "repaired", "restored"):
        with softkv.open(tmp_path / name) as db:
            found = db.lookup(spots(5, 20))
            assert found.known.tolist() == before.known.tolist()
            assert found.interval() == pytest.approx(before.interval(), rel=1e-4)
            db.delete([f"spot 0 {n}" for n in range(40, 65)])
            assert db.lookup(FAR).known is None


def test_a_guard_is_dropped(numbers: softkv.SoftKV) -> None:
    """It can be dropped once; after that there is none."""
    assert numbers.forget_guard()
    assert not numbers.forget_guard()
    assert numbers.info().guard is None
    assert numbers.lookup(FAR).known is None


def test_queries_calibrate_in_the_place_of_items(tmp_path: Path) -> None:
    """All items answer them, so a store that learned from all of its items may have a guard."""
    with store_of(tmp_path / "s", "number") as db:
        db.tune(hold_out=0)
        queries = spots(50, 300)
        found = db.guard(queries=queries, answers=numbers_of(queries))
        assert (found.items, found.evidence.count, found.found["who"]) == (600, 300, "queries")
        fresh = spots(51, 2000)
        low, high = db.lookup(fresh, tolerance=0.0).interval(0.9).T
        truth = numbers_of(fresh)
        assert 0.84 < ((low <= truth) & (truth <= high)).mean() < 0.95


def test_queries_that_are_items_are_left_out_whatever_they_should_be_answered(tmp_path: Path) -> None:
    """Their vectors tell them, of which -0 is 0; they are counted, and the guard is that of the others."""
    with store_of(tmp_path / "s", "number") as db:
        db.add(["zero"], [0.0], vectors=[[0.0, 1.0]])
        others, items = spots(50, 300), np.concatenate([spots(0, 600)[:20], [[-0.0, 1.0]]])
        expected = db.guard(queries=others, answers=numbers_of(others))
        for answers in (np.zeros(21), np.full(21, 1e6)):
            asked = np.concatenate([items, others]), np.concatenate([answers, numbers_of(others)])
            found = db.guard(queries=asked[0], answers=asked[1])
            assert found.found == {**expected.found, "left_out": 21}
            assert found.to_json()["scores"] == expected.to_json()["scores"]
            assert found.threshold == expected.threshold
        assert str(found).endswith("; 21 more are items, or have the vector of one, and were left out")
        assert str(found).startswith(str(expected).split("; ")[0])
        with pytest.raises(
            InputError, match=r"at least 59 queries beside the 21 that are items, or have.*got 38\. Give"
        ):
            db.guard(queries=asked[0][:59], answers=asked[1][:59])


def test_queries_that_have_the_vector_of_an_item_in_other_words_are_left_out(tmp_path: Path) -> None:
    """`please whisper` has that of `whisper please`, where the order of words does not count."""
    with softkv.open(tmp_path / "s", value="number") as db:
        texts = [f"{word} number {n}" for word in ("tea", "coffee", "milk") for n in range(120)]
        db.add(["please whisper", *texts], np.arange(361.0))
        queries = [f"{word} of {n}" for word in ("tea", "coffee") for n in range(50)]
        asked = ["whisper please", "tea number 8", *queries]
        assert db.guard(queries=asked, answers=np.arange(102.0)).found["left_out"] == 2


def test_after_fit_only_items_that_fit_left_out_will_do(tmp_path: Path) -> None:
    """A guard takes items that neither `fit` learned from nor the `tune` against which `fit` was measured."""
    with store_of(tmp_path / "s", "number") as db:
        assert db.fit(planes=False).kept
        db.guard()
        assert db.lookup([2.2, 2.2]).known
        db.fit(planes=False, hold_out=0)
        with pytest.raises(InputError, match="learned from all of its items"):
            db.guard()
        db.fit(planes=False, hold_out=0.3)
        guard = db.guard()
        db.tune(hold_out=0.15)
        assert db.guard().evidence.count < guard.evidence.count
        assert db.lookup([2.2, 2.2]).known


STRANGERS = spots(60, 100) + 50.0


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        ("number", {"wrong_at_most": 0.0}, InputError, "wrong_at_most"),
        ("number", {"wrong_at_most": True}, InputError, "wrong_at_most"),
        (
            "number",
            {"wrong_at_most": 1e-17},
            InputError,
            "wrong_at_most to be a number between 0 and 1, at least 1e-09",
        ),
        ("number", {"confidence": 1.0}, InputError, "confidence"),
        ("number", {"confidence": 1e-17}, InputError, "confidence"),
        ("number", {"strangers_at_most": 1.5, "strangers": STRANGERS}, InputError, "strangers_at_most"),
        ("number", {"strangers_at_most": 0.1}, InputError, "expected strangers"),
        ("number", {"strangers_at_most": 0.01, "strangers": STRANGERS}, InputError, "at least 374 strangers"),
        ("number", {"wrong_at_most": 0.001}, InputError, "at least 2995 items that took no part"),
        ("label", {"wrong_at_most": 0.001}, InputError, "at least 3744 items"),
        (
            "number",
            {"wrong_at_most": 0.001, "strangers_at_most": 0.1, "strangers": STRANGERS},
            InputError,
            "at least 3744 items",
        ),
        (
            "number",
            {"strangers_at_most": 0.1, "strangers": spots(61, 100)},
            InputError,
            r"no threshold keeps wrong_at_most=0.05 and strangers_at_most=0.1 with.*% of strangers are known",
        ),
        ("number", {"strangers": spots(0, 600)[:5]}, InputError, "5 of 5 are or have: number 0, number 1, "),
        ("number", {"strangers": spots(0, 600)[:11]}, InputError, r"number 9 and 1 more\. Leave"),
        (
            "number",
            {"queries": spots(0, 600)[:1], "answers": [1.0]},
            InputError,
            "59 queries beside the 1 that are items",
        ),
        ("number", {"queries": STRANGERS}, InputError, "together"),
        ("number", {"answers": [1.0]}, InputError, "together"),
        ("number", {"queries": STRANGERS, "answers": [1.0]}, ShapeError, "an answer for each of 100 queries"),
        ("number", {"queries": STRANGERS, "answers": ["a"] * 100}, KindError, "numbers"),
        ("label", {"queries": STRANGERS, "answers": [1.0] * 100}, KindError, "labels"),
        ("number", {"strangers": [[1.0, 2.0, 3.0]]}, ShapeError, "width 3"),
        ("number", {"strangers": [1.0, 2.0]}, ShapeError, "many queries"),
    ],
)
def test_what_cannot_be_promised_is_refused_by_name(
    tmp_path: Path, kind: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The refusal comes before anything is written."""
    with store_of(tmp_path / "s", kind) as db:
        commit = db.info().commit
        with pytest.raises(error, match=message):
            db.guard(**options)
        assert db.info().commit == commit


def test_labels_that_nobody_can_tell_are_never_known_so_the_guard_is_refused(tmp_path: Path) -> None:
    """A guard of labels that nobody can tell is refused, with how many are wrong."""
    with filled(tmp_path / "s", "label", 600) as db:
        db.tune()
        with pytest.raises(
            InputError,
            match=r"no threshold keeps wrong_at_most=0.05 with confidence 0.95\. Of all, .*% are wrong\. The least",
        ):
            db.guard()
        assert db.info().guard is None


def test_a_store_that_kept_nothing_back_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """It was never tuned, tuned on all, tuned before a share was remembered, or is empty."""
    with filled(tmp_path / "s", "number", 400) as db:
        with pytest.raises(InputError, match=r"was never tuned.*softkv tune"):
            db.guard()
        db.tune(hold_out=0)
        for _ in range(2):
            with pytest.raises(InputError, match=r"has learned from all of its items.*softkv tune"):
                db.guard()
            settings = Profile.of(db._store.settings).settings()
            tuned = {name: one for name, one in settings["temperature"].items() if name not in ("held", "last")}
            db._store.configure({**settings, "temperature": tuned})
        db.clear()
        with pytest.raises(EmptyStore):
            db.guard()


def test_more_than_the_points_can_promise_is_refused(numbers: softkv.SoftKV) -> None:
    """A share that so few points cannot promise is refused, and so is what is no share."""
    found = numbers.lookup([2.2, 2.2])
    with pytest.raises(InputError, match=r"which is what \d+ items that took no part in learning can promise"):
        found.interval(0.999)
    for share in (0.0, 1.0, -1, "0.9", True, math.nan):
        with pytest.raises(InputError, match="between 0 and 1"):
            found.interval(share)


def test_a_guard_that_cannot_be_read_is_damage(numbers: softkv.SoftKV) -> None:
    """The settings hold it; so is one that is about values of another kind, by its name."""
    settings = Profile.of(numbers._store.settings).settings()
    other = {**settings["guard"], "about": {**settings["guard"]["about"], "kind": "label"}}
    numbers._store.configure({**settings, "guard": other})
    with pytest.raises(StoreDamaged, match="is about values of kind 'label'"):
        numbers.lookup([2.2, 2.2])
    for wrong in (
        {},
        other,
        {**settings["guard"], "evidence": {"count": 3, "values": ""}},
        {**settings["guard"], "base": [1]},
    ):
        numbers._store.configure({**settings, "guard": wrong})
        with pytest.raises(StoreDamaged, match="guard"):
            numbers.lookup([2.2, 2.2])
        for work in (numbers.compact, numbers.info, lambda: numbers.export(numbers.path + ".jsonl")):
            with pytest.raises(StoreDamaged, match=r"guard.*forget_guard"):
                work()
    numbers._store.configure(settings)
    assert numbers.lookup([2.2, 2.2]).known


def test_strangers_whose_words_are_those_of_items_are_refused(tmp_path: Path) -> None:
    """Keys are compared, and the texts that were embedded."""
    with softkv.open(tmp_path / "s", value="number") as db:
        texts = [f"{word} number {n}" for word in ("tea", "coffee", "milk") for n in range(120)]
        db.add([f"item {n}" for n in range(len(texts))], np.arange(float(len(texts))), texts=texts)
        db.tune()
        for known in ("item 7", "tea number 7"):
            with pytest.raises(InputError, match=f"1 of 2 are or have: '{known}'"):
                db.guard(strangers=["a boat on the river", known])
            with pytest.raises(InputError, match=f"1 of 2 are or have: '{known}'"):
                db.guard(strangers=np.array(["a boat on the river", known]))
