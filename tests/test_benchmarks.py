"""The figures of the index: at a tiny size, but whole."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from softkv_cli.mixtures import mixture

import softkv

from .benchmarks import measured_coverage, rechecking
from .benchmarks.index_contests import recall
from .benchmarks.index_quality import Judged
from .benchmarks.index_report import HEAD
from .benchmarks.measured_limits import upper_limit
from .benchmarks.storage import contest
from .scales import scaled

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.ci
TINY = ("--scale", "0.003", "--rounds", "1", "--pause", "0")


def told(folder: Path, *sections: str) -> str:
    """What the command prints, with one thread, so that it does not disturb others."""
    command = [sys.executable, "-m", "tests.benchmarks.index", *sections, *TINY, "--folder", str(folder)]
    alone = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=os.environ | alone, capture_output=True, text=True, check=True)
    return run.stdout


def tables(printed: str) -> dict[str, dict[str, list[str]]]:
    """The cells of each row, by section and by what they are about."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in printed.split("### ")[1:]:
        name, (_, body) = part.split(":")[0], part.split(HEAD)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.strip().splitlines()]
        assert {len(cells) for cells in rows} == {5}
        found[name] = {cells[0]: cells[1:] for cells in rows}
    return found


@pytest.mark.slow
def test_the_table_comes_out(tmp_path: Path) -> None:
    """Every goal of the two sections is answered, the scan recalls what FAISS finds, and what is drawn falls."""
    found = tables(told(tmp_path, "scans", "mixture"))
    assert list(found) == ["Scans", "Mixture"]
    for rows in found.values():
        assert all(reached.startswith(("yes", "missed")) for _, _, goal, reached in rows.values() if goal)
    assert found["Scans"]["recall of top-32 by a scan"][0] == "1.0000"
    assert {f"T {one}: rows read" for one in ("0.05", "0.07", "0.1")} <= set(found["Mixture"])
    drawn = json.loads((tmp_path / "errors-mixture.json").read_text(encoding="utf-8"))
    first, last = drawn["lists"][0], drawn["lists"][-1]  # rows read, errors of lists alone, errors with the far field
    assert 0 < first[0] < last[0] < 1
    assert first[2] < first[1]
    assert last[2] < last[1] < first[1]
    assert drawn["top"][0][1] > drawn["top"][-1][1]


def test_within_means_all_three() -> None:
    """The error is small, no larger than what is stated, and what is stated is small; each fails on its own."""
    errors, stated = np.array([0.005, 0.02, 0.008, 0.005]), np.array([0.01, 0.03, 0.006, 0.02])
    judged = Judged(errors, stated, np.full(4, 0.1), np.zeros(4, np.bool_), np.full(4, 10), np.full(4, "measured"))
    assert judged.within == 0.25
    assert str(judged) == "25.0% (error ≤ 1%: 75.0%, error ≤ stated: 75.0%, stated ≤ 1%: 50.0%), 0 of 4 scanned"


def test_recall_counts_items_by_their_names(tmp_path: Path) -> None:
    """The first item is #1, whatever its row; of four best items, three are the ones that are wanted."""
    with softkv.open(tmp_path / "corners.softkv", compatibility="dot") as db:
        db.add(vectors=np.eye(4), values=np.arange(4.0))
        answers = db.lookup(np.eye(4), k=1, temperature=1.0)
        assert recall(answers, np.array([[0], [1], [2], [0]])) == 0.75
        assert db.check().ok


@pytest.mark.slow
def test_a_layer_is_measured_beside_torch() -> None:
    """A row for each contestant and number of queries, and torch's own attention is 1.00 of itself."""
    command = [sys.executable, "-m", "tests.benchmarks.doors", "--rows", "500", "--queries", "3", "--rounds", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.split(" | ") for line in run.stdout.splitlines() if " ms | " in line]
    assert [cells[0] for cells in rows] == ["| layer", "| sdpa", "| softmax(QKᵀ/√d)V"] * 2
    assert all((cells[2], cells[4]) == ("1.00", "1.00") for cells in rows if cells[0] == "| sdpa")


