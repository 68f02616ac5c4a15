"""Plans: what they cost, what they promise, and whether that holds."""

from dataclasses import replace

import numpy as np
import pytest

from softkv.index.calibration import BEST, Calibration, limit
from softkv.index.opening import LEVELS

TEMPERATURES = np.array([0.1, 0.2, 0.4], np.float32)


def calibration(queries: int, seed: int = 0, *, scale: float = 0.004) -> Calibration:
    """Errors that fall from level to level, and doubts that go with them."""
    rng = np.random.default_rng(seed)
    ease = rng.exponential(1.0, (len(TEMPERATURES), queries, 1)) * np.array([1.0, 0.6, 0.3])[:, None, None]
    doubts = ease * np.array(LEVELS) ** -0.5
    errors = scale * doubts * rng.exponential(0.3, doubts.shape[:2])[..., None]
    return Calibration(
        TEMPERATURES, doubts, errors, errors / 2, errors * 3, rng.random(queries), rng.beta(1, 9, (queries, len(BEST)))
    )


def covered(plan_of: Calibration, asked: Calibration, temperature: int, tolerance: float, confidence: float) -> float:
    """The share of other queries whose error stays below what the plan says."""
    plan = plan_of.plan(float(TEMPERATURES[temperature]), tolerance, confidence)
    assert plan is not None
    assert plan.error <= tolerance
    stops = plan.stops(asked.doubts[temperature])
    wrong = np.take_along_axis(asked.errors[temperature], stops[:, None], axis=1)[:, 0]
    return float((wrong <= plan.error).mean())


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_plans_keep_what_they_promise(confidence: float, temperature: int) -> None:
    """Of twenty stores calibrated on queries of their own, hardly any covers fewer queries than it says."""
    asked = calibration(20_000, seed=1)
    shares = [covered(calibration(1500, seed), asked, temperature, 0.05, confidence) for seed in range(2, 22)]
    assert sum(share < confidence for share in shares) <= 4
    assert min(shares) > confidence - 0.02


def test_a_smaller_tolerance_reads_more() -> None:
    """The smaller the tolerance, the more rows are read, and never fewer."""
    known = calibration(1500)
    plans = [known.plan(0.2, tolerance, 0.95) for tolerance in (0.1, 0.05, 0.02, 0.01)]
    stops = [np.array(LEVELS)[plan.stops(known.doubts[1])].mean() for plan in plans if plan is not None]
    assert len(stops) == 4
    assert stops == sorted(stops)
    assert stops[0] < stops[-1]


def test_no_plan_is_better_than_a_false_one() -> None:
    """There is none where no level is right enough, or too few queries were asked for so much confidence."""
    assert calibration(1500, scale=10.0).plan(0.2, 0.01, 0.95) is None
    assert calibration(60).plan(0.2, 0.05, 0.95) is None
    assert calibration(1500).plan(0.2, 0.05, 0.99999) is None
    assert calibration(1500).plan(0.2, 0.05, 0.0) is None


@pytest.mark.parametrize("temperature", [0.0999, 0.401, 1e-9, 1e9, float("inf")])
def test_temperatures_outside_of_the_range_have_no_plan(temperature: float) -> None:
    """Nobody knows how wrong estimates are there."""
    assert calibration(1500).plan(temperature, 0.05, 0.95) is None


