"""A lookup whose error is measured on the query itself: rows drawn from the lists of the index stand for all.

What is drawn for a query follows from the secret of the store, its generation and the query, so who asks again gets
the same answer, and nobody who chooses a query knows what will be drawn for it.

Only questions that suit come here (route.py).

Shapes: b queries.
"""

from dataclasses import replace

import numpy as np

from softkv.asking.lists import Asking, Estimated, only_finite
from softkv.asking.question import Question
from softkv.asking.route import MEASURED, UNMEASURED, worth_drawing
from softkv.asking.view import View
from softkv.index.measuring import measured
from softkv.maths.drawing import drawer
from softkv.storage.layout import Mask


def estimate(view: View, question: Question, mask: Mask | None, reason: str | tuple[str, ...]) -> Estimated:
    """The answers to a question about the items that a mask leaves, measured for this reason."""
    index, snapshot = view.index, view.snapshot
    assert index is not None
    asking, everyone = Asking(view, index, question, mask), np.arange(len(question.queries))
    names, secret = [np.asarray(query, np.float32).tobytes().hex() for query in question.queries], snapshot.secret
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is scanned instead
        found = measured(
            index,
            asking.arena(),
            asking.asked(everyone),
            lambda number: drawer(secret, names[number], snapshot.generation),
            tolerance=question.tolerance,
            confidence=question.confidence,
            most=worth_drawing(view, len(everyone)),
            show=asking.show,
        )
        found = only_finite(found)
    answers = replace(asking.presented(found, everyone, MEASURED), reason=reason)
    if mask is not None:
        answers = replace(answers, seen=np.full(len(everyone), int(mask.sum())))
    return Estimated(everyone, answers, dict.fromkeys(np.flatnonzero(~found.sure).tolist(), UNMEASURED))
