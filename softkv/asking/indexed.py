"""The index of a store as one commit sees it: its file read once, what has died since taken out of its statistics.

Rows that were added since are read by every query. When that has been done so often that it was cheaper to look for the
lists they belong to, some of them join these. Where few of them belong to any, it is left at that: then it is time to
build the index again.

An index that is missing, damaged, or of another format is none: everything is scanned then, and `info` says why.
"""

import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.asking.learned import read
from softkv.asking.profile import Profile
from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.candidates import Proposer
from softkv.index.joining import joining
from softkv.index.lists import ListIndex
from softkv.logs import log_of
from softkv.maths.farfield import Array, Lists
from softkv.maths.forms import Form
from softkv.maths.metric import Metric
from softkv.maths.shares import Shares
from softkv.storage import IndexFile, Snapshot
from softkv.storage.layout import Matrix, Rows

NAME = "lists"  # of the index file
PROPOSER = "proposer"  # of that of a proposer
TOGETHER = 1 << 12  # rows that join lists together: a lookup that waits for it takes a fraction of a second
WORTH = 128  # times that a row is read before it is looked at
ALIKE = 0.75  # the share of them that must find a list
LOG = log_of(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """An index as it was written: its rows, dead or not, and the index itself, or why it is of no use."""

    rows: int
    index: ListIndex | None
    problem: str = ""


class Indexes:
    """The index that a handle has read, shared with its snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: tuple[int, int, str | None] | None = None  # generation and commit of what was read, and projection
        self._written = Written(0, None)
        self._current: ListIndex | None = None  # the same without these rows
        self._dead: Rows = np.empty(0, np.int64)
        self._read_behind = 0  # rows behind the lists that were read in vain, so to speak
        self._strange = False  # what was added since looks like no list

    def of(self, snapshot: Snapshot) -> ListIndex | None:
        """The index that suits this commit, or None."""
        with self._lock:
            written = self._of_file(snapshot)
            if written is None or written.index is None:
                return None
            return self._without_the_dead(written.index, snapshot)

    def read_behind(self, snapshot: Snapshot) -> bool:
        """Take note that a lookup read the rows behind the lists; whether some of them have joined lists now."""
        with self._lock:
            index = self._current
            if index is None or self._strange or index.known >= snapshot.rows:
                return False
            self._read_behind += snapshot.rows - index.known
            if self._read_behind < WORTH * TOGETHER or snapshot.generation != (self._file or (-1,))[0]:
                return False
            self._read_behind = 0
            return self._join(index, snapshot)

    def _join(self, index: ListIndex, snapshot: Snapshot) -> bool:
        assert snapshot.layout is not None
        rows, labels = np.arange(index.known, min(index.known + TOGETHER, snapshot.rows)), index.lists.values.shape[1]
        live, given, keys = snapshot.live[rows], snapshot.values(rows), form_keys(index.form, snapshot, rows)
        values = summable(given, snapshot)
        # Lists cannot count labels that are newer than they are.
        suited = live & (given < labels) if snapshot.layout.kind.coded else live
        owners = joining(index, keys, values, suited)
        self._strange = bool(np.count_nonzero(owners >= 0) < ALIKE * np.count_nonzero(live))
        if not self._strange:
            self._current = index.with_more(owners, keys, values)
            self._dead = np.concatenate([self._dead, rows[~live]])
        return not self._strange

    def as_written(self, snapshot: Snapshot) -> Written | None:
        """The index before anything of it died, which costs less; None when none was built."""
        with self._lock:
            return self._of_file(snapshot)

    def _of_file(self, snapshot: Snapshot) -> Written | None:
        try:
            file = snapshot.index(NAME)
        except IndexDamaged as error:
            LOG.warning("the index of %s cannot be used: %s", snapshot.path, error)
            return Written(0, None, str(error))
        if file is None:
            return None
        try:
            known = snapshot.generation, file.commit, Profile.of(snapshot.settings).projection
            if self._file != known:
                self._written, self._current = self._read(file, snapshot), None
                self._read_behind, self._strange = 0, False
                self._file = known
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
        return Written(index.rows, index)

    def _without_the_dead(self, written: ListIndex, snapshot: Snapshot) -> ListIndex:
        known = written.known if self._current is None else self._current.known
        dead = np.flatnonzero(~snapshot.live[:known])
        if self._current is None or known > snapshot.rows or len(np.setdiff1d(self._dead, dead, assume_unique=True)):
            # The first question, or one about an earlier commit.
            self._current, self._dead = written, dead[:0]
            dead = np.flatnonzero(~snapshot.live[: written.known])
        more = np.setdiff1d(dead, self._dead, assume_unique=True)
        if len(more):
            keys = form_keys(written.form, snapshot, more)
            values = summable(snapshot.values(more), snapshot)
            self._current, self._dead = self._current.without(more, keys, values), dead
        return self._current


def _metric(snapshot: Snapshot, name: str) -> Metric | None:
    """What the store has learned, if it goes by this name."""
    return read(snapshot, name).metric if Profile.of(snapshot.settings).projection == name else None


class Proposers:
    """The proposer that a handle has read, shared with its snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: tuple[int, int] | None = None
        self._found: Proposer | None = None

    def there(self, snapshot: Snapshot) -> bool:
        """Whether there is one, of use or not."""
        try:
            file = snapshot.index(PROPOSER)
        except IndexDamaged:
            return True
        if file is not None:
            file.close()
        return file is not None

    def of(self, snapshot: Snapshot) -> Proposer | None:
        """The proposer of this commit, or None when there is none that can be used."""
        with self._lock:
            try:
                file = snapshot.index(PROPOSER)
                if file is None:
                    return None
                with_file = snapshot.generation, file.commit
                if self._file != with_file:
                    self._found, self._file = None, with_file
                    self._found = _read(file.read(), snapshot, file.rows)
                file.close()
            except (IndexDamaged, FormatTooNew):
                return None
            return self._found


def _read(content: memoryview, snapshot: Snapshot, rows: int) -> Proposer:
    assert snapshot.layout is not None
    known = int.from_bytes(content[:8], "little")
    if known > rows:
        raise IndexDamaged(f"the proposer knows {known} rows, but {rows} were there: build it again")
    return Proposer.from_bytes(content[8:], width=snapshot.layout.key_width, rows=known)


def form_keys(form: Form, snapshot: Snapshot, rows: Rows) -> Array:
    """The keys of some rows as a form makes them."""
    return formed(form, snapshot.vectors(rows))


def formed(form: Form, keys: Matrix) -> Array:
    """Keys as a form makes them, whatever the store says of their lengths: those are derived, and statistics stay."""
    lengths = np.linalg.norm(keys.astype(np.float64), axis=1)
    return form.keys(keys, 1.0 / np.where(lengths > 0, lengths, np.inf))


def summable(values: npt.NDArray[Any], snapshot: Snapshot) -> npt.NDArray[Any]:
    """Values as lists sum them up: numbers in a column, labels by their codes."""
    assert snapshot.layout is not None
    return values[:, None] if snapshot.layout.kind.scalar else values


def suits(lists: Lists, snapshot: Snapshot) -> bool:
    """Whether lists know values like those of the store; labels may have come since."""
    assert snapshot.layout is not None
    shape, layout = lists.values.shape, snapshot.layout
    if not layout.kind.coded:
        return not isinstance(lists.values, Shares) and shape[1:] == (layout.value_width,)
    return isinstance(lists.values, Shares) and 0 < shape[1] <= len(snapshot.labels())


def with_labels(index: ListIndex, labels: int) -> ListIndex:
    """The index where there are more labels than when it was built: no list has any of the new ones."""
    values = index.lists.values
    if not isinstance(values, Shares) or values.labels >= labels:
        return index
    return replace(index, lists=replace(index.lists, values=values.with_labels(labels)))
