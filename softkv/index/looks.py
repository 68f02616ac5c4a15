"""One draw of rows for some queries: the rows are read, and tell of all others.

What the statistics of the lists say of all rows of a list corrects what drawn ones tell, if there is a guide. Does not
choose how many rows are drawn (measuring.py), nor know where they lie (strata.py).

Shapes: b queries, l lists, s lists that were visited, r rows that were drawn, p value width.
"""

from dataclasses import dataclass, replace

import numpy as np

from softkv.index.search import Asked, Readable, both
from softkv.index.strata import LOWEST, Guide, Variances
from softkv.maths.blas import shared
from softkv.maths.blending import Blend, Labels, merge
from softkv.maths.columns import ABREAST, Columns, Pairs, VectorColumns, columns_of_labels
from softkv.maths.nearfield import Near
from softkv.maths.sampling import Deviation, Elsewhere, RowWeights, Sampled, sampled
from softkv.maths.strata import Draw
from softkv.maths.summaries import Units
from softkv.ndarrays import Counts, Flags, Floats, Reals, Rows

FARTHEST = 100.0  # the log mass of other rows is capped at so much above the best row
READ = 1 << 18  # numbers of values that are read at once
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Rows that were drawn for some queries."""

    draw: Draw
    rows: Rows  # (r,)
    values: Columns
    pairs: Pairs


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The result of one draw, for some queries."""

    whole: Near  # rows that were read with whole lists
    before: Rows  # (b,), how many of them were compared before
    drawn: Drawn
    logits: Reals  # (b, r)
    known: Blend  # of the rows of whole lists and beside, counted from the peak of all, in the units of the lists
    beside: Elsewhere
    weights: RowWeights
    told: Sampled

    @property
    def draw(self) -> Draw:
        """The draw."""
        return self.drawn.draw

    @property
    def compared(self) -> Rows:
        """How many rows were read for each query alone, (b,)."""
        found: Rows = self.whole.scored - self.before + (self.logits > -np.inf).sum(1)
        return found

    def plainly(self) -> Sampled:
        """What the rows tell without a guide."""
        return _told(self.drawn, RowWeights.plain(self.weights.e), self.known)

    def moved(self, rows: slice) -> Floats:
        """The logits of some of the rows that were drawn, counted from the peak, (b, n)."""
        found: Floats = np.maximum(self.logits[:, rows] - self.known.peak[:, None], LOWEST)
        return found

    def near(self, show: int) -> Near:
        """The sums over all rows that were read, and the heaviest of them."""
        read = Blend(self.known.peak, self.weights.e.sum(1), np.zeros_like(self.known.total), None)
        best = heaviest(self.drawn.rows, self.logits, show)
        return both(self.whole, Near(read, *best, (self.logits > -np.inf).sum(1)), show)

    def blend(self, units: Units, *, squares: bool) -> Blend:
        """The sums over whole lists, and over all rows that the drawn ones stand for; `squares` for their spread."""
        e, draw, square = self.weights.e, self.draw, None
        mass, total = self.told.drawn, self.told.drawn_total
        plain, excess = np.zeros((2, len(e)))
        for _, rows, part in draw.parts(len(e)):
            stands = e[:, rows] * part.weights
            plain += stands.sum(1)
            excess += np.einsum("br,br->b", stands, self.moved(rows))
        there = (mass > 0) & (plain > 0)
        share = np.where(there, mass / np.maximum(plain, TINY), 1.0)  # both sums are told of by rows as they are
        if squares:
            mean = np.where(there, total[:, 0] / np.maximum(mass, TINY), 0.0)[:, None]
            apart = self.drawn.values.distances(mean)
            square = (share * np.einsum("br,br->b", e * draw.weights, apart))[:, None]
        found = merge(self.whole.blend, units.back(Blend(self.known.peak, mass, total, share * excess, square)))
        # A mass that is corrected may be less than nothing, by less than it may be off.
        return found if found.square is None else replace(found, square=np.maximum(found.square, 0.0))

    def of_entropy(self, blend: Blend, thought: Floats) -> Deviation:
        """How far the logarithm of the effective number of rows is off.

        It is raised as the variance of the mass is by what was `thought` of it, (b, 2), where rows are not corrected.
        """
        e, entropy = self.weights.e, (blend.excess / blend.mass)[:, None]
        of_mass = Deviation.of_column(self.draw, lambda rows: e[:, rows], self.told.mass)
        found = Deviation.of_column(
            self.draw, lambda rows: e[:, rows] * (1.0 - (self.moved(rows) - entropy)), self.told.mass
        )
        return found.raised(of_mass.at_least(thought), of_mass)

    def of_square(self, blend: Blend, units: Units, thought: Variances) -> Deviation | None:
        """How far the squared spread is off, in units of this size; None where values have none.

        It is raised as the variance of the value is by what was `thought` of it where rows are not corrected. It is no
        less than what the farthest rows of the lists add, however many were drawn: if a few rows have most of the
        spread, those that were drawn do not tell of the others.
        """
        if blend.square is None or thought.squares is None:
            return None
        e, apart = self.weights.e, self.drawn.values.distances((blend.value - units.middle) / units.size)
        spread = blend.square / blend.mass[:, None] / units.size**2
        found = Deviation.of_column(self.draw, lambda rows: e[:, rows] * (apart[:, rows] - spread), self.told.mass)
        of_value = self.plainly().of_value
        found = found.raised(of_value.at_least(thought.values), of_value)
        return replace(found, variance=np.maximum(found.variance, thought.squares))


