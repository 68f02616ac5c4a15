"""The tables that say which rows exist, and the statements on them.

state         one row: the newest commit, the writer's epoch, the current generation, the next item number
generations   one row each: layout, committed rows, checksums of the unfinished windows, sums, settings
items_N       one row per row of generation N: item, ordinal, key, the commits it was born and died in
contents      what is carried along with an item, and never changes: embedded text, value text, payload
windows       checksums of the complete 1 MiB windows of the arenas
deaths        dead rows as bitmaps, and the commit that changed them
labels        the code of every label, and how many live items carry it

Rows are immutable apart from `died`. Every row carries a checksum of its content, compared when it is read.
Does not know the arenas, and decides nothing: store.py does.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any
from zlib import crc32

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from softkv.errors import FormatTooNew, StoreDamaged, WriterFenced
from softkv.storage.connection import Connection
from softkv.storage.deaths import Bitmap, Deaths, bitmap_of
from softkv.storage.layout import FORMAT, Layout, ValueKind
from softkv.storage.tally import Tally

APPLICATION = 0x736B7631  # "skv1", the application_id in the header of the SQLite file
_ITEMS_NAME = re.compile(r"items_[0-9]+\Z")
_DIALECT = sqlite.dialect()
_METADATA = sa.MetaData()
_int, _text, _blob = sa.Integer, sa.Text, sa.LargeBinary


def _column(name: str, kind: Any, *, key: bool = False, null: bool = False) -> "sa.Column[Any]":
    return sa.Column(name, kind, primary_key=key, nullable=null, autoincrement=False)


STATE = sa.Table(
    "state",
    _METADATA,
    _column("id", _int, key=True),
    _column("store", _text),
    *(_column(name, _int) for name in ("number", "epoch", "generation", "next_item", "next_ordinal", "writing")),
    _column("settings", _text),
    _column("seal", _int),
)
GENERATIONS = sa.Table(
    "generations",
    _METADATA,
    _column("generation", _int, key=True),
    *(_column(name, _int) for name in ("rows", "key_width")),
    _column("kind", _text),
    *(_column(name, _int) for name in ("value_width", "keys_tail", "values_tail", "norms_tail")),
    _column("sums", _blob),
    _column("settings", _text),
    _column("retired", _int),
    _column("seal", _int),
)
CONTENTS = sa.Table(
    "contents",
    _METADATA,
    _column("item", _int, key=True),
    *(_column(name, _text, null=True) for name in ("text", "value", "payload")),
)
WINDOWS = sa.Table(
    "windows",
    _METADATA,
    _column("generation", _int, key=True),
    _column("role", _text, key=True),
    _column("window", _int, key=True),
    _column("checksum", _int),
    sqlite_with_rowid=False,
)
DEATHS = sa.Table(
    "deaths",
    _METADATA,
    _column("generation", _int, key=True),
    _column("block", _int, key=True),
    _column("changed", _int),
    _column("bitmap", _blob),
    _column("seal", _int),
)
LABELS = sa.Table(
    "labels",
    _METADATA,
    _column("code", _int, key=True),
    sa.Column("label", _text, nullable=False, unique=True),
    *(_column(name, _int) for name in ("count", "seal")),
)


@lru_cache(maxsize=64)
def items_table(generation: int) -> sa.Table:
    """The items of one generation: a table of its own, so that an old generation goes in one stroke."""
    table = sa.Table(
        f"items_{generation}",
        sa.MetaData(),
        _column("row", _int, key=True),
        *(_column(name, _int) for name in ("item", "ordinal")),
        _column("key", _text, null=True),
        _column("born", _int),
        _column("died", _int, null=True),
        _column("seal", _int),
    )
    live, dead = table.c.died.is_(None), table.c.died.is_not(None)
    sa.Index(f"items_{generation}_live", table.c.key, unique=True, sqlite_where=live & table.c.key.is_not(None))
    sa.Index(f"items_{generation}_dead", table.c.key, sqlite_where=dead & table.c.key.is_not(None))
    sa.Index(f"items_{generation}_nameless", table.c.item, sqlite_where=table.c.key.is_(None))
    return table


def compiled(statement: Any) -> str:
    """A statement of SQLAlchemy Core as SQLite's SQL, with a question mark for every bound parameter."""
    return str(statement.compile(dialect=_DIALECT))


