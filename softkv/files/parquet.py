"""Parquet: the columns that have a role, batch by batch; a column of a type that is no key, value or JSON is refused.

Needs pyarrow, which is imported here and only when a Parquet file is read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from softkv.errors import MissingExtra, SoftKVError
from softkv.files.fields import Builder
from softkv.files.limits import EXACT_INTEGER
from softkv.files.record import Columns, Misfit, Record, Refusals
from softkv.files.roles import choose
from softkv.files.source import Source

BATCH = 4096  # rows
TIMES = ("date", "time", "timestamp")  # types that JSON does not have
MOST_BYTES = 1 << 26  # of a batch, by the size that a row group gives for itself


def arrow(needed: str = "Parquet") -> Any:
    """The library, with its part for Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(needed, package="pyarrow", extra="parquet") from error
    return pyarrow


@contextmanager
def sound(refusals: Refusals, what: str = "Parquet file") -> Iterator[None]:
    """Wrap everything that pyarrow reads: its errors are raised as ours, which name the file."""
    try:
        yield
    except SoftKVError:
        raise
    except (arrow().ArrowException, ValueError, OverflowError, OSError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise refusals.fatal(f"this is no sound {what} ({said}). It may have been cut off.") from error


def table_in(file: Any) -> Any:
    """The table in an open file or at a path, opened so that little of it is in memory at once."""
    parquet = arrow().parquet
    metadata = parquet.read_metadata(file)
    return parquet.ParquetFile(
        file,
        metadata=metadata,
        # Repeated texts are held once, so that a small file does not become huge in memory. Nothing is read ahead.
        read_dictionary=[field.name for field in metadata.schema.to_arrow_schema() if is_text(field.type)],
        buffer_size=1 << 20,
        pre_buffer=False,
        page_checksum_verification=True,
    )


def batches(table: Any, most: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The rows of a table, at most this many at once and fewer where they are large."""
    for group in range(table.num_row_groups):
        told = table.metadata.row_group(group)
        average = max(1, int(told.total_byte_size) // max(1, int(told.num_rows)))
        yield from table.iter_batches(max(1, min(most, MOST_BYTES // average)), row_groups=[group], columns=columns)


def cells(column: Any) -> Any:
    """A column as a list, or as a matrix where it has lists of one width; texts stored once are held once.

    Times become texts such as 2020-01-31 12:00:00, those with a zone in UTC and with a Z; decimals become floats, or
    integers where their type has no places after the point.
    """
    if _is_any(column.type, "decimal"):
        return [None if one is None else _number(one, column.type.scale) for one in column.to_pylist()]
    if getattr(column.type, "tz", None):
        column = column.cast(arrow().timestamp(column.type.unit, "UTC"))
    if _is_any(column.type, *TIMES):
        column = column.cast(arrow().string())
    if is_list(column.type) and column.null_count == 0 and len(column):
        inner = column.flatten()
        width, rest = divmod(len(inner), len(column))
        if not rest and inner.null_count == 0 and (column.value_lengths().to_numpy() == width).all():
            return inner.to_numpy(zero_copy_only=False).reshape(len(column), width)
    if not _is_any(column.type, "dictionary"):
        return column.to_pylist()
    known = column.dictionary.to_pylist()
    return [None if index is None else known[index] for index in column.indices.to_pylist()]


def _number(found: Decimal, places: int) -> int | float:
    """A decimal as a number; whole ones that a float might round stay integers, which are refused as values."""
    whole = places <= 0 or (abs(found) > EXACT_INTEGER and found == found.to_integral_value())
    return int(found) if whole else float(found)


def is_text(found: Any) -> bool:
    """Whether a column holds texts, in any of Arrow's types for them."""
    return _is_any(found.value_type if _is_any(found, "dictionary") else found, "string", "large_string", "string_view")


def is_list(found: Any) -> bool:
    """Whether a column holds lists, of one width or not."""
    return _is_any(found, "list", "large_list", "fixed_size_list")


def _is_any(found: Any, *kinds: str) -> bool:
    return any(getattr(arrow().types, f"is_{kind}")(found) for kind in kinds)


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a Parquet file."""
    with sound(source.refusals):
        table = table_in(source.path)
    with table:
        roles = roles_of(table.schema_arrow, columns, source.refusals)
        with sound(source.refusals):
            yield from records_of(batches(table, BATCH, roles.named()), roles, kind, source.refusals)


def records_of(found: Iterator[Any], roles: Columns, kind: str | None, refusals: Refusals) -> Iterator[Record]:
    """The records of batches of Arrow."""
    build, begun = Builder(roles, kind, packed=True), 1
    for batch in found:
        columns = {name: cells(batch.column(name)) for name in roles.named()}
        yield from build.records(range(begun, begun + batch.num_rows), columns, refusals)
        begun += batch.num_rows


def roles_of(schema: Any, columns: Columns, refusals: Refusals) -> Columns:
    """The roles of the columns of a table; an error where a column's type does not fit its role."""
    try:
        roles = choose(schema.names, columns)
        for name in roles.named():
            # Several columns make one vector of numbers; only a single one may hold vectors itself.
            single = [group for group in (roles.value, roles.vector) if group == (name,)]
            named = name in (roles.key, roles.text, *roles.value, *roles.vector)
            _require_type(schema.field(name).type, name, lists=bool(single), times=not named)
    except Misfit as why:
        raise refusals.fatal(why) from None
    return roles


def _require_type(found: Any, name: str, *, lists: bool, times: bool) -> None:
    single = is_text(found) or _is_any(found, "integer", "floating", "decimal", "boolean", "null")
    single = single or (times and _is_any(found, *TIMES))
    if not (single or (lists and is_list(found) and _is_any(found.value_type, "integer", "floating"))):
        raise Misfit(
            f"the column {name!r} is of type {found}; give it as texts or numbers"
            + (", or as lists of numbers" if lists else "")
        )
