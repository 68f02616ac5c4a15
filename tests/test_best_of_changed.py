"""The k best by an index are found as surely as it says, also where few keys are the best, and after changes."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import indexed
from softkv.database import rechecking
from softkv.index.verdict import Verdict

from .databases import count_as_large
from .scales import scaled

WIDTH, CLUSTERS, CONFIDENCE = 24, 60, 0.95
KINDS = {"plain": "cosine", "offset": "dot", "lengths": "gaussian"}


def keys_of(kind: str, count: int, seed: int) -> np.ndarray:
    """Keys in clusters: as they are, all far from zero in one direction, or of very unlike lengths."""
    rng, centres = np.random.default_rng([5, seed]), np.random.default_rng(7).standard_normal((CLUSTERS, WIDTH))
    keys = centres[rng.integers(0, CLUSTERS, count)] + 0.4 * rng.standard_normal((count, WIDTH))
    if kind == "lengths":
        keys *= np.exp(1.8 * rng.standard_normal((count, 1)))
    return (keys + 30.0 * (kind == "offset")).astype(np.float32)


def made(path: Path, kind: str, count: int, seed: int = 0) -> softkv.SoftKV:
    """A store with an index."""
    db = softkv.open(path, "n", compatibility=KINDS[kind], value="number")
    keys = keys_of(kind, count, seed)
    db.add([str(n) for n in range(count)], keys[:, 0], vectors=keys)
    db.build_index()
    return db


def found(db: softkv.SoftKV, kind: str, k: int, asked: int = 300, seed: int = 99) -> tuple[float, float]:
    """The share of queries that the index answers, and of these the share whose k best are the k best."""
    queries = keys_of(kind, asked, seed)
    mine, exact = (db.lookup(queries, k=k, show=k, tolerance=one) for one in (0.01, 0))
    answered = np.broadcast_to(np.array(mine.route) == "calibrated", asked)
    right = (np.sort(mine.rows, axis=1) == np.sort(exact.rows, axis=1)).all(1)
    assert right[~answered].all()
    return float(answered.mean()), float(right[answered].mean()) if answered.any() else 1.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, of which any part is read; nothing is checked meanwhile."""
    count_as_large(monkeypatch, read=1.0, rehearsed=480)
    monkeypatch.setattr(rechecking, "is_cheap", lambda _: True)


@pytest.mark.parametrize("change", ["delete", "add"])
def test_where_one_key_is_the_best_of_all_queries_a_change_of_it_is_not_overlooked(tmp_path: Path, change: str) -> None:
    """Built, its k best are found by the index; once the best has died, or a better one came, all items are scanned."""
    with made(tmp_path / "s", "offset", 2500) as db:
        keys = keys_of("offset", 2500, 0)
        assert min(found(db, "offset", 1)) > 0.9
        if change == "delete":
            best = np.argsort(-keys.sum(1))[:600]
            db.delete([str(n) for n in best.tolist()])
        else:
            db.add("better", 1.0, vectors=keys[np.argsort(-keys.sum(1))[5]] + 0.5)
        answer = db.lookup(keys[0], k=1)
        assert answer.route == "scan"
        assert answer.reason.startswith("few items are among the 1 best of most queries, and others may be by now")
        assert db.nearest(keys[0], tolerance=0.01).error_kind == "exact"
        for k in (1, 5, 32):
            share, right = found(db, "offset", k)
            assert share == 0.0 or right > 0.9
        db.compact()
        assert db.lookup(keys[0], k=1).route == "scan"
        db.build_index()
        assert min(found(db, "offset", 1)) > 0.9


@pytest.mark.parametrize("k", [1, 5])
def test_where_queries_have_best_keys_of_their_own_changes_do_no_harm(tmp_path: Path, k: int) -> None:
    """They are found by the index as before, also where the best of many died."""
    with made(tmp_path / "s", "plain", 6000) as db:
        queries = keys_of("plain", 1200, 50)
        best = np.unique(db.lookup(queries, k=1, show=1, tolerance=0).rows)
        db.delete([item.name for item in db._view().snapshot.items(best)])
        share, right = found(db, "plain", k)
        assert share > 0.9
        assert right > 0.9


