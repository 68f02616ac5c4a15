"""One SQLite connection with the rules of the store: explicit transactions, verified settings, our own errors.

Statements are literals (catalog.py, roster.py), or composed by SQLAlchemy Core where they are assembled (searching.py),
and run on the driver's own connection: through an engine the same statement takes 21 µs instead of 5, and a pool would
have nothing to do, since a store has one writing connection.

Nothing but sqlite3 ever opens the catalog: closing any other descriptor on it would drop SQLite's locks.
"""

import ctypes
import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from softkv.errors import (
    AccessRefused,
    CommitUncertain,
    HandleClosed,
    StorageFailed,
    StorageFull,
    StoreDamaged,
    StoreError,
    StoreLocked,
)
from softkv.storage.catalog.patience import Endless, Patience
from softkv.storage.disk import files
from softkv.storage.threads import OwnLock

UNREADABLE = (StoreDamaged, StorageFailed)  # what reading a page raises that is damaged, or that the disk refuses
_WRITER = {"journal_mode": "wal", "synchronous": 2, "cache_size": -32_000}
_READER = {"query_only": 1, "cache_size": -8_000}
_BOTH = {"busy_timeout": 5_000, "trusted_schema": 0, "cell_size_check": 1, "mmap_size": 0}
# The driver raises the last three for an integer beyond 64 bits, for a message of SQLite that quotes damaged bytes, and
# for a field of a gigabyte.
_DRIVER_ERRORS = (sqlite3.Error, OverflowError, UnicodeDecodeError, MemoryError)
_INDEX_OF_LOG = 32_768  # bytes of `-shm` that SQLite needs for as long as anyone has a catalog open
_DARWIN = {"fullfsync": 1, "checkpoint_fullfsync": 1}

_MEANINGS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("disk is full", StorageFull, "nothing of it was kept; make room and write again"),
    ("readonly", AccessRefused, "this user may not write here"),
    ("locked", StoreLocked, "another program holds the catalog"),
    ("unable to open", AccessRefused, "look at the permissions of the directory, and at how many files are open"),
    ("disk I/O error", StorageFailed, "the operating system refused; look at its log"),
    ("out of memory", StorageFailed, "there is not enough of it; free some"),
)


def translated(error: Exception, doing: str) -> StoreError:
    """The error of ours for one of SQLite's; what is not the disk's fault is damage."""
    text = "out of memory" if isinstance(error, MemoryError) else str(error)
    for words, kind, advice in _MEANINGS:
        if words in text:
            return kind(f"{doing}: {text}; {advice}.")
    return StoreDamaged(f"{doing}: {text}. `softkv check` tells what is left of the store.")


_open: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _inherit() -> None:
    """Keep a child from ever closing what its parent opened: it would checkpoint, and remove the log by its name.

    Subtle: the connections are kept by no variable, since the interpreter clears all variables before it ends.
    """
    for connection in list(_open):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection._driver))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit)


