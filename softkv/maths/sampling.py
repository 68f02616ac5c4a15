"""What the rows of a draw say, and how far off that is.

A stratum is some rows, of which m out of n are read: a simple random sample. Where many strata matter little, each is
visited with a chance π only. With e = exp(logit − peak) of the rows that were read,

    mass = Σ n/(mπ) Σ e        total = Σ n/(mπ) Σ e·v        value = total / mass

are unbiased, unbiased, and a ratio of both (Horvitz and Thompson, 1952). To first order the error of the value is that
of the mean of y = e·(v − value), whose variance, summed over the columns of values, is estimated without bias by

    V = Σ [ n²(1 − m/n) s²(y)/m ]/π + Σ (1 − π)/π²·‖n ȳ‖²

over the visited strata, with s² the variance within the sample (Särndal et al., Model Assisted Survey Sampling, 1992,
§4.3: two stages, of which the first is a Poisson sample). The mass has the variance that e has in the place of y.

If the error were normal with ν columns of equal variance, it would be within √(χ²(ν)/ν·V)/mass with the probability of
the quantile of χ². Columns that vary together count as fewer: ν = (tr Σ)²/‖Σ‖² for their covariance Σ (Satterthwaite),
which is told from the products of the sums of some random groups of rows. Taking ν for 1 is cautious.

Does not choose rows (strata.py), nor read them.

Shapes: b queries, r rows that were read, p value width.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from softkv.maths.columns import Columns, Pairs
from softkv.maths.strata import Draw, Floats

TERMS = 200  # of a series
MOSTLY = 0.5  # the sum of squared shares of groups from which on a few of them are most of the variance
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What a draw says to each query, together with rows that are known."""

    mass: Floats  # (b,)
    total: Floats  # (b, p)
    variance: Floats  # (b, 2), V as if the mass were 1: what rows differ by, and what leaving strata out adds
    columns: Floats  # (b,), ν
    mass_variance: Floats  # (b,), as if the mass were 1

    def factors(self, confidence: float) -> Floats:
        """How large squared errors may be beside their variance, (b,)."""
        return np.array([quantile(one, confidence) for one in self.columns.tolist()])

    def error(self, confidence: float) -> Floats:
        """How far the values may be off, (b,); inf where nothing was found that counts."""
        return np.where(self.mass > 0, np.sqrt(self.factors(confidence) * self.variance.sum(1)), np.inf)

    def at_least(self, values: Floats, masses: Floats) -> "Sampled":
        """With no smaller variances than these, (b, 2) each: rows may lack what matters."""
        mass_variance = np.maximum(self.mass_variance, masses.sum(1))
        return replace(self, variance=np.maximum(self.variance, values), mass_variance=mass_variance)

    def log_mass_error(self, confidence: float) -> Floats:
        """How far the logarithms of the masses may be off, (b,); inf where that is not known."""
        shares = np.where(self.mass > 0, np.sqrt(quantile(1.0, confidence) * self.mass_variance), 1.0)
        return -np.log1p(-shares, out=np.full(len(shares), -np.inf), where=shares < 1.0)


def sampled(
    draw: Draw, e: Floats, values: Columns, *, mass: Floats, total: Floats, random: np.random.Generator
) -> Sampled:
    """What these rows say to each query, of which `e` are the weights, (b, r).

    `mass`, (b,), and `total`, (b, p), are of the rows that were read anyway.
    """
    stands, (inside, outside) = e * draw.weights, draw.factors
    mass, total = mass + stands.sum(1), total + values.total(stands)
    counted = np.where(mass > 0, mass, 1.0)
    value, pairs = total / counted[:, None], Pairs.of(draw, random)
    sums, groups = values.sums(e, value, draw, pairs)
    squares = values.squares(e * e * inside[draw.owners], value)
    within, between = np.maximum(squares - sums @ (inside / draw.sizes), 0.0), sums @ outside
    columns = np.minimum(_columns(within + between, groups), float(values.free))
    variance = np.stack([within, between], axis=1) / (counted * counted)[:, None]
    return Sampled(mass, total, variance, columns, draw.variance(e) / (counted * counted))


def _columns(variances: Floats, groups: Floats) -> Floats:
    """ν of these variances, (b,), by the sums of random groups, (b, GROUPS, p): as many columns as vary independently.

    The products of different groups tell ‖Σ‖², but for what those of each group with itself would add: the squares of
    the shares that groups have of the variance. Where few have most of it, nothing can be told, and ν is 1.
    """
    gram = groups @ groups.swapaxes(1, 2)
    own = np.einsum("bgg->bg", gram)
    shares = np.square(own).sum(1) / np.maximum(np.square(own.sum(1)), TINY)
    products = (np.square(gram).sum((1, 2)) - np.square(own).sum(1)) / np.maximum(1.0 - shares, TINY)
    told = (products > 0) & (shares < MOSTLY)
    found: Floats = np.divide(variances * variances, products, out=np.ones_like(products), where=told)
    return np.maximum(found, 1.0)


@lru_cache(maxsize=256)
def _quantile(columns: float, confidence: float) -> float:
    low, high = 0.0, columns + 20.0 * math.sqrt(2.0 * columns) + 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(columns / 2, middle / 2) < confidence else (low, middle)
    return high / columns


def quantile(columns: float, confidence: float) -> float:
    """χ²(ν)/ν below which it is with this probability; of ν rounded down, which is cautious."""
    return _quantile(math.floor(8.0 * columns) / 8.0 if columns < 16 else float(math.floor(columns)), confidence)


def _below(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function, by its series."""
    if x <= 0:
        return 0.0
    term = total = 1.0
    for number in range(1, TERMS + int(4 * x)):
        term *= x / (shape + number)
        total += term
        if term < 1e-12 * total:
            break
    return min(1.0, total * math.exp(shape * math.log(x) - x - math.lgamma(shape + 1.0)))
