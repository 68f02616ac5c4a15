"""Symmetric matrices, packed: only their upper triangles are kept, row by row.

Shapes: b queries, r rows and columns of a matrix.
"""

import numpy as np

from softkv.ndarrays import Floats, Reals


def packed(matrices: Reals) -> Reals:
    """The upper triangles of (..., r, r) symmetric matrices, (..., r(r + 1) / 2)."""
    return matrices[(..., *np.triu_indices(matrices.shape[-1]))]


def unpacked(triangles: Reals, width: int) -> Reals:
    """The symmetric matrices of these upper triangles, (..., r, r)."""
    upper = np.triu_indices(width)
    found = np.empty((*triangles.shape[:-1], width, width), triangles.dtype)
    found[(..., *upper)] = triangles
    found[(..., upper[1], upper[0])] = triangles
    return found


def diagonals(triangles: Reals, width: int) -> Reals:
    """The diagonals of these upper triangles, (..., r)."""
    places = np.arange(width)
    found: Reals = triangles[..., places * width - places * (places - 1) // 2]
    return found


def squared_norms(triangles: Reals, width: int) -> Floats:
    """The squared Frobenius norms of these upper triangles, (...): the traces of the squares of the matrices."""
    ends = diagonals(triangles, width)
    twice, once = (np.einsum("...s,...s->...", x, x, dtype=np.float64) for x in (triangles, ends))
    found: Floats = 2.0 * twice - once
    return found


def crossed(left: Reals, right: Reals) -> Reals:
    """What a packed Σ must be multiplied with for leftᵀΣ·right, (b, r) x (b, r) -> (b, r(r + 1) / 2)."""
    products = left[:, :, None] * right[:, None, :]
    products = products + products.swapaxes(1, 2)
    diagonal = np.arange(left.shape[1])
    products[:, diagonal, diagonal] /= 2.0
    return packed(products)
