"""The rules under which SQLite is used."""

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from softkv.errors import (
    AccessRefused,
    CommitUncertain,
    HandleClosed,
    NotAStore,
    StorageFailed,
    StorageFull,
    StoreDamaged,
    StoreError,
    StoreLocked,
)
from softkv.storage.catalog.connection import Connection, application_of, translated


def opened(path: Path) -> Connection:
    """A writing connection to a new file with one table."""
    connection = Connection(str(path), write=True, create=True)
    connection.settle_writer()
    with connection.writing():
        connection.run("CREATE TABLE numbers (number INTEGER)")
    return connection


def numbers(connection: Connection) -> list[int]:
    """What is in the table."""
    return [number for (number,) in connection.rows("SELECT number FROM numbers ORDER BY number")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database or disk is full", StorageFull),
        ("attempt to write a readonly database", AccessRefused),
        ("database is locked", StoreLocked),
        ("unable to open database file", AccessRefused),
        ("disk I/O error", StorageFailed),
        ("database disk image is malformed", StoreDamaged),
        ("file is not a database", StoreDamaged),
        ("no such column: key", StoreDamaged),
    ],
)
def test_errors_of_sqlite_become_ours(text: str, kind: type[StoreError]) -> None:
    """What is not the fault of the disk or of others is damage."""
    assert type(translated(sqlite3.OperationalError(text), "reading")) is kind


def test_a_writer_has_the_settings_of_the_design(tmp_path: Path) -> None:
    """WAL, synchronous FULL, five seconds of patience, nothing trusted in the schema, no memory map."""
    connection = opened(tmp_path / "c")
    wanted = {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 5_000, "trusted_schema": 0, "mmap_size": 0}
    assert {name: connection.value(f"PRAGMA {name}") for name in wanted} == wanted
    connection.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    """It can write no rows and no tables."""
    opened(tmp_path / "c").close()
    reader = Connection(str(tmp_path / "c"), write=False)
    for statement in ("INSERT INTO numbers VALUES (1)", "CREATE TABLE more (number)", "DROP TABLE numbers"):
        with pytest.raises(AccessRefused, match="readonly"):
            reader.run(statement)
    reader.close()


def test_a_setting_that_does_not_hold_is_an_error(tmp_path: Path) -> None:
    """WAL in memory does not exist, so the file must not be used as if it had it."""
    connection = Connection(str(tmp_path / "c"), write=True, create=True)
    with connection.reading(), pytest.raises(StoreError, match=r"journal_mode|within a transaction"):
        connection.settle_writer()
    connection.close()


def test_a_reader_sees_one_commit_in_a_transaction(tmp_path: Path) -> None:
    """Two questions with a commit between them have answers of the same moment."""
    writer, reader = opened(tmp_path / "c"), Connection(str(tmp_path / "c"), write=False)
    with reader.reading():
        assert numbers(reader) == []
        with writer.writing():
            writer.run("INSERT INTO numbers VALUES (1)")
        assert numbers(reader) == []
    assert numbers(reader) == [1]
    reader.close()
    writer.close()


def test_a_transaction_inside_another_is_the_same_one(tmp_path: Path) -> None:
    """The inner end does not end the outer."""
    writer, reader = opened(tmp_path / "c"), Connection(str(tmp_path / "c"), write=False)
    with reader.reading():
        with reader.reading():
            assert numbers(reader) == []
        with writer.writing():
            writer.run("INSERT INTO numbers VALUES (1)")
        assert numbers(reader) == []
    reader.close()
    writer.close()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    """Anything may have ended it."""
    connection = opened(tmp_path / "c")

    def fail() -> None:
        raise error

    with pytest.raises(error), connection.writing():  # noqa: PT012 - the row must be there when it fails
        connection.run("INSERT INTO numbers VALUES (1)")
        fail()
    assert numbers(connection) == []
    connection.close()


@pytest.mark.parametrize(("before", "left"), [(True, []), (False, [1])])
def test_an_interrupt_around_the_commit_leaves_no_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool, left: list[int]
) -> None:
    """Just before COMMIT nothing has happened, just after it all has; either way others may write."""
    connection, commit = opened(tmp_path / "c"), Connection._commit

    def interrupted(self: Connection) -> None:
        if not before:
            commit(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "_commit", interrupted)
    with pytest.raises(KeyboardInterrupt), connection.writing():
        connection.run("INSERT INTO numbers VALUES (1)")
    monkeypatch.undo()
    with connection.reading():
        assert numbers(connection) == left
    other = Connection(str(tmp_path / "c"), write=True)
    with other.writing():
        other.run("INSERT INTO numbers VALUES (7)")
    assert numbers(connection) == [*left, 7]
    other.close()
    connection.close()


