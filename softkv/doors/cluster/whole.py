"""All shards as one store: a snapshot of each, read as if the rows of all lay one after the other.

Rows are those of the first shard, then those of the second, and so on. Items come in the same order, since it is
unknown which shard got an item first. Labels are those of the first shard in its order, then the new ones of the
second, and so on. An item without a key is named by its number in its shard times 256, plus the number of the shard.

Does not answer questions (asking.py) and writes nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers, Described
from softkv.asking.learned import Learned
from softkv.asking.question import Question
from softkv.asking.spanning import Part, Spanning
from softkv.asking.view import Findings, Reach, View, comparing_by
from softkv.doors.cluster.manifest import MOST, Manifest
from softkv.errors import KeyMissing, KeyTextError
from softkv.ndarrays import AnyArray, Flags, Matrix, Rows
from softkv.storage import Block, IndexFile, Item, Layout, Snapshot
from softkv.storage.batch import keys_among, require_keys, shown
from softkv.storage.protocol.ordering import checked_rows


class WholeSnapshot(Snapshot):
    """The shards of a cluster, each as of one commit."""

    def __init__(
        self,
        views: Mapping[int, View],
        path: str,
        manifest: Manifest,
        *,
        owns: bool,
        partial: bool,
        last_seen: Sequence[Any],
        shards: object,
    ) -> None:
        """Join views of shards, by their numbers; snapshots are closed with this one if it `owns` them.

        If `partial`, shards may be missing: `last_seen` has the last known headers of these. The `shards` stay open as
        long as this snapshot exists, even if the handle has moved on to others.
        """
        self._shards = shards
        self.partial, self.last_seen = partial, tuple(last_seen)
        self.numbers, self._given = tuple(views), tuple(views.values())
        self.manifest, self._path = manifest, path
        # A writer may have been stopped before shards got the settings.
        self.views = tuple(comparing_by(view, manifest.settings.get("projection")) for view in self._given)
        self.snapshots = [view.snapshot for view in self.views]
        self.offsets = np.cumsum([0, *(one.rows for one in self.snapshots)])
        self._some = next((one for one in self.snapshots if one.layout is not None), self.snapshots[0])
        self._closed = not owns

    @property
    def made_of(self) -> tuple[int, ...]:
        """The manifest and the views that this is made of, by their ids, which differ while they are held."""
        return (id(self.manifest), *map(id, self._given))

    @property
    def path(self) -> str:
        """The directory of the cluster."""
        return self._path

    def missing(self, parts: Sequence[int]) -> float:
        """The share of the buckets whose shards are not among these places."""
        there = {self.numbers[place] for place in parts}
        return sum(shard not in there for shard in self.manifest.buckets) / MOST

    @property
    def store(self) -> str:
        """The name that the cluster was given when it was made."""
        return self.manifest.id

    @property
    def commit(self) -> int:
        """The sum of the commits of the shards, and how many manifests have followed the first."""
        return self.manifest.changes + sum(one.commit for one in self.snapshots)

    @property
    def generation(self) -> int:
        """The sum of the generations of the shards, which changes when rows of any are moved."""
        return sum(one.generation for one in self.snapshots)

    @property
    def secret(self) -> bytes:
        """The secret of the first shard."""
        return self.snapshots[0].secret

    @property
    def layout(self) -> Layout | None:
        """Widths and kind; None while nothing was ever added."""
        return self._some.layout

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the cluster."""
        return dict(self.manifest.settings)

    @property
    def rows(self) -> int:
        """How many rows there are, dead ones included."""
        return int(self.offsets[-1])

    @cached_property
    def value_scale(self) -> float:
        """√(mean ‖v − v̄‖²) over the live items of all shards."""
        if not len(self):
            return 0.0
        if self.layout is not None and self.layout.kind.coded:
            shares = np.bincount(self.values(np.flatnonzero(self.live))) / len(self)
            return float(np.sqrt(max(0.0, 1.0 - float(shares @ shares))))
        there = [one for one in self.snapshots if len(one)]
        counts = np.array([len(one) for one in there]) / len(self)
        means = np.array([one.tally.origin + one.tally.total / len(one) for one in there])
        between = np.square(means - counts @ means).sum(1)
        return float(np.sqrt(counts @ (np.array([one.value_scale for one in there]) ** 2 + between)))

    @cached_property
    def live(self) -> Flags:
        """For each row, whether it is live."""
        found: Flags = np.concatenate([one.live for one in self.snapshots])
        return found

    def __len__(self) -> int:
        return sum(len(one) for one in self.snapshots)

    # By name

    def home(self, name: str) -> tuple[int, str]:
        """The shard where an item of this name would be, and its name there."""
        if not name.startswith("#"):
            return self.manifest.shard_of(name), name
        number = int(name[1:]) if name[1:].isdecimal() and len(name) < 22 else -1
        shard, own = number % MOST, number // MOST
        return (shard, f"#{own}") if name == f"#{number}" and shard < len(self.views) else (0, "#none")

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._own(key) is not None

    def _own(self, name: str) -> tuple[int, str] | None:
        shard, own = self.home(name)
        return (shard, own) if own in self.snapshots[shard] else None

    def _there(self, name: str) -> tuple[int, str]:
        shard, own = self.home(name) if isinstance(name, str) else (0, name)
        if own not in self.snapshots[shard] and isinstance(name, str) and name.startswith("#"):
            raise KeyMissing(f"no item has the key {shown(name)}")
        return shard, own

    def find(self, key: str) -> int:
        """The row of the item with this key or `#<number>`."""
        shard, own = self._there(key)
        return int(self.offsets[shard]) + self.snapshots[shard].find(own)

    def find_many(self, keys: Sequence[str]) -> Rows:
        """The row of each key, -1 where there is none; any number of keys."""
        if isinstance(keys, str):
            raise KeyTextError(f"give a list of keys, or use find for the one key {shown(keys)}")
        require_keys(keys)
        found, homes = np.full(len(keys), -1, np.int64), np.array([self.manifest.shard_of(key) for key in keys])
        for shard in np.unique(homes).tolist():
            places = np.flatnonzero(homes == shard)
            rows = self.snapshots[shard].find_many([keys[place] for place in places.tolist()])
            found[places] = np.where(rows >= 0, rows + self.offsets[shard], -1)
        return found

    def get(self, key: str) -> Item:
        """The item with this key or `#<number>`."""
        shard, own = self._there(key)
        return self._named(shard, self.snapshots[shard].get(own))

    def value(self, key: str) -> Any:
        """The value of the item with this key or `#<number>`."""
        shard, own = self._there(key)
        return self.snapshots[shard].value(own)

    def found_values(self, keys: Sequence[object]) -> dict[str, Any]:
        """The values of those of these keys and `#<number>`s that are there."""
        texts = [key for key in keys if isinstance(key, str)]
        wanted: dict[int, dict[str, str]] = {}
        for name in [*keys_among(texts), *(key for key in texts if key.startswith("#"))]:
            shard, own = self.home(name)
            wanted.setdefault(shard, {})[own] = name
        found = {}
        for shard, names in wanted.items():
            values = self.snapshots[shard].found_values(list(names))
            found.update({names[own]: value for own, value in values.items()})
        return found

    def renamed(self, shard: int, name: str) -> str:
        """The name in the cluster of an item, by its name in a shard."""
        return f"#{int(name[1:]) * MOST + self.numbers[shard]}" if name.startswith("#") else name

    def _named(self, shard: int, item: Item) -> Item:
        number = item.number * MOST + self.numbers[shard]
        return replace(item, row=item.row + int(self.offsets[shard]), number=number)

    # By row

    def _parts(self, rows: Sequence[int] | Rows) -> Iterator[tuple[int, Rows, Rows]]:
        """For each shard that has some of these rows: its number, which of them they are, and its own row numbers."""
        numbers = checked_rows(rows, self.rows)
        owners = np.searchsorted(self.offsets, numbers, side="right") - 1
        for shard in np.flatnonzero(np.bincount(owners)).tolist():
            places = np.flatnonzero(owners == shard)
            yield shard, places, numbers[places] - self.offsets[shard]

    def _gathered(self, rows: Sequence[int] | Rows, read: Callable[[int, Rows], Any]) -> Any:
        """An array with one entry for each row, of which each shard reads its own."""
        found = None
        for shard, places, own in self._parts(rows):
            part = read(shard, own)
            found = np.empty((len(rows), *part.shape[1:]), part.dtype) if found is None else found
            found[places] = part
        return read(self.snapshots.index(self._some), np.empty(0, np.int64)) if found is None else found

    def listed(self, rows: Sequence[int] | Rows, read: Callable[[int, Rows], Sequence[Any]]) -> list[Any]:
        """A list with one entry for each row, of which each shard reads its own."""
        found: list[Any] = [None] * len(rows)
        for shard, places, own in self._parts(rows):
            for place, one in zip(places.tolist(), read(shard, own), strict=True):
                found[place] = one
        return found

    def items(self, rows: Sequence[int] | Rows) -> list[Item]:
        """The items in these rows, in this order, dead or alive."""
        return self.listed(
            rows, lambda shard, own: [self._named(shard, one) for one in self.snapshots[shard].items(own)]
        )

    def names(self, rows: Rows) -> list[str]:
        """The keys of these rows, `#<number>` where there is none, in this order."""

        def renamed(shard: int, own: Rows) -> list[str]:
            return [self.renamed(shard, name) for name in self.snapshots[shard].names(own)]

        return self.listed(rows, renamed)

    def read(self, rows: Rows) -> list[Any]:
        """The values of these rows as they were given, in this order."""
        return self.listed(rows, lambda shard, own: self.snapshots[shard].read(own))

    def vectors(self, rows: Sequence[int] | Rows) -> Matrix:
        """The key vectors of these rows, in this order."""
        found: Matrix = self._gathered(rows, lambda shard, own: self.snapshots[shard].vectors(own))
        return found

    def values(self, rows: Sequence[int] | Rows) -> AnyArray:
        """What is blended of these rows: vectors, or one number or label code per row."""

        def read(shard: int, own: Rows) -> Any:
            cells = self.snapshots[shard].values(own)
            return self.codes[shard][cells] if self.codes else cells

        return np.asarray(self._gathered(rows, read))

    def norms(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The lengths of the key vectors of rows start .. stop - 1."""
        found: npt.NDArray[np.float32] = np.concatenate([one.norms(0, one.rows) for one in self.snapshots if one.rows])
        return found[start:stop]

    def labels(self) -> list[str]:
        """The label of every code."""
        named = (label for one in self.snapshots if one.layout is not None for label in one.labels())
        return list(dict.fromkeys(named))

    @cached_property
    def codes(self) -> list[Rows]:
        """The codes that the codes of each shard stand for; empty where values are no labels."""
        if self.layout is None or not self.layout.kind.coded:
            return []
        known = {label: code for code, label in enumerate(self.labels())}
        there = [one.labels() if one.layout is not None else [] for one in self.snapshots]
        return [np.array([known[label] for label in labels], np.int64) for labels in there]

    @cached_property
    def orders(self) -> list[Rows]:
        """For each shard, the codes that its labels have there, in the order of the labels of all; then codes of none.

        Empty where values are no labels.
        """
        others = [np.setdiff1d(np.arange(len(self.labels())), codes) for codes in self.codes]
        return [np.argsort(np.append(*both)) for both in zip(self.codes, others, strict=True)]

    def blocks(self, rows: int = 1 << 16) -> Iterator[Block]:
        """All rows, in blocks, which are copied."""
        for start in range(0, self.rows, rows):
            some = np.arange(start, min(start + rows, self.rows))
            yield Block(start, self.vectors(some), self.values(some), self.live[some])

    def runs(self, starts: Rows, stops: Rows) -> Block:
        """Compare runs of rows with their checksums in each shard; of the block only types and widths are used."""
        for offset, one in zip(self.offsets, self.snapshots, strict=False):
            first, last = np.maximum(starts - offset, 0), np.minimum(stops - offset, one.rows)
            if (inside := first < last).any():
                one.runs(first[inside], last[inside])
        return self._some.runs(starts[:0], stops[:0])

    def in_order(self) -> Rows:
        """The live rows in the order of the shards, and in each in the order in which items were first added."""
        parts = zip(self.offsets, self.snapshots, strict=False)
        order: Rows = np.concatenate([offset + one.in_order() for offset, one in parts])
        return order

    def last(self) -> int | None:
        """The live row whose item comes last in that order."""
        order = self.in_order()
        return int(order[-1]) if len(order) else None

    def require_sound_order(self) -> None:
        """Compare all rows of the lists of items with their checksums."""
        for one in self.snapshots:
            one.require_sound_order()

    def matching(self, where: Mapping[str, Any]) -> Flags:
        """For each row, whether it is live and its payload meets a filter."""
        found: Flags = np.concatenate([one.matching(where) for one in self.snapshots])
        return found

    def index(self, _name: str) -> IndexFile | None:
        """None: files of indexes, and of what was learned, are of a shard."""
        return None

    def close(self) -> None:
        """Release the snapshots of the shards."""
        if not self._closed:
            self._closed, self._shards = True, None
            for one in self.snapshots:
                one.close()


class WholeView(Spanning):
    """All shards of a cluster, with what a lookup needs to know of them."""

    snapshot: WholeSnapshot

    def __init__(
        self, snapshot: WholeSnapshot, findings: Findings, ask: Callable[["WholeView", Question], Answers]
    ) -> None:
        super().__init__(snapshot, findings)
        self._ask = ask

    def elsewhere(self, question: Question) -> Answers:
        """The answers of all shards."""
        return self._ask(self, question)

    @cached_property
    def parts(self) -> list[Part]:
        """The shards that have rows, if all of them lie here; else none."""
        whole, missing = self.snapshot, self.snapshot.partial and self.snapshot.missing(range(len(self.snapshot.views)))
        if missing or not all(isinstance(view, View) for view in whole.views):
            return []
        places = [place for place, view in enumerate(whole.views) if view.snapshot.rows]
        codes = whole.codes or dict.fromkeys(places)
        return [Part(whole.views[place], int(whole.offsets[place]), codes[place]) for place in places]

    @property
    def filled(self) -> list[View]:
        """The shards that have rows."""
        return [view for view in self.snapshot.views if view.snapshot.rows]

    def describe(self, rows: Sequence[int]) -> list[Described]:
        """The items in these rows, each as its shard tells."""

        def described(shard: int, own: Rows) -> list[Described]:
            found = self.snapshot.views[shard].describe(own.tolist())
            return [one._replace(key=self.snapshot.renamed(shard, str(one.key))) for one in found]

        return self.snapshot.listed(rows, described)

    @cached_property
    def longest_key(self) -> float:
        """The length of the longest key vector."""
        return max(view.longest_key for view in self.filled)

    @cached_property
    def reach(self) -> Reach:
        """How far values lie from the middle of those of one shard."""
        parts = [view.reach for view in self.filled if len(view.snapshot)]
        middle = parts[0].middle
        return Reach(middle, max(float(np.linalg.norm(one.middle - middle)) + one.radius for one in parts))

    @cached_property
    def learned(self) -> Learned | None:
        """What the cluster has learned, if anything."""
        return None if self.profile.projection is None else self.filled[0].learned

    @cached_property
    def farthest_key(self) -> float:
        """How far keys are from the centre of what was learned, at most, in the units of that."""
        return max(view.farthest_key for view in self.filled)
