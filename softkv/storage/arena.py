"""Fixed-width rows in a file: a 4096-byte header that says what they are, then the rows, nothing else.

Rows are written at a given row number, never at the end of the file, so that what a crash left behind is overwritten.
They are read through a read-only map of the committed prefix, whose 1 MiB windows are compared with the checksums of
the catalog when they are first touched.

Does not know which rows exist (catalog.py) or when they become durable (store.py).
"""

import json
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from softkv.errors import HandleClosed, StorageFailed, StoreDamaged
from softkv.storage import files
from softkv.storage.layout import RowShape
from softkv.storage.numbers import Believable

HEADER = 4096
WINDOW = 1 << 20  # bytes of rows under one checksum
_MAGIC = b"softkv arena 1\n"
_SEAL = len(b"crc32 00000000\n")

Array = npt.NDArray[Any]
Expected = Callable[[int, int], Sequence[int]]  # checksums of the complete windows first .. last - 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose rows these are: the store, its generation, and their shape."""

    store: str
    generation: int
    shape: RowShape

    def header(self) -> bytes:
        """The first 4096 bytes of the file: text that a person can read with `head -c 4096`."""
        fields = {"store": self.store, "generation": self.generation, **asdict(self.shape)}
        text = _MAGIC + json.dumps(fields).encode() + b"\n"
        text += b" " * (HEADER - _SEAL - len(text) - 1) + b"\n"
        return text + b"crc32 %08x\n" % crc32(text)


