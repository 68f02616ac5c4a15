"""Measures of predictions: of labels, of numbers, and of knowing when not to answer.

Each measure is a mean over queries that are not in the store. Only `likeliest_widths` chooses anything, and needs
queries of its own for that.

Does not run lookups (database/evaluating.py) or draw plots.

Shapes: b queries, c labels, a bins.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from softkv.ndarrays import Codes, Flags, Floats, Reals

BINS = 15  # bins of confidence, of equal width
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # probabilities of central intervals


@dataclass(frozen=True, slots=True)
class Bin:
    """Queries that were answered with similar confidence, and how often the answers were right."""

    confidence: float  # the mean
    accuracy: float
    queries: int


def correct(shares: Reals, right: Codes) -> Flags:
    """Whether the heaviest label is the right one, (b,); never where `right` is -1, a label that no item has."""
    found: Flags = shares.argmax(1) == right
    return found


def shares_of(shares: Reals, right: Codes) -> Reals:
    """The shares of the right labels, (b,); 0 where `right` is -1, a label that no item has."""
    given: Reals = np.take_along_axis(shares, np.maximum(right, 0)[:, None].astype(np.int64), axis=1)[:, 0]
    return np.where(right >= 0, given, given.dtype.type(0.0))


def log_loss(shares: Reals, right: Codes) -> float:
    """The mean of -log of the share of the right label.

    A share of 0 would have an infinite loss, so it counts as the machine epsilon of its dtype, as in scikit-learn:
    1.2e-7 for float32, a loss of 15.9, and 2.2e-16 for float64, a loss of 36.
    """
    given = shares_of(shares, right)
    least = float(np.finfo(given.dtype).eps)
    return float(-np.log(np.clip(given.astype(np.float64), least, 1 - least)).mean())


def reliability(confidence: Reals, right: Flags) -> tuple[Bin, ...]:
    """The accuracy in bins of confidence, the lowest first; empty bins are left out."""
    edges = np.linspace(0.0, 1.0, BINS + 1)[1:-1]
    places = np.searchsorted(edges, confidence)  # bins include their upper edge, not their lower one
    counts = np.bincount(places, minlength=BINS)
    sure = np.bincount(places, confidence.astype(np.float64), BINS)
    hits = np.bincount(places, right.astype(np.float64), BINS)
    return tuple(
        Bin(float(sure[one] / counts[one]), float(hits[one] / counts[one]), int(counts[one]))
        for one in np.flatnonzero(counts).tolist()
    )


def calibration_error(found: tuple[Bin, ...]) -> float:
    """The expected calibration error: the distance of confidence from accuracy, averaged over queries."""
    total = sum(one.queries for one in found)
    return math.fsum(abs(one.confidence - one.accuracy) * one.queries for one in found) / total


def auroc(inside: Reals, outside: Reals) -> float:
    """The area under the ROC curve: how often one of `inside` exceeds one of `outside`; equal ones count half."""
    ordered = np.sort(outside)
    less, most = np.searchsorted(ordered, inside, "left"), np.searchsorted(ordered, inside, "right")
    return float((less + most).mean() / (2 * len(ordered)))


def abstention(certainty: Reals, losses: Reals) -> tuple[Floats, Floats]:
    """The shares of queries that can be answered, the most certain first, and the mean loss among each share.

    Queries of equal certainty are answered together or not at all.
    """
    order = np.argsort(-certainty, kind="stable")
    ranked = certainty[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    means = np.cumsum(losses[order], dtype=np.float64)[last] / (last + 1)
    return (last + 1) / len(ranked), means


def rmse(values: Floats, targets: Floats) -> float:
    """The root of the mean squared distance; values are numbers (b,) or vectors (b, p)."""
    return math.sqrt(float(squared(values, targets).mean()))


def squared(values: Floats, targets: Floats) -> Floats:
    """Squared distances, (b,)."""
    apart = (values.astype(np.float64) - targets).reshape(len(targets), -1)
    found: Floats = np.einsum("ij,ij->i", apart, apart)
    return found


def log_likelihood(values: Floats, spreads: Floats, targets: Floats) -> float:
    """The mean log density of the targets under normal distributions with these means and standard deviations."""
    scores = (targets - values) / spreads
    return float((-0.5 * math.log(2 * math.pi) - np.log(spreads) - scores * scores / 2).mean())


@dataclass(frozen=True, slots=True)
class Widths:
    """A rule for the standard deviation of a prediction, from the spread of the items it is made of."""

    factor: float = 1.0
    least: float = 0.0  # added to spreads in quadrature, since the spread of a single item is 0

    def of(self, spreads: Floats) -> Floats:
        """The standard deviations of predictions."""
        return self.factor * np.hypot(spreads, self.least)


def likeliest_widths(values: Floats, spreads: Floats, targets: Floats, least: Floats) -> Widths:
    """The rule under which the targets are most likely: the best factor, with the best one of `least`."""
    tried = []
    for one in least.tolist():
        scores = (targets - values) / np.hypot(spreads, one)
        factor = math.sqrt(float((scores * scores).mean())) or 1.0
        widths = Widths(factor, one)
        tried.append((log_likelihood(values, widths.of(spreads), targets), widths))
    return max(tried, key=lambda pair: pair[0])[1]


def coverage(values: Floats, spreads: Floats, targets: Floats) -> tuple[tuple[float, float], ...]:
    """For each level, it and the share of targets within the central interval of this probability (normal)."""
    scores = np.abs(targets - values) / spreads
    normal = NormalDist()
    return tuple((level, float((scores <= normal.inv_cdf((1 + level) / 2)).mean())) for level in LEVELS)