def test_a_commit_that_fails_is_uncertain(tmp_path: Path) -> None:
    """A deferred constraint is found at COMMIT; the message says where to look."""
    connection = opened(tmp_path / "c")
    connection.run("PRAGMA foreign_keys=ON")
    with connection.writing():
        connection.run("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.run("CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(CommitUncertain, match="commit number"), connection.writing():
        connection.run("INSERT INTO child VALUES (1)")
    connection.abandon()


def test_threads_take_turns_with_transactions(tmp_path: Path) -> None:
    """A thread that reads waits for the thread that writes, and never sees half of its work."""
    connection, seen, inside = opened(tmp_path / "c"), [], threading.Event()

    def read() -> None:
        inside.wait(10)
        with connection.reading():
            seen.extend(numbers(connection))

    thread = threading.Thread(target=read)
    thread.start()
    with connection.writing():
        connection.run("INSERT INTO numbers VALUES (1)")
        inside.set()
        connection.run("INSERT INTO numbers VALUES (2)")
    thread.join()
    assert seen == [1, 2]
    connection.close()


def test_a_closed_connection_says_so(tmp_path: Path) -> None:
    """It is not taken for damage; closing twice is nothing."""
    connection = opened(tmp_path / "c")
    connection.close()
    connection.close()
    for use in (lambda: connection.rows("SELECT 1"), lambda: connection.reading().__enter__()):
        with pytest.raises(HandleClosed, match="closed"):
            use()


def test_integers_beyond_64_bits_are_an_error_of_ours(tmp_path: Path) -> None:
    """SQLite holds no larger ones."""
    connection = opened(tmp_path / "c")
    with pytest.raises(StoreError, match="too large"):
        connection.run("INSERT INTO numbers VALUES (?)", (1 << 64,))
    with pytest.raises(StoreError, match="too large"):
        connection.run_many("INSERT INTO numbers VALUES (?)", [(1 << 64,)])
    connection.close()


def test_a_message_that_is_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    """SQLite quotes the damaged schema, and the driver cannot decode what it quotes."""
    opened(tmp_path / "c").close()
    path = tmp_path / "c"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE numbers", b"CREATE TAB\xcce numbers"))
    with pytest.raises(StoreDamaged, match="what is left"):
        Connection(str(path), write=False).rows("SELECT * FROM numbers")


def test_a_data_version_changes_when_another_has_committed(tmp_path: Path) -> None:
    """Neither reading nor a commit of its own changes it."""
    writer, reader = opened(tmp_path / "c"), Connection(str(tmp_path / "c"), write=False)
    first = reader.data_version()
    assert reader.data_version() == first
    with writer.writing():
        writer.run("INSERT INTO numbers VALUES (1)")
    assert reader.data_version() != first
    reader.close()
    writer.close()


def test_closing_a_writer_leaves_one_file(tmp_path: Path) -> None:
    """The log is moved into the catalog, and goes."""
    opened(tmp_path / "c").close()
    assert os.listdir(tmp_path) == ["c"]


def test_an_abandoned_writer_writes_nothing_more(tmp_path: Path) -> None:
    """SQLite would checkpoint when the last connection closes; catalog and log stay as they are, byte for byte."""
    connection = opened(tmp_path / "c")
    sizes = [(name, (tmp_path / name).stat().st_mtime_ns) for name in ("c", "c-wal")]
    connection.abandon()
    assert [(name, (tmp_path / name).stat().st_mtime_ns) for name in ("c", "c-wal")] == sizes
    assert (tmp_path / "c-wal").stat().st_size > 0
    again = Connection(str(tmp_path / "c"), write=True)
    assert numbers(again) == []
    again.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_not_given_to_sqlite(tmp_path: Path, suffix: str, kind: str) -> None:
    """They lie in the place of the catalog, its log or its index."""
    opened(tmp_path / "real").close()
    if suffix:
        opened(tmp_path / "c").close()
    path = tmp_path / f"c{suffix}"
    if kind == "link":
        path.symlink_to(tmp_path / "real")
    else:
        os.mkfifo(path)
    for write in (False, True):
        with pytest.raises(NotAStore, match="not a regular file"):
            Connection(str(tmp_path / "c"), write=write)


def test_the_application_id_is_read_without_a_trace(tmp_path: Path) -> None:
    """No log, no index, no lock: also of a database whose log was left by a crash."""
    connection = opened(tmp_path / "c")
    connection.run("PRAGMA application_id=77")
    connection.close()
    before = sorted(os.listdir(tmp_path))
    assert application_of(str(tmp_path / "c")) == 77
    assert sorted(os.listdir(tmp_path)) == before


def test_the_application_id_of_no_database_is_damage(tmp_path: Path) -> None:
    """A text file under the name of the catalog."""
    (tmp_path / "c").write_text("hello " * 1_000)
    with pytest.raises(StoreDamaged, match="not a database"):
        application_of(str(tmp_path / "c"))
