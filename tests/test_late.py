"""Which lists late rows belong to, and the notes that say so."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from softkv.errors import IndexDamaged
from softkv.index import late
from softkv.index.building import side_by_side
from softkv.index.calibration import BEST, Calibration
from softkv.index.late import Change, Homes, Past, following
from softkv.index.lists import ListIndex
from softkv.index.opening import LEVELS
from softkv.maths.drift import Drift
from softkv.maths.forms import Form
from softkv.maths.moments import measured

LISTS, EACH, WIDTH = 60, 30, 16


def made(seed: int = 0, count: int = LISTS) -> tuple[ListIndex, np.ndarray, np.ndarray]:
    """An index of rows in clusters, a list each, with the centres of these, and how a value follows from a key."""
    rng = np.random.default_rng(seed)
    centres, turned = 3.0 * rng.standard_normal((count, WIDTH)), rng.standard_normal((WIDTH, 2))
    centres = centres[side_by_side(centres)]
    keys = (np.repeat(centres, EACH, axis=0) + rng.standard_normal((count * EACH, WIDTH))).astype(np.float32)
    values = np.tanh(keys @ turned).astype(np.float32)
    offsets = np.arange(0, count * EACH + 1, EACH)
    lists = measured(lambda start, stop: (keys[start:stop], values[start:stop]), offsets)
    cell = np.zeros((1, 1, len(LEVELS)))
    calibration = Calibration(np.ones(1), cell, cell, cell, cell, np.zeros(1), np.zeros((1, len(BEST))))
    form = Form("dot", "dot", np.zeros(WIDTH), np.ones(3))
    return ListIndex(form, offsets, lists, calibration, {"items": count * EACH}), centres, turned


def rows_like(centres: np.ndarray, turned: np.ndarray, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of late rows of some lists."""
    keys = (centres[owners] + np.random.default_rng(1).standard_normal((len(owners), WIDTH))).astype(np.float32)
    return keys, np.tanh(keys @ turned).astype(np.float32)


def change(index: ListIndex, *, first: int = LISTS * EACH, count: int = 40, since: int = 0, **others: Any) -> Change:
    """A change with this many rows in the lists 0, 1, 2, ..."""
    owners = (np.arange(count) % LISTS).astype(np.int32)
    drift = Drift.of(index.lists, owners.astype(np.int64), np.ones((count, WIDTH)), np.ones((count, 2)))
    found = Change(7, since, first, 1, owners, np.array([first], np.int64), drift)
    return replace(found, **others)


def test_rows_find_the_list_they_are_like() -> None:
    """The nearest mean for all but a few of them, though not every list is compared with every row."""
    index, centres, turned = made()
    wanted = np.random.default_rng(2).integers(0, LISTS, 3000)
    keys, values = rows_like(centres, turned, wanted)
    nearest = np.linalg.norm(keys[:, None] - index.lists.means, axis=2).argmin(1)
    found = Homes(index).of(keys, values)
    assert (found == nearest).mean() > 0.97
    assert found.dtype == np.int32


@pytest.mark.parametrize("count", [1, 2, 31, 33, 67, 130])
def test_every_list_is_found(count: int) -> None:
    """Rows at the mean of a list get that list, however many lists there are."""
    index, _, _ = made(count=count)
    assert Homes(index).of(index.lists.means, index.lists.vectors).tolist() == list(range(count))


