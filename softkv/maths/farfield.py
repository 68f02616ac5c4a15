"""What do rows contribute that nobody reads? The sums of a list from its statistics, and how wrong they can be.

A list is some rows with similar keys. Write β for 1 / temperature, m and v̄ for the means of its keys and values, and
x = βq·(k − m) for the logit of a row, counted from that of the mean. The list adds up to

    mass  = e^{βq·m} Σ e^x          total = e^{βq·m} Σ e^x v

and if x were normal, Σ e^x were n e^{σ²/2} with σ² = β²qᵀΣq, and the tilted mean of the values v̄ + βCq, where Σ and C
are the covariances of the keys, and of values and keys. That is the estimate.

The bound needs no assumption. x has mean 0, lies within ±R and has a variance that is known to lie between two numbers.
Among all such distributions Σ e^x is largest, and smallest, for one of two points (Bennett), which gives
S_lo ≤ Σ e^x ≤ S_hi. And since e^x − 1 − x is never negative and Σ x = 0, Σ e^x (v − v̄) differs from nβCq by at most
ρ(S_hi − n), with ρ the radius of the values. Summed over the lists, and divided by the least that all the mass can be,
this bounds the error of the answer.

Covariances live in a reduced space: the leading directions of what the lists leave unexplained, shared by all of them.
Outside of it, a list has one variance for all directions (the estimate) and the largest in any (the bound). C is
estimated as AΣ with one A for all lists, which on real texts is as good as a C for each and makes the statistics of a
list as small as three rows; how far each C is from that is remembered for the bound.

Does not choose which lists to read (index/) and does not read any.

Shapes: b queries, l lists, d key width, r reduced width, p value width. Keys are those that dot products are taken
with: scaled and extended by a bias where a compatibility needs it.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softkv.maths.blending import Blend

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The statistics of all lists."""

    counts: Floats  # (l,), rows that are live
    means: Array  # (l, d)
    basis: Array  # (d, r), orthonormal columns
    spreads: Array  # (l, r, r), the covariance of keys within the basis
    outside: Array  # (l,), the variance outside of it, summed over all directions
    widest: Array  # (l,), at least the variance in any one direction outside of it
    radii: Array  # (l, 2), how far keys are from the mean, within the basis and outside of it
    values: Array  # (l, p), the means of the values
    slope: Array  # (p, r), A: how values change with keys within a list
    value_radii: Array  # (l,), how far values are from their mean
    slope_gaps: Array  # (l, 2), ‖C − AΣ‖ within the basis and ‖C‖ outside of it
    scatter: Array  # (l, p), the variance of each column of the values


@dataclass(frozen=True, slots=True, eq=False)
class Tilt:
    """What some queries ask of all lists."""

    reduced: Floats  # (b, r), the queries within the basis, times β
    beyond: Floats  # (b,), the length of the rest
    peaks: Floats  # (b, l), βq·m
    pulls: Floats  # (b, l, r), βΣq
    within: Floats  # (b, l), the variance of x that comes from within the basis
    variances: Floats  # (b, l), σ², estimated

    def log_masses(self, lists: Lists) -> Floats:
        """The logarithms of the masses, estimated, (b, l); -inf for lists without rows."""
        return _log(lists.counts) + self.peaks + self.variances / 2


