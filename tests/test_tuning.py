"""Choosing a temperature from losses."""

from dataclasses import replace

import numpy as np
import pytest

from softkv.learning.leaving import Losses
from softkv.learning.tuning import FINER, STEPS, chosen, curves


def bowl(best: float) -> "object":
    """Losses that are least at one temperature, with all rows and, a little better, with the 5 best."""

    def lose(temperatures: np.ndarray) -> Losses:
        full = np.log(temperatures / best) ** 2 + 1.0
        return Losses(full, {5: full - 0.1}, 100, -temperatures)

    return lose


@pytest.mark.parametrize("best", [0.05, 1.0, 37.0, 1e-4])
def test_the_best_temperature_is_found(best: float) -> None:
    """It is found to a few percent, also far from where the search begins."""
    found, asked = curves(bowl(best), "dot", 1.0, [5])
    tuned = chosen(found, measure="squared error", asked=asked, items=120)
    assert tuned.temperature == pytest.approx(best, rel=0.03)
    assert (tuned.k, tuned.asked, tuned.items) == (5, 100, 120)
    for curve in tuned.curves:
        assert list(curve.temperatures) == sorted(set(curve.temperatures))
        assert len(curve.losses) == len(curve.temperatures)
    assert str(tuned).count(" <") == 1
    assert tuned.floor == -tuned.full.best[1]


def test_no_temperature_below_the_finest_is_tried() -> None:
    """Where the best lies below it, the finest itself is taken."""
    (found, *_), asked = curves(bowl(1e-4), "cosine", 0.5, finest=0.2)
    assert asked == 100
    assert min(found.temperatures) == found.best[1] == pytest.approx(0.2, rel=0.2)
    assert min(found.temperatures) >= 0.2


def test_temperatures_are_tried_together() -> None:
    """One pass tries those around the first, and one those between the best of them and its neighbours."""
    passes = list[int]()

    def lose(temperatures: np.ndarray) -> Losses:
        passes.append(len(temperatures))
        return bowl(1.5)(temperatures)

    curves(lose, "dot", 1.0, [5])
    assert passes == [2 * STEPS + 1, 2 * FINER]


def test_a_floor_that_is_no_number_is_none() -> None:
    """Scores may overflow, and a store cannot remember infinity."""
    found, _ = curves(lambda some: Losses(np.ones(len(some)), {}, 3, np.full(len(some), -np.inf)), "dot", 1.0)
    assert chosen(found, measure="log-loss", asked=3, items=3).floor is None


def test_where_all_are_equal_the_search_ends() -> None:
    """Nothing tells temperatures apart, and one of them is chosen."""
    found, asked = curves(lambda some: Losses(np.ones(len(some)), {}, 3, some), "dot", 1.0)
    assert chosen(found, measure="log-loss", asked=asked, items=3).loss == 1.0


def test_of_equals_the_mildest_is_chosen() -> None:
    """Where labels are told apart perfectly, the temperature that is least sure of itself is as good as any."""
    found, _ = curves(lambda some: Losses(np.maximum(some - 0.5, 0.0), {}, 3, some), "dot", 1.0)
    assert chosen(found, measure="log-loss", asked=3, items=3).temperature == pytest.approx(0.5, rel=0.16)


def test_ways_to_compare_are_beside_each_other() -> None:
    """The lowest of all curves is chosen."""
    near, far = (curves(bowl(best), name, 1.0)[0] for name, best in (("dot", 1.0), ("cosine", 2.0)))
    lower = [replace_losses(curve, -0.5) for curve in far]
    assert chosen([*near, *lower], measure="log-loss", asked=1, items=1).compatibility == "cosine"


def replace_losses(curve: "object", by: float) -> "object":
    """A curve that much higher."""
    return replace(curve, losses=tuple(loss + by for loss in curve.losses))
