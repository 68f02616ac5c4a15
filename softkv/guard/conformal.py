"""Split conformal prediction: bounds on the next score, from the scores of calibration points.

Where n + 1 scores are exchangeable, the rank of the last among all is uniform, whatever they are scores of. So it is at
most the k-th smallest of the n others with a probability of at least k / (n + 1), and exactly so where none are equal
(Vovk, Gammerman, Shafer 2005; Lei, G'Sell, Rinaldo, Tibshirani, Wasserman 2018).

Does not know what the scores measure, and does not check that they are exchangeable.

Shapes: n calibration points, b queries, c labels.
"""

import base64
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.ndarrays import Codes, Flags, Floats, Reals

KEPT, ENDS = 400, 50  # of more than KEPT scores these are kept: the first and last ENDS, and evenly spaced ones between
ROUNDED = 2.0**-23  # relative rounding of sums, and of scores that are kept as float32


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The scores of n points in order. Of many, only some are kept; one between two of them counts as the larger."""

    values: Reals
    count: int  # n

    @classmethod
    def of(cls, scores: Reals) -> "Ranked":
        """Rank scores, of which some may be infinite.

        >>> Ranked.of(np.arange(9.0)).quantile(0.8), Ranked.of(np.arange(9.0)).quantile(0.95)
        (7.0, inf)
        """
        ordered = np.sort(_rounded_up(scores))
        return cls(ordered[_ranks(len(ordered)) - 1], len(ordered))

    def quantile(self, share: float) -> float:
        """A bound that one more score keeps with at least this probability; infinite if there are too few scores."""
        # Rounded, since the float 0.9 is a little more than 0.9, and 0.9 of 10 scores has to be the 9th.
        rank = math.ceil(round((self.count + 1) * share, 9))
        place = int(np.searchsorted(_ranks(self.count), rank))
        return float(self.values[place]) if place < len(self.values) else math.inf

    @property
    def most(self) -> float:
        """The largest share whose quantile is finite; 0 where none is."""
        return float(np.max(_ranks(self.count)[np.isfinite(self.values)], initial=0)) / (self.count + 1)

    def p_values(self, seen: Reals) -> Floats:
        """The p-values of scores, (b,): (1 + #{scores <= seen}) / (n + 1), small for a low score.

        For a score that is exchangeable with the ranked ones, P(p-value <= p) <= p.
        """
        places = np.searchsorted(self.values, _rounded_up(seen), side="right")
        after = np.append(_ranks(self.count), self.count + 1)[places]
        return np.asarray(after / (self.count + 1), np.float64)

    def to_json(self) -> dict[str, Any]:
        """The scores as JSON."""
        return {"count": self.count, "values": base64.b64encode(self.values.astype("<f4").tobytes()).decode()}

    @classmethod
    def from_json(cls, told: Any) -> "Ranked":
        """Read the result of `to_json`; a ValueError if it is malformed."""
        values = np.frombuffer(base64.b64decode(told["values"], validate=True), "<f4").astype(np.float32)
        count = told["count"]
        if (
            not isinstance(count, int)
            or count < 1
            or len(values) != len(_ranks(count))
            or not (values[1:] >= values[:-1]).all()
        ):
            raise ValueError("scores out of order")
        return cls(values, count)


def _rounded_up(scores: Reals) -> npt.NDArray[np.float32]:
    """Scores as float32, rounded up, so that bounds made of them remain bounds."""
    near = np.asarray(scores, np.float32)
    return np.where(near < scores, np.nextafter(near, np.float32(np.inf)), near)


@lru_cache(maxsize=16)
def _ranks(count: int) -> npt.NDArray[np.int64]:
    """The ranks, counted from 1, that are kept of `count` ordered scores."""
    spread = np.linspace(1, count, KEPT - 2 * ENDS).round().astype(np.int64).tolist()
    few = range(1, count + 1) if count <= KEPT else {*range(1, ENDS + 1), *spread, *range(count - ENDS + 1, count + 1)}
    ranks = np.array(sorted(few))
    ranks.flags.writeable = False
    return ranks


def fewest_points(share: float) -> int:
    """How many calibration points it takes to promise this share: the least n with n / (n + 1) >= share.

    >>> fewest_points(0.9), fewest_points(0.95)
    (9, 19)
    """
    return math.ceil(round(share / (1.0 - share), 9))


def heavier(shares: Reals, right: Codes) -> Floats:
    """The mass of the labels heavier than the right one, (b, c), (b,) -> (b,).

    Infinite where the right label is -1, that is where no item has it. This is the score of adaptive prediction sets
    (Romano, Sesia, Candès 2020) without randomisation: the heaviest label scores 0, so that no set is empty.
    """
    own = np.take_along_axis(shares, np.maximum(right, 0)[:, None], axis=1)
    found = np.where(shares > own, shares, 0.0).sum(1, dtype=np.float64)
    return np.where(right >= 0, found, np.inf)


def within(shares: Reals, most: float, error: Any = 0.0) -> Flags:
    """The labels whose score `heavier` may be `most` or less, (b, c); with `most` >= 0 the heaviest is one of them.

    The vector of shares may be off by a distance of `error`, (b,); NaN where that is unknown. The difference of two
    shares is then off by at most √2 errors, so only a label that is heavier by more than that is surely heavier; and
    the sum of m shares is off by at most √m errors. The mass of the surely heavier labels, less √m errors, is a lower
    bound of the exact score, so that no label of the exact set is left out.
    """
    off = np.fmin(np.broadcast_to(error, len(shares)), 2.0)[:, None]  # no two distributions are further apart than √2
    edges = np.concatenate([shares + math.sqrt(2.0) * off, shares], axis=1)
    # Subtle: an edge sorts before the shares that equal it, so without an error a label of equal share is not heavier.
    order = np.argsort(-edges, axis=1, kind="stable")
    masses = np.concatenate([np.zeros_like(shares), shares], axis=1, dtype=np.float64)
    sums = np.cumsum(np.take_along_axis(masses, order, axis=1), axis=1)
    sums -= off * np.sqrt(np.cumsum(order >= shares.shape[1], axis=1))
    surely = np.empty_like(sums)
    np.put_along_axis(surely, order, sums, axis=1)
    return surely[:, : shares.shape[1]] * (1.0 - ROUNDED) <= most
