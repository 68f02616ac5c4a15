"""Make a guard from the answers to calibration points: their scores, and the threshold that keeps a promise.

A fifth of the points chooses which thresholds are tested, and the others test them, since Learn-then-Test requires that
thresholds are fixed beforehand (control.py). Without a confidence, and for sets and intervals, all points calibrate:
one more score is among the r largest of n + 1 with a probability of at most r / (n + 1) (conformal.py).

Does not run lookups (softkv/database/guarding.py).

Shapes: b points, c labels, p value width.
"""

import math
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from softkv.errors import InputError
from softkv.guard.conformal import Ranked, fewest_points, heavier
from softkv.guard.control import Risk, fewest_trials, laxest, most_events, p_value
from softkv.guard.guard import Guard, Seen, checked_share, hair
from softkv.guard.widths import WidthRule
from softkv.ndarrays import AnyArray, Flags, Floats

FOR_GRID, STEPS = 5, 100  # one in FOR_GRID points chooses STEPS thresholds
SOME = 0.25  # share of the queries: thresholds at which fewer are known are not tested, since so few prove nothing
STRANGE = 0.01  # of queries like the items this share, with the least evidence, is unknown even if answers are right
LOWERED = 0.95  # share of the queries whose evidence falls by no more than thresholds are lowered (see `calibrate`)


class Beside(NamedTuple):
    """The answers of all other items to the points, where these are items themselves."""

    seen: Seen
    aims: AnyArray | None
    items: int


class Promise(NamedTuple):
    """What is to be promised."""

    wrong_at_most: float
    strangers_at_most: float | None
    confidence: float | None  # None: on average over the points, of all queries

    def require(self, strangers: Any) -> None:
        """Raise for numbers that are not shares, and for a promise about strangers where none are given."""
        checked_share("wrong_at_most", self.wrong_at_most)
        if self.confidence is not None:
            checked_share("confidence", self.confidence)
        if self.strangers_at_most is not None:
            checked_share("strangers_at_most", self.strangers_at_most)
            if strangers is None:
                raise InputError("expected strangers, queries that no item answers, where strangers_at_most is given.")

    def require_enough(
        self, count: int, share: float, what: str, *, chosen: bool = True, aside: int = 0, more: str = "Give more"
    ) -> None:
        """Raise, before any lookup, if there are fewer points than a promise of this share needs.

        The number includes the points that choose thresholds (`chosen`), and one in `aside` points that is used for
        something else. `more` is the advice in the message.
        """
        average = fewest_points(1.0 - share)
        least, sure = average, "on average"
        if self.confidence is not None:
            least, sure = fewest_trials(share, self.confidence), f"with confidence {self.confidence:g}"
            least += math.ceil(least / (FOR_GRID - 1)) if chosen else 0
        if aside:
            least, average = (some + math.ceil(some / (aside - 1)) for some in (least, average))
        if count < least:
            fewer = f"; confidence=None, on average, takes {average}" if average < least else ""
            raise InputError(
                f"expected at least {least} {what}, which it takes to promise so much {sure}, got {count}. {more}, or "
                f"ask for less{fewer}."
            )


