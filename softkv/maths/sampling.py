"""Estimates from the rows of a draw, and their errors.

A stratum is some rows, of which m out of n are read: a simple random sample. Where many strata matter little, each is
visited with a chance π only. With e = exp(logit − peak) of the rows that were read,

    mass = Σ n/(mπ) Σ e        total = Σ n/(mπ) Σ e·v        value = total / mass

are unbiased, unbiased, and a ratio of both (Horvitz and Thompson, 1952). To first order the error of the value is that
of the mean of y = e·(v − value), whose variance, summed over the columns of values, is estimated without bias by

    V = Σ [ n²(1 − m/n) s²(y)/m ]/π + Σ (1 − π)/π²·‖n ȳ‖²

over the visited strata, with s² the variance within the sample (Särndal et al., Model Assisted Survey Sampling, 1992,
§4.3: two stages, of which the first is a Poisson sample). The mass has the variance that e has in the place of y.

Of all rows of a stratum it may be known that Σ t = 0 and Σ x = 0, since t = v − v̄ and x are their differences from
means. Then all rows but for what differs from c·(1 + x) for e, and from c·(v + x·v̄) for e·v, is known, for any number
c, and drawn rows have only to tell of that (the difference estimator, ibid. §6.3):

    mass = Σ n·c + Σ n/(mπ) Σ g        total = Σ n·c·v̄ + Σ n/(mπ) Σ (u·t + g·v̄)        u = e − c, g = e − c·(1 + x)

over all strata first, and then those that were visited. V is as before, by y = u·t + g·(v̄ − value) and by g in the
place of e. Whatever c is, both are unbiased; where it is near the mean of e, V is far smaller. With c = 0 nothing is
corrected.

If the error were normal with ν columns of equal variance, it would be within √(F·V)/mass with the probability of the
quantile of F(ν, μ), where μ says how well V is known. Columns that vary together count as fewer: ν = (tr Σ)²/‖Σ‖² for
their covariance Σ (Satterthwaite, 1946), which is estimated from products of the sums of random groups of rows.
Taking ν for 1 is cautious. In the same way, μ = V²/(Σ V_h²/(m_h − 1) + Σ B_h²) by the parts of V that strata add,
within and between: small, where a few of them have most of it.

Does not choose rows (strata.py), nor read them.

Shapes: b queries, r rows that were read, p value width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from softkv.maths.columns import Columns, Pairs
from softkv.maths.quantiles import KNOWN, quantile
from softkv.maths.strata import Draw
from softkv.ndarrays import AnyArray, Floats

RULED_OUT, MANY = 0.999, 30.0  # a variance of so many degrees is not raised beyond what it is below, so sure
MOSTLY = 0.5  # the sum of squared shares of groups from which on a few of them are most of the variance
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, eq=False)
class Deviation:
    """The error of an estimate from a draw, for each query."""

    variance: Floats  # (b, 2), V: from differences of rows, and from leaving strata out
    degrees: Floats  # (b,), μ
    columns: Floats  # (b,), ν

    @classmethod
    def of(cls, draw: Draw, squares: Floats, sums: Floats, mass: Floats) -> "Deviation":
        """The deviation by sums of ‖y‖² over strata and squared sums of y, (b, s) each, as if the mass (b,) were 1."""
        inside, outside = draw.factors
        within, between = np.maximum(squares - sums / draw.sizes, 0.0) * inside, sums * outside
        variance = np.stack([within.sum(1), between.sum(1)], axis=1)
        varied = np.square(within) @ (1.0 / np.maximum(draw.sizes - 1, 1)) + np.square(between).sum(1)
        degrees = np.square(variance.sum(1)) / np.maximum(varied, TINY)
        squared = np.where(mass > 0, np.square(mass), 1.0)
        return cls(variance / squared[:, None], degrees, np.ones(len(mass)))

    @classmethod
    def of_column(cls, draw: Draw, y: Callable[[slice], Floats], mass: Floats) -> "Deviation":
        """The deviation of one column, by what it is for some of the rows that were read, (b, n)."""
        squares, sums = draw.moments(y, len(mass))
        return cls.of(draw, squares, np.square(sums), mass)

    def at_least(self, variance: Floats) -> "Deviation":
        """The deviation with no smaller variance than this, (b, 2): the drawn rows may miss what matters.

        It is raised no further than to what many of them rule out.
        """
        more = np.maximum(variance - self.variance, 0.0)
        most = (self._limits - 1.0) * np.maximum(self.variance.sum(1), TINY)
        share = np.minimum(most / np.maximum(more.sum(1), TINY), 1.0)
        return replace(self, variance=self.variance + share[:, None] * more)

    @property
    def _limits(self) -> Floats:
        """How many times V the variance is at most, (b,): μ/χ²(μ) if y were normal; unlimited for few degrees."""
        known = self.degrees.tolist()
        return np.array([quantile(KNOWN, RULED_OUT, degrees) if degrees >= MANY else np.inf for degrees in known])

    def raised(self, thought: "Deviation", found: "Deviation") -> "Deviation":
        """The deviation with its variance raised by the ratio of the `thought` to the `found` one, if above 1."""
        factor = thought.variance.sum(1) / np.maximum(found.variance.sum(1), TINY)
        return replace(self, variance=self.variance * np.maximum(factor, 1.0)[:, None])

    def factors(self, confidence: float, *, known: float = 1.0) -> Floats:
        """How large squared errors may be relative to V, (b,), if V had `known` times its degrees of freedom."""
        pairs = zip(self.columns.tolist(), (known * self.degrees).tolist(), strict=True)
        return np.array([quantile(columns, confidence, degrees) for columns, degrees in pairs])

    def error(self, confidence: float) -> Floats:
        """The error at this confidence, (b,)."""
        factors = np.where(self.variance.any(1), self.factors(confidence), 0.0)
        found: Floats = np.sqrt(factors * self.variance.sum(1))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Elsewhere:
    """Estimates for rows that are read elsewhere, since an answer and its error include them."""

    log_mass: Floats  # (b,), -inf where there are none
    value: Floats  # (b, p)
    share: Floats  # (b,), of the variance that an answer may have, for the rows that are read here

    @classmethod
    def nothing(cls, queries: int) -> "Elsewhere":
        """The estimates where there are no rows elsewhere."""
        return cls(np.full(queries, -np.inf), np.zeros((queries, 1)), np.ones(queries))

    def of(self, queries: AnyArray) -> "Elsewhere":
        """The estimates for some of the queries."""
        return Elsewhere(self.log_mass[queries], self.value[queries], self.share[queries])

    @property
    def wanted(self) -> Floats:
        """How far off this part of an answer may be, as a share of how far off the whole answer may be, (b,)."""
        found: Floats = np.sqrt(self.share)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RowWeights:
    """How drawn rows count for each query, and what is known of all rows of the strata that they are drawn from."""

    e: Floats  # (b, r)
    u: Floats  # (b, r), e − c
    g: Floats  # (b, r), e − c·(1 + x)
    mass: Floats  # (b,), Σ n·c
    total: Floats  # (b, p), Σ n·c·v̄

    @classmethod
    def plain(cls, e: Floats) -> "RowWeights":
        """The weights where nothing is known."""
        return cls(e, e, e, np.zeros(len(e)), np.zeros((len(e), 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Estimates from a draw for each query, together with rows that are known."""

    mass: Floats  # (b,)
    total: Floats  # (b, p)
    drawn: Floats  # (b,), the mass of the rows that are drawn from,
    drawn_total: Floats  # (b, p), and their total
    of_value: Deviation
    of_mass: Deviation  # of a mass that is 1


