"""The tables of the catalog, and the SQL of whole rows.

state         one row: the newest commit, the writer's epoch, the current generation, the next item number
generations   one row each: layout, committed rows, checksums of the unfinished windows, sums, settings
items_N       one row per row of generation N: item, ordinal, key, the commits it was born and died in
contents      what belongs to an item and never changes: embedded text, value text, payload
windows       checksums of the complete windows of the arenas, each as large as a granule of its generation
deaths        dead rows as bitmaps, and the commit that changed them
labels        the code of every label, and how many live items carry it
indexes       files beside a generation that can be made anew from it: size, SHA-256, what they cover
granules      how many bytes of rows of a generation one checksum covers
derived       parts of what is derived from the rows of a generation, by name and commit; a cache
batches       the names of the batches of the last seven days, with a digest and the result of each
secret        one row: 32 random bytes that belong to this store

Every row carries a checksum of its content, compared when it is read. Runs no statement.

The definitions are literals, not rendered by a library: a catalog is recognised by their exact text, and a new version
of a library must not make existing stores unreadable.
"""

import re
from functools import lru_cache
from zlib import crc32

APPLICATION = 0x736B7631  # "skv1", the application_id in the header of the SQLite file
ITEMS_NAME = re.compile(r"items_([0-9]{1,18})\Z")


def _definition(name: str, columns: str, *constraints: str, end: str = "") -> str:
    """A table as SQLite keeps it, blanks included: as in the first catalogs. Only columns with a ? may be NULL."""
    lines = [one[:-1] if one.endswith("?") else f"{one} NOT NULL" for one in columns.split(", ")]
    return f"CREATE TABLE {name} (\n\t" + ", \n\t".join([*lines, *constraints]) + f"\n){end}"


_COLUMNS = {
    "contents": ("item INTEGER, text TEXT?, value TEXT?, payload TEXT?", "PRIMARY KEY (item)"),
    "deaths": (
        "generation INTEGER, block INTEGER, changed INTEGER, bitmap BLOB, seal INTEGER",
        "PRIMARY KEY (generation, block)",
    ),
    "generations": (
        "generation INTEGER, rows INTEGER, key_width INTEGER, kind TEXT, value_width INTEGER, keys_tail INTEGER, "
        "values_tail INTEGER, norms_tail INTEGER, sums BLOB, settings TEXT, retired INTEGER, seal INTEGER",
        "PRIMARY KEY (generation)",
    ),
    "indexes": (
        "generation INTEGER, name TEXT, file INTEGER, rows INTEGER, number INTEGER, size INTEGER, sha256 BLOB, "
        "seal INTEGER",
        "PRIMARY KEY (generation, name)",
    ),
    "labels": ("code INTEGER, label TEXT, count INTEGER, seal INTEGER", "PRIMARY KEY (code)", "UNIQUE (label)"),
    "state": (
        "id INTEGER, store TEXT, number INTEGER, epoch INTEGER, generation INTEGER, next_item INTEGER, "
        "next_ordinal INTEGER, writing INTEGER, settings TEXT, seal INTEGER",
        "PRIMARY KEY (id)",
    ),
    "windows": (
        "generation INTEGER, role TEXT, window INTEGER, checksum INTEGER",
        "PRIMARY KEY (generation, role, window)",
    ),
    "granules": ("generation INTEGER, bytes INTEGER, seal INTEGER", "PRIMARY KEY (generation)"),
    "derived": (
        "generation INTEGER, name TEXT, part INTEGER, content BLOB, seal INTEGER",
        "PRIMARY KEY (generation, name, part)",
    ),
    "batches": ('id TEXT, digest BLOB, result TEXT, "commit" INTEGER, time INTEGER, seal INTEGER', "PRIMARY KEY (id)"),
    "secret": ("id INTEGER, content BLOB, seal INTEGER", "PRIMARY KEY (id)"),
}
_ENDS = {"windows": "\n WITHOUT ROWID\n\n"}
TABLES = {name: _definition(name, *parts, end=_ENDS.get(name, "")) for name, parts in _COLUMNS.items()}
_INDEXES_OF = {"batches": {"batches_time": "CREATE INDEX batches_time ON batches (time)"}}
_ADDED = {"indexes": 2, "granules": 3, "derived": 3, "batches": 3, "secret": 3}  # the first format with this table


