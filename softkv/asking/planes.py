"""Answer numbers by a plane fitted to the weighted items (local linear regression), if `fit` found that to be better.

The weights are those of the lookup; a second pass over the keys, which are narrow here, adds up what the planes need.
Only for the full softmax: the k best are averaged.

Shapes: b queries, n rows, d key width.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.asking.question import Compared, Question
from softkv.asking.view import View
from softkv.learning import slopes
from softkv.maths.compatibility import compatibility_of
from softkv.ndarrays import AnyArray, Floats, Matrix

FAINT = 2.0**-20  # a spread around a plane is known to this share of that around the mean


def reads_planes(view: View, question: Question) -> bool:
    """Whether a question is answered by planes."""
    if not question.by_learned or question.k is not None or not view.layout.kind.scalar:
        return False
    return view.learned is not None and view.learned.ridge is not None


def on_planes(
    view: View,
    question: Question,
    answers: Answers,
    moved: Floats,
    keys: Matrix,
    numbers: AnyArray,
    mask: Any,
    compared: Compared,
) -> Answers:
    """Answers with the heights of planes as their values, and how far the items lie from these as spread.

    `moved` is how far rounding may have moved the logits, (b,). That changes a height by no more than the weights,
    times the spread around the plane, times the leverage of the query; and rounding a query does, by the slope.
    """
    learned = view.learned
    assert learned is not None
    assert learned.ridge is not None
    found = slopes.on_planes(
        compatibility_of(compared),
        question.queries,
        np.broadcast_to(np.asarray(question.temperature, np.float64), (len(answers),)),
        np.asarray(answers.value, np.float64),
        keys,
        numbers,
        features=learned.features,
        ridge=learned.ridge,
        allowed=mask,
    )
    spread = found.spreads + FAINT * np.asarray(answers.spread, np.float64)
    swayed = np.expm1(4.0 * np.minimum(moved, 1.0)) * found.leverages * spread
    shifted = found.slopes * np.linalg.norm((question.rounded + np.zeros(len(learned.units))) / learned.units, axis=-1)
    return replace(
        answers,
        value=found.heights.astype(answers.value.dtype),
        spread=found.spreads,
        error=np.where(moved < 1.0, swayed + shifted + found.doubts, np.inf),
    )
