"""Local linear regression: a plane in place of a mean, where numbers rise or fall around the query.

The weighted mean of numbers is biased towards the side on which more items lie. The least-squares plane through the
same items, with the same weights, is not: its height at the query is v̄ + Cᵀ(Σ + λ)⁻¹(q − k̄), which needs only the
means and covariances of one blend. The ridge λ keeps it flat in directions that the items around a query do not span.

Shapes: b queries, n rows, d width of the features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from softkv.maths.compatibility import Compatibility
from softkv.maths.distances import Scorer
from softkv.maths.symmetric import unpacked
from softkv.ndarrays import Flags, Reals

BLOCK = 1 << 12  # rows that are weighted at a time
TOGETHER = 256  # queries at a time
ROUNDED = 2.0**-48  # relative rounding of the float64 sums that a plane is made of
WIDEST = 32  # most features: a plane over more of them would need as many neighbours, and d² sums for each query


def may_be_read_off(*, numbers: bool, width: int, directions: bool) -> bool:
    """Whether planes can be used: values are single numbers, features are few, and keys are not directions."""
    return numbers and width <= WIDEST and not directions


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """For each query, the plane through the weighted rows."""

    middle: Reals  # (b, d), the weighted mean of the features
    height: Reals  # (b,), the weighted mean of the numbers
    slope: Reals  # (b, d)
    spread: Reals  # (b, d, d), Σ + λ
    ridge: float  # λ

    @classmethod
    def through(cls, weights: Reals, features: Reals, numbers: Reals, ridge: float) -> "Plane":
        """The planes through features (n, d) and numbers (n,), with weights (b, n) that add up to 1."""
        column = numbers[:, None]
        moments = np.concatenate([column, features, features * column, _products(features)], axis=1)
        return cls.of_means(weights @ moments, features.shape[1], ridge)

    @classmethod
    def of_means(cls, means: Reals, width: int, ridge: float) -> "Plane":
        """The planes with the given weighted means, (b, 1 + 2d + d(d + 1)/2).

        The columns are the means of the numbers, the features, the numbers times the features, and the products of any
        two features.
        """
        height, middle = means[:, 0], means[:, 1 : 1 + width]
        crossed, packed = means[:, 1 + width : 1 + 2 * width], means[:, 1 + 2 * width :]
        spread = unpacked(packed, width)
        spread -= middle[:, :, None] * middle[:, None, :]
        spread[:, np.arange(width), np.arange(width)] += ridge
        slope = np.linalg.solve(spread, (crossed - middle * height[:, None])[:, :, None])[:, :, 0]
        return cls(middle, height, slope, spread, ridge)

    @property
    def explained(self) -> Reals:
        """The part of the numbers' variance that each plane explains, (b,)."""
        turned = np.einsum("bij,bj->bi", self.spread, self.slope) + self.ridge * self.slope
        found: Reals = (turned * self.slope).sum(1)
        return found

    def at(self, queries: Reals) -> Reals:
        """The height of each plane at its query, (b, d) -> (b,)."""
        found: Reals = self.height + ((queries - self.middle) * self.slope).sum(1)
        return found

    def leverage(self, queries: Reals, features: Reals) -> Reals:
        """How much the height at the query changes with each row's number, divided by the row's weight, (b, n)."""
        turned = np.linalg.solve(self.spread, (queries - self.middle)[:, :, None])[:, :, 0]
        found: Reals = turned @ features.T + (1.0 - (turned * self.middle).sum(1))[:, None]
        return found

    def residuals(self, features: Reals, numbers: Reals) -> Reals:
        """How far each row lies above the plane of each query, (b, n)."""
        base = self.height - (self.slope * self.middle).sum(1)
        found: Reals = numbers[None, :] - self.slope @ features.T - base[:, None]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The height of each query's plane at the query, and the figures for its error, each (b,)."""

    heights: Reals
    spreads: Reals  # the weighted root mean square distance of the numbers from the plane
    leverages: Reals  # √(1 + (q − k̄)ᵀ(Σ + λ)⁻¹(q − k̄)): times the spread, how much the height moves with the weights
    slopes: Reals  # the length of the plane's gradient by the features
    doubts: Reals  # how far rounding in float64 may have moved the height

    @classmethod
    def of(cls, plane: Plane, queries: Reals, squares: Reals) -> "Reading":
        """Read planes at the queries (b, d); `squares` (b,) is the variance of the numbers around their mean."""
        apart = queries - plane.middle
        turned = np.linalg.solve(plane.spread, apart[:, :, None])[:, :, 0]
        slopes, far = np.linalg.norm(plane.slope, axis=1), np.linalg.norm(apart, axis=1)
        size = (plane.middle**2).sum(1) + np.trace(plane.spread, axis1=1, axis2=2)
        heights = plane.at(queries)
        return cls(
            heights,
            np.sqrt(np.maximum(squares - plane.explained, 0.0)),
            np.sqrt(1.0 + np.maximum((apart * turned).sum(1), 0.0)),
            slopes,
            ROUNDED * (far / plane.ridge * (size * slopes + np.sqrt(size * squares)) + np.abs(heights)),
        )


