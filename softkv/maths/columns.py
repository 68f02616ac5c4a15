"""Sums of the values of drawn rows: vectors, or labels as vectors that are 1 at their code.

Beside plain sums there are some that show how columns vary together: over strata, and over random groups of row pairs.

Does not know what the sums are for (sampling.py).

Shapes: b queries, s strata that were visited, r rows that were read, stratum by stratum, p value width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from softkv.maths.strata import Draw
from softkv.ndarrays import Counts, Floats, Reals

GROUPS = 32  # groups of rows, by which it is estimated how columns vary together
BLOCK = 8  # rows of a stratum that belong to one group, at most
COUNTED = 1 << 10  # rows that are counted in float64 at once
ABREAST = 32  # rows that are multiplied by one matrix
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
        share *= (place < 2 * pairs[owners]) * np.where(place % 2, -1.0, 1.0)
        pair = (pairs.cumsum() - pairs)[owners] + place // 2
        blocks = (place % BLOCK == 0).cumsum() - 1
        signs, sides = (random.choice(np.array([-1.0, 1.0]), count) for count in (len(owners) + 1, len(draw.sizes)))
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

    def sums_of_one(self, e: Reals, values: Reals, draw: Draw) -> tuple[Reals, Reals]:
        """Σ e·v of one query, (r,), over the rows of each stratum, (s, p), and over those of each group, (GROUPS, p).

        Behind the values there are zeros, up to a whole number of ABREAST.
        """
        more, runs = len(values) - len(e), ((e, draw.owners), (e * self.weights.astype(e.dtype), self.blocks))
        padded = [(np.pad(weights, (0, more)), np.append(owners, owners[-1:].repeat(more))) for weights, owners in runs]
        (found, owners), (parts, blocks) = _sums_in_parts(values, padded)
        again = np.diff(owners, prepend=-1) == 0
        sums = found[~again]
        np.add.at(sums, owners[again], found[again])
        groups = _grouped(self.lots[blocks], np.ones(len(blocks), e.dtype)) @ parts
        return sums, groups + _grouped(self.homes, self.sides.astype(e.dtype)) @ sums


def _grouped(groups: Counts, weights: Reals) -> Reals:
    """The matrix that sums rows by group, with these weights, (n,) each -> (GROUPS, n)."""
    found = np.zeros((GROUPS, len(weights)), weights.dtype)
    found[groups, np.arange(len(weights))] = weights
    return found


def _sums_in_parts(values: Reals, runs: Sequence[tuple[Reals, Counts]]) -> list[tuple[Reals, Counts]]:
    """Σ w·v over runs of rows, by the weights and owners of rows, (r,) each: sums, (n, p), and whose they are, (n,).

    Owners rise from 0 without gaps. ABREAST rows at a time are multiplied by a matrix with a row for each owner, which
    is several times as fast as NumPy adds up short runs; r is a multiple of that. A run that reaches over several such
    parts has a sum in each.
    """
    shape = len(values) // ABREAST, ABREAST
    owners = [whose.reshape(shape) for _, whose in runs]
    places = [whose - whose[:, :1] for whose in owners]
    starts = np.cumsum([np.zeros((shape[0], 1), np.int64), *(place[:, -1:] + 1 for place in places)], axis=0)
    spread = np.zeros((shape[0], starts[-1].max(initial=0), ABREAST), values.dtype)
    for (weights, _), place, start in zip(runs, places, starts, strict=False):
        spread[np.arange(shape[0])[:, None], start + place, np.arange(ABREAST)] = weights.reshape(shape)
    sums, numbers, found = spread @ values.reshape(*shape, values.shape[1]), np.arange(spread.shape[1]), []
    for whose, (start, end) in zip(owners, pairwise(starts), strict=True):
        there = (start <= numbers) & (numbers < end)
        found.append((sums[there], (whose[:, :1] - start + numbers)[there]))
    return found


class VectorColumns:
    """Vectors, (r, p), in float32, summed in float64; `free` counts columns that do not follow from the others."""

    def __init__(self, values: Reals, *, free: int | None = None) -> None:
        self._values, self.free = values, values.shape[1] if free is None else free

    def total(self, weights: Floats) -> Floats:
        """The sum of values by weight: Σ w·v, (b, r) -> (b, p)."""
        found: Floats = np.zeros((len(weights), self._values.shape[1]))
        for start in range(0, len(self._values), COUNTED):  # copies then stay in the cache
            some = slice(start, start + COUNTED)
            found += weights[:, some] @ self._values[some].astype(np.float64)
        return found

    def distances(self, means: Floats) -> Floats:
        """‖v − mean‖² of each row for means (b, p), (b, r)."""
        if len(means) == 1:
            return self._from_one(means)[0]
        middle, apart, lengths = self._middle_of(means)
        return _distances(self._values - middle, apart, lengths)[0]

    def varied(self, e: Floats, means: Floats, draw: Draw, pairs: Pairs) -> tuple[Floats, Floats, Floats]:
        """Σ ‖e·(v − mean)‖² and ‖Σ e·(v − mean)‖² over the rows of each stratum, (b, s) each, and sums of groups."""
        kind = self._values.dtype  # float32: these sums give a variance, to a few percent
        if len(e) == 1:
            distances, values = self._from_one(means)
            sums, groups = pairs.sums_of_one(e[0].astype(kind), values, draw)
            return (
                draw.by_stratum(e * e * distances),
                np.einsum("sp,sp->s", sums, sums)[None].astype(np.float64),
                groups[None].astype(np.float64),
            )
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

    def _from_one(self, means: Floats) -> tuple[Floats, Reals]:
        """‖v − mean‖² for one mean, (1, r), and all v − mean, with zeros behind, up to a whole number of ABREAST."""
        rows, width = self._values.shape
        values = np.zeros((rows + -rows % ABREAST, width), self._values.dtype)
        apart = np.subtract(self._values, means.astype(values.dtype), out=values[:rows])
        return np.einsum("rp,rp->r", apart, apart)[None].astype(np.float64), values

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
