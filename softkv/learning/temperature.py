"""A temperature for a store that was never tuned: the one at which about ten items contribute to an answer.

Some items are left out, one at a time, and looked up in the others. The effective number of rows in the answer grows
with the temperature, from 1 to all of them; the rule chooses the temperature at which the median of these numbers is
min(10, n / 4), but at least about 2. This works for scores of any scale; for cosines, where T = 1 is nearly uniform, it
gives about 0.05.

The gaps between the best score and the others are counted in a histogram of logarithmic bins, so that two passes over
the keys suffice for all temperatures; a bin is less than 0.7% wide, which limits the error of the temperature.

No temperature is so low that rounding tells apart items whose scores are equal, such as cosines of one direction. Where
items with equal keys alone reach the number wanted, as hours of the day do, each key counts once, however many have it.

Does not look at the values: tuning.py chooses by how well they are predicted.

Shapes: b items asked, n rows of a block, d key width.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.ndarrays import Flags, Floats, Matrix, Reals

ASKED, FEWEST_ASKED = 256, 64  # items that are left out and asked; fewer in large stores, but at least FEWEST_ASKED
SCORED = 1 << 24  # most pairs that are compared, unless FEWEST_ASKED items need more
LOOKED_AT = 8  # columns of a key from which its random number is drawn, unless they are equal for many keys
WANTED = 10.0  # the effective number that is aimed at
FEWEST = 2.0  # its lower limit, for stores of few items
ROUNDINGS = 4.0  # of a score, in the lowest temperature: they move an answer by about a hundredth of its spread
PRODUCTS = "dot", "cosine"  # forms whose scores are rounded like their terms; distances of equal vectors are exactly 0
BINS = 4096
SPAN = np.log(1e12)  # logarithmic range of the bins: gaps below 1e-12 of the largest count as 0
HALVINGS = 32  # bisections of the range of log temperatures, which leave an error of about 1e-8
BLOCK = 1 << 14
ORDINARY, FARTHEST = 30, 500  # exponents of two whose squares are safe in float32, and in float64

ScoredBlocks = Callable[[], Iterator[tuple[Floats, Flags]]]


def typical_temperature(
    keys: Matrix,
    live: Flags,
    compatibility: str | Compatibility,
    *,
    unit: float | None = None,
    asked: npt.NDArray[np.int64] | None = None,
) -> float | None:
    """The temperature for the live rows of keys (n, d), or None when all their scores are equal but for rounding.

    `unit` is `unit_of_scores`, if known; `asked` are the rows to leave out and ask, otherwise drawn by their keys.

    >>> keys = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    >>> found = typical_temperature(keys, np.ones(200, bool), "cosine")
    >>> found is not None and 0.02 < found < 0.3
    True
    """
    rows = np.flatnonzero(live)
    if len(rows) < 2:
        return None
    chosen = asked_of(keys, rows, 0, SCORED) if asked is None else asked
    compared = compatibility_of(compatibility)
    unit = unit_of_scores(keys, live, compared) if unit is None else unit
    scores = _left_out(keys, live, compared, chosen, unit)
    with np.errstate(over="ignore", invalid="ignore"):
        best, worst = _extremes(scores, len(chosen))
        gaps = _gaps(scores, best, worst, keys.shape[1])
    if gaps is None:
        return None
    sizes, counts = gaps
    wanted = min(WANTED, max(len(rows) / 4, min(FEWEST, 1 + (len(rows) - 1) / 4)))
    low, high = np.log(sizes[1]) - 5.0, np.log(sizes[-1]) + 5.0
    finest = _finest(best, keys) if compared.form in PRODUCTS else 0.0
    if float(np.median(_effective(sizes, counts, max(float(np.exp(low)), finest)))) >= wanted:
        # At the temperature found below, an item would see its copies alone, and other queries the nearest key alone.
        distinct = _distinct(keys, rows)
        found = typical_temperature(keys, distinct, compatibility, unit=unit) if distinct.sum() < len(rows) else None
        if found is not None:
            return found
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if float(np.median(_effective(sizes, counts, float(np.exp(middle))))) < wanted:
            low = middle
        else:
            high = middle
    return max(float(np.exp(high)), finest) * unit


def finest_temperature(
    keys: Reals, live: Flags | None, compared: Compatibility, asked: npt.NDArray[np.int64], unit: float
) -> float:
    """The lowest temperature at which scores of items like those asked count for more than their rounding; or 0."""
    if compared.form not in PRODUCTS:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        best, _ = _extremes(_left_out(keys, live, compared, asked, unit), len(asked))
        return _finest(best, keys) * unit


def _finest(best: Floats, keys: Reals) -> float:
    """The lowest temperature for items whose best scores are these sums of products."""
    size = float(np.median(np.abs(best)))  # of many items; the largest could be that of a single one far away
    return ROUNDINGS * _rounding(size, keys.shape[1], keys.dtype) if math.isfinite(size) else 0.0


def _rounding(size: float, width: int, kind: npt.DTypeLike) -> float:
    """How far rounding moves scores of this size, of keys of this width and type."""
    return float(np.finfo(np.dtype(kind)).eps) * (4 + math.sqrt(width)) * size


def _left_out(
    keys: Reals, live: Flags | None, compared: Compatibility, asked: npt.NDArray[np.int64], unit: float
) -> ScoredBlocks:
    """Blocks of scores (b, n) of the live rows, divided by the unit, and which of them are not the item's own."""
    # Of two items the other one gets all weight at any temperature, so with two an item is not left out.
    two = (len(keys) if live is None else np.count_nonzero(live)) <= 2
    own = np.full(len(asked), -1) if two else asked

    def scores() -> Iterator[tuple[Floats, Flags]]:
        scorer = compared.ask(keys[asked], 1.0 / unit)
        for start, alive, block in _blocks(keys, live):
            yield scorer(block, start).astype(np.float64), own[:, None] != (alive + start)[None, :]

    return scores


