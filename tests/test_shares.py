"""Shares of labels: what is computed from those that occur is what a matrix of all of them would give."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softkv.maths import shares as module
from softkv.maths.shares import Shares

from .scales import scaled

LISTS, ROWS = 7, 60
Change = Callable[[dict[str, np.ndarray]], None]


def drawn(seed: int, labels: int, *, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Lists and labels of rows: a few labels are frequent, and the third list has no row."""
    rng = np.random.default_rng(seed)
    owners = rng.choice(np.delete(np.arange(LISTS), 2), rows)
    return owners, (labels * rng.random(rows) ** 3).astype(np.int64)


def shares_of(owners: np.ndarray, codes: np.ndarray, labels: int) -> Shares:
    """The shares of these rows."""
    return Shares.of(owners, codes, np.ones(len(codes)), lists=LISTS, labels=labels)


def in_full(owners: np.ndarray, codes: np.ndarray, labels: int) -> np.ndarray:
    """The share of each label in each list, row by row."""
    found = np.zeros((LISTS, labels))
    for owner, code in zip(owners, codes, strict=True):
        found[owner, code] += 1.0
    return found / np.maximum(found.sum(1, keepdims=True), 1.0)


@pytest.fixture(params=[0, 10**6], ids=["sparse", "dense"])
def full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products take the labels that occur, or all of them."""
    monkeypatch.setattr(module, "FULL", request.param)


@pytest.mark.parametrize("labels", [1, 2, 9, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_and_distances_are_those_of_all_shares(full: None, labels: int, dtype: type) -> None:
    """Lists without rows have them as well."""
    owners, codes = drawn(0, labels)
    rng, found, expected = np.random.default_rng(1), shares_of(owners, codes, labels), in_full(owners, codes, labels)
    assert found.shape == expected.shape
    masses = rng.random((3, LISTS))
    assert masses.astype(dtype) @ found.astype(dtype) == pytest.approx(masses @ expected, rel=1e-5, abs=1e-7)
    centres = rng.dirichlet(np.ones(labels), 3)
    apart = np.linalg.norm(expected - centres[:, None], axis=2)
    assert found.astype(dtype).distances(centres) == pytest.approx(apart, rel=1e-5, abs=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 400))
def test_a_distance_is_never_too_short(seed: int, labels: int) -> None:
    """Bounds are made of it, however near a list lies."""
    owners, codes = drawn(seed, labels)
    shares, expected = shares_of(owners, codes, labels), in_full(owners, codes, labels)
    centres = expected[[0, 1]] + 1e-9 * np.random.default_rng(seed).standard_normal((2, labels))
    assert (shares.distances(centres) >= np.linalg.norm(expected - centres[:, None], axis=2)).all()


@pytest.mark.parametrize("labels", [3, 200])
def test_rows_that_come_and_go_leave_the_shares_of_those_there_are(labels: int) -> None:
    """They leave no trace: a label that is gone from a list is no part of it, and a new one is."""
    owners, codes = drawn(2, labels)
    late, gone = np.random.default_rng(3).random((2, ROWS)) < 0.5
    found = shares_of(owners[~late], codes[~late], labels)
    found = found.with_more(owners[late], codes[late], 1.0).with_more(owners[gone], codes[gone], -1.0)
    expected = shares_of(owners[~gone], codes[~gone], labels)
    for name in ("starts", "codes", "tallies"):
        assert (getattr(found, name) == getattr(expected, name)).all()
    more = found.with_more(np.array([2]), np.array([labels + 1]), 1.0)
    assert more.labels == labels + 2
    assert (np.eye(LISTS)[[2]] @ more)[0, -1] == 1.0


def test_rows_and_moves_are_known_by_lengths_and_products_with_the_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of them once the slope is taken out is that of vectors that are 1 at their label."""
    scaled(monkeypatch, sloped=4)
    owners, codes = drawn(4, 12)
    rng, before = np.random.default_rng(5), shares_of(owners, codes, 12).with_slope_of_frequent()
    frequent = np.sort(np.argsort(-np.bincount(codes, minlength=12), kind="stable")[:4])
    assert before.sloped.tolist() == frequent.tolist()
    slope, x, means = rng.standard_normal((4, 5)), rng.standard_normal((ROWS, 5)), in_full(owners, codes, 12)
    whole = np.zeros((12, 5))
    whole[frequent] = slope
    rows, apart = before.of_rows(owners, codes, slope), np.eye(12)[codes] - means[owners]
    assert rows.squares == pytest.approx((apart**2).sum(1))
    for axes in (slice(None), slice(None, 2), slice(2, None)):
        left = ((apart - x[:, axes] @ whole[:, axes].T) ** 2).sum(1)
        assert rows.left(slope, axes, x[:, axes]) == pytest.approx(left, rel=1e-9, abs=1e-9)
    after, lists = before.with_more(owners[:20], codes[:20], -1.0), np.array([0, 1, 5])
    shift = (in_full(owners[20:], codes[20:], 12) - means)[lists]
    moves = before.moved_to(after, lists, slope)
    assert moves.squares == pytest.approx((shift**2).sum(1))
    left = ((shift - x[:3] @ whole.T) ** 2).sum(1)
    assert moves.left(slope, slice(None), x[:3]) == pytest.approx(left, rel=1e-9, abs=1e-9)


