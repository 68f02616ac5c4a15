"""Bugs to plant in a process of its own, each of which some test must find: a checker that never failed is no checker.

Each is a function that patches what has been imported, for good. Which test finds it stands in test_planted.py.
"""

import fcntl
import importlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from mmap import ACCESS_WRITE, mmap
from pathlib import Path
from typing import Any

import numpy as np

from softkv.asking import asker
from softkv.asking.indexed import Followed
from softkv.errors import CommitUncertain, StorageFailed
from softkv.index import calibration
from softkv.index.late import Change
from softkv.maths.drift import Drift
from softkv.storage import Snapshot
from softkv.storage.catalog import catalog, connection, derived
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.labels import LabelBook
from softkv.storage.disk import files, locks
from softkv.storage.disk.arena import Arena, VerifiedRows
from softkv.storage.protocol import backup, compaction, opening, publishing, snapshot
from softkv.storage.protocol.following import Following
from softkv.storage.protocol.generation import Generation
from softkv.storage.protocol.index_files import IndexFile
from softkv.storage.protocol.writer import Writer
from tests.crash.children import Say

# Before it is durable


def _values_are_not_synced() -> None:
    sync = Arena.sync

    def patched(arena: Arena) -> None:
        if arena.shape.role != "values":
            sync(arena)

    Arena.sync = patched  # type: ignore[method-assign]


def _index_files_are_not_synced() -> None:
    sync = files.sync

    def patched(descriptor: int, path: str) -> None:
        if "/index/" not in path:
            sync(descriptor, path)

    files.sync = patched


def _new_generations_are_not_synced() -> None:
    Generation.make_durable = lambda _generation: None  # type: ignore[method-assign]


def _rows_are_written_at_the_end_of_the_file() -> None:
    write = Arena.write
    Arena.write = lambda arena, _row, rows: write(arena, arena.stored_rows(), rows)  # type: ignore[method-assign]


def _directories_are_not_synced() -> None:
    files.sync_directory = lambda _path: None


def _the_commit_comes_before_the_sync() -> None:
    late: list[Arena] = []
    commit, sync = Writer.commit, Arena.sync
    Arena.sync = lambda arena: late.append(arena)  # type: ignore[method-assign]

    @contextmanager
    def patched(writer: Writer, **changes: Any) -> Iterator[Any]:
        with commit(writer, **changes) as head:
            yield head
        while late:
            arena = late.pop()
            if arena._descriptor >= 0:
                sync(arena)

    Writer.commit = patched  # type: ignore[method-assign]


def _the_catalog_is_not_synced_at_commits() -> None:
    connection._WRITER["synchronous"] = 1


# All or nothing


def _the_old_generation_goes_before_the_switch() -> None:
    make_durable = Generation.make_durable

    def patched(generation: Generation) -> None:
        make_durable(generation)
        for other in Path(generation.directory).parent.glob("generation-*"):
            if str(other) < generation.directory:
                files.remove_tree(str(other))

    Generation.make_durable = patched  # type: ignore[method-assign]


def _a_batch_takes_two_commits() -> None:
    append = Writer.append

    def patched(writer: Writer, batch: Any, *how: Any) -> Any:
        half = len(batch) // 2
        if half:
            append(writer, batch.take(range(half)), *how)
        return append(writer, batch.take(range(half, len(batch))), *how)

    Writer.append = patched  # type: ignore[method-assign]


def _rows_behind_the_committed_ones_are_shown() -> None:
    def patched(snapshot: Snapshot) -> int:
        return snapshot._generation.arenas[0].stored_rows() if snapshot._generation else 0

    Snapshot.rows = property(patched)  # type: ignore[method-assign, assignment]


def _deaths_do_not_reach_the_bitmaps() -> None:
    Catalog.put_deaths = lambda *_: None  # type: ignore[method-assign]


def _nobody_tidies_up_after_a_crash() -> None:
    opening.remove_leftovers = lambda *_: None


def _norms_that_were_not_synced_are_not_mended() -> None:
    opening._mend = lambda *_: None


