"""NumPy files: a .npy is a matrix of vectors and nothing else; a .npz holds arrays named by what they are.

keys, texts, values, vectors and payloads (JSON texts), or arrays with names that columns can have: all of one length.
Rows are read as they are needed, so a header that promises too much costs no memory, and neither does an archive that
unpacks to more than fits in memory, or whose list of members is false. Nothing is ever unpickled.

Not by np.load(mmap_mode="r"): it reads neither archives nor pipes, and ends the process where a file is cut short
meanwhile.
"""

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, cast

import numpy as np

from softkv.errors import SoftKVError
from softkv.files.fields import Builder
from softkv.files.limits import BLOCK, LONGEST_RECORD
from softkv.files.record import Columns, Misfit, Record, Refusals
from softkv.files.roles import PLURAL, choose
from softkv.files.source import Source

LONGEST_HEADER = 10_000  # bytes, as numpy.load has it
LARGEST_WHOLE = 1 << 30  # bytes of a column-major matrix, whose rows lie scattered over all of it
LARGEST_READ = 1 << 25  # bytes at once of a list of members, which is many times larger in memory
LAST_CHARACTER = 0x10FFFF
BATCH = 4096  # rows

ReadBytes = Callable[[int], bytes]


@contextmanager
def sound(refusals: Refusals, name: str | None = None) -> Iterator[None]:
    """Wrap everything that zipfile and NumPy read: errors name the file and the array."""
    try:
        yield
    except SoftKVError:
        raise
    # What zipfile raises: KeyError for a member, NotImplementedError for a packing, RuntimeError for a password.
    except (
        *(Misfit, OSError, EOFError, ValueError, LookupError, RuntimeError, OverflowError),
        *(zlib.error, zipfile.BadZipFile, struct.error),
    ) as error:
        what = "" if name is None else f"the array {name!r} "
        hint = "" if isinstance(error, Misfit) else " (it may have been cut off or changed)"
        raise refusals.fatal(f"{what}cannot be read: {error}{hint}") from error


class _Sparing:
    """A file that refuses large reads: zipfile reads the whole list of members, however long it claims to be."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        here = file.tell()
        self._size = file.seek(0, io.SEEK_END)
        file.seek(here)

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._file.tell())
        wanted = left if size < 0 else min(size, left)
        if wanted > LARGEST_READ:
            raise Misfit(f"a part of it says it is {wanted:,} bytes long")
        return self._file.read(wanted)


def archive_in(file: BinaryIO) -> zipfile.ZipFile:
    """The archive that an open file holds."""
    return zipfile.ZipFile(cast(BinaryIO, _Sparing(file)))


def array_in(archive: zipfile.ZipFile, name: str, refusals: Refusals) -> "Array":
    """The array of this name in an archive, behind its header."""
    with sound(refusals, name):
        return Array(name, archive.open(f"{name}.npy").read)


def read_matrix(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a .npy file: vectors without keys and values."""
    refusals = source.refusals
    if columns.named():
        raise refusals.fatal(f"a .npy file is one matrix of vectors and has no column {columns.named()[0]!r}")
    with sound(refusals):
        array = Array("vectors", source.read)
        if len(array.shape) != 2:
            raise refusals.fatal(f"holds an array of shape {array.shape}; a matrix of one vector per row is expected")
        if source.path is not None:
            array.require_size(os.stat(source.path).st_size)
    yield from _records([array], Columns(vector=("vectors",)), kind, refusals)


