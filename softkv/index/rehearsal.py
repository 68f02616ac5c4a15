"""Ask calibration queries exactly and by estimate, at some temperatures; calibration.py uses the errors.

All rows are read once to find the best, and then, for some queries at a time, once more for the sums. Which lists a
query opens at each level is known before, so sums over rows are kept level by level. Items used as queries are held
out: they are in no sum, and the caller has taken them out of the statistics, since a list that contains the query is
easier to estimate than any other.

How deep the k best lie is found among all rows, by the statistics of all of them, leaving out only the query itself: a
single row may be the best of all queries, or may change the expectation of a list so much that the order of lists
changes.

Values are in the units of the lists, from their middle, so that no digits are lost if they are far from zero.

Shapes: c calibration queries, n rows of a block, d key width, p value width, t temperatures, j levels, l lists.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softkv.index.calibration import BEST, Calibration, independent, quantile_of
from softkv.index.opening import LEVELS, Opening, closeness, nearest, needed, opening, ranked
from softkv.maths.farfield import Apart, estimated_apart, tilted, without
from softkv.maths.moments import ReadRows
from softkv.maths.ranking import Ranking, no_ranking
from softkv.maths.shares import Shares
from softkv.maths.summaries import AS_GIVEN, Lists, Units
from softkv.maths.symmetric import unpacked
from softkv.ndarrays import Counts, Flags, Floats, Reals
from softkv.progress import Progress, untold

HELD = 1 << 24  # sums held at once
WEIGHED = 1 << 24  # weights held at once
ASKED = 512  # queries that go through all rows together
BLOCK = 1 << 13  # rows scored together
SCORED = 1 << 26  # scores held at once, where labels are counted
TOGETHER = 1 << 13  # labels counted together
USUAL = 0.95  # the share of the queries whose k best are to be found
MOST = 0.4  # if the k best need lists with a larger share of the rows, a scan is as fast
_SO_FAR = np.tri(len(LEVELS), len(LEVELS) + 1, dtype=np.float32)  # (j, j + 1), what is opened at each level
_LATER = 1 - _SO_FAR  # what is opened later or never


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """All rows, including those used as queries, as lookups will find them."""

    lists: Lists  # the statistics with all rows
    live: Flags
    askers: Counts  # (c,), the row that is used as each query; -1 if none
    most: Floats  # (c,), the highest score that a row can have


def rehearsed(
    lists: Lists,
    offsets: Counts,
    rows: ReadRows,
    counted: Flags,
    queries: Reals,
    added: Floats,
    temperatures: Reals,
    *,
    scale: float,
    whole: Whole,
    near: int = 0,
    by_distance: bool = False,
    ranked_rows: Callable[[Reals, Ranking], None] = untold,
    progress: Progress | None = None,
) -> Calibration:
    """Measure how wrong estimates by these lists are, on (c, d) queries as dot products take them.

    `counted` says which rows are in the sums, and `added`, (c,), what is added to every score of a query.
    `near` is how many of the lists nearest to a query are opened in any case, `by_distance` as in `nearest`, and
    `ranked_rows` is told of the queries and their best rows.
    """
    total, labels = int(offsets[-1]), rows(0, 0)[1].ndim == 1
    quick, units = (lists.narrow(), AS_GIVEN) if labels else (lists.rounded(), lists.units)
    held = len(temperatures) * (len(LEVELS) + 1) * (lists.values.shape[1] + 2)
    step = max(1, min(ASKED, SCORED // total if labels else HELD // held))
    passes = 1 + -(-len(queries) // step)

    def told(number: int) -> Callable[[int], None]:
        return lambda done: None if progress is None else progress(number * total + done, passes * total)

    parts, closest, kind = [], list[Floats](), _OfLabels if labels else _OfVectors
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is never promised
        ranking, keys, peaks = _ranking(queries, rows, counted, whole, told(0))
        ranked_rows(queries, ranking)
        depths = _depths(whole, offsets, queries, keys, ranking)
        for number, start in enumerate(range(0, len(queries), step), 1):
            some = slice(start, start + step)
            tilt, close = tilted(quick, queries[some]), None
            closest.append(closeness(quick, tilt, queries[some]))
            if near:
                close = nearest(quick, tilt, queries[some], near, by_distance=by_distance)
            rehearsal = kind(quick, units, queries[some], peaks[some], temperatures, scale, close)
            rehearsal.read(offsets, rows, counted, told(number))
            parts.append([np.where(np.isnan(x), np.inf, x) for x in rehearsal.compared()])
    doubts, errors, log_masses, surprises, mass_doubts = (
        np.concatenate(x, axis=1, dtype=np.float32) for x in zip(*parts, strict=True)
    )
    best = (peaks + added).astype(np.float32)
    worth = np.array([independent(ranking.rows[:, :k]) for k in BEST])
    alone = [
        *(np.full(1, float(one)) for one in (near, scale)),
        np.concatenate(closest).astype(np.float32),
        mass_doubts,
    ]
    temperatures = temperatures.astype(np.float32)
    return Calibration(temperatures, doubts, errors, log_masses, surprises, best, depths, worth, *alone)


def _ranking(
    queries: Reals, rows: ReadRows, counted: Flags, whole: Whole, told: Callable[[int], None]
) -> tuple[Ranking, Reals, Reals]:
    """The best rows of each query except itself, their keys, and the best score that counts."""
    found, peaks = no_ranking(np.empty((len(queries), 0), queries.dtype), BEST[-1]), np.full(len(queries), -np.inf)
    asking = np.zeros(queries.shape)
    for start, stop in _blocks(len(counted), BLOCK):
        keys = rows(start, stop)[0]
        scores = _scores(queries, keys, whole.live[start:stop])
        here = np.flatnonzero((whole.askers >= start) & (whole.askers < stop))
        places = whole.askers[here] - start
        asking[here], scores[here, places] = keys[places], -np.inf
        found = found.offer(scores, scores.max(1, initial=-np.inf), start)
        scores[:, ~counted[start:stop]] = -np.inf
        peaks = np.maximum(peaks, scores.max(1, initial=-np.inf))
        told(stop)
    return found.in_order(), asking, peaks.astype(found.logits.dtype)


def _blocks(total: int, step: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + step, total)) for start in range(0, total, step))


def _scores(queries: Reals, keys: Reals, counted: Flags) -> Reals:
    """The scores of some rows, (c, n)."""
    scores: Reals = queries.astype(keys.dtype, copy=False) @ keys.T
    scores[:, ~counted] = -np.inf
    return scores


def _depths(whole: Whole, offsets: Counts, queries: Reals, keys: Reals, ranking: Ranking) -> Reals:
    """The share of the k best rows that is expected when all of them are found, (c, ks); 1 if they are not found.

    For a k that would read more than MOST of the rows on average, it is 1 for all queries.
    """
    lists, (owners, own) = whole.lists.rounded(), (_owners(offsets, x) for x in (ranking.rows, whole.askers))
    tilt = without(lists, tilted(lists, queries), queries, own, keys)
    found = np.empty((len(queries), len(BEST)), np.float32)
    for place, k in enumerate(BEST):
        order, before = ranked(lists, tilt, k, whole.most)
        found[:, place] = needed(lists, order, before, owners[:, :k])
        # Deciding for each query would keep only those for which few lists suffice, and of these more may be wrong.
        opened = lists.counts[order] * (before <= quantile_of(found[:, place], USUAL))
        if opened.sum() > MOST * len(queries) * lists.counts.sum():
            found[:, place] = 1.0
    return found


def _owners(offsets: Counts, rows: Counts) -> Counts:
    """The lists of rows, -1 for no row."""
    return np.asarray(np.searchsorted(offsets, rows, side="right") - 1)


class _Rehearsal(ABC):
    """Some queries, while all rows are read for their sums."""

    def __init__(
        self,
        lists: Lists,
        units: Units,
        queries: Reals,
        peaks: Reals,
        temperatures: Reals,
        scale: float,
        close: Counts | None,
    ) -> None:
        self.lists, self.units, self.queries, self.scale, self.close = lists, units, queries, scale, close
        self.spreads = unpacked(lists.spreads, lists.leading)
        self.sharpness = (1.0 / temperatures).astype(np.float64)
        self.peaks = np.where(np.isfinite(peaks), peaks, 0.0)
        opened = [self._opening(sharp) for sharp in self.sharpness.tolist()]
        self.levels = np.stack([_levels(one) for one in opened])  # (t, c, l), at which each list is opened
        self.doubts, self.mass_doubts, self.foretold = (
            np.stack(x) for x in zip(*((one.doubts, one.mass_doubts, one.log_mass) for one in opened), strict=True)
        )

    def _opening(self, sharp: float) -> Opening:
        tilt = tilted(self.lists, self.queries * sharp)
        return opening(self.lists, tilt, scale=self.scale / self.units.size, near=self.close)

    @abstractmethod
    def read(self, offsets: Counts, rows: ReadRows, counted: Flags, told: Callable[[int], None]) -> None:
        """Read all rows and add up their sums."""

    def _scored(self, keys: Reals, counted: Flags) -> Reals:
        """Scores below the best of each query, (c, n)."""
        return (_scores(self.queries, keys, counted) - self.peaks[:, None]).astype(np.float32)

    def compared(self) -> tuple[Floats, ...]:
        """Doubts, errors, errors of the logarithm of the mass, surprises, and doubts of the mass, (t, c, j) each."""
        found = [self._compared(number) for number in range(len(self.queries))]
        errors, log_mass_errors, surprises = (np.stack(x, axis=1) for x in zip(*found, strict=True))
        return self.doubts.astype(np.float64), errors, log_mass_errors, surprises, self.mass_doubts

    def _compared(self, number: int) -> tuple[Floats, Floats, Floats]:
        """One query at all temperatures, (t, j)."""
        tilt = tilted(self.lists, self.queries[number] * self.sharpness[:, None])
        base, sets = self.peaks[number] * self.sharpness, len(LEVELS) + 1
        far = estimated_apart(self.lists, self.spreads, tilt, self.sharpness, self.levels[:, number], sets, peak=base)
        mass, whole_mass, squares = self._sums(number, far)
        errors = np.sqrt(squares) * (self.units.size / (self.scale or 1.0))
        log_mass = base[:, None] + np.log(mass)
        true = base + np.log(whole_mass)
        return errors, np.abs(log_mass - true[:, None]), np.abs(log_mass - self.foretold[:, number, None])

    @abstractmethod
    def _sums(self, number: int, far: Apart) -> tuple[Reals, Reals, Reals]:
        """Mass at each level, (t, j), the exact mass, (t,), and the squared error of the values, (t, j)."""


class _OfVectors(_Rehearsal):
    """Rehearse vectors as values: the rows of a list are added up by one product, for all queries and temperatures."""

    def read(self, offsets: Counts, rows: ReadRows, counted: Flags, told: Callable[[int], None]) -> None:
        width = self.lists.values.shape[1] + 1  # of what is added up: the value, and 1 for the mass
        self.near = np.zeros((*self.levels.shape[:2], len(LEVELS), width))
        self.whole = np.zeros((*self.levels.shape[:2], width))
        by_list = self.levels.transpose(2, 0, 1).reshape(len(self.lists.counts), -1)
        for start, stop in _blocks(int(offsets[-1]), max(1, min(BLOCK, WEIGHED // by_list.shape[1]))):
            keys, values = rows(start, stop)
            first, last = (int(np.searchsorted(offsets, row, side="right")) - 1 for row in (start, stop - 1))
            edges = np.clip(offsets[first : last + 2] - start, 0, stop - start)
            self._add(self._scored(keys, counted[start:stop]), values, by_list[first : last + 1], edges)
            told(stop)

    def _add(self, scores: Reals, values: Reals, levels: npt.NDArray[np.int8], edges: Counts) -> None:
        weights = scores * self.sharpness.astype(np.float32)[:, None, None]
        weights = np.exp(weights, out=weights).reshape(-1, scores.shape[1])
        summed = np.ones((len(values), values.shape[1] + 1), np.float32)
        summed[:, :-1] = (values - self.units.middle) / self.units.size
        whole, near = (x.reshape(-1, summed.shape[1]) for x in (self.whole, self.near))
        for level, start, stop in zip(levels, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            sums = weights[:, start:stop] @ summed[start:stop]
            whole += sums
            opened = np.flatnonzero(level < len(LEVELS))
            near[opened * len(LEVELS) + level[opened]] += sums[opened]

    def _sums(self, number: int, far: Apart) -> tuple[Reals, Reals, Reals]:
        near, whole = _SO_FAR[:, :-1] @ self.near[:, number], self.whole[:, number]
        mass = near[..., -1] + far.shares.sum(2) @ _LATER.T
        total = near[..., :-1] + _LATER @ (far.valued(self.lists) + far.pulled)
        true = (whole[:, :-1] / whole[:, -1:]).astype(total.dtype)
        apart = total / mass[..., None] - true[:, None]
        return mass, whole[:, -1], np.einsum("tjp,tjp->tj", apart, apart)


@dataclass(frozen=True, slots=True, eq=False)
class _SomeLabels:
    """Some labels, with the rows and the shares of lists that have them, list by list; codes count from the first."""

    width: int  # how many labels
    rows: slice | Counts
    codes: Counts  # of these rows
    sizes: Counts  # (l,), how many of them are in each list
    shared: Counts  # the codes of the shares
    amounts: Floats  # the shares
    parts: Counts  # (l,), how many of them are in each list
    steep: slice | Counts  # the codes that have a slope
    pulled: slice  # and where they are among all that have one

    @classmethod
    def of(cls, first: int, codes: Counts, owners: Counts, shares: Shares) -> "_SomeLabels":
        """The labels from one on, of rows with these labels in these lists."""
        width, lists = min(TOGETHER, shares.labels - first), shares.shape[0]
        rows, entries = (np.flatnonzero((x >= first) & (x < first + width)) for x in (codes, shares.codes))
        pulled = slice(*np.searchsorted(shares.sloped, (first, first + width)).tolist())
        return cls(
            width,
            slice(None) if len(rows) == len(codes) else rows,
            codes[rows] - first,
            np.bincount(owners[rows], minlength=lists),
            shares.codes[entries] - first,
            shares.amounts[entries],
            np.bincount(shares.owners[entries], minlength=lists),
            shares.steep if isinstance(shares.steep, slice) else shares.sloped[pulled] - first,
            pulled,
        )

    def counted(self, levels: npt.NDArray[np.int8], weights: Reals) -> Floats:
        """The weights of the rows, by level and label, (j + 1, p)."""
        return self._by_level(np.repeat(levels.astype(np.int64) * self.width, self.sizes) + self.codes, weights)

    def estimated(self, levels: npt.NDArray[np.int8], masses: Reals) -> Floats:
        """The masses of lists, (l,), by level and label, (j + 1, p): to each label its share."""
        places = np.repeat(levels.astype(np.int64) * self.width, self.parts) + self.shared
        return self._by_level(places, np.repeat(masses, self.parts) * self.amounts)

    def _by_level(self, places: Counts, weights: Reals) -> Floats:
        sums = np.bincount(places, weights, (len(LEVELS) + 1) * self.width).astype(np.float64, copy=False)
        return sums.reshape(-1, self.width)


class _OfLabels(_Rehearsal):
    """Rehearse codes of labels: all scores of some queries are held, and for each query the weights are counted.

    The error of an answer comes from lists that are estimated too high or too low, so the excess is added up, by level
    and label. How far it moves the distribution follows from its products with itself and with the truth, which are
    sums over labels: some labels are taken at a time, so that their sums stay in the cache.
    """

    def read(self, offsets: Counts, rows: ReadRows, counted: Flags, told: Callable[[int], None]) -> None:
        self.scores, codes = np.empty((len(self.queries), len(counted)), np.float32), np.empty(len(counted), np.int64)
        for start, stop in _blocks(len(counted), BLOCK):
            keys, codes[start:stop] = rows(start, stop)
            self.scores[:, start:stop] = self._scored(keys, counted[start:stop])
            told(stop)
        assert isinstance(self.lists.values, Shares)
        owners, labels = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), self.lists.values.labels
        self.parts = [_SomeLabels.of(first, codes, owners, self.lists.values) for first in range(0, labels, TOGETHER)]

    def _sums(self, number: int, far: Apart) -> tuple[Reals, Reals, Reals]:
        found = [self._of_part(part, number, far) for part in self.parts]
        more, whole, squared, crossed, true = (sum(x) for x in zip(*found, strict=True))
        mass = whole + more
        squares = squared - 2.0 * more / whole * crossed + (more / whole) ** 2 * true
        return mass.T, whole, (np.maximum(squares, 0.0) / mass**2).T

    def _of_part(self, part: _SomeLabels, number: int, far: Apart) -> list[Floats]:
        """The sums over some labels, at all temperatures."""
        scores, found, step = self.scores[number, part.rows], [], max(1, TOGETHER // part.width)
        for start in range(0, len(self.sharpness), step):
            some = range(start, min(start + step, len(self.sharpness)))
            wrong = np.empty((len(some), len(LEVELS) + 1, part.width))
            truth = np.empty((len(some), part.width))
            for place, at in enumerate(some):
                weights, levels = np.exp(scores * np.float32(self.sharpness[at])), self.levels[at, number]
                near = part.counted(levels, weights)
                np.subtract(part.estimated(levels, far.masses[at]), near, out=wrong[place])
                near.sum(0, out=truth[place])
            found.append(_products(wrong, truth, far.pulled[some, :, part.pulled], part.steep))
        return [np.concatenate(x, axis=-1) for x in zip(*found, strict=True)]


def _products(wrong: Floats, truth: Floats, pulled: Reals, steep: slice | Counts) -> tuple[Floats, ...]:
    """Sums over labels, from weights, (t, p), and the excess of their estimates by level, (t, j + 1, p).

    Returns the excess of mass at each level, and all mass; the product of the excess of each label with itself, and
    with the truth; and that of the truth with itself.
    """
    more = wrong.sum(2)[:, :0:-1].cumsum(1)[:, ::-1]
    wrong[..., steep] += pulled
    for level in range(len(LEVELS) - 1, 0, -1):  # what is opened later is wrong at this level as well
        wrong[:, level] += wrong[:, level + 1]
    wrong = wrong[:, 1:]
    # Not by BLAS, whose threads take longer to wake than so small a product takes.
    squared, crossed = np.einsum("tjp,tjp->jt", wrong, wrong), np.einsum("tjp,tp->jt", wrong, truth)
    return more.T, truth.sum(1), squared, crossed, np.einsum("tp,tp->t", truth, truth)


def _levels(opened: Opening) -> npt.NDArray[np.int8]:
    """The level at which each list is opened; one more than there are for those that are not."""
    places = np.arange(opened.order.shape[1])
    ranked = np.stack([np.searchsorted(ends, places, side="right") for ends in opened.stops]).astype(np.int8)
    found = np.empty_like(ranked)
    np.put_along_axis(found, opened.order, ranked, axis=1)
    return found
