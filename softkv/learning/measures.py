"""How good predictions are: of labels, of numbers, and of knowing when not to answer.

Each measure is a mean over queries that the store was not made of. Nothing here chooses anything, but for
`likeliest_widths`, which is for those who have other queries to choose by.

Does not ask a store (database/evaluating.py) and draws no plots.

Shapes: b queries, c labels, a bins.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

BINS = 15  # of confidence, equally wide
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of central intervals

Floats = npt.NDArray[np.float64]
Shares = npt.NDArray[np.floating]
Codes = npt.NDArray[np.integer]
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bin:
    """Queries that were answered about as confidently, and how often they were right."""

    confidence: float  # their mean
    accuracy: float
    queries: int


def correct(shares: Shares, right: Codes) -> Truths:
    """Whether the heaviest label is the right one, (b,); a label that no item has is -1, and never is."""
    found: Truths = shares.argmax(1) == right
    return found


def shares_of(shares: Shares, right: Codes) -> Shares:
    """What the right labels were given, (b,); nothing where no item has them."""
    given: Shares = np.take_along_axis(shares, np.maximum(right, 0)[:, None].astype(np.int64), axis=1)[:, 0]
    return np.where(right >= 0, given, given.dtype.type(0.0))


def log_loss(shares: Shares, right: Codes) -> float:
    """The mean of -log of what the right label was given.

    A share of 0 would cost infinitely much, so it counts as the machine epsilon of its dtype, as in scikit-learn:
    1.2e-7 for float32, which costs 15.9, and 2.2e-16 for float64, which costs 36.
    """
    given = shares_of(shares, right)
    least = float(np.finfo(given.dtype).eps)
    return float(-np.log(np.clip(given.astype(np.float64), least, 1 - least)).mean())


def reliability(confidence: Shares, right: Truths) -> tuple[Bin, ...]:
    """How often answers were right that were about as confident, from the least; bins without any are left out."""
    edges = np.linspace(0.0, 1.0, BINS + 1)[1:-1]
    places = np.searchsorted(edges, confidence)  # a bin has its upper edge, and not its lower one
    counts = np.bincount(places, minlength=BINS)
    sure = np.bincount(places, confidence.astype(np.float64), BINS)
    hits = np.bincount(places, right.astype(np.float64), BINS)
    return tuple(
        Bin(float(sure[one] / counts[one]), float(hits[one] / counts[one]), int(counts[one]))
        for one in np.flatnonzero(counts).tolist()
    )


def calibration_error(found: tuple[Bin, ...]) -> float:
    """How far confidence is from accuracy, on average over queries (the expected calibration error)."""
    total = sum(one.queries for one in found)
    return math.fsum(abs(one.confidence - one.accuracy) * one.queries for one in found) / total


def auroc(inside: Shares, outside: Shares) -> float:
    """How often one that belongs has more than one that does not; as much counts half."""
    ordered = np.sort(outside)
    less, most = np.searchsorted(ordered, inside, "left"), np.searchsorted(ordered, inside, "right")
    return float((less + most).mean() / (2 * len(ordered)))


def abstention(certainty: Shares, losses: Shares) -> tuple[Floats, Floats]:
    """The share that is answered when the least certain are left out, and the mean loss among these, from few to all.

    Queries that are as certain as each other are answered together or not at all.
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
    """The mean log density of the targets under normal distributions around the values, this wide."""
    scores = (targets - values) / spreads
    return float((-0.5 * math.log(2 * math.pi) - np.log(spreads) - scores * scores / 2).mean())


@dataclass(frozen=True, slots=True)
class Widths:
    """How wide predictions are to be taken, by how widely the items behind them are spread."""

    factor: float = 1.0
    least: float = 0.0  # what is added to spreads, as variances are; a lone item has none of its own

    def of(self, spreads: Floats) -> Floats:
        """The standard deviations of predictions."""
        return self.factor * np.hypot(spreads, self.least)


def likeliest_widths(values: Floats, spreads: Floats, targets: Floats, least: Floats) -> Widths:
    """The factor, and one of the least spreads, with which the targets are as likely as can be."""
    tried = []
    for one in least.tolist():
        scores = (targets - values) / np.hypot(spreads, one)
        factor = math.sqrt(float((scores * scores).mean())) or 1.0
        widths = Widths(factor, one)
        tried.append((log_likelihood(values, widths.of(spreads), targets), widths))
    return max(tried, key=lambda pair: pair[0])[1]


def coverage(values: Floats, spreads: Floats, targets: Floats) -> tuple[tuple[float, float], ...]:
    """The share of targets that central intervals of normal distributions should hold, and the share that they do."""
    scores = np.abs(targets - values) / spreads
    normal = NormalDist()
    return tuple((level, float((scores <= normal.inv_cdf((1 + level) / 2)).mean())) for level in LEVELS)
