"""Sums in float32 that keep means in the hull of the values, and as exact as they are stated to be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softkv.maths.summing as summing
from softkv.maths.library import NUMPY
from softkv.maths.summing import summed
from softkv.maths.weighting import Weights, weigh

from .backends import Backend, every_backend, exact

ROWS = 5_000


def weights_of(logits: np.ndarray, *, masked: bool = False) -> Weights:
    """The float32 weights of one block."""
    logits = logits.astype(np.float32)
    return weigh(logits.copy(), logits.max(axis=1), masked=masked)


def mean_of(weights: Weights, values: np.ndarray) -> np.ndarray:
    """The mean as a lookup gives it: float64, rounded once."""
    mass, total = summed(weights, values, lambda _: None)
    return (total / mass[:, None]).astype(np.float32)


def truth(weights: Weights, values: np.ndarray) -> np.ndarray:
    """The mean in float64."""
    double = weights.weights.astype(np.float64)
    return double @ values.astype(np.float64) / double.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("temperature", [1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_means_are_exact_and_in_the_hull_from_sharp_to_flat(temperature: float, queries: int, masked: bool) -> None:
    """Values are of any sign, of one sign, constant, nearly constant, or one is far from all others."""
    rng = np.random.default_rng(7)
    logits = rng.standard_normal((queries, ROWS)) / temperature
    if masked:
        logits[:, rng.random(ROWS) < 0.75] = -np.inf
    drawn = rng.standard_normal(ROWS)
    columns = [drawn, np.abs(drawn), drawn * 0 + 0.1, 0.1 + 1e-8 * drawn, drawn > 2.5, 1000 + drawn, drawn * 1e-30]
    values = np.stack([*columns, np.where(np.arange(ROWS) == 17, 1e9, drawn)], axis=1).astype(np.float32)
    weights = weights_of(logits, masked=masked)
    found, wanted = mean_of(weights, values), truth(weights, values)
    seen = values[np.isfinite(logits[0])]
    assert (found >= seen.min(axis=0)).all()
    assert (found <= seen.max(axis=0)).all()
    size = np.abs(weights.weights.astype(np.float64)) @ np.abs(values) / weights.mass[:, None]
    assert (np.abs(found - wanted) <= 2.0**-20 * (size + np.abs(wanted))).all()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), sharp=st.floats(0.1, 60), levels=st.integers(1, 4))
def test_columns_of_few_values_never_leave_their_hull(seed: int, sharp: float, levels: int) -> None:
    """Where nearly all rows share a value, rounding would carry the mean past it."""
    rng = np.random.default_rng(seed)
    held = (rng.standard_normal(levels) * 10.0 ** rng.integers(-9, 9, levels)).astype(np.float32)
    values = held[rng.integers(0, levels, (2_000, 3))]
    found = mean_of(weights_of(rng.standard_normal((2, 2_000)) * sharp), values)
    assert (found >= values.min(axis=0)).all()
    assert (found <= values.max(axis=0)).all()


def test_where_weights_are_sharp_few_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that weigh nothing are not multiplied at all, where it is known how far their values can be."""
    rng = np.random.default_rng(8)
    logits, values = rng.standard_normal((3, ROWS)) * 300, rng.standard_normal((ROWS, 4)).astype(np.float32)
    monkeypatch.setattr(summing, "summed_in_runs", lambda *_: pytest.fail("all rows were read"))
    weights = weights_of(logits)
    mass, total = summed(weights, values, lambda mean: np.full(len(mean), 10.0))
    assert total / mass[:, None] == pytest.approx(truth(weights, values), rel=1e-9)


@pytest.mark.parametrize("temperature", [0.001, 0.01, 0.05, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("queries", [1, 8])
def test_wide_values_are_not_summed_in_float64(
    temperature: float, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any temperature a few rows enclose the means, or few rows are heavy; else next to nothing is summed again."""
    rng, again = np.random.default_rng(10), list[int]()
    logits, values = rng.standard_normal((queries, ROWS)) / temperature, rng.standard_normal((ROWS, 384), np.float32)
    monkeypatch.setattr(summing, "_doubled", lambda _, one, array: again.append(array.size) or one @ array)
    summed(weights_of(logits), values, lambda mean: np.full(len(mean), 100.0))
    assert sum(again) <= values.size // 20


def test_light_rows_with_far_values_are_read() -> None:
    """A value of 1e30 moves a mean of a few units from forty logits below the peak."""
    logits, values = np.full((1, ROWS), -300.0), np.ones((ROWS, 1), np.float32)
    logits[0, 7], logits[0, 9] = 0.0, -45.0
    values[9] = 1e30
    weights = weights_of(logits)
    mass, total = summed(weights, values, lambda mean: np.full(len(mean), 1e30))
    assert total[0, 0] / mass[0] == pytest.approx(truth(weights, values)[0, 0], rel=1e-6)
    assert total[0, 0] / mass[0] > 1e10


@every_backend
def test_queries_that_see_no_row_of_a_block_add_nothing(backend: Backend) -> None:
    """Their mass is 0, and so is their sum; that of the others is what it is alone."""
    logits = backend.array([[0.0, 1.0, 2.0], [-np.inf, -np.inf, -np.inf]])
    weights = weigh(logits * 1.0, backend.array([2.0, -np.inf]), masked=True)
    mass, total = summed(weights, backend.array([[1.0], [2.0], [4.0]]), lambda _: None)
    assert exact(mass)[1] == exact(total)[1, 0] == 0
    shares = np.exp([-2.0, -1.0, 0.0])
    assert exact(total)[0, 0] == pytest.approx(shares @ [1, 2, 4], rel=1e-2 if "16" in backend.dtype else 1e-6)


def test_the_float64_sums_of_a_few_columns_are_those_of_all() -> None:
    """Taken a few rows at a time, so that copies stay small."""
    rng = np.random.default_rng(9)
    weights, values = rng.random((2, ROWS)).astype(np.float32), rng.random((ROWS, 300)).astype(np.float32)
    assert summing._doubled(NUMPY, weights, values) == pytest.approx(weights.astype(np.float64) @ values, rel=1e-12)
