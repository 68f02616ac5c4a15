"""float32 numbers as decimals that are short and come back exactly.

float32 → decimal → float64 → float32 rounds twice, and the shortest float32 digits alone do not guarantee that the
second rounding returns the same number. So each decimal is tried here as it will be read: rounded in float64 and cast.

A number that is not finite has no decimal; stores hold none.
"""

import json
from typing import Any

import numpy as np

from softkv.ndarrays import Flags, Floats, Matrix

_EXACT = 1e22  # the largest power of ten that float64 holds exactly


def _powers(fewer: int) -> Floats:
    """For each exponent of a float32, the power of ten by which its numbers differ by 1 or more; or so much less."""
    steps = np.maximum(np.arange(256), 1) - 150.0  # log2 of the distance to the next float32
    places = np.clip(np.ceil(-steps * np.log10(2)) - fewer, 0, None).astype(int)
    return np.array([float(f"1e{place}") for place in places])


_FINE, _COARSE = _powers(0), _powers(1)


def rows_as_json(matrix: Matrix) -> list[str]:
    """Each row as a JSON list. Nine digits always suffice; where they read as fewer, fewer are written."""
    decimals, plain = _decimals(matrix)
    short: Any = plain.all(axis=1)
    pattern = "[" + ",".join(["%.9g"] * matrix.shape[1]) + "]"
    # One pattern for a whole row takes half the time that json.dumps takes.
    return [
        pattern % tuple(row) if few else json.dumps(row, separators=(",", ":"))
        for row, few in zip(decimals.tolist(), short, strict=True)
    ]


def _decimals(matrix: Matrix) -> tuple[Floats, Flags]:
    """float64 numbers that cast to those of `matrix`, with few digits where possible; and which have at most nine."""
    exponents = (np.ascontiguousarray(matrix).view(np.uint32) >> 23) & 255
    exact = matrix.astype(np.float64)
    decimals, found = exact.copy(), np.zeros(matrix.shape, np.bool_)
    for power in (_FINE[exponents], _COARSE[exponents]):  # the coarser one last, so that it is preferred
        tried = np.rint(exact * power) / power
        same = (tried.astype(np.float32) == matrix) & (power <= _EXACT)
        decimals, found = np.where(same, tried, decimals), found | same
    # Subtle: "%.9g" writes -0.0 as -0, an integer in JSON, which has no sign; and large whole numbers have more digits.
    found |= exact == 0
    return decimals, found & (np.abs(exact) < 1e9) & ~((exact == 0) & np.signbit(exact))
