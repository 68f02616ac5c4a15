"""CSV and TSV: a header and rows, column by column, as keys, texts, numbers and vectors.

A column of values holds numbers if the whole first batch does; later cells that do not fit are refused by their line.
Does not split text (rows.py), know what a number looks like (cells.py) or what may enter a store (fields.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from softkv.files import cells
from softkv.files.cells import Cells
from softkv.files.fields import Builder
from softkv.files.limits import FIRST_BATCH
from softkv.files.notation import parsed
from softkv.files.record import Columns, Misfit, Record, Refusals, shown
from softkv.files.roles import choose
from softkv.files.rows import Batch, Row, Rows
from softkv.files.source import Source
from softkv.kinds import ValueKind
from softkv.logs import hint

Conversions = dict[tuple[str, str], Callable[[Cells], Any]]


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a table with a header."""
    refusals, rows = source.refusals, Rows(source)
    names, line = rows.header()
    header = [name.strip() for name in names]
    try:
        roles = choose(header, columns, table=True)
    except Misfit as why:
        raise refusals.fatal(why, line) from None
    batches = iter(rows)
    first, failure = _first(rows, batches)
    places = {name: header.index(name) for name in roles.named()}
    sample = _columns(places, [row for _, found, _ in first for row in found if len(row) == len(header)])
    if len(roles.value) == 1:
        kind = kind or _kind(sample[roles.value[0]])
    build = Builder(roles, kind, packed=True, convert=_conversions(roles, kind, sample))
    for batch in chain(first, batches):
        starts, found, odd = batch
        for lines, sound in _sound(starts, found, len(header), rows, refusals):
            yield from build.records(lines, _columns(places, sound), refusals)
        if odd is not None:
            refusals.refuse(*odd)
    if failure is not None:
        raise failure


def _first(rows: Rows, batches: Iterator[Batch]) -> tuple[list[Batch], Exception | None]:
    """The batches that decide which columns are numbers: so many rows, or those that begin in the first block of text.

    Returned with them is the error that ended the reading, if any, to be raised after the rows before it were used.
    """
    found: list[Batch] = []
    try:
        for batch in batches:
            found.append(batch)
            if rows.opened > 1 or sum(len(one) for _, one, _ in found) >= FIRST_BATCH:
                break
    except Exception as failure:
        return found, failure
    return found, None


def _columns(places: Mapping[str, int], rows: Sequence[Row]) -> dict[str, Cells]:
    return {name: list(map(itemgetter(place), rows)) for name, place in places.items()}


def _sound(
    starts: list[int], rows: list[Row], width: int, source: Rows, refusals: Refusals
) -> Iterator[tuple[list[int], list[Row]]]:
    """The rows of a batch together; or one by one, if some of the wrong width or with a NUL are left out."""
    has_nul = source.has_nul and any("\0" in cell for row in rows for cell in row)
    if not has_nul and {width}.issuperset(map(len, rows)):
        if rows:
            yield starts, rows
        return
    for start, row in zip(starts, rows, strict=True):
        if len(row) != width:
            refusals.refuse(start, f"it has {len(row)} cells, but the first line names {width} columns")
        elif any("\0" in cell for cell in row):
            refusals.refuse(start, "it holds a NUL character, which no text does; is this a binary file?")
        else:
            yield [start], [row]


def _kind(first: Cells) -> str:
    """The kind of the values, by those of the first batch."""
    worded, odd = cells.worded_by_first(first)
    if odd is not None:
        hint(
            f"values are taken as texts, since {shown(odd)} is no number; with kind='number' it is refused by "
            "its line, and with skip_bad=True passed over",
            UserWarning,
        )
    return str(ValueKind.of_first(worded=worded).value)


def _conversions(roles: Columns, kind: str | None, first: Mapping[str, Cells]) -> Conversions:
    """The conversions of the cells of a column to typed fields; the first batch decides which parts are numbers."""
    found: Conversions = {}
    if roles.text is not None:
        found["text", roles.text] = partial(cells.filled, what="text")
    for role, names in (("value", roles.value), ("vector", roles.vector)):
        for name in names:
            found[role, name] = partial(_numbers, what=role) if len(names) > 1 else _vectors
    known = None if kind is None else ValueKind(kind)
    if len(roles.value) == 1 and known is not None and known.axes == 1:
        found["value", roles.value[0]] = partial(cells.filled if known.worded else cells.numbers, what="value")
    for name in roles.payload or ():
        numeric = any(first[name]) and cells.json_numbers(first[name]) is not None
        found["payload", name] = partial(_part, name=name, numeric=numeric)
    return found


def _numbers(column: Cells, what: str) -> Any:
    return np.array(cells.floats(column, what))


def _vectors(column: Cells) -> list[Any]:
    return [parsed(cell) for cell in column]


def _part(column: Cells, name: str, numeric: bool) -> Sequence[Any]:
    """Part of a payload; an empty cell is null."""
    if not numeric:
        return [cell or None for cell in column]
    found = cells.json_numbers(column)
    if found is None:
        odd = next(cell for cell in column if cells.json_numbers([cell]) is None)
        raise Misfit(f"{shown(odd)} in the column {shown(name)} is not a number as those before it")
    return found
