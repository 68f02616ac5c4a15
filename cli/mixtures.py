"""Keys in clusters of very different sizes, and values that depend on them: what `softkv bench` measures with.

Shapes: n items, b queries, d key width, p value width.
"""

from typing import NamedTuple

import numpy as np

from softkv.ndarrays import Matrix

MOST_CENTRES, MEMBERS = 2000, 50  # clusters; fewer where one would have fewer than so many items on the average
SPREADS = (0.5, 1.2)  # how far keys of a cluster are from its centre, which has length 1
STEEPNESS, NOISE = 3.0, 0.1  # of the values
BLOCK = 1 << 14  # items made together


class Mixture(NamedTuple):
    """Items, and queries that are like their keys."""

    keys: Matrix  # (n, d), of length 1
    values: Matrix  # (n, p)
    queries: Matrix  # (b, d), of length 1


def mixture(
    items: int,
    width: int,
    value_width: int,
    queries: int,
    seed: int,
    *,
    asking: tuple[float, float] | None = None,
    spreads: tuple[float, float] = SPREADS,
    noise: float = NOISE,
) -> Mixture:
    """Items in clusters whose sizes fall as 1/rank; the same for the same arguments.

    Queries spread around the centres as keys do; or, with `asking`, each as far as it likes between these two numbers.
    Made in blocks, so that it takes little more memory than the result.

    >>> made = mixture(1000, 8, 2, 5, seed=0)
    >>> made.keys.shape, made.values.shape, made.queries.shape
    ((1000, 8), (1000, 2), (5, 8))
    """
    rng = np.random.default_rng(seed)
    draw = Clusters(rng, max(1, min(MOST_CENTRES, items // MEMBERS)), width, spreads)
    keys = np.empty((items, width), np.float32)
    for start in range(0, items, BLOCK):
        keys[start : start + BLOCK] = draw.keys(min(BLOCK, items - start))
    return Mixture(keys, values_of(keys, value_width, rng, noise), draw.keys(queries, asking))


def values_of(keys: Matrix, width: int, rng: np.random.Generator, noise: float = NOISE) -> Matrix:
    """Values that follow from keys, but for some noise, (n, width)."""
    return values_by(keys, rng.standard_normal((keys.shape[1], width), dtype=np.float32), rng, noise)


def values_by(keys: Matrix, slopes: Matrix, rng: np.random.Generator, noise: float = NOISE) -> Matrix:
    """Values that follow from keys by these slopes, (d, p), but for some noise, (n, p)."""
    values = np.empty((len(keys), slopes.shape[1]), np.float32)
    for start in range(0, len(keys), BLOCK):
        part = keys[start : start + BLOCK]
        drawn = rng.standard_normal((len(part), slopes.shape[1]), dtype=np.float32)
        values[start : start + BLOCK] = np.tanh(STEEPNESS * (part @ slopes)) + noise * drawn
    return values


def of_length_1(vectors: Matrix) -> Matrix:
    """The directions of vectors, in their place."""
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


class Clusters:
    """Centres in all directions, each with a spread of its own."""

    def __init__(
        self, rng: np.random.Generator, count: int, width: int, spreads: tuple[float, float] = SPREADS
    ) -> None:
        self._rng = rng
        self._centres = of_length_1(rng.standard_normal((count, width), dtype=np.float32))
        self._spreads = rng.uniform(*spreads, count).astype(np.float32)
        shares = 1.0 / np.arange(1, count + 1)
        self._shares = shares / shares.sum()

    def keys(
        self, count: int, around: tuple[float, float] | None = None, rng: np.random.Generator | None = None
    ) -> Matrix:
        """Some keys, in no order, (count, d), with the spreads of their clusters or with others."""
        rng = rng or self._rng
        members = rng.choice(len(self._centres), count, p=self._shares)
        apart = rng.standard_normal((count, self._centres.shape[1]), dtype=np.float32)
        spreads = self._spreads[members] if around is None else rng.uniform(*around, count).astype(np.float32)
        apart *= (spreads / float(np.sqrt(apart.shape[1])))[:, None]
        apart += self._centres[members]
        return of_length_1(apart)
