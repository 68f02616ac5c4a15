"""Rows that were added after the lists were made: which list each belongs to, and how the statistics change.

A row belongs to a list whose mean is near, if it is not much farther from it than the rows that the list was made of.
All others are strangers, which every lookup reads. The results are stored as a sequence of `Change`s: the lists of the
rows that follow those of the previous change, the rows deleted meanwhile, and the sums by which the statistics of lists
change. From all of them a new process knows what it needs without reading any of these rows.

Does not read rows, nor decide when to look at them (database/settling.py).

Shapes: n rows, d key width, p value width, l lists, g groups of lists.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.encoding import decoded, encoded
from softkv.index.lists import ListIndex
from softkv.maths.blas import shared
from softkv.maths.drift import Drift, apart, problem_of_drift
from softkv.maths.drift import together as summed
from softkv.ndarrays import AnyArray, Counts, Reals

RUN = 32  # neighbouring lists, at most, that are compared with a row together
NEAREST = 12  # of these runs, at most, are: with 8, one row in forty gets another list
DIRECTIONS = 64  # in which rows are compared with all lists first
DOUBT = 0.08  # of half the square of what a row has beyond: by so much less close may be a run that is compared as well
ROUNDS = 3  # of finding directions
BLOCK = 1 << 8  # rows that are compared with all lists at once
LARGEST = 31 << 20  # bytes of a change, at most
GROWN = 4  # a change has at least so many times the size of the next one, or both become one
Owners = npt.NDArray[np.int32]
Noted = tuple[AnyArray, ...]  # arrays with a row for each row that was added
_NOTED = {"outlined": ("codes", "rests"), "signs": ("words",)}  # fields of a change, and their arrays
_NUMBERS = ("file", "since", "first", "gone")


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The changes to an index since the previous `Change`: rows added behind the lists, and rows deleted."""

    file: int  # the commit of the index that this is about
    since: int  # the number of the previous change; 0 for the first
    first: int  # the first of the added rows in this change
    gone: int  # how many rows were deleted in all changes up to this one
    owners: Owners  # (n,), the list of each added row; -1 for no list
    dead: Counts  # the rows that were deleted since the previous change, and are in no list any more
    drift: Drift
    outlined: Noted | None = None  # the codes of the outline of each added row, (n, r), and its rests, (n,)
    signs: Noted | None = None  # the words of the signs of each, (n, w)

    @property
    def known(self) -> int:
        """The first row that no change up to this one covers."""
        return self.first + len(self.owners)

    def size_with(self, other: "Change", lists: int) -> int:
        """The bytes, at most, of this change joined with another, for so many lists: a list in both counts once."""
        sums, twice = self.size + other.size, len(self.drift.lists) + len(other.drift.lists) - lists
        return sums - max(0, twice) * self.drift.width

    @property
    def size(self) -> int:
        """The bytes of its arrays."""
        drift = (getattr(self.drift, one.name) for one in fields(self.drift))
        arrays = [self.owners, self.dead, *(self.outlined or ()), *(self.signs or ()), *drift]
        return sum(array.nbytes for array in arrays)

    def encoded(self) -> bytes:
        """The change as bytes."""
        facts = {name: getattr(self, name) for name in _NUMBERS}
        drift = {f"drift.{one.name}": getattr(self.drift, one.name) for one in fields(self.drift)}
        rows: dict[str, AnyArray] = {"owners": self.owners, "dead": self.dead}
        for field, names in _NOTED.items():
            rows |= dict(zip(names, getattr(self, field) or (), strict=False))
        return b"".join(encoded(facts, rows | drift))

    @classmethod
    def decoded(cls, content: bytes, index: ListIndex, *, labels: int = 0) -> "Change":
        """The change in these bytes, if it can be one of this index, in a store of so many labels."""
        facts, arrays = decoded(memoryview(content))
        try:
            drift = Drift(*(arrays[f"drift.{one.name}"] for one in fields(Drift)))
            file, since, first, gone = (facts[name] for name in _NUMBERS)
            noted = (tuple(arrays[name] for name in names if names[0] in arrays) for names in _NOTED.values())
            outlined, signs = (part or None for part in noted)
            found = cls(file, since, first, gone, arrays["owners"], arrays["dead"], drift, outlined, signs)
        except KeyError as error:
            raise IndexDamaged(f"a change of the index lacks {error}") from error
        problem = found._problem(index, labels)
        if problem:
            raise IndexDamaged(f"a change of the index {problem}")
        return found

    def _problem(self, index: ListIndex, labels: int) -> str | None:
        if not all(type(one) is int and 0 <= one < 1 << 62 for one in (getattr(self, name) for name in _NUMBERS)):
            return "holds numbers that are none"
        for name, kind in (("owners", np.int32), ("dead", np.int64)):
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != kind:
                return f"holds {name} that are none"
        if len(self.owners) and not (self.owners.min() >= -1 and self.owners.max() < len(index.lists.counts)):
            return "names lists that are not there"
        if self.outlined is not None:
            problem = None if index.outline is None else index.outline.problem_of(len(self.owners), *self.outlined)
            if problem or index.outline is None:
                return problem or "holds an outline that the index has not"
        if self.signs is not None:
            problem = None if index.signs is None else index.signs.problem_of(len(self.owners), *self.signs)
            if problem or index.signs is None:
                return problem or "holds signs that the index has not"
        if len(self.dead) > self.gone or not ((self.dead >= 0) & (self.dead < self.known)).all():
            return "names dead rows that are not there"
        return problem_of_drift(self.drift, index.lists, labels)


