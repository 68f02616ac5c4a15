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

from softkv.maths.compatibility import Compatibility, Scorer

Array = npt.NDArray[np.floating]
BLOCK = 1 << 12  # rows that are weighted at a time
TOGETHER = 256  # queries at a time
WIDEST = 32  # features: a plane through more of them would need as many neighbours, and d² sums for each


def may_be_read_off(*, numbers: bool, width: int, directions: bool) -> bool:
    """Whether what is predicted can lie on planes: single numbers over few features that are not directions."""
    return numbers and width <= WIDEST and not directions


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """For each query, the plane through weighted rows."""

    middle: Array  # (b, d), the weighted mean of the features
    height: Array  # (b,), that of the numbers
    slope: Array  # (b, d)
    spread: Array  # (b, d, d), Σ + λ
    ridge: float  # λ

    @classmethod
    def through(cls, weights: Array, features: Array, numbers: Array, ridge: float) -> "Plane":
        """The planes of weights (b, n) that add up to 1, over features (n, d) and numbers (n,)."""
        return cls.of_means(weights @ moments(features, numbers), features.shape[1], ridge)

    @classmethod
    def of_means(cls, means: Array, width: int, ridge: float) -> "Plane":
        """The planes of the weighted means of `moments`, (b, 1 + 2d + d(d + 1)/2)."""
        upper = np.triu_indices(width)
        height, middle = means[:, 0], means[:, 1 : 1 + width]
        crossed, packed = means[:, 1 + width : 1 + 2 * width], means[:, 1 + 2 * width :]
        spread = np.zeros((len(means), width, width), means.dtype)
        spread[:, upper[0], upper[1]] = packed
        spread[:, upper[1], upper[0]] = packed
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


def on_planes(
    compared: Compatibility,
    queries: Array,
    temperatures: Array,
    log_mass: Array,
    keys: Array,
    numbers: Array,
    *,
    features: Callable[[Array], Array],
    ridge: float,
    shares: Array | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> tuple[Array, Array]:
    """The height at each query of the plane through all rows that it sees, and how much variance that explains, (b,).

    `log_mass` is that of the lookup whose weights they have, `features` says how the plane sees keys and queries, and
    `shares` (n,) is how much each row counts.
    """
    heights, explained = np.empty(len(queries)), np.empty(len(queries))
    for start in range(0, len(queries), TOGETHER):
        some = slice(start, start + TOGETHER)
        sharpness = (1.0 / temperatures[some, None]).astype(queries.dtype)
        seen = None if allowed is None else allowed[some if len(allowed) > 1 else slice(None)]
        scorer = compared.ask(queries[some], sharpness)
        plane = _through_all(scorer, log_mass[some], keys, numbers, features, ridge, shares, seen)
        heights[some], explained[some] = plane.at(features(queries[some])), plane.explained
    return heights, explained


def _through_all(
    scorer: Scorer,
    log_mass: Array,
    keys: Array,
    numbers: Array,
    features: Callable[[Array], Array],
    ridge: float,
    shares: Array | None,
    seen: npt.NDArray[np.bool_] | None,
) -> Plane:
    # Subtle: a plane divides by how far features spread, so what weights lack of 1, times what is added to all numbers,
    # would come back many times as large. Sums are divided by that of the weights, numbers counted from their middle.
    middle = float(numbers.mean())
    means, mass = np.zeros((len(log_mass), 1)), np.zeros((len(log_mass), 1))
    for first in range(0, len(keys), BLOCK):
        rows = slice(first, first + BLOCK)
        weights = np.exp(scorer(keys[rows], first).astype(np.float64) - log_mass[:, None])
        if shares is not None:
            weights = weights * shares[rows]
        if seen is not None:
            weights = np.where(seen[:, rows], weights, 0.0)
        mass = mass + weights.sum(1, keepdims=True)
        means = means + weights @ moments(features(keys[rows]), numbers[rows].astype(np.float64) - middle)
    found = Plane.of_means(means / mass, features(keys[:1]).shape[1], ridge)
    return replace(found, height=found.height + middle)


def moments(features: Array, numbers: Array) -> Array:
    """What has to be averaged for a plane: numbers, features, both multiplied, features times features."""
    upper = np.triu_indices(features.shape[1])
    column = numbers[:, None]
    return np.concatenate([column, features, features * column, features[:, upper[0]] * features[:, upper[1]]], axis=1)
