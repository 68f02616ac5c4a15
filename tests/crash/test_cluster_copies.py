"""Clusters that are made, backed up and restored, and processes that die at any call of it: whole, or not there."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import check
from softkv.doors.cluster import create
from tests.clusters import clustered, opened
from tests.crash import calls
from tests.crash.children import Say
from tests.crash.recorder import Nursery, Plan, recording
from tests.crash.stage import killed, share
from tests.crash.test_cluster import POINTS, SHARDS, points
from tests.databases import vectors_of

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def backed_up(root: Path, target: str) -> None:
    """A backup of the cluster, while nobody writes to it."""
    with opened(root / "c", mode="r") as db:
        db.backup(root / target)


WORKS: dict[str, tuple[str, Callable[[Path], Any]]] = {  # what comes of it, and the work
    "create": ("new", lambda root: create(root / "new", SHARDS, [root / "disk"])),
    "backup": ("new", lambda root: backed_up(root, "new")),
    "backup again": ("old", lambda root: backed_up(root, "old")),
    "restore": ("new", lambda root: softkv.restore(root / "old", root / "new", disks=[root / "disk"])),
}


def run(say: Say, root: str, plan: Any, name: str) -> None:
    """Do the work under a plan."""
    with recording(plan):
        WORKS[name][1](Path(root))
    say("done")


def items(path: Path) -> dict[str, Any]:
    """All items of a cluster, which is sound."""
    assert check(path).ok
    with opened(path, mode="r") as db:
        return dict(db)


@pytest.mark.parametrize("name", WORKS)
def test_a_death_at_any_call_leaves_a_whole_cluster_or_none(
    name: str, nursery: Nursery, seed: int, thorough: bool, tmp_path: Path
) -> None:
    """A death leaves a whole cluster, none, or an earlier backup, of which each shard is as before or done."""
    prepared, root, log = tmp_path / "prepared", tmp_path / "watched", tmp_path / "log"
    (prepared / "disk").mkdir(parents=True)
    with clustered(prepared / "c", "number", shards=SHARDS) as db:
        before = dict(db)
        db.backup(prepared / "old")
        db.add([f"late {number}" for number in range(12)], np.arange(12.0), vectors=vectors_of(12))
        late = dict(db)
    result, work = WORKS[name]
    wanted = {"create": {}, "restore": before}.get(name, late)

    def play(**plan: Any) -> tuple[bool, list[list[Any]]]:
        rmtree(root, ignore_errors=True)
        copytree(prepared, root)
        log.unlink(missing_ok=True)
        with nursery.child(f"{__name__}:run", root, Plan(str(root), str(log), **plan), name) as child:
            said = list(child.all())
            return killed(child.wait()), said

    assert play() == (False, [["done"]])
    assert items(root / result) == wanted
    torn = 0
    for fatal, moment in share(list(points(calls.read(log))), 0 if thorough else POINTS, Random(f"{seed} {name}")):
        _, said = play(fatal=fatal, moment=moment)
        if result == "old":
            found = items(root / result)
            assert before.items() <= found.items() <= late.items()
            assert ["done"] not in said or found == late
            torn += found not in (before, late)
        if result == "old" or not (root / result).exists():
            assert result == "old" or ["done"] not in said
            torn += bool(list(root.glob(".new.new-*")))
            work(root)
        assert items(root / result) == wanted
        assert not list(root.glob(".new.new-*"))
    assert torn
