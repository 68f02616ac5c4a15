"""Leave-one-out losses: each item is predicted by the others, at many temperatures in one pass over the scores.

Scores are computed once, block by block, and turned into weights for each temperature. Sums are relative to the best
score so far, which is the same for all temperatures, and are rescaled when a better one comes, as in blends.

The loss of a label is −log of the weight of the right one, at most 15.9; an item whose label no other has is not asked,
since nothing could predict it. The loss of numbers and vectors is the squared distance.

Does not choose a temperature (tuning.py).

Shapes: b items asked at a time, n rows of a block, t temperatures, p value width, k best rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from softkv.ndarrays import Floats, Reals, Rows
from softkv.progress import Progress

BLOCK = 1 << 12  # rows scored at a time
MOST = 2.0**53  # from here on every float64 is a whole number, so being whole means nothing
TOGETHER = 128  # items asked at a time: scores and weights of TOGETHER x BLOCK stay in the cache of the processor
LEAST = float(np.finfo(np.float32).eps)  # the least weight of a right label, as in `evaluate`: bounds each item's loss

# The scores of some items with rows start .. stop - 1; -inf for rows that do not count.
Scores = Callable[[Rows, int, int], Reals]


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """The mean losses at each temperature, with all rows and with the k best."""

    full: Floats  # (t,)
    best: dict[int, Floats]  # k: (t,)
    asked: int  # items that could be asked
    lowest: Floats  # (t,), the lowest log mass of an item


def left_out(
    scores: Scores,
    values: Reals,
    asked: Rows,
    temperatures: Floats,
    *,
    ks: Sequence[int] = (),
    shares: Floats | None = None,
    told: Progress | None = None,
) -> Losses:
    """The losses of the items in `asked`; `values` are codes of labels (rows,) or vectors (rows, p).

    `shares` (rows,) are weights of the items, both when they answer and when they are asked; not together with k. Whole
    numbers are counts of equal items: one of them is left out, and the others answer. Otherwise only their proportions
    matter.
    """
    full, best, count = np.zeros(len(temperatures)), {k: np.zeros(len(temperatures)) for k in ks}, 0
    lowest = np.full(len(temperatures), np.inf)
    # Shares are divided by the largest, since numbers far from 1 would leave the range of float32.
    counts = shares is not None and shares.max() < MOST and not (shares % 1).any()
    rest = None if shares is None else 1.0 - 1.0 / shares if counts else np.zeros(len(shares))
    shares, divisor = None if shares is None else shares / shares.max(), 0.0
    for start in range(0, len(asked), TOGETHER):
        some = asked[start : start + TOGETHER]
        state = _State(some, values, temperatures, max(ks, default=0), shares, rest)
        for first, block in _blocks(scores, some, len(values), rest):
            state.add(first, block)
        known = state.known
        count, heard = count + int(known.sum()), np.ones(int(known.sum())) if shares is None else shares[some[known]]
        divisor += float(heard.sum())
        full += state.losses()[:, known] @ heard
        lowest = np.minimum(lowest, state.log_masses().min(1))
        for k in ks:
            best[k] += state.losses_of_best(k)[:, known] @ heard
        if told is not None:
            told(start + len(some), len(asked))
    divisor = divisor or 1.0
    return Losses(full / divisor, {k: one / divisor for k, one in best.items()}, count, lowest)


def _blocks(scores: Scores, some: Rows, rows: int, rest: Floats | None) -> Iterator[tuple[int, Reals]]:
    for first in range(0, rows, BLOCK):
        stop = min(first + BLOCK, rows)
        block = scores(some, first, stop)
        mine = np.flatnonzero((some >= first) & (some < stop))
        mine = mine if rest is None else mine[rest[some[mine]] == 0]
        block[mine, some[mine] - first] = -np.inf
        yield first, block


class _State:
    """The sums for some items, over the blocks of scores so far."""

    def __init__(
        self,
        asked: Rows,
        values: Reals,
        temperatures: Floats,
        most: int,
        shares: Floats | None,
        rest: Floats | None,  # the share of an item that still answers when it is asked itself
    ) -> None:
        self.asked, self.values, self.temperatures, self.shares, self.rest = asked, values, temperatures, shares, rest
        shape = len(temperatures), len(asked)
        self.labels = values.ndim == 1
        self.peak, self.mass = np.full(len(asked), -np.inf), np.zeros(shape)
        # The items whose label another item has, or, where values are not labels, for which there is another item.
        self.known = np.zeros(len(asked), np.bool_)
        # For labels only the mass of the right one.
        self.total = np.zeros((*shape, 1 if self.labels else values.shape[1]))
        self.best = np.full((len(asked), most), -np.inf, np.float32)
        self.best_rows = np.zeros((len(asked), most), np.int64)

    def add(self, first: int, block: Reals) -> None:
        """Add the next block of scores, (b, n)."""
        if self.best.shape[1]:
            self._keep_best(first, block)
        here = slice(first, first + block.shape[1])
        right = self.values[self.asked][:, None] == self.values[here] if self.labels else None
        there = block > -np.inf
        self.known |= (there if right is None else right & there).any(1)
        fresh = np.maximum(self.peak, block.max(1))
        base = np.where(np.isfinite(fresh), fresh, 0.0)
        kept = np.exp((self.peak - base) / self.temperatures[:, None])  # (t, b)
        self.mass *= kept
        self.total *= kept[..., None]
        self.peak = fresh
        self._weigh(
            block - base[:, None].astype(block.dtype), here, None if right is None else right.astype(block.dtype)
        )

    def _weigh(self, block: Reals, rows: slice, right: Reals | None) -> None:
        """Add a block of scores, relative to the peak, at all temperatures."""
        shares = None if self.shares is None else self._shares(rows).astype(block.dtype)
        weights = np.empty_like(block)
        for number, temperature in enumerate(self.temperatures.tolist()):
            np.multiply(block, block.dtype.type(1.0 / temperature), out=weights)
            np.exp(weights, out=weights)
            if shares is not None:
                weights *= shares
            self.mass[number] += weights.sum(1)
            if right is None:
                self.total[number] += weights @ self.values[rows]
            else:
                self.total[number, :, 0] += np.einsum("bn,bn->b", weights, right)

    def _shares(self, rows: slice) -> Floats:
        """How much each row counts for each item asked, (b, n)."""
        assert self.shares is not None
        assert self.rest is not None
        found = np.tile(self.shares[rows], (len(self.asked), 1))
        mine = np.flatnonzero((self.asked >= rows.start) & (self.asked < rows.stop))
        found[mine, self.asked[mine] - rows.start] *= self.rest[self.asked[mine]]
        return found

    def _keep_best(self, first: int, block: Reals) -> None:
        scores = np.concatenate([self.best, block], axis=1)
        rows = np.concatenate([self.best_rows, np.broadcast_to(np.arange(block.shape[1]) + first, block.shape)], axis=1)
        most = self.best.shape[1]
        places = np.argpartition(-scores, most - 1, axis=1)[:, :most]
        self.best, self.best_rows = (np.take_along_axis(x, places, axis=1) for x in (scores, rows))

    def log_masses(self) -> Floats:
        """The log mass of each item, (t, b)."""
        with np.errstate(divide="ignore"):
            found: Floats = self.peak / self.temperatures[:, None] + np.log(self.mass)
        return found

    def losses(self) -> Floats:
        """The loss of each item, (t, b); meaningless for items that are not in `known`."""
        if self.labels:
            with np.errstate(divide="ignore", invalid="ignore"):
                found: Floats = np.log(self.mass) - np.log(self.total[..., 0])
            return np.clip(found, 0.0, -np.log(LEAST))  # a loss below 0 is only rounding
        with np.errstate(invalid="ignore"):
            off = self.total / self.mass[:, :, None] - self.values[self.asked]
        return np.asarray((off * off).sum(2), np.float64)

    def losses_of_best(self, k: int) -> Floats:
        """The losses by the k best rows alone; a label that none of them has weighs LEAST."""
        order = np.argsort(-self.best, axis=1)[:, :k]
        scores: Reals = np.take_along_axis(self.best, order, axis=1)
        rows: Rows = np.take_along_axis(self.best_rows, order, axis=1)
        found = np.empty((len(self.temperatures), len(self.asked)))
        for number, temperature in enumerate(self.temperatures.tolist()):
            with np.errstate(invalid="ignore"):
                weights = np.exp((scores - scores[:, :1]).astype(np.float64) / temperature)
            weights /= weights.sum(1, keepdims=True)
            if self.labels:
                right = (weights * (self.values[rows] == self.values[self.asked][:, None])).sum(1)
                found[number] = -np.log(np.maximum(right, LEAST))
            else:
                blended = np.matmul(weights[:, None, :], self.values[rows])[:, 0, :]
                found[number] = np.square(blended - self.values[self.asked]).sum(1)
        return found
