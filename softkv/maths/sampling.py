"""How many rows of each stratum to read, and how far the answer is off that they give.

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

How many rows to take follows from what is known of strata before (Neyman, 1934): nS for what rows of one differ by, and
‖Y‖ for what leaving it out adds. That may be wrong: it decides how much is read, and may make an answer less sure, but
never more.

Does not read rows, nor know where they lie (index/measuring.py).

Shapes: l strata, s strata that were visited, r rows that were read, stratum by stratum, p value width.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from softkv.maths.drawing import different, in_runs

Array = npt.NDArray[np.floating]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

LEAST, MOST = 2, 16  # rows of a stratum that is visited by chance; two tell a variance
VISIT = 2.0  # rows take as long to be read as it takes to go to a stratum
EVENLY = 0.1  # of the rows are spread over all strata by their sizes, whatever is known of these
GROUPS = 32  # of rows that tell how columns vary together
HALVINGS = 9  # until a number of rows is known to 2%
TERMS = 200  # of a series


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """How strata are sampled."""

    chances: Floats  # (l,), of being visited
    rows: Counts  # (l,), to read of each that is

    @classmethod
    def none(cls, strata: int) -> "Sizes":
        """Nothing of so many strata."""
        return cls(np.zeros(strata), np.zeros(strata, np.int64))

    @property
    def expected(self) -> float:
        """How many rows are read, on average."""
        return float(self.chances @ self.rows)

    def whole(self, counts: Counts) -> npt.NDArray[np.bool_]:
        """Of which strata all rows are read, (l,)."""
        found: npt.NDArray[np.bool_] = (self.chances == 1.0) & (self.rows == counts)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """What is thought of strata before any row is read."""

    counts: Counts  # (l,), n
    within: Floats  # (l,), (nS)²: n² times the variance of y among the rows of each
    between: Floats  # (l,), ‖Y‖²: the squared sum of y over each
    most: Floats  # (l,), the share of its rows from which on all are read; 0 where they are in any case
    ahead: Counts | None = None  # (l,), how many rows lie before those in random order
    shuffled: Counts | None = None  # (l,), how many rows of each lie in random order; none where nobody knows

    @property
    def is_sound(self) -> bool:
        """Whether these are numbers that sizes can follow from; beyond float64 they are none."""
        return bool(np.isfinite(self.within.sum() + MOST * self.between.sum()))

    def sizes(self, rows: float) -> Sizes:
        """How to take about so many rows; those of strata of which all are read come on top."""
        counts = np.maximum(self.counts, 1).astype(np.float64)
        few = np.clip(np.sqrt(VISIT * self.within / np.maximum(self.between, np.finfo(np.float64).tiny)), LEAST, MOST)
        few = np.minimum(np.ceil(few), counts)
        needed, evenly = np.sqrt(self.within + few * self.between), self.counts / max(1.0, float(self.counts.sum()))
        share = needed / (float(needed.sum()) or 1.0)
        wanted = rows * ((1.0 - EVENLY) * share + EVENLY * evenly)
        chances = np.where(self.most > 0, np.minimum(wanted / few, 1.0), 1.0) * (self.counts > 0)
        some = np.minimum(np.ceil(np.maximum(wanted, few)), counts)
        return Sizes(chances, np.where((chances == 1.0) & (some > self.most * counts), counts, some).astype(np.int64))

    def variance(self, sizes: Sizes) -> Floats:
        """The two parts of V, (2,), as they are thought to be."""
        counts, there = np.maximum(self.counts, 1), sizes.chances > 0
        chances = np.where(there, sizes.chances, 1.0)
        left = (1.0 - sizes.rows / counts) / np.maximum(sizes.rows, 1)
        within = self.within * left
        return np.array([within[there].sum(), ((1.0 / chances - 1.0) * (self.between + within))[there].sum()])

    def enough(self, variance: float, *, also: "tuple[Strata, float] | None" = None) -> Sizes:
        """The fewest rows by which V is thought to be no larger than this, and that of others than another."""
        goals, low, high = [(self, variance), *([also] if also else [])], 1.0, 8.0 * float(self.counts.sum()) + 1.0
        for _ in range(HALVINGS):
            middle = math.sqrt(low * high)
            sizes = self.sizes(middle)
            few = any(one.variance(sizes).sum() > most for one, most in goals)
            low, high = (middle, high) if few else (low, middle)
        return self.sizes(high)

    def scaled(self, factors: Floats) -> "Strata":
        """What is thought of them once both turned out to be too little or too much by these factors, (2,)."""
        return replace(self, within=self.within * factors[0], between=self.between * factors[1])


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows that were drawn: of each stratum that was visited, different ones."""

    strata: Counts  # (s,), rising
    counts: Counts  # (s,), n
    chances: Floats  # (s,), π
    sizes: Counts  # (s,), m
    places: Counts  # (r,), numbers from 0 to n − 1 in the stratum of each, rising

    @classmethod
    def of(cls, draw: np.random.Generator, strata: Strata, sizes: Sizes) -> "Draw":
        """A draw from those strata of which not all rows are read anyway."""
        visited = np.flatnonzero(~sizes.whole(strata.counts) & (draw.random(len(sizes.rows)) < sizes.chances))
        counts, rows = strata.counts[visited], sizes.rows[visited]
        if strata.ahead is None or strata.shuffled is None:
            places = different(draw, counts, rows)
        else:
            places = in_runs(draw, counts, rows, strata.ahead[visited], strata.shuffled[visited])
        return cls(visited, counts, sizes.chances[visited], rows, places)

    @cached_property
    def owners(self) -> Counts:
        """The place of the stratum of each row among those visited, (r,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def by_stratum(self, x: Array) -> Floats:
        """Sums over the rows of each stratum, (r,) -> (s,)."""
        found: Floats = np.bincount(self.owners, x, len(self.sizes)).astype(np.float64)
        return found

    @property
    def weights(self) -> Floats:
        """For how many rows each one stands, (r,)."""
        return (self.counts / (self.sizes * self.chances))[self.owners]

    @property
    def factors(self) -> tuple[Floats, Floats]:
        """What squares about the mean of each stratum, and squared sums, are multiplied with, (s,) each."""
        left = np.where(self.sizes > 1, (1.0 - self.sizes / self.counts) / np.maximum(self.sizes - 1, 1), 0.0)
        share = (self.counts / self.sizes) ** 2
        return share * self.sizes * left / self.chances, share * (1.0 - self.chances) / self.chances**2


class Deviations(ABC):
    """How far the values of the rows that were read are from a mean."""

    squares: Floats  # ‖v − mean‖² of each row, (r,)

    @abstractmethod
    def by_stratum(self, weights: Floats, draw: Draw) -> Floats:
        """The squared length of Σ w·(v − mean) over the rows of each stratum, (s,)."""

    @abstractmethod
    def grouped(self, weights: Floats, groups: Counts) -> Floats:
        """Σ w·(v − mean) over the rows of each group, (GROUPS, p); each row has several weights, (n, r), and groups."""


class Columns(ABC):
    """The values of the rows that were read, as columns."""

    free: int  # how many of the columns the others do not settle

    @abstractmethod
    def total(self, weights: Floats) -> Floats:
        """Σ w·v, (p,)."""

    @abstractmethod
    def apart(self, mean: Floats) -> Deviations:
        """How far they are from this mean, (p,)."""


class VectorColumns(Columns):
    """Values that are vectors, (r, p)."""

    def __init__(self, values: Floats) -> None:
        self._values, self.free = values, values.shape[1]

    def total(self, weights: Floats) -> Floats:
        """Σ w·v, (p,)."""
        found: Floats = weights @ self._values
        return found

    def apart(self, mean: Floats) -> Deviations:
        """How far they are from this mean, (p,)."""
        return _OfVectorColumns(self._values - mean)


class _OfVectorColumns(Deviations):
    def __init__(self, apart: Floats) -> None:
        self._apart, self.squares = apart, np.einsum("ij,ij->i", apart, apart)

    def by_stratum(self, weights: Floats, draw: Draw) -> Floats:
        if not len(weights):
            return np.zeros(len(draw.sizes))
        sums = np.add.reduceat(self._apart * weights[:, None], draw.sizes.cumsum() - draw.sizes, axis=0)
        found: Floats = np.einsum("ij,ij->i", sums, sums)
        return found

    def grouped(self, weights: Floats, groups: Counts) -> Floats:
        spread, rows = np.zeros((GROUPS, len(self._apart))), np.arange(len(self._apart))
        for some, whose in zip(weights, groups, strict=True):
            spread[whose, rows] += some
        found: Floats = spread @ self._apart
        return found


class LabelColumns(Columns):
    """Values that are codes of labels, (r,): vectors that are 1 there and 0 elsewhere."""

    def __init__(self, codes: npt.NDArray[np.integer], labels: int) -> None:
        self._codes, self._labels = codes.astype(np.int64), labels
        self.free = max(1, labels - 1)  # shares add up to 1

    def total(self, weights: Floats) -> Floats:
        """Σ w·v, (p,)."""
        return np.bincount(self._codes, weights, self._labels).astype(np.float64)

    def apart(self, mean: Floats) -> Deviations:
        """How far they are from this mean, (p,)."""
        return _OfLabelColumns(self._codes, mean)


class _OfLabelColumns(Deviations):
    def __init__(self, codes: Counts, mean: Floats) -> None:
        self._codes, self._mean, self.squares = codes, mean, 1.0 - 2.0 * mean[codes] + mean @ mean

    def by_stratum(self, weights: Floats, draw: Draw) -> Floats:
        labels, count = len(self._mean), len(draw.sizes)
        places, entries = np.unique(draw.owners * labels + self._codes, return_inverse=True)
        sums, owners, masses = np.bincount(entries, weights, len(places)), places // labels, draw.by_stratum(weights)
        crossed = np.bincount(owners, sums * self._mean[places % labels], count)
        squares = np.bincount(owners, sums * sums, count) - 2.0 * masses * crossed
        return np.maximum(squares + masses**2 * (self._mean @ self._mean), 0.0)

    def grouped(self, weights: Floats, groups: Counts) -> Floats:
        labels, weights = len(self._mean), weights.ravel()
        places = (groups * labels + self._codes).ravel()
        found = np.bincount(places, weights, GROUPS * labels).astype(np.float64).reshape(GROUPS, labels)
        return found - np.bincount(groups.ravel(), weights, GROUPS)[:, None] * self._mean


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What a draw says together with rows that are known."""

    mass: float
    total: Floats  # (p,)
    within: float  # of V, what rows differ by
    between: float  # and what leaving strata out adds
    columns: float  # ν
    mass_variance: float

    def error(self, confidence: float) -> float:
        """How far the value may be off; inf where nothing was found that counts."""
        if self.mass <= 0:
            return math.inf
        return math.sqrt(quantile(self.columns, confidence) * (self.within + self.between)) / self.mass

    @property
    def variance(self) -> Floats:
        """What rows differ by, and what leaving strata out adds, (2,): both as if the mass were 1."""
        return np.array([self.within, self.between]) / (self.mass**2 or math.inf)

    def at_least(self, values: Floats, masses: Floats) -> "Sampled":
        """With no smaller variances than these, (2,) each, as if the mass were 1: rows may lack what matters."""
        within, between, mass = (np.append(values, masses.sum()) * self.mass**2).tolist()
        return replace(
            self,
            within=max(self.within, within),
            between=max(self.between, between),
            mass_variance=max(self.mass_variance, mass),
        )

    def log_mass_error(self, confidence: float) -> float:
        """How far the logarithm of the mass may be off; inf where that is not known."""
        if self.mass <= 0:
            return math.inf
        share = math.sqrt(quantile(1.0, confidence) * self.mass_variance) / self.mass
        return -math.log1p(-share) if share < 1.0 else math.inf


