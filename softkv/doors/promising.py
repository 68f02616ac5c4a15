"""Promises of scikit-learn estimators: known samples, intervals and sets, in the shapes of MAPIE.

They are calibrated on samples that took no part in `fit`; an estimator made from a store may use the guard of it.

Does not predict (sklearn.py).

Shapes: n samples, c classes, l levels.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from softkv.answer import Answers
from softkv.doors.held import InMemory, OnDisk
from softkv.errors import InputError, KindError
from softkv.guard.calibrating import Promise, calibrate, distances
from softkv.guard.guard import CHANGED, Guard
from softkv.guard.judged import LEVEL, seen_of
from softkv.guard.widths import WidthRule
from softkv.ndarrays import AnyArray, Flags

FOR_WIDTHS = 4  # one in so many samples fits the widths of intervals, and does not calibrate

PromisingT = TypeVar("PromisingT", bound="Promising")


class Promising:
    """An estimator that can state how far its predictions may be off."""

    guard_: Guard | None = None
    held_: InMemory | OnDisk
    k: int | None

    def _asked(self, X: Any) -> Answers:
        raise NotImplementedError

    def _fitted_on(self, X: Any) -> Flags:
        raise NotImplementedError

    def _aims(self, answers: Answers, y: Any) -> AnyArray:
        raise NotImplementedError

    def conformalize(
        self: PromisingT, X: Any, y: Any, *, wrong_at_most: float = 0.05, confidence: float | None = 0.95
    ) -> PromisingT:
        """Calibrate on samples that were not fitted on; what is said of more like these is then promised.

        Samples that were fitted, whatever their target, are left out; `guard_.found["left_out"]` says how many.
        """
        answers, promise = self._asked(X), Promise(wrong_at_most, None, confidence)
        promise.require(None)
        if np.isnan(answers.log_mass).any():
            raise InputError("expected samples whose log mass is known, got k best by an index. Fit with tolerance=0.")
        # Chosen by the samples, never by their targets: otherwise the remaining ones would not be a fair sample.
        new = ~self._fitted_on(X)
        left = int((~new).sum())
        coded, seen, aims = answers.labels is not None, seen_of(answers).taken(new), self._aims(answers, y)[new]
        some, widths = np.ones(len(aims), np.bool_), None
        if not coded:
            some = np.random.default_rng(0).permutation(len(aims)) % FOR_WIDTHS > 0
        who = "samples that `fit` has not seen" + (f" (it has seen {left} others)" if left else "")
        who += "" if coded else ", of which a fourth tells how wide intervals are"
        promise.require_enough(len(aims), wrong_at_most, who, chosen=coded, aside=0 if coded else FOR_WIDTHS)
        if not coded:
            told = seen.taken(~some)
            found = distances(told.value, aims[~some]), told.spread, told.log_mass, told.effective
            widths = WidthRule.learned(*found, items=answers.count, scale=float(np.std(aims)))
        how: dict[str, Any] = {"coded": coded, "widths": widths, "items": answers.count}
        guard = calibrate(seen.taken(some), aims[some], None, promise, **how)
        seen_then = {**guard.found, "who": "samples", "within": None, "left_out": left}
        base = *self.held_.extent, 0
        self.guard_ = replace(guard, about=self._how(answers), found=seen_then, base=base)
        return self

    def predict_known(self, X: Any) -> AnyArray:
        """Whether enough is known of each sample to rely on its prediction, (n,); see `SoftKV.guard`.

        None where an estimate is too rough to tell; with `tolerance=0` all are flags.
        """
        return np.asarray(self._judged(X).known)

    def _judged(self, X: Any) -> Answers:
        found = self._asked(X)
        if self.guard_ is None and found.guard is None:
            raise InputError(found.unguarded or "expected `conformalize` to be called first, or a store with a guard.")
        if self.guard_ is None:
            return found
        if self.guard_.about != (how := self._how(found)):
            raise InputError(f"expected {self.guard_.about}, as calibrated, got {how}. Call `conformalize` again.")
        changed, items = self.guard_.changed(*self.held_.extent), self.guard_.base[1]
        if changed / items >= CHANGED:
            raise InputError(
                f"expected about the items as when it was calibrated, but {changed:,} of {items:,} changed. Call "
                "`conformalize` again."
            )
        return replace(found, guard=replace(self.guard_, now=found.count))

    def _how(self, answers: Answers) -> dict[str, Any]:
        """What may change predictions without `fit`: the parameters, and the state of the store."""
        return {"k": self.k, "temperature": float(answers.temperature), **self.held_.goes_by}


def _levels(confidence_level: float | Sequence[float]) -> list[float]:
    """One or more levels."""
    levels: list[float] = np.atleast_1d(confidence_level).tolist()
    if not levels:
        raise InputError("expected one or more confidence levels, got none. Give a number, such as 0.95.")
    return levels


class PromisingNumbers(Promising):
    """Predictions with intervals."""

    def predict_interval(self, X: Any, confidence_level: float | Sequence[float] = LEVEL) -> tuple[AnyArray, AnyArray]:
        """The predictions (n,), and the ends of intervals that contain the truth this often, (n, 2, l)."""
        found = self._judged(X)
        levels = _levels(confidence_level)
        return np.asarray(found.value), np.stack([found.interval(level) for level in levels], axis=2)

    def _aims(self, answers: Answers, y: Any) -> AnyArray:
        aims, wanted = np.atleast_1d(np.asarray(y, np.float64)), np.shape(answers.value)
        if len(aims) != wanted[0] or aims.size != math.prod(wanted) or not np.isfinite(aims).all():
            raise InputError(f"expected finite targets of shape {wanted}, got shape {aims.shape}, or some not finite.")
        return aims.reshape(wanted)


class PromisingLabels(Promising):
    """Predictions with sets of labels."""

    classes_: AnyArray
    _names: tuple[str, ...]

    def predict_set(self, X: Any, confidence_level: float | Sequence[float] = LEVEL) -> tuple[AnyArray, AnyArray]:
        """The predictions (n,), and sets of classes that contain the right one with these probabilities, (n, c, l)."""
        found = self._judged(X)
        seen, guard, best = seen_of(found), found.guard, self._by_class(found, found.value).argmax(1)
        assert guard is not None
        levels = _levels(confidence_level)
        sets = [self._by_class(found, guard.labels_within(seen, level)) > 0 for level in levels]
        return np.asarray(self.classes_)[best], np.stack(sets, axis=2)

    def _by_class(self, answers: Answers, told: AnyArray) -> AnyArray:
        """What is told of each label of the store, (n, l), in the order of `classes_`, (n, c)."""
        places = {name: place for place, name in enumerate(self._names)}
        found = np.zeros((len(answers), len(self._names)))
        for column, name in enumerate(answers.labels or ()):
            if name in places:
                found[:, places[str(name)]] = told[:, column]
            elif told[:, column].any():
                raise KindError(
                    f"the store holds the label {name!r} by now, which this classifier was not fitted on. Take the "
                    "store up anew with from_store."
                )
        return found

    def _aims(self, answers: Answers, y: Any) -> AnyArray:
        given = np.ravel(y).tolist()
        if len(given) != len(answers):
            raise InputError(f"expected a label for each of {len(answers):,} samples, got {len(given):,}.")
        codes = {label: code for code, label in enumerate(answers.labels or ())}
        names = dict(zip(self.classes_.tolist(), self._names, strict=True))  # 1 and 1.0 are the same class
        return np.array([codes.get(names.get(one, str(one)), -1) for one in given], np.int64)
