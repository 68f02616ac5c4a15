"""What must not change an answer: order, shifts, splits and duplicates; for any numbers that Hypothesis finds."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from softkv.maths.blending import Numbers, Vectors
from softkv.maths.compatibility import COMPATIBILITIES
from softkv.maths.lookup import Found, lookup

from . import reference
from .scales import scaled

NAMES = st.sampled_from(sorted(COMPATIBILITIES))
# A grid, because a lookup that is moved by rounding is no lookup that is moved by the invariance.
GRID = st.integers(-16, 16).map(lambda number: (number + 0.5) / 8)
COUNTS = st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 4))
TEMPERATURES = st.floats(0.05, 50)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Queries, keys and values on a grid that has no zero."""
    b, n, d = draw(COUNTS)
    return tuple(draw(arrays.arrays(np.float64, shape, elements=GRID)) for shape in ((b, d), (n, d), (n, 2)))  # type: ignore[return-value]


def same(left: Found, right: Found, *, near: float = 1e-9) -> bool:
    """Whether two findings say the same, rows aside."""
    names = ("value", "log_mass", "effective", "mass", "weights")
    return all(getattr(left, name) == pytest.approx(getattr(right, name), rel=near, abs=near) for name in names)


@given(cases(), NAMES, TEMPERATURES)
def test_lookups_agree_with_the_reference(case: tuple[Any, Any, Any], name: str, temperature: float) -> None:
    """They agree on whatever small case, with whatever temperature."""
    queries, keys, values = case
    found = lookup(queries, keys, Vectors(values), compatibility=name, temperature=temperature)
    for query in range(len(queries)):
        expected = reference.lookup(
            queries[query], keys, values, score=getattr(reference, name), temperature=temperature
        )
        near = 8 * np.finfo(float).eps * max(1.0, np.abs(expected.logits).max())
        assert found.value[query] == pytest.approx(expected.value, abs=4 * near)
        assert found.log_mass[query] == pytest.approx(expected.log_mass, abs=near)
        assert found.effective[query] == pytest.approx(expected.effective, rel=20 * near)


@given(cases(), NAMES, TEMPERATURES, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(
    case: tuple[Any, Any, Any], name: str, temperature: float, rng: Any
) -> None:
    """Shuffled rows give the same answer."""
    queries, keys, values = case
    order = np.array(rng.sample(range(len(keys)), len(keys)))
    options: dict[str, Any] = {"compatibility": name, "temperature": temperature}
    shuffled = lookup(queries, keys[order], Vectors(values[order]), **options)
    assert same(lookup(queries, keys, Vectors(values), **options), shuffled)


@given(cases(), TEMPERATURES, st.floats(-1e3, 1e3))
def test_shifting_all_scores_changes_only_the_mass(
    case: tuple[Any, Any, Any], temperature: float, shift: float
) -> None:
    """A bias that is the same for all rows moves log_mass by itself over the temperature, and nothing else."""
    queries, keys, values = case
    plain = lookup(queries, keys, Vectors(values), temperature=temperature)
    moved = lookup(queries, keys, Vectors(values), temperature=temperature, bias=np.full(len(keys), shift))
    near = 1e-13 * (1 + abs(shift) / temperature)
    assert moved.value == pytest.approx(plain.value, abs=16 * near)
    assert moved.log_mass == pytest.approx(plain.log_mass + shift / temperature, abs=16 * near)


@given(cases(), st.sampled_from(["gaussian", "laplace"]), st.integers(-1000, 1000))
def test_moving_everything_changes_no_distance(case: tuple[Any, Any, Any], name: str, shift: int) -> None:
    """Queries and keys moved together are compared as before."""
    queries, keys, values = case
    moved = lookup(queries + shift, keys + shift, Vectors(values), compatibility=name)
    assert same(moved, lookup(queries, keys, Vectors(values), compatibility=name))


@given(cases(), NAMES, st.integers(1, 20), st.integers(1, 4))
@settings(max_examples=50)
def test_the_size_of_the_blocks_does_not_matter(case: tuple[Any, Any, Any], name: str, rows: int, many: int) -> None:
    """Cutting queries and rows differently gives the same answers and the same contributors."""
    queries, keys, values = case
    whole = lookup(queries, keys, Vectors(values), compatibility=name)
    with pytest.MonkeyPatch.context() as patch:
        scaled(patch, rows=rows, queries=many)
        cut = lookup(queries, keys, Vectors(values), compatibility=name)
    assert same(whole, cut)
    assert np.allclose(whole.scores, cut.scores, atol=1e-12)


@given(cases(), NAMES, st.integers(1, 5))
def test_a_weight_of_w_is_w_copies(case: tuple[Any, Any, Any], name: str, copies: int) -> None:
    """A bias of T x log(w) on a row counts it w times."""
    queries, keys, values = case
    options: dict[str, Any] = {"compatibility": name, "temperature": 0.7, "show": 0}
    bias = np.zeros(len(keys))
    bias[0] = 0.7 * math.log(copies)
    repeated = [0] * (copies - 1) + list(range(len(keys)))
    weighted = lookup(queries, keys, Vectors(values), bias=bias, **options)
    copied = lookup(queries, keys[repeated], Vectors(values[repeated]), **options)
    assert weighted.value == pytest.approx(copied.value, abs=1e-9)
    assert weighted.log_mass == pytest.approx(copied.log_mass, abs=1e-9)


@given(cases(), NAMES, TEMPERATURES)
def test_answers_lie_among_the_values(case: tuple[Any, Any, Any], name: str, temperature: float) -> None:
    """The mean is in the hull, the effective number between 1 and n, and the spread at most half the range."""
    queries, keys, values = case
    found = lookup(queries, keys, Numbers(values[:, :1]), compatibility=name, temperature=temperature)
    low, high, n = values[:, 0].min(), values[:, 0].max(), len(keys)
    assert ((found.value >= low - 1e-14) & (found.value <= high + 1e-14)).all()
    assert ((found.effective >= 1 - 1e-12) & (found.effective <= n + 1e-9)).all()
    assert found.spread is not None
    assert ((found.spread >= 0) & (found.spread <= (high - low) / 2 + 1e-9)).all()
    assert (found.mass == 1).all()


@given(cases(), st.integers(1, 20))
def test_top_k_holds_the_mass_of_its_contributors(case: tuple[Any, Any, Any], k: int) -> None:
    """The share of the k rows is the sum of their weights, which are never renormalised."""
    queries, keys, values = case
    found = lookup(queries, keys, Vectors(values), k=k, show=k)
    assert found.weights.sum(axis=-1) == pytest.approx(found.mass, abs=1e-12)
    full = lookup(queries, keys, Vectors(values), show=k)
    assert np.array_equal(found.rows, full.rows)
    assert found.weights == pytest.approx(full.weights)
    assert found.log_mass == pytest.approx(full.log_mass)
