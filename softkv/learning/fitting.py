"""Learn a metric: the one by which items, left out one at a time, are best predicted by the others.

A step asks some items of some others and moves L down the gradient (gradients.py), by Adam under a rate that falls to
nothing. Now and then items that take no part in this are asked: the best L by their loss is kept, and when it has not
become better for long, that was that. In the end one factor is chosen for L, its temperature, with all items answering.

Features of different units are brought to one scale first: the standard deviation of each is 1 where keys are not
directions. L carries that, so what is learned speaks of keys as they are.

Does not read stores, and does not know names of labels.

Shapes: n items, d key width, r rank, p value width, b items asked at a time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.errors import InputError
from softkv.learning.gradients import by_labels, by_slopes, by_values, gradient, weights_of
from softkv.learning.temperature import typical_temperature
from softkv.maths.compatibility import Compatibility
from softkv.maths.metric import Metric
from softkv.progress import Progress, Stages, untold

ASKED = 256  # items in a step
ANSWERING = 4096  # items that answer in a step, or more where they are narrow
NUMBERS = 1 << 20  # in the keys that answer in a step, at most, where that allows more
HELD = 2000  # items that only judge, at most
SHARE = 0.1  # of the items, at most
STEPS = 400
LOOKS = 20  # at the judges
PATIENCE = 6  # looks without anything better
SMALLEST = 1e-33  # deviation of a feature that float32 can divide by, and multiply again
RATE = 0.07  # of a step, beside a typical entry of L
RIDGES = (0.3, 0.03)  # of planes that are tried
FARTHEST = 1e12  # how many deviations of the items away from them targets may be
WARMER = np.geomspace(0.5, 2.0, 15)  # temperatures that are tried in the end

Array = npt.NDArray[np.floating]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Vectors, and what belongs to them: the codes of labels (n,), or values (n, p)."""

    vectors: Array  # (n, d)
    values: npt.NDArray[Any]

    @property
    def labels(self) -> bool:
        """Whether the values are labels."""
        return self.values.ndim == 1


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """What was learned, and how well it did on the examples that took no part."""

    metric: Metric
    units: Array  # (d,), what features were divided by
    loss: float  # −log P, or the squared distance
    started: float  # that of the metric that it started from
    steps: int
    curve: tuple[tuple[int, float], ...]  # the loss after so many steps
    judges: Rows  # who took no part
    answering: Rows  # the items that answered them
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
    """The best of the metrics that average, that read numbers off planes, or (`planes` is None) of all of these."""

    def one(ridge: float | None) -> Fitted:
        name = "fitting" if ridge is None else f"fitting planes, ridge {ridge:g}"
        progress = None if told is None else lambda done, total: told(name, done, total)
        return fit(items, asking, directions=directions, ridge=ridge, rank=rank, seed=seed, told=progress)

    ridges = {None: (None, *RIDGES), True: RIDGES, False: (None,)}[planes]
    return min((one(ridge) for ridge in ridges), key=lambda fitted: fitted.loss)


def is_better(loss: float, before: float) -> bool:
    """Whether a loss is lower by more than rounding."""
    return loss < before * (1 - 1e-6)


def loss_of(
    compared: Compatibility, temperature: float, items: Examples, asking: Examples | None, fitted: Fitted
) -> float:
    """What the judges of a metric lose when they ask the same items in another way."""
    asked, answering = items if asking is None else asking, fitted.answering
    keys, values, losses = items.vectors[answering], items.values[answering], 0.0
    for start in range(0, len(fitted.judges), ASKED):
        some = fitted.judges[start : start + ASKED]
        logits = compared.ask(asked.vectors[some], 1.0 / temperature)(keys, 0).astype(np.float64)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        wanted = asked.values[some]
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
    """The metric by which these items predict each other best, or what is asked of them, if that is given.

    `ridge` is λ of the plane through numbers (n, 1) as values, None for their mean.
    """
    if items.labels and asking is None and len(np.unique(items.values)) == len(items.values):
        raise InputError("no label is carried by two items, so no other can know it. Give items that share labels.")
    fitting = _Fitting(items, asking, directions=directions, ridge=ridge, seed=seed)
    return fitting.run(fitting.start(rank), STEPS if steps is None else steps, told or untold)


