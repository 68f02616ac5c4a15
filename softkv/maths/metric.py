"""A learned metric: the logit is −½‖L(q − k)‖², computed from a rewritten query and one number for every key.

With M = LᵀL, and q and k counted from a centre,

    −½‖L(q − k)‖² = (Mq)·k − ½‖Lk‖² − ½‖Lq‖²

so no key changes: a metric is a matrix that queries are multiplied by, a number b = −½‖Lk‖² for each key, and one for
each query. Of `directions` only the direction counts, as for cosines: q and k are divided by their lengths first, and
counted from the origin.

Does not learn (learning/fitting.py), and keeps no numbers of keys (database/learned.py).

Shapes: b queries, n keys, d key width, r rank of the metric.
"""

from dataclasses import dataclass, replace

import numpy as np

from softkv.maths.arrays import sharpened
from softkv.maths.compatibility import Compatibility
from softkv.maths.distances import Scorer
from softkv.maths.library import Sharpness
from softkv.ndarrays import Floats, Matrix, Vector

BLOCK = 1 << 13  # keys that are projected at once


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """L, where it is measured from, and whether only directions count."""

    factors: Matrix  # (r, d), L
    centre: Vector  # (d,), the origin for directions
    directions: bool = False

    @property
    def width(self) -> int:
        """How wide keys and queries are."""
        return int(self.factors.shape[1])

    def projected(self, vectors: Matrix) -> Matrix:
        """L(x − c) of each vector, or of its direction, (n, d) -> (n, r)."""
        return self._moved(vectors) @ self.factors.T

    def numbers(self, keys: Matrix) -> Vector:
        """The number b of each key, (n,)."""
        found = np.empty(len(keys), np.float32)
        exact = replace(self, factors=self.factors.astype(np.float64))
        for start in range(0, len(keys), BLOCK):
            # Rounded once, from float64. Sums in float32 depend on which keys are multiplied together, and then a key
            # has another number when it was added alone, and a copy of the store answers otherwise.
            with np.errstate(over="ignore", invalid="ignore"):
                projected = exact.projected(keys[start : start + BLOCK].astype(np.float64))
                found[start : start + BLOCK] = -0.5 * np.einsum("ij,ij->i", projected, projected)
        return found

    def queries(self, queries: Matrix) -> tuple[Matrix, Vector]:
        """Mq of each query, (b, d), and what is added to all its logits, (b,)."""
        projected = self.projected(queries)
        return projected @ self.factors, np.float32(-0.5) * np.einsum("ij,ij->i", projected, projected)

    def terms(self, queries: Matrix) -> tuple[Floats, Floats]:
        """The squares of what is added up for queries: for each number of Mq, (b, d), and for each of Lq, (b, r)."""
        factors = self.factors.astype(np.float64) ** 2
        projected = self._moved(queries).astype(np.float64) ** 2 @ factors.T
        return projected @ factors, projected

    def compatibility(self, numbers: Vector, inverse_lengths: Vector | None) -> Compatibility:
        """The way to compare, with the numbers of all keys at hand, and 1 / ‖k‖ where directions count."""

        def ask(queries: Matrix, sharpness: Sharpness) -> Scorer:
            rewritten, added = self.queries(queries)
            rewritten, added = sharpened(rewritten, sharpness), sharpened(added[:, None], sharpness)

            def score(keys: Matrix, first: int) -> Matrix:
                part = slice(first, first + len(keys))
                logits: Matrix = rewritten @ self._kept(keys).T
                if inverse_lengths is not None:
                    logits *= inverse_lengths[part]
                logits += sharpened(numbers[part], sharpness)
                logits += added
                # A logit above 0 can only be rounding: no distance is below 0.
                return np.minimum(logits, np.float32(0.0), out=logits)

            return score

        return Compatibility("learned", ask, copies=bool(self.centre.any()), form="learned")

    def _moved(self, vectors: Matrix) -> Matrix:
        if self.directions:
            lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
            vectors = (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        return self._kept(vectors)

    def _kept(self, vectors: Matrix) -> Matrix:
        return vectors - self.centre if self.centre.any() else vectors
