"""Estimates over shards: within what they state, as often as they say, and as close as was asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking.joined import joined
from softkv.doors.cluster.handle import Cluster, create
from softkv.doors.cluster.shard import Carrier
from softkv.doors.cluster.shard import at_once as all_at_once
from softkv.doors.cluster.whole import WholeView
from tests.stores import with_secret

from .clusters import opened, value_like
from .databases import measured_always
from .test_measured import QUERIES, TOLERANCE, keys_of, most_misses, values_of

pytestmark = pytest.mark.ci
ITEMS, SHARDS = 36_000, 3


def asked_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Lists of shards are not put side by side, so that shards are asked as those in other processes are."""
    patch.setattr(WholeView, "index", property(lambda _: None))


@pytest.fixture(scope="module", params=["vector", "number", "label", "vector side by side", "label side by side"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shards with an index each, which count as large, and of which to draw rows takes no time."""
    path, keys = tmp_path_factory.mktemp("measured") / "c", keys_of(1, ITEMS)
    kind, _, together = request.param.partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        if not together:
            asked_one_by_one(patch)
        create(path, SHARDS, value=kind, compatibility="cosine", temperature=0.05)
        with opened(path) as db:
            payloads = [{"third": number % 3 == 0} for number in range(ITEMS)]
            names = [str(number) for number in range(ITEMS)]
            db.add(names, values_of(kind, keys), vectors=keys, payloads=payloads)
        for number in range(SHARDS):  # so that the same rows are drawn every time
            with_secret(path / f"shard-{number:03}", f"shard {number}".encode().ljust(32))
        with opened(path) as db:
            db.build_index(temperatures=(0.01, 0.2))
            yield db
            assert db.check().ok


HELD = 0.87  # of 120 statements that hold in 95% each, fewer do in one of a thousand trials
OPTIONS: dict[str, dict[str, Any]] = {
    "as rehearsed": {},
    "warm": {"temperature": 1.0},
    "a filter": {"where": {"third": True}, "temperature": 0.3},
    "other temperatures": {"temperature": np.geomspace(0.02, 2.0, len(QUERIES))},
}


def one_by_one(cluster: Cluster, options: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Answers to queries that each have a draw of their own, so that misses are independent."""
    for number in range(len(QUERIES)):
        some = np.arange(number, number + 1)
        cut = {name: one[some] if isinstance(one, np.ndarray) else one for name, one in options.items()}
        yield some, cluster.lookup(QUERIES[some], tolerance=TOLERANCE, **cut)


@pytest.mark.parametrize("name", OPTIONS)
def test_estimates_hold_as_often_as_they_say(cluster: Cluster, name: str) -> None:
    """Values, masses, spreads and effective numbers do; and they are as close as was asked for."""
    options = OPTIONS[name]
    exact = cluster.lookup(QUERIES, tolerance=0.0, **options)
    found = joined(list(one_by_one(cluster, options)), None)
    estimated = np.broadcast_to(np.array(found.error_kind) != "exact", len(found))
    assert estimated.mean() > 0.3, found.routes
    assert found.error.max() <= TOLERANCE * cluster._view().snapshot.value_scale * 1.0001
    apart = value_like(found, exact) - exact.value
    missed = np.abs(apart) if apart.ndim == 1 else np.linalg.norm(apart, axis=1)
    assert (missed <= found.error + exact.error).mean() >= HELD
    stated = np.maximum(np.nan_to_num(found.log_mass_error), 1e-5)  # exact answers beside others state none
    assert (np.abs(found.log_mass - exact.log_mass) <= stated).mean() >= HELD
    for told, error in ((found.effective, found.effective_error), (found.spread, found.spread_error)):
        if error is not None:
            known = np.isfinite(error)
            right = exact.effective if told is found.effective else exact.spread
            assert (np.abs(told - right) <= error)[known].mean() >= HELD


def test_the_best_are_found_by_the_indexes_of_all_shards(cluster: Cluster) -> None:
    """Nearly all queries find all of them."""
    exact, found = (cluster.lookup(QUERIES, k=5, tolerance=tolerance) for tolerance in (0.0, TOLERANCE))
    same = [
        {one.key for one in mine.contributors[:5]} == {one.key for one in theirs.contributors[:5]}
        for mine, theirs in zip(found, exact, strict=True)
    ]
    assert np.mean(same) >= 0.9
    missed = np.abs(value_like(found, exact) - exact.value).reshape(len(found), -1).max(1)
    assert (missed <= found.error + exact.error).mean() >= 0.93
    estimated = np.broadcast_to(np.array(found.route) == "calibrated", len(found))
    assert estimated.mean() >= 0.9
    for name in ("log_mass", "mass"):
        assert (np.isnan(getattr(found, name)) == estimated).all()
    assert found.weights[estimated].sum(1) == pytest.approx(1.0)
    assert {len(one.contributors) for one in np.array(found, object)[estimated]} == {5}


def test_more_of_the_best_than_a_shard_has_items_are_blended(cluster: Cluster) -> None:
    """A shard whose items may all be among them names all, even where a lookup of all would be estimated."""
    for k in (ITEMS // SHARDS + 100, ITEMS - 10):
        exact, found = (cluster.lookup(QUERIES[:3], k=k, tolerance=tolerance) for tolerance in (0.0, TOLERANCE))
        assert (found.scored == k).all()
        assert found.effective == pytest.approx(exact.effective, rel=1e-3)
        missed = np.abs(value_like(found, exact) - exact.value).reshape(len(found), -1).max(1)
        assert (missed <= found.error + exact.error).all()


@pytest.mark.parametrize("together", [True, False])
def test_heads_are_estimated_over_shards(together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each head asks is a question like any other, also with a filter, and a mask where lists lie side by side."""
    measured_always(monkeypatch)
    if not together:
        asked_one_by_one(monkeypatch)
    rng, keys = np.random.default_rng(3), keys_of(1, 12_000)
    heads = softkv.Heads(*(rng.standard_normal((2, 6, n)) / np.sqrt(n) for n in (keys.shape[1], keys.shape[1], 5)))
    create(tmp_path / "c", SHARDS, value="vector", compatibility="dot", temperature=0.3)
    with opened(tmp_path / "c") as db:
        names, payloads = [str(number) for number in range(len(keys))], [{"odd": n % 2 > 0} for n in range(len(keys))]
        db.add(names, values_of("vector", keys), vectors=keys, payloads=payloads)
    for number in range(SHARDS):
        with_secret(tmp_path / "c" / f"shard-{number:03}", f"shard {number}".encode().ljust(32))
    with opened(tmp_path / "c") as db:
        db.build_index(temperatures=(0.06, 1.2))
        masked: list[dict[str, Any]] = [{"mask": np.arange(len(keys)) % 4 > 0}] if together else []
        for some in ({}, {"where": {"odd": True}}, *masked):
            asked = {"heads": heads, "temperature": 6.0, **some}
            each = [db.lookup(query[None], tolerance=0.3, **asked) for query in QUERIES[:40]]  # with draws of their own
            found = joined([(np.array([n]), one) for n, one in enumerate(each)], 6.0)
            exact = db.lookup(QUERIES[:40], tolerance=0.0, **asked)
            assert "measured" in found.routes
            missed = np.linalg.norm(found.value - exact.value, axis=1) > found.error + exact.error
            assert missed.sum() <= most_misses(40)
            stated = np.maximum(np.nan_to_num(found.log_mass_error), 1e-5)  # exact answers beside others state none
            assert (np.abs(found.log_mass - exact.log_mass) > stated).sum() <= most_misses(40)


MOST_ROWS = 1.3  # times those of one store


@pytest.mark.parametrize("most", [6, 16])
@pytest.mark.parametrize("kind", ["vector", "label"])
def test_shards_that_draw_rows_read_about_as_many_as_one_store(kind: str, most: int, tmp_path: Path) -> None:
    """Sixteen do whose lists lie side by side, and six that are asked one by one, also by a carrier that waits."""
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        if most == 6:
            asked_one_by_one(patch)
        keys, read = keys_of(1, 24_000), []
        for shards in (1, most):
            create(tmp_path / str(shards), shards, value=kind, compatibility="cosine", temperature=0.05)
            with opened(tmp_path / str(shards)) as db:
                db.add(keys=[str(number) for number in range(len(keys))], values=values_of(kind, keys), vectors=keys)
            for number in range(shards):
                with_secret(tmp_path / str(shards) / f"shard-{number:03}", f"shard {number}".encode().ljust(32))
            with opened(tmp_path / str(shards)) as db:
                db.build_index(temperatures=(0.01, 0.2))
                asked = {"temperature": 1.0, "tolerance": TOLERANCE}
                each = [db.lookup(query[None], **asked) for query in QUERIES[:20]]
                at_once = db.lookup(QUERIES[:20], **asked)
                assert {one.error_kind for one in (*each, at_once)} == {"measured"}
                read.append([np.mean([one.rows_read for one in each]), at_once.rows_read.mean()])
                db._store.carrier = Carrier(calls=all_at_once)
                np.testing.assert_array_equal(db.lookup(QUERIES[:20], **asked).value, at_once.value)
        assert (np.array(read[1]) <= MOST_ROWS * np.array(read[0])).all(), read
