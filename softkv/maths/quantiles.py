"""Quantiles of squared errors relative to an estimate of their variance, and probabilities of numbers of successes.

The sum of ν squared errors of equal variance, relative to an estimate of that variance with μ degrees of freedom, has
the F distribution; where the variance is known, μ is infinite, and it is χ²(ν)/ν. Successes are binomial. All are
computed by the incomplete beta function.
"""

import math
from functools import lru_cache

KNOWN = 1e7  # degrees of freedom from which on a variance counts as known
LARGEST, NEAR = 32.0, 1e-6  # the largest logarithm of a quantile, and how far above the true one it may be
TERMS = 300  # of a continued fraction
STEP, WHOLE = 1.1, 16  # columns and degrees are rounded down to powers of STEP, below WHOLE also to integers


def quantile(columns: float, confidence: float, degrees: float = KNOWN) -> float:
    """The squared error, in variances, that is not exceeded with this probability.

    Both `columns` and `degrees` are rounded down, which errs on the cautious side.

    >>> round(quantile(1, 0.95), 3), round(quantile(1, 0.95, 10), 3)
    (3.841, 4.965)
    """
    return _quantile(_rounded(columns), confidence, _rounded(min(degrees, KNOWN)))


@lru_cache
def at_most(successes: int, tries: int, chance: float) -> float:
    """The probability of so many successes or fewer, where each try has this chance of one.

    >>> round(at_most(1, 2, 0.5), 6)
    0.75
    """
    return 1.0 if successes >= tries else _below(tries - successes, successes + 1.0, 1.0 - chance)


def _rounded(number: float) -> float:
    """A number of 1 at least, rounded down to a whole one or by a few percent, so that few quantiles are computed."""
    if not number > 1.0:
        return 1.0
    if number >= KNOWN:
        return KNOWN
    step = STEP ** math.floor(math.log(number) / math.log(STEP))
    return max(step, float(math.floor(number))) if number < WHOLE else step


@lru_cache(maxsize=4096)
def _quantile(columns: float, confidence: float, degrees: float) -> float:
    low, high, middle, a, b = -LARGEST, LARGEST, 0.0, columns / 2, degrees / 2  # of its logarithm
    while high - low > NEAR:
        share = columns / (columns + degrees * math.exp(-middle))
        below, slope = _below(a, b, share), _powers(a, b, share)
        low, high = (middle, high) if below < confidence else (low, middle)
        # Newton's step on the logarithm of the probability above.
        missing = (confidence - below) / (1.0 - confidence)
        step = (1.0 - below) * math.log1p(missing) / slope if missing > -1.0 and slope else math.inf
        if abs(step) < NEAR / 4:
            low, high = max(low, middle - NEAR / 2), min(high, middle + NEAR / 2)
        middle = middle + step if low < middle + step < high else (low + high) / 2
    return math.exp(high) if high < LARGEST else math.inf


def _below(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return max(0.0, min(1.0, x))
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _powers(a, b, x) * _fraction(b, a, 1.0 - x) / b
    return _powers(a, b, x) * _fraction(a, b, x) / a


def _powers(a: float, b: float, x: float) -> float:
    """xᵃ(1 − x)ᵇ divided by the beta function: how fast the regularised one rises with the logarithm of x/(1 − x)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0
    return math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by the method of Lentz."""
    tiny = 1e-300
    upper, lower = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0), tiny)
    found = lower
    for m in range(1, TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower, upper = 1.0 / _away(1.0 + term * lower, tiny), _away(1.0 + term / upper, tiny)
            found *= lower * upper
        if abs(lower * upper - 1.0) < 1e-9:
            break
    return found


def _away(x: float, tiny: float) -> float:
    return x if abs(x) > tiny else tiny