def measured(keys: Array, values: Array, offsets: npt.NDArray[np.int64], *, reduced: int = 48) -> Lists:
    """The statistics of lists of consecutive rows: list i is rows offsets[i] .. offsets[i + 1] - 1."""
    counts = np.diff(offsets)
    owners = np.repeat(np.arange(len(counts)), counts)
    means, centred = _centred(keys, owners, counts)
    value_means, value_centred = _centred(values, owners, counts)
    basis = _leading(centred, reduced)
    inner = centred @ basis
    outer = centred - inner @ basis.T
    spreads = np.stack([_covariance(inner[rows], inner[rows]) for rows in _slices(offsets)])
    pulled = np.stack([_covariance(value_centred[rows], inner[rows]) for rows in _slices(offsets)])
    slope = _slope(value_centred, inner)
    square = (outer * outer).sum(1)
    return Lists(
        counts=counts.astype(np.float64),
        means=means,
        basis=basis,
        spreads=spreads,
        outside=np.bincount(owners, square, len(counts)) / np.maximum(counts, 1),
        widest=np.array([_widest(outer[rows]) for rows in _slices(offsets)]),
        radii=np.stack([_largest(np.linalg.norm(x, axis=1), owners, len(counts)) for x in (inner, outer)], axis=1),
        values=value_means,
        slope=slope,
        value_radii=_largest(np.linalg.norm(value_centred, axis=1), owners, len(counts)),
        slope_gaps=np.stack(
            [
                np.linalg.norm(pulled - np.einsum("pr,lrs->lps", slope, spreads), axis=(1, 2)),
                [np.linalg.norm(_covariance(value_centred[rows], outer[rows])) for rows in _slices(offsets)],
            ],
            axis=1,
        ),
        scatter=np.stack([_covariance_diagonal(value_centred[rows]) for rows in _slices(offsets)]),
    )


def tilted(lists: Lists, queries: Array) -> Tilt:
    """What (b, d) queries, times β, ask of all lists."""
    queries = queries.astype(np.float64)
    reduced = queries @ lists.basis
    beyond = np.sqrt(np.maximum((queries * queries).sum(1) - (reduced * reduced).sum(1), 0.0))
    pulls = np.einsum("lrs,bs->blr", lists.spreads, reduced, optimize=True)
    within = np.maximum(np.einsum("blr,br->bl", pulls, reduced), 0.0)
    directions = max(1, lists.means.shape[1] - lists.basis.shape[1])
    variances = within + (beyond * beyond)[:, None] * (lists.outside / directions)[None, :]
    return Tilt(reduced, beyond, queries @ lists.means.T, pulls, within, variances)


def estimated(lists: Lists, tilt: Tilt, unread: npt.NDArray[np.bool_]) -> Blend:
    """The blend of the lists that are not read, (b, l), as if their logits were normal."""
    logs = np.where(unread, tilt.log_masses(lists), -np.inf)
    peak = logs.max(1, initial=-np.inf)
    masses = np.exp(logs - np.where(np.isfinite(peak), peak, 0.0)[:, None])
    values = lists.values[None] + tilt.pulls @ lists.slope.T  # (b, l, p)
    mass, total = masses.sum(1), np.einsum("bl,blp->bp", masses, values)
    mean = total / np.where(mass > 0, mass, 1.0)[:, None]
    apart = (values - mean[:, None]) ** 2 + lists.scatter[None]
    excess = (masses * np.where(unread, tilt.peaks + tilt.variances - peak[:, None], 0.0)).sum(1)
    return Blend(peak, mass, total, np.where(mass > 0, excess, 0.0), np.einsum("bl,blp->bp", masses, apart))


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """The blend of the lists that are not read, and what is needed to say how wrong an answer made with it can be."""

    blend: Blend
    least: Floats  # (b, l), the least that Σ e^x can be, relative to the peak of the blend
    most: Floats  # (b, l), the most
    guessed: Floats  # (b, l), what the blend takes it for
    strayed: Floats  # (b, l), how far the totals can be beyond that

    def error(self, lists: Lists, near: Blend) -> Floats:
        """How far the value of the merged blends can be from the true one, (b,)."""
        peak = np.maximum(self.blend.peak, near.peak)
        far, close = np.exp(self.blend.peak - peak), np.exp(near.peak - peak)
        mass = far * self.blend.mass + close * near.mass
        value = (far[:, None] * self.blend.total + close[:, None] * near.total) / mass[:, None]
        apart = np.linalg.norm(lists.values[None] - value[:, None], axis=2)
        # A bound beyond float64 is infinite; so is 0 x inf, of a list that nothing is known about.
        with np.errstate(invalid="ignore", over="ignore"):
            wrong = np.maximum(self.most - self.guessed, self.guessed - self.least) * apart + self.strayed
            most = far * np.where(np.isfinite(self.most), wrong, np.inf).sum(1)
            most, least = np.where(np.isnan(most), np.inf, most), far * self.least.sum(1) + close * near.mass
            error: Floats = np.divide(most, least, out=np.where(most > 0, np.inf, 0.0), where=least > 0)
        return error


