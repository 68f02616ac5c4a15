"""The two directions in which vectors differ most (principal components), to draw them on a plane.

Distances on the plane are not those of the vectors: differences across the plane are not shown. No lookup uses it.

Shapes: n vectors, d width.
"""

from dataclasses import dataclass

import numpy as np

from softkv.ndarrays import Floats, Reals


@dataclass(frozen=True, slots=True, eq=False)
class PrincipalPlane:
    """A plane through the mean of some vectors, along the two directions in which they differ most."""

    unit: float  # what vectors are divided by first, so that no square leaves float64
    middle: Floats  # (d,)
    axes: Floats  # (2, d)
    share: float  # of the variance, which the plane shows

    @classmethod
    def of(cls, vectors: Reals) -> "PrincipalPlane":
        """The plane of these vectors, (n, d); the directions point to where their largest part is above zero.

        >>> plane = PrincipalPlane.of(np.array([[0.0, 0.0, 0.0], [2.0, 2.0, 0.0], [4.0, 4.0, 0.0]]))
        >>> round(plane.share, 6), np.abs(plane.axes[0]).round(3).tolist()
        (1.0, [0.707, 0.707, 0.0])
        """
        exact = vectors.astype(np.float64)
        unit = float(np.abs(exact).max(initial=0.0)) or 1.0
        exact /= unit
        middle = exact.mean(0)
        exact -= middle
        few = len(exact) < exact.shape[1]
        variances, directions = np.linalg.eigh(exact @ exact.T if few else exact.T @ exact)
        found = (directions[:, ::-1][:, :2].T @ exact) if few else directions[:, ::-1][:, :2].T
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        found = np.divide(found, lengths, out=np.zeros_like(found), where=lengths > 0)
        axes = np.zeros((2, exact.shape[1]))
        axes[: len(found)] = found * np.sign(found[np.arange(len(found)), np.abs(found).argmax(1)])[:, None]
        total = float(variances.clip(0).sum())
        return cls(unit, middle, axes, float(variances.clip(0)[-2:].sum()) / total if total else 1.0)

    def placed(self, vectors: Reals) -> Floats:
        """Where vectors lie on the plane, (n, d) -> (n, 2), as if each were moved straight down to it."""
        found: Floats = (vectors.astype(np.float64) / self.unit - self.middle) @ self.axes.T
        return found
