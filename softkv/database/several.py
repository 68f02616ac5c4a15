"""Several heads by the index: each head is a plain lookup with a rewritten query, and the projections act on the means.

What the heads ask is asked together, as (heads x queries) plain questions; those that the index does not suit are
scanned like any other. Without an index for dot products, heads are scanned by asking.py, in one pass over all keys.

Shapes: h heads, b queries, d key width, p value width, s rows shown, o output width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.database.estimating import is_cheap
from softkv.database.question import Question
from softkv.database.rounding import gain_of, moved_logits, rounding_of_heads
from softkv.database.view import View
from softkv.maths.blending import Vectors
from softkv.maths.compatibility import compatibility_of, linear
from softkv.maths.heads import Heads
from softkv.maths.inputs import checked
from softkv.storage import ValueKind

Ask = Callable[[View, Question], Answers]
REWRITTEN = linear("heads", lambda queries: queries)


def ask_heads(view: View, question: Question, ask: Ask) -> Answers | None:
    """The answers of several heads, or None when they have to be scanned."""
    heads = question.heads
    if heads is None or question.k is not None or not question.asks_all or not question.tolerance:
        return None
    if view.layout.kind is ValueKind.LABEL:
        return None
    if is_cheap(view) or view.index is None or view.index.form.name != "dot":
        return None
    block = view.snapshot.runs(np.empty(0, np.int64), np.empty(0, np.int64))
    inputs = checked(
        question.queries,
        block.vectors,
        Vectors(block.values.reshape(len(block.values), -1)),
        temperature=question.temperature,
        k=None,
        mask=None,
        bias=None,
        heads=heads,
        show=question.show,
    )
    assert inputs.heads is not None
    if not inputs.count:
        return None
    rewritten, constant = inputs.heads.rewrite(inputs.queries, compatibility_of(question.compatibility))
    temperatures = np.broadcast_to(np.asarray(question.temperature, np.float64), (inputs.count,))
    found = ask(view, _flat(question, rewritten, temperatures, max(1.0, gain_of(heads))))
    return _joined(view, question, inputs.heads, found, rewritten, constant, temperatures)


def _flat(question: Question, rewritten: Any, temperatures: npt.NDArray[np.float64], gain: float) -> Question:
    """The same as one plain question for each head and query; what projections may widen is kept that much closer."""
    return replace(
        question,
        queries=rewritten.reshape(-1, rewritten.shape[-1]),
        compatibility=REWRITTEN,
        temperature=np.tile(temperatures, len(rewritten)),
        tolerance=question.tolerance / gain,
        rounded=0.0,
        heads=None,
    )


def _joined(
    view: View,
    question: Question,
    heads: Heads,
    found: Answers,
    rewritten: Any,
    constant: Any,
    temperatures: npt.NDArray[np.float64],
) -> Answers:
    """The answers of all heads as one for each query."""
    shape = rewritten.shape[:2]  # (h, b)

    def by_query(x: Any) -> Any:
        return np.asarray(x).reshape(*shape).T

    value = np.asarray(found.value, rewritten.dtype).reshape(*shape, -1)
    log_mass = by_query(found.log_mass)
    rows, shares, scores = _heaviest(view, question, found, rewritten, log_mass, temperatures)
    missing = np.zeros(len(found)) if found.log_mass_error is None else found.log_mass_error
    errors = np.zeros(len(found)) if found.error is None else found.error
    return replace(
        found,
        value=heads.project(value),
        spread=None,
        log_mass=log_mass + (constant.astype(np.float64) / temperatures).T,
        effective=by_query(found.effective),
        mass=by_query(found.mass),
        scored=by_query(found.scored).max(1),
        seen=by_query(found.seen).max(1),
        temperature=question.temperature,
        rows=rows,
        weights=shares.mean(1),
        scores=np.where(rows >= 0, scores + constant.mean(0)[:, None], -np.inf),
        head_weights=shares,
        error=gain_of(heads) * by_query(errors).max(1) + rounding_of_heads(view, log_mass, value, question),
        error_kind=_kinds(found, shape),
        log_mass_error=by_query(missing).max(1) + moved_logits(view, log_mass, question, shared=True),
    )


def _kinds(found: Answers, shape: tuple[int, int]) -> str | tuple[str, ...]:
    """The weakest kind of error of the heads of each query."""
    if isinstance(found.error_kind, str):
        return found.error_kind
    kinds = np.array(found.error_kind, object).reshape(shape)
    return tuple(next((kind for kind in column if kind != "exact"), "exact") for column in kinds.T.tolist())


def _heaviest(
    view: View,
    question: Question,
    found: Answers,
    rewritten: Any,
    log_mass: npt.NDArray[np.float64],
    temperatures: npt.NDArray[np.float64],
) -> tuple[Any, Any, Any]:
    """Of the rows that are heaviest in some head those of the largest mean share: rows, shares by head, scores."""
    count, show = rewritten.shape[1], min(question.show, view.snapshot.rows)
    rows, scores = np.full((count, show), -1), np.full((count, show), -np.inf)
    shares = np.zeros((count, len(rewritten), show))
    named = found.rows.reshape(len(rewritten), count, -1)
    for query in range(count):
        some = np.unique(named[:, query])
        some = some[some >= 0]
        raw = rewritten[:, query].astype(np.float64) @ view.snapshot.vectors(some).T.astype(np.float64)  # (h, s)
        share = np.exp(raw / temperatures[query] - log_mass[query][:, None])
        order = np.lexsort((some, -share.mean(0)))[:show]
        rows[query, : len(order)], shares[query, :, : len(order)] = some[order], share[:, order]
        scores[query, : len(order)] = raw.mean(0)[order]
    return rows, shares, scores