def sampled(draw: Draw, weights: RowWeights, values: Columns, *, mass: Floats, total: Floats, pairs: Pairs) -> Sampled:
    """Estimates from the rows that were drawn.

    `mass`, (b,), and `total`, (b, p), are of the rows that were read anyway; `pairs` are of the draw.
    """
    u, g = weights.u, weights.g
    stands = g * draw.weights
    drawn = weights.mass + stands.sum(1)
    drawn_total = weights.total + values.total(stands if u is g else u * draw.weights, stands)
    mass, total = mass + drawn, total + drawn_total
    value = total / np.where(mass > 0, mass, 1.0)[:, None]
    squares, sums, groups = values.varied(u, g, value, pairs)
    found = Deviation.of(draw, squares, sums, mass)
    columns = np.minimum(_columns(found.variance.sum(1) * np.square(mass), groups), float(values.free))
    deviations = replace(found, columns=columns), Deviation.of_column(draw, lambda rows: g[:, rows], mass)
    return Sampled(mass, total, drawn, drawn_total, *deviations)


def log_error(shares: Floats) -> Floats:
    """The error of a logarithm whose argument has these relative errors, (b,); inf where they are not known."""
    return -np.log1p(-shares, out=np.full(len(shares), -np.inf), where=shares < 1.0)


def _columns(variances: Floats, groups: Floats) -> Floats:
    """ν of these variances, (b,), from sums of random groups, (b, GROUPS, p): how many columns vary independently.

    The products of different groups give ‖Σ‖², less what the product of each group with itself would add: the squares
    of the groups' shares of the variance. Where a few groups have most of it, no estimate is possible, and ν is 1.
    """
    gram = groups @ groups.swapaxes(1, 2)
    own = np.einsum("bgg->bg", gram)
    shares = np.square(own).sum(1) / np.maximum(np.square(own.sum(1)), TINY)
    products = (np.square(gram).sum((1, 2)) - np.square(own).sum(1)) / np.maximum(1.0 - shares, TINY)
    told = (products > 0) & (shares < MOSTLY)
    found: Floats = np.divide(variances * variances, products, out=np.ones_like(products), where=told)
    return np.maximum(found, 1.0)
