"""The sums behind the value scale, against NumPy on the values themselves."""

import numpy as np
import pytest

from softkv.errors import StoreDamaged
from softkv.storage.catalog.tally import Tally

NOTHING = np.zeros((0, 1))


def column(*numbers: float) -> np.ndarray:
    """Values of width 1."""
    return np.array(numbers, np.float64).reshape(-1, 1)


def scale_of(values: np.ndarray) -> float:
    """√(mean ‖v − v̄‖²), two passes in extended precision."""
    wide = values.astype(np.longdouble)
    return float(np.sqrt(((wide - wide.mean(axis=0)) ** 2).sum(axis=1).mean()))


def test_the_scale_of_three_numbers_can_be_worked_out_on_paper() -> None:
    """1, 2, 6: mean 3, deviations −2, −1, 3, √(14/3)."""
    assert Tally.empty().changed(column(1, 2, 6), NOTHING).scale() == pytest.approx((14 / 3) ** 0.5, rel=1e-15)


def test_nothing_has_no_scale() -> None:
    """0 items, and 1 item, and items that are all alike."""
    assert Tally.empty().scale() == 0.0
    assert Tally.empty().changed(column(5), NOTHING).scale() == 0.0
    assert Tally.empty().changed(column(0.1, 0.1, 0.1), NOTHING).scale() == pytest.approx(0.0, abs=1e-17)


def test_the_scale_of_vectors_is_that_of_all_their_numbers() -> None:
    """Batches come and go; what is left is what NumPy says of what is left."""
    values = np.random.default_rng(0).normal(3, 2, (1_000, 7)).astype(np.float32)
    tally = Tally.empty()
    for start in range(0, 1_000, 100):
        tally = tally.changed(values[start : start + 100], values[:0])
    tally = tally.changed(values[:0], values[200:500])
    left = np.concatenate([values[:200], values[500:]])
    assert tally.count == 700
    assert tally.scale() == pytest.approx(scale_of(left), rel=1e-12)


def test_numbers_far_from_zero_keep_their_spread() -> None:
    """1e9 ± 1 has no spread left in Σv²."""
    values = column(*(1e9 + np.random.default_rng(0).choice([-1, 1], 1_000)))
    tally = Tally.empty()
    for start in range(0, 1_000, 10):
        tally = tally.changed(values[start : start + 10], NOTHING)
    assert not tally.drowned
    assert tally.scale() == pytest.approx(scale_of(values), rel=1e-6)


def test_sums_that_drowned_in_a_value_that_is_gone_say_so() -> None:
    """1e15 came and went: its rounding is larger than what is left."""
    tally = Tally.empty().changed(column(1, 2, 3), NOTHING).changed(column(1e15), NOTHING)
    assert not tally.drowned
    assert tally.changed(NOTHING, column(1e15)).drowned


def test_sums_whose_origin_is_gone_say_so() -> None:
    """The first value was 0, the others are 1e9 ± 1, and the first one goes."""
    tally = Tally.empty().changed(column(0), NOTHING).changed(column(1e9 - 1, 1e9 + 1), NOTHING)
    assert not tally.drowned
    assert tally.changed(NOTHING, column(0)).drowned


@pytest.mark.parametrize("number", [0.0, 0.1, 1e9 + 0.1, -1e-9])
def test_values_that_are_all_alike_are_not_drowned(number: float) -> None:
    """Summing them anew would not help, and would be tried at every commit."""
    tally = Tally.empty()
    for _ in range(10):
        tally = tally.changed(column(*[number] * 7), NOTHING)
    assert not tally.drowned


def test_an_empty_tally_starts_over() -> None:
    """When the last value goes, its rounding goes with it."""
    tally = Tally.empty().changed(column(1e15, 1), NOTHING).changed(NOTHING, column(1e15, 1))
    assert tally.changed(column(1, 3), NOTHING).scale() == 1.0


def test_labels_are_as_wide_as_their_one_hot_codes() -> None:
    """Counts 5, 3, 0, 2: the scale is that of the one-hot rows themselves."""
    counts = np.array([5, 3, 0, 2])
    tally = Tally.empty().changed_labels(np.zeros(4, np.int64), counts)
    assert tally.scale() == pytest.approx(scale_of(np.repeat(np.eye(4), counts, axis=0)), rel=1e-15)
    fewer = tally.changed_labels(np.array([5, 3]), np.array([1, 0]))
    assert fewer.count == 3
    assert fewer.scale() == pytest.approx(scale_of(np.repeat(np.eye(4), [1, 0, 0, 2], axis=0)), rel=1e-15)


@pytest.mark.parametrize("width", [0, 1, 384])
def test_a_tally_comes_back_from_the_catalog_as_it_went(width: int) -> None:
    """It is packed and unpacked, bit for bit."""
    origin, total = np.random.default_rng(1).normal(size=(2, width))
    tally = Tally(7, 1.25, 1e300, origin, total)
    again = Tally.unpack(tally.pack())
    assert (again.count, again.squares, again.largest) == (7, 1.25, 1e300)
    np.testing.assert_array_equal(again.origin, origin)
    np.testing.assert_array_equal(again.total, total)


@pytest.mark.parametrize("size", [0, 8, 16, 25, 32])
def test_bytes_that_no_tally_packs_to_are_damage(size: int) -> None:
    """Three numbers and two equal halves, or it is none."""
    with pytest.raises(StoreDamaged, match=f"{size} bytes"):
        Tally.unpack(bytes(size))


@pytest.mark.parametrize("width", [1, 384, 5000])
def test_few_numbers_are_summed_at_a_time(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are so few that BLAS shares them with no other thread, which may have to wait for a processor."""
    sizes, product = list[int](), np.vdot
    monkeypatch.setattr(np, "vdot", lambda one, other: sizes.append(one.size) or product(one, other))
    values = np.random.default_rng(0).standard_normal((30_000 // width + 1, width))
    found = Tally.empty().changed(values, values[:0])
    assert found.scale() == pytest.approx(np.sqrt(((values - values.mean(0)) ** 2).sum(1).mean()))
    assert max(sizes) < 10_000 < sum(sizes)