def tables_of(number: int) -> set[str]:
    """The names of the tables that a catalog of this format has, except those of items."""
    return {name for name in TABLES if _ADDED.get(name, 1) <= number}


def definitions_since(number: int) -> list[str]:
    """The tables, with their indexes, that came with this format."""
    new = [name for name in TABLES if _ADDED.get(name, 1) == number]
    return [one for name in new for one in (TABLES[name], *_INDEXES_OF.get(name, {}).values())]


def items_name(generation: int) -> str:
    """The table of one generation's items: one per generation, so that an old one is dropped at once."""
    return f"items_{generation}"


def items_definition(generation: int) -> str:
    """The table of a generation's items."""
    columns = '"row" INTEGER, item INTEGER, ordinal INTEGER, "key" TEXT?, born INTEGER, died INTEGER?, seal INTEGER'
    return _definition(items_name(generation), columns, 'PRIMARY KEY ("row")')


def items_indexes(generation: int) -> dict[str, str]:
    """The indexes of that table by their names; keys of live rows and of dead ones are apart."""
    name = items_name(generation)
    keyed = f'ON {name} ("key") WHERE died IS'
    return {
        f"{name}_dead": f'CREATE INDEX {name}_dead {keyed} NOT NULL AND "key" IS NOT NULL',
        f"{name}_live": f'CREATE UNIQUE INDEX {name}_live {keyed} NULL AND "key" IS NOT NULL',
        f"{name}_nameless": f'CREATE INDEX {name}_nameless ON {name} (item) WHERE "key" IS NULL',
    }


@lru_cache(maxsize=64)
def definitions(table: str) -> dict[str, str]:
    """The definitions of a table of ours and its indexes, by name; empty for any other name."""
    found, items = {}, ITEMS_NAME.match(table)
    if table in TABLES:
        found = {table: TABLES[table], **_INDEXES_OF.get(table, {})}
    elif items is not None:
        generation = int(items[1])
        found = {items_name(generation): items_definition(generation), **items_indexes(generation)}
    return {name: essence(definition) for name, definition in found.items()}


@lru_cache(maxsize=256)
def essence(definition: str) -> str:
    """A definition without its blanks and quotes: older catalogs have these in more than one spelling."""
    return "".join(definition.replace('"', "").split())


@lru_cache(maxsize=64)
def insertion(table: str, *, replacing: bool = False) -> str:
    """INSERT of whole rows into a table of ours."""
    places = ", ".join("?" for _ in _COLUMNS[table][0].split(","))
    return f"INSERT {'OR REPLACE ' if replacing else ''}INTO {table} VALUES ({places})"


def seal(*content: int | str | bytes | None) -> int:
    """A checksum of the fields of a catalog row, the same on every machine. Bytes may be many, and are not copied."""
    checksum, texts = 0, list[str]()
    for field in content:
        if isinstance(field, bytes):
            checksum, texts = crc32(field, crc32("\0".join([*texts, "b"]).encode(), checksum)), [""]
        else:
            texts.append(f"{type(field).__name__[0]}{field}")
    return crc32("\0".join(texts).encode(), checksum)


def item_seal(item: int, ordinal: int, born: int, key: bytes | None, content: int) -> int:
    """The part of an item's checksum that no deletion or compaction changes; its row number and `died` are added.

    Since they are added, plain SQL can update the checksum without reading the row.
    """
    return crc32(b"%d %d %d %d " % (item, ordinal, born, content) + (b"-" if key is None else b"=" + key))