# What the system refuses


def _a_failed_sync_is_tried_again() -> None:
    sync = files.sync

    def patched(descriptor: int, path: str) -> None:
        try:
            sync(descriptor, path)
        except StorageFailed:
            sync(descriptor, path)

    files.sync = patched


def _a_failed_sync_does_not_end_the_handle() -> None:
    @contextmanager
    def patched(_writer: Writer) -> Iterator[None]:
        yield

    Writer.poisoning = patched  # type: ignore[method-assign, assignment]


def _a_short_write_counts_as_whole() -> None:
    def patched(descriptor: int, data: memoryview, offset: int, path: str) -> None:
        try:
            os.pwrite(descriptor, data, offset)
        except OSError as error:
            raise files.translated(error, f"cannot write {path}") from error

    files.write_at = patched


def _an_uncertain_commit_is_said_to_have_failed() -> None:
    commit = Connection._commit

    def patched(connection: Connection) -> None:
        try:
            commit(connection)
        except CommitUncertain as error:
            raise StorageFailed(f"{error} It did not happen.") from None

    Connection._commit = patched  # type: ignore[method-assign]


def _label_counts_of_a_failed_commit_stay() -> None:
    newest = Writer.newest

    def patched(writer: Writer) -> Any:
        labels, found = writer._labels, newest(writer)
        writer._labels = labels
        return found

    Writer.newest = patched  # type: ignore[method-assign]


# Connections and maps


def _a_second_connection_for_writing_is_pooled() -> None:
    pool: list[sqlite3.Connection] = []
    settle = Connection.settle_writer

    def patched(connection: Connection) -> None:
        settle(connection)
        pool.append(sqlite3.connect(connection.path, check_same_thread=False))
        pool[-1].execute("SELECT count(*) FROM sqlite_master").fetchall()

    Connection.settle_writer = patched  # type: ignore[method-assign]


def _the_catalog_is_opened_beside_sqlite() -> None:
    head = Catalog.head

    def patched(catalog: Catalog) -> Any:
        os.close(os.open(catalog.connection.path, os.O_RDONLY))
        return head(catalog)

    Catalog.head = patched  # type: ignore[method-assign]


def _rows_are_mapped_for_writing() -> None:
    mapped = Arena._mapped

    def patched(arena: Arena, needed: int) -> mmap:
        whole = mapped(arena, needed)  # refuses what cannot be mapped
        with suppress(OSError):  # of a reader
            return mmap(arena._descriptor, needed, access=ACCESS_WRITE)
        return whole

    Arena._mapped = patched  # type: ignore[method-assign]


def _every_question_is_a_transaction_of_its_own() -> None:
    @contextmanager
    def patched(connection: Connection) -> Iterator[None]:
        with connection.lock:
            connection.require_usable()
            yield

    Connection.reading = patched  # type: ignore[method-assign, assignment]


# What is believed


def _index_files_are_believed_without_their_checksum() -> None:
    def patched(found: IndexFile) -> Iterator[tuple[int, bytes]]:
        start, size = 0, found._believable_size()
        while start < size:
            piece = found._piece(start, size - start)
            yield start, piece
            start += len(piece)

    IndexFile.pieces = patched  # type: ignore[method-assign]


def _checksums_are_taken_from_the_file() -> None:
    def patched(_rows: VerifiedRows, *_of: Any) -> None:
        """Compare nothing; who asked counts the windows as compared."""

    VerifiedRows._verify_fresh = patched  # type: ignore[method-assign]


def _compaction_copies_what_it_did_not_verify() -> None:
    read_ahead = compaction._read_ahead

    def patched(*of: Any) -> VerifiedRows:
        rows = read_ahead(*of)
        rows._verify = lambda _windows: None  # type: ignore[method-assign]
        return rows

    compaction._read_ahead = patched


def _a_label_is_remembered_that_was_never_committed() -> None:
    def patched(book: LabelBook, code: int) -> str:
        if code >= len(book._labels):
            book._labels = [label for _, label, _ in book._catalog.labels()]
        return book._labels[code]

    LabelBook.label = patched  # type: ignore[method-assign]


