"""A cluster that is given more shards has every item once, as it was, and answers as before, also meanwhile."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.cluster.growing import grow, next_division
from softkv.doors.cluster.handle import Cluster, create
from softkv.doors.cluster.manifest import MOST, Manifest, Placed
from softkv.errors import BatchMismatch, InputError, NotAStore, PartlyAdded, StorageFull, StoreError, StoreLocked
from softkv.storage.disk import files

from .clusters import clustered, opened, require_alike
from .databases import KINDS, count_as_large, values_of, vectors_of
from .test_cluster_writes import CHANGES, Failing

QUERIES = vectors_of(4, seed=5)
COUNT = 120
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.5},
    {"temperature": 0.5, "k": 5},
    {"temperature": 0.5, "where": {"n": {"$gt": 20}}},
)


def furnished(path: Path, kind: str, shards: int) -> Cluster:
    """A cluster of items with and without keys, texts and payloads, of which some were deleted and some replaced."""
    db = clustered(path, kind, COUNT, shards=shards)
    values, vectors = values_of(kind, 30), vectors_of(30, seed=9)
    if kind == "text":
        db.add(values=values, vectors=vectors)
    else:  # with the texts that were embedded, as a server adds them
        db._store.append(vectors, values, texts=[f"text {n}" if n % 3 else None for n in range(30)])
    db.delete(where={"n": {"$lt": 10}})
    replaced = [f"item {n}" for n in range(10, 30)]
    db.add(replaced, values_of(kind, 20, seed=3), vectors=vectors_of(20, seed=7), on_conflict="replace")
    return db


def contents(db: Any) -> dict[bytes, tuple[Any, ...]]:
    """All that was given of each item, by its vector, with the cells that are blended."""
    found: dict[bytes, tuple[Any, ...]] = {}
    rows = db._view().snapshot.in_order()
    cells = db._view().snapshot.values(rows)
    labels = db._view().snapshot.labels() if db.info().value_kind == "label" else None
    for item, cell in zip(db._view().snapshot.items(rows), cells, strict=True):
        assert item.vector.tobytes() not in found, "an item is there twice"
        told = np.asarray(item.value).tolist()
        blended = labels[cell] if labels else cell.tobytes()
        found[item.vector.tobytes()] = (item.key, told, blended, item.payload, item.text)
    return found


def directories(path: Path) -> set[str]:
    """The directories in a directory."""
    return {one.name for one in path.iterdir() if one.is_dir()}


def named(path: Path) -> set[str]:
    """The shards that the manifest names."""
    return {one.path for one in Manifest.read(str(path)).shards}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 5), (8, 16), (2, 2)])
def test_every_item_is_there_once_as_it_was(before: int, after: int, kind: str, tmp_path: Path) -> None:
    """Bit by bit, in the order of its shard, and answers are those of before."""
    path = tmp_path / "c"
    with furnished(path, kind, before) as db:
        had, names = contents(db), {item.vector.tobytes(): item.name for item in db.select()}
        numbers = [view.snapshot.names(view.snapshot.in_order()) for view in db._view().filled]
    shutil.copytree(path, tmp_path / "was")
    grown = grow(path, after)
    with opened(path) as db, opened(tmp_path / "was", mode="r") as was:
        assert contents(db) == had
        assert db.check().ok
        parts = [view.snapshot.names(view.snapshot.in_order()) for view in db._view().filled]
        for part in parts:  # with the numbers that they had
            assert any(part == [name for name in whole if name in set(part)] for whole in numbers)
        changed = [name for item in db.select() if (name := names[item.vector.tobytes()]) != item.name]
        assert all(name.startswith("#") for name in changed)
        assert grown == type(grown)(str(path), after, grown.moved, len(changed), ())
        assert grown.moved == sum(map(len, parts[before:]))
        assert min(map(len, parts)) > 0
        for options in QUESTIONS:
            require_alike(db.lookup(QUERIES, **options), was.lookup(QUERIES, **options))
        np.testing.assert_array_equal(db["item 40"], was["item 40"])
        db.add("late", values_of(kind, 1)[0], vectors=vectors_of(1, seed=77)[0])
        assert "late" in db
    assert directories(path) == named(path)


def test_shards_are_divided_evenly() -> None:
    """Each into as many as any other or one more, one after the other, whatever was done of it before."""
    for before, after in ((1, 3), (3, 5), (8, 16), (8, 9), (1, 256), (200, 256)):
        first = buckets = Manifest.first("c", [Placed("", "")] * before, {}).buckets
        for shards in range(before, after):
            giver, then = next_division(buckets, after)
            moved = {(was, now) for was, now in zip(buckets, then, strict=True) if was != now}
            assert moved == {(giver, shards)}
            buckets = then
        owned = np.bincount(buckets, minlength=after)
        parents = [len({now for was, now in zip(first, buckets, strict=True) if was == one}) for one in range(before)]
        assert max(parents) - min(parents) <= 1
        assert (owned > 0).all()
        assert max(owned) <= (MOST // before + 1) // min(parents) + 1


def test_new_shards_may_lie_on_other_disks(tmp_path: Path) -> None:
    """They lie there in turn, and what is divided stays where it is."""
    disks = [tmp_path / "one", tmp_path / "two"]
    for disk in disks:
        disk.mkdir()
    create(tmp_path / "c", np.int64(2), disks[:1], value="number")
    with opened(tmp_path / "c") as db:
        db.add([f"item {n}" for n in range(60)], np.arange(60.0), vectors=vectors_of(60))
    assert grow(tmp_path / "c", np.int64(6), disks).shards == 6
    assert directories(tmp_path / "c") == set()
    assert [len(directories(disk)) for disk in disks] == [4, 2]
    with opened(tmp_path / "c", mode="r") as db:
        assert [db[f"item {n}"] for n in range(60)] == list(range(60))


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "fewer": (lambda path: grow(path / "c", 2), InputError, "expected from 3 shards, which .*c has, to 256, got 2"),
    "too many": (lambda path: grow(path / "c", 257), InputError, "to 256, got 257"),
    "no number": (lambda path: grow(path / "c", True), InputError, "got True"),
    "no disk": (lambda path: grow(path / "c", 4, [path / "nowhere"]), StoreError, "nowhere is not a directory"),
    "no cluster": (lambda path: grow(path, 4), NotAStore, "is no cluster"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_done_changes_nothing(wrong: str, tmp_path: Path) -> None:
    """A refusal says why."""
    work, error, words = REFUSED[wrong]
    clustered(tmp_path / "c", "number").close()
    before = {one.name for one in (tmp_path / "c").iterdir()}
    with pytest.raises(error, match=words):
        work(tmp_path)
    assert {one.name for one in (tmp_path / "c").iterdir()} == before


def test_a_cluster_that_is_open_for_writing_is_not_divided(tmp_path: Path) -> None:
    """A cluster is not divided while it is open for writing, nor opened for writing while it is divided."""
    with clustered(tmp_path / "c", "number") as db, pytest.raises(StoreLocked):
        grow(tmp_path / "c", 4)
    asked = list[str]()

    def told(stage: str, _done: int, _total: int) -> None:
        asked.append(stage)
        with pytest.raises(StoreLocked):
            softkv.open(tmp_path / "c", "w")

    grow(tmp_path / "c", 4, progress=told)
    assert set(asked) == {"shard 3 of shard 0", "shard 0 of shard 0"}
    with opened(tmp_path / "c", mode="r") as db:
        assert len(db) == 40


# What goes along


def test_what_was_learned_goes_along(tmp_path: Path) -> None:
    """The temperature, the metric and the guard; it can be calibrated anew, since keys stay."""
    path = tmp_path / "c"
    vectors = np.random.default_rng(0).standard_normal((900, 8)).astype(np.float32)
    create(path, 3, value="number", compatibility="gaussian")
    with opened(path) as db:
        db.add([f"key {n}" for n in range(900)], vectors[:, 0] * 3.0, vectors=vectors)
        db.tune()
        assert db.fit(seed=1).kept
        db.guard(0.9)
        db.delete([f"key {n}" for n in range(7)])
        told, info, changed = db.lookup(vectors[:20] + 0.1), db.info(), db._view().guard[0]
        known, values = told.known, told.value
        assert changed is not None
        stale = changed.changed(db._view().snapshot.rows, len(db))
    grow(path, 5)
    with opened(path) as db:
        found = db.lookup(vectors[:20] + 0.1)
        np.testing.assert_allclose(found.value, values, atol=1e-5)
        np.testing.assert_array_equal(found.known, known)
        assert (db.info().guard, db.info().temperature, db.info().projection) == (
            info.guard,
            info.temperature,
            info.projection,
        )
        guard = db._view().guard[0]
        assert guard is not None
        assert guard.changed(db._view().snapshot.rows, len(db)) == stale == 7
        db.guard(0.9)


def test_items_that_are_renamed_take_part_in_learning_for_good(tmp_path: Path) -> None:
    """Which of them have taken part went by their names, so a guard is not calibrated on any before learning anew."""
    path = tmp_path / "c"
    vectors = np.random.default_rng(0).standard_normal((900, 8)).astype(np.float32)
    create(path, 2, value="number", compatibility="gaussian")
    with opened(path) as db:
        db.add(values=vectors[:, 0] * 3.0, vectors=vectors)
        db.tune()
        assert db.fit(seed=1).kept
        db.guard(0.9)
        values = db.lookup(vectors[:20] + 0.1).value
    assert grow(path, 3).renamed > 100
    with opened(path) as db:
        assert db.info().guard is not None
        np.testing.assert_allclose(db.lookup(vectors[:20] + 0.1).value, values, atol=1e-5)
        with pytest.raises(InputError, match="Learn again"):
            db.guard(0.9)
        assert db.forget_fit()
        with pytest.raises(InputError, match="Learn again"):
            db.guard(0.9)
        db.tune()
        db.guard(0.9)


def test_indexes_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parts have theirs, whose errors hold."""
    count_as_large(monkeypatch, rehearsed=400)
    with clustered(tmp_path / "c", "number", 3000, shards=2) as db:
        exact = db.lookup(vectors_of(40, seed=6), tolerance=0.0)
        value, temperature = exact.value, exact.temperature
        db.build_index(lists=8)
    grow(tmp_path / "c", 4)
    with opened(tmp_path / "c") as db:
        info = db.info().index
        assert info is not None
        assert (info.lists, info.rows) == (32, 3000)
        secrets = {view.snapshot.secret for view in db._view().filled}
        assert len(secrets) == 4  # or their draws, and so their errors, would not be independent
        found = db.lookup(vectors_of(40, seed=6), temperature=temperature)
        assert (np.abs(found.value - value) <= found.error).mean() >= 0.9
        assert found.error.max() <= 0.01 * db.info().value_scale * 1.001


