"""Shards that actors of Ray hold, on machines that fail: raylets of this one, all of which share its kernel."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.cluster.actors import packed
from softkv.doors.cluster.far import Unanswered
from softkv.doors.cluster.handle import Cluster
from softkv.errors import CommitUncertain, OutOfReach, PartlyAdded, WriterFenced

from .crash import calls
from .crash.recorder import Plan
from .crash.stage import share
from .crash.test_cluster import points
from .databases import filled, vectors_of
from .raylets import (
    Doing,
    Machines,
    arm,
    divert,
    eventually,
    fill,
    held,
    machines_in,
    numbers_of,
    pause,
    pid_of,
    stopped,
    turn_off_locks,
)

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.alone]

QUERIES = vectors_of(3, seed=5)
KEYS = [f"new {number}" for number in range(12)]
NEW: dict[str, Any] = {"values": numbers_of(12), "vectors": vectors_of(12, seed=4)}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two machines with a disk each."""
    with machines_in(tmp_path_factory.mktemp("disks"), 2) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two shards, one on each disk; to start its processes takes seconds."""
    with held(machines, tmp_path_factory.mktemp("cluster") / "c") as found:
        yield found
        for sender in found._store._senders:
            sender.stop()


@pytest.fixture
def db(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with forty items; checked at the end."""
    fill(cluster)
    cluster.set_temperature(0.5)
    yield cluster
    for sender in cluster._store._senders:
        vars(sender).pop("send", None)  # of those that were diverted
    assert cluster.check().ok


def test_actors_answer_and_change_as_one_store_does(db: Cluster, tmp_path: Path) -> None:
    """They are processes, each of which counts as a processor, and say who contributed."""
    import ray

    eventually(lambda: ray.cluster_resources()["CPU"] - ray.available_resources()["CPU"] == 2.0)
    with filled(tmp_path / "s", "number") as one:
        one.set_temperature(0.5)
        found, other = db.lookup(QUERIES), one.lookup(QUERIES)
        assert (np.abs(found.value - other.value) <= found.error + other.error).all()
        assert [[item.key for item in answer.contributors] for answer in found] == [
            [item.key for item in answer.contributors] for answer in other
        ]
        heads = softkv.Heads.random(2, query_width=5, key_width=5, value_width=1, head_width=2, seed=0)
        found, other = db.lookup(QUERIES, heads=heads), one.lookup(QUERIES, heads=heads)
        assert (np.linalg.norm(found.value - other.value, axis=1) <= found.error + other.error).all()
    assert db.add(KEYS, **NEW, batch="twice") == db.add(KEYS, **NEW, batch="twice")
    assert db.delete(where={"n": {"$lt": 10}}) == 10
    assert db.set_values(KEYS[:2], [7.0, 8.0]).count == 2
    assert (len(db), db["new 1"], db.item("new 3").payload) == (42, 8.0, None)
    assert db.backup(tmp_path / "b").items == 42
    assert softkv.restore(tmp_path / "b", tmp_path / "again").items == 42
    with softkv.open(tmp_path / "again", "r") as again:
        assert dict(again) == dict(db)


def test_an_actor_that_is_killed_answers_again(db: Cluster, machines: Machines) -> None:
    """The second of two questions waits for it; or, where that may be, the others answer without it."""
    before = db.lookup(QUERIES).to_json()
    pid = pid_of(db, 1)
    os.kill(pid, signal.SIGKILL)
    assert db.lookup(QUERIES).to_json() == before
    assert pid_of(db, 1) != pid
    with stopped(pid_of(db, 1)):
        impatient = held(machines, Path(db.path), mode="r", wait=2.0)
        started = time.monotonic()
        with pytest.raises(OutOfReach, match="no answer in"):
            impatient.lookup(QUERIES)
        assert time.monotonic() - started < 10.0
        found = impatient.lookup(QUERIES, partial=True)
        np.testing.assert_allclose(found.out_of_reach, 0.5)
    assert db.lookup(QUERIES).to_json() == before


