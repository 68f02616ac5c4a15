"""Catalogs whose pages lie or never end, or that are no files, or another store's."""

import os
import shutil
import socket
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.crash.hostile.catalogs import add, parts
from tests.crash.hostile.forging import (
    CATALOG,
    PAGE,
    catalog,
    claiming,
    laughing,
    page_offset,
    poke,
    root_of,
    sparse,
)

# Pages

add("a header that looks encrypted", lambda folder: poke(folder / "s" / CATALOG, 0, os.urandom(100)), refused=True)
add("a header of zeros", lambda folder: poke(folder / "s" / CATALOG, 0, bytes(100)), refused=True)
add(
    "all of it random",
    lambda folder: (folder / "s" / CATALOG).write_bytes(np.random.default_rng(0).bytes(40_960)),
    refused=True,
)
add("nothing in it", lambda folder: (folder / "s" / CATALOG).write_bytes(b""), refused=True)
add("a page size of 64 KiB", lambda folder: poke(folder / "s" / CATALOG, 16, b"\x00\x01"), refused=True)
add("a page size of one", lambda folder: poke(folder / "s" / CATALOG, 16, b"\x00\x02"), refused=True)
add("reserved bytes that leave nothing", lambda folder: poke(folder / "s" / CATALOG, 20, b"\xff"), refused=None)
add("a file format of 99", lambda folder: poke(folder / "s" / CATALOG, 18, b"\x63\x63"), refused=None)
add("four billion pages", lambda folder: poke(folder / "s" / CATALOG, 28, b"\xff\xff\xff\xfe"), refused=True)
add("a schema of format 99", lambda folder: poke(folder / "s" / CATALOG, 44, b"\x00\x00\x00\x63"), refused=True)
add("a text encoding of seven", lambda folder: poke(folder / "s" / CATALOG, 56, b"\x00\x00\x00\x07"), refused=True)
add("UTF-16 where there is UTF-8", lambda folder: poke(folder / "s" / CATALOG, 56, b"\x00\x00\x00\x02"), refused=True)
add("a user version below zero", lambda folder: poke(folder / "s" / CATALOG, 60, b"\xff\xff\xff\xff"), refused=True)
add("a freelist that goes in a circle", lambda folder: _freelist(folder / "s"))
add("a table that is its own child", lambda folder: _own_child(folder / "s", "contents"))
add("a schema that is its own child", lambda folder: _own_child(folder / "s", "sqlite_master"), refused=True)
add("state that is its own child", lambda folder: _own_child(folder / "s", "state"), refused=True)
for table, template in {
    "labels": "label",
    "contents": "number",
    "generations": "number",
    "items_1": "number",
    "deaths": "number",
}.items():
    add(f"{table} that never end", lambda folder, table=table: laughing(folder / "s", table), template, heavy=True)
add(
    "derived parts that never end",
    lambda folder: parts([(1, "lists", 1, b"x"), (1, "lists", 2, b"y")])(folder) or laughing(folder / "s", "derived"),
    heavy=True,
)
add("state that never ends", lambda folder: laughing(folder / "s", "state"), refused=True)
add("a schema that never ends", lambda folder: laughing(folder / "s", "sqlite_master"))
for claimed in (1 << 30, 900_000_000, (1 << 31) - 1, 1 << 40):
    add(f"a payload that claims {claimed:,} bytes", lambda folder, n=claimed: claiming(folder / "s", "contents", n))
    add(
        f"settings that claim {claimed:,} bytes",
        lambda folder, n=claimed: claiming(folder / "s", "state", n),
        refused=True,
    )
add(
    "a payload of 900 MB in a file of a terabyte",
    lambda folder: claiming(folder / "s", "contents", 900_000_000, sparse=1 << 40),
)
add(
    "state of 900 MB in a file of a terabyte",
    lambda folder: claiming(folder / "s", "state", 900_000_000, sparse=1 << 40),
    refused=True,
)
add(
    "labels of 900 MB in a file of a terabyte",
    lambda folder: claiming(folder / "s", "labels", 900_000_000, sparse=1 << 40),
    "label",
)
add(
    "a cell that points outside of its page",
    lambda folder: poke(folder / "s" / CATALOG, page_offset(root_of(folder / "s", "state")) + 8, b"\xff\xff"),
    refused=True,
)
add(
    "a page that has sixty thousand cells",
    lambda folder: poke(folder / "s" / CATALOG, page_offset(root_of(folder / "s", "items_1")) + 3, b"\xea\x60"),
)
add(
    "a page of no type",
    lambda folder: poke(folder / "s" / CATALOG, page_offset(root_of(folder / "s", "items_1")), b"\x07"),
)
add("an index that names other rows", lambda folder: _wrong_index(folder / "s"))


def _freelist(store: Path) -> None:
    path = store / CATALOG
    pages = path.stat().st_size // PAGE
    with open(path, "ab") as file:
        file.write(struct.pack(">II", pages + 1, 0) + bytes(PAGE - 8))
    poke(path, 28, struct.pack(">III", pages + 1, pages + 1, 1 << 20))
    with open(path, "rb") as file:
        counter = file.read(28)[24:28]
    poke(path, 92, counter)


def _own_child(store: Path, table: str) -> None:
    root = root_of(store, table)
    head = 100 if root == 1 else 0
    page = bytearray(PAGE - head)
    page[:12] = struct.pack(">BHHHBI", 5, 0, 0, PAGE, 0, root)
    poke(store / CATALOG, page_offset(root) + head, bytes(page))


