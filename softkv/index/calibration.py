"""How wrong estimates are on queries whose answer is known, and how much to read so that they are close enough.

For each calibration query, at some temperatures and levels, the exact answer is compared with the estimate. A plan says
at which level a query may stop: at the first from `least` on whose doubt is small enough, and at `most` at the latest.
A third of the queries choose the plan that reads least; the others, which had no part in the choice, measure its error.
That is one of their errors, chosen by rank: with a sureness of 95% over the draw of these queries, the wanted share of
all queries like them stays below it. (Split conformal prediction would keep the share only on average over draws.) A
temperature between two that were measured gets the plan and the error that suit both; one outside of them has no plan.

Queries unlike those that were asked mostly have larger doubts. So the error of a mass grows with the doubt of it where
that is more than the median, or more than usual: the ranks are those of errors divided by how many times as large
the doubt is (Lei et al., Distribution-Free Predictive Inference for Regression, 2018, §5.2).

The range of what was seen of the measuring queries is the range in which the error can be trusted. A query outside of
it gets no estimate: because the mass of the lists it opened differs more from the estimate, because no key is as near
to it as some key was to nearly all of them, or because its doubt is larger than nearly all of theirs, also if it reads
on for a few levels. The few with the largest doubts are those that may be wrong; queries that are a little unlike the
items mostly have such doubts.

Shapes: t temperatures, c calibration queries, j levels.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from softkv.index.opening import LEVELS
from softkv.maths.quantiles import at_most
from softkv.ndarrays import Counts, Flags, Reals

MARGINS = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)  # shares of the tolerance that plans aim at, in turn
ROOM = 0.9  # the share of the tolerance a plan may use; the rest is for queries a little unlike those that measure it
LUCK = 0.95  # how sure it is that no unlucky draw of calibration queries makes an error too small
MEDIAN = 0.5  # the share of measuring queries with smaller doubts; those of others are compared with the median
USUAL = 0.9  # the share of measuring queries whose doubts are usual: of the others most may have been wrong
SMALLEST = 1e-7  # smaller doubts tell nothing: logits are rounded
FURTHER = 4  # levels that a query with an unusual doubt may read on: six times as many rows
STRANGE = 0.005  # the share of measuring queries, those of the lowest best scores, that do not count as usual
LENIENCE = 0.5  # how much lower a best score may still be, as a share of their distance from the median
BEST = (1, 2, 4, 8, 16, 32, 64)  # how many of the best rows are looked for
THRESHOLDS = 16  # doubts at which plans may stop
MOST_NEAR = 1000  # lists that may be opened since they are near
PLANS = 256  # kept at most; then all are forgotten, and made anew as they are asked for
STEP, LARGEST = 0.02, 100.0  # value scales are compared by their logarithms, rounded to this; the largest difference
SAME = 1e-6  # value scales that differ by no more of themselves differ by rounding
TOGETHER = 32  # plans whose errors are looked at together


class Trial(NamedTuple):
    """When a plan would stop, and how wrong it is for the queries that choose."""

    worst: float  # the error that the wanted share of them stays below
    doubt: float
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Plan:
    """When to stop opening lists, and the error of the answer then."""

    doubt: float  # stop where the doubt is no larger,
    least: int  # but at this level at the earliest
    most: int  # and at this one at the latest
    error: float  # as a share of the value scale
    log_mass_errors: tuple[tuple[float, float], ...]  # up to doubts of the mass, and in proportion to them above
    farthest: float  # the doubt that nearly all stayed below
    surprise: float  # the largest difference between the log mass of the opened lists as estimated and as found
    nearest: float  # the lowest usual best score
    share: float = 0.0  # the share of the rows in lists that such queries read on average, at the worse temperature
    reads: float = 0.0  # the same with what they read on, and all where that is not enough

    def stops(self, doubts: Reals) -> Counts:
        """The levels at which queries with these doubts, (..., j), stop."""
        return np.clip(_first(doubts <= self.doubt), self.least, self.most)

    def log_mass_error_of(self, mass_doubt: float) -> float:
        """The error of the logarithm of the mass of a query with this doubt of it."""
        return max(error * max(1.0, mass_doubt / doubt) for error, doubt in self.log_mass_errors)

    def goes_on(self, doubts: Reals, farthest: float) -> int:
        """The level at which a query with these doubts, (j,), stops: later where it is too doubtful by then."""
        stop = int(self.stops(doubts))
        fine = np.flatnonzero(doubts[stop : stop + FURTHER + 1] <= farthest)
        return stop + int(fine[0]) if len(fine) else stop


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was measured, and the plans that follow from it."""

    temperatures: Reals  # (t,), rising
    doubts: Reals  # (t, c, j)
    errors: Reals  # (t, c, j), as shares of the value scale
    log_mass_errors: Reals  # (t, c, j)
    surprises: Reals  # (t, c, j)
    best: Reals  # (c,), the best score of each query
    depths: Reals  # (c, len(BEST)), the share of the k best rows that is expected before all of them are found
    # (len(BEST),), how many queries that share none of their best rows would tell as much; 0 where nobody knows.
    independent: Reals = field(default_factory=lambda: np.zeros(len(BEST)))
    # (1,), how many of the lists nearest to a query were opened at every level; indexes of before opened none of them.
    near: Reals = field(default_factory=lambda: np.zeros(1))
    # (1,), the value scale of which errors and doubts are shares; below 0 where nobody knows it.
    scale: Reals = field(default_factory=lambda: np.full(1, -1.0))
    # (c,), how close each query points to the mean of a list, as a cosine; of none where nobody knows.
    closest: Reals = field(default_factory=lambda: np.empty(0))
    # (t, c, j), the doubts of the mass; of no queries where nobody knows.
    mass_doubts: Reals = field(default_factory=lambda: np.empty((0, 0, len(LEVELS))))
    _known: dict[tuple[int, float, float], Plan | None] = field(default_factory=dict, init=False)

    def plan(self, temperature: float, tolerance: float, confidence: float) -> Plan | None:
        """What to read so that the error stays below the tolerance; None when all rows have to be read."""
        ends, edge = self.temperatures[[0, -1]].tolist(), 1 + 1e-6  # kept in float32, and given in float64
        if not ends[0] / edge <= temperature <= ends[1] * edge:
            return None
        place = int(np.searchsorted(self.temperatures, temperature, side="right")) - 1
        cell = max(0, min(place, len(self.temperatures) - 2))
        wanted = (cell, tolerance, confidence)
        known: Plan | bool | None = self._known.get(wanted, False)
        if not isinstance(known, bool):
            return known
        found = self._cheapest(cell, tolerance, confidence)
        if len(self._known) >= PLANS:
            self._known.clear()
        self._known[wanted] = found
        return found

    def as_share(self, tolerance: float, scale: float) -> tuple[float, float]:
        """A share of this value scale as one of that in the rehearsal, and that scale itself.

        It is 0 where no such share can be given. Since then the value scale may have changed with a single item; what
        was found about errors is about errors of the same size. Rounded down a little, so that few plans are needed.
        """
        before = float(self.scale[0])
        if before < 0:
            return tolerance, scale
        if math.isclose(before, scale, rel_tol=SAME):
            return tolerance, before
        if not (before > 0 and scale > 0):
            return 0.0, before
        times = math.log(scale) - math.log(before)
        return tolerance * math.exp(min(STEP * math.floor(times / STEP), LARGEST)), before

    def can_be(self, confidence: float) -> bool:
        """Whether enough queries judge plans to be so sure of one."""
        return _rank(len(self.best) - self._choosing, confidence) is not None

    def depth(
        self, k: int, confidence: float, *, grown: float = 1.0, changed: bool = False
    ) -> tuple[int, float] | None:
        """How many best rows to look for, and the share of them to expect, so that the k best are all found.

        Where there are `grown` times as many rows as were rehearsed, the k best lie as far out as fewer did then. Once
        rows have `changed`, others may be the best, and queries that had the same best rows have told of one case only.
        """
        place, farther = (int(np.searchsorted(BEST, count)) for count in (k, k / grown))
        if place == len(BEST):
            return None
        worth = [int(self.independent[one]) if changed else len(self.depths) for one in (place, farther)]
        shares = [
            limit(self.depths[None, :, one], confidence, many)
            for one, many in zip((place, farther), worth, strict=True)
        ]
        known = [one for one in shares if one is not None and one < 1]
        return (BEST[place], max(known)) if len(known) == len(shares) else None

    @property
    def problem(self) -> str | None:
        """Why these figures are impossible, if they are."""
        if self.temperatures.ndim != 1 or not len(self.temperatures) or not (np.diff(self.temperatures) > 0).all():
            return "was calibrated at no temperatures"
        if self.doubts.ndim != 3 or self.best.shape != (self.doubts.shape[1],):
            return "was calibrated on queries without a best score"
        if self.depths.shape != (len(self.best), len(BEST)):
            return f"holds depths of shape {self.depths.shape}"
        worth = self.independent
        if worth.shape != (len(BEST),) or not ((worth >= 0) & (worth <= len(self.best))).all():
            return "counts more queries than were asked"
        if self.near.shape != (1,) or not 0 <= self.near[0] <= MOST_NEAR:
            return "opened lists that are none"
        if self.scale.shape != (1,) or not np.isfinite(self.scale[0]):
            return "was calibrated for values of no size"
        if self.closest.shape not in ((0,), self.best.shape):
            return "was calibrated on queries that point nowhere"
        for name in ("doubts", "errors", "log_mass_errors", "surprises", "mass_doubts"):
            shape = getattr(self, name).shape
            known = name != "mass_doubts" or self.mass_doubts.size
            if known and shape != (len(self.temperatures), len(self.best), len(LEVELS)):
                return f"holds {name} of shape {shape}"
        return None

    @cached_property
    def strange(self) -> float:
        """A best score below this is not usual."""
        return _least_usual(self.best[self._choosing :])

    @cached_property
    def astray(self) -> float:
        """A query that points less closely to the mean of any list is not usual; below all cosines if nobody knows."""
        return _least_usual(self.closest[self._choosing :]) if len(self.closest) else -np.inf

    @cached_property
    def _choosing(self) -> int:
        """How many queries choose; the others measure."""
        return int(self.doubts.shape[1]) // 3

    def _cheapest(self, cell: int, tolerance: float, confidence: float) -> Plan | None:
        both = slice(cell, cell + 2)
        trials = self._trials(both, confidence)
        trial = next(trials, None)
        for margin in MARGINS:  # falling, so a plan that misses one misses all that follow
            while trial is not None and not trial.worst <= margin * tolerance:
                trial = next(trials, None)
            plan = None if trial is None else self._judged(both, trial, confidence)
            if plan is not None and plan.error <= ROOM * tolerance:
                return plan
        return None

    def _trials(self, both: slice, confidence: float) -> Iterator[Trial]:
        """Plans, the cheapest for the choosing queries first; their errors are computed for a few at a time."""
        doubts, errors = (x[both, : self._choosing] for x in (self.doubts, self.errors))
        if not doubts.size:
            return
        levels = np.array(LEVELS)
        least, most = np.triu_indices(len(levels))
        ranks = np.linspace(0, doubts.size - 1, THRESHOLDS).astype(np.int64)
        limits = sorted(set(np.sort(doubts, axis=None)[ranks].tolist()))
        firsts = np.stack([_first(doubts <= one) for one in limits])  # (limits, t, c)
        reached = np.stack([np.bincount(one.ravel(), minlength=len(levels) + 1) for one in firsts])
        costs = reached @ levels[np.clip(np.arange(len(levels) + 1)[:, None], least, most)]  # (limits, plans)
        # Rounded, so that of plans that cost the same the one with the smallest doubt comes first.
        order = np.argsort(np.round(costs, 12), axis=None, kind="stable")
        for start in range(0, len(order), TOGETHER):
            which, plans = np.divmod(order[start : start + TOGETHER], len(least))
            stops = np.clip(firsts[which], least[plans, None, None], most[plans, None, None])  # (plans, t, c)
            wrong = np.take_along_axis(errors[None], stops[..., None], axis=3)[..., 0]
            with np.errstate(invalid="ignore"):  # between infinite errors lies no number, which keeps no tolerance
                worst = quantile_of(wrong, confidence).max(1)
            for one, place, plan in zip(worst.tolist(), which.tolist(), plans.tolist(), strict=True):
                yield Trial(one, limits[place], int(least[plan]), int(most[plan]))

    def _judged(self, both: slice, trial: Trial, confidence: float) -> Plan | None:
        """A plan with its error and ranges, measured on the queries that had no part in its choice."""
        _, doubt, least, most = trial
        plan = Plan(doubt, least, most, 0.0, (), 0.0, 0.0, 0.0)
        doubts = self.doubts[both, self._choosing :]
        stops = plan.stops(doubts)[..., None]

        def at_stops(x: Reals) -> Reals:
            return np.take_along_axis(x[both, self._choosing :], stops, axis=2)[..., 0]

        errors, masses = limit(at_stops(self.errors), confidence), at_stops(self.log_mass_errors)
        plainly = limit(masses, confidence)
        if errors is None or plainly is None:
            return None
        by_doubt: tuple[tuple[float, float], ...] = ((plainly, np.inf),)
        if self.mass_doubts.size:
            of_mass = at_stops(self.mass_doubts)
            by_doubt += tuple(_by_doubt(masses, of_mass, confidence, share) for share in (MEDIAN, USUAL))
        farthest = float(quantile_of(at_stops(self.doubts), USUAL).max())
        surprise = float(at_stops(self.surprises).max())
        share = float(np.array(LEVELS)[stops].mean(1).max())
        reads = float(_shares_read(doubts, stops, farthest).mean(1).max())
        return Plan(doubt, least, most, errors, by_doubt, farthest, surprise, self.strange, share, reads)