def read_archive(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a .npz file."""
    refusals = source.refusals
    with ExitStack() as stack:
        with sound(refusals):
            archive = stack.enter_context(archive_in(stack.enter_context(open(source.path or "", "rb"))))
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        try:
            roles = choose(names, columns, PLURAL)
        except Misfit as why:
            raise refusals.fatal(f"{why} (of an archive, the columns are its arrays)") from None
        yield from _records([array_in(archive, name, refusals) for name in roles.named()], roles, kind, refusals)


class Array:
    """An array in a stream: its shape and type from the header, its rows as they are asked for."""

    def __init__(self, name: str, read: ReadBytes) -> None:
        self.name, self._read = name, read
        self.shape, self.columns_first, self.dtype, self.offset = _header(read)
        self._require_type()
        self._whole: Any = None  # of a column-major matrix

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def rows(self, begin: int, count: int) -> Any:
        """The next rows; `begin` is how many were read before."""
        if self.columns_first and len(self.shape) == 2:
            self._whole = self._column_major() if self._whole is None else self._whole
            return self._whole[begin : begin + count]
        given = self._exactly(count * self.row_bytes)
        if self.dtype.kind == "U":
            _require_characters(np.frombuffer(given, self.dtype.str[0] + "u4"))
        return np.frombuffer(given, self.dtype).reshape(count, *self.shape[1:])

    def require_size(self, size: int) -> None:
        """A file of this many bytes is what the header says, before any row is read."""
        promised = self.offset + self.shape[0] * self.row_bytes
        if size != promised:
            raise Misfit(f"it has {size:,} bytes, but its header promises {promised:,}")

    def require_end(self) -> None:
        """There is nothing after the last row."""
        if self._read(1):
            raise Misfit("there are more bytes than its header says")

    def _require_type(self) -> None:
        if self.dtype.hasobject:
            raise Misfit("it holds Python objects, which only unpickling could read; save it with a dtype of its own")
        if self.dtype.kind not in "fiuU" or (self.dtype.kind != "U" and self.dtype.itemsize > 8):
            raise Misfit(f"its dtype is {self.dtype}; give real numbers of up to 64 bits, or texts")
        if len(self.shape) not in (1, 2) or (len(self.shape) == 2 and self.dtype.kind == "U"):
            raise Misfit(f"its shape is {self.shape}; one row per item is expected")
        if not 0 < self.row_bytes <= LONGEST_RECORD * 4:
            raise Misfit(f"its rows have {self.row_bytes:,} bytes; 1 to {LONGEST_RECORD * 4:,} are expected")

    def _column_major(self) -> Any:
        size = self.shape[0] * self.row_bytes
        if size > LARGEST_WHOLE:
            raise Misfit("it is column-major, so that its rows lie scattered; save numpy.ascontiguousarray of it")
        return np.frombuffer(self._exactly(size), self.dtype).reshape(self.shape, order="F")

    def _exactly(self, size: int) -> bytes:
        # In pieces, because read(size) may set aside as much as was promised before it finds out what there is.
        given = io.BytesIO()
        while given.tell() < size:
            piece = self._read(min(BLOCK, size - given.tell()))
            if not piece:
                raise Misfit("it ends before the last of the rows that its header promises")
            given.write(piece)
        return given.getvalue()


def _require_characters(codes: Any) -> None:
    # NumPy makes texts of whatever is there, and Python ends with a SystemError at what is none.
    if codes.size and codes.max() > LAST_CHARACTER:
        raise Misfit("it holds numbers that are no characters")


def _header(read: ReadBytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order and type of the array that follows, and how many bytes the header takes."""
    start = read(8)
    if start[:6] != b"\x93NUMPY" or len(start) < 8 or start[6] not in (1, 2):
        raise Misfit("it is no array of format 1 or 2 as numpy.save writes it")
    packed = read(2 * start[6])
    length = int.from_bytes(packed, "little")
    if not 0 < length <= LONGEST_HEADER:
        raise Misfit(f"its header has {length:,} bytes; 1 to {LONGEST_HEADER:,} are expected")
    parse = np.lib.format.read_array_header_1_0 if start[6] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, columns_first, dtype = parse(io.BytesIO(packed + read(length)))
    except Exception as error:  # a header is a Python literal: it can be wrong in every way that Python can
        raise Misfit(f"its header cannot be read: {str(error).splitlines()[0] if str(error) else error!r}") from error
    if any(size < 0 for size in shape):
        raise Misfit(f"its shape is {shape}")
    return shape, columns_first, dtype, len(start) + len(packed) + length


def _records(arrays: list[Array], roles: Columns, kind: str | None, refusals: Refusals) -> Iterator[Record]:
    lengths = {array.name: array.shape[0] for array in arrays}
    if len(set(lengths.values())) > 1:
        raise refusals.fatal(
            "its arrays differ in length: " + ", ".join(f"{n} {size:,}" for n, size in lengths.items())
        )
    build, length = Builder(roles, kind, packed=True), next(iter(lengths.values()))
    step = max(1, min(BATCH, *(4 * BLOCK // array.row_bytes for array in arrays)))
    for begin in range(0, length, step):
        lines = range(begin + 1, min(begin + step, length) + 1)
        columns = {array.name: _cells(array, begin, len(lines), refusals) for array in arrays}
        yield from build.records(lines, columns, refusals)
    for array in arrays:
        with sound(refusals, array.name):
            array.require_end()


def _cells(array: Array, begin: int, count: int, refusals: Refusals) -> Any:
    with sound(refusals, array.name):
        rows = array.rows(begin, count)
        return rows if rows.ndim == 2 else rows.tolist()
