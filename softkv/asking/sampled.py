"""A lookup whose error is measured on the query itself, from rows drawn at random from the lists of the index.

The draw follows from the secret of the store, its generation and the queries: the same queries get the same answers,
and someone who chooses a query cannot know which rows will be drawn for it.

Only questions that suit come here (route.py).

Shapes: b queries.
"""

from dataclasses import replace

import numpy as np

from softkv.asking.lists import Asking, Estimated, only_finite
from softkv.asking.question import Question
from softkv.asking.route import CALIBRATED, MEASURED, UNMEASURED, listed_as_drawn, route, suits_form, worth_drawing
from softkv.asking.scan import rows_left
from softkv.asking.view import View
from softkv.index.measuring import measured
from softkv.index.strata import Population, supposed
from softkv.maths.blas import at_most
from softkv.maths.farfield import tilted
from softkv.ndarrays import Flags, Floats

Foretold = tuple[Floats, Floats]  # the logarithms of masses, (b,), and values, (b, p)


@at_most(1)
def estimate(
    view: View, question: Question, mask: Flags | None, reason: str | tuple[str, ...], asking: Asking | None
) -> Estimated:
    """The answers to a question about the items that a mask leaves, measured for this reason.

    `asking` is the question as another route prepared it, or None.
    """
    index = view.index
    assert index is not None
    asking = asking or Asking(view, index, question, mask)
    everyone = np.arange(len(question.queries))
    population = view.population if mask is None else Population(index, mask)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is scanned instead
        found = measured(
            index,
            population,
            asking.arena(),
            asking.asked(everyone),
            asking.random,
            tolerance=question.tolerance,
            confidence=question.confidence,
            most=worth_drawing(view, len(everyone)),
            listed=listed_as_drawn(view, len(everyone)),
            show=asking.show,
            tells=asking.suits_form,
            beside=question.beside,
        )
        found = only_finite(found)
        answers = replace(asking.presented(found, everyone, MEASURED), reason=reason)
    if mask is not None:
        seen = np.full(len(everyone), int(mask.sum()))
        answers = replace(answers, seen=seen, effective=np.minimum(answers.effective, seen))
    return Estimated(everyone, answers, dict.fromkeys(np.flatnonzero(~found.sure).tolist(), UNMEASURED))


@at_most(1)
def forecast(view: View, question: Question) -> Foretold | None:
    """What the statistics of the lists say of the masses and the values, without reading a row.

    None for a question that is not answered by estimates.
    """
    if route(view, question).way not in (MEASURED, CALIBRATED) or not suits_form(view.index, question):
        return None
    index = view.index
    assert index is not None
    asking = Asking(view, index, question)
    population = view.population if question.asks_all else Population(index, rows_left(view, question))
    with np.errstate(over="ignore", invalid="ignore"):
        log_mass, value = supposed(index, population, tilted(index.quick, asking.vectors))
    return log_mass + asking.added, value * index.units.size + index.units.middle
