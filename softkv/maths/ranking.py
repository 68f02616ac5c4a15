"""Which rows count most? A running top-k over blocks of logits.

Equal logits keep the order of their rows, so the same lookup always names the same rows.

Does not weigh: what share of the mass a row holds is known only after all blocks are seen.

Shapes: b queries, n rows of the block, k rows kept; "..." is any leading axes, such as heads.
"""

from dataclasses import dataclass

from softkv.maths.arrays import Array, Library, columns_where, library_of
from softkv.maths.weighting import NEVER


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
    k = best.shape[-1]
    plain = library.constant(block)
    columns = columns_where(plain > library.constant(best)[:, -1:])
    if len(columns) > 4 * k:
        # A sort is worth avoiding: the k-th highest of each query is found without one, and drops the other columns.
        least = library.kth_largest(plain[:, columns], k)
        columns = columns[columns_where(plain[:, columns] >= least[:, None])]
    candidates = library.join([best, block[:, columns]], -1)
    numbers = library.join([rows, library.spread_out(columns + first, (best.shape[0], len(columns)))], -1)
    order = library.descending(library.constant(candidates))[:, :k]
    return library.take_along(candidates, order, -1), library.take_along(numbers, order, -1)
