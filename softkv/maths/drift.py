"""How the statistics of lists change with rows that come and go: sums over these rows, which add up and take little.

A list keeps the mean that it was measured with as the point from which everything is counted. For a row with key k and
value v, y = k − m and u = v − v̄. Of the rows that came, less those that went, the sums of 1, y, u, ‖u‖² are kept, and
of the squares of y along each leading axis and along all others together. The sums over some rows and over others are
added, so they can be written down part by part.

The estimates of farfield.py are then those of the rows that are there now, with two liberties: how the leading axes of
a list vary together is scaled by how each varies alone, and the slope explains the share of the scatter that it
explained when it was measured. Bounds have no room for either, so they take the statistics of moments.py.

Reads no rows, and does not choose lists (index/late.py).

Shapes: n rows, t lists that changed, l lists, d key width, r leading axes, p value width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from softkv.maths.farfield import Array, Floats, Lists

Counts = npt.NDArray[np.int64]
BLOCK = 1 << 13  # rows that are looked at together
LEAST = 0.01  # the share of a variance that is left of it at least, when rows go


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """Sums over the rows that came, less those over the rows that went; values are in the units of the lists."""

    lists: Counts  # (t,), rising
    counts: Array  # (t,)
    keys: Array  # (t, d), of y
    squares: Array  # (t, r + 1), of y² along each leading axis, and along all others
    values: Array  # (t, p), of u
    scatter: Array  # (t,), of ‖u‖²

    @classmethod
    def of(cls, lists: Lists, owners: Counts, keys: Array, values: Array, *, sign: float = 1.0) -> "Drift":
        """The sums over some rows that come to the lists `owners`, or with `sign` -1 leave them."""
        order, size = np.argsort(owners, kind="stable"), lists.units.size
        parts = [
            _sums(lists, size, owners[rows], keys[rows], values[rows], sign)
            for rows in (order[start : start + BLOCK] for start in range(0, len(order), BLOCK))
        ]
        return together(parts) if parts else cls.none(lists)

    @classmethod
    def none(cls, lists: Lists) -> "Drift":
        """No change."""

        def empty(*shape: int) -> Array:
            return np.empty((0, *shape), np.float32)

        width, squares, values = lists.means.shape[1], lists.leading + 1, lists.values.shape[1]
        return cls(np.empty(0, np.int64), empty(), empty(width), empty(squares), empty(values), empty())

    def among(self, lists: Counts) -> "Drift":
        """The sums of some lists."""
        some = np.isin(self.lists, lists, assume_unique=True)
        return Drift(*(getattr(self, one.name)[some] for one in fields(self)))

    def applied(self, measured: Lists, *, onto: Lists | None = None) -> Lists:
        """What estimates need of the lists as they are now; `measured` are their statistics in float32, in `units`.

        Only the lists that changed are looked at: the others are as they are in `onto`, or else as measured.
        """
        onto = measured if onto is None else onto
        if not len(self.lists):
            return onto
        at: Counts | slice = slice(None) if len(self.lists) == len(measured.counts) else self.lists
        some = _some(measured, at)
        before = some.counts.astype(np.float64)
        counts = np.maximum(before + self.counts, 0.0)
        many = np.where(counts > 0, counts, np.inf)[:, None]  # of a list without rows nothing is asked
        shift, value_shift = self.keys / many, self.values / many
        inner = shift @ some.axes[:, : some.leading]
        moved = np.concatenate([inner**2, np.maximum(_squares(shift) - _squares(inner), 0.0)[:, None]], axis=1)
        diagonal = _diagonal(some.leading)
        alone = np.concatenate([some.spreads[:, diagonal], some.outside[:, None]], axis=1).astype(np.float64)
        varied = np.maximum((before[:, None] * alone + self.squares) / many - moved, LEAST * alone)
        scale = np.sqrt(np.divide(varied, alone, out=np.ones_like(varied), where=alone > 0))[:, :-1]
        one, other = np.triu_indices(some.leading)
        scale = scale.astype(np.float32)
        spreads = scale[:, one]
        spreads *= scale[:, other]
        spreads *= some.spreads
        spreads[:, diagonal] = varied[:, :-1]
        scatter = np.maximum((before * some.scatter + self.scatter) / many[:, 0] - _squares(value_shift), 0.0)
        noise = np.divide(some.noise, some.scatter, out=np.ones_like(some.noise), where=some.scatter > 0) * scatter
        return _put(
            onto,
            at,
            counts=counts,
            means=some.means + shift,
            spreads=spreads,
            outside=varied[:, -1],
            values=some.values + value_shift,
            scatter=scatter,
            noise=noise,
        )


def together(parts: Sequence[Drift]) -> Drift:
    """The sums over the rows of all parts, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    lists = np.concatenate([part.lists for part in parts])
    order = np.argsort(lists, kind="stable")
    numbers, firsts = np.unique(lists[order], return_index=True)
    if not len(numbers):
        return parts[0]
    summed = {
        one.name: np.add.reduceat(np.concatenate([getattr(part, one.name) for part in parts])[order], firsts, axis=0)
        for one in fields(Drift)[1:]
    }
    return Drift(numbers, **summed)


