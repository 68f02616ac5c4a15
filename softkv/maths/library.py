"""The few array operations that the maths needs, in NumPy; tensors.py has them in torch.

What both spell alike (`+`, `@`, slicing, `.shape`, `.reshape`) is not here.

Why not array-api-compat: the standard has no in-place exp, no top-k, no scatter-add, no bfloat16 and no notion of a
gradient, so most of this file would be needed beside it; and importing its NumPy half costs as much as importing NumPy.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from softkv.errors import KindError, ShapeError

# Subtle: one name for ndarray and Tensor. A Protocol that fits both would have to restate both libraries' operators.
Array: TypeAlias = Any
DType: TypeAlias = Any
Sharpness: TypeAlias = Any  # 1 / temperature: a float, or an array (..., b, 1) of float64

FEW = 64  # so few numbers take no time to sort
HELD = 1 << 17  # the most numbers of which a second array is made
SHORT = 1 << 13  # numbers that may be added up one after the other in float32, in a few lanes


def refuse_masked(given: object, what: str) -> None:
    """Refuse an array of NumPy of which some numbers are masked: `asarray` would take what is behind the mask."""
    # Looking for the attribute first avoids loading numpy.ma, which takes time, where nothing is masked.
    if isinstance(given, np.ndarray) and hasattr(given, "mask") and np.ma.is_masked(given):
        raise KindError(f"expected {what} without a mask, got some that are masked. Leave those out, or fill them in.")


class Library:
    """The operations, in NumPy. "Spent" arrays belong to the caller, and may be overwritten."""

    exp, log, log1p, tanh = np.exp, np.log, np.log1p, np.tanh
    maximum, minimum, finite = np.maximum, np.minimum, np.isfinite
    take_along, true_indices = staticmethod(np.take_along_axis), staticmethod(np.flatnonzero)
    einsum, spread_out = staticmethod(np.einsum), staticmethod(np.broadcast_to)

    def array(self, given: object, *, like: Array | None = None) -> Array:
        """An array of numbers; the floating type of what is given stays."""
        refuse_masked(given, "numbers")
        try:
            x = np.asarray(given)
        except ValueError as error:
            raise ShapeError(f"expected rows of one width, got {error}. Make all rows as long as the first.") from None
        except (TypeError, RuntimeError) as error:  # a tensor with a gradient, or on a GPU, beside NumPy arrays
            raise KindError(f"expected an array of NumPy beside others, got {error}. Or pass tensors alone.") from None
        if x.dtype.kind not in "fiub":
            raise KindError(f"expected an array of real numbers, got {x.dtype}. Convert it, or pass labels as values.")
        return x

    def shared_float(self, *arrays: Array) -> DType:
        """The widest floating type among the arrays, at least float32; float64 when none has one."""
        floats = [x.dtype for x in arrays if x.dtype.kind == "f"]
        return np.result_type(np.float32, *floats) if floats else np.dtype(np.float64)

    def cast(self, x: Array, dtype: DType) -> Array:
        return x.astype(dtype, copy=False)

    def double(self, x: Array) -> Array:
        return x.astype(np.float64, copy=False)

    def is_double(self, x: Array) -> bool:
        return bool(x.dtype.itemsize >= 8)

    def epsilon(self, dtype: DType) -> float:
        return float(np.finfo(dtype).eps)

    def is_boolean(self, x: Array) -> bool:
        return bool(x.dtype.kind == "b")

    def is_integer(self, x: Array) -> bool:
        return x.dtype.kind in "iu"

    def is_large_device(self, x: Array) -> bool:
        return False

    def at_once(self, x: Array, cached: int) -> int:
        """How many numbers to hold at once where `x` lies: on a processor those that stay `cached`."""
        return cached

    def unrounded(self, x: Array) -> AbstractContextManager[None]:
        """A block in which sums where `x` lies are as precise as their numbers, also under torch's autocast."""
        return nullcontext()

    def full(self, shape: Sequence[int], fill: float, *, like: Array) -> Array:
        return np.full(shape, fill, dtype=like.dtype)

    def indices(self, start: int, stop: int, *, like: Array) -> Array:
        return np.arange(start, stop)

    def constant(self, x: Array) -> Array:
        return x

    def spend_exp(self, spent: Array) -> Array:
        return np.exp(spent, out=spent)

    def spend_exp_times(self, spent: Array) -> tuple[Array, Array]:
        """exp(x), and the sums of x exp(x)."""
        lines = spent.reshape(math.prod(spent.shape[:-1]), spent.shape[-1])
        sums, step = np.empty(len(lines), lines.dtype), max(1, HELD // max(1, lines.shape[-1]))
        for start in range(0, len(lines), step):  # some lines at a time: a second array would leave the cache
            some = lines[start : start + step]
            weights = np.exp(some)
            sums[start : start + step] = self.multiply_total(some, weights)
            some[...] = weights
        return lines.reshape(spent.shape), sums.reshape(spent.shape[:-1])

    def spend_minus(self, spent: Array, other: Array) -> Array:
        return np.subtract(spent, other, out=spent)

    def spend_maximum(self, spent: Array, least: float) -> Array:
        return np.maximum(spent, least, out=spent)

    def spend_times(self, spent: Array, other: Array | float) -> Array:
        return np.multiply(spent, other, out=spent)

    def spend_plus(self, spent: Array, other: Array) -> Array:
        return np.add(spent, other, out=spent)

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        return np.where(condition, x, y)

    def largest(self, x: Array) -> Array:
        return x.max(axis=-1)

    def bounds(self, x: Array) -> tuple[Array, Array]:
        return x.min(axis=-2), x.max(axis=-2)

    def total(self, x: Array) -> Array:
        # einsum takes a third of the time of a sum, but does not add in pairs, and loses digits in long rows.
        return x.sum(-1) if x.shape[-1] > SHORT else np.einsum("...n->...", x)

    def multiply_total(self, x: Array, y: Array) -> Array:
        return np.einsum("...n,...n->...", x, y)

    def kth_largest(self, x: Array, k: int) -> Array:
        return np.partition(x, x.shape[-1] - k, axis=-1)[..., x.shape[-1] - k]

    def descending(self, x: Array) -> Array:
        if x.shape[-1] <= FEW:
            return np.argsort(-x, axis=-1, kind="stable")
        order = np.argsort(-x, axis=-1)  # several times as fast as a stable sort, which only equal numbers need
        ordered = np.take_along_axis(x, order, axis=-1)
        tied = (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1)
        if tied.any():
            order[tied] = np.argsort(-x[tied], axis=-1, kind="stable")
        return order

    def join(self, parts: Sequence[Array], axis: int) -> Array:
        return np.concatenate(parts, axis=axis)

    def put_columns(self, spent: Array, columns: Array, fresh: Array) -> Array:
        spent[..., columns] = fresh
        return spent

    def put(self, spent: Array, places: Array, fresh: Array) -> Array:
        spent[places] = fresh
        return spent

    def copy(self, x: Array) -> Array:
        return x.copy()

    def counts(self, codes: Array, count: int) -> Array:
        return np.bincount(codes, minlength=count)

    def sums_by_code(self, codes: Array, weights: Array, count: int) -> Array:
        """The weights summed by code, in float64: (..., n) x (..., b, n) -> (..., b, count)."""
        codes = np.broadcast_to(codes[..., None, :], weights.shape)
        codes = codes.reshape(math.prod(weights.shape[:-1]), weights.shape[-1])
        rows = zip(codes, weights.reshape(codes.shape), strict=True)
        sums = [np.bincount(code, weights=weight, minlength=count) for code, weight in rows]
        return np.array(sums, dtype=np.float64).reshape(*weights.shape[:-1], count)


NUMPY = Library()
