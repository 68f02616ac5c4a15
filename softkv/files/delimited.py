"""CSV and TSV: a header and rows, column by column, as keys, texts, numbers and vectors.

A column of values is one of numbers if the whole first batch is; what does not fit later is refused by its line. A
batch is converted at once, and only if something in it does not fit row by row. Does not split text (rows.py) or know
what a number looks like (cells.py).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from softkv.files import cells
from softkv.files.cells import Cells
from softkv.files.fields import Values, Vectors, payload
from softkv.files.limits import FIRST_BATCH, LONGEST_TEXT
from softkv.files.notation import parsed
from softkv.files.record import Columns, Misfit, Record, Refusals, shown
from softkv.files.roles import Roles, choose
from softkv.files.rows import Batch, Row, Rows
from softkv.files.source import Source
from softkv.kinds import ValueKind

Conversion = Callable[[Sequence[Row]], Iterable[Any]]  # one result per row, or a Misfit


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a table with a header."""
    refusals, rows = source.refusals, Rows(source)
    batches = iter(rows)
    first = _first(rows, batches)
    header, line = _header(first, refusals)
    roles = _roles(header, columns, refusals, line)
    sample = [row for batch in first for row in batch.rows if len(row) == len(header)]
    conversions = [_sound(len(header), rows), *_conversions(header, roles, kind, sample)]
    for batch in chain(first, batches):
        yield from _records(conversions, batch, refusals)
        if isinstance(batch.error, Misfit):
            refusals.refuse(batch.line, batch.error)
        elif batch.error is not None:
            raise batch.error


def _first(rows: Rows, batches: Iterator[Batch]) -> list[Batch]:
    """What decides which columns are numbers: so many rows, or as many as begin in the first block of text."""
    found: list[Batch] = []
    for batch in batches:
        found.append(batch)
        if rows.opened > 1 or sum(len(one.rows) for one in found) > FIRST_BATCH:
            break
    return found


def _header(first: list[Batch], refusals: Refusals) -> tuple[Row, int]:
    """The names of the columns, taken from the first row, and the line that it begins on."""
    for batch in first:
        if batch.rows:
            return [name.strip() for name in batch.rows.pop(0)], batch.starts.pop(0)
        if batch.error is not None:
            raise refusals.fatal(batch.error, batch.line) if isinstance(batch.error, Misfit) else batch.error
    raise refusals.fatal("is empty; a first line that names the columns is expected, such as key,value")


def _roles(header: Row, columns: Columns, refusals: Refusals, line: int) -> Roles:
    try:
        return choose(header, columns, table=True)
    except Misfit as why:
        raise refusals.fatal(why, line) from None


def _records(conversions: Sequence[Conversion], batch: Batch, refusals: Refusals) -> Iterator[Record]:
    try:
        made = [convert(batch.rows) for convert in conversions]
    except Misfit:
        yield from _singly(conversions, batch, refusals)
    else:
        yield from map(Record, batch.starts, *made[1:])


def _singly(conversions: Sequence[Conversion], batch: Batch, refusals: Refusals) -> Iterator[Record]:
    """The same records, row by row, without those that are to blame."""
    for start, row in zip(batch.starts, batch.rows, strict=True):
        try:
            made = [convert([row]) for convert in conversions]
        except Misfit as why:
            refusals.refuse(start, why)
        else:
            yield from map(Record, [start], *made[1:])


def _sound(width: int, source: Rows) -> Conversion:
    """Nothing for rows as wide as the header that hold no NUL; it comes first, and what it gives is left out."""

    def sound(rows: Sequence[Row]) -> Iterable[Any]:
        odd = set(map(len, rows)) - {width}
        if odd:
            raise Misfit(f"it has {odd.pop()} cells, but the first line names {width} columns")
        if source.has_nul and any("\0" in cell for row in rows for cell in row):
            raise Misfit("it holds a NUL character, which no text does; is this a binary file?")
        return ()

    return sound


