"""The promises about the answers of a store: whether a query is known, how familiar it is, which labels, how far off.

    evidence      the log mass per item; for labels also four times the logit of the largest share
    familiarity   the share of queries like the items that have as little evidence: a conformal p-value
    known         whether the evidence reaches the threshold that keeps wrong answers, or strangers, rare
    labels, widths  split conformal sets and radii

Items that took no part in learning are looked up in a store that contains none of them. Their scores are exchangeable
with the score of a query like the items, looked up in the same store, so that promises hold for such queries.

Does not run lookups (softkv/database/guarding.py), and does not know how answers are laid out in memory (judged.py).

Shapes: b queries, c labels, p value width.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from softkv.errors import InputError, KindError
from softkv.guard.conformal import Ranked, within
from softkv.guard.widths import WidthRule
from softkv.kinds import ValueKind
from softkv.ndarrays import AnyArray, Flags, Floats

SURE, NONE = 4.0, 1e-7  # factor of the logit of the largest share in evidence; shares are clipped to NONE .. 1 - NONE
CHANGED = 0.1  # share of the items that may change before the guard no longer applies
HAIR = 2.0**-18  # relative rounding of evidence: equal queries may differ by it, alone or in a batch, or over shards
LEAST = 1e-9  # smallest distance of a share from 0 and from 1
OLDER = {"answered": "known"}  # names in `found` in guards of earlier versions, and what they are called now


class Seen(NamedTuple):
    """The parts of answers that a guard depends on."""

    value: AnyArray  # (b,), (b, p) or (b, c)
    log_mass: AnyArray  # (b,)
    effective: AnyArray  # (b,)
    spread: AnyArray | None  # (b,), of numbers
    error: Any  # (b,), how far values may be off; 0 where they are exact
    log_mass_error: Any  # (b,); 0 where exact, NaN where unknown
    spread_error: Any = 0.0  # (b,); 0 where exact, and where unknown
    effective_error: Any = 0.0  # (b,); 0 where exact, and where unknown
    rounding: Any = 0.0  # (b,), how far values may be rounded, which `error` does not count

    def taken(self, some: Flags) -> "Seen":
        """The parts for some of the queries."""
        found: dict[str, Any] = {name: one[some] if np.ndim(one) else one for name, one in self._asdict().items()}
        return Seen(**found)


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """Calibrated promises about the answers of a store, valid for the store as it was calibrated."""

    coded: bool  # whether values are labels
    items: int  # number of items that answered the calibration points
    evidence: Ranked
    threshold: float  # the evidence from which on a query is known
    scores: Ranked | None  # for labels the mass of heavier ones; for numbers and vectors distances divided by widths
    widths: WidthRule | None
    about: Mapping[str, Any]  # settings of the calibration: compatibility, temperature, projection, embedder
    asked: Mapping[str, Any]  # what was to be promised
    found: Mapping[str, Any]  # the figures that were measured
    base: tuple[int, int, int] = (0, 0, 0)  # rows and items at some moment, and how many items had changed until then
    now: int = 0  # number of items that answer now; 0: `items`

    def evidence_of(self, seen: Seen, sign: int = 0) -> Floats:
        """The evidence of answers, (b,); with `sign` -1 or 1 the least or most that their errors allow."""
        off = 0.0 if not sign else sign * np.asarray(seen.log_mass_error, np.float64)
        found: Floats = np.asarray(seen.log_mass, np.float64) + off - math.log(max(1, self.now or self.items))
        if not self.coded:
            return found
        shares = np.asarray(seen.value, np.float64)
        largest = shares.max(1) + (sign * np.asarray(seen.error, np.float64) if sign else 0.0)
        largest = np.clip(largest, NONE, 1.0 - NONE)
        found += SURE * (np.log(largest) - np.log1p(-largest))
        return found

    def known(self, seen: Seen) -> AnyArray:
        """Whether each query is known, (b,); None, in an array of objects, where errors leave it undecided."""
        return self._told(seen, self.evidence_of(seen) >= self.threshold)

    def familiarity(self, seen: Seen) -> AnyArray:
        """The share of queries like the items that have no more evidence, (b,), at least 1 / (n + 1).

        An estimate counts with the most evidence it may have. None where `known` is, in an array of objects.
        """
        most = self.evidence_of(seen, 1)
        return self._told(seen, self.evidence.p_values(most + hair(most)))

    def _told(self, seen: Seen, found: AnyArray) -> AnyArray:
        """The given results, but None where the error of the evidence leaves open whether the query is known."""
        least, most = self.evidence_of(seen, -1), self.evidence_of(seen, 1)
        unsure = ((least >= self.threshold) != (most >= self.threshold)) | np.isnan(least)
        if not unsure.any():
            return found
        found = found.astype(object)
        found[unsure] = None
        return found

    def labels_within(self, seen: Seen, share: float) -> Flags:
        """Which labels belong to the set that contains the right one with this probability, (b, c).

        For an estimate the set contains at least the labels of the exact answer's set.
        """
        if not self.coded:
            other = "`known`" if self.widths is None else "radius()"
            raise KindError(f"expected a store of labels to ask for a set of them. Ask this one for {other}.")
        assert self.scores is not None
        return within(np.asarray(seen.value), self._quantile(share), seen.error)

    def radius(self, seen: Seen, share: float) -> Floats:
        """How far from the value the right one is at most, with this probability, (b,).

        Of an estimate as far as of the exact answer, which lies within its error, with the largest width that the
        errors of what it goes by leave open. No error is stated of the spread and the effective number of answers that
        are not measured: they are taken as they are.

        Rounding is added: values that repeat score exactly 0 where lookups with a mask round otherwise than others.
        """
        if self.widths is None:
            other = "labels_within()" if self.coded else "`known`"
            raise KindError(f"expected numbers or vectors as values to ask how far off they are. Ask for {other}.")
        off = seen.spread_error, seen.log_mass_error, seen.effective_error
        widths = self.widths.of(seen.spread, seen.log_mass, seen.effective, items=self.now or self.items, off=off)
        found: Floats = self._quantile(share) * widths + np.asarray(seen.error, np.float64) + seen.rounding
        return found

    def _quantile(self, share: float) -> float:
        checked_share("the probability", share)
        assert self.scores is not None
        found = self.scores.quantile(share)
        if math.isinf(found):
            some = ", some with labels of no item," if np.isinf(self.scores.values[-1]) else ""
            raise InputError(
                f"expected a probability of at most {self.scores.most:.4g}, which is what {self.scores.count:,} "
                f"{self.found.get('who') or 'queries with known answers'}{some} can promise, got {share!r}."
            )
        return found

    def changed(self, rows: int, items: int) -> int:
        """How many items were added, deleted or replaced since, in a store that now has so many rows and items."""
        rows_then, items_then, before = self.base
        died = (rows - items) - (rows_then - items_then)
        return before + max(rows - rows_then, died, items_then - items, 0)

    def to_json(self) -> dict[str, Any]:
        """The guard as JSON, for the settings of a store."""
        told: dict[str, Any] = {name: getattr(self, name) for name in ("coded", "items", "threshold")}
        told["base"] = list(self.base)
        told |= {name: dict(getattr(self, name)) for name in ("about", "asked", "found")}
        scores = None if self.scores is None else self.scores.to_json()
        rule = None if self.widths is None else asdict(self.widths)
        widths = rule and {name: list(one) if isinstance(one, tuple) else one for name, one in rule.items()}
        return {**told, "evidence": self.evidence.to_json(), "scores": scores, "widths": widths}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], now: int = 0) -> "Guard":
        """Read the result of `to_json`; a ValueError, KeyError or TypeError if it is malformed."""
        given, (rows, items, before) = dict(told), told["base"]
        evidence, scores, widths = (given.pop(name) for name in ("evidence", "scores", "widths"))
        given["found"] = {OLDER.get(name, name): one for name, one in dict(given["found"]).items()}
        return cls(
            **{**given, "base": (int(rows), int(items), int(before)), "threshold": float(given["threshold"])},
            evidence=Ranked.from_json(evidence),
            scores=None if scores is None else Ranked.from_json(scores),
            widths=None if widths is None else WidthRule(**{name: _tuple(one) for name, one in widths.items()}),
            now=now,
        )

    def __str__(self) -> str:
        found, asked = self.found, {name: 100.0 * (share or 0.0) for name, share in self.asked.items()}
        wrong, rare, sure = (asked[name] for name in ("wrong_at_most", "strangers_at_most", "confidence"))
        how = f"promised, sure to {sure:.4g}%" if sure else "promised, on average"
        least = "" if self.coded else f" (at least {100.0 - wrong:.4g}% {how})"
        told = [f"{found['known']:.1%} of {self.evidence.count:,} {found['who']} are known{least}"]
        if self.coded:
            of, share = ("the known are", 1.0) if sure else ("all are known and", found["known"])
            told += [f"{share * found['wrong']:.1%} of {of} wrong (at most {wrong:.4g}% {how})"]
        if found.get("strangers") is not None:
            promise = f"at most {rare:.4g}% {how}" if rare else "measured, not promised: strangers_at_most"
            told += [f"{found['strangers']:.1%} of strangers are known ({promise})"]
        if found.get("within") is not None:
            what = "labels_within" if self.coded else "interval" if ValueKind(self.about["kind"]).scalar else "radius"
            told += [f"where all items answer, {what}(0.9) held what is right for {found['within']:.1%}"]
        if left := found.get("left_out"):
            told += [f"{left:,} more are items, or have the vector of one, and were left out"]
        return "; ".join(told)


def hair(evidence: Floats) -> Floats:
    """The largest difference that rounding may make in evidence."""
    return HAIR * np.maximum(1.0, np.where(np.isinf(evidence), 0.0, np.abs(evidence)))


def checked_share(name: str, given: object) -> float:
    """A share between 0 and 1, at least LEAST from both; otherwise an InputError that names it."""
    if isinstance(given, bool) or not isinstance(given, (int, float, np.floating)) or not LEAST <= given <= 1 - LEAST:
        raise InputError(f"expected {name} to be a number between 0 and 1, at least {LEAST} from both, got {given!r}.")
    return float(given)


def _tuple(given: Any) -> Any:
    return tuple(given) if isinstance(given, (list, tuple)) else given
