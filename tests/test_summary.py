"""What a store is, in a few figures."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import softkv

from .databases import KINDS, filled


def test_an_empty_store_has_no_widths_yet(tmp_path: Path) -> None:
    """Nor a temperature; what was asked for is there."""
    with softkv.open(tmp_path / "s", value="label") as db:
        found = db.info()
        assert db.value_kind == "label"
    assert (found.items, found.dead_rows, found.key_width, found.value_width) == (0, 0, None, None)
    assert (found.value_kind, found.temperature, found.embedder) == ("label", None, None)
    assert "key width" not in str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_are_those_of_the_store(tmp_path: Path, kind: str) -> None:
    """Items, dead rows, widths, and the spread of the values, counted another way."""
    with filled(tmp_path / "s", kind) as db:
        db.delete(["item 0", "item 1"])
        found = db.info()
        values = [db[name] for name in db]
    assert (found.items, found.dead_rows, found.key_width, found.value_kind) == (38, 2, 5, kind)
    assert found.value_width == {"number": 1, "label": 1, "vector": 3, "text": 256}[kind]
    if kind in ("number", "vector"):
        matrix = np.array(values, np.float64).reshape(38, -1)
        assert found.value_scale == pytest.approx(np.sqrt(((matrix - matrix.mean(0)) ** 2).sum(1).mean()))
    if kind == "label":
        shares = np.unique(values, return_counts=True)[1] / 38
        assert found.value_scale == pytest.approx(np.sqrt(1 - (shares**2).sum()))


def test_the_size_is_that_of_the_files(tmp_path: Path) -> None:
    """All of them, the catalog's log as well."""
    filled(tmp_path / "s", "number").close()
    with softkv.open(tmp_path / "s", "r") as db:
        files = [Path(folder) / name for folder, _, names in os.walk(tmp_path / "s") for name in names]
        assert db.info().bytes_on_disk == sum(path.stat().st_size for path in files)


def test_the_figures_are_plain(tmp_path: Path) -> None:
    """They can be JSON, and a few lines."""
    with filled(tmp_path / "s", "number") as db:
        found = db.info()
    assert json.loads(json.dumps(found.to_dict()))["items"] == 40
    lines = str(found).splitlines()
    assert f"path              {db.path}" in lines
    assert "items             40" in lines
