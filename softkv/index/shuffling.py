"""Lay the rows within each list: first its head, the rows farthest from its mean, then its body in random order.

Any run of consecutive rows of a body is a simple random sample of the body, read in one piece. A head is the first rows
of its list for as long as these lie there: a row of it that dies stays in it.

Memory is bounded by blocks. Does not move rows: it returns the order in which they should lie. Does not choose the
seed of the random order.

Shapes: n rows, l lists, d key width.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from softkv.ndarrays import Counts, Reals

Blocks: TypeAlias = Callable[[], Iterator[tuple[Counts, Reals]]]

HEAD = 20  # one row in so many of a list is in its head, rounded up
BLOCK = 1 << 18  # numbers of keys looked at together: few enough to stay in the cache


def heads_first(
    keys: Callable[[Counts], Reals],
    rows: Counts,
    offsets: Counts,
    draw: np.random.Generator,
    *,
    means: Reals | None = None,
) -> tuple[Counts, Counts]:
    """The rows of lists with each head first, farthest first, and how many rows each head has, (l,).

    `rows`, (n,), come list by list, of which `offsets`, (l + 1,), tell; `keys` gives the keys of some rows. All keys
    are read once, and before that once more where the `means` of the lists, (l, d), are not known.
    """
    order, heads = rows.copy(), -(-np.diff(offsets) // HEAD)
    if not len(rows):
        return order, heads
    blocks = _blocks(keys, rows, offsets)
    apart = _apart(blocks, _means(blocks, offsets) if means is None else means)
    for start, stop, head in zip(offsets[:-1].tolist(), offsets[1:].tolist(), heads.tolist(), strict=True):
        order[start:stop] = rows[start:stop][np.argsort(-apart[start:stop])]
        draw.shuffle(order[start + head : stop])
    return order, heads


def problem_of_heads(heads: Counts | None, offsets: Counts) -> str | None:
    """Why these cannot be the heads of lists, if so; None as heads is allowed."""
    if heads is None:
        return None
    fits = heads.dtype == np.int64 and heads.shape == (len(offsets) - 1,)
    if fits and ((heads >= 0) & (heads <= np.diff(offsets))).all():
        return None
    return "has heads that are not of its lists"


def _blocks(keys: Callable[[Counts], Reals], rows: Counts, offsets: Counts) -> Blocks:
    """The lists and the keys of some rows at a time, as often as they are asked for."""
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    step = max(1, BLOCK // keys(rows[:1]).shape[1])

    def blocks() -> Iterator[tuple[Counts, Reals]]:
        for start in range(0, len(rows), step):
            yield owners[start : start + step], keys(rows[start : start + step])

    return blocks


def _means(blocks: Blocks, offsets: Counts) -> Reals:
    """The mean of each list, (l, d); 0 of empty ones."""
    sums: Reals = np.zeros((len(offsets) - 1, next(blocks())[1].shape[1]))
    for owners, keys in blocks():
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        sums[owners[firsts]] += np.add.reduceat(keys, firsts, axis=0, dtype=np.float64)
    sums /= np.maximum(np.diff(offsets), 1)[:, None]
    return sums


def _apart(blocks: Blocks, means: Reals) -> Reals:
    """The squared distance of each row from the mean of its list, (n,)."""
    found = []
    with np.errstate(over="ignore"):  # what is beyond the numbers is farther than all others
        near = means.astype(np.float32)
        for owners, keys in blocks():
            moved = keys - near[owners]
            found.append(np.einsum("ij,ij->i", moved, moved))
    return np.concatenate(found)
