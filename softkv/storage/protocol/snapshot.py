"""The store as of one commit: everything that reads.

A snapshot pins its generation and keeps its own record of the dead, so that it answers the same however much is
added, deleted or compacted meanwhile. It holds no transaction open, and blocks neither readers nor writers.

Writes nothing.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from softkv.errors import FilterError, HandleClosed, KeyMissing, KeyTextError, ShapeError, StoreDamaged
from softkv.ndarrays import AnyArray, Flags, Matrix, Rows
from softkv.storage.batch import checked_key, checked_name, keys_among, require_keys, shown
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.derived import checked_number, numbers, parts
from softkv.storage.catalog.labels import LabelBook, require_counts
from softkv.storage.catalog.parsing import loaded_settings, require_rows
from softkv.storage.catalog.roster import Roster, RosterEntry
from softkv.storage.catalog.secret import secret
from softkv.storage.catalog.tally import Tally
from softkv.storage.closing import Closing
from softkv.storage.layout import Layout
from softkv.storage.protocol.committed import Committed
from softkv.storage.protocol.generation import Generation
from softkv.storage.protocol.index_files import IndexFile, find
from softkv.storage.protocol.item import Block, Item, Value
from softkv.storage.protocol.ordering import checked_rows

if TYPE_CHECKING:
    from softkv.storage.filters.conditions import Test

AT_ONCE, FEW = 10_000, 100  # items that are read together, and that are read first


class Snapshot(Closing):
    """A store as of one commit. Close it, or use it as a context manager, so that old generations can go."""

    def __init__(self, catalog: Catalog, committed: Committed, labels: LabelBook) -> None:
        self._catalog, self._labels = catalog, labels
        self._head, self._standing, self._deaths = committed.head, committed.standing, committed.deaths
        self._generation = committed.generation.retain() if committed.generation else None
        self._roster = Roster(catalog, self._generation.number) if self._generation else None
        self._live: Flags | None = None
        self._order: Rows | None = None
        self._label_names: list[str] | None = None  # the labels, once they were read
        self._closed = False

    @property
    def path(self) -> str:
        """The directory of the store."""
        return os.path.dirname(self._catalog.connection.path)

    @property
    def store(self) -> str:
        """The name that the store was given when it was made, and keeps wherever it lies."""
        return self._head.store

    @property
    def commit(self) -> int:
        """The number of the commit that is seen."""
        return self._head.number

    @property
    def generation(self) -> int:
        """The number of the files that hold the rows; 0 while nothing was ever added. Rows of one never change."""
        return self._standing.generation if self._standing else 0

    @property
    def secret(self) -> bytes:
        """The secret of the store, from which its random draws follow; empty before format 3."""
        self._require_open()
        return secret(self._catalog.connection)

    @property
    def layout(self) -> Layout | None:
        """Widths and kind; None while nothing was ever added."""
        return self._standing.layout if self._standing else None

    @property
    def settings(self) -> dict[str, Any]:
        """What the users of the store keep with it: the store itself gives it no meaning."""
        return loaded_settings(self._standing.settings if self._standing else self._head.settings)

    @property
    def rows(self) -> int:
        """How many rows there are, dead ones included."""
        return self._standing.rows if self._standing else 0

    @property
    def value_scale(self) -> float:
        """√(mean ‖v − v̄‖²) over the live items."""
        return self.tally.scale()

    @property
    def tally(self) -> Tally:
        """The sums over the live values."""
        return self._standing.tally if self._standing else Tally.empty()

    @property
    def live(self) -> Flags:
        """For each row, whether it is live."""
        if self._live is None:
            self._live = self._deaths.live(self.rows)
        return self._live

    def __len__(self) -> int:
        return self.rows - self._deaths.count

    def __contains__(self, key: object) -> bool:
        try:
            return isinstance(key, str) and self._find(key) is not None
        except KeyTextError:  # a text that cannot be a key is in no store
            return False

    def find(self, key: str) -> int:
        """The row of the item with this key or `#<number>`."""
        return self._entry(key).row

    def find_many(self, keys: Sequence[str]) -> Rows:
        """The row of each key, -1 where there is none; any number of keys."""
        if isinstance(keys, str):
            raise KeyTextError(f"give a list of keys, or use find for the one key {shown(keys)}")
        require_keys(keys)
        if self._roster is None:
            return np.full(len(keys), -1, np.int64)
        self._require_open()
        return require_rows(self._roster.find_many(keys, self.commit), self.rows, self.path)

    def get(self, key: str) -> Item:
        """The item with this key or `#<number>`."""
        return self._items([self._entry(key)])[0]

    def items(self, rows: Sequence[int] | Rows) -> list[Item]:
        """The items in these rows, in this order, dead or alive."""
        numbers = checked_rows(rows, self.rows)
        if not len(numbers) or self._roster is None:
            return []
        return self._items(self._roster.entries(numbers))

    def keys(self) -> Iterator[str]:
        """The keys, `#<number>` where there is none, in the order in which they were first added."""
        for rows in self.in_portions():
            yield from self.names(rows)

    def in_portions(self) -> Iterator[Rows]:
        """The rows of `in_order`, a few first and then many at a time, so that the first ones come without a wait."""
        order = self.in_order()
        yield order[:FEW]
        for start in range(FEW, len(order), AT_ONCE):
            yield order[start : start + AT_ONCE]

    def names(self, rows: Rows) -> list[str]:
        """The keys of these rows, `#<number>` where there is none, in this order.

        A few are compared with their checksums each time; more, once for all commits of a generation.
        """
        if self._roster is None or not len(rows):
            return []
        if len(rows) <= FEW:
            return [entry.name for entry in self._roster.entries(rows)]
        self.require_sound_order()
        return self._opened().listing.names(rows)

    def read(self, rows: Rows) -> list[Value]:
        """The values of these rows as they were given, in this order; compared with checksums like `names`."""
        if self._roster is None or not len(rows):
            return []
        generation = self._opened()
        if len(rows) <= FEW:
            return self._values(self._roster.entries(rows))
        self.require_sound_order()
        return self._told(rows, generation.listing.values(rows) if generation.layout.kind.embedded else ())

    def value(self, key: str) -> Value:
        """The value of the item with this key or `#<number>`."""
        return self._values([self._entry(key)])[0]

    def found_values(self, keys: Sequence[object]) -> dict[str, Value]:
        """The values of those of these keys and `#<number>`s that are there: all keys in one question."""
        self._require_open()
        if self._roster is None or self._generation is None:
            return {}
        texts = [key for key in keys if isinstance(key, str)]
        plain = keys_among(texts)
        if FEW < len(plain) == len(texts) and self._generation.matches.are_sound(self.rows):  # then only rows are read
            rows = require_rows(self._roster.find_many(plain, self.commit), self.rows, self.path)
            there = rows >= 0
            if self.live[rows[there]].all():
                return dict(zip(compress(plain, there), self.read(rows[there]), strict=True))
        found = dict(zip(plain, self._roster.find_all(plain, self.commit), strict=True))
        found |= {key: self._find(key) for key in texts if key.startswith("#")}
        entries = {key: self._required(entry, key) for key, entry in found.items() if entry is not None}
        return dict(zip(entries, self._values(list(entries.values())), strict=True))

    def in_order(self) -> Rows:
        """The live rows in the order in which their items were first added."""
        if self._order is None:
            rows, ordinals = self._placed()
            self._order = rows if (ordinals[1:] > ordinals[:-1]).all() else rows[np.argsort(ordinals, kind="stable")]
            self._order.flags.writeable = False
        return self._order

    def last(self) -> int | None:
        """The live row whose item comes last in that order, found without sorting; None where there is none."""
        rows, ordinals = self._placed()
        return int(rows[np.argmax(ordinals)]) if len(rows) else None

    def _placed(self) -> tuple[Rows, Rows]:
        """The live rows, and the place of each in the order."""
        self._require_open()
        if self._generation is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows = np.flatnonzero(self.live)
        return rows, self._generation.listing.ordinals(self.commit, self.live)[rows]

    def require_sound_order(self) -> None:
        """Compare all rows of the list of items with their checksums, once for all commits of a generation.

        For callers that use `in_order` without reading items, whose checksums would show a wrong place.
        """
        self._require_open()
        if self._generation is not None:
            self._generation.matches.require_sound(self.rows)

    def matching(self, where: Mapping[str, Any]) -> Flags:
        """For each row, whether it is live and its payload meets a filter; docs/filters.md says what they mean.

        The first filter compares all rows with their checksums. Answers are remembered, also from commit to commit.
        """
        from softkv.storage.filters.valued import meeting
        from softkv.storage.filters.worded import condition_of  # see searching.py

        condition = condition_of(where)
        self._require_open()
        if self._generation is None or not where:
            return self.live.copy()
        matches = self._generation.matches
        return meeting(condition, lambda part: matches.of(part, self.rows), self._passing) & self.live

    def _passing(self, test: "Test") -> Flags:
        """For each row, whether its value passes a test; dead rows may be either."""
        from softkv.storage.filters.valued import of_each, of_numbers

        kind, everyone = self._opened().layout.kind, np.arange(self.rows)
        if kind.coded:
            codes: Rows = self.values(everyone)
            return np.take(of_each(test, self.labels()), codes)
        if kind.narrow:
            return of_numbers(test, self.values(everyone))
        if not kind.embedded:
            raise FilterError(
                'where["$value"]: expected a store of numbers, labels or texts, got one of vectors, which have no '
                "order. Filter on payloads."
            )
        found, live = np.zeros(self.rows, np.bool_), np.flatnonzero(self.live)
        for start in range(0, len(live), AT_ONCE):
            some = live[start : start + AT_ONCE]
            found[some] = of_each(test, [item.value for item in self.items(some)])
        return found

    def vectors(self, rows: Sequence[int] | Rows) -> Matrix:
        """The key vectors of these rows, in this order."""
        return self._opened().keys.take(checked_rows(rows, self.rows))

    def values(self, rows: Sequence[int] | Rows) -> AnyArray:
        """What is blended of these rows: vectors, or one number or label code per row."""
        return self._blended(self._opened().values.take(checked_rows(rows, self.rows)))

    def norms(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The lengths of the key vectors of rows start .. stop - 1."""
        if not 0 <= start <= stop <= self.rows:
            raise ShapeError(f"norms of rows {start} to {stop - 1} were asked for, but the store has {self.rows}")
        return self._opened().norms(start, stop)

    def labels(self) -> list[str]:
        """The label of every code: the same however often they are read, and perhaps some that are newer."""
        self._require_open()
        if self._label_names is not None:
            return list(self._label_names)
        with self._catalog.connection.reading():
            rows, now = self._catalog.labels(), self._catalog.head().number == self.commit
        if now and self._standing:  # else they are those of a later commit
            require_counts(rows, self._standing.tally, self.path)
        self._label_names = [label for _, label, _ in rows]
        return list(self._label_names)

    def blocks(self, rows: int = 1 << 16) -> Iterator[Block]:
        """All rows, in blocks of views: nothing is copied, and checksums are compared on first touch."""
        if rows < 1:
            raise ShapeError(f"a block needs at least 1 row, not {rows}")
        for start in range(0, self.rows, rows):
            stop, generation = min(start + rows, self.rows), self._opened()
            values = self._blended(generation.values.block(start, stop))
            yield Block(start, generation.keys.block(start, stop), values, self.live[start:stop])

    def runs(self, starts: Rows, stops: Rows) -> Block:
        """All rows as one block of views, of which only those in the runs starts[i] .. stops[i] - 1 are compared.

        Rows outside of the runs must not be used: they are not compared with their checksums.
        """
        if len(starts) and not (starts.min() >= 0 and (starts < stops).all() and stops.max() <= self.rows):
            raise ShapeError(f"the runs go from row {starts.min()} to {stops.max()}, but the store has {self.rows}")
        generation = self._opened()  # may have rows of later commits by now
        values = self._blended(generation.values.runs(starts, stops)[: self.rows])
        return Block(0, generation.keys.runs(starts, stops)[: self.rows], values, self.live)

    def index(self, name: str) -> IndexFile | None:
        """The index file of this name as of this commit; None when there is none, or it was replaced or dropped since.

        It covers the first `rows` rows as they were at its `commit`: later rows and deaths are not in it.
        """
        checked_name(name)
        self._require_open()
        if self._generation is None:
            return None
        return find(self._catalog, self.path, self._generation.number, name, self.commit)

    def derived(self, name: str, *, after: int = 0) -> list[tuple[int, bytes]]:
        """The sound parts put under this name by commits after `after` up to this one, unless replaced since."""
        self._require_open()
        return parts(self._catalog.connection, self.generation, checked_name(name), checked_number(after), self.commit)

    def derived_numbers(self, name: str) -> list[int]:
        """The numbers of all such parts, which are not read."""
        self._require_open()
        return numbers(self._catalog.connection, self.generation, checked_name(name), 0, self.commit)

    def close(self) -> None:
        """Release the generation."""
        if not self._closed:
            self._closed = True
            if self._generation:
                self._generation.release()

    def _require_open(self) -> None:
        if self._closed:
            raise HandleClosed("this snapshot is closed; take a new one")
        self._catalog.connection.lock.require_own_process()

    def _opened(self) -> Generation:
        self._require_open()
        if self._generation is None:
            raise KeyMissing("the store is empty: it has no rows yet")
        return self._generation

    def _blended(self, cells: AnyArray) -> AnyArray:
        return cells[:, 0] if self.layout is not None and self.layout.kind.narrow else cells

    def _find(self, key: str) -> RosterEntry | None:
        self._require_open()
        if isinstance(key, str) and key.startswith("#"):
            number = int(key[1:]) if key[1:].isdecimal() and len(key) < 20 else -1
            number = number if key == f"#{number}" else -1  # one name for one item: not #07, nor other digits
            found = self._roster.find_nameless(number, self.commit) if self._roster else None
        else:
            checked_key(key)
            found = self._roster.find(key, self.commit) if self._roster else None
        return None if found is None else self._required(found, key)

    def _required(self, found: RosterEntry, key: str) -> RosterEntry:
        """An item that was found by a key, if it is live and has this key."""
        if found.row >= self.rows or found.row in self._deaths:
            raise StoreDamaged(f"{shown(key)} is live in one place and dead in another. Run `softkv check`.")
        # The checksum proves that the row is as written, not that the index of keys leads to the right row.
        if found.row < 0 or found.name != key:
            raise StoreDamaged(f"{shown(key)} leads to another item, or to none. Run `softkv check`.")
        return found

    def _entry(self, key: str) -> RosterEntry:
        found = self._find(key)
        if found is None:
            raise KeyMissing(f"no item has the key {shown(key)}")
        return found

    def _items(self, entries: Sequence[RosterEntry]) -> list[Item]:
        vectors = self._opened().keys.take(np.array([entry.row for entry in entries], np.int64))
        told = zip(entries, vectors, self._values(entries), strict=True)
        return [
            Item(one.row, one.item, one.key, vector, value, one.payload, one.content[0]) for one, vector, value in told
        ]

    def _values(self, entries: Sequence[RosterEntry]) -> list[Value]:
        return self._told(np.array([entry.row for entry in entries], np.int64), [entry.content[1] for entry in entries])

    def _told(self, rows: Rows, texts: Sequence[str | None]) -> list[Value]:
        """The values of these rows, from the texts beside them or else from their cells."""
        generation = self._generation
        assert generation is not None
        kind = generation.layout.kind
        if kind.embedded and None in texts:
            raise StoreDamaged("an item has the vector of a text, but no text. Run `softkv check`.")
        cells = () if kind.embedded else generation.values.take(rows)
        found: list[Value] = kind.read(cells, texts, self._labels.label)
        return found
