"""Statements that would never end are ended; those that merely take long are not, and an interrupt stays one."""

import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from softkv.errors import StoreDamaged
from softkv.storage.catalog import patience
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.patience import Endless

FOR_EVER = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def connection(tmp_path: Path) -> Connection:
    """A connection to a small catalog."""
    found = Connection(str(tmp_path / "c"), write=True, create=True)
    found.run("CREATE TABLE numbers (x INTEGER)")
    return found


def test_what_never_ends_is_ended(connection: Connection) -> None:
    """A statement that never ends is ended, and the connection is as good as before."""
    with pytest.raises(Endless, match="more steps than a catalog of its size can need"):
        connection.rows(FOR_EVER)
    assert issubclass(Endless, StoreDamaged)
    assert connection.value("SELECT 7") == 7
    connection.close()


def test_every_statement_has_its_own_steps(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of statements may have come before."""
    monkeypatch.setattr(patience, "FEWEST", 2 * patience.STEPS)
    for _ in range(30):
        connection.rows(FOR_EVER.replace("FROM n)", "FROM n WHERE x < 60000)"))
    connection.close()


def test_long_lists_may_take_long(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked, and what is written, counts as well as the catalog."""
    monkeypatch.setattr(patience, "FEWEST", patience.STEPS)
    asked = "[" + ",".join(["1"] * 300_000) + "]"
    listed = "SELECT count(*) FROM json_each(?) AS a JOIN (SELECT 1 UNION SELECT 2 UNION SELECT 3)"
    assert connection.value(listed, (asked,)) == 900_000
    with connection.writing():
        assert (
            connection.run_many("INSERT INTO numbers VALUES (?)", [(number,) for number in range(200_000)]) == 200_000
        )
    connection.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot tell SQLite how long a field may be")
def test_no_field_is_longer_than_any_that_is_written(connection: Connection) -> None:
    """A gigabyte of zeros costs nothing to say."""
    with pytest.raises(StoreDamaged, match="too big"):
        connection.rows("SELECT zeroblob(900000000)")
    assert len(connection.value("SELECT zeroblob(40000000)")) == 40_000_000
    connection.close()


def test_an_interrupt_in_the_middle_stays_one(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver swallows what is raised while it asks whether to go on."""
    monkeypatch.setattr(patience, "FEWEST", 1 << 62)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            connection.rows(FOR_EVER)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    connection.close()


def test_memory_that_is_not_there_is_an_error_of_ours(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has an error of Python's for it."""

    def full(*_: object) -> None:
        raise MemoryError

    connection._driver.create_function("full", 0, full)
    with pytest.raises(StoreDamaged):  # an error in a function is one of SQL
        connection.rows("SELECT full()")
    monkeypatch.setattr(connection._patience, "begin", full)
    with pytest.raises(Exception, match="not enough of it"):
        connection.rows("SELECT 1")
    monkeypatch.undo()
    connection.close()


def test_a_journal_of_another_program_is_not_rolled_back(tmp_path: Path) -> None:
    """SQLite would write what stands in it over the catalog."""
    Connection(str(tmp_path / "c"), write=True, create=True).close()
    sqlite3.connect(tmp_path / "c").close()
    (tmp_path / "c-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    with pytest.raises(StoreDamaged, match="journal of another program"):
        Connection(str(tmp_path / "c"), write=True)
