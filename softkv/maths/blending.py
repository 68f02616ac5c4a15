"""What is the average? Weights times values, one block of rows at a time.

A Blend is an average that has not been divided yet, so blends of disjoint rows merge exactly. That is all that full
scans, top-k, shards and GPUs have in common, and all they need.

Sums are held in float64. Rounding a float64 mean once, to the float32 of the values, cannot carry it past the outermost
value, so answers stay in the convex hull of the values without being clipped to it. (Means of float64 values are good
to a few units in the last place, and no more is promised of them.)

Does not choose rows or compute their weights.

Shapes: b queries, n rows of the block, p value width; "..." is any leading axes, such as heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from softkv.maths.arrays import library_of
from softkv.maths.library import Array, DType, Library
from softkv.maths.summing import DOUBLED, divisor, few_above, length, summed
from softkv.maths.weighting import NEVER, Weights, weigh

TOGETHER = 1 << 15  # numbers of several queries that are looked at together
CANCELLED = 2.0**-28  # a difference of sums of squares below this share of them is summed anew


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """The sums over some rows, relative to the highest logit among them. The blend of no rows is (-inf, 0, 0, 0)."""

    peak: Array  # (..., b), the highest logit
    mass: Array  # (..., b), the sum of e = exp(logit - peak)
    total: Array  # (..., b, p), the sum of e x value
    excess: Array | None  # (..., b), the sum of e x (logit - peak)
    square: Array | None = None  # (..., b, p), the sum of e x (value - mean)², for numbers

    @property
    def value(self) -> Array:
        """The weighted mean of the values."""
        return self.total / divisor(self.mass)[..., None]

    @property
    def log_mass(self) -> Array:
        """The logarithm of the sum of exp(logit) over all rows."""
        return self.peak + library_of(self.mass).log(self.mass)

    def shares(self, logits: Array) -> Array:
        """The shares of the mass that rows of these logits have, (..., b, s)."""
        # Not by `log_mass`: beside a peak of 1e16 it has no digits for how many rows are as high.
        library = library_of(self.mass)
        return library.exp(library.double(logits) - self.peak[..., None]) / self.mass[..., None]

    @property
    def effective(self) -> Array:
        """How many rows really contributed: exp of the entropy of the weights."""
        library = library_of(self.mass)
        assert self.excess is not None, "nobody asks for the effective number of rows that were weighed without it"
        return library.exp(library.log(self.mass) - self.excess / self.mass)

    @property
    def spread(self) -> Array | None:
        """The weighted standard deviation of numbers."""
        return None if self.square is None else (self.square / self.mass[..., None]) ** 0.5


def merge(left: Blend, right: Blend) -> Blend:
    """Combine blends of two disjoint sets of rows into the blend of them all."""
    peak = library_of(left.peak).maximum(left.peak, right.peak)
    left, right = _rebased(left, peak), _rebased(right, peak)
    return Blend(
        peak=peak,
        mass=left.mass + right.mass,
        total=left.total + right.total,
        excess=None if left.excess is None or right.excess is None else left.excess + right.excess,
        square=_joined_square(left, right),
    )


def _rebased(blend: Blend, peak: Array) -> Blend:
    """The sums of a blend, relative to another peak."""
    library = library_of(peak)
    peak = library.where(peak > NEVER, peak, 0.0)
    # Subtle: a blend of no rows has the peak -inf, and 0 x exp(-inf - -inf) would be NaN. Its sums are 0 at any peak.
    shift = library.where(blend.mass > 0, blend.peak, peak) - peak
    factor = library.exp(shift)
    return Blend(
        peak=peak,
        mass=blend.mass * factor,
        total=blend.total * factor[..., None],
        excess=None if blend.excess is None else (blend.excess + blend.mass * shift) * factor,
        square=None if blend.square is None else blend.square * factor[..., None],
    )


def _joined_square(left: Blend, right: Blend) -> Array | None:
    """The squares about the joint mean: those about each mean, and that of the means.

    The sum of e x value² would merge by addition, but its difference from the squared mean cancels: for times in
    seconds since 1970 nothing would be left of the spread.
    """
    if left.square is None or right.square is None:
        return None
    between = left.mass * right.mass / divisor(left.mass + right.mass)
    return left.square + right.square + (left.value - right.value) ** 2 * between[..., None]


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Values that are vectors: (..., n, p)."""

    array: Array
    within: tuple[Array, float] | None = None  # where known, a middle (p,) and a distance within which all values lie

    @property
    def dtype(self) -> DType:
        """The type of the mean."""
        return library_of(self.array).shared_float(self.array)

    def part(self, rows: slice) -> "Vectors":
        """The values of a run of rows."""
        return Vectors(library_of(self.array).cast(self.array[..., rows, :], self.dtype), self.within)

    def reach(self, mean: Array) -> Array | None:
        """An upper bound of how far these values are from means (..., b, p), (..., b); None where they must be read."""
        library = library_of(mean)
        mean = library.constant(mean)
        if self.within is not None:
            middle, radius = self.within
            return length(mean - middle) + radius
        if mean.shape[-2] == 1:
            return None
        low, high = map(library.double, library.bounds(library.constant(self.array)))
        return length(library.maximum(abs(mean - low[..., None, :]), abs(mean - high[..., None, :])))

    def gather(self, rows: Array) -> "Vectors":
        """The values of each query's own rows: (..., b, k) gives values with b as a leading axis."""
        return Vectors(library_of(self.array).cast(gather_rows(self.array, rows), self.dtype))

    def squares(self, centre: Array) -> Array:
        """The squared distances of the values from one, (n, p) and (p,) -> (n,)."""
        library = library_of(self.array)
        near = library.cast(centre, self.dtype)
        moved = library.cast(self.array, self.dtype) - near
        moved -= library.cast(centre - library.double(near), self.dtype)  # what rounding took from the centre
        return (moved * moved).sum(-1)

    def blend(self, weights: Weights) -> Blend:
        """The blend of these values."""
        library = library_of(weights.weights)
        if not self.array.shape[-1]:  # only the mass is asked for
            return Blend(weights.peak, weights.mass, library.double(weights.weights[..., :0]), weights.excess)
        if library.is_double(self.array) or library.is_double(weights.weights):
            double = library.double(weights.weights)
            return Blend(weights.peak, double.sum(-1), double @ library.double(self.array), weights.excess)
        mass, total = summed(weights, self.array, self.reach)
        return Blend(weights.peak, mass, total, weights.excess)


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Values that are single numbers, with their spread: (..., n, 1)."""

    array: Array

    @property
    def dtype(self) -> DType:
        """The type of the mean."""
        return library_of(self.array).shared_float(self.array)

    def part(self, rows: slice) -> "Numbers":
        """The values of a run of rows."""
        return Numbers(self.array[..., rows, :])

    def reach(self, mean: Array) -> None:
        """None: reading a column of numbers is as fast as finding its bounds."""

    def gather(self, rows: Array) -> "Numbers":
        """The values of each query's own rows."""
        return Numbers(gather_rows(self.array, rows))

    def squares(self, centre: Array) -> Array:
        """The squared distances of the numbers from one, (n, 1) and (1,) -> (n,)."""
        return (library_of(self.array).double(self.array[:, 0]) - centre[0]) ** 2

    def blend(self, weights: Weights) -> Blend:
        """The blend of these values, a few queries at a time: copies in float64 then stay in the cache."""
        (count, width), library = weights.weights.shape[-2:], library_of(weights.weights)
        step = max(1, library.at_once(weights.weights, DOUBLED) // max(1, width))
        if count <= step or weights.weights.ndim > 2:
            return self._blend(weights)
        some = [self._blend(weights.of(slice(start, start + step))) for start in range(0, count, step)]
        sums = [library.join([getattr(one, name) for one in some], 0) for name in ("mass", "total", "square")]
        return Blend(weights.peak, sums[0], sums[1], weights.excess, sums[2])

    def _blend(self, weights: Weights) -> Blend:
        library, some, array = library_of(weights.weights), weights.weights, self.array
        seen = few_above(some, 0.0) if array.ndim == 2 else None
        if seen is not None:  # the others add nothing
            rows = library.true_indices(seen)
            some, array = some[..., rows], array[rows]
        double, numbers = library.double(some), library.double(array)
        mass = double.sum(-1)
        means = library.constant(_product(library, double, numbers)) / divisor(library.constant(mass))[..., None]
        # Relative to the mean of the means, which one far value of little weight does not move.
        middle = (means.sum(-2) / max(1, means.shape[-2]))[..., None, :]
        apart = numbers - middle
        first, second = _product(library, double, apart), _product(library, double, apart * apart)
        total, square = middle * mass[..., None] + first, second - first * first / divisor(mass)[..., None]
        cancelled = library.true_indices((square < second * CANCELLED).reshape(-1))
        if len(cancelled):
            total, square = _about_own_means(library, double, numbers, means, total, square, cancelled)
        # The difference is a sum of squares: if rounding makes it negative, it is 0.
        return Blend(weights.peak, mass, total, weights.excess, library.maximum(square, 0.0))


def _product(library: Library, weights: Array, numbers: Array) -> Array:
    """Weights times numbers: (..., b, n) x (..., n, 1) -> (..., b, 1)."""
    if numbers.ndim > 2 or weights.shape[-2] > 1:
        return weights @ numbers
    # For a single query BLAS wakes its threads for a few numbers, which takes far longer than to add them up.
    return library.multiply_total(weights, numbers[:, 0])[..., None]


def _about_own_means(
    library: Library, weights: Array, numbers: Array, means: Array, total: Array, square: Array, queries: Array
) -> tuple[Array, Array]:
    """Sums and squares (..., b, 1), those of some queries (flat numbers) computed anew about each query's own mean.

    Where means differ by far more than the spreads around them, squares about one number for all queries cancel.
    Only a few queries are taken at a time, so that their numbers stay in the cache.
    """
    (count, width), shape = weights.shape[-2:], means.shape
    columns = library.spread_out(numbers, (*weights.shape[:-2], width, 1)).reshape(-1, width)
    weights, means = weights.reshape(-1, width)[queries], means.reshape(-1, 1)[queries]
    sums, squares, step = [], [], max(1, library.at_once(weights, TOGETHER) // max(1, width))
    for start in range(0, len(queries), step):
        some = slice(start, start + step)
        weight, own = weights[some], columns[queries[some] // count] - means[some]
        first, second = (library.multiply_total(weight, x)[:, None] for x in (own, own * own))
        mass = weight.sum(-1)[:, None]
        sums.append(means[some] * mass + first)
        squares.append(second - first * first / mass)

    def with_those(known: Array, fresh: list[Array]) -> Array:
        return library.put(library.copy(known.reshape(-1, 1)), queries, library.join(fresh, 0)).reshape(shape)

    return with_those(total, sums), with_those(square, squares)


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Values that are one of `count` labels, by code: (..., n) integers. They blend into a distribution."""

    array: Array
    count: int
    order: Array | None = None  # a permutation of all codes for the blend; None keeps the order of the codes

    @property
    def dtype(self) -> DType:
        """None: shares have the type of the weights."""
        return None

    def part(self, rows: slice) -> "Labels":
        """The values of a run of rows."""
        return Labels(self.array[..., rows], self.count, self.order)

    def reach(self, mean: Array) -> Array:
        """The largest distance of values, √2: that of one label from another."""
        return library_of(mean).constant(mean)[..., 0] * 0.0 + 2.0**0.5

    def gather(self, rows: Array) -> "Labels":
        """The values of each query's own rows."""
        return Labels(gather_rows(self.array[..., None], rows)[..., 0], self.count, self.order)

    def squares(self, shares: Array) -> Array:
        """The squared distances of the labels, each as a vector with one 1, from such shares, (n,) and (p,) -> (n,)."""
        own, library = shares, library_of(shares)
        if self.order is not None:
            own = library.put(library.copy(shares), self.order, shares)
        return 1.0 - 2.0 * own[self.array] + (shares * shares).sum()

    def blend(self, weights: Weights) -> Blend:
        """The blend of these values."""
        # Summed by code: a one-hot matrix would hold `count` numbers for every row.
        total = library_of(weights.weights).sums_by_code(self.array, weights.weights, self.count)
        total = total if self.order is None else total[..., self.order]
        return Blend(weights.peak, total.sum(-1), total, weights.excess)


Values: TypeAlias = Vectors | Numbers | Labels  # what is blended, in the form its sums are taken


def blend_of_rows(values: Values, rows: Array, logits: Array) -> Blend:
    """The blend of each query's own rows, (..., b, k) with their logits; -1 and -inf where there are fewer."""
    library = library_of(logits)
    own = library.copy(logits[..., None, :])  # (..., b, 1, k)
    weights = weigh(own, library.largest(library.constant(own)), masked=True)
    blend = values.gather(rows).blend(weights)
    square = None if blend.square is None else blend.square[..., 0, :]
    excess = None if blend.excess is None else blend.excess[..., 0]
    return Blend(blend.peak[..., 0], blend.mass[..., 0], blend.total[..., 0, :], excess, square)


def gather_rows(x: Array, rows: Array) -> Array:
    """Rows of x by number, -1 for none (any row will do): (..., n, p) at (..., b, k) -> (..., b, k, p)."""
    library = library_of(x)
    rows = library.maximum(rows, 0)
    if x.ndim == 2:
        return x[rows]
    index, source = rows[..., None], x[..., None, :, :]
    shape = (*index.shape[:-1], x.shape[-1])
    leading = (*index.shape[:-2], *source.shape[-2:])
    return library.take_along(library.spread_out(source, leading), library.spread_out(index, shape), -2)


def adds_nothing(blend: Blend, weights: Weights, values: Callable[[], Values], *, share: float) -> bool:
    """Whether a block would move no mean by more than this share of its length, so that it need not be blended.

    A block moves a mean by its share of the mass, times the distance of its own mean. `values` gives the values of
    the block, and is not called where the block is too heavy.
    """
    library = library_of(blend.mass)
    known = blend.mass > 0
    shift = library.where(known, weights.peak, 0.0) - library.where(known, blend.peak, 0.0)
    part = weights.mass * library.exp(library.minimum(shift, 0.0)) / divisor(blend.mass)
    if not (known & (part < share)).all():
        return False
    reach = values().reach(blend.value)
    return reach is not None and bool((part * reach <= share * length(blend.value)).all())


def stand_in(blend: Blend, weights: Weights) -> Blend:
    """The blend of a block whose values are not worth reading: its own mass, at the mean that is known already."""
    return Blend(weights.peak, weights.mass, blend.value * weights.mass[..., None], weights.excess)
