"""What unread lists contribute: the estimate where it is exact, the bound everywhere."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softkv.maths import moments
from softkv.maths.blending import Blend, merge
from softkv.maths.farfield import bounded, estimated, tilted
from softkv.maths.moments import measured, with_rows
from softkv.maths.summaries import Lists

from .scales import scaled

SHAPES = ("balls", "pairs", "one far key", "duplicates", "thin", "few")


def rows(shape: str, seed: int, lists: int = 4, width: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values and the offsets of lists of some shape."""
    rng = np.random.default_rng([seed, SHAPES.index(shape)])
    counts = rng.integers(1, 4 if shape == "few" else 30, lists)
    offsets = np.concatenate([[0], counts.cumsum()])
    centres = np.repeat(rng.standard_normal((lists, width)) * 3, counts, axis=0)
    keys = centres + rng.standard_normal((offsets[-1], width)) * np.repeat(rng.exponential(1.0, lists), counts)[:, None]
    if shape == "pairs":
        keys = centres + np.where(rng.random((offsets[-1], 1)) < 0.1, 5.0, 0.0)
    if shape == "one far key":
        keys[rng.integers(offsets[-1])] *= 1e3
    if shape == "duplicates":
        keys = centres + rng.standard_normal((offsets[-1], width)) * 1e-6
    if shape == "thin":
        keys = centres + rng.standard_normal((offsets[-1], 1)) * rng.standard_normal(width)
    values = np.tanh(keys @ rng.standard_normal((width, 3))) * rng.choice([1.0, 100.0])
    return keys, values, offsets


def lists_of(keys: np.ndarray, values: np.ndarray, offsets: np.ndarray, *, leading: int) -> Lists:
    """The statistics of lists of rows."""
    return measured(lambda start, stop: (keys[start:stop], values[start:stop]), offsets, leading=leading)


def summed(keys: np.ndarray, values: np.ndarray, query: np.ndarray) -> Blend:
    """The blend of rows as it really is, for one query."""
    logits = keys @ query
    peak = logits.max(initial=-np.inf)
    weights = np.exp(logits - peak)
    excess = (weights * (logits - peak)).sum()
    return Blend(*(np.array([x]) for x in (peak, weights.sum(), weights @ values, excess)))


def gap(
    keys: np.ndarray, values: np.ndarray, offsets: np.ndarray, query: np.ndarray, opened: int
) -> tuple[float, float]:
    """How wrong a bounded answer is that has read the first lists, and how wrong it says that it can be."""
    lists = lists_of(keys, values, offsets, leading=3)
    unread = np.arange(len(offsets) - 1)[None, :] >= opened
    found = bounded(lists, tilted(lists, query[None]), unread)
    near = summed(keys[: offsets[opened]], values[: offsets[opened]], query)
    if not opened:
        near = Blend(np.array([-np.inf]), np.zeros(1), np.zeros((1, values.shape[1])), np.zeros(1))
    answer = merge(found.blend, near).value
    true = summed(keys, values, query).value
    return float(np.linalg.norm(answer - true)), float(found.error(lists, near)[0])


@pytest.mark.parametrize("shape", SHAPES)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.integers(0, 3))
def test_the_bound_always_holds(shape: str, seed: int, sharpness: float, opened: int) -> None:
    """Lists may look like anything, the softmax may be sharp, and any number of lists may have been read."""
    keys, values, offsets = rows(shape, seed)
    query = (
        np.random.default_rng(seed).standard_normal(keys.shape[1])
        * 10.0**sharpness
        / np.linalg.norm(keys, axis=1).max()
    )
    wrong, admitted = gap(keys, values, offsets, query, opened)
    scale = float(np.abs(values).max())
    assert wrong <= admitted + 1e-9 * scale


def test_reading_every_list_is_exact() -> None:
    """Nothing is left to estimate, and the bound says so."""
    keys, values, offsets = rows("balls", 1)
    wrong, admitted = gap(keys, values, offsets, np.ones(6) * 0.3, len(offsets) - 1)
    assert wrong < 1e-12
    assert admitted == 0.0


