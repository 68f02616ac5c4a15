"""Which lists to open, and the expected error of leaving the others unread.

The error that an unread list adds is estimated as if logits were normal: the uncertainty of Σ e^x given count, mean and
variance, and that of the values given their slope. Lists are opened by how much error each saves per row to read; but
first of all the few that are likeliest to hold the best rows, which an answer has to name, and those that are nearest:
a row that is like the query lies in one of these, and statistics do not tell of it. What remains is the doubt:
the expected error of the answer as a share of the value scale. Real lists are not normal, so a doubt is no error bar;
calibration.py turns it into one.

Reads no rows.

Shapes: b queries, l lists, j levels.
"""

from dataclasses import dataclass

import numpy as np

from softkv.maths.farfield import Tilt, critical, logarithm
from softkv.maths.summaries import Lists
from softkv.ndarrays import Counts, Flags, Floats, Reals

# How many rows to read, as shares of all that are in lists.
LEVELS = tuple(float(f"{share:.3g}") for share in np.geomspace(0.001, 0.4, 14))
FIRST = 3  # lists that are opened at every level
NEAREST = 4  # and of those nearest to the query
LIKELY = 512  # lists in which the best rows are searched
FAR = 8.0  # all rows are expected within so many standard deviations of the mean
HALVINGS = 20  # steps of the bisection for the logit of the last of them
STEEP = 40.0  # the largest variance that is exponentiated: such a list is opened before all others anyway


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """The order in which lists are opened, and where the levels stop."""

    order: Counts  # (b, l)
    stops: Counts  # (b, j), how many lists are open at a level
    doubts: Reals  # (b, j), the expected error then, as a share of the value scale
    mass_doubts: Reals  # (b, j), that of the mass, as a share of it
    log_mass: Reals  # (b,), of all lists, estimated
    firsts: Counts  # (b,), how many are open at every level
    apart: Reals  # (b, l), how far the values of each list are from the estimated answer, on average


def opening(
    lists: Lists,
    tilt: Tilt,
    *,
    scale: float,
    near: Counts | None = None,
    made_of: Counts | None = None,
    likely: Reals | None = None,
) -> Opening:
    """In which order lists are opened for some queries; `scale` is the value scale, and `likely` as in `likeliest`.

    Those of (b, m) `near` are opened in any case.

    `made_of`, (l,), is how many rows lists were made of, if they have another number now. Errors were rehearsed with
    that number: with more rows the shape of a list, and so its error, stays the same.
    """
    added = _added(lists, tilt, lists.counts if made_of is None else made_of)
    log_errors, some = added.log_errors, min(FIRST, len(lists.counts))
    # By their logarithms: at low temperatures most errors are so small beside the largest that they are 0 as floats.
    priority = log_errors - logarithm(np.maximum(lists.counts, 1))
    likely = likeliest(lists, tilt) if likely is None else likely
    np.put_along_axis(priority, np.argpartition(-likely, some - 1, axis=1)[:, :some], np.inf, axis=1)
    if near is not None:
        np.put_along_axis(priority, near, np.inf, axis=1)
    firsts = (priority == np.inf).sum(1)
    order = np.argsort(-priority, axis=1)
    read = np.take(lists.counts, order).cumsum(1, dtype=np.float64)
    levels = np.array(LEVELS) * float(lists.counts.sum())
    stops = [np.searchsorted(row, levels, side="right") for row in read]
    stops = np.maximum(np.stack(stops), firsts[:, None])

    def left(logs: Reals) -> Reals:
        """The square root of the sum over the lists that are not opened, as a share of the mass, (b, j)."""
        squares = np.take_along_axis(np.exp(logs), order, axis=1)
        # Summed from the end: the difference of two large sums would be lost in rounding.
        sums = np.zeros((len(order), order.shape[1] + 1))
        sums[:, :-1] = squares[:, ::-1].cumsum(1, dtype=np.float64)[:, ::-1]
        shares: Reals = np.sqrt(np.take_along_axis(sums, stops, axis=1)) / added.mass[:, None]
        return shares

    doubts, mass_doubts = left(log_errors) / (scale or 1.0), left(added.log_mass_errors)
    return Opening(order, stops, doubts, mass_doubts, added.log_mass, firsts, added.apart)


def nearest(lists: Lists, tilt: Tilt, queries: Reals, count: int, *, by_distance: bool) -> Counts:
    """The lists whose means are nearest to queries, (b, d) as the tilt takes them: (b, m), at most `count` for each.

    A key that is like a query lies in one of these, also where another list is likelier to hold the best row. Where
    logits are no distances, queries count as being as long as usual keys.
    """
    close = tilt.peaks
    if not by_distance:
        longest = np.sqrt(np.einsum("bd,bd->b", queries, queries))[:, None]
        close = close * (lists.usual_length / np.where(longest > 0, longest, 1.0)) - lists.lengths / 2
    close = np.where(lists.counts > 0, close, -np.inf)
    some = min(count, close.shape[1])
    return np.argpartition(-close, some - 1, axis=1)[:, :some]


def closeness(lists: Lists, tilt: Tilt, queries: Reals) -> Floats:
    """How close each query, (b, d) as the tilt takes them, points to the mean of a list: the highest cosine, (b,)."""
    longest = np.sqrt(np.einsum("bd,bd->b", queries, queries, dtype=np.float64))[:, None] * np.sqrt(lists.lengths)
    there = (lists.counts > 0) & (longest > 0)
    found: Floats = np.divide(tilt.peaks, longest, out=np.full(longest.shape, -1.0), where=there).max(1)
    return found