def quantile_of(x: Reals, share: float) -> Reals:
    """The quantile of numbers along the last axis, interpolated between two of them.

    >>> float(quantile_of(np.array([4.0, 1.0, 2.0]), 0.75))
    3.0
    """
    # np.quantile and np.median load numpy.ma, which takes 12 ms of every process that asks an index.
    last = x.shape[-1] - 1
    below = int(share * last)
    ordered = np.partition(x, (below, min(below + 1, last)))
    low, high = ordered[..., below], ordered[..., min(below + 1, last)]
    found: Reals = low + (high - low) * (share * last - below)
    return found


def _shares_read(doubts: Reals, stops: Counts, farthest: float) -> Reals:
    """The shares of the rows read by queries with such doubts, (t, c, j): all if none is small enough, (t, c)."""
    later = np.arange(len(LEVELS)) - stops
    fine = (doubts <= farthest) & (later >= 0) & (later <= FURTHER)
    return np.where(fine.any(2), np.array(LEVELS)[fine.argmax(2)], 1.0)


def _by_doubt(errors: Reals, doubts: Reals, confidence: float, share: float) -> tuple[float, float]:
    """An error up to a doubt that this share of the queries stays below, and in proportion above it; and that doubt.

    By errors and doubts, (t, c), at some temperatures.
    """
    with np.errstate(invalid="ignore"):  # beside infinite doubts all others are usual
        usual = float(quantile_of(doubts, share).max())
        usual = max(SMALLEST, usual) if math.isfinite(usual) else math.inf
        most = limit(errors / np.fmax(doubts / usual, 1.0), confidence)
    return (math.inf if most is None or math.isnan(most) else most), usual


