"""Ways to alter a closed store as somebody would who knows how it is made: checksums and all.

Pages of SQLite are written by hand where SQL would not do it.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from softkv.storage.catalog.roster import content_seal
from softkv.storage.catalog.tables import item_seal, seal

CATALOG = "catalog.sqlite"
GENERATION = "generation-000001"
PAGE = 4096
WINDOW = 1 << 20


@contextmanager
def catalog(store: Path) -> Iterator[sqlite3.Connection]:
    """The catalog of a closed store, with everything allowed."""
    connection = sqlite3.connect(store / CATALOG)
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("PRAGMA ignore_check_constraints=ON")
    try:
        yield connection
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def sql(*statements: str) -> Callable[[Path], None]:
    """A case that runs these on the catalog."""

    def make(folder: Path) -> None:
        with catalog(folder / "s") as connection:
            for statement in statements:
                connection.execute(statement)

    return make


def forged(table: str, where: str = "1", /, **changes: Any) -> Callable[[Path], None]:
    """A case that alters rows of a table, and brings their checksums in line."""
    return lambda folder: forge(folder / "s", table, where, **changes)


def forge(path: Path, table: str, where: str = "1", /, **changes: Any) -> None:
    """Alter rows of a table, and bring their checksums in line."""
    with catalog(path) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table} WHERE {where}")]
        assert rows, f"no row of {table} where {where}"
        connection.execute(f"DELETE FROM {table} WHERE {where}")
        for row in rows:
            row |= changes
            if "seal" in row and "seal" not in changes:
                row["seal"] = _seal(table, row, connection)
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row.values()))


def _seal(table: str, row: dict[str, Any], connection: sqlite3.Connection) -> int:
    if not table.startswith("items_"):
        return seal(*(value for name, value in row.items() if name not in ("id", "seal")))
    carried = connection.execute("SELECT text, value, payload FROM contents WHERE item = ?", (row["item"],)).fetchone()
    key = row["key"].encode() if isinstance(row["key"], str) else row["key"]
    numbers = [row[name] if isinstance(row[name], int) else 0 for name in ("item", "ordinal", "born")]
    found = item_seal(*numbers, key, content_seal(tuple(carried) if carried else (None, None, None)))
    return found + sum(row[name] for name in ("row", "died") if isinstance(row[name], int))


def carried(store: Path, key: str, **content: Any) -> None:
    """Alter what an item carries along, with its checksum."""
    with catalog(store) as connection:
        (item,) = connection.execute("SELECT item FROM items_1 WHERE key = ? AND died IS NULL", (key,)).fetchone()
        connection.execute("DELETE FROM contents WHERE item = ?", (item,))
        row = {"text": None, "value": None, "payload": None} | content
        connection.execute("INSERT INTO contents VALUES (?, ?, ?, ?)", (item, *row.values()))
    forge(store, "items_1", f"item = {item}")


def settle(store: Path, role: str = "keys", generation: int = 1) -> None:
    """Bring the checksums of an arena in line with what is in it; every row is expected to be in one window."""
    from zlib import crc32

    (path,) = (store / f"generation-{generation:06d}").glob(f"{role}.*")
    with catalog(store) as connection:
        (rows,) = connection.execute("SELECT rows FROM generations WHERE generation = ?", (generation,)).fetchone()
    content = path.read_bytes()[PAGE:]
    width = len(content) // max(1, rows) if rows * 64 > len(content) else 0
    forge(
        store, "generations", f"generation = {generation}", **{f"{role}_tail": crc32(content[: rows * width or None])}
    )


def cells(store: Path, role: str, change: Callable[[Any], None], dtype: str = "<f4") -> None:
    """Alter the numbers of an arena in place, and bring its checksum in line."""
    (path,) = (store / GENERATION).glob(f"{role}.*")
    content = bytearray(path.read_bytes())
    numbers = np.frombuffer(content, dtype, offset=PAGE)
    change(numbers)
    path.write_bytes(content)
    settle(store, role)


def poke(path: Path, offset: int, content: bytes) -> None:
    """Write bytes into a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def root_of(store: Path, name: str) -> int:
    """The page on which a table or index begins."""
    with catalog(store) as connection:
        if name == "sqlite_master":
            return 1
        return int(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0])


