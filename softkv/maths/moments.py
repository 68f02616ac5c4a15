"""The statistics of lists: measured once over all rows, and corrected when rows come and go.

Rows are handed in by blocks, so memory does not grow with their number. There are two passes: the first finds the
means and, from a sample of the rows, the axes that all lists share; the second finds everything else.

Shapes: n rows of a block, l lists, d key width, r leading axes, p value width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from softkv.maths.farfield import ROUNDED
from softkv.maths.shares import Labelled, Shares, Turned
from softkv.maths.summaries import Lists
from softkv.ndarrays import Counts, Floats, Reals
from softkv.progress import Progress

# Rows start .. stop - 1: their keys (n, d) and their values as vectors (n, p), or as codes of labels (n,).
ReadRows = Callable[[int, int], tuple[Reals, Reals]]

BLOCK = 1 << 13  # rows looked at together
SAMPLE = 1 << 16  # rows by which axes and slope are found
SQUARED = 2.0**50  # sizes up to which, and from whose inverse on, squares are far from the ends of float32
LEADING = 32  # axes with a covariance of their own; with more, answers become no better


def measured(
    rows: ReadRows, offsets: Counts, *, labels: int = 0, leading: int = LEADING, progress: Progress | None = None
) -> Lists:
    """The statistics of lists of consecutive rows: list i is rows offsets[i] .. offsets[i + 1] - 1.

    Where there are `labels`, values are codes of them, and count as vectors that are 1 there and 0 elsewhere.
    """
    counts = np.diff(offsets)
    means, value_means, largest = _means(rows, offsets, labels)
    axes, variances, slope = _shared(rows, offsets, means, value_means)
    leading = min(leading, len(variances))
    rest = variances[leading:]
    profile = rest / rest.sum() if rest.sum() > 0 else np.full(len(rest), 1.0 / max(1, len(rest)))
    squared = bool(((largest == 0.0) | ((largest > 1.0 / SQUARED) & (largest < SQUARED))).all())
    keys, values = rows(0, 0)
    kind = keys.dtype if squared and (labels or keys.dtype == values.dtype) else np.float64
    frame = _Shared(axes.astype(kind), leading, profile, slope if labels else slope.astype(kind))
    found = _Sums(len(counts), leading)
    for stretch in _stretches(offsets):
        keys, values = (x if squared else x.astype(np.float64) for x in rows(stretch.start, stretch.stop))
        owners = stretch.owners
        # Rows are counted from the means of their lists in their own precision, rounded after the difference is taken.
        y = (keys - means[owners]).astype(keys.dtype, copy=False) @ frame.axes
        u = _counted_from(value_means, owners, values, frame.slope, kind=values.dtype)
        found.add(stretch, frame, y, u)
        if stretch.stop == offsets[stretch.lists[-1] + 1]:
            found.close(stretch.lists, counts)
        if progress is not None:
            progress(stretch.stop, int(offsets[-1]))
    return Lists(
        counts=counts.astype(np.float64),
        means=means,
        axes=axes,
        profile=profile,
        values=value_means,
        slope=slope,
        **vars(found),
    )


def _means(rows: ReadRows, offsets: Counts, labels: int) -> tuple[Floats, Floats | Shares, Floats]:
    """The means of the keys and of the values of each list, and the largest number among either."""
    counts, (keys, values) = np.diff(offsets), rows(0, 0)
    sums, value_sums = np.zeros((len(counts), keys.shape[1])), np.zeros((len(counts), *values.shape[1:]))
    largest, tallies = np.zeros(2), []
    for stretch in _stretches(offsets):
        keys, values = rows(stretch.start, stretch.stop)
        sums[stretch.lists] += np.add.reduceat(keys, stretch.firsts, axis=0, dtype=np.float64)
        if labels:
            tallies.append(Shares.of(stretch.owners, values, np.ones(len(values)), lists=len(counts), labels=labels))
        else:
            value_sums[stretch.lists] += np.add.reduceat(values, stretch.firsts, axis=0, dtype=np.float64)
        largest = np.maximum(largest, [max(x.max(initial=0.0), -x.min(initial=0.0)) for x in (keys, values)])
    many = np.maximum(counts, 1)[:, None]
    if not labels:
        return sums / many, value_sums / many, largest
    return sums / many, Shares.joined(tallies, lists=len(counts), labels=labels).with_slope_of_frequent(), largest


@dataclass(frozen=True, slots=True, eq=False)
class _Vectors:
    """Values that are vectors, relative to means; or changes of means."""

    rows: Reals  # (n, p)

    @property
    def squares(self) -> Floats:
        """The squared length of each vector."""
        return squared_lengths(self.rows)

    def left(self, slope: Reals, axes: slice, x: Reals) -> Floats:
        """‖u − Ax‖² for what lies along some axes, (n, r) of (n, d)."""
        return squared_lengths(self.rows - x @ slope[:, axes].T)

    def gaps(self, rows: slice, y: Reals, spread: Reals, slope: Reals, profile: Reals) -> tuple[float, float]:
        """‖C − AΣ‖, times their number, of some rows of one list: along the leading axes and along the others.

        `spread` is Σ along the leading axes, times the number.
        """
        lead, pulled = len(spread), self.rows[rows].T @ y
        outside = (y[:, lead:].astype(np.float64) ** 2).sum()
        inner = np.linalg.norm(pulled[:, :lead] - slope[:, :lead] @ spread.astype(np.float64))
        return float(inner), float(np.linalg.norm(pulled[:, lead:] - slope[:, lead:] * (outside * profile)))


def _counted_from(
    means: Reals | Shares, owners: Counts, values: Reals, slope: Reals, *, kind: npt.DTypeLike = np.float64
) -> _Vectors | Labelled:
    """Values of rows counted from the means of their lists, in a precision: rounded after the difference is taken."""
    if isinstance(means, Shares):
        return means.of_rows(owners, values.astype(np.int64, copy=False), slope)
    return _Vectors((values - means[owners]).astype(kind, copy=False))


def with_rows(lists: Lists, owners: Counts, keys: Reals, values: Reals, *, sign: float = 1.0) -> Lists:
    """The statistics once these rows are in the lists `owners`, none of which is empty, or with `sign` -1 have left.

    Sums are added, or taken back, and radii only grow.
    """
    changed = Lists(*(getattr(lists, field.name).copy() for field in fields(lists)))
    frame = _Shared(lists.axes, lists.leading, lists.profile, lists.slope)
    order = np.argsort(owners, kind="stable")
    for first in range(0, len(order), BLOCK):
        rows = order[first : first + BLOCK]
        numbers, starts = np.unique(owners[rows], return_index=True)
        y = (keys[rows] - changed.means[owners[rows]]) @ frame.axes
        u = _counted_from(changed.values, owners[rows], values[rows], lists.slope)
        changed = _Groups(numbers, starts, sign).moved(changed, frame, y, u)
    return changed


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Rows that come to some lists, or leave them: consecutive rows, a group for each list."""

    numbers: Counts  # (g,), the lists
    starts: Counts  # (g,), where the rows of each begin
    sign: float  # 1.0 when they come, -1.0 when they leave

    def sums(self, x: Reals) -> Floats:
        """Sums over the rows of each group."""
        return np.add.reduceat(x, self.starts, axis=0, dtype=np.float64)

    def most(self, x: Reals) -> Floats:
        """The largest of each group."""
        return np.maximum.reduceat(x, self.starts).astype(np.float64)

    def moved(self, lists: Lists, frame: "_Shared", y: Reals, u: _Vectors | Labelled) -> Lists:
        """The statistics brought up to date; keys along the axes and values, both counted from the means there were."""
        sizes = self.sums(np.ones(len(y)))
        before = lists.counts[self.numbers]
        after = before + self.sign * sizes
        lists.counts[self.numbers] = after
        after = np.where(after > 0, after, np.inf)  # the statistics of a list without rows are not used
        shift = self.sign * self.sums(y) / after[:, None]
        values, value_shift = self._moved_values(lists, u, after)
        inner, outer = y[:, : frame.leading], y[:, frame.leading :]
        s_in, s_out = shift[:, : frame.leading], shift[:, frame.leading :]

        def mean(old: Reals, sums: Reals) -> Floats:
            """A mean over all rows of a list, from the old mean and the sums over these rows."""
            turned = (before * old.T + self.sign * sums.T) / after
            return turned.T

        gaps = frame.gaps(self, (before[:, None] * lists.slope_gaps[self.numbers]), y, u, shift, value_shift, after)
        squares, sizes_of_values = squared_lengths(outer), u.squares
        at, upper = self.numbers, np.triu_indices(frame.leading)
        spreads = np.stack([(some.T @ some)[upper] for some in np.split(inner, self.starts[1:])])
        lists.spreads[at] = mean(lists.spreads[at], spreads) - s_in[:, upper[0]] * s_in[:, upper[1]]
        lists.outside[at] = np.maximum(mean(lists.outside[at], self.sums(squares)) - squared_lengths(s_out), 0.0)
        lists.scatter[at] = np.maximum(mean(lists.scatter[at], self.sums(sizes_of_values)) - value_shift.squares, 0.0)
        come = max(self.sign, 0.0)
        # What leaves is not taken out of these: they are no more than allowed for.
        lists.widest[at] = (before * lists.widest[at] + come * (1.0 + ROUNDED) * self.sums(squares)) / after
        noise = (before * lists.noise[at] + come * self.sums(u.left(frame.slope, slice(None), y))) / after
        lists.noise[at] = np.minimum(lists.scatter[at], noise)
        lists.slope_gaps[at] = gaps
        lengths = np.stack([self.most(squared_lengths(inner)), self.most(squares)], axis=1) ** 0.5 * (1.0 + ROUNDED)
        farthest = self.most(sizes_of_values) ** 0.5 * (1.0 + ROUNDED)
        moved = np.stack([squared_lengths(s_in), squared_lengths(s_out)], 1) ** 0.5
        lists.radii[at] = np.maximum(lists.radii[at], come * lengths) + moved
        lists.value_radii[at] = np.maximum(lists.value_radii[at], come * farthest) + value_shift.squares**0.5
        lists.means[at] += shift @ frame.axes.T
        return replace(lists, values=values)

    def _moved_values(
        self, lists: Lists, u: _Vectors | Labelled, after: Floats
    ) -> tuple[Reals | Shares, _Vectors | Turned]:
        """The means of the values of all lists, and how far those of these have moved."""
        if isinstance(u, _Vectors):
            shift = self.sign * self.sums(u.rows) / after[:, None]
            lists.vectors[self.numbers] += shift
            return lists.values, _Vectors(shift)
        assert isinstance(lists.values, Shares)
        sizes = np.diff(np.append(self.starts, len(u.codes)))
        moved = lists.values.with_more(np.repeat(self.numbers, sizes), u.codes, self.sign)
        return moved, lists.values.moved_to(moved, self.numbers, lists.slope)


