"""The losses of leave-one-out predictions, and their gradients by the metric.

A loss is a mean over the items that were asked. Its derivatives by the logits are called pulls; they depend on the kind
of value:

    labels    −log P, with P the weight of the items that have the right label
    vectors   ‖Σ w v − v*‖², and numbers are vectors of one number
    slopes    the squared error of numbers read off the plane through the weighted rows (slopes.py)

The gradient by L follows from the pulls alone, since a logit is −½‖L(q − k)‖². The pulls of a query add up to 0, since
adding a constant to its logits changes no weight.

Does not choose the items, or take steps (fitting.py). All derivatives are analytic; the tests compare with PyTorch.

Shapes: b items asked, n items that answer, d key width, r rank, p value width.
"""

import numpy as np
import numpy.typing as npt

from softkv.learning.slopes import Plane
from softkv.ndarrays import Flags, Reals

TINY = 1e-30  # the least probability: smaller ones count as this


def weights_of(asked: Reals, answering: Reals, own: npt.NDArray[np.int64]) -> Reals:
    """The weights of projected items (n, r) for queries (b, r), (b, n). `own` is the row of the query itself, or −1."""
    logits = asked @ answering.T
    logits -= 0.5 * np.einsum("ij,ij->i", answering, answering)
    mine = np.flatnonzero(own >= 0)
    logits[mine, own[mine]] = -np.inf
    logits -= logits.max(1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(1, keepdims=True)
    return logits


def by_labels(weights: Reals, same: Flags) -> tuple[float, Reals]:
    """The loss and its pulls (b, n), where `same` (b, n) says which items have the right label."""
    right = weights * same
    likely = np.maximum(right.sum(1, keepdims=True), TINY)
    # Subtle: by rounding, weights may add up to more than 1, and the loss would be below 0.
    return max(0.0, float(-np.log(likely).mean())), (weights - right / likely) / len(weights)


def by_values(weights: Reals, values: Reals, wanted: Reals) -> tuple[float, Reals]:
    """The loss and its pulls (b, n), for values (n, p) and right answers (b, p)."""
    found = weights @ values
    off = found - wanted
    pulls = off @ values.T
    pulls -= np.einsum("ij,ij->i", off, found)[:, None]
    pulls *= weights
    pulls *= 2.0 / len(weights)
    return float((off * off).sum(1).mean()), pulls


def by_slopes(
    weights: Reals, asked: Reals, answering: Reals, values: Reals, wanted: Reals, ridge: float
) -> tuple[float, Reals]:
    """The loss and its pulls (b, n), for numbers (n,) that are read off the plane through the weighted rows."""
    plane = Plane.through(weights, answering, values, ridge)
    off = plane.at(asked) - wanted
    pulls = weights * plane.leverage(asked, answering) * plane.residuals(answering, values)
    pulls *= (2.0 / len(weights)) * off[:, None]
    pulls -= weights * pulls.sum(1, keepdims=True)
    return float((off * off).mean()), pulls


def gradient(factors: Reals, asked: Reals, answering: Reals, pulls: Reals) -> Reals:
    """The derivative of the loss by L, (r, d), from the pulls (b, n) of the logits −½‖L(q − k)‖²."""
    # −L Σ g (q − k)(q − k)ᵀ, multiplied out so that no array has the size of all pairs times the width.
    near, far = asked @ factors.T, answering @ factors.T
    crossed = near.T @ (pulls @ answering) + (pulls @ far).T @ asked
    moved: Reals = crossed - (far.T * pulls.sum(0)) @ answering - (near.T * pulls.sum(1)) @ asked
    return moved
