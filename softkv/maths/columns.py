"""Sums of the values of drawn rows: vectors, or labels as vectors that are 1 at their code.

Beside plain sums there are some that show how columns vary together: over strata, and over random groups of row pairs.
Vectors are given as their differences t from a centre of their stratum, so that sums of different weights can be made
of both: of row i of stratum l, y = u·t + g·(centre − mean), which is e·(v − mean) where both weights are e.

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

    def sums(self, e: Reals, values: Reals, draw: Draw) -> Reals:
        """Σ e·v over the rows of each group, and over the rows of its strata, (b, GROUPS, p).

        `e` and values are row by row, (r, b) and (r, p).
        """
        found = np.zeros((e.shape[1], GROUPS, values.shape[1]), values.dtype)
        for groups, weights in (self.groups, self.weights), (self.homes[draw.owners], self.sides[draw.owners]):
            order = np.argsort(groups, kind="stable")
            ends = np.searchsorted(groups[order], np.arange(GROUPS + 1))
            for group, (start, end) in enumerate(pairwise(ends.tolist())):
                rows = order[start:end]
                mine = e[rows] * weights[rows, None].astype(e.dtype)
                found[:, group] += mine.T @ values[rows]
        return found

    def of_one(self, e: Reals, some: slice, rows: slice, part: Draw) -> Reals:
        """The matrix that sums the rows of a part of a draw by group, with the weights of one query, (GROUPS, n).

        `some` are the strata of the part, and `rows` its rows, (n,), which have these `e`.
        """
        found, places = np.zeros(len(e) * GROUPS, e.dtype), np.arange(0, len(e) * GROUPS, GROUPS)
        found[places + self.lots[self.blocks[rows]]] = e * self.weights[rows].astype(e.dtype)
        found[places + self.homes[some][part.owners]] += e * self.sides[some].astype(e.dtype)[part.owners]
        return found.reshape(-1, GROUPS).T

    def of_strata(self, g: Floats, some: slice, rows: slice, part: Draw) -> Floats:
        """The matrix that sums strata by group, with the weights of their rows for one query, (n,) -> (GROUPS, s).

        Multiplied by something of each stratum, it gives the sums for rows that have that of their stratum.
        """
        count = part.sizes.size
        places = np.concatenate([self.lots[self.blocks[rows]] * count + part.owners, self.homes[some] * count])
        places[len(g) :] += np.arange(count)
        weights = np.concatenate([g * self.weights[rows], part.by_stratum(g[None])[0] * self.sides[some]])
        found: Floats = np.bincount(places, weights, GROUPS * count).astype(np.float64).reshape(GROUPS, count)
        return found


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
    """Vectors, in float32, as differences from centres of their strata; `free` counts columns that are independent.

    Totals of several queries are summed in float64; for one, float32 adds up runs of rows, and float64 these.
    """

    def __init__(
        self,
        apart: Reals,
        draw: Draw,
        squares: Reals,
        *,
        centres: Reals | None = None,
        crossed: Reals | None = None,
        free: int | None = None,
    ) -> None:
        self._padded, self._apart = apart, apart[: len(squares)]  # t, (r, p), before ABREAST rows of 0
        self._draw, self._squares = draw, squares  # ‖t‖², (r,)
        self._centres, self._crossed = centres, crossed  # (s, p), and t·centre, (r,); None where all centres are 0
        self.free = apart.shape[1] if free is None else free

    @classmethod
    def of(cls, values: Reals, draw: Draw, *, free: int | None = None) -> "VectorColumns":
        """Vectors, (r, p), with 0 for the centres of all strata."""
        return cls(np.pad(values, ((0, ABREAST), (0, 0))), draw, np.einsum("rp,rp->r", values, values), free=free)

    def total(self, u: Floats, g: Floats) -> Floats:
        """Σ u·t + g·centre, by weights of rows, (b, r) each -> (b, p)."""
        found = np.zeros((len(u), self._apart.shape[1]))
        if self._centres is not None:
            found += self._draw.by_stratum(g) @ self._centres.astype(np.float64)
        if len(u) == 1:
            found += summed_in_runs(library_of(self._apart), u.astype(self._apart.dtype), self._apart)
            return found
        for start in range(0, len(self._apart), COUNTED):  # copies then stay in the cache
            some = slice(start, start + COUNTED)
            found += u[:, some] @ self._apart[some].astype(np.float64)
        return found

    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""
        values = self._apart if self._centres is None else self._apart + self._centres[self._draw.owners]
        if len(means) == 1:
            apart = values - means.astype(values.dtype)
            found: Floats = np.einsum("rp,rp->r", apart, apart)[None].astype(np.float64)
            return found
        return _distances(values, means)

    def varied(self, u: Floats, g: Floats, means: Floats, pairs: Pairs) -> tuple[Floats, Floats, Floats]:
        """Σ ‖y‖² and ‖Σ y‖² over the rows of each stratum, (b, s) each, and sums of groups, (b, GROUPS, p).

        y is u·t + g·(centre − mean), with weights of rows, (b, r), which are the same where all centres are 0. For one
        query, several threads sum some rows each.
        """
        far = np.square(means).sum(1)[:, None] if self._centres is None else _distances(self._centres, means)
        if len(u) > 1:
            return self._varied_of_many(u, g, means, far, pairs)
        kind, draw, mean = self._apart.dtype, self._draw, means[0].astype(self._apart.dtype)
        away = None if self._centres is None else self._centres - mean
        parts = list(draw.parts(max(1, len(mean) // WIDTH)))
        inside, squares = np.empty((2, 1, len(draw.sizes)))
        groups = np.zeros((len(parts), GROUPS, len(mean)), kind)  # in float32: a variance to a few percent

        def vary(first: int, last: int) -> None:
            for number, (some, rows, part) in enumerate(parts[first:last], first):
                inside[:, some], squares[:, some] = self._of_part(u, g, means, far, some, rows, part)
                one, count = u[0, rows].astype(kind), rows.stop - rows.start
                sums = _sums_of_one(one, self._padded[rows.start : rows.stop + -count % ABREAST], part)
                squares[:, some] += np.einsum("sp,sp->s", sums, sums)
                matrix = pairs.of_one(one, some, rows, part)
                groups[number] = matrix @ self._apart[rows]
                if away is None:
                    groups[number] -= matrix.sum(1)[:, None] * mean
                else:
                    groups[number] += pairs.of_strata(g[0, rows], some, rows, part).astype(kind) @ away[some]

        shared(vary, 0, len(parts))
        return inside, np.maximum(squares, 0.0), groups.sum(0, dtype=np.float64)[None]

    def _varied_of_many(
        self, u: Floats, g: Floats, means: Floats, far: Floats, pairs: Pairs
    ) -> tuple[Floats, Floats, Floats]:
        """What `varied` returns, for several queries."""
        draw, kind = self._draw, self._apart.dtype
        inside, squares = np.empty((2, len(u), len(draw.sizes)))
        weights, ones = np.empty((len(self._apart), len(u)), kind), np.ones((len(self._apart), 1), kind)
        others, given = weights, ones
        if self._centres is not None:
            others, given = np.empty_like(weights), np.concatenate([self._centres[draw.owners], ones], axis=1)
        for some, rows, part in draw.parts(len(u)):
            weights[rows], others[rows] = u[:, rows].T, g[:, rows].T
            inside[:, some], squares[:, some] = self._of_part(u, g, means, far, some, rows, part)
        squares += draw.squares(weights, self._apart)
        found, more = pairs.sums(weights, self._apart, draw), pairs.sums(others, given, draw)
        if self._centres is not None:
            found += more[:, :, :-1]
        found -= more[:, :, -1:] * means[:, None].astype(kind)
        return inside, np.maximum(squares, 0.0), found.astype(np.float64)

    def _of_part(
        self, u: Floats, g: Floats, means: Floats, far: Floats, some: slice, rows: slice, part: Draw
    ) -> tuple[Floats, Floats]:
        """Σ ‖y‖² over the rows of each stratum of a part, (b, s), and ‖Σ y‖² but for ‖Σ u·t‖².

        `far` is ‖centre − mean‖² of all strata, (b, s), or (b, 1) where all centres are 0.
        """
        mine, more, t = u[:, rows], g[:, rows], self._apart[rows]
        crossed = -(means.astype(t.dtype) @ t.T).astype(np.float64)  # t·(centre − mean)
        each = far
        if self._crossed is not None:
            far = far[:, some]
            crossed, each = crossed + self._crossed[rows], far[:, part.owners]
        crossed *= mine
        each = mine * mine * self._squares[rows] + more * more * each
        each *= 1.0 + LOST * float(np.finfo(t.dtype).eps)  # what rounding takes from it must not make it smaller
        each += 2.0 * more * crossed
        mass = part.by_stratum(more)
        return np.maximum(part.by_stratum(each), 0.0), mass * (mass * far + 2.0 * part.by_stratum(crossed))


def _distances(values: Reals, means: Floats) -> Floats:
    """‖v − mean‖² of all values and means, (b, n): not smaller than it is, whatever rounding takes from it.

    Relative to the middle of the means, means and values keep most of their digits.
    """
    middle = means.mean(0).astype(values.dtype)
    apart, values = (means - middle).astype(values.dtype), values - middle
    lengths = np.einsum("bp,bp->b", apart, apart)[:, None]
    found: Floats = (np.einsum("np,np->n", values, values) + lengths).astype(np.float64)
    lost = found * (LOST * np.finfo(values.dtype).eps)
    found -= 2.0 * (apart @ values.T)
    np.maximum(found, 0.0, out=found)
    found += lost
    return found


class LabelColumns:
    """Values that are codes of many labels, (r,): vectors that are 1 there and 0 elsewhere."""

    def __init__(self, codes: npt.NDArray[np.integer], labels: int, draw: Draw) -> None:
        self._codes, self._labels, self._draw = codes.astype(np.int64), labels, draw
        self.free = max(1, labels - 1)  # shares add up to 1

    def total(self, u: Floats, _g: Floats) -> Floats:
        """The sum of values by weight: Σ u·v, (b, r) -> (b, p)."""
        return np.array([np.bincount(self._codes, some, self._labels) for some in u], np.float64)

    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""
        found: Floats = 1.0 - 2.0 * means[:, self._codes] + np.einsum("bp,bp->b", means, means)[:, None]
        return np.maximum(found, 0.0)

    def varied(self, e: Floats, _g: Floats, means: Floats, pairs: Pairs) -> tuple[Floats, Floats, Floats]:
        """Σ ‖e·(v − mean)‖² and ‖Σ e·(v − mean)‖² over the rows of each stratum, (b, s) each, and sums of groups."""
        labels, draw, count = self._labels, self._draw, len(self._draw.sizes)
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


def columns_of_labels(codes: npt.NDArray[np.integer], labels: int, draw: Draw) -> Columns:
    """The columns of values that are codes of so many labels."""
    if labels > FEW_LABELS:
        return LabelColumns(codes, labels, draw)
    return VectorColumns.of(np.eye(labels, dtype=np.float32)[codes], draw, free=max(1, labels - 1))
