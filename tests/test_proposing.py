"""Other indexes of FAISS: they propose rows, and the arena says how well these fit."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv import errors

from .databases import count_as_large

ITEMS, WIDTH = 3000, 16


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on."""
    count_as_large(monkeypatch)


def filled(path: Path, **options: Any) -> softkv.SoftKV:
    """A store of bare vectors with keys "0", "1", ..."""
    keys = np.random.default_rng(1).standard_normal((ITEMS, WIDTH))
    db = softkv.open(path, **options)
    db.add([str(number) for number in range(ITEMS)], keys[:, 0], vectors=keys)
    return db


@pytest.mark.parametrize("compatibility", ["cosine", "dot", "gaussian"])
@pytest.mark.parametrize("kind", ["hnsw", "ivf", "rabitq", "IVF32,PQ8"])
def test_what_is_proposed_is_scored_again(tmp_path: Path, kind: str, compatibility: str) -> None:
    """Most of the best rows are found, each with the score it really has; how wrong an answer is, nobody says."""
    with filled(tmp_path / "s", compatibility=compatibility) as db:
        db.build_index(kind)
        queries = np.random.default_rng(2).standard_normal((20, WIDTH))
        found, exact = db.lookup(queries, k=8, show=8), db.lookup(queries, k=8, show=8, tolerance=0)
        same = [len(set(a) & set(b)) / 8 for a, b in zip(found.rows.tolist(), exact.rows.tolist(), strict=True)]
        assert np.mean(same) > 0.6
        for number in range(20):
            scores = dict(zip(exact.rows[number].tolist(), exact.scores[number].tolist(), strict=True))
            for row, score in zip(found.rows[number].tolist(), found.scores[number].tolist(), strict=True):
                assert row not in scores or score == pytest.approx(scores[row], rel=1e-4, abs=1e-5)
        answer = found[0]
        assert (answer.error, answer.error_kind, answer.mass, answer.scored) == (None, "unknown", None, 8)
        assert "error unknown" in repr(answer)
        assert not {"mass", "log_mass", "is_far"} & set(answer.to_dict())
        assert found.weights.sum(1) == pytest.approx(1.0)
        assert db.check().ok


def test_adds_and_deletions_are_seen_at_once(tmp_path: Path) -> None:
    """A new row is scored, and a dead one never comes back; compaction leaves the proposer behind."""
    with filled(tmp_path / "s", compatibility="cosine") as db:
        db.build_index("hnsw")
        query = db.item("5").vector
        assert db.lookup(query, k=1).contributors[0].key == "5"
        db.delete("5")
        db.add("new", 1.0, vectors=query * 2)
        found = db.lookup(query, k=2)
        assert (found.contributors[0].key, found.error_kind) == ("new", "unknown")
        assert "5" not in [one.key for one in found.contributors]
        db.compact()
        assert db.lookup(query, k=2).error_kind == "exact"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "tolerance": 0},
        {"k": 3, "where": {}},
        {"k": 3, "compatibility": "laplace"},
        {"k": 3, "compatibility": "dot"},
    ],
    ids=str,
)
def test_nothing_else_is_asked_of_it(tmp_path: Path, options: dict[str, Any]) -> None:
    """A full softmax, an exact one, a filtered one, and one that is compared otherwise are scans."""
    with filled(tmp_path / "s", compatibility="cosine") as db:
        db.build_index("hnsw")
        assert db.lookup(np.ones(WIDTH), **options).error_kind == "exact"
        db.drop_index()
        assert db.lookup(np.ones(WIDTH), k=3).error_kind == "exact"


@pytest.mark.parametrize(
    ("kind", "options"), [("nonsense", {}), ("HNSW1", {}), ("hnsw", {"lists": 3}), ("hnsw", {"backend": "tpu"})]
)
def test_bad_wishes_are_refused(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    """The error names them, and nothing is written."""
    with filled(tmp_path / "s", compatibility="cosine") as db:
        commit = db.info().commit
        with pytest.raises(errors.InputError):
            db.build_index(kind, **options)
        assert db.info().commit == commit


@pytest.mark.parametrize("change", ["flip", "cut"])
def test_a_damaged_proposer_is_none(tmp_path: Path, change: str) -> None:
    """Lookups scan where it is damaged."""
    with filled(tmp_path / "s", compatibility="cosine") as db:
        db.build_index("hnsw")
    (file,) = (tmp_path / "s" / "index").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content[: len(content) if change == "flip" else 500]))
    with softkv.open(tmp_path / "s", "r") as db:
        for _ in range(2):
            answer = db.lookup(np.ones(WIDTH), k=3)
            assert answer.error_kind == "exact"
            assert answer.reason.startswith("the index cannot be used: ")


def test_a_query_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Proposals refuse it like a scan."""
    with filled(tmp_path / "s", compatibility="dot") as db:
        db.build_index("hnsw")
        with pytest.raises(errors.InputError):
            db.lookup(np.full(WIDTH, np.nan), k=3)


@pytest.mark.parametrize("kind", ["hnsw", "lists"])
def test_only_the_k_best_are_shown(tmp_path: Path, kind: str) -> None:
    """Weights are shares of the k and add up to 1, so rows beyond the k are not named, however many are asked for."""
    with filled(tmp_path / "s", compatibility="dot", temperature=1.0) as db:
        db.build_index(kind)
        answer = db.lookup(db.item("5").vector, k=3, show=10)
        assert answer.error_kind == ("unknown" if kind == "hnsw" else "calibrated")
        assert len(answer.contributors) == 3
        assert sum(one.weight for one in answer.contributors) == pytest.approx(1.0)


@pytest.mark.parametrize("k", ["3", 10.5, True, 0])
@pytest.mark.parametrize("kind", ["hnsw", "lists"])
def test_a_k_that_is_no_count_is_refused_by_name(tmp_path: Path, kind: str, k: Any) -> None:
    """The message names k and what was given, whatever index would answer."""
    with filled(tmp_path / "s", compatibility="dot") as db:
        db.build_index(kind)
        with pytest.raises(errors.KindError, match=f"expected k to be a whole number.*{k!r}"):
            db.lookup(np.ones(WIDTH), k=k)


@pytest.mark.parametrize("count", [1, 3, 200])
@pytest.mark.parametrize("kind", ["hnsw", "lists"])
def test_temperatures_are_counted_before_queries_are_told_apart(tmp_path: Path, kind: str, count: int) -> None:
    """There is one for all queries or one for each, whatever index would answer, and with and without k."""
    with filled(tmp_path / "s", compatibility="dot") as db:
        db.build_index(kind)
        for k, others in ((None, count + 2), (None, 2), (3, count + 2), (3, 2)):
            with pytest.raises(errors.ShapeError, match=rf"one per query \({count},\), got shape \({others},\)"):
                db.lookup(np.ones((count, WIDTH)), k=k, temperature=np.ones(others))


def test_without_faiss_the_k_best_are_scanned_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lookup does as all later ones, and the reason says what is missing."""
    with filled(tmp_path / "s", compatibility="dot") as db:
        db.build_index("hnsw")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with softkv.open(tmp_path / "s", "r") as db:
        for _ in range(3):
            answer = db.lookup(np.ones(WIDTH), k=3)
            assert answer.route == "scan"
            assert "faiss" in answer.reason
