"""How many rows of each stratum to read, and which.

A stratum is some rows, of which m out of n are read: a simple random sample. Where many strata matter little, each is
visited with a chance π only. How many rows to take follows from prior estimates for strata (Neyman, 1934): nS for how
rows of one differ, and ‖Y‖ for what leaving it out adds. These may be wrong: they decide how much is read, and may make
an answer less certain, but never make it look more certain.

Estimates from the rows that were read are made in sampling.py. Does not know where rows lie (index/strata.py).

Shapes: b queries, l strata, s strata that were visited, r rows that were read, stratum by stratum.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from softkv.maths.drawing import different, in_runs
from softkv.ndarrays import AnyArray, Counts, Flags, Floats, Reals

LEAST, MOST = 2, 16  # rows of a stratum that is visited by chance; two tell a variance
AT_ONCE = 1 << 16  # rows of a part of a draw, times queries
FEW = 16  # rows of a stratum, of which several are summed at once
VISIT = 2.0  # rows that can be read in the time that going to a stratum takes
EVENLY = 0.1  # this share of the rows is spread over all strata by their sizes, whatever is estimated
TRIES, STEPS = 6, 14  # searches for no more rows than allowed, and for hardly more than needed
NEARLY = 0.93  # from this share of the wanted variance on, the search for fewer rows ends


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """How strata are sampled."""

    chances: Floats  # (l,), of being visited
    rows: Counts  # (l,), to read of each that is

    @property
    def expected(self) -> float:
        """How many rows are read, on average."""
        return float(self.chances @ self.rows)

    def whole(self, counts: Counts) -> Flags:
        """Which strata are read whole, (l,)."""
        found: Flags = (self.chances == 1.0) & (self.rows == counts)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Allotted:
    """How rows are shared out among strata, however many there are."""

    counts: Floats  # (l,), at least 1
    there: Flags  # (l,), whether a stratum has rows
    most: Floats  # (l,), how many rows of a stratum are taken at most, if not all
    few: Floats  # (l,) or (b, l), how many rows of a stratum are taken at least, if it is visited
    shares: Floats  # (l,) or (b, l), of the rows

    def sizes(self, rows: float) -> Sizes:
        """How to sample about this many rows."""
        wanted = rows * self.shares
        chances = np.minimum(wanted / self.few, 1.0) * self.there
        some = np.minimum(np.ceil(np.maximum(wanted, self.few)), self.counts)
        return Sizes(chances, np.where((chances == 1.0) & (some > self.most), self.counts, some).astype(np.int64))

    def at_most(self, most: float) -> tuple[float, Sizes]:
        """How many rows may be taken, including those of strata that are read whole."""
        rows, sizes = most, self.sizes(most)
        for _ in range(TRIES):
            if sizes.expected <= most:
                break
            rows *= 0.95 * most / sizes.expected
            sizes = self.sizes(rows)
        return rows, sizes


@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """Estimates for strata before any row is read, for each of the queries that share one draw."""

    counts: Counts  # (l,), n
    within: Floats  # (b, l), (nS)²: n² times the variance of y among the rows of each
    between: Floats  # (b, l), ‖Y‖²: the squared sum of y over each
    most: Floats  # (l,), the share of its rows from which on all are read
    ahead: Counts | None = None  # (l,), how many rows lie before those in random order
    shuffled: Counts | None = None  # (l,), how many rows of each lie in random order; none where that is unknown
    surely: Flags | None = None  # (l,), whether the rows that lie ahead are all read, and only the others drawn from

    @property
    def is_sound(self) -> Flags:
        """Whether sizes can be computed from these numbers, (b,); where they overflow float64, they cannot."""
        found: Flags = np.isfinite(self.within.sum(1) + MOST * self.between.sum(1))
        return found

    @property
    def heads(self) -> Counts:
        """How many rows of each stratum are read in any case, (l,)."""
        if self.surely is None or self.ahead is None:
            return np.zeros(len(self.counts), np.int64)
        return np.where(self.surely, np.minimum(self.ahead, self.counts), 0)

    def of(self, queries: AnyArray) -> "Strata":
        """The estimates for some of the queries."""
        return replace(self, within=self.within[queries], between=self.between[queries])

    def where(self, some: Flags, other: "Strata") -> "Strata":
        """The estimates for strata that a flag, (b, l) or (b, 1), is true of, and those of `other` for the others."""
        pairs = ((self.within, other.within), (self.between, other.between))
        within, between = (np.where(some, mine, others) for mine, others in pairs)
        return replace(self, within=within, between=between)

    def sizes(self, rows: float, goals: Floats | None = None) -> Sizes:
        """How to sample about this many rows, not counting strata that are read whole.

        The smaller a query's goal for its variance, (b,), the more it counts.
        """
        return self._together(goals).sizes(rows)

    def _together(self, goals: Floats | None = None) -> _Allotted:
        """How rows are shared out for all queries."""
        shares = np.ones(len(self.within)) if goals is None else 1.0 / goals
        return self._allotted(shares @ self.within, shares @ self.between)

    def _allotted(self, within: Floats, between: Floats) -> _Allotted:
        """How rows are shared out by these estimates, (l,), or by those of each query, (b, l)."""
        counts = np.maximum(self.counts, 1).astype(np.float64)
        few = np.clip(np.sqrt(VISIT * within / np.maximum(between, np.finfo(np.float64).tiny)), LEAST, MOST)
        few = np.minimum(np.ceil(few), counts)
        needed, evenly = np.sqrt(within + few * between), self.counts / max(1.0, float(self.counts.sum()))
        total = needed.sum(-1, keepdims=True)
        share = needed / np.where(total == 0.0, 1.0, total)
        return _Allotted(counts, self.counts > 0, self.most * counts, few, (1.0 - EVENLY) * share + EVENLY * evenly)

    def variance(self, sizes: Sizes) -> Floats:
        """The two parts of V, (b, 2), as estimated before reading."""
        return self._variance(*self._left(sizes))

    def _variance(self, left: Floats, missed: Floats) -> Floats:
        found: Floats = self.within @ np.stack([left, missed * left], axis=1)
        found[:, 1] += self.between @ missed
        return found

    def _left(self, sizes: Sizes) -> tuple[Floats, Floats]:
        """The shares of `within` and of `between` that V has of strata that are visited, and of those that are not."""
        there = sizes.chances > 0
        left = there * (1.0 - sizes.rows / np.maximum(self.counts, 1)) / np.maximum(sizes.rows, 1)
        return left, there * (1.0 / np.where(there, sizes.chances, 1.0) - 1.0)

    def alone(self, rows: float) -> Floats:
        """The V expected for each query from this many rows if it were the only query, (b,)."""
        left, missed = self._left(self._allotted(self.within, self.between).sizes(rows))
        within = np.einsum("bl,bl->b", self.within, left * (1.0 + missed))
        found: Floats = within + np.einsum("bl,bl->b", self.between, missed) + np.finfo(np.float64).tiny
        return found

    def enough(
        self, goals: Floats, most: float, *, also: "tuple[Strata, Floats]", least: float = 1.0
    ) -> "tuple[Sizes, Floats]":
        """The fewest rows, from `least` to about `most`, with which V is expected to be no larger than (b,) goals.

        The strata and goals in `also` are to be met too. Returned beside the sizes is V relative to its goal, the
        larger of the two, (b,): above 1 for queries that would need more rows than allowed, which do not count.
        """
        pool = np.ones(len(goals), np.bool_)
        for _ in range(TRIES):
            allotted = self.of(pool)._together(goals[pool])
            high, sizes = allotted.at_most(most)
            ratios = self._over(sizes, goals, also)
            if not (ratios[pool] > 1.0).any():
                break
            pool &= ratios <= math.sqrt(ratios[pool].max())  # those that need far more than the others skew the sizes
            if not pool.any():
                return sizes, ratios
        reached, beyond = ratios <= 1.0, np.where(ratios > 1.0, ratios, np.inf)
        low, over, worst = min(least, high), math.inf, float(ratios[reached].max(initial=0.0))
        for step in range(STEPS):
            if (worst > NEARLY and sizes.expected <= most) or not reached.any() or high == low:
                break
            # Where many strata are soon read whole, V falls so steeply that only halves of what is left lead there.
            halved = step > 2 and step % 2
            rows = math.sqrt(low * high) if halved else _between(low, over, high, worst) if step else low
            fewer = allotted.sizes(rows)
            found = self._over(fewer, goals, also)
            if (now := float(found[reached].max())) <= 1.0:
                high, sizes, ratios, worst = rows, fewer, found, now
            else:
                low, over = rows, now
        return sizes, np.where(reached & (sizes.expected <= most), ratios, beyond)

    def _over(self, sizes: Sizes, goals: Floats, also: "tuple[Strata, Floats]") -> Floats:
        """The expected V relative to the goals, the larger of the two, (b,)."""
        parts, pairs = self._left(sizes), ((self, goals), also)
        found: Floats = np.max([one._variance(*parts).sum(1) / allowed for one, allowed in pairs], axis=0)
        return found

    def scaled(self, factors: Floats) -> "Strata":
        """The estimates with both parts multiplied by these factors, (b, 2)."""
        return replace(self, within=self.within * factors[:, :1], between=self.between * factors[:, 1:])


def _between(low: float, over: float, high: float, under: float) -> float:
    """A number of rows that may give just below 1, between `low`, which gives more, and `high`, which gives less."""
    if not (math.isfinite(over) and under > 0):
        return math.sqrt(low * high)
    share = math.log(over / NEARLY) / math.log(over / under)
    found: float = low * (high / low) ** min(max(share, 0.05), 0.98)
    return found


@dataclass(frozen=True, eq=False)
class Draw:
    """Drawn rows: different ones of each visited stratum. The rows ahead in one may be a stratum of their own."""

    strata: Counts  # (s,), rising; twice where the rows ahead are all read
    counts: Counts  # (s,), n
    chances: Floats  # (s,), π
    sizes: Counts  # (s,), m
    places: Counts  # (r,), numbers from 0 to n − 1 in the stratum of each, rising

    @classmethod
    def of(cls, draw: np.random.Generator, strata: Strata, sizes: Sizes) -> "Draw":
        """A draw from those strata of which not all rows are read anyway."""
        partly = ~sizes.whole(strata.counts)
        visited = partly & (draw.random(len(sizes.rows)) < sizes.chances)
        heads = np.where(partly, strata.heads, 0)
        if not heads.any():
            return cls._of(draw, strata, sizes, np.flatnonzero(visited))
        assert strata.ahead is not None
        left = strata.counts - heads
        behind = replace(strata, counts=left, ahead=strata.ahead - heads, surely=None)
        rows = np.minimum(sizes.rows, left)
        rest = cls._of(draw, behind, replace(sizes, rows=rows), np.flatnonzero(visited & (rows > 0)))
        return cls._of_heads(heads).followed_by(rest, heads)

    @classmethod
    def _of_heads(cls, heads: Counts) -> "Draw":
        """All of so many rows ahead in each stratum, (l,)."""
        there = np.flatnonzero(heads)
        counts = heads[there]
        places = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        return cls(there, counts, np.ones(len(there)), counts, places)

    def followed_by(self, rest: "Draw", ahead: Counts) -> "Draw":
        """This draw with another one of the rows behind so many of each stratum, (l,)."""
        strata = np.concatenate([self.strata, rest.strata])
        order = np.argsort(strata, kind="stable")
        counts, sizes = (np.concatenate(pair)[order] for pair in ((self.counts, rest.counts), (self.sizes, rest.sizes)))
        chances = np.concatenate([self.chances, rest.chances])[order]
        places = np.concatenate([self.places, rest.places + ahead[rest.strata[rest.owners]]])
        owners = np.concatenate([self.strata[self.owners], rest.strata[rest.owners]])
        return Draw(strata[order], counts, chances, sizes, places[np.argsort(owners, kind="stable")])

    @classmethod
    def of_each(cls, draw: np.random.Generator, strata: Strata, rows: int) -> "Draw":
        """A draw of so many rows from each stratum that has as many, and of all from the others."""
        sizes = Sizes(np.ones(len(strata.counts)), np.minimum(strata.counts, rows))
        return cls._of(draw, strata, sizes, np.flatnonzero(strata.counts))

    @classmethod
    def _of(cls, draw: np.random.Generator, strata: Strata, sizes: Sizes, visited: Counts) -> "Draw":
        counts, rows = strata.counts[visited], sizes.rows[visited]
        if strata.ahead is None or strata.shuffled is None:
            places = different(draw, counts, rows)
        else:
            places = in_runs(draw, counts, rows, strata.ahead[visited], strata.shuffled[visited])
        return cls(visited, counts, sizes.chances[visited], rows, places)

    def parts(self, queries: int) -> "Iterator[tuple[slice, slice, Draw]]":
        """The draw in parts of whole strata: which strata and rows these are, and their draw.

        A part has few enough rows that what is computed of them for so many queries stays in the cache.
        """
        ends, count = self.sizes.cumsum(), -(-len(self.places) * queries // AT_ONCE)
        count += count > 1 and count % 2  # threads, of which there are often two, have as many each
        cuts = np.unique(np.searchsorted(ends, np.arange(count) * len(self.places) // max(1, count), side="right"))
        for first, last in pairwise([*cuts.tolist(), len(ends)]):
            some, rows = slice(first, last), slice(int(self.firsts[first]), int(ends[last - 1]))
            strata, counts, sizes = self.strata[some], self.counts[some], self.sizes[some]
            yield some, rows, Draw(strata, counts, self.chances[some], sizes, self.places[rows])

    @cached_property
    def owners(self) -> Counts:
        """The place of the stratum of each row among those visited, (r,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def firsts(self) -> Counts:
        """Where the rows of each stratum begin, (s,)."""
        return self.sizes.cumsum() - self.sizes

    def by_stratum(self, x: Reals) -> Floats:
        """Sums over the rows of each stratum, (b, r) -> (b, s)."""
        if not len(self.sizes):
            return np.zeros((len(x), 0))
        return np.add.reduceat(x, self.firsts, axis=1)

    def moments(self, y: Callable[[slice], Floats], queries: int) -> tuple[Floats, Floats]:
        """Σ y² and Σ y over the rows of each stratum, (b, s) each, by what `y` is for some rows and all queries."""
        squares, sums = np.empty((2, queries, len(self.sizes)))
        for some, rows, part in self.parts(queries):
            mine = y(rows)
            sums[:, some], squares[:, some] = part.by_stratum(mine), part.by_stratum(np.square(mine))
        return squares, sums

    def squares(self, weights: Reals, values: Reals) -> Floats:
        """‖Σ w·v‖² over the rows of each stratum, (r, b) and (r, p) -> (b, s)."""
        count = weights.shape[1]
        found = np.empty((count, len(self.sizes)))
        large = self.sizes > FEW
        for size in np.unique(self.sizes[~large]).tolist():  # products of matrices of one shape, many at once
            some = np.flatnonzero(self.sizes == size)
            rows = self.firsts[some][:, None] + np.arange(size)
            mine, part = weights[rows], values[rows]  # (n, m, b), (n, m, p)
            if size < count:  # products of rows with each other are fewer numbers than sums for all queries
                found[:, some] = np.einsum("nmb,nmb->bn", part @ part.swapaxes(1, 2) @ mine, mine)
            else:
                sums = mine.swapaxes(1, 2) @ part
                found[:, some] = np.einsum("nbp,nbp->bn", sums, sums)
        ends = self.firsts + self.sizes
        for number in np.flatnonzero(large).tolist():
            stretch = slice(self.firsts[number], ends[number])
            sums = weights[stretch].T @ values[stretch]
            found[:, number] = np.einsum("bp,bp->b", sums, sums)
        return found

    @cached_property
    def weights(self) -> Floats:
        """How many rows each drawn one stands for, (r,)."""
        return (self.counts / (self.sizes * self.chances))[self.owners]

    @cached_property
    def factors(self) -> tuple[Floats, Floats]:
        """The factors of squares about the mean of each stratum, and of squared sums, (s,) each."""
        left = np.where(self.sizes > 1, (1.0 - self.sizes / self.counts) / np.maximum(self.sizes - 1, 1), 0.0)
        share = (self.counts / self.sizes) ** 2
        return share * self.sizes * left / self.chances, share * (1.0 - self.chances) / self.chances**2