class _Fitting:
    """The items, those who ask, and who of them judges, all in one scale."""

    def __init__(
        self, items: Examples, asking: Examples | None, *, directions: bool, ridge: float | None, seed: int
    ) -> None:
        self.random, self.directions, self.ridge = np.random.default_rng(seed), directions, ridge
        self.labels, self.unit = items.labels, 1.0
        kept = self._kept(items.vectors)
        width = kept.shape[1]
        self.centre: Array = np.zeros(width) if directions else kept.mean(0)
        deviations = np.ones(width) if directions else kept.std(0)
        self.units = np.where(deviations > SMALLEST, deviations, 1.0)
        self.middle = 0.0 if self.labels else items.values.mean(0)
        if not self.labels:
            self.unit = float((items.values - self.middle).std()) or 1.0
            if asking is not None:  # what is wanted may be beyond all items, but not beyond the squares of float32
                self.unit = max(self.unit, float(np.abs(asking.values - self.middle).max()) / FARTHEST)
        self.features, self.values = self._scaled(items)
        self.alone = asking is not None  # who asks is no item
        self.asking, self.wanted = (self.features, self.values) if asking is None else self._scaled(asking)
        order = self.random.permutation(len(self.asking))
        held = min(HELD, max(1, round(SHARE * len(order))))
        self.judges, self.learners = np.sort(order[:held]), np.sort(order[held:])
        self.items = np.arange(len(self.features)) if self.alone else self.learners
        self.several = max(ANSWERING, NUMBERS // width)

    def _kept(self, vectors: Array) -> Array:
        wide: Array = vectors.astype(np.float64)
        return wide / np.linalg.norm(wide, axis=1, keepdims=True) if self.directions else wide

    def _scaled(self, some: Examples) -> tuple[Array, npt.NDArray[Any]]:
        features = ((self._kept(some.vectors) - self.centre) / self.units).astype(np.float32)
        return features, some.values if self.labels else ((some.values - self.middle) / self.unit).astype(np.float32)

    def start(self, rank: int | None) -> Array:
        """L to begin with: the features as they are, or their leading axes, in a scale in which some items count."""
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

    def run(self, factors: Array, steps: int, told: Progress) -> Fitted:
        """Go down until the judges have had enough."""
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
        """A loss as the values are given."""
        return judged * self.unit**2

    def step(self, factors: Array) -> Array:
        """The gradient for some who ask, and some items that answer."""
        asked = self.random.choice(self.learners, min(ASKED, len(self.learners)), replace=False)
        answering, own = self.items, np.full(len(asked), -1)
        if len(answering) > self.several:
            answering = np.sort(self.random.choice(answering, self.several, replace=False))
            answering = answering if self.alone else np.union1d(asked, answering)
        if not self.alone:
            own = np.searchsorted(answering, asked)
        _, pulls = self._pulled(factors, asked, answering, own)
        return gradient(factors, self.asking[asked], self.features[answering], pulls)

    def judged(self, factors: Array) -> float:
        """The loss of the judges, asked of all items that are none."""
        losses = 0.0
        for start in range(0, len(self.judges), ASKED):
            some = self.judges[start : start + ASKED]
            losses += self._pulled(factors, some, self.items, np.full(len(some), -1))[0] * len(some)
        return losses / len(self.judges)

    def warmed(self, factors: Array, loss: float) -> tuple[Array, float]:
        """L times the factor that suits the judges best, when everybody answers."""
        tried = [(self.judged(factors / one**0.5), one) for one in WARMER.tolist()]
        better, temperature = min(tried)
        return (factors / np.float32(temperature**0.5), better) if better < loss else (factors, loss)

    def _pulled(self, factors: Array, asked: Rows, answering: Rows, own: Rows) -> tuple[float, Array]:
        q, k = self.asking[asked], self.features[answering]
        weights = weights_of(q @ factors.T, k @ factors.T, own)
        values, wanted = self.values[answering], self.wanted[asked]
        if self.labels:
            return by_labels(weights, wanted[:, None] == values[None, :])
        if self.ridge is None:
            return by_values(weights, values, wanted)
        return by_slopes(weights, q, k, values[:, 0], wanted[:, 0], self.ridge)


class _Adam:
    """Steps as long as the recent gradients agree, for each number by itself (Kingma and Ba, 2015)."""

    SLOW, SLOWER = 0.9, 0.99  # what is kept of the mean of gradients, and of that of their squares

    def __init__(self, like: Array, rate: float) -> None:
        self.rate, self.done = rate, 0
        self.mean, self.square = np.zeros_like(like), np.zeros_like(like)

    def moved(self, factors: Array, slope: Array, share: float) -> Array:
        """The numbers after a step by a share of the rate."""
        self.done += 1
        self.mean = self.SLOW * self.mean + (1 - self.SLOW) * slope
        self.square = self.SLOWER * self.square + (1 - self.SLOWER) * slope * slope
        mean, square = self.mean / (1 - self.SLOW**self.done), self.square / (1 - self.SLOWER**self.done)
        return (factors - (self.rate * share) * mean / (np.sqrt(square) + 1e-8)).astype(factors.dtype)