def squared_lengths(x: Reals) -> Floats:
    """The squared length of each row."""
    found: Floats = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """What all lists share."""

    axes: Reals
    leading: int
    profile: Reals
    slope: Reals

    def gaps(
        self,
        groups: _Groups,
        gaps: Floats,
        y: Reals,
        u: _Vectors | Labelled,
        shift: Floats,
        value_shift: _Vectors | Turned,
        after: Floats,
    ) -> Floats:
        """An upper bound of ‖C − AΣ‖ for the present rows, along both kinds of axes; `gaps` is n times the old one."""
        inner, outer = slice(None, self.leading), slice(self.leading, None)
        length, astray = u.squares**0.5, u.left(self.slope, inner, y[:, inner]) ** 0.5
        y_in, y_out = squared_lengths(y[:, inner]) ** 0.5, squared_lengths(y[:, outer]) ** 0.5
        steep = float(np.linalg.norm(self.slope[:, self.leading :] * self.profile))
        shifted = value_shift.left(self.slope, inner, shift[:, inner]) ** 0.5
        s_in, s_out = squared_lengths(shift[:, inner]) ** 0.5, squared_lengths(shift[:, outer]) ** 0.5
        within = (gaps[:, 0] + groups.sums(astray * y_in)) / after + shifted * s_in
        beyond = (gaps[:, 1] + groups.sums(length * y_out + steep * y_out * y_out)) / after
        return np.stack([within, beyond + value_shift.squares**0.5 * s_out + steep * s_out * s_out], axis=1)


