"""One commit of a store, with the facts that lookups need, each computed once.

Does not look anything up (asker.py).
"""

import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers, Described
from softkv.asking.indexed import CHECKED, Followed, Indexes, Written, with_labels
from softkv.asking.learned import Learned, Projections
from softkv.asking.profile import Profile, Temperature
from softkv.asking.promised import guard_of
from softkv.asking.proposers import Proposers
from softkv.asking.question import LEARNED, Compared, Question
from softkv.asking.together import Together
from softkv.embedders import Identity
from softkv.errors import NotExpressible, ZeroVector
from softkv.guard.guard import Guard
from softkv.index.candidates import Proposer
from softkv.index.lists import ListIndex, Rehearsed
from softkv.index.strata import Population
from softkv.index.verdict import Verdict, changes
from softkv.kinds import ValueKind
from softkv.learning.temperature import typical_temperature, unit_of_scores
from softkv.learning.tuning import lowest_log_mass
from softkv.maths.blending import Labels, Numbers, Values, Vectors
from softkv.maths.compatibility import Compatibility, are_alike, compatibility_of
from softkv.maths.summaries import Lists
from softkv.ndarrays import AnyArray, Floats, Rows
from softkv.storage import Layout, Snapshot

TOGETHER = 4096  # values that are read together
COPIED = 1 << 16  # numbers of values that are copied at once
FEW_NUMBERS = 1 << 23  # in keys and in values


ViewT = TypeVar("ViewT", bound="View")


