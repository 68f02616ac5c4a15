"""Copy a store as of one commit, while others read and write it: into a backup, into an earlier backup, and back.

A backup is a store that only later backups write to: it is read like any other, and the file BACKUP keeps writers out.
The catalog is copied first, by SQLite and in one transaction; the files it names are pinned, compared with their
checksums, written and synced, and only then the new catalog replaces the earlier one, in one transaction. So an
interrupted backup leaves the earlier one intact. Rows and index files that it already has are not written again.

Does not decide when a store is copied, and writes nothing to the store itself.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from softkv.errors import BackupRefused, IndexDamaged, StoreDamaged, StoreExists, StoreNotFound
from softkv.logs import log_of
from softkv.ndarrays import AnyArray
from softkv.progress import Progress
from softkv.storage.catalog.catalog import Catalog, Head, IndexRecord, Standing
from softkv.storage.catalog.connection import Connection
from softkv.storage.disk import files, locks
from softkv.storage.disk.arena import Arena
from softkv.storage.layout import BACKUP, CATALOG, INDEX, RESTORED, AnyPath, generation_name
from softkv.storage.protocol import opening
from softkv.storage.protocol.acknowledged import Acknowledged
from softkv.storage.protocol.generation import Generation
from softkv.storage.protocol.index_files import IndexFile, require_folder
from softkv.storage.protocol.leftovers import remove_leftovers
from softkv.storage.protocol.original import Original, generation_at, original_of, records

LOG = log_of(__name__)
STAGED = CATALOG + ".new"  # the catalog of a backup while what it names is being written
_STRIDE = 1 << 20  # bytes of rows copied at a time
_CHECKSUMS = 1 << 16  # checksums compared at a time


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of a store: its commit, how many items it has, and how many bytes were written to it.

    `left_out` names index files that are not in the copy because they were damaged or missing.
    """

    path: str
    commit: int
    items: int
    written: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Common:
    """What an earlier backup has already: rows by generation, perhaps fewer of the norms, and index files."""

    standings: Mapping[int, Standing] = field(default_factory=dict)
    norms: Mapping[int, int] = field(default_factory=dict)
    dropped: Sequence[int] = ()  # rebuilds in it whose numbers the store has used again
    indexes: frozenset[int] = frozenset()


def backup(
    path: AnyPath, target: AnyPath, *, force: bool = False, progress: Progress | None = None, known: Head | None = None
) -> Backup:
    """Copy a store into a new directory, or what is new into an earlier backup; others may write to it meanwhile.

    `force` allows a network file system, where locks and syncs may not hold. `progress` is called with (done, all)
    bytes. `known` is a commit that the store must have reached. Damaged rows are not copied: it raises, and an earlier
    backup stays.
    """
    source, directory = opening.directory_of(path), opening.directory_of(target)
    with _translating(source, directory):
        if opening.is_vacant(directory):
            return _anew(source, directory, marked=True, force=force, progress=progress, known=known)
        _require_backup(directory)
        locks.require_writable_platform(directory, force=force)
        lock = locks.lock_writer(directory)
        try:
            return _Copy(source, directory, lock, progress, known).onto_earlier()
        finally:
            lock.release()


def restore(path: AnyPath, target: AnyPath, *, force: bool = False, progress: Progress | None = None) -> Backup:
    """Copy a backup to a path where nothing is, as a store of its own that may be written to."""
    source, directory = opening.directory_of(path), opening.directory_of(target)
    with _translating(source, directory):
        if not os.path.lexists(source):
            raise StoreNotFound(f"there is no backup at {source}. Name the directory that `softkv backup` was given.")
        if not opening.is_vacant(directory):
            raise StoreExists(f"{directory} is there already, and nothing is restored over it. Move it away first.")
        return _anew(source, directory, marked=False, force=force, progress=progress, known=None)


