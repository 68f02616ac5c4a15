"""What a store does is logged for those who listen, and said to nobody else."""

import inspect
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.asking import asker
from softkv.database import LearnedNotCarried
from softkv.doors.cluster.handle import create

from .databases import count_as_large
from .scales import scaled

KEYS = np.random.default_rng(0).standard_normal((2000, 4)).astype(np.float32)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was logged so far, from the level of INFO on, and by whom."""
    return [(one.name, one.getMessage()) for one in caplog.records if one.levelno >= logging.INFO]


def test_index_decisions_and_large_scans_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it was built, that a scan was large and why, that it cannot be used, that it was dropped."""
    count_as_large(monkeypatch)
    caplog.set_level(logging.DEBUG, "softkv")
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=KEYS, values=KEYS[:, 0].astype(float))
        db.build_index(lists=20)
        ((_, built),) = [one for one in told(caplog) if one[0] == "softkv.database.indexing"]
        assert built.startswith("built an index of 20 lists over 2000 items in ")
        caplog.clear()
        db.lookup(KEYS[:3], tolerance=0)
        assert not [one for one in told(caplog) if "scanned" in one[1]]
        assert asker.LARGE == 2**26
        scaled(monkeypatch, large=KEYS.size - 1)
        db.lookup(KEYS[:3], tolerance=0)
        scans = [one for one in told(caplog) if "scanned" in one[1]]
        assert scans == [("softkv.asking.asker", "scanned 8000 numbers for 3 queries: tolerance 0 asks for all items")]
        caplog.clear()
        db.self_attention(show=1)
        scans = [one for one in told(caplog) if "scanned" in one[1]]
        assert scans == [("softkv.asking.asker", "scanned 8000 numbers for 2000 queries: every item asks all items")]
    (file,) = (tmp_path / "s" / "index").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    caplog.clear()
    with softkv.open(tmp_path / "s") as db:
        assert db.lookup(KEYS[0]).reason.startswith("the index cannot be used")
        warned = [one for one in caplog.records if one.levelno == logging.WARNING]
        assert [one.name for one in warned] == ["softkv.asking.indexed"]
        assert "cannot be used" in warned[0].getMessage()
        db.drop_index()
    assert ("softkv.database.upkeep", "dropped the index") in told(caplog)


def test_an_index_that_proposes_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its kind, of how many rows, and how long it took."""
    caplog.set_level(logging.DEBUG, "softkv")
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=KEYS, values=KEYS[:, 0].astype(float))
        db.build_index("hnsw")
    ((_, built),) = [one for one in told(caplog) if one[0] == "softkv.database.proposing"]
    assert built.startswith("built an index of kind 'hnsw' over 2000 rows in ")


def test_a_store_logs_its_life(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Opening, commits, compaction, and that it had not been closed."""
    caplog.set_level(logging.DEBUG, "softkv")
    script = f"""
import os, softkv
db = softkv.open({str(tmp_path / "s")!r})
db.add(["a", "b", "c"], [1.0, 2.0, 3.0], vectors=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    with softkv.open(tmp_path / "s", "w") as db:
        commit = db.info().commit
        db.delete("b")
        db.compact()
    messages = [one.getMessage() for one in caplog.records if one.name.startswith("softkv.storage")]
    assert messages[0].startswith(f"{tmp_path / 's'} was not closed")
    assert messages[1] == f"opened {tmp_path / 's'} to write, at commit {commit}"
    assert messages[2] == f"{tmp_path / 's'} is at commit {commit + 1}"
    assert f"rewrote {tmp_path / 's'}: 2 rows are left of 3" in messages


def test_nothing_is_said_unasked(tmp_path: Path) -> None:
    """A program that never set logging up sees nothing, warnings included."""
    script = f"""
import softkv
with softkv.open({str(tmp_path / "s")!r}) as db:
    db.add(vectors=[[1.0, 2.0]], values=[1.0])
from softkv.logs import log_of
log_of("softkv.asking").warning("recovered")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("door", ["store", "snapshot", "cluster"])
def test_a_hint_points_to_the_line_that_called_the_library(tmp_path: Path, door: str) -> None:
    """Exports warn at several depths, which differ by the handle."""
    if door == "cluster":
        create(tmp_path / "s", 2, value="number", compatibility="gaussian")
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        db.add(vectors=KEYS[:300], values=KEYS[:300, 0] * 3.0)
        db.fit()
    with softkv.open(tmp_path / "s") as db, db.snapshot() as then:
        exporting = then if door == "snapshot" else db
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            exporting.export(tmp_path / "a.csv")
            line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert [(one.filename, one.lineno, one.category) for one in told] == [(__file__, line, LearnedNotCarried)]


def test_hints_of_files_and_repairs_point_there_too(tmp_path: Path) -> None:
    """They come from readers and callbacks deep in the library."""
    (tmp_path / "a.csv").write_text("key,value\na,1\nb,2\nc,N/A\nd,4\n")
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        db.add(vectors=KEYS[:300], values=KEYS[:300, 0] * 3.0)
        db.fit()
    (index,) = (tmp_path / "s" / "index").iterdir()
    index.write_bytes(index.read_bytes()[:-9])
    with warnings.catch_warnings(record=True) as told, softkv.open(tmp_path / "t") as db:
        warnings.simplefilter("always")
        db.load(tmp_path / "a.csv")
        softkv.repair(tmp_path / "s", tmp_path / "u")
    assert [(one.filename, one.category) for one in told] == [(__file__, UserWarning), (__file__, LearnedNotCarried)]
