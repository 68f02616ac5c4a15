"""Whether a calibration still holds after many items were added or deleted, judged by items that are left out.

Left-out items are asked exactly and by the index. If the calibration holds, at least the stated share of answers is
within the stated error. It is withdrawn if so few are within it that this would happen with a probability below CHANCE;
and so is the calibration of the k best, if they were found for so few.

Asks nothing itself, and does not choose the items (database/rechecking.py).

Shapes: b queries, n rows of a block, p value width.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from softkv.index.calibration import BEST
from softkv.index.lists import ListIndex
from softkv.maths.quantiles import at_most
from softkv.ndarrays import Counts, Flags, Floats, Reals

CHANGED = 0.1  # a calibration is checked again once this share of the items was added or deleted
CHANCE = 0.001  # the largest probability of withdrawing a calibration that holds
SLACK = 2.0  # log masses may be off so many times as often as values, since their errors have no room for drift
LIGHT = -60.0  # the logarithm of a weight that counts as 0: smaller weights slow products down
MOST_ASKED, MOST_TEMPERATURES = 1 << 10, 8  # in a verdict
_NUMBERS, _EACH = ("file", "changes", "items", "confidence"), ("temperatures", "asked", "values", "masses")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many of some left-out items were answered within what is stated, at each of some temperatures."""

    file: int  # the commit of the index that this is about
    changes: int  # how many items had been added or deleted since it was calibrated
    items: int  # how many there were then
    confidence: float  # the share of answers that is to be within what they state
    temperatures: tuple[float, ...]
    asked: tuple[int, ...]  # how many of the left-out items the index answered
    values: tuple[int, ...]  # how many of these values were within the stated error
    masses: tuple[int, ...]  # how many log masses were
    ranked: int = 0  # for how many of the left-out items the best others were searched
    found: tuple[int, ...] = ()  # for how many of these the k best were all found, for each k that is rehearsed

    @property
    def withdrawn(self) -> bool:
        """Whether the calibration no longer holds."""
        return self._worst[0] * max(1, 2 * len(self.temperatures)) < CHANCE

    @property
    def _worst(self) -> tuple[float, int, int, str]:
        """The count that is least probable if the calibration holds: its probability, itself, and out of how many."""
        masses = 1.0 - SLACK * (1.0 - self.confidence)
        seen = [(1.0, 1, 0, "answers")]
        for what, share, counts in (("values", self.confidence, self.values), ("log masses", masses, self.masses)):
            each = zip(counts, self.asked, strict=True)
            seen += [(at_most(within, asked, share), within, asked, what) for within, asked in each]
        return min(seen)

    def lost(self, k: int | None = None) -> str | None:
        """How seldom the k best were found, if that is too seldom; by default those of any k."""
        wanted = next((many for many in BEST if k is not None and many >= k), None)
        seen = [
            (at_most(found, self.ranked, self.confidence), found, many)
            for many, found in zip(BEST, self.found, strict=False)
            if k is None or many == wanted
        ]
        chance, found, many = min(seen, default=(1.0, 0, 0))
        if chance * len(self.found) >= CHANCE or not self.ranked:
            return None
        return f"the {many} best found for {found / self.ranked:.0%} of {self.ranked}"

    def __str__(self) -> str:
        _, within, asked, what = self._worst
        said, lost = f"{within / max(1, asked):.0%} of {asked} {what} within what it states", self.lost()
        return said if lost is None else f"{said}, and {lost}"

    def encoded(self) -> bytes:
        """The verdict as bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, content: bytes) -> "Verdict | None":
        """The verdict in these bytes, which may be anything; None if they hold none."""
        try:
            return cls.of(json.loads(content))
        except (ValueError, RecursionError):
            return None

    @classmethod
    def of(cls, facts: Any) -> "Verdict | None":
        """The verdict in these facts, which may be anything; None if they hold none."""
        try:
            numbers, each = ([facts[name] for name in names] for names in (_NUMBERS, _EACH))
            found = cls(*numbers, *(tuple(one) for one in each))
            found = replace(found, ranked=facts.get("ranked", 0), found=tuple(facts.get("found", ())))
            return found if found._is_sound() else None
        except (TypeError, KeyError, ValueError):
            return None

    def _is_sound(self) -> bool:
        each = self.asked + self.values + self.masses + self.found
        counts = (self.file, self.changes, self.items, self.ranked, *each)
        if not all(is_count(one) for one in counts) or len(self.temperatures) > MOST_TEMPERATURES:
            return False
        if not all(type(one) is float and 0 < one < math.inf for one in (1.0 - self.confidence, *self.temperatures)):
            return False
        seen = zip(self.values + self.masses, self.asked * 2, strict=True)
        alike = len(self.asked) == len(self.values) == len(self.masses) == len(self.temperatures)
        if len(self.found) not in (0, len(BEST)) or not max(self.found, default=0) <= self.ranked <= MOST_ASKED:
            return False
        return alike and 1.0 - self.confidence < 1.0 / SLACK and all(one <= asked <= MOST_ASKED for one, asked in seen)


def is_count(given: object) -> bool:
    """Whether this is a whole number, 0 or more."""
    return type(given) is int and 0 <= given < 1 << 62


def changes(index: ListIndex, rows: int, dead: int) -> int:
    """How many items were added or deleted since an index was calibrated, by the rows, deleted ones included."""
    before: Any = index.facts.get("changed")
    return (before if is_count(before) else 0) + max(0, rows - index.rows) + dead


def moved(index: ListIndex, changed: int, rows: int, verdict: Verdict | None) -> dict[str, Any]:
    """The facts of an index whose rows are laid in another order, with the last verdict on its calibration."""
    known = {"changed": changed - (rows - index.rows)}
    return {**index.facts, **known, **({} if verdict is None else {"checked": asdict(verdict)})}


class Truth:
    """The exact answers to some queries, block by block of the rows."""

    def __init__(self, count: int, width: int) -> None:
        self.peaks, self.masses, self.totals = np.full(count, -np.inf), np.zeros(count), np.zeros((count, width))

    def add(self, logits: Reals, values: Reals | Counts, counted: Flags) -> None:
        """Rows with these logits, (b, n), which are overwritten; values are vectors, (n, p), or codes, (n,)."""
        logits[:, ~counted] = -np.inf
        peaks = np.maximum(self.peaks, logits.max(1))
        raised = (peaks > self.peaks) & (self.masses > 0)
        factors = np.exp(self.peaks[raised] - peaks[raised])
        self.masses[raised] *= factors
        self.totals[raised] *= factors[:, None]
        self.peaks = peaks
        logits -= np.where(np.isfinite(peaks), peaks, 0.0).astype(np.float32)[:, None]
        weights = np.exp(np.maximum(logits, np.float32(LIGHT), out=logits), out=logits)
        weights[:, ~counted] = 0.0
        self.masses += weights.sum(1, dtype=np.float64)
        self._add_values(weights, values)

    def _add_values(self, weights: Reals, values: Reals | Counts) -> None:
        if values.ndim == 2:
            self.totals += weights @ values
            return
        order = np.argsort(values, kind="stable")
        codes, firsts = np.unique(values[order], return_index=True)
        self.totals[:, codes] += np.add.reduceat(weights[:, order], firsts, axis=1, dtype=np.float64)

    @property
    def values(self) -> Floats:
        """The means of the values, (b, p)."""
        return self.totals / self.masses[:, None]

    @property
    def log_masses(self) -> Floats:
        """The logarithms of the masses, (b,)."""
        return self.peaks + np.log(self.masses)
