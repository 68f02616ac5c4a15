"""Writes to a cluster of which some shards fail: parts are whole or absent, and made again a change is made once.

Shards fail for real stores: what is to be written is refused before, or written and then not acknowledged.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from softkv.database import SoftKV
from softkv.doors.cluster.handle import Cluster, create
from softkv.doors.cluster.shard import Shard
from softkv.errors import (
    BatchMismatch,
    CommitUncertain,
    DuplicateKey,
    InputError,
    PartlyAdded,
    SoftKVError,
    StorageFull,
)

from .clusters import clustered, opened
from .databases import values_of, vectors_of
from .scales import scaled

KEYS = [f"new {number}" for number in range(12)]
GIVEN: dict[str, Any] = {"values": np.arange(12.0), "vectors": vectors_of(12, seed=4)}
WRITES = ("append", "append_nothing", "delete")
Change = Callable[[Cluster, str | None], Any]


class Failing(Shard):
    """A shard that fails on its way to the store or back, or that is told twice."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard._db)
        self.before: Exception | None = None
        self.after: Exception | None = None
        self.late: list[Callable[[], Any]] = []  # what was sent, to be sent once more
        for name in WRITES:
            setattr(self, name, self._through(getattr(shard, name)))

    def _through(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def through(*given: Any) -> Any:
            self.late.append(lambda: write(*given))
            if self.before is not None:
                raise self.before
            found = write(*given)
            assert write(*given) == found  # a request that was sent twice
            if self.after is not None:
                raise self.after
            return found

        return through


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of four shards that can fail, checked at the end."""
    with clustered(tmp_path / "c", "number", shards=4) as db:
        db._store.shards = tuple(Failing(shard) for shard in db._store.shards)
        yield db
        assert db.check().ok


def contents(db: SoftKV) -> dict[str, Any]:
    """Everything in a cluster or a shard but the names of items without keys, which are as many as there are."""
    found: dict[str, Any] = {}
    for item in db.select():
        name = item.key or f"at {item.vector.tobytes().hex()}"
        assert name not in found, "an item is there twice"
        found[name] = (item.value, item.payload)
    return found


CHANGES: dict[str, Change] = {
    "add": lambda db, batch: db.add(KEYS, **GIVEN, batch=batch),
    "add without keys": lambda db, batch: db.add(**GIVEN, batch=batch),
    "replace": lambda db, batch: db.add([f"item {n}" for n in range(12)], **GIVEN, batch=batch, on_conflict="replace"),
    "ignore": lambda db, batch: db.add(["item 1", *KEYS[1:]], **GIVEN, batch=batch, on_conflict="ignore"),
    "delete": lambda db, batch: db.delete([f"item {n}" for n in range(20)], batch=batch),
    "delete where": lambda db, batch: db.delete(where={"even": True}, batch=batch),
    "set values": lambda db, batch: db.set_values(
        [f"item {n}" for n in range(20)], np.zeros(20), expected=values_of("number", 40)[:20], batch=batch
    ),
    "set values where": lambda db, batch: db.set_values(where={"$value": {"$gt": 3.0}}, values=1.0, batch=batch),
}


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Change:
    """A change of many items, of all shards."""
    made: Change = CHANGES[request.param]
    return made


def whole(tmp_path: Path, change: Change) -> tuple[dict[str, Any], Any]:
    """What a cluster without failures holds after a change, and what that returned."""
    with clustered(tmp_path / "whole", "number", shards=4) as db:
        told = change(db, "the batch")
        return contents(db), told


@pytest.mark.parametrize("fails", [(1,), (3,), (1, 2, 3)])
@pytest.mark.parametrize("refuses", [False, True])
def test_a_change_that_some_shards_miss_is_completed_by_making_it_again(
    cluster: Cluster, change: Change, fails: tuple[int, ...], refuses: bool, tmp_path: Path
) -> None:
    """Nothing is done twice, whether the others have refused, or done it and not said so."""
    expected, told = whole(tmp_path, change)
    shards, before = cluster._store.shards, contents(cluster)
    for number in fails:
        if refuses:
            shards[number].before = StorageFull("no space left")
        else:
            shards[number].after = CommitUncertain("the disk is gone")
    with pytest.raises(PartlyAdded, match="of 4 shards") as partly:
        change(cluster, "the batch")
    named = {"done": partly.value.done, "refused": partly.value.refused, "unknown": partly.value.unknown}
    paths = [shard.path for shard in shards]
    assert named["refused" if refuses else "unknown"] == tuple(paths[number] for number in fails)
    assert named["done"] == tuple(path for number, path in enumerate(paths) if number not in fails)
    assert partly.value.batch == "the batch"
    assert contents(cluster) != before
    for number in fails:
        shards[number].before = shards[number].after = None
    assert change(cluster, "the batch") == told
    assert contents(cluster) == expected
    for shard in shards:  # late, and in another order
        for sent in reversed(shard.late):
            sent()
    assert change(cluster, "the batch") == told
    assert contents(cluster) == expected


def test_a_change_that_all_shards_refuse_is_not_begun(cluster: Cluster, change: Change) -> None:
    """The error is that of the first shard."""
    before = contents(cluster)
    for number, shard in enumerate(cluster._store.shards):
        shard.before = StorageFull(f"no space left in {number}")
    with pytest.raises(StorageFull, match="no space left in 0"):
        change(cluster, "the batch")
    assert contents(cluster) == before


def test_what_became_of_each_shard_is_told(cluster: Cluster, change: Change, tmp_path: Path) -> None:
    """One that refused has nothing of its part, one that is done has all; of others it is told that nobody knows."""
    shards, before = cluster._store.shards, [contents(shard._db) for shard in cluster._store.shards]
    with clustered(tmp_path / "whole", "number", shards=4) as whole:
        change(whole, "the batch")
        after = [contents(shard._db) for shard in whole._store.shards]
    shards[0].before, shards[1].after = StorageFull("no space left"), CommitUncertain("the disk is gone")
    shards[2].before = OSError("no answer")
    with pytest.raises(PartlyAdded, match=r"^1 of 4 .*\(no space left\).* batch='the batch'") as partly:
        change(cluster, "the batch")
    paths, told = [shard.path for shard in shards], partly.value
    assert (told.done, told.refused, told.unknown) == ((paths[3],), (paths[0],), (paths[1], paths[2]))
    found = [contents(shard._db) for shard in shards]
    assert found == [before[0], after[1], before[2], after[3]]
    shards[0].before = shards[1].after = shards[2].before = None
    change(cluster, "the batch")
    assert [contents(shard._db) for shard in shards] == after


def test_shards_are_written_to_at_once(cluster: Cluster, change: Change) -> None:
    """None waits for another to have its part on the disk: each begins before any has ended."""
    met = Barrier(4, timeout=60.0)
    for shard in cluster._store.shards:
        for name in WRITES:
            write = getattr(shard, name)
            setattr(shard, name, lambda *given, write=write: (met.wait(), write(*given))[1])
    change(cluster, "the batch")
    assert not met.broken


def test_a_batch_without_a_name_is_given_one(cluster: Cluster) -> None:
    """That name completes it; and it is not a batch of any other content."""
    cluster._store.shards[2].before = StorageFull("no space left")
    with pytest.raises(PartlyAdded) as partly:
        cluster.add(KEYS, **GIVEN)
    cluster._store.shards[2].before = None
    for key in ("a", "b", "c", "d", "e", "f"):
        with pytest.raises(BatchMismatch):
            cluster.add(key, 1.0, vectors=[1.0] * 5, batch=partly.value.batch)
    with pytest.raises(DuplicateKey):
        cluster.add(KEYS, **GIVEN)
    assert cluster.add(KEYS, **GIVEN, batch=partly.value.batch).count == 12
    assert [cluster[key] for key in KEYS] == list(range(12))


WRONG: dict[str, Change] = {
    "a key that is there": lambda db, batch: db.add([*KEYS[:11], "item 3"], **GIVEN, batch=batch),
    "a key twice": lambda db, batch: db.add([*KEYS[:11], KEYS[0]], **GIVEN, batch=batch),
    "a key that is none": lambda db, batch: db.add([*KEYS[:11], "#1"], **GIVEN, batch=batch),
    "a value that is no number": lambda db, batch: db.add(
        KEYS, [*range(11), float("nan")], vectors=GIVEN["vectors"], batch=batch
    ),
    "a payload that is no JSON": lambda db, batch: db.add(KEYS, **GIVEN, payloads=[None] * 11 + [{1}], batch=batch),
    "a zero vector": lambda db, batch: db.add(
        KEYS, GIVEN["values"], vectors=GIVEN["vectors"] * (np.arange(12) < 11)[:, None], batch=batch
    ),
    "an item to delete that is not there": lambda db, batch: db.delete(["item 1", "item 2", "nowhere"], batch=batch),
    "another value than expected": lambda db, batch: db.set_values(
        ["item 1", "item 2"], [0.0, 0.0], expected=[db["item 1"], 77.0], batch=batch
    ),
    "an item to change that is not there": lambda db, batch: db.set_values(["item 1", "x"], [0.0, 0.0], batch=batch),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("batch", [None, "one"])
def test_what_is_wrong_for_one_shard_reaches_none(cluster: Cluster, name: str, batch: str | None) -> None:
    """The batch is looked at whole before any shard is told of it."""
    before, commit = contents(cluster), cluster.info().commit
    with pytest.raises(SoftKVError) as refused:
        WRONG[name](cluster, batch)
    assert not isinstance(refused.value, PartlyAdded)
    assert (contents(cluster), cluster.info().commit) == (before, commit)


@pytest.mark.parametrize("wrong", ["a key twice", "a value that is no number", "a payload that is no JSON"])
def test_a_first_batch_that_is_wrong_decides_nothing(wrong: str, tmp_path: Path) -> None:
    """The kind of the values is not decided by what is refused."""
    create(tmp_path / "c", 4)
    with opened(tmp_path / "c") as db:
        with pytest.raises(InputError):
            WRONG[wrong](db, None)
        assert db.value_kind is None
        assert db._store.manifest.epoch == 1
        db.add(KEYS, vectors_of(12), vectors=GIVEN["vectors"])
        assert db.value_kind == "vector"


def test_the_first_batch_may_be_completed_as_well(tmp_path: Path) -> None:
    """What it decides for all shards is decided before any of them has items."""
    create(tmp_path / "c", 4)
    with opened(tmp_path / "c") as db:
        db._store.shards = tuple(Failing(shard) for shard in db._store.shards)
        db._store.shards[3].before = StorageFull("no space left")
        with pytest.raises(PartlyAdded):
            db.add(KEYS, **GIVEN, batch="first")
    with opened(tmp_path / "c", mode="r") as reader, opened(tmp_path / "c") as db:
        assert db.value_kind == "number"
        assert db.add(KEYS, **GIVEN, batch="first").count == 12
        assert (len(db), len(reader)) == (12, 12)
        assert db.check().ok
        db.set_temperature(0.125)
        assert reader.lookup(GIVEN["vectors"][0]).temperature == 0.125


def test_whatever_fails_every_item_is_there_once(tmp_path: Path) -> None:
    """Many changes at random are made again until they are acknowledged, beside a dict."""
    random, model = Random(5), dict[str, float]()
    create(tmp_path / "c", 5, value="number")
    with opened(tmp_path / "c") as db:
        shards = db._store.shards = tuple(Failing(shard) for shard in db._store.shards)
        for turn in range(60):
            keys = sorted({f"key {random.randrange(60)}" for _ in range(random.randint(1, 8))})
            values = [random.random() for _ in keys]
            gone = [key for key in keys if key in model]
            deletes = bool(gone) and random.random() < 0.3
            for _ in range(20):
                for shard in shards:
                    wrong = random.choice([None] * 6 + [StorageFull("full"), CommitUncertain("gone")])
                    shard.before = wrong if isinstance(wrong, StorageFull) else None
                    shard.after = wrong if isinstance(wrong, CommitUncertain) else None
                    if shard.late and random.random() < 0.2:
                        _quietly(random.choice(shard.late))
                try:
                    if deletes:
                        assert db.delete(gone, batch=f"turn {turn}") == len(gone)
                    else:
                        given = {"vectors": vectors_of(len(keys), seed=turn), "on_conflict": "replace"}
                        done = db.add(keys, values, **given, batch=f"turn {turn}")
                        assert (done.count, done.replaced) == (len(keys), len(gone))
                    break
                except (PartlyAdded, StorageFull):
                    continue
            else:
                pytest.fail("no change comes through")
            if deletes:
                for key in gone:
                    del model[key]
            else:
                model.update(zip(keys, values, strict=True))
            assert db == model
        assert db.check().ok


def _quietly(sent: Callable[[], Any]) -> None:
    """Deliver what was sent before once more, also where it comes to nothing now."""
    try:
        sent()
    except SoftKVError:
        return


@pytest.mark.parametrize("keyed", [False, True])
def test_a_file_of_which_a_batch_was_stored_in_part_goes_on_as_the_error_says(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    """Records with keys are given again, and those that are there are ignored; others are added as that batch."""
    scaled(monkeypatch, loaded=10)
    count, vectors, shards = len(cluster), vectors_of(30, seed=7), cluster._store.shards
    keys = [{"key": f"line {n}"} if keyed else {} for n in range(30)]
    lines = [json.dumps({**keys[n], "vector": vectors[n].tolist(), "value": n}) for n in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    def then_fail(done: int, _of: int) -> None:
        for shard in shards:  # whichever of them take the next records
            shard.after = CommitUncertain("gone") if done == 10 else None

    with pytest.raises(PartlyAdded, match="first 10 records are stored, and the next 10 may be") as partly:
        cluster.load(tmp_path / "a.jsonl", progress=then_fail)
    for shard in shards:
        shard.after = None
    if keyed:
        assert "Go on with skip=10 and on_conflict='ignore'" in str(partly.value)
        cluster.load(tmp_path / "a.jsonl", skip=10, on_conflict="ignore")
    else:
        assert f"with batch='{partly.value.batch}', which completes them, and go on with skip=20" in str(partly.value)
        cluster.add(vectors=vectors[10:20], values=np.arange(10.0, 20), batch=partly.value.batch)
        cluster.load(tmp_path / "a.jsonl", skip=20)
    assert len(cluster) == len(contents(cluster)) == count + 30
