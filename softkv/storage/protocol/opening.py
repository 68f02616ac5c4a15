"""How a store is made and opened: what must be true of a directory before anything in it is used.

A store is made in a sibling directory, synced, and renamed into place, so that it is there whole or not at all.
A store that cannot be opened is not changed, and the error says why and names the command to run.
"""

import errno
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from softkv.errors import (
    AccessRefused,
    InputError,
    NotAStore,
    StoreDamaged,
    StoreError,
    StoreExists,
    StoreLocked,
    StoreNotFound,
    StoreReplaced,
)
from softkv.logs import log_of
from softkv.storage.batch import shown
from softkv.storage.catalog.catalog import Catalog, Head
from softkv.storage.catalog.connection import Connection, application_of, connect_reader
from softkv.storage.catalog.migrations import READABLE, migrate
from softkv.storage.catalog.parsing import loaded_settings
from softkv.storage.catalog.tables import APPLICATION
from softkv.storage.disk import files, locks
from softkv.storage.disk.named import MANIFEST
from softkv.storage.disk.place import in_one_place
from softkv.storage.layout import BACKUP, CATALOG, FORMAT, GENERATION_NAME, INDEX, RESTORED, AnyPath
from softkv.storage.protocol.acknowledged import require_at_close
from softkv.storage.protocol.committed import Committed, load
from softkv.storage.protocol.generation import Generation
from softkv.storage.protocol.leftovers import remove_leftovers, remove_retired, remove_unborn
from softkv.storage.protocol.writer import Writer

LOG = log_of(__name__)
_LONGEST_ANCESTRY = 1 << 16


def directory_of(path: AnyPath) -> str:
    """The directory that a path leads to, links on the way followed; "~" at the start of a text is the home."""
    given = os.fsdecode(path)
    if not given:  # as from a variable that was never set; the working directory is named by "."
        raise InputError('expected the path of a store, got an empty text. The working directory is ".".')
    if "\0" in given:
        raise InputError(f"the path {shown(given)} holds a NUL character, which no path can")
    return os.path.realpath(os.path.expanduser(given) if isinstance(path, str) else given)


def connect(directory: str) -> Catalog:
    """The catalog of a store, for reading."""
    _require_store(directory)
    connection = connect_reader(os.path.join(directory, CATALOG))
    try:
        catalog = Catalog(connection)
        found = catalog.identify()
        if found < FORMAT and found not in READABLE:
            raise StoreError(
                f"{directory} has format {found}; open it once with mode 'w' to bring it to format {FORMAT}"
            )
    except BaseException:
        connection.close()
        raise
    LOG.info("opened %s to read", directory)
    return catalog


def load_again(catalog: Catalog, directory: str, known: Committed) -> Committed:
    """The newest commit for a reader, or the one it knows if the store was erased since: its files are gone by then."""
    try:
        return load(catalog, directory, known, write=False)
    except StoreDamaged:
        if _name_at(directory) == known.head.store:
            raise
        return known


def require_no_copy(directory: str, known: Head) -> None:
    """Refuse to go on when another copy of the store has taken its place; one that was made anew is another store."""
    if _name_at(directory) == known.store or known.store in ancestry(directory):
        raise StoreReplaced(
            f"another copy of the store has taken the place of {directory}, where this handle knew commit "
            f"{known.number}. Open it again; `softkv check --at-least {known.number}` tells whether it is older."
        )


def ancestry(directory: str) -> str:
    """The content of RESTORED, which names the stores from which this one was restored; empty for one that was made."""
    path = os.path.join(directory, RESTORED)
    return files.start_of(path, _LONGEST_ANCESTRY).decode(errors="replace") if os.path.lexists(path) else ""


def _name_at(directory: str) -> str | None:
    """The name of the store that is at this path now; None when there is none."""
    try:
        catalog = in_one_place(directory, lambda: connect(directory), lambda found: found.connection.close())
    except StoreNotFound:
        return None
    with closing(catalog.connection):
        return catalog.head().store


Accepting = Callable[[dict[str, Any]], object]  # is given the settings of a store, and may raise to refuse it


def become_writer(directory: str, mode: str, *, force: bool, accept: Accepting | None) -> Writer:
    """Open a store for writing: as it is ("w"), made if need be ("c"), or anew ("n").

    `accept` is given its settings, and may raise before anything in the store has changed.
    """
    vacant = is_vacant(directory)
    if mode == "n" or (mode == "c" and vacant):
        require_outside_of_stores(directory)  # before anything is erased
    if mode == "n" and not vacant:
        with suppress(StoreNotFound):  # another process was faster
            erase(directory, force=force)
    if mode == "n" or (mode == "c" and vacant):
        try:
            with made_beside(directory, force=force) as (building, lock):
                _fill(building)
            return _writer(directory, lock)  # held since it was made
        except StoreExists:
            if mode == "n":
                raise  # in mode "c", the other process has made what was asked for
    return open_writer(directory, force=force, accept=accept)


