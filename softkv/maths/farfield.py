"""What do unread rows contribute? The sums of a list from its statistics, and how wrong they can be.

A list is some rows with similar keys. Write β for 1 / temperature, m and v̄ for the means of its keys and values, and
x = βq·(k − m) for the logit of a row, counted from that of the mean. The list adds up to

    mass  = e^{βq·m} Σ e^x          total = e^{βq·m} Σ e^x v

and if x were normal, Σ e^x were n e^{σ²/2} with σ² = β²qᵀΣq, and the tilted mean of the values v̄ + βCq, where Σ and C
are the covariances of the keys, and of values and keys. That is the estimate, as long as a list has rows enough: the
sum of e^x over n rows is no more than the highest few of them once σ exceeds √(2 ln n), its critical value, since rows
so far out that their e^x would count are not among them. From there on it grows like that of the critical σ, frozen.

The bound needs no assumption. x has mean 0, lies within ±R and has a variance that is known to lie between two numbers.
Among all such distributions Σ e^x is largest, and smallest, for one of two points (Bennett), which gives
S_lo ≤ Σ e^x ≤ S_hi. And since e^x − 1 − x is never negative and Σ x = 0, Σ e^x (v − v̄) differs from nβCq by at most
ρ(S_hi − n), with ρ the radius of the values. Summed over the lists, and divided by the least that all the mass can be,
this bounds the error of the answer.

Does not keep statistics (summaries.py) or measure them (moments.py), choose which to read (index/), or read any.

Shapes: b queries, l lists, d key width, r leading axes, p value width. Keys are those that dot products are taken with:
scaled and extended where a compatibility needs it (forms.py).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from softkv.maths.blending import Blend
from softkv.maths.shares import Shares
from softkv.maths.summaries import Lists
from softkv.maths.symmetric import crossed, unpacked
from softkv.ndarrays import Flags, Floats, Reals

HIGHEST = 50.0  # a list is thought to weigh at most e^HIGHEST times as much as the best row, beside which all is wrong
FROZEN = 0.5  # with a smaller thaw, the mass of a list is that of a few rows so far out that none of them may be there
ROUNDED = 1e-5  # bounds take everything in a list to be this much wider, for the rounding of rows in float32


@dataclass(frozen=True, slots=True, eq=False)
class Tilt:
    """How the rows of all lists are weighed by some queries."""

    reduced: Reals  # (b, r), the queries along the leading axes, times β
    beyond: Reals  # (b, d − r), along the others
    peaks: Reals  # (b, l), βq·m
    within: Reals  # (b, l), the variance of x that comes from the leading axes
    variances: Reals  # (b, l), σ², estimated
    thaw: Reals  # (b, l), the critical σ as a share of σ, at most 1: how much of a tilt has rows to act on
    logs: Reals  # (b, l), the logarithms of the masses, estimated; -inf for lists without rows

    @property
    def tells_directions(self) -> bool:
        """Whether it is known how the queries lie to the axes of the lists."""
        return bool(self.reduced.shape[1] + self.beyond.shape[1])

    @classmethod
    def of(cls, counts: Reals, peaks: Reals, variances: Reals) -> "Tilt":
        """The tilt of lists of which only the means and the variances of logits are known, (b, l)."""
        thaw, nothing = _thaw(counts, variances), np.empty((len(peaks), 0))
        logs = logarithm(counts) + peaks + variances * (thaw - thaw * thaw / 2)
        return cls(nothing, nothing, peaks, variances, variances, thaw, logs)


def tilted(lists: Lists, queries: Reals) -> Tilt:
    """How (b, d) queries, times β, weigh the rows of all lists."""
    queries = queries.astype(lists.means.dtype, copy=False)
    turned = queries @ lists.axes
    reduced, beyond = turned[:, : lists.leading], turned[:, lists.leading :]
    peaks = queries @ lists.means.T
    within = np.maximum(crossed(reduced, reduced) @ lists.spreads.T, 0.0)
    variances = within + ((beyond * beyond) @ lists.profile)[:, None] * lists.outside
    thaw = _thaw(lists.counts, variances)
    logs = logarithm(lists.counts) + peaks + variances * (thaw - thaw * thaw / 2)
    return Tilt(reduced, beyond, peaks, within, variances, thaw, logs)


def without(lists: Lists, tilt: Tilt, queries: Reals, owners: npt.NDArray[np.int64], keys: Reals) -> Tilt:
    """The tilt once each query's own row, with these keys (b, d), is removed from its list; -1 is no list.

    Masses and row counts stay as they are. A list without any other row gets the lowest peak of all lists.
    """
    some = np.flatnonzero(owners >= 0)
    own, left = owners[some], lists.counts[owners[some]] - 1.0
    apart = (keys[some] - lists.means[own]).astype(lists.means.dtype)
    turned = apart @ lists.axes
    along = np.einsum("bd,bd->b", tilt.reduced[some], turned[:, : lists.leading])
    outside = np.einsum("bd,bd->b", turned[:, lists.leading :], turned[:, lists.leading :])
    alone, left = left < 1, np.maximum(left, 1.0)
    # Σ' = (n Σ − n/(n − 1) y yᵀ) / (n − 1), and m' = m − y / (n − 1).
    more = lists.counts[own] / left
    within = np.maximum(more * (tilt.within[some, own] - along * along / left), 0.0)
    outside = np.maximum(more * (lists.outside[own] - outside / left), 0.0)
    peaks, variances = tilt.peaks.copy(), tilt.variances.copy()
    peaks[some, own] -= np.einsum("bd,bd->b", queries[some].astype(apart.dtype), apart) / left
    peaks[some[alone], own[alone]] = tilt.peaks[some[alone]].min(1)
    variances[some, own] = within + ((tilt.beyond[some] ** 2) @ lists.profile) * outside
    variances[some[alone], own[alone]] = 0.0
    return replace(tilt, peaks=peaks, variances=variances)


def critical(counts: Reals) -> Reals:
    """√(2 ln n): how many σ above the mean the highest of n rows is."""
    return np.sqrt(2.0 * np.log(np.maximum(counts, 1)))


def _thaw(counts: Reals, variances: Reals) -> Reals:
    most, deviations = np.broadcast_to(critical(counts), variances.shape), np.sqrt(variances)
    return np.divide(most, deviations, out=np.ones_like(variances), where=deviations > most)


def estimated(lists: Lists, tilt: Tilt, unread: Flags, *, squares: bool = False) -> Blend:
    """The blend of the lists that are not read, (b, l), as if their logits were normal; `squares` for their spread."""
    peak, masses = _weighed(tilt, unread)
    mass = masses.sum(1, dtype=np.float64)
    total = _totals(lists, masses, _pulled(lists, tilt, masses * tilt.thaw))
    square = _squared(lists, tilt, masses, total, mass) if squares else None
    return Blend(peak.astype(np.float64), mass, total, _excess(tilt, unread, masses, peak), square)


def log_mass_of_frozen(tilt: Tilt, unread: Flags) -> Floats:
    """The logarithm of what `estimated` takes for the mass of those unread lists that are frozen, (b,)."""
    peak, masses = _weighed(tilt, unread & (tilt.thaw < FROZEN))
    return peak.astype(np.float64) + logarithm(masses.sum(1, dtype=np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """What `estimated` adds up, for disjoint sets of lists at once: relative to a logit, and without their values."""

    masses: Reals  # (b, l)
    shares: Reals  # (b, sets, l), the masses of the lists of each set, and 0
    pulled: Reals  # (b, sets, p), the sum of mass x βCq

    def valued(self, lists: Lists) -> Reals:
        """The sums of mass x the mean of the values, (b, sets, p)."""
        found: Reals = self.shares.reshape(-1, self.shares.shape[-1]) @ lists.values
        return found.reshape(*self.shares.shape[:-1], -1)


def estimated_apart(
    lists: Lists,
    spreads: Reals,
    tilt: Tilt,
    sharpness: Floats,
    sets: npt.NDArray[np.int8],
    count: int,
    *,
    peak: Floats,
) -> Apart:
    """Estimates of `count` sets of lists, of which (b, l) `sets` names the one of each list, for a single query.

    It asks with b `sharpness`es, so its tilts differ in their length alone; `spreads` are those of the lists, unpacked.
    Masses are relative to the highest logit of a row, (b,) `peak`, since the estimate of a list that is far too high
    would make all others nothing beside it; that of no list is more than e^HIGHEST.
    """
    masses = np.exp(np.minimum(tilt.logs - peak[:, None].astype(tilt.logs.dtype), HIGHEST))
    shares = np.zeros((len(masses), count, masses.shape[1]), masses.dtype)
    np.put_along_axis(shares, sets[:, None, :].astype(np.int64), masses[:, None, :], axis=1)
    thawed = shares * (tilt.thaw * sharpness[:, None].astype(masses.dtype))[:, None, :]
    asked = np.empty((masses.shape[1], lists.leading + 1), masses.dtype)  # Σq along the leading axes, and the rest of Σ
    asked[:, :-1] = (spreads.reshape(-1, lists.leading) @ (tilt.reduced[0] / masses.dtype.type(sharpness[0]))).reshape(
        -1, lists.leading
    )
    asked[:, -1] = lists.outside
    slope = np.empty((lists.leading + 1, lists.slope.shape[0]), masses.dtype)
    slope[:-1] = lists.slope[:, : lists.leading].T
    slope[-1] = lists.slope[:, lists.leading :] @ (lists.profile * (tilt.beyond[0] / masses.dtype.type(sharpness[0])))
    pulled = (thawed.reshape(-1, masses.shape[1]) @ asked) @ slope
    return Apart(masses, shares, pulled.reshape(*shares.shape[:2], -1))


def _weighed(tilt: Tilt, unread: Flags) -> tuple[Reals, Reals]:
    """The highest logarithm of a mass, (b,), and all masses relative to it, (b, l)."""
    logs = np.where(unread, tilt.logs, -np.inf)
    peak = logs.max(1, initial=-np.inf)
    return peak, np.exp(logs - np.where(np.isfinite(peak), peak, 0.0)[:, None])


def _excess(tilt: Tilt, unread: Flags, masses: Reals, peak: Reals) -> Floats:
    """The sum of mass x (the mean of the tilted logits − peak), (b,)."""
    above = np.where(unread & (masses > 0), tilt.peaks + tilt.variances * tilt.thaw - peak[:, None], 0.0)
    excess: Floats = np.einsum("bl,bl->b", masses, above, dtype=np.float64)
    return excess


def _totals(lists: Lists, masses: Reals, pulled: Reals) -> Floats:
    """The sum over lists of mass x the mean of the values, and what the slope adds, (b, p)."""
    if isinstance(lists.values, Shares):
        return lists.values.with_pull(masses @ lists.values, pulled)
    return (masses @ lists.values + pulled).astype(np.float64)


def _pulled(lists: Lists, tilt: Tilt, masses: Reals) -> Reals:
    """The sum over lists of mass x βCq, (b, p)."""
    leading = np.einsum("brs,bs->br", unpacked(masses @ lists.spreads, lists.leading), tilt.reduced)
    others = (masses @ lists.outside)[:, None] * (tilt.beyond * lists.profile)
    found: Reals = leading @ lists.slope[:, : lists.leading].T + others @ lists.slope[:, lists.leading :].T
    return found


def _squared(lists: Lists, tilt: Tilt, masses: Reals, total: Floats, mass: Floats) -> Floats:
    """The sum of mass x (value − mean)² for values that are single numbers, (b, 1)."""
    slope = np.broadcast_to(lists.slope[0], (len(masses), lists.slope.shape[1]))
    lead = lists.leading
    pull = crossed(slope[:, :lead], tilt.reduced) @ lists.spreads.T
    pull = (pull + ((slope[:, lead:] * tilt.beyond) @ lists.profile)[:, None] * lists.outside) * tilt.thaw
    mean = total[:, 0] / np.where(mass > 0, mass, 1.0)
    apart = (lists.vectors[:, 0] + pull - mean[:, None]) ** 2 + lists.scatter
    found: Floats = np.einsum("bl,bl->b", masses, apart, dtype=np.float64)[:, None]
    return found


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
        wrong, least = self.parts(lists, near)
        most = np.where(np.isnan(wrong), np.inf, wrong).sum(1)
        with np.errstate(over="ignore"):
            error: Floats = np.divide(most, least, out=np.where(most > 0, np.inf, 0.0), where=least > 0)
        return error

    def parts(self, lists: Lists, near: Blend) -> tuple[Floats, Floats]:
        """What each list adds to that, (b, l), and what their sum is divided by, (b,)."""
        peak = np.maximum(self.blend.peak, near.peak)
        far, close = np.exp(self.blend.peak - peak), np.exp(near.peak - peak)
        mass = far * self.blend.mass + close * near.mass
        value = (far[:, None] * self.blend.total + close[:, None] * near.total) / mass[:, None]
        if isinstance(lists.values, Shares):
            apart = lists.values.distances(value)
        else:  # by their differences: from squares, as `distances` has it, a distance could come out too short
            apart = np.linalg.norm(lists.values - value[:, None], axis=2)
        # A bound beyond float64 is infinite; so is 0 x inf, of a list that nothing is known about.
        with np.errstate(invalid="ignore", over="ignore"):
            wrong = np.maximum(self.most - self.guessed, self.guessed - self.least) * apart + self.strayed
            wrong = far[:, None] * np.where(np.isfinite(self.most), wrong, np.inf)
        return wrong, far * self.least.sum(1) + close * near.mass

    def log_mass_error(self, near: Blend) -> Floats:
        """How far the logarithm of the mass of both can be from the true one, (b,)."""
        peak = np.maximum(self.blend.peak, near.peak)
        far, close = np.exp(self.blend.peak - peak), np.exp(near.peak - peak) * near.mass
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            most, least, guessed = (np.log(far * x.sum(1) + close) for x in (self.most, self.least, self.guessed))
        found: Floats = np.maximum(most - guessed, guessed - least)
        return np.where(np.isnan(found), np.inf, found)


def bounded(lists: Lists, tilt: Tilt, unread: Flags, *, squares: bool = False) -> Bounded:
    """What unread lists add, with bounds that hold whatever they look like inside; statistics are to be float64."""
    length, rest = np.linalg.norm(tilt.reduced, axis=1), np.linalg.norm(tilt.beyond, axis=1)
    reach = length[:, None] * lists.radii[:, 0] + rest[:, None] * lists.radii[:, 1]
    deviation, doubt = np.sqrt(tilt.within), rest[:, None] * np.sqrt(lists.widest)
    doubt = doubt + math.sqrt(ROUNDED) * reach
    low, high = np.maximum(deviation - doubt, 0.0) ** 2, np.minimum(deviation + doubt, reach) ** 2
    low = np.minimum(low, high)
    base = np.where(unread, logarithm(lists.counts) + tilt.peaks, -np.inf)
    least, most = base + _two_points(low, reach, -1.0), base + _two_points(high, reach, 1.0)
    guessed = np.clip(np.where(unread, tilt.logs, -np.inf), least, most)
    peak = guessed.max(1, initial=-np.inf)
    shift = np.where(np.isfinite(peak), peak, 0.0)[:, None]
    gap = length[:, None] * lists.slope_gaps[:, 0] + rest[:, None] * lists.slope_gaps[:, 1]
    gap = gap + ROUNDED * reach * lists.value_radii
    # What is beyond float64 is infinite: a bound that says nothing is still true.
    with np.errstate(over="ignore", invalid="ignore"):
        base, least, most, guessed = (np.exp(x - shift) for x in (base, least, most, guessed))
        strayed = base * gap + lists.value_radii * np.maximum(most - base, 0.0)
    total = _totals(lists, guessed, _pulled(lists, tilt, base))
    mass = guessed.sum(1)
    square = _squared(lists, tilt, guessed, total, mass) if squares else None
    blend = Blend(peak, mass, total, _excess(tilt, unread, guessed, peak), square)
    return Bounded(blend, least, most, guessed, strayed)


def logarithm(x: Reals) -> Reals:
    """The logarithm, -inf of 0."""
    with np.errstate(divide="ignore"):
        found: Reals = np.log(x)
    return found


def _two_points(variance: Floats, reach: Floats, side: float) -> Floats:
    """Log E e^x for x = side·R with probability σ²/(R² + σ²) and x = −side·σ²/R otherwise; 0 where R is 0."""
    there = reach > 0
    reach = np.where(there, reach, 1.0)
    share = np.where(there, variance / (reach * reach + variance), 0.0)
    ends = logarithm(share) + side * reach, np.log1p(-share) - side * variance / reach
    return np.where(there, np.logaddexp(*ends), 0.0)
