"""Arrange rows in lists: each row goes to the nearest of some centres, which FAISS finds in a sample.

Neighbouring lists lie side by side. Memory is bounded by blocks and by the sample. Does not move rows: it returns the
order in which they should lie.

Shapes: n rows, l lists, d key width.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from softkv.index.engine import assigned, clusters
from softkv.ndarrays import Counts, Reals
from softkv.progress import Stages

FEWEST = 24  # rows of an average list, at least
SAMPLED = 48  # rows of the sample for each list
SAMPLE = 1 << 26  # numbers in the sample, at most
ITERATIONS = 8
BLOCK = 1 << 16  # rows assigned together


def list_count(rows: int) -> int:
    """How many lists so many rows are divided into: about 1,500 of 36,000 and 4,000 of a million."""
    return max(1, min(rows // FEWEST, int(64 * rows**0.3)))


def arranged(
    keys: Callable[[Counts], Reals], rows: Counts, count: int, *, backend: str, progress: Stages
) -> tuple[Counts, Counts]:
    """The rows in list order, and the offsets of the lists, (l + 1,). `keys` gives the keys of some rows as float32."""
    width = keys(rows[:1]).shape[1]
    sample = min(len(rows), max(count * SAMPLED, 256), max(count, SAMPLE // width))
    chosen = np.sort(np.random.default_rng(0).choice(rows, sample, replace=False))
    centres = clusters(
        keys(chosen),
        count,
        seed=0,
        iterations=ITERATIONS,
        backend=backend,
        progress=partial(progress, "finding centres"),
    )
    centres = centres[side_by_side(centres)]
    owners = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), BLOCK):
        some = rows[start : start + BLOCK]
        owners[start : start + len(some)] = assigned(keys(some), centres, backend=backend)
        progress("assigning rows", start + len(some), len(rows))
    order = np.argsort(owners, kind="stable")
    return rows[order], np.concatenate([[0], np.bincount(owners, minlength=len(centres)).cumsum()])


def side_by_side(centres: Reals) -> Counts:
    """An order of the centres in which neighbours are near each other: halved repeatedly along the widest direction.

    Lists that are opened together then often lie together, and are read in one piece.
    """
    waiting, found = [np.arange(len(centres))], []
    while waiting:
        some = waiting.pop()
        if len(some) <= 2:
            found.append(some)
            continue
        apart = (centres[some] - centres[some].mean(0)).astype(np.float64)  # cubes of it are looked at
        along = apart[int(np.einsum("ij,ij->i", apart, apart).argmax())]
        for _ in range(8):  # power iteration: roughly the widest direction is good enough
            along = apart.T @ (apart @ along)
            along = along / (np.linalg.norm(along) or 1.0)
        ranked = some[np.argsort(apart @ along, kind="stable")]
        waiting += [ranked[len(ranked) // 2 :], ranked[: len(ranked) // 2]]
    return np.concatenate(found)
