"""JSON lines: one object on each line, whose names are the columns.

What the names mean is decided by the first hundred objects together, because a field may be missing in some. Blank
lines are skipped; objects that span several lines are read by document.py.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from softkv.files.fields import Builder
from softkv.files.limits import BLOCK
from softkv.files.lines import numbered
from softkv.files.notation import MISSING, kind_of, parsed
from softkv.files.record import Columns, Misfit, Record, Refusals
from softkv.files.roles import choose
from softkv.files.source import Source

BATCH = 100  # objects

Placed = tuple[int, Any, int]  # the line it begins on, the element or a Misfit that says what is wrong, its length


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of lines of objects."""
    return records(_objects(source), columns, kind, source.refusals)


def records(objects: Iterator[Placed], columns: Columns, kind: str | None, refusals: Refusals) -> Iterator[Record]:
    """The records of elements; one that is no object is refused when its turn comes."""
    roles: Columns | None = None
    failure = None
    while failure is None:
        batch, failure = _batch(objects)
        for fit, run in groupby(batch, lambda placed: isinstance(placed[1], dict)):
            if not fit:
                for line, given, _ in run:
                    refusals.refuse(line, _odd(given))
                continue
            lines, found, _ = zip(*run, strict=True)
            if roles is None:
                roles = _roles(batch, columns, refusals)
                build, names = Builder(roles, kind), roles.named()
            yield from build.records(
                lines, {name: [one.get(name, MISSING) for one in found] for name in names}, refusals
            )
    if not isinstance(failure, StopIteration):
        raise failure


def _odd(given: Any) -> object:
    if isinstance(given, Misfit):
        return given
    return f'it is {kind_of(given)}, not an object such as {{"key": ..., "value": ...}}'


def _objects(source: Source) -> Iterator[Placed]:
    for line, text in numbered(source):
        if not text.isspace():
            try:
                yield line, parsed(text), len(text)
            except Misfit as why:
                yield line, why, len(text)


def _batch(objects: Iterator[Placed]) -> tuple[list[Placed], Exception | None]:
    """The next elements, at most as many as one block would hold, and the error that ended the reading, if any."""
    found: list[Placed] = []
    length = 0
    while len(found) < BATCH and length <= BLOCK:
        try:
            found.append(next(objects))
        except Exception as failure:  # raised after the records before it were returned
            return found, failure
        length += found[-1][2]
    return found, None


def _roles(batch: list[Placed], columns: Columns, refusals: Refusals) -> Columns:
    names = list(dict.fromkeys(name for _, given, _ in batch if isinstance(given, dict) for name in given))
    try:
        return choose(names, columns)
    except Misfit as why:
        raise refusals.fatal(why, batch[0][0]) from None