def problem_of_drift(drift: Drift, lists: Lists) -> str | None:
    """Why these are no changes of these lists, if they are none."""
    count = len(drift.lists)
    shapes: dict[str, tuple[int, ...]] = {
        "lists": (count,),
        "counts": (count,),
        "keys": (count, lists.means.shape[1]),
        "squares": (count, lists.leading + 1),
        "values": (count, lists.values.shape[1]),
        "scatter": (count,),
    }
    for name, shape in shapes.items():
        found = getattr(drift, name)
        if found.shape != shape or found.dtype != (np.int64 if name == "lists" else np.float32):
            return f"holds {name} of shape {found.shape}, not {shape}"
        if not np.isfinite(found).all():
            return f"holds {name} that are not finite"
    if count and not (drift.lists[0] >= 0 and drift.lists[-1] < len(lists.counts) and (np.diff(drift.lists) > 0).all()):
        return "is of lists that are not there"
    return None


def _sums(lists: Lists, size: float, owners: Counts, keys: Array, values: Array, sign: float) -> Drift:
    """The sums over rows in the order of their lists; values are counted in units of this size."""
    numbers, firsts = np.unique(owners, return_index=True)
    # Rounded after the difference is taken: keys may lie far from zero. Sums are added up in float64.
    y = np.subtract(keys, lists.means[owners], dtype=np.float64).astype(np.float32)
    u = ((values - lists.values[owners]) / size).astype(np.float32)
    inner = y @ lists.axes[:, : lists.leading].astype(np.float32)
    rest = np.maximum(_squares(y) - _squares(inner), 0.0)

    def summed(x: Array) -> Array:
        found: Array = (sign * np.add.reduceat(x, firsts, axis=0, dtype=np.float64)).astype(np.float32)
        return found

    squares = np.concatenate([inner * inner, rest[:, None]], axis=1)
    return Drift(numbers, summed(np.ones(len(y))), summed(y), summed(squares), summed(u), summed(_squares(u)))


def _some(lists: Lists, at: Counts | slice) -> Lists:
    """The statistics of some lists."""
    shared = {"axes", "profile", "slope"}
    return Lists(*(getattr(lists, one.name)[slice(None) if one.name in shared else at] for one in fields(lists)))


def _put(lists: Lists, at: Counts | slice, **changed: Array) -> Lists:
    """The statistics with those of some lists changed, or of all."""
    found = {}
    for name, rows in changed.items():
        found[name] = np.empty_like(getattr(lists, name)) if isinstance(at, slice) else getattr(lists, name).copy()
        found[name][at] = rows
    return replace(lists, **found)


def _diagonal(leading: int) -> Counts:
    """Where the variances lie in a packed covariance."""
    one, other = np.triu_indices(leading)
    return np.flatnonzero(one == other)


def _squares(x: Array) -> Floats:
    """The squared length of each row."""
    found: Floats = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    return found
