"""A cluster that dies while it is given more shards has every item once, in whole shards, and goes on from there."""

import errno
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.cluster import grow
from softkv.doors.cluster.manifest import Manifest
from softkv.errors import SoftKVError
from tests.clusters import opened
from tests.crash import calls
from tests.crash.aftermath import lay
from tests.crash.children import Child, Say
from tests.crash.disk import Disk
from tests.crash.outages import outages
from tests.crash.recorder import AFTER, BEFORE, Nursery, Plan, recording
from tests.crash.stage import killed, share
from tests.crash.test_cluster import points
from tests.databases import vectors_of
from tests.test_cluster_growing import contents, directories, furnished, named

pytestmark = [pytest.mark.slow, pytest.mark.ci]

POINTS = 24  # at which it dies, in the default share
FULL = 16  # at which the disk is full
EACH = 3  # ways to lose the power after one call
SHARDS = 4


def run(say: Say, path: str, plan: Any) -> None:
    """Give the cluster more shards under a plan."""
    with recording(plan):
        say("begin")
        try:
            grow(path, SHARDS)
        except SoftKVError as error:
            say("refused", type(error).__name__)
        else:
            say("done")


def read(say: Say, path: str) -> None:
    """Ask one handle, handles that are opened anew and a snapshot of before, until the cluster has eight shards."""
    query = vectors_of(3, seed=5)
    with opened(Path(path), mode="r") as db, db.snapshot() as kept:
        count, value = len(kept), kept.lookup(query, temperature=0.5).value
        say("begin")
        shards = 0
        while shards < 8:
            shards = len(Manifest.read(path).shards)
            with opened(Path(path), mode="r") as other:
                for one in (db, other, kept):
                    assert len(one) == len(list(one)) == count
                    np.testing.assert_allclose(one.lookup(query, temperature=0.5).value, value, atol=1e-6)
        assert len(db._store.shards) == 8
        say("seen")


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A cluster of two shards, with items of all sorts."""
    (tmp_path / "before").mkdir()
    furnished(tmp_path / "before" / "c", "number", 2).close()
    return tmp_path / "before"


def seen(path: Path) -> dict[bytes, tuple[Any, ...]]:
    """What a reader sees of a cluster, of which all that the manifest names is there."""
    for shard in Manifest.read(str(path)).shards:
        with softkv.open(path / shard.path, "r") as one:
            assert one.check().ok
    with opened(path, mode="r") as db:
        assert db.check().ok
        return contents(db)


def require_grown(path: Path, had: dict[bytes, tuple[Any, ...]]) -> None:
    """Go on, and find every item once, and nothing left of what was begun."""
    grown = grow(path, SHARDS)
    assert (grown.shards, grown.left) == (SHARDS, ())
    assert seen(path) == had
    assert directories(path) == named(path)
    with opened(path) as db:
        db.delete(["item 40"])
        assert len(db) == len(had) - 1


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_death_at_any_call_leaves_every_item_once(
    meanwhile: bool, before: Path, nursery: Nursery, seed: int, thorough: bool, tmp_path: Path
) -> None:
    """A death leaves every item once, also one of the next attempt, and where the cluster was changed in between."""
    path, log = tmp_path / "watched" / "c", tmp_path / "log"
    with opened(before / "c", mode="r") as db:
        had = contents(db)

    def play(**plan: Any) -> tuple[bool, list[list[Any]]]:
        log.unlink(missing_ok=True)
        with nursery.child(f"{__name__}:run", path, Plan(str(path), str(log), **plan)) as child:
            said = list(child.all())
            return killed(child.wait()), said

    def reset() -> None:
        rmtree(path.parent, ignore_errors=True)
        copytree(before, path.parent)

    reset()
    assert play() == (False, [["begin"], ["done"]])
    random, counts, again = Random(f"{seed} {meanwhile}"), set[int](), 0
    for fatal, moment in share(list(points(calls.read(log))), 0 if thorough else POINTS, random):
        reset()
        died, said = play(fatal=fatal, moment=moment)
        assert died or said[-1] == ["done"]
        assert seen(path) == had
        counts.add(len(named(path)))
        expected = dict(had)
        if meanwhile:
            with opened(path) as db:
                gone = db["item 50"], db.delete(["item 50"])
                assert gone[1] == 1
                expected = contents(db)
        elif died and random.random() < 0.5:
            again += play(fatal=random.randint(1, fatal), moment=random.choice((BEFORE, AFTER)))[0]
            assert seen(path) == had
        require_grown(path, expected)
    assert counts == {2, 3, 4}
    assert again or meanwhile


def test_another_process_reads_on(before: Path) -> None:
    """Every item once all the while; what it still reads of before is removed when it has gone."""
    path = before / "c"
    with Child(lambda say: read(say, str(path))) as reader:
        assert reader.hear() == ["begin"]
        left = [grow(path, shards).left for shards in (3, 5, 8)]
        assert reader.hear() == ["seen"]
        assert left[0]
        assert all(Path(one).is_dir() for one in left[0])
        reader.wait()
    opened(path).close()
    assert directories(path) == named(path)


def test_a_disk_that_is_full_from_any_call_on_leaves_every_item_once(
    before: Path, nursery: Nursery, seed: int, thorough: bool, tmp_path: Path
) -> None:
    """It is refused, and done once there is room."""
    path, log = tmp_path / "watched" / "c", tmp_path / "log"
    with opened(before / "c", mode="r") as db:
        had = contents(db)

    def play(**plan: Any) -> list[list[Any]]:
        log.unlink(missing_ok=True)
        with nursery.child(f"{__name__}:run", path, Plan(str(path), str(log), **plan)) as child:
            return list(child.all())

    def reset() -> None:
        rmtree(path.parent, ignore_errors=True)
        copytree(before, path.parent)

    reset()
    play()
    refused = 0
    for failing in share(range(1, len(calls.read(log)) + 1), 0 if thorough else FULL, Random(seed)):
        reset()
        said = play(failing=failing, error=errno.ENOSPC, sticky=True)
        refused += said[-1][0] == "refused"
        assert seen(path) == had
        require_grown(path, had)
    assert refused > FULL // 3


def as_renamed(call: calls.Call) -> calls.Call:
    """A manifest that is linked into its place and loses its old name has moved there; links are not recorded."""
    place, _, suffix = call.path.partition(".json.")
    moved = call.name == "unlink" and suffix and not call.error
    return replace(call, name="rename", target=f"{place}.json") if moved else call


def test_nothing_is_lost_with_the_power(
    before: Path, nursery: Nursery, seed: int, thorough: bool, quick: Path, tmp_path: Path
) -> None:
    """It may end after any call, with any of what was not synced: what was divided goes when all else is durable."""
    path, log, random = quick / "c", tmp_path / "log", Random(seed)
    copytree(before / "c", path)
    beginning = {
        str(one.relative_to(path)): None if one.is_dir() else one.read_bytes() for one in sorted(path.rglob("*"))
    }
    with opened(before / "c", mode="r") as db:
        had = contents(db)
    with nursery.child(f"{__name__}:run", path, Plan(str(path), str(log))) as child:
        assert list(child.all()) == [["begin"], ["done"]]
    found, states, counts = [as_renamed(call) for call in calls.read(log)], 0, set[int]()
    wanted = set(share(range(len(found)), 0 if thorough else POINTS, random))
    wanted |= {place for place, call in enumerate(found) if call.name in ("rename", "rmdir")}
    disk = Disk(beginning)
    for place, call in enumerate(found):
        disk.apply(call)
        for outage in outages(disk, random, EACH) if place in wanted else ():
            rmtree(path)
            lay(outage.tree(disk, random), path)
            assert seen(path) == had, f"after {call}: {outage.what}"
            counts.add(len(named(path)))
            states += 1
    assert counts == {2, 3, 4}
    assert states > POINTS
    require_grown(path, had)
