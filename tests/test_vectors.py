"""What goes into an embedder and what comes out of it."""

import numpy as np
import pytest

from softkv.embedders.vectors import PROBES, checked_texts, checked_vectors, of_length_one, refuse_unknown, shown
from softkv.errors import UnknownText


def test_any_sequence_of_texts_will_do() -> None:
    """Tuples and NumPy's own strings become a list of strings."""
    assert checked_texts(("a", "b")) == ["a", "b"]
    assert checked_texts(np.array(["a", "b"])) == ["a", "b"]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8])
def test_numbers_of_any_type_become_float32(dtype: type) -> None:
    """Numbers of any type become float32, and rows that lie scattered in memory become contiguous ones."""
    vectors = checked_vectors(np.ones((4, 3), dtype=dtype).T, ["a", "b", "c"], name="ones", width=4)
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous


def test_tensors_are_understood() -> None:
    """A function may return a torch tensor."""
    torch = pytest.importorskip("torch")
    assert checked_vectors(torch.eye(2), ["a", "b"], name="eye", width=2).tolist() == [[1, 0], [0, 1]]


def test_unit_length_is_told_up_to_rounding() -> None:
    """Zero rows are passed over; nothing but zeros is not of length 1."""
    assert of_length_one(np.array([[0.6, 0.8], [0, 0]], dtype=np.float32))
    assert not of_length_one(np.array([[0.6, 0.9]], dtype=np.float32))
    assert not of_length_one(np.zeros((2, 2), dtype=np.float32))


def test_an_error_quotes_the_beginning_of_a_long_text() -> None:
    """A megabyte of text does not fill the terminal."""
    with pytest.raises(UnknownText) as caught:
        refuse_unknown(["x" * 1_000_000], np.array([False]), "mine", first=5)
    assert len(str(caught.value)) < 300
    assert "position 5" in str(caught.value)
    assert shown("short") == "'short'"


def test_the_texts_that_stores_remember_never_change() -> None:
    """A fingerprint is worth nothing if its texts are edited."""
    assert PROBES == (
        "treasure",
        "How much does a cup of coffee cost?",
        "The train to the city leaves at 7:45.",
        "42 red cars",
    )
