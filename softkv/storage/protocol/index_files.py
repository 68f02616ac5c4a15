"""Index files: named bytes that were made from the rows of a generation, and can be made again.

Each lies in index/ under a number, and belongs to one generation: in another the rows lie elsewhere. Files in index/
with a number that the catalog does not name are removed.

They are a cache. Reading one that is missing or altered raises `IndexDamaged`, and never returns wrong bytes; it only
has to be made again. Does not know what the bytes mean. Writes nothing.
"""

import hashlib
import os
import re
import threading
from collections.abc import Container, Iterator
from contextlib import suppress
from typing import final

import numpy as np

from softkv.errors import IndexDamaged, NotAStore, StorageFailed, StoreDamaged
from softkv.storage.catalog.catalog import Catalog, IndexRecord
from softkv.storage.disk import files
from softkv.storage.layout import INDEX

_NAME = re.compile(r"[1-9][0-9]{0,17}\Z")
_STRIDE = 1 << 20  # bytes read at a time
_LARGE = 1 << 28  # bytes from which on a file must have something in it
_PACKED = 1024  # how much smaller a file system may make it by packing


@final
class IndexFile:
    """One index file: it covers the first `rows` rows as they were at `commit`.

    The file was opened before this was handed out, so its bytes stay, also when it is replaced or dropped.
    """

    def __init__(self, directory: str, record: IndexRecord) -> None:
        self._descriptor, self._problem = -1, ""  # set before anything can fail, since closing reads them
        self._content: memoryview | None = None
        self._record, self._lock = record, threading.Lock()
        self.rows, self.commit, self.size = record.rows, record.number, record.size
        self.path = os.path.join(directory, INDEX, str(record.file))
        try:
            if not files.is_directory(os.path.dirname(self.path)):
                raise NotAStore(f"{INDEX} is not a directory")
            self._descriptor = files.open_regular(self.path)
        except (StoreDamaged, NotAStore):
            self._problem = "is missing or not a regular file"

    @property
    def is_there(self) -> bool:
        """Whether the file was opened, whatever is in it."""
        return self._descriptor >= 0

    def read(self) -> memoryview:
        """The bytes of the file, read-only; `IndexDamaged` where size or checksum are not those that were written."""
        with self._lock:
            if self._content is None:
                try:
                    content = np.empty(self._believable_size(), np.uint8).data  # a bytearray is filled with zeros first
                except MemoryError as error:
                    raise self._damage(f"has {self.size} bytes, which do not fit into memory") from error
                for start, piece in self.pieces():
                    content[start : start + len(piece)] = piece
                self._content = content
                self._let_go()
            return self._content.toreadonly()

    def verify(self) -> None:
        """Compare it without keeping it in memory."""
        with self._lock:
            if self._content is None:
                for _ in self.pieces():
                    pass

    def _believable_size(self) -> int:
        """The size in the catalog, checked against the file: a false size must not allocate memory."""
        if self._problem:
            raise self._damage(self._problem)
        found = os.fstat(self._descriptor)
        if found.st_size != self.size:
            raise self._damage(f"has {found.st_size} bytes instead of {self.size}")
        if self.size > _LARGE + _PACKED * 512 * found.st_blocks:
            raise self._damage(f"says that it has {found.st_size} bytes, but is a hole for the most part")
        return self.size

    def _damage(self, problem: str) -> IndexDamaged:
        """The error for a file that cannot be used; it is closed, and later calls say the same."""
        self._problem = self._problem or problem
        self._let_go()
        return IndexDamaged(
            f"{self.path} {self._problem}. It comes from the items, of which none is lost: build the index again, "
            "or fit again if it is a projection."
        )

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """All bytes, in pieces with their offsets; if they are wrong, `IndexDamaged` is raised at the end."""
        size, digest, start = self._believable_size(), hashlib.sha256(), 0
        while start < size:
            piece = self._piece(start, min(_STRIDE, size - start))
            digest.update(piece)
            yield start, piece
            start += len(piece)
        if digest.digest() != self._record.sha256:
            raise self._damage("does not match its checksum")
        self._believable_size()

    def _piece(self, start: int, length: int) -> bytes:
        try:
            os.lseek(self._descriptor, start, os.SEEK_SET)
            piece = os.read(self._descriptor, length)
        except OSError as error:
            raise StorageFailed(f"cannot read {self.path}: {os.strerror(error.errno or 0)}") from error
        if not piece:  # cut off since it was measured
            raise self._damage("was cut off while it was read")
        return piece

    def close(self) -> None:
        """Close the file; what was read stays readable."""
        with self._lock:
            self._problem = self._problem or "was closed before it was read"
            self._let_go()

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __del__(self) -> None:
        self._let_go()


def find(catalog: Catalog, directory: str, generation: int, name: str, commit: int) -> IndexFile | None:
    """The index file of this name as of a commit; None when there is none, or not any more."""
    while True:
        record = catalog.index(generation, name)
        if record is None or record.number > commit:
            return None
        found = IndexFile(directory, record)
        # Subtle: it may have been replaced before it was opened, and then its absence is no damage.
        if catalog.index(generation, name) == record:
            return found
        found.close()


def numbered(directory: str) -> list[int]:
    """The numbers under which something other than a directory lies in index/, which must be a directory itself."""
    folder = os.path.join(directory, INDEX)
    if not files.is_directory(folder):
        return []
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in entries if not one.is_dir(follow_symlinks=False)]
    except OSError:  # an unreadable cache must not prevent opening the store
        return []
    return sorted(int(name) for name in names if _NAME.match(name))


def unnamed(directory: str, catalog: Catalog) -> list[str]:
    """The files in index/ that the catalog does not name, and that have names of our own."""
    found = numbered(directory)
    named = catalog.index_files() if found else set()
    return [os.path.join(directory, INDEX, str(number)) for number in found if number not in named]


def remove_unnamed(directory: str, catalog: Catalog, among: Container[str] | None = None) -> None:
    """Remove unnamed index files, all or those among these paths. What cannot be removed stays for the next writer."""
    for path in unnamed(directory, catalog):
        if among is None or path in among:
            with suppress(OSError):
                os.unlink(path)


def require_folder(directory: str) -> str:
    """The directory of index files, made anew when it was removed with all that was in it."""
    folder = os.path.join(directory, INDEX)
    if not os.path.lexists(folder):
        files.make_directory(folder)
        files.sync_directory(directory)
    elif not files.is_directory(folder):
        raise NotAStore(f"{folder} is not a directory, so nothing is written there")
    return folder
