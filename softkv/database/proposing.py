"""Any other index of FAISS is built here; it proposes rows for the k best (asking/proposed.py).

Shapes: d key width.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from softkv.asking.proposers import PROPOSER
from softkv.asking.view import View
from softkv.database.indexing import form_for, put
from softkv.index.candidates import Proposer
from softkv.progress import Stages, untold
from softkv.storage import Store

SAMPLE = 1 << 17  # rows to train on
BLOCK = 1 << 14


def build_proposer(
    store: Store, lock: threading.RLock, view: Callable[[], View], kind: str, backend: str, told: Stages | None
) -> None:
    """Build a proposer of all rows as they are now; rows stay where they are."""
    before, progress = view(), told or untold
    # Distances need no middle to be measured from, and later questions would have to know it.
    form, snapshot = replace(form_for(before, None), centre=np.zeros(before.layout.key_width)), before.snapshot
    live = np.flatnonzero(snapshot.live)
    sample = np.sort(np.random.default_rng(0).choice(live, min(len(live), SAMPLE), replace=False))

    def blocks() -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start in range(0, snapshot.rows, BLOCK):
            yield start, form.placed(snapshot.vectors(np.arange(start, min(start + BLOCK, snapshot.rows))))

    found = Proposer.build(
        kind,
        blocks,
        form.placed(snapshot.vectors(sample)),
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
