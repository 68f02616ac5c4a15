"""Lay the rows within each list: first its head, the rows farthest from its mean, then its body in random order.

Any run of consecutive rows of a body is a simple random sample of the body, read in one piece. A head is the first rows
of its list for as long as these lie there: a row of it that dies stays in it.

Memory is bounded by blocks. Does not move any row: it says in which order they should lie. Does not choose what the
order is drawn from.

Shapes: n rows, l lists, d key width.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from softkv.maths.farfield import Array
from softkv.maths.moments import squared_lengths

Counts = npt.NDArray[np.int64]

HEAD = 20  # rows of a list of which one, or the part of one, is in its head
BLOCK = 1 << 13  # rows looked at together


def heads_first(
    keys: Callable[[Counts], Array], rows: Counts, offsets: Counts, draw: np.random.Generator
) -> tuple[Counts, Counts]:
    """The rows of lists with each head first, farthest first, and how many rows each head has, (l,).

    `rows`, (n,), come list by list, of which `offsets`, (l + 1,), tell; `keys` gives the keys of some rows.
    """
    order, heads = rows.copy(), -(-np.diff(offsets) // HEAD)
    for start, stop, head in zip(offsets[:-1].tolist(), offsets[1:].tolist(), heads.tolist(), strict=True):
        if start < stop:
            some = rows[start:stop]
            order[start:stop] = some[np.argsort(-_apart(keys, some))]
            draw.shuffle(order[start + head : stop])
    return order, heads


def problem_of_heads(heads: Counts | None, offsets: Counts) -> str | None:
    """Why these cannot be the heads of lists, if they cannot; there may be none."""
    if heads is None or (
        heads.dtype == np.int64
        and heads.shape == (len(offsets) - 1,)
        and ((heads >= 0) & (heads <= np.diff(offsets))).all()
    ):
        return None
    return "has heads that are not of its lists"


def _apart(keys: Callable[[Counts], Array], rows: Counts) -> npt.NDArray[np.float64]:
    """The squared distance of each row of one list from their mean, (n,)."""
    parts = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
    held = [keys(part) for part in parts[:1]]  # nearly all lists are no larger, and then no key is read twice
    mean = sum(block.sum(0, dtype=np.float64) for block in (*held, *map(keys, parts[1:]))) / len(rows)
    with np.errstate(over="ignore"):  # what is beyond the numbers is farther than all others
        moved = (block - mean.astype(block.dtype) for block in (*held, *map(keys, parts[1:])))
        return np.concatenate([squared_lengths(block) for block in moved])
