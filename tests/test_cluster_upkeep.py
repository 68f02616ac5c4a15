"""What keeps a cluster in order and makes it better: each shard for itself, or all of them as one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import import_from
from softkv.doors.cluster.handle import Cluster, create
from softkv.doors.cluster.store import ShardedStore
from softkv.errors import InputError

from .clusters import clustered, opened, require_alike
from .databases import KINDS, count_as_large, filled, measured_always, vectors_of
from .farther import far_opened

QUERIES = vectors_of(20, seed=5)
COUNT = 600


@pytest.mark.parametrize("kind", ["number", "label", "vector"])
def test_a_cluster_learns_what_one_store_of_its_items_learns(kind: str, tmp_path: Path) -> None:
    """A temperature and a guard, and a metric by which all shards compare."""
    with clustered(tmp_path / "c", kind, COUNT) as db, filled(tmp_path / "s", kind, COUNT) as one:
        mine, theirs = db.tune(hold_out=0.0), one.tune(hold_out=0.0)
        assert mine.temperature == pytest.approx(theirs.temperature, rel=1e-3)
        assert db.info().temperature == mine.temperature
        one.set_temperature(mine.temperature)
        require_alike(db.lookup(QUERIES), one.lookup(QUERIES))
        db.tune()
        guard = db.guard(0.9)
        assert db.info().guard == str(guard)
        one.tune()
        alone = one.guard(0.9)
        assert guard.evidence.values == pytest.approx(alone.evidence.values, abs=0.02)
        assert db.lookup(QUERIES).known.tolist() == one.lookup(QUERIES).known.tolist()
        db.delete(["item 1", "item 2"])
        db.compact()
        assert db.info().guard == str(guard)
        assert db.forget_guard()
        assert db.info().guard is None
        with pytest.raises(InputError, match="a cluster does not read answers off them"):
            db.fit(planes=True)
        fit = db.fit(rank=2, seed=1)
        if fit.kept:
            assert "rank 2" in str(db.info().projection)
            learned = db.lookup(QUERIES)
            assert learned.temperature == 1.0
            db.compact()
            np.testing.assert_allclose(db.lookup(QUERIES).value, learned.value, atol=1e-5)
            assert db.forget_fit()
        assert not db.forget_fit()
    with opened(tmp_path / "c", mode="r") as db:
        assert len(db.lookup(QUERIES)) == 20


@pytest.mark.parametrize("opening", [opened, far_opened])
def test_a_guard_of_a_cluster_keeps_count_where_shards_lay_out_their_rows_anew(
    opening: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Stale it stays so; a build that lays out no rows, or that is refused, counts nothing twice."""
    vectors = np.random.default_rng(0).standard_normal((COUNT, 2)).astype(np.float32)
    keys = [f"key {n}" for n in range(COUNT)]
    create(tmp_path / "c", 3, value="number", compatibility="gaussian")
    with opening(tmp_path / "c") as db:
        db.add(keys, vectors[:, 0], vectors=vectors)
        db.tune()
        db.guard(0.2)
        db.set_values(keys[:25], [0.0] * 25)
        for _ in range(3):
            with pytest.raises(InputError, match="lists"):
                db.build_index(lists=COUNT)
            db.build_index("hnsw")
        assert db.lookup([0.0, 0.0]).known is not None
        db.set_values(keys[25:65], [0.0] * 40)
        for road in (db.build_index, db.compact, db.build_index):
            assert "65 items changed" in db.info().guard
            assert db.lookup([0.0, 0.0]).known is None
            road()
        assert "65 items changed" in db.info().guard
        db.export(tmp_path / "items.npz")
    import_from(tmp_path / "items.npz", tmp_path / "s")
    with softkv.open(tmp_path / "s", "r") as one:
        assert "65 items changed" in one.info().guard


