"""Build an index of FAISS of another kind, which proposes rows for the k best (asking/proposed.py).

Shapes: d key width.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from softkv.asking.proposers import PROPOSER
from softkv.asking.view import View
from softkv.database.indexing import form_for, put
from softkv.index.candidates import Proposer
from softkv.index.forecast import TRIED, Forecast, forecast_proposer
from softkv.logs import log_of
from softkv.maths.forms import Form
from softkv.progress import Stages, untold
from softkv.storage import Store

LOG = log_of(__name__)
SAMPLE = 1 << 17  # rows to train on
BLOCK = 1 << 14


def build_proposer(
    store: Store, lock: threading.RLock, view: Callable[[], View], kind: str, backend: str, told: Stages | None
) -> None:
    """Build a proposer of all rows as they are now; rows stay where they are."""
    before, progress, started = view(), told or untold, time.monotonic()
    form, snapshot = _form(before), before.snapshot

    def blocks() -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start in range(0, snapshot.rows, BLOCK):
            yield start, form.placed(snapshot.vectors(np.arange(start, min(start + BLOCK, snapshot.rows))))

    found = Proposer.build(
        kind,
        blocks,
        _sample(before, form, SAMPLE),
        before.layout.key_width,
        rows=snapshot.rows,
        metric=_metric(form),
        backend=backend,
        progress=partial(progress, "adding rows"),
    )
    # The number of its rows comes first: the file names those that were there when it was put.
    put(store, lock, snapshot.generation, PROPOSER, found.rows.to_bytes(8, "little") + found.to_bytes())
    LOG.info("built an index of kind %r over %d rows in %.1f s", kind, snapshot.rows, time.monotonic() - started)


def forecast_of_proposer(view: View, kind: str) -> Forecast:
    """What building a proposer of this kind takes; a small one is built for it."""
    form, rows = _form(view), view.snapshot.rows
    sampled = min(len(view.snapshot), SAMPLE)
    return forecast_proposer(kind, _sample(view, form, TRIED), rows=rows, sampled=sampled, metric=_metric(form))


def _form(view: View) -> Form:
    # Distances need no middle to be measured from, and later questions would have to know it.
    return replace(form_for(view, None), centre=np.zeros(view.layout.key_width))


def _metric(form: Form) -> str:
    return "l2" if form.name == "gaussian" else "dot"


def _sample(view: View, form: Form, most: int) -> npt.NDArray[np.float32]:
    """The keys of some live rows, drawn at random, as they are compared."""
    live = np.flatnonzero(view.snapshot.live)
    rows = np.sort(np.random.default_rng(0).choice(live, min(len(live), most), replace=False))
    return form.placed(view.snapshot.vectors(rows))
