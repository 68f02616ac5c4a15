"""npz: a zip of NumPy arrays, as numpy.load reads it, beside lines of JSON for what is not a number.

header.json, vectors.npy, values.npy, items.jsonl (key, text, payload, the words of text values) and, for labels,
labels.jsonl. All is stored, nothing compressed: a vector of float32 hardly becomes smaller, and a file cannot hold more
than its size. No member is ever unpickled: only the three types that stores hold are read.
"""

import itertools
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from softkv.errors import BadRecord, SoftKVError
from softkv.files import notation
from softkv.files.archive import archive_in
from softkv.files.arrays import Array
from softkv.files.exports import lines
from softkv.files.exports.header import LONGEST_HEADER, Header
from softkv.files.exports.portions import Portion, Progress, of_snapshot, row_portions, rows_at_once
from softkv.files.lines import numbered
from softkv.files.record import Misfit
from softkv.files.source import Source
from softkv.kinds import ValueKind
from softkv.storage import Layout, Snapshot
from softkv.storage.layout import RowShape

HEADER, VECTORS, VALUES, ITEMS, LABELS = "header.json", "vectors.npy", "values.npy", "items.jsonl", "labels.jsonl"
_FIELDS = frozenset(("key", "text", "payload"))


def place(number: int) -> str:
    """Where an item stands, in the arrays and among the lines."""
    return f"item {number} (from 0)"


# Writing


def write(file: BinaryIO, snapshot: Snapshot, header: Header, progress: Progress) -> None:
    """Write a store, one member after the other."""
    layout, told = snapshot.layout, _Thirds(progress, len(snapshot))
    with zipfile.ZipFile(file, "w") as archive:
        with _member(archive, HEADER) as member:
            member.write(header.text().encode())
        if layout is None:
            return
        with _array(archive, VECTORS, (header.items, layout.key_width), "<f4") as member:
            for rows in row_portions(snapshot):
                member.write(_bytes_of(snapshot.vectors(rows)))
                told.add(len(rows))
        labels = _Renumbered()
        with _array(archive, VALUES, _shape(layout.values, layout, header.items), layout.values.dtype) as member:
            for rows in row_portions(snapshot):
                values = snapshot.values(rows)
                member.write(_bytes_of(labels.codes(values) if layout.kind.coded else values))
                told.add(len(rows))
        with _member(archive, ITEMS) as member:
            for portion in of_snapshot(snapshot):
                member.write(_lines(portion))
                told.add(len(portion))
        if layout.kind.coded:
            names = snapshot.labels()
            with _member(archive, LABELS) as member:
                for code in labels.seen:
                    member.write(notation.written(names[code]).encode() + b"\n")


