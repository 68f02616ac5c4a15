"""Estimates whose error is measured on the query itself, from rows drawn at random from each list.

Nothing is assumed of the query. The statistics of the lists say which lists matter and how much rows may differ in
them, which decides how many rows are drawn (strata.py); the error of the answer is estimated from the drawn rows alone
(maths/sampling.py). A first draw tests that advice and is not part of the answer; the size of the second is fixed
before it is made. Lists of which most rows would be drawn are read whole, as are rows of no list. Several queries share
one draw.

Does not decide which questions are answered so (asking/route.py).

Shapes: b queries, l lists, r rows that are drawn, p value width, s rows shown.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from softkv.index.lists import ListIndex
from softkv.index.search import Asked, Estimate, Readable, both, each_array, part_of, read_lists, tail_of, together
from softkv.index.strata import LOG_MASS, LOWEST, Advice, Population, advice, first_lists, seen_tilt
from softkv.maths.blas import shared
from softkv.maths.blending import Blend, Labels, Numbers, merge
from softkv.maths.columns import Columns, VectorColumns, columns_of_labels
from softkv.maths.farfield import Tilt, Units
from softkv.maths.nearfield import Near
from softkv.maths.sampling import Deviation, Elsewhere, Sampled, log_error, sampled
from softkv.maths.strata import Draw, Sizes, Strata
from softkv.ndarrays import Flags, Floats, Reals, Rows

PILOT, FEWEST = 2000, 100  # rows of the first draw; at least so many, if drawn rows have a small part in an answer
LEAST = 0.25  # the share of that which a later draw takes at least: a few rows do not tell how far they are off
AIMS = 0.85, 0.65, 0.35, 0.15  # the share of the tolerance to aim at, and the next ones where chance went beyond it
MORE = 8.0  # variances from the second draw are assumed to be so many times better known than from the first
FLOOR = 0.05  # the least error to state, as a share of the tolerance: if nearly all is read, little variation is seen
VARIED = 0.1  # the largest standard deviation of the mass, as a share of it: beyond, a ratio to it would be biased
MOST_WANTED = 1e100  # its square is still a float
DOUBTED = 3.0  # nothing is drawn if so many times as many rows seem needed as may be read
SURER, CLOSE = 4.0, 1.5  # a first draw is repeated, with so many times as many rows, if V seems so many times too large
SEEN = 4  # rows of each list that stand for it if its statistics do not apply
TOGETHER, HELD = 64, 1 << 23  # queries that share a draw, and logits that are held at once by each thread
TINY = np.finfo(np.float64).tiny
READ = 1 << 18  # numbers of values that are read at once
FARTHEST = 100.0  # the log mass of other rows is capped at so much above the best row


def measured(
    index: ListIndex,
    population: Population,
    arena: Readable,
    asked: Asked,
    random: Callable[[Rows], np.random.Generator],
    *,
    tolerance: float,
    confidence: float,
    most: float,
    listed: float,
    show: int,
    tells: bool,
    beside: Elsewhere | None = None,
) -> Estimate:
    """Answers whose error is below the tolerance, a share of the value scale, with this confidence over the draw.

    Estimates of rows `beside` count as exact: errors are then those of an answer about all rows, as shares of the mass
    of the rows here. Queries are answered some at a time by one draw, which follows from `random` of their numbers, and
    so by several threads; what they are told does not depend on how many there are. At most about `most` rows are
    drawn, and a row of the lists that a query reads in any case counts as the share `listed` of a drawn one: queries
    that need more are not sure. `tells` is whether the statistics of the lists suit the way to compare; if not, some
    rows of each list stand for it at first.
    """
    everyone, step = np.arange(len(asked.vectors)), max(1, min(TOGETHER, int(HELD / max(most, 1.0))))
    parts = np.array_split(everyone, max(1, -(-len(everyone) // step)))
    wanted = min(tolerance * arena.scale / index.units.size, MOST_WANTED)
    found: list[Any] = [None] * len(parts)

    def find(start: int, stop: int) -> None:
        for number, some in enumerate(parts[start:stop], start):
            given = asked if len(parts) == 1 else part_of(asked, some)
            drawn = random(some)
            measuring = _Measuring(index, population, arena, drawn, wanted, confidence, most, listed, show, tells)
            found[number] = measuring.found(given, (beside or Elsewhere.nothing(len(everyone))).of(some))

    shared(find, 0, len(parts))
    return together(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """Queries without an answer so far."""

    numbers: Rows  # (b,)
    asked: Asked
    own: Flags  # (b, l), the lists that each reads in any case
    known: Near  # the sums over these, and over rows of no list
    beside: Elsewhere  # in the units of the lists
    values: Strata  # the current model of the other lists
    masses: Strata

    def of(self, some: Rows) -> "_Open":
        """Some of them."""
        if len(some) == len(self.numbers):
            return self
        asked, values, masses = part_of(self.asked, some), self.values.of(some), self.masses.of(some)
        known, beside = _cut(self.known, some), self.beside.of(some)
        return _Open(self.numbers[some], asked, self.own[some], known, beside, values, masses)


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """The result of one draw, for some queries."""

    whole: Near  # rows that were read with whole lists
    draw: Draw
    rows: Rows  # (r,), that were drawn
    logits: Reals  # (b, r)
    compared: Rows  # (b,), how many rows were read for it alone
    known: Blend  # of the rows of whole lists and beside, counted from the peak of all, in the units of the lists
    beside: Elsewhere
    e: Floats  # (b, r)
    values: Columns
    told: Sampled

    def moved(self, rows: slice) -> Floats:
        """The logits of some of the rows that were drawn, counted from the peak, (b, n)."""
        found: Floats = np.maximum(self.logits[:, rows] - self.known.peak[:, None], LOWEST)
        return found


@dataclass(frozen=True, eq=False)
class _Measuring:
    """Measure queries that share one draw."""

    index: ListIndex
    population: Population
    arena: Readable
    random: np.random.Generator
    wanted: float  # how far a value may be off, in the units of the lists
    confidence: float
    most: float
    listed: float
    show: int
    tells: bool

    @cached_property
    def units(self) -> Units:
        """The units of the lists, with a middle in float32: values of that type lose nothing where it is subtracted."""
        return replace(self.index.units, middle=self.index.units.middle.astype(np.float32).astype(np.float64))

    def found(self, asked: Asked, beside: Elsewhere) -> Estimate:
        """The answers that can be measured; the others are not sure."""
        beside = replace(beside, value=(beside.value - self.units.middle) / self.units.size)
        tilt = asked.tilt if self.tells else self._seen(asked)
        first = first_lists(self.index, self.population, tilt)
        tail = tail_of(self.index, self.arena, asked, self.show)
        known = both(read_lists(self.index, self.arena, asked, list(first), self.show), tail, self.show)
        seen = self._known(known.blend, asked.added, beside)
        thought = advice(self.index, self.population, tilt, first, known=seen, wanted=self.wanted * beside.wanted)
        nothing = np.full(len(asked.vectors), np.inf)
        plain = replace(known, blend=replace(known.blend, excess=None, square=None))
        spread = nothing if isinstance(self.arena.values, Numbers) else None
        none = np.zeros(len(nothing), np.int64)
        found = Estimate(plain, known.blend, nothing, nothing, nothing < 0, nothing, spread, none)
        left = _Open(np.arange(len(nothing)), asked, thought.own, known, beside, thought.values, thought.masses)
        read = self.listed * (thought.own @ self.population.counts)
        # A query that needs most of the allowed rows leaves little to draw for the others.
        left = left.of(np.flatnonzero(self._promising(thought, beside) & (read <= self.most / min(2, len(read)))))
        if not len(left.numbers):
            return found
        most, rows = self.most - float(read[left.numbers].max()), max(FEWEST, PILOT * float(left.beside.share.mean()))
        pilot = self._pilot(left, rows)
        if pilot.expected > most:
            return found
        others = left.own.copy()
        np.put_along_axis(others, first[left.numbers], False, axis=1)
        left = replace(left, known=self._with_lists(left, others))
        tried = 0 if self.tells else int(np.minimum(self.population.counts, SEEN).sum())
        return self._measured(left, found, (rows, pilot), most, LEAST * rows, np.full(len(left.numbers), tried))

    def _known(self, read: Blend, added: Floats, beside: Elsewhere) -> Elsewhere:
        """The sums over the rows that were read and rows beside, with logits counted as in the lists."""
        logs = np.logaddexp(read.log_mass, beside.log_mass)
        share = np.exp(np.where(beside.log_mass > -np.inf, beside.log_mass - logs, -np.inf))[:, None]
        value = (1.0 - share) * (read.value - self.units.middle) / self.units.size + share * beside.value
        return Elsewhere(logs - added, value, beside.share)

    def _seen(self, asked: Asked) -> Tilt:
        """How the queries weigh all lists, judged by some rows of each."""
        draw = Draw.of_each(self.random, self.population.strata, SEEN)
        rows = self.population.rows(draw)
        return seen_tilt(self.index, draw, _scored(asked, rows))

    def _promising(self, thought: Advice, beside: Elsewhere) -> Flags:
        """The queries that can probably be measured with so many rows."""
        values, masses = thought.values, thought.masses
        enough = values.alone(DOUBTED * self.most) <= np.square(AIMS[0] * self.wanted * beside.wanted)
        return enough & values.is_sound & masses.is_sound & bool(values.counts.any())

    def _pilot(self, left: _Open, rows: float) -> Sizes:
        """A first draw of about so many rows."""
        return left.values.sizes(rows, left.values.alone(rows))

    def _measured(
        self, left: _Open, found: Estimate, first: tuple[float, Sizes], most: float, least: float, tried: Rows
    ) -> Estimate:
        """The answers, with those filled in that can be measured by drawing from `least` to about `most` rows.

        The `first` draw takes about so many rows. By chance it may make a need look larger than it is: where that is
        hardly too large, a larger one tells. So many were `tried` before, (b,).
        """
        (rows, pilot), everyone, advised = first, left, left
        look, thought = self._look(left, pilot), left.values.variance(pilot)
        told, tried = look.told, tried + look.compared
        unclear, spent = np.zeros(0, np.int64), tried
        for number, aim in enumerate(AIMS):
            known = 1.0 if number else MORE
            room = most if number < 2 else max(most - float(tried.max()), 1.0)  # for a third what two have left over
            corrected = left.values.scaled(np.maximum(told.of_value.variance / np.maximum(thought, TINY), 1.0))
            left = replace(left, values=corrected)
            goals, allowed = (
                np.square(aim * wanted * left.beside.wanted) / one.factors(self.confidence, known=known)
                for wanted, one in ((self.wanted, told.of_value), (LOG_MASS, told.of_mass))
            )
            allowed = np.minimum(allowed, np.square(aim * VARIED * left.beside.wanted))
            sizes, ratios = left.values.enough(goals, room, also=(left.masses, allowed), least=least)
            if not number:
                unclear = np.flatnonzero((ratios > 1.0) & (ratios <= CLOSE))
            some = np.flatnonzero(ratios <= 1.0)
            left, advised, tried = left.of(some), advised.of(some), tried[some]
            if not len(some):
                break
            look = self._look(left, sizes)
            estimate = self._estimate(look, advised.values.variance(sizes), advised.masses.variance(sizes))
            estimate = replace(estimate, tried=tried)
            found = estimate if len(left.numbers) == len(found.sure) else _put(found, left.numbers, estimate)
            rest = np.flatnonzero(~estimate.sure)
            if not len(rest):
                break
            told, thought = _cut(look.told, rest), left.values.variance(sizes)[rest]
            left, advised, tried = left.of(rest), advised.of(rest), (tried + look.compared)[rest]
        if len(unclear):
            again = everyone.of(unclear)
            larger = self._pilot(again, SURER * rows)
            if larger.expected <= most / SURER:
                return self._measured(again, found, (SURER * rows, larger), most, least, spent[unclear])
        return found

    def _with_lists(self, left: _Open, lists: Flags) -> Near:
        """The sums of each query, extended by whole lists of its own, (b, l)."""
        if not lists.any():
            return left.known
        chosen = [np.flatnonzero(some) for some in lists]
        return both(left.known, read_lists(self.index, self.arena, left.asked, chosen, self.show), self.show)

    def _look(self, left: _Open, sizes: Sizes) -> _Look:
        """Read as many rows as these sizes say."""
        strata = left.values
        whole = self._with_lists(left, (sizes.whole(strata.counts) & (strata.counts > 0)) & ~left.own)
        draw = Draw.of(self.random, strata, sizes)
        rows = self.population.rows(draw)
        logits = _scored(left.asked, rows)
        if len(logits) > 1:
            logits[left.own[:, draw.strata[draw.owners]]] = -np.inf  # what was read with a whole list
        peak = np.maximum(whole.blend.peak, logits.max(axis=1, initial=-np.inf)).astype(np.float64)
        peak = np.where(np.isfinite(peak), peak, 0.0)
        e: Floats = np.subtract(logits, peak[:, None], dtype=np.float64)
        np.exp(e, out=e)
        values = self._values(rows, len(logits))
        mass = whole.blend.mass * np.exp(np.minimum(whole.blend.peak - peak, 0.0))
        total = (whole.blend.value - self.units.middle) / self.units.size * mass[:, None]
        others = np.exp(np.minimum(left.beside.log_mass - peak, FARTHEST))
        mass, total = mass + others, total + others[:, None] * left.beside.value
        told = sampled(draw, e, values, mass=mass, total=total, random=self.random)
        compared = whole.scored - left.known.scored + (logits > -np.inf).sum(1)
        return _Look(whole, draw, rows, logits, compared, Blend(peak, mass, total, None), left.beside, e, values, told)

    def _estimate(self, look: _Look, values: Floats, masses: Floats) -> Estimate:
        """The estimate by a draw, with variances of at least these: drawn rows may miss what matters."""
        told, size, blend = look.told, self.units.size, self._blend(look)
        of_value, of_mass = told.of_value.at_least(values), told.of_mass.at_least(masses)
        wanted, allowed = self.wanted * look.beside.wanted, LOG_MASS * look.beside.wanted
        error = np.hypot(np.where(told.mass > 0, of_value.error(self.confidence), np.inf), FLOOR * wanted)
        off = of_mass.error(self.confidence)
        log_mass_error = np.hypot(log_error(off), FLOOR * allowed)
        varied = of_mass.variance.sum(1) > np.square(VARIED * look.beside.wanted)
        sure = (error <= wanted) & (log_mass_error <= allowed) & ~varied
        log_own = np.minimum(blend.log_mass - look.beside.log_mass, FARTHEST)
        larger = 1.0 + np.exp(-log_own)  # than the mass of the rows here is that of all
        error, log_mass_error = error * larger, np.where(larger > 1.0, np.log1p(off * larger), log_mass_error)
        entropy = larger * _of_entropy(look, blend).raised(of_mass, told.of_mass).error(self.confidence)
        effective_error = blend.effective * np.expm1(np.hypot(entropy, FLOOR * LOG_MASS))
        spread_error, of_square = None, _of_square(look, blend, self.units)
        if of_square is not None and blend.spread is not None:
            spread = blend.spread[:, 0] / size
            square = larger * of_square.raised(of_value, told.of_value).error(self.confidence)
            apart = spread - np.sqrt(np.maximum(spread * spread - square, 0.0))
            spread_error = np.hypot(apart, FLOOR * wanted * larger) * size
        return Estimate(self._near(look), blend, error * size, log_mass_error, sure, effective_error, spread_error)

    def _near(self, look: _Look) -> Near:
        """The sums over all rows read by a draw, and the heaviest of them."""
        read = Blend(look.known.peak, look.e.sum(1), np.zeros_like(look.known.total), None)
        heaviest = _heaviest(look.rows, look.logits, self.show)
        return both(look.whole, Near(read, *heaviest, (look.logits > -np.inf).sum(1)), self.show)

    def _blend(self, look: _Look) -> Blend:
        """The sums over whole lists, and over all rows that the drawn ones stand for."""
        known, excess, square = look.known, np.zeros(len(look.e)), None
        mass, total = look.told.drawn, look.told.drawn_total
        for _, rows, part in look.draw.parts(len(look.e)):
            excess += np.einsum("br,br->b", look.e[:, rows] * part.weights, look.moved(rows))
        if isinstance(self.arena.values, Numbers):
            mean = total / np.maximum(mass, TINY)[:, None]
            square = np.einsum("br,br->b", look.e * look.draw.weights, look.values.distances(mean))[:, None]
        return merge(look.whole.blend, self.units.back(Blend(known.peak, mass, total, excess, square)))

    def _values(self, rows: Rows, queries: int) -> Columns:
        """The values of some rows, in the units of the lists; for one query, several threads read them."""
        values, read = self.arena.values, self.arena.some_values
        if isinstance(values, Labels):
            return columns_of_labels(read(rows).array, values.count)
        middle, factor = self.units.middle.astype(values.array.dtype), 1.0 / self.units.size
        found, step = np.empty((len(rows), len(middle)), np.float32), max(1, READ // len(middle))
        starts = range(0, len(rows), step)

        def take(first: int, last: int) -> None:
            for start in starts[first:last]:
                some = slice(start, start + step)
                given = read(rows[some]).array
                np.subtract(given, middle, out=given)
                np.multiply(given, factor, out=found[some], casting="same_kind")

        if queries == 1:
            shared(take, 0, len(starts))
        else:
            take(0, len(starts))
        return VectorColumns(found)


def _of_entropy(look: _Look, blend: Blend) -> Deviation:
    """How far the logarithm of the effective number of rows is off."""
    entropy = (blend.excess / blend.mass)[:, None]
    return Deviation.of_column(
        look.draw, lambda rows: look.e[:, rows] * (1.0 - (look.moved(rows) - entropy)), look.told.mass
    )


def _of_square(look: _Look, blend: Blend, units: Units) -> Deviation | None:
    """How far the squared spread is off, in units of this size; None where values have none."""
    if blend.square is None:
        return None
    apart = look.values.distances((blend.value - units.middle) / units.size)
    spread = blend.square / blend.mass[:, None] / units.size**2
    return Deviation.of_column(look.draw, lambda rows: look.e[:, rows] * (apart[:, rows] - spread), look.told.mass)


def _scored(asked: Asked, rows: Rows) -> Reals:
    """The logits of all queries with some rows, (b, r)."""
    logits = np.empty((len(asked.vectors), len(rows)), np.float32)
    if len(rows):
        asked.score_some(rows)(np.arange(len(logits)), 0, len(rows), logits)
    return logits


def _heaviest(rows: Rows, logits: Reals, show: int) -> tuple[Rows, Reals]:
    """The heaviest of some rows for each query, (b, show) each; -1 where there are fewer."""
    found, best = np.full((len(logits), show), -1, np.int64), np.full((len(logits), show), -np.inf, np.float32)
    some = min(show, len(rows))
    if some:
        chosen = np.argpartition(-logits, some - 1, axis=1)[:, :some]
        best[:, :some] = np.take_along_axis(logits, chosen, axis=1)
        found[:, :some] = np.where(best[:, :some] > -np.inf, rows[chosen], -1)
    return found, best


def _cut(given: Any, some: Rows) -> Any:
    """The results of some of the queries."""
    return each_array(lambda x: x[some], given)


def _put(given: Any, numbers: Rows, part: Any) -> Any:
    """The results of all queries, with those of these numbers replaced."""

    def replaced(old: Any, new: Any) -> Any:
        whole = old.copy()
        whole[numbers] = new
        return whole

    return each_array(replaced, given, part)
