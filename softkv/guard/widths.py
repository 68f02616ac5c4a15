"""How far off answers are apart from each other: a width for each, by what the store knows here.

The logarithm of a distance is regressed, by ridge regression, on the logarithms of the spread of the values (of numbers
alone; around a plane, where numbers are read off planes), of the mass and of the effective number. Any width keeps the
promise of an interval, since the distances it divides are calibrated; a good one keeps intervals narrow.

Does not calibrate (guard.py), and is never learned from points that do.

Shapes: b queries, f features.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RIDGE = 5.0  # of a coefficient of features whose deviation is 1
VARYING = 0.1  # of the logarithm of a feature: one that deviates by less tells little, and of equal items it is noise
FARTHEST = 4.0  # deviations: further out the widths stay as they are
LEAST, NEARLY = 0.01, 0.1  # of the value scale, added to spreads; of the median distance, added to distances

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class WidthRule:
    """Coefficients of the logarithm of the width: a constant, and one for each feature in units of its deviation."""

    least: float  # what spreads are taken to be at the least
    middles: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()

    @classmethod
    def learned(
        cls, distances: Floats, spread: Floats | None, log_mass: Floats, effective: Floats, *, items: int, scale: float
    ) -> "WidthRule":
        """The rule by which these distances are told best; a constant where all of them are 0."""
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
        spread: Floats | None,
        log_mass: Floats,
        effective: Floats,
        *,
        items: int,
        off: tuple[Any, Any, Any] = (0.0, 0.0, 0.0),
    ) -> npt.NDArray[np.float64]:
        """The widths of answers of so many items, (b,); the largest there may be where the three are off by so much.

        Each feature is told by one of the three and rises with it, so a width is largest at one end or the other.
        """
        ends = []
        for sign in (-1.0, 1.0):
            spreads = None if spread is None else spread + sign * off[0]
            told = _features(spreads, log_mass + sign * off[1], effective + sign * off[2], items, self.least)
            rows = (told - self.middles) / self.deviations
            ends.append(np.clip(rows, -FARTHEST, FARTHEST) * self.factors)
        found: npt.NDArray[np.float64] = np.exp(np.maximum(*ends).sum(1))
        return found


def _features(
    spread: Floats | None, log_mass: Floats, effective: Floats, items: int, least: float
) -> npt.NDArray[np.float64]:
    """What widths are told by, (b, f): masses and effective numbers for each item, so that more items move neither."""
    # No effective number is below 1, and no spread below 0, but for what an error is taken off.
    columns = [np.asarray(log_mass, np.float64), np.log(np.maximum(np.asarray(effective, np.float64), 1.0))]
    columns = [column - math.log(items) for column in columns]
    if spread is not None:
        columns.append(np.log(np.hypot(np.maximum(np.asarray(spread, np.float64), 0.0), least)))
    return np.stack(columns, axis=1)
