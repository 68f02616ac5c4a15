"""Any other index of FAISS: it proposes rows for the k best, and they are scored again from the arena.

What it proposes is only a guess, so how wrong an answer is, and what share of all the mass its rows hold, nobody knows.
Rows that are added later are scored as well; lists (estimating.py) come first where there are any.

Shapes: b queries, d key width.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.database.estimating import is_cheap
from softkv.database.indexed import PROPOSER
from softkv.database.indexing import Told, clustered, form_for, put, untold
from softkv.database.question import Question
from softkv.database.view import View
from softkv.index.candidates import Proposer
from softkv.maths.compatibility import compatibility_of
from softkv.maths.forms import form_of
from softkv.storage import Store
from softkv.storage.layout import Rows

EACH = 8  # rows that are asked for, for each that is wanted
FEWEST = 64
SAMPLE = 1 << 17  # rows to train on
BLOCK = 1 << 14

Answer = Callable[[View, Question, Rows], Answers]


def build_proposer(
    store: Store, lock: threading.RLock, view: Callable[[], View], kind: str, backend: str, told: Told | None
) -> None:
    """Build a proposer of all rows as they are now; rows stay where they are."""
    before, progress = view(), told or untold
    # Distances need no middle to be measured from, and later questions would have to know it.
    form, snapshot = replace(form_for(before, None), centre=np.zeros(before.layout.key_width)), before.snapshot
    live = np.flatnonzero(snapshot.live)
    sample = np.sort(np.random.default_rng(0).choice(live, min(len(live), SAMPLE), replace=False))

    def blocks() -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start in range(0, snapshot.rows, BLOCK):
            yield start, clustered(snapshot, form, np.arange(start, min(start + BLOCK, snapshot.rows)))

    found = Proposer.build(
        kind,
        blocks,
        clustered(snapshot, form, sample),
        before.layout.key_width,
        rows=snapshot.rows,
        metric="l2" if form.name == "gaussian" else "dot",
        backend=backend,
        progress=partial(progress, "adding rows"),
    )
    put(store, lock, snapshot.generation, PROPOSER, _with_head(found))


def _with_head(found: Proposer) -> bytes:
    """Its bytes, after the number of its rows: the file names those that were there when it was put."""
    return found.rows.to_bytes(8, "little") + found.to_bytes()


def propose(view: View, question: Question, answer: Answer) -> Answers | None:
    """The answers of the k best of what is proposed, or None when this has to be scanned."""
    if question.k is None or not question.tolerance or question.guarantee or question.heads is not None:
        return None
    if not question.asks_all or not len(question.queries) or is_cheap(view):
        return None
    # It was built for the way in which the store compares, and knows no other.
    form, proposer = form_of(question.compatibility), view.proposer
    if proposer is None or form is None or form != form_of(view.profile.compatibility):
        return None
    vectors = _vectors(question)
    if not np.isfinite(vectors).all():
        return None  # the scan says which
    rows = proposer.propose(vectors, max(EACH * question.k, FEWEST))
    if (rows < 0).all(1).any():
        return None
    added = np.arange(proposer.rows, view.snapshot.rows)
    found = []
    for number, proposed in enumerate(rows):
        candidates = np.concatenate([np.unique(proposed[proposed >= 0]), added])
        candidates = candidates[view.snapshot.live[candidates]]
        if not len(candidates):
            return None
        found.append(answer(view, question.part(np.array([number])), candidates))
    seen = np.full(len(found), len(view.snapshot))
    return replace(_joined(found), temperature=question.temperature, seen=seen)


def _vectors(question: Question) -> npt.NDArray[np.float32]:
    """The queries as the proposer knows keys."""
    queries = np.asarray(question.queries, np.float32)
    compared = compatibility_of(question.compatibility)
    if compared.rewrite is not None:
        queries = np.asarray(compared.rewrite(queries), np.float32)
    return queries


def _joined(found: list[Answers]) -> Answers:
    """Answers to single queries as those to a batch, without what nobody knows."""
    wide = max(one.rows.shape[1] for one in found)
    columns: dict[str, Any] = {}
    for one in fields(Answers):
        parts = [getattr(answers, one.name) for answers in found]
        if isinstance(parts[0], np.ndarray) and one.name != "temperature":
            if one.name in ("rows", "weights", "scores"):
                fill = {"rows": -1, "weights": 0.0, "scores": -np.inf}[one.name]
                parts = [np.pad(x, ((0, 0), (0, wide - x.shape[1])), constant_values=fill) for x in parts]
            columns[one.name] = np.concatenate(parts)
    unknown = {"error": None, "error_kind": "unknown", "mass": None}
    return replace(found[0], **(columns | unknown))
