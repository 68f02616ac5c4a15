"""Rows that another index of FAISS proposes for the k best; they are scored again from the arena (scan.py).

Better rows may be missing, so the error of an answer, and its share of the mass, are unknown. Rows that were added
since the index was built are scored as well.

Shapes: b queries, d key width.
"""

import numpy as np

from softkv.asking.question import Question
from softkv.asking.view import View
from softkv.maths.compatibility import compatibility_of
from softkv.ndarrays import Rows

EACH = 8  # rows to propose for each one that is wanted
FEWEST = 64


def candidates(view: View, question: Question) -> list[Rows] | None:
    """The rows that may be among the k best of each query; None if none are proposed for some query."""
    proposer, compared = view.proposer, compatibility_of(question.compatibility)
    assert proposer is not None
    assert question.k is not None
    vectors = np.asarray(question.queries, np.float32)
    if compared.rewrite is not None:
        vectors = np.asarray(compared.rewrite(vectors), np.float32)
    if not np.isfinite(vectors).all():
        return None  # the scan raises an error that names the query
    rows = proposer.propose(vectors, max(EACH * question.k, FEWEST))
    added = np.arange(proposer.rows, view.snapshot.rows)
    found = [np.concatenate([np.unique(proposed[proposed >= 0]), added]) for proposed in rows]
    alive = [some[view.snapshot.live[some]] for some in found]
    return alive if all(map(len, alive)) and not (rows < 0).all(1).any() else None
