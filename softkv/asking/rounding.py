"""How far rounding may have moved the value of an answer.

Three things are rounded. First the logits, mostly in float32: an error of a logit changes the weights, and a mean moves
by no more than its weights do, times the spread of what is averaged. Second the weights: those below the least number
of float32 become 0, and what far values would have added is lost. Third the sums. With k, rounding may also have put a
row among the k best, or kept it out.

The spread is that around this answer: if one value in a million is unlike the others, it may be a thousand times the
value scale of the store. No value is farther from the mean of all n than √n times the value scale.

How much a function of the user rounds is unknown, and is estimated from the size of its scores.

Shapes: b queries, n rows, d key width, p value width, h heads.
"""

import math
from typing import Any

import numpy as np

from softkv.asking.question import Question
from softkv.asking.view import Reach, View
from softkv.maths.blending import CANCELLED
from softkv.maths.compatibility import Compatibility, compatibility_of, linear
from softkv.maths.heads import Heads
from softkv.maths.lookup import Found
from softkv.maths.metric import Metric
from softkv.maths.summing import RUN
from softkv.ndarrays import AnyArray, Floats

UNIT = 2.0**-24  # the rounding of one operation in float32
DOUBLE = 2.0**-53  # that of one in float64
LEAST = 2.0**-149  # the least number above 0 of float32
ROOT = 2.0**-511  # numbers below it have squares that float64 cannot hold
SEEN = CANCELLED**-0.5  # how far, in spreads, the mean of a query is from the number that it is counted from, at most
EXPONENTIAL = 2.0  # such roundings of a weight itself, however small its logit
HEAVY = 40.0  # logits below the best row within which rows are scored without cancellation
WEIGHED = 104.0  # logits below the best row within which a row has a weight that float32 can hold


def rounding(view: View, found: Found, values: AnyArray, question: Question, *, gathered: bool) -> Floats:
    """How far rounding may have moved each value, (b,): an estimate that is meant to be too large rather than small."""
    moved, heads = moved_logits(view, found.log_mass, question), question.heads
    gain = 1.0 if heads is None else gain_of(heads)
    reach = _reach(view, values, question, gathered=gathered)
    spread, widest = _spread(view, found, reach, heads), 2.0 * reach.radius
    swayed = _swayed(moved, spread, widest) + (_lost(view, question) + _exchanged(found, moved)) * widest
    error: Floats = gain * swayed + _summed(view, found, reach, gain)
    if heads is None:
        return error
    return error + _projecting(heads, np.tile(np.abs(reach.middle) + reach.radius, (len(heads), 1, 1)))


def rounding_of_heads(view: View, log_mass: Any, means: Any, question: Question) -> Floats:
    """How far rounding in the queries of heads, and in their projections of means (h, b, p), may move answers, (b,)."""
    assert question.heads is not None
    moved, radius = moved_logits(view, log_mass, question), view.reach.radius
    return gain_of(question.heads) * _swayed(moved, radius, 2.0 * radius) + _projecting(question.heads, means)


def _swayed(moved: Floats, spread: Any, widest: float) -> Floats:
    """How far a mean may move when its logits do, (b,), for values with this spread and this largest distance."""
    return np.where(moved < 1.0, np.minimum(np.expm1(2.0 * np.minimum(moved, 1.0)) * spread, widest), widest)


