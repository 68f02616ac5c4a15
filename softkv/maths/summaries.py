"""The statistics of lists, which tell of their rows without any of them being read.

They are kept small. All lists share the axes along which rows differ most from the means of their lists. Along the
leading ones each has a covariance of its own; along the others it has one number, the variance, and how that is spread
over the axes is the same for all. The covariance C of values and keys is estimated as AΣ with one A for all, where Σ is
that of the keys: as good on real texts as a C for each. What this leaves out is measured for each list, for bounds.

Does not measure lists (moments.py), nor say what follows (farfield.py).

Shapes: b queries, l lists, d key width, r leading axes, p value width. Keys are those that dot products are taken with:
scaled and extended where a compatibility needs it (forms.py).
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from softkv.maths.blending import Blend
from softkv.maths.shares import Shares
from softkv.maths.symmetric import diagonals, squared_norms
from softkv.ndarrays import Flags, Floats, Reals

ISOLATED = 4.0  # the farthest row of a list is so many times as far from its mean as rows are by their variance
UNLIKELY = 0.01  # the probability that the farthest of normal rows is so far out that it counts as a stray


@dataclass(frozen=True, eq=False)
class Lists:
    """The statistics of all lists. Symmetric matrices are packed: their upper triangles, row by row."""

    counts: Reals  # (l,), rows that are live
    means: Reals  # (l, d)
    axes: Reals  # (d, d), orthonormal columns, the leading ones first
    spreads: Reals  # (l, r(r + 1) / 2), the covariance of keys along the leading axes
    outside: Reals  # (l,), the variance along the others, summed over them
    profile: Reals  # (d − r,), how that is shared among them
    widest: Reals  # (l,), an upper bound of the variance in any one direction outside of the leading axes
    radii: Reals  # (l, 2), how far keys are from the mean, along the leading axes and along the others
    values: Reals | Shares  # (l, p), the means of the values
    slope: Reals  # (p, d), A: how values change with keys within a list, along the axes; (s, d) of labels
    value_radii: Reals  # (l,), how far values are from their mean
    slope_gaps: Reals  # (l, 2), ‖C − AΣ‖ along the leading axes and along the others
    scatter: Reals  # (l,), the variance of the values, summed over their columns
    noise: Reals  # (l,), what of it the slope does not explain

    @property
    def leading(self) -> int:
        """How many axes have a covariance of their own, r."""
        return int(self.axes.shape[0]) - len(self.profile)

    @property
    def vectors(self) -> Reals:
        """The means of values that are no labels, (l, p)."""
        assert not isinstance(self.values, Shares)
        return self.values

    @cached_property
    def _centred(self) -> tuple[Reals, Reals, Reals]:
        """The middle of the means of the values, (p,), these counted from it, and their squared lengths, (l,)."""
        middle = self.vectors.mean(0)
        apart = self.vectors - middle
        return middle, apart, np.einsum("lp,lp->l", apart, apart)

    @cached_property
    def lengths(self) -> Reals:
        """The squared lengths of the means of keys, (l,)."""
        found: Reals = np.einsum("ld,ld->l", self.means, self.means)
        return found

    @cached_property
    def longest(self) -> float:
        """The length of the longest mean of keys."""
        return float(np.sqrt(self.lengths.max(initial=0.0)))

    @cached_property
    def within(self) -> tuple[Reals, float]:
        """The variance within lists along each leading axis, (r,), and that along all others together, of all rows."""
        shares = self.counts / max(1.0, float(self.counts.sum()))
        along: Reals = shares @ diagonals(self.spreads, self.leading)
        return along, float(shares @ self.outside)

    @cached_property
    def isolated(self) -> Flags:
        """The lists that have a row far beyond all others, where it is known, (l,): a variance tells little of it."""
        squares = diagonals(self.spreads, self.leading).sum(1) + self.outside
        farthest = np.square(self.radii).sum(1)
        found: Flags = (farthest > ISOLATED**2 * squares) & np.isfinite(farthest)
        return found

    @cached_property
    def strays(self) -> Reals:
        """How far the farthest row of each list strays, (l, 2): its squared distance, in variances of the rows.

        Along the leading axes and along the others; 1 where normal rows would reach as far. Their squared distance
        from the mean, Σ λχ²(1) by the variances λ along their axes, is about tr Σ · χ²(ν)/ν, ν = (tr Σ)²/‖Σ‖²
        (Satterthwaite, 1946). The farthest of n of them is beyond the quantile of 1 − UNLIKELY/n with a probability of
        UNLIKELY at most; with z deviations of a normal for that, z² ≤ 2 ln(n/UNLIKELY), it is
        ν(1 − 2/(9ν) + z√(2/(9ν)))³ (Wilson and Hilferty, 1931).
        """
        with np.errstate(over="ignore", invalid="ignore"):  # of lists beyond float32 nothing is known
            beyond = np.square(self.outside, dtype=np.float64) * float(np.square(self.profile).sum())
            traces = np.stack([diagonals(self.spreads, self.leading).sum(1), self.outside], axis=1).astype(np.float64)
            squares = np.stack([squared_norms(self.spreads, self.leading), beyond], axis=1)
            there = traces > 0
            ninth = 2.0 / 9.0 * np.divide(squares, traces**2, out=np.ones_like(squares), where=there)
            deviations = np.sqrt(2.0 * np.log(np.maximum(self.counts, 1.0) / UNLIKELY))[:, None]
            usual = (1.0 - ninth + deviations * np.sqrt(ninth)) ** 3
            reached = np.square(self.radii, dtype=np.float64)
            farthest = np.divide(reached, traces, out=np.ones_like(usual), where=there)
            found: Reals = np.where((farthest > usual) & np.isfinite(farthest), farthest, 1.0)
        return found

    @cached_property
    def usual_length(self) -> float:
        """The length of a usual key."""
        along, beyond = self.within
        between = float(self.counts @ self.lengths) / max(1.0, float(self.counts.sum()))
        return math.sqrt(max(0.0, between + float(along.sum()) + beyond))

    def distances(self, centres: Reals) -> Reals:
        """‖v̄ − c‖ of the means of all values from each of (b, p) centres, (b, l)."""
        if isinstance(self.values, Shares):
            return self.values.distances(centres)
        # Subtle: by the squares, which cancel where both are far from 0; so all are counted from the middle.
        middle, apart, squares = self._centred
        centres = centres - middle
        apart = squares - 2.0 * (centres @ apart.T) + (centres * centres).sum(1)[:, None]
        found: Reals = np.sqrt(np.maximum(apart, 0.0))
        return found

    @property
    def units(self) -> "Units":
        """Units in which the values are neither far from zero nor large or small; shares of labels never are."""
        if isinstance(self.values, Shares):
            return AS_GIVEN
        shares = np.asarray(self.counts, np.float64) / max(float(self.counts.sum()), 1.0)
        middle = shares @ self.values
        farthest = np.abs(self.values - middle).max(initial=0.0)
        largest = float(max(farthest, np.sqrt(np.abs(self.scatter).max(initial=0.0)))) or 1.0
        apart = (((self.values - middle) / largest) ** 2).sum(1) + self.scatter / largest / largest
        size = math.sqrt(max(float(shares @ apart), 0.0)) * largest
        return Units(middle, 2.0 ** round(math.log2(size)) if size > 0 else 1.0)

    def rounded(self) -> "Lists":
        """Statistics in float32 and in `units`: good enough for an estimate, and half as much to read."""
        if isinstance(self.values, Shares):
            return self.narrow()
        counted = replace(self, values=(self.values - (units := self.units).middle) / units.size)
        for name, power in (("slope", 1), ("value_radii", 1), ("slope_gaps", 1), ("scatter", 2), ("noise", 2)):
            counted = replace(counted, **{name: getattr(self, name) / units.size**power})
        return counted.narrow()

    def as_given(self, units: "Units") -> "Lists":
        """Undo `rounded`: statistics in float64 of values as they are; what only bounds use is not converted."""
        found = Lists(*(getattr(self, field.name).astype(np.float64) for field in fields(self)))
        if isinstance(found.values, Shares):
            return found
        found = replace(found, values=found.values * units.size + units.middle, slope=found.slope * units.size)
        return replace(found, **{name: getattr(found, name) * units.size**2 for name in ("scatter", "noise")})

    def narrow(self) -> "Lists":
        """The statistics in float32, unscaled; what overflows becomes infinite, and then no estimate is trusted."""
        with np.errstate(over="ignore"):
            return Lists(*(getattr(self, field.name).astype(np.float32) for field in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Offset and scale of values in float32 statistics, which otherwise would lose digits, or overflow when squared."""

    middle: Floats  # (p,), their mean
    size: float  # a power of two near the value scale

    def back(self, blend: Blend) -> Blend:
        """A blend in these units, converted to the values as they are."""
        total = blend.total * self.size + blend.mass[:, None] * self.middle
        return replace(blend, total=total, square=None if blend.square is None else blend.square * self.size**2)


AS_GIVEN = Units(np.zeros(1), 1.0)  # no offset and no scale
