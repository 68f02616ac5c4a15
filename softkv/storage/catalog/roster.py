"""The items of one generation, by row: found by key, by item number or by row, as of one commit.

A row is visible at commit C when it was added by C and not yet deleted at C. Keys of live rows and of dead ones have
separate indexes: nearly every query is about live rows, and dead ones must not slow it down. Filters are applied to all
rows, dead or alive: their payloads never change, so the answer holds for every commit.

Reads and writes the table items_N through a catalog. Holds no transaction of its own.
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from softkv.errors import StoreDamaged
from softkv.ndarrays import Flags, Rows
from softkv.storage.batch import Batch, Content
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.connection import UNREADABLE, Connection
from softkv.storage.catalog.parsing import loaded, numbers_of
from softkv.storage.catalog.patience import MOST_LISTED, Endless
from softkv.storage.catalog.tables import insertion, item_seal, items_name

if TYPE_CHECKING:
    from softkv.storage.filters.conditions import Condition

NO_CONTENT: Content = (None, None, None)
_NO_TEXTS = crc32(b"-\0-\0=")  # of the content of an item that has a payload and neither text, as most have
_STRIDE = 1 << 10  # rows that one statement reads for a filter: they stay in the cache; with 8,192 it takes 8% longer

_LONGEST_LIST = 1 << 23  # characters of the list of keys in one statement; see patience.py
_MOST_KEYS = 1 << 12  # in one statement that reads whole items
COPIED = 1 << 16  # the most items that one `Roster.copy` takes
_PLACE_BITS = 16


class RosterEntry(NamedTuple):
    """One row of the roster: the item in it, with texts and payload. A tuple, since one is made for every answer."""

    row: int
    item: int
    ordinal: int
    key: str | None
    content: Content

    @property
    def name(self) -> str:
        """The key, or `#<number>` for an item without one."""
        return f"#{self.item}" if self.key is None else self.key

    @property
    def payload(self) -> Any:
        """The payload from its JSON, or None."""
        carried = self.content[2]
        return None if carried is None else loaded(carried, f"the payload of the item in row {self.row}")


def content_seal(content: Content) -> int:
    """A checksum of the texts and the payload of an item; 0 where it has none."""
    text, value, payload = content
    if text is None and value is None:
        return 0 if payload is None else crc32(payload.encode(), _NO_TEXTS)
    return crc32(b"\0".join([b"-" if field is None else b"=" + field.encode() for field in content]))


@lru_cache(maxsize=64)
def _statements(generation: int) -> SimpleNamespace:
    """The SQL statements on the items of a generation; one question mark for every value."""
    items = items_name(generation)
    columns = "i.row, i.item, i.ordinal, i.key, i.born, i.died, i.seal, c.text, c.value, c.payload"
    carried = "LEFT JOIN contents c ON c.item = i.item"
    joined = f"SELECT {columns} FROM {items} i {carried}"
    asked = f"FROM json_each(?) asked JOIN {items} i ON"
    seen_dead = "i.died IS NOT NULL AND i.born <= ? AND i.died > ?"
    itself = f"LEFT JOIN {items} t ON t.row = i.row"  # else SQLite would return the key from the index
    named = "asked.key, i.row, t.key IS asked.value"
    behind = f"(asked.value & {(1 << _PLACE_BITS) - 1})"
    copied = "i.item, i.ordinal, i.key, i.born, i.died, i.seal - i.row"
    return SimpleNamespace(
        last=f"SELECT row, born FROM {items} WHERE row = (SELECT max(row) FROM {items})",
        live=f"{joined} WHERE i.key = ? AND i.died IS NULL",
        dead=f"{joined} WHERE i.key = ? AND {seen_dead}",
        nameless=f"{joined} WHERE i.item = ? AND i.key IS NULL",
        by_rows=f"SELECT {columns} {asked} i.row = asked.value {carried} ORDER BY asked.key",
        between=f"{joined} WHERE i.row >= ? AND i.row < ? ORDER BY i.row",
        # A missing row is returned with NULLs, so that it is reported and not skipped.
        live_many=f"SELECT {named} {asked} i.key = asked.value {itself} WHERE i.died IS NULL AND (t.born > ?) IS NOT 1",
        dead_many=f"SELECT {named} {asked} i.key = asked.value {itself} WHERE {seen_dead}",
        keyed=f"SELECT {columns}, asked.key {asked} i.key = asked.value {carried} WHERE i.died IS NULL",
        bury=f"UPDATE {items} SET died = ?, seal = seal + ? "
        "WHERE died IS NULL AND row IN (SELECT value FROM json_each(?))",
        copy=f"INSERT INTO {{}} SELECT NULL, {copied} FROM {items} i WHERE i.died IS NULL ORDER BY i.row",
        # Each at its offset from the first; row and offset are packed in one number.
        copy_some=f"INSERT INTO {{}} SELECT {behind} + ?, {copied} + {behind} + ? {asked} "
        f"i.row = (asked.value >> {_PLACE_BITS}) WHERE i.died IS NULL ORDER BY {behind}",
        insert=f"INSERT INTO {items} VALUES (?, ?, ?, ?, ?, ?, ?)",
    )


class Roster:
    """The items of one generation through a catalog."""

    def __init__(self, catalog: Catalog, generation: int) -> None:
        self._catalog, self.generation = catalog, generation
        self._sql = _statements(generation)

    @property
    def _connection(self) -> Connection:
        return self._catalog.connection

    def find(self, key: str, commit: int) -> RosterEntry | None:
        """The item with this key as of a commit."""
        # A visible live row is the answer, whatever the transaction; only the queries below need a common one.
        found = self._connection.rows(self._sql.live, (key,))
        if found and found[0][5] is None:
            living = self._entry(found[0])
            if found[0][4] <= commit:
                return living
        with self._connection.reading():
            found = self._connection.rows(self._sql.live, (key,))
            if found and found[0][5] is not None:
                raise self._damage(found[0][0])  # the index of live rows leads to a dead one
            # The checksum is compared before a row is skipped: a damaged one must not seem to be of a later commit.
            entry = self._entry(found[0]) if found else None
            if entry is not None and _visible(found[0], commit):
                return entry
            found = self._connection.rows(self._sql.dead, (key, commit, commit))
        return self._entry(found[0]) if found else None

    def find_nameless(self, item: int, commit: int) -> RosterEntry | None:
        """The item without a key that has this number, as of a commit."""
        found = self._connection.rows(self._sql.nameless, (item,))
        entry = self._entry(found[0]) if found else None
        return entry if entry is not None and _visible(found[0], commit) else None

    def find_all(self, keys: Sequence[str], commit: int) -> list[RosterEntry | None]:
        """The item with each key as of a commit, or None."""
        portions = (keys[start : start + _MOST_KEYS] for start in range(0, len(keys), _MOST_KEYS))
        return [entry for portion in portions for entry in self._find_portion(portion, commit)]

    def _find_portion(self, keys: Sequence[str], commit: int) -> list[RosterEntry | None]:
        named = json.dumps(keys, ensure_ascii=False)
        if len(named) > _LONGEST_LIST and len(keys) > 1:
            middle = len(keys) // 2
            return self._find_portion(keys[:middle], commit) + self._find_portion(keys[middle:], commit)
        entries: list[RosterEntry | None] = [None] * len(keys)
        asked = self._connection.rows(self._sql.keyed, (named,))
        for found, entry in zip(asked, self._entries([one[:-1] for one in asked]), strict=True):
            if found[4] <= commit:
                entries[found[-1]] = entry
        left = [position for position, entry in enumerate(entries) if entry is None]
        if left:  # absent, or replaced or deleted since
            rows = self.find_many([keys[position] for position in left], commit)
            for position, entry in zip(compress(left, rows >= 0), self.entries(rows[rows >= 0]), strict=True):
                entries[position] = entry
        return entries

    def find_many(self, keys: Sequence[str], commit: int) -> Rows:
        """The row of each key as of a commit, or -1."""
        # One parameter for all keys: SQLite takes at most 32,766 parameters.
        asked = json.dumps(list(keys), ensure_ascii=False)
        if len(asked) > _LONGEST_LIST and len(keys) > 1:
            middle = len(keys) // 2
            return np.append(self.find_many(keys[:middle], commit), self.find_many(keys[middle:], commit))
        places = np.full(len(keys), -1, np.int64)
        with self._connection.reading():
            found = self._connection.rows(self._sql.live_many, (asked, commit))
            if len(found) < len(keys):
                found += self._connection.rows(self._sql.dead_many, (asked, commit, commit))
        if not all(same for _, _, same in found):  # else rows of other items could be deleted instead
            raise self._connection.damage("the index of keys leads to other rows")
        if found:
            places[[one[0] for one in found]] = numbers_of([one[1] for one in found], self._connection.path)
        return places

    def require_end(self, rows: int, commit: int) -> None:
        """Refuse a roster that does not end with the last of so many rows, or ends with one of a later commit."""
        found = self._connection.rows(self._sql.last)
        last, born = found[0] if found else (-1, 0)
        if last != rows - 1 or not isinstance(born, int) or born > commit:
            raise self._connection.damage(
                f"the list of items ends with row {last} of commit {born}, but there are {rows} rows at commit {commit}"
            )

    def entries(self, rows: Rows) -> list[RosterEntry]:
        """The entries of these rows, in this order, dead or alive."""
        if len(rows) > MOST_LISTED:
            portions = (rows[start : start + MOST_LISTED] for start in range(0, len(rows), MOST_LISTED))
            return [entry for portion in portions for entry in self.entries(portion)]
        found = self._connection.rows(self._sql.by_rows, (json.dumps(rows.tolist()),))
        if len(found) != len(rows):
            raise self._connection.damage(f"{len(rows) - len(found)} items are missing")
        return self._entries(found)

    def matching(self, condition: "Condition", start: int, stop: int) -> Flags:
        """For each of the rows start .. stop - 1, dead or alive, whether its payload meets a condition.

        Checksums are not compared here: see `require_sound`.
        """
        from softkv.storage.filters.searching import search_for  # loads SQLAlchemy, so only when there is a filter

        mask = np.zeros(stop - start, np.bool_)
        sql, arguments = search_for(items_name(self.generation), condition)
        for first in range(start, stop, _STRIDE):
            for row, payload in self._connection.rows(sql, arguments(first, min(first + _STRIDE, stop))):
                if not isinstance(row, int) or not start <= row < stop:
                    raise self._damage(row)  # a damaged page leads to rows that were not asked for
                mask[row - start] = payload is None or condition.holds(loaded(payload, f"the payload in row {row}"))
        return mask

    def require_sound(self, start: int, stop: int) -> None:
        """Compare the rows start .. stop - 1 with their checksums."""
        for first in range(start, stop, _STRIDE):
            last = min(first + _STRIDE, stop)
            if not self._is_as_written(first, last):
                present, sound, _ = self.survey(first, last)
                damaged = np.flatnonzero(~(present & sound))
                if len(damaged):
                    raise self._damage(first + damaged[0])

    def _is_as_written(self, start: int, stop: int) -> bool:
        try:
            found = self._connection.rows(self._sql.between, (start, stop))
        except StoreDamaged:
            return False
        return len(found) == stop - start and _are_sound(found, range(start, stop))

    def enrol(self, first_row: int, first_item: int, ordinals: Sequence[int], batch: Batch, commit: int) -> None:
        """Write the items of a batch in consecutive rows."""
        count, contents = len(batch), batch.contents
        numbers = range(first_item, first_item + count)
        seals = [0] * count if contents is None else [content_seal(content) for content in contents]
        rows = [
            (row, item, ordinal, key, commit, None, item_seal(item, ordinal, commit, text, content) + row)
            for row, item, ordinal, key, text, content in zip(
                range(first_row, first_row + count), numbers, ordinals, batch.keys, batch.encoded, seals, strict=True
            )
        ]
        carried = zip(numbers, contents or [], strict=False)
        self._connection.run_many(self._sql.insert, rows)
        kept = [(item, *content) for item, content in carried if content != NO_CONTENT]
        if kept:
            self._connection.run_many(insertion("contents"), kept)

    def bury(self, rows: Rows, commit: int) -> None:
        """Mark these live rows as dead."""
        lists = [json.dumps(rows[start : start + MOST_LISTED].tolist()) for start in range(0, len(rows), MOST_LISTED)]
        if self._connection.run_many(self._sql.bury, [(commit, commit, one) for one in lists]) != len(rows):
            raise self._connection.damage("some rows to delete are not live")

    def copy_live(self, generation: int, count: int) -> None:
        """Fill the items of a new, empty generation with the live ones of this, in the order of their rows."""
        # SQLite numbers the rows itself, from 0 on; numbering them in the SELECT takes twice as long.
        items = items_name(generation)
        self._connection.run(f"INSERT INTO {items} VALUES (-1, 0, 0, NULL, 0, NULL, 0)")
        self._insert(generation, self._sql.copy, (), count)
        self._connection.run(f"DELETE FROM {items} WHERE row = -1")
        self._connection.run(f"UPDATE {items} SET seal = seal + row")

    def copy(self, generation: int, first: int, rows: Rows) -> None:
        """Copy the live items in these rows, at most `COPIED`, to rows `first`, `first` + 1 ... of a new generation."""
        # Read in sorted order, since neighbours share a page: unsorted, every row could cost a page of its own.
        by_row = np.argsort(rows)
        packed = json.dumps((rows[by_row] << _PLACE_BITS | by_row).tolist())
        self._insert(generation, self._sql.copy_some, (first, first, packed), len(rows))

    def _insert(self, generation: int, selection: str, arguments: Sequence[Any], count: int) -> None:
        copied = self._connection.run_many(selection.format(items_name(generation)), [arguments])
        if copied != count:
            raise self._connection.damage(f"{count} items to copy, but {copied} of them are live")

    def survey(self, start: int, stop: int) -> tuple[Flags, Flags, Flags]:
        """For each of the rows start .. stop - 1: whether it is there, undamaged, and live."""
        try:
            if stop - start == 1:  # by its number: to find the end of a range, the page behind it may be read
                listed = self._connection.rows(self._sql.by_rows, (f"[{start}]",))
            else:
                listed = self._connection.rows(self._sql.between, (start, stop))
        except UNREADABLE as error:  # one unreadable field or page fails them all, so halve the range to find it
            if isinstance(error, Endless):
                nothing = np.zeros(stop - start, np.bool_)
                return ~nothing, nothing, nothing
            if stop - start > 1:
                middle = (start + stop) // 2
                first, second = self.survey(start, middle), self.survey(middle, stop)
                return np.append(first[0], second[0]), np.append(first[1], second[1]), np.append(first[2], second[2])
            return np.ones(1, np.bool_), np.zeros(1, np.bool_), np.zeros(1, np.bool_)
        present, sound, alive = np.zeros((3, stop - start), np.bool_)
        for found in listed:
            place = found[0] - start if isinstance(found[0], int) else -1
            if not 0 <= place < len(present):
                continue  # a damaged page leads to rows that were not asked for
            once = not present[place]  # a damaged page may hold two of the same number
            present[place], alive[place] = True, found[5] is None
            sound[place] = once and _is_sound(found)
        return present, sound, alive

    def _entry(self, found: tuple[Any, ...]) -> RosterEntry:
        if not _is_sound(found):
            raise self._damage(found[0])
        return RosterEntry(found[0], found[1], found[2], found[3], found[7:10])

    def _entries(self, found: Sequence[tuple[Any, ...]]) -> list[RosterEntry]:
        """The entries of many rows at once, which takes a quarter less time."""
        if not _are_sound(found, [one[0] for one in found]):
            raise self._damage(next(one[0] for one in found if not _is_sound(one)))
        return [RosterEntry(one[0], one[1], one[2], one[3], one[7:10]) for one in found]

    def _damage(self, row: Any) -> StoreDamaged:
        return self._connection.damage(f"the item in row {row} is damaged")


def _is_sound(found: tuple[Any, ...]) -> bool:
    """Whether an item is what was written."""
    return _are_sound((found,), (found[0],))


def _are_sound(found: Iterable[tuple[Any, ...]], rows: Iterable[Any]) -> bool:
    """Whether items are what was written, and lie in these rows."""
    # Subtle: `item_seal` and `content_seal` written out for what nearly all items carry. Calling them takes half as
    # long again, of every item.
    try:
        for place, (row, item, ordinal, key, born, died, seal, text, value, payload) in zip(rows, found, strict=True):
            if text is None and value is None:
                carried = 0 if payload is None else crc32(payload.encode(), _NO_TEXTS)
            else:
                carried = content_seal((text, value, payload))
            head = crc32(b"%d %d %d %d " % (item, ordinal, born, carried))
            named = crc32(b"-", head) if key is None else crc32(key.encode(), crc32(b"=", head))
            if row != place or seal != named + row + (died or 0):
                return False
    except (TypeError, AttributeError, ValueError):  # perhaps a field is not even of its type
        return False
    return True


def _visible(found: tuple[Any, ...], commit: int) -> bool:
    """Whether a row is visible at a commit. One with damaged commits counts as visible, so that it is reported."""
    born, died = found[4:6]
    try:
        return bool(born <= commit and (died is None or died > commit))
    except TypeError:
        return True
