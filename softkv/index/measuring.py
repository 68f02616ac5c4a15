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
from typing import Any

import numpy as np

from softkv.index.lists import ListIndex
from softkv.index.looks import FARTHEST, Look, Looker, looked, scored
from softkv.index.opening import likeliest
from softkv.index.search import (
    Asked,
    Estimate,
    Readable,
    both,
    distinct,
    each_array,
    lists_alike,
    part_of,
    read_lists,
    replaced,
    some_of,
    tail_of,
    together,
)
from softkv.index.strata import LOG_MASS, Guide, Model, Population, Variances, advice, first_lists, guide_of, seen_tilt
from softkv.maths.blas import shared
from softkv.maths.blending import Blend, Numbers
from softkv.maths.farfield import Tilt
from softkv.maths.nearfield import Near
from softkv.maths.sampling import Elsewhere, Sampled, log_error
from softkv.maths.strata import Draw, Sizes
from softkv.maths.summaries import Units
from softkv.ndarrays import Flags, Floats, Rows

PILOT, FEWEST = 2000, 100  # rows of the first draw; at least so many, if drawn rows have a small part in an answer
LEAST = 0.25  # the share of that which a later draw takes at least: a few rows do not tell how far they are off
AIMS = 0.85, 0.65, 0.35, 0.15  # the share of the tolerance to aim at, and the next ones where chance went beyond it
STEADY = 0.95  # the first one where lists correct rows, and the first draw tells of no more variance than they foretell
MORE = 8.0  # variances from the second draw are assumed to be so many times better known than from the first
FLOOR = 0.05  # the least error to state, as a share of the tolerance: if nearly all is read, little variation is seen
VARIED = 0.1  # the largest standard deviation of the mass, as a share of it: beyond, a ratio to it would be biased
MOST_WANTED = 1e100  # its square is still a float
DOUBTED = 3.0  # nothing is drawn if so many times as many rows seem needed as may be read
SURER, CLOSE = 4.0, 2.0  # a first draw is repeated, with so many times as many rows, if V seems so many times too large
SEEN = 4  # rows of each list that stand for it if its statistics do not apply
TOGETHER, HELD = 64, 1 << 23  # queries that share a draw, and logits that are held at once by each thread
TINY = np.finfo(np.float64).tiny
ROUNDED, LITTLE = 4 * float(np.finfo(np.float32).eps), 0.01  # of a product of vectors; of a tolerance, not counting
AGREEING = 5.0  # standard deviations of the difference of two estimates by the same rows


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
    advised: Model  # what is thought of the other lists,
    model: Model  # with variances as large as drawn rows tell,
    plain: Model  # and where drawn rows are not corrected
    guide: Guide | None
    tried: Rows  # (b,), how many rows were compared that are not part of an answer
    steady: Flags  # (b,), whether the first draw told of no more variance than lists that correct rows foretell

    def of(self, some: Rows) -> "_Open":
        """Some of them."""
        if len(some) == len(self.numbers):
            return self
        return _Open(
            numbers=self.numbers[some],
            asked=part_of(self.asked, some),
            own=self.own[some],
            known=some_of(self.known, some),
            beside=self.beside.of(some),
            advised=self.advised.of(some),
            model=self.model.of(some),
            plain=self.plain.of(some),
            guide=self.guide and self.guide.of(some),
            tried=self.tried[some],
            steady=self.steady[some],
        )


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

    @property
    def units(self) -> Units:
        """The units of the values that are drawn."""
        return self.index.narrow_units

    @property
    def _looker(self) -> Looker:
        return Looker(self.arena, self.units, self.population.counts, self.index.narrow_means)

    def found(self, asked: Asked, beside: Elsewhere) -> Estimate:
        """The answers that can be measured; the others are not sure."""
        beside = replace(beside, value=(beside.value - self.units.middle) / self.units.size)
        tilt = asked.tilt if self.tells else self._seen(asked)
        first = first_lists(self.population, asked.likely if self.tells else likeliest(self.index.quick, tilt))
        if self.tells:
            alike = lists_alike(self.index, self.arena, asked, np.inf, some=self._decided(asked, tilt))
            first = first if alike is None else np.hstack([first, alike])
        tail, own = tail_of(self.index, self.arena, asked, self.show), [distinct(lists) for lists in first]
        known = both(read_lists(self.index, self.arena, asked, own, self.show), tail, self.show)
        seen = self._known(known.blend, asked.added, beside)
        numbers, wanted = isinstance(self.arena.values, Numbers), self.wanted * beside.wanted
        thought = advice(self.index, self.population, tilt, first, known=seen, wanted=wanted, numbers=numbers)
        nothing = np.full(len(asked.vectors), np.inf)
        plain = replace(known, blend=replace(known.blend, excess=None, square=None))
        spread = nothing if numbers else None
        none = np.zeros(len(nothing), np.int64)
        found = Estimate(plain, known.blend, nothing, nothing, nothing < 0, nothing, spread, none)
        everyone, linear = np.arange(len(nothing)), self._linear(asked, beside)
        guide = guide_of(self.index, self.population, tilt, thought.own, linear)
        model = thought.plain if guide is None else thought.guided.where(guide.guides, thought.plain)
        tried = 0 if self.tells else int(np.minimum(self.population.counts, SEEN).sum())
        of_draws = guide, np.full(len(everyone), tried), np.zeros(len(everyone), np.bool_)
        left = _Open(everyone, asked, thought.own, known, beside, model, model, thought.plain, *of_draws)
        read = self.listed * (thought.own @ self.population.counts) + float(model.values.heads.sum())
        # A query that needs most of the allowed rows leaves little to draw for the others.
        left = left.of(np.flatnonzero(self._promising(model, beside) & (read <= self.most / min(2, len(read)))))
        if not len(left.numbers):
            return found
        most, rows = self.most - float(read[left.numbers].max()), max(FEWEST, PILOT * float(left.beside.share.mean()))
        pilot = self._pilot(left, rows)
        if pilot.expected > most:
            return found
        others = left.own.copy()
        np.put_along_axis(others, first[left.numbers], False, axis=1)
        left = replace(left, known=self._with_lists(left, others))
        return self._measured(left, found, (rows, pilot), most, LEAST * rows)

    def _known(self, read: Blend, added: Floats, beside: Elsewhere) -> Elsewhere:
        """The sums over the rows that were read and rows beside, with logits counted as in the lists."""
        logs = np.logaddexp(read.log_mass, beside.log_mass)
        share = np.exp(np.where(beside.log_mass > -np.inf, beside.log_mass - logs, -np.inf))[:, None]
        value = (1.0 - share) * (read.value - self.units.middle) / self.units.size + share * beside.value
        return Elsewhere(logs - added, value, beside.share)

    def _decided(self, asked: Asked, tilt: Tilt) -> Flags:
        """The queries whose answer a single row would move by more than it may be off, if none is liker them, (b,)."""
        most = np.minimum(
            self.index.form.most(asked.added), np.linalg.norm(asked.vectors, axis=1) * self.index.quick.longest
        )
        wanted = min(self.wanted * self.units.size / max(self.arena.scale, TINY), LOG_MASS)
        found: Flags = most >= np.logaddexp.reduce(tilt.logs.astype(np.float64), axis=1) + np.log(max(wanted, TINY))
        return found

    def _seen(self, asked: Asked) -> Tilt:
        """How the queries weigh all lists, judged by some rows of each."""
        draw = Draw.of_each(self.random, self.population.strata, SEEN)
        rows = self.population.rows(draw)
        return seen_tilt(self.index, draw, scored(asked, rows))

    def _linear(self, asked: Asked, beside: Elsewhere) -> Flags:
        """The queries for which the mean of the logits of a list is that of its statistics, but for a little, (b,)."""
        # By so much the rounding of float32 moves them.
        lost = ROUNDED * np.linalg.norm(asked.vectors, axis=1) * self.index.quick.longest
        found: Flags = (lost <= LITTLE * np.minimum(self.wanted, LOG_MASS) * beside.wanted) & self.tells
        return found

    def _promising(self, model: Model, beside: Elsewhere) -> Flags:
        """The queries that can probably be measured with so many rows."""
        enough = model.values.alone(DOUBTED * self.most) <= np.square(AIMS[0] * self.wanted * beside.wanted)
        return enough & model.is_sound & bool(model.values.counts.any())

    def _pilot(self, left: _Open, rows: float) -> Sizes:
        """A first draw of about so many rows."""
        values = left.model.values
        return values.sizes(rows, values.alone(rows))

    def _measured(
        self, left: _Open, found: Estimate, first: tuple[float, Sizes], most: float, least: float
    ) -> Estimate:
        """The answers, with those filled in that can be measured by drawing from `least` to about `most` rows.

        The `first` draw takes about so many rows. By chance it may make a need look larger than it is: where that is
        hardly too large, a larger one tells.
        """
        rows, pilot = first
        left, told, thought = self._piloted(left, pilot)
        everyone, unclear = left, np.zeros(0, np.int64)
        for number, (early, share) in enumerate(zip((STEADY, *AIMS), AIMS, strict=False)):
            aim, known = np.where(left.steady, early, share), 1.0 if number else MORE
            room = most if number < 2 else max(most - float(left.tried.max()), 1.0)  # what two draws have left over
            corrected = left.model.values.scaled(np.maximum(told.of_value.variance / np.maximum(thought, TINY), 1.0))
            left = replace(left, model=replace(left.model, values=corrected))
            goals, allowed = (
                np.square(aim * wanted * left.beside.wanted) / one.factors(self.confidence, known=known)
                for wanted, one in ((self.wanted, told.of_value), (LOG_MASS, told.of_mass))
            )
            allowed = np.minimum(allowed, np.square(aim * VARIED * left.beside.wanted))
            sizes, ratios = left.model.values.enough(goals, room, also=(left.model.masses, allowed), least=least)
            if not number:
                unclear = np.flatnonzero((ratios > 1.0) & (ratios <= CLOSE))
            left = left.of(np.flatnonzero(ratios <= 1.0))
            if not len(left.numbers):
                break
            look = self._look(left, sizes)
            estimate = self._estimate(look, left.advised.foretold(sizes), left.plain.foretold(sizes))
            estimate = replace(estimate, tried=left.tried)
            found = estimate if len(left.numbers) == len(found.sure) else replaced(found, left.numbers, estimate)
            rest = np.flatnonzero(~estimate.sure)
            if not len(rest):
                break
            told, thought = some_of(look.told, rest), left.model.values.variance(sizes)[rest]
            left = replace(left, tried=left.tried + look.compared).of(rest)
        if len(unclear):
            again = everyone.of(unclear)
            larger = self._pilot(again, SURER * rows)
            if larger.expected <= most / SURER:
                return self._measured(again, found, (SURER * rows, larger), most, least)
        return found

    def _piloted(self, left: _Open, pilot: Sizes) -> tuple[_Open, Sampled, Floats]:
        """The queries after a first draw, what it tells of them, and the variance that it was thought to have, (b, 2).

        Many rows seldom tell of more variance than few did where lists correct them.
        """
        look = self._look(left, pilot)
        left, told = self._corrected(replace(left, tried=left.tried + look.compared), look)
        thought = left.model.values.variance(pilot)
        steady = np.zeros(len(left.numbers), np.bool_)
        if left.guide is not None:
            steady[:] = (told.of_value.variance <= thought).all(1) & left.guide.guides.any(1)
        return replace(left, steady=steady), told, thought

    def _corrected(self, left: _Open, look: Look) -> tuple[_Open, Sampled]:
        """The queries as they are asked from now on, and what a first draw tells of them.

        Drawn rows are corrected where that makes what is told more certain, and does not contradict what they tell
        without it, as they would if statistics were wrong.
        """
        if left.guide is None:
            return left, look.told
        told, plain = look.told, look.plainly()
        of_values = [one.of_value.variance.sum(1) for one in (told, plain)]
        of_masses = [one.of_mass.variance.sum(1) for one in (told, plain)]
        values = [one.total / np.where(one.mass > 0, one.mass, 1.0)[:, None] for one in (told, plain)]
        better = (of_values[0] <= of_values[1]) & (told.mass > 0) & (plain.mass > 0)
        better &= np.square(values[0] - values[1]).sum(1) <= AGREEING**2 * sum(of_values)
        better &= np.square(told.mass / np.where(better, plain.mass, 1.0) - 1.0) <= AGREEING**2 * sum(of_masses)
        told = each_array(lambda x, y: np.where(better.reshape(-1, *[1] * (x.ndim - 1)), x, y), told, plain)
        guide = left.guide.where(better) if better.any() else None
        model = left.model.where(better[:, None], left.plain)
        return replace(left, advised=model, model=model, guide=guide), told

    def _with_lists(self, left: _Open, lists: Flags) -> Near:
        """The sums of each query, extended by whole lists of its own, (b, l)."""
        if not lists.any():
            return left.known
        chosen = [np.flatnonzero(some) for some in lists]
        return both(left.known, read_lists(self.index, self.arena, left.asked, chosen, self.show), self.show)

    def _look(self, left: _Open, sizes: Sizes) -> Look:
        """Read as many rows as these sizes say."""
        strata = left.model.values
        read = sizes.whole(strata.counts) & (strata.counts > 0)
        whole = self._with_lists(left, read & ~left.own)
        draw = Draw.of(self.random, strata, sizes)
        rows, guided = self.population.rows(draw), left.guide is not None
        drawn = self._looker.read(draw, rows, self.random, len(left.numbers), guided=guided)
        reading, before, own = (left.asked, left.beside, left.guide), left.known.scored, left.own | read
        return looked(self._looker, drawn, *reading, whole=whole, before=before, own=own)

    def _estimate(self, look: Look, thought: Variances, plain: Variances) -> Estimate:
        """The estimate by a draw, with the variances that were `thought` at least: drawn rows may miss what matters.

        `plain` are those where rows are not corrected, as for what is told of the effective number and the spread.
        """
        told, size = look.told, self.units.size
        blend = look.blend(self.units, squares=isinstance(self.arena.values, Numbers))
        of_value, of_mass = told.of_value.at_least(thought.values), told.of_mass.at_least(thought.masses)
        wanted, allowed = self.wanted * look.beside.wanted, LOG_MASS * look.beside.wanted
        error = np.hypot(np.where(told.mass > 0, of_value.error(self.confidence), np.inf), FLOOR * wanted)
        off = of_mass.error(self.confidence)
        log_mass_error = np.hypot(log_error(off), FLOOR * allowed)
        varied = of_mass.variance.sum(1) > np.square(VARIED * look.beside.wanted)
        sure = (error <= wanted) & (log_mass_error <= allowed) & ~varied
        log_own = np.minimum(blend.log_mass - look.beside.log_mass, FARTHEST)
        larger = 1.0 + np.exp(-log_own)  # than the mass of the rows here is that of all
        error, log_mass_error = error * larger, np.where(larger > 1.0, np.log1p(off * larger), log_mass_error)
        entropy = larger * look.of_entropy(blend, plain.masses).error(self.confidence)
        effective_error = blend.effective * np.expm1(np.hypot(entropy, FLOOR * LOG_MASS))
        spread_error, of_square = None, look.of_square(blend, self.units, plain)
        if of_square is not None and blend.spread is not None:
            spread = blend.spread[:, 0] / size
            square = larger * of_square.error(self.confidence)
            below = spread - np.sqrt(np.maximum(spread * spread - square, 0.0))
            apart = np.maximum(below, np.sqrt(spread * spread + square) - spread)
            spread_error = np.hypot(apart, FLOOR * wanted * larger) * size
        return Estimate(look.near(self.show), blend, error * size, log_mass_error, sure, effective_error, spread_error)
