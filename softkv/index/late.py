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
from softkv.index.lists import Counts, ListIndex
from softkv.maths.blas import shared
from softkv.maths.drift import Drift, apart, problem_of_drift
from softkv.maths.drift import together as summed
from softkv.maths.farfield import Array

NEAREST = 6  # groups of lists in which the nearest list is searched: with 3, one row in thirty got another list
ROUNDS = 4  # of finding groups
LARGEST = 31 << 20  # bytes of a change, at most
GROWN = 4  # a change has at least so many times the size of the next one, or both become one
Owners = npt.NDArray[np.int32]
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
        arrays = [self.owners, self.dead, *(getattr(self.drift, one.name) for one in fields(self.drift))]
        return sum(array.nbytes for array in arrays)

    def encoded(self) -> bytes:
        """The change as bytes."""
        facts = {name: getattr(self, name) for name in _NUMBERS}
        drift = {f"drift.{one.name}": getattr(self.drift, one.name) for one in fields(self.drift)}
        return b"".join(encoded(facts, {"owners": self.owners, "dead": self.dead, **drift}))

    @classmethod
    def decoded(cls, content: bytes, index: ListIndex, *, labels: int = 0) -> "Change":
        """The change in these bytes, if it can be one of this index, in a store of so many labels."""
        facts, arrays = decoded(memoryview(content))
        try:
            drift = Drift(*(arrays[f"drift.{one.name}"] for one in fields(Drift)))
            file, since, first, gone = (facts[name] for name in _NUMBERS)
            found = cls(file, since, first, gone, arrays["owners"], arrays["dead"], drift)
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
        if len(self.dead) > self.gone or not ((self.dead >= 0) & (self.dead < self.known)).all():
            return "names dead rows that are not there"
        return problem_of_drift(self.drift, index.lists, labels)


def joined(changes: Sequence[Change]) -> Change:
    """Consecutive changes as one."""
    first = changes[0]
    if len(changes) == 1:
        return first
    owners, dead = (np.concatenate([getattr(one, name) for one in changes]) for name in ("owners", "dead"))
    return Change(
        first.file, first.since, first.first, changes[-1].gone, owners, dead, summed([one.drift for one in changes])
    )


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
    """The lists of an index, in groups of neighbours, so that not every list is compared with every row."""

    def __init__(self, index: ListIndex) -> None:
        self._lists, self._width = index.lists, index.lists.means.shape[1] - index.form.measures_distance
        self._there = np.flatnonzero(index.lists.counts > 0)
        means = index.lists.means[self._there, : self._width]
        # In float32, as keys are: far from zero no more digits are lost than the keys themselves have lost.
        self._middle = (means.mean(0) if len(means) else np.zeros(self._width)).astype(np.float32)
        self._points = (means - self._middle).astype(np.float32)
        self._centres, self._groups = _grouped(self._points)
        self._radii, self._value_radii = (reach[self._there] for reach in index.reaches)

    def of(self, keys: Array, values: Array) -> Owners:
        """The list of each row, or -1 if none is near.

        Keys come as the form makes them, (n, d), values as vectors, (n, p), or codes of labels, (n,).
        """
        if not len(self._there) or not len(keys):
            return np.full(len(keys), -1, np.int32)
        with np.errstate(over="ignore", invalid="ignore"):  # what is beyond float32 is near no list
            points = keys[:, : self._width].astype(np.float32, copy=False) - self._middle
            nearest, close = np.empty(len(points), np.int64), np.empty(len(points), np.float32)

            def found(start: int, stop: int) -> None:
                nearest[start:stop], close[start:stop] = self._nearest(points[start:stop])

            shared(found, 0, len(points))
            distances = np.sqrt(np.maximum(np.einsum("ij,ij->i", points, points) - 2.0 * close, 0.0))
            owners, near = self._there[nearest], distances <= self._radii[nearest]
        near &= apart(self._lists, owners, values) <= self._value_radii[nearest]
        return np.where(near, owners, -1).astype(np.int32)

    def _nearest(self, points: Array) -> tuple[Counts, Array]:
        """The nearest list in the nearest groups, (n,), and how close it is."""
        near = min(NEAREST, len(self._centres))
        groups = np.argpartition(-_closeness(points, self._centres), near - 1, axis=1)[:, :near]
        best, found = np.full(len(points), -np.inf, np.float32), np.zeros(len(points), np.int64)
        askers = np.argsort(groups, axis=None, kind="stable") // near
        ends = np.bincount(groups.ravel(), minlength=len(self._centres)).cumsum()
        for members, some in zip(self._groups, np.split(askers, ends[:-1]), strict=True):
            if len(some) and len(members):
                close = _closeness(points[some], self._points[members])
                place = close.argmax(1)
                most = close[np.arange(len(some)), place]
                closer = most > best[some]
                best[some[closer]], found[some[closer]] = most[closer], members[place[closer]]
        return found, best


def _closeness(points: Array, centres: Array) -> Array:
    """x·c − ‖c‖²/2, (n, l), which is largest for the nearest centre of a point."""
    found: Array = points @ centres.T
    found -= 0.5 * np.einsum("ij,ij->i", centres, centres)
    return found


def _grouped(points: Array) -> tuple[Array, list[Counts]]:
    """Group points into about as many groups as each has members: their centres, and the members of each."""
    count = max(1, round(len(points) ** 0.5))
    centres = points[np.linspace(0, max(0, len(points) - 1), count).astype(np.int64)] if len(points) else points
    owners = np.zeros(len(points), np.int64)
    for _ in range(ROUNDS if len(points) else 0):
        owners = _closeness(points, centres).argmax(1)
        sizes = np.bincount(owners, minlength=len(centres))
        sums = np.zeros_like(centres)
        np.add.at(sums, owners, points)
        means = sums / np.maximum(sizes, 1).astype(np.float32)[:, None]
        centres = np.where(sizes[:, None] > 0, means, centres)
    return centres, [np.flatnonzero(owners == number) for number in range(len(centres))]