def test_a_label_that_is_newer_has_no_share() -> None:
    """Rows of it lie as far from a list as those of a label that none of its rows have."""
    owners, codes = drawn(6, 5)
    shares = shares_of(owners, codes, 5)
    found = shares.of_rows(np.array([0, 1]), np.array([9, 5]), np.zeros((0, 3))).squares
    assert found == pytest.approx(1.0 + (in_full(owners, codes, 5)[:2] ** 2).sum(1))
    assert shares.with_labels(9).shape == (LISTS, 9)
    assert shares.with_labels(3) is shares


def test_shares_are_kept_as_arrays() -> None:
    """What comes back from the arrays equals what was put into them."""
    owners, codes = drawn(7, 20)
    shares = shares_of(owners, codes, 20).with_slope_of_frequent()
    again = Shares.decoded("x", shares.encoded("x"))
    assert again.problem(np.bincount(owners, minlength=LISTS).astype(np.float64)) is None
    assert np.eye(LISTS) @ again == pytest.approx(in_full(owners, codes, 20))


def test_shares_take_room_for_what_occurs() -> None:
    """They do, however many labels there are elsewhere."""
    owners, codes = drawn(9, 1_000_000)
    shares = shares_of(owners, codes, 1_000_000)
    assert sum(x.nbytes for x in shares.encoded("x").values()) < 20 * ROWS
    assert len(shares.with_slope_of_frequent().sloped) == module.SLOPED


def _put(name: str, place: int, value: float) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name][place] = value

    return change


def _swap(name: str, make: Callable[[Any], Any]) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = make(arrays[name])

    return change


@pytest.mark.parametrize(
    "change",
    [
        _put("x.starts", 0, 1),
        _put("x.starts", 3, 10**6),
        _put("x.starts", -1, 3),
        _put("x.codes", 0, -1),
        _put("x.codes", 0, 10**9),
        _put("x.codes", 1, 0),
        _put("x.tallies", 0, 0.0),
        _put("x.tallies", 0, 77.0),
        _put("x.tallies", 0, np.nan),
        _put("x.sloped", 0, 10**9),
        _put("x.sloped", 0, -1),
        _put("x.sloped", 1, 0),
        _put("x.labels", 0, -1),
        _put("x.labels", 0, 1 << 62),
        _swap("x.starts", lambda x: x[:-1]),
        _swap("x.starts", lambda x: x[:0]),
        _swap("x.codes", lambda x: x[:-1]),
        _swap("x.codes", lambda x: x.astype(np.float64)),
        _swap("x.tallies", lambda x: x.astype(np.float32)),
        _swap("x.tallies", lambda x: x[:, None]),
        _swap("x.labels", lambda x: x.astype(np.float64)),
        _swap("x.labels", lambda x: x[:0]),
    ],
)
def test_arrays_that_are_no_shares_are_refused(change: Change) -> None:
    """Anything may be wrong with them, and nothing is computed with them."""
    owners, codes = drawn(8, 20)
    arrays = {name: x.copy() for name, x in shares_of(owners, codes, 20).with_slope_of_frequent().encoded("x").items()}
    change(arrays)
    try:
        problem = Shares.decoded("x", arrays).problem(np.bincount(owners, minlength=LISTS).astype(np.float64))
    except ValueError as error:
        problem = str(error)
    assert problem
