"""The items that benchmarks measure with."""

import numpy as np
import pytest
from softkv_cli import mixtures
from softkv_cli.mixtures import mixture


def test_items_are_what_is_said_of_them() -> None:
    """Keys and queries of length 1, in float32, and values that are tanh of something linear, but for some noise."""
    made = mixture(3000, 16, 4, 20, seed=3)
    assert (made.keys.shape, made.values.shape, made.queries.shape) == ((3000, 16), (3000, 4), (20, 16))
    assert {array.dtype for array in made} == {np.dtype(np.float32)}
    for vectors in (made.keys, made.queries):
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(vectors)), abs=1e-6)
    clear = mixture(3000, 16, 4, 20, seed=3, noise=0.0).values
    assert float((made.values - clear).std()) == pytest.approx(0.1, rel=0.05)
    for column in range(4):
        bent = np.abs(clear[:, column]) < 0.95  # beyond that float32 knows little of what was inside
        keys, straight = made.keys[bent], np.arctanh(clear[bent, column])
        slope = np.linalg.lstsq(keys, straight, rcond=None)[0]
        assert keys @ slope == pytest.approx(straight, abs=1e-3)


def test_the_same_seed_makes_the_same_items() -> None:
    """A mixture follows from its seed, and another seed makes others."""
    first, second, other = (mixture(500, 8, 2, 5, seed=seed) for seed in (0, 0, 1))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
    assert not np.array_equal(first.keys, other.keys)


def test_clusters_are_of_very_different_sizes() -> None:
    """Their shares fall as 1/rank: with small spreads each key tells which cluster it is of."""
    made = mixture(5000, 16, 1, 1, seed=0, spreads=(0.01, 0.02))
    left, sizes = made.keys, []
    while len(left):
        near = left @ left[0] > 0.9
        sizes.append(int(near.sum()))
        left = left[~near]
    sizes.sort(reverse=True)
    assert len(sizes) == 5000 // mixtures.MEMBERS
    shares = 1 / np.arange(1, 101)
    assert np.array(sizes[:5]) / 5000 == pytest.approx((shares / shares.sum())[:5], rel=0.15)


def test_blocks_are_all_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks are filled, also the last, which is shorter."""
    monkeypatch.setattr(mixtures, "BLOCK", 64)
    made = mixture(150, 8, 2, 5, seed=0)
    assert np.linalg.norm(made.keys, axis=1) == pytest.approx(np.ones(150), abs=1e-6)
    assert np.abs(made.values).max() < 2
    assert len(np.unique(made.keys, axis=0)) == len(np.unique(made.values, axis=0)) == 150


def test_queries_may_be_nearer_or_farther_than_keys() -> None:
    """Their own spreads leave the keys as they are, and each is as far from its centre as it likes."""
    usual, asked = mixture(1000, 32, 1, 200, seed=1), mixture(1000, 32, 1, 200, seed=1, asking=(0.01, 3.0))
    assert np.array_equal(usual.keys, asked.keys)
    centres = mixture(1000, 32, 1, 1, seed=1, spreads=(0.01, 0.01)).keys
    nearest = (asked.queries @ centres.T).max(axis=1)
    assert nearest.max() > 0.99
    assert nearest.min() < 0.7