def joined(changes: Sequence[Change]) -> Change:
    """Consecutive changes as one."""
    first = changes[0]
    if len(changes) == 1:
        return first
    owners, dead = (np.concatenate([getattr(one, name) for one in changes]) for name in ("owners", "dead"))
    numbers, drift = (first.file, first.since, first.first, changes[-1].gone), summed([one.drift for one in changes])
    outlined, signs = (whole_of([getattr(one, name) for one in changes]) for name in _NOTED)
    return Change(*numbers, owners, dead, drift, outlined, signs)


def whole_of(parts: Sequence[Noted | None], count: int | None = None) -> Noted | None:
    """What is noted of all rows of some changes, of so many in all; None where something is missing."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    whole: Noted = tuple(np.concatenate(some) for some in zip(*known, strict=True))
    return whole if count is None or len(whole[0]) == count else None


def following(
    parts: Iterable[tuple[int, bytes]], index: ListIndex, past: "Past", *, rows: int, labels: int = 0
) -> "Past":
    """The past, extended by those numbered parts that follow it one after another, in a store of so many rows.

    Parts after a missing or invalid one are left out, and their rows are assigned again.
    """
    for number, content in parts:
        try:
            change = Change.decoded(content, index, labels=labels)
        except (IndexDamaged, FormatTooNew):
            continue
        if (change.file, change.since, change.first) != (past.file, past.number, past.known) or change.known > rows:
            continue
        past = past.followed_by(number, change)
    return past


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """All changes of an index up to some commit, with their numbers."""

    file: int  # the commit of the index
    known: int  # the first row that no change covers
    changes: tuple[tuple[int, Change], ...] = ()

    @property
    def number(self) -> int:
        """The number of the last change; 0 where there is none."""
        return self.changes[-1][0] if self.changes else 0

    @property
    def gone(self) -> int:
        """How many rows were deleted in all of them."""
        return self.changes[-1][1].gone if self.changes else 0

    def followed_by(self, number: int, change: Change) -> "Past":
        """The past with a change that was written under this number, in the place of those that it replaces."""
        kept = tuple(one for one in self.changes if one[0] <= change.since)
        return Past(self.file, change.known, (*kept, (number, change)))

    def with_next(self, change: Change, lists: int) -> tuple[Change, list[int]]:
        """The change to write next, and the numbers of those that it replaces; `lists` is the number of lists.

        Previous changes that are not much larger are replaced, so there are few, and each row is written few times.
        """
        replaced = list[int]()
        for number, before in reversed(self.changes):
            if before.size > GROWN * change.size or before.size_with(change, lists) > LARGEST:
                break
            change = joined([before, change])
            replaced.insert(0, number)
        return change, replaced


class Homes:
    """The lists of an index, in runs of neighbours, so that a row is compared with all lists in a few directions only.

    Groups of lists that lie around a centre do worse: where clusters have nothing to do with each other, half of all
    lists are in one group, and every row is compared with these.
    """

    @np.errstate(over="ignore", invalid="ignore")  # rows are near no list that is beyond float32
    def __init__(self, index: ListIndex) -> None:
        self._lists, self._width = index.lists, index.lists.means.shape[1] - index.form.measures_distance
        self._there = np.flatnonzero(index.lists.counts > 0)
        means = index.lists.means[self._there, : self._width]
        # In float32, as keys are: far from zero no more digits are lost than the keys themselves have lost.
        self._middle = (means.mean(0) if len(means) else np.zeros(self._width)).astype(np.float32)
        self._points = (means - self._middle).astype(np.float32)
        # A power of two, since lists lie in the order in which they were halved (index/building.py).
        count = max(1, (1 << max(0, len(means) - 1).bit_length()) // RUN)
        self._long = -(-len(means) // count)
        self._starts = np.arange(count) * len(means) // count
        self._turn = _widest(self._points)
        members = (self._starts + np.arange(self._long)[:, None]).ravel()
        seen = (self._points @ self._turn)[members]  # the first list of each run, then the second, and so on
        self._seen = np.concatenate([seen, -_half_squares(seen)[:, None]], axis=1)
        self._radii, self._value_radii = (reach[self._there] for reach in index.reaches)

    def of(self, keys: Reals, values: Reals) -> Owners:
        """The list of each row, or -1 if none is near.

        Keys come as the form makes them, (n, d), values as vectors, (n, p), or codes of labels, (n,).
        """
        if not len(self._there) or not len(keys):
            return np.full(len(keys), -1, np.int32)
        with np.errstate(over="ignore", invalid="ignore"):  # what is beyond float32 is near no list
            points = keys[:, : self._width].astype(np.float32, copy=False) - self._middle
            nearest, close = np.empty(len(points), np.int64), np.empty(len(points), np.float32)

            def found(start: int, stop: int) -> None:
                with np.errstate(over="ignore", invalid="ignore"):  # a thread does not take over what is ignored
                    nearest[start:stop], close[start:stop] = self._nearest(points[start:stop])

            shared(found, 0, len(points))
            distances = np.sqrt(np.maximum(np.einsum("ij,ij->i", points, points) - 2.0 * close, 0.0))
            owners, near = self._there[nearest], distances <= self._radii[nearest]
        near &= apart(self._lists, owners, values) <= self._value_radii[nearest]
        return np.where(near, owners, -1).astype(np.int32)

    def _nearest(self, points: Reals) -> tuple[Counts, Reals]:
        """The nearest of the lists in the runs that look nearest, (n,), and how close it is."""
        best, found = np.full(len(points), -np.inf, np.float32), np.zeros(len(points), np.int64)
        askers, runs = self._asked(points)
        ends = np.bincount(runs, minlength=len(self._starts)).cumsum()
        for start, some in zip(self._starts.tolist(), np.split(askers, ends[:-1]), strict=True):
            if len(some):
                close = _closeness(points[some], self._points[start : start + self._long])
                place = close.argmax(1)
                most = close[np.arange(len(some)), place]
                closer = most > best[some]
                best[some[closer]], found[some[closer]] = most[closer], start + place[closer]
        return found, best

    def _asked(self, points: Reals) -> tuple[Counts, Counts]:
        """Points, and a run that each may have its nearest list in, run by run."""
        count = len(self._starts)
        near = min(NEAREST, count)
        runs = np.empty((len(points), near), np.min_scalar_type(count))  # small numbers are sorted ten times as fast
        asked = np.empty(runs.shape, np.bool_)
        room = np.empty(BLOCK * len(self._seen), np.float32)  # made once: new memory takes longer than the product
        for start in range(0, len(points), BLOCK):
            some = points[start : start + BLOCK]
            inner = some @ self._turn
            beyond = np.maximum(_half_squares(some) - _half_squares(inner), 0.0)
            inner = np.concatenate([inner, np.ones((len(some), 1), np.float32)], axis=1)
            close = np.matmul(self._seen, inner.T, out=room[: len(some) * len(self._seen)].reshape(-1, len(some)))
            close = close.reshape(-1, count, len(some)).max(0).T
            nearest = np.argpartition(close, count - near, axis=1)[:, count - near :]
            close = np.take_along_axis(close, nearest, 1)
            runs[start : start + BLOCK] = nearest
            asked[start : start + BLOCK] = close >= close.max(1, keepdims=True) - DOUBT * beyond[:, None]
        chosen = np.flatnonzero(asked)
        order = np.argsort(runs.ravel()[chosen], kind="stable")
        return chosen[order] // near, runs.ravel()[chosen[order]]


def _closeness(points: Reals, centres: Reals) -> Reals:
    """x·c − ‖c‖²/2, (n, l), which is largest for the nearest centre of a point."""
    found: Reals = points @ centres.T
    found -= _half_squares(centres)
    return found


def _half_squares(x: Reals) -> Reals:
    """Half the squared length of each row."""
    found: Reals = 0.5 * np.einsum("ij,ij->i", x, x)
    return found


def _widest(points: Reals) -> Reals:
    """Directions in which some points are farthest apart, (d, r), roughly: by a few rounds of power iteration."""
    count = min(DIRECTIONS, *points.shape)
    found = points[np.linspace(0, max(0, len(points) - 1), count).astype(np.int64)].T
    for _ in range(ROUNDS):
        found = np.linalg.qr(points.T @ (points @ found))[0]
    return found
