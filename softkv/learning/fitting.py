"""Learn a metric: the one by which items, left out one at a time, are best predicted by the others.

A step predicts a sample of items from a sample of the others, and moves L down the gradient (gradients.py), by Adam
with a learning rate that falls to 0. At intervals the loss of held-out items (the judges) is measured: the best L by it
is kept, and training stops early when it does not improve. In the end L is multiplied by the one factor, its
temperature, that is best for the judges when all items answer.

Features are first divided by their standard deviations, unless keys are directions. L is rescaled in the end, so that
it applies to keys as they are stored.

Does not read stores, and does not know names of labels.

Shapes: n items, d key width, r rank, p value width, b items asked at a time.
"""

from dataclasses import dataclass

import numpy as np

from softkv.errors import InputError
from softkv.learning.gradients import by_labels, by_slopes, by_values, gradient, weights_of
from softkv.learning.temperature import typical_temperature
from softkv.maths.compatibility import Compatibility
from softkv.maths.metric import Metric
from softkv.ndarrays import AnyArray, Floats, Reals, Rows
from softkv.progress import Progress, Stages, untold

ASKED = 256  # items that ask in a step
ANSWERING = 4096  # items that answer in a step; more where keys are narrow
NUMBERS = 1 << 20  # numbers in the keys that answer in a step, where this allows more items than ANSWERING
HELD = 2000  # most items that are held out as judges
SHARE = 0.1  # largest share of the items that are judges
STEPS = 400
LOOKS = 20  # how often the loss of the judges is measured
PATIENCE = 6  # such measurements without improvement, after which training stops
SMALLEST = 1e-33  # smallest deviation of a feature by which float32 can divide and multiply
RATE = 0.07  # learning rate, relative to a typical entry of L
RIDGES = (0.3, 0.03)  # λ of the planes that are tried
FARTHEST = 1e12  # largest distance of targets from the items' middle, in deviations of the items
AMID = 1 << 12  # rows of which the middle is that of all, nearly enough
WARMER = np.geomspace(0.5, 2.0, 15)  # temperatures that are tried in the end


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Vectors with their values: the codes of labels (n,), or numbers (n, p)."""

    vectors: Reals  # (n, d)
    values: AnyArray

    @property
    def labels(self) -> bool:
        """Whether the values are labels."""
        return self.values.ndim == 1


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A learned metric, and its loss on the held-out examples (the judges)."""

    metric: Metric
    units: Reals  # (d,), what features were divided by
    loss: float  # of the judges: −log P, or the squared distance
    started: float  # the loss of the metric before the first step
    steps: int
    curve: tuple[tuple[int, float], ...]  # pairs of step and loss
    judges: Rows  # the held-out examples
    answering: Rows  # the items by which they were predicted
    ridge: float | None = None  # λ of the planes through numbers, None where they are averaged


def best_fit(
    items: Examples,
    asking: Examples | None = None,
    *,
    directions: bool = False,
    planes: bool | None = False,
    rank: int | None = None,
    seed: int = 0,
    told: Stages | None = None,
) -> Fitted:
    """The best metric: for means (`planes` False), for planes through numbers (True), or for either (None)."""

    def one(ridge: float | None) -> Fitted:
        name = "fitting" if ridge is None else f"fitting planes, ridge {ridge:g}"
        progress = None if told is None else lambda done, total: told(name, done, total)
        return fit(items, asking, directions=directions, ridge=ridge, rank=rank, seed=seed, told=progress)

    ridges = {None: (None, *RIDGES), True: RIDGES, False: (None,)}[planes]
    return min((one(ridge) for ridge in ridges), key=lambda fitted: fitted.loss)


def is_better(loss: float, before: float) -> bool:
    """Whether a loss is lower by more than rounding."""
    return loss < before * (1 - 1e-6)


