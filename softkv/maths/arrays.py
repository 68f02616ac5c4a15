"""The few array operations that the maths needs (library.py) in NumPy, and which library computes what.

Does not hide which library is used: torch in, torch out, with gradients; anything else is NumPy. Does not move anything
between devices, except plain lists and NumPy arrays that come along with a tensor.

Why not array-api-compat: the standard has no in-place exp, no top-k, no scatter-add, no bfloat16 and no notion of a
gradient, so most of this file would be needed beside it; and importing its NumPy half costs as much as importing NumPy.
"""

import math
import sys
from collections.abc import Sequence
from typing import cast

import numpy as np

from softkv.errors import KindError, ShapeError
from softkv.maths.library import Array, DType, Library, Sharpness

FAR = 2.0**50  # from here on, and below its inverse, temperatures are taken apart
FEW = 64  # numbers that are sorted in no time
HELD = 1 << 17  # numbers of which there may be a second array
SHORT = 1 << 13  # numbers that may be added up one after the other in float32, in a few lanes


def library_of(*given: object) -> Library:
    """The library that all of this is computed with: torch if anything is a tensor, else NumPy."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(x, torch.Tensor) for x in given):
        from softkv.maths.tensors import TORCH

        return TORCH
    return NUMPY


def has_float(given: object) -> bool:
    """Whether this array has a floating type of its own to insist on; lists and integers follow the others."""
    dtype = str(getattr(given, "dtype", ""))
    return "float" in dtype


def inner(queries: Array, keys: Array) -> Array:
    """Every query with every key: (..., b, d) x (..., n, d) -> (..., b, n)."""
    check_widths(queries, keys)
    turned = keys.swapaxes(-1, -2)
    if keys.ndim == 2 and queries.shape == (1, keys.shape[-1]):
        return (keys @ queries[0])[None, :]  # torch takes twice as long over a product with a single row
    if keys.ndim > 2 or queries.ndim == 2:
        return queries @ turned
    # Shared keys are multiplied once for all heads: a broadcast product would read them once per head.
    flat = queries.reshape(-1, queries.shape[-1]) @ turned
    return flat.reshape(*queries.shape[:-1], keys.shape[0])


def check_widths(queries: Array, keys: Array) -> None:
    """Refuse queries and keys that cannot be compared number by number."""
    if queries.shape[-1] != keys.shape[-1]:
        raise ShapeError(
            f"the queries (as compared) have width {queries.shape[-1]}, but the keys have width {keys.shape[-1]}. "
            f"Make them alike, or compare them by bilinear(W), additive(W_q, W_k, v) or heads."
        )


def sharpened(x: Array, sharpness: Sharpness, *, spend: bool = False) -> Array:
    """Divide x by the temperature, in x's own floating type; `spend` says that x may be overwritten.

    A temperature goes with the squares of vectors. Of very small or large ones it, or its gradient, may lie beyond x's
    type where its root does not, so x then meets the root twice.
    """
    library = library_of(x)
    if isinstance(sharpness, float):
        extreme = not 1.0 / FAR < sharpness < FAR
    else:
        plain = library.constant(sharpness)
        extreme = bool(((plain < 1.0 / FAR) | (plain > FAR)).any())
    for factor in [sharpness**0.5] * 2 if extreme else [sharpness]:
        factor = factor if isinstance(factor, float) else library.cast(factor, x.dtype)
        x = library.spend_times(x, factor) if spend else x * factor
    return x


def columns_where(condition: Array) -> Array:
    """The columns in which any row is true: (..., n) -> indices."""
    return library_of(condition).true_indices(condition.reshape(-1, condition.shape[-1]).any(0))


class NumPy:
    """The operations, in NumPy."""

    def array(self, given: object, *, like: Array | None = None) -> Array:
        """An array of numbers; the floating type of what is given stays."""
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

    def full(self, shape: Sequence[int], fill: float, *, like: Array) -> Array:
        return np.full(shape, fill, dtype=like.dtype)

    def indices(self, start: int, stop: int, *, like: Array) -> Array:
        return np.arange(start, stop)

    def constant(self, x: Array) -> Array:
        return x

    def exp(self, x: Array) -> Array:
        return np.exp(x)

    def log(self, x: Array) -> Array:
        return np.log(x)

    def log1p(self, x: Array) -> Array:
        return np.log1p(x)

    def tanh(self, x: Array) -> Array:
        return np.tanh(x)

    def spend_exp(self, spent: Array) -> Array:
        return np.exp(spent, out=spent)

    def spend_exp_times(self, spent: Array) -> tuple[Array, Array]:
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

    def maximum(self, x: Array, y: Array | float) -> Array:
        return np.maximum(x, y)

    def minimum(self, x: Array, y: Array | float) -> Array:
        return np.minimum(x, y)

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        return np.where(condition, x, y)

    def finite(self, x: Array) -> Array:
        return np.isfinite(x)

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

    def take_along(self, x: Array, index: Array, axis: int) -> Array:
        return np.take_along_axis(x, index, axis=axis)

    def put_columns(self, spent: Array, columns: Array, fresh: Array) -> Array:
        spent[..., columns] = fresh
        return spent

    def put(self, spent: Array, places: Array, fresh: Array) -> Array:
        spent[places] = fresh
        return spent

    def copy(self, x: Array) -> Array:
        return x.copy()

    def true_indices(self, condition: Array) -> Array:
        return np.flatnonzero(condition)

    def counts(self, codes: Array, count: int) -> Array:
        return np.bincount(codes, minlength=count)

    def spread_out(self, x: Array, shape: Sequence[int]) -> Array:
        return np.broadcast_to(x, shape)

    def einsum(self, formula: str, *operands: Array) -> Array:
        return np.einsum(formula, *operands)

    def sums_by_code(self, codes: Array, weights: Array, count: int) -> Array:
        """The weights summed by code, in float64: (..., n) x (..., b, n) -> (..., b, count)."""
        codes = np.broadcast_to(codes[..., None, :], weights.shape)
        codes = codes.reshape(math.prod(weights.shape[:-1]), weights.shape[-1])
        rows = zip(codes, weights.reshape(codes.shape), strict=True)
        sums = [np.bincount(code, weights=weight, minlength=count) for code, weight in rows]
        return np.array(sums, dtype=np.float64).reshape(*weights.shape[:-1], count)


NUMPY = cast(Library, NumPy())