def calibrate(
    seen: Seen,
    aims: AnyArray | None,
    strangers: Seen | None,
    promise: Promise,
    *,
    coded: bool,
    widths: WidthRule | None,
    items: int,
    beside: Beside | None = None,
) -> Guard:
    """The guard for a store in which so many `items` gave these answers; `aims` are the right ones (None for texts).

    The calibration answers (`seen`) come from the items that were learned from, later lookups ask all items (`beside`).
    The difference is tiny, but can move all items that share a key across a threshold. So at each rank the more
    cautious of the two scores is kept: sets and intervals get no smaller, and no p-value gets smaller, so promises
    hold. Where wrong answers or strangers are to be rare, the points that choose thresholds tell how much evidence
    falls when all items answer, and the thresholds that are tested are lowered by that.
    """
    guard = Guard(coded, items, Ranked.of(np.zeros(1)), -math.inf, None, widths, {}, promise._asdict(), {})
    evidence = guard.evidence_of(seen)
    wrong = seen.value.argmax(1) != aims if coded else None
    others = None if strangers is None else guard.evidence_of(strangers)
    again = None if beside is None else replace(guard, items=beside.items).evidence_of(beside.seen)
    threshold = _threshold(promise, evidence, wrong, others, again)
    if threshold is None:
        raise _refusal(promise, evidence, wrong, others, again)
    scores = None if aims is None else np.sort(_scores(seen, aims, widths, items))
    ranked = np.sort(evidence)
    if beside is not None and again is not None:
        ranked = np.minimum(ranked, np.sort(again))
        if scores is not None and beside.aims is not None:
            scores = np.maximum(scores, np.sort(_scores(beside.seen, beside.aims, widths, beside.items)))
    known = evidence >= threshold
    found = {
        "known": float(known.mean()),
        "wrong": None if wrong is None else float(wrong[known].mean()),
        "strangers": None if others is None else float((others >= threshold).mean()),
    }
    kept = None if scores is None else Ranked.of(scores)
    return replace(guard, evidence=Ranked.of(ranked), threshold=threshold, scores=kept, found=found)


def distances(values: AnyArray, wanted: AnyArray) -> Floats:
    """The distance between each value and the wanted one, (b,) or (b, p) -> (b,)."""
    apart = (values.astype(np.float64) - wanted).reshape(len(values), -1)
    found: Floats = np.linalg.norm(apart, axis=1)
    return found


def _scores(seen: Seen, aims: AnyArray, widths: WidthRule | None, items: int) -> Floats:
    """The scores of the right answers: `heavier` for labels, otherwise distances divided by widths."""
    if widths is None:
        return heavier(seen.value, aims)
    return distances(seen.value, aims) / widths.of(seen.spread, seen.log_mass, seen.effective, items=items)


