"""How much of what was stated may have held, after so many builds of which each was asked many times.

Answers of one build share its items and its lists, so they are no independent trials; builds are. With m answers of a
build, of which c are within what they state, the share p = Σc/Σm is a ratio of two sums over builds, and to first order

    variance = B/(B − 1) Σ (c − p·m)² / (Σm)²

(Cochran, Sampling Techniques, 1977, §2.11, 9A), of which Student's t makes a limit. Builds of which many answers were
measured count for more, so that they are no more than B′ = (Σm)²/Σm² equal ones: t has B′ − 1 degrees of freedom. By
chance builds may agree better than independent trials would, at the extreme wholly; so the limit is no lower than that
of Clopper and Pearson (1934) for Σm independent ones.

Shapes: B builds.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

SURE = 0.999


def upper_limit(held: Sequence[float], asked: Sequence[int], sure: float = SURE) -> float:
    """What the share that holds is below, this sure; of each build, how many held of how many.

    >>> upper_limit([95, 95, 95], [100, 100, 100]) == upper_limit([285], [300])
    True
    >>> round(upper_limit([80, 100, 90], [100, 100, 100], 0.975), 3)
    1.0
    """
    counts, all_held, all_asked = np.array([held, asked], np.float64), sum(held), sum(asked)
    if all_held == all_asked:
        return 1.0
    exact = float(stats.beta.ppf(sure, all_held + 1, all_asked - all_held))
    builds, share = int((counts[1] > 0).sum()), all_held / all_asked
    if builds < 2:
        return exact
    squares = float(np.square(counts[0] - share * counts[1]).sum()) * builds / (builds - 1)
    freedom = max(all_asked**2 / float(np.square(counts[1]).sum()) - 1.0, 0.5)
    clustered = share + float(stats.t.ppf(sure, freedom)) * math.sqrt(squares) / all_asked
    return min(1.0, max(exact, clustered))
