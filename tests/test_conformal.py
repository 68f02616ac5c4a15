"""Ranks among exchangeable scores: quantiles, p-values and sets, beside slow ones and over many draws."""

import math
from fractions import Fraction

import numpy as np
import pytest

from softkv.guard.conformal import Ranked, fewest_points, heavier, within


def quantile_of(scores: list[float], share: Fraction) -> float:
    """The k-th smallest, k = ceil((n + 1) share), by counting."""
    rank = math.ceil((len(scores) + 1) * share)
    return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf


def set_of(shares: list[float], most: float) -> list[bool]:
    """Every label beside which no more than `most` is heavier, one label after the other."""
    return [sum(other for other in shares if other > own) <= most for own in shares]


@pytest.mark.parametrize("count", [1, 9, 10, 99, 100, 400])
@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(4, 5), Fraction(9, 10), Fraction(19, 20)])
def test_a_quantile_is_the_score_of_its_rank(count: int, share: Fraction) -> None:
    """It is exactly so up to 400 scores, however the share is rounded as a float."""
    scores = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    assert Ranked.of(scores).quantile(float(share)) == quantile_of(scores.tolist(), share)
    assert (Ranked.of(scores).quantile(float(share)) < math.inf) == (count >= fewest_points(float(share)))


def test_a_p_value_counts_the_scores_that_are_as_low() -> None:
    """A p-value counts the scores that are as low as the one asked about, and that one."""
    ranked = Ranked.of(np.array([1.0, 2.0, 2.0, 5.0]))
    assert ranked.p_values(np.array([0.0, 1.0, 2.0, 4.0, 9.0])).tolist() == [0.2, 0.4, 0.8, 0.8, 1.0]


def test_of_many_scores_some_are_kept_and_what_lies_between_is_cautious() -> None:
    """A quantile is none too low, and a p-value none too small, and both by little."""
    scores = np.random.default_rng(0).standard_normal(7000).astype(np.float32)
    ranked = Ranked.of(scores)
    assert len(ranked.values) <= 400
    for share in np.linspace(0.01, 0.99, 99).tolist():
        exact = quantile_of(scores.tolist(), Fraction(share).limit_denominator(100))
        assert exact <= ranked.quantile(share) <= quantile_of(scores.tolist(), Fraction(share + 0.005))
    asked = np.linspace(-4.0, 4.0, 200)
    exact = ((scores[None, :] <= asked[:, None]).sum(1) + 1) / 7001
    found = ranked.p_values(asked)
    assert (found >= exact).all()
    assert (found <= exact + 0.005).all()


@pytest.mark.parametrize("count", [25, 3000])
def test_familiarity_of_one_more_is_uniform(count: int) -> None:
    """All scores are drawn again and again: no p-value is too often small, nor by more than 1% too seldom."""
    rng, found = np.random.default_rng(5), []
    for _ in range(2000):
        scores = rng.standard_exponential(count + 1)
        found.append(float(Ranked.of(scores[:-1]).p_values(scores[-1:])[0]))
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        held = np.mean(np.array(found) <= level)
        expected = math.floor(level * (count + 1)) / (count + 1)
        deviation = math.sqrt(expected * (1 - expected) / 2000)
        assert expected - 0.01 - 3.3 * deviation <= held <= expected + 3.3 * deviation


@pytest.mark.parametrize("share", [0.8, 0.9, 0.95])
def test_a_new_score_is_within_the_quantile_as_often_as_promised(share: float) -> None:
    """Independent draws show it, within the range of 99.9% of a binomial count."""
    rng, count = np.random.default_rng(7), 99
    held = sum(
        bool(scores[-1] <= Ranked.of(scores[:-1]).quantile(share))
        for scores in (rng.standard_normal(count + 1) ** 2 for _ in range(4000))
    )
    expected = math.ceil(round((count + 1) * share, 9)) / (count + 1)
    assert abs(held / 4000 - expected) <= 3.3 * math.sqrt(expected * (1 - expected) / 4000)


def test_sets_are_those_of_the_definition_also_where_labels_are_equal() -> None:
    """Small enough for paper: beside 0.4 nothing is heavier, beside 0.3 there is 0.4, beside 0.15 both."""
    shares = np.array([[0.15, 0.4, 0.3, 0.15]])
    assert within(shares, 0.0).tolist() == [[False, True, False, False]]
    assert within(shares, 0.4).tolist() == [[False, True, True, False]]
    assert within(shares, 0.7).tolist() == [[True, True, True, True]]
    rng = np.random.default_rng(1)
    drawn = np.round(rng.dirichlet(np.full(7, 0.7), 50), 2)
    for most in (0.0, 0.25, 0.5, 0.9):
        assert within(drawn, most).tolist() == [set_of(line, most * (1 + 2.0**-23)) for line in drawn.tolist()]


