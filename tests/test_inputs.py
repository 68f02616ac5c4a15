"""What a lookup refuses before it computes: shapes, kinds, temperatures and counts, each with what to do instead."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import softkv
from softkv.errors import EmptyStore, KindError, NotFinite, ShapeError, TemperatureError

QUERIES, KEYS, VALUES = np.ones((2, 3)), np.ones((5, 3)), np.ones((5, 2))


def ask(**changes: Any) -> Any:
    """A lookup that works, but for the changes."""
    given: dict[str, Any] = {"queries": QUERIES, "keys": KEYS, "values": VALUES, **changes}
    return softkv.soft_lookup(**given)


@pytest.mark.parametrize("temperature", [0, 0.0, -1, math.nan, math.inf, np.float32(0), [1.0, 0.0], [1.0, math.nan]])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_temperatures_must_be_above_zero(temperature: Any, library: str) -> None:
    """0 is refused with the way to ask for the best row, for one temperature and for one of many."""
    keys = torch.ones(5, 3) if library == "torch" else KEYS
    with pytest.raises(TemperatureError, match="above 0"):
        ask(temperature=temperature, keys=keys)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"temperature": [1.0, 2.0, 3.0]}, ShapeError, r"one per query \(2,\), got shape \(3,\)"),
        ({"temperature": "warm"}, KindError, "real numbers"),
        ({"k": 0}, KindError, "k to be a whole number of at least 1, got 0"),
        ({"k": 2.0}, KindError, "k to be a whole number of at least 1, got 2.0"),
        ({"k": True}, KindError, "k to be a whole number"),
        ({"k": np.timedelta64(3)}, KindError, "k to be a whole number"),
        ({"show": -1}, KindError, "show to be a whole number of at least 0, got -1"),
        ({"mask": np.ones(5)}, KindError, "expected a boolean mask, .* got float64"),
        ({"mask": np.ones(4, bool)}, ShapeError, r"mask of shape \(2, 5\) .* got \(1, 4\)"),
        ({"mask": np.ones((3, 5), bool)}, ShapeError, r"mask of shape \(2, 5\) .* got \(3, 5\)"),
        ({"mask": np.ones((2, 2, 5), bool)}, ShapeError, r"mask of shape \(2, 5\)"),
        ({"mask": np.ones((2, 1), bool)}, ShapeError, r"mask of shape \(2, 5\)"),
        ({"bias": np.ones(4)}, ShapeError, r"bias of shape \(2, 5\)"),
        ({"bias": np.full(5, math.nan)}, NotFinite, "or -inf to leave a row out"),
        ({"bias": np.full(5, math.inf)}, NotFinite, "or -inf to leave a row out"),
        ({"keys": KEYS[:0], "values": VALUES[:0]}, EmptyStore, "no rows to look up in"),
        ({"keys": [], "values": []}, EmptyStore, "no rows to look up in"),
        ({"keys": np.ones(5)}, ShapeError, r"keys of shape \(..., n, d\), got"),
        ({"keys": np.ones((5, 0)), "queries": np.ones((2, 0))}, ShapeError, "width 1 or more"),
        ({"keys": [[1.0, 2.0], [3.0]]}, ShapeError, "rows of one width"),
        ({"keys": np.ones((5, 3), complex)}, KindError, "real numbers, got complex128"),
        ({"queries": np.ones((2, 3), object)}, KindError, "real numbers, got object"),
        ({"queries": np.ma.masked_equal(np.eye(2, 3), 1)}, KindError, "without a mask"),
        ({"values": np.ma.masked_equal([1.0, 2.0, 3.0, 4.0, 99.0], 99)}, KindError, "without a mask"),
        ({"queries": np.ones((3, 2, 3)), "keys": np.ones((2, 5, 3)), "values": np.ones((2, 5))}, ShapeError, "do not"),
        ({"values": np.ones((4, 2))}, ShapeError, r"one value for each of the keys \(5,\), got \(4,\)"),
        ({"values": np.ones(4)}, ShapeError, r"one value for each of the keys \(5,\), got \(4,\)"),
        ({"values": np.ones((5, 2, 2))}, ShapeError, "one number or one vector for each of the keys"),
        ({"values": ["a", "b"]}, ShapeError, r"one value for each of the keys \(5,\), got \(2,\)"),
        ({"values": ["a", "b", "c", "d", 5]}, KindError, "all values to be strings"),
        ({"values": [0, 1, 2, 0, 1], "labels": 2}, KindError, "codes from 0 to 1, .* got 0 to 2"),
        ({"values": [0, 1, -1, 0, 1], "labels": ["a", "b"]}, KindError, "codes from 0 to 1, .* got -1 to 1"),
        ({"values": [0.0, 1, 2, 0, 1], "labels": 3}, KindError, "expected the integer codes of labels, got float64"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """The message says what was expected, what was got, and what to do."""
    with pytest.raises(error, match=message) as raised:
        ask(**changes)
    assert isinstance(raised.value, softkv.errors.SoftKVError)
    assert isinstance(raised.value, ValueError)
    assert str(raised.value).count(". ") >= 1, "the message ends without saying what to do"


def test_tensors_that_do_not_fit_are_refused() -> None:
    """Beside a tensor, what cannot become one is an error of ours too."""
    for bad in ([[1.0, 2.0, 3.0], [1.0]], [["a", "b", "c"]]):
        with pytest.raises(KindError, match="expected numbers in rows of one width"):
            ask(queries=bad, keys=torch.ones(5, 3))
    with pytest.raises(KindError, match=r"real numbers, got torch\.complex64"):
        ask(keys=torch.ones(5, 3, dtype=torch.complex64))
