"""Guards of answers that were drawn: what was asked is kept over many draws, all of it at once."""

import math
from statistics import NormalDist

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


@pytest.mark.parametrize(("apart", "fewest"), [(2.2, 0), (3.0, 200)])
def test_strangers_and_queries_turned_away_are_both_as_rare_as_promised(apart: float, fewest: int) -> None:
    """Where values are neither right nor wrong, in 95 of 100 draws less 3.3 deviations; few are refused needlessly."""
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
    """So no guard is made, and how many strangers would be known is said."""
    rng = np.random.default_rng(22)
    seen, strangers = seen_with(rng.standard_normal(400)), seen_with(rng.standard_normal(400) - 1.0)
    with pytest.raises(InputError, match=r"no threshold keeps.*wrong_at_most.*[67]\d\.\d% of strangers are known"):
        calibrate(seen, None, strangers, Promise(0.05, 0.2, 0.95), coded=False, widths=None, items=1)
    found = calibrate(seen, None, strangers, Promise(0.7, 0.2, 0.95), coded=False, widths=None, items=1)
    assert found.found["answered"] > 0.3
    assert found.found["strangers"] < 0.2
