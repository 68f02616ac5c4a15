"""`info`: what a store is, in a few figures.

Reads no rows, except to find a temperature when none is remembered.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from softkv.asking.indexed import NONE, Written
from softkv.asking.promised import unlike
from softkv.asking.question import CONFIDENCE, LEARNED, TOLERANCE
from softkv.asking.route import against_calibration, against_loose, is_cheap, numbers_of, takes_as_long
from softkv.asking.view import View
from softkv.database.backend import backend_name
from softkv.database.begun import is_begun
from softkv.errors import IndexDamaged
from softkv.index.dividing import doubled
from softkv.index.lists import OUTGROWN, ListIndex
from softkv.portrait import as_table, counted
from softkv.storage.layout import GENERATION_NAME, Layout
from softkv.storage.protocol.opening import is_backup

LOOSE = 0.02  # an index should be built again once this share of the items is in no list
_CALLED = {"backend": "builds indexes"}  # "backend" would read as if lookups used it
LOPSIDED = 0.02  # or once this share is in one list that has outgrown its size


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index in a few figures; `lists` is None, and `built` empty, when it cannot be used."""

    lists: int | None
    rows: int  # items that the lists were made of
    added: int  # items since
    strangers: int  # of these, those that are far from all lists: every lookup reads them
    waiting: int  # and those that no writer has put into lists yet: every lookup reads them, too
    deleted: int  # items in lists that were deleted since
    share: float | None  # the share of the items that a lookup like those rehearsed reads; None where it scans
    again: str | None  # why it should be built again, if it should
    needed: bool  # False while the store is so small that lookups scan all of it anyway
    built: dict[str, Any]  # in how many seconds, calibrated on what, and for which temperatures
    problem: str | None = None  # why it cannot be used
    checked: str | None = None  # how many changes ago, and how many answers were within what they state

    def __str__(self) -> str:
        if self.problem is not None:
            return f"cannot be used, so lookups scan: {self.problem}"
        told = [f"{counted(self.lists or 0, 'list')} over {counted(self.rows, 'item')}"]
        told += [f"{counted(self.added, 'item')} added since"] if self.added else []
        loose = self.strangers + self.waiting  # compaction turns the latter into the former
        told += [f"{loose:,} of them in no list"] if loose else []
        told += [f"{self.deleted:,} deleted since"] if self.deleted else []
        told += [f"lookups read {self.share:.1%}"] if self.share is not None and self.needed else []
        told += ["lookups at its temperature scan"] if self.share is None and self.needed and not self.again else []
        told += [f"checked {self.checked}"] if self.checked else []
        told += [f"build it again: {self.again}"] if self.again else []
        told += [] if self.needed else ["not needed yet: so few are scanned in a moment"]
        return ", ".join(told)