class Connection:
    """The one writing connection of a store, or one of its readers. `lock` keeps threads out of open transactions.

    Threads also take turns with single statements. SQLite would do without, but the driver keeps one prepared statement
    for equal texts: between binding and stepping it, another thread may bind its own parameters.
    """

    def __init__(self, path: str, *, write: bool, create: bool = False, frozen: bool = False) -> None:
        self.path, self._write, self.frozen = path, write, frozen
        self.lock, self._turn = OwnLock(path), threading.RLock()
        self._closed = False
        for name in (path, path + "-wal", path + "-shm"):
            files.require_regular(name, write=write)
        _require_no_journal(path + "-journal")
        mode = "rwc" if create else "rw" if write else "ro&immutable=1" if frozen else "ro"
        uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"
        self._signature, self.place = _signature(path), place_of(path)
        try:
            self._driver = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise translated(error, f"cannot open {path}") from error
        _open.add(self)
        self._patience = Patience(path)
        self._patience.watch(self._driver)
        try:
            self._settle({**_BOTH, **(_DARWIN if sys.platform == "darwin" else {}), **({} if write else _READER)})
        except BaseException:
            self._driver.close()
            raise

    def settle_writer(self) -> None:
        """Apply the settings of a writer, which may write to the file: only once it is known to be a catalog."""
        self._settle(_WRITER)

    def _settle(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            self.rows(f"PRAGMA {name}={value}")
            got = self.value(f"PRAGMA {name}")
            if got != value and got is not None:  # None: this build of SQLite does not know the setting
                raise StorageFailed(f"{self.path}: SQLite set {name} to {got!r} instead of {value!r}")

    def require_usable(self) -> None:
        """Refuse to work when the connection is closed, or in a child of the process that opened it."""
        self.lock.require_own_process()
        if self._closed:
            raise self._gone()

    def _gone(self) -> HandleClosed:
        return HandleClosed(f"{self.path} was closed with its store; open the store again")

    def _told(self, error: Exception, doing: str) -> BaseException:
        """Our error for one of the driver's; an interrupt that the driver has swallowed is raised again.

        A failure because another thread has closed the store is not reported as damage.
        """
        if self._closed:
            return self._gone()
        if getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_SHMSIZE":  # the driver of Python 3.10 does not tell
            try:
                files.require_room(os.path.dirname(self.path) or ".", _INDEX_OF_LOG, f"opening {self.path}")
            except StoreError as full:
                return full
        if str(error) != "interrupted":
            return translated(error, f"cannot {doing} {self.path}")
        if not self._patience.exhausted:
            return KeyboardInterrupt()
        return Endless(
            f"cannot {doing} {self.path}: a statement took more steps than a catalog of its size can need, so its "
            "tables are not what was written. `softkv check` tells what is left of the store."
        )

    def damage(self, what: str) -> StoreDamaged:
        """The error for something that cannot occur in a catalog that softkv wrote."""
        return StoreDamaged(f"{self.path}: {what}. Run `softkv check`.")

    def run(self, sql: str, arguments: Sequence[Any] = ()) -> None:
        """Execute one statement."""
        self.rows(sql, arguments, "use")

    def rows(self, sql: str, arguments: Sequence[Any] = (), doing: str = "read") -> list[tuple[Any, ...]]:
        """All rows that a statement gives; `doing` names what failed."""
        self.require_usable()
        try:
            with self._turn:
                self._patience.begin(arguments)
                found = self._driver.execute(sql, arguments).fetchall()
        except _DRIVER_ERRORS as error:
            self._require_as_opened()
            raise self._told(error, doing) from error
        self._require_as_opened()
        return found

    def value(self, sql: str, arguments: Sequence[Any] = ()) -> Any:
        """The first column of the first row, or None."""
        rows = self.rows(sql, arguments)
        return rows[0][0] if rows else None

    def run_many(self, sql: str, arguments: Sequence[Sequence[Any]]) -> int:
        """Execute one statement many times; returns how many rows it changed."""
        try:
            with self._turn:
                self._patience.begin(arguments[0] if arguments else (), rows=len(arguments))
                return self._driver.executemany(sql, arguments).rowcount
        except _DRIVER_ERRORS as error:
            raise self._told(error, "write") from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A short transaction that sees one commit. Within another transaction, that one is used."""
        with self.lock:
            self.require_usable()
            if self._driver.in_transaction:
                yield
                return
            self.run("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that takes effect wholly or not at all; CommitUncertain when that cannot be determined."""
        with self.lock:
            self.abort()
            self.run("BEGIN IMMEDIATE")
            try:
                yield
                self._commit()
            except CommitUncertain:
                raise  # a disk that failed is not used again
            except BaseException:
                self._roll_back()  # has no effect when an interrupt came right after the commit
                raise

    def abort(self) -> None:
        """Roll back a transaction that an interrupt left open, so that the catalog shows what is committed."""
        with self.lock:
            self.require_usable()
            self._roll_back()

    def _commit(self) -> None:
        try:
            with self._turn:
                self._driver.execute("COMMIT")
        except _DRIVER_ERRORS as error:
            if "disk is full" in str(error):  # then the page that ends the commit was not written
                raise StorageFull(f"{self.path}: no space for the commit; it did not happen. Make room.") from error
            raise CommitUncertain(
                f"{self.path}: SQLite reported {error} at the commit, so it may or may not have happened. "
                "Open the store again for writing and look at its commit number."
            ) from error

    def _roll_back(self) -> None:
        try:
            with self._turn:
                if not self._closed and self._driver.in_transaction:
                    self._driver.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._told(error, "roll back in") from error

    def user_version(self) -> int:
        """The format number, read every time: a writer may migrate a store while a reader has it open."""
        return int(self.value("PRAGMA user_version"))

    def data_version(self) -> int:
        """A number that changes whenever another connection has committed."""
        return int(self.value("PRAGMA data_version"))

    def size(self) -> int:
        """The size of the catalog in bytes, by its own header."""
        return int(self.value("PRAGMA page_count")) * int(self.value("PRAGMA page_size"))

    def thawed(self) -> bool:
        """Whether a frozen catalog has been written to since it was opened."""
        return self.frozen and self._signature != _signature(self.path)

    def _require_as_opened(self) -> None:
        """Refuse what a frozen catalog tells once it has been written to: pages of two commits may be mixed."""
        if self.frozen and self._signature[0] != _signature(self.path)[0]:
            raise StorageFailed(
                f"{self.path} has been written to since it was opened without its log, for want of space or "
                "permission. Ask again, or take a new snapshot."
            )

    def copy_to(self, path: str) -> None:
        """Copy all that the open transaction sees to a new file and sync it; its directory entry is not synced."""
        self.require_usable()
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as driver:
                driver.execute("PRAGMA journal_mode=OFF")
                if sys.platform == "darwin":
                    driver.execute("PRAGMA fullfsync=1")
                with self._turn:
                    self._driver.backup(driver)
        except _DRIVER_ERRORS as error:
            raise translated(error, f"cannot copy {self.path} to {path}") from error

    def copy_into(self, other: "Connection") -> None:
        """Replace the content of another catalog by all that this connection sees, in one transaction."""
        self.require_usable()
        try:
            with self._turn, other._turn:
                self._driver.backup(other._driver)
        except _DRIVER_ERRORS as error:
            raise translated(error, f"cannot copy {self.path} to {other.path}") from error

    def close(self) -> None:
        """Close; a writer first moves its log into the catalog, as far as readers permit."""
        try:
            if self._write and not self._closed:
                with self.lock, self._turn:  # SQLite refuses to close while a thread is reading
                    self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            self.abandon()
            kind = type(translated(error, ""))
            raise kind(f"cannot finish {self.path}: {error}. Nothing is lost: its log keeps every commit.") from error
        self._let_go()

    def abandon(self) -> None:
        """Close a writer whose disk has failed, without writing anything more: the log keeps every commit.

        Subtle: SQLite checkpoints when the last connection closes, and would sync again what failed to sync. So a
        reader is kept open while the writer closes.
        """
        witness = None
        try:
            witness = sqlite3.connect(f"file:{quote(os.fsencode(os.path.abspath(self.path)))}?mode=ro", uri=True)
            Patience(self.path).watch(witness)
            witness.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except _DRIVER_ERRORS:
            pass  # then the disk cannot be read either, and no checkpoint is possible
        finally:
            self._let_go()
            if witness is not None:
                witness.close()

    def _let_go(self) -> None:
        with self.lock:  # waits for the short transaction of another thread
            self._closed = True
            with self._turn:
                self._driver.close()


def _require_no_journal(path: str) -> None:
    """Refuse a rollback journal: a catalog uses a log, and SQLite would roll a foreign journal back into it."""
    files.require_regular(path)
    if os.path.exists(path) and os.path.getsize(path):
        raise StoreDamaged(
            f"{path} is the journal of another program, and would overwrite the catalog. Move it out of the way, and "
            "run `softkv check`."
        )


def application_of(path: str) -> int:
    """The application id in the header of an SQLite file, read without leaving a trace: no lock, no log."""
    files.require_regular(path)
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as driver:
            Patience(path).watch(driver)
            # Subtle: a crash while the log was moved into the file may leave a header that counts too many pages. The
            # log repairs that, but is not read here; SQLite refuses unless it is told to expect damage.
            driver.execute("PRAGMA writable_schema=ON")
            return int(driver.execute("PRAGMA application_id").fetchone()[0])
    except _DRIVER_ERRORS as error:
        raise translated(error, f"cannot open {path}") from error


def connect_reader(path: str) -> Connection:
    """A reading connection; one that needs no write permission when the directory gives none, and no space without."""
    log, index = path + "-wal", path + "-shm"
    if os.access(os.path.dirname(path) or ".", os.W_OK) or os.path.exists(index):
        try:
            return Connection(path, write=False)
        except (StorageFull, StorageFailed):
            if _size(index) >= _INDEX_OF_LOG:
                raise
            frozen = Connection(path, write=False, frozen=True)
            if not _size(log):  # after the connection has noted it, so that the first page of a later writer shows
                return frozen
            frozen.close()
            raise
    if _size(log):
        raise AccessRefused(
            f"{log} holds commits that can only be read with write permission on the directory, for want of "
            f"{os.path.basename(path)}-shm. Have the store's owner open and close it once."
        )
    return Connection(path, write=False, frozen=True)


def _size(path: str) -> int:
    """The bytes of a file; 0 when there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def place_of(path: str) -> tuple[int, int] | None:
    """The device and inode of the file at a path; None when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _signature(path: str) -> tuple[object, ...]:
    """Values that change when a process begins to write to a catalog that had no writer."""
    found: list[tuple[int, int, int] | None] = []
    for name in (path, path + "-wal"):
        try:
            status = os.stat(name)
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
        except OSError as error:
            raise files.translated(error, f"cannot look at {name}") from error
    return tuple(found)
