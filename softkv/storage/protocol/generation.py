"""The files of one generation, open and pinned: keys, values and norms of the same rows.

A generation has one layout and only ever grows at its end. Readers pin it, so that it outlives the switch to a newer
one for as long as they need it.

Does not know which rows are live, nor when what it wrote is committed.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np
import numpy.typing as npt

from softkv.errors import NotAStore, StoreDamaged
from softkv.ndarrays import Matrix, Rows
from softkv.storage.catalog.catalog import Catalog, Standing
from softkv.storage.catalog.listing import Listing
from softkv.storage.catalog.matches import Matches
from softkv.storage.catalog.roster import Roster
from softkv.storage.disk import files, locks
from softkv.storage.disk.arena import Arena, ArenaIdentity, VerifiedRows, extend_windows, flat
from softkv.storage.disk.numbers import believable
from softkv.storage.layout import GRANULE, WINDOW, Layout, RowShape, generation_name

Complete = tuple[list[tuple[int, int]], int]  # complete windows (number, checksum), and the unfinished one's checksum


class Generation:
    """The arenas of one generation. Shared by the snapshots of a handle; closed when the last lets go."""

    def __init__(
        self,
        directory: str,
        number: int,
        layout: Layout,
        catalog: Catalog,
        arenas: Sequence[Arena],
        pin: locks.FileLock | None,
    ) -> None:
        self.directory, self.number, self.layout, self._pin = directory, number, layout, pin
        self.arenas = tuple(arenas)
        self.keys, self.values, self._norms = (verified(arena, catalog, number) for arena in arenas)
        self.matches, self.listing = Matches(Roster(catalog, number)), Listing(catalog, number)
        self._users = 1
        self._process, self._lock = os.getpid(), threading.Lock()

    @classmethod
    def open(
        cls, store: str, directory: str, standing: Standing, catalog: Catalog, pin: locks.FileLock, *, write: bool
    ) -> "Generation":
        """Open a generation that the catalog names and `pin` keeps; from here on the pin belongs to it."""
        path = os.path.join(directory, generation_name(standing.generation))

        def opened(shape: RowShape) -> Arena:
            identity = ArenaIdentity(store, standing.generation, shape)
            return _open_arena(os.path.join(path, shape.file), identity, granule, write=write)

        with ExitStack() as undone:
            undone.callback(pin.release)
            if not files.is_directory(path):
                raise NotAStore(f"{path} is a link or none of our directories, so nothing in it is opened")
            granule = catalog.granule(standing.generation)
            arenas = _arenas(opened, standing.layout, undone)
            undone.pop_all()
        return cls(path, standing.generation, standing.layout, catalog, arenas, pin)

    @classmethod
    def create(cls, store: str, directory: str, number: int, layout: Layout, catalog: Catalog) -> "Generation":
        """Make the files of a new generation. They are not durable, and not named by the catalog yet."""
        path = os.path.join(directory, generation_name(number))
        files.remove_tree(path)  # what a crash left under this name was never named by the catalog
        files.make_directory(path)
        os.close(files.create_file(os.path.join(path, locks.PIN)))

        def created(shape: RowShape) -> Arena:
            return Arena.create(os.path.join(path, shape.file), ArenaIdentity(store, number, shape), GRANULE)

        with ExitStack() as undone:
            undone.callback(files.remove_tree, path)
            arenas = _arenas(created, layout, undone)
            pin = locks.pin_shared(path)
            undone.pop_all()
        return cls(path, number, layout, catalog, arenas, pin)

    def make_durable(self) -> None:
        """Sync a new generation whole: files first, then the names that lead to them."""
        for arena in self.arenas:
            arena.sync()
        files.sync_directory(self.directory)
        files.sync_directory(os.path.dirname(self.directory))

    def grow(self, standing: Standing) -> None:
        """Extend the rows to what is committed."""
        for rows, tail in zip((self.keys, self.values, self._norms), standing.tails, strict=True):
            rows.grow(standing.rows, tail)

    def require_length(self, rows: int) -> None:
        """Refuse row counts for which the files are too short, before memory is allocated by them."""
        for arena in self.arenas[:2]:
            arena.require_rows(rows)

    def give_back(self, rows: int) -> None:
        """Free the space behind the committed rows."""
        for arena in self.arenas:
            arena.give_back(rows)

    def norms(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """‖key‖ of rows start .. stop - 1; worked out again where the file is short or damaged."""
        try:
            return self._norms.block(start, stop)[:, 0]
        except StoreDamaged:
            return norms_of(self.keys.block(start, stop))[:, 0]

    def norms_of(self, rows: Rows) -> npt.NDArray[np.float32]:
        """‖key‖ of these rows, in this order, as a column; worked out again like `norms`."""
        try:
            return self._norms.take(rows)
        except StoreDamaged:
            return norms_of(self.keys.take(rows))

    def verify_end(self) -> None:
        """Compare the last windows of keys and values with their checksums."""
        for rows in (self.keys, self.values):
            rows.verify_end()

    def norms_due(self, rows: int, count: int) -> bool:
        """Whether `count` more rows complete a MiB of norms, which is then synced."""
        span = WINDOW // self.layout.norms.row_bytes
        return rows // span < (rows + count) // span

    def mend_norms(self, rows: int) -> tuple[list[tuple[int, int]], int] | None:
        """Write again the norms that are not as committed at the end of their file; returns their new checksums.

        Looks at the end only, since norms are synced once per MiB: see `norms_due`. Older damage is noticed when it is
        read.
        """
        try:
            self._norms.verify_end()
        except StoreDamaged:
            shape, arena = self.layout.norms, self.arenas[2]
            span = WINDOW // shape.row_bytes
            start = max(0, min(rows // span - 1, arena.stored_rows() // span)) * span
            norms = norms_of(self.keys.block(start, rows))
            arena.write(start, norms)
            return extend_windows(start * shape.row_bytes, 0, flat(norms), arena.granule)
        return None

    def retain(self) -> "Generation":
        """Count one more user."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Count one user less; the last closes the files and releases the pin."""
        if os.getpid() != self._process:
            return  # a forked child released the pin at its start, and its end closes the files
        with self._lock:
            self._users -= 1
            if self._users:
                return
        for arena in self.arenas:
            arena.close()
        if self._pin is not None:
            self._pin.release()


