"""How wrong leave-one-out answers are, and which way a metric has to change to make them better.

A loss is a mean over the items that were asked. What each logit pulls it by, its derivative, comes from the kind of
value:

    labels    −log P, with P the weight of the items that carry the right label
    vectors   ‖Σ w v − v*‖², and numbers are vectors of one number
    slopes    the same for numbers, with the plane through the weighted rows in place of their mean (slopes.py)

and the gradient of L follows from the pulls alone, since a logit is −½‖L(q − k)‖². No pull moves all logits of a query
together: weights would not notice.

Does not choose who is asked, nor take a step (fitting.py). Analytic throughout; PyTorch is the judge in the tests.

Shapes: b items asked, n items that answer, d key width, r rank, p value width.
"""

import numpy as np
import numpy.typing as npt

from softkv.learning.slopes import Plane

Array = npt.NDArray[np.floating]
TINY = 1e-30  # a probability that is no more than this is taken for it


def weights_of(asked: Array, answering: Array, own: npt.NDArray[np.int64]) -> Array:
    """The weights of (n, r) projected items for (b, r) others, (b, n); each leaves out its own place, if not −1."""
    logits = asked @ answering.T
    logits -= 0.5 * np.einsum("ij,ij->i", answering, answering)
    mine = np.flatnonzero(own >= 0)
    logits[mine, own[mine]] = -np.inf
    logits -= logits.max(1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(1, keepdims=True)
    return logits


def by_labels(weights: Array, same: npt.NDArray[np.bool_]) -> tuple[float, Array]:
    """The loss, and its pulls (b, n), where `same` says which items carry the right label."""
    right = weights * same
    likely = np.maximum(right.sum(1, keepdims=True), TINY)
    # Subtle: weights add up to 1 but for their rounding, and a loss below 0 would be less than none.
    return max(0.0, float(-np.log(likely).mean())), (weights - right / likely) / len(weights)


def by_values(weights: Array, values: Array, wanted: Array) -> tuple[float, Array]:
    """The loss, and its pulls (b, n), for values (n, p) where (b, p) are wanted."""
    found = weights @ values
    off = found - wanted
    pulls = off @ values.T
    pulls -= np.einsum("ij,ij->i", off, found)[:, None]
    pulls *= weights
    pulls *= 2.0 / len(weights)
    return float((off * off).sum(1).mean()), pulls


def by_slopes(
    weights: Array, asked: Array, answering: Array, values: Array, wanted: Array, ridge: float
) -> tuple[float, Array]:
    """The loss, and its pulls (b, n), for numbers (n,) read off the plane through the weighted rows, at each item."""
    plane = Plane.through(weights, answering, values, ridge)
    off = plane.at(asked) - wanted
    pulls = weights * plane.leverage(asked, answering) * plane.residuals(answering, values)
    pulls *= (2.0 / len(weights)) * off[:, None]
    pulls -= weights * pulls.sum(1, keepdims=True)
    return float((off * off).mean()), pulls


def gradient(factors: Array, asked: Array, answering: Array, pulls: Array) -> Array:
    """The derivative of the loss by L, (r, d), from the pulls of (b, n) logits −½‖L(q − k)‖²."""
    # L Σ g (q − k)(q − k)ᵀ, taken apart so that nothing is as large as the pairs times the width.
    near, far = asked @ factors.T, answering @ factors.T
    crossed = near.T @ (pulls @ answering) + (pulls @ far).T @ asked
    moved: Array = crossed - (far.T * pulls.sum(0)) @ answering - (near.T * pulls.sum(1)) @ asked
    return moved
