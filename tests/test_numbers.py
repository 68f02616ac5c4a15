"""What no store takes is refused where it is read, though its checksum is right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from softkv.errors import StoreDamaged
from softkv.storage import Layout, Store, ValueKind, check, repair
from softkv.storage.disk.arena import HEADER
from softkv.storage.disk.numbers import believable
from tests.stores import GENERATION, closed_fruit, forge, vectors


@pytest.mark.parametrize(
    ("layout", "role", "good", "bad"),
    [
        (Layout(4, ValueKind.NUMBER), "keys", [0.0, -3e38, 1e-45], [np.nan, np.inf, -np.inf]),
        (Layout(4, ValueKind.NUMBER), "norms", [0.0, 3e38, np.inf], [np.nan, -1.0, -np.inf]),
        (Layout(4, ValueKind.NUMBER), "values", [0.0, -1e150, 5e-324], [np.nan, np.inf, 1.1e150]),
        (Layout(4, ValueKind.VECTOR, 3), "values", [0.0, 3e38], [np.nan, -np.inf]),
        (Layout(4, ValueKind.LABEL), "values", [0, 2], [-1, 3, 0x7FFFFFFF, -0x80000000]),
    ],
)
def test_numbers_are_those_that_can_be_added(layout: Layout, role: str, good: list[Any], bad: list[Any]) -> None:
    """One that is not spoils all that are read with it."""
    shape = getattr(layout, role)
    is_believable = believable(shape, lambda: 3)
    assert is_believable(np.array(good, shape.dtype))
    assert is_believable(np.empty(0, shape.dtype))
    for one in bad:
        assert not is_believable(np.array([*good, one], shape.dtype))


def altered(path: Path, file: str, change: Callable[[np.ndarray], None], dtype: str) -> None:
    """Alter the numbers of an arena of a store, and bring its checksum in line."""
    place = path / GENERATION / file
    content = bytearray(place.read_bytes())
    change(np.frombuffer(content, dtype, offset=HEADER))
    place.write_bytes(content)
    role = file.split(".")[0]
    forge(path, "generations", **{f"{role}_tail": crc32(content[HEADER:])})


@pytest.mark.parametrize(("file", "dtype"), [("keys.f32", "<f4"), ("values.number", "<f8")])
def test_nan_under_a_good_checksum_is_damage(tmp_path: Path, file: str, dtype: str) -> None:
    """It never reaches an answer, a check finds it, and a repair leaves it behind."""
    path = closed_fruit(tmp_path / "s")
    altered(path, file, lambda numbers: numbers.__setitem__(1, np.nan), dtype)
    with Store.open(path) as store:
        with pytest.raises(StoreDamaged, match="hold numbers that no store takes"):
            store.get("pear")
        with pytest.raises(StoreDamaged, match="hold numbers that no store takes"):
            list(store.blocks())
    assert "hold numbers that no store takes" in str(check(path))
    assert repair(path, tmp_path / "new").saved == 0
    assert check(tmp_path / "new").ok


def test_the_code_of_no_label_is_damage(tmp_path: Path) -> None:
    """It would name a label out of nothing, or size an answer by itself."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(3), ["x", "y", "x"], keys=["a", "b", "c"])
    altered(tmp_path / "s", "values.label", lambda codes: codes.__setitem__(1, 0x7FFFFFFF), "<i4")
    with Store.open(tmp_path / "s", "w") as store:
        with pytest.raises(StoreDamaged, match="hold numbers that no store takes"):
            store.values([1])
        with pytest.raises(StoreDamaged, match="hold numbers that no store takes"):
            store.delete("b")
    assert not check(tmp_path / "s").ok


def test_norms_that_no_keys_have_are_worked_out_again(tmp_path: Path) -> None:
    """They are derived."""
    path = closed_fruit(tmp_path / "s")
    altered(path, "norms.f32", lambda norms: norms.fill(-1.0), "<f4")
    with Store.open(path) as store, store.snapshot() as snapshot:
        assert np.allclose(snapshot.norms(0, 3), np.linalg.norm(vectors(3), axis=1))
