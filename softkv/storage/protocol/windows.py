"""Find damage in the bytes of an arena: windows are compared with their checksums, many of these read at once.

Never stops at a finding, and does not say which rows are lost by it (checking.py does).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import itemgetter
from zlib import crc32

import numpy as np

from softkv.errors import StorageFailed
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.connection import UNREADABLE
from softkv.storage.catalog.patience import Endless
from softkv.storage.disk.arena import Arena, window_checksums
from softkv.storage.disk.numbers import believable
from softkv.storage.layout import WINDOW


@dataclass(slots=True)
class Problems:
    """The problems of an arena of so many committed bytes, whose unfinished window has the checksum `tail`."""

    arena: Arena
    catalog: Catalog
    generation: int
    size: int
    tail: int
    compared: int = 0
    endless: bool = False  # whether asking for checksums takes too long; it would each time

    def among(self, limit: int) -> Iterator[tuple[int, int, str]]:
        """The bytes of a problem, and what it is, up to `limit`; neighbours that have the same one come together."""
        for what, alike in groupby(self._windows(limit), itemgetter(2)):
            start, end, _ = reduce(lambda first, last: (first[0], last[1], last[2]), alike)
            if what:
                yield start, end, what

    def _windows(self, limit: int) -> Iterator[tuple[int, int, str]]:
        """Each window and what is wrong with it; nothing where all is well."""
        stride, granule = max(WINDOW, self.arena.granule), self.arena.granule
        for start in range(0, min(self.size, limit), stride):
            end = min(start + stride, self.size)
            expected = self._expected(start, end)
            self.compared += len(expected)
            if self._is_sound(start, end, expected):
                yield start, end, ""
                continue
            for begin, checksum in zip(range(start, end, granule), expected, strict=True):
                if begin < limit:
                    stop = min(begin + granule, end)
                    yield begin, stop, self._problem(begin, stop, checksum)

    def _is_sound(self, start: int, end: int, expected: list[int | None]) -> bool:
        """Whether there is no damage between two bytes: tested first, since it is quicker than window by window."""
        if self.arena.stored_bytes() < end:
            return False
        try:
            content = self.arena.content(start, end)
        except StorageFailed:
            return False
        found = window_checksums(memoryview(content), 0, end - start, self.arena.granule)
        return found == expected and self._believes(content)

    def _expected(self, start: int, end: int) -> list[int | None]:
        """The checksums of the windows between two bytes, as far as there are any."""
        first, last = start // self.arena.granule, end // self.arena.granule
        known = self._known(first, last)
        complete: list[int | None] = [known.get(window) for window in range(first, last)]
        return complete + [self.tail] * (end % self.arena.granule > 0)

    def _known(self, first: int, last: int) -> dict[int, int]:
        """The checksums of the complete windows first .. last - 1, as far as the catalog can be read."""
        if first == last or self.endless:
            return {}
        try:
            return self.catalog.known_windows(self.generation, self.arena.shape.role, first, last)
        except UNREADABLE as error:  # one unreadable page fails them all
            self.endless = isinstance(error, Endless)
            alone = [self._known(window, window + 1) for window in range(first, last)] if last - first > 1 else []
            return {window: checksum for one in alone for window, checksum in one.items()}

    def _problem(self, start: int, end: int, checksum: int | None) -> str:
        if self.arena.stored_bytes() < end:
            return "are missing"
        if checksum is None:
            return "have no checksum in the catalog that can be read."
        try:
            content = self.arena.content(start, end)
        except StorageFailed:
            return "cannot be read: the disk or the system refuses them."
        if crc32(content) != checksum:
            return "do not match their checksum."
        return "" if self._believes(content) else "hold numbers that no store takes."

    def _believes(self, content: bytes) -> bool:
        # The codes of labels are compared in checking.py, where the labels are known.
        shape = self.arena.shape
        return shape.dtype == "<i4" or believable(shape, lambda: 0)(np.frombuffer(content, shape.dtype))
