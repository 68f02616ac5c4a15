"""Estimates whose error is measured on the query itself: rows of each list are drawn at random, and tell it.

Nothing is assumed of the query. The lists say which of them matter and how much rows may differ in them, which decides
how many are drawn; how far the answer may be off is told by the rows alone (maths/sampling.py). A first draw finds out
how good that advice is, and is not part of the answer; the size of the second is decided before it is made. Lists of
which most rows would be drawn are read whole, as are rows of no list.

Does not decide which questions are answered so (asking/route.py).

Shapes: l lists, r rows that are drawn, s rows shown.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from softkv.index.lists import Counts, ListIndex
from softkv.index.opening import FIRST, likeliest
from softkv.index.search import Asked, Estimate, Readable, both, one_of, read_lists, tail_of, together
from softkv.maths.blending import Blend, Labels, Numbers, merge
from softkv.maths.farfield import Floats, Tilt, critical, distances, logarithm, tilted
from softkv.maths.nearfield import Near, Rows
from softkv.maths.sampling import Columns, Draw, LabelColumns, Sampled, Sizes, Strata, VectorColumns, quantile, sampled

PILOT = 2000  # rows of the first draw
AIM = 0.85  # of the tolerance, so that what chance adds to the error rarely goes beyond it
AGAIN = 0.65  # of it, when it did
FLOOR = 0.05  # of the tolerance is stated at least: where nearly all is read, what is seen to vary says little
LOG_MASS = 0.05  # how far the logarithm of the mass may be off, at most
SOFT, HARD = 0.5, 0.15  # the share of a list from which on it is read whole, and of one whose weights vary much
STEEP = 1.0  # standard deviations of the logits of a list from which on they do
RARE = 2.0  # from which on a few rows hold most of the mass
BEYOND = 2.0  # as far beyond where the best row is expected may one be
HARMLESS = 0.1  # of the tolerance
STEEPEST = 12.0  # variance of logits that is counted with, at most
MOST_WANTED = 1e100  # of which the square is a number
DOUBTED = 3.0  # times as many rows as may be read are thought to be needed before no row is drawn


class Population:
    """The rows of each list that may be drawn: those that lie in it, and those behind the lists that joined it."""

    def __init__(self, index: ListIndex, live: npt.NDArray[np.bool_] | None) -> None:
        members, starts = index.members
        self._body: Rows | None = None
        self._firsts = index.offsets
        if live is not None:
            self._body = np.flatnonzero(live[: index.rows])
            self._firsts = np.searchsorted(self._body, index.offsets)
            there = live[members]
            members, starts = members[there], np.append(0, there.cumsum())[starts]
        self._members, self._starts = members, starts
        self._inside = np.diff(self._firsts)
        self.counts: Counts = self._inside + np.diff(starts)
        heads = np.diff(index.offsets) if index.heads is None else index.heads
        ends = index.offsets[:-1] + heads
        self.ahead: Counts = (ends if self._body is None else np.searchsorted(self._body, ends)) - self._firsts[:-1]
        self.shuffled: Counts = self._inside - self.ahead  # the bodies of lists, which lie behind their heads

    def rows(self, draw: Draw) -> Rows:
        """The rows that were drawn."""
        lists, places = draw.strata[draw.owners], draw.places
        inside = places < self._inside[lists]
        found = np.empty(len(places), np.int64)
        at = self._firsts[lists[inside]] + places[inside]
        found[inside] = at if self._body is None else self._body[at]
        joined = lists[~inside]
        found[~inside] = self._members[self._starts[joined] + places[~inside] - self._inside[joined]]
        return found


def measured(
    index: ListIndex,
    arena: Readable,
    asked: Asked,
    random: Callable[[int], np.random.Generator],
    *,
    tolerance: float,
    confidence: float,
    most: float,
    show: int,
) -> Estimate:
    """Answers whose error is below the tolerance, a share of the value scale, with this confidence over the draw.

    `random` is what the draw for a query follows from, by its number. No more than about `most` rows are drawn for one:
    where that is not enough, it is not sure.
    """
    population = Population(index, arena.live)
    found = [
        _Measuring(index, arena, one_of(asked, number), population, random(number), show).found(
            tolerance, confidence, most
        )
        for number in range(len(asked.vectors))
    ]
    return together(found)


def _shares(logs: Floats) -> Floats:
    """What parts of the sum are, of which these are the logarithms."""
    parts = np.exp(logs.astype(np.float64) - logs.max(initial=-np.inf))
    found: Floats = np.where(np.isfinite(logs), parts, 0.0)
    return found / (found.sum() or 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What was read by one draw."""

    near: Near  # all rows that were read
    blend: Blend  # of all rows, estimated
    told: Sampled
    thought: Floats  # (2,), the variance that was thought


