"""Arrow: files and streams of its IPC format (Feather), and frames of any library that hands its columns out as Arrow.

pandas, polars, duckdb and pyarrow do, by `__arrow_c_stream__`; none of them is imported here. Needs pyarrow, as
Parquet does, and takes the same types of columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from softkv.files.limits import BLOCK
from softkv.files.notation import written
from softkv.files.parquet import BATCH, arrow, records_of, roles_of, sound
from softkv.files.record import ROWS, Columns, Record, Refusals
from softkv.files.source import Source
from softkv.kinds import ValueKind
from softkv.storage import Item

NEEDED = "reading Arrow"


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of an IPC file, or of a stream that stands in a file."""
    library = arrow(NEEDED)
    with sound(source.refusals, "Arrow file"), library.memory_map(source.path) as file:
        if source.peek(6) == b"ARROW1":
            table = library.ipc.open_file(file)
            found: Iterator[Any] = map(table.get_batch, range(table.num_record_batches))
        else:
            table = library.ipc.open_stream(file)
            found = iter(table)
        roles = roles_of(table.schema, columns, source.refusals)
        yield from records_of(_checked(found, roles.named()), roles, kind, source.refusals)


def of_frame(frame: Any, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a frame."""
    refusals = Refusals("the frame", form=ROWS)
    table = _stream_of(frame, refusals)
    with sound(refusals, "Arrow stream"):
        roles = roles_of(table.schema, columns, refusals)
        yield from records_of(_checked(iter(table), roles.named()), roles, kind, refusals)


def rows_of(frame: Any) -> list[Any]:
    """The rows of a frame, each an object."""
    rows: list[Any] = _stream_of(frame, Refusals("the frame")).read_all().to_pylist()
    return rows


def _stream_of(frame: Any, refusals: Refusals) -> Any:
    library = arrow("reading a frame")
    try:
        return library.RecordBatchReader.from_stream(frame)
    except Exception as error:  # any error of the library that the frame is of
        said = " ".join("; ".join(map(str, error.args)).split()) or type(error).__name__
        raise refusals.fatal(
            f"it cannot be converted to Arrow ({said}). Each column needs its own name, and values of one type."
        ) from error


def stream_of(items: Iterable[Item], kind: ValueKind | None, key_width: int, value_width: int) -> Any:
    """Items as a stream of Arrow, batch by batch: key, text, value, vector, and the payload as JSON."""
    library = arrow("to_arrow")
    text, number = library.large_string(), library.float32()
    types = {"key": text, "text": text}
    if kind is not None:
        plain = text if kind.worded else library.float64()
        types["value"] = library.list_(number, value_width) if kind.axes > 1 else plain
        types["vector"] = library.list_(number, key_width)
    schema, left = library.schema(types | {"payload": text}), iter(items)

    def batches() -> Iterator[Any]:
        while some := list(islice(left, BATCH)):
            yield library.record_batch([_column(library, some, field) for field in schema], schema=schema)

    return library.RecordBatchReader.from_batches(schema, batches())


def _column(library: Any, items: Sequence[Item], field: Any) -> Any:
    cells = [getattr(one, field.name) for one in items]
    if library.types.is_fixed_size_list(field.type):
        return library.FixedSizeListArray.from_arrays(np.concatenate(cells), field.type.list_size)
    if field.name == "payload":
        cells = [None if one is None else written(one) for one in cells]
    return library.array(cells, field.type)


def _checked(found: Iterator[Any], names: Sequence[str]) -> Iterator[Any]:
    """Batches of few rows, with these columns alone, each validated, so that no offset is beyond its data."""
    for batch in found:
        some = batch.select(names)
        some.validate(full=True)
        step = max(1, min(BATCH, 64 * BLOCK * some.num_rows // max(1, some.nbytes)))
        yield from (some.slice(start, step) for start in range(0, some.num_rows, step))