def open_writer(directory: str, *, force: bool, accept: Accepting | None = None) -> Writer:
    """Become the writer of a store that is there."""

    def locked() -> locks.FileLock:
        _require_store(directory)
        if is_backup(directory):
            raise AccessRefused(
                f"{directory} is a backup, which only `softkv backup` writes to. Read it with mode 'r', or make a "
                f"store of it: softkv restore {shlex.quote(directory)} --db NEW"
            )
        locks.require_writable_platform(directory, force=force)
        return locks.lock_writer(directory)

    lock = in_one_place(directory, locked, locks.FileLock.release)  # from here on no process can replace the store
    return _writer(directory, lock, accept)


@contextmanager
def made_beside(directory: str, *, force: bool) -> Iterator[tuple[str, locks.FileLock]]:
    """A new directory, locked and to be filled, which is then renamed into place; when that fails it is removed.

    The caller keeps the lock.
    """
    parent = _parent_of(directory)
    locks.require_writable_platform(parent, force=force)
    remove_unborn(parent, os.path.basename(directory))
    building, lock = _begun(_unborn(directory))
    moved = False
    try:
        yield building, lock
        _move_into_place(building, directory)
        moved = True
        files.sync_directory(parent)
        lock.path = os.path.join(directory, locks.LOCK)
    except BaseException as error:
        lock.release()
        # Another process that makes it, and looked here between two of our calls, took this for what a crash had left.
        overtaken = isinstance(error, StoreError) and not moved and not os.path.lexists(building)
        files.remove_tree(building)
        if overtaken:
            raise StoreLocked(f"{directory} is being made by another process. Try again in a moment.", None) from error
        raise


@contextmanager
def named_beside(directory: str) -> Iterator[str]:
    """A path where a store is to be made, which is then moved into place; when that fails it is removed."""
    remove_unborn(_parent_of(directory), os.path.basename(directory))
    building = _unborn(directory) + secrets.token_hex(4)
    try:
        yield building
        move(building, directory)
    except BaseException:
        with suppress(StoreError):
            erase(building, force=False)
        raise


def _parent_of(directory: str) -> str:
    """The directory in which another is to be made."""
    parent = os.path.dirname(os.path.abspath(directory))
    if not os.path.isdir(parent):
        raise StoreNotFound(f"{parent} is not a directory, so {os.path.basename(directory)} cannot be made in it")
    require_outside_of_stores(directory)
    return parent


def require_outside_of_stores(directory: str) -> None:
    """Refuse to make anything in the directory of a store, where its writer removes what it takes for leftovers."""
    outer = os.path.dirname(os.path.abspath(directory))
    while outer != os.path.dirname(outer):
        catalog = os.path.join(outer, CATALOG)
        with suppress(StoreError):  # what cannot be read has no writer
            if os.path.lexists(catalog) and application_of(catalog) == APPLICATION:
                raise InputError(
                    f"{directory} lies in the store {outer}, whose writer removes what it does not know. Name a "
                    "directory outside of it."
                )
        outer = os.path.dirname(outer)


def _unborn(directory: str) -> str:
    """How the name of a directory begins that is to take this place (leftovers.py)."""
    return os.path.join(os.path.dirname(os.path.abspath(directory)), f".{os.path.basename(directory)}.new-")


def _begun(prefix: str) -> tuple[str, locks.FileLock]:
    """A new directory of this name and a random end, locked; again, where another removed it while it was empty."""
    while True:
        building = prefix + secrets.token_hex(4)
        files.make_directory(building)
        try:
            return building, locks.lock_writer(building)
        except BaseException as error:
            if isinstance(error, StoreError) and not os.path.lexists(building):
                continue
            files.remove_tree(building)
            raise


def erase(directory: str, *, force: bool) -> None:
    """Remove a store, if it is one and has no writer; readers that have it open keep what they pinned."""
    writer = open_writer(directory, force=force)
    try:
        parent = os.path.dirname(os.path.abspath(directory))
        doomed = os.path.join(parent, f".{os.path.basename(directory)}.old-{secrets.token_hex(4)}")
        with files.translating(f"cannot move {directory} out of the way"):
            os.rename(directory, doomed)
        files.sync_directory(parent)
    finally:
        if writer.committed.generation:
            writer.committed.generation.release()
        writer.catalog.connection.close()
        writer.lock.release()
    files.remove_tree(doomed)


def move(directory: str, target: str) -> None:
    """Rename a store that is not open anywhere, to a path where nothing is."""
    _require_store(directory)
    lock = locks.lock_writer(directory)
    try:
        # Subtle: SQLite is not asked. A catalog that is open while its name changes loses the way to its log.
        _move_into_place(directory, target)
        files.sync_directory(os.path.dirname(os.path.abspath(target)))
    finally:
        lock.release()


