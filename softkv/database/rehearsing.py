"""Rehearse the lists of several stores together: how wrong estimates are that are made of all of them.

Each store has rehearsed its own lists, by items of its own. What one store has too much another may have too little, so
all of them together are less wrong than the sum says; and by how much, only asking all of them tells.

Does not build the lists (indexing.py), nor estimate by them (asking/spanning.py).
"""

from functools import partial
from typing import Any

import numpy as np

from softkv.asking.indexed import summable
from softkv.asking.spanning import Part, Spanning, calibration_encoded, turned_to
from softkv.database import indexing
from softkv.index.lists import ListIndex
from softkv.index.rehearsal import Whole, rehearsed
from softkv.maths.abreast import abreast
from softkv.maths.blas import free_threads
from softkv.maths.farfield import Array, Lists
from softkv.maths.moments import with_rows
from softkv.progress import Stages, untold
from softkv.storage.layout import Mask


@free_threads()
def rehearsed_together(view: Spanning, temperatures: Array, queries: Any, told: Stages | None) -> bytes | None:
    """The calibration of the index over all stores, as `Spanning.index` reads it; None where there is no such index.

    By these queries, or else by items, which are held out. Rows that came after the lists were made are in none.
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
    asking, added = indexing.queries_as_asked(form, asked)
    counted = live.copy()
    counted[askers[askers >= 0]] = False

    def rows(start: int, stop: int) -> tuple[Array, Array]:
        some = order[start:stop]
        return form.keys(snapshot.vectors(some)), summable(snapshot.values(some), snapshot)

    def among(some: Mask) -> Lists:
        """The statistics of some rows."""
        each = zip(known, np.split(some, ends[:-1]), strict=True)
        left = [turned_to(index, _left(one, index, there), known[0][1]) for (one, index), there in each]
        return abreast(left, [one.codes for one, _ in known], len(view.labels or ()))

    calibration = rehearsed(
        among(counted),
        np.append(0, np.concatenate(sizes).cumsum()),
        rows,
        counted,
        asking,
        added,
        temperatures,
        scale=snapshot.value_scale,
        whole=Whole(among(live), live, askers, form.most(added)),
        progress=partial(told or untold, "rehearsing all shards together"),
    )
    return calibration_encoded(calibration, [index for _, index in known])


def _left(one: Part, index: ListIndex, there: Mask) -> Lists:
    """The statistics of the lists of one store without the rows that do not count."""
    snapshot, gone = one.view.snapshot, np.flatnonzero(~there)
    owners = np.searchsorted(index.offsets, gone, side="right") - 1
    keys, values = index.form.keys(snapshot.vectors(gone)), summable(snapshot.values(gone), snapshot)
    return with_rows(index.lists, owners, keys, values, sign=-1.0)
