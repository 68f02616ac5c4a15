"""The operations of library.py in torch, so that gradients flow through a lookup. Imported once a tensor is seen.

Does not compute anything that NumPy would not. What "spends" an array does so only where no gradient needs it.
"""

import functools
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import numpy as np
import torch

from softkv.errors import KindError
from softkv.maths.library import Array, DType, Library

LARGE = 1 << 25  # numbers of 4 bytes that every GPU has room for, beside what it works on
SHARE = 1 << 10  # a GPU holds as many numbers at once as it has KiB of memory


class Torch:
    """The operations, in torch."""

    exp, log, log1p, tanh = torch.exp, torch.log, torch.log1p, torch.tanh
    where, finite, einsum = torch.where, torch.isfinite, staticmethod(torch.einsum)

    def array(self, given: object, *, like: Array | None = None) -> Array:
        """A tensor, on the device of the one it goes with."""
        device = like.device if isinstance(like, torch.Tensor) else None
        try:
            x = given if isinstance(given, torch.Tensor) else _shared(given, device)
        except (TypeError, ValueError) as error:
            raise KindError(f"expected numbers in rows of one width, got {error}. Convert them to a tensor.") from None
        if x.is_complex():
            raise KindError(f"expected a tensor of real numbers, got {x.dtype}. Convert it.")
        return x

    def shared_float(self, *arrays: Array) -> DType:
        """The widest floating type among the tensors, at least float32; torch's default when none has one."""
        shared = torch.float32
        floats = [x.dtype for x in arrays if x.is_floating_point()]
        for dtype in floats or [torch.get_default_dtype()]:
            shared = torch.promote_types(shared, dtype)
        return shared

    def cast(self, x: Array, dtype: DType) -> Array:
        return x.to(dtype)

    def double(self, x: Array) -> Array:
        # Apple's GPUs have no float64; sums are float32 there.
        return x.to(torch.float32 if x.device.type == "mps" else torch.float64)

    def is_double(self, x: Array) -> bool:
        return x.dtype in (torch.float64, torch.int64)

    def epsilon(self, dtype: DType) -> float:
        return float(torch.finfo(dtype).eps)

    def is_boolean(self, x: Array) -> bool:
        return bool(x.dtype == torch.bool)

    def is_integer(self, x: Array) -> bool:
        return not (x.is_floating_point() or x.dtype == torch.bool)

    def is_large_device(self, x: Array) -> bool:
        return bool(x.device.type != "cpu")

    def at_once(self, x: Array, cached: int) -> int:
        return room(x.device) if self.is_large_device(x) else cached

    def unrounded(self, x: Array) -> AbstractContextManager[None]:
        return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)

    def full(self, shape: Sequence[int], fill: float, *, like: Array) -> Array:
        return torch.full(tuple(shape), fill, dtype=like.dtype, device=like.device)

    def indices(self, start: int, stop: int, *, like: Array) -> Array:
        return torch.arange(start, stop, device=like.device)

    def constant(self, x: Array) -> Array:
        return x.detach()

    def spend_exp(self, spent: Array) -> Array:
        return spent.exp() if _tracked(spent) else spent.exp_()

    def spend_exp_times(self, spent: Array) -> tuple[Array, Array]:
        weights = spent.exp()
        return weights, (spent * weights).sum(-1)

    def spend_minus(self, spent: Array, other: Array) -> Array:
        return spent - other if _tracked(spent, other) else spent.sub_(other)

    def spend_maximum(self, spent: Array, least: float) -> Array:
        return spent.clamp(min=least) if _tracked(spent) else spent.clamp_(min=least)

    def spend_times(self, spent: Array, other: Array | float) -> Array:
        return spent * other if _tracked(spent, other) else spent.mul_(other)

    def spend_plus(self, spent: Array, other: Array) -> Array:
        return spent + other if _tracked(spent, other) else spent.add_(other)

    def maximum(self, x: Array, y: Array | float) -> Array:
        return torch.maximum(x, y) if isinstance(y, torch.Tensor) else x.clamp(min=y)

    def minimum(self, x: Array, y: Array | float) -> Array:
        return torch.minimum(x, y) if isinstance(y, torch.Tensor) else x.clamp(max=y)

    def largest(self, x: Array) -> Array:
        return x.amax(-1)

    def bounds(self, x: Array) -> tuple[Array, Array]:
        return x.amin(-2), x.amax(-2)

    def total(self, x: Array) -> Array:
        return x.sum(-1)

    def multiply_total(self, x: Array, y: Array) -> Array:
        return (x * y).sum(-1)

    def kth_largest(self, x: Array, k: int) -> Array:
        return x.topk(k, dim=-1).values[..., -1]

    def descending(self, x: Array) -> Array:
        return x.argsort(dim=-1, descending=True, stable=True)

    def join(self, parts: Sequence[Array], axis: int) -> Array:
        return torch.cat(list(parts), dim=axis)

    def take_along(self, x: Array, index: Array, axis: int) -> Array:
        return x.gather(axis, index)

    def put_columns(self, spent: Array, columns: Array, fresh: Array) -> Array:
        return spent.index_copy(-1, columns, fresh)

    def put(self, spent: Array, places: Array, fresh: Array) -> Array:
        return spent.index_copy(0, places, fresh)

    def copy(self, x: Array) -> Array:
        return x.clone()

    def true_indices(self, condition: Array) -> Array:
        return condition.nonzero()[:, 0]

    def counts(self, codes: Array, count: int) -> Array:
        return codes.bincount(minlength=count)

    def spread_out(self, x: Array, shape: Sequence[int]) -> Array:
        return x.expand(tuple(shape))

    def sums_by_code(self, codes: Array, weights: Array, count: int) -> Array:
        """The weights summed by code, in float64: (..., n) x (..., b, n) -> (..., b, count)."""
        sums = self.double(torch.zeros(*weights.shape[:-1], count, device=weights.device))
        return sums.scatter_add(-1, codes[..., None, :].expand(weights.shape).long(), self.double(weights))


@functools.cache
def room(device: torch.device) -> int:
    """How many numbers to hold at once on a GPU, where a step takes as long for few as for many."""
    if device.type != "cuda":
        return LARGE
    return max(LARGE, int(torch.cuda.get_device_properties(device).total_memory) // SHARE)


def _shared(given: object, device: torch.device | None) -> torch.Tensor:
    """A tensor over the same numbers, or a copy of what torch cannot read: backwards, or in another byte order."""
    if isinstance(given, np.ndarray) and (min(given.strides, default=0) < 0 or not given.dtype.isnative):
        given = np.array(given, dtype=given.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():
        # Read-only arrays, such as maps of files, are welcome: nothing is written into them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(given, device=device)


def _tracked(*arrays: Array | float) -> bool:
    """Whether a gradient may need the old numbers."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arrays)


TORCH = cast(Library, Torch())