def moved_logits(view: View, log_mass: Any, question: Question, *, shared: bool = False) -> Floats:
    """How far rounding may have moved the logits of queries with these masses, (b,).

    An error that all logits have in common moves no weight, but the masses: with heads it counts only if `shared`.
    """
    temperature = np.asarray(question.temperature, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # damaged lengths give NaN
        if question.by_learned:
            moved = _moved_as_learned(view, question, temperature)
        else:
            moved = _moved_as_compared(view, log_mass, question, temperature, shared=shared)
        moved = UNIT * (moved + EXPONENTIAL)
    return np.where(np.isnan(moved), np.inf, moved)


def _moved_as_compared(view: View, log_mass: Any, question: Question, temperature: Floats, *, shared: bool) -> Floats:
    """The rounding errors of the logits of a way to compare, (b,): the number of roundings, times what is rounded."""
    compared = compatibility_of(question.compatibility)
    log_mass = np.asarray(log_mass, np.float64)
    # The best logit, up to the logarithm of the number of rows, however few contributors are shown.
    best = np.abs(log_mass if log_mass.ndim == 1 else log_mass.max(-1)) + math.log(view.snapshot.rows)
    width, longest = view.layout.key_width, view.longest_key
    steps = 4.0 + math.sqrt(width)
    moved: Floats
    if compared.terms is not None:
        moved = _size_of_terms(compared, question, temperature, view, shared=shared) / temperature
    elif compared.cancels:
        asked = np.linalg.norm(np.asarray(question.queries, np.float64), axis=-1)
        # Beyond some cancellation, near rows are scored by their differences, which a rounded query shifts.
        near = np.sqrt(2.0 * temperature * (best + HEAVY))
        apart = np.finfo(np.float32).eps ** 0.5 / UNIT + steps * best + question.shifts / UNIT * near / temperature
        moved = np.minimum(steps * 0.5 * (asked + longest) ** 2 / temperature, apart)
    else:  # how steep a function is, is unknown; most are no steeper than a distance or a product with a key
        moved = steps * (best + WEIGHED) + question.shifts / UNIT * max(1.0, longest) / temperature
    return moved


def _moved_as_learned(view: View, question: Question, temperature: Floats) -> Floats:
    """The rounding errors of logits by a learned metric, (b,): sums of products that may nearly cancel."""
    learned = view.learned
    assert learned is not None
    metric = learned.metric
    rewritten, added = metric.queries(question.queries)
    terms, projected = metric.terms(question.queries)
    steps = 4.0 + math.sqrt(metric.width) + math.sqrt(len(metric.factors))
    # Features may have any scale; rewritten queries have its inverse.
    lengths = np.linalg.norm(np.maximum(np.abs(rewritten), np.sqrt(terms)) * learned.units, axis=-1)
    sizes = lengths * view.farthest_key + np.maximum(np.abs(added), projected.sum(-1))
    sizes = sizes + float(np.abs(learned.numbers).max(initial=0.0))
    found: Floats = steps * sizes + _turned(metric, question) * np.sqrt(2.0 * np.abs(added))
    return found / temperature


def _turned(metric: Metric, question: Question) -> Any:
    """How far the rounding of the numbers of a query moves its projection, in units of rounding, (b,)."""
    factors = np.abs(metric.factors.astype(np.float64))
    if metric.directions:  # which are rounded by shares of themselves
        return np.sign(question.shifts) * np.linalg.norm(factors)
    return np.linalg.norm((question.rounded + np.zeros(metric.width)) @ factors.T, axis=-1) / UNIT


def _size_of_terms(
    compared: Compatibility, question: Question, temperature: Floats, view: View, *, shared: bool
) -> Floats:
    """How large the terms of scores are, times the roundings of adding them up, (b,)."""
    terms = compared.terms
    assert terms is not None
    queries, heads = np.asarray(question.queries, np.float64), question.heads
    # A number too small for all digits of float32 loses more than a share of itself.
    lost = np.maximum(question.rounded / UNIT - np.abs(queries), 0.0)
    squares = (np.abs(queries) + lost + LEAST / UNIT * np.maximum(1.0, temperature.reshape(-1, 1))) ** 2
    if heads is None:
        factors, rest = terms(squares)
        rewritten = factors * 0.0 if compared.rewrite is None else compared.rewrite(queries)
        added = queries.shape[-1]
    else:
        by_terms = linear("terms", lambda projected: terms(projected)[0])
        factors, constant = heads.squared().rewrite(squares, by_terms)
        rest = constant if shared else 0.0 * constant
        rewritten, _ = heads.like(queries, queries.dtype).rewrite(queries, compared)
        added = queries.shape[-1] + heads.w_k.shape[1]
    lengths = np.linalg.norm(np.maximum(np.abs(rewritten), np.sqrt(factors)), axis=-1)
    found: Floats = (4.0 + math.sqrt(view.layout.key_width + added)) * (lengths * view.longest_key + np.sqrt(rest))
    return found if found.ndim == 1 else found.max(0)


def _projecting(heads: Heads, means: Any) -> Floats:
    """How far rounding may move the projections of means as large as these, (h, b, p) -> (b,)."""
    squares = heads.squared().project(np.asarray(means, np.float64) ** 2)
    added = means.shape[-1] + len(heads) * (means.shape[-1] if heads.w_v is None else heads.w_v.shape[1])
    found: Floats = UNIT * (4.0 + math.sqrt(added)) * np.sqrt(squares.sum(-1))
    return found


def _reach(view: View, values: AnyArray, question: Question, *, gathered: bool) -> Reach:
    """How far values lie from a middle."""
    if view.layout.kind.coded:
        return Reach(np.zeros(1), 1.0)
    if gathered:
        return Reach.of(values)
    if view.layout.kind.scalar and question.heads is None:
        return Reach(np.zeros(1), math.sqrt(view.snapshot.rows) * (view.snapshot.value_scale + ROOT))
    return view.reach


def _spread(view: View, found: Found, reach: Reach, heads: Heads | None) -> Any:
    """The weighted standard deviation around these values, or more, (b,); with heads, the largest distance instead."""
    if heads is not None:
        return reach.radius
    value = np.asarray(found.value, np.float64)
    if view.layout.kind.coded:
        return np.sqrt(np.maximum(1.0 - (value**2).sum(-1), 0.0))
    if found.spread is not None:
        return _spread_of_numbers(found) + DOUBLE * view.snapshot.rows * np.abs(value[..., 0])
    apart = ((value - reach.middle) ** 2).sum(-1)
    doubt = UNIT * reach.radius * (reach.radius + 2.0 * float(np.linalg.norm(reach.middle)))
    return np.sqrt(np.maximum(reach.radius**2 - apart, 0.0) + doubt)


def _spread_of_numbers(found: Found) -> Floats:
    spread = np.asarray(found.spread, np.float64)[..., 0]
    return np.where(np.isnan(spread), np.inf, spread) + ROOT  # squares may overflow to NaN, or underflow to 0


def _lost(view: View, question: Question) -> float:
    """The largest share of the mass that rows may have whose weights are too small for float32."""
    cancelled = not question.by_learned and compatibility_of(question.compatibility).cancels
    return view.snapshot.rows * (LEAST + (math.exp(-HEAVY) if cancelled else 0.0))


def _exchanged(found: Found, moved: Floats) -> Any:
    """The share of the k best that may belong to other rows, whose logits differ by less than rounding."""
    if found.ranked is None:
        return 0.0
    ranked = np.asarray(found.ranked, np.float64)
    best, next_best = ranked[..., :-1], ranked[..., -1:]
    near = next_best + 2.0 * moved.reshape(-1, *[1] * (ranked.ndim - 1))
    weights = np.exp(best - best[..., :1])
    shares = np.where((next_best > -np.inf) & (best <= near), weights, 0.0).sum(-1) / weights.sum(-1)
    largest = shares if shares.ndim == 1 else shares.max(-1)  # of the heads
    return np.minimum(largest * np.exp(2.0 * np.minimum(moved, 1.0)), 1.0)


def summed(view: View, found: Found, values: AnyArray, question: Question) -> Any:
    """The rounding error of the sums of an estimate, (b,)."""
    return _summed(view, found, _reach(view, values, question, gathered=False), 1.0)


def _summed(view: View, found: Found, reach: Reach, gain: float) -> Any:
    """The rounding error of sums, (b,)."""
    rows, value = view.snapshot.rows, np.linalg.norm(np.asarray(found.value, np.float64), axis=-1)
    if found.spread is not None:  # sums are taken from means, so that only those of blocks are as large as the values
        spread = _spread_of_numbers(found)
        return DOUBLE * ((16.0 + rows / 16.0) * value + rows / 8.0 * SEEN * spread)
    longest = reach.radius + float(np.linalg.norm(reach.middle))
    # Terms that are nearly equal are rounded the same way, some lanes at a time.
    terms = 0.0 if view.layout.kind.coded else min(rows, RUN) / 8.0
    tiny = LEAST * rows * math.sqrt(len(reach.middle))
    return UNIT * (4.0 * value + (4.0 + terms) * gain * longest) + gain * tiny


def gain_of(heads: Heads) -> float:
    """The factor by which the projections of heads may enlarge a distance between means."""
    heads = heads.like(np.empty(0), np.float64)
    inner = math.sqrt(len(heads)) if heads.w_v is None else float(np.linalg.norm(np.asarray(heads.w_v)))
    return inner * (1.0 if heads.w_o is None else float(np.linalg.norm(np.asarray(heads.w_o))))