def sampled(
    draw: Draw, e: Floats, values: Columns, *, mass: float, total: Floats, random: np.random.Generator
) -> Sampled:
    """What these rows say, of which `e` are the weights; `mass` and `total` are of the rows that were read anyway."""
    stands, (inside, outside) = draw.weights, draw.factors
    mass, total = mass + float(stands @ e), total + values.total(stands * e)
    value = total / (mass or 1.0)
    apart = values.apart(value)
    sums = apart.by_stratum(e, draw)
    squares = np.maximum(draw.by_stratum(e * e * apart.squares) - sums / draw.sizes, 0.0)
    masses = draw.by_stratum(e)
    varied = np.maximum(draw.by_stratum(e * e) - masses * masses / draw.sizes, 0.0)
    within, between = float(inside @ squares), float(outside @ sums)
    columns = min(_columns(draw, e, apart, within + between, random), float(values.free))
    return Sampled(mass, total, within, between, columns, float(inside @ varied + outside @ (masses * masses)))


def _columns(draw: Draw, e: Floats, apart: Deviations, variance: float, random: np.random.Generator) -> float:
    """ν of this variance: as many columns as vary independently, at least 1."""
    pairs, inside, outside = draw.sizes // 2, *draw.factors
    ends, place = draw.sizes.cumsum(), np.arange(len(e))
    place -= (ends - draw.sizes)[draw.owners]
    # Two rows of a stratum differ by twice what its rows vary, whatever its mean is: so rows go to groups in pairs.
    pair = (pairs.cumsum() - pairs)[draw.owners] + place // 2
    share = np.sqrt(inside * (draw.sizes - 1) / np.maximum(2 * pairs, 1))[draw.owners]
    share[place >= 2 * pairs[draw.owners]] = 0.0
    groups, signs = _grouped(int(pairs.sum()) + 1, random)
    pair = np.minimum(pair, len(groups) - 1)
    homes, sides = _grouped(len(pairs), random)
    weights = share * np.where(place % 2, -1.0, 1.0) * signs[pair], (np.sqrt(outside) * sides)[draw.owners]
    sums = apart.grouped(e * np.stack(weights), np.stack([groups[pair], homes[draw.owners]]))
    gram = sums @ sums.T
    products = float(np.square(gram).sum() - np.square(np.diag(gram)).sum()) * GROUPS / (GROUPS - 1)
    return max(1.0, variance * variance / products) if products > 0 else 1.0


def _grouped(count: int, random: np.random.Generator) -> tuple[Counts, Floats]:
    """A group and a sign for each."""
    return random.integers(0, GROUPS, count), random.choice(np.array([-1.0, 1.0]), count)


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
