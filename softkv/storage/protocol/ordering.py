"""Check row numbers given by a caller, or an order of all live rows; read the rows in that order, block by block.

Does not choose the order, and writes nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from softkv.errors import ShapeError
from softkv.ndarrays import AnyArray, Flags, Rows
from softkv.storage.disk.arena import VerifiedRows
from softkv.storage.protocol.generation import Generation

_NORMS = 1 << 16  # norms gathered at a time


def checked_rows(rows: Sequence[int] | Rows, count: int) -> Rows:
    """The row numbers of a store of so many rows; an error where they are not."""
    numbers = np.asarray(rows)
    if numbers.shape == (0,):
        return np.empty(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ShapeError(f"rows must be a list of integers, not {numbers.dtype} of shape {numbers.shape}")
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise ShapeError(f"rows {numbers.min()} to {numbers.max()} were asked for, but the store has {count}")
    return numbers.astype(np.int64)


def checked_order(order: Any, live: Flags) -> Rows:
    """The order as row numbers; an error where it is not all live rows, each once."""
    rows = np.asarray(order)
    alive = int(live.sum())
    if rows.shape == (0,) and not alive:
        return np.empty(0, np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ShapeError(f"an order is a list of row numbers, not {rows.dtype} of shape {rows.shape}")
    if len(rows) != alive:
        raise ShapeError(f"the order has {len(rows)} rows, but {alive} are live: name each of them once")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(live):
        raise ShapeError(f"the order goes from row {rows.min()} to {rows.max()}, but the store has {len(live)} rows")
    numbers: Rows = rows.astype(np.int64)  # a copy, so that the caller cannot change it meanwhile
    named = np.zeros(len(live), np.bool_)
    named[numbers] = True
    if (named != live).any():
        raise ShapeError(
            f"the order does not name row {np.flatnonzero(live & ~named)[0]}, which is live: it names a dead row, "
            "or one row twice"
        )
    return numbers


def gathered(source: VerifiedRows, count: int, order: Rows, stride: int) -> Iterator[AnyArray]:
    """The rows of an arena in this order, `stride` at a time."""
    # All checksums first and in the order of the file: the first gathered block would touch nearly every window.
    for start in range(0, count, stride):
        source.block(start, min(start + stride, count))
    for start in range(0, len(order), stride):
        yield source.take(order[start : start + stride])


def gathered_norms(source: Generation, order: Rows) -> Iterator[AnyArray]:
    """The norms of the rows in this order."""
    for start in range(0, len(order), _NORMS):
        yield source.norms_of(order[start : start + _NORMS])
