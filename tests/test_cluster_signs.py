"""Rows that are like a query are found by their signs where the lists of all shards are asked together."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.asking.spanning import NAME
from softkv.database import middles
from softkv.doors.cluster.handle import Cluster, create
from softkv.index.encoding import decoded, encoded
from softkv.index.lists import ListIndex

from .clusters import opened, value_like
from .databases import count_as_large
from .test_measured import values_of
from .test_screening import index_of, keys_of
from .test_signs import KINDS, need_of, unaided

pytestmark = pytest.mark.ci
ITEMS, LATE, MIDDLES = 12_000, 400, 120


@pytest.fixture(scope="module")
def large() -> Iterator[None]:
    """Stores count as large from the first item on, late rows are noted at once, and few wrong answers are too many."""
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=900, noted=1)
        patch.setattr(middles, "MISSED", 0.02)
        yield


@pytest.fixture(scope="module", params=list(KINDS))
def made(request: pytest.FixtureRequest, large: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed cluster to which items were added and deleted after its index was built."""
    path, keys = tmp_path_factory.mktemp("clusters") / "c", keys_of(1, ITEMS + LATE)
    held, names = values_of(KINDS[request.param], keys), [str(number) for number in range(len(keys))]
    create(path, 2, value=KINDS[request.param], compatibility=request.param)
    with opened(path) as db:
        db.add(names[:ITEMS], held[:ITEMS], vectors=keys[:ITEMS])
        db.build_index()
        db.add(names[ITEMS:], held[ITEMS:], vectors=keys[ITEMS:])
        db.delete(names[:200])
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of such a cluster."""
    shutil.copytree(made, tmp_path / "c")
    return tmp_path / "c"


@pytest.mark.parametrize("made", ["cosine"], indirect=True)
def test_answers_to_middles_are_as_near_as_they_say(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between items of any two shards, late ones included; without signs many such answers are wrong."""
    keys = keys_of(1, ITEMS + LATE).astype(np.float64)
    rows = np.random.default_rng(5).choice(np.arange(200, len(keys)), (MIDDLES, 2))
    with opened(path, mode="r") as db:
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        coldest, warmest = float(index_of(db).calibration.temperatures[0]), float(need_of(db).warmest[:2].max())
        queries, options = keys[rows].mean(1), {"temperature": max(1.1 * coldest, warmest / 3), "tolerance": 0.05}
        exact, wrong = db.lookup(queries, **options | {"tolerance": 0.0}), list[float]()
        for aided in (True, False):
            if not aided:
                unaided(monkeypatch)
            found = db.lookup(queries, **options)
            planned = np.broadcast_to(np.asarray(found.error_kind), len(queries)) == "calibrated"
            apart = (value_like(found, exact) - exact.value).reshape(len(queries), -1)
            wrong.append(float((np.linalg.norm(apart, axis=1) > found.error)[planned].mean()))
            assert planned.sum() > 20
    assert wrong[0] <= 0.1
    assert wrong[1] > 0.15


def test_rows_of_all_shards_are_found(path: Path) -> None:
    """Where both items are those of one shard, and where each is of another; for stored items, these themselves."""
    with opened(path, mode="r") as db:
        view, everywhere = db._view(), np.arange(len(index_of(db).made_of))
        index, live = index_of(db), view.snapshot.live
        assert [part.of.signs is not None for part in index.parts] == [True, True]
        rows = np.random.default_rng(1).choice(np.flatnonzero(live), 40)
        late = [int(view.parts[n].first) + part.of.rows for n, part in enumerate(index.parts)]  # the first of a shard
        for row in [*rows.tolist(), *(row for row in late if live[row])]:
            query, _ = index.form.queries(view.snapshot.vectors(np.array([row])), None, np.ones(1))
            found = index.alike(index.point_of(query[0]), everywhere, live)
            assert row in found
            assert live[found].all()
            assert len(set(found.tolist())) == len(found)
        own = index.owners(rows[:1])
        found = index.alike(index.point_of(query[0]), own, live)
        behind = np.concatenate([one.first + np.arange(part.of.rows, part.of.known) for one, part in both(view, index)])
        assert set(index.owners(found[~np.isin(found, behind)]).tolist()) <= set(own.tolist())


def both(view: Any, index: ListIndex) -> Iterator[tuple[Any, Any]]:
    """Each shard, and its part of the index."""
    return zip(view.parts, index.parts, strict=True)


def test_a_cluster_that_asked_no_middles_is_rehearsed_again(path: Path) -> None:
    """An earlier version did not; what it rehearsed counts until the index is built again."""

    def rewritten(db: Cluster) -> None:
        shard = db._store.shards[0]
        file = shard.view().snapshot.index(NAME)
        assert file is not None
        facts, arrays = decoded(file.read())
        file.close()
        del facts["middles"]
        arrays = {name: array for name, array in arrays.items() if not name.startswith("signs.")}
        shard.put_index(NAME, b"".join(encoded(facts, arrays)))

    with opened(path) as db:
        steps = index_of(db).calibration.temperatures
        rewritten(db)
        db._view().findings.rehearsed = None
    with opened(path) as db:
        assert index_of(db).need is None
        assert len(index_of(db).calibration.temperatures)
        assert not db._view().is_rehearsed(steps)
        db.build_index()
        assert db._view().is_rehearsed(steps)
        need_of(db)
