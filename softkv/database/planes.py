"""Numbers that are read off a plane through the weighted items, where the store has learned that this is better.

The weights are those of the lookup; a second pass over the keys, which are narrow where this is done, adds up what the
planes need. Only for the full softmax: the k best are averaged.

Shapes: b queries, n rows, d key width.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.database.question import Compared, Question
from softkv.database.view import View
from softkv.learning.slopes import Plane, moments
from softkv.maths.compatibility import compatibility_of
from softkv.storage import ValueKind
from softkv.storage.layout import Matrix

BLOCK = 1 << 12  # rows at a time
TOGETHER = 256  # queries at a time

Floats = npt.NDArray[np.float64]


def reads_planes(view: View, question: Question) -> bool:
    """Whether this question is answered by planes."""
    if not question.by_learned or question.k is not None or view.layout.kind is not ValueKind.NUMBER:
        return False
    return view.learned is not None and view.learned.ridge is not None


def on_planes(
    view: View,
    question: Question,
    answers: Answers,
    keys: Matrix,
    numbers: npt.NDArray[Any],
    mask: Any,
    compared: Compared,
) -> Answers:
    """The same answers with the heights of planes as their values, and how far the items lie from these as spread."""
    learned = view.learned
    assert learned is not None
    assert learned.ridge is not None
    values, spreads = answers.value.copy(), np.array(answers.spread, np.float64)
    temperatures = np.broadcast_to(np.asarray(question.temperature, np.float64), (len(values),))
    for start in range(0, len(values), TOGETHER):
        some = slice(start, start + TOGETHER)
        queries = question.queries[some]
        scorer = compatibility_of(compared).ask(queries, 1.0 / temperatures[some, None].astype(np.float32))
        means = np.zeros((len(queries), 1))
        for first in range(0, len(keys), BLOCK):
            rows = slice(first, first + BLOCK)
            weights = np.exp(scorer(keys[rows], first).astype(np.float64) - answers.log_mass[some, None])
            if mask is not None:
                weights = np.where(mask[some if len(mask) > 1 else slice(None), rows], weights, 0.0)
            means = means + weights @ moments(learned.features(keys[rows]), numbers[rows].astype(np.float64))
        features = learned.features(queries)
        plane = Plane.of_means(means, features.shape[1], learned.ridge)
        values[some] = plane.at(features).reshape(values[some].shape)
        variance = spreads[some].reshape(-1) ** 2 - plane.explained
        spreads[some] = np.sqrt(np.maximum(variance, 0.0)).reshape(spreads[some].shape)
    return replace(answers, value=values, spread=spreads)
