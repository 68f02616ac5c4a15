"""Read some runs of rows, one by one: their blend, and the heaviest of them.

A run is consecutive rows, and the queries that ask it. All logits of all runs lie in one flat array, a segment for each
run and query, so that everything but the two products with keys and values is done in a few passes over it, however
many runs there are.

Does not choose runs (index/) and does not know what a compatibility is: the caller passes the scores.

Shapes: b queries, p value width, s segments, n rows of a run, m queries that ask it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from softkv.maths.blending import Blend, Labels, Numbers, Values
from softkv.maths.summing import RUN
from softkv.maths.weighting import FLOOR, Weights
from softkv.ndarrays import Flags, Floats, Reals, Rows

PIECE = 1 << 8  # rows of a segment of which the highest logit is looked for

# The logits of some queries (their numbers) with rows start .. stop - 1, written into the last argument, (m, n).
Score = Callable[[Rows, int, int, Reals], None]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Rows start .. stop - 1, and which queries ask them."""

    start: int
    stop: int
    queries: Rows  # (m,)


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """What was read for some queries."""

    blend: Blend
    rows: Rows  # (b, show), the heaviest first; -1 where there are fewer
    logits: Reals  # (b, show)
    scored: Rows  # (b,), how many rows that are live


def read(score: Score, values: Values, runs: Sequence[Run], live: Flags | None, *, count: int, show: int) -> Near:
    """Score the runs for `count` queries; `live` says which rows of the arena count, or None when all do."""
    flat = _Flat(runs, count)
    for run, block in zip(runs, flat.blocks(flat.logits), strict=True):
        score(run.queries, run.start, run.stop, block)
    if live is not None:
        flat.leave_out(live)
    scored = flat.scored(everything=live is None)
    rows, logits = flat.heaviest(show)
    return Near(flat.blend(values), rows, logits, scored)