@pytest.mark.slow
def test_scans_are_measured_beside_what_does_the_same_by_hand() -> None:
    """A row with a ratio for every work of every section, each beside its goal."""
    command = [sys.executable, "-m", "tests.benchmarks.scans", "--rows", "4000", "--rounds", "1", "--pause", "0"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run.stdout.splitlines() if " ms |" in line]
    works = [
        "vectors, 1 query",
        "64-wide vectors, cosine",
        "labels, gaussian",
        "mask of a",
        "filter of",
        "show=",
        "exact",
    ]
    assert all(any(cells[0].startswith(work) for cells in rows) for work in works)
    assert all(float(cells[4]) > 0 and cells[6].startswith("≤") for cells in rows)


@pytest.mark.slow
def test_what_is_asked_first_is_measured_beside_one_pass() -> None:
    """A line for the first questions to a handle and for each command, with the ratio to what stands beside it."""
    sizes = ["--rows", "--first", "500", "--texts", "300", "--lines", "5", "--repeats", "1"]
    command = [sys.executable, "-m", "tests.benchmarks.database", *sizes]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run.stdout.splitlines() if " ms |" in line]
    found = {cells[1]: float(cells[3]) for cells in rows}
    beside = {name for name, ratio in found.items() if ratio == 1}
    assert {"one pass over the keys", "one pass over the payloads", "one call of the library, 5 queries"} <= beside
    assert {
        "first info()",
        "first where=, of which 1% match",
        "softkv --help",
        "softkv get",
        "softkv query",
    } <= found.keys()
    assert found["softkv query -, 5 lines"] > 0


def test_the_layout_of_lists_is_measured_with_and_without() -> None:
    """A line with a ratio and its goal for builds and for compactions; times of parts of lists that were divided."""
    command = [sys.executable, "-m", "tests.benchmarks.list_layout", "--items", "3000", "--width", "8", "--rounds", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.removeprefix("| ").split(" | ") for line in run.stdout.splitlines() if line.startswith("| ")]
    parts = [f"{grown} times its rows" for grown in (1, 2, 4, 8)]
    assert [cells[0] for cells in rows] == ["a list of", *parts, "work", "whole", "refined", "compacted"]
    assert all(float(cell.split()[0]) > 0 for cells in rows[1:5] for cell in cells[1:])
    assert all(float(cells[3].split()[0]) > 0 and cells[4].startswith("≤") for cells in rows[6:])


def test_builds_are_measured_beside_their_forecasts() -> None:
    """A line for each build, with its stages, and the ratio of labels to numbers, and that of lookups to scans."""
    parts = ["wide", "labels", "many", "--scale", "0.01", "--rounds", "1"]
    command = [sys.executable, "-m", "tests.benchmarks.builds", *parts]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.split(" | ") for line in run.stdout.splitlines()[3:]]
    assert [cells[0].removeprefix("| ") for cells in rows] == [
        "300,000 × 256, values 128 wide",
        "300 × 32 with numbers",
        "300 × 32 with 1,000 labels",
        "1,000 labels beside numbers",
        "1,000 × 64 with numbers",
        "1,000 × 64 with 5,000 labels",
        "5,000 labels beside numbers",
        "1,000 × 64 with 5,000 labels that follow keys",
        "a lookup at 1 × the temperature by rule",
        "a lookup at 4 × the temperature by rule",
    ]
    assert all(cells[4].startswith("finding centres ") and ", rehearsing " in cells[4] for cells in rows[:3])


def test_a_contest_of_adding_names_all_contestants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, with a ratio, or with what is to be installed; nothing is left in the folder."""
    contest(str(tmp_path), rounds=1, batch=3)
    cells = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [one[0].rpartition("beside ")[2] for one in cells] == ["pwrite + fdatasync", "LanceDB"]
    assert all("pip install lancedb" in one[1] or float(one[3]) > 0 for one in cells)
    assert not list(tmp_path.iterdir())


def test_a_check_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both tables have their lines, and the check ends with a verdict."""
    scaled(monkeypatch, cheap=0)
    rechecking.compared(tmp_path, mixture(2500, 8, rechecking.VALUE_WIDTH, 10, 0), 2000)
    printed = capsys.readouterr().out
    assert "| add 2,000 | 7 |" in printed
    assert "| add one | " in printed
    assert "within what it states" in printed


