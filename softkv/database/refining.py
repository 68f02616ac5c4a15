"""Whether the lists of an index can be refined instead of being made anew, and which rows they now have.

They can be as long as the store has at most twice the items of when they were made anew. That saves half of a build:
finding centres and comparing every row with all of them.

Does not arrange rows (index/dividing.py).
"""

import math
from dataclasses import replace

import numpy as np

from softkv.asking.indexed import summable
from softkv.asking.view import View
from softkv.database.middles import asked_of
from softkv.index.calibration import SAME
from softkv.index.dividing import emptied
from softkv.index.late import Homes
from softkv.index.lists import OUTGROWN, ListIndex
from softkv.index.opening import NEAREST
from softkv.index.outline import is_worth_it
from softkv.maths.forms import Form
from softkv.ndarrays import Counts, Reals, Rows

TOGETHER = 1 << 14  # rows that are read together


def refinable(view: View, form: Form, lists: int | None) -> ListIndex | None:
    """The index of a store, if its lists can be refined for one of this form; `lists` is how many were asked for."""
    index = None if lists is not None else view.index
    if index is None or not index.whole:
        return None
    alike = (index.form.name, index.form.compatibility) == (form.name, form.compatibility)
    same = index.facts.get("projection") == view.profile.projection
    grown = max(len(view.snapshot), index.whole) / max(1, min(len(view.snapshot), index.whole))
    return index if alike and same and grown <= OUTGROWN else None


def is_current(view: View, index: ListIndex, temperatures: Reals) -> bool:
    """Whether an index was calibrated on items, at these temperatures, and no item was added or deleted since.

    An index of an earlier version may lack what one that is built now has.
    """
    before, calibrated_on = index.calibration.temperatures, index.facts.get("calibrated on")
    same = len(before) == len(temperatures) and np.allclose(before, temperatures, rtol=1e-6)
    whole = (
        index.heads is not None
        and int(index.calibration.near[0]) == NEAREST
        and len(index.calibration.closest) > 0
        and index.calibration.mass_doubts.size > 0
        and math.isclose(float(index.calibration.scale[0]), view.snapshot.value_scale, rel_tol=SAME)
        and (index.outline is not None or not is_worth_it(index.lists))
        and index.facts.get("middles") == asked_of(index.form)
    )
    return same and calibrated_on == "items" and not view.changes and view.verdict is None and whole


def owners_of(view: View, index: ListIndex, rows: Rows) -> Counts:
    """The list that each of these rows is in, or would be; -1 for those that are far from all lists.

    Rows of a list that has few left are assigned to another.
    """
    owners = index.owners(rows)
    dissolved = emptied(owners, index.made_of)
    owners[np.append(dissolved, False)[owners]] = -1
    kept = replace(index.lists, counts=np.where(dissolved, 0, index.lists.counts))
    homeless, homes = np.flatnonzero(owners < 0), Homes(replace(index, lists=kept))
    for start in range(0, len(homeless), TOGETHER):
        some = homeless[start : start + TOGETHER]
        values = summable(view.snapshot.values(rows[some]), view.snapshot)
        owners[some] = homes.of(index.form.keys(view.snapshot.vectors(rows[some])), values)
    return owners