@pytest.mark.parametrize("opening", [opened, far_opened])
def test_what_a_cluster_learned_holds_for_whoever_opens_it(opening: Callable[..., Cluster], tmp_path: Path) -> None:
    """It learned numbers that only some directions tell; shards may be asked by messages."""
    vectors = np.random.default_rng(0).standard_normal((COUNT, 8)).astype(np.float32)
    path = tmp_path / "c"
    create(path, 3, value="number", compatibility="gaussian")
    with opening(path) as db, softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as one:
        for each in (db, one):
            each.add([f"key {n}" for n in range(COUNT)], vectors[:, 0] * 3.0, vectors=vectors)
        assert db.fit(seed=1).kept
        learned = db.lookup(vectors[:20] + 0.1)
        errors = np.abs(learned.value - (vectors[:20, 0] + 0.1) * 3.0).mean()
        assert errors < 0.5 * np.abs(one.lookup(vectors[:20] + 0.1).value - (vectors[:20, 0] + 0.1) * 3.0).mean()
        db.export(tmp_path / "learned.jsonl")
        assert "rank" in str(db.info().projection)
        assert "learned" in [way.way for way in db.evaluate(vectors[:20], vectors[:20, 0] * 3.0).ways]
        assert db.compare(vectors[0]).soft.value == db.lookup(vectors[0]).value
        assert db.guard(0.8).about["projection"]
    import_from(tmp_path / "learned.jsonl", tmp_path / "again")
    for mode in ("r", "c"):
        with opening(path, mode=mode) as db:
            np.testing.assert_array_equal(db.lookup(vectors[:20] + 0.1).value, learned.value)
    with softkv.open(tmp_path / "again", "r") as one:
        np.testing.assert_allclose(one.lookup(vectors[:20] + 0.1).value, learned.value, atol=1e-5)


