"""A store as its users see it: a SoftKV, a dict that also answers what it was never told.

Its methods that change items are in changes.py, those that read in reader.py, upkeep in upkeep.py. Threads may share a
handle; it does not survive a fork.
"""

import os
import threading
from contextlib import suppress
from dataclasses import replace

from softkv.asking.embedding import AnyEmbedder, Embedding
from softkv.asking.profile import Profile
from softkv.asking.view import Findings, View, ViewT
from softkv.database.aside import put_back, require_nothing_kept
from softkv.database.changes import Changes
from softkv.database.reader import Reader
from softkv.database.rechecking import Rechecking
from softkv.database.summary import Info, summary
from softkv.errors import StoreError, StoreLocked
from softkv.progress import Progress
from softkv.storage import Backup, Report, Store
from softkv.storage.closing import Closing
from softkv.storage.disk.announced import announced
from softkv.storage.disk.locks import opened
from softkv.storage.protocol.opening import directory_of


def open_here(
    path: str | os.PathLike[str],
    mode: str = "c",
    *,
    value: str | None = None,
    compatibility: str | None = None,
    embedder: AnyEmbedder = None,
    temperature: float | None = None,
    force: bool = False,
    wait: float = 0.0,
) -> "SoftKV":
    """Open a store in a local directory, and make it if there is none; the arguments are those of `open`."""
    wishes = Profile().wishing(value=value, compatibility=compatibility, temperature=temperature, items=0)
    _look_beside(path, mode)
    try:
        store = opened(lambda: Store.open(path, mode, force=force, accept=Profile.of), wait)
    except StoreLocked as error:
        name_server(path, error)
        raise
    try:
        profile = Profile.of(store.settings)
        wanted = profile.wishing(value=value, compatibility=compatibility, temperature=temperature, items=len(store))
        if mode == "r":  # a reader's options hold for its handle alone; the others follow the store
            wanted = wishes
        db = SoftKV(store, Embedding(embedder, store.path), wanted if wanted != profile else None, writes=mode != "r")
    except BaseException:
        store.close()
        raise
    return db


def _look_beside(path: str | os.PathLike[str], mode: str) -> None:
    """Put back a store whose replacement was interrupted; for a reader, raise an error that says where it is."""
    directory = directory_of(path)
    if mode == "r":
        require_nothing_kept(directory)
    elif mode != "n" and not os.path.lexists(directory):
        put_back(directory)


def name_server(path: str | os.PathLike[str], error: StoreLocked) -> None:
    """Add to an error the URL at which the store is served, if that is why it cannot be written to."""
    found = announced(directory_of(path))
    if found is not None:
        error.args = (f"{error} It is served at {found.url}: open that, with the token in its file SERVER.",)


class SoftKV(Closing, Changes):
    """A soft key-value store. Made by `softkv.open`; use it as a context manager, or close it."""

    def __init__(self, store: Store, embedding: Embedding, wanted: Profile | None, *, writes: bool) -> None:
        self._store, self._embedding, self._writes = store, embedding, writes
        # Two locks, so that lookups go on while `add` embeds texts. This one is taken first.
        self._changing = threading.RLock()
        self._lock = threading.RLock()
        self._findings = Findings()
        self._seen: View | None = None
        self._rechecking = Rechecking()
        self._wanted = None if writes else wanted
        if wanted is not None and writes:
            store.configure(wanted.settings())

    @property
    def path(self) -> str:
        """The directory of the store."""
        return self._store.path

    def _view(self) -> View:
        with self._lock:
            commit = self._store.commit
            if self._seen is None or self._seen.snapshot.commit != commit:
                # Subtle: the old view is not closed, since another thread may read it; it goes with its last user.
                self._seen = self._new_view()
            return self._seen

    def _new_view(self) -> View:
        return self._wished(View(self._store.snapshot(), self._findings))

    def _wished(self, view: ViewT) -> ViewT:
        """A view, with the reader's own options where the store has none."""
        if self._wanted is not None:
            view.profile = replace(
                view.profile,
                compatibility=view.profile.compatibility or self._wanted.compatibility,
                temperature=self._wanted.temperature or view.profile.temperature,
            )
        return view

    def snapshot(self) -> "StoreView":
        """The store as it is now, to read for as long as it is open, whatever is written meanwhile."""
        with self._lock:
            return StoreView(self._new_view(), self._embedding)

    def info(self) -> Info:
        """What the store is: items, widths, kind, how it compares, its embedder, its temperature, its size on disk."""
        begun = self._store.unfinished
        unfinished = None if begun is None else f"{begun.done:,} of {begun.total:,} items embedded anew"
        return summary(self._view(), self.path, unfinished)

    def check(self, *, at_least: int | None = None) -> Report:
        """Compare everything on the disk with everything else; a store that is before commit `at_least` is not ok."""
        return self._store.check(at_least=at_least)

    def backup(
        self, directory: str | os.PathLike[str], *, force: bool = False, progress: Progress | None = None
    ) -> Backup:
        """Copy the store as of its newest commit into a directory, while others read and write it.

        Where the directory is an earlier backup of the store, only what is new is written. A backup is read like any
        store, and `softkv.restore` makes a store of it that may be written to.

        Args:
            directory: Where nothing is yet, or an earlier backup.
            force: Also on a network file system, where locks and syncs may not hold.
            progress: Called with (done, all) bytes.

        >>> import softkv, tempfile, os
        >>> folder = tempfile.mkdtemp()
        >>> with softkv.open(os.path.join(folder, "houses.softkv")) as db:
        ...     db["a large house"] = 2450
        ...     db.backup(os.path.join(folder, "backup")).items
        1
        >>> softkv.restore(os.path.join(folder, "backup"), os.path.join(folder, "again.softkv")).items
        1
        """
        return self._store.backup(directory, force=force, progress=progress)

    def close(self) -> None:
        """Close the store. What was acknowledged is on the disk already; a writer also saves a temperature by rule."""
        with self._changing, self._lock:
            try:
                self._leave_temperature()
            finally:
                self._unpin()
                self._store.close()

    def _leave_temperature(self) -> None:
        """Save the temperature by rule, if there is none yet or the store has outgrown it.

        It only saves the next process some time, so a failure to write it is no error.
        """
        if not self._writes:
            return
        with suppress(StoreError):
            if self._store.unfinished is not None:
                return  # it could not be written, so it need not be computed
            view = self._view()
            kept, items = view.profile, len(view.snapshot)
            if items and kept.compatibility and not (kept.temperature and kept.temperature.suits(items)):
                wanted = replace(kept, temperature=view.temperature(kept.compatibility))
                self._seen = None
                self._store.configure(wanted.settings())

    def __repr__(self) -> str:
        return f"<SoftKV {self.path!r}>"


class StoreView(Closing, Reader):
    """A store as of one commit, to read. Close it, or use it as a context manager, so that old files can go."""

    def __init__(self, view: View, embedding: Embedding) -> None:
        self._kept, self._embedding = view, embedding

    def _view(self) -> View:
        return self._kept

    @property
    def commit(self) -> int:
        """The number of the commit that is seen."""
        return self._kept.snapshot.commit

    def close(self) -> None:
        """Release the files of this commit."""
        self._kept.snapshot.close()