def ranked(lists: Lists, tilt: Tilt, k: int, most: Floats) -> tuple[Counts, Reals]:
    """The lists to open when only the k best rows are wanted, (b, m), and the share found before each of them.

    A logit above which k rows are expected says how many of these each list holds, if logits are normal up to `most`,
    (b,), above which none can be. Without that end, a list of a few far keys, whose logits spread a thousand times as
    much as those of others, would be expected to hold half of the best rows of every query.
    """
    best = likeliest(lists, tilt)
    some = min(LIKELY, best.shape[1])
    likely = np.argpartition(-best, some - 1, axis=1)[:, :some]
    likely = np.take_along_axis(likely, np.argsort(-np.take_along_axis(best, likely, axis=1), axis=1), axis=1)
    means, counts = np.take_along_axis(tilt.peaks, likely, axis=1), lists.counts[likely]
    deviations = np.sqrt(np.take_along_axis(tilt.variances, likely, axis=1)) + np.finfo(np.float32).tiny
    there = counts > 0  # empty lists have no mean, and nothing is expected of them
    end = most.astype(means.dtype)[:, None]
    low = np.where(there, means - FAR * deviations, np.inf).min(1, keepdims=True)
    high = np.minimum(np.where(there, means + FAR * deviations, -np.inf).max(1, keepdims=True), end)
    with np.errstate(over="ignore"):  # of a list whose keys are all alike
        beyond = counts * _above((end - means) / deviations)
        impossible = beyond.sum(1, keepdims=True)
        # Half of the rows of a list are above its mean: without this, halvings of what far lists span would not do.
        below = np.argsort(-means, axis=1)
        above = np.take_along_axis(np.maximum(0.5 * counts - beyond, 0.0), below, axis=1).cumsum(1) > k
        first = np.take_along_axis(means, np.take_along_axis(below, above.argmax(1)[:, None], axis=1), axis=1)
        low = np.where(above[:, -1:], first, low)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            more = (counts * _above((middle - means) / deviations)).sum(1, keepdims=True) - impossible > k
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        expected = np.maximum(counts * _above((low - means) / deviations) - beyond, 0.0)
    before = expected.cumsum(1) - expected
    return likely, before / np.maximum(expected.sum(1, keepdims=True), np.finfo(np.float32).tiny)


def needed(lists: Lists, order: Counts, before: Reals, owners: Counts) -> Reals:
    """The share of the best rows that is expected when the last of the lists `owners`, (b, k), is opened, (b,).

    `before` is that share for each list in order. 1 if an owner is not among the lists; -1 is no list and is ignored.
    """
    shares = np.ones((len(order), len(lists.counts) + 1))
    shares[:, -1] = 0.0
    np.put_along_axis(shares, order, before, axis=1)
    found: Reals = np.take_along_axis(shares, owners, axis=1).max(1)
    return found


def _above(deviations: Reals) -> Reals:
    """The share of a normal distribution above so many standard deviations, to a few percent of itself (Lin, 1989)."""
    far = np.minimum(np.abs(deviations), 12.0)
    tail = 0.5 * np.exp(-0.717 * far - 0.416 * far * far)
    return np.where(deviations > 0, tail, 1.0 - tail)


def closed(order: Counts, stops: Counts, lists: int) -> Flags:
    """Which of so many lists stay closed if each query opens its first (b,) lists, (b, l)."""
    found = np.ones((len(order), lists), np.bool_)
    np.put_along_axis(found, order, np.arange(order.shape[1]) >= stops[:, None], axis=1)
    return found


def likeliest(lists: Lists, tilt: Tilt) -> Reals:
    """The expected logit of the best row of each list, if logits are normal, (b, l)."""
    return np.where(lists.counts > 0, tilt.peaks + np.sqrt(tilt.variances) * critical(lists.counts), -np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class _Added:
    """What lists add to sums, and how wrong that may be; relative to the largest mass of a list."""

    log_errors: Reals  # (b, l), the logarithms of the squared errors of sums of values
    log_mass_errors: Reals  # (b, l), and of masses
    mass: Reals  # (b,), of all lists
    log_mass: Reals  # (b,), its logarithm, not relative to anything
    apart: Reals  # (b, l), how far the values of lists are from the answer


def _added(lists: Lists, tilt: Tilt, made_of: Reals | Counts) -> _Added:
    peak = tilt.logs.max(1)
    logs = tilt.logs - peak[:, None]
    masses = np.exp(logs)
    mass = masses.sum(1)
    apart = lists.distances(masses @ lists.values / mass[:, None])
    variances = np.minimum(tilt.variances * tilt.thaw * tilt.thaw, STEEP)
    first = np.expm1(variances)
    third = np.maximum(first - variances - variances * variances / 2, 0.0)
    beyond = variances - np.minimum(tilt.within, variances)
    # In the precision of the statistics, as in the rehearsal: doubts that were 0 in it have to be 0.
    count = np.clip(lists.counts, 1, np.maximum(made_of, 1)).astype(lists.counts.dtype, copy=False)
    shape = third + beyond * beyond / 2  # of what count, mean and variance leave open
    squares, there = (shape * apart * apart + first * lists.noise) / count, lists.counts > 0
    log_errors, log_mass_errors = (
        np.where(there, 2.0 * logs + logarithm(x), -np.inf) for x in (squares, shape / count)
    )
    return _Added(log_errors, log_mass_errors, mass, peak + logarithm(mass), apart)