@dataclass(frozen=True, slots=True)
class Bound:
    """A statement that carries values of its own; `arguments` puts them and those named in their places."""

    sql: str
    names: tuple[str, ...]
    values: dict[str, Any]

    @classmethod
    def of(cls, statement: Any) -> "Bound":
        """A statement of SQLAlchemy Core with what was bound in it."""
        found = statement.compile(dialect=_DIALECT)
        return cls(str(found), tuple(found.positiontup), found.params)

    def arguments(self, **named: Any) -> list[Any]:
        """One value for every question mark."""
        return [named.get(name, self.values[name]) for name in self.names]


@lru_cache(maxsize=64)
def insertion(table: sa.Table, *, replacing: bool = False) -> str:
    """INSERT of whole rows."""
    return compiled(sa.insert(table).prefix_with("OR REPLACE") if replacing else sa.insert(table))


def seal(*content: int | str | bytes | None) -> int:
    """A checksum of the fields of a catalog row, the same on every machine."""
    pieces = []
    for field in content:
        kind = type(field).__name__[:1]
        pieces.append(f"{kind}{field}".encode() if not isinstance(field, bytes) else b"b" + field)
    return crc32(b"\0".join(pieces))


def _counts(fields: Iterable[object]) -> bool:
    """Whether all of these can count something: a checksum does not keep out who computes one."""
    return all(isinstance(field, int) and field >= 0 for field in fields)


def item_seal(item: int, ordinal: int, born: int, key: bytes | None, content: int) -> int:
    """The part of an item's checksum that no deletion or compaction changes; its row number and `died` are added.

    Adding them keeps the checksum in step in plain SQL, without reading the row.
    """
    return crc32(b"%d %d %d %d " % (item, ordinal, born, content) + (b"-" if key is None else b"=" + key))


@dataclass(frozen=True, slots=True)
class Head:
    """The one row of `state`."""

    store: str
    number: int  # of the newest commit
    epoch: int  # of the writer: a writer whose epoch has passed is fenced
    generation: int  # 0 before the first item
    next_item: int
    next_ordinal: int
    writing: int  # 1 from the opening of a writer to its close
    settings: str  # JSON; what the first generation will start with


@dataclass(frozen=True, slots=True)
class Standing:
    """One row of `generations`: what is committed there."""

    generation: int
    rows: int
    layout: Layout
    tails: tuple[int, int, int]  # checksums of the unfinished windows of keys, values and norms
    tally: Tally
    settings: str
    retired: int  # 1 once another generation has taken over

    def with_norms_tail(self, tail: int) -> "Standing":
        """The same with another checksum of the unfinished window of the norms."""
        return replace(self, tails=(self.tails[0], self.tails[1], tail))