@pytest.mark.parametrize("opening", [opened, far_opened])
def test_readers_compare_by_the_last_metric_where_its_writer_was_killed(
    opening: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is there, and shards have the earlier settings; a reader goes on as one that begins."""
    keys = np.random.default_rng(0).standard_normal((COUNT, 6)).astype(np.float32)
    create(tmp_path / "c", 3, value="number", compatibility="gaussian")

    def killed(_store: ShardedStore) -> None:
        raise KeyboardInterrupt

    with opened(tmp_path / "c") as db:
        db.add([f"item {n}" for n in range(COUNT)], np.sin(3 * keys[:, 0]), vectors=keys)
        assert db.fit(seed=0).kept
        with opening(tmp_path / "c", mode="r") as reader:
            configure = db._store.configure

            def configured(settings: Any) -> None:
                reader.lookup(keys[:9] + 0.1)  # of shards that have both metrics
                monkeypatch.setattr(ShardedStore, "settle_shards", killed)
                configure(settings)

            monkeypatch.setattr(db._store, "configure", configured)
            with pytest.raises(KeyboardInterrupt):
                db.fit(queries=keys[:300], targets=np.cos(3 * keys[:300, 1]), hold_out=0.0, seed=3)
            found = reader.lookup(keys[:9] + 0.1, tolerance=0.0)
            with opened(tmp_path / "c", mode="r") as fresh:
                again = fresh.lookup(keys[:9] + 0.1, tolerance=0.0)
            np.testing.assert_allclose(found.value, again.value, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", [".jsonl", ".npz", ".parquet", ".csv"])
def test_a_cluster_becomes_a_store_and_a_store_a_cluster(kind: str, ending: str, tmp_path: Path) -> None:
    """Export and import make one of the other, and so does load."""
    with clustered(tmp_path / "c", kind, 50) as db:
        if ending != ".csv":
            db.add(values=[db["item 1"]], vectors=vectors_of(1))
        count = len(db)
        assert db.export(tmp_path / f"items{ending}") == count
        if ending != ".csv":
            assert import_from(tmp_path / f"items{ending}", tmp_path / "s") == count
            with softkv.open(tmp_path / "s") as one:
                assert len(one) == count
                require_alike(db.lookup(QUERIES, show=4), one.lookup(QUERIES, show=4))
        if ending in (".jsonl", ".csv"):
            create(tmp_path / "d", 5, value=kind)
            with opened(tmp_path / "d") as again:
                loaded = again.load(tmp_path / f"items{ending}", batch="the file")
                assert loaded.count == again.load(tmp_path / f"items{ending}", batch="the file").count == count
                assert len(again) == count
                assert again.check().ok
                named = {key: value for key, value in db.items() if not key.startswith("#")}
                assert all(np.array_equal(again[key], value) for key, value in named.items())


def test_shards_are_indexed_at_the_temperatures_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard has an index for the temperatures of all, and can drop it; items that come later find their lists."""
    count_as_large(monkeypatch, rehearsed=400)
    with clustered(tmp_path / "c", "number", 3000) as db:
        exact = db.lookup(QUERIES)
        assert db.forecast_index(lists=8).seconds > 3 * 0.3  # which any build of a shard takes
        info = db.build_index(lists=8)
        assert info.index is not None
        assert (info.index.lists, info.index.rows) == (24, 3000)
        assert (
            len({tuple(view.index.calibration.temperatures.tolist()) for view in db._view().filled if view.index}) == 1
        )
        found = db.lookup(QUERIES)
        assert (np.abs(found.value - exact.value) <= found.error).mean() >= 0.9
        assert found.error.max() <= 0.01 * db.info().value_scale * 1.001
        db.add([f"late {n}" for n in range(300)], np.ones(300), vectors=vectors_of(300, seed=8))
        assert db.info().index.added == 300
        db.drop_index()
        assert db.info().index is None
        assert db.build_index("hnsw").proposer == "the k best"


def test_shards_of_a_few_items_do_without_an_index(tmp_path: Path) -> None:
    """Others have enough for one; where none has, it is said."""
    with clustered(tmp_path / "c", "number", 24, shards=8) as db:
        sizes = [len(shard.view().snapshot) for shard in db._store.shards]
        assert min(sizes) < 4 <= max(sizes)
        found = db.build_index(lists=1).index
        assert found is not None
        assert found.rows == sum(size for size in sizes if size >= 4)
        db.delete(list(db)[3:])
        with pytest.raises(InputError, match="at least 4 items"):
            db.forecast_index()


@pytest.mark.parametrize("opening", [opened, far_opened])
def test_items_in_shards_without_an_index_are_told_of(opening: Callable[[Path], Cluster], tmp_path: Path) -> None:
    """They count as items in no list beside the index of the other shards, until it is built again."""
    create(tmp_path / "c", 3, value="number")
    with opening(tmp_path / "c") as db:
        homes = {f"item {n}": db._store.manifest.shard_of(f"item {n}") for n in range(300)}
        first, *others = ([key for key, shard in homes.items() if shard == number] for number in range(3))
        db.add(first, np.arange(len(first)), vectors=vectors_of(len(first)))
        db.build_index(lists=2)
        late = [*others[0][:10], *others[1][:5]]
        db.add(late, np.arange(15), vectors=vectors_of(15, seed=3))
        found = db.info().index
        assert found is not None
        assert (found.lists, found.rows, found.added, found.waiting) == (2, len(first), 15, 15)
        assert found.again == "15 items are in shards without an index, and every lookup reads them"
        assert "15 items added since, 15 of them in no list" in str(found)
        found = db.build_index(lists=2).index
        assert found is not None
        assert (found.rows, found.added, found.again) == (len(first) + 15, 0, None)
        db.drop_index()
        assert db.info().index is None


@pytest.mark.parametrize("indexed", [1, 2])
def test_a_calibration_ends_where_shards_without_an_index_hold_a_tenth(
    indexed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items of a shard without an index have come since the lists of the others were calibrated."""
    count_as_large(monkeypatch, rehearsed=60)
    create(tmp_path / "c", 3, value="number")
    with opened(tmp_path / "c") as db:
        homes = {f"item {n}": db._store.manifest.shard_of(f"item {n}") for n in range(1500)}
        first = [key for key, shard in homes.items() if shard < indexed]
        late = [key for key, shard in homes.items() if shard == 2]
        db.add(first, np.arange(len(first)), vectors=vectors_of(len(first)))
        db.build_index(lists=4)
        few = len(first) // 20
        db.add(late[:few], np.arange(few), vectors=vectors_of(few, seed=3))
        assert db._view().uncalibrated is None
        db.add(late[few : 3 * few], np.arange(2 * few), vectors=vectors_of(2 * few, seed=4))
        assert "hold other items by now" in str(db._view().uncalibrated)


def test_what_a_cluster_cannot_do_it_says(tmp_path: Path) -> None:
    """The error tells what to do instead."""
    with clustered(tmp_path / "c", "number") as db, pytest.raises(InputError, match="Export it into one store"):
        db.reembed("static")


def test_a_cluster_that_was_emptied_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its shards rehearsed together goes with their items; and it is filled and indexed again."""
    measured_always(monkeypatch)
    with clustered(tmp_path / "c", "number", 2000, shards=2) as db:
        db.build_index(temperatures=(0.05, 0.5))
        db.clear()
        db.compact()
        assert len(db) == 0
        db.add([f"new {n}" for n in range(2000)], np.arange(2000.0), vectors=vectors_of(2000))
        db.build_index(temperatures=(0.05, 0.5))
        assert db.check().ok


def test_dead_rows_of_all_shards_are_left_behind(tmp_path: Path) -> None:
    """One shard is compacted after the other, and answers stay."""
    with clustered(tmp_path / "c", "vector", 200) as db:
        db.delete(where={"even": True})
        before = db.lookup(QUERIES)
        assert db.info().dead_rows == 100
        db.compact()
        assert db.info().dead_rows == 0
        np.testing.assert_allclose(db.lookup(QUERIES).value, before.value, atol=1e-6)
        assert db.check().ok
