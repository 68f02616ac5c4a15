"""Look up queries in parts, since the weights of all of them would take too much memory to keep for gradients.

Each part is computed again for the backward pass, from the tensors of the forward pass; if rows or projections were
changed in place in between, that is an error, as in torch.

Does not look anything up itself (torch.py).

Shapes: b queries, n rows; "..." is any leading axes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softkv.errors import ShapeError

# Queries, the temperature, a mask and a bias -> what they find.
Attend = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def in_parts(
    ask: Attend,
    queries: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    *,
    held: Sequence[Tensor],
    step: int,
    axis: int,
) -> Tensor:
    """What queries (..., b, q) find, `step` of them at a time; they lie along `axis` of what is found.

    `held` is all that is looked at beside what is handed over.
    """
    versions = [one._version for one in held]

    def part(*given: Any) -> Tensor:
        # Subtle: torch checks only tensors that it has saved itself for changes in place, and it has not saved these.
        if [one._version for one in held] != versions:
            raise RuntimeError("rows that are needed for gradients were modified by an inplace operation meanwhile")
        return ask(*given)

    parts = [
        checkpoint(
            part,
            queries[..., start : start + step, :],
            temperature,
            _of_queries(mask, start, step),
            _of_queries(bias, start, step),
            use_reentrant=False,
        )
        for start in range(0, queries.shape[-2], step)
    ]
    return torch.cat(parts, axis)


def for_queries(given: Any, queries: Tensor) -> Any:
    """A mask or a bias as a tensor with one row for all queries, or one for each."""
    if given is None:
        return None
    given = torch.as_tensor(given, device=queries.device)
    if given.ndim > 1 and given.shape[-2] not in (1, queries.shape[-2]):
        raise ShapeError(
            f"expected a mask or bias for {queries.shape[-2]} queries, or for all of them, got {list(given.shape)}."
        )
    return given


def no_later(mask: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor:
    """The mask combined with the causal one, by which query i sees the rows up to i, (..., b, n)."""
    rows, asked = (torch.arange(count, device=queries.device) for count in (keys.shape[-2], queries.shape[-2]))
    seen = rows[None, :] <= asked[:, None]
    if mask is None:
        return seen
    if mask.dtype != torch.bool or mask.shape[-1] != len(rows):
        raise ShapeError(
            f"expected a boolean mask over {len(rows)} rows, got {mask.dtype} of shape {list(mask.shape)}."
        )
    return seen & mask


def _of_queries(given: Tensor | None, start: int, step: int) -> Tensor | None:
    """The part of a mask or a bias for some of the queries."""
    if given is None or given.ndim < 2 or given.shape[-2] == 1:
        return given
    return given[..., start : start + step, :]
