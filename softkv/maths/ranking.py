"""Which rows count most? A running top-k over blocks of logits.

Equal logits keep the order of their rows, so the same lookup always names the same rows.

Does not weigh: what share of the mass a row holds is known only after all blocks are seen.

Shapes: b queries, n rows of the block, k rows kept; "..." is any leading axes, such as heads.
"""

from dataclasses import dataclass

from softkv.maths.arrays import Array, Library, columns_where, library_of
from softkv.maths.weighting import NEVER

STRIP = 64  # rows of which only the highest is looked at first


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The k highest logits so far, highest first, and their rows; (-inf, -1) where there are fewer than k."""

    logits: Array  # (..., b, k)
    rows: Array  # (..., b, k)

    def offer(self, logits: Array, peak: Array, first: int) -> "Ranking":
        """The ranking after one more block, (..., b, n) with its maxima (..., b), whose first row has this number."""
        k = self.rows.shape[-1]
        if k == 0:
            return self
        library = library_of(logits)
        block, best, rows = logits.reshape(-1, logits.shape[-1]), self.logits.reshape(-1, k), self.rows.reshape(-1, k)
        # Most blocks hold nothing for most queries: looking at the peaks first spares a sort of every block.
        rising = library.true_indices(peak.reshape(-1) > library.constant(best)[:, -1])
        if not len(rising):
            return self
        better, better_rows = _top(library, best[rising], rows[rising], block[rising], first)
        return Ranking(
            library.put_rows(best, rising, better).reshape(self.logits.shape),
            library.put_rows(rows, rising, better_rows).reshape(self.rows.shape),
        )


def no_ranking(logits: Array, k: int) -> Ranking:
    """The ranking before any block, for logits of this shape."""
    library = library_of(logits)
    shape = (*logits.shape[:-1], k)
    rows = library.indices(0, 1, like=logits) - 1
    return Ranking(library.full(shape, NEVER, like=logits), library.copy(library.spread_out(rows, shape)))


def _top(library: Library, best: Array, rows: Array, block: Array, first: int) -> tuple[Array, Array]:
    """The k best of those known and those of a block, highest first, and their rows."""
    columns = _promising(library, library.constant(best)[:, -1:], library.constant(block), best.shape[-1])
    candidates = library.join([best, block[:, columns]], -1)
    numbers = library.join([rows, library.spread_out(columns + first, (best.shape[0], len(columns)))], -1)
    order = _highest(library, library.constant(candidates), best.shape[-1])
    return library.take_along(candidates, order, -1), library.take_along(numbers, order, -1)


def _promising(library: Library, worst: Array, block: Array, k: int) -> Array:
    """The columns that hold one of the best k of any query, and few others."""
    better = block > worst
    if block.shape[-1] >= STRIP * k:
        # The k highest peaks of strips are k rows, so whatever is below the last of them is not among the best k.
        strips = block[:, : block.shape[-1] // STRIP * STRIP].reshape(block.shape[0], -1, STRIP)
        better &= block >= library.kth_largest(library.largest(strips), k)[:, None]
    return columns_where(better)


def _highest(library: Library, candidates: Array, k: int) -> Array:
    """The places of the k highest in each row, highest first; of equals the first, first."""
    if candidates.shape[-1] <= 4 * k:
        return library.descending(candidates)[:, :k]
    # Where exactly k reach the k-th highest, as they do without ties, only those k have to be sorted.
    reach = candidates >= library.kth_largest(candidates, k)[:, None]
    if (reach.sum(-1) > k).any():
        return library.descending(candidates)[:, :k]
    places = library.true_indices(reach.reshape(-1)).reshape(-1, k) % candidates.shape[-1]
    return library.take_along(places, library.descending(library.take_along(candidates, places, -1)), -1)