def test_a_right_label_is_in_the_set_of_its_own_score_and_not_below() -> None:
    """The quantile of scores gives sets that hold right labels as often as it promises; unknown labels never are."""
    rng = np.random.default_rng(2)
    shares, right = rng.dirichlet(np.ones(5), 200), rng.integers(0, 5, 200)
    scores = heavier(shares, right)
    own = np.arange(200), right
    assert all(within(shares[[n]], scores[n])[0, right[n]] for n in range(200))
    assert not any(within(shares[[n]], scores[n] - 1e-6)[0, right[n]] for n in np.flatnonzero(scores > 0))
    assert within(shares, 0.0).any(1).all()
    assert (scores[shares[own] == shares.max(1)] == 0).all()
    assert heavier(shares[:1], np.array([-1])).tolist() == [math.inf]


def test_the_set_of_an_estimate_holds_that_of_the_exact_shares() -> None:
    """These are within the error, off in any direction, or two labels changing places; and seldom all do."""
    rng, sizes = np.random.default_rng(4), []
    for labels, error in ((3, 0.02), (7, 0.1), (30, 0.01), (30, 0.3)):
        shares = rng.dirichlet(np.full(labels, 0.5), 300)
        moved = np.abs(shares + rng.standard_normal(shares.shape) * rng.choice([0.001, 0.1], (300, 1)))
        moved /= moved.sum(1, keepdims=True)
        swapped = shares.copy()
        order = np.argsort(-shares, axis=1)
        np.put_along_axis(swapped, order[:, :2], np.take_along_axis(shares, order[:, 1::-1], axis=1), axis=1)
        for other in (moved, swapped):
            apart = np.linalg.norm(other - shares, axis=1, keepdims=True)
            estimates = shares + (other - shares) * np.minimum(error / np.maximum(apart, 1e-12), 1.0)
            for most in (0.0, 0.3, 0.8, 0.95):
                found = within(estimates, most, np.full(300, error))
                assert (found >= within(shares, most)).all()
                assert (found >= within(estimates, most)).all()
                sizes.append(found.mean())
    assert np.mean(sizes) < 0.9


def test_of_shares_whose_error_nobody_knows_every_label_is_in_the_set() -> None:
    """A share whose error is unknown has every label in its set; those beside it get none more than without errors."""
    shares = np.array([[0.8, 0.15, 0.05], [0.8, 0.15, 0.05]])
    assert within(shares, 0.5, np.array([math.nan, 0.0])).tolist() == [[True, True, True], [True, False, False]]
    # By paper: the second is 0.65 behind, so surely lighter where √2 errors are less; of 0.8 then 0.8 − 0.4 is sure.
    assert within(shares[:1], 0.5, 0.4).tolist() == [[True, True, True]]
    assert within(shares[:1], 0.3, 0.4).tolist() == [[True, False, False]]


def test_scores_are_never_kept_as_less_than_they_are() -> None:
    """Where many are equal, a quantile that float32 rounded down would hold none of them; p-values count equal ones."""
    for score in (0.7, -0.7, 0.1, 1 / 3, 0.5, math.inf, -math.inf):
        ranked = Ranked.of(np.full(100, score))
        assert score <= ranked.quantile(0.9) <= np.nextafter(np.float32(score), np.float32(np.inf))
        assert ranked.p_values(np.array([score])).tolist() == [1.0]


def test_scores_come_back_from_json_and_damage_is_refused() -> None:
    """They come back as kept; text that is cut short, out of order, or of another count is a ValueError."""
    ranked = Ranked.of(np.append(np.random.default_rng(3).standard_normal(1000), math.inf))
    told = ranked.to_json()
    again = Ranked.from_json(told)
    assert (again.values.tolist(), again.count) == (ranked.values.tolist(), 1001)
    for damaged in (
        {**told, "count": 300},
        {**told, "values": told["values"][8:]},
        {**told, "values": "no base64"},
        Ranked(ranked.values[::-1], 1001).to_json(),
    ):
        with pytest.raises(ValueError, match=r"."):
            Ranked.from_json(damaged)


def test_scores_take_little_room() -> None:
    """Every commit writes them in the settings of a store."""
    assert len(Ranked.of(np.arange(100_000.0)).to_json()["values"]) < 2200