def _wrong_index(store: Path) -> None:
    """The index finds one item under the key of another: its page is that of a table where they had changed places."""
    swapped = "CASE key WHEN 'item 3' THEN 'item 4' WHEN 'item 4' THEN 'item 3' ELSE key END"
    with catalog(store) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'items_1_live'").fetchone()
        connection.execute(f"CREATE TABLE other AS SELECT row, {swapped} AS key FROM items_1 WHERE died IS NULL")
        connection.execute("CREATE TABLE wrong (row INTEGER PRIMARY KEY, key TEXT)")
        connection.execute("INSERT INTO wrong SELECT row, key FROM other WHERE key IS NOT NULL")
        connection.execute("CREATE UNIQUE INDEX wrong_key ON wrong (key)")
        (other,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'wrong_key'").fetchone()
    kept = (store / CATALOG).read_bytes()[page_offset(other) : page_offset(other) + PAGE]
    with catalog(store) as connection:
        connection.execute("DROP TABLE other")
        connection.execute("DROP TABLE wrong")
    poke(store / CATALOG, page_offset(root), kept)


# What is no file at all, or not this store's


def placed(make: Callable[[Path, Path], Any]) -> Callable[[Path], None]:
    """A case in which the catalog is replaced by something that `make` puts there."""

    def work(folder: Path) -> None:
        place = folder / "s" / CATALOG
        shutil.move(place, folder / "elsewhere" / "kept")
        make(place, folder / "elsewhere")

    return work


add("a directory", placed(lambda place, _: place.mkdir()), refused=True)
add("a link to itself", placed(lambda place, _: place.symlink_to(place)), refused=True)
add("a link to the catalog", placed(lambda place, elsewhere: place.symlink_to(elsewhere / "kept")), refused=True)
add("a link to nothing", placed(lambda place, _: place.symlink_to("/nowhere/at/all")), refused=True)
add("a pipe", placed(lambda place, _: os.mkfifo(place)), refused=True)
add("a socket", placed(lambda place, _: _socket(place)), refused=True)
add("a link to /dev/zero", placed(lambda place, _: place.symlink_to("/dev/zero")), refused=True)
add("a device", placed(lambda place, _: os.mknod(place, 0o20666, os.makedev(1, 5))), refused=True)
add("eight terabytes of nothing", placed(lambda place, _: sparse(place, 8 << 40)), refused=True)
add("a hard link to another's file", placed(lambda place, elsewhere: os.link(elsewhere / "kept", place)))
add(
    "the catalog of another store",
    placed(lambda place, elsewhere: shutil.copy(elsewhere / "other" / CATALOG, place)),
    "vector",
    True,
)
add("a log of another store", lambda folder: _log(folder, "elsewhere/other"))
add("a log of a lie", lambda folder: (folder / "s" / f"{CATALOG}-wal").write_bytes(b"7\x7f\x06\x82" + bytes(100_000)))
add(
    "a log of random bytes",
    lambda folder: (folder / "s" / f"{CATALOG}-wal").write_bytes(np.random.default_rng(1).bytes(100_000)),
)
add("a log of eight terabytes", lambda folder: sparse(folder / "s" / f"{CATALOG}-wal", 8 << 40))
add("a log that is a pipe", lambda folder: os.mkfifo(folder / "s" / f"{CATALOG}-wal"), refused=True)
add("shared memory that is a pipe", lambda folder: os.mkfifo(folder / "s" / f"{CATALOG}-shm"), refused=True)
add(
    "shared memory of random bytes",
    lambda folder: (folder / "s" / f"{CATALOG}-shm").write_bytes(np.random.default_rng(2).bytes(32_768)),
)
add("shared memory of eight terabytes", lambda folder: sparse(folder / "s" / f"{CATALOG}-shm", 8 << 40))
add("a rollback journal beside it", lambda folder: _journal(folder))
add("a rollback journal that is a pipe", lambda folder: os.mkfifo(folder / "s" / f"{CATALOG}-journal"))
add(
    "a rollback journal that is a link",
    lambda folder: (folder / "s" / f"{CATALOG}-journal").symlink_to(folder / "elsewhere" / "victim"),
)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the paths of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def _log(folder: Path, other: str) -> None:
    """The log of another store that was not closed."""
    shutil.copytree(folder / other, folder / "elsewhere" / "open")
    connection = sqlite3.connect(folder / "elsewhere" / "open" / CATALOG)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("UPDATE state SET number = number + 1")
    connection.commit()
    shutil.copy(folder / "elsewhere" / "open" / f"{CATALOG}-wal", folder / "s" / f"{CATALOG}-wal")
    connection.close()


def _journal(folder: Path) -> None:
    """A hot journal of another database, which SQLite would roll back into this one."""
    head = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + struct.pack(">IIIII", 1, 12345, 1, 512, PAGE)
    page = np.random.default_rng(3).bytes(PAGE)
    check = (12345 + sum(page[i] for i in range(PAGE - 200, 0, -200))) & 0xFFFFFFFF
    (folder / "s" / f"{CATALOG}-journal").write_bytes(
        head.ljust(512, b"\0") + struct.pack(">I", 1) + page + struct.pack(">I", check)
    )
    poke(folder / "s" / CATALOG, 18, b"\x01\x01")  # no write-ahead log, so that journals count
