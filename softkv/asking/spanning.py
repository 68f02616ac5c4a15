"""The rows of several stores as those of one, with one index: the lists of all, side by side.

The index is put together from those of the stores, in memory. The rows of a list do not lie side by side here, so all
of them count as rows that joined it later, and are gathered.

Does not choose the stores, or answer what the index cannot estimate (View.elsewhere).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from softkv.asking.view import Spanned, View
from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.calibration import BEST, Calibration
from softkv.index.encoding import decoded, encoded
from softkv.index.lists import MEASURED, UNKNOWN, IndexPart, ListIndex, Rehearsed
from softkv.index.opening import LEVELS
from softkv.index.signs import Need
from softkv.index.verdict import CHANGED, Verdict
from softkv.logs import log_of
from softkv.maths.abreast import abreast, turned
from softkv.maths.compatibility import are_alike
from softkv.maths.forms import Form
from softkv.maths.summaries import Lists
from softkv.ndarrays import Reals, Rows
from softkv.storage import IndexFile

NAME = "lists-together"  # of the index file of what was rehearsed by all, in the first store
MARKED = 64  # queries whose doubts identify an index
LOG = log_of(__name__)
MOST = 1 << 19  # rows; with more, putting lists side by side after each change takes longer than it saves


class Part(NamedTuple):
    """A store, and its place among all."""

    view: View
    first: int  # row, among those of all
    codes: Rows | None  # for each code of a label in the store, the code among those of all stores


class Spanning(View):
    """The rows of several stores, one store after the other."""

    @property
    def parts(self) -> Sequence[Part]:
        """The stores, if all of them lie here; else none."""
        raise NotImplementedError

    @cached_property
    def has_alike_keys(self) -> bool:
        """Whether keys are of nearly the same length."""
        views = [one.view for one in self.parts]
        return are_alike(np.concatenate([view.lengths[view.snapshot.live] for view in views]))

    @cached_property
    def index(self) -> ListIndex | None:
        """The lists of all stores; None if they cannot be put side by side."""
        there = [(one, one.view.index) for one in self.parts] if self.snapshot.rows <= MOST else []
        known = [(one, index) for one, index in there if index is not None]
        if not known or not _alike([index.form for _, index in known]):
            return None
        indexes = [index for _, index in known]
        joined, first, parts = np.full(self.snapshot.rows, -1, np.int64), 0, list[IndexPart]()
        for one, index in known:
            parts.append(IndexPart(index, one.first, first))
            inside = np.repeat(np.arange(len(index.made_of)), np.diff(index.offsets))
            owners = np.concatenate([inside, index.joined])
            joined[one.first : one.first + len(owners)] = np.where(owners >= 0, owners + first, -1)
            first += len(index.made_of)
        calibration, need, middles = self._rehearsed_by(indexes)
        return ListIndex(
            _form_of(indexes),
            np.zeros(first + 1, np.int64),
            self._lists(known),
            calibration,
            {"items": _made_of(indexes), "middles": middles},
            joined,
            sizes=np.concatenate([index.made_of for index in indexes]),
            bodies=_bodies(known),
            need=need,
            parts=parts,
        )

    def _lists(self, known: Sequence[tuple[Part, ListIndex]]) -> Lists:
        """The statistics of all lists; kept until an index changes, and those of each store until its own does."""
        kept, first, indexes = self.findings.spanned, known[0][1], [index for _, index in known]
        if kept is None or (kept.labels, kept.indexes) != (self.labels, indexes):
            same = kept is not None and kept.indexes[0].form is first.form
            before = dict(zip(kept.indexes, kept.turned, strict=True)) if kept is not None and same else {}
            parts = [before.get(index) or turned_to(index, _as_given(index), first) for index in indexes]
            lists = abreast(parts, [one.codes for one, _ in known], len(self.labels or ()))
            kept = self.findings.spanned = Spanned(self.labels, indexes, parts, lists)
        return kept.lists

    def _rehearsed_by(self, indexes: Sequence[ListIndex]) -> Rehearsed:
        """The calibration by all these lists together, while nearly all items are the same; else an empty one.

        All items of a store without an index count as added since. A single index is checked for its own changes.
        """
        added = sum(len(one.view.snapshot) for one in self.parts if one.view.index is None)
        if len(indexes) == 1:
            of_one = Rehearsed(indexes[0].calibration, indexes[0].need, indexes[0].facts.get("middles", 0))
            return of_one if added <= CHANGED * _made_of(indexes) else UNREHEARSED
        file = self.rehearsed
        if file is None or added + sum(one.view.changes for one in self.parts) > CHANGED * _made_of(indexes):
            return UNREHEARSED
        of, kept = (file.path, file.commit, *(index.calibration for index in indexes)), self.findings.rehearsed
        if kept is None or kept[0] != of:
            kept = self.findings.rehearsed = of, self._read(file, _marks(indexes))
        file.close()
        return kept[1]

    def _read(self, file: IndexFile, marks: list[str]) -> Rehearsed:
        try:
            facts, arrays = decoded(file.read())
            found = Calibration(*((UNKNOWN | arrays)[name] for name in MEASURED))
            need = Need.decoded(arrays)
            if problem := found.problem or (need and need.problem):
                raise IndexDamaged(f"it {problem}")
            return Rehearsed(found, need, facts.get("middles", 0)) if facts["of"] == marks else UNREHEARSED
        except (IndexDamaged, FormatTooNew, KeyError) as error:
            LOG.warning("what all shards of %s rehearsed together cannot be used: %s", self.snapshot.path, error)
            return UNREHEARSED

    @property
    def rehearsed(self) -> IndexFile | None:
        """The file of the calibration by the lists of all stores together, as `rehearsed_encoded` wrote it."""
        return self.parts[0].view.snapshot.index(NAME) if self.parts else None

    def is_rehearsed(self, temperatures: Reals) -> bool:
        """Whether the present lists were rehearsed together at these temperatures."""
        if self.index is None or not self.index.facts["middles"]:
            return False
        known = self.index.calibration.temperatures
        return len(known) == len(temperatures) and np.allclose(known, temperatures, rtol=1e-6)

    @property
    def uncalibrated(self) -> str | None:
        """Why the lists of all have no calibration together, where they have none."""
        if self.index is None or len(self.index.calibration.temperatures):
            return None
        return "all shards together were not rehearsed, or hold other items by now; `softkv index build`"

    @cached_property
    def verdict(self) -> Verdict | None:
        """The verdict on a store whose calibration no longer holds, if there is one."""
        verdicts = [one.view.verdict for one in self.parts]
        return next((one for one in verdicts if one is not None and one.withdrawn), None)


def rehearsed_encoded(rehearsed: Rehearsed, indexes: Sequence[ListIndex]) -> bytes:
    """What the lists of all these indexes rehearsed together, as bytes that are kept with the first store."""
    calibration, need, middles = rehearsed
    arrays = {name: getattr(calibration, name) for name in MEASURED} | ({} if need is None else need.encoded())
    return b"".join(encoded({"of": _marks(indexes), "middles": middles}, arrays))


def _marks(indexes: Sequence[ListIndex]) -> list[str]:
    """Figures that identify indexes, and stay the same when rows are laid in another order."""
    some = (np.ascontiguousarray(index.calibration.doubts[:, :MARKED]) for index in indexes)
    return [hashlib.blake2b(one.data, digest_size=16).hexdigest() for one in some]


def _made_of(indexes: Sequence[ListIndex]) -> int:
    return sum(int(index.made_of.sum()) for index in indexes)


def _alike(forms: Sequence[Form]) -> bool:
    """Whether all lists are of keys of one form, and none of a learned metric."""
    names = {(form.name, form.compatibility) for form in forms}
    return len(names) == 1 and all(form.metric is None for form in forms)


def _bodies(known: Sequence[tuple[Part, ListIndex]]) -> tuple[Rows, Rows]:
    """The first row of each list that lies in random order, and the one behind the last."""
    starts, stops = [], []
    for one, index in known:
        heads = np.diff(index.offsets) if index.heads is None else index.heads
        starts.append(one.first + index.offsets[:-1] + heads)
        stops.append(one.first + index.offsets[1:])
    return np.concatenate(starts), np.concatenate(stops)


def _form_of(indexes: Sequence[ListIndex]) -> Form:
    lengths = np.stack([index.form.lengths for index in indexes])
    return replace(
        indexes[0].form, lengths=np.array([lengths[:, 0].min(), np.median(lengths[:, 1]), lengths[:, 2].max()])
    )


def turned_to(index: ListIndex, lists: Lists, first: ListIndex) -> Lists:
    """The lists of an index, with these statistics, by the keys and along the axes of the first."""
    return turned(lists, *index.form.onto(first.form), first.lists.axes)


def _as_given(index: ListIndex) -> Lists:
    return index.lists if index.estimates is None else index.estimates.as_given(index.units)


_NONE = np.empty((0, 0, len(LEVELS)), np.float32)
UNREHEARSED = Rehearsed(
    Calibration(
        np.empty(0, np.float32),
        _NONE,
        _NONE,
        _NONE,
        _NONE,
        np.empty(0, np.float32),
        np.empty((0, len(BEST)), np.float32),
    ),
    None,
    0,
)
