"""`softkv bench`: small, but whole."""

import csv
import io
import json
import math
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from softkv_cli import contest
from softkv_cli.contest import BEST, ESTIMATE, FLAT, PLAIN, SCAN
from softkv_cli.mixtures import mixture

import softkv

from .commands import ran
from .databases import count_as_large

TINY = ("--items", 2000, "--width", 8, "--value-width", 4, "--repeats", 1, "--pause", 0)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made, to see whether they go."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def ways_of(found: dict[str, Any]) -> dict[str, Any]:
    """The contestants by their names."""
    return {one["way"]: one for one in found["ways"]}


def test_a_tiny_bench_runs_through(tmp_path: Path, scratch: Path) -> None:
    """Its figures are finite and above 0, errors are within what is stated, and the store that is kept opens."""
    done = ran("bench", *TINY, "--queries", 8, "--keep", tmp_path / "kept", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["items"], found["width"], found["queries"], found["seed"]) == (2000, 8, 8, 0)
    assert found["index"].startswith("83 lists over 2,000 items")
    ways = ways_of(found)
    assert set(ways) == {SCAN, ESTIMATE, BEST, FLAT, PLAIN}
    for one in ways.values():
        figures = [value for name, value in one.items() if name.startswith(("one_", "batch_"))]
        assert len(figures) == 6
        assert all(math.isfinite(value) and value > 0 for value in figures)
        assert one["rows_read"] == 2000
    for name, yardstick in (("faiss", FLAT), ("numpy", PLAIN)):
        assert ways[SCAN][f"one_to_{name}"] == pytest.approx(ways[SCAN]["one_ms"] / ways[yardstick]["one_ms"])
        assert ways[yardstick][f"batch_to_{name}"] == 1
    for name in (SCAN, ESTIMATE):  # so few items are scanned in both
        assert 0 < ways[name]["error"] <= ways[name]["largest_error"] <= ways[name]["largest_stated"] < 0.01
        assert ways[name]["kept"] == 8
    assert ways[ESTIMATE]["estimated"] == 0
    assert 0 < ways[PLAIN]["largest_error"] < 1e-4
    assert ways[BEST]["largest_error"] > ways[SCAN]["largest_error"]
    assert list(scratch.iterdir()) == []
    with softkv.open(tmp_path / "kept", "r") as db:
        assert (len(db), db.info().temperature) == (2000, found["temperature"])
        made = mixture(2000, 8, 4, 8, seed=0)
        assert np.array_equal(db.item("#1").vector, made.keys[0])
        assert np.array_equal(db["#2000"], made.values[-1])
        assert db.check().ok
    again = ran("bench", *TINY, "--keep", tmp_path / "kept")
    assert (again.code, again.out) == (1, "")
    assert "Name a new place with --keep" in again.err


def test_what_is_estimated_is_compared_with_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lookups use the index, fewer rows are read, and the errors are real and mostly within what is stated."""
    count_as_large(monkeypatch)
    found = json.loads(ran("bench", *TINY, "--queries", 100, "-T", 0.3, "--json").out)
    estimate = ways_of(found)[ESTIMATE]
    assert found["temperature"] == 0.3
    assert estimate["estimated"] > 90
    assert estimate["rows_read"] < 1000
    assert estimate["kept"] >= 85
    assert 1e-5 < estimate["error"] < estimate["largest_stated"] <= 0.01


def test_without_faiss_its_rows_and_the_index_are_left_out(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, with the line for pip, and measures the rest; on a terminal as a table."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    done = ran("bench", *TINY, "--queries", 3, terminal=True, columns=160)
    assert done.code == 0
    assert "pip install 'softkv[cpu]'" in done.err
    assert "left out" in done.err
    for word in ("2,000 items, keys 8 wide", "index: none", "1 query", "÷ NumPy", SCAN, BEST, PLAIN, "kept by 3 of 3"):
        assert word in done.out
    for word in (FLAT, ESTIMATE):
        assert word not in done.out
    assert list(scratch.iterdir()) == []
    rows = list(csv.DictReader(io.StringIO(ran("bench", *TINY, "--queries", 3, "--csv").out)))
    assert [row["way"] for row in rows] == [SCAN, BEST, PLAIN]
    assert {row["one_to_faiss"] for row in rows} == {""}


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 130, and the store is gone, unless it was to be kept: then it is said where it is."""
    seen: list[list[Path]] = []

    def ctrl_c(*given: Any, **options: Any) -> None:
        seen.append(list(scratch.iterdir()))
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(contest, "contest", ctrl_c)
    done = ran("bench", *TINY)
    assert (done.code, done.out) == (130, "")
    assert len(seen[0]) == 1
    assert list(scratch.iterdir()) == []
    done = ran("bench", *TINY, "--keep", tmp_path / "kept")
    assert done.code == 130
    assert f"what was made until then is at {tmp_path / 'kept'}" in done.err
    with softkv.open(tmp_path / "kept", "r") as db:
        assert len(db) == 2000
        assert db.check().ok


def test_faiss_has_its_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked with as many as NumPy has, and afterwards the process has what it had before."""
    import faiss

    before = faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold
    made, seen = mixture(200, 8, 2, 3, seed=0), []
    with contest._flat(made, 1) as search:
        seen.append(faiss.omp_get_max_threads())
        scores, rows = search(made.queries[0])
    assert seen == [1]
    assert (faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold) == before
    best = (made.keys @ made.queries[0]).argsort()[::-1][: contest.TOP]
    assert rows[0].tolist() == best.tolist()
    assert scores[0] == pytest.approx((made.keys @ made.queries[0])[best], abs=1e-6)
