"""Catalogs that lie, that would run something, that never end, or that are no catalogs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from softkv.storage.catalog.tables import seal
from tests.crash.hostile.attempts import STORE
from tests.crash.hostile.cases import case
from tests.crash.hostile.forging import (
    carried,
    catalog,
    cells,
    forged,
    sql,
)

GROUP = "catalogs"
HUGE = (1 << 63) - 1
VIRTUAL = "INSERT INTO sqlite_master VALUES ('table', 'items_8', 'items_8', 0,"


def add(
    name: str, make: Callable[[Path], Any], template: str = "number", refused: bool | None = None, heavy: bool = False
) -> None:
    """A case of a store whose catalog was altered."""
    case(name, GROUP, make, template=template, attempts=STORE, refused=refused, heavy=heavy)


def temperature(value: str) -> str:
    """Settings with a temperature of this."""
    return f'{{"compatibility": "cosine", "temperature": {{"value": {value}, "origin": "given", "items": 1}}}}'


def embedder(name: str, width: int = 4) -> str:
    """Settings with an embedder of this name."""
    facts = {"name": name, "width": width, "normalised": True, "query_prompt": None, "document_prompt": None}
    return json.dumps({"embedder": {**facts, "fingerprint": [[0.1] * 32] * 6}, "compatibility": "cosine"})


def swapped_schema(name: str, before: str, after: str) -> Callable[[Path], None]:
    """A case in which the text of a table is another."""
    return sql(f"UPDATE sqlite_master SET sql = replace(sql, '{before}', '{after}') WHERE name = '{name}'")


def remade(table: str, definition: str) -> Callable[[Path], None]:
    """A case in which a table was made anew with another definition, and filled as far as it goes."""

    def make(folder: Path) -> None:
        with catalog(folder / "s") as connection:
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            connection.execute(f"DROP TABLE {table}")
            connection.execute(f"CREATE TABLE {table} {definition}")
            there = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            kept = [position for position, name in enumerate(names) if name in there]
            marks = ", ".join("?" * len(kept))
            listed = ", ".join(names[position] for position in kept)
            for row in rows:
                connection.execute(f"INSERT INTO {table} ({listed}) VALUES ({marks})", [row[i] for i in kept])

    return make


def parts(given: list[tuple[Any, ...]]) -> Callable[[Path], None]:
    """A case with these derived parts, under checksums that are right."""

    def make(folder: Path) -> None:
        with catalog(folder / "s") as connection:
            for row in given:
                connection.execute("INSERT INTO derived VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))

    return make


# What would run by itself

for event in ("INSERT", "UPDATE", "DELETE"):
    add(
        f"a trigger on {event.lower()}",
        sql(f"CREATE TRIGGER spy AFTER {event} ON items_1 BEGIN UPDATE state SET number = 7; END"),
        refused=True,
    )
add("a trigger on the windows", sql("CREATE TRIGGER w BEFORE INSERT ON windows BEGIN SELECT 1; END"), refused=True)
add(
    "a view in the place of the contents",
    sql("ALTER TABLE contents RENAME TO items_7", "CREATE VIEW contents AS SELECT * FROM items_7"),
    refused=True,
)
add(
    "a view without end",
    sql(
        "ALTER TABLE labels RENAME TO items_7",
        "CREATE VIEW labels AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS code, x AS label, x AS count, x AS seal FROM n",
    ),
    refused=True,
)
add(
    "a generated column of a gigabyte",
    remade("labels", "(code INTEGER PRIMARY KEY, label TEXT, count INTEGER, seal AS (zeroblob(900000000)))"),
    "label",
    refused=True,
)
add(
    "a generated column in state",
    sql(
        "ALTER TABLE state ADD COLUMN more AS (printf('%.*c', 900000000, 'x'))",
    ),
    refused=True,
)
add(
    "a check that takes a gigabyte",
    swapped_schema("state", "number INTEGER NOT NULL", "number INTEGER NOT NULL CHECK (length(zeroblob(900000000)))"),
    refused=True,
)
add(
    "a default that takes a gigabyte",
    swapped_schema("contents", "payload TEXT", "payload TEXT DEFAULT (hex(zeroblob(400000000)))"),
    refused=True,
)
for size in (8, 4096, 1 << 20):
    add(f"granules of {size} bytes that were never written", forged("granules", bytes=size))
for size in (0, -8, 12, 1 << 21, HUGE):
    add(f"granules of {size} bytes", forged("granules", bytes=size), refused=True)
add("granules of a generation that is not there", sql("UPDATE granules SET generation = 7"), refused=True)
add("a secret of a byte", sql("UPDATE secret SET content = x'00'"))
add("no secret", sql("DELETE FROM secret"))
add("batches that are none", sql("INSERT INTO batches VALUES ('x', 7, '{', 'y', 'z', 0)"))
add("a derived part of no name", sql("INSERT INTO derived VALUES (-1, '', -1, x'', 0)"))
for name, given in {
    "of every type but bytes": [(1, "lists", 1, "text"), (1, "lists", 2, 7), (1, "lists", 3, 0.5)],
    "below the first": [(1, "lists", -1, b"x"), (1, "lists", 0, b"x"), (1, "lists", -HUGE - 1, b"x")],
    "of numbers that are none": [(1, "lists", 1.5, b"x"), (1, "lists", "1st", b"x"), (1, "lists", b"1", b"x")],
    "of commits to come": [(1, "lists", number, b"x") for number in (*range(1, 40), HUGE)],
    "of names that are none": [(1, one, 1, b"x") for one in ("", "a\0b", "\x1b]0;owned\x07", b"lists", "x" * 10**6, 7)],
    "of generations that are none": [(one, "lists", 1, b"x") for one in (0, -1, 2, HUGE, "1st", b"1")],
    "of fifty million bytes": [(1, "lists", 1, bytes(50_000_000))],
    "beyond any field": [(1, "lists", 1, bytes(70_000_000))],
}.items():
    add(f"derived parts {name}", parts(given), heavy="beyond" in name or "million" in name)
add("a trigger on the batches", sql("CREATE TRIGGER b AFTER INSERT ON batches BEGIN SELECT 1; END"), refused=True)
add("an index on an expression", sql("CREATE INDEX more ON items_1 (abs(item))"), refused=True)
add("an index on a condition", sql("CREATE INDEX more ON contents (item) WHERE length(payload) > 3"), refused=True)
add("another collation", swapped_schema("items_1", 'key" TEXT', 'key" TEXT COLLATE NOCASE'))
add(
    "a collation that nobody has",
    remade("labels", "(code INTEGER PRIMARY KEY, label TEXT, count INTEGER, seal INTEGER)"),
    "label",
    True,
)
add(
    "an extension that is not loaded",
    sql(f"{VIRTUAL} 'CREATE VIRTUAL TABLE items_8 USING fts9(x)')"),
    refused=True,
)
add(
    "a virtual table of a module that reads files",
    sql(f"{VIRTUAL} 'CREATE VIRTUAL TABLE items_8 USING csv(filename=\"/etc/passwd\")')"),
    refused=True,
)

# Tables that are other than they should be

add("a column too many", sql("ALTER TABLE state ADD COLUMN more"), refused=True)
add("a column too many in items", sql("ALTER TABLE items_1 ADD COLUMN more"), refused=True)
add("a column too few", sql("ALTER TABLE generations DROP COLUMN retired"), refused=True)
add("a column too few in contents", sql("ALTER TABLE contents DROP COLUMN payload"), refused=True)
add(
    "columns in another order",
    remade("deaths", "(bitmap BLOB, seal INTEGER, changed INTEGER, block INTEGER, generation INTEGER)"),
    refused=True,
)
add(
    "a table without rows of its own",
    remade("contents", "(item INTEGER PRIMARY KEY, text, value, payload) WITHOUT ROWID"),
    refused=True,
)
add("no table of the items", sql("DROP TABLE items_1"), refused=None)
add("no index of the keys", sql("DROP INDEX items_1_live"))
add("a table of items that nobody named", sql("CREATE TABLE items_99 (x)"), refused=True)
add("a table of statistics", sql("ANALYZE"), refused=True)
add(
    "a table whose root is another's",
    sql(
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'state') "
        "WHERE name = 'labels'"
    ),
    "label",
)
add("a table whose root is the first page", sql("UPDATE sqlite_master SET rootpage = 1 WHERE name = 'contents'"))
add("a table whose root is beyond the end", sql("UPDATE sqlite_master SET rootpage = 99999 WHERE name = 'items_1'"))
add(
    "a table whose text is no SQL",
    sql("UPDATE sqlite_master SET sql = 'CREATE TABLE (((' WHERE name = 'labels'"),
    refused=True,
)
add(
    "two tables of one name",
    sql("INSERT INTO sqlite_master SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE name = 'state'"),
    refused=True,
)
add(
    "all tables empty",
    sql(*(f"DELETE FROM {name}" for name in ("state", "generations", "items_1", "contents", "deaths"))),
    refused=True,
)
add(
    "two rows of state",
    sql(
        "INSERT INTO state SELECT 2, store, number, epoch, generation, next_item, next_ordinal, writing, settings, "
        "seal FROM state"
    ),
    refused=True,
)

# Numbers and types that cannot be

for value in (0, -1, 1, 1 << 31, 1 << 53, HUGE, 2.5, "x", b"\xff", 1e300):
    if value not in (HUGE, 1 << 53, -1, "x", 0):  # these are tried elsewhere
        add(f"rows {value!r}", forged("generations", rows=value), refused=True)
for width in (1, 5, (1 << 20) + 1, 1 << 31, -(1 << 31)):
    add(f"key width {width}", forged("generations", key_width=width), refused=True)
for name, sums in {
    "a tally of NaN squares": [11, np.nan, np.nan, 0, 0],
    "a tally of infinite squares": [13, np.inf, np.inf, 0, 0],
    "a tally whose origin is NaN": [13, 1, 1, np.nan, np.nan],
    "a tally of negative squares": [13, -5, -5, 0, 1e200],
    "a tally of half an item": [12.5, 1, 1, 0, 0],
    "a tally that counts too many": [1e18, 1, 1, 0, 0],
}.items():
    add(name, forged("generations", sums=np.array(sums, "<f8").tobytes()))
add("sums that are a text", forged("generations", sums="x" * 40), refused=True)
add("sums of a million numbers", forged("generations", sums=bytes(8 << 20)), refused=True)
add("a checksum that is negative", forged("generations", norms_tail=-1), refused=True)
add("a checksum beyond 32 bits", forged("generations", keys_tail=1 << 40))
add("a checksum that is a text", forged("generations", values_tail="1"))
add("retired though current", forged("generations", retired=1))
add("retired is a blob", forged("generations", retired=b"1"), refused=True)
add("a generation that is a path", forged("state", generation="../../etc"), refused=True)
add("a generation of minus one", forged("generations", generation=-1), refused=True)
add("an epoch at its end", forged("state", epoch=HUGE))
add("the commit before the first", forged("state", number=0))
add("a commit far ahead", forged("state", number=HUGE - 1))
add("a store called like a path", forged("state", store="../../../etc/passwd"), refused=True)
add("a store called with escapes", forged("state", store="\x1b]0;owned\x07\n"), refused=True)
add("next item before the last", forged("state", next_item=1))
add("next ordinal before the last", forged("state", next_ordinal=0))
add("writing forty-two", forged("state", writing=42))
for name, settings in {
    "no JSON": "{",
    "a list": "[]",
    "a hundred thousand brackets": "[" * 100_000,
    "an object a hundred thousand deep": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "NaN": '{"temperature": NaN}',
    "a key twice": '{"value": "number", "value": "label"}',
    "a temperature of NaN": '{"temperature": {"value": NaN, "origin": "given", "items": 1}}',
    "a temperature of zero": '{"temperature": {"value": 0, "origin": "given", "items": 1}}',
    "a temperature of a denormal": temperature("5e-324"),
    "a temperature without end": temperature("1e308"),
    "a temperature of many digits": '{"temperature": {"value": 1' + "0" * 4000 + ', "origin": "given", "items": 1}}',
    "a number of ten thousand digits": '{"x": 1' + "0" * 10_000 + "}",
    "a temperature with fields of its own": temperature('1, "__class__": 2'),
    "a temperature made of items": '{"temperature": {"value": 1, "origin": "rule", "items": 1e999}}',
    "another kind of value": '{"value": "label"}',
    "a kind that is none": '{"value": "pickle"}',
    "a compatibility that is a list": '{"compatibility": ["cosine"]}',
    "a compatibility that is none": '{"compatibility": "os.system"}',
    "an embedder that is a module": embedder("os:system"),
    "an embedder that is a path": embedder("../elsewhere"),
    "an embedder with escapes": embedder("./\x1b[2J\x1b]0;owned\x07"),
    "an embedder of width 2^60": embedder("static", 1 << 60),
    "an embedder that is a number": '{"embedder": 7}',
    "a lone surrogate": '{"x": "\\ud800"}',
}.items():
    add(f"settings: {name}", forged("generations", settings=settings))

# Items, contents, labels, deaths

add("a row number beyond all", forged("items_1", "row = 3", row=1 << 40))
add("a row number below zero", forged("items_1", "row = 3", row=-3))
add("an item born later", forged("items_1", "row = 3", born=HUGE))
add("an item that died before it was born", forged("items_1", "row = 3", died=0))
add("all ordinals alike", sql("UPDATE items_1 SET ordinal = 7"))
add("a key that is a blob", forged("items_1", "row = 3", key=b"item 3"))
add("a key with a NUL", forged("items_1", "row = 3", key="item\x003"))
add("a key that is empty", forged("items_1", "row = 3", key=""))
add("a key that begins with #", forged("items_1", "row = 3", key="#2"))
add("a key with escapes", forged("items_1", "row = 3", key="\x1b[2J\x1b]0;owned\x07\x9b31m"))
add("a key that turns around", forged("items_1", "row = 3", key="a\u202eb\u2066c"))
add("a key of many lines", forged("items_1", "row = 3", key="one\ntwo\r\nthree\u2028"))
add("a key of ten million letters", forged("items_1", "row = 3", key="k" * 10_000_000))
add("a key that is no UTF-8", sql("UPDATE items_1 SET key = CAST(x'ff80fe' AS TEXT) WHERE row = 3"))
add("the same item twice", forged("items_1", "row = 3", item=1))
add("an item number at its end", forged("items_1", "row = 3", item=HUGE))
for name, payload in {
    "a hundred thousand brackets": "[" * 100_000,
    "not closed": "{",
    "NaN": "NaN",
    "nothing": "",
    "deep objects": '{"n":' * 50_000 + "1" + "}" * 50_000,
    "many digits": '{"n": 1' + "0" * 5000 + "}",
    "an infinite number": '{"n": 1e999}',
    "a name twice": '{"n": 1, "n": "x"}',
    "escapes": '{"n": "\\u001b[2J\\u009b\\u202e"}',
    "raw escapes": '{"n": "\x1b]0;owned\x07"}',
    "a NUL": '{"n": "\\u0000"}',
    "a lone surrogate": '{"n": "\\ud800"}',
}.items():
    add(f"a payload: {name}", lambda folder, payload=payload: carried(folder / "s", "item 3", payload=payload))
add(
    "a payload that is a blob",
    lambda folder: (
        carried(folder / "s", "item 3", payload="x")
        or sql("UPDATE contents SET payload = x'00ff' WHERE item = 4")(folder)
    ),
)
add("a text value that is missing", lambda folder: carried(folder / "s", "item 3"), "text")
add(
    "a text value of escapes",
    lambda folder: carried(folder / "s", "item 3", value="\x1b]0;owned\x07\x1b[2J\x9bx"),
    "text",
)
add(
    "label codes beyond all", lambda folder: cells(folder / "s", "values", lambda x: x.fill(0x7FFFFFFF), "<i4"), "label"
)
add("label codes below zero", lambda folder: cells(folder / "s", "values", lambda x: x.fill(-1), "<i4"), "label")
add(
    "one label code beyond the last",
    lambda folder: cells(folder / "s", "values", lambda x: x.__setitem__(4, 6), "<i4"),
    "label",
)
add(
    "a label twice",
    lambda folder: sql(
        "UPDATE sqlite_master SET sql = replace(sql, 'UNIQUE (label)', 'CHECK (1)') WHERE name = 'labels'"
    )(folder),
    "label",
)
add("a label count of minus one", forged("labels", "code = 1", count=-1), "label")
add("a label count that is a text", forged("labels", "code = 1", count="x"), "label")
add("a label count at its end", forged("labels", "code = 1", count=HUGE), "label")
add("a label that is a blob", forged("labels", "code = 1", label=b"\xff\x00"), "label")
add("a label of escapes", forged("labels", "code = 1", label="\x1b]0;owned\x07"), "label")
add("a label code that is missing", sql("DELETE FROM labels WHERE code = 2"), "label")
add("labels that begin at a million", forged("labels", "code = 0", code=1_000_000), "label")
for name, changes in {
    "too short": {"bitmap": b"\x01"},
    "too long": {"bitmap": bytes(1 << 20)},
    "all dead": {"bitmap": b"\xff" * 8192},
    "nobody dead": {"bitmap": bytes(8192)},
    "a text": {"bitmap": "x" * 8192},
    "of another block": {"block": 1},
    "of a block below zero": {"block": -1},
    "of a block beyond all": {"block": 1 << 62},
    "changed later": {"changed": HUGE},
    "changed at a text": {"changed": "x"},
}.items():
    add(
        f"a bitmap: {name}",
        forged("deaths", **changes),
        refused=None if "changed" in changes or name == "changed later" else True,
    )
