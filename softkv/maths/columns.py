"""Sums of the values of drawn rows: vectors, or labels as vectors that are 1 at their code.

Beside plain sums there are some that show how columns vary together: over strata, and over random groups of row pairs.

Does not know what the sums are for (sampling.py).

Shapes: b queries, s strata that were visited, r rows that were read, stratum by stratum, p value width.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from softkv.maths.arrays import library_of
from softkv.maths.blas import shared
from softkv.maths.strata import Draw
from softkv.maths.summing import summed_in_runs
from softkv.ndarrays import Counts, Floats, Reals

GROUPS = 32  # groups of rows, by which it is estimated how columns vary together
BLOCK = 8  # rows of a stratum that belong to one group, at most; a power of two
COUNTED = 1 << 10  # rows that are counted in float64 at once
ABREAST = 32  # rows that are multiplied by one matrix
WIDTH = 8  # numbers of a row that fill the cache, for one query, as its sums for one more query would
LOST = 8.0  # rounding errors allowed for in a product of vectors
FEW_LABELS = 64  # the most labels that are treated as vectors


@dataclass(frozen=True, eq=False)
class Pairs:
    """Drawn rows in pairs: the difference of two rows of a stratum has twice its variance, whatever its mean.

    A few pairs of a stratum make a block. Blocks, and the sums of strata, are put in groups, with random signs.
    """

    weights: Floats  # (r,)
    blocks: Counts  # (r,), rising
    lots: Counts  # the group of each block
    homes: Counts  # (s,), the groups of the sums of strata
    sides: Floats  # (s,), and their weights

    @classmethod
    def of(cls, draw: Draw, random: np.random.Generator) -> "Pairs":
        """The pairs of a draw."""
        (inside, outside), owners, pairs = draw.factors, draw.owners, draw.sizes // 2
        place = np.arange(len(owners)) - draw.firsts[owners]
        share = np.sqrt(inside * (draw.sizes - 1) / np.maximum(2 * pairs, 1))[owners]
        share *= 1 - 2 * (place & 1)
        share[place == 2 * pairs[owners]] = 0.0  # the last of an odd number
        pair = (pairs.cumsum() - pairs)[owners] + (place >> 1)
        blocks = (place & (BLOCK - 1) == 0).cumsum() - 1
        signs, sides = (_signs(random, count) for count in (len(owners) + 1, len(draw.sizes)))
        groups, homes = (random.integers(0, GROUPS, count) for count in (blocks.max(initial=-1) + 1, len(draw.sizes)))
        return cls(share * signs[pair], blocks, groups, homes, sides * np.sqrt(outside))

    @property
    def groups(self) -> Counts:
        """The group of each row, (r,)."""
        return self.lots[self.blocks]

    def sums(self, e: Reals, values: Reals, apart: Reals, draw: Draw) -> Reals:
        """Σ e·(v − apart) over the rows of each group, and over the rows of its strata, (b, GROUPS, p).

        `e` and values are row by row, (r, b) and (r, p); `apart` is what each query subtracts from them, (b, p).
        """
        found = np.zeros((len(apart), GROUPS, values.shape[1]), values.dtype)
        for groups, weights in (self.groups, self.weights), (self.homes[draw.owners], self.sides[draw.owners]):
            order = np.argsort(groups, kind="stable")
            ends = np.searchsorted(groups[order], np.arange(GROUPS + 1))
            for group, (start, end) in enumerate(pairwise(ends.tolist())):
                rows = order[start:end]
                mine = e[rows] * weights[rows, None].astype(e.dtype)
                found[:, group] += mine.T @ values[rows] - mine.sum(0)[:, None] * apart
        return found

    def of_one(self, e: Reals, some: slice, rows: slice, part: Draw) -> Reals:
        """The matrix that sums the rows of a part of a draw by group, with the weights of one query, (GROUPS, n).

        `some` are the strata of the part, and `rows` its rows, (n,), which have these `e`.
        """
        found, places = np.zeros(len(e) * GROUPS, e.dtype), np.arange(0, len(e) * GROUPS, GROUPS)
        found[places + self.lots[self.blocks[rows]]] = e * self.weights[rows].astype(e.dtype)
        found[places + self.homes[some][part.owners]] += e * self.sides[some].astype(e.dtype)[part.owners]
        return found.reshape(-1, GROUPS).T


def _signs(random: np.random.Generator, count: int) -> Floats:
    """1 or −1 by chance, (count,)."""
    bits = np.unpackbits(np.frombuffer(random.bytes(-(-count // 8)), np.uint8), count=count)
    found: Floats = 1.0 - 2.0 * bits.astype(np.float64)
    return found


def _sums_of_one(e: Reals, values: Reals, draw: Draw) -> Reals:
    """Σ e·v of one query over the rows of each stratum, (r,) and (r, p) -> (s, p).

    Behind the values there are zeros, up to a whole number of ABREAST. So many rows at a time are multiplied by a
    matrix with a row for each stratum that they are of, which is several times as fast as NumPy adds up short runs.
    """
    windows, numbers = len(values) // ABREAST, np.arange(len(e))
    owners = np.pad(draw.owners, (0, len(values) - len(e)), "edge").reshape(windows, ABREAST)
    places = owners - owners[:, :1]
    most = int(places[:, -1].max()) + 1
    spread = np.zeros((windows, most, ABREAST), values.dtype)
    spread.reshape(-1)[(numbers // ABREAST * most + places.reshape(-1)[: len(e)]) * ABREAST + numbers % ABREAST] = e
    found = (spread @ values.reshape(windows, ABREAST, -1)).reshape(windows * most, -1)
    sums = found[draw.firsts // ABREAST * most + places.reshape(-1)[draw.firsts]]
    # A stratum that began before has its other rows first in a window.
    later = np.flatnonzero(owners[1:, 0] == owners[:-1, -1]) + 1
    if len(later):
        whose, starts = np.unique(owners[later, 0], return_index=True)
        sums[whose] += np.add.reduceat(found[later * most], starts, axis=0)
    return sums


class VectorColumns:
    """Vectors, (r, p), in float32; `free` counts columns that do not follow from the others.

    Totals of several queries are summed in float64; for one, float32 adds up runs of rows, and float64 these.
    """

    def __init__(self, values: Reals, *, free: int | None = None) -> None:
        self._values, self.free = values, values.shape[1] if free is None else free

    def total(self, weights: Floats) -> Floats:
        """The sum of values by weight: Σ w·v, (b, r) -> (b, p)."""
        if len(weights) == 1:
            values = self._values
            found: Floats = summed_in_runs(library_of(values), weights.astype(values.dtype), values)
            return found
        found = np.zeros((len(weights), self._values.shape[1]))
        for start in range(0, len(self._values), COUNTED):  # copies then stay in the cache
            some = slice(start, start + COUNTED)
            found += weights[:, some] @ self._values[some].astype(np.float64)
        return found

    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""
        if len(means) == 1:
            apart = self._values - means.astype(self._values.dtype)
            found: Floats = np.einsum("rp,rp->r", apart, apart)[None].astype(np.float64)
            return found
        middle, apart, lengths = self._middle_of(means)
        return _distances(self._values - middle, apart, lengths)[0]

    def varied(self, e: Floats, means: Floats, draw: Draw, pairs: Pairs) -> tuple[Floats, Floats, Floats]:
        """Σ ‖e·(v − mean)‖² and ‖Σ e·(v − mean)‖² over the rows of each stratum, (b, s) each, and sums of groups."""
        kind = self._values.dtype  # float32: these sums give a variance, to a few percent
        if len(e) == 1:
            return self._varied_of_one(e[0], means, draw, pairs)
        middle, apart, lengths = self._middle_of(means)
        values = self._values - middle
        weights = np.empty((len(values), len(e)), kind)
        inside, squares = np.empty((2, len(e), len(draw.sizes)))
        for some, rows, part in draw.parts(len(e)):
            mine, (distances, along) = e[:, rows], _distances(values[rows], apart, lengths)
            weights[rows] = mine.T
            distances *= mine
            distances *= mine
            inside[:, some] = part.by_stratum(distances)
            mass, crossed = part.by_stratum(mine), part.by_stratum(mine * along)
            squares[:, some] = mass * (mass * lengths - 2.0 * crossed)
        squares += draw.squares(weights, values)
        return inside, np.maximum(squares, 0.0), pairs.sums(weights, values, apart, draw).astype(np.float64)

    def _varied_of_one(self, e: Floats, mean: Floats, draw: Draw, pairs: Pairs) -> tuple[Floats, Floats, Floats]:
        """What `varied` returns, for a single query: some rows at a time, by several threads."""
        kind, width = self._values.dtype, self._values.shape[1]
        parts, mean = list(draw.parts(max(1, width // WIDTH))), mean.astype(kind)
        inside, squares = np.zeros((2, 1, len(draw.sizes)))
        groups = np.zeros((len(parts), GROUPS, width), kind)

        def vary(first: int, last: int) -> None:
            most = max((rows.stop - rows.start for _, rows, _ in parts[first:last]), default=0)
            room = np.empty((most + ABREAST, width), kind)
            for number, (some, rows, part) in enumerate(parts[first:last], first):
                mine = e[rows]
                count = len(mine)
                apart, padded = room[:count], room[: count + -count % ABREAST]
                np.subtract(self._values[rows], mean, out=apart)
                padded[count:] = 0.0
                inside[:, some] = part.by_stratum((mine * mine * np.einsum("rp,rp->r", apart, apart))[None])
                weights = mine.astype(kind)
                groups[number] = pairs.of_one(weights, some, rows, part) @ apart
                sums = _sums_of_one(weights, padded, part)
                squares[:, some] = np.einsum("sp,sp->s", sums, sums)

        shared(vary, 0, len(parts))
        return inside, squares, groups.sum(0, dtype=np.float64)[None]

    def _middle_of(self, means: Floats) -> tuple[Reals, Reals, Reals]:
        """The middle of some means, (p,), these relative to it, and their squared lengths, (b, 1).

        Relative to the middle, means and values keep most of their digits.
        """
        middle = means.mean(0).astype(self._values.dtype)
        apart = (means - middle).astype(middle.dtype)
        return middle, apart, np.einsum("bp,bp->b", apart, apart)[:, None]


def _distances(values: Reals, means: Reals, lengths: Reals) -> tuple[Floats, Reals]:
    """‖v − mean‖² of all values with all means of these squared lengths, and their products, (b, r) each."""
    found: Floats = (np.einsum("rp,rp->r", values, values) + lengths).astype(np.float64)
    lost = found * (LOST * np.finfo(values.dtype).eps)  # by rounding, which must not make them smaller
    along = means @ values.T
    found -= 2.0 * along
    np.maximum(found, 0.0, out=found)
    found += lost
    return found, along


class LabelColumns:
    """Values that are codes of many labels, (r,): vectors that are 1 there and 0 elsewhere."""

    def __init__(self, codes: npt.NDArray[np.integer], labels: int) -> None:
        self._codes, self._labels = codes.astype(np.int64), labels
        self.free = max(1, labels - 1)  # shares add up to 1

    def total(self, weights: Floats) -> Floats:
        """The sum of values by weight: Σ w·v, (b, r) -> (b, p)."""
        return np.array([np.bincount(self._codes, some, self._labels) for some in weights], np.float64)

    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""
        found: Floats = 1.0 - 2.0 * means[:, self._codes] + np.einsum("bp,bp->b", means, means)[:, None]
        return np.maximum(found, 0.0)

    def varied(self, e: Floats, means: Floats, draw: Draw, pairs: Pairs) -> tuple[Floats, Floats, Floats]:
        """Σ ‖e·(v − mean)‖² and ‖Σ e·(v − mean)‖² over the rows of each stratum, (b, s) each, and sums of groups."""
        labels, count = self._labels, len(draw.sizes)
        places, entries = np.unique(draw.owners * labels + self._codes, return_inverse=True)
        owners, codes = places // labels, places % labels
        masses, squares = draw.by_stratum(e), np.empty((len(e), count))
        groups = np.empty((len(e), GROUPS, labels))
        for number, mean in enumerate(means):
            sums, mass = np.bincount(entries, e[number], len(places)), masses[number]
            crossed = np.bincount(owners, sums * mean[codes], count)
            squares[number] = np.bincount(owners, sums * sums, count) - 2.0 * mass * crossed + mass**2 * (mean @ mean)
            whose = np.concatenate([pairs.groups, pairs.homes[draw.owners]])
            weights = np.concatenate([e[number] * pairs.weights, e[number] * pairs.sides[draw.owners]])
            found = np.bincount(whose * labels + np.tile(self._codes, 2), weights, GROUPS * labels)
            groups[number] = found.reshape(GROUPS, labels) - np.bincount(whose, weights, GROUPS)[:, None] * mean
        return draw.by_stratum(e * e * self.distances(means)), np.maximum(squares, 0.0), groups


Columns: TypeAlias = VectorColumns | LabelColumns  # the values of the rows that were read


def columns_of_labels(codes: npt.NDArray[np.integer], labels: int) -> Columns:
    """The columns of values that are codes of so many labels."""
    if labels > FEW_LABELS:
        return LabelColumns(codes, labels)
    return VectorColumns(np.eye(labels, dtype=np.float32)[codes], free=max(1, labels - 1))
