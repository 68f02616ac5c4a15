"""Load the contents of a store into a layer: rows, their keys, and the learned projection of queries.

Rows are copied block by block, so that they may have a shorter type than in the files, or be on another device.

Does not look anything up (torch.py).

Shapes: n items, d key width, r rank of what was learned, p value width; "..." is any leading axes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from softkv.asking.promised import promised
from softkv.asking.question import LEARNED, Question
from softkv.database import open as open_store
from softkv.database.columns import StoreColumns
from softkv.database.reader import Reader
from softkv.errors import KindError, NotFinite
from softkv.guard.guard import Guard
from softkv.kinds import ValueKind

TOGETHER = 1 << 16  # items that are loaded, or written back, at a time


@contextmanager
def reading(store: Reader | str | os.PathLike[str]) -> Iterator[StoreColumns]:
    """The columns of a store that is open, or of one at a path."""
    if isinstance(store, Reader):
        yield store.columns()
        return
    with open_store(store, "r") as db:
        yield db.columns()


def of_columns(
    columns: StoreColumns, *, dtype: torch.dtype, values_dtype: torch.dtype, device: Any, projected: bool
) -> tuple[Tensor, Tensor]:
    """The keys, projected if the store has learned a metric, and the values of all items, on a device."""
    learned = columns.learned if projected else None
    width = columns.key_width if learned is None else len(learned.metric.factors)
    keys = torch.empty(len(columns), width, dtype=dtype, device=device)
    kind = ValueKind(columns.kind)
    shape = (len(columns),) if kind.narrow else (len(columns), columns.value_width)
    values = torch.empty(shape, dtype=torch.int32 if kind.coded else values_dtype, device=device)
    start = 0
    for vectors, blended in columns.blocks(TOGETHER):
        some = slice(start, start + len(vectors))
        seen = vectors if learned is None else learned.metric.projected(vectors)
        keys[some], values[some] = tensor_of(seen), tensor_of(blended)
        start = some.stop
    for name, x in (("key vectors", keys), ("values", values)):
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise NotFinite(f"some {name} are beyond what {x.dtype} can hold. Take a longer dtype.")
    return keys, values


def names_of(columns: StoreColumns) -> list[str]:
    """The keys of all items, in their order."""
    starts = range(0, len(columns), TOGETHER)
    return [one.name for start in starts for one in columns.items(start, start + TOGETHER)]


def require_names(names: Sequence[str]) -> None:
    """Raise for items without keys, whose values cannot be replaced."""
    nameless = sum(name.startswith("#") for name in names)
    if nameless:
        raise KindError(
            f"{nameless:,} of the items to write have no key, so their values cannot be replaced. Add items with keys."
        )


def tensor_of(array: Any) -> Tensor:
    """An array as a tensor. Memory-mapped files are copied, since they are read-only, which tensors cannot be."""
    return torch.from_numpy(np.require(array, requirements=["W", "C"]))


def known_from(columns: StoreColumns, temperature: float, *, k: Any, heads: Any, projected: bool) -> float | None:
    """The evidence from which queries are known, if the store has a guard that applies to such lookups."""
    compared = LEARNED if projected else columns.compatibility
    question = Question(None, compatibility=compared, temperature=temperature, k=k, heads=heads)
    guard: Guard | None = promised(*columns.guard, question).get("guard")
    return None if guard is None else guard.threshold


class Projecting(nn.Module):
    """The learned projection of queries: L(q − c), with q scaled to length 1 where keys are directions."""

    def __init__(self, metric: Any, device: Any) -> None:
        super().__init__()
        self.directions = metric.directions
        rank, width = metric.factors.shape
        self.linear = nn.Linear(width, rank, device=device)
        with torch.no_grad():
            self.linear.weight.copy_(tensor_of(metric.factors))
            self.linear.bias.copy_(tensor_of(-(metric.factors.astype(np.float64) @ metric.centre)))

    def forward(self, queries: Tensor) -> Tensor:
        """The projected queries, (..., b, d) -> (..., b, r)."""
        queries = queries.to(self.linear.weight.dtype)
        found: Tensor = self.linear(functional.normalize(queries, dim=-1) if self.directions else queries)
        return found