class View:
    """A snapshot, its profile, its labels, and how long its keys are."""

    elsewhere: Callable[[Question], Answers] | None = None  # answers questions if the rows are those of several stores

    def __init__(self, snapshot: Snapshot, findings: "Findings") -> None:
        self.snapshot, self.findings = snapshot, findings
        self.profile = Profile.of(snapshot.settings)

    @cached_property
    def guard(self) -> tuple[Guard | None, str | None]:
        """The guard of the store, if it has one, and why it does not hold for the present items, if it does not."""
        return guard_of(self.profile, self.snapshot)

    @property
    def layout(self) -> Layout:
        """Widths and kind; only asked of a store that has items."""
        assert self.snapshot.layout is not None
        return self.snapshot.layout

    @property
    def kind(self) -> ValueKind | None:
        """The kind of the values, once it is decided."""
        layout = self.snapshot.layout
        return layout.kind if layout else self.profile.value

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The labels in the order of their codes, or None when values are not labels."""
        return tuple(self.snapshot.labels()) if self.layout.kind.coded else None

    def blended(self, values: AnyArray, *, projected: bool = False, whole: bool = False) -> Values:
        """Values as a lookup blends them: the whole with their reach, and what heads project as vectors."""
        kind = self.layout.kind
        if kind.coded:
            return Labels(values, len(self.labels or ()))
        if kind.scalar:
            return Vectors(values[:, None]) if projected else Numbers(values[:, None])
        return Vectors(values, (self.reach.middle, self.reach.radius) if whole else None)

    @cached_property
    def order(self) -> Rows:
        """The live rows in the order in which their items were first added."""
        return self.snapshot.in_order()

    @cached_property
    def sound_order(self) -> Rows:
        """The live rows in order, checked; for callers that read no items, and so would not notice a wrong order."""
        self.snapshot.require_sound_order()
        return self.order

    @cached_property
    def lengths(self) -> npt.NDArray[np.float32]:
        """‖key‖ of every row, (n,)."""
        return self.snapshot.norms(0, self.snapshot.rows)

    @cached_property
    def longest_key(self) -> float:
        """The length of the longest key vector."""
        return float(self.lengths.max())

    @cached_property
    def has_alike_keys(self) -> bool:
        """Whether keys are of nearly the same length."""
        return are_alike(self.lengths[self.snapshot.live])

    @cached_property
    def inverse_lengths(self) -> npt.NDArray[np.float32]:
        """1 / ‖key‖ of every row, (n,), for cosines; refused where a live key has no direction."""
        pointless = np.flatnonzero((self.lengths == 0) & self.snapshot.live)
        if len(pointless):
            (item,) = self.snapshot.items(pointless[:1])
            raise ZeroVector(
                f"the key vector of {item.name!r} is zero and has no direction, so cosine cannot compare it. Delete "
                "it, or use compatibility='dot' or 'gaussian'."
            )
        with np.errstate(divide="ignore", over="ignore"):  # division by 0 gives a score that is refused
            return np.where(self.lengths > 0, np.float32(1.0) / self.lengths, np.float32(0.0))

    @cached_property
    def halves(self) -> npt.NDArray[np.float32]:
        """½‖key‖² of every row, (n,), for distances; infinite if it overflows float32."""
        with np.errstate(over="ignore"):
            return (0.5 * self.lengths.astype(np.float64) ** 2).astype(np.float32)

    @cached_property
    def learned(self) -> Learned | None:
        """The metric that the store has learned, if any; an error if it cannot be read."""
        name = self.profile.projection
        return None if name is None else self.findings.projections.of(self.snapshot, name)

    @cached_property
    def farthest_key(self) -> float:
        """The largest distance of a key from the centre of the learned metric, in the units of that metric."""
        learned, name = self.learned, self.profile.projection
        assert learned is not None
        assert name is not None
        if learned.metric.directions:
            return 1.0 / float(learned.units.min())
        return self.findings.projections.farthest(self.snapshot, name)

    def comparing_as_learned(self, rows: Rows | None = None) -> Compatibility:
        """The way to compare that the store has learned, for all rows or some."""
        learned = self.learned
        if learned is None:
            raise NotExpressible("this store has learned no way to compare. Learn one with `fit`, or name another.")
        lengths = self.inverse_lengths if learned.metric.directions else None
        if rows is None:
            return learned.compatibility(lengths)
        return learned.of_rows(rows).compatibility(None if lengths is None else lengths[rows])

    def comparing(self, compared: Compared, rows: Rows | None = None) -> Compared:
        """A way to compare all rows or some, with the lengths of their keys as the store has them, or its metric.

        Computing lengths would take five times as long as the products.
        """
        if isinstance(compared, str) and compared == LEARNED:
            return self.comparing_as_learned(rows)
        known = compatibility_of(compared) if isinstance(compared, str) else None
        if known is not None and known.with_lengths is not None:
            return known.with_lengths(self.inverse_lengths if rows is None else self.inverse_lengths[rows])
        if known is not None and known.with_halves is not None:
            return known.with_halves(self.halves if rows is None else self.halves[rows])
        return compared

    @cached_property
    def reach(self) -> "Reach":
        """How far values lie from their middle, those of dead rows included."""
        # Reading a few values takes less time than reading an index that so small a store does not use.
        few = self.snapshot.rows * max(self.layout.key_width, self.layout.value_width) <= FEW_NUMBERS
        return self.findings.reach(self.snapshot, None if few or self.followed is None else self.followed.joined)

    @cached_property
    def index(self) -> ListIndex | None:
        """The index, if there is a usable one."""
        return self._with_labels(self.findings.indexes.of(self.snapshot))

    @cached_property
    def bounding_index(self) -> ListIndex | None:
        """The index for bounds, where late rows are in no list."""
        return self._with_labels(self.findings.indexes.bounding(self.snapshot))

    @property
    def noted_index(self) -> ListIndex | None:
        """The index with all changes noted up to this commit, of which `index` may lack the last."""
        return self._with_labels(self.findings.indexes.of(self.snapshot, lately=False))

    @cached_property
    def population(self) -> Population:
        """The items that lists may be sampled from."""
        assert self.index is not None
        snapshot = self.snapshot
        return Population(self.index, None if len(snapshot) == snapshot.rows else snapshot.live)

    def _with_labels(self, index: ListIndex | None) -> ListIndex | None:
        return index if index is None or self.labels is None else with_labels(index, len(self.labels))

    @cached_property
    def proposer(self) -> Proposer | None:
        """The proposer of rows, if there is a usable one."""
        return self.proposer_or_problem[0]

    @cached_property
    def proposer_or_problem(self) -> tuple[Proposer | None, str | None]:
        """The proposer of rows, or why there is no usable one, or neither."""
        return self.findings.proposers.of(self.snapshot)

    @cached_property
    def index_as_written(self) -> Written:
        """The index as it was built, without later changes."""
        return self.findings.indexes.as_written(self.snapshot)

    @cached_property
    def verdict(self) -> Verdict | None:
        """The last verdict on the calibration of the index as of this commit; after a compaction it is in its file."""
        written = self.index_as_written
        if written.index is None:
            return None
        found = [Verdict.decoded(content) for _, content in self.snapshot.derived(CHECKED)]
        about = [one for one in found if one is not None and one.file == written.commit]
        return about[-1] if about else Verdict.of(written.index.facts.get("checked"))

    @property
    def uncalibrated(self) -> str | None:
        """Why the index has no calibration; that of one store always has one."""
        return None

    @property
    def changes(self) -> int:
        """How many items were added or deleted since the index was calibrated."""
        index, rows = self.index_as_written.index, self.snapshot.rows
        return 0 if index is None else changes(index, rows, rows - len(self.snapshot))

    @cached_property
    def followed(self) -> Followed | None:
        """The index with the changes to it."""
        return self.findings.indexes.followed(self.snapshot)

    def temperature(self, compatibility: str) -> Temperature:
        """The temperature that the store remembers, or else the one by rule."""
        return self._remembered(compatibility) or self.temperature_by_rule(compatibility)

    def temperature_by_rule(self, compatibility: str) -> Temperature:
        """The temperature by rule, even if the store remembers another."""
        return self.findings.temperature(self.snapshot, compatibility, self.profile.embedder)

    def known_temperature(self, compatibility: str) -> Temperature | None:
        """The temperature of a way to compare, if it is known without reading items."""
        if compatibility == LEARNED:
            return None if self.learned is None else self.learned.temperature
        known = self._remembered(compatibility)
        return known or self.findings.known_temperature(compatibility, self.profile.embedder)

    @property
    def usual_temperature(self) -> float:
        """The default temperature of lookups, by the way in which the store compares."""
        return 1.0 if self.profile.projection else self.temperature(self.profile.compatibility or "dot").value

    def _remembered(self, compatibility: str) -> Temperature | None:
        kept = self.profile.temperature
        suits = kept is not None and compatibility == self.profile.compatibility and kept.suits(len(self.snapshot))
        return kept if suits else None

    def places(self, rows: Rows) -> Rows:
        """Where the items in these rows are in the order of the store."""
        places: Rows = np.zeros(self.snapshot.rows, np.int64)
        places[self.sound_order] = np.arange(len(self.sound_order))
        return places[rows]

    def describe(self, rows: Sequence[int]) -> list[Described]:
        """The items in these rows."""
        return [
            Described(item.name, item.value, item.payload, None if item.text == item.key else item.text)
            for item in self.snapshot.items(list(rows))
        ]


def comparing_by(view: ViewT, projection: str | None) -> ViewT:
    """A view that compares by the metric of this name: itself if it does already, else a copy, as others may use it."""
    if view.profile.projection == projection:
        return view
    found = copy.copy(view)
    found.profile = replace(view.profile, projection=projection)
    for name in ("learned", "farthest_key"):  # of the other metric, if they were computed
        vars(found).pop(name, None)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """All of some values lie within a radius of their middle, (p,)."""

    middle: Floats
    radius: float

    @classmethod
    def of(cls, values: AnyArray) -> "Reach":
        """The reach of values, (n, p) or (n,)."""
        cells = values.reshape(len(values), -1)
        # Any middle will do, so the mean of some is enough.
        middle = cells[:: max(1, len(cells) // TOGETHER)].mean(axis=0, dtype=np.float64)
        return cls(middle, 0.0).with_more(cells)

    @classmethod
    def of_lists(cls, index: ListIndex) -> "Reach":
        """A reach that covers all values in lists, by the statistics of the lists; those of late rows included."""
        lists, reaches = index.lists, index.reaches[1] if index.known > index.rows else index.lists.value_radii
        there = lists.counts > 0
        means, counts = lists.vectors[there], lists.counts[there]
        middle = np.average(means, axis=0, weights=counts) if there.any() else lists.vectors[0]
        apart = np.linalg.norm(means - middle, axis=1) + reaches[there]
        return cls(middle.astype(np.float64), float(apart.max(initial=0.0)))

    def with_more(self, values: AnyArray) -> "Reach":
        """The reach of these values as well, around the same middle."""
        cells, farthest = values.reshape(len(values), len(self.middle)), 0.0
        step = max(1, COPIED // max(1, len(self.middle)))
        for start in range(0, len(cells), step):  # copies then stay in the cache
            apart = cells[start : start + step] - self.middle
            farthest = max(farthest, float(np.einsum("ij,ij->i", apart, apart).max()))
        return Reach(self.middle, max(self.radius, math.sqrt(farthest)))


class Spanned(NamedTuple):
    """The lists of several stores side by side, and from which indexes, with which changes, they were made."""

    labels: tuple[str, ...] | None
    indexes: Sequence[ListIndex]
    turned: Sequence[Lists]
    lists: Lists


class Findings:
    """Facts that a handle has computed about its store, shared with its snapshots.

    The temperatures by rule, one for each way to compare and each embedder, until the store has outgrown them; and the
    reach of the values of one generation, extended as rows are added.
    """

    def __init__(self) -> None:
        self.together: Together[View] = Together()
        self._temperatures: dict[tuple[str, Identity | None], Temperature] = {}
        self.indexes, self.proposers, self.projections = Indexes(), Proposers(), Projections()
        self.spanned: Spanned | None = None
        self.rehearsed: tuple[tuple[object, ...], Rehearsed] | None = None  # of several stores together, and by what
        self._reach: tuple[int, int, Reach] | None = None  # the generation, and how many of its rows were looked at
        # Reentrant: a signal handler may ask while it is held. What is found is put in place whole.
        self._lock = threading.RLock()

    def temperature(self, snapshot: Snapshot, compatibility: str, embedder: Identity | None) -> Temperature:
        """The temperature at which about ten items contribute."""
        with self._lock:
            found = self._temperatures.get((compatibility, embedder))
            if found is None or not found.suits(len(snapshot)):
                (block,) = snapshot.blocks(snapshot.rows)
                items, compared = (block.vectors, block.live), compatibility_of(compatibility)
                unit = unit_of_scores(*items, compared)
                value = typical_temperature(*items, compatibility, unit=unit)
                value = value or compared.lukewarm  # fewer than two items, or all alike
                floor = lowest_log_mass(*items, compatibility, value, unit=unit)
                found = Temperature(value, "rule", len(snapshot), floor)
                self._temperatures[compatibility, embedder] = found
            return found

    def known_temperature(self, compatibility: str, embedder: Identity | None) -> Temperature | None:
        """The temperature by rule, if it was computed before."""
        with self._lock:
            return self._temperatures.get((compatibility, embedder))

    def reach(self, snapshot: Snapshot, index: ListIndex | None) -> Reach:
        """A reach that covers all values; for values in lists it follows from the statistics of the lists."""
        with self._lock:
            generation, seen, reach = self._reach or (-1, 0, None)
            if reach is None or generation != snapshot.generation:
                generation = snapshot.generation
                if index is not None:
                    seen = index.known
                    reach = Reach.of_lists(index).with_more(snapshot.values(index.strangers))
                else:
                    seen = min(TOGETHER, snapshot.rows)
                    reach = Reach.of(snapshot.values(np.arange(seen)))
            while seen < snapshot.rows:
                stop = min(seen + TOGETHER, snapshot.rows)
                reach, seen = reach.with_more(snapshot.values(np.arange(seen, stop))), stop
            self._reach = generation, seen, reach
            return reach

    def forget(self) -> None:
        """Forget the temperatures by rule: they suited items that are gone."""
        with self._lock:
            self._temperatures.clear()