# Locks


def _no_writer_takes_the_lock() -> None:
    locked = locks._locked

    def patched(path: str, *, exclusive: bool, create: bool = False) -> Any:
        if os.path.basename(path) == locks.LOCK:
            return locks.FileLock(path, files.open_regular(path, write=exclusive, create=create))
        return locked(path, exclusive=exclusive, create=create)

    locks._locked = patched


def _no_reader_takes_a_pin() -> None:
    locked = locks._locked

    def patched(path: str, *, exclusive: bool, create: bool = False) -> Any:
        return locked(path, exclusive=True, create=create) if exclusive else _unlocked(path)

    def _unlocked(path: str) -> Any:
        return locks.FileLock(path, files.open_regular(path))

    locks._locked = patched


def _the_end_of_a_child_releases_the_lock() -> None:
    def patched(lock: locks.FileLock) -> None:
        if lock.descriptor >= 0:
            fcntl.flock(lock.descriptor, fcntl.LOCK_UN)
            os.close(lock.descriptor)
        lock.descriptor = -1

    locks.FileLock.release = patched  # type: ignore[method-assign]


def _a_child_keeps_the_lock_of_its_parent() -> None:
    class Forgetful(set[Any]):
        def add(self, _lock: Any) -> None:
            pass

    locks._held = Forgetful()  # type: ignore[assignment]


def _a_writer_is_fenced_before_its_work_only() -> None:
    def patched(catalog: Catalog, before: Any, **changes: Any) -> Any:
        after = replace(before, **changes)
        catalog._put_head(after)
        return after

    Catalog.advance = patched  # type: ignore[method-assign]


# Answers


def _calibrated_errors_are_understated() -> None:
    limit = calibration.limit
    calibration.limit = lambda errors, confidence: limit(errors, confidence - 0.1)


def _bounds_are_understated() -> None:
    ask = asker.ask

    def patched(view: Any, question: Any) -> Any:
        found = ask(view, question)
        return replace(found, error=found.error * 1e-3) if question.guarantee else found

    asker.ask = patched


def _a_reader_stays_at_its_first_commit() -> None:
    Following.newest = lambda _following, known: known  # type: ignore[method-assign]


# Derived parts


def _a_part_has_the_number_of_another_commit() -> None:
    def patched(connection: Connection, generation: int, name: str, part: int, *what: Any) -> None:
        derived.put(connection, generation, name, part - 1, *what)

    publishing.put = patched


def _a_reader_of_an_old_commit_sees_newer_parts() -> None:
    def patched(connection: Connection, generation: int, name: str, after: int, _commit: int) -> Any:
        return parts(connection, generation, name, after, 1 << 60)

    parts = snapshot.parts
    snapshot.parts = patched


def _parts_outlive_the_index_file_of_their_name() -> None:
    catalog._NAMED.pop()


def _deaths_stay_in_the_sums_of_lists() -> None:
    Followed._left = lambda followed, *_: Drift.none(followed.base.lists)  # type: ignore[method-assign]


def _an_assignment_is_lost() -> None:
    following = Followed.next

    def patched(followed: Followed, *given: Any) -> Change:
        found = following(followed, *given)
        return replace(found, owners=np.full_like(found.owners, -1))

    Followed.next = patched  # type: ignore[method-assign]


def _a_sum_is_noted_without_its_row() -> None:
    following = Followed.next

    def patched(followed: Followed, *given: Any) -> Change:
        found = following(followed, *given)
        return replace(found, drift=replace(found.drift, counts=found.drift.counts + 1))

    Followed.next = patched  # type: ignore[method-assign]


# Copies


def _a_backup_names_rows_before_they_are_synced() -> None:
    write = backup._Copy._write_generation

    def patched(*given: Any) -> None:
        durable, Generation.make_durable = Generation.make_durable, lambda _: None  # type: ignore[method-assign]
        try:
            write(*given)
        finally:
            Generation.make_durable = durable  # type: ignore[method-assign]

    backup._Copy._write_generation = patched  # type: ignore[method-assign]


