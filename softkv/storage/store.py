"""A store on disk: open it, add, delete and replace items, and read them back.

Reading is the work of snapshot.py: every call here looks for the newest commit and asks a snapshot of it. Changing is
the work of writer.py. This file joins the two, and is what the rest of softkv sees of storage.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from softkv.errors import AccessRefused, HandleClosed, InputError
from softkv.ndarrays import Rows
from softkv.progress import Progress
from softkv.storage.batch import Added, checked
from softkv.storage.catalog.batches import Recorded, Stamp, found, recorded
from softkv.storage.catalog.begun import Begun, begun, require_finished
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.labels import LabelBook
from softkv.storage.closing import Closing
from softkv.storage.disk.locks import require_held
from softkv.storage.disk.place import in_one_place
from softkv.storage.layout import AnyPath as AnyPath
from softkv.storage.layout import Layout, ValueKind
from softkv.storage.protocol import opening
from softkv.storage.protocol.backup import Backup, backup
from softkv.storage.protocol.checking import Report, check
from softkv.storage.protocol.committed import load
from softkv.storage.protocol.compaction import compact
from softkv.storage.protocol.conflicts import checked_names, require_known, rows_of
from softkv.storage.protocol.following import Following
from softkv.storage.protocol.opening import Accepting
from softkv.storage.protocol.publishing import FileContent, drop_index, put_derived, put_index
from softkv.storage.protocol.rebuilding import Rebuild, abandon, begin
from softkv.storage.protocol.snapshot import Snapshot
from softkv.storage.protocol.writer import Writer
from softkv.storage.threads import OwnLock

MODES = ("r", "w", "c", "n")


class Store(Closing):
    """Items on disk: a key (or none), a key vector, a value, a payload. One writer, any number of readers.

    Every call sees the newest commit; `snapshot` keeps one. Threads may share a handle; it does not survive a fork.
    """

    def __init__(self, directory: str, catalog: Catalog, writer: Writer | None) -> None:
        self.path, self._catalog, self._writer = directory, catalog, writer
        self._lock = OwnLock(directory)
        self._labels = LabelBook(catalog)
        self._following = Following(directory, catalog)
        self._committed = writer.committed if writer else load(catalog, directory, None, write=False)
        self._view = Snapshot(catalog, self._committed, self._labels)
        self._closed = False

    @classmethod
    def open(cls, path: AnyPath, mode: str = "r", *, force: bool = False, accept: Accepting | None = None) -> "Store":
        """Open a store: "r" to read, "w" to write, "c" to write and make it if need be, "n" to start it anew.

        `force` allows writing on a network file system, where locks and syncs may not hold. `accept` is shown the
        settings of a store that is there before it is opened for writing, and may raise to leave it as it is.
        """
        if mode not in MODES:
            raise InputError(f"mode is {mode!r}; use one of {', '.join(MODES)}")
        directory = opening.directory_of(path)
        if mode == "r":
            return in_one_place(directory, lambda: cls._reading(directory), cls.close)
        writer = opening.become_writer(directory, mode, force=force, accept=accept)
        return cls(directory, writer.catalog, writer)

    @classmethod
    def _reading(cls, directory: str) -> "Store":
        catalog = opening.connect(directory)
        try:
            return cls(directory, catalog, None)
        except BaseException:
            catalog.connection.close()
            raise

    @staticmethod
    def erase(path: AnyPath) -> None:
        """Remove a store that has no writer; readers keep what they have open."""
        opening.erase(opening.directory_of(path), force=False)

    @staticmethod
    def move(path: AnyPath, target: AnyPath) -> None:
        """Rename a store that is not open anywhere, to a path where nothing is."""
        opening.move(opening.directory_of(path), opening.directory_of(target))

    # Reading

    def snapshot(self) -> Snapshot:
        """The store as it is now, kept for as long as it is open whatever is written meanwhile."""
        with self._lock:
            self._current()
            return Snapshot(self._catalog, self._committed, self._labels)

    @property
    def commit(self) -> int:
        """The number of the newest commit, looked up on every call."""
        return self._current().commit

    @property
    def layout(self) -> Layout | None:
        """Widths and kind of value; None before the first item."""
        return self._current().layout

    @property
    def settings(self) -> dict[str, Any]:
        """What the users of the store keep with it."""
        return self._current().settings

    @property
    def unfinished(self) -> Begun | None:
        """The progress of a rebuild that was begun and is not finished; None when there is none."""
        with self._lock:
            self._current()
            return begun(self._catalog)

    def __len__(self) -> int:
        return len(self._current())

    def __contains__(self, key: object) -> bool:
        return key in self._current()

    def __getattr__(self, name: str) -> Any:
        """The attribute of this name of a snapshot of the newest commit; methods use the newest commit when called."""
        if name.startswith("_"):
            raise AttributeError(name)
        if not callable(getattr(Snapshot, name, None)):
            return getattr(self._current(), name)
        return lambda *given, **named: getattr(self._current(), name)(*given, **named)

    def _current(self) -> Snapshot:
        with self._lock:
            if self._closed:
                raise HandleClosed(f"{self.path} was closed; open it again")
            newest = self._writer.newest() if self._writer else self._following.newest(self._committed)
            if newest is not self._committed:
                # Subtle: the old view is not closed. Another thread may be reading it, and it goes when they all have.
                self._committed, self._view = newest, Snapshot(self._catalog, newest, self._labels)
            return self._view

    # Writing

    def append(
        self,
        vectors: Any,
        values: Any,
        *,
        keys: Sequence[str | None] | None = None,
        payloads: Sequence[Any] | None = None,
        texts: Sequence[str | None] | None = None,
        value_vectors: Any = None,
        kind: ValueKind | None = None,
        on_conflict: str = "error",
        settings: Mapping[str, Any] | None = None,
        stamp: Stamp | None = None,
    ) -> Added:
        """Add one batch, wholly or not at all; when this returns, it is on the disk.

        Without a `kind`, first texts are labels, or texts when `value_vectors` gives their embeddings. A key that is
        there already is an error that names it, or is replaced, or left as it is ("ignore"). `settings` replaces the
        settings of the store in the same commit, if an item is added. A batch with a `stamp` is written once:
        `recorded`.
        """
        writer = self._require_writer()
        require_known(on_conflict)
        with self._lock:
            done = self.recorded(stamp)
            if done is not None:
                return done
            batch = checked(
                vectors,
                values,
                keys=keys,
                payloads=payloads,
                texts=texts,
                value_vectors=value_vectors,
                kind=kind,
                layout=writer.committed.standing.layout if writer.committed.standing else None,
            )
            return writer.append(batch, on_conflict, settings, stamp)

    def append_nothing(self, stamp: Stamp | None) -> Added:
        """The result of a batch that turned out to have no items; recorded under its name, if it has one."""
        writer = self._require_writer()
        with self._lock:
            return self.recorded(stamp) or writer.append_nothing(stamp)

    def recorded(self, stamp: Stamp | None) -> Added | None:
        """The result of a batch that was added under this name; `BatchMismatch` when it had other content."""
        done = self._recorded(stamp, 5)
        return None if done is None else Added(*done)

    def written(self, name: str) -> Recorded | None:
        """What is recorded of the batch of this name, in the last seven days."""
        return found(self._require_writer().catalog.connection, name)

    def _recorded(self, stamp: Stamp | None, count: int) -> list[int] | None:
        with self._lock:
            connection = self._require_writer().catalog.connection
            return None if stamp is None else recorded(connection, stamp, count)

    def delete(self, keys: str | Sequence[str], *, stamp: Stamp | None = None) -> int:
        """Delete the items with these keys or `#<number>`s, all of them or none; returns how many."""
        writer = self._require_writer()
        names = checked_names(keys)
        with self._lock:
            done, view = self._recorded(stamp, 1), self._current()
            if done is not None:
                return done[0]
            doomed = rows_of(names, view)
            if len(doomed) or stamp is not None:
                writer.delete(doomed, stamp)
            return len(doomed)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings: JSON that the users of the store keep with it."""
        with self._lock:
            self._require_writer().configure(settings)

    def compact(
        self,
        order: Sequence[int] | Rows | None = None,
        *,
        index: Mapping[str, FileContent] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Copy the live rows to a new generation, without the dead ones. Other handles read on; this one waits.

        With `order`, which names each live row once, they lie in this order in it, also when none is dead; the order
        of the items stays. `index` names files that describe it: they are there with it or not at all. `progress` is
        told how many rows are copied, and of how many.
        """
        with self._lock:
            compact(self._require_writer(), order, index, progress)
            self._switched()

    def put_index(self, name: str, content: FileContent, *, instead_of: str | None = None) -> None:
        """Add or replace an index file of the rows as they are, and forget another; a compaction leaves it behind."""
        with self._lock:
            put_index(self._require_writer(), name, content, instead_of)

    def drop_index(self, name: str | None = None) -> None:
        """Forget an index file, or all of them; one that was already handed out can still be read."""
        with self._lock:
            drop_index(self._require_writer(), name)

    def put_derived(self, name: str, content: bytes, *, instead_of: Sequence[int] = ()) -> int:
        """Add a part of what is derived beside an index file, in the place of others; returns its commit and number."""
        with self._lock:
            return put_derived(self._require_writer(), name, content, instead_of)

    def rebuild(self, *, key_width: int, value_width: int | None = None, settings: Mapping[str, Any]) -> Rebuild:
        """Begin to give all items other key vectors, of this width, or go on with what was begun; see `Rebuild`.

        Texts as values get other value vectors too, of `value_width`. Until it is finished or abandoned, reading goes
        on with what is there, and every other change is refused. `settings` become those of the store at the end.
        """
        with self._lock:
            writer = self._require_writer()
            begun = begin(writer, key_width=key_width, value_width=value_width, settings=settings)
            return Rebuild(writer, self._lock, self._switched, begun, settings)

    def abandon(self) -> None:
        """Drop the unfinished rebuild, if there is one; the store stays as it is."""
        with self._lock:
            abandon(self._require_writer())

    def set_apart(self) -> None:
        """Make a copy of a store a separate one: with its own random draws, and batches that only the first counts."""
        with self._lock:
            self._require_writer().set_apart()

    def _switched(self) -> None:
        """Drop the view of the old generation after a switch to a new one, and with it the references to its files."""
        self._require_writer().remove_retired()

    def require_writable(self) -> None:
        """Refuse a handle that may not change the store, before work is done for it."""
        self._require_writer()

    def require_finished(self) -> None:
        """Refuse a handle that may not change the store, and to change one whose rebuild is unfinished."""
        writer = self._require_writer()
        with self._lock:
            require_finished(writer.catalog, writer.newest().head, self.path)

    def _require_writer(self) -> Writer:
        with self._lock:
            self._current()
            if self._writer is None:
                raise AccessRefused(f"{self.path} is open for reading; open it with mode 'w' to change it")
            return self._writer

    # The handle

    def check(self, *, at_least: int | None = None) -> Report:
        """Compare everything on the disk with everything else; see `softkv.storage.check`."""
        self._current()
        return check(self.path, at_least=at_least)

    def backup(self, target: AnyPath, *, force: bool = False, progress: Progress | None = None) -> Backup:
        """Copy the store as of its newest commit into a new directory, or into an earlier backup of it."""
        self._current()
        if self._writer is not None:
            require_held(self._writer.lock)  # else another copy may be there now
        return backup(self.path, target, force=force, progress=progress, known=self._committed.head)

    def close(self) -> None:
        """Close the store. What was acknowledged is on the disk already; this only tidies up."""
        if self._lock.is_inherited():
            self._closed = True  # the parent's files are the parent's to close
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            del self._view  # not closed: another thread may be in the middle of a call, and it goes when that ends
            if self._writer:
                self._writer.close()
            else:
                if self._committed.generation:
                    self._committed.generation.release()
                self._catalog.connection.close()