def test_a_row_is_compared_with_few_of_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared with few lists in all its numbers, and with all lists in a few directions."""
    monkeypatch.setattr(late, "DIRECTIONS", 4)
    index, centres, turned = made(count=900)
    homes, keys = Homes(index), rows_like(centres, turned, np.arange(900))
    compared, plain = list[int](), late._closeness

    def counted(points: np.ndarray, others: np.ndarray) -> np.ndarray:
        compared.append(len(points) * len(others))
        return plain(points, others)

    monkeypatch.setattr(late, "_closeness", counted)
    nearest = np.linalg.norm(keys[0][:, None] - index.lists.means, axis=2).argmin(1)
    assert (homes.of(*keys) == nearest).mean() > 0.94
    assert 900 < sum(compared) < 900 * 900 / 3
    assert homes._seen.shape[1] == 4 + 1


def test_rows_far_from_all_lists_have_none() -> None:
    """Keys or values may be far, however far; a row that float32 has no squares for has no list either."""
    index, centres, turned = made()
    keys, values = rows_like(centres, turned, np.arange(5))
    keys[1] += 20.0
    keys[2] = 1e30
    values[3] += 50.0
    found = Homes(index).of(keys, values)
    assert found[[1, 2, 3]].tolist() == [-1, -1, -1]
    assert (found[[0, 4]] == [0, 4]).all()


def test_no_row_has_a_list_where_all_are_empty() -> None:
    """Where all lists are empty no row has one, and for no rows there is nothing to find."""
    index, centres, turned = made()
    empty = replace(index, lists=replace(index.lists, counts=np.zeros(LISTS)))
    keys, values = rows_like(centres, turned, np.arange(5))
    assert (Homes(empty).of(keys, values) == -1).all()
    assert len(Homes(index).of(keys[:0], values[:0])) == 0


@pytest.mark.parametrize("size", [1e300, 1e20, 0.0])
def test_lists_that_are_all_far_or_at_one_point_are_none_to_be_near(size: float) -> None:
    """Means of any size will do: also such as float32 has no squares for, or no numbers."""
    index, centres, turned = made()
    signs = np.where(np.arange(LISTS) % 2, size, -size)[:, None] * np.ones(WIDTH)
    keys, values = rows_like(centres + 1e3, turned, np.arange(5))
    assert (Homes(replace(index, lists=replace(index.lists, means=signs))).of(keys, values) == -1).all()


def test_a_change_comes_back_as_it_was_written() -> None:
    """All its numbers come back."""
    index = made()[0]
    written = change(index)
    found = Change.decoded(written.encoded(), index)
    assert (found.file, found.since, found.first, found.gone, found.known) == (7, 0, 1800, 1, 1840)
    assert found.owners.tolist() == written.owners.tolist()
    assert found.dead.tolist() == [1800]
    assert (found.drift.keys == written.drift.keys).all()


@pytest.mark.parametrize(
    "damage",
    [
        {"owners": np.full(3, LISTS, np.int32)},
        {"owners": np.full(3, -2, np.int32)},
        {"owners": np.zeros((3, 1), np.int32)},
        {"dead": np.array([-1])},
        {"dead": np.array([1840])},
        {"dead": np.arange(2)},
        {"dead": np.zeros(1)},
        {"first": -1},
        {"gone": 1 << 62},
        {"since": True},
    ],
)
def test_a_forged_change_is_refused(damage: dict[str, Any]) -> None:
    """Nothing leads to rows or lists that are not there."""
    index = made()[0]
    with pytest.raises(IndexDamaged, match="a change of the index"):
        Change.decoded(change(index, **damage).encoded(), index)
    with pytest.raises(IndexDamaged):
        Change.decoded(change(index).encoded()[:-1], index)


def test_changes_follow_each_other_up_to_one_that_is_missing() -> None:
    """What comes after it belongs to no list; neither does what goes beyond the rows there are."""
    index = made()[0]
    parts = [
        (11, change(index).encoded()),
        (15, change(index, first=1840, since=11).encoded()),
        (19, change(index, first=1880, since=15).encoded()),
    ]
    none = Past(7, 1800)

    def past(*some: int, rows: int = 5000) -> list[int]:
        return [number for number, _ in following([parts[one] for one in some], index, none, rows=rows).changes]

    assert past(0, 1, 2) == [11, 15, 19]
    assert past(0, 2) == [11]
    assert past(1, 2) == []
    assert past(0, 1, 2, rows=1900) == [11, 15]
    assert following(parts, index, Past(8, 1800), rows=5000).changes == ()
    damaged = [parts[0], (15, b"nothing"), parts[2]]
    assert following(damaged, index, none, rows=5000).number == 11


def test_a_change_replaces_those_that_are_not_much_larger() -> None:
    """A change replaces those that are not much larger, so that few are there, which say the same together."""
    index = made()[0]
    large = change(index, count=200_000)
    small = change(index, first=large.known, since=11)
    past = Past(7, small.known, ((11, large), (15, small)))
    written, replaced = past.with_next(change(index, first=small.known, since=15, gone=2), LISTS)
    assert replaced == [15]
    assert (written.since, written.first, written.known, written.gone) == (11, large.known, small.known + 40, 2)
    assert written.drift.counts.sum() == 80
    assert written.dead.tolist() == [small.first, small.known]
    assert past.with_next(change(index, first=small.known, since=15, count=300_000), LISTS)[1] == [11, 15]


def test_changes_that_would_be_too_large_together_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog has no room for parts of any size."""
    index = made()[0]
    first = change(index)
    past = Past(7, first.known, ((11, first),))
    following_it = change(index, first=first.known, since=11)
    written, replaced = past.with_next(following_it, LISTS)
    assert replaced == [11]
    assert written.size <= first.size_with(following_it, LISTS) < first.size + following_it.size
    monkeypatch.setattr(late, "LARGEST", first.size_with(following_it, LISTS))
    assert past.with_next(following_it, LISTS)[1] == [11]
    monkeypatch.setattr(late, "LARGEST", first.size_with(following_it, LISTS) - 1)
    assert past.with_next(following_it, LISTS)[1] == []