def is_backup(directory: str) -> bool:
    """Whether a store is a backup, to which only a backup writes."""
    return os.path.lexists(os.path.join(directory, BACKUP))


def is_vacant(directory: str) -> bool:
    """Whether a store may be made here: nothing is there, or an empty directory."""
    try:
        return not os.path.lexists(directory) or (os.path.isdir(directory) and not os.listdir(directory))
    except FileNotFoundError:  # it was removed between two checks
        return True
    except OSError as error:
        raise files.translated(error, f"cannot look at {directory}") from error


def _fill(building: str) -> None:
    connection = Connection(os.path.join(building, CATALOG), write=True, create=True)
    try:
        connection.settle_writer()
        Catalog(connection).create(secrets.token_hex(16))
    finally:
        connection.close()
    files.make_directory(os.path.join(building, INDEX))
    files.sync_directory(os.path.join(building, INDEX))
    files.sync_directory(building)


def _move_into_place(building: str, directory: str) -> None:
    try:
        os.rename(building, directory)  # replaces an empty directory, and nothing else
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise StoreExists(f"{directory} came into being meanwhile. Open it again.") from error
        raise files.translated(error, f"cannot make {directory}") from error


def _require_store(directory: str) -> None:
    """Refuse what is not a store, before SQLite opens it."""
    try:
        status = os.stat(directory)
        found = os.listdir(directory) if stat.S_ISDIR(status.st_mode) else None
    except FileNotFoundError as error:
        raise StoreNotFound(f"there is no store at {directory}. Make one by opening it with mode 'c'.") from error
    except OSError as error:
        raise files.translated(error, f"cannot look into {directory}") from error
    if found is None:
        raise NotAStore(f"{directory} is a file; a store is a directory")
    if not found:
        raise StoreNotFound(f"{directory} is an empty directory. Make a store there by opening it with mode 'c'.")
    if any(map(MANIFEST.match, found)):
        raise NotAStore(f"{directory} is a cluster of stores and none itself; `softkv add -i` adds a file to it")
    if CATALOG not in found:
        what = StoreDamaged if any(GENERATION_NAME.match(name) for name in found) else NotAStore
        raise what(f"{directory} has no {CATALOG}, so it is not a store or no longer one. Its files were left alone.")
    # Before LOCK is touched, which may belong to another program as well.
    application = application_of(os.path.join(directory, CATALOG))
    if application != APPLICATION:
        raise NotAStore(
            f"{directory}: {CATALOG} is an SQLite database of something else (application id {application})"
        )


def _writer(directory: str, lock: locks.FileLock, accept: Accepting | None = None) -> Writer:
    """The writer of a store whose lock is held; on failure the lock is released."""
    with ExitStack() as undone:
        undone.callback(lock.release)
        connection = Connection(os.path.join(directory, CATALOG), write=True)
        undone.callback(connection.abandon)
        catalog = Catalog(connection)
        found = catalog.identify()
        if accept is not None:
            accept(loaded_settings(catalog.settings()))
        connection.settle_writer()
        if found < FORMAT:
            lock.forget_note()  # a migration may change the record of a commit, without being a commit
            migrate(catalog, found)
        before = load(catalog, directory, None, write=True)
        try:
            require_at_close(directory, before.head)
            unclean = bool(before.head.writing)
            if unclean and before.generation:
                before.generation.verify_end()
            _ = catalog.generations(), catalog.index_files()  # read now, since below it is too late to refuse
            with connection.writing():
                head = catalog.advance(before.head, epoch=before.head.epoch + 1, writing=1)
                if unclean and before.generation:
                    _mend(catalog, before.generation, before.rows)
                    told = "%s was not closed: what was written last is sound, and what is derived mended"
                    LOG.warning(told, directory)
                remove_leftovers(directory, catalog)  # in the transaction: no other writer can be making them
            # SQLite syncs the directory after making its log, but ignores a failure.
            files.sync_directory(directory)
            gone = remove_retired(directory, catalog, head)
        finally:
            if before.generation:
                before.generation.release()
        committed = load(catalog, directory, None, write=True)
        if committed.generation:
            undone.callback(committed.generation.release)
        assert committed.head == head
        LOG.info("opened %s to write, at commit %d", directory, head.number)
        writer = Writer(directory, catalog, lock, committed, retired=not gone)
        undone.pop_all()
    return writer


def _mend(catalog: Catalog, generation: Generation, rows: int) -> None:
    """Repair derived rows that were not synced before the crash."""
    mended = generation.mend_norms(rows)
    if mended is not None:
        finished, tail = mended
        standing = catalog.standing(generation.number)
        catalog.put_windows(generation.number, "norms", finished)
        catalog.put_standing(replace(standing, tails=(*standing.tails[:2], tail)))
