"""The two spellings of the array operations: what they must agree on beyond what the lookups show."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from softkv.maths.arrays import columns_where, has_float, inner, library_of
from softkv.maths.library import NUMPY, SHORT, Library
from softkv.maths.tensors import TORCH

from .backends import Backend, every_backend, exact


def test_a_tensor_decides_the_library() -> None:
    """A lookup is in torch when anything is a tensor, else in NumPy."""
    assert library_of([1.0], np.ones(2), None) is NUMPY
    assert library_of([1.0], np.ones(2), torch.ones(2)) is TORCH


def test_both_libraries_offer_the_same_operations() -> None:
    """What one can do the other can too."""
    offered = [{name for name in dir(library) if not name.startswith("_")} for library in (NUMPY, TORCH)]
    assert offered[0] == offered[1]


def test_lists_and_integers_insist_on_no_floating_type() -> None:
    """Only floating arrays do."""
    assert [has_float(x) for x in ([1.0], np.ones(1, int), np.float32(1), torch.ones(1).bfloat16())] == [0, 0, 1, 1]


@every_backend
def test_shared_keys_are_multiplied_with_all_leading_axes_at_once(backend: Backend) -> None:
    """The product of heads with shared keys is that of each head, in one matrix product."""
    generator = np.random.default_rng(0)
    queries, keys = generator.integers(-3, 4, (2, 3, 4, 5)), generator.integers(-3, 4, (6, 5))
    found = inner(backend.array(queries), backend.array(keys))
    assert np.array_equal(exact(found), queries @ keys.T)
    batched = np.broadcast_to(keys, (2, 3, 6, 5)).copy()
    assert np.array_equal(exact(inner(backend.array(queries), backend.array(batched))), queries @ keys.T)


@every_backend
def test_columns_are_found_in_any_row(backend: Backend) -> None:
    """A column counts when any row, in any leading axis, is true."""
    condition = backend.array([[[0, 0, 1, 0]], [[0, 1, 1, 0]]]) > 0
    assert exact(columns_where(condition)).tolist() == [1, 2]


@every_backend
def test_codes_are_counted(backend: Backend) -> None:
    """Each code counts as often as it occurs, and one that does not occur counts 0."""
    codes = library_of(backend.array([0.0])).array([2, 0, 2, 2], like=backend.array([0.0]))
    assert exact(library_of(backend.array([0.0])).counts(codes, 4)).tolist() == [1, 0, 3, 0]


@pytest.mark.parametrize("width", [0, 1, SHORT, SHORT + 1, 200_000])
@pytest.mark.parametrize("library", [NUMPY, TORCH])
def test_totals_of_long_rows_keep_their_digits(library: Library, width: int) -> None:
    """Short rows or long, a total in float32 is a few roundings off."""
    rows = np.random.default_rng(4).random((3, width), dtype=np.float32)
    total = exact(library.total(library.array(rows, like=torch.ones(1) if library is TORCH else None)))
    assert total == pytest.approx(rows.sum(-1, dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_does_not_spend_what_a_gradient_needs(dtype: str) -> None:
    """In-place operations write over tensors without a gradient only."""
    x, y = (torch.ones(3, dtype=getattr(torch, dtype), requires_grad=wanted) * 2 for wanted in (True, False))
    for spend, result in ((TORCH.spend_minus, 1.0), (TORCH.spend_plus, 3.0), (TORCH.spend_times, 2.0)):
        one = torch.ones(3, dtype=x.dtype)
        assert spend(x, one).tolist() == [result] * 3
        assert x.tolist() == [2.0] * 3
        fresh = y.clone()
        assert spend(fresh, one).data_ptr() == fresh.data_ptr()
    assert TORCH.spend_exp(x).tolist() == TORCH.exp(y).tolist()
    assert x.tolist() == [2.0] * 3
    assert TORCH.spend_exp(y).data_ptr() == y.data_ptr()


@pytest.mark.parametrize(
    "change", [lambda x: x[::-1], lambda x: np.broadcast_to(x, x.shape), lambda x: x.astype(">f8")]
)
def test_arrays_that_torch_would_refuse_or_warn_of_are_taken(change: Callable[[Any], Any]) -> None:
    """Reversed, read-only and big-endian arrays may come along with a tensor."""
    x = change(np.arange(6.0).reshape(3, 2))
    assert TORCH.array(x).tolist() == x.tolist()
