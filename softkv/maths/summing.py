"""Weights times values in float32, with errors too small to show in the answer.

BLAS is three times as fast in float32 as NumPy is in float64, and adds up in an order of its own. What it rounds must
not carry a mean past the outermost value. It does not

    where a few rows enclose the mean: it then lies in the hull of all, however it was rounded;
    where all but a share s of the mass is summed in float64. Let all values of a column lie below e, and sums of rows
    lose at most γ < ½ of each of their terms. A light row of weight w and value v then carries the sum past e by at
    most w (v - e + γ|v|), which is negative where |v| > 2|e|, and at most 2γw|e| elsewhere. The mean is past e by at
    most 2γs|e|, which rounding it to float32 takes away again where γs < 2⁻²⁶; with s < 2⁻³⁶ any γ < ½ will do.

Few rows are heavy where weights are sharp, and these are all that is read there. Where neither holds (a column that is
nearly constant), the means in question are summed in float64.

Does not merge blocks (blending.py), nor weigh rows (weighting.py).

Shapes: b queries, n rows of the block, p value width; "..." is any leading axes, such as heads.
"""

from collections.abc import Callable

from softkv.maths.arrays import library_of
from softkv.maths.library import Array, Library
from softkv.maths.weighting import Weights

RUN = 1024  # rows that one float32 may add up
LIGHT = 2.0**-36  # the share of the mass that all rows that are not heavy may have together
SPARSE = 16  # heavy rows are summed by themselves where at most one row in so many is
FAR = 2.0**11  # values within this many lengths of a mean, if light, move it by less than rounding does
WITNESSES = 256  # rows that are to enclose a mean
DOUBLED = 1 << 17  # numbers that are copied to float64 at once, which stay in the cache

Bound = Callable[[Array], Array | None]  # an upper bound of how far values are from means; None: read them


def summed(weights: Weights, array: Array, reach: Bound) -> tuple[Array, Array]:
    """The mass, (..., b), and the weighted sum, (..., b, p), of values in float32 (..., n, p); both in float64."""
    library = library_of(weights.weights)
    # The heaviest row weighs 1, so that all that are not heavy have at most LIGHT of the mass.
    heavy = few_above(weights.weights, LIGHT / weights.weights.shape[-1]) if array.ndim == 2 else None
    if heavy is None:
        return weights.mass, _enclosed_sum(library, weights, array)
    rows = library.true_indices(heavy)
    own = library.double(weights.weights[..., rows])
    mass, total = own.sum(-1), own @ library.double(array[rows])
    if _is_far_enough(library, mass, total, reach):
        return mass, total
    light = library.where(heavy, 0.0, weights.weights)
    return mass + library.double(library.total(light)), total + summed_in_runs(library, light, array)