def asked_of(keys: Matrix, rows: npt.NDArray[np.int64], seed: int, scored: int) -> npt.NDArray[np.int64]:
    """A sample of these rows, to be left out and asked; a smaller one if there are many rows to compare with.

    It is drawn by the keys, not by their positions, so that it does not depend on the order of the rows.
    """
    count = min(len(rows), max(FEWEST_ASKED, min(ASKED, scored // len(rows))))
    width, factors = keys.shape[1], _factors(keys.shape[1], seed)
    for columns in (np.unique(np.linspace(0, width - 1, LOOKED_AT).astype(np.int64)), np.arange(width)):
        numbers = _drawn(keys, rows, columns, factors[columns])
        order = np.argpartition(numbers, count - 1)[:count]
        # If more rows share the last number drawn, these columns do not distinguish keys, so all columns are used.
        if np.count_nonzero(numbers <= numbers[order].max()) == count:
            break
    return rows[order[np.argsort(numbers[order], kind="stable")]]


def _distinct(keys: Matrix, rows: npt.NDArray[np.int64]) -> Flags:
    """One of these rows for each key that they have, (n,); keys are told apart by hashes of 64 bits."""
    # The rows of a large matrix take far longer to sort than one number each.
    width = keys.shape[1]
    _, first = np.unique(_drawn(keys, rows, np.arange(width), _factors(width, 0)), return_index=True)
    found = np.zeros(len(keys), np.bool_)
    found[rows[first]] = True
    return found


def _factors(width: int, seed: int) -> npt.NDArray[np.uint64]:
    """Random odd factors, one for each column of keys."""
    return np.random.default_rng(seed).integers(0, 1 << 63, width, np.uint64) | np.uint64(1)


def _drawn(
    keys: Matrix, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], factors: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """A pseudo-random number for each row, from the bits of its key in some columns."""
    found = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), BLOCK):
        bits = np.ascontiguousarray(keys[np.ix_(rows[start : start + BLOCK], columns)], np.float32).view(np.uint32)
        found[start : start + len(bits)] = (bits * factors).sum(1, dtype=np.uint64)
    found ^= found >> np.uint64(31)
    return found * np.uint64(0x9E3779B97F4A7C15)


def unit_of_scores(keys: Matrix, live: Flags | None, compared: Compatibility) -> float:
    """A power of two by which scores are divided to stay within float32; 1 if they do so anyway."""
    return unit_near(size_of(keys, live, compared)) ** compared.degree if compared.degree else 1.0


def size_of(keys: Matrix, live: Flags | None, compared: Compatibility) -> float:
    """The size of the keys that determines that of scores: their extent for distances, else their largest number."""
    low, high = np.full(keys.shape[1], np.inf), np.full(keys.shape[1], -np.inf)
    for _, _, block in _blocks(keys, live):
        low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
    return max(0.0, float((high / 2 - low / 2 if compared.rewrite is None else np.maximum(high, -low)).max()))


def unit_near(size: float) -> float:
    """A power of two near this size; 1 if squares of such numbers stay within float32 anyway."""
    exponent = math.frexp(size)[1]
    return 1.0 if size == 0 or abs(exponent) <= ORDINARY else 2.0 ** max(-FARTHEST, min(FARTHEST, exponent))


def _extremes(blocks: ScoredBlocks, asked: int) -> tuple[Floats, Floats]:
    """The best and the worst score of each item asked, (b,)."""
    best, worst = np.full(asked, -np.inf), np.full(asked, np.inf)
    for scores, others in blocks():
        best = np.maximum(best, np.where(others, scores, -np.inf).max(1))
        worst = np.minimum(worst, np.where(others, scores, np.inf).min(1))
    return best, worst


def _gaps(blocks: ScoredBlocks, best: Floats, worst: Floats, width: int) -> tuple[Floats, Floats] | None:
    """A histogram of the gaps below the best score: their sizes (BINS,), and counts for each item asked (b, BINS)."""
    asked = len(best)
    widest, largest = float((best - worst).max()), float(np.maximum(np.abs(best), np.abs(worst)).max())
    rounded = _rounding(largest, width, np.float32)
    # The scores are all equal but for rounding, or overflow, or are NaN.
    if not rounded < widest < np.inf:
        return None
    sizes = widest * np.exp((np.arange(BINS) + 0.5 - BINS) / BINS * SPAN)
    sizes[0] = 0.0
    counts = np.zeros(asked * BINS)
    first = (np.arange(asked) * BINS)[:, None]
    for scores, others in blocks():
        with np.errstate(divide="ignore", invalid="ignore"):
            depth = np.log(np.maximum(best[:, None] - scores, 0.0) / widest)
        place = np.clip((depth + SPAN) * (BINS / SPAN), 0, BINS - 1).astype(np.int64)
        counts += np.bincount((place + first)[others], minlength=len(counts))
    return sizes, counts.reshape(asked, BINS)


def _blocks(keys: Matrix, live: Flags | None) -> Iterator[tuple[int, npt.NDArray[np.int64], Reals]]:
    """For each block with live rows: its first row, the places of live rows in it, and their keys."""
    for start in range(0, len(keys), BLOCK):
        block = keys[start : start + BLOCK]
        alive = np.arange(len(block)) if live is None else np.flatnonzero(live[start : start + BLOCK])
        if len(alive):
            yield start, alive, block if len(alive) == len(block) else block[alive]


def _effective(sizes: Floats, counts: Floats, temperature: float) -> Floats:
    """The effective number of each item asked, (b,), from its histogram."""
    logits = np.maximum(-sizes / temperature, -700.0)
    weights = np.exp(logits)
    mass = counts @ weights
    effective: Floats = np.exp(np.log(mass) - counts @ (weights * logits) / mass)
    return effective