def _threshold(
    promise: Promise,
    evidence: Floats,
    wrong: Flags | None,
    others: Floats | None,
    again: Floats | None,
) -> float | None:
    """The lowest evidence threshold that keeps the promise, None if there is none.

    `again` is the evidence of the points when all items answer.
    """
    again = evidence if again is None else again
    if promise.strangers_at_most is None:
        others = None
    if promise.confidence is None:
        return _on_average(promise, evidence, wrong, others, again)
    if wrong is None and others is None:
        return float(_lowest(evidence, again)[most_events(len(evidence), promise.wrong_at_most, promise.confidence)])
    grid = _choosing(len(evidence))

    def risks(*, choose: bool) -> list[Risk]:
        """The risks on the points that choose thresholds, or on those that test them."""
        found, some = list[Risk](), grid == choose
        # Where values are neither right nor wrong (events is None), unknown queries are what has to be rare.
        found.append(Risk(evidence[some], None if wrong is None else wrong[some], promise.wrong_at_most))
        if others is not None and promise.strangers_at_most is not None:
            outside = others[_choosing(len(others)) == choose]
            found.append(Risk(outside, np.ones(len(outside), np.bool_), promise.strangers_at_most, of_all=True))
        return found

    lower = max(0.0, float(np.quantile((evidence - again)[grid], LOWERED)))
    thresholds, choosing = np.quantile(evidence[grid], np.linspace(1.0 - SOME, STRANGE, STEPS)), risks(choose=True)
    thresholds -= lower + hair(thresholds)
    # Testing ends at the first threshold that fails, so it starts with the one that is likeliest to pass.
    likely = np.array([p_value(threshold, choosing) for threshold in thresholds.tolist()])
    equal = np.flatnonzero(likely == likely.min())
    # Where none of few strangers is known, many are equally likely. Of labels the strictest is best, since both risks
    # rise from there. Otherwise it is the likeliest to turn too many away, and the laxest to let too many strangers in.
    first = int(equal[0 if wrong is not None else 3 * len(equal) // 4])
    return laxest(thresholds[first:], risks(choose=False), promise.confidence)


def _on_average(
    promise: Promise, evidence: Floats, wrong: Flags | None, others: Floats | None, again: Floats
) -> float | None:
    """The lowest evidence threshold that on average at most the promised share of wrong answers and strangers reach.

    A wrong answer or a stranger reaches it only if its evidence is among the r largest of its kind. Any threshold above
    these keeps the promise; the one that is returned lies at most halfway down to them.
    """
    away, above = math.inf, -math.inf  # the highest threshold at which few are unknown; what thresholds have to exceed
    if wrong is None:
        away = float(_lowest(evidence, again)[_rank(len(evidence), promise.wrong_at_most) - 1])
        if others is None:
            return away
    else:
        above = _largest(np.where(wrong, evidence, -math.inf), promise.wrong_at_most)
    if others is not None and promise.strangers_at_most is not None:
        above = max(above, _largest(others, promise.strangers_at_most))
    least = float(np.min(evidence[evidence - 2.0 * hair(evidence) > above], initial=math.inf))
    lower = max(float(hair(np.asarray(least))), float(np.quantile(evidence - again, LOWERED)))
    found = min(max(least - lower, (least + above) / 2.0), away)
    return found if above < found and (evidence >= found).mean() >= SOME else None


def _lowest(evidence: Floats, again: Floats) -> Floats:
    """The lower evidence of the two at each rank, less an allowance for rounding (`hair`)."""
    ranked = np.minimum(np.sort(evidence), np.sort(again))
    return ranked - hair(ranked)


def _rank(count: int, share: float) -> int:
    """How many of `count` scores and one more belong to the most extreme `share`."""
    return min(count, math.floor(round((count + 1) * share, 9)))


def _largest(scores: Floats, share: float) -> float:
    """The value that one more score exceeds with a probability of at most this share."""
    return float(np.sort(scores)[-_rank(len(scores), share)])


def _refusal(promise: Promise, evidence: Floats, wrong: Flags | None, others: Floats | None, again: Any) -> InputError:
    asked = {name: one for name, one in promise._asdict().items() if name != "confidence" and one is not None}
    keeps, least = " and ".join(f"{name}={share:g}" for name, share in asked.items()), list[str]()

    def kept(name: str, cent: int) -> bool:
        return _threshold(promise._replace(**{name: cent / 100.0}), evidence, wrong, others, again) is not None

    for name, share in asked.items():
        cents = range(math.floor(100.0 * share) + 1, 100)
        place = bisect_left(cents, True, key=partial(kept, name))
        least += [f"{name}={one / 100.0:g}" for one in cents[place : place + 1]]
    found = f"The least that can be kept here is {' or '.join(least)}. Ask for that, or learn" if least else "Learn"
    keeps += " on average" if promise.confidence is None else f" with confidence {promise.confidence:g}"
    return InputError(f"no threshold keeps {keeps}. {_why(promise, evidence, wrong, others)} {found} better.")


def _why(promise: Promise, evidence: Floats, wrong: Flags | None, others: Floats | None) -> str:
    """The figures that explain why no threshold keeps a promise."""
    if wrong is not None:
        return f"Of all, {wrong.mean():.1%} are wrong."
    assert others is not None
    assert promise.strangers_at_most is not None
    known = (others >= np.quantile(evidence, promise.wrong_at_most)).mean()
    found = f"Where wrong_at_most is just kept, {known:.1%} of strangers are known"
    if known <= promise.strangers_at_most:
        return f"{found}, but it takes more items or strangers to show that both are kept."
    return f"{found}, so the two conflict."


def _choosing(count: int) -> Flags:
    """Which of `count` points choose thresholds; the others test them."""
    found: Flags = np.random.default_rng(0).permutation(count) % FOR_GRID == 0
    return found
