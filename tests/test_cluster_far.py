"""Shards that are asked by messages: they do all that shards of this process do, and each thing once.

Messages and answers travel as bytes here, but stay in this process: tests/test_cluster_ray.py has them travel.
"""

import copy
import inspect
import itertools
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.cluster import far, hosting
from softkv.doors.cluster.handle import Cluster
from softkv.errors import (
    BackupRefused,
    FormatTooNew,
    HandleUnusable,
    OutOfReach,
    PartlyAdded,
    SnapshotExpired,
    SoftKVError,
    StoreReplaced,
    WriterFenced,
)
from softkv.maths.heads import Heads
from softkv.storage import Backup
from softkv.storage.disk import locks

from . import test_cluster_handle
from .clusters import opened, value_like
from .databases import KINDS, count_as_large, filled, measured_always, vectors_of
from .farther import far_clustered, far_opened, posts_of
from .servers import eventually

QUERIES = vectors_of(3, seed=5)


def _surface(fixture: str) -> list[Callable[[Any], None]]:
    tests = [one for name, one in vars(test_cluster_handle).items() if name.startswith("test_")]
    return [one for one in tests if list(inspect.signature(one).parameters) == [fixture] and "fork" not in one.__name__]


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of numbers."""
    with far_clustered(tmp_path / "c", "number") as db:
        yield db


@pytest.mark.parametrize("kind", KINDS)
def test_they_answer_as_one_store_does(kind: str, tmp_path: Path) -> None:
    """They are asked all that the tests of its surface ask of a cluster."""
    with far_clustered(tmp_path / "c", kind, 400) as db, filled(tmp_path / "s", kind, 400) as one:
        for test in _surface("both"):
            test((db, one))
        assert db.check().ok


@pytest.mark.parametrize("test", _surface("numbers"), ids=lambda test: test.__name__[5:])
def test_they_change_as_one_store_does(test: Callable[[Cluster], None], numbers: Cluster) -> None:
    """They are changed in all ways in which the tests of its surface change a cluster."""
    test(numbers)


@pytest.mark.parametrize("kind", ["number", "label"])
def test_they_draw_rows_as_shards_of_this_process_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indexes draw the same to the last bit; what one tells before a row is read is asked for where there is one."""
    count_as_large(monkeypatch)
    queries = vectors_of(3, seed=5)
    with far_clustered(tmp_path / "c", kind, 9000) as db:
        db.set_temperature(0.3)
        db.lookup(queries, tolerance=0.05)
        assert not any("forecast" in post.sent for post in posts_of(db))
        assert db.build_index().index is not None
        found = db.lookup(queries, tolerance=0.05)
        assert all("forecast" in post.sent for post in posts_of(db))
        assert db.lookup(queries, tolerance=0.0).to_json() != found.to_json()
    with opened(tmp_path / "c", mode="r") as one:
        other = one.lookup(queries, tolerance=0.05)
        np.testing.assert_array_equal(found.value, other.value)
        np.testing.assert_array_equal(found.error, other.error)
        assert found.routes == other.routes