def test_the_bound_is_worth_something() -> None:
    """At a gentle temperature it is a small part of the spread of the values, and shrinks as lists are read."""
    rng = np.random.default_rng(3)
    keys = np.repeat(rng.standard_normal((20, 6)), 50, axis=0) + 0.2 * rng.standard_normal((1000, 6))
    values = np.tanh(keys @ rng.standard_normal((6, 3)))
    offsets = np.arange(0, 1001, 50)
    admitted = [gap(keys, values, offsets, rng.standard_normal(6) * 0.3, opened)[1] for opened in (0, 10, 19)]
    assert admitted == sorted(admitted, reverse=True)
    assert admitted[0] < 0.1 * values.std(0).sum()


def test_a_list_of_equal_keys_is_known_exactly() -> None:
    """Its mass is its count times e^{βq·m}, its value the mean of its values, without reading a row."""
    rng = np.random.default_rng(4)
    offsets = np.array([0, 7, 8, 20])
    keys = np.repeat(rng.standard_normal((3, 5)), np.diff(offsets), axis=0)
    values = rng.standard_normal((20, 2))
    query = rng.standard_normal(5)
    lists = lists_of(keys, values, offsets, leading=2)
    tilt, unread = tilted(lists, query[None]), np.ones((1, 3), np.bool_)
    true = summed(keys, values, query)
    for blend in (estimated(lists, tilt, unread), bounded(lists, tilt, unread).blend):
        assert blend.value == pytest.approx(true.value, rel=1e-9)
        assert blend.log_mass == pytest.approx(true.log_mass, rel=1e-9)
    assert estimated(lists, tilt, unread).effective == pytest.approx(true.effective, rel=1e-9)
    assert bounded(lists, tilt, unread).error(lists, _nothing()) == pytest.approx(0.0, abs=1e-9)


def _nothing() -> Blend:
    return Blend(np.array([-np.inf]), np.zeros(1), np.zeros((1, 2)), np.zeros(1))


def test_the_estimate_is_right_for_normal_lists() -> None:
    """Keys that are normal and values that are linear in them are what it assumes: mass, value, spread, entropy."""
    rng = np.random.default_rng(5)
    mixing = rng.standard_normal((4, 4)) * 0.4
    keys = np.concatenate([rng.standard_normal((200_000, 4)) @ mixing + rng.standard_normal(4) for _ in range(2)])
    values = keys @ rng.standard_normal((4, 1)) + 0.1 * rng.standard_normal((len(keys), 1))
    query = rng.standard_normal(4)
    lists = lists_of(keys, values, np.array([0, 200_000, 400_000]), leading=4)
    found = estimated(lists, tilted(lists, query[None]), np.ones((1, 2), np.bool_), squares=True)
    true = summed(keys, values, query)
    weights = np.exp(keys @ query - true.log_mass)
    assert found.log_mass == pytest.approx(true.log_mass, abs=0.02)
    assert found.value == pytest.approx(true.value, abs=0.03)
    assert found.effective == pytest.approx(true.effective, rel=0.05)
    assert found.spread is not None
    spread = np.sqrt((weights * (values[:, 0] - true.value[0, 0]) ** 2).sum())
    assert found.spread[0, 0] == pytest.approx(spread, rel=0.03)


def test_lists_that_are_read_do_not_count_again() -> None:
    """The estimate is that of the unread lists alone, and an estimate of none is the blend of no rows."""
    keys, values, offsets = rows("balls", 6)
    values = values[:, :1]
    lists = lists_of(keys, values, offsets, leading=3)
    tilt = tilted(lists, np.full((1, 6), 0.2))
    none = estimated(lists, tilt, np.zeros((1, 4), np.bool_))
    assert (none.mass[0], none.peak[0]) == (0.0, -np.inf)
    first, rest = np.array([[True, False, False, False]]), np.array([[False, True, True, True]])
    parts = (estimated(lists, tilt, some, squares=True) for some in (first, rest))
    joined, whole = merge(*parts), estimated(lists, tilt, first | rest, squares=True)
    for name in ("value", "log_mass", "effective", "spread"):
        assert getattr(joined, name) == pytest.approx(getattr(whole, name), rel=1e-9)


def test_lists_without_rows_weigh_nothing() -> None:
    """An empty list changes no answer and no bound."""
    keys, values, offsets = rows("balls", 7)
    lists, more = (
        lists_of(keys, values, offsets, leading=3),
        lists_of(keys, values, np.append(offsets, offsets[-1]), leading=3),
    )
    query = np.full((1, 6), 0.2)
    found = [bounded(x, tilted(x, query), np.ones((1, len(x.counts)), np.bool_)) for x in (lists, more)]
    assert found[0].blend.value == pytest.approx(found[1].blend.value)
    empty = Blend(np.array([-np.inf]), np.zeros(1), np.zeros((1, 3)), np.zeros(1))
    assert found[0].error(lists, empty) == pytest.approx(found[1].error(more, empty))


