"""Shards that are damaged, or fail, while all are estimated as one store: they are named, and no answer is wrong."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.asking.spanning import NAME
from softkv.database.indexing import UNCHANGED
from softkv.doors.cluster.handle import Cluster, create
from softkv.errors import OutOfReach, SoftKVError, StorageFailed
from softkv.index.encoding import decoded, encoded
from tests.crash.hostile.indexes import MEASURED, STATISTICS, content, fill, put

from .clusters import opened, value_like
from .databases import measured_always
from .test_cluster_together import is_rehearsed
from .test_measured import QUERIES as UNLIKE
from .test_measured import TOLERANCE, keys_of, most_misses, values_of

pytestmark = pytest.mark.ci
ITEMS, SHARDS, HARMED = 6_000, 3, 1
REHEARSED = (0.01, 0.2)  # temperatures
ALL = "rehearsing all shards together"
READS = ("vectors", "values", "norms", "runs", "blocks")  # of a snapshot
QUERIES = keys_of(9, 40)
WAYS: dict[str, dict[str, Any]] = {"calibrated": {}, "measured": {"temperature": 1.0}}


@pytest.fixture(scope="module", params=["vector", "label"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of which nothing is damaged, and all shards are estimated together."""
    path, keys = tmp_path_factory.mktemp("built") / "c", keys_of(1, ITEMS)
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        create(path, SHARDS, value=request.param, compatibility="cosine", temperature=0.05)
        with opened(path) as db:
            db.add([str(number) for number in range(ITEMS)], values_of(request.param, keys), vectors=keys)
            db.build_index(temperatures=REHEARSED)
            assert is_rehearsed(db)
            for way, found in asked(db).items():
                assert found.routes.get(way, 0) > len(QUERIES) / 2
        yield path


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(built, tmp_path / "c"))


def asked(db: Cluster) -> dict[str, Any]:
    """The answers that are to be estimated in each way."""
    return {way: db.lookup(QUERIES, tolerance=TOLERANCE, **options) for way, options in WAYS.items()}


def require_right(db: Cluster) -> None:
    """Refuse answers, each with its own draw, of which more are farther off than they state than chance explains."""
    for options in WAYS.values():
        off = 0
        for query in QUERIES[:, None]:
            found, exact = (db.lookup(query, tolerance=one, **options) for one in (TOLERANCE, 0.0))
            off += bool(np.linalg.norm(value_like(found, exact) - exact.value) > found.error[0] + exact.error[0])
        assert off <= most_misses(len(QUERIES)), f"{off} answers are farther off than they state"


def damaged(file: Path) -> None:
    """A bit of each page of a file but the first is another."""
    held = bytearray(file.read_bytes())
    held[5000::4096] = bytes(one ^ 1 for one in held[5000::4096])
    file.write_bytes(held)


def fails(*_given: Any, **_options: Any) -> Any:
    """A read that the disk refuses."""
    raise StorageFailed("cannot read")