def _anew(
    source: str, directory: str, *, marked: bool, force: bool, progress: Progress | None, known: Head | None
) -> Backup:
    """Copy all of a store to a path where nothing is; other users get no more access to it than to the original."""
    with opening.made_beside(directory, force=force) as (building, lock):
        if os.path.isdir(source):
            os.chmod(building, os.stat(source).st_mode & 0o777 | 0o700)
        made = _Copy(source, building, lock, progress, known).into_nothing(marked=marked)
    lock.release()
    return replace(made, path=directory)


def require_apart(source: str, directory: str) -> None:
    """Refuse to copy a directory to itself, or into itself."""
    if source == directory or directory.startswith(os.path.join(source, "")):
        raise BackupRefused(f"{directory} is the store itself or lies in it. Name a directory outside of it.")


@contextmanager
def _translating(source: str, directory: str) -> Iterator[None]:
    """Wrap a copy: refuse directories within one another, and raise errors of ours for those of the system."""
    require_apart(source, directory)
    with files.translating(f"cannot copy {source} to {directory}"):
        yield


def _require_backup(directory: str) -> None:
    if not os.path.isdir(directory) or not os.path.lexists(os.path.join(directory, CATALOG)):
        raise BackupRefused(f"{directory} is neither empty nor a backup, so nothing is written there.")
    if not opening.is_backup(directory):
        raise BackupRefused(
            f"{directory} is a store of its own and no backup, so it is not written over. Name another directory."
        )


