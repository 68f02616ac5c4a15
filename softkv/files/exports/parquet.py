"""Parquet: a table of items, for data frames and query engines. Needs pyarrow.

Columns key, text, value, vector, value_vector (of texts) and payload (as JSON); the header stands in the metadata of
the schema under "softkv". Written and read a few thousand items at a time.

How much memory a damaged or hostile file can use is limited only by pyarrow, one page of the file at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from softkv.errors import BadRecord, StorageFailed
from softkv.files import parquet as foreign
from softkv.files.exports import jsonl, portions
from softkv.files.exports.header import Header
from softkv.files.exports.portions import Place, Portion, Progress
from softkv.files.notation import parsed
from softkv.files.record import Misfit, Refusals
from softkv.storage import Layout, Snapshot

_METADATA = b"softkv"


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
        for portion in portions.of_snapshot(snapshot):
            waiting.append(arrow.record_batch([_array(arrow, portion, field) for field in schema], schema=schema))
            if _is_full(waiting):
                writer.write_table(arrow.Table.from_batches(waiting))
                waiting.clear()
            progress(portion.start + len(portion), header.items)
        if waiting:
            writer.write_table(arrow.Table.from_batches(waiting))


@contextmanager
def _failing(arrow: Any) -> Iterator[None]:
    """Wrap everything that pyarrow writes: its errors are raised as ours."""
    try:
        yield
    except arrow.ArrowException as error:
        raise StorageFailed(f"pyarrow cannot write this store ({error}); use another format") from error


def _is_full(waiting: list[Any]) -> bool:
    rows, size = (sum(getattr(batch, count) for batch in waiting) for count in ("num_rows", "nbytes"))
    return bool(rows >= portions.MOST_ITEMS or size >= portions.MOST_BYTES)


def _schema(arrow: Any, layout: Layout | None) -> Any:
    # Large: a column of long texts may hold more than 2 GB at once. In the file there is no difference.
    types = dict.fromkeys(portions.names(layout), arrow.large_string())
    if layout is not None:
        types |= {name: arrow.list_(arrow.float32(), width) for name, width in portions.widths(layout).items()}
        if not layout.kind.worded and layout.kind.axes == 1:
            types["value"] = arrow.float64()
    return arrow.schema(types)


def _array(arrow: Any, portion: Portion, field: Any) -> Any:
    column = portion.columns[field.name]
    if isinstance(column, np.ndarray) and column.ndim == 2:
        flat = arrow.array(column.reshape(-1), arrow.float32())
        return arrow.FixedSizeListArray.from_arrays(flat, column.shape[1])
    return arrow.array(jsonl.as_json(column) if field.name == "payload" else column, field.type)


# Reading


def read(file: BinaryIO, path: str) -> tuple[Header, Iterator[Portion]]:
    """The header and the items of a file; items are read as they are needed."""
    refusals = Refusals(path)
    with foreign.sound(refusals):
        table = foreign.table_in(file)
        schema = table.metadata.schema.to_arrow_schema()
        found = (schema.metadata or {}).get(_METADATA)
        if found is None:
            raise refusals.fatal("its metadata has no 'softkv', so it is not an export of a store")
        header = Header.parse(found, f"{path}, metadata 'softkv'")
        _require_schema(schema, _schema(foreign.arrow(), header.layout), refusals)
        _require_rows(table.metadata.num_rows, header, refusals)
    return header, _portions(table, refusals, header)


def _require_schema(found: Any, expected: Any, refusals: Refusals) -> None:
    """Refuse columns that are missing, unknown, duplicate or of another type, before any is read."""
    if sorted(found.names) != sorted(expected.names):
        raise refusals.fatal(f"has the columns {found.names}; expected {expected.names}")
    for field in expected:
        kind = found.field(field.name).type
        if not _fits(kind, field.type):
            wanted = "string" if foreign.is_text(field.type) else field.type
            raise refusals.fatal(f"column {field.name} is of type {kind}; expected {wanted}")


def _fits(kind: Any, expected: Any) -> bool:
    """Whether a column has this type, or is a list of numbers whose lengths are then compared row by row."""
    if foreign.is_text(expected):
        return foreign.is_text(kind)
    if not foreign.is_list(expected) or not foreign.is_list(kind):
        return bool(kind == expected)
    sizes = expected.list_size, getattr(kind, "list_size", expected.list_size)
    return bool(kind.value_type == expected.value_type and sizes[0] == sizes[1])


def _require_rows(count: int, header: Header, refusals: Refusals) -> None:
    if count != header.items:
        raise refusals.fatal(f"has {count} rows, but its header says {header.items} items")


def _portions(table: Any, refusals: Refusals, header: Header) -> Iterator[Portion]:
    def where(row: int) -> str:
        return f"{refusals.name}, {place(row)}"

    start, layout = 0, header.layout
    with foreign.sound(refusals), table:
        for batch in foreign.batches(table, portions.rows_at_once(layout)) if layout else ():
            columns = {name: foreign.cells(batch.column(name)) for name in portions.names(layout)}
            columns["payload"] = _payloads(columns["payload"], start, where)
            assert layout is not None
            yield portions.checked(start, columns, layout, where)
            start += batch.num_rows
        _require_rows(start, header, refusals)


def _payloads(column: list[str | None], start: int, where: Place) -> list[Any]:
    found: list[Any] = []
    for row, text in enumerate(column, start):
        try:
            found.append(None if text is None else parsed(text))
        except Misfit as why:
            raise BadRecord(f"{where(row)}: payload: {why}") from why
    return found
