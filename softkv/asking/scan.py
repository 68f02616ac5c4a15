"""A lookup over one commit of a store that compares all rows, or only those that may count if they are few.

Joins a snapshot of the storage with the maths: the arena is scored as it lies in its file, with rows that are dead or
filtered out as a mask. If few rows are left, these are copied, and the rest is not read.

Does not decide whether to scan (route.py).

Shapes: b queries, n rows of the arena, d key width, s rows shown.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.asking.given import array_of
from softkv.asking.planes import on_planes, reads_planes
from softkv.asking.question import Question
from softkv.asking.rounding import moved_logits, rounding
from softkv.asking.route import FEW, GATHER, PROPOSED, SCAN, gathers, is_cheap
from softkv.asking.view import View
from softkv.errors import AllMasked, EmptyStore, KindError, ShapeError
from softkv.maths.blending import Numbers
from softkv.maths.lookup import lookup
from softkv.ndarrays import AnyArray, Flags, Matrix, Rows
from softkv.storage import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The rows that may count: all of the arena with a mask, or some of them gathered."""

    keys: Matrix
    values: AnyArray
    mask: Any  # (b or 1, rows) or None
    rows: Rows | None  # the rows of the arena, when they are gathered
    reason: str = ""  # why they are


def scan(view: View, question: Question, reason: str) -> Answers:
    """Answer a question from all rows that may count, with this reason; of several stores each scans its own rows."""
    if view.elsewhere is not None:
        return replace(view.elsewhere(replace(question, tolerance=0.0)), reason=reason)
    candidates = _candidates(view, question)
    if candidates.rows is not None:
        return replace(_answered(view, question, candidates), route=GATHER, reason=candidates.reason)
    return replace(_answered(view, question, candidates), route=SCAN, reason=reason)


def answer_among(view: View, question: Question, rows: Rows) -> Answers:
    """Answer a question from these rows alone, which another index proposed."""
    candidates = Candidates(view.snapshot.vectors(rows), view.snapshot.values(rows), None, rows)
    # Weights are shares of the k, so beyond these nothing is to be shown.
    question = replace(question, show=question.show if question.k is None else min(question.k, question.show))
    return replace(_answered(view, question, candidates), route=PROPOSED)


def ask_each(view: View, question: Question) -> Answers:
    """Use every live item, in order, as a query over all items; the question has no queries of its own."""
    snapshot, rows = view.snapshot, view.sound_order
    candidates = Candidates(snapshot.vectors(rows), snapshot.values(rows), question.mask, rows)
    found = _answered(view, replace(question, queries=candidates.keys), candidates)
    return replace(found, route=SCAN, reason=FEW if is_cheap(view) else "every item asks all items")


def require_items(snapshot: Snapshot) -> None:
    """Refuse an empty store."""
    if not len(snapshot):
        raise EmptyStore("the store is empty, so there is nothing to average. Add items first.")


def row_equal_to(snapshot: Snapshot, query: Matrix) -> int | None:
    """The first live row whose key vector is exactly this one, if any."""
    for block in snapshot.blocks():
        same = np.flatnonzero((block.vectors == query).all(axis=1) & block.live)
        if len(same):
            return block.start + int(same[0])
    return None


def rows_left(view: View, question: Question) -> Flags:
    """The rows that a filter, and a mask that is the same for all queries, leave."""
    mask = left_to_each(view, question)
    assert mask is not None
    left: Flags = mask[0]
    return left


def left_to_each(view: View, question: Question) -> Flags | None:
    """The rows that may count, (b or 1, rows); None where all do."""
    snapshot = view.snapshot
    mask = None if snapshot.live.all() else snapshot.live[None, :]
    if question.where is not None:
        mask = snapshot.matching(question.where)[None, :]
        if not mask.any():
            raise AllMasked(f"no item matches where={question.where!r}, so there is nothing to average. Widen it.")
    if question.mask is not None:
        mask = _over_rows(view, question.mask, len(question.queries)) & (True if mask is None else mask)
        if not mask.any() and len(mask):
            raise AllMasked("the mask leaves no item to see, so there is nothing to average. Allow one.")
    return mask


def _candidates(view: View, question: Question) -> Candidates:
    snapshot, mask = view.snapshot, left_to_each(view, question)
    if mask is not None and mask.shape[0] == 1:
        rows = np.flatnonzero(mask[0])
        if gathers(len(rows), view, len(question.queries)):
            reason = FEW if is_cheap(view) else f"{len(rows):,} of {len(snapshot):,} items are left to compare"
            return Candidates(snapshot.vectors(rows), snapshot.values(rows), None, rows, reason)
    (block,) = snapshot.blocks(snapshot.rows)
    return Candidates(block.vectors, block.values, mask, None)


def _over_rows(view: View, given: Any, queries: int) -> Flags:
    """A mask over the live items in their order, as one over the rows of the arena."""
    mask = array_of(given, "rows of `mask`")
    order = view.sound_order
    if mask.dtype != np.bool_:
        raise KindError(f"expected a boolean mask, True where a query may see an item, got {mask.dtype}.")
    fits = mask.ndim == 1 or (mask.ndim == 2 and len(mask) in (1, queries))
    if not fits or mask.shape[-1] != len(order):
        raise ShapeError(
            f"expected a mask of shape ({len(order)},) or ({queries}, {len(order)}), one entry for each item in the "
            f"order of the store, got {mask.shape}."
        )
    mask = np.atleast_2d(mask)
    spread: Flags = np.zeros((len(mask), view.snapshot.rows), np.bool_)
    spread[:, order] = mask
    return spread


def _answered(view: View, question: Question, candidates: Candidates) -> Answers:
    kind, names = view.layout.kind, view.labels
    held = view.blended(candidates.values, projected=question.heads is not None, whole=candidates.rows is None)
    compared = view.comparing(question.compatibility, candidates.rows)
    found = lookup(
        question.queries,
        candidates.keys,
        held,
        compatibility=compared,
        temperature=question.temperature,
        k=question.k,
        mask=candidates.mask,
        causal=question.causal,
        heads=question.heads,
        show=question.show,
    )
    rows = found.rows
    if candidates.rows is not None:
        rows = np.where(rows >= 0, candidates.rows[np.maximum(rows, 0)], -1)
    answers = replace(
        Answers.of(found, question.temperature, names, len(view.snapshot), numbers=isinstance(held, Numbers)),
        rows=rows,
        kind=kind.value,
        error=rounding(view, found, candidates.values, question, gathered=candidates.rows is not None),
        rows_read=np.full(found.scored.shape, len(candidates.keys)),
        source=view,
    )
    if not reads_planes(view, question):
        return answers
    moved = moved_logits(view, found.log_mass, question)
    return on_planes(view, question, answers, moved, candidates.keys, candidates.values, candidates.mask, compared)
