"""What the average is: blends of blocks, their merging, and values of every kind."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softkv
from softkv.maths.arrays import library_of
from softkv.maths.blending import Blend, Labels, Numbers, Values, Vectors, adds_nothing, gather_rows, merge, stand_in
from softkv.maths.weighting import Weights, weigh

from . import reference
from .backends import Backend, every_backend, exact

NUMPY = Backend("numpy", "float64")
FLOATS = st.floats(-50, 50)


def blend(logits: Any, values: Values) -> Blend:
    """The blend of one block: (b, n) logits, which may be -inf, in at least float32 as a lookup scores them."""
    library = library_of(logits)
    logits = library.copy(library.cast(logits, library.shared_float(logits)))
    return values.blend(weigh(logits, library.largest(logits), masked=True))


def weights_of(logits: Any) -> Weights:
    """The weights of one block of logits, none of which is -inf."""
    library = library_of(logits)
    logits = library.copy(library.cast(logits, library.shared_float(logits)))
    return weigh(logits, library.largest(logits), masked=False)


def numbers(blended: Blend) -> list[Any]:
    """All that a blend says, as floats."""
    said = [blended.log_mass, blended.value, blended.effective, *([] if blended.spread is None else [blended.spread])]
    return [number for x in said for number in exact(x).ravel().tolist()]


def empty(like: Blend) -> Blend:
    """The identity of merging."""
    square = None if like.square is None else like.square * 0
    return Blend(like.mass * 0 - math.inf, like.mass * 0, like.total * 0, like.excess * 0, square)


def test_a_blend_small_enough_for_paper() -> None:
    """Weights 1 and 1/2 on the values 3 and 6 blend to 4; their log mass is log(3/2) above the peak."""
    blended = blend(np.array([[5.0, 5.0 - math.log(2)]]), Numbers(np.array([[3.0], [6.0]])))
    assert blended.value == pytest.approx(np.array([[4.0]]))
    assert blended.log_mass == pytest.approx(np.array([5 + math.log(1.5)]))
    assert blended.spread == pytest.approx(np.array([[math.sqrt(2)]]))
    assert blended.effective == pytest.approx(np.array([1.5 * 2 ** (1 / 3)]))


@every_backend
@pytest.mark.parametrize("cuts", [[], [1], [7, 8], [3, 10, 20, 29]])
def test_merging_any_split_is_the_whole(backend: Backend, cuts: list[int]) -> None:
    """Blends of the parts merge to the blend of all rows, in any order."""
    generator = np.random.default_rng(3)
    logits, values = backend.array(generator.standard_normal((2, 30)) * 5), generator.standard_normal((30, 4))
    whole = blend(logits, Vectors(backend.array(values)).part(slice(0, 30)))
    bounds = [0, *cuts, 30]
    parts = [blend(logits[:, a:b], Vectors(backend.array(values)).part(slice(a, b))) for a, b in pairwise(bounds)]
    for order in (parts, parts[::-1]):
        merged = order[0]
        for part in order[1:]:
            merged = merge(merged, part)
        near = backend.tolerance(exact(logits).ravel())
        assert numbers(merged) == pytest.approx(numbers(whole), rel=near, abs=near)


@given(
    rows=st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    mask=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_merging_is_exact_with_masked_rows(rows: list[tuple[float, float]], cut: int, mask: list[bool]) -> None:
    """Whatever is masked, even a whole part, the merged blend is that of the reference."""
    mask[0] = True
    logits = np.array([[logit if seen else -math.inf for (logit, _), seen in zip(rows, mask, strict=False)]])
    values = Numbers(np.array([[value] for _, value in rows]))
    parts = [slice(0, min(cut, len(rows))), slice(min(cut, len(rows)), len(rows))]
    blends = [blend(logits[:, some], values.part(some)) for some in parts if some.stop > some.start]
    merged = blends[0] if len(blends) == 1 else merge(*blends)
    expected = reference.lookup(
        [0.0],
        [[logit] for logit, _ in rows],
        [[value] for _, value in rows],
        score=lambda _, key: key[0],
        mask=mask[: len(rows)],
    )
    assert numbers(merged)[:3] == pytest.approx([expected.log_mass, expected.value[0], expected.effective], abs=1e-12)
    assert numbers(merged)[3] == pytest.approx(expected.spread[0], abs=1e-6)  # the root of a rounding


@every_backend
def test_the_blend_of_no_rows_changes_nothing(backend: Backend) -> None:
    """(-inf, 0, 0, 0) is the identity of merging, on either side, and merges with itself."""
    blended = blend(backend.array([[1.0, 2.0]]), Numbers(backend.array([[1.0], [5.0]])))
    nothing = empty(blended)
    assert numbers(merge(nothing, blended)) == numbers(merge(blended, nothing)) == numbers(blended)
    twice = merge(nothing, nothing)
    assert exact(twice.peak).tolist() == [-math.inf]
    assert exact(twice.mass).tolist() == exact(twice.excess).tolist() == [0.0]


@settings(max_examples=200)
@given(
    logits=st.lists(st.floats(-20, 0), min_size=1, max_size=40),
    values=st.lists(st.sampled_from([0.1, 0.3, -7.1, 1e-9, 1e9]), min_size=40, max_size=40),
)
def test_float32_means_never_leave_the_hull(logits: list[float], values: list[float]) -> None:
    """The mean of float32 values lies between the smallest and the largest of them: not about, exactly."""
    held = np.array(values[: len(logits)], dtype=np.float32)[:, None]
    for kind in (Vectors, Numbers):
        mean = blend(np.array([logits], dtype=np.float32), kind(held)).value.astype(np.float32)
        assert held.min() <= mean[0, 0] <= held.max()


def test_float32_means_of_many_equal_values_are_that_value() -> None:
    """A constant column comes back unchanged, where sums in float32 would miss it, also beside other columns."""
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((3, 70_001)).astype(np.float32)
    values = np.stack([np.full(70_001, 0.1), generator.standard_normal(70_001)], axis=1).astype(np.float32)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert not np.array_equal((weights @ values)[:, 0] / weights.sum(axis=1), np.full(3, 0.1, np.float32))
    assert np.array_equal(blend(logits, Vectors(values)).value.astype(np.float32)[:, 0], np.full(3, 0.1, np.float32))


def test_sums_in_float32_are_used_where_a_witness_allows_it() -> None:
    """Where a few rows enclose the mean the fast sums are taken; they agree with float64 to float32 rounding."""
    generator = np.random.default_rng(1)
    logits = generator.standard_normal((2, 5000)).astype(np.float32)
    values = generator.standard_normal((5000, 3)).astype(np.float32)
    weights = weigh(logits.copy(), logits.max(axis=1), masked=False)
    fast, slow = Vectors(values).blend(weights), Vectors(values.astype(np.float64)).blend(weights)
    assert np.array_equal(fast.total, (weights.weights @ values).astype(np.float64))
    assert fast.value == pytest.approx(slow.value, abs=1e-6)


@every_backend
def test_labels_blend_into_a_distribution(backend: Backend) -> None:
    """The share of each label is the weight of its rows; shares are positive and sum to 1."""
    codes = library_of(backend.array([1.0])).array([0, 2, 2, 0, 3], like=backend.array([1.0]))
    logits = backend.array([[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    distribution = exact(blend(logits, Labels(codes, 5)).value)
    weights = np.exp(exact(logits)) / np.exp(exact(logits)).sum(axis=1, keepdims=True)
    expected = np.stack([weights[:, exact(codes) == code].sum(axis=1) for code in range(5)], axis=1)
    assert distribution == pytest.approx(expected, abs=backend.tolerance(exact(logits).ravel()))
    assert distribution.sum(axis=1) == pytest.approx([1, 1], abs=1e-12)
    assert (distribution >= 0).all()


@every_backend
def test_one_far_value_of_no_weight_does_not_touch_the_spread(backend: Backend) -> None:
    """However far it is: 1, 2 and 3 have the spread √(2/3), alone and beside queries that blend other values."""
    far = 6e4 if "float16" in backend.dtype else 1e9
    values = Numbers(backend.array([[1.0], [2.0], [3.0], [far], [20.0], [21.0]]))
    logits = backend.array([[0.0, 0.0, 0.0, -500.0, -500.0, -500.0], [-500.0, -500.0, -500.0, -500.0, 1.0, 1.0]])
    wanted = np.array([[math.sqrt(2 / 3)], [0.5]])
    assert exact(blend(logits, values).spread) == pytest.approx(wanted, rel=1e-6)
    assert exact(blend(logits[:1], values).spread) == pytest.approx(wanted[:1], rel=1e-6)
    heaviest = blend(backend.array([[0.0, 0.0, 0.0, 500.0, 0.0, 0.0]]), values)
    assert exact(heaviest.value).tolist() == [[exact(values.array)[3, 0]]]
    assert exact(heaviest.spread)[0, 0] < 1e-90


@settings(max_examples=200)
@given(data=st.data(), count=st.integers(1, 12), queries=st.integers(1, 4))
def test_spreads_are_those_of_the_reference_at_any_size(data: st.DataObject, count: int, queries: int) -> None:
    """Numbers from 1e-30 to 1e30 in one block, with any weights, for one query or for several."""
    signs, exponents = st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-30, 30)
    column = [data.draw(signs) * 10.0 ** data.draw(exponents) for _ in range(count)]
    logits = np.array([[data.draw(st.floats(-150, 0)) for _ in column] for _ in range(queries)])
    found = blend(logits, Numbers(np.array(column)[:, None]))
    for number, row in enumerate(logits.tolist()):
        expected = reference.lookup(
            [0.0], [[x] for x in row], [[x] for x in column], score=lambda _, key: key[0], temperature=1.0
        )
        size = max(weight * abs(value) for weight, value in zip(expected.weights, column, strict=True))
        assert found.value[number, 0] == pytest.approx(expected.value[0], abs=1e-13 * size + 1e-10 * expected.spread[0])
        assert found.spread is not None
        assert found.spread[number, 0] == pytest.approx(expected.spread[0], rel=1e-6, abs=1e-13 * size)


@pytest.mark.parametrize("queries", [1, 3, 90])
def test_numbers_of_few_rows_that_weigh_anything_blend_as_if_alone(queries: int) -> None:
    """Thousands of rows whose weights vanish lie beside them; queries may be many, some at a time."""
    rng = np.random.default_rng(11)
    logits, values = np.full((queries, 3000), -500.0, np.float32), rng.standard_normal(3000) * 1e150
    some = rng.choice(3000, 40, replace=False)
    logits[:, some], values[some] = rng.standard_normal((queries, 40)) * 5, rng.standard_normal(40) + 1e6
    found, alone = blend(logits, Numbers(values[:, None])), blend(logits[:, some], Numbers(values[some, None]))
    assert found.value == pytest.approx(alone.value, rel=1e-14)
    assert found.spread == pytest.approx(alone.spread, rel=1e-6)
    assert found.mass == pytest.approx(alone.mass, rel=1e-12)


def test_the_spread_of_numbers_far_from_zero_does_not_cancel() -> None:
    """Times since 1970, a second apart, have a spread of seconds, also across merged blocks."""
    times = np.array([[1.7e9], [1.7e9 + 1], [1.7e9 + 2], [1.7e9 + 3]])
    logits = np.zeros((1, 4))
    merged = merge(blend(logits[:, :2], Numbers(times[:2])), blend(logits[:, 2:], Numbers(times[2:])))
    assert merged.spread == pytest.approx(np.array([[math.sqrt(1.25)]]), rel=1e-12)
    assert blend(logits, Numbers(times * 0 + 0.1)).spread == 0


@every_backend
def test_a_block_too_light_to_matter_stands_in_with_its_mass(backend: Backend) -> None:
    """Its mass and entropy are counted, the means stay what they were; one heavy query is enough to blend it."""
    values = Vectors(backend.array([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0], [4.0, 5.0]]))
    logits = backend.array([[0.0, 1.0, -50.0, -60.0], [3.0, 1.0, -40.0, -45.0]])
    first, light = blend(logits[:, :2], values.part(slice(0, 2))), weights_of(logits[:, 2:])

    def rest() -> Vectors:
        return values.part(slice(2, 4))

    assert adds_nothing(first, light, rest, share=1e-15)
    assert not adds_nothing(first, light, rest, share=1e-19)
    merged = merge(first, stand_in(first, light))
    assert exact(merged.value) == pytest.approx(exact(first.value), abs=1e-15)
    assert (exact(merged.mass) > exact(first.mass) * (1 - 1e-15)).all()
    alone = blend(backend.array([[0.0, 1.0], [-math.inf, -math.inf]]), values.part(slice(0, 2)))
    assert not adds_nothing(alone, light, rest, share=1e-15)


@every_backend
def test_a_light_block_of_far_values_is_blended(backend: Backend) -> None:
    """What a block moves is its share of the mass times how far its values are, which decides; numbers are all read."""
    near, far = backend.array([[1.0, 0.0], [2.0, 1.0]]), backend.array([[3.0, 5.0], [4.0, 6e4]])
    logits = backend.array([[0.0, 1.0, -20.0, -20.0], [3.0, 1.0, -20.0, -20.0]])
    first, light = blend(logits[:, :2], Vectors(near).part(slice(0, 2))), weights_of(logits[:, 2:])
    assert adds_nothing(first, light, lambda: Vectors(near), share=1e-7)
    assert not adds_nothing(first, light, lambda: Vectors(far), share=1e-7)
    assert adds_nothing(first, light, lambda: Vectors(near, (near[0] * 0, 1e1)), share=1e-7)
    assert not adds_nothing(first, light, lambda: Vectors(near, (near[0] * 0, 1e5)), share=1e-7)
    assert not adds_nothing(first, light, lambda: Numbers(near[:, :1]), share=1e-7)


@every_backend
def test_the_mass_alone_merges_without_values_or_entropy(backend: Backend) -> None:
    """Blends of no values, weighed without the entropy, have the mass of all rows, also of those masked."""
    logits = backend.array([[0.0, 1.0, -math.inf, 3.0, -2.0], [1e4, 2.0, 9999.0, -math.inf, 0.0]])
    library = library_of(logits)
    parts = []
    for rows in (slice(0, 2), slice(2, 3), slice(3, 5)):
        part = library.copy(library.cast(logits[:, rows], library.shared_float(logits)))
        weights = weigh(part, library.largest(part), masked=True, entropy=False)
        parts.append(Vectors(backend.array(np.ones((2, 5, 0)))).part(rows).blend(weights))
    merged = merge(merge(parts[0], parts[1]), parts[2])
    assert tuple(merged.value.shape) == (2, 0)
    wanted = [math.log(sum(math.exp(x - max(one)) for x in one)) + max(one) for one in exact(logits).tolist()]
    assert exact(merged.log_mass) == pytest.approx(np.array(wanted), rel=4 * backend.epsilon)


@every_backend
def test_rows_are_gathered_for_each_query(backend: Backend) -> None:
    """Each query takes rows of its own, with and without leading axes; -1 takes any."""
    x = backend.array(np.arange(24).reshape(2, 4, 3))
    rows = library_of(x).array([[[0, 3], [2, -1]], [[1, 1], [0, 2]]], like=x)
    taken = exact(gather_rows(x, rows))
    assert taken.shape == (2, 2, 2, 3)
    assert taken[0, 0, 1].tolist() == exact(x)[0, 3].tolist()
    assert taken[1, 1, 1].tolist() == exact(x)[1, 2].tolist()
    assert exact(gather_rows(x[0], rows))[1, 0, 0].tolist() == exact(x)[0, 1].tolist()


@pytest.mark.parametrize("axes", [(), (2,)])
def test_a_long_sum_far_from_zero_keeps_its_digits(axes: tuple[int, ...]) -> None:
    """One float32 that adds up 100,000 rows of values near 1000 would lose four digits; runs of rows do not."""
    rng = np.random.default_rng(6)
    keys = rng.standard_normal((*axes, 131_572, 8)).astype(np.float32)
    values = (rng.standard_normal((*axes, 131_572, 3)) * 0.1 + 1000).astype(np.float32)
    queries = rng.standard_normal((*axes, 1, 8)).astype(np.float32)
    found = softkv.soft_lookup(queries, keys, values, compatibility="dot", temperature=1000.0).value
    weights = np.exp((keys.astype(np.float64) * queries).sum(-1) / 1000)
    mean = (weights[..., None] * values).sum(-2) / weights.sum(-1)[..., None]
    assert np.abs(found[..., 0, :] - mean).max() < 1e-3