def bounded(lists: Lists, tilt: Tilt, unread: npt.NDArray[np.bool_]) -> Bounded:
    """The same, with bounds that hold whatever the lists look like inside."""
    reach = np.linalg.norm(tilt.reduced, axis=1)[:, None] * lists.radii[:, 0] + tilt.beyond[:, None] * lists.radii[:, 1]
    deviation, doubt = np.sqrt(tilt.within), tilt.beyond[:, None] * np.sqrt(lists.widest)
    low, high = np.maximum(deviation - doubt, 0.0) ** 2, np.minimum(deviation + doubt, reach) ** 2
    low = np.minimum(low, high)
    base = np.where(unread, _log(lists.counts) + tilt.peaks, -np.inf)
    least, most = base + _two_points(low, reach, -1.0), base + _two_points(high, reach, 1.0)
    guessed = np.clip(base + tilt.variances / 2, least, most)
    peak = guessed.max(1, initial=-np.inf)
    shift = np.where(np.isfinite(peak), peak, 0.0)[:, None]
    gap = np.linalg.norm(tilt.reduced, axis=1)[:, None] * lists.slope_gaps[:, 0]
    gap = gap + tilt.beyond[:, None] * lists.slope_gaps[:, 1]
    # What is beyond float64 is infinite: a bound that says nothing is still true.
    with np.errstate(over="ignore", invalid="ignore"):
        base, least, most, guessed = (np.exp(x - shift) for x in (base, least, most, guessed))
        strayed = base * gap + lists.value_radii * np.maximum(most - base, 0.0)
    total = np.einsum("bl,lp->bp", guessed, lists.values) + np.einsum("bl,blr->br", base, tilt.pulls) @ lists.slope.T
    blend = Blend(peak, guessed.sum(1), total, np.zeros_like(peak))
    return Bounded(blend, least, most, guessed, strayed)


def _two_points(variance: Floats, reach: Floats, side: float) -> Floats:
    """Log E e^x for x = side·R with probability σ²/(R² + σ²) and x = −side·σ²/R otherwise; 0 where R is 0."""
    there = reach > 0
    reach = np.where(there, reach, 1.0)
    share = np.where(there, variance / (reach * reach + variance), 0.0)
    ends = _log(share) + side * reach, np.log1p(-share) - side * variance / reach
    return np.where(there, np.logaddexp(*ends), 0.0)


def _log(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        found: Floats = np.log(x)
    return found


def _slices(offsets: npt.NDArray[np.int64]) -> list[slice]:
    return [slice(start, stop) for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def _centred(x: Array, owners: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The mean of each list, and all rows counted from it."""
    x = x.astype(np.float64)
    sums = np.zeros((len(counts), x.shape[1]))
    np.add.at(sums, owners, x)
    means = sums / np.maximum(counts, 1)[:, None]
    return means, x - means[owners]


def _leading(centred: Floats, reduced: int) -> Floats:
    """The directions in which rows differ most from the means of their lists, (d, r)."""
    directions = np.linalg.eigh(centred.T @ centred)[1]
    return np.ascontiguousarray(directions[:, ::-1][:, :reduced], np.float64)


def _slope(values: Floats, inner: Floats) -> Floats:
    """A of the least squares values ≈ A·keys, within lists, (p, r)."""
    return np.ascontiguousarray(np.linalg.lstsq(inner, values, rcond=1e-9)[0].T, np.float64)


def _covariance(left: Floats, right: Floats) -> Floats:
    return left.T @ right / max(1, len(left))


def _covariance_diagonal(x: Floats) -> Floats:
    found: Floats = (x * x).sum(0) / max(1, len(x))
    return found


def _widest(x: Floats) -> float:
    """At least the largest eigenvalue of the covariance: that of the smaller Gram matrix, by its fourth power."""
    gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
    square = gram @ gram
    fourth = float((square * square).sum())
    return math.sqrt(math.sqrt(fourth)) / max(1, len(x))


def _largest(x: Floats, owners: npt.NDArray[np.int64], lists: int) -> Floats:
    found = np.zeros(lists)
    np.maximum.at(found, owners, x)
    return found
