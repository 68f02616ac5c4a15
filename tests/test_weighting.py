"""How much each row counts: the weights of one block, and which rows a query may see."""

import math

import numpy as np
import pytest

from softkv.maths.weighting import Mask, weigh

from .backends import BACKENDS, Backend, every_backend, exact

WIDE = [backend for backend in BACKENDS if backend.dtype in ("float32", "float64")]
wide_backends = pytest.mark.parametrize("backend", WIDE, ids=lambda one: f"{one.library}-{one.dtype}")


def weighed(backend: Backend, logits: list[list[float]], *, masked: bool = False) -> dict[str, list[float]]:
    """The weights of one block, as plain lists."""
    array = backend.array(logits)
    found = weigh(array, backend.array(np.max(logits, axis=-1)), masked=masked)
    return {name: exact(getattr(found, name)).tolist() for name in ("peak", "weights", "mass", "excess")}


@wide_backends
def test_weights_small_enough_for_paper(backend: Backend) -> None:
    """Logits 0, log 2 and log 4 weigh 1/4, 1/2 and 1, together 7/4."""
    found = weighed(backend, [[0.0, math.log(2), math.log(4)]])
    assert found["weights"][0] == pytest.approx([0.25, 0.5, 1.0], rel=1e-6)
    assert found["mass"] == pytest.approx([1.75], rel=1e-6)
    assert found["excess"] == pytest.approx([0.25 * math.log(1 / 4) + 0.5 * math.log(1 / 2)], rel=1e-6)


@wide_backends
def test_the_heaviest_row_weighs_exactly_one(backend: Backend) -> None:
    """Whatever the size of the logits, nothing overflows and the peak weighs 1."""
    for peak in (-1e4, 0.0, 1e4):
        found = weighed(backend, [[peak, peak - 1e4, peak - 1.0]])
        assert found["weights"][0] == pytest.approx([1.0, 0.0, math.exp(-1)], rel=1e-6)
        assert found["peak"] == [peak]


@wide_backends
def test_masked_rows_weigh_nothing_and_add_no_excess(backend: Backend) -> None:
    """A logit of -inf gives weight 0, and 0 to the excess rather than 0 x -inf; a block of them has the peak -inf."""
    found = weighed(backend, [[-math.inf, 0.0], [-math.inf, -math.inf]], masked=True)
    assert found == {"peak": [0.0, -math.inf], "weights": [[0, 1], [0, 0]], "mass": [1, 0], "excess": [0, 0]}


@wide_backends
def test_weights_are_the_same_without_the_entropy(backend: Backend) -> None:
    """Only the excess is left out; weights and mass are not a rounding away."""
    logits = backend.array([[-math.inf, 0.0, 1.5, -3.0], [2.0, -0.5, 0.25, 7.0]])
    peak = backend.array([1.5, 7.0])
    full = weigh(logits * 1, peak, masked=True)
    plain = weigh(logits * 1, peak, masked=True, entropy=False)
    assert plain.excess is None
    for name in ("peak", "weights", "mass"):
        assert exact(getattr(plain, name)).tolist() == exact(getattr(full, name)).tolist()


@every_backend
def test_masks_combine(backend: Backend) -> None:
    """A row is seen when the boolean mask allows it and it does not come later than the query."""
    allowed = backend.array([[1, 1, 0, 1]]) > 0
    like = backend.array([0.0])
    block = Mask(allowed, True).block(slice(1, 3), slice(1, 4), like=like)
    assert exact(block).tolist() == [[1, 0, 0], [1, 0, 0]]
    assert Mask(None, True).block(slice(5, 7), slice(2, 6), like=like) is None
    assert Mask(None, False).block(slice(0, 2), slice(0, 4), like=like) is None
