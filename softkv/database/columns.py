"""All items of a store as arrays, for models that load all of them.

Arrays come block by block, as views of the files where no row is deleted, so the caller may convert them to a smaller
type or move them to another device. Rows come in the order in which they lie on the disk.

Does not compare anything.

Shapes: n items, d key width, p value width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softkv.asking.learned import Learned
from softkv.asking.view import View
from softkv.guard.guard import Guard
from softkv.ndarrays import AnyArray, Matrix
from softkv.storage import Item

BLOCK = 1 << 16  # rows of a block, unless another number is asked for


@dataclass(frozen=True, slots=True, eq=False)
class StoreColumns:
    """The live items of one commit, and how the store compares them."""

    store: str  # the id of the store
    commit: int
    kind: str  # number, vector, label or text
    labels: tuple[str, ...] | None  # the names of the codes
    compatibility: str
    key_width: int
    value_width: int
    _view: View
    _rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, view: View) -> "StoreColumns":
        """The columns of a store that is not empty."""
        return cls(
            store=view.snapshot.store,
            commit=view.snapshot.commit,
            kind=view.layout.kind.value,
            labels=view.labels,
            compatibility=view.profile.compatibility or "dot",
            key_width=view.layout.key_width,
            value_width=view.layout.value_width,
            _view=view,
            _rows=np.flatnonzero(view.snapshot.live),
        )

    @property
    def temperature(self) -> float:
        """The temperature that the store remembers, or else the one by rule, which is computed when first used."""
        return self._view.temperature(self.compatibility).value

    @property
    def learned(self) -> Learned | None:
        """The metric that `fit` has learned, if any; an error if it cannot be read."""
        return self._view.learned

    @property
    def guard(self) -> tuple[Guard | None, str | None]:
        """What the store promises of its answers, if anything, and why that is not about the items of now."""
        return self._view.guard

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(self, rows: int = BLOCK) -> Iterator[tuple[Matrix, AnyArray]]:
        """Key vectors (b, d), and numbers (b,), codes of labels (b,) or vectors (b, p), some items at a time."""
        for block in self._view.snapshot.blocks(rows):
            if block.live.all():
                yield block.vectors, block.values
            elif block.live.any():
                yield block.vectors[block.live], block.values[block.live]

    def block(self, start: int, stop: int) -> tuple[Matrix, AnyArray]:
        """Key vectors and values, as those of `blocks`, of the items from one place to another."""
        rows = self._rows[start:stop]
        return self._view.snapshot.vectors(rows), self._view.snapshot.values(rows)

    def items(self, start: int, stop: int) -> list[Item]:
        """Everything about the items from one place to another."""
        return self._view.snapshot.items(self._rows[start:stop])