def middle_of(columns: Floats) -> Floats:
    """A value amid these rows, from which they can be counted, (n, p) -> (p,); of equal rows it is theirs."""
    # Not the mean: it is rounded, and one far row would leave the others without digits.
    found: Floats = np.median(columns[:: 1 + len(columns) // AMID], axis=0)
    return found


def loss_of(
    compared: Compatibility, temperature: float, items: Examples, asking: Examples | None, fitted: Fitted
) -> float:
    """The loss of a metric's judges by another compatibility and temperature, with the same items answering."""
    asked, answering = items if asking is None else asking, fitted.answering
    middle = 0 if items.labels else middle_of(items.values)
    keys, values, losses = items.vectors[answering], items.values[answering] - middle, 0.0
    for start in range(0, len(fitted.judges), ASKED):
        some = fitted.judges[start : start + ASKED]
        logits = compared.ask(asked.vectors[some], 1.0 / temperature)(keys, 0).astype(np.float64)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        wanted = asked.values[some] - middle
        if items.labels:
            losses += by_labels(weights, wanted[:, None] == values[None, :])[0] * len(some)
        else:
            losses += by_values(weights, values, wanted)[0] * len(some)
    return losses / len(fitted.judges)


def fit(
    items: Examples,
    asking: Examples | None = None,
    *,
    directions: bool = False,
    ridge: float | None = None,
    rank: int | None = None,
    seed: int = 0,
    steps: int | None = None,
    told: Progress | None = None,
) -> Fitted:
    """The metric by which these items best predict each other, or the examples in `asking`, if these are given.

    `ridge` is λ of the planes through values that are numbers (n, 1); None predicts by their mean.
    """
    if items.labels and asking is None and len(np.unique(items.values)) == len(items.values):
        raise InputError("no two items share a label, so none can be predicted. Give items that share labels.")
    fitting = _Fitting(items, asking, directions=directions, ridge=ridge, seed=seed)
    return fitting.run(fitting.start(rank), STEPS if steps is None else steps, told or untold)


class _Fitting:
    """The items and the examples that ask, in one scale, and which of these are judges."""

    def __init__(
        self, items: Examples, asking: Examples | None, *, directions: bool, ridge: float | None, seed: int
    ) -> None:
        self.random, self.directions, self.ridge = np.random.default_rng(seed), directions, ridge
        self.labels, self.unit = items.labels, 1.0
        kept = self._kept(items.vectors)
        width = kept.shape[1]
        self.centre: Reals = np.zeros(width) if directions else kept.mean(0)
        deviations = np.ones(width) if directions else kept.std(0)
        self.units = np.where(deviations > SMALLEST, deviations, 1.0)
        self.middle = 0.0 if self.labels else middle_of(items.values)
        if not self.labels:
            self.unit = float((items.values - self.middle).std()) or 1.0
            if asking is not None:  # targets may exceed all items, but their squares have to stay within float32
                self.unit = max(self.unit, float(np.abs(asking.values - self.middle).max()) / FARTHEST)
        self.features, self.values = self._scaled(items)
        self.alone = asking is not None  # the examples that ask are not items
        self.asking, self.wanted = (self.features, self.values) if asking is None else self._scaled(asking)
        order = self.random.permutation(len(self.asking))
        held = min(HELD, max(1, round(SHARE * len(order))))
        self.judges, self.learners = np.sort(order[:held]), np.sort(order[held:])
        self.items = np.arange(len(self.features)) if self.alone else self.learners
        self.several = max(ANSWERING, NUMBERS // width)

    def _kept(self, vectors: Reals) -> Reals:
        wide: Reals = vectors.astype(np.float64)
        return wide / np.linalg.norm(wide, axis=1, keepdims=True) if self.directions else wide

    def _scaled(self, some: Examples) -> tuple[Reals, AnyArray]:
        features = ((self._kept(some.vectors) - self.centre) / self.units).astype(np.float32)
        return features, some.values if self.labels else ((some.values - self.middle) / self.unit).astype(np.float32)

    def start(self, rank: int | None) -> Reals:
        """The initial L: the identity, or the leading axes of the features, scaled to a typical temperature of 1."""
        width = self.features.shape[1]
        live = np.ones(len(self.features), np.bool_)
        asked = np.sort(np.random.default_rng(0).choice(len(live), min(ASKED, len(live)), replace=False))
        temperature = typical_temperature(self.features, live, "gaussian", asked=asked) or 1.0
        scale = np.float32(1.0 / temperature**0.5)
        if rank is None or rank >= width:
            return np.eye(width, dtype=np.float32) * scale
        some = self.features[:: max(1, len(self.features) // ANSWERING)]
        axes = np.linalg.svd(some - some.mean(0), full_matrices=False)[2]
        return (axes[:rank] * scale).astype(np.float32)

    def run(self, factors: Reals, steps: int, told: Progress) -> Fitted:
        """Descend until the steps are done or the loss of the judges stops improving."""
        started = best = self.judged(factors)
        kept, since, curve, done = factors, 0, [(0, self._loss(started))], 0
        adam = _Adam(factors, RATE * float(np.linalg.norm(factors)) / factors.size**0.5)
        for done in range(1, steps + 1):
            factors = adam.moved(factors, self.step(factors), 0.5 * (1 + np.cos(np.pi * (done - 1) / steps)))
            told(done, steps)
            if done % max(1, steps // LOOKS) and done < steps:
                continue
            judged = self.judged(factors)
            curve.append((done, self._loss(judged)))
            since += 1
            if judged < best:
                best, kept, since = judged, factors, 0
            if since >= PATIENCE:
                break
        kept, best = self.warmed(kept, best)
        metric = Metric((kept / self.units).astype(np.float32), self.centre.astype(np.float32), self.directions)
        return Fitted(
            metric,
            self.units,
            loss=self._loss(best),
            started=self._loss(started),
            steps=done,
            curve=tuple(curve),
            judges=self.judges,
            answering=self.items,
            ridge=self.ridge,
        )

    def _loss(self, judged: float) -> float:
        """A loss in the units of the given values."""
        return judged * self.unit**2

    def step(self, factors: Reals) -> Reals:
        """The gradient on a sample of examples that ask and of items that answer."""
        asked = self.random.choice(self.learners, min(ASKED, len(self.learners)), replace=False)
        answering, own = self.items, np.full(len(asked), -1)
        if len(answering) > self.several:
            answering = np.sort(self.random.choice(answering, self.several, replace=False))
            answering = answering if self.alone else np.union1d(asked, answering)
        if not self.alone:
            own = np.searchsorted(answering, asked)
        _, pulls = self._pulled(factors, asked, answering, own)
        return gradient(factors, self.asking[asked], self.features[answering], pulls)

    def judged(self, factors: Reals) -> float:
        """The mean loss of the judges, with all items that are not judges answering."""
        losses = 0.0
        for start in range(0, len(self.judges), ASKED):
            some = self.judges[start : start + ASKED]
            losses += self._pulled(factors, some, self.items, np.full(len(some), -1))[0] * len(some)
        return losses / len(self.judges)

    def warmed(self, factors: Reals, loss: float) -> tuple[Reals, float]:
        """L times the factor that gives the judges the lowest loss, and this loss."""
        tried = [(self.judged(factors / one**0.5), one) for one in WARMER.tolist()]
        better, temperature = min(tried)
        return (factors / np.float32(temperature**0.5), better) if better < loss else (factors, loss)

    def _pulled(self, factors: Reals, asked: Rows, answering: Rows, own: Rows) -> tuple[float, Reals]:
        q, k = self.asking[asked], self.features[answering]
        weights = weights_of(q @ factors.T, k @ factors.T, own)
        values, wanted = self.values[answering], self.wanted[asked]
        if self.labels:
            return by_labels(weights, wanted[:, None] == values[None, :])
        if self.ridge is None:
            return by_values(weights, values, wanted)
        return by_slopes(weights, q, k, values[:, 0], wanted[:, 0], self.ridge)


class _Adam:
    """The optimizer Adam (Kingma and Ba, 2015): steps of each number scaled by its recent gradients."""

    SLOW, SLOWER = 0.9, 0.99  # decay of the mean of the gradients, and of the mean of their squares

    def __init__(self, like: Reals, rate: float) -> None:
        self.rate, self.done = rate, 0
        self.mean, self.square = np.zeros_like(like), np.zeros_like(like)

    def moved(self, factors: Reals, slope: Reals, share: float) -> Reals:
        """The numbers after a step by a share of the rate."""
        self.done += 1
        self.mean = self.SLOW * self.mean + (1 - self.SLOW) * slope
        self.square = self.SLOWER * self.square + (1 - self.SLOWER) * slope * slope
        mean, square = self.mean / (1 - self.SLOW**self.done), self.square / (1 - self.SLOWER**self.done)
        return (factors - (self.rate * share) * mean / (np.sqrt(square) + 1e-8)).astype(factors.dtype)
