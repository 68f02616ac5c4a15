"""Scores that fall with the distance between a query and a key: gaussian, and those of each difference.

Computing squared distances from lengths and a dot product is fast, but digits cancel. How many can be lost is known,
and rows where it would show are scored again from the differences of the vectors.

Does not say what kinds of scores there are (compatibility.py).

Shapes: b queries, n rows of a block, d key width; "..." is any leading axes, such as heads.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from softkv.maths.arrays import check_widths, columns_where, inner, library_of, sharpened
from softkv.maths.library import Array, Library, Sharpness

# A block of keys and the number of its first row (for messages) -> logits that the caller may overwrite. Where scores
# cancel, also which rows are seen by which queries, (..., b or 1, n), or None for all, and what is added to the logits
# later, as large, or None for nothing: both decide which rows are the best.
Scorer: TypeAlias = Callable[..., Array]  # (..., n, d) -> (..., b, n)

COPIED = 1 << 21  # the most numbers of keys that are copied at once
PAIRED = 1 << 20  # numbers held at once where every query meets every key in full width
NARROW = 512  # numbers whose sum of squares loses no more digits than one of few
ORDINARY, FARTHEST = 16, 120  # exponents of √T: up to the first squares are safe; beyond the last float32 ends
HEAVY = 40.0  # a row whose logit is this far below the peak weighs nothing
SCATTERED = 16  # rows are scored again one by one where at most one in this many has to be


def gaussian(queries: Array, sharpness: Sharpness) -> Scorer:
    """Gaussians of keys of which no lengths are known."""
    library = library_of(queries)
    # Squares of very small or large vectors would leave the floating type. In a unit near √T they do not where it
    # matters; the unit is a power of two, so dividing by it rounds nothing.
    unit = _unit(library, sharpness)
    sharpness = sharpness * unit * unit
    down, up = min(1.0, 1.0 / unit), max(1.0, 1.0 / unit)
    queries = _times(queries, down)

    def score(keys: Array, _first: int, seen: Array | None = None, added: Array | None = None) -> Array:
        check_widths(queries, keys)
        keys = _times(keys, down)
        # q·k - ½‖k‖² - ½‖q‖² cancels far from the origin, so both are moved to the mean of the block first. That
        # changes no distance, and what is left to cancel is no larger than the distances themselves.
        centre = library.constant(keys.mean(-2)[..., None, :])
        asked, stored = _times(queries - centre, up), _times(keys - centre, up)
        half_asked = library.multiply_total(asked, asked)[..., :, None] * 0.5
        half_stored = library.multiply_total(stored, stored)[..., None, :] * 0.5
        logits = library.spend_minus(inner(asked, stored), half_stored)
        logits = sharpened(library.spend_minus(logits, half_asked), sharpness, spend=True)
        cancelled = sharpened(half_asked + _row_largest(library, half_stored), sharpness)
        near = _near(library, logits, _doubts(library, cancelled, keys), seen, added)
        return logits if near is None else _by_difference(logits, columns_where(near), queries, keys, sharpness, up)

    return score


def gaussian_by_halves(halves: Array, queries: Array, sharpness: Sharpness) -> Scorer:
    """Gaussians of keys of which ½‖k‖² is known, (n,): a dot product, as long as it loses nothing that shows.

    Where ½(‖q‖ + ‖k‖)² is s at most, the three terms of a score and their sum are rounded by no more than 8us + O(ds/N)
    in all, u = 2⁻²⁴: twice for each of the squares, of which one comes from a length that was rounded, and as often as
    BLAS does for the product, which is what `_doubts` allows it. Rows near the best one are scored by differences where
    that could show; if these are many, or the unit of the squares is not ordinary, all are scored as without ½‖k‖².
    """
    library, plain = library_of(queries), gaussian(queries, sharpness)
    asked = library.multiply_total(queries, queries)[..., :, None] * 0.5
    ordinary = queries.ndim == 2 and _unit(library, sharpness) == 1.0

    def score(keys: Array, first: int, seen: Array | None = None, added: Array | None = None) -> Array:
        check_widths(queries, keys)
        own = library.cast(halves[first : first + keys.shape[-2]], queries.dtype)[None, :]
        size = (asked**0.5 + _row_largest(library, own) ** 0.5) ** 2
        doubts = _doubts(library, sharpened(size, sharpness), keys)
        if not ordinary or not bool((doubts < HEAVY).all()):
            return _piecewise(plain, keys, first, seen, added)
        logits = library.spend_minus(library.spend_minus(inner(queries, keys), own), asked)
        logits = sharpened(logits, sharpness, spend=True)
        near = _near(library, logits, doubts, seen, added)
        if near is None:
            return logits
        places = library.true_indices(near.reshape(-1))
        if len(places) * SCATTERED > near.shape[0] * near.shape[1]:
            return _piecewise(plain, keys, first, seen, added)
        return _at_places(library, logits, places, queries, keys, sharpness)

    return score


def _piecewise(scorer: Scorer, keys: Array, first: int, seen: Array | None, added: Array | None) -> Array:
    """The logits of a block by a scorer that makes copies of keys, so many at a time that these stay in the cache."""
    step, count = max(1, library_of(keys).at_once(keys, COPIED) // keys.shape[-1]), keys.shape[-2]
    pieces = [slice(start, start + step) for start in range(0, max(count, 1), step)]
    parts = [
        scorer(keys[..., x, :], first + x.start, *(None if one is None else one[..., x] for one in (seen, added)))
        for x in pieces
    ]
    return parts[0] if len(parts) == 1 else library_of(keys).join(parts, -1)


def _unit(library: Library, sharpness: Sharpness) -> float:
    """A power of two near the root of the temperature; 1 where that is ordinary, which costs no multiplication."""
    middle = sharpness
    if not isinstance(sharpness, float):
        some = library.constant(sharpness).reshape(-1)
        if not len(some):
            return 1.0  # no query has a temperature
        middle = float(library.largest(some)) ** 0.5 * (-float(library.largest(-some))) ** 0.5
    exponent = -(math.frexp(middle)[1] // 2)
    return 1.0 if abs(exponent) <= ORDINARY else 2.0 ** max(-FARTHEST, min(FARTHEST, exponent))


def _times(x: Array, factor: float) -> Array:
    return x if factor == 1.0 else x * factor


def _row_largest(library: Library, x: Array) -> Array:
    return library.largest(library.constant(x))[..., None]


def _by_difference(
    logits: Array, columns: Array, queries: Array, keys: Array, sharpness: Sharpness, up: float
) -> Array:
    """Logits (..., b, n) with those of some rows scored once more as -½‖q-k‖²."""
    library = library_of(logits)

    def pairs(some: Array) -> Array:
        apart = _times(queries[..., :, None, :] - some[..., None, :, :], up)
        return library.multiply_total(apart, apart) * -0.5

    # The differences are those of the raw vectors: moved ones are rounded already.
    fresh = in_parts(pairs, queries, keys[..., columns, :])
    return library.put_columns(logits, columns, sharpened(fresh, sharpness, spend=True))


def _doubts(library: Library, size: Array, keys: Array) -> Array:
    """The largest error of a logit in which terms of this size cancelled."""
    epsilon = library.epsilon(library.constant(size).dtype)
    return library.constant(size) * (4 * epsilon * max(1.0, keys.shape[-1] / NARROW))


def _near(library: Library, logits: Array, doubts: Array, seen: Array | None, added: Array | None) -> Array | None:
    """Which rows may be near the best that is seen, (..., b, n); None where no logit is wrong enough to show.

    Near is what is near once all is `added`: a row that a bias pushes out is not the best.

    Rows that are certainly forty logits below it weigh nothing even in float64, and keep the score they have.
    """
    if not (doubts > library.epsilon(logits.dtype) ** 0.5).any():
        return None
    plain = library.constant(logits)
    if added is not None:
        plain = plain + library.constant(added)
        there = plain > -math.inf
        seen = there if seen is None else seen & there
    if seen is None:
        return plain >= _row_largest(library, plain) - 2 * doubts - HEAVY
    best = _row_largest(library, library.where(seen, plain, -math.inf))
    return seen & (plain >= best - 2 * doubts - HEAVY)


def _at_places(
    library: Library, logits: Array, places: Array, queries: Array, keys: Array, sharpness: Sharpness
) -> Array:
    """Logits (b, n) with those at flat places scored once more as -½‖q-k‖²."""
    count, step = keys.shape[0], max(1, library.at_once(keys, PAIRED) // keys.shape[1])
    for start in range(0, len(places), step):
        some = places[start : start + step]
        apart = queries[some // count] - keys[some % count]
        sharp = sharpness if getattr(sharpness, "ndim", 0) == 0 else sharpness[some // count, 0]
        fresh = sharpened(library.multiply_total(apart, apart) * -0.5, sharp)
        logits = library.put(logits.reshape(-1), some, fresh).reshape(logits.shape)
    return logits


def by_differences(measure: Callable[[Array], Array], queries: Array, sharpness: Sharpness) -> Scorer:
    """Scores that `measure` makes of the difference of every query and every key, (..., b, n, d) -> (..., b, n)."""

    def pairs(some: Array) -> Array:
        return measure(queries[..., :, None, :] - some[..., None, :, :])

    def score(keys: Array, _first: int) -> Array:
        check_widths(queries, keys)
        return sharpened(in_parts(pairs, queries, keys), sharpness, spend=True)

    return score


def in_parts(pairs: Callable[[Array], Array], asked: Array, rows: Array) -> Array:
    """Scores that need every pair in full width, a few rows at a time: (..., b, a) x (..., n, a) -> (..., b, n)."""
    leading = math.prod(np.broadcast_shapes(tuple(asked.shape[:-2]), tuple(rows.shape[:-2])))
    held = library_of(asked).at_once(asked, PAIRED)
    step = max(1, held // max(1, leading * asked.shape[-2] * asked.shape[-1]))
    count = rows.shape[-2]
    parts = [pairs(rows[..., start : start + step, :]) for start in range(0, max(count, 1), step)]
    return parts[0] if len(parts) == 1 else library_of(asked).join(parts, -1)
