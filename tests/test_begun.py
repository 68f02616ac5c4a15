"""A build of an index that was interrupted: the next one goes on from the last finished stage, if it wants the same."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import begun
from softkv.index.encoding import encoded
from softkv.storage import Store

from .databases import count_as_large

ITEMS, WIDTH = 900, 6
STAGES = ["finding centres", "assigning rows", "laying rows in order", "measuring lists", "rehearsing"]
# Where a build dies, and what the next one has to do.
LEFT = {
    "finding centres": STAGES,
    "assigning rows": STAGES,
    "laying rows in order": STAGES[2:],
    "measuring lists": STAGES[3:],
    "rehearsing": STAGES[4:],
}


DYING = """
import os, signal, sys
import softkv
from softkv.database import indexing

indexing.REHEARSED = 200

def progress(stage, done, total):
    if stage == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

with softkv.open(sys.argv[1]) as db:
    db.build_index(progress=progress)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, and few queries are rehearsed."""
    count_as_large(monkeypatch, rehearsed=200)


def keys_of(count: int, seed: int) -> np.ndarray:
    """Vectors in clusters."""
    rng = np.random.default_rng(seed)
    return np.random.default_rng(0).standard_normal((20, WIDTH))[
        rng.integers(0, 20, count)
    ] + 0.2 * rng.standard_normal((count, WIDTH))


def filled(path: Path, kind: str = "number", compatibility: str = "cosine") -> None:
    """A store of vectors with keys "0", "1", ..., with some of them deleted."""
    keys = keys_of(ITEMS, 1)
    values = {"number": np.tanh(keys[:, 0]), "vector": keys[:, :3], "label": [f"label {x:.0f}" for x in keys[:, 0]]}
    with softkv.open(path, value=kind, compatibility=compatibility) as db:
        db.add([str(number) for number in range(ITEMS)], values[kind], vectors=keys)
        db.delete([str(number) for number in range(0, ITEMS, 50)])


def killed_at(path: Path, stage: str) -> None:
    """A build in another process, that is killed as soon as this stage tells how far it is."""
    # Not a forked one: the threads of FAISS do not survive a fork.
    ran = subprocess.run([sys.executable, "-c", DYING, str(path), stage], check=False, capture_output=True, timeout=60)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()


def build(db: softkv.SoftKV, **options: Any) -> list[str]:
    """Build an index; returns the stages that there were, but for signs, which not all stores need."""
    stages: list[str] = []
    db.build_index(progress=lambda at, _done, _total: None if at in stages else stages.append(at), **options)
    return [stage for stage in stages if stage != "noting signs of rows"]


def require_sound(db: softkv.SoftKV) -> None:
    """The index answers within its error, nothing is left of the build, and the store is whole."""
    queries = keys_of(200, 2)
    found, exact = db.lookup(queries, tolerance=0.2), db.lookup(queries, tolerance=0)
    assert db.info().index is not None
    assert (np.broadcast_to(np.asarray(found.error_kind), len(queries)) == "calibrated").sum() > 100
    apart = np.abs(np.asarray(found.value, float) - np.asarray(exact.value, float)).reshape(len(queries), -1)
    assert (np.linalg.norm(apart, axis=1) <= found.error + exact.error).mean() > 0.9
    assert not db._view().snapshot.index(begun.NAME)
    assert db.info().building is None
    assert db.check().ok


@pytest.mark.parametrize(
    ("stage", "compatibility"),
    [*((stage, "cosine") for stage in STAGES), *((stage, "gaussian") for stage in STAGES[2:])],
)
def test_a_killed_build_goes_on_from_its_last_finished_stage(tmp_path: Path, stage: str, compatibility: str) -> None:
    """Items are added and deleted meanwhile; the catalog names what is finished, and no generation is left over."""
    filled(tmp_path / "s", compatibility=compatibility)
    killed_at(tmp_path / "s", stage)
    with softkv.open(tmp_path / "s") as db:
        assert len(list((tmp_path / "s").glob("generation-*"))) == 1
        assert (begun.NAME in db._store._catalog.index_names(db._view().snapshot.generation)) == (LEFT[stage] != STAGES)
        assert (db.info().building is None) == (LEFT[stage] == STAGES)
        db.add([f"late {number}" for number in range(30)], np.zeros(30), vectors=keys_of(30, 3))
        db.delete([str(number) for number in range(1, ITEMS, 50)])
        assert build(db) == LEFT[stage]
        require_sound(db)
        index = db._view().index
        assert index is not None
        assert (index.quick.counts.sum(), len(db)) == (ITEMS - 36 + 30 * (LEFT[stage] == STAGES), ITEMS - 36 + 30)
        assert len(list((tmp_path / "s").glob("generation-*"))) == 1
        assert db.info().freed_by_compact == db.info().dead_rows * 4 * (WIDTH + 1 + 2)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["vector", "label"])
@pytest.mark.parametrize("stage", ["measuring lists", "rehearsing"])
def test_what_goes_on_is_what_would_have_been_built(tmp_path: Path, kind: str, stage: str) -> None:
    """Lists and calibration equal those of a build without interruption; labels that came meanwhile are in no list."""
    for name in "st":
        filled(tmp_path / name, kind)
    killed_at(tmp_path / "s", stage)
    with softkv.open(tmp_path / "s") as resumed, softkv.open(tmp_path / "t") as whole:
        assert build(resumed) == LEFT[stage]
        assert build(whole) == STAGES
        mine, theirs = resumed._view().index, whole._view().index
        assert mine is not None
        assert theirs is not None
        assert np.array_equal(mine.offsets, theirs.offsets)
        assert mine.lists.means == pytest.approx(theirs.lists.means)
        assert mine.calibration.errors == pytest.approx(theirs.calibration.errors, abs=1e-5)
        if kind == "label":
            resumed.add("new", "a label that is new", vectors=keys_of(1, 4)[0])
            assert build(resumed) == ["refining lists", *STAGES[2:]]
            assert build(resumed, whole=True) == STAGES


@pytest.mark.parametrize("stage", ["measuring lists", "rehearsing"])
def test_lists_made_anew_are_not_those_that_were_being_refined(tmp_path: Path, stage: str) -> None:
    """A build that refines goes on where it was killed; one that makes all lists anew starts over."""
    filled(tmp_path / "s")
    with softkv.open(tmp_path / "s") as db:
        build(db)
        db.delete("1")
    killed_at(tmp_path / "s", stage)
    shutil.copytree(tmp_path / "s", tmp_path / "t")
    with softkv.open(tmp_path / "s") as refined, softkv.open(tmp_path / "t") as whole:
        assert build(refined) == LEFT[stage]
        assert build(whole, whole=True) == STAGES
        require_sound(refined)
        require_sound(whole)


def test_a_label_that_came_meanwhile_does_not_stop_it(tmp_path: Path) -> None:
    """Lists that were measured know nothing of it, and lookups do."""
    filled(tmp_path / "s", "label")
    killed_at(tmp_path / "s", "rehearsing")
    with softkv.open(tmp_path / "s") as db:
        db.add("new", "a label that is new", vectors=np.full(WIDTH, 3.0))
        assert build(db) == ["rehearsing"]
        answer = db.lookup(np.full(WIDTH, 3.0), tolerance=0.5)
        assert answer.value[answer.labels.index("a label that is new")] > 0.3
        assert db.check().ok


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda db: db.compact(), id="compacted"),
        pytest.param(lambda db: db.drop_index(), id="dropped"),
    ],
)
def test_another_generation_starts_over(tmp_path: Path, change: Callable[[softkv.SoftKV], None]) -> None:
    """A build after a change of the generation, or after `drop_index`, starts from its first stage."""
    filled(tmp_path / "s")
    killed_at(tmp_path / "s", "laying rows in order")
    with softkv.open(tmp_path / "s") as db:
        assert db.info().building is not None
        change(db)
        assert db.info().building is None
        assert build(db) == STAGES
        require_sound(db)


def test_a_build_that_wants_something_else_starts_over(tmp_path: Path) -> None:
    """Other temperatures or queries only rehearse otherwise."""
    filled(tmp_path / "s")
    killed_at(tmp_path / "s", "rehearsing")
    with softkv.open(tmp_path / "s") as db:
        assert build(db, lists=7) == STAGES
        db.delete("1")
    killed_at(tmp_path / "s", "rehearsing")
    with softkv.open(tmp_path / "s") as db:
        assert build(db, temperatures=(0.05, 0.1)) == ["rehearsing"]
        assert db.info().index is not None
        assert db.info().index.built["temperatures"] == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize("count", [0, 3])
def test_what_was_deleted_meanwhile_is_no_reason_to_go_on(tmp_path: Path, count: int) -> None:
    """If next to nothing is left of the lists, a build starts over."""
    filled(tmp_path / "s")
    killed_at(tmp_path / "s", "measuring lists")
    with softkv.open(tmp_path / "s") as db:
        names = list(db)
        db.delete(names[count:])
        db.add([f"late {number}" for number in range(300)], np.zeros(300), vectors=keys_of(300, 3))
        assert build(db) == STAGES
        assert db.check().ok


HARM: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rows beyond the end": {"order": np.arange(ITEMS) + 1, "rows": ITEMS},
    "rows twice": {"order": np.zeros(ITEMS, np.int64), "rows": ITEMS},
    "too few rows": {"order": np.arange(5), "rows": ITEMS},
    "rows that are no numbers": {"rows": "many"},
    "offsets that fall": {"offsets": np.array([0, 7, 3, ITEMS])},
    "heads larger than lists": {"heads": np.array([6, 1, 1])},
    "heads below zero": {"heads": np.array([-1, 1, 1])},
    "heads that are broken": {"heads": np.ones(3)},
    "too few heads": {"heads": np.array([1, 1])},
    "a centre of another width": {"centre": np.zeros(WIDTH + 1)},
    "a centre that is no number": {"centre": np.full(WIDTH, np.nan)},
    "statistics without an end": {"means": np.full((3, WIDTH), np.inf)},
}


def forged(**changes: Any) -> Iterator[bytes | memoryview]:
    """The file of an unfinished build in which some arrays, or the number of rows, are others."""
    arrays = {"centre": np.zeros(WIDTH), "offsets": np.array([0, 5, 9, ITEMS]), "order": np.arange(0)} | changes
    wanted = {"form": "cosine", "compatibility": "cosine", "lists": None, "projection": None}
    facts = {"wanted": wanted, "rows": arrays.pop("rows", ITEMS), "items": ITEMS, "whole": ITEMS, "is_refined": False}
    return encoded(facts, arrays)


@pytest.mark.parametrize("harm", HARM)
def test_what_cannot_be_believed_is_not_gone_on_with(tmp_path: Path, harm: str) -> None:
    """A file of an unfinished build that is damaged or forged is passed over, and the build starts over."""
    filled(tmp_path / "s")
    with Store.open(tmp_path / "s", "w") as store:
        store.put_index(begun.NAME, forged(**HARM[harm]) if HARM[harm] else b"nothing")
    with softkv.open(tmp_path / "s") as db:
        assert build(db) == STAGES
        require_sound(db)


@pytest.mark.parametrize("heads", [{}, {"heads": np.array([1, 1, 45])}])
def test_what_can_be_believed_is_gone_on_with(tmp_path: Path, heads: dict[str, Any]) -> None:
    """The files above are refused for what was forged in them; heads may be missing, as in files of before."""
    filled(tmp_path / "s")
    with Store.open(tmp_path / "s", "w") as store:
        store.put_index(begun.NAME, forged(**heads))
    with softkv.open(tmp_path / "s") as db:
        assert build(db) == STAGES[3:]
        index = db._view().index
        assert index is not None
        assert (None if index.heads is None else index.heads.tolist()) == (heads["heads"].tolist() if heads else None)