class _Sums:
    """What the second pass adds up, list by list: fields of `Lists`.

    Rows come in the precision that they have, once they are counted from the means; bounds allow for it.
    """

    def __init__(self, lists: int, leading: int) -> None:
        self.spreads = np.zeros((lists, leading * (leading + 1) // 2))
        self.outside, self.widest, self.scatter, self.noise, self.value_radii = (np.zeros(lists) for _ in range(5))
        self.radii, self.slope_gaps = np.zeros((lists, 2)), np.zeros((lists, 2))

    def add(self, rows: "_Stretch", frame: _Shared, y: Reals, u: _Vectors | Labelled) -> None:
        """Some rows: their keys along the axes and their values, both counted from the means."""
        inner, outer = y[:, : frame.leading], y[:, frame.leading :]
        groups, at = _Groups(rows.lists, rows.firsts, 1.0), rows.lists
        squares, sizes, left = squared_lengths(outer), u.squares, u.left(frame.slope, slice(None), y)
        lengths = np.stack([groups.most(squared_lengths(inner)), groups.most(squares)], axis=1) ** 0.5 * (1.0 + ROUNDED)
        self.radii[at] = np.maximum(self.radii[at], lengths)
        self.value_radii[at] = np.maximum(self.value_radii[at], groups.most(sizes) ** 0.5 * (1.0 + ROUNDED))
        for sums, x in ((self.outside, squares), (self.scatter, sizes), (self.noise, left)):
            sums[at] += groups.sums(x)
        upper = np.triu_indices(frame.leading)
        for number, start, stop in rows.bounds:
            some = inner[start:stop]
            spread = some.T @ some
            self.spreads[number] += spread[upper]
            # Norms of a sum over all parts of a list are at most the sum of the norms of the parts.
            self.slope_gaps[number] += u.gaps(slice(start, stop), y[start:stop], spread, frame.slope, frame.profile)
            self.widest[number] += _widest(outer[start:stop])

    def close(self, lists: Counts, counts: Counts) -> None:
        """The last rows of these lists were added."""
        for sums in (self.spreads, self.outside, self.scatter, self.noise, self.widest, self.slope_gaps):
            sums[lists] = (sums[lists].T / counts[lists]).T


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Consecutive rows: those of some whole lists, or some of a list that is larger than a block."""

    lists: Counts  # (g,), those that have rows
    firsts: Counts  # (g,), where the rows of each begin, counted from `start`
    start: int
    stop: int

    @property
    def bounds(self) -> "Iterator[tuple[int, int, int]]":
        """Each list, and its first row and the one after its last, counted from `start`."""
        firsts = self.firsts.tolist()
        return zip(self.lists.tolist(), firsts, [*firsts[1:], self.stop - self.start], strict=True)

    @property
    def owners(self) -> Counts:
        """The list of each row."""
        return np.repeat(self.lists, np.diff(np.append(self.firsts, self.stop - self.start)))


def _stretches(offsets: Counts) -> Iterator[_Stretch]:
    """All rows, in stretches of at most BLOCK rows."""
    filled = np.flatnonzero(np.diff(offsets))
    starts, stops = offsets[filled], offsets[filled + 1]
    first = 0
    while first < len(filled):
        last = max(first + 1, int(np.searchsorted(stops, starts[first] + BLOCK, side="right")))
        for start in range(int(starts[first]), int(stops[last - 1]), BLOCK):
            stop = min(start + BLOCK, int(stops[last - 1]))
            yield _Stretch(filled[first:last], np.maximum(starts[first:last] - start, 0), start, stop)
        first = last


def _shared(
    rows: ReadRows, offsets: Counts, means: Floats, value_means: Floats | Shares
) -> tuple[Floats, Floats, Floats]:
    """The axes, the variance along each, and the slope of the values along them, by a sample of whole lists."""
    width = means.shape[1]
    height = len(value_means.sloped) if isinstance(value_means, Shares) else value_means.shape[1]
    covariance, pulled, seen = np.zeros((width, width)), np.zeros((height, width)), 0
    filled = np.flatnonzero(np.diff(offsets))
    for number in np.random.default_rng(0).permutation(filled).tolist():
        stop = int(offsets[number + 1])  # where rows lie in random order: the first are the farthest (shuffling.py)
        keys, values = rows(max(int(offsets[number]), stop - BLOCK), stop)
        y = keys - means[number]
        covariance += y.T @ y
        if isinstance(value_means, Shares):
            value_means.add_by_slope(pulled, values, y)
        else:
            pulled += (values - value_means[number]).T @ y
        seen += len(y)
        if seen >= SAMPLE:
            break
    variances, axes = np.linalg.eigh(covariance / max(1, seen))
    variances, axes = np.maximum(variances[::-1], 0.0), np.ascontiguousarray(axes[:, ::-1])
    # Where nothing varies there is no slope; a little is added everywhere, so that noise does not make one.
    floor = 1e-6 * variances.mean() + np.finfo(np.float64).tiny
    slope = (pulled @ axes / max(1, seen)) / (variances + floor)
    return axes, variances, slope


def _widest(x: Reals) -> float:
    """An upper bound of the largest eigenvalue of xᵀx: the norm of all eigenvalues, by the smaller Gram matrix."""
    gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
    return (1.0 + ROUNDED) * float(np.linalg.norm(gram))