def _conversions(header: Row, roles: Roles, kind: str | None, first: Sequence[Row]) -> list[Conversion]:
    """What turns rows into the parts of records; the first batch says which columns are numbers."""
    return [
        _key(header, roles),
        _text(header, roles),
        _value(header, roles, kind, first),
        _payload(header, roles, first),
        _vector(header, roles),
    ]


def _nothing(rows: Sequence[Row]) -> Iterable[Any]:
    return repeat(None, len(rows))


def _column(header: Row, name: str) -> Callable[[Sequence[Row]], Cells]:
    cell = itemgetter(header.index(name))
    return lambda rows: list(map(cell, rows))


def _key(header: Row, roles: Roles) -> Conversion:
    if roles.key is None:
        return _nothing
    column = _column(header, roles.key)
    return lambda rows: cells.keys(column(rows))


def _text(header: Row, roles: Roles) -> Conversion:
    if roles.text is None:
        return _nothing
    column = _column(header, roles.text)
    return lambda rows: cells.filled(column(rows), "text", LONGEST_TEXT)


def _value(header: Row, roles: Roles, kind: str | None, first: Sequence[Row]) -> Conversion:
    if len(roles.value) > 1:
        return _matrix(header, roles.value, "value")
    column = _column(header, roles.value[0])
    known = ValueKind.of_first(worded=not cells.are_numbers(column(first))) if kind is None else ValueKind(kind)
    if kind is None and known.worded:
        odd = cells.odd_among_numbers(column(first))
        if odd is not None:
            warnings.warn(
                f"values are taken as texts, since {shown(odd)} is no number; with kind='number' it is refused by "
                "its line, and with skip_bad=True passed over",
                stacklevel=2,
            )
    if known.axes > 1:
        vectors = Values(known)
        return lambda rows: [vectors(parsed(cell)) for cell in column(rows)]
    if known.worded:
        return lambda rows: cells.filled(column(rows), "value", known.longest)
    return lambda rows: cells.numbers(column(rows), "value")


def _vector(header: Row, roles: Roles) -> Conversion:
    if not roles.vector:
        return _nothing
    if len(roles.vector) > 1:
        return _matrix(header, roles.vector, "vector")
    column, vectors = _column(header, roles.vector[0]), Vectors("vector")
    return lambda rows: [vectors(parsed(cell)) for cell in column(rows)]


def _matrix(header: Row, names: Sequence[str], what: str) -> Conversion:
    columns = [_column(header, name) for name in names]
    return lambda rows: cells.matrix([column(rows) for column in columns], what)


def _payload(header: Row, roles: Roles, first: Sequence[Row]) -> Conversion:
    if roles.payload:
        return _collected(header, roles.payload, first)
    if roles.document is None:
        return _nothing
    column = _column(header, roles.document)
    return lambda rows: [payload(parsed(cell)) if cell else None for cell in column(rows)]


def _collected(header: Row, names: Sequence[str], first: Sequence[Row]) -> Conversion:
    """Objects of several columns; a column is one of numbers if the whole first batch is, and an empty cell is null."""
    columns = [_column(header, name) for name in names]
    numeric = [any(column(first)) and cells.json_numbers(column(first)) is not None for column in columns]

    def collected(rows: Sequence[Row]) -> Iterable[Any]:
        parts = [
            _part(column(rows), name, number) for column, name, number in zip(columns, names, numeric, strict=True)
        ]
        return [payload(dict(zip(names, row, strict=True))) for row in zip(*parts, strict=True)]

    return collected


def _part(column: Cells, name: str, numeric: bool) -> Sequence[Any]:
    if not numeric:
        return [cell or None for cell in column]
    found = cells.json_numbers(column)
    if found is None:
        odd = next(cell for cell in column if cells.json_numbers([cell]) is None)
        raise Misfit(f"{shown(odd)} in the column {shown(name)} is not a number as those before it")
    return found
