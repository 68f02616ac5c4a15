"""Learn-then-Test: the laxest of some thresholds at which risks are below their limits, with a given confidence.

Thresholds are fixed before the points that test them are looked at. At each, the null hypothesis is that a risk is
above its share. The events among m independent trials are then stochastically no fewer than Bin(m, share), so
P(Bin(m, share) <= events) is a valid p-value. Thresholds are tested in order, the strictest first, each at the whole
level, until a hypothesis cannot be rejected: the first true hypothesis is rejected with a probability of at most
1 - confidence, and unless it is, no later one is tested (fixed-sequence testing; Angelopoulos, Bates, Candès, Jordan,
Lei 2021). Where several risks have to be low at once, the hypothesis is that any of them is high, and its p-value is
the largest of theirs.

Does not choose the thresholds, and does not compute evidence.

Shapes: t thresholds, b points.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from softkv.ndarrays import Flags, Reals


@dataclass(frozen=True, slots=True, eq=False)
class Risk:
    """Events that have to be rare among the points at or above a threshold, or (`of_all`) among all points."""

    evidence: Reals  # (b,)
    events: Flags | None  # (b,), which points are events if answered; None: the points below the threshold, of all
    share: float
    of_all: bool = False

    def at(self, threshold: float) -> tuple[int, int]:
        """The number of events at a threshold, and the number of trials."""
        answered = self.evidence >= threshold
        if self.events is None:
            return int((~answered).sum()), len(answered)
        return int((self.events & answered).sum()), len(answered) if self.of_all else int(answered.sum())


def at_most(events: int, trials: int, share: float) -> float:
    """The binomial probability P(Bin(trials, share) <= events).

    >>> round(at_most(0, 59, 0.05), 4), round(at_most(1, 2, 0.5), 4)
    (0.0485, 0.75)
    """
    if events >= trials:
        return 1.0
    done = np.arange(events)
    steps = np.log((trials - done) / (done + 1.0)) + math.log(share / (1.0 - share))
    logs = trials * math.log1p(-share) + np.concatenate([[0.0], np.cumsum(steps)])
    peak = float(logs.max())
    return min(1.0, math.exp(peak) * float(np.exp(logs - peak).sum()))


def fewest_trials(share: float, confidence: float) -> int:
    """How many trials without an event show, with this confidence, that fewer than this share are events.

    >>> fewest_trials(0.05, 0.95), fewest_trials(0.02, 0.95)
    (59, 149)
    """
    found = math.ceil(math.log(1.0 - confidence) / math.log1p(-share))
    while at_most(0, found, share) > 1.0 - confidence:  # possible by rounding
        found += 1
    return found


def laxest(thresholds: Reals, risks: Sequence[Risk], confidence: float) -> float | None:
    """The last of these thresholds, strictest first, up to which all risks are below their shares; None if none is."""
    found = None
    for threshold in thresholds.tolist():
        if p_value(threshold, risks) > 1.0 - confidence:
            break
        found = threshold
    return found


def p_value(threshold: float, risks: Sequence[Risk]) -> float:
    """The p-value of the hypothesis that any of these risks is above its share at a threshold."""
    return max(at_most(*risk.at(threshold), risk.share) for risk in risks)


def most_events(trials: int, share: float, confidence: float) -> int:
    """The most events in so many trials that still show, with this confidence, a rate below this share; -1 if none.

    A threshold below which so many of n scores lie marks no more than the share of later queries as unknown.
    """
    found = -1
    while at_most(found + 1, trials, share) <= 1.0 - confidence:
        found += 1
    return found
