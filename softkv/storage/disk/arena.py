"""Fixed-width rows in a file: a 4096-byte header that describes them, then the rows, nothing else.

Rows are written at a given row number, never at the end of the file, so that what a crash left behind is overwritten.
They are read through a read-only map of the committed prefix, whose windows are compared with the checksums of the
catalog when they are first touched. A window has as many bytes as a granule of the generation.

Does not know which rows exist (catalog.py) or when they become durable (writer.py).
"""

import json
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from zlib import crc32

import numpy as np

from softkv.errors import HandleClosed, StorageFailed, StoreDamaged
from softkv.ndarrays import AnyArray, Counts
from softkv.storage.disk import files
from softkv.storage.disk.numbers import Believable
from softkv.storage.layout import WINDOW, RowShape
from softkv.storage.threads import beside

HEADER = 4096
_MAGIC = b"softkv arena 1\n"
_SEAL = len(b"crc32 00000000\n")
_NEIGHBOURS, _KEPT = 64, 1_024  # checksums asked for at once, and how many such groups are kept
_WORTH_BEGINNING = 1 << 20  # bytes from which on syncing begins before all are written
_WORTH_A_THREAD = 8 << 20  # bytes from which on two threads compare checksums

Expected = Callable[[Sequence[int]], Sequence[int]]  # checksums of complete windows with these ascending numbers
_Progress = tuple[int, int, int]  # the last unfinished window that was verified: its number, length and checksum


@dataclass(frozen=True, slots=True)
class ArenaIdentity:
    """What the rows of a file belong to: the store, the generation, and their shape."""

    store: str
    generation: int
    shape: RowShape

    def header(self) -> bytes:
        """The first 4096 bytes of the file: text that a person can read with `head -c 4096`."""
        shape = self.shape
        told = {"role": shape.role, "file": shape.file, "dtype": shape.dtype, "width": shape.width}
        fields = {"store": self.store, "generation": self.generation, **told}
        text = _MAGIC + json.dumps(fields).encode() + b"\n"
        text += b" " * (HEADER - _SEAL - len(text) - 1) + b"\n"
        return text + b"crc32 %08x\n" % crc32(text)