@pytest.mark.parametrize("kind", ["number", "vector", "text"])
def test_heads_agree_with_one_store(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, where a shard holds deleted items alone, and by an index of each shard."""
    with (
        far_clustered(tmp_path / "c", kind, 4000, compatibility="dot") as db,
        filled(tmp_path / "s", kind, 4000, compatibility="dot") as one,
    ):
        width = one.info().value_width or 1
        heads = Heads.random(2, query_width=5, key_width=5, value_width=width, head_width=2, seed=0)

        def require_agreement(**given: Any) -> Any:
            found, other = (each.lookup(QUERIES, heads=heads, temperature=3.0, **given) for each in (db, one))
            apart = np.linalg.norm(found.value - other.value, axis=1)
            assert (apart <= found.error + other.error).all()
            return found

        require_agreement()
        require_agreement(k=4)
        gone = [key for key in one if db._store.manifest.shard_of(key) == 0]
        for each in (db, one):
            each.delete(gone)
        assert require_agreement().error_kind == "exact"
        measured_always(monkeypatch)
        for each in (db, one):
            each.build_index(temperatures=(0.6, 12.0))
        assert set(require_agreement(tolerance=0.3).routes) & {"calibrated", "measured"}
        assert require_agreement(tolerance=0.0).error_kind == "exact"


def test_one_round_of_messages_answers_where_nothing_has_changed(numbers: Cluster) -> None:
    """Shards say where they hold something newer than was seen of them; all are seen anew after that."""
    with far_opened(Path(numbers.path), posts=[copy.copy(post) for post in posts_of(numbers)]) as other:
        for number in range(3):
            for shard, post in enumerate(posts_of(numbers)):
                other.add(f"{number} {shard}", 5.0, vectors=QUERIES[0])
                assert round(numbers.lookup(QUERIES[0], temperature=1e-3).effective) == 1 + 3 * number + shard
                for _ in range(2):
                    post.sent.clear()
                    numbers.lookup(QUERIES[1])
                assert post.sent == ["evidence"]
        other.delete([f"{number} 0" for number in range(3)])
        assert round(numbers.lookup(QUERIES[0], temperature=1e-3).effective) == 6
        for post in posts_of(other):
            post.host = None


def every_second() -> Callable[[Any], bool]:
    """The answers that are lost: the first, the third and so on."""
    numbers = itertools.count()
    return lambda _message: next(numbers) % 2 == 0


def test_an_answer_that_is_lost_is_asked_for_again(numbers: Cluster) -> None:
    """What reads is read again; what writes is written once, also where each message comes twice."""
    for post in posts_of(numbers):
        post.fails = every_second()
        post.twice = True
    keys, given = [f"new {n}" for n in range(12)], {"values": np.arange(12.0), "vectors": vectors_of(12, seed=4)}
    assert numbers.add(keys, **given).count == 12
    assert numbers.delete([f"item {n}" for n in range(12)]) == 12
    assert numbers.get_many(keys) == list(range(12))
    assert len(numbers) == 40


def test_what_comes_late_is_done_once(numbers: Cluster) -> None:
    """Every message that was ever sent comes again, in another order."""
    keys = [f"new {n}" for n in range(12)]
    numbers.add(keys, np.arange(12.0), vectors=vectors_of(12, seed=4), batch="one")
    numbers.set_values(keys, np.ones(12), batch="two")
    numbers.delete(keys[:3], batch="three")
    numbers.set_temperature(0.25)
    before, temperature = dict(numbers), numbers.info().temperature
    for post in posts_of(numbers):
        assert post.host is not None
        for packed in reversed(list(post.late)):
            post.host.answer(pickle.loads(packed))
    assert dict(numbers) == before
    assert numbers.info().temperature == temperature


def test_a_shard_that_stays_silent_is_named(numbers: Cluster) -> None:
    """What is read is out of reach; of what was to be written nobody knows, and it is completed by making it again."""
    db = far_opened(Path(numbers.path), deadline=0.2, posts=posts_of(numbers))
    keys, given = [f"new {n}" for n in range(12)], {"values": np.arange(12.0), "vectors": vectors_of(12, seed=4)}
    posts_of(db)[1].fails = lambda message: message.work == "append"
    with pytest.raises(PartlyAdded) as error:
        db.add(keys, **given, batch="one")
    assert [Path(path).name for path in error.value.unknown] == ["shard-001"]
    posts_of(db)[1].fails = lambda _: True
    with pytest.raises(OutOfReach, match="shard-001"):
        db.lookup(QUERIES)
    posts_of(db)[1].fails = lambda _: False
    assert db.add(keys, **given, batch="one").count == 12
    assert len(db) == 52


def test_what_takes_long_is_not_waited_for_where_nobody_answers(
    numbers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that is gone is out of reach within the deadline, also in the middle of the work; `check` finds it."""
    monkeypatch.setattr(far, "LONG", 20.0)  # and not after a day
    db = far_opened(Path(numbers.path), deadline=0.2, posts=posts_of(numbers))
    posts_of(db)[1].fails = lambda message: message.work == "upkeep" and not gone(db, 1)
    with pytest.raises(OutOfReach, match="shard-001"):
        db.drop_index()
    (finding,) = db.check().findings
    assert finding == "shard-001: nobody is there"


def test_what_threads_ask_at_once_goes_together(numbers: Cluster) -> None:
    """All that comes while one question is under way is one message to each shard; and each thread gets its answer."""
    before = [numbers.lookup(query, temperature=0.5).value for query in vectors_of(9)]
    begun, go, post = threading.Event(), threading.Event(), posts_of(numbers)[0]

    def held_up(_message: Any) -> bool:
        begun.set()
        return not go.wait(60)

    post.fails = held_up
    post.sent.clear()
    with ThreadPoolExecutor(9) as threads:
        asked = [threads.submit(numbers.lookup, vectors_of(9)[0], temperature=0.5)]
        assert begun.wait(60)
        asked += [threads.submit(numbers.lookup, query, temperature=0.5) for query in vectors_of(9)[1:]]
        assert eventually(lambda: len(numbers._findings.together._waiting) == 8)
        go.set()
        np.testing.assert_allclose([one.result().value for one in asked], before)
    assert post.sent.count("evidence") == 2


def test_processes_copy_what_they_hold_into_a_backup(
    numbers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again later what is new, of a handle that only reads, too; a directory that is not seen from here is refused."""
    numbers.backup(tmp_path / "b")
    numbers.delete("item 1")
    with far_opened(Path(numbers.path), "r", posts=[copy.copy(post) for post in posts_of(numbers)]) as reader:
        assert reader.backup(tmp_path / "b").items == 39
        for post in posts_of(reader):
            post.host = None
    softkv.restore(tmp_path / "b", tmp_path / "again")
    with softkv.open(tmp_path / "again", "r") as again:
        assert dict(again) == dict(numbers)
        assert again.check().ok
    monkeypatch.setattr(numbers._store.shards[1], "upkeep", lambda *_given, **_options: Backup("", 0, 0, 0, ()))
    with pytest.raises(BackupRefused, match="that all machines see"):
        numbers.backup(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_shard_whose_process_dies_answers_again(numbers: Cluster) -> None:
    """It dies between two questions, or before what is seen is asked; snapshots do not outlive it."""
    before = numbers.lookup(QUERIES, temperature=0.5).to_json()
    late = numbers.lookup(QUERIES, temperature=0.5)
    with numbers.snapshot() as then:
        for post in posts_of(numbers):
            post.die()
        assert late.to_json() == before  # who contributed is asked of the new process
        assert numbers.lookup(QUERIES, temperature=0.5).to_json() == before
        with pytest.raises(SnapshotExpired, match="new snapshot"):
            then.lookup(QUERIES)
    numbers.delete("item 1")
    assert numbers.lookup(QUERIES, temperature=0.5).to_json() != before


def test_answers_name_their_items_whatever_is_written_later(numbers: Cluster) -> None:
    """Rows of a generation stay; after a compaction, the answer has to be asked for again."""
    found, same = (numbers.lookup(QUERIES, temperature=0.5, show=40) for _ in range(2))
    key = same[0].contributors[0].key
    for number in range(hosting.RECENT + 2):
        numbers.add(f"late {number}", 1.0, vectors=QUERIES[0])
        numbers.lookup(QUERIES[0], temperature=0.5)
    assert found[0].contributors[0].key == key
    numbers.delete("item 1")
    numbers.compact()
    for post in posts_of(numbers):
        post.die()
    with pytest.raises(SnapshotExpired):
        found.to_json()


def test_snapshots_are_let_go_when_nobody_asks(numbers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is let go when nobody asks, and when it is closed."""
    hosts = [post.host for post in posts_of(numbers)]
    with numbers.snapshot() as then:
        held = [len(host._views) for host in hosts if host]
        assert len(then) == 40
    assert [len(host._views) for host in hosts if host] == [count - 1 for count in held]
    monkeypatch.setattr(hosting, "KEPT", -1.0)
    then = numbers.snapshot()
    numbers.delete("item 1")
    assert len(numbers) == 39
    with pytest.raises(SnapshotExpired):
        then.lookup(QUERIES)


def test_two_routers_share_the_shards(numbers: Cluster) -> None:
    """Each sees what the other has acknowledged, also of the settings; with an old manifest nothing is written."""
    posts = [copy.copy(post) for post in posts_of(numbers)]
    with far_opened(Path(numbers.path), posts=posts) as other:
        other.add("theirs", 5.0, vectors=QUERIES[0])
        assert numbers["theirs"] == 5.0
        numbers.set_temperature(0.125)
        assert other.info().temperature == 0.125
        assert other.lookup(QUERIES).to_json() == numbers.lookup(QUERIES).to_json()
        behind = other._store.manifest
        numbers.set_temperature(0.25)
        store = other._store
        store.manifest, store.alone = behind, True
        with pytest.raises((SoftKVError, PartlyAdded), match="manifest"):
            other.add("late", 1.0, vectors=QUERIES[0])
        store.alone = False
        assert other.add("late", 1.0, vectors=QUERIES[0]).count == 1
        for post in posts:
            post.host = None


def test_a_write_goes_on_where_another_router_changes_a_setting(
    numbers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards have heard of a newer manifest by then, which has all items where they are."""
    posts = [copy.copy(post) for post in posts_of(numbers)]
    with far_opened(Path(numbers.path), posts=posts) as other:
        store, steps = other._store, iter(range(1, 100))

        def overtaken(method: Any) -> Any:
            def then_overtaken(*given: Any) -> Any:
                found = method(*given)
                numbers.set_temperature(1.0 / next(steps))
                return found

            return then_overtaken

        for name in ("_named", "_parts"):  # before what is recorded is asked for, and before items are sent
            monkeypatch.setattr(store, name, overtaken(getattr(store, name)))
        keys = [f"theirs {number}" for number in range(20)]
        assert other.add(keys, np.arange(20.0), vectors=np.tile(QUERIES[0], (20, 1)), batch="once").count == 20
        assert other.delete(keys[:5]) == 5
        assert numbers.get_many(keys[5:]) == list(range(5, 20))
        assert numbers.info().temperature == other.info().temperature < 0.3
        for post in posts:
            post.host = None


def test_the_handle_that_failed_is_opened_again(numbers: Cluster) -> None:
    """Where that was the one to read from, it is, whatever it was asked for; the writer stays."""
    numbers.set_temperature(0.25)
    host, terms = posts_of(numbers)[0].host, hosting.Terms(numbers._store.manifest.id, 9)
    assert host is not None
    assert host.answer(hosting.Message(terms, "upkeep", ("info",)))[0]
    reader, writer = host._open["r"], host._open["w"]
    reader.close()
    assert isinstance(host.answer(hosting.Message(terms, "upkeep", ("info",)))[1], HandleUnusable)
    assert host.answer(hosting.Message(terms, "upkeep", ("info",)))[0]
    assert host._open["r"] is not reader
    assert host._open["w"] is writer


def test_messages_of_other_versions_are_refused(numbers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message about another cluster, by other rules or an old map is refused before anything is done."""
    post, terms = posts_of(numbers)[0], hosting.Terms(numbers._store.manifest.id, 9)
    assert post.host is not None
    for wrong, kind in (
        ({"protocol": 2}, FormatTooNew),
        ({"format": 2}, FormatTooNew),
        ({"cluster": "another"}, StoreReplaced),
    ):
        done, error = post.host.answer(hosting.Message(replace(terms, **wrong), "append_nothing", (None,)))
        assert (done, type(error)) == (False, kind)
    assert post.host.answer(hosting.Message(terms, "process"))[0]
    for work in hosting.WRITING:  # by now manifest 9 was heard of
        done, error = post.host.answer(hosting.Message(replace(terms, epoch=8), work))
        assert (done, type(error)) == (False, WriterFenced)
    for work in ("close", "_opened", "_store", "upkeep"):
        done, error = post.host.answer(hosting.Message(terms, work, ("export", "/somewhere")))
        assert not done
        assert isinstance(error, SoftKVError)


def test_a_disk_that_is_gone_is_not_begun_anew(numbers: Cluster, tmp_path: Path) -> None:
    """The shard is out of reach until the disk is back, and another store in its place is none."""
    place, aside = Path(posts_of(numbers)[1]._given[0]), tmp_path / "aside"
    posts_of(numbers)[1].die()
    place.rename(aside)
    for wrong in (lambda: None, lambda: filled(place, "number").close()):
        wrong()
        there = place.exists()
        with pytest.raises(OutOfReach, match="shard-001"):
            numbers.lookup(QUERIES)
        with pytest.raises(SoftKVError):
            numbers.add("new", 1.0, vectors=QUERIES[0])
        assert place.exists() == there, "a store was begun anew"
    shutil.rmtree(place)
    aside.rename(place)
    assert len(numbers) == 40


def test_of_two_incarnations_one_acknowledges(numbers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no locks, as between machines that see none: the number of the writer in the catalog decides."""
    monkeypatch.setattr(locks.fcntl, "flock", lambda *_given: None)
    posts = posts_of(numbers)
    old = [post.host for post in posts]
    numbers.add("by the first", 1.0, vectors=QUERIES[0])
    for post in posts:
        post.host = None
    with far_opened(Path(numbers.path), posts=posts) as db:
        for number in range(12):
            db.add(f"by the second {number}", 1.0, vectors=QUERIES[0])
        new = [post.host for post in posts]
        for post, host in zip(posts, old, strict=True):
            post.host = host
        assert len(db) == 53  # readers of the first see what the second wrote
        for number in range(12):
            with pytest.raises(WriterFenced):
                db.add(f"late {number}", 1.0, vectors=QUERIES[1])  # which `check` would see, if it covered the others
        for post, host in zip(posts, new, strict=True):
            post.host = host
        assert db.add("late", 1.0, vectors=QUERIES[0]).count == 1
        assert len(db) == 54
        assert db.check().ok
        for host in old:
            host.close()


def gone(db: Cluster, *numbers: int) -> None:
    """Let the processes of some shards die, and not be started again."""
    for number in numbers:
        posts_of(db)[number].die()
        posts_of(db)[number].revives = False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compatibility", ["cosine", "dot", "scaled_dot", "gaussian", "laplace", "student", "uniform"])
def test_of_few_shards_the_error_is_told_by_what_the_others_held(kind: str, compatibility: str, tmp_path: Path) -> None:
    """It holds whatever the query; nobody is made to be there for it; and what was there before is there again."""
    with far_clustered(tmp_path / "c", kind, 60, shards=4) as db:
        queries = np.concatenate([vectors_of(6, seed=7), 3 * vectors_of(6, seed=8), vectors_of(60)[:20]])
        for temperature in (0.05, 0.5, 5.0):
            options: dict[str, Any] = {"compatibility": compatibility, "temperature": temperature}
            whole = db.lookup(queries, **options)
            gone(db, 1, 2)
            found = db.lookup(queries, **options, partial=True)
            assert found.error_kind == "bound"
            assert found.out_of_reach[0] == 0.5
            apart = value_like(whole, found) - found.value
            apart = np.abs(apart) if apart.ndim == 1 else np.linalg.norm(apart, axis=1)
            assert (apart <= found.error).all()
            assert (np.abs(found.log_mass - whole.log_mass) <= found.log_mass_error).all()
            with pytest.raises(OutOfReach, match="partial=True"):
                far_opened(Path(db.path), "r", deadline=0.1, posts=posts_of(db)).lookup(queries)
            for post in posts_of(db):
                post.revives = True
            assert db.lookup(queries, **options).to_json() == whole.to_json()


@pytest.mark.parametrize("asked", [1, 2, 6])
def test_batches_of_estimates_and_what_the_others_held_are_as_sure_as_the_estimates(
    asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query of a batch has a stated error of its log mass, which counts as well; a bound needs exact parts."""
    measured_always(monkeypatch)
    with far_clustered(tmp_path / "c", "number", 9000, shards=4) as db:
        db.build_index(temperatures=(0.05, 0.5))
        queries, options = vectors_of(6, seed=5)[:asked], {"temperature": 0.3}
        whole = db.lookup(queries, tolerance=0.0, **options)
        gone(db, 1)
        found = db.lookup(queries, tolerance=0.3, **options, partial=True)
        assert found.error_kind == found.route
        assert set(found.routes) <= {"calibrated", "measured"}
        assert db.lookup(queries, tolerance=0.0, **options, partial=True).error_kind == "bound"
        assert (np.abs(found.value - whole.value) <= found.error).all()
        assert (np.abs(found.log_mass - whole.log_mass) <= found.log_mass_error).all()


def test_bounds_are_no_wider_than_what_the_others_held(tmp_path: Path) -> None:
    """Values of the rest of the mass: as far as they reached, and no farther where they can have little of it."""
    with far_clustered(tmp_path / "c", "number", 60, shards=4) as db:
        db.lookup(QUERIES)
        gone(db, 1)
        header = db._store.shards[1].last_seen
        found = db.lookup(QUERIES, temperature=0.01, partial=True)
        near = np.abs(found.value - header.reach.middle[0]) + header.reach.radius
        assert (found.error <= near + 1e-3).all()
        uniform = db.lookup(QUERIES, compatibility="uniform", partial=True)
        assert (uniform.error < 0.5 * found.error.max()).all()
        assert "last" in str(uniform.reason)


def test_of_shards_that_were_never_seen_nothing_is_told(tmp_path: Path) -> None:
    """A handle that has begun without them tells nothing of them."""
    with far_clustered(tmp_path / "c", "number", 60, shards=4) as db:
        gone(db, 1)
        other = far_opened(Path(db.path), "r", deadline=0.1, posts=posts_of(db))
        found = other.lookup(QUERIES, temperature=0.5, partial=True)
        assert (found.error, found.error_kind) == (None, "unknown")
        assert db.lookup(QUERIES, temperature=0.5, partial=True).error_kind == "bound"
