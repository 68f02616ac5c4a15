"""Small stores for tests: what they hold, what lies in their directories, and ways to hurt them behind their backs."""

import json
import os
import sqlite3
import subprocess
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.storage import Store
from softkv.storage.catalog.tables import seal

FRUIT = {"apple": 0.5, "pear": 2.0, "quince": -1.25}
CATALOG = "catalog.sqlite"
GENERATION = "generation-000001"


def vectors(count: int, width: int = 4, seed: int = 0) -> np.ndarray:
    """Random key vectors, the same ones every time."""
    return np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)


def fruit(path: Path) -> Store:
    """A new store of three numbers under three keys, each with a payload, open for writing."""
    store = Store.open(path, "c")
    store.append(vectors(3), list(FRUIT.values()), keys=list(FRUIT), payloads=[{"name": key} for key in FRUIT])
    return store


def closed_fruit(path: Path) -> Path:
    """The same, closed."""
    fruit(path).close()
    return path


def as_format(path: Path, number: int) -> Path:
    """Bring a closed store, without complete windows or with old ones, back to an older format."""
    tables = {3: ("granules", "derived", "batches", "secret"), 2: ("indexes",)}
    connection = sqlite3.connect(path / CATALOG, isolation_level=None)
    connection.execute("BEGIN")
    for later in range(number + 1, 4):
        for table in tables[later]:
            connection.execute(f"DROP TABLE {table}")
    connection.execute(f"PRAGMA user_version={number}")
    connection.execute("COMMIT")
    connection.close()
    return path


def wide(path: Path, rows: int = 24, width: int = 1 << 17, kind: str = "number") -> Store:
    """A new store whose keys fill several windows: 524,288 bytes a row, two rows to a window."""
    store = Store.open(path, "c")
    values = vectors(rows, width, 1) if kind == "vector" else [float(i) for i in range(rows)]
    store.append(vectors(rows, width), values, keys=[f"key {i}" for i in range(rows)])
    return store


def contents(store: Any) -> dict[str, tuple[Any, ...]]:
    """Everything that a store or a snapshot says of its live items, by name, in its order."""
    found = {}
    for name in store.keys():  # noqa: SIM118 - a store is not a mapping
        item = store.get(name)
        value = item.value.tobytes() if isinstance(item.value, np.ndarray) else item.value
        found[name] = (item.number, item.key, item.vector.tobytes(), value, item.payload, item.text)
    return found


def footprint(directory: Path) -> dict[str, object]:
    """What lies in a directory: bytes, or for the files of SQLite, which others must not open, size and time."""
    found: dict[str, object] = {}
    for path in sorted(Path(directory).rglob("*")):
        name = str(path.relative_to(directory))
        if name.endswith("-shm"):
            continue
        status = path.lstat()
        if path.is_file() and not name.startswith(CATALOG):
            found[name] = path.read_bytes()
        else:
            found[name] = (status.st_size, status.st_mtime_ns) if path.is_file() else "directory"
    return found


def bytes_of(directory: Path) -> dict[str, bytes]:
    """The bytes of every file under a directory that nobody has open."""
    files = (path for path in Path(directory).rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file around."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def sql(directory: Path, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    """Run SQL on the catalog of a closed store, as somebody would who knows nothing of checksums."""
    connection = sqlite3.connect(directory / CATALOG)
    try:
        rows = connection.execute(statement, arguments).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


@contextmanager
def without_constraints(directory: Path, table: str) -> Iterator[None]:
    """For a while a table of a closed store takes NULL in every column."""
    (definition,) = sql(directory, "SELECT sql FROM sqlite_master WHERE name = ?", table)[0]
    _define(directory, table, definition.replace(" NOT NULL", ""))
    try:
        yield
    finally:
        _define(directory, table, definition)


def _define(directory: Path, table: str, definition: str) -> None:
    connection = sqlite3.connect(directory / CATALOG)
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (definition, table))
    connection.commit()
    connection.close()


def forge(directory: Path, table: str, **changes: object) -> None:
    """Alter the only row of `state` or `generations`, with a checksum that is right, and nothing to compare it with."""
    (directory / "LOCK").write_bytes(b"")
    connection = sqlite3.connect(directory / CATALOG)
    connection.row_factory = sqlite3.Row
    row = {**dict(connection.execute(f"SELECT * FROM {table}").fetchone()), **changes}
    content = [value for name, value in row.items() if name not in ("id", "seal")]
    row["seal"] = seal(*content)
    connection.execute(f"DELETE FROM {table}")
    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    connection.commit()
    connection.close()


def names_by_row(snapshot: Any, rows: Any) -> bytes:
    """Who lies in these rows, dead or alive: an index file that proves itself."""
    return json.dumps([item.name for item in snapshot.items(rows)]).encode()


def wrong_index(snapshot: Any) -> list[str]:
    """What is wrong with the index file that holds the names by row; nothing when there is none, for it is a cache."""
    found = snapshot.index("names")
    if found is None:
        return []
    if found.rows > snapshot.rows or found.commit > snapshot.commit:
        return [f"an index of {found.rows} rows at commit {found.commit} for {snapshot.rows} at {snapshot.commit}"]
    content = bytes(found.read())
    wanted = names_by_row(snapshot, range(found.rows))
    return [] if content == wanted else [f"the index says {content[:200]!r} instead of {wanted[:200]!r}"]


def copied(source: Path, target: Path) -> Path:
    """A copy of a store as it lies on the disk, even one that is being written; made by another process."""
    subprocess.run(["cp", "-R", source, target], check=True)
    return target


def in_child(work: Callable[[], None], *, unprivileged: bool = False) -> None:
    """Do this in a forked child, for one without the rights of root; what it raises fails the test."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of BLAS; the child uses none
        child = os.fork()
    if child == 0:
        status = 1
        try:
            if unprivileged and os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            work()
            status = 0
        except BaseException:
            os.write(send, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, told


@contextmanager
def mode_of(path: Path, mode: int) -> Iterator[None]:
    """A directory with these permissions for a while."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def with_secret(directory: Path, content: bytes) -> None:
    """Give a closed store this secret, so that what is drawn for it is the same every time."""
    sql(directory, "UPDATE secret SET content = ?, seal = ?", content, seal(content))


def uncertain(store: Store, patch: pytest.MonkeyPatch, *, happened: bool) -> None:
    """Let the driver of a store report an error at every commit, whether it was done or not."""

    class Refusing:
        """The driver's connection, with an error at COMMIT."""

        def __init__(self, real: sqlite3.Connection) -> None:
            self.real = real

        def execute(self, statement: str, *arguments: Any) -> Any:
            """Report an error at the commit, whether it was done or not."""
            if statement == "COMMIT":
                if happened:
                    self.real.execute(statement)
                raise sqlite3.OperationalError("disk I/O error")
            return self.real.execute(statement, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    connection = store._catalog.connection
    patch.setattr(connection, "_driver", Refusing(connection._driver))
