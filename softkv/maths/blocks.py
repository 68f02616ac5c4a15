"""Blocks of rows on their way through a lookup, and rows that lie in several arrays.

Does not score or blend them (lookup.py).

Shapes: b queries, n rows, d key width.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softkv.maths.blending import Labels, Values
from softkv.maths.compatibility import Compatibility
from softkv.maths.library import Array

NARROW = 32  # width of values up to which copying them takes less time than reading their keys
# The number of the first row, logits, rows seen, and values.
LogitBlock = tuple[int, Array, Array, Callable[[], Values]]


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Some of the rows, in arrays of their own: how they are compared, which count, and the number of the first."""

    keys: Array  # (n, d), with as many values
    values: Values
    compatibility: str | Compatibility | Callable[[Any, Any], Any]
    mask: Array | None  # (1, n)
    first: int


def side_by_side(blocks: Iterable[LogitBlock], most: int) -> Iterator[LogitBlock]:
    """Join small neighbouring blocks, to at most this many rows: starting a block takes longer than copying it."""
    waiting = list[LogitBlock]()
    for block in blocks:
        known = sum(one[1].shape[-1] for one in waiting)
        fits = known + block[1].shape[-1] <= most and _is_narrow(block[3]())
        if waiting and not (fits and waiting[0][0] + known == block[0]):
            yield _as_one(waiting)
            waiting = []
        waiting.append(block)
    yield _as_one(waiting)


def _is_narrow(values: Values) -> bool:
    """Whether values are of a kind whose blocks can be joined, at little cost."""
    return not isinstance(values, Labels) and values.array.shape[-1] <= NARROW


def _as_one(blocks: list[LogitBlock]) -> LogitBlock:
    if len(blocks) == 1:
        return blocks[0]
    first, _, _, values = blocks[0]
    joined = replace(values(), array=np.concatenate([values().array for *_, values in blocks]))
    return first, np.concatenate([one[1] for one in blocks], axis=-1), sum(one[2] for one in blocks), lambda: joined