@pytest.mark.parametrize("deleted", [0, 1500])
def test_a_list_of_outliers_is_not_expected_to_hold_the_best_of_all(tmp_path: Path, deleted: int) -> None:
    """Keys whose lengths differ a hundredfold are compared by distances, and the k best found as stated."""
    with made(tmp_path / "s", "lengths", 6000) as db:
        if deleted:
            gone = np.random.default_rng(3).permutation(6000)[:deleted]
            db.delete([str(n) for n in gone.tolist()])
        for k in (1, 8, 32):
            share, right = found(db, "lengths", k)
            assert share > 0.8
            assert right > 0.9


@pytest.mark.ci
def test_where_most_rows_would_be_read_for_the_best_they_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a row in a list takes longer than in a scan; other lookups are answered by the index all the same."""
    monkeypatch.undo()
    count_as_large(monkeypatch)
    with made(tmp_path / "s", "lengths", 6000) as db:
        for k in (1, 32):
            answer = db.lookup(keys_of("lengths", 1, 99)[0], k=k)
            assert answer.route == "scan"
            assert answer.reason == f"to find the {k} best by the index as surely as asked for takes as long as a scan"
    with made(tmp_path / "t", "plain", 6000) as db:
        assert found(db, "plain", 1)[0] == 1.0


def shallow(db: softkv.SoftKV) -> None:
    """An index that looks for the best in one list only, and believes to find them there."""
    with db._store.snapshot() as snapshot:
        index = db._findings.indexes.of(snapshot)
    calibration = replace(index.calibration, depths=np.zeros_like(index.calibration.depths))
    db._store.put_index(indexed.NAME, replace(index, calibration=calibration).encoded())


def test_k_best_that_are_found_too_seldom_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check notices; other lookups are answered as before, and building again helps."""
    monkeypatch.setattr(rechecking, "is_cheap", lambda _: False)
    monkeypatch.setattr(rechecking, "clock", lambda: 0.0)
    with made(tmp_path / "s", "plain", 2500) as db, caplog.at_level(logging.WARNING, "softkv"):
        shallow(db)
        keys = keys_of("plain", 400, 8)
        assert db.lookup(keys[0], k=5).route == "calibrated"
        db.add(vectors=keys, values=keys[:, 0])
        verdict = db._view().verdict
        assert verdict is not None
        assert not verdict.withdrawn
        assert verdict.ranked > 200
        assert "best by the index" in caplog.text
        assert "too few of them are found" in caplog.text
        answer = db.lookup(keys[0], k=5)
        assert answer.route == "scan"
        assert answer.reason.startswith("the calibration of the index no longer holds")
        assert "best found for" in answer.reason
        assert db.lookup(keys[0]).reason == "the index was built for this"
        assert "the k best are no longer found as surely as it states" in str(db.info().index)
        db.compact()
        assert db.lookup(keys[0], k=5).route == "scan"
        db.build_index()
        assert db.lookup(keys[0], k=5).route == "calibrated"


@pytest.mark.parametrize("facts", [{"ranked": -1}, {"found": [9] * 7}, {"found": [0]}, {"found": 3}, {"ranked": "x"}])
def test_a_verdict_on_the_best_may_be_anything(facts: dict[str, Any]) -> None:
    """What cannot be one is none; one without it, of an earlier version, says nothing of the best."""
    known: dict[str, Any] = {"file": 1, "changes": 1, "items": 9, "confidence": 0.95, "temperatures": [0.1]}
    known |= {"asked": [256], "values": [256], "masses": [256]}
    plain = Verdict.of(known)
    assert plain is not None
    assert plain.lost() is None
    best = Verdict.of(known | {"ranked": 200, "found": [90, *[200] * 6]})
    assert best is not None
    assert best.lost() == best.lost(1) == "the 1 best found for 45% of 200"
    assert best.lost(3) is best.lost(65) is None
    assert Verdict.of(known | {"ranked": 8, "found": [8] * 7} | facts) is None


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_are_found_as_surely_as_stated(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several builds hardly one finds them for fewer queries, built and with a quarter of the items deleted."""
    scaled(monkeypatch, rehearsed=1440)
    seen = []
    for seed in range(4):
        with made(tmp_path / str(seed), kind, 16_000, seed) as db:
            for stage in range(2):
                if stage:
                    gone = np.random.default_rng(seed).permutation(16_000)[:4000]
                    db.delete([str(n) for n in gone.tolist()])
                seen += [found(db, kind, k, 600, 99 + seed)[1] for k in (1, 4, 16, 32, 64)]
    assert np.mean(np.array(seen) < CONFIDENCE - 0.03) <= 0.1
    assert min(seen) > 0.85
