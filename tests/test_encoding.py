"""Index files as bytes: what goes in comes out, and what is not such a file is named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.encoding import FORMAT, MAGIC, decoded, encoded

ARRAYS = {
    "counts": np.arange(5, dtype=np.float64),
    "empty": np.empty((0, 3), np.float32),
    "rows": np.arange(6, dtype=np.int64).reshape(2, 3),
    "odd": np.arange(3, dtype=np.float32),
}
FILE = b"".join(bytes(piece) for piece in encoded({"form": "dot"}, ARRAYS))


def test_what_goes_in_comes_out() -> None:
    """Facts, names, shapes, types and numbers come back."""
    facts, arrays = decoded(memoryview(FILE))
    assert facts == {"form": "dot"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert (arrays[name] == array).all()


@pytest.mark.parametrize("length", range(0, len(FILE) - 12, 7))
def test_a_file_that_is_cut_off_is_refused(length: int) -> None:
    """It may end anywhere."""
    with pytest.raises(IndexDamaged, match="build the index again"):
        decoded(memoryview(FILE[:length]))


def test_a_newer_format_is_refused_with_its_number() -> None:
    """It is not read as if it were an old one."""
    newer = bytearray(FILE)
    newer[len(MAGIC)] = 7
    with pytest.raises(FormatTooNew, match="format 7"):
        decoded(memoryview(newer))


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_flipped_header_is_refused_or_harmless(place: int, flip: int) -> None:
    """There are no other errors than these, and no arrays beyond the file."""
    flipped = bytearray(FILE)
    flipped[place % len(FILE)] ^= flip
    try:
        _, arrays = decoded(memoryview(flipped))
    except (IndexDamaged, FormatTooNew):
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(FILE)


@pytest.mark.parametrize(
    "table",
    [
        {"x": ["object", [1]]},
        {"x": ["float64", [1 << 62]]},
        {"x": ["float64", [-1]]},
        {"x": ["float64", [1.5]]},
        {"x": ["float64", [True]]},
        {"x": ["float64", [0, 1 << 70]]},
        {"x": ["float64"]},
        {"x": 3},
        [],
    ],
)
def test_a_lying_header_is_refused(table: object) -> None:
    """Types that are not numbers, sizes beyond the file, negative ones, and what is no table."""
    header = json.dumps({"facts": {}, "arrays": table}).encode()
    content = MAGIC + FORMAT.to_bytes(8, "little") + len(header).to_bytes(8, "little") + header + b"\0" * 64
    if table == []:
        assert decoded(memoryview(content)) == ({}, {})
        return
    with pytest.raises(IndexDamaged):
        decoded(memoryview(content))