def norms_of(vectors: Matrix) -> npt.NDArray[np.float32]:
    """‖k‖ of each row, as a column; summed in float64 where float32 squares would overflow or vanish.

    A length that float32 cannot hold is infinite.
    """
    with np.errstate(over="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
        norms: npt.NDArray[np.float32] = np.sqrt(squares)
        for row in np.flatnonzero(~((squares > 1e-30) & (squares < 1e30))).tolist():
            norms[row] = np.linalg.norm(vectors[row].astype(np.float64))
    return norms.reshape(-1, 1)


def verified(arena: Arena, catalog: Catalog, number: int) -> VerifiedRows:
    """The rows of an arena, compared with what the catalog says of them; how many there are is not known yet."""
    expected = partial(catalog.windows, number, arena.shape.role)
    return VerifiedRows(arena, expected, believable(arena.shape, catalog.label_count))


def _arenas(make: Callable[[RowShape], Arena], layout: Layout, undone: ExitStack) -> list[Arena]:
    """The arenas of a layout; when one of them or what follows cannot be had, they are closed."""
    arenas: list[Arena] = []
    for shape in layout.arenas:
        arenas.append(make(shape))
        undone.callback(arenas[-1].close)
    return arenas


def _open_arena(path: str, identity: ArenaIdentity, granule: int, *, write: bool) -> Arena:
    """Open an arena; that of norms is derived, and made again by a writer when it is missing or damaged."""
    try:
        return Arena.open(path, identity, granule, write=write)
    except StoreDamaged:
        if identity.shape.role != "norms":
            raise
        if not write:
            return Arena.absent(path, identity.shape, granule)
        if os.path.lexists(path):
            os.unlink(path)
        return Arena.create(path, identity, granule)
