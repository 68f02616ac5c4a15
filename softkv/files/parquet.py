"""Parquet: the columns that have a role, batch by batch; a column of a type that is no key, value or JSON is refused.

Needs pyarrow, which is imported here and only when a Parquet file is read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from softkv.errors import MissingExtra
from softkv.files.fields import Builder
from softkv.files.record import Columns, Misfit, Record, Refusals
from softkv.files.roles import Roles, choose
from softkv.files.source import Source

BATCH = 4096  # rows


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a Parquet file."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtra("reading Parquet", package="pyarrow", extra="parquet") from error
    with _named(source.refusals):
        file = ParquetFile(source.path)
    with file:
        roles = _roles(file.schema_arrow, columns, source.refusals)
        build, row, names = Builder(roles, kind, packed=True).record, count(1), roles.used()
        for cells in _rows(file, names, source.refusals):
            line = next(row)
            try:
                yield build(line, dict(zip(names, cells, strict=True)))
            except Misfit as why:
                source.refusals.refuse(line, why)


@contextmanager
def _named(refusals: Refusals) -> Iterator[None]:
    """What pyarrow finds wrong with a file, as an error that names the file."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        said = str(error).strip() or type(error).__name__
        raise refusals.fatal(f"cannot be read as Parquet: {said.splitlines()[0]}") from error


def _rows(file: Any, names: Sequence[str], refusals: Refusals) -> Iterator[tuple[Any, ...]]:
    with _named(refusals):
        batches = file.iter_batches(BATCH, columns=list(names))
    while True:
        with _named(refusals):
            batch = next(batches, None)
            columns = [] if batch is None else [_cells(batch.column(name)) for name in names]
        if batch is None:
            return
        yield from zip(*columns, strict=True)


def _cells(column: Any) -> Sequence[Any]:
    """The cells as Python knows them; lists of one width as the rows of a matrix, without a list per row."""
    if _is_list(column.type) and column.null_count == 0 and len(column):
        inner = column.flatten()
        width, rest = divmod(len(inner), len(column))
        if not rest and inner.null_count == 0 and set(column.value_lengths().to_pylist()) == {width}:
            return list(np.asarray(inner.to_numpy(zero_copy_only=False)).reshape(len(column), width))
    return list(column.to_pylist())


def _roles(schema: Any, columns: Columns, refusals: Refusals) -> Roles:
    try:
        roles = choose(schema.names, columns)
        for name in roles.used():
            # Several columns make one vector of numbers; only a single one may hold vectors itself.
            single = [group for group in (roles.value, roles.vector) if group == (name,)]
            _require_type(schema.field(name).type, name, lists=bool(single))
    except Misfit as why:
        raise refusals.fatal(why) from None
    return roles


def _require_type(found: Any, name: str, *, lists: bool) -> None:
    if not (_is_single(found) or (lists and _is_list(found) and _is_number(found.value_type))):
        raise Misfit(
            f"the column {name!r} is of type {found}; give it as texts or numbers"
            + (", or as lists of numbers" if lists else "")
        )


def _is_single(found: Any) -> bool:
    from pyarrow import types

    plain = found.value_type if types.is_dictionary(found) else found
    texts = types.is_string(plain) or types.is_large_string(plain)
    return bool(texts or _is_number(plain) or types.is_boolean(plain) or types.is_null(plain))


def _is_number(found: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(found) or types.is_floating(found))


def _is_list(found: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found))