class Catalog:
    """The tables through one connection. Callers hold the transactions."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def create(self, store: str) -> None:
        """Make the tables in an empty file."""
        self.connection.run(f"PRAGMA application_id={APPLICATION}")
        with self.connection.writing():
            for table in _METADATA.sorted_tables:
                self.connection.run(compiled(CreateTable(table)))
            self.connection.run(f"PRAGMA user_version={FORMAT}")
            self._put_head(Head(store, 0, 0, 0, 1, 1, 0, "{}"))

    def identify(self) -> int:
        """Refuse a catalog of a format we do not know, or with tables that are not ours; returns its format."""
        path = self.connection.path
        found = int(self.connection.value("PRAGMA user_version"))
        if found > FORMAT:
            raise FormatTooNew(
                f"{path} has format {found}; this softkv reads up to {FORMAT}. "
                "Install a newer one: pip install -U softkv"
            )
        self._refuse_foreign_objects()
        return found

    def _refuse_foreign_objects(self) -> None:
        rows = self.connection.rows("SELECT type, name, tbl_name, rootpage FROM sqlite_master")
        tables = {name for kind, name, _, _ in rows if kind == "table"}
        ours = set(_METADATA.tables)
        strange = [
            f"{kind} {name}"
            for kind, name, table, root in rows
            if kind not in ("table", "index") or not root or not (table in ours or _ITEMS_NAME.match(str(table)))
        ]  # a virtual table has no root page: reading it would run the code of an extension
        if strange or not ours <= tables:
            raise StoreDamaged(
                f"{self.connection.path} does not have the tables of a store: "
                f"unexpected {strange[:3]}, missing {sorted(ours - tables)}"
            )

    def head(self) -> Head:
        """The newest commit."""
        rows = self.connection.rows(_HEAD)
        if len(rows) != 1 or seal(*rows[0][:-1]) != rows[0][-1] or not _counts(rows[0][1:7]):
            raise StoreDamaged(f"{self.connection.path}: the row of the newest commit is damaged. Run `softkv check`.")
        return Head(*rows[0][:-1])

    def _put_head(self, head: Head) -> None:
        content = _fields_of(head)
        self.connection.run(insertion(STATE, replacing=True), (1, *content, seal(*content)))

    def advance(self, before: Head, **changes: Any) -> Head:
        """Replace the newest commit, unless another writer has come between."""
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
            layout, tally = Layout(key_width, ValueKind(kind), value_width), Tally.unpack(sums)
            summed = 0 if layout.kind is ValueKind.LABEL else value_width
            if not _counts((number, count, *tails, retired)) or len(tally.origin) != summed:
                raise ValueError("counts")
            return Standing(number, count, layout, (tails[0], tails[1], tails[2]), tally, settings, retired)
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            raise StoreDamaged(
                f"{self.connection.path}: the record of generation {generation} is missing or damaged. "
                "Run `softkv check`."
            ) from error

    def put_standing(self, standing: Standing) -> None:
        """Write what is committed in a generation."""
        layout = standing.layout
        widths = (layout.key_width, layout.kind.value, layout.value_width)
        kept = (standing.tally.pack(), standing.settings, standing.retired)
        content = (standing.generation, standing.rows, *widths, *standing.tails, *kept)
        self.connection.run(insertion(GENERATIONS, replacing=True), (*content, seal(*content)))

    def generations(self) -> list[int]:
        """All generations that the catalog names, oldest first."""
        return [row[0] for row in self.connection.rows("SELECT generation FROM generations ORDER BY generation")]

    def unfinished(self, head: Head) -> int | None:
        """The generation that a rebuild is writing: younger than the current one, which none else is."""
        return next((number for number in self.generations() if number > head.generation), None)

    def create_items(self, generation: int) -> None:
        """Make the table of a generation's items."""
        self.connection.run(compiled(CreateTable(items_table(generation))))

    def index_items(self, generation: int) -> None:
        """Make its indexes: after the rows of a compaction, since sorting once is cheaper."""
        for index in sorted(items_table(generation).indexes, key=lambda index: str(index.name)):
            self.connection.run(compiled(CreateIndex(index)))

    def drop_generation(self, generation: int) -> None:
        """Forget a generation, and the contents of the items that died in it."""
        items = items_table(generation)
        gone = sa.select(items.c.item).where(items.c.died.is_not(None))
        self.connection.run(compiled(sa.delete(CONTENTS).where(CONTENTS.c.item.in_(gone))))
        self.connection.run(f"DROP TABLE {items.name}")
        self.drop_unfinished(generation)

    def drop_unfinished(self, generation: int) -> None:
        """Forget a generation that has no items yet, or not any more."""
        for table in (WINDOWS, DEATHS, GENERATIONS):
            self.connection.run(f"DELETE FROM {table.name} WHERE generation = ?", (generation,))

    def put_windows(self, generation: int, role: str, finished: Sequence[tuple[int, int]]) -> None:
        """Write the checksums of windows that became complete, or were rebuilt."""
        rows = [(generation, role, window, checksum) for window, checksum in finished]
        if rows:
            self.connection.run_many(insertion(WINDOWS, replacing=True), rows)

    def windows(self, generation: int, role: str, first: int, last: int) -> list[int]:
        """The checksums of the complete windows first .. last - 1."""
        found = self.connection.rows(_WINDOWS, (generation, role, first, last))
        if len(found) != last - first:
            raise StoreDamaged(
                f"{self.connection.path}: checksums of {role} windows {first} to {last - 1} of generation {generation} "
                "are missing. Run `softkv check`."
            )
        return [checksum for (checksum,) in found]

    def put_deaths(self, generation: int, blocks: Iterable[tuple[int, Bitmap]], number: int) -> None:
        """Write the bitmaps that a commit changed."""
        for block, bitmap in blocks:
            content = (generation, block, number, bitmap.tobytes())
            self.connection.run(insertion(DEATHS, replacing=True), (*content, seal(*content)))

    def deaths(self, standing: Standing, since: int) -> dict[int, Bitmap]:
        """The bitmaps changed by commits after number `since`."""
        changed = {}
        for block, number, blob, found in self.connection.rows(_DEATHS, (standing.generation, since)):
            changed[block] = bitmap_of(blob, block, standing.rows)
            if seal(standing.generation, block, number, blob) != found:
                raise StoreDamaged(
                    f"{self.connection.path}: the dead rows of block {block} are damaged. Run `softkv check`."
                )
        return changed

    def dead(self, standing: Standing) -> Deaths:
        """All dead rows of a generation."""
        return Deaths.none().replaced(self.deaths(standing, -1))

    def labels(self, first: int = 0) -> list[tuple[int, str, int]]:
        """(code, label, live items) of all labels from code `first` on, in the order of codes."""
        rows = self.connection.rows(_LABELS, (first,))
        for position, (*content, found) in enumerate(rows):
            if content[0] != first + position or seal(*content) != found:
                raise StoreDamaged(f"{self.connection.path}: label {first + position} is damaged. Run `softkv check`.")
        return [(code, label, count) for code, label, count, _ in rows]

    def sound_labels(self) -> dict[int, str]:
        """The labels by code, as far as they check out, for those who go on after damage."""
        sound = {}
        for code, text, count, found in self.connection.rows(_LABEL_BYTES):
            label = bytes(text or b"").decode(errors="replace")
            if seal(code, label, count) == found:
                sound[code] = label
        return sound

    def put_labels(self, labels: Iterable[tuple[int, str, int]]) -> None:
        """Write labels, new ones or with new counts."""
        rows = [(*label, seal(*label)) for label in labels]
        self.connection.run_many(insertion(LABELS, replacing=True), rows)