def on_planes(
    compared: Compatibility,
    queries: Reals,
    temperatures: Reals,
    means: Reals,
    keys: Reals,
    numbers: Reals,
    *,
    features: Callable[[Reals], Reals],
    ridge: float,
    shares: Reals | None = None,
    allowed: Flags | None = None,
) -> Reading:
    """The reading of each query on the plane through all rows that it sees.

    `means` (b,) are the answers of the lookup with the same weights, `features` turns keys and queries into the
    features of the plane, and `shares` (n,) are weights of the rows.
    """
    found = []
    for start in range(0, max(1, len(queries)), TOGETHER):
        some = slice(start, start + TOGETHER)
        sharpness = (1.0 / temperatures[some, None]).astype(queries.dtype)
        seen = None if allowed is None else allowed[some if len(allowed) > 1 else slice(None)]
        scorer = compared.ask(queries[some], sharpness)
        given = means[some], keys, numbers, features, ridge, shares, seen
        plane, squares = _through_all(scorer, *given, cancels=compared.cancels)
        found.append(Reading.of(plane, features(queries[some]), squares))
    return Reading(*(np.concatenate([getattr(one, name) for one in found]) for name in Reading.__slots__))


def _through_all(
    scorer: Scorer,
    means: Reals,
    keys: Reals,
    numbers: Reals,
    features: Callable[[Reals], Reals],
    ridge: float,
    shares: Reals | None,
    seen: Flags | None,
    *,
    cancels: bool,
) -> tuple[Plane, Reals]:
    """The planes, and the variances of the numbers around their means, (b,)."""
    # Subtle: a plane divides by the spread of the features. If weights did not quite add up to 1, the difference, times
    # any constant in all numbers, would come back much larger. So sums are divided by the sum of the weights, and the
    # numbers of each query are taken relative to its own mean: relative to the mean of all, one far number would leave
    # the others without digits.
    width = features(keys[:1]).shape[1]
    sums, squares = np.zeros((len(means), 2 + 2 * width + width * (width + 1) // 2)), np.zeros(len(means))
    peak = np.full(len(means), -np.inf)  # of the logits so far; not the lookup's, which may have been rounded otherwise
    for first in range(0, len(keys), BLOCK):
        rows = slice(first, first + BLOCK)
        allowed = None if seen is None else seen[:, rows]
        with np.errstate(divide="ignore"):
            added = None if shares is None else np.log(shares[rows])[None, :]
        logits = scorer(keys[rows], first, *((allowed, added) if cancels else ())).astype(np.float64)
        # Subtle: shares belong to the peak. A row of a tiny share, far above all others, would leave these no weight.
        logits = logits if added is None else logits + added
        logits = logits if allowed is None else np.where(allowed, logits, -np.inf)
        higher = np.maximum(peak, logits.max(1))
        base = np.where(np.isfinite(higher), higher, 0.0)
        faded, peak = np.exp(peak - base), higher
        sums, squares = sums * faded[:, None], squares * faded
        weights = np.exp(logits - base[:, None])
        known, apart = features(keys[rows]), numbers[rows].astype(np.float64) - means[:, None]
        lifted, ones = weights * apart, np.ones((len(known), 1))
        sums += np.hstack([lifted @ ones, weights @ known, lifted @ known, weights @ _products(known), weights @ ones])
        squares += np.einsum("bn,bn->b", lifted, apart)
    mass = sums[:, -1:]
    found = Plane.of_means(sums[:, :-1] / mass, width, ridge)
    return replace(found, height=found.height + means), squares / mass[:, 0] - found.height**2


def _products(features: Reals) -> Reals:
    """The products of any two features, each pair once, (n, d) -> (n, d(d + 1)/2)."""
    upper = np.triu_indices(features.shape[1])
    return features[:, upper[0]] * features[:, upper[1]]
