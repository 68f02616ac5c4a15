"""Which rows count most? A running top-k over blocks of logits.

Equal logits keep the order of their rows, so the same lookup always names the same rows.

Does not weigh: what share of the mass a row holds is known only after all blocks are seen.

Shapes: b queries, n rows of the block, k rows kept; "..." is any leading axes, such as heads.
"""

from dataclasses import dataclass

from softkv.maths.arrays import Array, Library, library_of
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
        if k == 0 or not (peak > library_of(logits).constant(self.logits)[..., -1]).any():
            return self  # most blocks hold nothing new, and their peaks say so
        return self._with(logits.reshape(-1, logits.shape[-1]), first)

    def _with(self, block: Array, first: int) -> "Ranking":
        library, k = library_of(block), self.rows.shape[-1]
        best, rows = self.logits.reshape(-1, k), self.rows.reshape(-1, k)
        columns, there = _places(_promising(library, library.constant(best), library.constant(block)))
        fresh = library.where(there, library.take_along(block, columns, -1), NEVER)
        candidates = library.join([best, fresh], -1)
        numbers = library.join([rows, library.where(there, columns + first, -1)], -1)
        order = library.descending(library.constant(candidates))[:, :k]
        return Ranking(
            library.take_along(candidates, order, -1).reshape(self.logits.shape),
            library.take_along(numbers, order, -1).reshape(self.rows.shape),
        )


def no_ranking(logits: Array, k: int) -> Ranking:
    """The ranking before any block, for logits of this shape."""
    library = library_of(logits)
    shape = (*logits.shape[:-1], k)
    rows = library.full(shape, -1, like=library.indices(0, 1, like=logits))
    return Ranking(library.full(shape, NEVER, like=logits), rows)


def _promising(library: Library, best: Array, block: Array) -> Array:
    """Where a block may hold one of the best k, and at few other places: (b, k), (b, n) -> (b, n)."""
    k, worst = best.shape[-1], best[:, -1:]
    if block.shape[-1] < STRIP * k or (worst > NEVER).all():
        return block > worst
    # The k highest peaks of strips are k rows, so whatever is below the last of them is not among the best k, and of
    # what equals it the first k are enough.
    strips = block[:, : block.shape[-1] // STRIP * STRIP].reshape(block.shape[0], -1, STRIP)
    least = library.kth_largest(library.largest(strips), k)[:, None]
    level = block == least
    return (block > worst) & ((block > least) | (level & (level.cumsum(-1) <= k)))


def _places(marked: Array) -> tuple[Array, Array]:
    """The marked columns of each row, in order, side by side, and where there is one: (b, n) -> (b, c), (b, c)."""
    library, width = library_of(marked), marked.shape[-1]
    counts = marked.sum(-1)
    widest = int(counts.max())
    flat = library.true_indices(marked.reshape(-1))
    row, numbers = flat // width, library.indices(0, max(widest, len(flat)), like=marked)
    within = numbers[: len(flat)] - (counts.cumsum(0) - counts)[row]
    columns = library.put(numbers[:1].repeat(len(marked) * widest), row * widest + within, flat % width)
    return columns.reshape(-1, widest), numbers[:widest] < counts[:, None]
