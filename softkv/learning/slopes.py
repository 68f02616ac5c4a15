"""A plane in place of a mean: numbers that rise through a neighbourhood are read off where the query lies in it.

The weighted mean of numbers is drawn towards the side on which more items lie. The plane of least squares through the
same items, with the same weights, is not: its height at the query is v̄ + Cᵀ(Σ + λ)⁻¹(q − k̄), all of it the means and
covariances of one blend. λ holds it flat where the items around a query do not span all directions.

Shapes: b queries, n rows, d width of the features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from softkv.maths.compatibility import Compatibility
from softkv.maths.distances import Scorer
from softkv.maths.farfield import unpacked

Array = npt.NDArray[np.floating]
BLOCK = 1 << 12  # rows that are weighted at a time
TOGETHER = 256  # queries at a time
ROUNDED = 2.0**-48  # of the sums in float64 that a plane is made of
WIDEST = 32  # features: a plane through more of them would need as many neighbours, and d² sums for each


def may_be_read_off(*, numbers: bool, width: int, directions: bool) -> bool:
    """Whether what is predicted can lie on planes: single numbers over few features that are not directions."""
    return numbers and width <= WIDEST and not directions


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """The plane through weighted rows, of each query."""

    middle: Array  # (b, d), the weighted mean of the features
    height: Array  # (b,), that of the numbers
    slope: Array  # (b, d)
    spread: Array  # (b, d, d), Σ + λ
    ridge: float  # λ

    @classmethod
    def through(cls, weights: Array, features: Array, numbers: Array, ridge: float) -> "Plane":
        """The planes of weights (b, n) that add up to 1, over features (n, d) and numbers (n,)."""
        column = numbers[:, None]
        moments = np.concatenate([column, features, features * column, _products(features)], axis=1)
        return cls.of_means(weights @ moments, features.shape[1], ridge)

    @classmethod
    def of_means(cls, means: Array, width: int, ridge: float) -> "Plane":
        """The planes of the means of numbers, features, both multiplied, and the products of any two features.

        All weighted, side by side, (b, 1 + 2d + d(d + 1)/2).
        """
        height, middle = means[:, 0], means[:, 1 : 1 + width]
        crossed, packed = means[:, 1 + width : 1 + 2 * width], means[:, 1 + 2 * width :]
        spread = unpacked(packed, width)
        spread -= middle[:, :, None] * middle[:, None, :]
        spread[:, np.arange(width), np.arange(width)] += ridge
        slope = np.linalg.solve(spread, (crossed - middle * height[:, None])[:, :, None])[:, :, 0]
        return cls(middle, height, slope, spread, ridge)

    @property
    def explained(self) -> Array:
        """How much less the numbers vary around each plane than around their mean, (b,)."""
        turned = np.einsum("bij,bj->bi", self.spread, self.slope) + self.ridge * self.slope
        found: Array = (turned * self.slope).sum(1)
        return found

    def at(self, queries: Array) -> Array:
        """The height of each plane at its query, (b, d) -> (b,)."""
        found: Array = self.height + ((queries - self.middle) * self.slope).sum(1)
        return found

    def leverage(self, queries: Array, features: Array) -> Array:
        """How much the height at the query moves with each row's number, for each of its weight, (b, n)."""
        turned = np.linalg.solve(self.spread, (queries - self.middle)[:, :, None])[:, :, 0]
        found: Array = turned @ features.T + (1.0 - (turned * self.middle).sum(1))[:, None]
        return found

    def residuals(self, features: Array, numbers: Array) -> Array:
        """How far each row lies above the plane of each query, (b, n)."""
        base = self.height - (self.slope * self.middle).sum(1)
        found: Array = numbers[None, :] - self.slope @ features.T - base[:, None]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What is read off the plane of each query, (b,) each, and how sure it is."""

    heights: Array
    spreads: Array  # how far the numbers lie from the plane: the root of their weighted mean square
    leverages: Array  # √(1 + ‖q − k̄‖² by (Σ + λ)⁻¹): how much the height moves with weights, times the spread
    slopes: Array  # how fast the height rises with the features, the length of that
    doubts: Array  # how far rounding in float64 may have moved the height

    @classmethod
    def of(cls, plane: Plane, queries: Array, squares: Array) -> "Reading":
        """Read planes off at queries (b, d), where numbers vary by `squares` (b,) around their mean."""
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
    queries: Array,
    temperatures: Array,
    means: Array,
    keys: Array,
    numbers: Array,
    *,
    features: Callable[[Array], Array],
    ridge: float,
    shares: Array | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Reading:
    """What each query reads off the plane through all rows that it sees.

    `means` (b,) are those of the lookup whose weights they have, `features` says how the plane sees keys
    and queries, and `shares` (n,) is how much each row counts.
    """
    found = []
    for start in range(0, max(1, len(queries)), TOGETHER):
        some = slice(start, start + TOGETHER)
        sharpness = (1.0 / temperatures[some, None]).astype(queries.dtype)
        seen = None if allowed is None else allowed[some if len(allowed) > 1 else slice(None)]
        scorer = compared.ask(queries[some], sharpness)
        plane, squares = _through_all(scorer, means[some], keys, numbers, features, ridge, shares, seen)
        found.append(Reading.of(plane, features(queries[some]), squares))
    return Reading(*(np.concatenate([getattr(one, name) for one in found]) for name in Reading.__slots__))


def _through_all(
    scorer: Scorer,
    means: Array,
    keys: Array,
    numbers: Array,
    features: Callable[[Array], Array],
    ridge: float,
    shares: Array | None,
    seen: npt.NDArray[np.bool_] | None,
) -> tuple[Plane, Array]:
    """The planes, and the variances of the numbers around their means, (b,)."""
    # Subtle: a plane divides by how far features spread, so what weights lack of 1, times what is added to all numbers,
    # would come back many times as large. Sums are divided by that of the weights, and the numbers of each query are
    # counted from their own mean: from the middle of all, one far number would leave no digits of the others.
    width = features(keys[:1]).shape[1]
    sums, squares = np.zeros((len(means), 2 + 2 * width + width * (width + 1) // 2)), np.zeros(len(means))
    peak = np.full(len(means), -np.inf)  # of the logits so far: another product of these rows may round them otherwise
    for first in range(0, len(keys), BLOCK):
        rows = slice(first, first + BLOCK)
        logits = scorer(keys[rows], first).astype(np.float64)
        logits = logits if seen is None else np.where(seen[:, rows], logits, -np.inf)
        higher = np.maximum(peak, logits.max(1))
        base = np.where(np.isfinite(higher), higher, 0.0)
        faded, peak = np.exp(peak - base), higher
        sums, squares = sums * faded[:, None], squares * faded
        weights = np.exp(logits - base[:, None])
        if shares is not None:
            weights = weights * shares[rows]
        known, apart = features(keys[rows]), numbers[rows].astype(np.float64) - means[:, None]
        lifted, ones = weights * apart, np.ones((len(known), 1))
        sums += np.hstack([lifted @ ones, weights @ known, lifted @ known, weights @ _products(known), weights @ ones])
        squares += np.einsum("bn,bn->b", lifted, apart)
    mass = sums[:, -1:]
    found = Plane.of_means(sums[:, :-1] / mass, width, ridge)
    return replace(found, height=found.height + means), squares / mass[:, 0] - found.height**2


def _products(features: Array) -> Array:
    """Features times features, each pair once, (n, d) -> (n, d(d + 1)/2)."""
    upper = np.triu_indices(features.shape[1])
    return features[:, upper[0]] * features[:, upper[1]]