def test_coverage_of_measured_answers_is_counted(tmp_path: Path) -> None:
    """A row for each line and each kind of needles, of which none is missed where all is read; what is kept is used."""
    size = ["--builds", "2", "--items", "8000", "--queries", "15", "--lines", "labels 77", "needles"]
    command = [sys.executable, "-m", "tests.benchmarks.measured_coverage", *size, "--folder", str(tmp_path)]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert [run.stderr.count("labels 77") for run in runs] == [2, 0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in runs[0].stdout.splitlines() if "|" in line]
    line, needles = rows[2], rows[5:]
    assert (line[0], line[-1]) == ("77 labels", "held")
    assert int(line[1].split(",")[0]) > 60
    assert len(needles) == 3
    for cells in needles:  # where each list has a row far out of it, all are read
        found, of = cells[3].split(" of ")
        assert found == of
        assert int(of) > 80 or cells[2] == "0, 80"


def seen(confidence: float, held: int, **other: Any) -> dict[str, Any]:
    """A hundred measured answers, of which so many values are within what they state."""
    counts = {"line": "one", "confidence": confidence, "ways": {"measured": 100}, "measured": 100, "held": held}
    return counts | {"held_log_mass": 100, "rows": [0.1] * 100, "stated": [1.0] * 100, "ratios": [2.0] * 100} | other


@pytest.mark.parametrize(
    ("told", "other"),
    [
        ("values at 95% held in less than", {"held": 88}),
        ("log_mass at 95% held in less than", {"held_log_mass": 88}),
        ("stated 5 times too large", {"ratios": [5.0] * 100}),
    ],
)
def test_a_line_fails_that_does_not_hold(told: str, other: dict[str, Any]) -> None:
    """A few percent too few is enough in 25 builds; one in which as many hold as should does not fail."""
    found = [seen(one, round(100 * one)) for one in measured_coverage.CONFIDENCES]
    assert measured_coverage.judged("one", found * 25)[1] == ""
    found[2] |= other
    assert told in measured_coverage.judged("one", found * 25)[1]
    assert not measured_coverage.table(found * 25)


def test_the_limit_of_a_share_takes_builds_for_the_trials() -> None:
    """One in a thousand runs is beyond it where builds differ; and it is never lower than of independent answers."""
    rng = np.random.default_rng(0)
    below = 0
    for _ in range(4000):
        held = rng.binomial(200, np.clip(0.9 + 0.05 * rng.standard_normal(25), 0, 1))
        below += upper_limit(held.tolist(), [200] * 25) < 0.9
    assert below <= 16
    assert upper_limit([180] * 25, [200] * 25) == pytest.approx(0.912, abs=0.002)
    assert upper_limit([160, 200] * 12, [200] * 24) > 0.95
    assert upper_limit([10, 0], [10, 0]) == 1.0


@pytest.mark.slow
def test_stores_too_large_to_be_made_in_memory_begin_with_the_same_items(tmp_path: Path) -> None:
    """A line for each store and kind of queries; stores made by one run are asked by another, beside exact answers."""
    command = [sys.executable, "-m", "tests.benchmarks.index_streamed", "1500", "3000", "--folder", str(tmp_path)]
    subprocess.run([*command, "--only-build"], cwd=ROOT, capture_output=True, text=True, check=True)
    run = subprocess.run([*command, "--rounds", "1"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "index of" not in run.stdout
    rows = [line.split(" | ") for line in run.stdout.splitlines() if line.startswith(("| 1,500", "| 3,000"))]
    assert [cells[3] for cells in rows] == ["100.0%, 100 of 100 scanned"] * 4
    with softkv.open(tmp_path / "1500.softkv", "r") as small, softkv.open(tmp_path / "3000.softkv", "r") as large:
        for one in ("#1", "#1500"):
            assert np.array_equal(small[one], large[one])