def test_a_temperature_between_two_gets_what_suits_both() -> None:
    """The error is the larger of the two, by the same plan; the ends of the range belong to it."""
    known = calibration(1500)
    plan = known.plan(0.3, 0.05, 0.95)
    assert plan is not None
    judges = slice(known.doubts.shape[1] // 3, None)
    for temperature in (1, 2):
        stops = plan.stops(known.doubts[temperature, judges])[:, None]
        wrong = np.take_along_axis(known.errors[temperature, judges], stops, axis=1)[:, 0]
        assert limit(wrong[None], 0.95) <= plan.error
        seen = np.take_along_axis(known.doubts[temperature, judges], stops, axis=1)
        assert (seen <= plan.farthest).mean() >= 0.9
    assert known.plan(0.1, 0.05, 0.95) is not None
    assert known.plan(0.4, 0.05, 0.95) is not None


def test_limits_are_those_of_the_binomial_distribution() -> None:
    """Of 59 errors the largest is above 95% of all with 95% sureness, since 0.95 ** 59 < 0.05; of 58 it is not."""
    assert limit(np.arange(59.0)[None], 0.95) == 58.0
    assert limit(np.arange(58.0)[None], 0.95) is None


def test_the_best_rows_are_looked_for_as_deep_as_they_were_found() -> None:
    """The next larger number that was rehearsed counts; beyond the largest, or where some were not found, none does."""
    known = calibration(2000)
    for k, place in ((1, 0), (3, 2), (64, 6)):
        found = known.depth(k, 0.95)
        assert found is not None
        assert found[0] == BEST[place]
        assert 0.95 <= (known.depths[:, place] <= found[1]).mean() <= 0.98
    assert known.depth(65, 0.95) is None
    known.depths[:200, 0] = 1.0
    assert known.depth(1, 0.95) is None


def test_the_best_of_more_rows_are_looked_for_as_fewer_of_those_rehearsed() -> None:
    """Fewer of those rehearsed lie as far out; and no less deep than as many."""
    known = calibration(1500)
    depths = {k: known.depth(k, 0.9) for k in (4, 8, 16)}
    found = known.depth(16, 0.9, grown=4.0)
    assert found is not None
    assert found == (16, max(depths[4][1], depths[16][1]))
    assert known.depth(64, 0.9, grown=3.0) is not None
    assert known.depth(65, 0.9, grown=3.0) is None


def test_queries_with_the_same_best_rows_count_as_one_once_rows_have_changed() -> None:
    """A depth is larger where they tell less, and none is known where they tell of too few cases."""
    known = calibration(1500)
    assert known.depth(4, 0.95, changed=True) is None
    before = known.depth(4, 0.95)
    assert before is not None
    for worth, deeper in ((1500, False), (300, True), (59, True)):
        known.independent[BEST.index(4)] = worth
        found = known.depth(4, 0.95, changed=True)
        assert found is not None
        assert (found[1] > before[1]) is deeper
    assert found[1] == known.depths[:, 2].max()
    known.independent[BEST.index(4)] = 58
    assert known.depth(4, 0.95, changed=True) is None
    assert known.depth(4, 0.9, changed=True) is not None
    assert known.depth(4, 0.95) == before


def test_infinite_errors_and_doubts_make_no_plan() -> None:
    """Estimates that left float32 are passed over quietly; other temperatures keep their plans."""
    known = calibration(1500)
    known.errors[2], known.doubts[2] = np.inf, np.inf
    assert known.plan(0.3, 0.1, 0.95) is None
    assert known.plan(0.15, 0.1, 0.95) is not None


def test_too_few_queries_make_no_plan() -> None:
    """One or two leave none to choose."""
    for queries in (1, 2):
        assert calibration(queries).plan(0.2, 0.5, 0.8) is None


def test_plans_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tolerances are asked for, memory does not grow, and a plan made again is the same."""
    monkeypatch.setattr("softkv.index.calibration.PLANS", 8)
    known = calibration(300)
    first = known.plan(0.2, 0.05, 0.95)
    for step in range(20):
        known.plan(0.2, 0.05 + step * 1e-4, 0.95)
        assert len(known._known) <= 8
    assert known.plan(0.2, 0.05, 0.95) == first


def test_a_tolerance_is_a_share_of_the_value_scale_of_the_rehearsal() -> None:
    """It stays where nobody knows that scale, becomes hardly less for another one, and none where one of them is 0."""
    known = replace(calibration(60), scale=np.full(1, 2.0))
    assert known.as_share(0.01, 2.0) == known.as_share(0.01, 2.0 - 1e-9) == (0.01, 2.0)
    assert calibration(60).as_share(0.01, 3.0) == (0.01, 3.0)
    for scale in np.exp(np.random.default_rng(5).uniform(-50, 50, 300)).tolist():
        share, before = known.as_share(0.01, scale)
        assert before == 2.0
        assert 0.979 * 0.01 * scale < share * before < 0.01 * scale * (1 + 1e-9)
    for scale in (1e-300, 5e-324, 1e300):
        share, _ = known.as_share(0.01, scale)
        assert np.isfinite(share)
        assert share * 2.0 <= 0.01 * scale
    assert known.as_share(0.01, 0.0)[0] == replace(known, scale=np.zeros(1)).as_share(0.01, 1.0)[0] == 0.0
    assert replace(known, scale=np.zeros(1)).as_share(0.01, 0.0) == (0.01, 0.0)
    for odd in (np.zeros(0), np.full(1, np.nan), np.full(1, np.inf)):
        assert replace(known, scale=odd).problem == "was calibrated for values of no size"


def test_errors_of_masses_grow_with_doubts_of_them() -> None:
    """Queries with four times as large doubts, and so errors, are within what is stated as often as others."""

    def some(queries: int, seed: int) -> Calibration:
        rng = np.random.default_rng(seed)
        one = calibration(queries, seed)
        doubts = np.exp(rng.standard_normal((len(TEMPERATURES), queries, 1))) * np.array(LEVELS) ** -0.5 * 1e-3
        errors = doubts * np.abs(rng.standard_normal(doubts.shape[:2]))[..., None]
        return replace(one, log_mass_errors=errors, mass_doubts=doubts)

    asked, missed = some(20_000, 1), []
    for seed in range(2, 12):
        plan = some(1500, seed).plan(0.2, 0.05, 0.95)
        assert plan is not None
        stops = plan.stops(asked.doubts[1])[:, None]
        wrong, doubts = (
            np.take_along_axis(x[1], stops, axis=1)[:, 0] for x in (asked.log_mass_errors, asked.mass_doubts)
        )
        for times in (1.0, 4.0):
            stated = np.array([plan.log_mass_error_of(times * doubt) for doubt in doubts.tolist()])
            missed.append(float((times * wrong > stated).mean()))
    assert sum(one > 0.05 for one in missed) <= 3
    assert max(missed) < 0.06
    assert np.median(missed) > 0.02
