"""Which rows count most? A running top-k over blocks of logits.

Equal logits keep the order of their rows, so the same lookup always names the same rows.

Does not weigh: what share of the mass a row holds is known only after all blocks are seen.

Shapes: b queries, n rows of the block, k rows kept; "..." is any leading axes, such as heads.
"""

from dataclasses import dataclass

from softkv.maths.arrays import library_of
from softkv.maths.library import Array, Library
from softkv.maths.weighting import NEVER

STRIP = 64  # rows of which only the highest is looked at first


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The k highest logits so far, highest first, and their rows; (-inf, -1) where there are fewer than k."""

    logits: Array  # (..., b, k)
    rows: Array  # (..., b, k)

    def offer(self, logits: Array, peak: Array, first: int) -> "Ranking":
        """The ranking after one more block, (..., b, n) with its maxima (..., b), whose first row has this number."""
        if not self.rows.shape[-1]:
            return self
        # Most blocks hold nothing new for most queries, and their peaks say so.
        hopeful = peak > library_of(logits).constant(self.logits)[..., -1]
        return self._with(logits.reshape(-1, logits.shape[-1]), hopeful.reshape(-1), first) if hopeful.any() else self

    def _with(self, block: Array, hopeful: Array, first: int) -> "Ranking":
        """The ranking after a block (b, n) in which some queries (b,) find a row among their best."""
        library, k = library_of(block), self.rows.shape[-1]
        best, rows = self.logits.reshape(-1, k), self.rows.reshape(-1, k)
        queries = library.true_indices(hopeful)
        if 2 * len(queries) > len(block):  # to copy most of a block would cost more than to look at all of it
            queries = library.indices(0, len(block), like=block)
        else:
            block = block[queries]
        better, numbers = _best_of(best[queries], rows[queries], block, first)
        return Ranking(
            library.put(library.copy(best), queries, better).reshape(self.logits.shape),
            library.put(library.copy(rows), queries, numbers).reshape(self.rows.shape),
        )


def _best_of(best: Array, rows: Array, block: Array, first: int) -> tuple[Array, Array]:
    """The k highest of what was best, (b, k) with its rows, and of a block (b, n): (b, k) twice."""
    library, (count, width) = library_of(block), block.shape
    found = library.true_indices(_promising(library, library.constant(best), library.constant(block)).reshape(-1))
    places, widest = _side_by_side(found // width, count)

    def beside(known: Array, fresh: Array, none: float) -> Array:
        room = library.put(library.full((count * widest,), none, like=fresh), places, fresh)
        return library.join([known, room.reshape(count, widest)], -1)

    candidates = beside(best, block.reshape(-1)[found], NEVER)
    numbers = beside(rows, found % width + first, -1)
    order = library.descending(library.constant(candidates))[:, : best.shape[-1]]
    return library.take_along(candidates, order, -1), library.take_along(numbers, order, -1)


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
    # A strip is every so-manieth row: maxima of neighbours take NumPy ten times as long.
    strips = block[:, : block.shape[-1] // STRIP * STRIP].reshape(block.shape[0], STRIP, -1)
    least = library.kth_largest(library.largest(strips.swapaxes(-1, -2)), k)[:, None]
    level = block == least
    if (level.sum(-1) > k).any():
        level = level & (level.cumsum(-1) <= k)
    return (block > worst) & ((block > least) | level)


def _side_by_side(owners: Array, count: int) -> tuple[Array, int]:
    """Where entries, in the order of their owners, go in a flat (count, widest) with one line for each; and widest."""
    library = library_of(owners)
    counts = library.counts(owners, count)
    widest = int(counts.max())
    within = library.indices(0, len(owners), like=owners) - (counts.cumsum(0) - counts)[owners]
    return owners * widest + within, widest
