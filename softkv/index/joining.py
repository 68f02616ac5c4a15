"""Which rows that were added since the build may join a list, so that not every query has to read them.

A row joins the nearest list if it is no farther from its means than the rows were that it was built of, and if the list
stays mostly what it was: then what was calibrated still describes it. All others are strangers, and read by everybody.

Does not read rows, nor decide when to look at them (database/indexed.py).

Shapes: n rows, d key width, p value width, l lists.
"""

import numpy as np

from softkv.index.engine import assigned
from softkv.index.lists import Counts, ListIndex, Mask
from softkv.maths.farfield import Array
from softkv.maths.shares import Shares

ROOM = 0.5  # how many rows may join a list, as a share of those it was built of


def joining(index: ListIndex, keys: Array, values: Array, live: Mask) -> Counts:
    """The list that each of the next rows behind the lists joins, or -1; keys come as the form makes them."""
    width = keys.shape[1] - index.form.measures_distance  # by which rows were arranged
    lists, owners = index.lists, np.full(len(keys), -1, np.int64)
    there, rows = np.flatnonzero(lists.counts > 0), np.flatnonzero(live)
    if not len(there) or not len(rows):
        return owners
    near, means = (np.ascontiguousarray(x[:, :width], np.float32) for x in (keys[rows], lists.means[there]))
    found = there[assigned(near, means, backend="cpu")]
    y = (keys[rows] - lists.means[found]) @ lists.axes
    apart = np.stack([np.linalg.norm(part, axis=1) for part in np.split(y, [lists.leading], axis=1)], axis=1)
    alike = (apart <= lists.radii[found]).all(1)
    if isinstance(lists.values, Shares):
        far = lists.values.of_rows(found, values[rows].astype(np.int64), lists.slope).squares ** 0.5
    else:
        far = np.linalg.norm(values[rows] - lists.values[found], axis=1)
    alike &= far <= lists.value_radii[found]
    rows, found = rows[alike], found[alike]
    fits = _rank(found) < _room(index)[found]
    owners[rows[fits]] = found[fits]
    return owners


def _room(index: ListIndex) -> Counts:
    """How many rows may still join each list, (l,)."""
    taken = np.bincount(index.joined[index.joined >= 0], minlength=len(index.lists.counts))
    found: Counts = (ROOM * np.diff(index.offsets)).astype(np.int64) - taken
    return found


def _rank(owners: Counts) -> Counts:
    """How many before each have the same owner."""
    order = np.argsort(owners, kind="stable")
    ranked = owners[order]
    found = np.empty(len(owners), np.int64)
    found[order] = np.arange(len(owners)) - np.searchsorted(ranked, ranked)
    return found
