"""Sums over the live values, which every commit updates, so that the values need not all be read.

They give the value scale: √(mean ‖v − v̄‖²) over live items; for labels, that of their one-hot codes. Sums are taken
around the mean of the first batch: around zero, values far from it would cancel (1e9 ± 1 has no spread left in Σv²).

Subtracting a value from a sum leaves the rounding of the larger sum behind. So a tally keeps the largest Σ it ever
had, and reports when what is left is lost in that rounding and must be summed anew.

Does not touch the disk.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softkv.errors import StoreDamaged
from softkv.ndarrays import AnyArray, Floats

# Numbers summed together: their float64 copy stays in the cache, and BLAS uses no second thread for a product of so
# few. Waiting for one made an add of wide values take four times as long when the machine was busy.
_CACHED = 1 << 13
_DROWNED = 1e-9  # share of the largest sum; what is left has then about seven digits


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of live values, and Σ‖v − origin‖² and Σ(v − origin) over them.

    For labels `squares` is the sum of the squared counts, and there is no origin.
    """

    count: int
    squares: float
    largest: float  # the largest `squares` since they were last summed anew
    origin: Floats
    total: Floats

    @classmethod
    def empty(cls, origin: Floats | None = None) -> "Tally":
        """The tally of no values."""
        origin = np.zeros(0) if origin is None else origin
        return cls(0, 0.0, 0.0, origin, np.zeros_like(origin))

    @property
    def spread(self) -> float:
        """Σ‖v − v̄‖² over the live values; for labels, which have no origin, Σv² as it is."""
        return max(0.0, self.squares - float(self.total @ self.total) / max(self.count, 1))

    @property
    def drowned(self) -> bool:
        """Whether rounding has made the sums too inexact.

        Digits are lost in two ways: by removing a value far from the rest, and by a mean far from the origin because
        the values that gave the origin are gone. Values that are all alike have no spread, and are not affected.
        """
        noise = self.count * float(self.origin @ self.origin) * float(np.finfo(np.float64).eps) ** 2
        return self.count > 0 and max(self.spread, noise) < _DROWNED * self.largest

    def changed(self, born: AnyArray, died: AnyArray) -> "Tally":
        """The tally after the values `born` were added and `died` removed, both of shape (n, width)."""
        start = self
        if not self.count:  # the sums are empty, so a new origin can be chosen and rounding dropped
            start = Tally.empty(born.mean(axis=0, dtype=np.float64) if len(born) else np.zeros(born.shape[1]))
        return start.plus(born).plus(died, sign=-1)

    def plus(self, values: AnyArray, *, sign: int = 1) -> "Tally":
        """The tally with values of shape (n, width) added, or with `sign` -1 subtracted."""
        squares, total = self.squares, self.total
        step = max(1, _CACHED // max(1, values.shape[1]))
        for start in range(0, len(values), step):
            shifted = values[start : start + step] - self.origin
            squares += sign * float(np.vdot(shifted, shifted))
            total = total + sign * shifted.sum(axis=0)
        return Tally(self.count + sign * len(values), squares, max(self.largest, squares), self.origin, total)

    def changed_labels(self, before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]) -> "Tally":
        """The tally after the counts of some labels changed from `before` to `after`."""
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
        """The tally from the bytes that `pack` returned."""
        if len(packed) % 16 != 8 or len(packed) < 24:
            raise StoreDamaged(f"the catalog's sums have {len(packed)} bytes, which no tally has")
        numbers = np.frombuffer(packed, "<f8").astype(np.float64)
        width = (len(numbers) - 3) // 2
        with np.errstate(over="ignore"):  # in the mean of damaged sums
            finite = np.isfinite(numbers).all() and np.isfinite(numbers[3 + width :] @ numbers[3 + width :])
        if not finite:
            raise StoreDamaged("the catalog's sums are not finite, but all values are. Run `softkv check`.")
        count, squares, largest = numbers[:3].tolist()
        return cls(int(count), squares, largest, numbers[3 : 3 + width], numbers[3 + width :])
