"""The tables of the catalog, and the SQL of whole rows.

state         one row: the newest commit, the writer's epoch, the current generation, the next item number
generations   one row each: layout, committed rows, checksums of the unfinished windows, sums, settings
items_N       one row per row of generation N: item, ordinal, key, the commits it was born and died in
contents      what is carried along with an item, and never changes: embedded text, value text, payload
windows       checksums of the complete 1 MiB windows of the arenas
deaths        dead rows as bitmaps, and the commit that changed them
labels        the code of every label, and how many live items carry it
indexes       files beside a generation that can be made anew from it: size, SHA-256, what they cover

Every row carries a checksum of its content, compared when it is read. Runs no statement.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

APPLICATION = 0x736B7631  # "skv1", the application_id in the header of the SQLite file
ITEMS_NAME = re.compile(r"items_([0-9]{1,18})\Z")
_DIALECT = sqlite.dialect()
METADATA = sa.MetaData()
_int, _text, BLOB = sa.Integer, sa.Text, sa.LargeBinary


def _column(name: str, kind: Any, *, key: bool = False, null: bool = False) -> "sa.Column[Any]":
    return sa.Column(name, kind, primary_key=key, nullable=null, autoincrement=False)


STATE = sa.Table(
    "state",
    METADATA,
    _column("id", _int, key=True),
    _column("store", _text),
    *(_column(name, _int) for name in ("number", "epoch", "generation", "next_item", "next_ordinal", "writing")),
    _column("settings", _text),
    _column("seal", _int),
)
GENERATIONS = sa.Table(
    "generations",
    METADATA,
    _column("generation", _int, key=True),
    *(_column(name, _int) for name in ("rows", "key_width")),
    _column("kind", _text),
    *(_column(name, _int) for name in ("value_width", "keys_tail", "values_tail", "norms_tail")),
    _column("sums", BLOB),
    _column("settings", _text),
    _column("retired", _int),
    _column("seal", _int),
)
CONTENTS = sa.Table(
    "contents",
    METADATA,
    _column("item", _int, key=True),
    *(_column(name, _text, null=True) for name in ("text", "value", "payload")),
)
WINDOWS = sa.Table(
    "windows",
    METADATA,
    _column("generation", _int, key=True),
    _column("role", _text, key=True),
    _column("window", _int, key=True),
    _column("checksum", _int),
    sqlite_with_rowid=False,
)
DEATHS = sa.Table(
    "deaths",
    METADATA,
    _column("generation", _int, key=True),
    _column("block", _int, key=True),
    _column("changed", _int),
    _column("bitmap", BLOB),
    _column("seal", _int),
)
LABELS = sa.Table(
    "labels",
    METADATA,
    _column("code", _int, key=True),
    sa.Column("label", _text, nullable=False, unique=True),
    *(_column(name, _int) for name in ("count", "seal")),
)
INDEXES = sa.Table(
    "indexes",
    METADATA,
    _column("generation", _int, key=True),
    _column("name", _text, key=True),
    *(_column(name, _int) for name in ("file", "rows", "number", "size")),
    _column("sha256", BLOB),
    _column("seal", _int),
)


_ADDED = {"indexes": 2}  # the first format with a table that was not there from the start


def tables_of(number: int) -> set[str]:
    """The names of the tables that a catalog of this format has, but for those of items."""
    return {name for name in METADATA.tables if _ADDED.get(name, 1) <= number}


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


@lru_cache(maxsize=64)
def definitions(table: str) -> dict[str, str]:
    """The tables and indexes that go under the name of a table of ours, and how each is defined; nothing for others."""
    items = ITEMS_NAME.match(table)
    if items is None and table not in METADATA.tables:
        return {}
    ours = METADATA.tables[table] if items is None else items_table(int(items[1]))
    found = {str(index.name): essence(compiled(CreateIndex(index))) for index in ours.indexes}
    return {str(ours.name): essence(compiled(CreateTable(ours))), **found}


def essence(definition: str) -> str:
    """A definition without what SQLAlchemy spells in another way from version to version: blanks and quotes."""
    return "".join(definition.replace('"', "").split())


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


def item_seal(item: int, ordinal: int, born: int, key: bytes | None, content: int) -> int:
    """The part of an item's checksum that no deletion or compaction changes; its row number and `died` are added.

    Adding them keeps the checksum in step in plain SQL, without reading the row.
    """
    return crc32(b"%d %d %d %d " % (item, ordinal, born, content) + (b"-" if key is None else b"=" + key))