def _a_backup_keeps_the_note_of_the_earlier_one() -> None:
    forget = locks.FileLock.forget_note

    def patched(lock: locks.FileLock) -> None:
        if not opening.is_backup(os.path.dirname(lock.path)):
            forget(lock)

    locks.FileLock.forget_note = patched  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "values are not synced": _values_are_not_synced,
    "index files are not synced": _index_files_are_not_synced,
    "new generations are not synced": _new_generations_are_not_synced,
    "directories are not synced": _directories_are_not_synced,
    "rows are written at the end of the file": _rows_are_written_at_the_end_of_the_file,
    "the commit comes before the sync": _the_commit_comes_before_the_sync,
    "the catalog is not synced at commits": _the_catalog_is_not_synced_at_commits,
    "the old generation goes before the switch": _the_old_generation_goes_before_the_switch,
    "a batch takes two commits": _a_batch_takes_two_commits,
    "rows behind the committed ones are shown": _rows_behind_the_committed_ones_are_shown,
    "deaths do not reach the bitmaps": _deaths_do_not_reach_the_bitmaps,
    "nobody tidies up after a crash": _nobody_tidies_up_after_a_crash,
    "norms that were not synced are not mended": _norms_that_were_not_synced_are_not_mended,
    "a failed sync is tried again": _a_failed_sync_is_tried_again,
    "a failed sync does not end the handle": _a_failed_sync_does_not_end_the_handle,
    "a short write counts as whole": _a_short_write_counts_as_whole,
    "an uncertain commit is said to have failed": _an_uncertain_commit_is_said_to_have_failed,
    "label counts of a failed commit stay": _label_counts_of_a_failed_commit_stay,
    "a second connection for writing is pooled": _a_second_connection_for_writing_is_pooled,
    "the catalog is opened beside SQLite": _the_catalog_is_opened_beside_sqlite,
    "rows are mapped for writing": _rows_are_mapped_for_writing,
    "every question is a transaction of its own": _every_question_is_a_transaction_of_its_own,
    "index files are believed without their checksum": _index_files_are_believed_without_their_checksum,
    "checksums are taken from the file": _checksums_are_taken_from_the_file,
    "compaction copies what it did not verify": _compaction_copies_what_it_did_not_verify,
    "a label is remembered that was never committed": _a_label_is_remembered_that_was_never_committed,
    "no writer takes the lock": _no_writer_takes_the_lock,
    "no reader takes a pin": _no_reader_takes_a_pin,
    "the end of a child releases the lock": _the_end_of_a_child_releases_the_lock,
    "a child keeps the lock of its parent": _a_child_keeps_the_lock_of_its_parent,
    "a writer is fenced before its work only": _a_writer_is_fenced_before_its_work_only,
    "calibrated errors are understated": _calibrated_errors_are_understated,
    "bounds are understated": _bounds_are_understated,
    "a reader stays at its first commit": _a_reader_stays_at_its_first_commit,
    "a part has the number of another commit": _a_part_has_the_number_of_another_commit,
    "a reader of an old commit sees newer parts": _a_reader_of_an_old_commit_sees_newer_parts,
    "parts outlive the index file of their name": _parts_outlive_the_index_file_of_their_name,
    "deaths stay in the sums of lists": _deaths_stay_in_the_sums_of_lists,
    "an assignment is lost": _an_assignment_is_lost,
    "a sum is noted without its row": _a_sum_is_noted_without_its_row,
    "a backup names rows before they are synced": _a_backup_names_rows_before_they_are_synced,
    "a backup keeps the note of the earlier one": _a_backup_keeps_the_note_of_the_earlier_one,
}


def infested(say: Say, bug: str, work: str, *arguments: Any) -> None:
    """In a recorded child: plant a bug, and do the work, "module:function"."""
    BUGS[bug]()
    module, _, function = work.partition(":")
    getattr(importlib.import_module(module), function)(say, *arguments)