@dataclass(frozen=True, slots=True, eq=False)
class Looker:
    """Reads rows that were drawn from the lists of an index."""

    arena: Readable
    units: Units
    counts: Counts  # (l,), how many rows may be drawn
    means: Reals | None  # (l, p), of the values of lists, in these units; None where they are labels

    def read(self, draw: Draw, rows: Rows, random: np.random.Generator, queries: int, *, guided: bool) -> Drawn:
        """The values of the rows of a draw, for so many queries; `guided` if they may be corrected."""
        return Drawn(draw, rows, self._values(rows, draw, queries, guided), Pairs.of(draw, random))

    def weights(self, guide: Guide, own: Flags, e: Floats, logits: Reals, peak: Floats, draw: Draw) -> RowWeights:
        """How rows count that are corrected by a guide; e and logits, (b, r), are counted from the peak, (b,)."""
        assert self.means is not None
        # No row is thought to weigh more than the heaviest that was read.
        c = np.where(own, 0.0, np.exp(np.minimum(guide.logs - peak[:, None], 0.0)))
        masses, middles = c * self.counts, guide.peaks[:, draw.strata] - peak[:, None]
        c, u, g = c[:, draw.strata], np.empty_like(e), np.empty_like(e)
        for some, rows, part in draw.parts(len(e)):
            mine = c[:, some][:, part.owners]
            np.subtract(e[:, rows], mine, out=u[:, rows])
            x = logits[:, rows] - middles[:, some][:, part.owners]
            np.multiply(mine, x, out=mine, where=mine > 0)  # a row of a list that was read whole has no logit
            np.subtract(u[:, rows], mine, out=g[:, rows])
        return RowWeights(e, u, g, masses.sum(1), masses @ self.means)

    def _values(self, rows: Rows, draw: Draw, queries: int, guided: bool) -> Columns:
        """The values of some rows, in these units; for one query, several threads read them."""
        values, read = self.arena.values, self.arena.some_values
        if isinstance(values, Labels):
            return columns_of_labels(read(rows).array, values.count, draw)
        middle, factor = self.units.middle.astype(values.array.dtype), 1.0 / self.units.size
        found, step = np.empty((len(rows) + ABREAST, len(middle)), np.float32), max(1, READ // len(middle))
        found[len(rows) :] = 0.0
        starts, (squares, crossed) = range(0, len(rows), step), np.empty((2, len(rows)), np.float32)
        centres = self.means[draw.strata] if guided and self.means is not None else None

        def take(first: int, last: int) -> None:
            for start in starts[first:last]:
                some = slice(start, min(start + step, len(rows)))
                given = read(rows[some]).array
                np.subtract(given, middle, out=given)
                given = np.multiply(given, factor, out=found[some], casting="same_kind")
                if centres is not None:
                    around = centres[draw.owners[some]]
                    given -= around
                    np.einsum("rp,rp->r", given, around, out=crossed[some])
                np.einsum("rp,rp->r", given, given, out=squares[some])

        if queries == 1:
            shared(take, 0, len(starts))
        else:
            take(0, len(starts))
        if centres is None:
            return VectorColumns(found, draw, squares)
        return VectorColumns(found, draw, squares, centres=centres, crossed=crossed)


def looked(
    looker: Looker,
    drawn: Drawn,
    asked: Asked,
    beside: Elsewhere,
    guide: Guide | None,
    *,
    whole: Near,
    before: Rows,
    own: Flags,
) -> Look:
    """What the rows of a draw tell.

    `whole` are the sums over other rows that were read, of which so many were compared `before`, (b,). Among them are
    those of lists of which each query has read all rows, (b, l) `own`.
    """
    logits, draw, units = scored(asked, drawn.rows), drawn.draw, looker.units
    again = own[:, draw.strata]
    if again.any():
        logits[again[:, draw.owners]] = -np.inf
    peak = np.maximum(whole.blend.peak, logits.max(axis=1, initial=-np.inf)).astype(np.float64)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    moved: Floats = np.subtract(logits, peak[:, None], dtype=np.float64)
    e = np.exp(moved)
    mass = whole.blend.mass * np.exp(np.minimum(whole.blend.peak - peak, 0.0))
    total = (whole.blend.value - units.middle) / units.size * mass[:, None]
    others = np.exp(np.minimum(beside.log_mass - peak, FARTHEST))
    known = Blend(peak, mass + others, total + others[:, None] * beside.value, None)
    weights = RowWeights.plain(e)
    if guide is not None:
        weights = looker.weights(guide, own, e, moved, peak - asked.added, draw)
    return Look(whole, before, drawn, logits, known, beside, weights, _told(drawn, weights, known))


def _told(drawn: Drawn, weights: RowWeights, known: Blend) -> Sampled:
    return sampled(drawn.draw, weights, drawn.values, mass=known.mass, total=known.total, pairs=drawn.pairs)


def scored(asked: Asked, rows: Rows) -> Reals:
    """The logits of all queries with some rows, (b, r)."""
    logits = np.empty((len(asked.vectors), len(rows)), np.float32)
    if len(rows):
        asked.score_some(rows)(np.arange(len(logits)), 0, len(rows), logits)
    return logits


def heaviest(rows: Rows, logits: Reals, show: int) -> tuple[Rows, Reals]:
    """The heaviest of some rows for each query, (b, show) each; -1 where there are fewer."""
    found, best = np.full((len(logits), show), -1, np.int64), np.full((len(logits), show), -np.inf, np.float32)
    some = min(show, len(rows))
    if some:
        chosen = np.argpartition(-logits, some - 1, axis=1)[:, :some]
        best[:, :some] = np.take_along_axis(logits, chosen, axis=1)
        found[:, :some] = np.where(best[:, :some] > -np.inf, rows[chosen], -1)
    return found, best
