"""Rehearse the lists of several stores together: how wrong estimates by all of them are.

Each store has rehearsed its own lists, with items of its own. Errors of different stores partly cancel, so the error of
all together is smaller than the sum of theirs; how much smaller is found by asking all of them.

Does not build the lists (indexing.py), nor estimate by them (asking/spanning.py).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from softkv.asking.indexed import summable
from softkv.asking.spanning import Spanning, rehearsed_encoded, turned_to
from softkv.database import indexing
from softkv.database.middles import asked_of, needed
from softkv.index.lists import Rehearsed
from softkv.maths.abreast import abreast
from softkv.maths.blas import free_threads
from softkv.maths.summaries import Lists
from softkv.ndarrays import Flags, Reals
from softkv.progress import Stages, untold


@free_threads()
def rehearsed_together(view: Spanning, temperatures: Reals, queries: Any, told: Stages | None) -> bytes | None:
    """The calibration of the index over all stores, as `Spanning.index` reads it; None where there is no such index.

    Uses these queries, or else items, which are held out. Rows that were added after the lists were made are in none.
    """
    if view.index is None or len(view.parts) < 2:
        return None
    asked, form, snapshot = indexing.checked_queries(view, queries), view.index.form, view.snapshot
    lists = [(one, one.view.index_as_written.index) for one in view.parts]
    known = [(one, index) for one, index in lists if index is not None]
    order = np.concatenate([one.first + np.arange(index.rows) for one, index in known])
    ends, sizes = np.cumsum([index.rows for _, index in known]), [np.diff(index.offsets) for _, index in known]
    live, random = snapshot.live[order], np.random.default_rng(1)
    if asked is None:
        there = np.flatnonzero(live)
        askers = random.choice(there, min(len(there) // 4, indexing.REHEARSED), replace=False)  # in no order
        asked = snapshot.vectors(order[askers])
    else:
        askers, asked = np.full(len(asked), -1), random.permutation(asked)

    def rows(start: int, stop: int) -> tuple[Reals, Reals]:
        some = order[start:stop]
        return form.keys(snapshot.vectors(some)), summable(snapshot.values(some), snapshot)

    def among(some: Flags) -> Lists:
        """The statistics of some rows."""
        left = []
        for (one, index), there in zip(known, np.split(some, ends[:-1]), strict=True):
            own = indexing.lists_of(index.lists, index.offsets, index.form, one.view.snapshot, there)
            left.append(turned_to(index, own, known[0][1]))
        return abreast(left, [one.codes for one, _ in known], len(view.labels or ()))

    calibration = indexing.rehearsed_by(
        indexing.Askers(asked, askers, live),
        among,
        np.append(0, np.concatenate(sizes).cumsum()),
        rows,
        form,
        temperatures,
        scale=snapshot.value_scale,
        progress=partial(told or untold, "rehearsing all shards together"),
    )
    index = replace(view.index, calibration=calibration, need=None)
    need, _ = needed(index, view, lambda: index)
    return rehearsed_encoded(Rehearsed(calibration, need, asked_of(form)), [index for _, index in known])
