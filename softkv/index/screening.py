"""Read the rows of a query's lists that matter, as far as an outline tells; of the others, some that are drawn.

By the outline, a logit is normal with mean p and variance s². Counted from the highest logit that was read so far, x,
rows for which x is within as many standard deviations as the outline reaches are all read: in a rehearsal, hardly any
of the best rows was farther above its p. The others are each drawn with a chance π of its own (Poisson sampling), and
count 1/π times, so that sums are unbiased whatever the outline says (Horvitz and Thompson, 1952). With e = exp(logit),
the error of the value that this adds has the variance

    V = Σ (1 − π)/π² · e²·‖v − value‖² / mass²        over the rows that were drawn,

and it is least for a given number of rows if π is in proportion to √E[e²] · ‖v − value‖ (Särndal et al., Model Assisted
Survey Sampling, 1992, §3.6 and §12.2). E[e²] = e^{2p + 2s²}, or where most of that came from logits above x, of
which there are none, e^{2x − (x − p)²/(2s²)}: by Laplace's method, for a normal that ends at x. The list of a row tells
how far its value is likely to be off. All chances are fixed before a row is drawn.

Where s² is small, hardly any row matters more than others, and reading all in place takes less time (`pays`).

Does not choose lists (opening.py).

Shapes: n rows of the lists, m rows that were drawn, k lists. Everything is about a single query.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from softkv.index.lists import ListIndex
from softkv.index.looks import heaviest, scored
from softkv.index.outline import Outline
from softkv.index.search import Asked, Readable, both, neighbours
from softkv.maths.blending import Blend, Values
from softkv.maths.farfield import Tilt
from softkv.maths.nearfield import Near, read
from softkv.maths.weighting import Weights, weigh
from softkv.ndarrays import Counts, Flags, Floats, Reals, Rows

LEAST = 2.0**-12  # the smallest chance: no row counts more than 1/LEAST times
MOST = 0.3  # the share of the rows up to which drawing some takes less time than reading all in place
TOGETHER = 1 << 15  # rows looked at together
SOME = 8  # one row in so many tells what is left of the mass
TRIED = 1 << 13  # rows by which chances are chosen
AIM = 0.85  # the share of the allowed error that is aimed at
CLOSEST = 0.25  # values count as no closer to the answer, as a share of the value scale, so that masses are right, too
VARIED = 0.5  # the least usual s² where drawing rows pays
TINY = np.float32(1e-30)  # the least weight or variance


@dataclass(frozen=True, slots=True, eq=False)
class Screened:
    """The rows that were read for a query, and what they tell of the others."""

    near: Near  # sums over rows that were read
    unread: Blend  # and over those that drawn ones stand for beside themselves
    logits: Reals  # (m,)
    factors: Floats  # (m,), (1 − π)/π²
    values: Values  # (m, ...)

    def deviations(self, blend: Blend) -> tuple[float, float]:
        """The standard errors of the value and of the logarithm of the mass of this blend by what was drawn."""
        weights = self.factors * np.exp(2.0 * np.minimum(self.logits - blend.log_mass[0], 0.0))
        of_value, of_mass = weights @ self.values.squares(blend.value[0]), weights.sum()
        return math.sqrt(of_value), math.sqrt(of_mass)


def pays(index: ListIndex, vectors: Reals) -> Flags:
    """The queries, (b, d) as the lists take them, for which drawing rows takes less time than reading all, (b,)."""
    if index.outline is None:
        return np.zeros(len(vectors), np.bool_)
    lists = index.quick
    beyond = vectors.astype(np.float32) @ lists.axes[:, lists.leading :]
    found: Flags = (beyond * beyond) @ lists.profile * lists.within[1] >= VARIED
    return found & bool(np.isfinite(index.outline.reach[0]))


def screened(
    index: ListIndex,
    outline: Outline,
    arena: Readable,
    asked: Asked,
    tilt: Tilt,
    lists: Rows,
    apart: Floats,
    known: Near,
    *,
    allowed: float,
    random: np.random.Generator,
    show: int,
) -> Screened | None:
    """Read of some lists, (k,), what one query needs to have a standard error of its value of no more than `allowed`.

    `apart`, (k,), is how far the values of each list are likely to be from the answer; both are shares of the value
    scale. `known` was read before. None where reading all of the lists takes less time.
    """
    peak = float(known.blend.peak[0])
    if not np.isfinite(peak):
        return None
    order = np.argsort(lists)
    screen = _Screen(index, outline, arena.live, asked, tilt, lists[order], apart[order], peak)
    chances = screen.chances()
    most, sure = MOST * len(chances.weights), np.flatnonzero(chances.sure)
    if len(sure) > most:
        return None
    first = _Some.of(arena, asked, screen.rows(sure))
    near = both(known, first.near(show), show)
    mass = float(near.blend.mass[0]) * np.exp(float(near.blend.peak[0]) - peak) + chances.mass
    drawn_with = chances.scaled(np.square(AIM * max(allowed, 0.0) * mass))
    if len(sure) + float(drawn_with.sum(dtype=np.float64)) > most:
        return None
    places = np.flatnonzero(random.random(len(drawn_with), dtype=np.float32) < drawn_with)
    drawn, pi = _Some.of(arena, asked, screen.rows(places)), drawn_with[places].astype(np.float64)
    unread, near = drawn.weighted(1.0 / pi - 1.0), both(near, drawn.near(show), show)
    return Screened(near, unread, drawn.logits[0], (1.0 - pi) / (pi * pi), drawn.values)


@dataclass(frozen=True, slots=True, eq=False)
class _Chances:
    """How rows are read."""

    sure: Flags  # (n,), whether a row is read in any case
    weights: Reals  # (n,), what the chances of the others are in proportion to; 0 of those that are not live
    mass: float  # that of the others, expected, relative to the peak

    def scaled(self, goal: float) -> Reals:
        """The smallest chances, (n,), by which the sum of (1/π − 1) x weight² is no more than the goal."""
        step = max(1, len(self.weights) // TRIED)
        some = np.sort(self.weights[::step].astype(np.float64))
        some = some[np.searchsorted(some, 0.0, side="right") :]
        # If the smallest m have chances below 1, all are so many times the weights. That grows with m for as long as
        # the next chance would be below 1, and falls from there on.
        times = step * some.cumsum() / (goal + step * np.square(some).cumsum())
        largest = float(times.max(initial=0.0)) if goal > 0 else np.inf
        if not largest < np.finfo(np.float32).max:
            return (self.weights > 0).astype(np.float32)
        found: Reals = np.minimum(self.weights * np.float32(largest), np.float32(1.0))
        np.maximum(found, np.float32(LEAST), out=found)
        found *= self.weights > 0
        return found


class _Screen:
    """The rows of some lists, side by side; behind them, the rows that joined these lists later."""

    def __init__(
        self,
        index: ListIndex,
        outline: Outline,
        live: Flags | None,
        asked: Asked,
        tilt: Tilt,
        lists: Rows,
        apart: Floats,
        peak: float,
    ) -> None:
        self.index, self.outline, self.live, self.tilt, self.lists = index, outline, live, tilt, lists
        self.reach = float(outline.reach[0])
        self.apart = np.maximum(apart, CLOSEST).astype(np.float32)
        self.counts = index.offsets[lists + 1] - index.offsets[lists]
        self.runs = neighbours(index.offsets, lists)
        self.ends = np.cumsum([0, *(run.stop - run.start for run in self.runs)])
        # An outline counts from the means at the time when lists were measured, which have moved since.
        self.gaps = (peak - asked.added[0] - index.lists.means[lists] @ asked.vectors[0]).astype(np.float32)
        self.missed = np.float32((tilt.beyond[0] ** 2) @ index.quick.profile)
        members, starts = index.members
        joined = starts[lists + 1] - starts[lists]
        self.owners = np.repeat(np.arange(len(lists)), joined)
        places = np.arange(len(self.owners)) - np.repeat(joined.cumsum() - joined, joined)
        self.joined = members[np.repeat(starts[lists], joined) + places]

    def rows(self, places: Counts) -> Rows:
        """The rows in these places."""
        inside = places < self.ends[-1]
        found, own = np.empty(len(places), np.int64), places[inside]
        runs = np.searchsorted(self.ends, own, side="right") - 1
        found[inside] = np.array([run.start for run in self.runs], np.int64)[runs] + own - self.ends[runs]
        found[~inside] = self.joined[places[~inside] - self.ends[-1]]
        return found

    def chances(self) -> _Chances:
        """How the rows are read."""
        inside, total = int(self.ends[-1]), int(self.ends[-1]) + len(self.joined)
        lists, asked = np.concatenate([[0], self.counts.cumsum()]), self.tilt.reduced[0]
        sure, weights, mass = np.empty(total, np.bool_), np.empty(total, np.float32), 0.0
        cuts = np.unique(np.searchsorted(self.ends, np.append(np.arange(0, inside, TOGETHER), inside)))
        for first, last in pairwise(cuts.tolist()):
            rows = slice(self.ends[first], self.ends[last])
            some = slice(*np.searchsorted(lists, [rows.start, rows.stop]).tolist())
            runs, counts = [(run.start, run.stop) for run in self.runs[first:last]], self.counts[some]
            along, rests = self.outline.of_runs(runs, asked)
            gap = np.subtract(np.repeat(self.gaps[some], counts), along, out=along)
            variance = np.multiply(rests, self.missed, out=rests)
            live = None if self.live is None else np.concatenate([self.live[start:stop] for start, stop in runs])
            apart = np.repeat(self.apart[some], counts)
            sure[rows], mass = self._weighed(gap, variance, apart, live, weights[rows], mass)
        if len(self.joined):
            gap, variance = self.gaps[self.owners], self.tilt.variances[0, self.lists].astype(np.float32)[self.owners]
            if self.index.late is not None:
                along, rests = self.index.late.of_some(self.joined - self.index.rows, asked)
                gap, variance = gap - along, rests * self.missed
            live, rows = None if self.live is None else self.live[self.joined], slice(inside, total)
            sure[rows], mass = self._weighed(gap, variance, self.apart[self.owners], live, weights[rows], mass)
        return _Chances(sure, weights, mass)

    def _weighed(
        self, gap: Reals, variance: Reals, apart: Reals, live: Flags | None, weights: Reals, mass: float
    ) -> tuple[Flags, float]:
        """Which of some rows are read in any case, and the mass with that of the others, whose weights are filled in.

        Their logits are below the peak by a normal gap of such a variance.
        """
        np.maximum(variance, TINY, out=variance)
        square = gap * gap
        square /= variance
        sure = square < self.reach * self.reach
        sure |= gap < 0
        others = ~sure
        if live is not None:
            sure &= live
            others &= live
        few = slice(None, None, SOME)
        mass += float(np.exp(_expected(gap[few], variance[few], square[few], 1.0)) @ others[few]) * SOME
        chance = _expected(gap, variance, square, 2.0)
        np.exp(chance, out=chance)
        chance *= apart
        np.maximum(chance, TINY, out=chance)
        np.multiply(chance, others, out=weights)
        return sure, mass


def _expected(gap: Reals, variance: Reals, square: Reals, power: float) -> Reals:
    """The logarithm of E[e^power]^(1/power) of logits below the peak by a normal gap, which has such a variance.

    `square` is gap²/variance.
    """
    found: Reals = np.where(gap < power * variance, square * (-0.5 / power), (0.5 * power) * variance - gap)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Some:
    """Some rows, with their logits and values."""

    rows: Rows  # (m,)
    logits: Reals  # (1, m)
    values: Values  # (m, ...)

    @classmethod
    def of(cls, arena: Readable, asked: Asked, rows: Rows) -> "_Some":
        """Rows of the arena, of which some query asks."""
        return cls(rows, scored(asked, rows), arena.some_values(rows))

    def near(self, show: int) -> Near:
        """The sums over them, and the heaviest."""
        if not len(self.rows):
            return self._nothing(show)
        blend = self.values.blend(self._weights())
        return Near(blend, *heaviest(self.rows, self.logits, show), np.array([len(self.rows)]))

    def weighted(self, times: Floats) -> Blend:
        """The sums over them where each counts so many times, (m,)."""
        if not len(self.rows):
            return self._nothing(0).blend
        one = self._weights()
        weights = one.weights * times.astype(one.weights.dtype)
        moved = np.where(weights > 0, self.logits - one.peak[:, None], 0.0)
        return self.values.blend(Weights(one.peak, weights, weights.sum(1), (weights * moved).sum(1), one.masked))

    def _nothing(self, show: int) -> Near:
        return read(lambda *_: None, self.values, [], None, count=1, show=show)

    def _weights(self) -> Weights:
        return weigh(self.logits.copy(), self.logits.max(1, initial=-np.inf), masked=True)
