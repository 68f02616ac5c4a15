"""npz: a zip of NumPy arrays, as numpy.load reads it, beside lines of JSON for what is not a number.

header.json, vectors.npy, values.npy, items.jsonl (key, text, payload, the words of text values) and, for labels,
labels.jsonl. All is stored, nothing compressed: a vector of float32 hardly becomes smaller, and a file cannot hold more
than its size. No member is ever unpickled: only the three types that stores hold are read.
"""

import io
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, cast

import numpy as np

from softkv.files import notation
from softkv.files.arrays import Array, archive_in, array_in, sound
from softkv.files.exports import jsonl, portions
from softkv.files.exports.header import LONGEST_HEADER, Header
from softkv.files.exports.portions import Portion, Progress
from softkv.files.limits import BLOCK
from softkv.files.lines import numbered
from softkv.files.record import Refusals
from softkv.files.source import Source
from softkv.ndarrays import AnyArray, Rows
from softkv.storage import Layout, Snapshot

HEADER, VECTORS, VALUES, ITEMS, LABELS = "header.json", "vectors", "values", "items.jsonl", "labels.jsonl"

Piece = tuple[bytes | memoryview, int]  # bytes of a member, and how many items they hold


def place(number: int) -> str:
    """Where an item stands, in the arrays and among the lines."""
    return f"item {number} (from 0)"


# Writing


