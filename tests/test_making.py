"""A new store takes its place when all of it is there, and not before."""

import os
import subprocess
import sys
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
    """It has its own path and what was wished for; while it is made, the old one is there."""
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
    """Nothing is left beside it."""
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
    """Nothing is overwritten without leave, nor with it a store that somebody writes to, or what is no store."""
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
    """It does when the new store cannot take its place."""
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
    """A link is followed, also to another file system; and a name may be as long as names may."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as elsewhere:
        there = Path(elsewhere) / ("s" * 200)
        filled(there, "old")
        (tmp_path / "link").symlink_to(there)
        make(tmp_path / "link")
        assert held_by(there) == held_by(tmp_path / "link") == {"new": 2.0}
        assert names(Path(elsewhere)) == ["s" * 200]
        assert names(tmp_path) == ["link"]


STOPPED = """
import os, sys
import softkv
from softkv.database.making import made
from softkv.storage import Store

path, moves_before_the_end, erased = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "erase"
move, moves, erase = Store.move, [], Store.erase

def stopping(source, target):
    if len(moves) == moves_before_the_end:
        os._exit(9)
    moves.append(source)
    move(source, target)

def erasing(path):
    if erased:
        erase(path)
    os._exit(9)

Store.move, Store.erase = staticmethod(stopping), staticmethod(erasing)
with made(path, value="number", compatibility="dot", temperature=0.5, overwrite=True) as db:
    db.add(["new"], [2.0], vectors=[[0.0, 1.0]])
    if moves_before_the_end < 0:
        os._exit(9)
"""


def stopped(path: Path, moves: int, how: str = "") -> list[str]:
    """What lies there when a process that overwrites has died after so many of its two renames; -1 while it fills."""
    filled(path, "old")
    died = subprocess.run([sys.executable, "-c", STOPPED, str(path), str(moves), how], check=False)
    assert died.returncode == 9
    return names(path.parent)


@pytest.mark.parametrize("name", ["s", "l" * 200])
@pytest.mark.parametrize(("moves", "left"), [(-1, 2), (0, 2), (1, 2), (2, 2)])
@pytest.mark.parametrize("then", ["made", "w", "c"])
def test_what_a_death_leaves_beside_the_path_is_put_right(
    tmp_path: Path, name: str, moves: int, left: int, then: str
) -> None:
    """The next to make one there, or to open it, finds the old items, or the new ones once they had their place."""
    path = tmp_path / name
    assert len(stopped(path, moves)) == left
    items = {"new": 2.0} if moves == 2 else {"old": 1.0}
    if moves == 1:
        with pytest.raises(errors.StoreNotFound, match=r"it is beside, as .*\.kept-.* mode 'w'"):
            softkv.open(path, "r")
    if then != "made":
        with softkv.open(path, then) as db:
            assert dict(db) == items
            assert db.check().ok
    with pytest.raises(errors.StoreExists, match="holds 1 items"):
        make(path, overwrite=False)
    assert names(tmp_path) == [name]
    assert held_by(path) == items
    make(path)
    assert names(tmp_path) == [name]


def test_a_death_while_the_old_store_is_erased_leaves_nothing_for_long(tmp_path: Path) -> None:
    """A death while the old store is erased leaves nothing for long, and neither does a second one."""
    path = tmp_path / "s"
    assert stopped(path, 2, "erase") == ["s"]
    stopped(path, 2)
    stopped(path, -1)
    assert len(names(tmp_path)) == 2  # the second has removed what the first had left
    make(path)
    assert names(tmp_path) == ["s"]


@pytest.mark.parametrize("name", ["s", "l" * 200])
def test_a_death_while_the_new_store_is_begun_leaves_nothing_for_long(tmp_path: Path, name: str) -> None:
    """It is at no path yet, and goes when one is made there."""
    path = tmp_path / name
    code = (
        "import os, sys; from softkv.storage.protocol import opening; from softkv.database.making import made;"
        "opening._fill = lambda *_: os._exit(9);"
        "made(sys.argv[1], value='number', compatibility='dot', temperature=0.5, overwrite=False).__enter__()"
    )
    assert subprocess.run([sys.executable, "-c", code, path], timeout=60, check=False).returncode == 9
    assert len(names(tmp_path)) == 1
    make(path)
    assert names(tmp_path) == [name]


def test_what_was_kept_stays_where_something_else_has_come(tmp_path: Path) -> None:
    """Nothing that was acknowledged is removed, and stores of like names are nobody's business."""
    path = tmp_path / "s"
    stopped(path, 1)
    there = set(names(tmp_path))
    softkv.open(path, "n").close()
    filled(tmp_path / ".s.keptx", "mine")
    make(path)
    assert set(names(tmp_path)) == {*there, "s", ".s.keptx"}
    (kept,) = [name for name in there if ".kept-" in name]
    assert held_by(tmp_path / kept) == {"old": 1.0}


def test_what_is_being_made_is_left_alone(tmp_path: Path) -> None:
    """Two who make a store at one path: the later takes the place, and neither removes what the other fills."""
    path = tmp_path / "s"
    make(path, meanwhile=lambda: make(path))
    assert names(tmp_path) == ["s"]
    assert held_by(path) == {"new": 2.0}
