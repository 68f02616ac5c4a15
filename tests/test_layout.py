"""Widths, kinds and names."""

import numpy as np
import pytest

from softkv.errors import ShapeError
from softkv.storage.layout import GENERATION_NAME, WIDEST, Layout, ValueKind, generation_name


@pytest.mark.parametrize("width", [0, -1, WIDEST + 1, 1 << 62])
def test_a_width_that_no_row_can_have_is_refused(width: int) -> None:
    """Widths go from 1 to 2^20, for keys and for values."""
    with pytest.raises(ShapeError, match="key width"):
        Layout(width, ValueKind.NUMBER)
    with pytest.raises(ShapeError, match="value width"):
        Layout(4, ValueKind.VECTOR, width)


@pytest.mark.parametrize("kind", [ValueKind.NUMBER, ValueKind.LABEL])
def test_numbers_and_labels_are_one_wide(kind: ValueKind) -> None:
    """A number or a label that is two wide is refused."""
    with pytest.raises(ShapeError, match="width 1"):
        Layout(4, kind, 2)


def test_a_kind_that_does_not_exist_is_refused() -> None:
    """Kinds are a closed list."""
    with pytest.raises(ValueError, match="colour"):
        Layout(4, "colour")  # type: ignore[arg-type]


def test_a_kind_equals_its_text() -> None:
    """Comparing with a string works, as with StrEnum."""
    assert Layout(4, "label").kind == "label"  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "bytes_each"), [("number", 8), ("vector", 4), ("label", 4), ("text", 4)])
def test_rows_are_as_wide_as_their_elements(kind: str, bytes_each: int) -> None:
    """The size of a row is its width times the size NumPy gives its type."""
    width = 1 if kind in ("number", "label") else 5
    layout = Layout(3, ValueKind(kind), width)
    assert [shape.row_bytes for shape in layout.arenas] == [12, bytes_each * width, 4]
    assert np.dtype(layout.values.dtype).itemsize == bytes_each


def test_every_arena_has_a_file_of_its_own() -> None:
    """The files are keys.f32, values.<kind> and norms.f32."""
    assert [shape.file for shape in Layout(3, ValueKind.LABEL).arenas] == ["keys.f32", "values.label", "norms.f32"]


@pytest.mark.parametrize("number", [1, 999_999, 1_000_000, 123_456_789])
def test_the_name_of_a_generation_is_recognised(number: int) -> None:
    """The name of a generation is recognised, also beyond six digits."""
    found = GENERATION_NAME.match(generation_name(number))
    assert found
    assert int(found[1]) == number


@pytest.mark.parametrize("name", ["generation-1", "generation-00000x", "generation-000001.old", "a-generation-000001"])
def test_other_names_are_not_generations(name: str) -> None:
    """Only names of our own pattern are ever removed."""
    assert not GENERATION_NAME.match(name)