def _least_usual(x: Reals) -> float:
    """What is not usual of queries, (c,), is below this."""
    low, median = (float(quantile_of(x, share)) for share in (STRANGE, 0.5))
    return low - LENIENCE * (median - low)


def _first(fine: Flags) -> Counts:
    """The first fine level, or the one after the last; doubts fall from level to level, so all later ones are fine."""
    first: Counts = np.where(fine.any(-1), fine.argmax(-1), fine.shape[-1])
    return first


def independent(rows: Counts) -> float:
    """How many independent queries these count for, by how many share best rows, (c, k); -1 is no row.

    >>> independent(np.array([[3], [5], [8]])), independent(np.array([[3], [3], [3]]))
    (3.0, 1.0)
    """
    often = np.bincount(rows[rows >= 0])
    return float(len(rows) * often.sum() / max(1, int((often * often).sum())))


def limit(errors: Reals, confidence: float, worth: int | None = None) -> float | None:
    """The bound below which this share of all such errors lies, (t, c) -> the largest over t; None of too few.

    `worth` says as how many they count if they are not independent.

    >>> limit(np.arange(1.0, 1001.0)[None], 0.95)
    962.0
    >>> limit(np.arange(1.0, 51.0)[None], 0.95) is None
    True
    """
    count = errors.shape[1]
    worth = count if worth is None else worth
    rank = _rank(worth, confidence)
    return None if rank is None else float(np.sort(errors, axis=1)[:, -(-rank * count // worth) - 1].max())


@lru_cache
def _rank(count: int, confidence: float) -> int | None:
    """The rank of the first of so many errors in order that has this share of all below it, with the sureness of LUCK.

    How many of them lie below the true quantile is binomial; the rank is one that this number stays below.
    """
    if not 0 < confidence < 1:
        return None
    rank = bisect_left(range(count), True, key=lambda below: at_most(below, count, confidence) >= LUCK) + 1
    return rank if rank <= count else None
