"""The expected error of each answer relative to the others (its width), predicted from what the store knows there.

Ridge regression predicts the logarithm of the distance from the right value. Its features are the logarithms of the
spread of the values (for numbers only; around a plane, where numbers are read off planes), of the mass and of the
effective number. The promise of an interval holds with any widths, since distances divided by them are calibrated; good
ones keep intervals narrow.

Does not calibrate (guard.py), and is never learned from the points that calibrate.

Shapes: b queries, f features.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.ndarrays import Floats, Reals

RIDGE = 5.0  # penalty of a coefficient, for features with a standard deviation of 1
VARYING = 0.1  # smallest deviation of a logarithmic feature: less tells little, and for equal items it is noise
FARTHEST = 4.0  # deviations from the mean; features are clipped to this range
LEAST, NEARLY = 0.01, 0.1  # shares: of the value scale, added to spreads; of the median distance, added to distances


@dataclass(frozen=True, slots=True)
class WidthRule:
    """The coefficients of the logarithm of the width, one for each feature in units of its deviation."""

    least: float  # added to spreads, in quadrature
    middles: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()

    @classmethod
    def learned(
        cls, distances: Reals, spread: Reals | None, log_mass: Reals, effective: Reals, *, items: int, scale: float
    ) -> "WidthRule":
        """The rule that predicts these distances best; a constant where all of them are 0."""
        least = LEAST * (scale or 1.0)
        near = NEARLY * float(np.median(distances)) or least
        features = _features(spread, log_mass, effective, items, least)
        middles, deviations = features.mean(0), np.maximum(features.std(0), VARYING)
        rows = (features - middles) / deviations
        logs = np.log(distances + near)
        factors = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(rows.shape[1]), rows.T @ (logs - logs.mean()))
        return cls(least, tuple(middles.tolist()), tuple(deviations.tolist()), tuple(factors.tolist()))

    def of(
        self,
        spread: Reals | None,
        log_mass: Reals,
        effective: Reals,
        *,
        items: int,
        off: tuple[Any, Any, Any] = (0.0, 0.0, 0.0),
    ) -> Floats:
        """The widths of answers of so many items, (b,); with errors (`off`) of the three arrays, the largest possible.

        Each feature depends on one of the three arrays and rises with it, so a width is largest at one of the ends.
        """
        ends = []
        for sign in (-1.0, 1.0):
            spreads = None if spread is None else spread + sign * off[0]
            told = _features(spreads, log_mass + sign * off[1], effective + sign * off[2], items, self.least)
            rows = (told - self.middles) / self.deviations
            ends.append(np.clip(rows, -FARTHEST, FARTHEST) * self.factors)
        found: Floats = np.exp(np.maximum(*ends).sum(1))
        return found


def _features(spread: Reals | None, log_mass: Reals, effective: Reals, items: int, least: float) -> Floats:
    """The features of widths, (b, f); masses and effective numbers are per item, so as not to grow with the items."""
    # An effective number is at least 1 and a spread at least 0; less an error they may fall below that.
    columns = [np.asarray(log_mass, np.float64), np.log(np.maximum(np.asarray(effective, np.float64), 1.0))]
    columns = [column - math.log(items) for column in columns]
    if spread is not None:
        columns.append(np.log(np.hypot(np.maximum(np.asarray(spread, np.float64), 0.0), least)))
    return np.stack(columns, axis=1)
