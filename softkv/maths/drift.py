"""How added and removed rows change the statistics of lists: small sums over these rows, which can be added up.

A list keeps the mean that it was measured with as the point from which everything is counted. For a row with key k and
value v, y = k − m and u = v − v̄. Kept are the sums, over the rows added less the rows removed, of 1, y, u, ‖u‖², the
products of y along any two leading axes, and its square along all others. Sums over different rows are added, so they
can be stored part by part. Labels are counted, list by list.

The estimates of farfield.py are then for the rows that are there now, except that the share of the scatter that the
slope explains stays as it was measured. Bounds use the statistics of moments.py.

Reads no rows, and does not choose lists (index/late.py).

Shapes: n rows, t lists that changed, l lists, d key width, r leading axes, p value width (0 of labels), m labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from softkv.maths.moments import squared_lengths
from softkv.maths.shares import Shares
from softkv.maths.summaries import Lists
from softkv.maths.symmetric import packed
from softkv.ndarrays import AnyArray, Counts, Floats, Reals

BLOCK = 1 << 10  # rows that are processed together: their products stay in the cache
TOGETHER = 1 << 8  # lists that are processed together: their statistics stay in the cache as well
SUMMED = 1 << 6  # rows that are summed by one product with a matrix that is 0 except at each row's own list
LEAST = 0.01  # when rows are removed, at least this share of a variance is left
_LABELS = ("holders", "codes", "tallies")


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """Sums over the rows that were added, less those over the rows removed; values are in the units of the lists."""

    lists: Counts  # (t,), rising
    counts: Reals  # (t,)
    keys: Reals  # (t, d), of y
    squares: Reals  # (t, r(r + 1)/2 + 1), of the products of y along leading axes, packed, and of y² along all others
    values: Reals  # (t, p), of u
    scatter: Reals  # (t,), of ‖u‖²; nothing for labels, whose shares tell it
    holders: Counts  # (m,), lists in which rows of a label were added or removed
    codes: Counts  # (m,), these labels, each once for a list
    tallies: Reals  # (m,), how many

    @classmethod
    def of(cls, lists: Lists, owners: Counts, keys: Reals, values: AnyArray, *, sign: float = 1.0) -> "Drift":
        """The sums over some rows that come to the lists `owners`, or with `sign` -1 leave them.

        Values are vectors, (n, p), or codes of labels, (n,).
        """
        order, size = np.argsort(owners, kind="stable"), lists.units.size
        parts = [
            _sums(lists, size, owners[rows], keys[rows], values[rows], sign)
            for rows in (order[start : start + BLOCK] for start in range(0, len(order), BLOCK))
        ]
        return together(parts) if parts else cls.none(lists)

    @classmethod
    def none(cls, lists: Lists) -> "Drift":
        """No change."""

        def empty(*shape: int) -> Reals:
            return np.empty((0, *shape), np.float32)

        width, squares, no = lists.means.shape[1], lists.spreads.shape[1] + 1, np.empty(0, np.int64)
        values = 0 if isinstance(lists.values, Shares) else lists.values.shape[1]
        return cls(no, empty(), empty(width), empty(squares), empty(values), empty(), no, no, empty())

    @property
    def width(self) -> int:
        """The size in bytes of the sums of a list, without its labels."""
        columns: int = self.keys.shape[1] + self.squares.shape[1] + self.values.shape[1]
        return 8 + 4 * (2 + columns)

    def among(self, lists: Counts) -> "Drift":
        """The sums of some lists."""
        some, labelled = np.isin(self.lists, lists, assume_unique=True), np.isin(self.holders, lists)
        return Drift(*(getattr(self, name)[labelled if name in _LABELS else some] for name in _NAMES))

    def applied(self, measured: Lists, *, onto: Lists | None = None) -> Lists:
        """The statistics that estimates need, of the lists as they are now; `measured` are in float32 and in `units`.

        Only the lists that changed are computed: the others are taken from `onto`, or else from `measured`.
        """
        onto = measured if onto is None else onto
        if not len(self.lists):
            return onto
        shares = None
        if isinstance(measured.values, Shares) and isinstance(onto.values, Shares):
            shares = self._shares(measured.values, onto.values)
        found = {name: getattr(onto, name).copy() for name in _CHANGED if name != "values" or shares is None}
        for start in range(0, len(self.lists), TOGETHER):
            part = self._part(slice(start, start + TOGETHER))
            for name, rows in part._moved(measured, shares).items():
                found[name][part.lists] = rows
        return replace(onto, **found if shares is None else found | {"values": shares})

    def _part(self, some: slice) -> "Drift":
        """The sums of some lists, without their labels."""
        return replace(self, **{name: getattr(self, name)[some] for name in (*_SUMS, "lists")})

    def _moved(self, measured: Lists, shares: Shares | None) -> dict[str, Reals]:
        """The statistics of the lists that changed."""
        some = _some(measured, self.lists)
        before = some.counts
        counts = np.maximum(before + self.counts, 0.0)
        many = np.where(counts > 0, counts, np.inf)[:, None]  # the statistics of a list without rows are not used
        shift = self.keys / many
        inner = shift @ some.axes[:, : some.leading]
        beyond = np.maximum(squared_lengths(shift) - squared_lengths(inner), 0.0)
        outside = (before * some.outside + self.squares[:, -1]) / many[:, 0] - beyond
        spreads = some.spreads * (before[:, None] / many)
        spreads += self.squares[:, :-1] / many
        spreads -= _products(inner)
        values: dict[str, Reals] = {}
        if shares is None:
            apart = self.values / many
            values = {"values": some.vectors + apart}
            scatter = (before * some.scatter + self.scatter) / many[:, 0] - squared_lengths(apart)
        else:
            scatter = np.where(counts > 0, 1.0 - shares.squares[self.lists], 0.0)
        scatter = np.maximum(scatter, 0.0)
        noise = np.divide(some.noise, some.scatter, out=np.ones_like(some.noise), where=some.scatter > 0) * scatter
        return values | {
            "counts": counts,
            "means": some.means + shift,
            "spreads": spreads,
            "outside": np.maximum(outside, LEAST * some.outside),
            "scatter": scatter,
            "noise": noise,
        }

    def _shares(self, measured: Shares, onto: Shares) -> Shares:
        """The shares of labels; those of lists that did not change are taken from `onto`."""
        changed = np.zeros(measured.shape[0], np.bool_)
        changed[self.lists] = True
        old, kept = changed[measured.owners], ~changed[onto.owners]
        owners = np.concatenate([onto.owners[kept], measured.owners[old], self.holders])
        codes = np.concatenate([onto.codes[kept], measured.codes[old], self.codes])
        tallies = np.concatenate([onto.tallies[kept], measured.tallies[old], self.tallies])
        labels = max(measured.labels, onto.labels)
        found = Shares.of(owners, codes, tallies, lists=measured.shape[0], labels=labels)
        return replace(found, sloped=measured.sloped)


_NAMES = tuple(one.name for one in fields(Drift))
_SUMS = tuple(name for name in _NAMES if name != "lists" and name not in _LABELS)
_CHANGED = ("counts", "means", "spreads", "outside", "values", "scatter", "noise")


def together(parts: Sequence[Drift]) -> Drift:
    """The sums over the rows of all parts, of which there is at least one."""
    changed = [part for part in parts if len(part.lists)]
    if len(changed) < 2:
        return (changed or parts)[0]
    lists = np.unique(np.concatenate([part.lists for part in changed]))
    places = [np.searchsorted(lists, part.lists) for part in changed]
    sums = {name: _added(len(lists), places, [getattr(part, name) for part in changed]) for name in _SUMS}
    labelled = _tallied(*(np.concatenate([getattr(part, name) for part in changed]) for name in _LABELS))
    return Drift(**{"lists": lists} | sums | labelled)


def _added(count: int, places: Sequence[Counts], parts: Sequence[Reals]) -> Reals:
    """Sums over some lists, put at their places among all and added up."""
    found = np.zeros((count, *parts[0].shape[1:]), np.float32)
    for at, part in zip(places, parts, strict=True):
        if len(at) == at[-1] + 1 - at[0]:
            found[at[0] : at[-1] + 1] += part
        else:
            found[at] += part
    return found


def _tallied(holders: Counts, codes: Counts, tallies: Reals) -> dict[str, AnyArray]:
    """The labels whose rows were added or removed, each once per list."""
    order = np.lexsort((codes, holders))
    holders, codes = holders[order], codes[order]
    new = np.append(True, (np.diff(holders) != 0) | (np.diff(codes) != 0))[: len(order)]
    firsts = np.flatnonzero(new)
    sums = np.add.reduceat(tallies[order], firsts).astype(np.float32) if len(firsts) else tallies
    there = sums != 0
    return dict(zip(_LABELS, (holders[firsts][there], codes[firsts][there], sums[there]), strict=True))


def apart(lists: Lists, owners: Counts, values: AnyArray) -> Floats:
    """How far the values of some rows, or their labels, are from the means of lists, (n,)."""
    if isinstance(lists.values, Shares):
        return np.sqrt(lists.values.apart(owners, values.astype(np.int64)))
    found: Floats = np.linalg.norm(values - lists.values[owners], axis=1)
    return found


def problem_of_drift(drift: Drift, lists: Lists, labels: int = 0) -> str | None:
    """Why this cannot be a change of these lists in a store of so many labels; None where it can."""
    count, empty = len(drift.lists), Drift.none(lists)
    for name in _NAMES:
        found, alike = getattr(drift, name), getattr(empty, name)
        shape = (len(drift.codes) if name in _LABELS else count, *alike.shape[1:])
        if found.shape != shape or found.dtype != alike.dtype:
            return f"holds {name} of shape {found.shape}, not {shape}"
        if not np.isfinite(found).all():
            return f"holds {name} that are not finite"
    if count and not (drift.lists[0] >= 0 and drift.lists[-1] < len(lists.counts) and (np.diff(drift.lists) > 0).all()):
        return "is of lists that are not there"
    if not np.isin(drift.holders, drift.lists).all() or not ((drift.codes >= 0) & (drift.codes < labels)).all():
        return "counts labels that are not there"
    return None


def _sums(lists: Lists, size: float, owners: Counts, keys: Reals, values: AnyArray, sign: float) -> Drift:
    """The sums over rows in the order of their lists; values are counted in units of this size."""
    numbers, firsts, places = np.unique(owners, return_index=True, return_inverse=True)
    # In float32, as keys are: what is lost far from zero is no more than keys themselves have lost.
    means, sizes = lists.means[numbers].astype(np.float32), np.diff(np.append(firsts, len(owners)))
    y = keys.astype(np.float32, copy=False) - means[places]
    u = np.empty((len(y), 0), np.float32)
    if not isinstance(lists.values, Shares):
        u = ((values - lists.values[owners]) / size).astype(np.float32)
    inner = y @ lists.axes[:, : lists.leading].astype(np.float32)
    rest = np.maximum(squared_lengths(y) - squared_lengths(inner), 0.0)
    others = np.stack([rest, squared_lengths(u)], axis=1)
    of_keys, of_values, of_others = (sign * _summed(x.astype(np.float32, copy=False), places) for x in (y, u, others))
    products = np.empty((len(numbers), lists.leading, lists.leading), np.float32)
    for place, (first, count) in enumerate(zip(firsts.tolist(), sizes.tolist(), strict=True)):
        some = inner[first : first + count]
        np.matmul(some.T, some, out=products[place])
    squares = np.concatenate([sign * packed(products), of_others[:, :1]], axis=1)
    labelled = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    if isinstance(lists.values, Shares):
        labelled = owners, values.astype(np.int64), np.full(len(y), sign, np.float32)
    counts, scatter = sign * sizes.astype(np.float32), of_others[:, 1]
    return Drift(numbers, counts, of_keys, squares, of_values, scatter, **_tallied(*labelled))


def _summed(x: Reals, places: Counts) -> Reals:
    """The sums of the rows, (n, w), of each place, numbered from 0 on; rows come in the order of their places.

    Uses matrix products, which take a third of the time of `np.add.reduceat`.
    """
    found = np.zeros((places[-1] + 1, x.shape[1]), np.float32)
    for start in range(0, len(x), SUMMED):
        some = places[start : start + SUMMED]
        first, stop = some[0], some[-1] + 1
        found[first:stop] += (np.arange(first, stop)[:, None] == some).astype(np.float32) @ x[start : start + SUMMED]
    return found


def _products(x: Reals) -> Reals:
    """The products of any two columns, (n, r(r + 1)/2), packed."""
    one, other = np.triu_indices(x.shape[1])
    found: Reals = x.take(one, axis=1)
    found *= x.take(other, axis=1)
    return found


def _some(lists: Lists, at: Counts) -> Lists:
    """The statistics of some lists."""
    shared = {"axes", "profile", "slope"} | ({"values"} if isinstance(lists.values, Shares) else set())
    return Lists(
        **{
            one.name: getattr(lists, one.name) if one.name in shared else getattr(lists, one.name)[at]
            for one in fields(lists)
        }
    )