# Batches


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("refused", [(), (1,), (0, 2)])
def test_a_batch_that_is_sent_again_afterwards_is_made_once(
    name: str, refused: tuple[int, ...], tmp_path: Path
) -> None:
    """A batch that is sent again is made once, also by what shards have become that had not done it."""
    change, path = CHANGES[name], tmp_path / "c"
    with clustered(tmp_path / "whole", "number", shards=3) as db:
        told = change(db, "the batch")
        expected = contents(db)
    with clustered(path, "number", shards=3) as db:
        failing = db._store.shards = tuple(Failing(shard) for shard in db._store.shards)
        for number in refused:
            failing[number].after = None
            failing[number].before = StorageFull("no space left")
        if refused and 0 not in refused:
            with pytest.raises(PartlyAdded):
                change(db, "the batch")
        elif not refused:
            assert change(db, "the batch") == told
        else:
            with pytest.raises((PartlyAdded, StorageFull)):
                change(db, "the batch")
    grow(path, 7)
    with opened(path) as db:
        again = change(db, "the batch")
        assert contents(db) == expected
        assert again == told
        assert change(db, "the batch") == told
        assert contents(db) == expected
        assert db.check().ok
        for place in range(6):  # whichever shard it would go to
            with pytest.raises(BatchMismatch):
                db.add(f"other {place}", 1.0, vectors=vectors_of(1)[0], batch="the batch")


