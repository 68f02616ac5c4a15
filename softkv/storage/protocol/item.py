"""What a snapshot hands out: one item as it was given, and blocks of rows as they lie."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.ndarrays import AnyArray, Flags, Matrix

Value = float | str | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One item as it was given: `key` is None when it has none, and then `name` is `#<number>`."""

    row: int
    number: int
    key: str | None
    vector: npt.NDArray[np.float32]
    value: Value
    payload: Any
    text: str | None

    @property
    def name(self) -> str:
        """The key, or `#<number>` for an item without one."""
        return f"#{self.number}" if self.key is None else self.key


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive rows as views of the files themselves, and which of them are live."""

    start: int
    vectors: Matrix
    values: AnyArray
    live: Flags