def test_batches_are_written_once_though_actors_are_killed(db: Cluster, thorough: bool) -> None:
    """Kills come at any moment; each is whole at the end, without being sent again by the caller, or after it."""
    over, deaths = threading.Event(), []

    def kill() -> None:
        rng = np.random.default_rng(0)
        while not over.is_set():
            deaths.append(pid_of(db, int(rng.integers(2))))
            over.wait(float(rng.uniform(0.2, 3.0)))  # or there would never be two that live
            os.kill(deaths[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        batch = 0
        while len(deaths) < (20 if thorough else 2) or batch < 4:
            keys = [f"{batch} {number}" for number in range(12)]
            for _ in range(5):
                try:
                    db.add(keys, **NEW, batch=f"batch {batch}")
                    break
                except (PartlyAdded, CommitUncertain):
                    continue
            batch += 1
    finally:
        over.set()
        killer.join()
    assert len(db) == 40 + 12 * batch
    for number in range(batch):
        assert db.get_many([f"{number} {one}" for one in range(12)]) == numbers_of(12).tolist()


def test_a_silent_writer_is_named_and_what_it_was_sent_is_done_once(db: Cluster, machines: Machines) -> None:
    """A shard that does not answer by the deadline may do its part later: it does so once."""
    writer = held(machines, Path(db.path), wait=2.0)
    with stopped(pid_of(db, 1)), pytest.raises((PartlyAdded, CommitUncertain)) as error:
        writer.add(KEYS, **NEW, batch="silent")
    assert "shard-001" in str(error.value)
    assert db.add(KEYS, **NEW, batch="silent").count == 12
    assert len(db) == 52


def test_readers_do_not_wait_for_the_writer(db: Cluster, machines: Machines, tmp_path: Path) -> None:
    """They answer while a batch is held up in the process of a shard; and are answered by it as before."""
    reader, begun, go = held(machines, Path(db.path), mode="r", wait=20.0), tmp_path / "begun", tmp_path / "go"
    before = reader.lookup(QUERIES).to_json()

    def send(way: Any, message: Any, *told: Any, **options: Any) -> Any:
        held_up = message.work == "append"
        return way(Doing(message, pause, (str(begun), str(go))) if held_up else message, *told, **options)

    divert(db, 0, send)  # the first to be written to
    with ThreadPoolExecutor(1) as threads:
        added = threads.submit(db.add, KEYS, **NEW)
        try:
            eventually(begun.exists)
            assert (reader.lookup(QUERIES).to_json(), len(reader)) == (before, 40)
            assert not added.done()
        finally:
            go.touch()
        assert added.result().count == 12
    assert len(reader) == 52


def test_readers_see_whole_parts_while_one_writes(db: Cluster) -> None:
    """Of what was acknowledged: never less than was seen before."""
    over, seen = threading.Event(), list[int]()

    def read() -> None:
        while not over.is_set():
            seen.append(len(db))
            db.lookup(QUERIES)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for batch in range(10):
            db.add([f"{batch} {number}" for number in range(12)], **NEW)
    finally:
        over.set()
        reader.join()
    assert seen == sorted(seen)
    assert len(db) == 160


def test_two_routers_see_what_either_wrote(db: Cluster, machines: Machines) -> None:
    """They see it at once; and a router that goes leaves the shards to the others."""
    with held(machines, Path(db.path)) as other:
        other.add(KEYS, **NEW)
        assert db["new 3"] == 3.0
        db.delete(KEYS[:6])
        assert len(other) == 46
        other.set_temperature(0.25)
    assert db.info().temperature == 0.25


def test_a_machine_that_is_gone_takes_its_shards_until_it_is_back(db: Cluster, machines: Machines) -> None:
    """They are started nowhere else; under load, answers name them within the deadline, and no batch is lost."""
    reader, writer = held(machines, Path(db.path), mode="r", wait=2.0), held(machines, Path(db.path), wait=5.0)
    reader.lookup(QUERIES)
    over, acknowledged, open_ones = threading.Event(), list[int](), list[int]()

    def add(one: Cluster, batch: int) -> int:
        return int(one.add([f"load {batch} {number}" for number in range(12)], **NEW, batch=f"load {batch}").count)

    def write() -> None:
        for batch in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            try:
                add(writer, batch)
                acknowledged.append(batch)
            except (PartlyAdded, CommitUncertain, OutOfReach):
                open_ones.append(batch)

    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(write)
        try:
            eventually(lambda: len(acknowledged) > 3)
            machines.remove(1)
            started = time.monotonic()
            eventually(lambda: reader.lookup(QUERIES, partial=True).out_of_reach is not None)
            found = reader.lookup(QUERIES, partial=True)
            assert time.monotonic() - started < 10.0
            np.testing.assert_allclose(found.out_of_reach, 0.5)
            assert found.error_kind == "bound"
            with pytest.raises(OutOfReach, match="shard-001"):
                reader.lookup(QUERIES)
            eventually(lambda: bool(open_ones))
            before = len(acknowledged)
            machines.bring_back(1)
            eventually(lambda: len(acknowledged) > before + 3)
        finally:
            over.set()
        written.result()
    for batch in acknowledged:
        assert db.get_many([f"load {batch} {number}" for number in range(12)]) == numbers_of(12).tolist()
    assert [add(db, batch) for batch in open_ones] == [12] * len(open_ones)
    assert len(db) == 40 + 12 * (len(acknowledged) + len(open_ones))


def test_a_disk_that_is_gone_is_not_begun_anew(db: Cluster, machines: Machines, tmp_path: Path) -> None:
    """No actor that is started without it begins one, nor one with another store in its place."""
    place = Path(db._store.shards[1].path)
    os.kill(pid_of(db, 1), signal.SIGKILL)
    place.rename(tmp_path / "aside")
    reader = held(machines, Path(db.path), mode="r", wait=4.0)
    with pytest.raises(OutOfReach, match=r"no store|does not answer"):
        reader.lookup(QUERIES)
    assert not place.exists()
    (tmp_path / "aside").rename(place)
    assert len(db) == 40


def test_a_process_that_dies_at_a_call_of_an_add_has_added_all_or_nothing(
    db: Cluster, thorough: bool, seed: int, tmp_path: Path
) -> None:
    """It dies before, after or within any call of the system; the batch is sent again, and is there once."""
    place, batches, logged = db._store.shards[1].path, 0, list[list[Any]]()

    def add(**plan: Any) -> bool:
        """Whether the process of a shard died over a batch, which was to be whole then."""
        nonlocal batches
        before, given = pid_of(db, 1), Plan(place, **plan).given

        def send(way: Any, message: Any, *told: Any, **options: Any) -> Any:
            nonlocal given
            armed, given = given if message.work == "append" else None, None if message.work == "append" else given
            return way(Doing(message, arm, (armed,)) if armed else message, *told, **options)

        divert(db, 1, send)
        keys = [f"{batches} {number}" for number in range(12)]
        assert db.add(keys, **NEW, batch=f"fatal {batches}").count == 12
        if "log" in plan:
            logged.append(list(points(calls.read(Path(plan["log"])))))
        batches += 1
        assert db.get_many(keys) == numbers_of(12).tolist()
        assert len(db) == 40 + 12 * batches
        return pid_of(db, 1) != before

    def anew() -> None:
        os.kill(pid_of(db, 1), signal.SIGKILL)

    for name in ("calls", "calls again"):
        anew()
        assert not add(log=str(tmp_path / name))
    anew()
    ends = min(logged, key=len)
    found = [*share(ends, 0 if thorough else 3, Random(seed)), ends[-1]]
    died = [add(fatal=fatal, moment=moment) or anew() for fatal, moment in found]
    assert sum(map(bool, died)) > 0.7 * len(found)  # the others name calls that were fewer this time


def test_what_is_lost_or_comes_twice_at_once_is_done_once(db: Cluster, machines: Machines) -> None:
    """Answers to every other message get lost, each message is under way twice, and two routers add one batch."""
    numbers = itertools.count()

    def send(way: Any, message: Any, *told: Any, **options: Any) -> Any:
        sender = way.args[0]
        work = sender._found(revive=True)
        (work.write if options["writes"] else work.read).remote(packed(message))
        found = way(message, *told, **options)
        if next(numbers) % 2 == 0:
            raise Unanswered("the answer is lost")
        return found

    with held(machines, Path(db.path)) as other:
        for shard in range(2):
            divert(db, shard, send)
            divert(other, shard, send)
        with ThreadPoolExecutor(2) as threads:
            added = [threads.submit(one.add, KEYS, **NEW, batch="at once") for one in (db, other)]
            assert [one.result().count for one in added] == [12, 12]
        assert other.delete([f"item {number}" for number in range(12)]) == 12
        assert db.set_values(KEYS[:2], [7.0, 8.0]).count == 2
        assert (len(db), db.get_many(KEYS)) == (40, [7.0, 8.0, *range(2, 12)])


def test_of_two_processes_of_one_shard_one_acknowledges(db: Cluster, machines: Machines) -> None:
    """There are no locks between them, as of machines that lost sight of each other: the writer's number decides."""

    def send(way: Any, message: Any, *told: Any, **options: Any) -> Any:
        return way(Doing(message, turn_off_locks), *told, **options)

    def both(one: Any) -> None:
        for shard in range(2):
            divert(one, shard, send)

    both(db)
    assert db.add(KEYS, **NEW).count == 12
    with held(machines, Path(db.path)) as other:
        for sender in other._store._senders:
            sender._name, sender._actor = f"{sender._name}-again", None
        both(other)
        assert len(other) == 52
        others = [f"other {number}" for number in range(12)]
        assert other.add(others, **NEW).count == 12
        assert set(map(pid_of, (db, db), range(2))).isdisjoint(map(pid_of, (other, other), range(2)))
        with pytest.raises((WriterFenced, PartlyAdded)):  # other vectors would be seen, where they cover what is there
            db.add([f"late {number}" for number in range(12)], values=numbers_of(12), vectors=vectors_of(12, seed=6))
        assert len(db) == len(other) == 64
        assert other.add([f"later {number}" for number in range(12)], **NEW).count == 12
        for sender in other._store._senders:
            sender.stop()
    for number in range(2):
        os.kill(pid_of(db, number), signal.SIGKILL)
    assert db.get_many([*others, *KEYS]) == [*range(12)] * 2


def routed(*given: object) -> "subprocess.CompletedProcess[str]":
    """What became of a router in a process of its own."""
    command, root = [sys.executable, "-m", "tests.routers", *map(str, given)], Path(__file__).parent.parent
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=240)


def test_a_router_that_dies_in_the_middle_leaves_whole_parts(db: Cluster, machines: Machines, thorough: bool) -> None:
    """Whoever sends the batch again completes it, and what the router said was done is there."""
    for place in range(12) if thorough else (9, 10):
        keys = [f"{place} {number}" for number in range(12)]
        ran = routed("dying", db.path, machines.address, str(place))
        assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "before\n"), ran.stderr
        assert db.get_many([f"before {place} {number}" for number in range(12)]) == numbers_of(12).tolist()
        there = [key in db for key in keys]
        homes = [db._store.manifest.shard_of(key) for key in keys]
        assert len(set(zip(homes, there, strict=True))) == 2, "a part is neither whole nor absent"
        assert place != 9 or len(set(there)) == 2  # the first shard has answered
        assert db.add(keys, **NEW, batch=f"in the middle {place}").count == 12
        assert db.get_many(keys) == numbers_of(12).tolist()


def test_ray_that_is_lost_is_replaced_under_an_open_handle(machines: Machines, tmp_path: Path) -> None:
    """What was asked of it is out of reach within the deadline; by its directory the cluster is opened with another."""
    ran = routed("beheaded", tmp_path / "c", machines.address, machines.disks[0].parent)
    said = [
        line for line in ran.stdout.splitlines() if line in ("out of reach True", "40 1")
    ]  # Ray tells of it as well
    assert len(said) == 2, (ran.stdout, ran.stderr)
    with softkv.open(f"ray:{tmp_path / 'c'}", address=machines.address) as db:
        assert len(db) == 41
        for sender in db._store._senders:
            sender.stop()