# Readers


def test_a_reader_goes_on_and_snapshots_stay(tmp_path: Path) -> None:
    """The old directories wait for who still reads them, and go when the cluster is opened for writing."""
    path = tmp_path / "c"
    with furnished(path, "number", 2) as db:
        had = contents(db)
    with opened(path, mode="r") as reader:
        answer = reader.lookup(QUERIES, temperature=0.5)
        with reader.snapshot() as kept:
            left = grow(path, 4).left
            assert {Path(one).name for one in left} == {"shard-000", "shard-001"}
            assert {Path(one).name for one in left} < directories(path)
            assert contents(reader) == had  # of the new shards
            assert directories(path) == named(path) | {"shard-000", "shard-001"}
            for options in QUESTIONS:
                require_alike(kept.lookup(QUERIES, **options), reader.lookup(QUERIES, **options))
            require_alike(answer, reader.lookup(QUERIES, temperature=0.5))
            assert kept["item 40"] == reader["item 40"]
        with opened(path) as db:
            db.add("late", 1.0, vectors=vectors_of(1)[0])
            assert "late" in reader
    del answer, kept, reader, db
    opened(path).close()
    assert directories(path) == named(path)


def test_a_backup_of_a_cluster_that_grows_meanwhile_is_made_again(tmp_path: Path) -> None:
    """It is refused, and nothing of it stays."""
    path = tmp_path / "c"
    with furnished(path, "number", 2) as db:
        had = contents(db)
    with opened(path, mode="r") as reader:
        with pytest.raises(StoreLocked, match="was given other shards meanwhile"):
            reader.backup(tmp_path / "b", progress=lambda *_done: grow(path, 3))
        assert not (tmp_path / "b").exists()
        assert reader.backup(tmp_path / "b").items == len(had)
    with opened(tmp_path / "b", mode="r") as db:
        assert contents(db) == had


