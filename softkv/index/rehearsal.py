"""Ask calibration queries exactly and by estimate, at some temperatures, for calibration.py to learn from.

All rows are read once, in blocks; what a query would have read at each level is known before, so that the sums over
rows are kept level by level and nothing is read twice. Items that ask are held out: they are in no sum, and whoever
calls has taken them out of the statistics. A list that knows its own asker is easier to judge than any other.

Shapes: c calibration queries, n rows of a block, d key width, p value width, t temperatures, j levels, l lists.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from softkv.index.calibration import BEST, Calibration
from softkv.index.opening import LEVELS, Opening, closed, opening, ranked
from softkv.maths.blending import Blend, merge
from softkv.maths.farfield import Array, Floats, Lists, Tilt, Units, estimated, tilted
from softkv.maths.moments import Rows
from softkv.maths.ranking import no_ranking
from softkv.progress import Progress

Counts = npt.NDArray[np.int64]
HELD = 1 << 24  # sums held at once
ASKED = 512  # queries that go through all rows together
BLOCK = 1 << 13  # rows scored together


def rehearsed(
    lists: Lists,
    offsets: Counts,
    rows: Rows,
    counted: npt.NDArray[np.bool_],
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
    quick, units = lists.rounded(), lists.units
    held = len(temperatures) * (len(LEVELS) + 1) * (lists.values.shape[1] + 2)
    step = max(1, min(ASKED, HELD // held))
    parts, best, depths = [], [], []
    for start in range(0, len(queries), step):
        some = queries[start : start + step]

        def told(done: int, total: int, start: int = start, count: int = len(some)) -> None:
            if progress is not None:
                progress(start * total + done * count, len(queries) * total)

        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is never promised
            rehearsal = _Rehearsal(quick, units, some, temperatures, scale)
            rehearsal.read(offsets, rows, counted, told)
            parts.append([np.where(np.isnan(x), np.inf, x) for x in rehearsal.compared()])
            best.append(rehearsal.peaks + added[start : start + step])
            depths.append(rehearsal.depths(offsets))
    doubts, errors, log_masses, surprises = (
        np.concatenate(x, axis=1, dtype=np.float32) for x in zip(*parts, strict=True)
    )
    nearest = np.concatenate(best, dtype=np.float32)
    found = np.concatenate(depths, dtype=np.float32)
    return Calibration(temperatures.astype(np.float32), doubts, errors, log_masses, surprises, nearest, found)


class _Rehearsal:
    """Some queries on their way through all rows."""

    def __init__(self, lists: Lists, units: Units, queries: Array, temperatures: Array, scale: float) -> None:
        self.lists, self.units, self.queries, self.scale = lists, units, queries, scale
        self.sharpness = [float(1.0 / temperature) for temperature in temperatures]
        # For each temperature the level at which a list is opened, (c, l); what it follows from is large, and not kept.
        opened = (self._opening(position)[1] for position in range(len(self.sharpness)))
        self.levels = [_levels(one.order, one.stops) for one in opened]
        shape = (len(self.sharpness), len(queries), len(LEVELS) + 1)
        self.masses, self.totals = np.zeros(shape), np.zeros((*shape, lists.values.shape[1]))
        self.peaks = np.full(len(queries), -np.inf)  # of the scores so far
        self.ranking = no_ranking(np.empty((len(queries), 0), queries.dtype), BEST[-1])

    def _opening(self, position: int) -> tuple[Tilt, Opening]:
        tilt = tilted(self.lists, self.queries * self.sharpness[position])
        return tilt, opening(self.lists, tilt, scale=self.scale / self.units.size)

    def read(
        self, offsets: Counts, rows: Rows, counted: npt.NDArray[np.bool_], told: Callable[[int, int], None]
    ) -> None:
        """Sum up all rows, level by level."""
        numbers = np.arange(len(self.queries))
        total = int(offsets[-1])
        for start in range(0, total, BLOCK):
            stop = min(start + BLOCK, total)
            first, last = (int(np.searchsorted(offsets, row, side="right")) - 1 for row in (start, stop - 1))
            keys, values = rows(start, stop)
            scores = self.queries.astype(keys.dtype, copy=False) @ keys.T
            scores[:, ~counted[start:stop]] = -np.inf
            peaks = scores.max(1, initial=-np.inf)
            self.ranking = self.ranking.offer(scores, peaks, start)
            self._rebase(peaks)
            scores -= np.where(np.isfinite(self.peaks), self.peaks, 0.0)[:, None].astype(scores.dtype)
            for position, sharp in enumerate(self.sharpness):
                weights = np.exp(scores * sharp)
                for number in range(first, last + 1):
                    part = slice(max(0, int(offsets[number]) - start), int(offsets[number + 1]) - start)
                    level = self.levels[position][:, number]
                    self.masses[position, numbers, level] += weights[:, part].sum(1, dtype=np.float64)
                    self.totals[position, numbers, level] += weights[:, part] @ values[part]
            told(stop, total)

    def _rebase(self, peaks: Array) -> None:
        """Count from the highest score so far."""
        higher = np.maximum(self.peaks, peaks)
        with np.errstate(invalid="ignore"):
            lower = np.where(self.peaks > -np.inf, self.peaks - higher, 0.0)
        for position, sharp in enumerate(self.sharpness):
            factor = np.exp(lower * sharp)
            self.masses[position] *= factor[:, None]
            self.totals[position] *= factor[:, None, None]
        self.peaks = higher

    def depths(self, offsets: Counts) -> Floats:
        """The share of the k best rows that is expected before all of them are found, (c, ks); 1 where they are not."""
        best = self.ranking.in_order().rows
        owners = np.asarray(np.searchsorted(offsets, np.maximum(best, 0), side="right") - 1)
        tilt, found = tilted(self.lists, self.queries), []
        for k in BEST:
            order, before = ranked(self.lists, tilt, k)
            shares = np.ones((len(order), len(self.lists.counts)))
            np.put_along_axis(shares, order, before, axis=1)
            needed = np.where(best[:, :k] >= 0, np.take_along_axis(shares, owners[:, :k], axis=1), 0.0)
            found.append(needed.max(1))
        return np.stack(found, axis=1)

    def compared(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Doubts, errors, errors of the logarithm of the mass, and surprises, (t, c, j) each."""
        found = [self._compared(position) for position in range(len(self.sharpness))]
        doubts, errors, log_mass_errors, surprises = (np.stack(x) for x in zip(*found, strict=True))
        return doubts, errors, log_mass_errors, surprises

    def _compared(self, position: int) -> tuple[Floats, Floats, Floats, Floats]:
        (tilt, opened), peaks = self._opening(position), self.peaks * self.sharpness[position]
        masses, totals = self.masses[position].cumsum(1), self.totals[position].cumsum(1)
        exact = totals[:, -1] / masses[:, -1:]
        errors, log_mass_errors, surprises = [], [], []
        for level in range(len(LEVELS)):
            near = Blend(peaks, masses[:, level], totals[:, level], np.zeros_like(peaks))
            unread = closed(opened.order, opened.stops[:, level], len(self.lists.counts))
            blend = merge(near, self.units.back(estimated(self.lists, tilt, unread)))
            errors.append(np.linalg.norm(blend.value - exact, axis=1) / (self.scale or 1.0))
            log_mass_errors.append(np.abs(blend.log_mass - peaks - np.log(masses[:, -1])))
            surprises.append(np.abs(blend.log_mass - opened.log_mass))
        doubts = opened.doubts.astype(np.float64)
        return doubts, np.stack(errors, axis=1), np.stack(log_mass_errors, axis=1), np.stack(surprises, axis=1)


def _levels(order: Counts, stops: Counts) -> npt.NDArray[np.int8]:
    """The level at which each list is opened; one more than there are for those that are not."""
    places = np.argsort(order, axis=1)  # where each list stands in the order
    found = [np.searchsorted(ends, at, side="right") for ends, at in zip(stops, places, strict=True)]
    return np.stack(found).astype(np.int8)
