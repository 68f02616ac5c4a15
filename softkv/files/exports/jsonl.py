"""JSON lines: a header, then one object per item. For eyes, text tools and programs in any language."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from softkv.files import notation
from softkv.files.exports import lines
from softkv.files.exports.decimals import rows_as_json
from softkv.files.exports.header import LONGEST_HEADER, Header
from softkv.files.exports.portions import MOST_BYTES, Portion, Progress, of_snapshot, rows_at_once
from softkv.storage import Layout, Snapshot, ValueKind

_FIELDS = frozenset(("key", "text", "value", "vector", "payload"))


def place(number: int) -> str:
    """Where an item stands: the header is line 1."""
    return f"line {number + 2}"


def write(file: BinaryIO, snapshot: Snapshot, header: Header, progress: Progress) -> None:
    """Write a store."""
    file.write(header.text().encode() + b"\n")
    for portion in of_snapshot(snapshot):
        for line in _lines(portion):
            file.write(line.encode() + b"\n")
        progress(portion.start + len(portion), header.items)


def _lines(portion: Portion) -> Iterator[str]:
    matrices = portion.value_vectors
    worded = isinstance(portion.values, list)
    flat = worded or portion.values.ndim == 1
    columns: dict[str, list[str | None]] = {
        "key": _written(portion.keys),
        "text": _written(portion.texts),
        "value": _written(portion.values if worded else portion.values.tolist())
        if flat
        else [*rows_as_json(portion.values)],
        "vector": [*rows_as_json(portion.vectors)],
    }
    if matrices is not None:
        columns["value_vector"] = [*rows_as_json(matrices)]
    columns["payload"] = _written(portion.payloads)
    for fields in zip(*columns.values(), strict=True):
        named = zip(columns, fields, strict=True)
        yield "{" + ",".join(f'"{name}":{field}' for name, field in named if field is not None) + "}"


def _written(column: list[Any]) -> list[str | None]:
    return [None if one is None else notation.written(one) for one in column]


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
    expected = _FIELDS | {"value_vector"} if layout.kind is ValueKind.TEXT else _FIELDS
    keys: list[str | None] = []
    texts, payloads, values, weight = [], [], [], 0
    while len(keys) < most and weight < MOST_BYTES:
        position = len(keys)
        where = f"{path}, {place(start + position)}"
        record, size = next(records)
        key, text, payload = lines.carried(record, expected, where)
        lines.fill(vectors[position], record, "vector", where)
        values.append(_value(record, layout.kind, blended[position], where))
        keys.append(key)
        texts.append(text)
        payloads.append(payload)
        weight += size
    count = len(keys)
    given: Any = blended[:count] if layout.kind is ValueKind.VECTOR else values
    texted = blended[:count] if layout.kind is ValueKind.TEXT else None
    return Portion(start, keys, texts, payloads, vectors[:count], given, texted)


def _value(record: lines.Record, kind: ValueKind, row: Any, place: str) -> int | float | str | None:
    """The number, label or text of a record; what is blended of vectors and texts goes to `row`."""
    if kind is ValueKind.NUMBER:
        return lines.required_number(record, "value", place)
    if kind is ValueKind.VECTOR:
        lines.fill(row, record, "value", place)
        return None
    if kind is ValueKind.TEXT:
        lines.fill(row, record, "value_vector", place)
    return lines.required_text(record, "value", place)
