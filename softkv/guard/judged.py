"""The part of `Answer` and `Answers` that applies the guard of the store.

Does not compute promises (guard.py).

Shapes: b queries, c labels.
"""

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from softkv.errors import InputError, KindError
from softkv.guard.guard import Guard, Seen
from softkv.ndarrays import AnyArray

LEVEL = 0.9  # default probability of sets and intervals
ROUNDED = 4.0  # roundings of a value by which it may differ, alone or in a batch, with a mask or without
# The types of results, for one answer or for many: a truth, a number, labels, and the bounds of an interval.
KnownT = TypeVar("KnownT")
NumberT = TypeVar("NumberT")
LabelsT = TypeVar("LabelsT", bound=Sequence[Any])
BoundsT = TypeVar("BoundsT", bound="Sequence[float] | AnyArray")
NOT_GUARDED = "the store has no guard. Make one with `guard`."


class Judged(Generic[KnownT, NumberT, LabelsT, BoundsT]):
    """One answer or many, with the guard of their store, if it applies to such answers."""

    __slots__ = ()

    guard: Guard | None
    unguarded: str | None  # why the guard of the store does not apply to these answers
    labels: tuple[object, ...] | None
    scored: Any

    @property
    def known(self) -> KnownT | None:
        """Whether the store knows enough to answer: True or False, or an array (b,) of them; None where undecided.

        For queries like the items, answers that are known are wrong as rarely as `guard` was asked to promise.
        """
        return None if self.guard is None else self._each(self.guard.known(seen_of(self)))

    @property
    def familiarity(self) -> NumberT | None:
        """The share of queries like the items with no more evidence, a number or (b,); None where `known` is None."""
        return None if self.guard is None else self._each(self.guard.familiarity(seen_of(self)))

    @property
    def why_unknown(self) -> str | None:
        """Why `known` is not True for one answer: what to do, or the evidence and the threshold; otherwise None."""
        if self.guard is None or not isinstance(self.scored, int):
            return self.unguarded
        known, evidence = self.known, float(self.guard.evidence_of(seen_of(self))[0])
        if known is None:
            return "the error of the evidence is too large to tell. Ask with tolerance=0."
        return None if known else f"the evidence is {evidence:.4g}, below the threshold of {self.guard.threshold:.4g}"

    @property
    def promised(self) -> dict[str, Any] | None:
        """The promise for one answer that holds for 9 in 10 queries, by its name; None if there is none, or unknown."""
        guard = self.guard
        if guard is None or guard.scores is None or math.isinf(guard.scores.quantile(LEVEL)) or self.known is False:
            return None
        if guard.coded:
            return {"share": LEVEL, "labels_within": list(self.labels_within(LEVEL))}
        if seen_of(self).value.ndim == 1:
            return {"share": LEVEL, "interval": list(self.interval(LEVEL))}
        return {"share": LEVEL, "radius": self.radius(LEVEL)}

    def labels_within(self, share: float = LEVEL) -> LabelsT:
        """Labels, the heaviest first, among which the right one is for this share of all queries; for many, a list.

        Empty where the query is not known; the share holds for all queries before these sets are emptied. For known
        queries the heaviest label alone is wrong as rarely as `guard` was asked to promise.
        """
        seen = seen_of(self)
        held, known = self._guarding.labels_within(seen, share), self._guarding.known(seen)
        held[[one is False for one in known.tolist()]] = False
        names, order = self.labels or (), np.argsort(-np.asarray(seen.value), axis=1, kind="stable")
        found = [tuple(names[code] for code in line if some[code]) for line, some in zip(order, held, strict=True)]
        told: LabelsT = self._each(found)
        return told

    def interval(self, share: float = LEVEL) -> BoundsT:
        """The interval that contains the right number with this probability: (low, high), or (b, 2)."""
        seen = seen_of(self)
        radii = self._guarding.radius(seen, share)
        if seen.value.ndim != 1:
            raise KindError("expected numbers as values to ask for an interval. Ask vectors for radius().")
        told: BoundsT = self._each(np.stack([seen.value - radii, seen.value + radii], axis=1))
        return told

    def radius(self, share: float = LEVEL) -> NumberT:
        """The distance from `value` within which the right one lies with this probability, a number or (b,)."""
        told: NumberT = self._each(self._guarding.radius(seen_of(self), share))
        return told

    @property
    def _guarding(self) -> Guard:
        if self.guard is None:
            raise InputError(self.unguarded or NOT_GUARDED)
        return self.guard

    def _each(self, found: Any) -> Any:
        """The result for all queries; for a single query its number, or its numbers as a tuple."""
        if not isinstance(self.scored, int):
            return found
        one = found[0]
        if isinstance(one, np.ndarray):
            return tuple(one.tolist())
        return one.item() if isinstance(one, np.generic) else one


def seen_of(answers: Any) -> Seen:
    """The parts of answers that a guard depends on; a single answer becomes a batch of one."""
    one = isinstance(answers.scored, int)
    found: dict[str, Any] = {name: getattr(answers, name) for name in Seen._fields[:-1]}  # all but `rounding`
    found = {name: x if x is None else np.asarray(x)[None] if one else np.asarray(x) for name, x in found.items()}
    exact = np.broadcast_to(np.asarray(answers.error_kind) == "exact", len(found["value"]))
    for name in ("error", "log_mass_error"):
        found[name] = np.where(exact, 0.0, np.nan if found[name] is None else found[name])
    for name in ("spread_error", "effective_error"):
        found[name] = 0.0 if found[name] is None else np.nan_to_num(found[name])
    value, precision = found["value"].astype(np.float64), np.finfo(found["value"].dtype).eps
    rounding = ROUNDED * precision * np.linalg.norm(value.reshape(len(value), -1), axis=1)
    return Seen(**{**found, "value": value, "rounding": rounding})
