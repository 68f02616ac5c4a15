"""Parquet: a table of items, for data frames and query engines. Needs pyarrow.

Columns key, text, value, vector, value_vector (of texts) and payload (as JSON); the header stands in the metadata of
the schema under "softkv". Written and read a few thousand items at a time.

How much memory a damaged or hostile file can claim is up to pyarrow, one page of the file at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from softkv.errors import BadRecord, StorageFailed
from softkv.files import notation
from softkv.files import parquet as foreign
from softkv.files.exports.header import Header
from softkv.files.exports.portions import MOST_BYTES, MOST_ITEMS, Portion, Progress, of_snapshot, rows_at_once
from softkv.files.record import Misfit, Refusals
from softkv.storage import Layout, Snapshot

_METADATA = b"softkv"
_WORDS = ("key", "text", "payload")


def place(number: int) -> str:
    """Where an item stands."""
    return f"row {number} (from 0)"


# Writing


def write(file: BinaryIO, snapshot: Snapshot, header: Header, progress: Progress) -> None:
    """Write a store, in row groups of a bounded size."""
    arrow = foreign.arrow()
    schema = _schema(arrow, snapshot.layout).with_metadata({_METADATA: header.text().encode()})
    plain = ["value"] if snapshot.layout and snapshot.layout.kind.coded else False
    options = {"use_dictionary": plain, "write_statistics": False, "write_page_checksum": True}
    with _failing(arrow), arrow.parquet.ParquetWriter(file, schema, **options) as writer:
        waiting: list[Any] = []
        for portion in of_snapshot(snapshot):
            waiting.append(_batch(arrow, schema, portion))
            if _is_full(waiting):
                writer.write_table(arrow.Table.from_batches(waiting))
                waiting.clear()
            progress(portion.start + len(portion), header.items)
        if waiting:
            writer.write_table(arrow.Table.from_batches(waiting))


@contextmanager
def _failing(arrow: Any) -> Iterator[None]:
    """Around everything that pyarrow writes: its errors leave as ours."""
    try:
        yield
    except arrow.ArrowException as error:
        raise StorageFailed(f"pyarrow cannot write this store ({error}); use another format") from error


def _is_full(waiting: list[Any]) -> bool:
    rows, size = (sum(getattr(batch, count) for batch in waiting) for count in ("num_rows", "nbytes"))
    return bool(rows >= MOST_ITEMS or size >= MOST_BYTES)


def _schema(arrow: Any, layout: Layout | None) -> Any:
    # Large: a column of long texts may hold more than 2 GB at once. In the file there is no difference.
    fields = [(name, arrow.large_string()) for name in _WORDS]
    if layout is not None:
        fields.insert(2, ("value", _value_type(arrow, layout)))
        fields.insert(3, ("vector", arrow.list_(arrow.float32(), layout.key_width)))
        if layout.kind.embedded:
            fields.insert(4, ("value_vector", arrow.list_(arrow.float32(), layout.value_width)))
    return arrow.schema(fields)


def _value_type(arrow: Any, layout: Layout) -> Any:
    if layout.kind.axes > 1:
        return arrow.list_(arrow.float32(), layout.value_width)
    return arrow.large_string() if layout.kind.worded else arrow.float64()


def _batch(arrow: Any, schema: Any, portion: Portion) -> Any:
    payloads = [None if one is None else notation.written(one) for one in portion.payloads]
    columns = {
        "key": portion.keys,
        "text": portion.texts,
        "value": portion.values,
        "vector": portion.vectors,
        "value_vector": portion.value_vectors,
        "payload": payloads,
    }
    return arrow.record_batch([_array(arrow, columns[field.name], field.type) for field in schema], schema=schema)


def _array(arrow: Any, column: Any, kind: Any) -> Any:
    if isinstance(column, np.ndarray) and column.ndim == 2:
        flat = arrow.array(column.reshape(-1), arrow.float32())
        return arrow.FixedSizeListArray.from_arrays(flat, column.shape[1])
    return arrow.array(column, kind)


# Reading


def read(file: BinaryIO, path: str) -> tuple[Header, Iterator[Portion]]:
    """What a file holds; its items are read as they are asked for."""
    arrow = foreign.arrow()
    with foreign.sound(Refusals(path)):
        table = foreign.table_in(file)
        schema = table.metadata.schema.to_arrow_schema()
        found = (schema.metadata or {}).get(_METADATA)
        if found is None:
            raise BadRecord(f"{path}: its metadata has no 'softkv', so it is not an export of a store")
        header = Header.parse(found, f"{path}, metadata 'softkv'")
        _require_schema(arrow, schema, header.layout, path)
        if table.metadata.num_rows != header.items:
            raise BadRecord(f"{path} has {table.metadata.num_rows} rows, but its header says {header.items} items")
    return header, _named_portions(arrow, table, path, header)


def _require_schema(arrow: Any, found: Any, layout: Layout | None, path: str) -> None:
    """Refuse columns that are missing, unknown, twice there or of another type, before any is read."""
    expected = _schema(arrow, layout)
    if sorted(found.names) != sorted(expected.names):
        raise BadRecord(f"{path} has the columns {found.names}; expected {expected.names}")
    for field in expected:
        kind, worded = found.field(field.name).type, field.type == arrow.large_string()
        if not (foreign.is_text(kind) if worded else _fits(arrow, kind, field.type)):
            wanted = "string" if worded else field.type
            raise BadRecord(f"{path}: column {field.name} is of type {kind}; expected {wanted}")


def _fits(arrow: Any, kind: Any, expected: Any) -> bool:
    """Whether a column of numbers has this type, or is a list whose lengths are then compared row by row."""
    if kind == expected or not arrow.types.is_fixed_size_list(expected):
        return bool(kind == expected)
    if arrow.types.is_fixed_size_list(kind):
        return bool(kind.list_size == expected.list_size and kind.value_type == arrow.float32())
    return (arrow.types.is_list(kind) or arrow.types.is_large_list(kind)) and bool(kind.value_type == arrow.float32())


def _named_portions(arrow: Any, table: Any, path: str, header: Header) -> Iterator[Portion]:
    with foreign.sound(Refusals(path)), table:
        if header.layout is not None:
            start = 0
            for batch in foreign.batches(table, rows_at_once(header.layout)):
                yield _portion(arrow, batch, start, header.layout, path)
                start += batch.num_rows
            if start != header.items:
                raise BadRecord(f"{path} holds {start} rows, but its header says {header.items} items")


def _portion(arrow: Any, batch: Any, start: int, layout: Layout, path: str) -> Portion:
    def column(name: str) -> Any:
        return batch.column(batch.schema.get_field_index(name))

    def matrix(name: str, width: int) -> npt.NDArray[Any]:
        return _matrix(arrow, column(name), width, lambda row: f"{path}, {place(start + row)}: {name}")

    def given(name: str) -> list[Any]:
        return _required(foreign.texts(column(name)), lambda row: f"{path}, {place(start + row)}: {name}")

    kind = layout.kind
    values: Any = matrix("value", layout.value_width) if kind.axes > 1 else given("value")
    payloads = _payloads(foreign.texts(column("payload")), lambda row: f"{path}, {place(start + row)}")
    return Portion(
        start,
        foreign.texts(column("key")),
        foreign.texts(column("text")),
        payloads,
        matrix("vector", layout.key_width),
        values,
        matrix("value_vector", layout.value_width) if kind.embedded else None,
    )


def _required(column: list[Any], where: Any) -> list[Any]:
    for row, one in enumerate(column):
        if one is None:
            raise BadRecord(f"{where(row)} is null; every item has one")
    return column


def _matrix(arrow: Any, column: Any, width: int, where: Any) -> npt.NDArray[Any]:
    """A column of lists as a matrix, if all lists are of this width and without a gap."""
    if column.null_count:
        raise BadRecord(f"{where(column.is_null().to_pylist().index(True))} is null; every item has one")
    if not arrow.types.is_fixed_size_list(column.type):
        lengths = column.value_lengths().to_numpy()
        if (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0])
            raise BadRecord(f"{where(row)} has {lengths[row]} numbers; expected {width}")
    cells = column.flatten()
    if cells.null_count:
        row = cells.is_null().to_pylist().index(True) // width
        raise BadRecord(f"{where(row)} holds null; expected {width} numbers")
    return np.asarray(cells.to_numpy(zero_copy_only=False), np.float32).reshape(len(column), width)


def _payloads(column: list[str | None], where: Any) -> list[Any]:
    found: list[Any] = []
    for row, text in enumerate(column):
        try:
            found.append(None if text is None else notation.parsed(text))
        except Misfit as why:
            raise BadRecord(f"{where(row)}: payload: {why}") from why
    return found
