"""Sums over the rows of a draw, of their values: vectors, or labels as vectors that are 1 at their code.

Beside plain sums, those that tell how columns vary together: of the strata, and of some random groups of pairs of rows.

Does not know what the sums are for (sampling.py).

Shapes: b queries, s strata that were visited, r rows that were read, stratum by stratum, p value width.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from softkv.maths.strata import Array, Counts, Draw, Floats

GROUPS = 32  # of rows that tell how columns vary together
BLOCK = 8  # rows of a stratum that belong to one group, at most
HELD = 1 << 22  # numbers of sums of blocks that are held at once
FEW_LABELS = 64  # that are counted with as vectors


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of a draw in pairs: two of a stratum differ by twice what its rows vary, whatever its mean is.

    A few pairs of a stratum are a block. Some blocks, and the sums of some strata, make a group, with signs by chance.
    """

    weights: Floats  # (r,)
    blocks: Counts  # (s,), how many blocks each stratum has
    lengths: Counts  # how many rows each block has
    groups: Counts  # by block
    homes: Counts  # (s,), the groups of the sums of strata
    sides: Floats  # (s,), and their weights

    @classmethod
    def of(cls, draw: Draw, random: np.random.Generator) -> "Pairs":
        """The pairs of a draw."""
        (inside, outside), owners, pairs = draw.factors, draw.owners, draw.sizes // 2
        place = np.arange(len(owners)) - draw.firsts[owners]
        share = np.sqrt(inside * (draw.sizes - 1) / np.maximum(2 * pairs, 1))[owners]
        share *= (place < 2 * pairs[owners]) * np.where(place % 2, -1.0, 1.0)
        pair = (pairs.cumsum() - pairs)[owners] + place // 2
        starts = np.flatnonzero(place % BLOCK == 0)
        lengths = np.diff(starts, append=len(owners))
        signs, sides = (random.choice(np.array([-1.0, 1.0]), count) for count in (len(owners) + 1, len(draw.sizes)))
        groups, homes = (random.integers(0, GROUPS, count) for count in (len(starts), len(draw.sizes)))
        return cls(share * signs[pair], -(-draw.sizes // BLOCK), lengths, groups, homes, sides * np.sqrt(outside))

    @cached_property
    def starts(self) -> Counts:
        """Where the rows of each block begin."""
        return self.lengths.cumsum() - self.lengths

    def by_block(self, weights: Array, values: Array) -> Array:
        """Σ w·v over the rows of each block, (w, r) and (r, p) -> (blocks, w, p)."""
        found = np.empty((len(self.lengths), len(weights), values.shape[1]), values.dtype)
        for length in range(1, BLOCK + 1):  # products of matrices of one shape, many at once
            some = np.flatnonzero(self.lengths == length)
            rows = self.starts[some][:, None] + np.arange(length)
            found[some] = np.ascontiguousarray(weights[:, rows].swapaxes(0, 1)) @ values[rows]
        return found

    def by_stratum(self, blocks: Array) -> Array:
        """Sums over the blocks of each stratum, (blocks, ...) -> (s, ...)."""
        firsts = self.blocks.cumsum() - self.blocks
        found: Array = blocks[firsts]
        for number in range(1, int(self.blocks.max(initial=1))):
            some = np.flatnonzero(self.blocks > number)
            found[some] += blocks[firsts[some] + number]
        return found

    def by_group(self, blocks: Array, strata: Array) -> Array:
        """Sums over the blocks and the strata of each group, (blocks, ...) and (s, ...) -> (GROUPS, ...)."""
        numbers, shape = np.arange(GROUPS)[:, None], (GROUPS, *blocks.shape[1:])
        found: Array = (numbers == self.groups).astype(blocks.dtype) @ blocks.reshape(len(blocks), -1)
        found += ((numbers == self.homes) * self.sides).astype(strata.dtype) @ strata.reshape(len(strata), -1)
        return found.reshape(shape)


class Columns(ABC):
    """The values of the rows that were read, as columns."""

    free: int  # how many of the columns the others do not settle

    @abstractmethod
    def total(self, weights: Floats) -> Floats:
        """Σ w·v, (b, r) -> (b, p)."""

    @abstractmethod
    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""

    @abstractmethod
    def sums(self, e: Floats, means: Floats, draw: Draw, pairs: Pairs) -> tuple[Floats, Floats]:
        """‖Σ e·(v − mean)‖² over the rows of each stratum, (b, s), and the sums of all groups, (b, GROUPS, p)."""


class VectorColumns(Columns):
    """Values that are vectors, (r, p)."""

    def __init__(self, values: Floats, *, free: int | None = None) -> None:
        self._values, self.free = values, values.shape[1] if free is None else free

    def total(self, weights: Floats) -> Floats:
        """Σ w·v, (b, r) -> (b, p)."""
        found: Floats = weights @ self._values
        return found

    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""
        middle = means.mean(0)  # of which more digits are left
        values, apart = self._values - middle, means - middle
        found: Floats = -2.0 * apart @ values.T
        found += np.einsum("rp,rp->r", values, values) + np.einsum("bp,bp->b", apart, apart)[:, None]
        return np.maximum(found, 0.0)

    def sums(self, e: Floats, means: Floats, draw: Draw, pairs: Pairs) -> tuple[Floats, Floats]:
        """‖Σ e·(v − mean)‖² over the rows of each stratum, (b, s), and the sums of all groups, (b, GROUPS, p)."""
        # In float32, counted from the middle of the means: these sums tell a variance, to a few percent of it.
        middle = means.mean(0)
        values, apart = (self._values - middle).astype(np.float32), (means - middle).astype(np.float32)
        step = max(1, HELD // max(1, 2 * len(pairs.lengths) * values.shape[1]))
        squares, groups = np.empty((len(e), len(draw.sizes))), np.empty((len(e), GROUPS, values.shape[1]))
        if not len(draw.sizes):
            return squares, np.zeros_like(groups)
        for start in range(0, len(e), step):
            some = slice(start, start + step)
            weights = np.concatenate([e[some], e[some] * pairs.weights]).astype(np.float32)
            blocks, count = pairs.by_block(weights, values), len(weights) // 2
            masses = np.add.reduceat(weights, pairs.starts, axis=1).T[:, :, None]
            strata = pairs.by_stratum(blocks[:, :count]) - pairs.by_stratum(masses[:, :count]) * apart[some]
            squares[some] = np.einsum("sbp,sbp->bs", strata, strata)
            found = pairs.by_group(blocks[:, count:], strata)
            found -= pairs.by_group(masses[:, count:], np.zeros((len(strata), count, 1))) * apart[some]
            groups[some] = found.swapaxes(0, 1)
        return squares, groups


class LabelColumns(Columns):
    """Values that are codes of many labels, (r,): vectors that are 1 there and 0 elsewhere."""

    def __init__(self, codes: npt.NDArray[np.integer], labels: int) -> None:
        self._codes, self._labels = codes.astype(np.int64), labels
        self.free = max(1, labels - 1)  # shares add up to 1

    def total(self, weights: Floats) -> Floats:
        """Σ w·v, (b, r) -> (b, p)."""
        found: Floats = np.array([np.bincount(self._codes, some, self._labels) for some in weights], np.float64)
        return found

    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""
        found: Floats = 1.0 - 2.0 * means[:, self._codes] + np.einsum("bp,bp->b", means, means)[:, None]
        return np.maximum(found, 0.0)

    def sums(self, e: Floats, means: Floats, draw: Draw, pairs: Pairs) -> tuple[Floats, Floats]:
        """‖Σ e·(v − mean)‖² over the rows of each stratum, (b, s), and the sums of all groups, (b, GROUPS, p)."""
        labels, count = self._labels, len(draw.sizes)
        places, entries = np.unique(draw.owners * labels + self._codes, return_inverse=True)
        owners, codes = places // labels, places % labels
        masses, squares = draw.by_stratum(e), np.empty((len(e), count))
        groups = np.empty((len(e), GROUPS, labels))
        for number, mean in enumerate(means):
            sums, mass = np.bincount(entries, e[number], len(places)), masses[number]
            crossed = np.bincount(owners, sums * mean[codes], count)
            squares[number] = np.bincount(owners, sums * sums, count) - 2.0 * mass * crossed + mass**2 * (mean @ mean)
            whose = np.concatenate([np.repeat(pairs.groups, pairs.lengths), pairs.homes[draw.owners]])
            weights = np.concatenate([e[number] * pairs.weights, e[number] * pairs.sides[draw.owners]])
            found = np.bincount(whose * labels + np.tile(self._codes, 2), weights, GROUPS * labels)
            groups[number] = found.reshape(GROUPS, labels) - np.bincount(whose, weights, GROUPS)[:, None] * mean
        return np.maximum(squares, 0.0), groups


def columns_of_labels(codes: npt.NDArray[np.integer], labels: int) -> Columns:
    """The columns of values that are codes of so many labels."""
    if labels > FEW_LABELS:
        return LabelColumns(codes, labels)
    return VectorColumns(np.eye(labels)[codes], free=max(1, labels - 1))
