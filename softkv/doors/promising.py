"""Promises of scikit-learn estimators: who is known, intervals and sets, in the shapes of MAPIE.

What calibrates is samples that took no part in `fit`; a store that an estimator was taken from may bring a guard.

Does not predict (sklearn.py).

Shapes: n samples, c classes, l levels.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.errors import InputError
from softkv.guard.calibrating import Promise, calibrate, distances
from softkv.guard.guard import Guard
from softkv.guard.judged import LEVEL, seen_of
from softkv.guard.widths import WidthRule

FOR_WIDTHS = 4  # one in so many samples tells how wide intervals are here and there, and calibrates nothing

Array = npt.NDArray[Any]


class Promising:
    """An estimator that can say how far its predictions may be off."""

    guard_: Guard | None = None
    k: int | None

    def _asked(self, X: Any) -> Answers:
        raise NotImplementedError

    def _aims(self, answers: Answers, y: Any) -> Array:
        raise NotImplementedError

    def conformalize(self, X: Any, y: Any, *, wrong_at_most: float = 0.05, confidence: float = 0.95) -> Any:
        """Calibrate on samples that were not fitted on; what is said of more like these is then promised."""
        answers, promise = self._asked(X), Promise(wrong_at_most, None, confidence)
        promise.require(None)
        coded, seen, aims = answers.labels is not None, seen_of(answers), self._aims(answers, y)
        some, widths = np.ones(len(aims), np.bool_), None
        if not coded:
            some = np.random.default_rng(0).permutation(len(aims)) % FOR_WIDTHS > 0
        promise.require_points(int(some.sum()), "samples", coded=coded)
        if not coded:
            told = seen.taken(~some)
            found = distances(told.value, aims[~some]), told.spread, told.log_mass, told.effective
            widths = WidthRule.learned(*found, items=answers.count, scale=float(np.std(aims)))
        how: dict[str, Any] = {"coded": coded, "widths": widths, "items": answers.count}
        guard = calibrate(seen.taken(some), aims[some], None, promise, **how)
        self.guard_ = replace(guard, about=self._how(answers))
        return self

    def predict_known(self, X: Any) -> Array:
        """Whether enough is known of each sample to rely on its prediction, (n,); see `SoftKV.guard`."""
        return np.asarray(self._judged(X).known)

    def _judged(self, X: Any) -> Answers:
        found = self._asked(X)
        if self.guard_ is None and found.guard is None:
            raise InputError(found.unguarded or "expected `conformalize` to be called first, or a store with a guard.")
        if self.guard_ is None:
            return found
        if self.guard_.about != (how := self._how(found)):
            raise InputError(f"expected {self.guard_.about}, as calibrated, got {how}. Call `conformalize` again.")
        return replace(found, guard=self.guard_)

    def _how(self, answers: Answers) -> dict[str, Any]:
        """What may change predictions without `fit`: a parameter, and the temperature of a store."""
        return {"k": self.k, "temperature": float(answers.temperature)}


class PromisingNumbers(Promising):
    """Predictions with intervals."""

    def predict_interval(self, X: Any, confidence_level: float | Sequence[float] = LEVEL) -> tuple[Array, Array]:
        """The predictions (n,), and the lower and upper ends of intervals that hold the truth so often, (n, 2, l)."""
        found = self._judged(X)
        levels = np.atleast_1d(confidence_level).tolist()
        return np.asarray(found.value), np.stack([found.interval(level) for level in levels], axis=2)

    def _aims(self, answers: Answers, y: Any) -> Array:
        return np.asarray(y, np.float64).reshape(np.shape(answers.value))


class PromisingLabels(Promising):
    """Predictions with sets of labels."""

    classes_: Array
    _names: tuple[str, ...]

    def predict_set(self, X: Any, confidence_level: float | Sequence[float] = LEVEL) -> tuple[Array, Array]:
        """The predictions (n,), and which classes are in sets that hold the right one so often, (n, c, l)."""
        found = self._judged(X)
        seen, names, guard = seen_of(found), list(found.labels or ()), found.guard
        assert guard is not None
        columns = [names.index(name) for name in self._names if name in names]
        places = [place for place, name in enumerate(self._names) if name in names]
        levels = np.atleast_1d(confidence_level).tolist()
        sets = np.zeros((len(found), len(self._names), len(levels)), np.bool_)
        for number, level in enumerate(levels):
            sets[:, places, number] = guard.labels_within(seen, level)[:, columns]
        best = np.array(places)[seen.value[:, columns].argmax(1)]
        return np.asarray(self.classes_)[best], sets

    def _aims(self, answers: Answers, y: Any) -> Array:
        known = {label: code for code, label in enumerate(answers.labels or ())}
        return np.array([known.get(str(one), -1) for one in np.asarray(y).tolist()], np.int64)
