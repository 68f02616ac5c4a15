"""A new store takes its place when all of it is there, and not before."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv import errors
from softkv.database.making import made
from softkv.storage import Store

WISHES: dict[str, Any] = {"value": "number", "compatibility": "dot", "temperature": 0.5}


def names(folder: Path) -> list[str]:
    """What lies there."""
    return sorted(one.name for one in folder.iterdir())


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "an empty store", "items"])
def test_it_is_there_when_it_is_done(tmp_path: Path, before: str) -> None:
    """Under its own path, with what was wished for; while it is made, the old one is."""
    path = tmp_path / "s"
    if before == "an empty folder":
        path.mkdir()
    elif before != "nothing":
        with softkv.open(path) as db:
            if before == "items":
                db.add(["old"], [1.0], vectors=[[1.0, 0.0]])
    with made(path, overwrite=before == "items", **WISHES) as db:
        db.add(["new"], [2.0], vectors=[[0.0, 1.0]])
        if before == "items":
            with softkv.open(path, "r") as old:
                assert dict(old) == {"old": 1.0}
    assert names(tmp_path) == ["s"]
    with softkv.open(path) as db:
        assert dict(db) == {"new": 2.0}
        assert (db.info().compatibility, db.info().temperature) == ("dot", 0.5)
        db.add(["more"], [3.0], vectors=[[1.0, 1.0]])
        assert db.check().ok


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, errors.InputError])
def test_what_fails_leaves_things_as_they_were(tmp_path: Path, there: bool, error: type[BaseException]) -> None:
    """With nothing beside it."""
    path = tmp_path / "s"
    if there:
        with softkv.open(path) as db:
            db.add(["old"], [1.0], vectors=[[1.0, 0.0]])

    def fill() -> None:
        with made(path, overwrite=True, **WISHES) as db:
            db.add(["new"], [2.0], vectors=[[0.0, 1.0]])
            raise error

    with pytest.raises(error):
        fill()
    assert names(tmp_path) == (["s"] if there else [])
    if there:
        with softkv.open(path) as db:
            assert dict(db) == {"old": 1.0}
            assert db.check().ok


def test_items_are_overwritten_only_if_they_may_be(tmp_path: Path) -> None:
    """And never those of a store that somebody is writing to, nor what is no store."""
    path, file = tmp_path / "s", tmp_path / "f"
    file.write_text("mine")
    with softkv.open(path) as db:
        db.add(["old"], [1.0], vectors=[[1.0, 0.0]])
        with pytest.raises(errors.StoreLocked), made(path, overwrite=True, **WISHES):
            pass
    for place, may, error in ((path, False, errors.StoreExists), (file, True, errors.NotAStore)):
        with pytest.raises(error), made(place, overwrite=may, **WISHES):
            pytest.fail("it was begun")
    assert names(tmp_path) == ["f", "s"]
    with softkv.open(path) as db:
        assert dict(db) == {"old": 1.0}
        assert db.check().ok


def filled(path: Path, key: str) -> None:
    """A store with one item."""
    with softkv.open(path, compatibility="dot") as db:
        db.add([key], [1.0], vectors=[[1.0, 0.0]])


def make(path: Path, *, overwrite: bool = True, meanwhile: Any = None) -> None:
    """A store with one item in the place of what is there."""
    with made(path, overwrite=overwrite, **WISHES) as db:
        db.add(["new"], [2.0], vectors=[[0.0, 1.0]])
        if meanwhile:
            meanwhile()


def held_by(path: Path) -> dict[str, Any]:
    """What a store holds, which is sound."""
    with softkv.open(path) as db:
        assert db.check().ok
        return dict(db)


@pytest.mark.parametrize("error", [KeyboardInterrupt, errors.StorageFailed])
def test_what_stepped_aside_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """When the new store cannot take its place."""
    path = tmp_path / "s"
    filled(path, "old")
    move, moves = Store.move, []

    def failing(source: Any, target: Any) -> None:
        moves.append(source)
        if len(moves) == 2:
            raise error
        move(source, target)

    monkeypatch.setattr(Store, "move", failing)
    with pytest.raises(error):
        make(path)
    assert len(moves) == 3
    assert names(tmp_path) == ["s"]
    assert held_by(path) == {"old": 1.0}


@pytest.mark.parametrize("before", [False, True])
def test_items_that_come_meanwhile_are_not_overwritten(tmp_path: Path, before: bool) -> None:
    """Where nothing was, or an empty store, somebody may have been quicker."""
    path = tmp_path / "s"
    if before:
        softkv.open(path).close()
    with pytest.raises(errors.StoreExists):
        make(path, overwrite=False, meanwhile=lambda: filled(path, "quick"))
    assert names(tmp_path) == ["s"]
    assert held_by(path) == {"quick": 1.0}


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Also to another file system; and a name may be as long as names may."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as elsewhere:
        there = Path(elsewhere) / ("s" * 200)
        filled(there, "old")
        (tmp_path / "link").symlink_to(there)
        make(tmp_path / "link")
        assert held_by(there) == held_by(tmp_path / "link") == {"new": 2.0}
        assert names(Path(elsewhere)) == ["s" * 200]
        assert names(tmp_path) == ["link"]