@dataclass(frozen=True, slots=True)
class Info:
    """A store in a few figures; widths, kind and temperature are None while it is empty."""

    path: str
    items: int
    dead_rows: int  # rows that compaction would leave behind
    freed_by_compact: int  # bytes of those rows
    held_by_readers: int  # bytes of earlier generations, which go with the next write once nobody reads them
    commit: int
    value_kind: str | None
    key_width: int | None
    value_width: int | None
    value_scale: float
    compatibility: str | None
    embedder: str | None
    temperature: float | None
    temperature_from: str | None  # "rule", "given" or "tuned", and from how many items; or "learned"
    projection: str | None  # what `fit` has learned, by which lookups then compare
    bytes_on_disk: int
    backend: str  # what builds indexes, and where
    index: IndexInfo | None = None  # None when there is none: lookups scan
    proposer: str | None = None  # what another index, that only proposes rows, is for
    unfinished: str | None = None  # a change of embedder that has begun
    building: str | None = None  # an index that was begun, with which the next build goes on
    backup: str | None = None  # what this is a backup of: only a backup writes to it
    guard: str | None = None  # what is promised of answers, or why nothing is any more

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python."""
        return asdict(self)

    def _shown(self) -> dict[str, str]:
        named = ((_CALLED.get(one.name, one.name.replace("_", " ")), getattr(self, one.name)) for one in fields(self))
        return {name: _figure(value) for name, value in named if value is not None}

    def __str__(self) -> str:
        shown = self._shown()
        wide = max(map(len, shown))
        return "\n".join(f"{name.ljust(wide)}  {value}" for name, value in shown.items())

    def _repr_html_(self) -> str:
        return as_table(counted(self.items, "item"), (), self._shown().items())


def summary(view: View, path: str, unfinished: str | None = None) -> Info:
    """The figures of a store as of one commit."""
    snapshot, profile, layout = view.snapshot, view.profile, view.snapshot.layout
    compared = profile.compatibility if len(snapshot) else None
    found = view.temperature(compared) if compared else profile.chosen_temperature
    temperature, origin = (
        (found.value, f"{found.origin}, from {counted(found.items, 'item')}") if found else (None, None)
    )
    if profile.projection is not None:
        temperature, origin = 1.0, "learned"
    return Info(
        path=path,
        items=len(snapshot),
        dead_rows=snapshot.rows - len(snapshot),
        freed_by_compact=0 if unfinished or not layout else (snapshot.rows - len(snapshot)) * _row_bytes(layout),
        held_by_readers=0 if unfinished else _held(path, snapshot.generation),
        commit=snapshot.commit,
        value_kind=None if view.kind is None else view.kind.value,
        key_width=layout.key_width if layout else None,
        value_width=layout.value_width if layout else None,
        value_scale=snapshot.value_scale,
        compatibility=profile.compatibility,
        embedder=profile.embedder.name if profile.embedder else None,
        temperature=temperature,
        temperature_from=origin,
        projection=_projection(view),
        bytes_on_disk=size_of(path),
        backend=backend_name(),
        index=index_of(view),
        proposer=proposer_of(view),
        unfinished=unfinished,
        building="was begun, and goes on where it was" if is_begun(snapshot) else None,
        backup="only `softkv backup` writes to it" if is_backup(path) else None,
        guard=_guard(view, temperature),
    )


def _projection(view: View) -> str | None:
    if view.profile.projection is None:
        return None
    try:
        learned = view.learned
    except IndexDamaged as error:
        return f"cannot be used: {error}"
    assert learned is not None
    planes = "" if learned.ridge is None else ", with planes"
    return f"rank {len(learned.metric.factors)}, from {counted(learned.facts.get('items', 0), 'item')}{planes}"


def _guard(view: View, temperature: float | None) -> str | None:
    """What the guard promises of lookups with default options, or why it promises nothing."""
    guard, stale = view.guard
    if guard is None or stale or not temperature:
        return stale
    compared = LEARNED if view.profile.projection else view.profile.compatibility or "dot"
    return unlike(guard.about, compared, temperature) or str(guard)


def proposer_of(view: View) -> str | None:
    """What an index that only proposes rows is for, if there is one."""
    return "the k best" if view.findings.proposers.there(view.snapshot) else None


def index_of(view: View) -> IndexInfo | None:
    """The index of a store, if it has one."""
    written, snapshot = view.index_as_written, view.snapshot
    if written is NONE:
        return None
    index, live = view.noted_index, snapshot.live
    added = int(live[written.rows :].sum())
    waiting = added if index is None else int(live[index.known :].sum())
    strangers = 0 if index is None else int(live[index.strangers].sum())
    return IndexInfo(
        lists=None if written.index is None else len(written.index.lists.counts),
        rows=written.rows,
        added=added,
        strangers=strangers,
        waiting=waiting,
        deleted=written.rows - int(live[: written.rows].sum()),
        share=None if index is None else _share(view, index, strangers + waiting),
        again=None if index is None else _again(view, index, strangers + waiting),
        needed=not is_cheap(view),
        built=_built(written),
        problem=written.problem or None,
        checked=_checked(view),
    )


def unlisted(items: int) -> IndexInfo:
    """Items of stores without an index, beside the indexes of others: every lookup reads them all."""
    return IndexInfo(
        lists=0,
        rows=0,
        added=items,
        strangers=0,
        waiting=items,
        deleted=0,
        share=1.0,
        again=f"{items:,} items are in shards without an index, and every lookup reads them",
        needed=False,
        built={},
    )


def together(parts: Sequence[IndexInfo]) -> IndexInfo:
    """The indexes of several stores as one: counts are added up, the rest is that of the first store that has it."""
    counts = ("rows", "added", "strangers", "waiting", "deleted")
    problem = next((one.problem for one in parts if one.problem), None)
    shares, items = [one.share for one in parts if one.share is not None], [_items(one) for one in parts]
    return replace(
        parts[0],
        **{name: sum(getattr(one, name) for one in parts) for name in counts},
        lists=None if problem else sum(one.lists or 0 for one in parts),
        share=float(np.average(shares, weights=items)) if len(shares) == len(parts) else None,
        again=next((one.again for one in parts if one.again), None),
        needed=any(one.needed for one in parts),
        problem=problem,
    )


def _items(part: IndexInfo) -> int:
    return part.rows + part.added - part.deleted


def _checked(view: View) -> str | None:
    """The result of the last check of the calibration, in words."""
    if view.verdict is None:
        return None
    return f"{counted(max(0, view.changes - view.verdict.changes), 'change')} ago: {view.verdict}"


def _share(view: View, index: ListIndex, loose: int) -> float | None:
    """The share of the items that a lookup at the temperature of the store reads."""
    if against_calibration(view) or against_loose(index, view.snapshot.rows):
        return None
    plan = index.calibration.plan(view.usual_temperature, TOLERANCE, CONFIDENCE)
    items = max(1, len(view.snapshot))
    if plan is None:
        return None
    if index.outline is None and not is_cheap(view) and takes_as_long(view, plan.share * numbers_of(view)):
        return None
    lists = index.quick.counts / items  # as many lookups are near a list as items are in it, and read all of it
    return min(1.0, float((lists * np.maximum(lists, plan.reads)).sum()) + loose / items)


def _again(view: View, index: ListIndex, loose: int) -> str | None:
    """Why an index should be built again."""
    items = len(view.snapshot)
    if against_calibration(view):
        return "its calibration no longer holds, so answers are measured, or all items scanned"
    if view.verdict is not None and view.verdict.lost():
        return "the k best are no longer found as surely as it states, so all items are scanned for them"
    if loose > LOOSE * items:
        return f"{loose:,} of {items:,} items are in no list, and every lookup reads them"
    counts = index.quick.counts
    largest = int(counts[doubled(counts, index.made_of, items)].max(initial=0))
    if largest > LOPSIDED * items:
        return f"{largest:,} of {items:,} items are in one list, and lookups near it read them all"
    if index.grown > OUTGROWN:
        return f"there are {index.grown:.1f} times as many items as it was made of"
    if index.heads is None and not is_cheap(view):
        return "its lists are not in random order, so what is measured is read from twice as many places"
    return None


def _built(written: Written) -> dict[str, Any]:
    """The facts about how an index was built."""
    if written.index is None:
        return {}
    facts, calibration = written.index.facts, written.index.calibration
    low, high = (float(one) for one in calibration.temperatures[[0, -1]])
    return {
        "seconds": facts.get("seconds"),
        "calibrated_on": facts.get("calibrated on"),
        "queries": int(calibration.doubts.shape[1]),
        "temperatures": [low, high],
    }


def _row_bytes(layout: Layout) -> int:
    return sum(shape.row_bytes for shape in layout.arenas)


def _held(path: str, here: int) -> int:
    """The bytes of generations before this one that are still on the disk."""
    found = filter(None, map(GENERATION_NAME.match, os.listdir(path)))
    return sum(size_of(os.path.join(path, one[0])) for one in found if int(one[1]) < here)


def size_of(path: str) -> int:
    """The bytes of all files under a directory; those that go meanwhile count nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _figure(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
