"""Ask calibration queries exactly and by estimate, at some temperatures, for calibration.py to learn from.

All rows are read once for the best of them, and then, for some queries at a time, once more for the sums. What a query
would have read at each level is known before, so the sums over rows are kept level by level. Items that ask are held
out: they are in no sum, and whoever calls has taken them out of the statistics. A list that knows its own asker is
easier to judge than any other.

Values are counted in the units of the lists, from their middle, so that nothing is lost where they are far from zero.

Shapes: c calibration queries, n rows of a block, d key width, p value width, t temperatures, j levels, l lists.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from softkv.index.calibration import BEST, Calibration
from softkv.index.opening import LEVELS, Opening, opening, ranked
from softkv.maths.farfield import AS_GIVEN, Apart, Array, Floats, Lists, Units, estimated_apart, tilted, unpacked
from softkv.maths.moments import Rows
from softkv.maths.ranking import Ranking, no_ranking
from softkv.progress import Progress

Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
HELD = 1 << 24  # sums held at once
WEIGHED = 1 << 24  # weights held at once
ASKED = 512  # queries that go through all rows together
BLOCK = 1 << 13  # rows scored together
SCORED = 1 << 26  # scores held at once, where labels are counted
_SO_FAR = np.tri(len(LEVELS), len(LEVELS) + 1, dtype=np.float32)  # (j, j + 1), what is opened at each level
_LATER = 1 - _SO_FAR  # and what is opened later or never


def rehearsed(
    lists: Lists,
    offsets: Counts,
    rows: Rows,
    counted: Mask,
    queries: Array,
    added: Floats,
    temperatures: Array,
    *,
    scale: float,
    progress: Progress | None = None,
) -> Calibration:
    """Measure how wrong estimates by these lists are, on (c, d) queries as dot products take them.

    `counted` says which rows are in the sums, and `added`, (c,), what belongs to every score of a query.
    """
    total, labels = int(offsets[-1]), rows(0, 0)[1].ndim == 1
    quick, units = (lists.narrow(), AS_GIVEN) if labels else (lists.rounded(), lists.units)
    held = len(temperatures) * (len(LEVELS) + 1) * (lists.values.shape[1] + 2)
    step = max(1, min(ASKED, SCORED // total if labels else HELD // held))
    passes = 1 + -(-len(queries) // step)

    def told(number: int) -> Callable[[int], None]:
        return lambda done: None if progress is None else progress(number * total + done, passes * total)

    parts, kind = [], _OfLabels if labels else _OfVectors
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is never promised
        ranking = _ranking(queries, rows, counted, told(0))
        depths = _depths(quick, offsets, queries, ranking)
        for number, start in enumerate(range(0, len(queries), step), 1):
            some = slice(start, start + step)
            rehearsal = kind(quick, units, queries[some], ranking.logits[some, 0], temperatures, scale)
            rehearsal.read(offsets, rows, counted, told(number))
            parts.append([np.where(np.isnan(x), np.inf, x) for x in rehearsal.compared()])
    doubts, errors, log_masses, surprises = (
        np.concatenate(x, axis=1, dtype=np.float32) for x in zip(*parts, strict=True)
    )
    nearest = (ranking.logits[:, 0] + added).astype(np.float32)
    return Calibration(temperatures.astype(np.float32), doubts, errors, log_masses, surprises, nearest, depths)


def _ranking(queries: Array, rows: Rows, counted: Mask, told: Callable[[int], None]) -> Ranking:
    """The best rows of each query."""
    found = no_ranking(np.empty((len(queries), 0), queries.dtype), BEST[-1])
    for start, stop in _blocks(len(counted), BLOCK):
        scores = _scores(queries, rows(start, stop)[0], counted[start:stop])
        found = found.offer(scores, scores.max(1, initial=-np.inf), start)
        told(stop)
    return found.in_order()


def _blocks(total: int, step: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + step, total)) for start in range(0, total, step))


def _scores(queries: Array, keys: Array, counted: Mask) -> Array:
    """The scores of some rows, (c, n)."""
    scores: Array = queries.astype(keys.dtype, copy=False) @ keys.T
    scores[:, ~counted] = -np.inf
    return scores


def _depths(lists: Lists, offsets: Counts, queries: Array, ranking: Ranking) -> Array:
    """The share of the k best rows that is expected before all of them are found, (c, ks); 1 where they are not."""
    owners = np.asarray(np.searchsorted(offsets, np.maximum(ranking.rows, 0), side="right") - 1)
    tilt, found = tilted(lists, queries), []
    for k in BEST:
        order, before = ranked(lists, tilt, k)
        shares = np.ones((len(order), len(lists.counts)))
        np.put_along_axis(shares, order, before, axis=1)
        needed = np.where(ranking.rows[:, :k] >= 0, np.take_along_axis(shares, owners[:, :k], axis=1), 0.0)
        found.append(needed.max(1))
    return np.stack(found, axis=1).astype(np.float32)


class _Rehearsal(ABC):
    """Some queries on their way through all rows."""

    def __init__(
        self, lists: Lists, units: Units, queries: Array, peaks: Array, temperatures: Array, scale: float
    ) -> None:
        self.lists, self.units, self.queries, self.scale = lists, units, queries, scale
        self.spreads = unpacked(lists.spreads, lists.leading)
        self.sharpness = (1.0 / temperatures).astype(np.float64)
        self.peaks = np.where(np.isfinite(peaks), peaks, 0.0)
        opened = [self._opening(sharp) for sharp in self.sharpness.tolist()]
        self.doubts, self.foretold = np.stack([one[1] for one in opened]), np.stack([one[2] for one in opened])
        self.levels = np.stack([one[0] for one in opened])  # (t, c, l), at which each list is opened

    def _opening(self, sharp: float) -> tuple[npt.NDArray[np.int8], Array, Array]:
        found = opening(self.lists, tilted(self.lists, self.queries * sharp), scale=self.scale / self.units.size)
        return _levels(found), found.doubts, found.log_mass

    @abstractmethod
    def read(self, offsets: Counts, rows: Rows, counted: Mask, told: Callable[[int], None]) -> None:
        """Go through all rows."""

    def _scored(self, keys: Array, counted: Mask) -> Array:
        """Scores below the best of each query, (c, n)."""
        found: Array = (_scores(self.queries, keys, counted) - self.peaks[:, None]).astype(np.float32)
        return found

    def compared(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Doubts, errors, errors of the logarithm of the mass, and surprises, (t, c, j) each."""
        found = [self._compared(number) for number in range(len(self.queries))]
        errors, log_mass_errors, surprises = (np.stack(x, axis=1) for x in zip(*found, strict=True))
        return self.doubts.astype(np.float64), errors, log_mass_errors, surprises

    def _compared(self, number: int) -> tuple[Floats, Floats, Floats]:
        """One query at all temperatures, (t, j)."""
        tilt = tilted(self.lists, self.queries[number] * self.sharpness[:, None])
        far = estimated_apart(self.lists, self.spreads, tilt, self.sharpness, self.levels[:, number], len(LEVELS) + 1)
        highest = self.peaks[number] * self.sharpness
        base = np.maximum(far.peak, highest)
        mass, total, whole_mass, whole = self._sums(number, far, np.exp(far.peak - base), np.exp(highest - base))
        apart = total / mass[..., None] - (whole / whole_mass[:, None]).astype(total.dtype)[:, None]
        errors = np.sqrt(np.einsum("tjp,tjp->tj", apart, apart)) * (self.units.size / (self.scale or 1.0))
        log_mass = base[:, None] + np.log(mass)
        true = base + np.log(whole_mass)
        return errors, np.abs(log_mass - true[:, None]), np.abs(log_mass - self.foretold[:, number, None])

    @abstractmethod
    def _sums(self, number: int, far: Apart, by_far: Floats, by_near: Floats) -> tuple[Array, Array, Array, Array]:
        """Mass (t, j) and total (t, j, p) at each level, and those of all rows, (t,) and (t, p), in the units.

        What is estimated counts `by_far`, (t,), and what was read `by_near`.
        """