def few_above(weights: Array, least: float) -> Array | None:
    """The rows whose weight for any query is above this, (..., b, n) -> (n,) flags; None where these are not few."""
    library = library_of(weights)
    weights, count = library.constant(weights), weights.shape[-1]
    if library.is_large_device(weights):
        return None
    step = max(1, count // WITNESSES)
    if _over_queries(weights[..., ::step] > least).sum() * step > count // 4:
        return None
    flags = _over_queries(weights > least)
    return flags if int(flags.sum()) * SPARSE <= count else None


def _over_queries(flags: Array) -> Array:
    """Whether a row has the flag of any query, (..., b, n) -> (n,)."""
    return flags.reshape(-1, flags.shape[-1]).any(0)


def _is_far_enough(library: Library, mass: Array, total: Array, reach: Bound) -> bool:
    """Whether light rows move no mean by more than half a rounding of its length, and need not be read."""
    mean = library.constant(total) / divisor(library.constant(mass))[..., None]
    apart = reach(mean)
    return apart is not None and bool(((apart <= length(mean) * FAR) | (mass == 0)).all())


def _enclosed_sum(library: Library, weights: Weights, array: Array) -> Array:
    """The sum in float32; where nothing shows that the mean is in the hull of the values, in float64."""
    total = summed_in_runs(library, weights.weights, array)
    outside = ~_enclosed(library, weights, array, library.constant(total) / divisor(weights.mass)[..., None])
    if not outside.any():
        return total
    if total.ndim > 2 or outside.all():
        return _scaled(weights.weights, weights.mass, array)
    queries, columns = library.true_indices(outside.any(-1)), library.true_indices(outside.any(-2))
    exact = _scaled(weights.weights[queries], weights.mass[queries], array[:, columns])
    return library.put(total, queries, library.put_columns(total[queries], columns, exact))


def _scaled(weights: Array, mass: Array, array: Array) -> Array:
    """The sum in float64, for the mass in float32: the mean is exact."""
    library = library_of(weights)
    exact = library.double(weights).sum(-1)
    return _doubled(library, weights, array) * (mass / divisor(exact))[..., None]


def _doubled(library: Library, weights: Array, array: Array) -> Array:
    """Weights times values in float64, a few rows at a time."""
    count, width = array.shape[-2:]
    step = max(1, library.at_once(array, DOUBLED) // max(1, width, weights.shape[-2]))
    total = library.double(weights[..., :step]) @ library.double(array[..., :step, :])
    for start in range(step, count, step):
        rows = slice(start, start + step)
        total = total + library.double(weights[..., rows]) @ library.double(array[..., rows, :])
    return total


def summed_in_runs(library: Library, weights: Array, array: Array) -> Array:
    """Weights times values in float32, in runs of rows whose sums are added in float64: (..., b, n) x (..., n, p).

    For a single query BLAS adds row after row to one float32: after 100,000 rows of values far from zero four digits
    are left of it. For several it goes by blocks of its own, and needs no help.
    """
    runs = weights.shape[-1] // RUN
    if weights.shape[-2] > 1 or runs < 2:
        return library.double(weights @ array)
    whole = runs * RUN
    cut = weights[..., 0, :whole].reshape(*weights.shape[:-2], runs, 1, RUN)
    total = library.double(cut @ array[..., :whole, :].reshape(*array.shape[:-2], runs, RUN, array.shape[-1])).sum(-3)
    return total + library.double(weights[..., whole:] @ array[..., whole:, :])


def _enclosed(library: Library, weights: Weights, array: Array, mean: Array) -> Array:
    """Whether a few rows enclose a mean, (..., b, p): some of all, and then the heaviest row of each query as well."""
    low, high = _bounds_of_some(library, weights, array)
    inside = (low <= mean) & (mean <= high)
    if array.ndim > 2 or inside.all():
        return inside
    heaviest = library.constant(array)[library.constant(weights.weights).argmax(-1)]
    below = (low <= mean) | (heaviest <= mean)
    above = (mean <= high) | (mean <= heaviest)
    return (below & above) | (weights.mass == 0)[..., None]


def _bounds_of_some(library: Library, weights: Weights, array: Array) -> tuple[Array, Array]:
    """The least and the greatest of the values of a few rows that all queries see, (..., 1, p) twice."""
    step = max(1, array.shape[-2] // WITNESSES)
    some = library.constant(array)[..., ::step, :]
    if weights.masked:  # what has a weight is seen
        seen = ~_over_queries(library.constant(weights.weights)[..., ::step] == 0)
        some = some[..., library.true_indices(seen), :]
    if not some.shape[-2]:
        nothing = library.constant(array)[..., :1, :] * 0
        return nothing + float("inf"), nothing - float("inf")
    low, high = library.bounds(some)
    return low[..., None, :], high[..., None, :]


def divisor(mass: Array) -> Array:
    """The mass, or 1 where there is none: the mean of no rows is of no consequence, but must be a number."""
    return library_of(mass).where(mass > 0, mass, 1.0)


def length(vectors: Array) -> Array:
    """The lengths of vectors, whatever their size: (..., b, p) -> (..., b)."""
    if not vectors.shape[-1]:
        return vectors.sum(-1)
    library = library_of(vectors)
    scale = library.largest(abs(vectors))
    scale = library.where(scale > 0, scale, 1.0)
    scaled = vectors / scale[..., None]
    return library.multiply_total(scaled, scaled) ** 0.5 * scale
