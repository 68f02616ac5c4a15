"""How far rounding may have moved the value of an answer.

Three things are rounded. The logits, mostly in float32: a logit that is off changes the weights, and a mean moves by no
more than its weights do, times the spread of what is averaged. The weights: those below the least number of float32 are
lost, and with them what far values would have added. And the sums. With k, a row that rounding may have brought among
the k best, or kept out, may be any.

The spread is that around this answer: where one value in a million is unlike the others, it may be a thousand times the
value scale of the store. No value is farther from the mean of all n than √n times the value scale.

What cannot be known, how a function of the user's rounds, is estimated from the size of its scores.

Shapes: b queries, n rows, d key width, p value width, h heads.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.database.question import Question
from softkv.database.view import Reach, View
from softkv.maths.blending import CANCELLED, RUN
from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.maths.heads import Heads
from softkv.maths.lookup import Found
from softkv.storage import ValueKind

UNIT = 2.0**-24  # the rounding of one operation in float32
DOUBLE = 2.0**-53  # that of one in float64
LEAST = 2.0**-149  # the least number above 0 of float32
ROOT = 2.0**-511  # numbers below it have squares that float64 cannot hold
SEEN = CANCELLED**-0.5  # how far, in spreads, the mean of a query is from the number that it is counted from, at most
EXPONENTIAL = 2.0  # such roundings of a weight itself, however small its logit
HEAVY = 40.0  # logits below the best row within which rows are scored without cancellation
WEIGHED = 104.0  # logits below the best row within which a row has a weight that float32 can hold

Floats = npt.NDArray[np.float64]


def rounding(view: View, found: Found, values: npt.NDArray[Any], question: Question, *, gathered: bool) -> Floats:
    """How far each value may be from the one without rounding, (b,): an estimate, and meant to be an ample one."""
    moved, heads = moved_logits(view, found, question), question.heads
    gain = 1.0 if heads is None else gain_of(heads)
    reach = _reach(view, values, question, gathered=gathered)
    spread, widest = _spread(view, found, reach, heads), 2.0 * reach.radius
    swayed = np.where(moved < 1.0, np.minimum(np.expm1(2.0 * np.minimum(moved, 1.0)) * spread, widest), widest)
    swayed = swayed + (_lost(view, question) + _exchanged(found, moved)) * widest
    error: Floats = gain * swayed + _summed(view, found, reach, gain)
    return error


def moved_logits(view: View, found: Found, question: Question) -> Floats:
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
        moved = steps * (best + WEIGHED) + question.rounded / UNIT * steep / temperature
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


def _reach(view: View, values: npt.NDArray[Any], question: Question, *, gathered: bool) -> Reach:
    """How far values lie from a middle."""
    if view.layout.kind is ValueKind.LABEL:
        return Reach(np.zeros(1), 1.0)
    if gathered:
        return Reach.of(values)
    if view.layout.kind is ValueKind.NUMBER and question.heads is None:
        return Reach(np.zeros(1), math.sqrt(view.snapshot.rows) * (view.snapshot.value_scale + ROOT))
    return view.reach


def _spread(view: View, found: Found, reach: Reach, heads: Heads | None) -> Any:
    """The weighted standard deviation around these values, or at least that, (b,); around those of heads, the reach."""
    if heads is not None:
        return reach.radius
    value = np.asarray(found.value, np.float64)
    if view.layout.kind is ValueKind.LABEL:
        return np.sqrt(np.maximum(1.0 - (value**2).sum(-1), 0.0))
    if found.spread is not None:
        return _spread_of_numbers(found) + DOUBLE * view.snapshot.rows * np.abs(value[..., 0])
    apart = ((value - reach.middle) ** 2).sum(-1)
    doubt = UNIT * reach.radius * (reach.radius + 2.0 * float(np.linalg.norm(reach.middle)))
    return np.sqrt(np.maximum(reach.radius**2 - apart, 0.0) + doubt)


def _spread_of_numbers(found: Found) -> Floats:
    spread = np.asarray(found.spread, np.float64)[..., 0]
    return np.where(np.isnan(spread), np.inf, spread) + ROOT  # squares that are no number, and those that are nothing


def _lost(view: View, question: Question) -> float:
    """The share of the mass that rows may have whose weights are too small to be known."""
    cancelled = not question.by_learned and compatibility_of(question.compatibility).name == "gaussian"
    return view.snapshot.rows * (LEAST + (math.exp(-HEAVY) if cancelled else 0.0))


def _exchanged(found: Found, moved: Floats) -> Any:
    """The share of the k best that others may have instead, since their logits are not farther apart than rounding."""
    if found.ranked is None:
        return 0.0
    ranked = np.asarray(found.ranked, np.float64)
    best, next_best = ranked[..., :-1], ranked[..., -1:]
    near = next_best + 2.0 * moved.reshape(-1, *[1] * (ranked.ndim - 1))
    weights = np.exp(best - best[..., :1])
    shares = np.where((next_best > -np.inf) & (best <= near), weights, 0.0).sum(-1) / weights.sum(-1)
    largest = shares if shares.ndim == 1 else shares.max(-1)  # of the heads
    return np.minimum(largest * np.exp(2.0 * np.minimum(moved, 1.0)), 1.0)


def _summed(view: View, found: Found, reach: Reach, gain: float) -> Any:
    """What the sums themselves lose, (b,)."""
    rows, value = view.snapshot.rows, np.linalg.norm(np.asarray(found.value, np.float64), axis=-1)
    if found.spread is not None:  # sums are counted from means, so that only those of blocks are as large as the values
        spread = _spread_of_numbers(found)
        return DOUBLE * ((16.0 + rows / 16.0) * value + rows / 8.0 * SEEN * spread)
    longest = reach.radius + float(np.linalg.norm(reach.middle))
    # Terms that are nearly equal are rounded the same way, some lanes at a time.
    terms = 0.0 if view.layout.kind is ValueKind.LABEL else min(rows, RUN) / 8.0
    tiny = LEAST * rows * math.sqrt(len(reach.middle))
    return UNIT * (4.0 * value + (4.0 + terms) * gain * longest) + gain * tiny


def gain_of(heads: Heads) -> float:
    """How much further apart answers may be than the means that heads project to them."""
    heads = heads.like(np.empty(0), np.float64)
    inner = math.sqrt(len(heads)) if heads.w_v is None else float(np.linalg.norm(np.asarray(heads.w_v)))
    return inner * (1.0 if heads.w_o is None else float(np.linalg.norm(np.asarray(heads.w_o))))
