"""The content of the catalog, read and written through one connection.

Rows are immutable apart from `died`. Every row carries a checksum of its content, compared when it is read.
Does not know the arenas, and decides nothing. The tables themselves are in tables.py.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from operator import attrgetter
from typing import Any

from softkv.errors import FormatTooNew, IndexDamaged, StoreDamaged, WriterFenced
from softkv.storage.catalog.connection import UNREADABLE, Connection
from softkv.storage.catalog.deaths import Bitmap, bitmap_of
from softkv.storage.catalog.patience import MOST_LISTED, Endless
from softkv.storage.catalog.secret import make_secret
from softkv.storage.catalog.tables import (
    APPLICATION,
    definitions,
    definitions_since,
    essence,
    insertion,
    items_definition,
    items_indexes,
    items_name,
    seal,
    tables_of,
)
from softkv.storage.catalog.tally import Tally
from softkv.storage.layout import FORMAT, WINDOW, Layout


def _counts(fields: Iterable[object]) -> bool:
    """Whether all of these are valid counts: a right checksum does not prove that softkv wrote them."""
    return all(isinstance(field, int) and field >= 0 for field in fields)


def _is_granule(size: object) -> bool:
    """Whether a checksum can cover this many bytes: they must hold whole numbers of every type and fit every window."""
    return isinstance(size, int) and 8 <= size <= WINDOW and size & (size - 1) == 0


def _is_ours(row: tuple[Any, ...]) -> bool:
    """Whether a table or an index is one of ours; SQLite makes indexes without a definition for unique columns."""
    kind, name, table, root, definition = row
    if not all(isinstance(one, str) for one in (kind, name, table)) or not isinstance(root, int) or root < 2:
        return False  # a virtual table has no root page: reading it would run the code of an extension
    if kind == "index" and definition is None:
        return bool(definitions(table)) and name.startswith("sqlite_autoindex_")
    known = definitions(table).get(name)
    return known is not None and (kind == "table") == (name == table) and essence(str(definition)) == known


@dataclass(frozen=True, slots=True)
class Head:
    """The one row of `state`."""

    store: str
    number: int  # of the newest commit
    epoch: int  # of the writer: a writer with an older epoch is refused
    generation: int  # 0 before the first item
    next_item: int
    next_ordinal: int
    writing: int  # 1 from the opening of a writer to its close
    settings: str  # JSON; the settings that the first generation starts with


@dataclass(frozen=True, slots=True)
class Standing:
    """One row of `generations`: what is committed in a generation."""

    generation: int
    rows: int
    layout: Layout
    tails: tuple[int, int, int]  # checksums of the unfinished windows of keys, values and norms
    tally: Tally
    settings: str
    retired: int  # 1 once another generation has taken over


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """One row of `indexes`: a file that was made from the first rows of a generation, and can be made again."""

    generation: int
    name: str
    file: int
    rows: int
    number: int  # of the commit that named it
    size: int
    sha256: bytes


class Catalog:
    """The tables through one connection. Callers hold the transactions."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def create(self, store: str) -> None:
        """Make the tables in an empty file."""
        self.connection.run(f"PRAGMA application_id={APPLICATION}")
        with self.connection.writing():
            for number in range(1, FORMAT + 1):
                for definition in definitions_since(number):
                    self.connection.run(definition)
            make_secret(self.connection)
            self.connection.run(f"PRAGMA user_version={FORMAT}")
            self._put_head(Head(store, 0, 0, 0, 1, 1, 0, "{}"))

    def identify(self) -> int:
        """Refuse a catalog of a format we do not know, or with tables that are not ours; returns its format."""
        path = self.connection.path
        found = self.connection.user_version()
        if found > FORMAT:
            raise FormatTooNew(
                f"{path} has format {found}; this softkv reads up to {FORMAT}. "
                "Install a newer one: pip install -U softkv"
            )
        if found < 1:
            raise StoreDamaged(f"{path} has format {found}, which no softkv ever wrote")
        self._refuse_foreign_objects(found)
        return found

    def _refuse_foreign_objects(self, number: int) -> None:
        """Refuse whatever SQLite would execute by itself.

        That is not only triggers, views and virtual tables, but also generated columns, checks and defaults. So every
        definition must match ours exactly.
        """
        rows = self.connection.rows("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master")
        strange = [f"{row[0]} {row[1]}" for row in rows if not _is_ours(row)]
        roots = [root for _, _, _, root, _ in rows]
        if len(set(roots)) < len(roots):
            strange.append("two at one place")
        missing = sorted(tables_of(number) - {name for kind, name, *_ in rows if kind == "table"})
        if strange or missing:
            raise StoreDamaged(
                f"{self.connection.path} does not have the tables of a store: "
                f"unexpected {[one[:60] for one in strange[:3]]}, missing {missing}"
            )

    def head(self) -> Head:
        """The newest commit."""
        rows = self.connection.rows(_HEAD)
        if len(rows) != 1 or seal(*rows[0][:-1]) != rows[0][-1] or not _counts(rows[0][1:7]):
            raise self.connection.damage("the row of the newest commit is damaged")
        return Head(*rows[0][:-1])

    def _put_head(self, head: Head) -> None:
        content = _fields_of(head)
        self.connection.run(insertion("state", replacing=True), (1, *content, seal(*content)))

    def advance(self, before: Head, **changes: Any) -> Head:
        """Replace the newest commit, unless another writer has committed since."""
        found = self.head()
        if found != before:
            raise WriterFenced(
                f"{self.connection.path}: the catalog is at commit {found.number} of writer {found.epoch}, but this "
                f"handle left it at commit {before.number} of writer {before.epoch}. Open the store again."
            )
        after = replace(before, **changes)
        self._put_head(after)
        return after

    def standing(self, generation: int) -> Standing:
        """What is committed in a generation."""
        rows = self.connection.rows(_STANDING, (generation,))
        try:
            *content, found = rows[0]
            if seal(*content) != found:
                raise ValueError("checksum")
            number, count, key_width, kind, value_width, *tails, sums, settings, retired = content
            layout, tally = Layout(key_width, kind, value_width), Tally.unpack(sums)
            summed = 0 if layout.kind.coded else value_width
            if not _counts((number, count, *tails, retired)) or len(tally.origin) != summed:
                raise ValueError("counts")
            return Standing(number, count, layout, (tails[0], tails[1], tails[2]), tally, settings, retired)
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            raise self.connection.damage(f"the record of generation {generation} is missing or damaged") from error

    def settings(self) -> str:
        """The settings of the newest commit, as JSON."""
        head = self.head()
        return self.standing(head.generation).settings if head.generation else head.settings

    def require_room_for(self, standing: Standing) -> None:
        """Refuse more rows than the catalog can hold, before memory is allocated for them: files may have holes."""
        if standing.rows > self.most_rows():
            raise self.connection.damage(f"it counts {standing.rows} rows, but is too small to hold as many")

    def most_rows(self) -> int:
        """More rows than the catalog can hold: each takes more than eight bytes of it."""
        return self.connection.size() // 8

    def put_standing(self, standing: Standing) -> None:
        """Write what is committed in a generation."""
        layout = standing.layout
        widths = (layout.key_width, layout.kind.value, layout.value_width)
        kept = (standing.tally.pack(), standing.settings, standing.retired)
        content = (standing.generation, standing.rows, *widths, *standing.tails, *kept)
        self.connection.run(insertion("generations", replacing=True), (*content, seal(*content)))

    def generations(self) -> list[int]:
        """All generations that the catalog names, oldest first."""
        return [row[0] for row in self.connection.rows("SELECT generation FROM generations ORDER BY generation")]

    def unfinished(self, head: Head) -> int | None:
        """The generation that a rebuild is writing: the only one that is newer than the current one."""
        return next((number for number in self.generations() if number > head.generation), None)

    def create_items(self, generation: int) -> None:
        """Make the table of a generation's items."""
        self.connection.run(items_definition(generation))

    def index_items(self, generation: int) -> None:
        """Make the indexes of the items: after the rows of a compaction, since sorting once is cheaper."""
        for definition in items_indexes(generation).values():
            self.connection.run(definition)

    def drop_generation(self, generation: int) -> None:
        """Forget a generation, and the contents of the items that died in it."""
        items = items_name(generation)
        self.connection.run(f"DELETE FROM contents WHERE item IN (SELECT item FROM {items} WHERE died IS NOT NULL)")
        self.connection.run(f"DROP TABLE {items}")
        self.drop_unfinished(generation)

    def drop_unfinished(self, generation: int) -> None:
        """Forget a generation that has no items, or none any more."""
        tables = ("windows", "deaths", "indexes", "granules", "derived", "generations")
        for table in tables_of(self.connection.user_version()).intersection(tables):
            self.connection.run(f"DELETE FROM {table} WHERE generation = ?", (generation,))

    def put_windows(self, generation: int, role: str, finished: Sequence[tuple[int, int]]) -> None:
        """Write the checksums of windows that became complete, or were rebuilt; windows are consecutive."""
        for start in range(0, len(finished), MOST_LISTED):
            checksums = json.dumps([checksum for _, checksum in finished[start : start + MOST_LISTED]])
            self.connection.run(_PUT_WINDOWS, (generation, role, finished[start][0], checksums))

    def windows(self, generation: int, role: str, numbers: Sequence[int]) -> list[int]:
        """The checksums of complete windows with these ascending numbers; a range is read as one."""
        found: dict[int, int] = {}
        if isinstance(numbers, range):
            found = self.known_windows(generation, role, numbers.start, numbers.stop)
        else:
            for start in range(0, len(numbers), MOST_LISTED):
                some = json.dumps(numbers[start : start + MOST_LISTED])
                found.update(self.connection.rows(_SOME_WINDOWS, (some, generation, role)))
        if len(found) != len(numbers):
            windows = f"{role} windows {numbers[0]} to {numbers[-1]} of generation {generation}"
            raise self.connection.damage(f"checksums of {windows} are missing")
        return list(found.values()) if isinstance(numbers, range) else [found[number] for number in numbers]

    def known_windows(self, generation: int, role: str, first: int, last: int) -> dict[int, int]:
        """The checksums of the complete windows first .. last - 1 by their numbers, as far as there are any."""
        if last - first == 1:  # by its number: to find the end of a range, the page behind it may be read
            return dict(self.connection.rows(_WINDOW, (generation, role, first)))
        return dict(self.connection.rows(_WINDOWS, (generation, role, first, last)))

    def put_granule(self, generation: int, size: int) -> None:
        """Record how many bytes of the rows of a new generation one checksum covers."""
        self.connection.run(insertion("granules"), (generation, size, seal(generation, size)))

    def granule(self, generation: int) -> int:
        """How many bytes of the rows of a generation one checksum covers."""
        if self.connection.user_version() < 3:
            return WINDOW
        rows = self.connection.rows("SELECT * FROM granules WHERE generation = ?", (generation,))
        if not rows or seal(*rows[0][:-1]) != rows[0][-1] or not _is_granule(rows[0][1]):
            told = f"how the checksums of generation {generation} are divided"
            raise self.connection.damage(f"{told} is missing or damaged")
        return int(rows[0][1])

    def put_deaths(self, generation: int, blocks: Iterable[tuple[int, Bitmap]], number: int) -> None:
        """Write the bitmaps that a commit changed."""
        for block, bitmap in blocks:
            content = (generation, block, number, bitmap.tobytes())
            self.connection.run(insertion("deaths", replacing=True), (*content, seal(*content)))

    def deaths(self, standing: Standing, since: int) -> dict[int, Bitmap]:
        """The bitmaps changed by commits after number `since`."""
        changed = {}
        for block, number, blob, found in self.connection.rows(_DEATHS, (standing.generation, since)):
            changed[block] = bitmap_of(blob, block, standing.rows)
            if seal(standing.generation, block, number, blob) != found:
                raise self.connection.damage(f"the dead rows of block {block} are damaged")
        return changed

    def labels(self) -> list[tuple[int, str, int]]:
        """(code, label, live items) of all labels, in the order of codes."""
        rows = self.connection.rows(_LABELS)
        for position, (*content, found) in enumerate(rows):
            kept = _counts((content[0], content[2])) and isinstance(content[1], str) and seal(*content) == found
            if content[0] != position or not kept:
                raise self.connection.damage(f"label {position} is damaged")
        return [(code, label, count) for code, label, count, _ in rows]

    def label_count(self) -> int:
        """How many labels there are, if each has its row."""
        last = self.connection.value("SELECT max(code) FROM labels")
        return last + 1 if isinstance(last, int) else 0

    def sound_labels(self, codes: Sequence[int]) -> dict[int, str]:
        """The labels of these codes whose checksums are right, for callers that go on after damage."""
        rows, middle = None, len(codes) // 2
        try:
            if len(codes) <= MOST_LISTED:
                rows = self.connection.rows(_LABEL_BYTES, (json.dumps(codes),))
        except UNREADABLE as error:  # one unreadable page fails them all
            if isinstance(error, Endless) or not middle:
                return {}
        if rows is None:
            return self.sound_labels(codes[:middle]) | self.sound_labels(codes[middle:])
        labels = ((code, bytes(text or b"").decode(errors="replace"), *others) for code, text, *others in rows)
        return {code: label for code, label, count, found in labels if seal(code, label, count) == found}

    def put_labels(self, labels: Iterable[tuple[int, str, int]]) -> None:
        """Write labels, new ones or with new counts."""
        rows = [(*label, seal(*label)) for label in labels]
        self.connection.run_many(insertion("labels", replacing=True), rows)

    def put_index(self, record: IndexRecord) -> None:
        """Name an index file; it replaces the one of the same name and all derived parts of that one."""
        self.drop_index(record.generation, record.name)
        content = astuple(record)
        self.connection.run(insertion("indexes", replacing=True), (*content, seal(*content)))

    def index(self, generation: int, name: str) -> IndexRecord | None:
        """The index file of this name that the catalog names for a generation."""
        if self.connection.user_version() < 2:
            return None
        rows = self.connection.rows(_INDEX, (generation, name))
        return self._index_record(rows[0]) if rows else None

    def _index_record(self, row: tuple[Any, ...]) -> IndexRecord:
        *content, found = row
        if seal(*content) != found or not _counts((content[0], *content[2:6])):
            raise IndexDamaged(
                f"{self.connection.path}: the record of the index file {content[1]!r} is damaged. Build it again."
            )
        return IndexRecord(*content)

    def index_names(self, generation: int) -> list[str]:
        """The names of the index files of a generation."""
        if self.connection.user_version() < 2:
            return []
        rows = self.connection.rows("SELECT name FROM indexes WHERE generation = ? ORDER BY name", (generation,))
        return [name for (name,) in rows]

    def has_index(self, generation: int, name: str | None) -> bool:
        """Whether an index file of a generation, or a derived part, has this name, or whether there is any."""
        return any(self.connection.rows(f"SELECT 1 {named} LIMIT 1", (generation, name, name)) for named in _NAMED)

    def index_files(self) -> set[int]:
        """The numbers of all files in index/ that the catalog names, of old generations as well."""
        rows = self.connection.rows("SELECT file FROM indexes") if self.connection.user_version() >= 2 else []
        return {number for (number,) in rows if isinstance(number, int) and 0 < number < 10**18}

    def drop_index(self, generation: int, name: str | None) -> None:
        """Remove this index file of a generation, or all, from the catalog, with all parts derived under the name."""
        for named in _NAMED:
            self.connection.run(f"DELETE {named}", (generation, name, name))