class _Measuring:
    """One query on its way."""

    def __init__(
        self,
        index: ListIndex,
        arena: Readable,
        asked: Asked,
        population: Population,
        random: np.random.Generator,
        show: int,
    ) -> None:
        self.index, self.arena, self.asked, self.population = index, arena, asked, population
        self.random, self.show = random, show
        self.units = index.units

    def found(self, tolerance: float, confidence: float, most: float) -> Estimate:
        """The answer, if it can be measured with so many rows."""
        wanted = min(tolerance * self.arena.scale / self.units.size, MOST_WANTED)
        known, of_mass = self._strata(wanted)
        strata, one = known, quantile(1.0, confidence)
        if not known.is_sound or not of_mass.is_sound or not of_mass.between.any():
            return self._unsure(known)
        first, guess = strata.sizes(PILOT), strata.enough((AIM * wanted) ** 2)
        if first.expected > most or guess.expected > DOUBTED * most:
            return self._unsure(known)
        look = self._look(strata, first)
        for aim in (AIM, AGAIN):
            thought = np.maximum(look.thought, np.finfo(np.float64).tiny)
            strata = strata.scaled(np.maximum(look.told.variance / thought, 1.0))
            if not strata.is_sound:
                break
            goals = (aim * wanted) ** 2 / quantile(look.told.columns, confidence), (aim * LOG_MASS) ** 2 / one
            sizes = strata.enough(goals[0], also=(of_mass, goals[1]))
            if sizes.expected > most:
                break
            look = self._look(strata, sizes)
            told = look.told.at_least(known.variance(sizes), of_mass.variance(sizes))
            error = math.hypot(told.error(confidence), FLOOR * wanted)
            log_mass_error = math.hypot(told.log_mass_error(confidence), FLOOR * LOG_MASS)
            if error <= wanted and log_mass_error <= LOG_MASS:
                return self._estimate(look, error * self.units.size, log_mass_error)
        return self._estimate(look, math.inf, math.inf)

    def _unsure(self, strata: Strata) -> Estimate:
        """No answer, for which nothing was drawn."""
        return self._estimate(self._look(strata, Sizes.none(len(strata.counts))), math.inf, math.inf)

    def _estimate(self, look: _Look, error: float, log_mass_error: float) -> Estimate:
        sure = np.array([math.isfinite(error)])
        return Estimate(look.near, look.blend, np.array([error]), np.array([log_mass_error]), sure)

    def _strata(self, wanted: float) -> tuple[Strata, Strata]:
        """What the statistics of the lists say of the values of their rows, and of the mass; all mass counts as 1."""
        lists, counts = self.index.quick, self.population.counts
        tilt = self._tilt
        # Of the rows of a list, those that may count have their share of its mass. That is no less than if all had the
        # logit of the mean, and as much more as their spread says, if they are normal, which may be far too much.
        share = logarithm(counts / np.maximum(lists.counts, 1.0))
        masses = np.maximum(_shares(share + logarithm(lists.counts) + tilt.peaks[0]), _shares(share + tilt.logs[0]))
        value = masses[None, :] @ lists.values / (masses.sum() or 1.0)
        apart = distances(lists.values, value)[0].astype(np.float64) ** 2
        variances = np.minimum(tilt.variances[0].astype(np.float64), STEEPEST)
        within = masses**2 * (np.expm1(variances) * (apart + lists.scatter) + lists.scatter)
        most = np.where(variances > STEEP**2, HARD, SOFT)
        most[self._first] = 0.0
        most[self._rare(apart + lists.scatter, wanted)] = 0.0
        squares = masses * masses
        of_mass = Strata(counts, squares * np.expm1(variances), squares, most)
        order = self.population.ahead, self.population.shuffled
        return Strata(counts, within, squares * apart, most, *order), of_mass

    def _rare(self, apart: Floats, wanted: float) -> Counts:
        """The lists of which a few rows hold most of the mass, but for those that do not matter, also together.

        A sample without these few rows does not tell of them. `apart` is how far values are from the answer, squared;
        the best row of a list is taken to be as good as one can be.
        """
        lists, tilt = self.index.quick, self._tilt
        rare: Counts = np.flatnonzero((tilt.variances[0] > RARE**2) & (self.population.counts > 0))
        if not len(rare):
            return rare
        spread = np.sqrt(tilt.variances[0, rare]) * (critical(lists.counts[rare]) + BEYOND)
        best = tilt.peaks[0, rare].astype(np.float64) + spread - self._known_log_mass
        harm = np.exp(np.minimum(2.0 * best, 0.0)) * apart[rare]
        order = np.argsort(harm)
        found: Counts = rare[order[harm[order].cumsum() > (HARMLESS * wanted) ** 2]]
        return found

    @cached_property
    def _tilt(self) -> Tilt:
        return tilted(self.index.quick, self.asked.vectors)

    @cached_property
    def _first(self) -> Counts:
        """The lists that are likeliest to hold the best rows, which are read in any case."""
        likely = np.where(self.population.counts > 0, likeliest(self.index.quick, self._tilt)[0], -np.inf)
        return np.argsort(-likely)[:FIRST]

    @cached_property
    def _known_log_mass(self) -> float:
        """The logarithm of the mass of the rows that are read in any case, as the lists count logits."""
        read = both(read_lists(self.index, self.arena, self.asked, [self._first], 0), self._tail, 0)
        return float(read.blend.log_mass[0] - self.asked.added[0])

    @cached_property
    def _tail(self) -> Near | None:
        """The rows of no list."""
        return tail_of(self.index, self.arena, self.asked, self.show)

    def _look(self, strata: Strata, sizes: Sizes) -> _Look:
        """Read as many rows as these sizes say."""
        lists = np.flatnonzero(sizes.whole(strata.counts) & (strata.counts > 0))
        whole = both(read_lists(self.index, self.arena, self.asked, [lists], self.show), self._tail, self.show)
        draw = Draw.of(self.random, strata, sizes)
        rows = self.population.rows(draw)
        logits = np.empty((1, len(rows)), np.float32)
        if len(rows):
            self.asked.score_some(rows)(np.zeros(1, np.int64), 0, len(rows), logits)
        peak = max(float(whole.blend.peak[0]), float(logits.max(initial=-np.inf)))
        peak = peak if math.isfinite(peak) else 0.0
        moved = logits[0].astype(np.float64) - peak
        e, values = np.exp(moved), self._values(rows)
        known = float(whole.blend.mass[0] * np.exp(min(float(whole.blend.peak[0]) - peak, 0.0)))
        told = sampled(
            draw, e, values, mass=known, total=self._counted(whole.blend.value[0]) * known, random=self.random
        )
        blend = merge(whole.blend, self._blend(values, draw.weights * e, moved, peak))
        drawn = self._near(rows, logits[0], replace(self._blend(values, e, moved, peak), excess=None, square=None))
        return _Look(both(whole, drawn, self.show), blend, told, strata.variance(sizes))

    def _values(self, rows: Rows) -> Columns:
        """The values of some rows, in the units of the lists."""
        values = self.arena.some_values(rows)
        if isinstance(values, Labels):
            return LabelColumns(values.array, values.count)
        return VectorColumns(self._counted(values.array.astype(np.float64)))

    def _counted(self, values: Floats) -> Floats:
        """Values in the units of the lists."""
        counted: Floats = (values - self.units.middle) / self.units.size
        return counted

    def _blend(self, values: Columns, weights: Floats, moved: Floats, peak: float) -> Blend:
        """The blend of rows with these weights."""
        mass, total = weights.sum(keepdims=True), values.total(weights)[None, :]
        square = None
        if isinstance(self.arena.values, Numbers):
            square = (weights @ values.apart(total[0] / (mass[0] or 1.0)).squares)[None, None]
        blend = Blend(np.array([peak]), mass, total, (weights @ moved)[None], square)
        return self.units.back(blend)

    def _near(self, rows: Rows, logits: npt.NDArray[np.float32], blend: Blend) -> Near:
        """Rows that were drawn, and the heaviest of them."""
        found, best = np.full((1, self.show), -1, np.int64), np.full((1, self.show), -np.inf, np.float32)
        order = np.lexsort((rows, -logits))[: self.show]
        found[0, : len(order)], best[0, : len(order)] = rows[order], logits[order]
        return Near(blend, found, best, np.array([len(rows)]))
