"""Several heads by the index: each head is a plain lookup with a rewritten query; the means are projected afterwards.

All heads are asked together, as (heads x queries) plain queries, each routed like any other. Without an index for dot
products, heads are scanned, in one pass over all keys (scan.py).

Shapes: h heads, b queries, d key width, p value width, s rows shown, o output width.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softkv.answer import KINDS, Answers
from softkv.asking.joined import OF_EACH
from softkv.asking.question import Question
from softkv.asking.rounding import moved_logits, rounding_of_heads
from softkv.asking.view import View
from softkv.maths.arrays import sharpened
from softkv.maths.compatibility import Compatibility, compatibility_of, scorer_of
from softkv.maths.distances import Scorer
from softkv.maths.heads import Heads
from softkv.maths.inputs import checked
from softkv.maths.library import Sharpness
from softkv.ndarrays import Floats


def _as_rewritten(queries: Any) -> Any:
    return queries


def _score(queries: Any, sharpness: Sharpness) -> Scorer:
    return scorer_of(sharpened(queries, sharpness))


def _terms(squares: Any) -> tuple[Any, Any]:
    return squares, squares[..., 0] * 0.0


# Not `linear`, whose functions have no names by which they could be sent to shards in other processes.
REWRITTEN = Compatibility("heads", _score, _as_rewritten, degree=2, form="dot", terms=_terms)


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """The plain queries of several heads."""

    heads: Heads
    queries: Any  # (h, b, d)
    constant: Any  # (h, b), what each adds to the scores of all rows
    temperatures: Floats  # (b,)
    stretches: Floats  # (h,), the factor by which an error of a mean may grow in the answer

    @classmethod
    def of(cls, view: View, question: Question) -> "Rewritten":
        """The queries of a question, rewritten by its heads."""
        layout = view.layout
        values = np.zeros(1 if layout.kind.narrow else (1, layout.value_width), np.dtype(layout.kind.dtype))
        inputs = checked(
            question.queries,
            np.zeros((1, layout.key_width), np.float32),  # a row, of which only type and width are used
            view.blended(values, projected=True),
            temperature=question.temperature,
            heads=question.heads,
            show=question.show,
        )
        assert inputs.heads is not None
        rewritten, constant = inputs.heads.rewrite(inputs.queries, compatibility_of(question.compatibility))
        temperatures = np.broadcast_to(np.asarray(question.temperature, np.float64), (inputs.count,))
        return cls(inputs.heads, rewritten, constant, temperatures, stretches(inputs.heads))

    def flat(self, question: Question) -> Question:
        """One plain question for each head and query, of a tolerance smaller by what projections may add to errors."""
        return replace(
            question,
            queries=self.queries.reshape(-1, self.queries.shape[-1]),
            mask=_of_each_head(question.mask, len(self.queries)),
            compatibility=REWRITTEN,
            temperature=np.tile(self.temperatures, len(self.queries)),
            tolerance=question.tolerance / max(1.0, float(np.linalg.norm(self.stretches))),
            rounded=0.0,
            heads=None,
        )


def _of_each_head(mask: Any, heads: int) -> Any:
    """A mask of each query, once for each head; one of all queries alike as it is."""
    return mask if np.ndim(mask) < 2 or len(mask) < 2 else np.tile(mask, (heads, 1))


def of_all_heads(view: View, question: Question, asked: Rewritten, found: Answers) -> Answers:
    """Make the answers of all heads out of the answers of each head."""
    heads, rewritten, constant, temperatures = asked.heads, asked.queries, asked.constant, asked.temperatures
    shape = rewritten.shape[:2]  # (h, b)

    def by_query(x: Any) -> Any:
        return np.asarray(x).reshape(*shape).T

    value = np.asarray(found.value, rewritten.dtype).reshape(*shape, -1)
    log_mass = by_query(found.log_mass)
    rows, shares, scores = _heaviest(view, question, found, asked, log_mass)
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
        error=np.linalg.norm(by_query(errors) * asked.stretches, axis=1)
        + rounding_of_heads(view, log_mass, value, question),
        **of_least_sure(found, shape),
        rows_read=by_query(found.rows_read).max(1),
        effective_error=None if found.effective_error is None else by_query(found.effective_error),
        spread_error=None,
        log_mass_error=by_query(missing) + moved_logits(view, log_mass, question, shared=True)[:, None],
    )


def stretches(heads: Heads) -> Floats:
    """The factor by which an error of the mean of each head may grow in the answer, (h,).

    An answer is off by at most the length of the vector of the errors of all heads: the projections of heads lie side
    by side, or are projected as one vector.
    """
    heads = heads.like(np.empty(0), np.float64)
    inner = np.ones(len(heads)) if heads.w_v is None else _stretch(np.asarray(heads.w_v))
    outer = 1.0 if heads.w_o is None else float(_stretch(np.asarray(heads.w_o)))
    return inner * outer


def _stretch(matrices: Floats) -> Floats:
    """Upper bounds of the spectral norms of matrices (..., o, p): the 8-norm of the singular values needs no SVD."""
    sizes = np.maximum(np.abs(matrices).max(axis=(-2, -1)), np.finfo(np.float64).tiny)
    units = matrices / sizes[..., None, None]
    if units.shape[-2] > units.shape[-1]:
        units = units.swapaxes(-2, -1)
    squares = units @ units.swapaxes(-2, -1)
    found: Floats = sizes * np.linalg.norm(squares @ squares, axis=(-2, -1)) ** 0.25
    return found


def of_least_sure(found: Answers, shape: tuple[int, int]) -> dict[str, Any]:
    """The error kind, route and reason of each query: those of the first of its heads that are least sure."""
    stated = [found.error_kind] if isinstance(found.error_kind, str) else found.error_kind
    doubts = np.broadcast_to([KINDS.index(kind) for kind in stated], shape[0] * shape[1])
    weakest = doubts.reshape(shape).argmax(0)

    def of_head(told: Any) -> Any:
        if not isinstance(told, tuple):
            return told
        return tuple(np.array(told, object).reshape(shape)[weakest, np.arange(shape[1])].tolist())

    return {name: of_head(getattr(found, name)) for name in OF_EACH}


def _heaviest(
    view: View, question: Question, found: Answers, asked: Rewritten, log_mass: Floats
) -> tuple[Any, Any, Any]:
    """The rows with the largest mean share, among the heaviest of each head: rows, shares by head, scores."""
    rewritten, (heads, count, _) = asked.queries, asked.queries.shape
    show = min(question.show, view.snapshot.rows)
    rows, scores = np.full((count, show), -1), np.full((count, show), -np.inf)
    shares = np.zeros((count, heads, show))
    named = found.rows.reshape(heads, count, -1)
    for query in range(count):
        some = np.unique(named[:, query])
        some = some[some >= 0]
        raw = rewritten[:, query].astype(np.float64) @ view.snapshot.vectors(some).T.astype(np.float64)  # (h, s)
        share = np.exp(raw / asked.temperatures[query] - log_mass[query][:, None])
        order = np.lexsort((some, -share.mean(0)))[:show]
        rows[query, : len(order)], shares[query, :, : len(order)] = some[order], share[:, order]
        scores[query, : len(order)] = raw.mean(0)[order]
    return rows, shares, scores
