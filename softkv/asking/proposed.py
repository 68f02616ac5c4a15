"""Rows that any other index of FAISS proposes for the k best; they are scored again from the arena (scan.py).

What it proposes is only a guess, so how wrong an answer is, and what share of all the mass its rows hold, nobody knows.
Rows that were added since it was built are scored as well.

Shapes: b queries, d key width.
"""

import numpy as np

from softkv.asking.question import Question
from softkv.asking.view import View
from softkv.maths.compatibility import compatibility_of
from softkv.storage.layout import Rows

EACH = 8  # rows that are asked for, for each that is wanted
FEWEST = 64


def candidates(view: View, question: Question) -> list[Rows] | None:
    """The rows that may be among the k best of each query, or None where nothing is proposed for one."""
    proposer, compared = view.proposer, compatibility_of(question.compatibility)
    assert proposer is not None
    assert question.k is not None
    vectors = np.asarray(question.queries, np.float32)
    if compared.rewrite is not None:
        vectors = np.asarray(compared.rewrite(vectors), np.float32)
    if not np.isfinite(vectors).all():
        return None  # the scan says which
    rows = proposer.propose(vectors, max(EACH * question.k, FEWEST))
    added = np.arange(proposer.rows, view.snapshot.rows)
    found = [np.concatenate([np.unique(proposed[proposed >= 0]), added]) for proposed in rows]
    alive = [some[view.snapshot.live[some]] for some in found]
    return alive if all(map(len, alive)) and not (rows < 0).all(1).any() else None