def extend_windows(length: int, tail: int, data: memoryview, granule: int) -> tuple[list[tuple[int, int]], int]:
    """Continue checksums over `data`, which follows `length` bytes whose unfinished window has checksum `tail`.

    Returns the windows that became complete, as (number, checksum), and the checksum of the unfinished one.
    """
    data = data.cast("B")
    missing = granule - length % granule  # bytes of the unfinished window
    if len(data) < missing:
        return [], crc32(data, tail)
    whole = len(data) - (len(data) - missing) % granule
    checksums = [crc32(data[:missing], tail), *window_checksums(data, missing, whole, granule)]
    return list(enumerate(checksums, length // granule)), crc32(data[whole:])


def window_checksums(data: memoryview, start: int, end: int, granule: int) -> list[int]:
    """The checksums of the windows between two bytes. A plain list: more work per window would cost a third."""
    return [crc32(data[place : place + granule]) for place in range(start, end, granule)]


def flat(rows: AnyArray) -> memoryview:
    """The bytes of C-contiguous rows."""
    return rows.reshape(-1).view(np.uint8).data


class Arena:
    """One file of rows, open for reading and perhaps for writing; one checksum covers `granule` bytes of rows."""

    def __init__(self, path: str, shape: RowShape, descriptor: int, granule: int) -> None:
        self.path, self.shape, self.granule = path, shape, granule
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._closed, self._lock = False, threading.RLock()  # reentrant: a signal handler may ask

    @classmethod
    def create(cls, path: str, identity: ArenaIdentity, granule: int) -> "Arena":
        """Make the file with its header; nothing is durable yet."""
        arena = cls(path, identity.shape, files.create_file(path), granule)
        try:
            files.write_at(arena._descriptor, memoryview(identity.header()), 0, path)
        except BaseException:
            arena.close()
            raise
        return arena

    @classmethod
    def open(
        cls, path: str, identity: ArenaIdentity, granule: int, *, write: bool = False, believe_header: bool = True
    ) -> "Arena":
        """Open the file after comparing its header; `believe_header=False` skips that, to save what is left."""
        descriptor = files.open_regular(path, write=write)
        try:
            found = files.read_at(descriptor, HEADER, 0, path)
            if believe_header and found != identity.header():
                raise StoreDamaged(f"{path}: {_difference(found, identity)}. `softkv check` tells what is left.")
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, identity.shape, descriptor, granule)

    @classmethod
    def absent(cls, path: str, shape: RowShape, granule: int) -> "Arena":
        """An arena without a file, which has no rows: every read is an error."""
        return cls(path, shape, -1, granule)

    def write(self, row: int, rows: AnyArray) -> None:
        """Write rows from number `row` on."""
        data, place = flat(rows), HEADER + row * self.shape.row_bytes
        files.write_at(self._descriptor, data, place, self.path)
        if len(data) >= _WORTH_BEGINNING:
            files.begin_to_sync(self._descriptor, place, len(data))

    def give_back(self, count: int) -> None:
        """Free the space behind the first `count` rows, as far as the system permits; for the writer alone."""
        end = HEADER + count * self.shape.row_bytes
        with suppress(OSError):
            if os.fstat(self._descriptor).st_size > end:
                os.ftruncate(self._descriptor, end)

    def sync(self) -> None:
        """Make all that was written durable."""
        files.sync(self._descriptor, self.path)

    def rows(self, count: int) -> AnyArray:
        """The first `count` rows as a read-only array of shape (count, width) over the file itself."""
        mapped = self._mapped(HEADER + count * self.shape.row_bytes)
        cells = np.frombuffer(mapped, self.shape.dtype, count * self.shape.width, HEADER)
        return cells.reshape(count, self.shape.width)

    def data(self, size: int) -> memoryview:
        """The first `size` bytes of rows, over the file itself."""
        return memoryview(self._mapped(HEADER + size))[HEADER : HEADER + size]

    def _mapped(self, needed: int) -> mmap.mmap:
        mapped = self._map  # read once: another thread may replace it by a map that is too short for these bytes
        if mapped is None or len(mapped) < needed:
            with self._lock:  # else, once closed, its descriptor might be that of another file
                self._map = mapped = self._new_map(needed)
        return mapped

    def _new_map(self, needed: int) -> mmap.mmap:
        # Subtle: touching a map beyond the end of its file kills the process, so the length is checked first.
        self._require_length(needed)
        try:
            return mmap.mmap(self._descriptor, needed, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StorageFailed(f"cannot map {self.path}: {error}") from error

    def require_rows(self, count: int) -> None:
        """Refuse a row count for which the file is too short."""
        self._require_length(HEADER + count * self.shape.row_bytes)

    def rows_as_they_are(self, start: int, stop: int) -> AnyArray:
        """Rows start .. stop - 1 as far as the file has them, without comparing checksums: for derived rows."""
        stored = min(stop, self.stored_rows())
        return self.rows(stored)[start:] if stored > start else np.empty((0, self.shape.width), self.shape.dtype)

    def stored_bytes(self) -> int:
        """How many bytes of rows the file holds, committed or not."""
        return max(0, os.fstat(self._descriptor).st_size - HEADER) if self._descriptor >= 0 else 0

    def stored_rows(self) -> int:
        """How many whole rows the file holds, committed or not."""
        return self.stored_bytes() // self.shape.row_bytes

    def checksum(self, start: int, end: int) -> int:
        """The checksum of these bytes of rows as they are on the disk; they must be there."""
        return crc32(self.content(start, end))

    def content(self, start: int, end: int) -> bytes:
        """The bytes of rows from one to another. By no map: to touch one that the disk cannot read ends the process."""
        return files.read_at(self._descriptor, end - start, HEADER + start, self.path)

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
        self.arena, self._row_bytes, self._granule = arena, arena.shape.row_bytes, arena.granule
        self._expected, self._believable = expected, believable
        self._bytes = self._tail = 0  # how long the prefix is, and the checksum of its unfinished window
        self._verified = np.zeros(0, np.bool_)  # per window, the unfinished one included
        self._left = 0  # how many of them are not verified yet
        self._progress: _Progress = (-1, 0, 0)
        self._kept: dict[int, list[int]] = {}  # checksums of windows, in groups of neighbours
        # Reentrant: a signal handler may ask while it is held, and even grow the prefix. What is known then is put in
        # place last, and only if the prefix is still the same; at worst windows are compared once more.
        self._lock = threading.RLock()

    def grow(self, rows: int, tail: int) -> None:
        """Extend the prefix to `rows` committed rows, whose unfinished window has checksum `tail`."""
        with self._lock:
            size = rows * self._row_bytes
            if size <= self._bytes:
                return
            unfinished = self._bytes // self._granule
            verified = np.zeros(-(-size // self._granule), np.bool_)
            verified[:unfinished] = self._verified[:unfinished]
            left = len(verified) - int(np.count_nonzero(verified))
            if size > self._bytes:
                self._left, self._bytes, self._tail, self._verified = left, size, tail, verified

    def block(self, start: int, stop: int) -> AnyArray:
        """Rows start .. stop - 1 as a view of the file."""
        rows = self.arena.rows(self._bytes // self._row_bytes)
        if stop > start:
            first, last = start * self._row_bytes // self._granule, (stop * self._row_bytes - 1) // self._granule
            if not (self._verified[first] if first == last else self._verified[first : last + 1].all()):
                self._verify(np.arange(first, last + 1))
        return rows[start:stop]

    def take(self, numbers: Counts) -> AnyArray:
        """A copy of the rows with these numbers, in this order."""
        row_bytes, granule = self._row_bytes, self._granule
        if len(numbers) == 1 and 0 <= (start := int(numbers[0])) < self._bytes // row_bytes:  # the fast way for one row
            return self.block(start, start + 1).copy()
        rows = self.arena.rows(self._bytes // row_bytes)
        if len(numbers) and self._left:
            first, last = numbers * row_bytes // granule, ((numbers + 1) * row_bytes - 1) // granule
            self._verify(np.concatenate([first, last]) if row_bytes <= granule else _all_between(first, last))
        return np.take(rows, numbers, axis=0)

    def runs(self, starts: Counts, stops: Counts) -> AnyArray:
        """All rows as a view of the file; only rows in these runs are compared. No run is empty."""
        row_bytes, granule = self._row_bytes, self._granule
        rows = self.arena.rows(self._bytes // row_bytes)
        if len(starts) and self._left:
            self._verify(_all_between(starts * row_bytes // granule, (stops * row_bytes - 1) // granule))
        return rows

    def verify_end(self) -> None:
        """Compare at least the last MiB with its checksums: a crash cannot have left more unwritten."""
        rows = self._bytes // self._row_bytes
        self.block(max(0, rows - -(-WINDOW // self._row_bytes)), rows)

    def _verify(self, windows: Counts) -> None:
        if self._verified[windows[0]] if len(windows) == 1 else self._verified[windows].all():
            return
        with self._lock:
            # Subtle: not for the row count of the caller. The prefix may have grown since, with a new last checksum.
            size, tail, verified, progress = self._bytes, self._tail, self._verified, self._progress
            fresh = self._fresh(windows)
            if not len(fresh):
                return
            self._verify_fresh(self.arena.data(size), _listed(fresh), tail, progress)
            verified[fresh] = True
            left, end = len(verified) - int(np.count_nonzero(verified)), size // self._granule
            now = (end, size % self._granule, tail) if fresh[-1] == end else progress
            if self._verified is verified:
                self._left, self._progress = left, now

    def _fresh(self, windows: Counts) -> Counts:
        """The windows among these that were not compared yet, each once, in their order."""
        if len(windows) == 1:
            return windows[: 0 if self._verified[windows[0]] else 1]
        if 8 * len(windows) < len(self._verified):
            fresh = np.sort(windows[~self._verified[windows]])
            return fresh[np.diff(fresh, prepend=-1) > 0]  # np.unique would load numpy.ma, 12 ms of a process
        touched = np.zeros(len(self._verified), np.bool_)
        touched[windows] = True
        return np.flatnonzero(touched & ~self._verified)

    def _verify_fresh(self, data: memoryview, fresh: Sequence[int], tail: int, progress: _Progress) -> None:
        """Compare windows, each given once and in order: all in one call, since most have no neighbour among them."""
        complete = len(data) // self._granule
        grown = int(fresh[-1] == complete)
        expected = self._asked(fresh[: len(fresh) - grown], complete) + [tail] * grown
        if len(fresh) * self._granule < _WORTH_A_THREAD:
            self._compare(data, fresh, expected, progress)
        else:
            middle = len(fresh) // 2
            with beside(partial(self._compare, data, fresh[middle:], expected[middle:], progress)) as other:
                self._compare(data, fresh[:middle], expected[:middle], progress)
            other[0].result()

    def _compare(self, data: memoryview, windows: Sequence[int], expected: list[int], progress: _Progress) -> None:
        """Compare windows with their checksums, and check their numbers while they are in the cache."""
        step = max(1, WINDOW // self._granule)
        for start in range(0, len(windows), step):
            some, wanted = windows[start : start + step], expected[start : start + step]
            found = self._checksums(data, some, progress)
            if found != wanted:
                wrong = next(one for one, seen, true in zip(some, found, wanted, strict=True) if seen != true)
                raise self._damage(wrong, "do not match their checksum. `softkv check` lists the damage;")
            self._require_believable(data, some)

    def _asked(self, windows: Sequence[int], complete: int) -> list[int]:
        """The checksums of complete windows; if these are neighbours, those of all neighbours are read and kept."""
        start = windows[0] - windows[0] % _NEIGHBOURS if windows else 0
        if not windows or windows[-1] >= start + _NEIGHBOURS:
            return list(self._expected(windows))
        known = self._kept.get(start, [])
        if start + len(known) <= windows[-1]:
            try:
                known = list(self._expected(range(start, min(start + _NEIGHBOURS, complete))))
            except StoreDamaged:  # perhaps only that of a neighbour is damaged
                return list(self._expected(windows))
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[start] = known
        return [known[window - start] for window in windows]

    def _checksums(self, data: memoryview, windows: Sequence[int], progress: _Progress) -> list[int]:
        """The checksums of windows; of a window that has grown since it was compared, only the new part is read."""
        granule, (seen, length, checksum) = self._granule, progress
        found = [crc32(data[at * granule : (at + 1) * granule]) for at in windows if at != seen]
        if len(found) < len(windows):
            found.insert(windows.index(seen), crc32(data[seen * granule + length : (seen + 1) * granule], checksum))
        return found

    def _require_believable(self, data: memoryview, windows: Sequence[int]) -> None:
        """Refuse numbers that no store takes. Windows are checked together, and one by one to name the first bad."""
        if self._believable is None or self._believable(self._numbers(data, windows)):
            return
        odd = (one for one in windows if not self._believable(self._numbers(data, [one])))
        what = "hold numbers that no store takes, though their checksum is right: another program wrote them."
        raise self._damage(next(odd, windows[0]), what)

    def _numbers(self, data: memoryview, windows: Sequence[int]) -> AnyArray:
        numbers = np.frombuffer(data, self.arena.shape.dtype)
        each = self._granule // numbers.itemsize
        parts = [numbers[first * each : last * each] for first, last in _runs_of(windows)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _damage(self, window: int, what: str) -> StoreDamaged:
        start, end = window * self._granule, min((window + 1) * self._granule, self._bytes)
        place = f"{self.arena.path}: bytes {HEADER + start} to {HEADER + end}"
        return StoreDamaged(f"{place} {what} `softkv check --repair-to NEW` saves the good rows.")


def _listed(numbers: Counts) -> Sequence[int]:
    """Ascending numbers as a range, or as a list where there are gaps between them."""
    first, last = int(numbers[0]), int(numbers[-1])
    return range(first, last + 1) if last - first == len(numbers) - 1 else numbers.tolist()


def _runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs without a gap: the first of each, and one more than its last."""
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return [(numbers[0], numbers[-1] + 1)]
    given = np.array(numbers)
    gaps = np.flatnonzero(np.diff(given) > 1)
    firsts, lasts = given[np.append(0, gaps + 1)], given[np.append(gaps, len(given) - 1)]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _all_between(first: Counts, last: Counts) -> Counts:
    """All numbers from first[i] to last[i], for each i; some perhaps more than once."""
    counts = last - first + 1
    ends = counts.cumsum()
    found: Counts = np.arange(ends[-1]) + np.repeat(first - (ends - counts), counts)
    return found


def _difference(found: bytes, identity: ArenaIdentity) -> str:
    """How a header differs from the expected one."""
    if len(found) < HEADER:
        return f"the header has {len(found)} of {HEADER} bytes"
    if not found.startswith(_MAGIC) or found[-_SEAL:] != b"crc32 %08x\n" % crc32(found[:-_SEAL]):
        return "the header is damaged, or the file is not an arena"
    fields = found[len(_MAGIC) : -_SEAL].decode(errors="replace").strip()
    return f"the header says {fields}, but the catalog expects {identity}"
