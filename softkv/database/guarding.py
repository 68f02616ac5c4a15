"""Calibrate a guard: ask a store questions whose answers are known, and keep how well it did.

The questions are the items that were held out from learning, answered by the items that took part; or queries with
known answers, answered by all items. The widths of intervals are learned on items that took part, each left out, so
that calibration points have chosen nothing. Since lookups use all items, held-out items are also answered by all other
items, each left out (calibrating.py keeps the more careful result). A fifth of the calibration points choose the
thresholds to try; the others test these.

Does not compute promises (softkv/guard), nor learn (training.py).

Shapes: b queries, n items, c labels.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.asking.joined import joined
from softkv.asking.profile import Profile
from softkv.asking.promised import guard_of
from softkv.asking.question import LEARNED
from softkv.asking.view import View
from softkv.database.evaluating import equals, vectors_of_many
from softkv.database.held_out import held_out
from softkv.database.targets import targets_of
from softkv.errors import InputError, ShapeError
from softkv.guard.calibrating import Beside, Promise, calibrate, distances
from softkv.guard.guard import Guard, Seen
from softkv.guard.judged import LEVEL, seen_of
from softkv.guard.widths import WidthRule
from softkv.ndarrays import AnyArray, Flags, Matrix
from softkv.progress import Stages
from softkv.storage import Snapshot, Store

TOGETHER, AT_A_TIME = 256, 32  # queries in a lookup; with masks of their own
POINTS, PAIRS = 10_000, 1 << 32  # at most: calibration points, and pairs of these and the items that answer
NAMED = 10  # strangers that an error names
LEFT_OUT = 512  # items that are left out one by one to learn widths
REMEDY = "Learn again (`softkv tune`, `softkv fit`), which leaves out a fifth, or give queries and their answers."


class Points(NamedTuple):
    """Calibration points: queries, their right answers, and which items answer them."""

    queries: Matrix
    aims: AnyArray | None  # codes, numbers or vectors; None for texts
    mask: Flags | None  # over the items in their order, or None for all
    who: str
    places: npt.NDArray[np.int64] | None = None  # in that order, where the queries are items
    left_out: int = 0  # how many given queries were dropped since they are items


def calibrated(
    reader: Any, promise: Promise, *, queries: Any, answers: Any, strangers: Any, told: Stages | None
) -> Guard:
    """The guard of the store as it is now; nothing is written."""
    view: View = reader._asked_view()
    promise.require(strangers)
    points = _points(reader, view, queries, answers)
    more = "Give more" if points.places is None else "Give more, hold more out (`tune`, `fit`)"
    left = points.left_out
    who = points.who + (f" beside the {left} that are items, or have the vector of one" if left else "")
    chosen = view.layout.kind.coded or promise.strangers_at_most is not None
    promise.require_enough(len(points.queries), promise.wrong_at_most, who, chosen=chosen, more=more)
    outside = None if strangers is None else _strangers(reader, view, strangers, promise)
    asking = Examining(reader, view, told)
    seen = asking.seen(points.queries, points.mask, "calibrating")
    items = len(view.snapshot) if points.mask is None else int(points.mask.sum())
    coded = view.layout.kind.coded
    widths = None if coded or points.aims is None else asking.widths(points.mask)
    others = None if outside is None else asking.seen(outside, points.mask, "asking strangers")
    beside = _beside(asking, points)
    guard = calibrate(seen, points.aims, others, promise, coded=coded, widths=widths, items=items, beside=beside)
    base = view.snapshot.rows, len(view.snapshot), 0
    found = {**guard.found, "who": points.who, "within": _observed(guard, beside), "left_out": points.left_out}
    return replace(guard, about=about(view), base=base, found=found)


def about(view: View) -> dict[str, Any]:
    """The options of lookups on which a guard depends."""
    profile, compared = view.profile, view.profile.compatibility or "dot"
    learned = profile.projection is not None
    return {
        "compatibility": LEARNED if learned else compared,
        "temperature": 1.0 if learned else view.temperature(compared).value,
        "projection": profile.projection,
        "embedder": None if profile.embedder is None else profile.embedder.to_json(),
        "kind": view.layout.kind.value,
    }


def remembered(settings: Mapping[str, Any], guard: Guard | None) -> dict[str, Any]:
    """Settings with this guard, or without any."""
    kept = {name: one for name, one in settings.items() if name != "guard"}
    return kept if guard is None else {**kept, "guard": guard.to_json()}


def rebased(settings: Mapping[str, Any], snapshot: Snapshot, left: int | None = None) -> dict[str, Any]:
    """Settings for a store whose rows are laid out anew; the count of changes until then is kept.

    `left` is how many rows there are then: by default one for each item.
    """
    guard, rows, items = guard_of(Profile.of(settings), snapshot)[0], snapshot.rows, len(snapshot)
    base = items if left is None else left, items, guard.changed(rows, items) if guard else 0
    return remembered(settings, guard and replace(guard, base=base))


def keep_count(store: Store, snapshot: Snapshot) -> None:
    """Before the rows of a store move, let its guard remember how many items have changed.

    After an interruption too many changes are counted, and never too few.
    """
    if "guard" in store.settings:
        store.configure(rebased(store.settings, snapshot))


class Examining:
    """Lookups with the usual options of the store, but exact, and by some of the items."""

    def __init__(self, reader: Any, view: View, told: Stages | None) -> None:
        self.reader, self.view, self.told = reader, view, told

    def seen(self, queries: Matrix, mask: Flags | None, name: str) -> Seen:
        """The answers of these items, without any guard."""
        return seen_of(self._answers(queries, TOGETHER, lambda _: mask, name))

    def left_out(self, places: npt.NDArray[np.int64], mask: Flags | None, name: str) -> Seen:
        """The answer to each of the items at these places, by the other items in the mask."""
        count = len(self.view.order)

        def masks(some: slice) -> Flags:
            mine = places[some]
            found = np.ones((len(mine), count), np.bool_) if mask is None else np.repeat(mask[None], len(mine), 0)
            found[np.arange(len(mine)), mine] = False
            return found

        queries = self.view.snapshot.vectors(self.view.order[places])
        return seen_of(self._answers(queries, AT_A_TIME, masks, name))

    def widths(self, mask: Flags | None) -> WidthRule:
        """Learn widths from how far off the answer to each item is without it."""
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


def _points(reader: Any, view: View, queries: Any, answers: Any) -> Points:
    """The calibration points: the items that took no part in learning, or the given queries."""
    if (answers is not None) != (queries is not None and not view.layout.kind.embedded):
        raise InputError("expected queries and their answers together, or neither; of texts, which have none, queries.")
    if queries is not None:
        asked = vectors_of_many(reader, view, queries)
        aims = None if view.layout.kind.embedded else targets_of(view, answers)
        if aims is not None and len(aims) != len(asked):
            raise ShapeError(f"expected an answer for each of {len(asked)} queries, got {len(aims)}.")
        # Chosen by the queries alone and never by their answers, or those that are left would be no fair sample.
        strange = ~_among_items(view, queries, asked)
        left = len(asked) - int(strange.sum())
        return Points(asked[strange], None if aims is None else aims[strange], None, "queries", left_out=left)
    held = held_out(view, *_left_out(view))[view.order]
    answering = int((~held).sum())
    places = np.flatnonzero(held)
    most = max(1000, min(POINTS, PAIRS // max(1, answering)))
    if len(places) > most:
        places = np.sort(np.random.default_rng(0).choice(places, most, replace=False))
    rows, kind = view.order[places], view.layout.kind
    aims = None if kind.embedded else view.snapshot.values(rows)
    if aims is not None and kind.coded:  # a label that no answering item has counts as one of no item
        aims = np.where(np.isin(aims, view.snapshot.values(view.order[~held])), aims.astype(np.int64), -1)
    return Points(view.snapshot.vectors(rows), aims, ~held, "items that took no part in learning", places)


def _left_out(view: View) -> tuple[float, int]:
    """The share of items that took no part in tuning and fitting, and the last number that counts."""
    tuned, told = view.profile.temperature, list[tuple[float, int]]()
    if tuned is not None and tuned.origin == "tuned":
        told.append((tuned.held or 0.0, tuned.last or 0))
    if view.learned is not None:
        told.append((float(view.learned.facts.get("held", 0.0)), view.learned.facts["last"]))
    if not told or not all(share for share, _ in told):
        what = "has learned from all of its items" if told else "was never tuned"
        raise InputError(f"{view.snapshot.path} {what}, so no items were held out to make a guard with. {REMEDY}")
    shares, lasts = zip(*told, strict=True)
    return min(shares), min(lasts)


def _strangers(reader: Any, view: View, given: Any, promise: Promise) -> Matrix:
    found = vectors_of_many(reader, view, given)
    there = np.flatnonzero(_among_items(view, given, found))
    if len(there):  # to drop them, as with queries, would promise less than was asked
        texts = dict(enumerate(repr(str(one)) for one in given if isinstance(one, str)))
        named = ", ".join(texts.get(one, f"number {one}") for one in there[:NAMED].tolist())
        more = f" and {len(there) - NAMED:,} more" if len(there) > NAMED else ""
        raise InputError(
            f"expected strangers that are no items, nor have the vector of one, but {len(there)} of {len(found)} are "
            f"or have: {named}{more}. Leave them out."
        )
    if promise.strangers_at_most is not None:
        promise.require_enough(len(found), promise.strangers_at_most, "strangers")
    return found


def _among_items(view: View, given: Any, vectors: Matrix) -> Flags:
    """Which queries are an item by their text or vector, (b,)."""
    return (equals(view, given, vectors) >= 0) | (equals(view, vectors, vectors) >= 0)


def _beside(asking: Examining, points: Points) -> Beside | None:
    """The answers to the calibration points by all other items."""
    if points.places is None:
        return None
    view, seen = asking.view, asking.left_out(points.places, None, "asking all items")
    aims = None if points.aims is None else view.snapshot.values(view.order[points.places])
    return Beside(seen, aims, len(view.order) - 1)


def _observed(guard: Guard, beside: Beside | None) -> float | None:
    """How often sets and intervals at 90% hold the right answer if all other items answer: measured, not promised."""
    if beside is None or beside.aims is None or guard.scores is None or guard.scores.quantile(LEVEL) == np.inf:
        return None
    guard = replace(guard, now=beside.items)
    if guard.coded:
        held = guard.labels_within(beside.seen, LEVEL)[np.arange(len(beside.aims)), beside.aims]
    else:
        held = distances(beside.seen.value, beside.aims) <= guard.radius(beside.seen, LEVEL)
    return float(held.mean())
