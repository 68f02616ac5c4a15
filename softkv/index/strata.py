"""What the statistics of lists say before any row is drawn: which lists matter, and how much rows may differ in them.

Each list is a stratum, whose sample stands for all its rows that count. Some lists are always read whole: those that
are likeliest to hold the best rows, and those of which a few rows may hold most of the mass.

Reads no rows; measuring.py draws them.

Shapes: b queries, l lists, r rows that are drawn.
"""

from dataclasses import dataclass, replace

import numpy as np

from softkv.index.lists import ListIndex
from softkv.index.opening import FIRST
from softkv.maths.farfield import Tilt, critical, logarithm
from softkv.maths.sampling import Elsewhere
from softkv.maths.shares import Shares
from softkv.maths.strata import Draw, Sizes, Strata
from softkv.ndarrays import Counts, Flags, Floats, Reals, Rows

SOFT, HARD = 0.5, 0.15  # a list is read whole if more than this share would be drawn; the second if its weights vary
STEEP = 1.0  # weights vary if the logits of a list have at least this standard deviation
RARE = 2.0  # and from this one on, a few rows hold most of the mass
BEYOND = 2.0  # a row may be so far beyond where the best one is expected
LOG_MASS = 0.05  # the largest error of the log mass
HARMLESS, SLIGHT = 0.1, 0.4  # errors below these shares of the tolerance, and of LOG_MASS, do not count
ALIKE = 32  # how many lists on each side tell how much logits vary in a list
MISSED = 0.25  # how far off the foretold mass of a list is, for a variance of logits of 1; of smaller ones less
ENOUGH = 64  # rows of a list that corrects what drawn ones tell: the few of a smaller one are too unlike its statistics
WORTH = 0.1  # the share of the rows that something has to be known of, so that it pays to correct what they tell
UNSURE = 0.001  # the share of a variance that is left at least, whatever a guide is thought to save
DOUBTED = 2.0  # a variance seen in a few rows is multiplied by this
TINY = np.finfo(np.float64).tiny
LOWEST = -1e6  # the lowest logit that is used: those below weigh nothing


class Population:
    """The rows of each list that may be drawn: those that lie in it, and those behind the lists that joined it."""

    def __init__(self, index: ListIndex, live: Flags | None) -> None:
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
        if index.bodies is not None:
            assert not index.rows
            listed, owners = members[starts[0] :], np.repeat(np.arange(len(self.counts)), self.counts)
            before, until = (np.bincount(owners, listed < edge[owners], len(edge)) for edge in index.bodies)
            self.ahead, self.shuffled = before.astype(np.int64), (until - before).astype(np.int64)

    @property
    def strata(self) -> Strata:
        """The lists as strata, without any model of their rows."""
        nothing = np.zeros((1, len(self.counts)))
        return Strata(self.counts, nothing, nothing, nothing[0], self.ahead, self.shuffled)

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