class _Thirds:
    """Progress through the three members, told as if items were done once."""

    def __init__(self, progress: Progress, items: int) -> None:
        self._progress, self._items, self._done = progress, items, 0

    def add(self, count: int) -> None:
        self._done += count
        self._progress(self._done // 3, self._items)


class _Renumbered:
    """Codes of labels in the order in which they occur, so that labels nobody carries any more leave no trace."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def codes(self, old: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        return np.array([self.seen.setdefault(code, len(self.seen)) for code in old.tolist()], "<i4")


@contextmanager
def _member(archive: zipfile.ZipFile, name: str) -> Iterator[BinaryIO]:
    # Subtle: a ZipInfo of our own bears no time, so two exports of the same store are the same bytes.
    with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
        yield cast(BinaryIO, member)


@contextmanager
def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str) -> Iterator[BinaryIO]:
    with _member(archive, name) as member:
        head = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, head)
        yield member


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


def _lines(portion: Portion) -> bytes:
    columns = {"key": portion.keys, "text": portion.texts}
    if portion.value_vectors is not None:
        columns["value"] = portion.values
    columns["payload"] = portion.payloads
    return "".join(lines.written({name: lines.as_json(column) for name, column in columns.items()})).encode()


# Reading


def read(file: BinaryIO, path: str) -> tuple[Header, Iterator[Portion]]:
    """What a file holds; its items are read as they are asked for, once all of it is known to be sound."""
    with _naming(path):
        archive = archive_in(file)
        held = _listed(archive, path)
        _require(HEADER in held, path, f"it has no {HEADER}, so it is not an export of a store")
        with archive.open(HEADER) as member:
            pieces = itertools.islice(iter(partial(member.read, 1 << 20), b""), (LONGEST_HEADER >> 20) + 1)
            header = Header.parse(b"".join(pieces), f"{path}, {HEADER}")
        _require(held == _expected(header.layout), path, f"it holds {sorted(held)}; expected "
                 f"{sorted(_expected(header.layout))}")  # fmt: skip
        for name in sorted(held):
            _verify(archive, name)
    return header, _named_portions(archive, path, header)


def _expected(layout: Layout | None) -> set[str]:
    if layout is None:
        return {HEADER}
    return {HEADER, VECTORS, VALUES, ITEMS} | ({LABELS} if layout.kind.coded else set())


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Around everything that zipfile and NumPy read: their errors leave as ours."""
    try:
        yield
    except SoftKVError:
        raise
    except Misfit as why:
        raise BadRecord(f"{path}: {why}") from why
    except (
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        ValueError,
        OverflowError,
        OSError,
        struct.error,
    ) as error:
        raise BadRecord(f"{path}: this is no sound zip file ({error}). It may have been cut off.") from error


def _require(condition: bool, path: str, otherwise: str) -> None:
    if not condition:
        raise BadRecord(f"{path}: {otherwise}")


def _listed(archive: zipfile.ZipFile, path: str) -> set[str]:
    members = archive.infolist()
    names = [member.filename for member in members]
    _require(len(set(names)) == len(names), path, "a member stands in it twice")
    for member in members:
        plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
        _require(
            plain and member.compress_size == member.file_size,
            path,
            f"its member {member.filename!r} is compressed or encrypted; members must be stored as they are",
        )
    return set(names)


def _verify(archive: zipfile.ZipFile, name: str) -> None:
    """Read a member to its end, where zipfile compares the checksum."""
    with archive.open(name) as member:
        while member.read(1 << 20):
            pass


def _named_portions(archive: zipfile.ZipFile, path: str, header: Header) -> Iterator[Portion]:
    with _naming(path), archive:
        if header.layout is not None:
            yield from _portions(archive, path, header, header.layout)


def _portions(archive: zipfile.ZipFile, path: str, header: Header, layout: Layout) -> Iterator[Portion]:
    vectors = _opened_array(archive, VECTORS, path, (header.items, layout.key_width), "<f4")
    shape = _shape(layout.values, layout, header.items)
    values = _opened_array(archive, VALUES, path, shape, layout.values.dtype)
    labels = _labels(archive, path, header.items) if layout.kind.coded else []
    start, records = 0, lines.read(_opened_lines(archive, ITEMS, path), place, header.items)
    while start < header.items:
        columns = _columns(records, path, layout, start, header.items)
        count = len(columns[0])
        if start + count == header.items:
            next(records, None)  # nothing may follow
        yield _portion(start, columns, vectors.rows(start, count), values.rows(start, count), layout.kind, labels, path)
        start += count
    if not header.items:
        next(records, None)


def _shape(cells: RowShape, layout: Layout, items: int) -> tuple[int, ...]:
    """Of values.npy: numbers and codes are a list, not a matrix of one column."""
    return (items,) if layout.kind.narrow else (items, cells.width)


def _opened_array(archive: zipfile.ZipFile, name: str, path: str, shape: tuple[int, ...], dtype: str) -> Array:
    """A member behind its array's header, which must say what the store's header says, and be borne out by its size."""
    try:
        array = Array(name, archive.open(name).read)
    except Misfit as why:
        raise BadRecord(f"{path}, {name}: this is no NumPy array ({why})") from why
    scattered = array.columns_first and len(shape) > 1
    _require(
        (array.shape, array.dtype.str) == (shape, dtype) and not scattered,
        path,
        f"{name} has shape {array.shape}, type {array.dtype.str}{' in Fortran order' if scattered else ''}; "
        f"expected {shape}, {dtype} in C order",
    )
    size = archive.getinfo(name).file_size
    _require(size == array.size, path, f"{name} has {size:,} bytes, but {array.size:,} by its shape {shape}")
    return array


def _opened_lines(archive: zipfile.ZipFile, name: str, path: str) -> Source:
    return lines.source_of(cast(BinaryIO, archive.open(name)), f"{path}, {name}")


def _labels(archive: zipfile.ZipFile, path: str, items: int) -> list[str]:
    """The label of every code. They are all held in memory, as a store that holds them does."""
    found = []
    for number, line in numbered(_opened_lines(archive, LABELS, path)):
        where = f"{path}, {LABELS}, line {number}"
        try:
            label = notation.parsed(line)
        except Misfit as why:
            raise BadRecord(f"{where}: {why}; expected one text per line") from why
        if not isinstance(label, str):
            raise BadRecord(f"{where}: this is {notation.kind_of(label)}; expected one text per line")
        _require(number <= items, path, f"{LABELS} holds more labels than there are items")
        found.append(label)
    return found


_Columns = tuple[list[str | None], list[str | None], list[Any], list[str]]


def _columns(
    records: Iterator[tuple[lines.Record, int]], path: str, layout: Layout, start: int, items: int
) -> _Columns:
    """Keys, texts, payloads and values in words of the next items."""
    worded = layout.kind.embedded
    expected = _FIELDS | {"value"} if worded else _FIELDS
    words: list[str] = []

    def take(_: int, record: lines.Record, where: str) -> None:
        if worded:
            words.append(lines.required_text(record, "value", where))

    most = min(rows_at_once(layout), items - start)
    named = f"{path}, {ITEMS}"
    return *lines.items(records, expected, most, lambda one: f"{named}, {place(start + one)}", take), words


def _portion(
    start: int,
    columns: _Columns,
    vectors: npt.NDArray[Any],
    cells: npt.NDArray[Any],
    kind: ValueKind,
    labels: list[str],
    path: str,
) -> Portion:
    keys, texts, payloads, words = columns
    if kind.coded:
        codes = cells.tolist()
        for position, code in enumerate(codes):
            _require(0 <= code < len(labels), path, f"{place(start + position)} has label code {code} of {len(labels)}")
        return Portion(start, keys, texts, payloads, vectors, [labels[code] for code in codes], None)
    if kind.embedded:
        return Portion(start, keys, texts, payloads, vectors, words, cells)
    return Portion(start, keys, texts, payloads, vectors, cells, None)
