"""How far rounding may have moved the value of an answer.

Two things are rounded: the logits, mostly in float32, and the sums. A logit that is off changes the weights, and a mean
moves by no more than its weights do, times the spread of what is averaged. The spread is that around this answer: where
one value in a million is unlike the others, it may be a thousand times the value scale of the store.

What cannot be known, how a function of the user's rounds, is estimated from the size of its scores.

Shapes: b queries, n rows, d key width, p value width, h heads.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.database.question import Question
from softkv.database.view import Reach, View
from softkv.maths.blending import RUN
from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.maths.heads import Heads
from softkv.maths.lookup import Found
from softkv.storage import ValueKind

UNIT = 2.0**-24  # the rounding of one operation in float32
EXPONENTIAL = 2.0  # such roundings of a weight itself, however small its logit
HEAVY = 40.0  # logits below the best row within which a row has any weight

Floats = npt.NDArray[np.float64]


def rounding(
    view: View, found: Found, values: npt.NDArray[Any], question: Question, *, gathered: bool
) -> npt.NDArray[np.float64]:
    """How far each value may be from the one without rounding, (b,): an estimate, and meant to be an ample one."""
    moved = _moved(view, found, question)
    kind, heads = view.layout.kind, question.heads
    if kind is ValueKind.LABEL and heads is None:
        reach, spread = Reach(np.zeros(1), 1.0), np.sqrt(np.maximum(1.0 - (found.value**2).sum(-1), 0.0))
    elif kind is ValueKind.NUMBER and heads is None and (moved < 1.0).all():
        reach, spread = Reach(np.zeros(1), math.inf), _spread_of_numbers(found)
    else:
        reach = Reach.of(values) if gathered else view.reach
        spread = _spread_within(reach, found, heads)
    widest = 2.0 * reach.radius
    swayed = np.where(moved < 1.0, np.minimum(np.expm1(2.0 * np.minimum(moved, 1.0)) * spread, widest), widest)
    gain = 1.0 if heads is None else gain_of(heads)
    error: Floats = gain * swayed + _summed(view, found, reach, gain)
    return error


def _moved(view: View, found: Found, question: Question) -> Floats:
    """How far rounding may have moved the logits, (b,)."""
    queries = np.asarray(question.queries)
    temperature = np.asarray(question.temperature, np.float64)
    if question.by_learned:
        return _moved_as_learned(view, queries, question.rounded, temperature)
    compared = compatibility_of(question.compatibility)
    log_mass = np.asarray(found.log_mass, np.float64)
    # The best logit, up to the logarithm of the number of rows, whatever was asked to be shown.
    best = np.abs(log_mass if log_mass.ndim == 1 else log_mass.max(-1)) + math.log(view.snapshot.rows)
    asked = np.linalg.norm(queries.astype(np.float64), axis=-1)
    width, longest = view.layout.key_width, view.longest_key
    steps = 4.0 + math.sqrt(width)
    moved: Floats
    if compared.rewrite is not None:
        rewritten, extra = _rewritten(queries, compared, question.heads)
        moved = (steps + extra) * rewritten * longest / temperature
    elif compared.name == "cosine":
        moved = np.full(len(queries), steps) / temperature
    elif compared.name == "laplace":
        moved = steps * math.sqrt(width) * (asked + longest) / temperature
    elif compared.name == "gaussian":
        # Beyond some cancellation, near rows are scored by their differences, which a rounded query shifts.
        near = np.sqrt(2.0 * temperature * (best + HEAVY))
        apart = np.finfo(np.float32).eps ** 0.5 / UNIT + steps * best + question.rounded / UNIT * near / temperature
        moved = np.minimum(steps * 0.5 * (asked + longest) ** 2 / temperature, apart)
    elif compared.name == "uniform":
        moved = np.zeros(len(queries))
    else:  # nobody knows how steep a function is; most are no steeper than a distance or a product with a key
        steep = 1.0 if compared.name == "additive" else max(1.0, longest)
        moved = steps * best + question.rounded / UNIT * steep / temperature
    return UNIT * (moved + EXPONENTIAL)


def _moved_as_learned(view: View, queries: Any, rounded: Any, temperature: Floats) -> Floats:
    """The same for what the store has learned: products, of which nearly everything may cancel."""
    learned = view.learned
    assert learned is not None
    metric = learned.metric
    rewritten, added = metric.queries(queries)
    lengths = np.linalg.norm(rewritten.astype(np.float64), axis=-1)
    longest = 1.0 if metric.directions else view.longest_key + float(np.linalg.norm(metric.centre.astype(np.float64)))
    steps = 4.0 + math.sqrt(metric.width) + math.sqrt(len(metric.factors))
    sizes = lengths * longest + np.abs(added) + float(np.abs(learned.numbers).max(initial=0.0))
    turned = np.sign(rounded) if metric.directions else rounded / UNIT  # a direction is rounded by shares of itself
    shifted = turned * float(np.linalg.norm(metric.factors.astype(np.float64))) * np.sqrt(2.0 * np.abs(added))
    found: Floats = UNIT * ((steps * sizes + shifted) / temperature + EXPONENTIAL)
    return found


def _rewritten(queries: Any, compared: Compatibility, heads: Heads | None) -> tuple[Floats, float]:
    """The lengths of the queries as they meet the keys, (b,), and what rewriting them adds to the steps of rounding."""
    assert compared.rewrite is not None
    if heads is None:
        return np.linalg.norm(compared.rewrite(queries).astype(np.float64), axis=-1), math.sqrt(queries.shape[-1])
    rewritten, _ = heads.like(queries, queries.dtype).rewrite(queries, compared)  # (h, b, d)
    extra = math.sqrt(heads.query_width) + math.sqrt(heads.w_k.shape[1])
    return np.linalg.norm(rewritten.astype(np.float64), axis=-1).max(0), extra


def _spread_of_numbers(found: Found) -> Floats:
    """The weighted standard deviation, (b,), itself known to half the digits of the mean."""
    spread: Floats = np.asarray(found.spread)[..., 0] + 2.0**-26 * np.abs(found.value[..., 0])
    return spread


def _spread_within(reach: Reach, found: Found, heads: Heads | None) -> Any:
    """The most that rows within reach may spread around these means, (b,); around those of heads, it is the reach."""
    if heads is not None:
        return reach.radius
    apart = ((np.asarray(found.value, np.float64) - reach.middle) ** 2).sum(-1)
    return np.sqrt(np.maximum(reach.radius**2 - apart, 0.0) + UNIT * reach.radius**2)


def _summed(view: View, found: Found, reach: Reach, gain: float) -> Any:
    """What the sums themselves lose, (b,)."""
    value = np.linalg.norm(np.asarray(found.value, np.float64), axis=-1)
    if gain == 1.0 and view.layout.kind is ValueKind.NUMBER:
        return 4.0 * 2.0**-53 * (value + view.snapshot.value_scale)
    longest = reach.radius + float(np.linalg.norm(reach.middle))
    terms = 0.0 if view.layout.kind is ValueKind.LABEL else math.sqrt(min(view.snapshot.rows, RUN))
    return UNIT * (4.0 * value + (4.0 + terms) * gain * longest)


def gain_of(heads: Heads) -> float:
    """How much further apart answers may be than the means that heads project to them."""
    heads = heads.like(np.empty(0), np.float64)
    inner = math.sqrt(len(heads)) if heads.w_v is None else float(np.linalg.norm(np.asarray(heads.w_v)))
    return inner * (1.0 if heads.w_o is None else float(np.linalg.norm(np.asarray(heads.w_o))))