def until(read: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """A read, until so many were made in all."""

    def through(*given: Any, **options: Any) -> Any:
        left[0] -= 1
        return fails() if left[0] < 0 else read(*given, **options)

    return through


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("arena", ["keys.*", "values.*"])
def test_a_shard_with_damaged_rows_is_named(copied: Path, arena: str, way: str) -> None:
    """It is not answered with rows that are not what was written; where others may answer alone, they do."""
    shard, options = copied / f"shard-{HARMED:03}", {"tolerance": TOLERANCE, **WAYS[way]}
    for file in shard.glob(f"generation-*/{arena}"):
        damaged(file)
    with opened(copied, mode="r") as db:
        assert is_rehearsed(db)
        with pytest.raises(OutOfReach, match="checksum") as error:
            db.lookup(QUERIES, **options)
        assert list(error.value.shards) == [str(shard)]
        found = db.lookup(QUERIES, **options, partial=True)
        assert found.out_of_reach == pytest.approx(1 / SHARDS, abs=0.01)
        assert found.error_kind == "unknown"


@pytest.mark.parametrize("way", WAYS)
def test_a_shard_that_fails_in_the_middle_of_an_estimate_is_named(built: Path, way: str) -> None:
    """After any number of its reads; nothing of that estimate stays, and asked again all answer as before."""
    options = {"tolerance": TOLERANCE, **WAYS[way]}
    with opened(built, mode="r") as db:
        before, found = db.lookup(QUERIES, **options).to_json(), list[str]()
        snapshot = db._view().snapshot.snapshots[HARMED]
        while found[-1:] != [before]:
            with pytest.MonkeyPatch.context() as patch:
                left = [len(found)]
                for name in READS:
                    patch.setattr(snapshot, name, until(getattr(snapshot, name), left))
                try:
                    found.append(db.lookup(QUERIES, **options).to_json())
                except OutOfReach as error:
                    found.append(*error.shards)
            assert db.lookup(QUERIES, **options).to_json() == before
        assert set(found) == {snapshot.path, before}
        assert len(found) > 3


def test_all_queries_are_answered_by_the_same_shards(built: Path) -> None:
    """Where a shard fails in what only some of them need, of none is an error stated as if it had not."""
    options = {"tolerance": TOLERANCE, "temperature": np.geomspace(0.001, 2.0, len(UNLIKE))}
    with opened(built, mode="r") as db, pytest.MonkeyPatch.context() as patch:
        assert {"scan", "measured"} <= set(db.lookup(UNLIKE, **options).routes)
        patch.setattr(db._view().snapshot.snapshots[HARMED], "blocks", fails)
        with pytest.raises(OutOfReach, match=f"shard-{HARMED:03}"):
            db.lookup(UNLIKE, **options)
        found = db.lookup(UNLIKE, **options, partial=True)
        assert found.out_of_reach == pytest.approx(1 / SHARDS, abs=0.01)
        assert (found.error, found.error_kind) == (None, "unknown")


@pytest.mark.parametrize("harm", [damaged, Path.unlink], ids=["damaged", "gone"])
@pytest.mark.parametrize(("name", "shard"), [("lists", HARMED), (NAME, 0)])
def test_an_index_file_that_is_damaged_costs_no_answer(
    copied: Path, name: str, shard: int, harm: Callable[[Path], None]
) -> None:
    """Be it the lists of a shard or what all rehearsed: answers keep what they state, and building again mends it."""
    with opened(copied, mode="r") as db:
        file = db._store.shards[shard].view().snapshot.index(name)
        path = Path(file.path)
        file.close()
    harm(path)
    with opened(copied) as db:
        assert not is_rehearsed(db)
        require_right(db)
        db.build_index(temperatures=REHEARSED)
        assert is_rehearsed(db)
        require_right(db)
        assert db.check().ok


LIES: dict[str, Callable[[Any], Any]] = {
    "empty": lambda x: x[:0],
    "one number": lambda x: x.reshape(-1)[0],
    "wider": lambda x: np.stack([x, x], axis=-1),
    "NaN": lambda x: np.full_like(x, np.nan),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_all_rehearsed_may_be_anything(copied: Path, lie: str) -> None:
    """Answers keep what they state, whatever lies under a checksum that is right."""
    with opened(copied) as db:
        file = db._store.shards[0].view().snapshot.index(NAME)
        facts, arrays = decoded(file.read())
        for name in MEASURED:
            lies = b"".join(encoded(facts, arrays | {name: LIES[lie](arrays[name])}))
            db._store.shards[0].put_index(NAME, lies)
            require_right(db)
        for lies in (b"", b"x", b"".join(encoded({}, arrays)), b"".join(encoded(facts | {"of": 7}, arrays))):
            db._store.shards[0].put_index(NAME, lies)
            assert not is_rehearsed(db)
            require_right(db)


@pytest.mark.parametrize("value", [np.nan, -1e300, 0.0])
def test_statistics_of_a_shard_may_be_anything(copied: Path, value: float) -> None:
    """What lists of one shard say under a checksum that is right is answered with numbers, or refused."""
    shard = copied / f"shard-{HARMED:03}"
    _, written = content(shard)
    for name in (f"lists.{one}" for one in STATISTICS):
        facts, arrays = decoded(memoryview(written))
        lies = {each: array.copy() for each, array in arrays.items()}
        if name in lies:
            fill(name, value)(facts, lies)
        put(shard, b"".join(encoded(facts, lies)))
        with opened(copied, mode="r") as db:
            try:
                assert all(np.isfinite(found.value).all() for found in asked(db).values())
            except SoftKVError:
                continue


def test_a_rehearsal_that_fails_is_made_up_for(copied: Path) -> None:
    """Nothing of it is kept, and the lists of each shard stay: building again does what is left, and nothing else."""
    with opened(copied) as db, pytest.MonkeyPatch.context() as patch:
        db._store.drop_index(NAME)

        def stop(stage: str, _done: int, _total: int) -> None:
            if stage == ALL:
                raise KeyboardInterrupt

        def fail(stage: str, _done: int, _total: int) -> None:
            if stage == ALL:
                patch.setattr(db._view().snapshot.snapshots[HARMED], "vectors", fails)

        for told, error in ((stop, KeyboardInterrupt), (fail, StorageFailed)):
            with pytest.raises(error):
                db.build_index(temperatures=REHEARSED, progress=told)
            patch.undo()
            assert not is_rehearsed(db)
            require_right(db)
        stages = set[str]()
        db.build_index(temperatures=REHEARSED, progress=lambda stage, *_: stages.add(stage))
        assert stages == {UNCHANGED, ALL}
        assert is_rehearsed(db)
        require_right(db)