@pytest.mark.parametrize("shape", SHAPES)
@given(st.integers(0, 10**6), st.floats(-3, 2))
def test_the_bound_holds_for_rows_that_came_and_went(shape: str, seed: int, sharpness: float) -> None:
    """What comes joins the statistics and what is gone leaves them, and they still bound the error."""
    keys, values, offsets = rows(shape, seed)
    rng = np.random.default_rng([seed, 1])
    late, gone = (rng.random(len(keys)) < rng.choice([0.0, 0.05, 0.5, 0.9]) for _ in range(2))
    if gone.all():
        gone[0] = False
    lists = lists_after(keys, values, offsets, late, gone)
    query = rng.standard_normal(keys.shape[1]) * 10.0**sharpness / np.linalg.norm(keys, axis=1).max()
    found = bounded(lists, tilted(lists, query[None]), np.ones((1, len(offsets) - 1), np.bool_))
    true = summed(keys[~gone], values[~gone], query)
    none = Blend(np.array([-np.inf]), np.zeros(1), np.zeros((1, 3)), np.zeros(1))
    wrong, scale = float(np.linalg.norm(found.blend.value - true.value)), float(np.abs(values).max())
    assert wrong <= float(found.error(lists, none)[0]) + 1e-7 * scale
    assert abs(found.blend.log_mass[0] - true.log_mass[0]) <= float(found.log_mass_error(none)[0]) + 1e-7


def lists_after(keys: np.ndarray, values: np.ndarray, offsets: np.ndarray, late: np.ndarray, gone: np.ndarray) -> Lists:
    """The statistics of lists that were measured before the late rows came, and from which some are gone."""
    late = late.copy()
    late[offsets[:-1][np.diff(offsets) > 0]] = False  # each list had a row
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    before = np.searchsorted(owners[~late], np.arange(len(offsets)))
    lists = lists_of(keys[~late], values[~late], before, leading=3)
    lists = with_rows(lists, owners[late], keys[late], values[late])
    return with_rows(lists, owners[gone], keys[gone], values[gone], sign=-1.0)


