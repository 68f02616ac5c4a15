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
    """The k highest logits so far, and their rows, in the order of the rows; (-inf, -1) where there are fewer than k.

    They are put in order once, at the end: sorting them block by block takes longer than all the rest.
    """

    logits: Array  # (..., b, k)
    rows: Array  # (..., b, k)

    def offer(self, logits: Array, peak: Array, first: int) -> "Ranking":
        """The ranking after one more block, (..., b, n) with its maxima (..., b), whose first row has this number."""
        if not self.rows.shape[-1]:
            return self
        # Most blocks hold nothing new for most queries, and their peaks say so.
        hopeful = peak > _lowest(library_of(logits), self.logits)
        return self._with(logits.reshape(-1, logits.shape[-1]), hopeful.reshape(-1), first) if hopeful.any() else self

    def in_order(self) -> "Ranking":
        """The highest logits first, of equal ones the first row."""
        library = library_of(self.logits)
        order = library.descending(library.constant(self.logits))
        return Ranking(library.take_along(self.logits, order, -1), library.take_along(self.rows, order, -1))

    def _with(self, block: Array, hopeful: Array, first: int) -> "Ranking":
        """The ranking after a block (b, n) in which some queries (b,) find a row among their best."""
        library, k = library_of(block), self.rows.shape[-1]
        best, rows = self.logits.reshape(-1, k), self.rows.reshape(-1, k)
        queries = library.true_indices(hopeful)
        if 2 * len(queries) > len(block):  # to copy most of a block would cost more than to look at all of it
            better, numbers = _best_of(best, rows, block, first)
        else:
            some = _best_of(best[queries], rows[queries], block[queries], first)
            better, numbers = (
                library.put(library.copy(x), queries, fresh) for x, fresh in zip((best, rows), some, strict=True)
            )
        return Ranking(better.reshape(self.logits.shape), numbers.reshape(self.rows.shape))


def _best_of(best: Array, rows: Array, block: Array, first: int) -> tuple[Array, Array]:
    """The k highest of what was best, (b, k) with its rows, and of a block (b, n): (b, k) twice, in that order."""
    library, (count, width), k = library_of(block), block.shape, best.shape[-1]
    plain = library.constant(best)
    if k <= width and (width < STRIP * k or count == 1) and not (plain > NEVER).any():
        places = _highest(library, block, k)
        better = block.reshape(-1)[places].reshape(count, k)
        return better, library.where(better > NEVER, (places % width).reshape(count, k) + first, -1)
    found = library.true_indices(_promising(library, plain, library.constant(block)).reshape(-1))
    places, widest = _side_by_side(found // width, count)

    def beside(known: Array, fresh: Array, none: float) -> Array:
        room = library.put(library.full((count * widest,), none, like=fresh), places, fresh)
        return library.join([known, room.reshape(count, widest)], -1).reshape(-1)

    candidates = beside(best, block.reshape(-1)[found], NEVER)
    chosen = _highest(library, candidates.reshape(count, k + widest), k)
    numbers = beside(rows, found % width + first, -1)
    return candidates[chosen].reshape(count, k), numbers[chosen].reshape(count, k)


def _highest(library: Library, candidates: Array, k: int) -> Array:
    """The flat places of the k highest of each line, (b, n) -> (b x k,), as they stand; of equal ones the first."""
    candidates = library.constant(candidates)
    least = library.kth_largest(candidates, k)[:, None]
    places = library.true_indices((candidates >= least).reshape(-1))
    if len(places) == len(candidates) * k:
        return places
    above, level = candidates > least, candidates == least
    first = level.cumsum(-1) <= k - above.sum(-1)[:, None]
    return library.true_indices((above | (level & first)).reshape(-1))


def _lowest(library: Library, logits: Array) -> Array:
    return -library.largest(-library.constant(logits))


def no_ranking(logits: Array, k: int) -> Ranking:
    """The ranking before any block, for logits of this shape."""
    library = library_of(logits)
    shape = (*logits.shape[:-1], k)
    rows = library.full(shape, -1, like=library.indices(0, 1, like=logits))
    return Ranking(library.full(shape, NEVER, like=logits), rows)


def _promising(library: Library, best: Array, block: Array) -> Array:
    """Where a block may hold one of the best k, and at few other places: (b, k), (b, n) -> (b, n)."""
    k, worst = best.shape[-1], _lowest(library, best)[:, None]
    if block.shape[-1] < STRIP * k or (worst > NEVER).all():
        return block > worst
    # The k highest peaks of strips are k rows, so whatever is below the last of them is not among the best k, and of
    # what equals it the first k are enough.
    # A strip takes rows at equal steps: maxima of neighbours take NumPy ten times as long.
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