class _Flat:
    """The logits of all runs, side by side."""

    def __init__(self, runs: Sequence[Run], count: int) -> None:
        self.runs, self.count = runs, count
        sizes = np.array([run.stop - run.start for run in runs], np.int64)
        asked = np.array([len(run.queries) for run in runs], np.int64)
        self.offsets = np.concatenate([[0], (sizes * asked).cumsum()])
        self.queries = np.concatenate([run.queries for run in runs]) if runs else np.empty(0, np.int64)  # (s,)
        self.lengths = np.repeat(sizes, asked)  # (s,)
        self.starts = np.concatenate([[0], self.lengths.cumsum()[:-1]]).astype(np.int64)  # (s,)
        self.firsts = np.repeat(np.array([run.start for run in runs], np.int64), asked)  # (s,)
        self.logits = np.empty(int(self.offsets[-1]), np.float32)

    def leave_out(self, live: Flags) -> None:
        """Take away the logits of rows that are not live."""
        if self.count == 1:  # runs are many, and short
            alive = np.concatenate([live[run.start : run.stop] for run in self.runs]) if self.runs else live[:0]
            self.logits[~alive] = -np.inf
            return
        for run, block in zip(self.runs, self.blocks(self.logits), strict=True):
            alive = live[run.start : run.stop]
            if not alive.all():
                block[:, ~alive] = -np.inf

    def blocks(self, flat: Reals) -> "list[Reals]":
        """The part of each run, (m, n), of the logits or of as many weights."""
        bounds = zip(self.runs, self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
        return [flat[start:stop].reshape(len(run.queries), -1) for run, start, stop in bounds]

    def scored(self, *, everything: bool) -> Rows:
        """How many rows were scored for each query."""
        met = self.lengths if everything else self._by_segment((self.logits > -np.inf).astype(np.float32))
        return np.bincount(self.queries, met, self.count).astype(np.int64)

    def heaviest(self, show: int) -> tuple[Rows, Reals]:
        """The rows of the highest logits of each query, and these, (b, show)."""
        rows, best = np.full((self.count, show), -1, np.int64), np.full((self.count, show), -np.inf, np.float32)
        if not show or not len(self.logits):
            return rows, best
        if self.count == 1:
            first = max(0, len(self.logits) - show)
            places = np.flatnonzero(self.logits >= np.partition(self.logits, first)[first])
        else:
            places = np.flatnonzero(self.logits >= np.repeat(self._promising(show), self.lengths))
        segments = np.searchsorted(self.starts, places, side="right") - 1
        queries, logits = self.queries[segments], self.logits[places]
        numbers = self.firsts[segments] + places - self.starts[segments]
        order = np.lexsort((numbers, -logits, queries))
        order = order[logits[order] > -np.inf]
        ranked = queries[order]
        rank = np.arange(len(order)) - np.searchsorted(ranked, ranked)
        kept = rank < show
        rows[ranked[kept], rank[kept]] = numbers[order[kept]]
        best[ranked[kept], rank[kept]] = logits[order[kept]]
        return rows, best

    def _promising(self, show: int) -> Reals:
        """A logit for each segment below which its query has no row among the heaviest, (s,)."""
        counts = -(-self.lengths // PIECE)  # a query may have a single segment, as long as all that it reads
        owners, firsts = np.repeat(np.arange(len(counts)), counts), counts.cumsum() - counts
        starts = self.starts[owners] + PIECE * (np.arange(len(owners)) - firsts[owners])
        queries, peaks = self.queries[owners], np.maximum.reduceat(self.logits, starts)
        order = np.lexsort((-peaks, queries))
        ranked = queries[order]
        last = np.searchsorted(ranked, np.arange(self.count)) + show - 1
        # Each piece has a row as high as its peak, so the show-th highest peak is low enough; with fewer, any is.
        enough = last < np.searchsorted(ranked, np.arange(self.count), side="right")
        least = np.where(enough, peaks[order[np.minimum(last, len(order) - 1)]], -np.inf)
        found: Reals = least[self.queries].astype(np.float32)
        return found

    def _peaks(self) -> Reals:
        return np.maximum.reduceat(self.logits, self.starts)

    def blend(self, values: Values) -> Blend:
        """The blend of the rows; the logits become weights."""
        peak = np.full(self.count, -np.inf, np.float32)
        if len(self.logits):
            np.maximum.at(peak, self.queries, self._peaks())
        base = np.where(np.isfinite(peak), peak, np.float32(0.0))
        self.logits -= base[0] if self.count == 1 else np.repeat(base[self.queries], self.lengths)
        np.maximum(self.logits, np.float32(FLOOR), out=self.logits)
        weights = np.exp(self.logits)
        mass = self._by_query(self._by_segment(weights))
        excess = self._by_query(self._by_segment(weights * self.logits))
        total, square = self._blended(values, weights, mass)
        return Blend(peak.astype(np.float64), mass, total, excess, square)

    def _by_query(self, x: Floats) -> Floats:
        return np.bincount(self.queries, x, self.count).astype(np.float64)

    def _by_segment(self, x: Reals) -> Floats:
        return np.add.reduceat(x, self.starts, dtype=np.float64) if len(x) else np.empty(0)

    def _blended(self, values: Values, weights: Reals, mass: Floats) -> tuple[Floats, Floats | None]:
        """The sums of weights times values, (b, p), and for numbers those about the mean, (b, 1)."""
        if isinstance(values, Numbers):
            return self._blended_numbers(values, weights, mass)
        if isinstance(values, Labels):
            return self._counted(values, weights), None
        total = np.zeros((self.count, values.array.shape[-1]))
        for run, block in zip(self.runs, self.blocks(weights), strict=True):
            total[run.queries] += _summed(block, values, run.start, run.stop)
        return total, None

    def _counted(self, labels: Labels, weights: Reals) -> Floats:
        """The weights by label, (b, p): of all runs of a query at once, since one may have fewer rows than labels."""
        total, order = np.zeros((self.count, labels.count)), np.argsort(self.queries, kind="stable")
        bounds = np.searchsorted(self.queries[order], np.arange(self.count + 1)).tolist()
        for query, (first, last) in enumerate(pairwise(bounds)):
            some = order[first:last]
            lengths = self.lengths[some]
            ahead = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
            rows, places = (np.repeat(starts[some], lengths) + ahead for starts in (self.firsts, self.starts))
            total[query] = np.bincount(labels.array[rows], weights[places], labels.count)
        return total

    def _blended_numbers(self, values: Numbers, weights: Reals, mass: Floats) -> tuple[Floats, Floats]:
        """The sums of numbers, (b, 1), and of their squares about the mean: those within runs, and between these."""
        sums = np.zeros((3, len(self.queries), 1))  # the mass of each segment, its mean, and the squares about that
        seen = 0
        for run, block in zip(self.runs, self.blocks(weights), strict=True):
            unrelated = np.zeros(len(run.queries))
            part = values.part(slice(run.start, run.stop)).blend(Weights(unrelated, block, unrelated, None))
            sums[:, seen : seen + len(block)] = part.mass[:, None], part.value, part.square
            seen += len(block)
        masses, means, squares = sums[:, :, 0]
        rough = self._by_query(masses * means) / np.where(mass > 0, mass, 1.0)
        apart = means - rough[self.queries]  # restores the last digits where many runs hold numbers far from zero
        total = rough * mass + self._by_query(masses * apart)
        return total[:, None], self._by_query(squares + masses * apart * apart)[:, None]


def _summed(weights: Reals, values: Values, start: int, stop: int) -> Floats:
    """Weights times the values of a run, (m, n) -> (m, p)."""
    part = values.array[start:stop]
    found: Floats
    if len(weights) > 1 or len(part) <= RUN:
        found = (weights @ part).astype(np.float64)
        return found
    # For a single query BLAS adds row after row to one float32, which loses digits in long runs.
    cuts = range(0, len(part), RUN)
    parts = [weights[:, cut : cut + RUN] @ part[cut : cut + RUN] for cut in cuts]
    found = np.sum(parts, axis=0, dtype=np.float64)
    return found
