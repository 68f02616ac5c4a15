"""Ask all shards a question: each answers it about its own items, and the answers are merged.

With a filter or a mask a shard answers about its items that these leave; for the k best it gives its own k best and the
next. Queries whose merged error is larger than allowed are asked again, at last exactly.

Does not scan all of them in one go (scanning.py), merge (merging.py), or answer itself (softkv/asking).

Shapes: b queries, n items.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.asking.asker import by_route
from softkv.asking.heads import Rewritten, of_all_heads
from softkv.asking.joined import joined
from softkv.asking.question import Question
from softkv.asking.route import CALIBRATED, MEASURED, route
from softkv.asking.sampled import Foretold
from softkv.asking.scan import left_to_each
from softkv.asking.view import View
from softkv.doors.cluster.best import merged_best
from softkv.doors.cluster.merging import Sides, over_all
from softkv.doors.cluster.missing import FEWEST, bounded, widened
from softkv.doors.cluster.scanning import scanned
from softkv.doors.cluster.shard import Carrier, out_of_reach
from softkv.doors.cluster.sharing import shared
from softkv.doors.cluster.whole import WholeView
from softkv.errors import AllMasked, InputError, StoreError
from softkv.maths.inputs import refuse_all_masked
from softkv.maths.sampling import Elsewhere
from softkv.ndarrays import Flags, Rows

AGAIN = "the answers of the shards together were not as close as was asked for"
CLOSER = (0.8, 0.4, 0.0)  # shares of the tolerance to ask for, in turn, if answers were not close enough


def ask_shards(whole: WholeView, question: Question, carrier: Carrier) -> Answers:
    """Answer a question about the items of all shards; the carrier sends it to them."""
    if whole.snapshot.partial and (question.heads is not None or question.mask is not None):
        raise InputError("expected neither heads nor a mask with partial=True, since they are about all items.")
    if question.heads is not None:
        asked = Rewritten.of(whole, question)
        return of_all_heads(whole, question, asked, ask_shards(whole, asked.flat(question), carrier))
    at_once = _estimated(whole, question)
    at_once = scanned(whole, question) if at_once is None else at_once
    if at_once is not None:
        return replace(at_once, **_of_all(whole, question))
    found, told = _together(whole, question, carrier)
    for closer in CLOSER:
        nearer = replace(question, tolerance=question.tolerance * closer)
        nearer = nearer if closer else replace(nearer, guarantee=None)
        doubtful = _doubtful(whole, question, found)
        if len(doubtful):
            known = {shard: (log_mass[doubtful], value[doubtful]) for shard, (log_mass, value) in told.items()}
            again, _ = _together(whole, _part(nearer, doubtful, question.mask), carrier, known)
            again = again if closer else replace(again, reason=AGAIN)
            if again.rows_read is not None and found.rows_read is not None:
                again = replace(again, rows_read=again.rows_read + found.rows_read[doubtful])
            found = joined([(np.arange(len(found)), found), (doubtful, again)], question.temperature)
    return found


def _estimated(whole: WholeView, question: Question) -> Answers | None:
    """Answer by the lists of all shards, as if their rows lay in one store; None if each shard has to be asked."""
    if question.k is not None or question.guarantee or question.by_learned or not whole.parts:
        return None
    try:
        found = by_route(whole, question) if route(whole, question).way in (CALIBRATED, MEASURED) else None
    except (StoreError, OSError):  # so that the shard that cannot be read is named
        return None
    # If a shard stops answering, some queries were answered with it and others without; then all are asked without it.
    return found if found is None or found.out_of_reach is None else None


def _doubtful(whole: WholeView, question: Question, found: Answers) -> Rows:
    """The queries whose errors are larger than allowed, and can be made smaller."""
    if found.error is None or not question.tolerance or question.k is not None or whole.snapshot.partial:
        return np.empty(0, np.int64)
    sure = np.broadcast_to(np.array(found.error_kind, object) == "exact", len(found))
    return np.flatnonzero(~sure & ~(found.error <= question.tolerance * whole.snapshot.value_scale))


def _together(
    whole: WholeView, question: Question, carrier: Carrier, known: Mapping[int, Foretold] | None = None
) -> tuple[Answers, dict[int, Foretold]]:
    """The merged answers of all shards, and those of each; `known` is a forecast of the latter."""
    parts, refusals, lost, count = dict[int, Answers](), [], dict[int, str](), len(question.queries)
    allowed = None if question.mask is None else left_to_each(whole, question)
    if allowed is not None:
        refuse_all_masked(allowed.sum(1), 0)
    asked, views = _closer(whole, question), whole.snapshot.views
    seen = {shard: _seen(whole, shard, question, allowed) for shard, view in enumerate(views) if len(view.snapshot)}
    seen = {shard: one for shard, one in seen.items() if len(one[0]) or not count}
    beside = _beside(whole, asked, seen, carrier, known)
    calls = []
    for shard, (some, mask) in seen.items():
        others = beside[shard]
        own = others and replace(others, value=others.value[:, _places(whole, views[shard])])
        part = _part(replace(_named(views[shard], asked), beside=own), some, mask)
        calls.append(partial(carrier.evidence, views[shard], part, len(whole.filled)))
    for (shard, (some, _)), found in zip(seen.items(), carrier.round(calls), strict=True):
        if isinstance(found, AllMasked):
            refusals.append(found)
        elif isinstance(found, Exception):
            lost[shard] = f"{views[shard].snapshot.path} ({found})"
        else:
            offset = int(whole.snapshot.offsets[shard])
            found = replace(found, rows=np.where(found.rows >= 0, found.rows + offset, -1))
            parts[shard] = found if len(some) == count else over_all(found, some, count)
    if lost and not (whole.snapshot.partial and parts):
        raise out_of_reach(whole.snapshot.path, list(lost.values()))
    if not parts:
        raise refusals[0]
    sides = Sides(tuple(parts.values()), whole.labels, tuple(beside[shard] for shard in parts))
    merged_all = replace(_merged(whole, question, sides), **_of_all(whole, question))
    told = dict(zip(parts, zip(sides.log_masses, sides.values, strict=True), strict=True))
    missing = whole.snapshot.missing([place for place in range(len(whole.snapshot.views)) if place not in lost])
    if not missing:
        return merged_all, told
    last = [*whole.snapshot.last_seen, *(getattr(views[place], "header", None) for place in lost)]
    if question.k is None and len(parts) < FEWEST and all(last) and merged_all.error is not None:
        return bounded(merged_all, question, missing, last), told
    return widened(merged_all, sides.parts if question.k is None else (), missing, question.confidence), told


def _beside(
    whole: WholeView,
    question: Question,
    seen: Mapping[int, Any],
    carrier: Carrier,
    known: Mapping[int, Foretold] | None,
) -> dict[int, Elsewhere | None]:
    """For each shard, the estimates of all others; None for questions that draw no rows."""
    views, everyone = whole.snapshot.views, np.arange(len(question.queries))
    alike = all(len(some) == len(everyone) and mask is None for some, mask in seen.values())
    if question.k is not None or question.guarantee or not question.tolerance or not alike or len(seen) < 2:
        return dict.fromkeys(seen)
    if known is None:
        told = carrier.round([partial(carrier.forecast, views[shard], question) for shard in seen])
        known = {shard: one for shard, one in zip(seen, told, strict=True) if isinstance(one, tuple)}
        if whole.labels is not None:
            for shard, (log_mass, value) in known.items():
                places = _places(whole, views[shard])
                known[shard] = log_mass, np.zeros((len(everyone), len(whole.labels)))
                known[shard][1][:, places] = value[:, : len(places)]  # the shard may know labels that are newer
    sizes = [len(views[shard].snapshot) for shard in seen]
    return dict(zip(seen, shared([known.get(shard) for shard in seen], sizes), strict=True))


def _places(whole: WholeView, view: View) -> Any:
    """The columns of values, as lists add them up, that a shard has."""
    return slice(None) if whole.labels is None else [whole.labels.index(label) for label in view.labels or ()]


def _merged(whole: WholeView, question: Question, sides: Sides) -> Answers:
    if question.k is None:
        return sides.merged(question.show)
    return merged_best(sides, question.k, question.temperature, whole.snapshot.values, show=question.show)


def _closer(whole: WholeView, question: Question) -> Question:
    """What each shard is asked: for the k best of all, its k best and the next, with a confidence shared by all."""
    if question.k is None:
        return question
    missed = (1.0 - question.confidence) / len(whole.filled)
    return replace(question, show=max(question.k + 1, question.show), confidence=1.0 - missed)


def _named(view: Any, question: Question) -> Question:
    """The question for a shard: where the k best may be all its items, it has to name them, and so to read all."""
    few = question.k is not None and len(view.snapshot) <= question.k
    return replace(question, tolerance=0.0) if few else question


def _seen(whole: WholeView, shard: int, question: Question, allowed: Flags | None) -> tuple[Rows, Flags | None]:
    """The queries that see any item of a shard, and the mask over its items in their order."""
    everyone, snapshot = np.arange(len(question.queries)), whole.snapshot.snapshots[shard]
    if allowed is None:
        return everyone, None
    offset, order = int(whole.snapshot.offsets[shard]), snapshot.in_order()
    mask: Flags = allowed[:, offset + order]
    return everyone[np.broadcast_to(mask.any(axis=1), everyone.shape)], mask


def _part(question: Question, some: Rows, mask: Any) -> Question:
    """The question of some of the queries, with their part of the mask."""
    own = mask if mask is None or np.ndim(mask) < 2 or len(mask) == 1 else np.asarray(mask)[some]
    return replace(question.part(some), mask=own)


def _of_all(whole: WholeView, question: Question) -> dict[str, Any]:
    """What answers tell of all shards; what a guard says of a single one is left out."""
    told = {"temperature": question.temperature, "count": len(whole.snapshot), "source": whole}
    return {**told, "guard": None, "unguarded": None, "log_mass_floor": None}