@dataclass(frozen=True, slots=True, eq=False)
class Variances:
    """Variances that are expected before rows are drawn, in their two parts, (b, 2) each."""

    values: Floats
    masses: Floats
    squares: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What is thought of the lists that may be drawn from, for some queries."""

    values: Strata
    masses: Strata
    squares: Strata | None = None  # of squared distances from the answer, where rows are numbers and not corrected

    @property
    def is_sound(self) -> Flags:
        """Whether sizes can be computed from it, (b,)."""
        return self.values.is_sound & self.masses.is_sound

    def foretold(self, sizes: Sizes) -> "Variances":
        """The variances of estimates from so many rows."""
        squares = None if self.squares is None else self.squares.variance(sizes)
        return Variances(self.values.variance(sizes), self.masses.variance(sizes), squares)

    def of(self, queries: Rows) -> "Model":
        """The model for some of the queries."""
        return Model(self.values.of(queries), self.masses.of(queries), self.squares and self.squares.of(queries))

    def where(self, some: Flags, other: "Model") -> "Model":
        """The model for lists that a flag, (b, l) or (b, 1), is true of, and an `other` one for the others."""
        return Model(self.values.where(some, other.values), self.masses.where(some, other.masses))


@dataclass(frozen=True, slots=True, eq=False)
class Guide:
    """What is known of all rows of each list, which corrects what drawn rows tell (maths/sampling.py)."""

    logs: Floats  # (b, l), of c, with logits as in the lists; -inf for lists of which nothing is known
    peaks: Reals  # (b, l), the means of the logits, likewise

    def of(self, queries: Rows) -> "Guide":
        """The guide for some of the queries."""
        return Guide(self.logs[queries], self.peaks[queries])

    @property
    def guides(self) -> Flags:
        """The lists that something is known of, (b, l)."""
        found: Flags = self.logs > -np.inf
        return found

    def where(self, some: Flags) -> "Guide":
        """The guide of some queries, (b,); nothing is known for the others."""
        return replace(self, logs=np.where(some[:, None], self.logs, -np.inf))


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """The model of all lists, for some queries."""

    own: Flags  # (b, l), the lists that each query reads whole in any case
    plain: Model  # of the others
    guided: Model  # where drawn rows are corrected by a guide


def seen_tilt(index: ListIndex, draw: Draw, logits: Reals) -> Tilt:
    """How some queries weigh all lists, by the logits of some rows of each, (b, r), for any way to compare.

    A few rows do not show how much logits vary in a list, so that is taken from lists with about the same logits, and
    enlarged, since the distribution is unknown.
    """
    shape = len(logits), len(index.quick.counts)
    peaks, variances = np.zeros(shape), np.zeros(shape)
    if len(draw.strata):
        means = draw.by_stratum(logits.astype(np.float64)) / draw.sizes
        squares = draw.by_stratum(np.square(logits - means[:, draw.owners]))
        order, alike = np.argsort(means, axis=1), np.empty_like(means)
        free = np.broadcast_to(np.maximum(draw.sizes - 1.0, 0.0), means.shape)
        sums, degrees = (_around(np.take_along_axis(x, order, axis=1)) for x in (squares, free))
        np.put_along_axis(alike, order, sums / np.maximum(degrees, 1.0), axis=1)
        peaks[:, draw.strata], variances[:, draw.strata] = means, alike
    return Tilt.of(index.quick.counts, peaks, DOUBTED * variances)


def _around(x: Floats) -> Floats:
    """The sum of each number and the ALIKE before and after it, (b, l)."""
    sums = np.pad(x, ((0, 0), (ALIKE + 1, ALIKE))).cumsum(1)
    found: Floats = sums[:, 2 * ALIKE + 1 :] - sums[:, : -2 * ALIKE - 1]
    return found


def first_lists(population: Population, likely: Reals) -> Counts:
    """The lists that are likeliest to hold the best rows of each query, (b, FIRST), by these logits, (b, l)."""
    likely = np.where(population.counts > 0, likely, -np.inf)
    some = min(FIRST, likely.shape[1])
    return np.argpartition(-likely, some - 1, axis=1)[:, :some]


def supposed(index: ListIndex, population: Population, tilt: Tilt) -> tuple[Floats, Floats]:
    """The estimate from the statistics of the lists alone: the log mass, (b,), and the value, (b, p)."""
    lists = index.quick
    logs = tilt.logs + logarithm(population.counts / np.maximum(lists.counts, 1.0))
    peak = logs.max(axis=1, initial=LOWEST).astype(np.float64)
    masses = np.exp(logs - peak[:, None])
    mass = np.maximum(masses.sum(1), TINY)
    return peak + np.log(mass), masses @ lists.values / mass[:, None]


def advice(
    index: ListIndex,
    population: Population,
    tilt: Tilt,
    first: Counts,
    *,
    known: Elsewhere,
    wanted: Floats,
    numbers: bool,
) -> Advice:
    """Model the values and the mass of the rows of each list by its statistics; all mass counts as 1.

    `numbers` is whether values are such, and have a spread.

    Each query always reads its `first` lists, (b, m). `known` are the sums over these, over other rows that are always
    read, and over rows elsewhere, with logits as in the lists; `wanted`, (b,), is how far a value may be off.
    """
    lists, counts = index.quick, population.counts
    # Of the rows of a list, those that may count have their share of its mass. That is no less than if all had the
    # logit of the mean, and as much more as their spread says, if they are normal, which may be far too much.
    share = logarithm(counts / np.maximum(lists.counts, 1.0))
    logs = share + logarithm(lists.counts) + tilt.peaks, share + tilt.logs
    parts = np.maximum(*(_shares(some, first, known.log_mass) for some in logs))
    masses, rest = parts[:, :-1], parts[:, -1:]
    value = (masses @ lists.values + rest * known.value) / np.maximum(parts.sum(1, keepdims=True), TINY)
    apart = lists.distances(value).astype(np.float64) ** 2
    of_value = (apart + lists.scatter) / np.maximum(np.square(HARMLESS * wanted), TINY)[:, None]
    harm = np.maximum(of_value, 1.0 / np.maximum(np.square(SLIGHT * LOG_MASS * known.wanted), TINY)[:, None])
    own, straying = _rare(index, counts, tilt, harm, known.log_mass)
    np.put_along_axis(own, first, True, axis=1)
    squares = np.where(own, 0.0, masses * masses)
    # Whatever their distribution, n numbers that are not negative vary by at most n − 1 times their squared mean.
    variances = np.minimum(tilt.variances, np.log(np.maximum(counts, 1))).astype(np.float64)
    varied = np.expm1(variances)
    most = np.where(tilt.variances > STEEP**2, HARD, SOFT).min(0)
    drawn = np.where(own.all(0), 0, counts)
    surely = np.asarray(straying.any(0))
    order = population.ahead, population.shuffled, surely

    def model(varied: Floats, within: Floats, missed: Floats, missed_mass: Floats) -> Model:
        of_values = Strata(drawn, squares * within, squares * apart * missed, most, *order)
        return Model(of_values, Strata(drawn, squares * varied, squares * missed_mass, most, *order))

    of_rows, all_of_it = varied * (apart + lists.scatter) + lists.scatter, np.ones(1)
    plain = model(varied, of_rows, all_of_it, all_of_it)
    if numbers:  # by the farthest row of each list alone, and by how the means of squares differ
        farthest, square = np.square(np.sqrt(apart) + lists.value_radii), apart + lists.scatter
        alone = (varied + 1.0) * np.square(farthest) / np.maximum(counts, 1)
        square -= ((masses * square).sum(1) / np.maximum(masses.sum(1), TINY))[:, None]
        squared = Strata(drawn, squares * alone, squares * np.square(square), most, *order)
        plain = replace(plain, squares=squared)
    bent = np.maximum(varied - variances, UNSURE * varied)  # of e^x, without its part along x
    missed = np.minimum(MISSED * variances, 1.0)
    within = np.maximum(varied * lists.scatter + bent * apart, UNSURE * of_rows)
    return Advice(own, plain, model(bent, within, missed, np.square(missed)))


def guide_of(index: ListIndex, population: Population, tilt: Tilt, own: Flags, linear: Flags) -> Guide | None:
    """What is known of the rows of lists that are not read whole, (b, l) `own`; None where it is nothing.

    The means of a list are those of the rows that may be drawn as long as there are as many of these as it has. The
    queries are those for which the mean of its logits is what statistics say, (b,) `linear`.
    """
    lists = index.quick
    held = (population.counts == lists.counts) & (population.counts >= ENOUGH)
    few = population.counts[held].sum() <= WORTH * population.counts.sum()
    if isinstance(lists.values, Shares) or few or not linear.any():
        return None
    guided = held & ~own & linear[:, None]
    return Guide(np.where(guided, tilt.logs.astype(np.float64) - logarithm(lists.counts), -np.inf), tilt.peaks)


def _shares(logs: Floats, first: Counts, known: Floats) -> Floats:
    """The shares of all mass that the lists hold, by their log masses, and last that of `known`, (b, l + 1).

    The first lists of each query are among what is known.
    """
    logs = np.column_stack([logs.astype(np.float64), known])
    np.put_along_axis(logs, first, -np.inf, axis=1)
    parts = np.exp(logs - logs.max(axis=1, keepdims=True))
    found: Floats = np.where(np.isfinite(logs), parts, 0.0)
    found /= np.maximum(found.sum(1, keepdims=True), TINY)
    return found


def _rare(index: ListIndex, counts: Counts, tilt: Tilt, harm: Floats, known: Floats) -> tuple[Flags, Flags]:
    """The lists of which a few rows hold most of the mass, and those whose head may hold much of it, (b, l) each.

    Left out are those that even together do not matter: a sample that misses these rows does not show them. `harm`,
    (b, l), is the squared error that missing a row as heavy as all that is known would make, as a share of what does
    not count; the best row of a list is assumed to be as good as possible. Of a list with a row far beyond all others
    that is what its radius allows.

    Where the farthest row of a list is only farther out than normal ones would be, and lists have heads, it lies there
    in some direction. So its logit is normal with the variance of the logits, times its squared distance as `strays`
    has it. What counts is by how much a row BEYOND deviations of that out weighs more than the best of normal rows.
    """
    lists = index.quick
    isolated, stray = np.zeros(len(counts), np.bool_), np.zeros(tilt.variances.shape)
    if tilt.tells_directions:
        isolated = lists.isolated
    normal = np.sqrt(tilt.variances) * (critical(lists.counts) + BEYOND)
    if tilt.tells_directions and index.heads is not None:
        inside, outside = lists.strays.T.astype(tilt.variances.dtype)
        stray = BEYOND * np.sqrt(tilt.within * inside + np.maximum(tilt.variances - tilt.within, 0.0) * outside)
    few: Flags = ((tilt.variances > RARE**2) | isolated) & (counts > 0)
    found = few | ((stray > normal) & (counts > 0))
    lengths = np.stack([np.linalg.norm(part, axis=1) for part in (tilt.reduced, tilt.beyond)], axis=1)
    for number in np.flatnonzero(found.any(1)).tolist():
        rare = np.flatnonzero(found[number])
        reach = lists.radii[rare] @ lengths[number]
        usual, far = normal[number, rare], np.minimum(stray[number, rare], reach)
        spread = np.where(few[number, rare], usual, far + logarithm(-np.expm1(np.minimum(usual - far, 0.0))))
        spread = np.where(isolated[rare], np.maximum(spread, reach), spread)
        best = tilt.peaks[number, rare].astype(np.float64) + spread - known[number]
        squares = np.exp(np.minimum(2.0 * best, 0.0)) * harm[number, rare]
        order = np.argsort(squares)
        found[number, rare[order[squares[order].cumsum() <= 1.0]]] = False
    return found & few, found & ~few
