"""Sums over the live values that every commit keeps up to date, so that nobody has to read them all.

They give the value scale: √(mean ‖v − v̄‖²) over live items; for labels, that of their one-hot codes. Sums are taken
around the mean of the first batch: around zero, values far from it would cancel (1e9 ± 1 has no spread left in Σv²).

Taking a value away from a sum leaves the rounding of the larger sum behind. So a tally remembers the largest Σ it ever
held, and says when what is left has drowned in its rounding and must be summed anew.

Does not touch the disk.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.errors import StoreDamaged

Sums = npt.NDArray[np.float64]

# Numbers summed together: their float64 copy stays in the cache, and BLAS shares a product of so few with
# no other thread, for which it would have to wait: beside other work an add of wide values took four times as long.
_CACHED = 1 << 13
_DROWNED = 1e-9  # of the largest sum; what is left is then known to about seven digits


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of live values, and Σ‖v − origin‖² and Σ(v − origin) over them.

    For labels `squares` is the sum of the squared counts, and there is no origin.
    """

    count: int
    squares: float
    largest: float  # of `squares`, since they were summed anew
    origin: Sums
    total: Sums

    @classmethod
    def empty(cls, origin: Sums | None = None) -> "Tally":
        """The tally of no values."""
        origin = np.zeros(0) if origin is None else origin
        return cls(0, 0.0, 0.0, origin, np.zeros_like(origin))

    @property
    def spread(self) -> float:
        """Σ‖v − v̄‖² over the live values; for labels, which have no origin, Σv² as it is."""
        return max(0.0, self.squares - float(self.total @ self.total) / max(self.count, 1))

    @property
    def drowned(self) -> bool:
        """Whether rounding has eaten too much of the sums.

        Both ways lose digits: taking away a value far from the rest, and a mean far from the origin because the
        values that the origin was taken from are gone. Values that are all alike have no spread, and are well.
        """
        noise = self.count * float(self.origin @ self.origin) * float(np.finfo(np.float64).eps) ** 2
        return self.count > 0 and max(self.spread, noise) < _DROWNED * self.largest

    def changed(self, born: npt.NDArray[Any], died: npt.NDArray[Any]) -> "Tally":
        """After these values came in and those went out, both of shape (n, width)."""
        start = self
        if not self.count:  # nothing is summed, so the origin is free to choose, and what rounding left can go
            start = Tally.empty(born.mean(axis=0, dtype=np.float64) if len(born) else np.zeros(born.shape[1]))
        return start.plus(born).plus(died, sign=-1)

    def plus(self, values: npt.NDArray[Any], *, sign: int = 1) -> "Tally":
        """The tally with values of shape (n, width) added, or taken away."""
        squares, total = self.squares, self.total
        step = max(1, _CACHED // max(1, values.shape[1]))
        for start in range(0, len(values), step):
            shifted = values[start : start + step] - self.origin
            squares += sign * float(np.vdot(shifted, shifted))
            total = total + sign * shifted.sum(axis=0)
        return Tally(self.count + sign * len(values), squares, max(self.largest, squares), self.origin, total)

    def changed_labels(self, before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]) -> "Tally":
        """After the counts of some labels went from `before` to `after`."""
        squares = self.squares + float((after * after - before * before).sum())
        return Tally(self.count + int((after - before).sum()), squares, squares, self.origin, self.total)

    def scale(self) -> float:
        """√(mean ‖v − v̄‖²) over the live values; 0 when there are none."""
        if not self.count:
            return 0.0
        if not len(self.origin):  # labels: 1 − Σp²
            return float(np.sqrt(max(0.0, 1.0 - self.squares / self.count**2)))
        return float(np.sqrt(self.spread / self.count))

    def pack(self) -> bytes:
        """The tally as little-endian float64: count, squares, largest, origin, total."""
        head = [self.count, self.squares, self.largest]
        return np.concatenate([head, self.origin, self.total]).astype("<f8").tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> "Tally":
        """What `pack` gave."""
        if len(packed) % 16 != 8 or len(packed) < 24:
            raise StoreDamaged(f"the catalog's sums have {len(packed)} bytes, which no tally has")
        numbers = np.frombuffer(packed, "<f8").astype(np.float64)
        width = (len(numbers) - 3) // 2
        with np.errstate(over="ignore"):  # of a mean that no values have
            finite = np.isfinite(numbers).all() and np.isfinite(numbers[3 + width :] @ numbers[3 + width :])
        if not finite:
            raise StoreDamaged("the catalog's sums are not finite, but all values are. Run `softkv check`.")
        count, squares, largest = numbers[:3].tolist()
        return cls(int(count), squares, largest, numbers[3 : 3 + width], numbers[3 + width :])