_fields_of = attrgetter(*(field.name for field in fields(Head)))
_HEAD = f"SELECT {', '.join(field.name for field in fields(Head))}, seal FROM state"
_STANDING = "SELECT * FROM generations WHERE generation = ?"
_CHECKSUMS = "SELECT window, checksum FROM windows WHERE generation = ? AND role = ? AND window"
_WINDOW, _WINDOWS = f"{_CHECKSUMS} = ?", f"{_CHECKSUMS} >= ? AND window < ? ORDER BY window"
_SOME_WINDOWS = (
    "SELECT window, checksum FROM json_each(?) a CROSS JOIN windows ON generation = ? AND role = ? AND window = a.value"
)
_PUT_WINDOWS = "INSERT OR REPLACE INTO windows SELECT ?, ?, ? + key, value FROM json_each(?)"
_DEATHS = "SELECT block, changed, bitmap, seal FROM deaths WHERE generation = ? AND changed > ?"
_NAMED = [f"FROM {table} WHERE generation = ? AND (? IS NULL OR name = ?)" for table in ("indexes", "derived")]
_INDEX = "SELECT * FROM indexes WHERE generation = ? AND name = ?"
_LABELS = "SELECT * FROM labels WHERE code >= 0 ORDER BY code"
_LABEL_BYTES = "SELECT code, CAST(label AS BLOB), count, seal FROM json_each(?) a CROSS JOIN labels ON code = a.value"