_fields_of = attrgetter(*(field.name for field in fields(Head)))
_HEAD = compiled(sa.select(*(STATE.c[field.name] for field in fields(Head)), STATE.c.seal))
_STANDING = compiled(sa.select(GENERATIONS).where(GENERATIONS.c.generation == sa.bindparam("generation")))
_WINDOWS = compiled(
    sa.select(WINDOWS.c.checksum)
    .where(WINDOWS.c.generation == sa.bindparam("generation"), WINDOWS.c.role == sa.bindparam("role"))
    .where(WINDOWS.c.window >= sa.bindparam("first"), WINDOWS.c.window < sa.bindparam("last"))
    .order_by(WINDOWS.c.window)
)
_DEATHS = compiled(
    sa.select(DEATHS.c.block, DEATHS.c.changed, DEATHS.c.bitmap, DEATHS.c.seal).where(
        DEATHS.c.generation == sa.bindparam("generation"), DEATHS.c.changed > sa.bindparam("since")
    )
)
_LABEL_BYTES = compiled(sa.select(LABELS.c.code, sa.cast(LABELS.c.label, _blob), LABELS.c.count, LABELS.c.seal))
_LABELS = compiled(sa.select(LABELS).where(LABELS.c.code >= sa.bindparam("first")).order_by(LABELS.c.code))