@pytest.mark.parametrize("block", [5, 8192])
def test_statistics_of_rows_that_came_and_went_are_those_of_the_rows_there_are(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums are those of the rows that are there now, however many are looked at together; only radii remember."""
    keys, values, offsets = rows("balls", 8)
    late, gone = np.random.default_rng(8).random((2, len(keys))) < 0.4
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    monkeypatch.setattr(moments, "BLOCK", block)
    left = lists_after(keys, values, offsets, late, gone)
    for number in range(len(offsets) - 1):
        mine = (owners == number) & ~gone
        assert left.counts[number] == mine.sum()
        if not mine.any():
            continue
        assert left.means[number] == pytest.approx(keys[mine].mean(0))
        assert left.values[number] == pytest.approx(values[mine].mean(0))
        y, u = (keys[mine] - keys[mine].mean(0)) @ left.axes, values[mine] - values[mine].mean(0)
        spread = y[:, :3].T @ y[:, :3] / len(y)
        assert left.spreads[number] == pytest.approx(spread[np.triu_indices(3)], abs=1e-9)
        assert left.outside[number] == pytest.approx((y[:, 3:] ** 2).sum() / len(y), abs=1e-9)
        assert left.scatter[number] == pytest.approx((u * u).sum() / len(u), abs=1e-9 * float((values**2).max()))
        assert left.radii[number, 0] >= np.linalg.norm(y[:, :3], axis=1).max() - 1e-9
        assert left.value_radii[number] >= np.linalg.norm(u, axis=1).max() - 1e-9
        assert left.widest[number] >= np.linalg.eigvalsh(y[:, 3:].T @ y[:, 3:] / len(y)).max() - 1e-9


def test_statistics_do_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is longer than a block is measured in parts, and only the widest direction is known less well."""
    keys, values, offsets = rows("balls", 9)
    whole = lists_of(keys, values, offsets, leading=3)
    monkeypatch.setattr(moments, "BLOCK", 5)
    parts = lists_of(keys, values, offsets, leading=3)
    for name in ("counts", "means", "values", "scatter"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9)
    query = np.full((1, 6), 0.2)
    for one in (whole, parts):
        assert tilted(one, query).logs == pytest.approx(tilted(whole, query).logs, rel=0.05)


@pytest.mark.slow
def test_bounds_hold_in_every_one_of_very_many_cases(thorough: bool) -> None:
    """Lists of all shapes, from the mildest temperature to the sharpest, some of them read, some rows late or gone.

    Values of wildly different lengths, a huge far key, lists of near-duplicates: 120,000 cases with --thorough.
    """
    broken = []
    for seed in range(20_000 if thorough else 500):
        rng = np.random.default_rng([seed, 2])
        for shape in SHAPES:
            keys, values, offsets = rows(shape, seed)
            values = values * 10.0 ** rng.uniform(-3, 3, (len(values), 1)) if seed % 3 else values
            late, gone = (rng.random(len(keys)) < rng.choice([0.0, 0.3, 0.8]) for _ in range(2))
            opened = int(rng.integers(0, 4))
            temperature = 10.0 ** rng.uniform(-3, 3)
            query = rng.standard_normal(keys.shape[1]) / np.linalg.norm(keys, axis=1).max() / temperature
            wrong, admitted = gap_after(keys, values, offsets, query, opened, late, gone)
            if not wrong <= admitted * (1 + 1e-9) + 1e-7 * float(np.abs(values).max()):
                broken.append((shape, seed, wrong, admitted))
    assert not broken


def gap_after(
    keys: np.ndarray,
    values: np.ndarray,
    offsets: np.ndarray,
    query: np.ndarray,
    opened: int,
    late: np.ndarray,
    gone: np.ndarray,
) -> tuple[float, float]:
    """How wrong a bounded answer is that has read the first lists, once rows came and went; and how it may be."""
    gone[-1] = False  # one row is always left
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    lists = lists_after(keys, values, offsets, late, gone)
    found = bounded(lists, tilted(lists, query[None]), np.arange(len(offsets) - 1)[None, :] >= opened)
    read = (owners < opened) & ~gone
    near = Blend(np.array([-np.inf]), np.zeros(1), np.zeros((1, values.shape[1])), np.zeros(1))
    if read.any():
        near = summed(keys[read], values[read], query)
    answer, true = merge(found.blend, near).value, summed(keys[~gone], values[~gone], query).value
    return float(np.linalg.norm(answer - true)), float(found.error(lists, near)[0])


def labelled(keys: np.ndarray, labels: int, seed: int) -> np.ndarray:
    """Codes of labels that follow from keys, but for a tenth that are drawn; some labels are much more frequent."""
    rng = np.random.default_rng([seed, 3])
    codes = (keys @ rng.standard_normal((keys.shape[1], labels)) + 2.0 * rng.standard_normal(labels)).argmax(1)
    return np.where(rng.random(len(keys)) < 0.1, rng.integers(0, labels, len(keys)), codes)


def labels_after(
    keys: np.ndarray, codes: np.ndarray, offsets: np.ndarray, late: np.ndarray, gone: np.ndarray, labels: int
) -> Lists:
    """The statistics of lists of labels that were measured before the late rows came, and from which some are gone."""
    late = late.copy()
    late[offsets[:-1][np.diff(offsets) > 0]] = False
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    before, there = np.searchsorted(owners[~late], np.arange(len(offsets))), (keys[~late], codes[~late])
    lists = measured(lambda start, stop: tuple(x[start:stop] for x in there), before, labels=labels, leading=3)
    lists = with_rows(lists, owners[late], keys[late], codes[late])
    return with_rows(lists, owners[gone], keys[gone], codes[gone], sign=-1.0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("changed", [False, True])
def test_labels_are_vectors_that_are_1_at_their_code(shape: str, changed: bool) -> None:
    """Statistics, estimates and bounds of labels are those of such vectors; also once rows came and went."""
    keys, _, offsets = rows(shape, 11)
    codes, rng = labelled(keys, 9, 11), np.random.default_rng(12)
    late, gone = rng.random((2, len(keys))) < (0.3 if changed else 0.0)
    left = labels_after(keys, codes, offsets, late, gone, 9)
    right = lists_after(keys, np.eye(9)[codes], offsets, late, gone)
    there = right.counts > 0
    for name in ("counts", "means", "spreads", "outside", "value_radii", "slope_gaps", "scatter", "noise"):
        mine, other = getattr(left, name)[there], getattr(right, name)[there]
        assert mine == pytest.approx(other, rel=1e-5, abs=1e-5 * max(1e-3, np.abs(other).max())), name
    assert left.slope == pytest.approx(right.slope, rel=1e-6, abs=1e-6 * max(1.0, np.abs(right.slope).max()))
    assert (np.eye(len(offsets) - 1) @ left.values)[there] == pytest.approx(right.vectors[there], abs=1e-9)
    query = rng.standard_normal(6) / np.linalg.norm(keys, axis=1).max()
    unread = np.array([[True, False, True, True]])
    blends = [estimated(one, tilted(one, query[None]), unread) for one in (left, right)]
    bounds = [bounded(one, tilted(one, query[None]), unread) for one in (left, right)]
    for one, other in (blends, [one.blend for one in bounds]):
        assert one.value == pytest.approx(other.value, abs=1e-6)
        assert one.log_mass == pytest.approx(other.log_mass, abs=1e-9)
    near = Blend(np.array([-np.inf]), np.zeros(1), np.zeros((1, 9)), np.zeros(1))
    errors = [found.error(one, near) for found, one in zip(bounds, (left, right), strict=True)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@given(st.integers(0, 10**6), st.floats(-3, 2), st.integers(0, 3))
def test_the_bound_holds_for_labels_of_which_few_have_a_slope(
    shape: str, seed: int, sharpness: float, opened: int
) -> None:
    """Three of 40 labels have one; rows came and went, and some lists were read."""
    keys, _, offsets = rows(shape, seed)
    codes, rng = labelled(keys, 40, seed), np.random.default_rng([seed, 4])
    late, gone = (rng.random(len(keys)) < rng.choice([0.0, 0.05, 0.5, 0.9]) for _ in range(2))
    gone[-1] = False
    with pytest.MonkeyPatch.context() as patch:
        scaled(patch, sloped=3)
        lists = labels_after(keys, codes, offsets, late, gone, 40)
    assert lists.slope.shape == (3, 6)
    query = rng.standard_normal(6) * 10.0**sharpness / np.linalg.norm(keys, axis=1).max()
    found = bounded(lists, tilted(lists, query[None]), np.arange(len(offsets) - 1)[None, :] >= opened)
    read, values = (np.repeat(np.arange(4), np.diff(offsets)) < opened) & ~gone, np.eye(40)[codes]
    near = Blend(np.array([-np.inf]), np.zeros(1), np.zeros((1, 40)), np.zeros(1))
    if read.any():
        near = summed(keys[read], values[read], query)
    answer, true = merge(found.blend, near).value, summed(keys[~gone], values[~gone], query).value
    assert float(np.linalg.norm(answer - true)) <= float(found.error(lists, near)[0]) + 1e-7


def test_labels_without_a_slope_are_estimated_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frequent ones follow the keys, the others do not; and what the slope explains is less."""
    scaled(monkeypatch, sloped=2)
    keys, _, offsets = rows("balls", 13)
    codes, none = labelled(keys, 6, 13), np.zeros(len(keys), np.bool_)
    some, full = labels_after(keys, codes, offsets, none, none, 6), lists_of(keys, np.eye(6)[codes], offsets, leading=3)
    steep = np.sort(np.argsort(-np.bincount(codes, minlength=6), kind="stable")[:2])
    query, unread = np.full((1, 6), 0.1), np.ones((1, 4), np.bool_)
    flat = replace(full, slope=np.where(np.isin(np.arange(6), steep)[:, None], full.slope, 0.0))
    found, expected = (estimated(one, tilted(one, query), unread) for one in (some, flat))
    assert found.total == pytest.approx(expected.total, rel=1e-9)
    owners = np.repeat(np.arange(4), np.diff(offsets))
    y, u = (keys - full.means[owners]) @ full.axes, np.eye(6)[codes] - full.vectors[owners]
    left = np.bincount(owners, ((u - y @ flat.slope.T) ** 2).sum(1)) / np.diff(offsets)
    assert some.noise == pytest.approx(left, rel=1e-6)
    assert some.noise.sum() > full.noise.sum() * 1.01