def test_threads_see_every_item_once_all_the_while(tmp_path: Path) -> None:
    """One handle that many threads ask, and others that are opened meanwhile."""
    path = tmp_path / "c"
    with clustered(path, "number", 300, shards=2) as db:
        total, value = len(db), db.lookup(QUERIES, temperature=0.5).value
    wrong, done, rounds = list[Any](), threading.Event(), [0, 0, 0]
    with opened(path, mode="r") as shared:

        def ask(place: int) -> None:
            while not done.is_set() or rounds[place] < 3:
                rounds[place] += 1
                try:
                    with shared.snapshot() if place == 1 else opened(path, mode="r") as one:
                        found = (shared if place == 0 else one).lookup(QUERIES, temperature=0.5)
                        if not np.allclose(found.value, value, atol=1e-6):
                            wrong.append(found)
                        if len(list(one)) != total or len(shared.get_many(["item 7", "item 200"])) != 2:
                            wrong.append("an item is missing, or there twice")
                except BaseException as error:
                    wrong.append(error)
                    raise

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(3)]
        for one in threads:
            one.start()
        for shards in (3, 4, 6, 8):
            grow(path, shards)
        done.set()
        for one in threads:
            one.join(60)
            assert not one.is_alive()
    assert not wrong
    assert min(rounds) >= 3


# What goes wrong


def test_a_full_disk_leaves_the_cluster_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a division that was begun stays, and once there is room it is done."""
    path, refusals = tmp_path / "c", 0
    with furnished(path, "number", 2) as db:
        had = contents(db)
    real = files.write_at
    for allowed in range(0, 400, 7):
        left = [allowed]

        def write_at(descriptor: int, data: memoryview, offset: int, where: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0 and "LOCK" not in where:
                raise StorageFull(f"cannot write {where}: no space left")
            real(descriptor, data, offset, where)

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_at", write_at)
            try:
                grow(path, 4)
            except StorageFull:
                refusals += 1
        assert directories(path) == named(path)
        with opened(path, mode="r") as db:
            assert contents(db) == had
        if left[0] >= 0:
            break
    assert refusals > 2
    assert len(named(path)) == 4
    with opened(path) as db:
        assert db.check().ok


def test_what_is_not_the_clusters_is_not_removed(tmp_path: Path) -> None:
    """Files, links, and shards of other clusters beside its own."""
    disk, path = tmp_path / "disk", tmp_path / "c"
    disk.mkdir()
    for name in ("c", "d"):
        create(tmp_path / name, 2, [disk], value="number")
    (path / "shard-notes").mkdir()
    (path / "shard-007").symlink_to(tmp_path / "d")
    (disk / "shard-000").mkdir()
    grow(path, 3, [disk])
    assert directories(path) == {"shard-notes", "shard-007"}
    assert len(directories(disk)) == 6
    with opened(tmp_path / "d") as db:
        assert len(db) == 0
