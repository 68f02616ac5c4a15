"""Changes of a cluster that die at any call of any shard leave whole parts, and the next handle completes them."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.cluster.handle import Cluster, create
from softkv.storage import Store
from tests.clusters import clustered, opened
from tests.crash import calls
from tests.crash.children import Say
from tests.crash.recorder import AFTER, BEFORE, MIDWAY, Nursery, Plan, recording
from tests.crash.stage import killed, share
from tests.databases import vectors_of

pytestmark = [pytest.mark.slow, pytest.mark.ci]

POINTS = 24  # of each change, in the default share
SHARDS, COUNT = 3, 12
KEYS = [f"new {number}" for number in range(COUNT)]
CHANGES = ("first", "add", "nameless", "replace", "delete", "set", "tune")


def change(db: softkv.SoftKV, name: str) -> Any:
    """One call, of items of all shards."""
    old, values = [f"item {number}" for number in range(COUNT)], np.arange(float(COUNT))
    given: dict[str, Any] = {"vectors": vectors_of(COUNT, seed=4), "batch": "the batch"}
    if name in ("first", "add"):
        return db.add(KEYS, values, **given)
    if name == "nameless":
        return db.add(values=values, **given)
    if name == "replace":
        return db.add(old, values, **given, on_conflict="replace")
    if name == "delete":
        return db.delete(where={"even": True}, batch="the batch")
    if name == "set":
        return db.set_values(where={"$value": {"$gt": 3.0}}, values=1.0, batch="the batch")
    return db.set_temperature(0.125)


def run(say: Say, path: str, plan: Any, name: str) -> None:
    """Open the cluster, and change it under a plan."""
    with softkv.open(path) as db, recording(plan):
        say("begin")
        change(db, name)
        say("done")


def contents(db: Any) -> dict[str, Any]:
    """What is in a cluster, or in one of its shards; items without keys by their vectors."""
    found = {}
    for item in db.select():
        name = item.key or item.vector.tobytes().hex()
        assert name not in found, "an item is there twice"
        found[name] = (item.value, item.payload)
    return found


def parts(path: Path) -> list[dict[str, Any]]:
    """What is in each of the shards."""
    found = []
    for number in range(SHARDS):
        with softkv.open(path / f"shard-{number:03}", "r") as db:
            found.append(contents(db))
    return found


def prepared(path: Path, name: str) -> None:
    """A cluster of which nothing is decided, or one with items."""
    if name == "first":
        create(path, SHARDS)
    else:
        clustered(path, "number", shards=SHARDS).close()


def points(log: list[Any]) -> Iterator[tuple[int, int]]:
    """Every call, and the moments at which one can die there."""
    for call in log:
        yield call.number, BEFORE
        if call.name == "write" and call.length > 1:
            yield call.number, MIDWAY
        yield call.number, AFTER


@pytest.mark.parametrize("name", CHANGES)
def test_a_death_at_any_call_leaves_whole_parts_and_the_change_is_completed(
    name: str, nursery: Nursery, seed: int, thorough: bool, tmp_path: Path
) -> None:
    """A death leaves whole parts, also one of the next handle, which completes the change: the one after that does."""
    prepared(tmp_path / "before", name)
    before = parts(tmp_path / "before")
    copytree(tmp_path / "before", tmp_path / "after")
    with opened(tmp_path / "after") as db:
        told = change(db, name)
    after, path, log = parts(tmp_path / "after"), tmp_path / "watched" / "c", tmp_path / "log"
    assert (before != after) == (name != "tune")

    def play(**plan: Any) -> tuple[bool, list[list[Any]]]:
        log.unlink(missing_ok=True)
        with nursery.child(f"{__name__}:run", path, Plan(str(path), str(log), **plan), name) as child:
            said = list(child.all())
            return killed(child.wait()), said

    def reset() -> None:
        rmtree(path.parent, ignore_errors=True)
        copytree(tmp_path / "before", path)

    reset()
    assert play() == (False, [["begin"], ["done"]])
    random, torn, again = Random(f"{seed} {name}"), 0, 0
    for fatal, moment in share(list(points(calls.read(log))), 0 if thorough else POINTS, random):
        reset()
        died, said = play(fatal=fatal, moment=moment)
        found = parts(path)
        assert all(part in (was, will) for part, was, will in zip(found, before, after, strict=True))
        assert ["done"] not in said or found == after, "what was acknowledged is lost"
        torn += found not in (before, after)
        if died and random.random() < 0.5:
            again += play(fatal=random.randint(1, fatal), moment=random.choice((BEFORE, AFTER)))[0]
            assert all(part in (was, will) for part, was, will in zip(parts(path), before, after, strict=True))
        with opened(path) as db:
            assert change(db, name) == told
            assert db.info().value_kind == "number"
            assert name != "tune" or db.info().temperature == 0.125
            assert db.check().ok
        assert parts(path) == after
    assert again or name == "tune"  # of which little is left to do again
    assert torn or name in ("first", "tune")


def test_a_torn_part_is_noticed(tmp_path: Path) -> None:
    """A shard that has some of its part of a batch would be found out."""
    prepared(tmp_path / "c", "delete")
    before = parts(tmp_path / "c")
    with opened(tmp_path / "c") as db:
        change(db, "delete")
    after = parts(tmp_path / "c")
    with Store.open(tmp_path / "c" / "shard-000", "w") as store:
        store.delete(next(iter(after[0])))
    assert parts(tmp_path / "c")[0] not in (before[0], after[0])


def test_an_item_in_a_foreign_shard_is_noticed(tmp_path: Path) -> None:
    """`check` notices it: nobody would look for it there."""
    prepared(tmp_path / "c", "add")
    with opened(tmp_path / "c", mode="r") as db:
        assert isinstance(db, Cluster)
        number = (db._store.manifest.shard_of("astray") + 1) % SHARDS
    with softkv.open(tmp_path / "c" / f"shard-{number:03}") as one:
        one.add("astray", 1.0, vectors=vectors_of(1)[0])
    with opened(tmp_path / "c", mode="r") as db:
        found = db.check()
    assert not found.ok
    assert "astray" in str(found)