def write(file: BinaryIO, snapshot: Snapshot, header: Header, progress: Progress) -> None:
    """Write a store, one member after the other; each item is in three of them."""
    done = 0
    with zipfile.ZipFile(file, "w") as archive:
        for name, pieces in _members(snapshot, header):
            # Subtle: a ZipInfo of our own bears no time, so two exports of the same store are the same bytes.
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                for piece, items in pieces:
                    member.write(piece)
                    done += items
                    if items:
                        progress(done // 3, header.items)


def _members(snapshot: Snapshot, header: Header) -> Iterator[tuple[str, Iterator[Piece]]]:
    yield HEADER, iter([(header.text().encode(), 0)])
    layout = snapshot.layout
    if layout is None:
        return
    seen: dict[int, int] = {}  # codes of labels in the order in which they occur; without those of dead items alone

    def values(rows: Rows) -> AnyArray:
        found = snapshot.values(rows)
        if not layout.kind.coded:
            return found
        return np.array([seen.setdefault(code, len(seen)) for code in found.tolist()], "<i4")

    for name, (shape, dtype) in _arrays(layout, header.items).items():
        yield f"{name}.npy", _array(shape, dtype, snapshot.vectors if name == VECTORS else values, snapshot, layout)
    yield ITEMS, _lines(snapshot, _fields(layout))
    if layout.kind.coded:
        labels = snapshot.labels()
        yield LABELS, ((notation.written(labels[code]).encode() + b"\n", 0) for code in seen)


def _array(
    shape: tuple[int, ...], dtype: str, cells: Callable[[Rows], AnyArray], snapshot: Snapshot, layout: Layout
) -> Iterator[Piece]:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
    yield head.getvalue(), 0
    order, step = snapshot.in_order(), portions.rows_at_once(layout)
    for rows in (order[start : start + step] for start in range(0, len(order), step)):
        yield np.ascontiguousarray(cells(rows)).data.cast("B"), len(rows)


def _lines(snapshot: Snapshot, fields: list[str]) -> Iterator[Piece]:
    for portion in portions.of_snapshot(snapshot):
        yield b"".join(jsonl.written({name: portion.columns[name] for name in fields})), len(portion)


# The content of a file


def _arrays(layout: Layout, items: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types: numbers and codes are a list, not a matrix of one column."""
    wide = len(portions.widths(layout)) > 1
    values = (items, layout.value_width) if wide else (items,)
    return {VECTORS: ((items, layout.key_width), "<f4"), VALUES: (values, layout.values.dtype)}


def _fields(layout: Layout) -> list[str]:
    """The names of the fields in the lines of items."""
    return ["key", "text", *(["value"] if "value_vector" in portions.widths(layout) else []), "payload"]


def _expected(layout: Layout | None) -> set[str]:
    if layout is None:
        return {HEADER}
    labels = {LABELS} if layout.kind.coded else set()
    return {HEADER, f"{VECTORS}.npy", f"{VALUES}.npy", ITEMS} | labels


# Reading


def read(file: BinaryIO, path: str) -> tuple[Header, Iterator[Portion]]:
    """The header and the items of a file; items are read as they are needed, once the whole file is checked."""
    refusals = Refusals(path)
    with sound(refusals):
        archive = archive_in(file)
        held = _listed(archive, refusals)
        if HEADER not in held:
            raise refusals.fatal(f"it has no {HEADER}, so it is not an export of a store")
        with archive.open(HEADER) as member:
            pieces = islice(iter(partial(member.read, BLOCK), b""), LONGEST_HEADER // BLOCK + 1)
            header = Header.parse(b"".join(pieces), f"{path}, {HEADER}")
        expected = _expected(header.layout)
        if held != expected:
            raise refusals.fatal(f"it holds {sorted(held)}; expected {sorted(expected)}")
        damaged = archive.testzip()
        if damaged is not None:
            raise refusals.fatal(f"this is no sound archive: its member {damaged!r} was cut off or changed")
    return header, _portions(archive, refusals, header)


def _listed(archive: zipfile.ZipFile, refusals: Refusals) -> set[str]:
    names: set[str] = set()
    for member in archive.infolist():
        if member.filename in names:
            raise refusals.fatal(f"its member {member.filename!r} stands in it twice")
        names.add(member.filename)
        plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
        if not plain or member.compress_size != member.file_size:
            raise refusals.fatal(
                f"its member {member.filename!r} is compressed or encrypted; members must be stored as they are"
            )
    return names


def _portions(archive: zipfile.ZipFile, refusals: Refusals, header: Header) -> Iterator[Portion]:
    layout = header.layout
    with sound(refusals), archive:
        if layout is None:
            return
        shapes = _arrays(layout, header.items)
        vectors, values = (_opened(archive, name, *shapes[name], refusals) for name in (VECTORS, VALUES))
        labels = _labels(archive, refusals, header.items) if layout.kind.coded else []
        source, most = _opened_lines(archive, ITEMS, refusals), portions.rows_at_once(layout)
        for start, columns in jsonl.columns(source, header.items, _fields(layout), place, most=most):
            count = len(columns["key"])
            cells: Any = values.rows(start, count)
            if layout.kind.coded:
                cells = [_label(labels, code, start + row, refusals) for row, code in enumerate(cells.tolist())]
            blended = "value" if "value" not in columns else "value_vector"
            found = {**columns, blended: cells, "vector": vectors.rows(start, count)}
            yield portions.checked(start, found, layout, lambda one: f"{source.refusals.name}, {place(one)}")


def _opened(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str, refusals: Refusals) -> Array:
    """A member behind its array's header, which must agree with the header of the export and with the member's size."""
    array = array_in(archive, name, refusals)
    scattered = array.columns_first and len(shape) > 1
    if (array.shape, array.dtype.str) != (shape, dtype) or scattered:
        raise refusals.fatal(
            f"{name}.npy has shape {array.shape}, type {array.dtype.str}{' in Fortran order' if scattered else ''}; "
            f"expected {shape}, {dtype} in C order"
        )
    with sound(refusals, name):
        array.require_size(archive.getinfo(f"{name}.npy").file_size)
    return array


def _opened_lines(archive: zipfile.ZipFile, name: str, refusals: Refusals) -> Source:
    return jsonl.lines_in(cast(BinaryIO, archive.open(name)), f"{refusals.name}, {name}")


def _labels(archive: zipfile.ZipFile, refusals: Refusals, items: int) -> list[str]:
    """The labels by their codes."""
    source, found = _opened_lines(archive, LABELS, refusals), list[str]()
    for number, line in numbered(source):
        if number > items:
            raise refusals.fatal(f"{LABELS} holds more labels than there are items")
        found.append(portions.parsed(line, str, "one text per line", source.refusals.place(number)))
    return found


def _label(labels: list[str], code: int, item: int, refusals: Refusals) -> str:
    if not 0 <= code < len(labels):
        raise refusals.fatal(f"{place(item)} has label code {code} of {len(labels)}")
    return labels[code]
