"""The layout of a store: the names of its files, the widths of its rows.

Does not touch the disk.
"""

import os
import re
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from softkv.errors import ShapeError
from softkv.kinds import ValueKind as ValueKind

AnyPath: TypeAlias = str | os.PathLike[str]

FORMAT = 3  # the number of the format that this code writes
CATALOG, INDEX = "catalog.sqlite", "index"
BACKUP = "BACKUP"  # the file that marks a backup, which only another backup may write to
RESTORED = "RESTORED"  # the file that lists the stores from which this one was restored
GENERATION_NAME = re.compile(r"generation-([0-9]{6,18})\Z")
WINDOW = 1 << 20  # bytes of rows that one checksum covers in formats 1 and 2, and that are compared after a crash
GRANULE = 1 << 14  # bytes of rows that one checksum covers in new generations
WIDEST = 1 << 20  # numbers in one row; a width beyond it is a mistake or an attack


@dataclass(frozen=True, slots=True)
class RowShape:
    """The rows of one arena: its role in the store, the type and the number of the elements of a row."""

    role: str
    file: str
    dtype: str
    width: int

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return int(np.dtype(self.dtype).itemsize) * self.width


@dataclass(frozen=True, slots=True)
class Layout:
    """How wide keys are, what values are, and how wide values are (1 for numbers and labels)."""

    key_width: int
    kind: ValueKind
    value_width: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", ValueKind(self.kind))
        for what, width in (("key", self.key_width), ("value", self.value_width)):
            if not 1 <= width <= WIDEST:
                raise ShapeError(f"the {what} width is {width}; a store takes widths from 1 to {WIDEST}")
        if self.kind.narrow and self.value_width != 1:
            raise ShapeError(f"values of kind {self.kind.value!r} have width 1, not {self.value_width}")

    @property
    def keys(self) -> RowShape:
        """The rows of keys.f32."""
        return RowShape("keys", "keys.f32", "<f4", self.key_width)

    @property
    def values(self) -> RowShape:
        """The rows of values.<kind>."""
        return RowShape("values", f"values.{self.kind.value}", self.kind.dtype, self.value_width)

    @property
    def norms(self) -> RowShape:
        """The rows of norms.f32: derived from the keys, so their damage costs no item."""
        return RowShape("norms", "norms.f32", "<f4", 1)

    @property
    def arenas(self) -> tuple[RowShape, RowShape, RowShape]:
        """All arenas of a generation, those that must be durable before a commit first."""
        return self.keys, self.values, self.norms


def generation_name(generation: int) -> str:
    """The directory of a generation."""
    return f"generation-{generation:06d}"
