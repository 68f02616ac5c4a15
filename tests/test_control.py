"""Learn-then-Test: binomial p-values beside exact fractions, and risks over many draws."""

import math
from fractions import Fraction

import numpy as np
import pytest

from softkv.guard.control import Risk, at_most, fewest_trials, laxest, most_events


def exactly(events: int, trials: int, share: Fraction) -> float:
    """P(Bin(trials, share) <= events), as a sum of fractions."""
    terms = (math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(events + 1))
    return float(sum(terms))


@pytest.mark.parametrize("trials", [1, 2, 59, 300])
@pytest.mark.parametrize("share", [Fraction(1, 100), Fraction(1, 20), Fraction(1, 2), Fraction(9, 10)])
def test_binomial_p_values_are_exact(trials: int, share: Fraction) -> None:
    """They are so to twelve digits, for every number of events."""
    for events in {0, 1, trials // 3, trials - 1, trials}:
        assert at_most(events, trials, float(share)) == pytest.approx(exactly(events, trials, share), rel=1e-11)


def test_binomial_p_values_of_many_trials_do_not_vanish_or_overflow() -> None:
    """Single terms are below what a float can hold."""
    assert at_most(50_000, 100_000, 0.5) == pytest.approx(0.5, abs=0.002)
    assert at_most(0, 100_000, 0.5) == 0.0


def test_how_many_it_takes_to_promise() -> None:
    """That many points without an event reject, and one fewer does not; more may hold some events."""
    for share, confidence in ((0.05, 0.95), (0.02, 0.95), (0.1, 0.8), (0.5, 0.875)):
        least = fewest_trials(share, confidence)
        assert at_most(0, least, share) <= 1 - confidence < at_most(0, least - 1, share)
        assert most_events(least, share, confidence) == 0
        assert most_events(least - 1, share, confidence) == -1
        most = most_events(1000, share, confidence)
        assert at_most(most, 1000, share) <= 1 - confidence < at_most(most + 1, 1000, share)


def drawn(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Evidence in 0 .. 1, and whether answers are wrong: with a probability of 0.3 (1 - evidence)."""
    evidence = rng.random(count)
    return evidence, rng.random(count) < 0.3 * (1 - evidence)


GRID = np.linspace(0.8, 0.0, 60)


@pytest.mark.parametrize("share", [0.05, 0.08, 0.12])
def test_what_is_answered_is_wrong_as_seldom_as_promised(share: float) -> None:
    """95 of 100 draws hold, less 3.3 deviations of their count; and not by answering next to nothing."""
    rng, held, answered = np.random.default_rng(11), 0, []
    for _ in range(500):
        threshold = laxest(GRID, [Risk(*drawn(rng, 1500), share)], 0.95)
        if threshold is None:  # nothing is answered, so nothing is wrong
            held += 1
            continue
        held += 0.3 * (1 - threshold) / 2 <= share  # the share of wrong ones at or above it
        answered.append(1 - threshold)
    assert held >= 500 * 0.95 - 3.3 * math.sqrt(500 * 0.95 * 0.05)
    assert np.mean(answered) > 0.5 * share / 0.15  # of the share that could be answered


def test_strangers_are_answered_as_seldom_as_promised() -> None:
    """The share is one of all strangers, not of those that are answered; both risks hold at once."""
    rng, held = np.random.default_rng(12), 0
    for _ in range(500):
        strangers = rng.random(400) ** 2
        risks = [Risk(*drawn(rng, 1500), 0.1), Risk(strangers, np.ones(400, np.bool_), 0.2, of_all=True)]
        threshold = laxest(GRID, risks, 0.95)
        held += threshold is None or (0.3 * (1 - threshold) / 2 <= 0.1 and 1 - math.sqrt(threshold) <= 0.2)
    assert held >= 500 * 0.95 - 3.3 * math.sqrt(500 * 0.95 * 0.05)


def test_turning_away_the_lowest_keeps_its_share() -> None:
    """The share of uniform scores below the first that is not turned away, over draws."""
    rng = np.random.default_rng(13)
    away = most_events(200, 0.05, 0.95)
    held = sum(np.sort(rng.random(200))[away] <= 0.05 for _ in range(2000))
    assert held >= 2000 * 0.95 - 3.3 * math.sqrt(2000 * 0.95 * 0.05)


def test_no_threshold_behind_one_that_fails_is_reached() -> None:
    """Else several tries would each have the whole level."""
    evidence = np.repeat([3.0, 2.0, 1.0], [100, 100, 10_000])
    wrong = np.repeat([False, True, False], [100, 100, 10_000])
    risk = Risk(evidence, wrong, 0.05)
    assert laxest(np.array([3.0, 2.0, 1.0]), [risk], 0.95) == 3.0
    assert laxest(np.array([3.0, 1.0]), [risk], 0.95) == 1.0
    assert laxest(np.array([2.0, 1.0]), [risk], 0.95) is None