class _Copy:
    """One copy in progress, into a directory that is locked; counts what it writes."""

    def __init__(
        self, source: str, directory: str, lock: locks.FileLock, progress: Progress | None, known: Head | None
    ) -> None:
        self.source, self.directory, self._lock, self._progress = source, directory, lock, progress
        self._known = known
        self._staged = os.path.join(directory, STAGED)
        self._written = self._done = self._total = 0
        self._left_out: list[str] = []

    def into_nothing(self, *, marked: bool) -> Backup:
        """All of the store, into an empty directory: as a backup, or as a store with a name of its own.

        A restored store gets a new name: else either store could be backed up over the backup of the other.
        """
        with original_of(self.source, self._staged, self._known) as original:
            store = original.head.store if marked else secrets.token_hex(16)
            self._write_files(original, _Common(), store)
            ancestry = opening.ancestry(self.source)
            if marked:
                note = f"A backup of store {store}. Only `softkv backup` writes to it.\n"
                self._write_file(os.path.join(self.directory, BACKUP), [(0, note.encode())])
            else:
                ancestry += f"restored from store {original.head.store} at commit {original.head.number}\n"
            if ancestry:
                self._write_file(os.path.join(self.directory, RESTORED), [(0, ancestry.encode())])
            os.rename(self._staged, os.path.join(self.directory, CATALOG))
            files.sync_directory(self.directory)
        return self._finished(Connection(os.path.join(self.directory, CATALOG), write=True), original, store)

    def onto_earlier(self) -> Backup:
        """What is new in the store, into an earlier backup of it."""
        connection = Connection(os.path.join(self.directory, CATALOG), write=True)
        try:
            connection.settle_writer()
            earlier = Catalog(connection)
            earlier.identify()
            remove_leftovers(self.directory, earlier)  # of an interrupted backup: they take space
            with original_of(self.source, self._staged, self._known) as original:
                common = _in_common(original, earlier, self.directory)
                self._forget_dropped(original, common, earlier)
                self._write_files(original, common, original.head.store)
                self._lock.forget_note()  # the note must not be ahead of the catalog, nor behind a closed one
                original.catalog.connection.copy_into(connection)
        except BaseException:
            connection.abandon()
            raise
        return self._finished(connection, original, original.head.store)

    def _forget_dropped(self, original: Original, common: _Common, earlier: Catalog) -> None:
        """Remove from an earlier backup a rebuild that was dropped and whose number another rebuild now has.

        As late as possible: what replaces it has been read completely, and compared with its checksums.
        """
        for number in common.dropped:
            generation, rows = original.generations[number], original.standings[number].rows
            step = max(1, _STRIDE // generation.layout.keys.row_bytes)
            for start in range(0, rows, step):
                generation.keys.block(start, min(start + step, rows))
                generation.values.block(start, min(start + step, rows))
            with earlier.connection.writing():
                earlier.drop_unfinished(number)

    # Writing

    def _write_files(self, original: Original, common: _Common, store: str) -> None:
        """Write all that the catalog names and the directory does not have yet; durable when this returns."""
        self._written, self._left_out = os.path.getsize(self._staged), list(original.lost)
        wanted = [(record, file) for record, file in original.indexes if record.file not in common.indexes]
        runs = {number: _runs(standing, common) for number, standing in original.standings.items()}
        self._total = sum(record.size for record, _ in wanted) + sum(
            len(run) * shape.row_bytes
            for number, standing in original.standings.items()
            for run, shape in zip(runs[number], standing.layout.arenas, strict=True)
        )
        files.require_room(self.directory, self._total, f"copying {self.source}")
        for number, generation in original.generations.items():
            self._write_generation(original, generation, store, common.standings.get(number), runs[number])
        folder = require_folder(self.directory)
        for record, file in wanted:
            self._write_index(os.path.join(folder, str(record.file)), record, file)
        files.sync_directory(folder)

    def _write_generation(
        self, original: Original, source: Generation, store: str, known: Standing | None, runs: Sequence[range]
    ) -> None:
        """Write the rows of a generation that the directory does not have, each compared with its checksum."""
        catalog = original.catalog
        target = (
            Generation.create(store, self.directory, source.number, source.layout, catalog)
            if known is None
            else generation_at(self.directory, store, known, catalog, write=True)
        )
        if target is None:
            raise StoreDamaged(
                f"{self.directory}: {generation_name(source.number)} is missing or has no PIN, so nothing can be added "
                "to it. Name another directory."
            )
        try:
            if known is not None:
                target.require_length(known.rows)
            for arena, rows, run in zip(target.arenas, (source.keys, source.values), runs[:2], strict=False):
                self._write_rows(arena, rows.block, run)
            norms, run = target.arenas[2], runs[2]  # derived, so they may be missing on either side
            run = range(min(run.start, norms.stored_rows()), run.stop)
            self._write_rows(norms, source.arenas[2].rows_as_they_are, run)
            target.make_durable()
        finally:
            target.release()

    def _write_rows(self, arena: Arena, read: Callable[[int, int], AnyArray], run: range) -> None:
        step = max(1, _STRIDE // arena.shape.row_bytes)
        for start in run[::step]:
            rows = read(start, min(start + step, run.stop))
            arena.write(start, rows)
            self._tell(rows.nbytes)

    def _write_index(self, path: str, record: IndexRecord, file: IndexFile) -> None:
        """Write one index file; a damaged one is left out."""
        try:
            self._write_file(path, file.pieces())
        except IndexDamaged:
            os.unlink(path)
            self._left_out.append(record.name)

    def _write_file(self, path: str, pieces: Iterable[tuple[int, bytes]]) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)  # left by an interrupted backup
        descriptor = files.create_file(path)
        try:
            for start, piece in pieces:
                files.write_at(descriptor, memoryview(piece), start, path)
                self._tell(len(piece))
            files.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def _tell(self, count: int) -> None:
        self._written += count
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def _finished(self, connection: Connection, original: Original, store: str) -> Backup:
        """Record in the directory which commit it holds and that it is complete, and remove files no longer named."""
        try:
            connection.settle_writer()
            catalog, head = Catalog(connection), original.head
            Acknowledged.of(replace(head, store=store), original.current).put(self._lock, durably=True)
            with connection.writing():
                catalog.advance(head, store=store, writing=0)
                for number in catalog.generations():
                    if number not in original.standings:
                        catalog.drop_generation(number)  # retired, and no reader of the backup has it open
            remove_leftovers(self.directory, catalog)
        except BaseException:
            connection.abandon()
            raise
        connection.close()
        files.sync_directory(self.directory)
        LOG.info("copied %s at commit %d to %s: %d bytes", self.source, head.number, self.directory, self._written)
        if self._left_out:
            LOG.warning("%s has no %s: damaged or missing in %s", self.directory, self._left_out, self.source)
        items = original.current.tally.count if original.current else 0
        return Backup(self.directory, head.number, items, self._written, tuple(self._left_out))


def _runs(standing: Standing, common: _Common) -> tuple[range, range, range]:
    """The rows of keys, values and norms that are to be written."""
    known = common.standings.get(standing.generation)
    first = known.rows if known else 0
    norms = common.norms.get(standing.generation, 0)
    return range(first, standing.rows), range(first, standing.rows), range(norms, standing.rows)


def _in_common(original: Original, earlier: Catalog, directory: str) -> _Common:
    """What an earlier backup has already; an error when it is of another store, newer, or of another history."""
    head = earlier.head()
    if head.store != original.head.store:
        raise BackupRefused(f"{directory} is a backup of another store. Name another directory.")
    if head.number > original.head.number or head.epoch > original.head.epoch:
        raise BackupRefused(
            f"{directory} holds commit {head.number} of writer {head.epoch}, and the store is at commit "
            f"{original.head.number} of writer {original.head.epoch}: is it an older copy of itself? Name another "
            "directory."
        )
    if head.number == original.head.number and _states(earlier) != _states(original.catalog):
        raise BackupRefused(_OTHER_HISTORY.format(directory))
    standings, norms, dropped = {}, {}, []
    for number in earlier.generations():
        if number in original.standings:
            known = earlier.standing(number)
            if _continues(original, earlier, known, range(2)):
                standings[number] = known
                norms[number] = known.rows if _continues(original, earlier, known, range(2, 3)) else 0
            elif number == head.generation:
                raise BackupRefused(_OTHER_HISTORY.format(directory))
            else:
                dropped.append(number)
    named = {one.file: one for number in earlier.generations() for _, one in records(earlier, number) if one}
    shared = [record for record, _ in original.indexes if record == named.get(record.file)]
    if any(one.file in named and one not in shared and one.number <= head.number for one, _ in original.indexes):
        raise BackupRefused(_OTHER_HISTORY.format(directory))
    return _Common(standings, norms, dropped, frozenset(one.file for one in shared if _is_there(directory, one)))


def _states(catalog: Catalog) -> object:
    """The content of a commit, without how its writer closed: two commits with the same number must agree in it."""
    head = catalog.head()
    if not head.generation:
        return replace(head, epoch=0, writing=0)
    standing = catalog.standing(head.generation)
    deaths = {block: bitmap.tobytes() for block, bitmap in catalog.deaths(standing, -1).items()}
    rows = standing.rows, standing.layout, standing.tails[:2], standing.tally.pack(), standing.settings
    return replace(head, epoch=0, writing=0), rows, deaths


def _is_there(directory: str, record: IndexRecord) -> bool:
    """Whether an earlier backup still has an index file that its catalog names."""
    with suppress(OSError):
        return os.path.getsize(os.path.join(directory, INDEX, str(record.file))) == record.size
    return False


_OTHER_HISTORY = (
    "{} is a backup of the same store that holds what this one does not: both come from one, and were changed apart. "
    "Name another directory."
)


def _continues(original: Original, earlier: Catalog, known: Standing, places: range) -> bool:
    """Whether the rows of a generation begin with those of the earlier backup, by the checksums of both catalogs."""
    number, catalog = known.generation, original.catalog
    standing, granule = original.standings[number], catalog.granule(number)
    if known.layout != standing.layout or known.rows > standing.rows or earlier.granule(number) != granule:
        return False
    for place in places:
        arena = original.generations[number].arenas[place]
        size = known.rows * arena.shape.row_bytes
        complete = size // granule
        for first in range(0, complete, _CHECKSUMS):
            span = (number, arena.shape.role, first, min(first + _CHECKSUMS, complete))
            if earlier.known_windows(*span) != catalog.known_windows(*span):
                return False
        if arena.stored_bytes() < size or arena.checksum(complete * granule, size) != known.tails[place]:
            return False
    return True
