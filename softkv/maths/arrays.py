"""Choose the library that computes, NumPy or torch, and the array operations that all compatibilities share.

Does not hide which library is used: torch in, torch out, with gradients; anything else is NumPy. Does not move anything
between devices, except plain lists and NumPy arrays that come along with a tensor.
"""

import sys

from softkv.errors import ShapeError
from softkv.maths.library import NUMPY, Array, Library, Sharpness

FAR = 2.0**50  # from here on, and below its inverse, temperatures are applied by their root


def library_of(*given: object) -> Library:
    """The library that all of this is computed with: torch if anything is a tensor, else NumPy."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(x, torch.Tensor) for x in given):
        from softkv.maths.tensors import TORCH

        return TORCH
    return NUMPY


def has_float(given: object) -> bool:
    """Whether this array has a floating type of its own; lists and integers take that of the other arrays."""
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

    A temperature scales as the square of vectors. With very small or large vectors it, or its gradient, may leave the
    range of x's type where its root does not; x is then divided by the root twice.
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