class _OfVectors(_Rehearsal):
    """Values are vectors: the rows of a list are summed up by one product, for all queries and temperatures."""

    def read(self, offsets: Counts, rows: Rows, counted: Mask, told: Callable[[int], None]) -> None:
        width = self.lists.values.shape[1] + 1  # of what is summed up: the value, and 1 for the mass
        self.near = np.zeros((*self.levels.shape[:2], len(LEVELS), width))
        self.whole = np.zeros((*self.levels.shape[:2], width))
        by_list = self.levels.transpose(2, 0, 1).reshape(len(self.lists.counts), -1)
        for start, stop in _blocks(int(offsets[-1]), max(1, min(BLOCK, WEIGHED // by_list.shape[1]))):
            keys, values = rows(start, stop)
            first, last = (int(np.searchsorted(offsets, row, side="right")) - 1 for row in (start, stop - 1))
            edges = np.clip(offsets[first : last + 2] - start, 0, stop - start)
            self._add(self._scored(keys, counted[start:stop]), values, by_list[first : last + 1], edges)
            told(stop)

    def _add(self, scores: Array, values: Array, levels: npt.NDArray[np.int8], edges: Counts) -> None:
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

    def _sums(self, number: int, far: Apart, by_far: Floats, by_near: Floats) -> tuple[Array, Array, Array, Array]:
        near = _SO_FAR[:, :-1] @ self.near[:, number] * by_near[:, None, None]
        whole = self.whole[:, number] * by_near[:, None]
        mass = near[..., -1] + far.shares.sum(2) @ _LATER.T * by_far[:, None]
        total = near[..., :-1] + _LATER @ (far.valued(self.lists) + far.pulled) * by_far[:, None, None]
        return mass, total, whole[:, -1], whole[:, :-1]


class _OfLabels(_Rehearsal):
    """Values are codes of labels: all scores of some queries are held, and for each query the weights are counted."""

    def read(self, offsets: Counts, rows: Rows, counted: Mask, told: Callable[[int], None]) -> None:
        self.sizes, self.counted = np.diff(offsets), counted.astype(np.float32)
        self.scores = np.empty((len(self.queries), len(counted)), np.float32)
        self.codes = np.empty(len(counted), np.int64)
        for start, stop in _blocks(len(counted), BLOCK):
            keys, self.codes[start:stop] = rows(start, stop)
            self.scores[:, start:stop] = self._scored(keys, counted[start:stop])
            told(stop)

    def _sums(self, number: int, far: Apart, by_far: Floats, by_near: Floats) -> tuple[Array, Array, Array, Array]:
        width = self.lists.values.shape[1]
        weights = np.exp(self.scores[number] * self.sharpness.astype(np.float32)[:, None])
        weights *= by_near.astype(np.float32)[:, None]
        by_far = by_far[:, None]
        # A list's estimate, but for what its slope pulls, is that of its rows: each of them a share of its mass.
        shares = far.masses * (by_far / np.maximum(self.lists.counts, 1))
        sums = np.empty((2, len(LEVELS) + 1, len(weights), width), np.float32)  # read and estimated, level by level
        for place, level in enumerate(self.levels[:, number].astype(np.int64) * width):
            at = np.repeat(level, self.sizes) + self.codes
            share = np.repeat(shares[place], self.sizes) * self.counted
            for kind, weight in enumerate((weights[place], share)):
                sums[kind, :, place] = np.bincount(at, weight, len(sums[0]) * width).reshape(-1, width)
        whole, mass = sums[0].sum(0), _added(sums.sum(3, keepdims=True))[..., 0]
        sums[1] += (far.pulled * by_far[..., None].astype(np.float32)).swapaxes(0, 1)
        return mass, _added(sums), whole.sum(1), whole


def _added(sums: Array) -> Array:
    """What is read so far and estimated otherwise, (2, j + 1, t, p) -> (t, j, p), in one product."""
    found: Array = np.hstack([_SO_FAR, _LATER]) @ sums.reshape(2 * sums.shape[1], -1)
    return found.reshape(-1, *sums.shape[2:]).swapaxes(0, 1)


def _levels(opened: Opening) -> npt.NDArray[np.int8]:
    """The level at which each list is opened; one more than there are for those that are not."""
    places = np.arange(opened.order.shape[1])
    ranked = np.stack([np.searchsorted(ends, places, side="right") for ends in opened.stops]).astype(np.int8)
    found = np.empty_like(ranked)
    np.put_along_axis(found, opened.order, ranked, axis=1)
    return found
