"""Which rows are dead, as one bit per row in blocks of 65,536: what opening a store reads instead of its items.

Immutable, so that a snapshot keeps its own while the store moves on. Does not touch the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.errors import StoreDamaged
from softkv.ndarrays import Flags, Rows

BLOCK = 1 << 16  # rows under one bitmap
BLOCK_BYTES = BLOCK // 8

Bitmap = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Deaths:
    """The bitmaps of the blocks that have any dead row, and how many rows are dead."""

    blocks: Mapping[int, Bitmap] = field(default_factory=dict)
    count: int = 0

    def __contains__(self, row: int) -> bool:
        bitmap = self.blocks.get(row // BLOCK)
        return bitmap is not None and bool(bitmap[row % BLOCK // 8] >> (row % 8) & 1)

    def replaced(self, changed: Mapping[int, Bitmap]) -> "Deaths":
        """The deaths with the bitmaps of these blocks replaced."""
        before = sum(_ones(self.blocks[block]) for block in changed if block in self.blocks)
        after = sum(_ones(bitmap) for bitmap in changed.values())
        return Deaths({**self.blocks, **changed}, self.count - before + after)

    def buried(self, rows: Rows) -> dict[int, Bitmap]:
        """The blocks that change when these rows die, with their new bitmaps."""
        changed = {}
        for block in np.unique(rows // BLOCK).tolist():
            known = self.blocks.get(block)
            bits = np.zeros(BLOCK, np.uint8) if known is None else np.unpackbits(known, bitorder="little")
            bits[rows[rows // BLOCK == block] % BLOCK] = 1
            changed[block] = np.packbits(bits, bitorder="little")
        return changed

    def live(self, rows: int) -> Flags:
        """For each of the first `rows` rows, whether it is live."""
        alive: Flags = np.ones(-(-rows // BLOCK) * BLOCK, np.bool_)
        for block, bitmap in self.blocks.items():
            if block * BLOCK < rows:  # a check of damaged files asks for fewer rows than there should be
                alive[block * BLOCK : (block + 1) * BLOCK] = np.unpackbits(bitmap, bitorder="little") == 0
        alive = alive[:rows]
        alive.flags.writeable = False
        return alive


def bitmap_of(blob: Any, block: int, rows: int) -> Bitmap:
    """The bitmap of a block from the catalog; damage is an error."""
    sound = isinstance(block, int) and isinstance(blob, bytes) and len(blob) == BLOCK_BYTES
    if not sound or not 0 <= block * BLOCK < max(rows, 1):
        raise StoreDamaged(f"the catalog's record of dead rows is damaged at block {block}. Run `softkv check`.")
    return np.frombuffer(blob, np.uint8)


def _ones(bitmap: Bitmap) -> int:
    return int(np.unpackbits(bitmap).sum(dtype=np.int64))
