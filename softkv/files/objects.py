"""JSON lines: one object on each line, its names the columns.

What the names mean is settled by the first hundred objects together, because a field may be missing in some. Blank
lines are skipped; an object that spreads over several lines is one for document.py.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from softkv.files.fields import Builder
from softkv.files.limits import BLOCK
from softkv.files.lines import numbered
from softkv.files.notation import kind_of, parsed
from softkv.files.record import Columns, Misfit, Record, Refusals
from softkv.files.roles import Roles, choose
from softkv.files.source import Source

FIRST_OBJECTS = 100

Placed = tuple[int, Any, int]  # the line it begins on, the element or the Misfit why it is none, its length


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of lines of objects."""
    return records(_objects(source), columns, kind, source.refusals)


def records(objects: Iterator[Placed], columns: Columns, kind: str | None, refusals: Refusals) -> Iterator[Record]:
    """The records of elements; one that is no object is refused when its turn comes."""
    first, failure = _first(objects)
    build: Builder | None = None
    for line, given, _ in chain(first, objects):
        try:
            fields = required(given)
            build = build or Builder(_roles([*first, (line, fields, 0)], columns, refusals), kind)
            yield build.record(line, fields)
        except Misfit as why:
            refusals.refuse(line, why)
    if failure is not None:
        raise failure


def required(given: Any) -> dict[str, Any]:
    """An object, or why this is none."""
    if isinstance(given, Misfit):
        raise given
    if not isinstance(given, dict):
        raise Misfit(f'it is {kind_of(given)}, not an object such as {{"key": ..., "value": ...}}')
    return given


def _objects(source: Source) -> Iterator[Placed]:
    for line, text in numbered(source):
        if not text.isspace():
            yield line, _parsed(text), len(text)


def _parsed(text: str) -> Any:
    try:
        return parsed(text)
    except Misfit as why:
        return why


def _first(objects: Iterator[Placed]) -> tuple[list[Placed], Exception | None]:
    """The first elements, or as many of them as one block would hold, and the error that ended them."""
    found: list[Placed] = []
    length = 0
    try:
        for placed in objects:
            found.append(placed)
            length += placed[2]
            if len(found) == FIRST_OBJECTS or length > BLOCK:
                break
    except Exception as failure:  # raised after the records before it were given
        return found, failure
    return found, None


def _roles(first: Sequence[Placed], columns: Columns, refusals: Refusals) -> Roles:
    objects = [given for _, given, _ in first if isinstance(given, dict)]
    names = list(dict.fromkeys(name for fields in objects for name in fields))
    try:
        return choose(names, columns)
    except Misfit as why:
        raise refusals.fatal(why, first[0][0]) from None
