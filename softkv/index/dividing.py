"""Refine lists: divide those that have grown, dissolve those that have shrunk.

Most rows stay in their list, so centres are not searched for all rows, and no row is compared with all lists.

Does not move rows: it returns the order in which they should lie. Rows of no list are divided into lists of their own.

Shapes: n rows, l lists.
"""

from collections.abc import Callable

import numpy as np

from softkv.index.building import ITERATIONS, SAMPLED, list_count
from softkv.index.engine import assigned, clusters
from softkv.ndarrays import Counts, Flags, Reals
from softkv.progress import Stages

GROWN = 2  # a list is divided if it has so many times as many rows as it was made of, and as the average list has
EMPTIED = 4  # its rows join others if it has at most one in so many of either
STAGE = "refining lists"


def emptied(owners: Counts, made_of: Counts) -> Flags:
    """The lists, (l,), which have so few rows left that these should join other lists.

    `owners`, (n,), are the lists that the rows are in, -1 for none; `made_of`, (l,), how many rows these lists had.
    """
    sizes, average = np.bincount(owners + 1, minlength=len(made_of) + 1)[1:], len(owners) / list_count(len(owners))
    return EMPTIED * sizes <= np.minimum(made_of, average)


def doubled(sizes: Reals | Counts, made_of: Counts, rows: int) -> Flags:
    """The lists, (l,), to divide, by their sizes, by how many rows they were made of, and by the rows of the store."""
    return sizes > GROWN * np.maximum(made_of, rows / list_count(rows))


def divided(
    keys: Callable[[Counts], Reals], rows: Counts, owners: Counts, made_of: Counts, *, backend: str, progress: Stages
) -> tuple[Counts, Counts]:
    """The rows in list order, and the offsets of the lists, (l + 1,).

    `owners`, (n,), are the lists that the rows are in, -1 for none; `made_of`, (l,), how many rows these lists had.
    `keys` gives the keys of some rows as float32.
    """
    average = len(rows) / list_count(len(rows))
    order = np.argsort(np.where(owners < 0, len(made_of), owners), kind="stable")
    sizes = np.bincount(owners + 1, minlength=len(made_of) + 1)
    sizes = np.append(sizes[1:], sizes[0])
    large = np.append(doubled(sizes[:-1], made_of, len(rows)), True)
    found, done = list[Counts](), 0
    for some, is_large in zip(np.split(rows[order], sizes.cumsum()[:-1]), large.tolist(), strict=True):
        count = round(len(some) / average) if is_large else 1
        found += _parts(keys, some, count, backend=backend) if count > 1 else [some] if len(some) else []
        done += len(some)
        if is_large:
            progress(STAGE, done, len(rows))
    progress(STAGE, len(rows), len(rows))
    return np.concatenate(found), np.concatenate([[0], np.cumsum([len(some) for some in found])])


def _parts(keys: Callable[[Counts], Reals], rows: Counts, count: int, *, backend: str) -> list[Counts]:
    """Divide rows into about so many lists."""
    sample = np.sort(np.random.default_rng(0).choice(len(rows), min(len(rows), count * SAMPLED), replace=False))
    centres = clusters(keys(rows[sample]), count, seed=0, iterations=ITERATIONS, backend=backend)
    owners = assigned(keys(rows), centres, backend=backend)
    parts = (rows[owners == number] for number in range(len(centres)))
    return [some for some in parts if len(some)]
