"""Scan all shards in one go, as if their rows lay in one store: the fixed cost of a lookup is paid once.

Not for questions that a shard may answer by another route, about some of the items, or for the k best: then each shard
is asked by itself (asking.py). So are all if one cannot be read, so that the error names it.
"""

from dataclasses import replace

import numpy as np

from softkv.answer import Answers
from softkv.asking.question import Question
from softkv.asking.rounding import rounding
from softkv.asking.route import SCAN, gathers, route
from softkv.asking.view import View
from softkv.doors.cluster.whole import WholeView
from softkv.errors import StoreError
from softkv.maths.blending import Labels, Numbers
from softkv.maths.blocks import Stretch
from softkv.maths.lookup import lookup_along


def scanned(whole: WholeView, question: Question) -> Answers | None:
    """Answer a question about the items of all shards; None if each has to be asked by itself."""
    parts = [place for place, view in enumerate(whole.snapshot.views) if len(view.snapshot)]
    views = [whole.snapshot.views[place] for place in parts]
    if not parts or not _suits(whole, question) or not all(_is_scanned(view, question) for view in views):
        return None
    try:
        stretches = [_stretch(whole, place, question) for place in parts]
        return _answered(whole, question, stretches, route(views[0], question).reason)
    except (StoreError, OSError):
        return None


def _suits(whole: WholeView, question: Question) -> bool:
    """Whether a question is about all items of all shards, none of which is missing."""
    snapshot = whole.snapshot
    plain = question.asks_all and question.k is None and question.heads is None and not question.by_learned
    return plain and not (snapshot.partial and snapshot.missing(range(len(snapshot.views))))


def _is_scanned(view: View, question: Question) -> bool:
    """Whether a shard lies here, and would be scanned."""
    if not isinstance(view, View) or gathers(len(view.snapshot), view, len(question.queries)):
        return False
    return route(view, question).way == SCAN


def _stretch(whole: WholeView, place: int, question: Question) -> Stretch:
    """The rows of a shard."""
    view, first = whole.snapshot.views[place], int(whole.snapshot.offsets[place])
    (block,) = view.snapshot.blocks(view.snapshot.rows)
    values = whole.blended(block.values, whole=True)
    if isinstance(values, Labels):
        values = replace(values, order=whole.snapshot.orders[place])
    mask = None if len(view.snapshot) == view.snapshot.rows else view.snapshot.live[None, :]
    return Stretch(block.vectors, values, view.comparing(question.compatibility), mask, first)


def _answered(whole: WholeView, question: Question, stretches: list[Stretch], reason: str) -> Answers:
    found = lookup_along(question.queries, stretches, temperature=question.temperature, show=question.show)
    numbers = isinstance(stretches[0].values, Numbers)
    return replace(
        Answers.of(found, question.temperature, whole.labels, len(whole.snapshot), numbers=numbers),
        kind=whole.layout.kind.value,
        error=rounding(whole, found, stretches[0].values.array, question, gathered=False),
        rows_read=np.full(found.scored.shape, sum(len(one.keys) for one in stretches)),
        route=SCAN,
        reason=reason,
        source=whole,
    )
