"""Planes through weighted items."""

import numpy as np
import pytest

from softkv.learning import slopes
from softkv.learning.slopes import Plane, on_planes
from softkv.maths.compatibility import COMPATIBILITIES

from .scales import far_ring, weighted_mean

RNG = np.random.default_rng(2)
FEATURES, WEIGHTS = RNG.standard_normal((30, 3)), RNG.random((4, 30))
WEIGHTS = WEIGHTS / WEIGHTS.sum(1, keepdims=True)
QUERIES = RNG.standard_normal((4, 3))


def test_what_lies_on_a_plane_is_read_off_exactly() -> None:
    """It is, however the weights lean, and also outside of the items; the mean is not."""
    numbers = 2.0 + FEATURES @ np.array([1.0, -3.0, 0.5])
    plane = Plane.through(WEIGHTS, FEATURES, numbers, 1e-12)
    exact = 2.0 + QUERIES @ np.array([1.0, -3.0, 0.5])
    assert plane.at(QUERIES) == pytest.approx(exact)
    assert np.abs(WEIGHTS @ numbers - exact).max() > 0.5
    assert plane.residuals(FEATURES, numbers) == pytest.approx(np.zeros((4, 30)), abs=1e-9)
    variance = WEIGHTS @ numbers**2 - (WEIGHTS @ numbers) ** 2
    assert plane.explained == pytest.approx(variance)


def test_planes_are_those_of_least_squares() -> None:
    """NumPy solves the same problem, row by row, with the ridge as rows of its own."""
    numbers, ridge = RNG.standard_normal(30), 0.2
    plane = Plane.through(WEIGHTS, FEATURES, numbers, ridge)
    for weights, query, height, explained in zip(WEIGHTS, QUERIES, plane.at(QUERIES), plane.explained, strict=True):
        middle = weights @ FEATURES
        rows = np.vstack([np.sqrt(weights)[:, None] * (FEATURES - middle), np.sqrt(ridge) * np.eye(3)])
        aims = np.concatenate([np.sqrt(weights) * (numbers - weights @ numbers), np.zeros(3)])
        slope = np.linalg.lstsq(rows, aims, rcond=None)[0]
        assert height == pytest.approx(weights @ numbers + slope @ (query - middle))
        left = weights @ (numbers - weights @ numbers - (FEATURES - middle) @ slope) ** 2
        assert weights @ (numbers - weights @ numbers) ** 2 - explained == pytest.approx(left)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_planes_through_all_rows_are_as_good_far_from_zero(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are float32, in blocks, with shares and rows not seen; the weights are those of float64."""
    monkeypatch.setattr(slopes, "BLOCK", 7)
    keys, queries = FEATURES.astype(np.float32), QUERIES.astype(np.float32)
    numbers, shares, allowed = RNG.standard_normal(30), RNG.uniform(0.1, 3, 30), RNG.random((4, 30)) > 0.2
    logits = -0.5 * np.square(queries[:, None].astype(float) - keys[None]).sum(2)
    weights = np.exp(logits) * shares * allowed
    monkeypatch.setattr(slopes, "TOGETHER", 3)
    expected = Plane.through(weights / weights.sum(1, keepdims=True), keys.astype(float), numbers, 0.01)
    found = on_planes(
        COMPATIBILITIES["gaussian"],
        queries,
        np.ones(4),
        expected.height + offset,
        keys,
        numbers + offset,
        features=lambda rows: rows.astype(np.float64),
        ridge=0.01,
        shares=shares,
        allowed=allowed,
    )
    assert found.heights - offset == pytest.approx(expected.at(queries), abs=1e-5 + offset * 1e-15)
    left = (weights * expected.residuals(keys.astype(float), numbers) ** 2).sum(1) / weights.sum(1)
    assert found.spreads == pytest.approx(np.sqrt(left), abs=1e-5 + offset * 1e-15)


@pytest.mark.parametrize("given", ["shares", "allowed"])
def test_a_row_that_does_not_count_is_not_the_best(given: str) -> None:
    """Rows far below one that is not seen, or has no share, are told by differences; planes here are flat."""
    queries, keys, left = far_ring()
    values = np.arange(len(keys)) % 7.0
    expected = weighted_mean(queries, keys, left, values)
    options = {"shares": np.where(left, 1.0, 0.0)} if given == "shares" else {"allowed": left[None, :]}
    found = on_planes(
        COMPATIBILITIES["gaussian"],
        queries.astype(np.float32),
        np.ones(1),
        np.array([expected]),
        keys.astype(np.float32),
        values,
        features=lambda rows: rows.astype(np.float64),
        ridge=1e12,
        **options,
    )
    assert found.heights == pytest.approx([expected], rel=1e-3)


def test_a_steep_ridge_leaves_the_mean() -> None:
    """Where λ is large beside the spread of the items, the plane is flat."""
    numbers = RNG.standard_normal(30)
    assert Plane.through(WEIGHTS, FEATURES, numbers, 1e9).at(QUERIES) == pytest.approx(WEIGHTS @ numbers, abs=1e-6)


def test_the_leverage_says_how_the_height_follows_a_number() -> None:
    """One number is moved a little to see it."""
    numbers = RNG.standard_normal(30)
    plane = Plane.through(WEIGHTS, FEATURES, numbers, 0.1)
    moved = numbers.copy()
    moved[5] += 1e-3
    change = (Plane.through(WEIGHTS, FEATURES, moved, 0.1).at(QUERIES) - plane.at(QUERIES)) / 1e-3
    assert WEIGHTS[:, 5] * plane.leverage(QUERIES, FEATURES)[:, 5] == pytest.approx(change, rel=1e-6)
