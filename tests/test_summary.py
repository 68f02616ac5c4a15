"""What a store is, in a few figures."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import softkv

from .databases import KINDS, filled
from .scales import scaled
from .test_architecture import loaded_after


def test_an_empty_store_has_no_widths_yet(tmp_path: Path) -> None:
    """An empty store has neither widths nor a temperature yet; what was asked for is there."""
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
    """All of them count, the catalog's log as well."""
    filled(tmp_path / "s", "number").close()
    with softkv.open(tmp_path / "s", "r") as db:
        files = [Path(folder) / name for folder, _, names in os.walk(tmp_path / "s") for name in names]
        assert db.info().bytes_on_disk == sum(path.stat().st_size for path in files)


def test_only_earlier_generations_are_held_by_readers(tmp_path: Path) -> None:
    """A snapshot holds that which it reads; a later one is none that it, or a reader before it, would hold."""
    with filled(tmp_path / "s", "number") as db:
        db.delete("item 1")
        with db.snapshot() as earlier:
            db.compact()
            with db.snapshot() as later:
                assert earlier.info().held_by_readers == 0
                assert later.info().held_by_readers == db.info().held_by_readers > 0


def test_the_figures_are_plain(tmp_path: Path) -> None:
    """They can be JSON, and a few lines."""
    with filled(tmp_path / "s", "number") as db:
        found = db.info()
    assert json.loads(json.dumps(found.to_dict()))["items"] == 40
    lines = str(found).splitlines()
    assert f"path              {db.path}" in lines
    assert "items             40" in lines


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 40 numbers with an index of two lists, to be copied before it is changed."""
    with filled(tmp_path_factory.mktemp("indexed") / "s", "number") as db:
        db.build_index(lists=2, temperatures=(0.5, 1.0))
    return Path(db.path)


@pytest.fixture
def store(indexed: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(indexed, tmp_path / "s"))


def test_a_store_without_an_index_says_so(tmp_path: Path) -> None:
    """It says None, in a dict as well, and has no line for it."""
    with filled(tmp_path / "s", "number") as db:
        found = db.info()
    assert found.index is None
    assert found.to_dict()["index"] is None
    assert not [line for line in str(found).splitlines() if line.startswith("index")]
    assert f"builds indexes    {found.backend}" in str(found)


def test_an_index_is_told_of_in_figures(store: Path) -> None:
    """Lists, rows, how it was built; as numbers and as a line."""
    with softkv.open(store, "r") as db:
        found = db.info()
    assert found.index is not None
    assert (found.index.lists, found.index.rows, found.index.added, found.index.deleted) == (2, 40, 0, 0)
    assert (found.index.needed, found.index.problem) == (False, None)
    built = found.index.built
    assert (built["calibrated_on"], built["queries"]) == ("items", 10)
    assert built["temperatures"] == pytest.approx([0.5, 1.0])
    assert built["seconds"] >= 0
    line = "2 lists over 40 items, not needed yet: so few are scanned in a moment"
    assert str(found).splitlines()[-1] == f"index             {line}"
    assert json.loads(json.dumps(found.to_dict()))["index"]["lists"] == 2


def test_what_was_added_and_deleted_since_is_counted(store: Path) -> None:
    """Rows that came and went again are neither."""
    with softkv.open(store) as db:
        db.delete(["item 3", "item 4", "item 5"])
        db.add(["new", "brief"], [1.0, 2.0], vectors=np.ones((2, 5)))
        db.delete("brief")
        found = db.info().index
        assert db.check().ok
    assert found is not None
    assert (found.rows, found.added, found.deleted) == (40, 1, 3)
    assert str(found).startswith("2 lists over 40 items, 1 item added since, 1 of them in no list, 3 deleted since")


def test_an_index_that_is_needed_is_not_excused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line ends with the figures; of so few items none were rehearsed, so that lookups scan."""
    scaled(monkeypatch, cheap=10, scattered=0)
    with softkv.open(store, "r") as db:
        found = db.info().index
    assert found is not None
    assert found.needed
    assert str(found) == "2 lists over 40 items, lookups at its temperature scan"


def test_an_index_that_is_damaged_says_why(store: Path) -> None:
    """Lookups scan then, and nothing else is the worse for it."""
    (file,) = (store / "index").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with softkv.open(store, "r") as db:
        found = db.info().index
        assert db.lookup(np.ones(5)).error_kind == "exact"
    assert found is not None
    assert (found.lists, found.rows, found.built) == (None, 40, {})
    assert found.problem is not None
    assert "does not match its checksum" in found.problem
    assert str(found) == f"cannot be used, so lookups scan: {found.problem}"


def test_a_problem_goes_with_the_index_that_had_it(store: Path) -> None:
    """A handle that saw the damage sees the index that is built after it, and its end."""
    (file,) = (store / "index").iterdir()
    file.write_bytes(b"nothing")
    with softkv.open(store) as db:
        assert "cannot be used" in str(db.info().index)
        assert db.build_index(lists=3, temperatures=(0.5, 1.0)).index.lists == 3  # type: ignore[union-attr]
        db.drop_index()
        assert db.info().index is None
        assert db.check().ok


def test_a_snapshot_tells_of_its_own_index(store: Path) -> None:
    """What was added later is not in it."""
    with softkv.open(store) as db, db.snapshot() as before:
        db.add("new", 1.0, vectors=np.ones(5))
        assert (before.info().index.added, db.info().index.added) == (0, 1)  # type: ignore[union-attr]


@pytest.mark.slow
def test_telling_of_an_index_loads_nothing_heavy(store: Path) -> None:
    """FAISS is for building, not for info."""
    script = f"import softkv\nwith softkv.open({str(store)!r}, 'r') as db: db.info()"
    assert loaded_after(script) == set()
