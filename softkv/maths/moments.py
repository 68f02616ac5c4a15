"""The statistics of lists: measured once over all rows, and corrected when rows are deleted.

Rows are handed in by blocks, so memory does not grow with their number. Two passes: the first finds the means, and a
sample of the rows the axes that all lists share; the second everything else.

Shapes: n rows of a block, l lists, d key width, r leading axes, p value width.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from softkv.maths.farfield import ROUNDED, Array, Floats, Lists, packed

# Rows start .. stop - 1: their keys (n, d) and their values as vectors (n, p).
Rows = Callable[[int, int], tuple[Array, Array]]
Told = Callable[[int, int], object]
Counts = npt.NDArray[np.int64]

BLOCK = 1 << 13  # rows looked at together
SAMPLE = 1 << 16  # rows by which axes and slope are found
LEADING = 32  # axes with a covariance of their own; with more, answers become no better


def measured(rows: Rows, offsets: Counts, *, leading: int = LEADING, progress: Told | None = None) -> Lists:
    """The statistics of lists of consecutive rows: list i is rows offsets[i] .. offsets[i + 1] - 1."""
    counts = np.diff(offsets)
    keys, values = rows(0, 0)
    means, value_means = np.zeros((len(counts), keys.shape[1])), np.zeros((len(counts), values.shape[1]))
    for number, start, stop in _parts(offsets):
        keys, values = rows(start, stop)
        means[number] += keys.sum(0, dtype=np.float64) / counts[number]
        value_means[number] += values.sum(0, dtype=np.float64) / counts[number]
    axes, variances, slope = _shared(rows, offsets, means, value_means)
    leading = min(leading, len(variances))
    rest = variances[leading:]
    profile = rest / rest.sum() if rest.sum() > 0 else np.full(len(rest), 1.0 / max(1, len(rest)))
    kind = keys.dtype if keys.dtype == values.dtype else np.float64
    frame = _Frame(axes.astype(kind), leading, profile, slope.astype(kind))
    found = _Sums(len(counts), leading)
    told = 0
    for number, start, stop in _parts(offsets):
        keys, values = rows(start, stop)
        found.add(number, frame, _from(keys, means[number]) @ frame.axes, _from(values, value_means[number]))
        if stop == offsets[number + 1]:
            found.close(number, frame, int(counts[number]))
        if progress is not None and (stop - told >= BLOCK or stop == offsets[-1]):
            progress(stop, int(offsets[-1]))
            told = stop
    return Lists(
        counts=counts.astype(np.float64),
        means=means,
        axes=axes,
        spreads=found.spreads,
        outside=found.outside,
        profile=profile,
        widest=found.widest,
        radii=found.radii,
        values=value_means,
        slope=slope,
        value_radii=found.value_radii,
        slope_gaps=found.slope_gaps,
        scatter=found.scatter,
        noise=found.noise,
    )


def without(lists: Lists, owners: Counts, keys: Array, values: Array) -> Lists:
    """The statistics once these rows, of the lists `owners`, are gone: sums are taken back, and radii only grow."""
    left = Lists(*(getattr(lists, field.name).copy() for field in fields(lists)))
    frame = _Frame(lists.axes, lists.leading, lists.profile, lists.slope)
    order = np.argsort(owners, kind="stable")
    numbers, starts = np.unique(owners[order], return_index=True)
    stops = [*starts[1:].tolist(), len(order)][: len(numbers)]
    for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops, strict=True):
        gone = order[start:stop]
        _take_back(left, number, frame, keys[gone] - lists.means[number], values[gone] - lists.values[number])
    return left


def _take_back(lists: Lists, number: int, frame: "_Frame", keys: Array, values: Array) -> None:
    """Take rows of one list, counted from its means, out of its statistics."""
    count, left = float(lists.counts[number]), float(lists.counts[number]) - len(keys)
    lists.counts[number] = left
    if left <= 0:
        return
    turned = keys @ frame.axes
    shift, value_shift = -turned.sum(0) / left, -values.sum(0) / left
    inner, outer = turned[:, : frame.leading], turned[:, frame.leading :]
    s_in, s_out = shift[: frame.leading], shift[frame.leading :]
    spread = (count * lists.spreads[number] - packed(inner.T @ inner)) / left - packed(np.outer(s_in, s_in))
    outside = (count * lists.outside[number] - (outer**2).sum()) / left - s_out @ s_out
    scatter = (count * lists.scatter[number] - (values**2).sum()) / left - value_shift @ value_shift
    lists.slope_gaps[number] = frame.gaps_without(
        lists.slope_gaps[number] * count, turned, values, shift, value_shift, left
    )
    lists.means[number] += frame.axes @ shift
    lists.values[number] += value_shift
    lists.spreads[number], lists.outside[number] = spread, max(0.0, outside)
    lists.widest[number] *= count / left  # the covariance about the old mean is no smaller than that about the new
    lists.radii[number] += np.linalg.norm(s_in), np.linalg.norm(s_out)
    lists.value_radii[number] += np.linalg.norm(value_shift)
    lists.scatter[number] = max(0.0, scatter)
    lists.noise[number] = min(lists.scatter[number], lists.noise[number] * count / left)


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """What all lists share."""

    axes: Array
    leading: int
    profile: Array
    slope: Array

    @property
    def outer_slope(self) -> Array:
        """A, times the profile, along the other axes, (p, d − r)."""
        found: Array = self.slope[:, self.leading :] * self.profile
        return found

    def gaps_without(
        self, gaps: Array, y: Array, u: Array, shift: Array, value_shift: Array, left: float
    ) -> tuple[float, float]:
        """‖C − AΣ‖ once some rows are gone, from n times what it was, along the leading axes and the others."""
        inner, outer = slice(None, self.leading), slice(self.leading, None)
        length = np.linalg.norm(u, axis=1)
        astray = np.linalg.norm(u - y[:, inner] @ self.slope[:, inner].T, axis=1)
        y_in, y_out = np.linalg.norm(y[:, inner], axis=1), np.linalg.norm(y[:, outer], axis=1)
        steep = float(np.linalg.norm(self.outer_slope))
        shifted = float(np.linalg.norm(value_shift - self.slope[:, inner] @ shift[inner]))
        s_in, s_out = float(np.linalg.norm(shift[inner])), float(np.linalg.norm(shift[outer]))
        within = (gaps[0] + float(astray @ y_in)) / left + shifted * s_in
        beyond = (gaps[1] + float(length @ y_out) + steep * float(y_out @ y_out)) / left
        return within, beyond + float(np.linalg.norm(value_shift)) * s_out + steep * s_out * s_out


class _Sums:
    """What the second pass adds up, list by list.

    Rows come in the precision that they have, once they are counted from the means; bounds allow for it.
    """

    def __init__(self, lists: int, leading: int) -> None:
        self.spreads = np.zeros((lists, leading * (leading + 1) // 2))
        self.outside, self.widest, self.scatter, self.noise, self.value_radii = (np.zeros(lists) for _ in range(5))
        self.radii, self.slope_gaps = np.zeros((lists, 2)), np.zeros((lists, 2))
        self._pulled: Floats | None = None

    def add(self, number: int, frame: _Frame, y: Array, u: Array) -> None:
        """Some rows of a list: their keys along the axes and their values, both counted from the means."""
        inner, outer = y[:, : frame.leading], y[:, frame.leading :]
        squares, sizes = np.einsum("ij,ij->i", outer, outer), np.einsum("ij,ij->i", u, u)
        lengths = np.sqrt([np.einsum("ij,ij->i", inner, inner).max(), squares.max()]) * (1.0 + ROUNDED)
        self.radii[number] = np.maximum(self.radii[number], lengths)
        self.value_radii[number] = max(self.value_radii[number], math.sqrt(sizes.max()) * (1.0 + ROUNDED))
        self.spreads[number] += packed(inner.T @ inner)
        self.outside[number] += squares.sum()
        self.scatter[number] += sizes.sum()
        left = u - y @ frame.slope.T
        self.noise[number] += np.einsum("ij,ij->", left, left)
        pulled = u.T @ y
        self._pulled = pulled if self._pulled is None else self._pulled + pulled
        # The widest direction of all parts of a list is at most the sum of theirs.
        self.widest[number] += _widest(outer)

    def close(self, number: int, frame: _Frame, count: int) -> None:
        """The last rows of a list were added."""
        assert self._pulled is not None
        for sums in (self.spreads, self.outside, self.scatter, self.noise, self.widest):
            sums[number] /= count
        lead, pulled = frame.leading, self._pulled / count
        spread = np.zeros((lead, lead))
        spread[np.triu_indices(lead)] = self.spreads[number]
        spread = spread + np.triu(spread, 1).T
        self.slope_gaps[number] = (
            np.linalg.norm(pulled[:, :lead] - frame.slope[:, :lead] @ spread),
            np.linalg.norm(pulled[:, lead:] - self.outside[number] * frame.outer_slope),
        )
        self._pulled = None


def _from(x: Array, mean: Floats) -> Array:
    """Rows counted from a mean, in their own precision: the difference is taken before it is rounded."""
    apart: Array = (x - mean).astype(x.dtype, copy=False)
    return apart


def _parts(offsets: Counts) -> Iterator[tuple[int, int, int]]:
    """The lists that have rows, in parts of at most BLOCK rows."""
    for number, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        for first in range(start, stop, BLOCK):
            yield number, first, min(first + BLOCK, stop)


def _shared(rows: Rows, offsets: Counts, means: Floats, value_means: Floats) -> tuple[Floats, Floats, Floats]:
    """The axes, the variance along each, and the slope of the values along them, by a sample of whole lists."""
    width, height = means.shape[1], value_means.shape[1]
    covariance, pulled, seen = np.zeros((width, width)), np.zeros((height, width)), 0
    filled = np.flatnonzero(np.diff(offsets))
    for number in np.random.default_rng(0).permutation(filled).tolist():
        start = int(offsets[number])
        keys, values = rows(start, min(int(offsets[number + 1]), start + BLOCK))
        y, u = keys - means[number], values - value_means[number]
        covariance += y.T @ y
        pulled += u.T @ y
        seen += len(y)
        if seen >= SAMPLE:
            break
    variances, axes = np.linalg.eigh(covariance / max(1, seen))
    variances, axes = np.maximum(variances[::-1], 0.0), np.ascontiguousarray(axes[:, ::-1])
    # Where nothing varies there is no slope; a little is added everywhere, so that noise does not make one.
    floor = 1e-6 * variances.mean() + np.finfo(np.float64).tiny
    slope = (pulled @ axes / max(1, seen)) / (variances + floor)
    return axes, variances, slope


def _widest(x: Array) -> float:
    """At least the largest eigenvalue of xᵀx: the length of all of them, by the smaller Gram matrix."""
    gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
    return (1.0 + ROUNDED) * float(np.linalg.norm(gram))
