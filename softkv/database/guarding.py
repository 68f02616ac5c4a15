"""Calibrate a guard: ask a store what it should know, without those who know it, and keep how it did.

The items that took no part in learning are asked of all others that did, or queries with known answers of all items.
The widths of intervals are learned on items that took part, each left out; then nothing that calibrates has chosen
anything. A fifth of the calibration points say which thresholds are tried, and the others try them.

Does not compute promises (softkv/guard), nor learn (training.py).

Shapes: b queries, n items, c labels.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.asking.joined import joined
from softkv.asking.question import LEARNED
from softkv.asking.view import View
from softkv.database.evaluating import equals, vectors_of_many
from softkv.database.held_out import held_out
from softkv.database.targets import targets_of
from softkv.errors import InputError, ShapeError
from softkv.guard.conformal import Ranked, heavier
from softkv.guard.control import Risk, fewest_trials, laxest, most_events, p_value
from softkv.guard.guard import Guard, Seen, checked_share
from softkv.guard.judged import LEVEL, seen_of
from softkv.guard.widths import WidthRule
from softkv.progress import Stages
from softkv.storage.layout import Mask, Matrix

TOGETHER, AT_A_TIME = 256, 32  # queries in a lookup; with masks of their own
POINTS, PAIRS = 10_000, 1 << 32  # calibration points at most; and of these and the items that answer
LEFT_OUT = 512  # items that are left out one by one
FOR_GRID, STEPS = 5, 100  # one in so many points chooses thresholds; how many
SOME = 0.25  # of the queries: thresholds at which fewer are known are not tried, since few prove nothing
FEWEST = 20  # calibration points where only strangers choose the threshold
STRANGE = 0.01  # of queries like the items: who has less evidence is not known, however rarely answers are wrong
REMEDY = "Learn again (`softkv tune`, `softkv fit`), which leaves out a fifth, or give queries and their answers."


class Points(NamedTuple):
    """Queries, what they should be answered, and which items answer."""

    queries: Matrix
    aims: npt.NDArray[Any] | None  # codes, numbers or vectors; None for texts
    mask: Mask | None  # over the items in their order, or None for all
    who: str


class Promise(NamedTuple):
    """What is to be promised."""

    wrong_at_most: float
    strangers_at_most: float | None
    confidence: float


def calibrated(
    reader: Any, promise: Promise, *, queries: Any, answers: Any, strangers: Any, told: Stages | None
) -> Guard:
    """The guard of the store as it is now; nothing is written."""
    view: View = reader._asked_view()
    _require_shares(promise, strangers)
    points = _points(reader, view, queries, answers)
    _require_points(points, view, promise)
    outside = None if strangers is None else _strangers(reader, view, strangers, promise)
    asking = _Asking(reader, view, told)
    seen = asking.seen(points.queries, points.mask, "calibrating")
    kind, snapshot = view.layout.kind, view.snapshot
    items = int(points.mask.sum()) if points.mask is not None else len(snapshot)
    guard = Guard(
        coded=kind.coded,
        items=items,
        evidence=Ranked.of(np.zeros(1)),
        threshold=-np.inf,
        scores=None,
        widths=None,
        about=about(view),
        asked=promise._asdict(),
        found={},
        base=(snapshot.rows, len(snapshot), 0),
    )
    if not kind.coded and points.aims is not None:
        guard = replace(guard, widths=asking.widths(points.mask))
    evidence = guard.evidence_of(seen)
    wrong = seen.value.argmax(1) != points.aims if kind.coded else None
    others = None if outside is None else guard.evidence_of(asking.seen(outside, points.mask, "asking strangers"))
    guard = replace(
        guard,
        evidence=Ranked.of(evidence),
        scores=_scores(guard, seen, points),
        threshold=_threshold(promise, evidence, wrong, others),
    )
    return replace(guard, found=_found(guard, asking, points, evidence, wrong, others))


def about(view: View) -> dict[str, Any]:
    """How a store is asked, as far as a guard goes stale with it."""
    profile, compared = view.profile, view.profile.compatibility or "dot"
    learned = profile.projection is not None
    return {
        "compatibility": LEARNED if learned else compared,
        "temperature": 1.0 if learned else view.temperature(compared).value,
        "projection": profile.projection,
        "embedder": None if profile.embedder is None else profile.embedder.to_json(),
    }


def rebased(settings: Mapping[str, Any], rows: int, items: int) -> dict[str, Any]:
    """Settings for a store whose rows are laid out anew, without deleted ones; what had changed until then is kept."""
    kept, told = dict(settings), settings.get("guard")
    if told is not None:
        kept["guard"] = {**told, "base": [items, items, Guard.from_json(told).changed(rows, items)]}
    return kept


def remembered(settings: Mapping[str, Any], guard: Guard | None) -> dict[str, Any]:
    """Settings with this guard, or without any."""
    kept = {name: one for name, one in settings.items() if name != "guard"}
    return kept if guard is None else {**kept, "guard": guard.to_json()}


class _Asking:
    """Lookups as the store usually answers them, but exact, and of some of the items."""

    def __init__(self, reader: Any, view: View, told: Stages | None) -> None:
        self.reader, self.view, self.told = reader, view, told

    def seen(self, queries: Matrix, mask: Mask | None, name: str) -> Seen:
        """What these items answer, whatever guard there is."""
        return seen_of(self._answers(queries, TOGETHER, lambda _: mask, name))

    def left_out(self, places: npt.NDArray[np.int64], mask: Mask | None, name: str) -> Seen:
        """What the other items, of those in the mask, answer each of the items at these places."""
        count = len(self.view.order)

        def masks(some: slice) -> Mask:
            mine = places[some]
            found = np.ones((len(mine), count), np.bool_) if mask is None else np.repeat(mask[None], len(mine), 0)
            found[np.arange(len(mine)), mine] = False
            return found

        queries = self.view.snapshot.vectors(self.view.order[places])
        return seen_of(self._answers(queries, AT_A_TIME, masks, name))

    def widths(self, mask: Mask | None) -> WidthRule:
        """How far off items are, each left out of those that answer."""
        view = self.view
        answering = np.arange(len(view.order)) if mask is None else np.flatnonzero(mask)
        places = np.random.default_rng(0).permutation(answering)[:LEFT_OUT]
        seen = self.left_out(places, mask, "learning widths")
        wanted, scale = view.snapshot.values(view.order[places]), view.snapshot.value_scale
        found = distances(seen.value, wanted), seen.spread, seen.log_mass, seen.effective
        return WidthRule.learned(*found, items=len(answering) - 1, scale=scale)

    def _answers(self, queries: Matrix, together: int, mask: Any, name: str) -> Answers:
        parts = []
        for start in range(0, len(queries), together):
            some = slice(start, min(start + together, len(queries)))
            found = self.reader.lookup(queries[some], mask=mask(some), show=1, tolerance=0.0)
            parts.append((np.arange(some.start, some.stop), found))
            if self.told is not None:
                self.told(name, some.stop, len(queries))
        return joined(parts, parts[0][1].temperature)


def distances(values: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """How far values are from what is wanted, (b,) or (b, p) -> (b,)."""
    apart = (values.astype(np.float64) - wanted).reshape(len(values), -1)
    found: npt.NDArray[np.float64] = np.linalg.norm(apart, axis=1)
    return found


def _require_shares(promise: Promise, strangers: Any) -> None:
    checked_share("wrong_at_most", promise.wrong_at_most)
    checked_share("confidence", promise.confidence)
    if promise.strangers_at_most is not None:
        checked_share("strangers_at_most", promise.strangers_at_most)
        if strangers is None:
            raise InputError("expected strangers, queries that no item answers, where strangers_at_most is given.")


def _points(reader: Any, view: View, queries: Any, answers: Any) -> Points:
    """What calibrates: the items that took no part in learning, or the queries that were given."""
    if (queries is None) != (answers is None and (queries is None or not view.layout.kind.embedded)):
        raise InputError("expected queries and their answers together, or neither; of texts, which have none, queries.")
    if queries is not None:
        asked = vectors_of_many(reader, view, queries)
        aims = None if view.layout.kind.embedded else targets_of(view, answers)
        if aims is not None and len(aims) != len(asked):
            raise ShapeError(f"expected an answer for each of {len(asked)} queries, got {len(aims)}.")
        _require_strange(view, queries, asked, "queries")
        return Points(asked, aims, None, "queries")
    held = held_out(view, _share(view))[view.order]
    answering = int((~held).sum())
    places = np.flatnonzero(held)
    most = max(1000, min(POINTS, PAIRS // max(1, answering)))
    if len(places) > most:
        places = np.sort(np.random.default_rng(0).choice(places, most, replace=False))
    rows, kind = view.order[places], view.layout.kind
    aims = None if kind.embedded else view.snapshot.values(rows)
    return Points(view.snapshot.vectors(rows), aims, ~held, "items that took no part in learning")


def _require_points(points: Points, view: View, promise: Promise) -> None:
    """Refuse too few for what is asked, before any is."""
    if promise.strangers_at_most is not None and not view.layout.kind.coded:
        return _require_enough(len(points.queries), FEWEST, points.who, promise)
    least = fewest_trials(promise.wrong_at_most, promise.confidence)
    if view.layout.kind.coded:
        least = _beside_chosen(least)
    return _require_enough(len(points.queries), least, points.who, promise)


def _share(view: View) -> float:
    """The share of items that took no part in whatever lookups go by."""
    profile, shares = view.profile, list[float]()
    tuned = profile.temperature
    if tuned is not None and tuned.origin == "tuned":
        shares.append(tuned.held or 0.0)
    if view.learned is not None:
        shares.append(float(view.learned.facts.get("held", 0.0)))
    if not shares or not all(shares):
        what = "has learned from all of its items" if shares else "was never tuned"
        raise InputError(f"{view.snapshot.path} {what}, so none is left to calibrate a guard on. {REMEDY}")
    return min(shares)


def _strangers(reader: Any, view: View, given: Any, promise: Promise) -> Matrix:
    found = vectors_of_many(reader, view, given)
    _require_strange(view, given, found, "strangers")
    share = promise.strangers_at_most
    least = 1 if share is None else _beside_chosen(fewest_trials(share, promise.confidence))
    _require_enough(len(found), least, "strangers", promise)
    return found


def _require_strange(view: View, given: Any, vectors: Matrix, name: str) -> None:
    there = np.flatnonzero(equals(view, given, vectors) >= 0)
    if len(there):
        raise InputError(
            f"expected {name} that are no items, but {len(there)} of {len(vectors)} are, such as number {there[0]}. "
            "Leave them out."
        )


def _require_enough(count: int, least: int, what: str, promise: Promise) -> None:
    if count < least:
        raise InputError(
            f"expected at least {least} {what}, which it takes to promise so much with confidence "
            f"{promise.confidence:g}, got {count}. Give more of them or ask for less."
        )


def _scores(guard: Guard, seen: Seen, points: Points) -> Ranked | None:
    if points.aims is None:
        return None
    if guard.coded:
        return Ranked.of(heavier(seen.value, points.aims))
    assert guard.widths is not None
    widths = guard.widths.of(seen.spread, seen.log_mass, seen.effective, items=guard.items)
    return Ranked.of(distances(seen.value, points.aims) / widths)


def _threshold(
    promise: Promise,
    evidence: npt.NDArray[np.float64],
    wrong: npt.NDArray[np.bool_] | None,
    others: npt.NDArray[np.float64] | None,
) -> float:
    """The least evidence at which what was asked is promised."""
    if wrong is None and (others is None or promise.strangers_at_most is None):
        return float(np.sort(evidence)[most_events(len(evidence), promise.wrong_at_most, promise.confidence)])
    grid = _chosen(len(evidence))

    def risks(*, choose: bool) -> list[Risk]:
        """What is risked by the points that choose what is tried, or by those that try it."""
        found, some = list[Risk](), grid == choose
        if wrong is not None:
            found.append(Risk(evidence[some], wrong[some], promise.wrong_at_most))
        if others is not None and promise.strangers_at_most is not None:
            outside = others[_chosen(len(others)) == choose]
            found.append(Risk(outside, np.ones(len(outside), np.bool_), promise.strangers_at_most, of_all=True))
        return found

    thresholds, choosing = np.quantile(evidence[grid], np.linspace(1.0 - SOME, STRANGE, STEPS)), risks(choose=True)
    # Where the first fails, no other is reached: so that is the one that is likeliest to hold.
    first = int(np.argmin([p_value(threshold, choosing) for threshold in thresholds.tolist()]))
    found = laxest(thresholds[first:], risks(choose=False), promise.confidence)
    if found is None:
        share = "" if wrong is None else f" Of all, {wrong.mean():.1%} are wrong."
        raise InputError(
            f"no threshold keeps what was asked, {promise._asdict()}.{share} Ask for less, or learn better."
        )
    return found


def _beside_chosen(least: int) -> int:
    """How many points it takes so that this many are left to try thresholds."""
    return least + math.ceil(least / (FOR_GRID - 1))


def _chosen(count: int) -> npt.NDArray[np.bool_]:
    """Which of so many points choose thresholds, and do not try them."""
    found: npt.NDArray[np.bool_] = np.random.default_rng(0).permutation(count) % FOR_GRID == 0
    return found


def _found(
    guard: Guard,
    asking: _Asking,
    points: Points,
    evidence: npt.NDArray[np.float64],
    wrong: npt.NDArray[np.bool_] | None,
    others: npt.NDArray[np.float64] | None,
) -> dict[str, Any]:
    """What was seen of the calibration points, in figures."""
    known = evidence >= guard.threshold
    return {
        "who": points.who,
        "answered": float(known.mean()),
        "wrong": None if wrong is None else float(wrong[known].mean()),
        "strangers": None if others is None else float((others >= guard.threshold).mean()),
        "within": _observed(guard, asking, points),
    }


def _observed(guard: Guard, asking: _Asking, points: Points) -> float | None:
    """How often sets and intervals at 90% hold what is right where all other items answer; told, not promised."""
    if points.mask is None or guard.scores is None or guard.scores.quantile(LEVEL) == np.inf:
        return None
    view = asking.view
    places = np.random.default_rng(0).permutation(np.flatnonzero(~points.mask))[:LEFT_OUT]
    seen, wanted = asking.left_out(places, None, "observing"), view.snapshot.values(view.order[places])
    guard = replace(guard, now=len(view.order) - 1)
    if guard.coded:
        held = guard.labels_within(seen, LEVEL)[np.arange(len(places)), wanted]
    else:
        held = distances(seen.value, wanted) <= guard.radius(seen, LEVEL)
    return float(held.mean())