def page_offset(page: int) -> int:
    """Where a page begins."""
    return (page - 1) * PAGE


def laughing(store: Path, table: str, *, levels: int = 6, fan: int = 300) -> None:
    """Let a table say that it has the same leaf fan ** levels times: a few pages that take for ever to read."""
    root, path = root_of(store, table), store / CATALOG
    with open(path, "rb") as file:
        content = bytearray(file.read())
    head = 100 if root == 1 else 0
    leaf = bytearray(content[page_offset(root) : page_offset(root) + PAGE])
    if leaf[head] != 13:
        raise ValueError(f"{table} is more than a leaf")
    moved = bytearray(PAGE)
    moved[:8] = leaf[head : head + 8]
    count = struct.unpack(">H", leaf[head + 3 : head + 5])[0]
    moved[8 : 8 + 2 * count] = leaf[head + 8 : head + 8 + 2 * count]
    moved[start:PAGE] = leaf[start:PAGE] if (start := struct.unpack(">H", leaf[head + 5 : head + 7])[0]) else b""
    content += moved
    last = len(content) // PAGE
    for level in range(levels):
        at = root if level == levels - 1 else last + 1
        inner = interior(last, fan if at != 1 else min(fan, 200), 100 if at == 1 else 0)
        if at == root:
            content[page_offset(root) + head : page_offset(root) + PAGE] = inner[head:]
        else:
            content += inner
            last += 1
    content[28:32] = struct.pack(">I", len(content) // PAGE)
    content[92:96] = content[24:28]
    path.write_bytes(content)


def interior(child: int, fan: int, head: int = 0) -> bytes:
    """A page of a table that has the same child many times."""
    page = bytearray(PAGE)
    places = [PAGE - 5 * (number + 1) for number in range(fan)]
    page[head : head + 12] = struct.pack(">BHHHBI", 5, 0, fan, places[-1], 0, child)
    for number, place in enumerate(places):
        page[place : place + 5] = struct.pack(">I", child) + b"\x01"
        page[head + 12 + 2 * number : head + 14 + 2 * number] = struct.pack(">H", place)
    return bytes(page)


def claiming(store: Path, table: str, claimed: int, *, sparse: int = 0) -> None:
    """Let the first record of a table say that its payload has so many bytes, on overflow pages that go in a circle."""
    root, path = root_of(store, table), store / CATALOG
    content = bytearray(path.read_bytes())
    base = page_offset(root)
    size = varint(claimed)
    header = varint(1) + varint(12 + 0)  # replaced below: one huge text
    kind = varint(13 + 2 * (claimed - 20))
    header = bytes([1 + 1 + len(kind) + 2]) + b"\x00" + kind + b"\x00\x00"
    local = _local(claimed)
    last = len(content) // PAGE + 1
    cell = size + b"\x01" + (header + b"x" * local)[:local] + struct.pack(">I", last)
    place = PAGE - len(cell)
    page = bytearray(PAGE)
    page[:8] = struct.pack(">BHHHB", 13, 0, 1, place, 0)
    page[8:10] = struct.pack(">H", place)
    page[place:] = cell
    content[base : base + PAGE] = page
    content += struct.pack(">I", last) + b"y" * (PAGE - 4)  # its next page is itself
    pages = max(len(content) // PAGE, sparse // PAGE)
    content[28:32] = struct.pack(">I", pages)
    content[92:96] = content[24:28]
    path.write_bytes(content)
    if sparse:
        with open(path, "r+b") as file:
            file.truncate(pages * PAGE)


def _local(payload: int) -> int:
    usable = PAGE
    most, least = usable - 35, (usable - 12) * 32 // 255 - 23
    local = least + (payload - least) % (usable - 4)
    return local if local <= most else least


def varint(number: int) -> bytes:
    """An integer as SQLite packs it."""
    pieces = [number & 0x7F]
    while number := number >> 7:
        pieces.append(number & 0x7F | 0x80)
    return bytes(reversed(pieces))


def sparse(path: Path, size: int) -> None:
    """A file that says it is this long, and has nothing in it."""
    with open(path, "ab") as file:
        file.truncate(size)
