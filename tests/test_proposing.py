"""Other indexes of FAISS: they propose rows, and the arena says how well these fit."""

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
        assert db.lookup(np.ones(WIDTH), k=3).error_kind == "exact"


def test_a_query_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Proposals refuse it like a scan."""
    with filled(tmp_path / "s", compatibility="dot") as db:
        db.build_index("hnsw")
        with pytest.raises(errors.InputError):
            db.lookup(np.full(WIDTH, np.nan), k=3)
