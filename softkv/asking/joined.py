"""Join answers to parts of a batch into answers to the whole batch; or take the answers to one query out of it.

Shapes: b queries, s rows shown.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.ndarrays import Rows

EMPTY = {"rows": -1, "weights": 0.0, "scores": -np.inf}  # where fewer rows are named than elsewhere
EMPTY |= {"effective_error": np.nan, "spread_error": np.nan}  # where nothing was measured
OF_EACH = ("error_kind", "route", "reason")  # one for all, or one for each


def joined(parts: Sequence[tuple[Rows, Answers]], temperature: Any) -> Answers:
    """Answers to all queries, from parts that name the queries they answer; a later part replaces an earlier one."""
    count = 1 + max(int(places.max()) for places, _ in parts)
    columns: dict[str, Any] = {}
    for name in (one.name for one in fields(Answers)):
        given = [(places, getattr(answers, name)) for places, answers in parts]
        if name in OF_EACH:
            columns[name] = _of_each(given, count)
        elif name != "temperature" and any(isinstance(x, np.ndarray) for _, x in given):
            columns[name] = _column(name, given, count)
    return replace(parts[0][1], **columns, temperature=temperature)


def part_of(answers: Answers, place: int) -> Answers:
    """The answers to one of the queries alone."""
    cut: dict[str, Any] = {}
    for name in (one.name for one in fields(Answers)):
        given = getattr(answers, name)
        if isinstance(given, np.ndarray) and given.ndim:
            cut[name] = given[place : place + 1]
        elif name in OF_EACH and isinstance(given, tuple):
            cut[name] = given[place]
    return replace(answers, **cut)


def _column(name: str, given: Sequence[tuple[Rows, Any]], count: int) -> Any:
    known = [x for _, x in given if x is not None]
    shape = tuple(max(sizes) for sizes in zip(*(x.shape[1:] for x in known), strict=True))
    found = np.full((count, *shape), EMPTY.get(name, 0), known[0].dtype)
    for places, x in given:
        if x is None:
            found[places] = EMPTY.get(name, 0)  # an exact answer has no error of its mass
        elif shape:
            found[(places, slice(x.shape[1]))] = x
            found[(places, slice(x.shape[1], None))] = EMPTY.get(name, 0)
        else:
            found[places] = x
    return found


def _of_each(given: Sequence[tuple[Rows, Any]], count: int) -> Any:
    """One entry for each query, or a single one if all are equal."""
    found: list[Any] = [None] * count
    for places, told in given:
        for number, place in enumerate(places.tolist()):
            found[place] = told[number] if isinstance(told, tuple) else told
    return found[0] if len(set(found)) == 1 else tuple(found)