def extend_windows(length: int, tail: int, data: memoryview) -> tuple[list[tuple[int, int]], int]:
    """Continue checksums over `data`, which follows `length` bytes whose unfinished window has checksum `tail`.

    Returns the windows that became complete, as (number, checksum), and the checksum of the unfinished one.
    """
    finished = []
    data = data.cast("B")
    while data:
        piece = data[: WINDOW - length % WINDOW]
        tail = crc32(piece, tail)
        length += len(piece)
        data = data[len(piece) :]
        if length % WINDOW == 0:
            finished.append((length // WINDOW - 1, tail))
            tail = 0
    return finished, tail


def flat(rows: Array) -> memoryview:
    """The bytes of C-contiguous rows."""
    return rows.reshape(-1).view(np.uint8).data


class Arena:
    """One file of rows, open for reading and perhaps for writing."""

    def __init__(self, path: str, shape: RowShape, descriptor: int) -> None:
        self.path, self.shape = path, shape
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._closed, self._lock = False, threading.Lock()

    @classmethod
    def create(cls, path: str, identity: Identity) -> "Arena":
        """Make the file with its header; nothing is durable yet."""
        arena = cls(path, identity.shape, files.create_file(path))
        try:
            files.write_at(arena._descriptor, memoryview(identity.header()), 0, path)
        except BaseException:
            arena.close()
            raise
        return arena

    @classmethod
    def open(cls, path: str, identity: Identity, *, write: bool = False, believe_header: bool = True) -> "Arena":
        """Open the file after comparing its header with what it must say; without that only to save what is left."""
        descriptor = files.open_regular(path, write=write)
        try:
            found = files.read_start(descriptor, HEADER, path)
            if believe_header and found != identity.header():
                raise StoreDamaged(f"{path}: {_difference(found, identity)}. `softkv check` tells what is left.")
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, identity.shape, descriptor)

    @classmethod
    def absent(cls, path: str, shape: RowShape) -> "Arena":
        """An arena without a file, which has no rows: every read says so."""
        return cls(path, shape, -1)

    def write(self, row: int, rows: Array) -> None:
        """Write rows from number `row` on."""
        files.write_at(self._descriptor, flat(rows), HEADER + row * self.shape.row_bytes, self.path)

    def give_back(self, count: int) -> None:
        """Free the space behind the first `count` rows, as far as the system lets us; only the writer knows them."""
        end = HEADER + count * self.shape.row_bytes
        with suppress(OSError):
            if os.fstat(self._descriptor).st_size > end:
                os.ftruncate(self._descriptor, end)

    def sync(self) -> None:
        """Make all that was written durable."""
        files.sync(self._descriptor, self.path)

    def rows(self, count: int) -> Array:
        """The first `count` rows as a read-only array of shape (count, width) over the file itself."""
        needed = HEADER + count * self.shape.row_bytes
        mapped = self._map  # once: another thread may put a map in its place that is long enough for its own rows only
        if mapped is None or len(mapped) < needed:
            with self._lock:  # or what is mapped might be another file, which has got the number of a closed one
                self._map = mapped = self._mapped(needed)
        cells = np.frombuffer(mapped, self.shape.dtype, count * self.shape.width, HEADER)
        return cells.reshape(count, self.shape.width)

    def _mapped(self, needed: int) -> mmap.mmap:
        # Subtle: touching a map beyond the end of its file kills the process, so the length is checked first.
        self._require_length(needed)
        try:
            return mmap.mmap(self._descriptor, needed, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StorageFailed(f"cannot map {self.path}: {error}") from error

    def require_rows(self, count: int) -> None:
        """Refuse a row count that the file does not bear out."""
        self._require_length(HEADER + count * self.shape.row_bytes)

    def stored_bytes(self) -> int:
        """How many bytes of rows the file holds, committed or not."""
        return max(0, os.fstat(self._descriptor).st_size - HEADER) if self._descriptor >= 0 else 0

    def stored_rows(self) -> int:
        """How many whole rows the file holds, committed or not."""
        return self.stored_bytes() // self.shape.row_bytes

    def checksum(self, start: int, end: int) -> int:
        """The checksum of these bytes of rows as they are on the disk; they must be there."""
        return crc32(flat(self.numbers(start, end)))

    def numbers(self, start: int, end: int) -> Array:
        """The numbers in these bytes of rows; the file may be far longer, so no more of it is mapped."""
        cells = self.rows(min(self.stored_rows(), -(-end // self.shape.row_bytes))).reshape(-1)
        return cells[start // cells.itemsize : end // cells.itemsize]

    def _require_length(self, needed: int) -> None:
        if self._closed:
            raise HandleClosed(f"{self.path} was closed with its snapshot or store; open the store again")
        size = os.fstat(self._descriptor).st_size if self._descriptor >= 0 else 0
        if size < needed:
            raise StoreDamaged(
                f"{self.path} has {size} bytes, but the catalog counts on {needed}: it is missing or was cut off. "
                "`softkv check` tells what is left."
            )

    def close(self) -> None:
        """Close the file. Arrays handed out before stay readable."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._map, self._closed = -1, None, True


class VerifiedRows:
    """The committed prefix of an arena, compared with its checksums window by window when it is first touched."""

    def __init__(self, arena: Arena, expected: Expected, believable: Believable | None = None) -> None:
        self.arena = arena
        self._expected, self._believable = expected, believable
        self._bytes = self._tail = 0  # how long the prefix is, and the checksum of its unfinished window
        self._verified = np.zeros(0, np.bool_)  # per window, the unfinished one included
        self._progress = (-1, 0, 0)  # the last unfinished window that was verified: number, length, checksum
        self._lock = threading.Lock()

    def grow(self, rows: int, tail: int) -> None:
        """Take note that `rows` rows are committed now, the unfinished window having checksum `tail`."""
        with self._lock:
            size = rows * self.arena.shape.row_bytes
            if size <= self._bytes:
                return
            unfinished = self._bytes // WINDOW
            verified = np.zeros(-(-size // WINDOW), np.bool_)
            verified[:unfinished] = self._verified[:unfinished]
            self._bytes, self._tail, self._verified = size, tail, verified

    def block(self, start: int, stop: int) -> Array:
        """Rows start .. stop - 1 as a view of the file."""
        row_bytes = self.arena.shape.row_bytes
        rows = self.arena.rows(self._bytes // row_bytes)
        if stop > start:
            self._verify(np.arange(start * row_bytes // WINDOW, (stop * row_bytes - 1) // WINDOW + 1))
        return rows[start:stop]

    def take(self, numbers: npt.NDArray[np.int64]) -> Array:
        """A copy of the rows with these numbers, in this order."""
        row_bytes = self.arena.shape.row_bytes
        rows = self.arena.rows(self._bytes // row_bytes)
        first, last = numbers * row_bytes // WINDOW, ((numbers + 1) * row_bytes - 1) // WINDOW
        if len(numbers):
            if row_bytes > WINDOW:
                first, last = np.arange(first.min(), last.max() + 1), last
            self._verify(np.concatenate([first, last]))
        return np.take(rows, numbers, axis=0)

    def runs(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> Array:
        """All rows as a view of the file, of which those in these runs are compared; each run has rows."""
        row_bytes = self.arena.shape.row_bytes
        rows = self.arena.rows(self._bytes // row_bytes)
        # How many runs begin before the end of a window less how many end before its start: none, or it is touched.
        edges = np.zeros(len(self._verified) + 1, np.int64)
        np.add.at(edges, starts * row_bytes // WINDOW, 1)
        np.add.at(edges, (stops * row_bytes - 1) // WINDOW + 1, -1)
        self._verify(np.flatnonzero(edges[:-1].cumsum()))
        return rows

    def verify_end(self) -> None:
        """Compare the last two windows with their checksums: all that a crash can have left undone."""
        row_bytes = self.arena.shape.row_bytes
        rows = self._bytes // row_bytes
        self.block(max(0, rows - max(1, WINDOW // row_bytes)), rows)

    def _verify(self, windows: npt.NDArray[np.int64]) -> None:
        if self._verified[windows].all():
            return
        with self._lock:
            # Subtle: not the caller's rows. The prefix may have grown since, and its last window has a new checksum.
            data = flat(self.arena.rows(self._bytes // self.arena.shape.row_bytes))
            for window in np.unique(windows[~self._verified[windows]]).tolist():
                self._verify_window(data, window)

    def _verify_window(self, data: memoryview, window: int) -> None:
        start, end = window * WINDOW, min((window + 1) * WINDOW, self._bytes)
        seen, length, checksum = self._progress
        if seen != window:
            length = checksum = 0
        fresh = data[start + length : end]
        checksum = crc32(fresh, checksum)
        complete = end - start == WINDOW
        if checksum != (self._expected(window, window + 1)[0] if complete else self._tail):
            raise StoreDamaged(
                f"{self.arena.path}: bytes {HEADER + start} to {HEADER + end} do not match their checksum. "
                "`softkv check` lists the damage; `softkv check --repair-to NEW` saves the good rows."
            )
        if self._believable is not None and not self._believable(np.frombuffer(fresh, self.arena.shape.dtype)):
            raise StoreDamaged(
                f"{self.arena.path}: bytes {HEADER + start} to {HEADER + end} hold numbers that no store takes, though "
                "their checksum is right: somebody put them there. `softkv check --repair-to NEW` saves the good rows."
            )
        self._verified[window] = True
        if not complete:
            self._progress = (window, end - start, checksum)


def _difference(found: bytes, identity: Identity) -> str:
    """Why a header is not the one that was expected."""
    if len(found) < HEADER:
        return f"the header has {len(found)} of {HEADER} bytes"
    if not found.startswith(_MAGIC) or found[-_SEAL:] != b"crc32 %08x\n" % crc32(found[:-_SEAL]):
        return "the header is damaged, or the file is not an arena"
    fields = found[len(_MAGIC) : -_SEAL].decode(errors="replace").strip()
    return f"the header says {fields}, but the catalog expects {identity}"
