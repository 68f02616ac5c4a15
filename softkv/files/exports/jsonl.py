"""JSON lines: a header, then one object per item. For eyes, text tools and programs in any language."""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from softkv.files.exports import lines
from softkv.files.exports.decimals import rows_as_json
from softkv.files.exports.header import LONGEST_HEADER, Header
from softkv.files.exports.portions import Portion, Progress, of_snapshot, rows_at_once
from softkv.kinds import ValueKind
from softkv.storage import Layout, Snapshot

_FIELDS = frozenset(("key", "text", "value", "vector", "payload"))


def place(number: int) -> str:
    """Where an item stands: the header is line 1."""
    return f"line {number + 2}"


def write(file: BinaryIO, snapshot: Snapshot, header: Header, progress: Progress) -> None:
    """Write a store."""
    file.write(header.text().encode() + b"\n")
    for portion in of_snapshot(snapshot):
        for line in lines.written(_columns(portion)):
            file.write(line.encode())
        progress(portion.start + len(portion), header.items)


def _columns(portion: Portion) -> dict[str, Sequence[str | None]]:
    """The fields of the items as JSON."""
    columns: dict[str, Sequence[str | None]] = {
        "key": lines.as_json(portion.keys),
        "text": lines.as_json(portion.texts),
        "value": _values(portion.values),
        "vector": rows_as_json(portion.vectors),
    }
    if portion.value_vectors is not None:
        columns["value_vector"] = rows_as_json(portion.value_vectors)
    return {**columns, "payload": lines.as_json(portion.payloads)}


def _values(values: Any) -> Sequence[str | None]:
    if isinstance(values, list):
        return lines.as_json(values)
    return rows_as_json(values) if values.ndim == 2 else lines.as_json(values.tolist())


def read(file: BinaryIO, path: str) -> tuple[Header, Iterator[Portion]]:
    """What a file holds; its items are read as they are asked for."""
    first = file.readline(LONGEST_HEADER + 1)
    header = Header.parse(first, f"{path}, line 1")
    records = lines.read(lines.source_of(file, path, begun=len(first)), place, header.items, first=2)
    return header, _portions(records, path, header)


def _portions(records: Iterator[tuple[lines.Record, int]], path: str, header: Header) -> Iterator[Portion]:
    start = 0
    while header.layout is not None and start < header.items:
        portion = _portion(records, path, header.layout, start, header.items)
        start += len(portion)
        if start == header.items:
            next(records, None)  # nothing may follow
        yield portion
    if not header.items:
        next(records, None)


def _portion(records: Iterator[tuple[lines.Record, int]], path: str, layout: Layout, start: int, items: int) -> Portion:
    most = min(rows_at_once(layout), items - start)
    vectors = np.empty((most, layout.key_width), np.float32)
    blended = np.empty((most, layout.value_width), np.float32)
    expected = _FIELDS | {"value_vector"} if layout.kind.embedded else _FIELDS
    values = []

    def take(position: int, record: lines.Record, where: str) -> None:
        lines.fill(vectors[position], record, "vector", where)
        values.append(_value(record, layout.kind, blended[position], where))

    keys, texts, payloads = lines.items(records, expected, most, lambda one: f"{path}, {place(start + one)}", take)
    count = len(keys)
    given: Any = blended[:count] if layout.kind.axes > 1 else values
    texted = blended[:count] if layout.kind.embedded else None
    return Portion(start, keys, texts, payloads, vectors[:count], given, texted)


def _value(record: lines.Record, kind: ValueKind, row: Any, place: str) -> int | float | str | None:
    """The number, label or text of a record; what is blended of vectors and texts goes to `row`."""
    if kind.axes > 1:
        lines.fill(row, record, "value", place)
        return None
    if kind.embedded:
        lines.fill(row, record, "value_vector", place)
    return lines.required_text(record, "value", place) if kind.worded else lines.required_number(record, "value", place)
