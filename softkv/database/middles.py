"""Ask a new index for the middles of two items, to find out whether its plans miss rows that are like a query.

A query in the middle between two keys is like both, more than like any other key where keys have no clusters, and each
may lie in a list of which nothing is expected. Where too many answers leave out these and so are off by more than they
state, such rows have to be found by their signs (index/signs.py).
"""

from dataclasses import replace
from functools import partial

import numpy as np

from softkv.asking.indexed import placed_by
from softkv.asking.lists import Asking
from softkv.asking.question import TOLERANCE, Question
from softkv.asking.view import View
from softkv.index.lists import ListIndex
from softkv.index.looks import scored
from softkv.index.signs import Signs
from softkv.maths.blas import free_threads
from softkv.ndarrays import Matrix, Reals, Rows
from softkv.progress import Stages
from softkv.storage import Snapshot

ASKED = 128  # middles
MISSED = 0.1  # so many may be off: they are unlike the items, of which one in twenty may be
TOLERANCES = TOLERANCE, 0.05  # by which they are asked: that of lookups by default, and a larger one
SHOWN = 128  # the heaviest rows that were read, among which is each that weighs more than a hundredth


@free_threads()
def signed(index: ListIndex, snapshot: Snapshot, now: View, progress: Stages) -> ListIndex:
    """A new index of these rows, with their signs if it needs them; `now` is the store.

    Where rows have been laid in another order meanwhile, the index will not be written, and stays as it is.
    """
    if now.snapshot.generation != snapshot.generation:
        return index
    index.facts["middles"] = ASKED
    warmest = warmest_missing(now, index)
    if warmest is None:
        return index
    told = partial(progress, "noting signs of rows")
    return replace(index, signs=Signs.of(placed_by(index.form, snapshot), index.rows, warmest=warmest, progress=told))


def warmest_missing(view: View, index: ListIndex) -> float | None:
    """Up to which temperature too many answers are off since they leave out an item; None if at no calibrated one.

    Between two temperatures a plan is that for both, and beyond the last one nobody knows.
    """
    live, temperatures = np.flatnonzero(view.snapshot.live[: index.rows]), index.calibration.temperatures.tolist()
    rows = np.random.default_rng(3).choice(live, (ASKED, 2))
    queries, warmer = _between(view, index, rows), np.inf
    for temperature in reversed(temperatures):
        if any(_off(view, index, rows, queries, temperature, one) > MISSED for one in TOLERANCES):
            return warmer
        warmer = temperature
    return None


def _between(view: View, index: ListIndex, rows: Rows) -> Matrix:
    """The middles of the keys of two rows each, (c, 2), where only directions count as if all were equally long."""
    with np.errstate(over="ignore", invalid="ignore"):
        keys: Reals = view.snapshot.vectors(rows.ravel()).astype(np.float64)
        if index.form.name == "cosine":
            keys = index.form.keys(keys)
        middles: Matrix = keys.reshape(*rows.shape, -1).mean(1).astype(np.float32)
        return middles


def _off(view: View, index: ListIndex, rows: Rows, queries: Matrix, temperature: float, tolerance: float) -> float:
    """The share of the middles of which the answer is off by more than it states without items that it left out."""
    compared = index.form.compatibility
    question = Question(queries, compatibility=compared, temperature=temperature, tolerance=tolerance, show=SHOWN)
    asking = Asking(view, index, question)
    some = np.flatnonzero(asking.suited())
    if not len(some):
        return 0.0
    arena, off = asking.arena(), 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is no answer
        found = asking.answers(some)
        logits = scored(asking.asked(some), rows[some].ravel()).reshape(len(some), -1, 2)
        for place in np.flatnonzero(found.sure).tolist():
            pair = rows[some[place]]
            weights = np.exp(logits[place, place] - found.blend.log_mass[place])
            weights[np.isin(pair, found.near.rows[place])] = 0.0
            moved = np.sqrt(arena.some_values(pair).squares(found.blend.value[place]))
            total = float(weights.sum())
            off += bool(
                weights @ moved > (1.0 + total) * found.error[place] or np.log1p(total) > found.log_mass_error[place]
            )
    return off / len(queries)
