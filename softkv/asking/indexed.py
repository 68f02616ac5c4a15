"""The index of a store as of one commit: its file, read once, and the changes to rows since it was built.

Writers note which lists late rows belong to, and how late and deleted rows change the statistics
(database/settling.py). Few rows are not noted yet: lookups read those that were added, and those that were deleted are
taken out of the statistics here.

An index that is missing, damaged, or of another format is not used: everything is scanned, and `info` says why.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from softkv.asking.learned import read
from softkv.asking.profile import Profile
from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.late import LARGEST, Change, Homes, Past, following, whole_of
from softkv.index.lists import ListIndex
from softkv.index.outline import Outline
from softkv.index.shuffling import heads_first
from softkv.index.signs import PlacedKeys
from softkv.logs import log_of
from softkv.maths.blas import at_most
from softkv.maths.drawing import drawer
from softkv.maths.drift import Drift
from softkv.maths.drift import together as summed
from softkv.maths.forms import Form
from softkv.maths.metric import Metric
from softkv.maths.shares import Shares
from softkv.maths.summaries import Lists
from softkv.ndarrays import AnyArray, Reals, Rows
from softkv.storage import IndexFile, Snapshot

NAME = "lists"  # the name of the index file, and of the changes to it
CHECKED = "checked"  # the name of the verdict on its calibration
SOME = 256  # lists whose statistics are worked out together, where each step must be short
MOST = 8  # times LARGEST: no more changes are noted once they have so many bytes
FEWEST = 512  # added rows are noted once there are so many; a lookup reads fewer in a moment
PART = 64  # in a large store: once they are one in so many of its rows
DEAD = 4  # a deleted row counts as so many added ones, since it may lie anywhere and so takes longer to read
LOG = log_of(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """An index as it was written: its rows, dead or not, and the index itself, or why it cannot be used."""

    rows: int
    index: ListIndex | None
    problem: str = ""
    commit: int = 0  # of the file


NONE = Written(0, None)  # no index was built


class Indexes:
    """The index that a handle has read, shared with its snapshots."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may ask. What is read is put in place whole
        self._file: tuple[int, int, str | None] | None = None  # generation and commit of what was read, and projection
        self._written = NONE
        self._followed: Followed | None = None  # as a commit sees it
        self._homes: Homes | None = None

    @at_most(1)
    def of(self, snapshot: Snapshot, *, lately: bool = True) -> ListIndex | None:
        """The index to use for this commit, or None.

        It need not be quite up to date: lookups read the few rows that it does not know of.
        """
        with self._lock:
            followed = self._as_of(snapshot, lately=lately)
            return None if followed is None else followed.index(snapshot)

    def bounding(self, snapshot: Snapshot) -> ListIndex | None:
        """The index for bounds, where late rows belong to no list."""
        with self._lock:
            followed = self._as_of(snapshot)
            return None if followed is None else followed.bounding(snapshot)

    def change(self, snapshot: Snapshot, most: int) -> tuple[Change, list[int]] | None:
        """The next change to note, of at most `most` rows, and the numbers of the changes that it replaces.

        None if there is no index, if hardly any row is not noted yet, or if all notes together have become very large,
        as with wide keys and values in many lists.
        """
        with self._lock:
            followed = self._as_of(snapshot, lately=False)
            if followed is None or _is_enough(followed.past, snapshot):
                return None
            if self._homes is None:
                self._homes = Homes(followed.base)
            if sum(change.size for _, change in followed.past.changes) > MOST * LARGEST:
                return None
            lists, width = len(followed.base.lists.counts), Drift.none(followed.base.lists).width
            room = max(1, LARGEST // (width + 64))  # for rows that are in a list each
            change = followed.next(snapshot, self._homes, most if lists <= room else min(most, room))
            written, replaced = followed.past.with_next(change, lists)
            known = {number for number, _ in followed.past.changes}
            lost = [number for number in snapshot.derived_numbers(NAME) if number not in known]
            return written, replaced + lost

    def noted(self, number: int, change: Change) -> None:
        """Remember that this change was written under a number, so that it need not be read again."""
        with self._lock:
            if self._followed is not None:
                self._followed = Followed(self._followed.base, self._followed.past.followed_by(number, change))

    def relaid(self, snapshot: Snapshot) -> tuple[Rows, ListIndex] | None:
        """The live rows in an order in which late ones lie in their lists, and the index of rows in that order.

        None where there is no index, or nothing has died and no late row is in a list.
        """
        with self._lock:
            followed = self._as_of(snapshot, lately=False)
            if followed is None or not ((followed.joined.joined >= 0).any() or len(snapshot) < snapshot.rows):
                return None
            return followed.relaid(snapshot)

    def followed(self, snapshot: Snapshot) -> "Followed | None":
        """The index with the changes to it up to this commit, or None."""
        with self._lock:
            return self._as_of(snapshot)

    def as_written(self, snapshot: Snapshot) -> Written:
        """The index as it was built, without later changes, which takes less time."""
        with self._lock:
            return self._written_of(snapshot)

    def _as_of(self, snapshot: Snapshot, *, lately: bool = True) -> "Followed | None":
        base = self._written_of(snapshot).index
        if base is None:
            return None
        if lately and self._followed is not None and _is_enough(self._followed.past, snapshot):
            return self._followed
        past = self._past(snapshot, base)
        if self._written.index is not base:  # meanwhile a signal handler has asked about another file
            return self._as_of(snapshot, lately=lately)
        if self._followed is None or self._followed.past is not past:
            self._followed = Followed(base, past)
        return self._followed

    def _past(self, snapshot: Snapshot, base: ListIndex) -> Past:
        """The changes up to this commit: those known already, and those that follow."""
        assert self._file is not None
        past = self._followed.past if self._followed is not None else Past(self._file[1], base.known)
        numbers = [number for number in snapshot.derived_numbers(NAME) if number > past.file]
        if past.number and past.number not in numbers:  # a larger one has replaced it, or it is of a later commit
            past = Past(past.file, base.known)
        if not numbers or numbers[-1] <= past.number:
            return past
        assert snapshot.layout is not None
        labels = len(snapshot.labels()) if snapshot.layout.kind.coded else 0
        parts = snapshot.derived(NAME, after=past.number or past.file)
        return following(parts, base, past, rows=snapshot.rows, labels=labels)

    def _written_of(self, snapshot: Snapshot) -> Written:
        try:
            file = snapshot.index(NAME)
        except IndexDamaged as error:
            LOG.warning("the index of %s cannot be used: %s", snapshot.path, error)
            return Written(0, None, str(error))
        if file is None:
            return NONE
        try:
            known = snapshot.generation, file.commit, Profile.of(snapshot.settings).projection
            if self._file != known:
                read = self._read(file, snapshot)
                self._file, self._written, self._followed, self._homes = known, read, None, None
        finally:
            file.close()
        return self._written

    def _read(self, file: IndexFile, snapshot: Snapshot) -> Written:
        assert snapshot.layout is not None
        layout = snapshot.layout
        try:
            index = ListIndex.decoded(
                file.read(), rows=file.rows, key_width=layout.key_width, metric=partial(_metric, snapshot)
            )
            if not suits(index.lists, snapshot):
                raise IndexDamaged(f"the index is of values of shape {index.lists.values.shape}: build it again")
        except (IndexDamaged, FormatTooNew) as error:
            LOG.warning("the index of %s cannot be used: %s", snapshot.path, error)
            return Written(file.rows, None, str(error))
        return Written(index.rows, index, commit=file.commit)


class Followed:
    """An index with the changes to it up to some commit."""

    def __init__(self, base: ListIndex, past: Past) -> None:
        self.base, self.past = base, past
        self._changes = [change for _, change in past.changes]
        owners = np.concatenate([base.joined, *(change.owners for change in self._changes)])
        noted = np.sort(np.concatenate([np.empty(0, np.int64), *(change.dead for change in self._changes)]))
        self._noted = noted[np.diff(noted, prepend=-1) > 0]  # np.unique would load numpy.ma, 12 ms of a process
        # With the rows that joined its lists, by statistics as they were measured.
        late, signs = self._late(len(owners)), base.signs
        if signs is not None:
            words = whole_of([one.signs for one in self._changes], len(owners))
            signs = signs.with_late(None if words is None else words[0])
        self.joined = replace(base, joined=owners, late=late, signs=signs)
        self._index: tuple[Rows, ListIndex] | None = None  # the same without these rows
        self._bounding: tuple[Rows, ListIndex] = np.empty(0, np.int64), base

    def _late(self, count: int) -> Outline | None:
        """The outline of so many rows behind the lists, where that of each is known."""
        found = whole_of([one.outlined for one in self._changes], count)
        if self.base.outline is None or found is None:
            return None
        return replace(self.base.outline, codes=found[0], rests=found[1])

    def index(self, snapshot: Snapshot) -> ListIndex:
        """The index that estimates go by, without deleted rows."""
        dead = self._unnoted(snapshot)
        if not len(dead) and not len(self._drift.lists):
            return self.joined
        if self._index is None or not np.array_equal(self._index[0], dead):
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is scanned instead
                self._index = dead, replace(self.joined, estimates=self._without(self._left(snapshot, dead)))
        return self._index[1]

    def leaving(self, snapshot: Snapshot, rows: Rows) -> Iterator[ListIndex]:
        """Take deleted rows and these out of the index, SOME lists in each step; the last index yielded is complete.

        For callers that must work in short steps; `index` takes less time in all.
        """
        drifts = [one.drift for one in self._changes]
        drifts.append(self._left(snapshot, np.concatenate([self._unnoted(snapshot), rows])))
        lists, measured = np.arange(len(self.base.lists.counts)), self.base.quick
        estimates, step = measured, len(lists) if isinstance(measured.values, Shares) else SOME  # shares change as one
        for start in range(0, len(lists), step):
            yield replace(self.joined, estimates=estimates)
            drift = summed([one.among(lists[start : start + step]) for one in drifts])
            with np.errstate(over="ignore", invalid="ignore"):
                estimates = drift.applied(measured, onto=estimates)
        yield replace(self.joined, estimates=estimates)

    def bounding(self, snapshot: Snapshot) -> ListIndex:
        """The index without deleted rows, with statistics that bounds follow from."""
        dead = np.flatnonzero(~snapshot.live[: self.base.known])
        if not np.array_equal(self._bounding[0], dead):
            self._bounding = dead, self.base.without(dead, *self._rows(snapshot, dead))
        return self._bounding[1]

    def relaid(self, snapshot: Snapshot) -> tuple[Rows, ListIndex]:
        """The order of the live rows in which late ones lie in their lists, and the index of rows in that order."""
        known, bounding, live = self.joined, self.bounding(snapshot), np.flatnonzero(snapshot.live)
        owners = known.owners(live)
        late = live[(live >= self.base.known) & (owners >= 0)]
        last = np.where(owners >= 0, owners, len(self.base.lists.counts))
        index = bounding.relaid(known.owners(late), *self._rows(snapshot, late))
        order = live[np.argsort(last, kind="stable")]
        rows, means = order[: index.rows], index.lists.means
        order[: index.rows], heads = with_heads(snapshot, index.form, rows, index.offsets, means=means)
        outline = self.base.outline and Outline.of(
            lambda start, stop: index.form.keys(snapshot.vectors(order[start:stop])), index.offsets, index.lists
        )
        if outline is not None and self.base.outline is not None:
            outline = replace(outline, reach=self.base.outline.reach)
        signs = self.base.signs and self.base.signs.anew(placed_by(index.form, snapshot, order), index.rows)
        return order, replace(index, heads=heads, outline=outline, signs=signs)

    def next(self, snapshot: Snapshot, homes: Homes, most: int) -> Change:
        """The change for the next rows, at most `most` of them, and for deleted rows."""
        first, dead = self.past.known, self._unnoted(snapshot)
        rows = np.arange(first, min(first + most, snapshot.rows))
        live = snapshot.live[rows]
        owners, come = np.full(len(rows), -1, np.int32), rows[live]
        keys, values = self._rows(snapshot, come)
        found = homes.of(keys, values)
        owners[come - first] = found
        there, gone = found >= 0, np.concatenate([dead, rows[~live]])
        arrived = Drift.of(self.base.lists, found[there].astype(np.int64), keys[there], values[there])
        drift = summed([arrived, self._left(snapshot, dead)])
        numbers, outlined, signs = (self.past.file, self.past.number, first, self.past.gone + len(gone)), None, None
        if self.base.outline is not None:
            outlined = self.base.outline.nothing(len(owners))
            some = self.base.outline.coded(keys[there], found[there].astype(np.int64), self.base.lists)
            for whole, part in zip(outlined, some, strict=True):
                whole[come[there] - first] = part
        if self.base.signs is not None:
            signs = (self.base.signs.coded(self.base.form.placed(snapshot.vectors(rows))),)
        return Change(*numbers, owners, gone, drift, outlined, signs)

    @cached_property
    def _drift(self) -> Drift:
        """The sums over all rows that were added and deleted."""
        return summed([Drift.none(self.base.lists), *(change.drift for change in self._changes)])

    def _without(self, left: Drift) -> Lists:
        """The statistics for estimates, with these sums taken out as well."""
        drift = summed([self._drift.among(left.lists), left])
        return drift.applied(self.base.quick, onto=self._noted_lists)

    @cached_property
    def _noted_lists(self) -> Lists:
        return self._drift.applied(self.base.quick)

    def _unnoted(self, snapshot: Snapshot) -> Rows:
        """The rows that changes know of, and whose deletion is not noted."""
        dead = np.flatnonzero(~snapshot.live[: self.past.known])
        return np.setdiff1d(dead, self._noted, assume_unique=True)

    def _left(self, snapshot: Snapshot, rows: Rows) -> Drift:
        """The sums that leave the lists together with these rows."""
        owners = self.joined.owners(rows)
        rows, owners = rows[owners >= 0], owners[owners >= 0]
        return Drift.of(self.base.lists, owners, *self._rows(snapshot, rows), sign=-1.0)

    def _rows(self, snapshot: Snapshot, rows: Rows) -> tuple[Reals, Reals]:
        """Keys as the form makes them, and values as lists sum them up."""
        return self.base.form.keys(snapshot.vectors(rows)), summable(snapshot.values(rows), snapshot)


def _is_enough(past: Past, snapshot: Snapshot) -> bool:
    """Whether these changes cover all but a few rows of this commit, which take less time to read than more changes."""
    came, died = snapshot.rows - past.known, snapshot.rows - len(snapshot) - past.gone
    known = past.number <= snapshot.commit and came >= 0
    return known and came + DEAD * max(0, died) < max(FEWEST, snapshot.rows // PART)


def _metric(snapshot: Snapshot, name: str) -> Metric | None:
    """The metric that the store has learned, if it has this name."""
    return read(snapshot, name).metric if Profile.of(snapshot.settings).projection == name else None


def with_heads(
    snapshot: Snapshot, form: Form, rows: Rows, offsets: Rows, *, means: Reals | None = None
) -> tuple[Rows, Rows]:
    """The rows of lists with each head first and each body in an order drawn for this generation, and the heads.

    The `means` of the lists, of keys as the form makes them, save reading all keys once more.
    """
    draw, width = drawer(snapshot.secret, "bodies of lists", snapshot.generation), form.placed_width(len(form.centre))
    means = None if means is None else means[:, :width]
    return heads_first(lambda some: form.placed(snapshot.vectors(some)), rows, offsets, draw, means=means)


def placed_by(form: Form, snapshot: Snapshot, order: Rows | None = None) -> PlacedKeys:
    """The keys of consecutive rows, of those in this order if there is one, as a form places them."""

    def placed(start: int, stop: int) -> Reals:
        return form.placed(snapshot.vectors(np.arange(start, stop) if order is None else order[start:stop]))

    return placed


def summable(values: AnyArray, snapshot: Snapshot) -> AnyArray:
    """Values as lists sum them up: numbers in a column, labels by their codes."""
    assert snapshot.layout is not None
    return values[:, None] if snapshot.layout.kind.scalar else values


def suits(lists: Lists, snapshot: Snapshot) -> bool:
    """Whether the values in lists have the shape of those of the store; labels may have been added since."""
    assert snapshot.layout is not None
    shape, layout = lists.values.shape, snapshot.layout
    if not layout.kind.coded:
        return not isinstance(lists.values, Shares) and shape[1:] == (layout.value_width,)
    return isinstance(lists.values, Shares) and 0 < shape[1] <= len(snapshot.labels())


def with_labels(index: ListIndex, labels: int) -> ListIndex:
    """The index, extended by labels that are newer than it: no list has any of them."""
    if not isinstance(index.quick.values, Shares) or index.quick.values.labels >= labels:
        return index
    return replace(index, lists=_with(index.lists, labels), estimates=_with(index.quick, labels))


def _with(lists: Lists, labels: int) -> Lists:
    return replace(lists, values=lists.values.with_labels(labels)) if isinstance(lists.values, Shares) else lists
