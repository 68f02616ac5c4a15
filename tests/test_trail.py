"""A file that is loaded under a name is stored once, however often it is sent and wherever it was cut off."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import Loaded, RecordsSkipped
from softkv.errors import BadRecord, BatchMismatch, InputError, SoftKVError, StoreDamaged
from softkv.storage.catalog import batches
from softkv.storage.catalog.tables import seal

from .commands import ran
from .scales import scaled
from .stores import sql

COUNT = 35
DAY = 24 * 3600


def rows(count: int = COUNT) -> list[str]:
    """Lines of records without keys: nothing but the name keeps them from being added twice."""
    return [f"{number},{number % 7 + 1},{number * 10},p{number}" for number in range(count)]


def table(path: Path, lines: list[str]) -> Path:
    """A table of them, whose vectors are x and y."""
    path.write_text("\n".join(["x,y,value,note", *lines]) + "\n")
    return path


def load(db: softkv.SoftKV, path: Path, **options: Any) -> Loaded:
    """Load such a table under the name "monday"."""
    return db.load(path, vector=["x", "y"], value="value", payload="note", **{"batch": "monday", **options})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of 35 records, which is stored in batches of 10."""
    scaled(monkeypatch, loaded=10)
    return table(tmp_path / "a.csv", rows())


def held(path: Path) -> list[float]:
    """The values in a store that is sound."""
    with softkv.open(path, "r") as db:
        assert db.check().ok
        return [float(item.value) for item in db.select()]


def cut_off(path: Path, file: Path, line: int) -> None:
    """Load a table whose record of this number, from 0, cannot be read: the batches before it are stored."""
    lines = file.read_text().splitlines()
    broken = file.with_name("broken.csv")
    broken.write_text("\n".join([*lines[: line + 1], "oops", *lines[line + 2 :]]))
    with softkv.open(path) as db, pytest.raises(BadRecord, match=r"go on with the same batch\.\)$"):
        load(db, broken)


def test_a_file_that_is_sent_again_is_stored_once(tmp_path: Path, file: Path) -> None:
    """The result is that of the first time, and nothing is written, not even a commit."""
    with softkv.open(tmp_path / "s") as db:
        assert load(db, file) == Loaded(COUNT)
        before = db._store.commit
        assert load(db, file) == Loaded(COUNT)
        assert (len(db), db._store.commit) == (COUNT, before)
        assert load(db, file, batch="tuesday") == Loaded(COUNT)
    assert held(tmp_path / "s") == [number * 10.0 for number in range(COUNT)] * 2


@pytest.mark.parametrize("size", [1, 7, 10, 20, 100])
@pytest.mark.parametrize("line", [10, 25, 34])
def test_what_was_cut_off_goes_on_where_it_was(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, line: int, size: int
) -> None:
    """Batches may have any size; what is in is not added again, and the result is that of the whole file."""
    cut_off(tmp_path / "s", file, line)
    assert len(held(tmp_path / "s")) == line // 10 * 10
    scaled(monkeypatch, loaded=size)
    seen: list[int] = []
    with softkv.open(tmp_path / "s") as db:
        assert load(db, file, progress=lambda done, _of: seen.append(done)) == Loaded(COUNT)
        assert (seen[-1], sorted(seen)) == (COUNT, seen)
        assert load(db, file) == Loaded(COUNT)
    assert held(tmp_path / "s") == [number * 10.0 for number in range(COUNT)]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("part", [1, 2, 4])
def test_a_kill_between_any_two_batches_costs_nothing(tmp_path: Path, file: Path, part: int, moment: str) -> None:
    """It comes before the first, between two, or before the end is recorded; the same command adds the rest."""
    arguments = ["add", "-i", str(file), "--vector", "x,y", "--value", "value", "--batch", "monday"]
    arguments += ["--db", str(tmp_path / "s"), "--compatibility", "cosine"]  # chosen, so that nothing is said of it
    killed = (
        "import os, signal, softkv.database.loading as loading; loading.BATCH = 10\n"
        "written, count = loading._added, 0\n"
        "def then_die(*given):\n"
        "    global count\n"
        "    count += 1\n"
        f"    if count == {part} and {moment == 'before'}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    found = written(*given)\n"
        f"    if count == {part}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return found\n"
        "loading._added = then_die\nfrom softkv_cli.main import main; main()"
    )
    assert subprocess.run([sys.executable, "-c", killed, *arguments]).returncode == -signal.SIGKILL
    assert len(held(tmp_path / "s")) == min(COUNT, 10 * (part - (moment == "before")))
    for _ in range(2):
        again = subprocess.run(
            [sys.executable, "-c", "from softkv_cli.main import main; main()", *arguments],
            capture_output=True,
            text=True,
        )
        assert (again.returncode, again.stderr) == (0, "added 35\n")
        assert held(tmp_path / "s") == [number * 10.0 for number in range(COUNT)]


OTHERS: dict[str, Callable[[list[str]], list[str]]] = {
    "another value in the first record": lambda lines: ["0,1,1,p0", *lines[1:]],
    "another vector in the last": lambda lines: [*lines[:-1], lines[-1].replace("34,", "35,", 1)],
    "another payload": lambda lines: [*lines[:12], lines[12].replace("p12", "q12"), *lines[13:]],
    "two lines exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
    "shorter": lambda lines: lines[:-1],
    "as short as what one batch holds": lambda lines: lines[:10],
    "longer": lambda lines: [*lines, "1,2,3,p"],
    "longer, by more than a batch": lambda lines: lines + lines,
    "of no records": lambda _lines: [],
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_file_under_the_same_name_is_refused(tmp_path: Path, file: Path, other: str) -> None:
    """It is before anything is written, wherever it differs."""
    with softkv.open(tmp_path / "s") as db:
        load(db, file)
        before = db._store.commit
        with pytest.raises(
            BatchMismatch, match=r"batch 'monday' was written before, at commit \d+, with other content"
        ):
            load(db, table(tmp_path / "b.csv", OTHERS[other](rows())))
        with pytest.raises(BatchMismatch):
            load(db, file, on_conflict="ignore")
        with pytest.raises(BatchMismatch):
            load(db, file, skip=1)
        assert (len(db), db._store.commit) == (COUNT, before)
    said = ran("add", "-i", tmp_path / "b.csv", "--vector", "x,y", "--batch", "monday", "--db", tmp_path / "s")
    assert (said.code, len(held(tmp_path / "s"))) == (1, COUNT)
    assert "with other content. Nothing was written now" in said.err
    assert "records are stored" not in said.err


@pytest.mark.parametrize("other", ["another value in the first record", "another payload", "two lines exchanged"])
def test_what_was_cut_off_does_not_go_on_with_another_file(tmp_path: Path, file: Path, other: str) -> None:
    """All records that are in are compared; so a file that ends before them is another, too."""
    cut_off(tmp_path / "s", file, 25)
    with softkv.open(tmp_path / "s") as db:
        for lines in (OTHERS[other](rows()), rows(19), []):
            with pytest.raises(BatchMismatch):
                load(db, table(tmp_path / "b.csv", lines))
        assert len(db) == 20
        assert load(db, file) == Loaded(COUNT)


def test_a_name_is_of_a_file_or_of_a_call(tmp_path: Path, file: Path) -> None:
    """It is of whichever came first."""
    with softkv.open(tmp_path / "s") as db:
        db.add(values=[1.0], vectors=[[1.0, 0.0]], batch="added")
        db.delete([], batch="deleted")
        load(db, file)
        for name in ("added", "deleted"):
            with pytest.raises(BatchMismatch):
                load(db, file, batch=name)
        with pytest.raises(BatchMismatch):
            db.add(values=[1.0], vectors=[[1.0, 0.0]], batch="monday")
        with pytest.raises(BatchMismatch):
            db.delete([], batch="monday")
        with pytest.raises(InputError, match="expected batch as 1 to 255 bytes"):
            load(db, file, batch="")
        assert len(db) == COUNT + 1
        assert db.check().ok


def test_records_are_compared_not_the_bytes_of_the_file(tmp_path: Path, file: Path) -> None:
    """JSON lines of the same records, and other names of columns that are not carried along."""
    other = tmp_path / "b.jsonl"
    records = [
        {"embedding": [number, number % 7 + 1], "y": number * 10.0, "payload": {"note": f"p{number}"}}
        for number in range(COUNT)
    ]
    other.write_text("".join(json.dumps(one) + "\n" for one in records))
    with softkv.open(tmp_path / "s") as db:
        load(db, file)
        assert db.load(other, batch="monday") == Loaded(COUNT)
        assert len(db) == COUNT


@pytest.mark.parametrize("on_conflict", ["replace", "ignore", "error"])
def test_counts_are_those_of_the_first_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_conflict: str) -> None:
    """New, replaced, ignored and skipped records are counted, also where a run was cut off between them."""
    scaled(monkeypatch, loaded=2)
    lines = ["a,1", "b,2", "a,3", "c,many", "c,4", "b,5", "d,6", "d,7", "a,8", "b,8"]
    paths = tmp_path / "whole.csv", tmp_path / "cut.csv"
    for path, some in zip(paths, (lines, [*lines[:5], "e", *lines[6:]]), strict=True):
        path.write_text("\n".join(["key,value", *some]))
    options: dict[str, Any] = {"kind": "number", "on_conflict": on_conflict}
    with softkv.open(tmp_path / "s") as db:
        with pytest.warns(RecordsSkipped):
            whole = db.load(paths[0], skip_bad=True, batch="x", **options)
        expected = dict(db)
        with pytest.warns(RecordsSkipped):
            assert db.load(paths[0], skip_bad=True, batch="x", **options) == whole
        assert dict(db) == expected
    passed: list[BadRecord] = []

    def stop(error: BadRecord) -> None:
        if "cut.csv:7" in str(error):
            raise InputError("enough")
        passed.append(error)

    with softkv.open(tmp_path / "t") as db:
        with pytest.raises(InputError, match="enough"):
            db.load(paths[1], skip_bad=stop, batch="x", **options)
        assert 0 < len(db) < len(expected)
        assert db.load(paths[0], skip_bad=passed.append, batch="x", **options) == whole
        assert dict(db) == expected
        assert db.check().ok


def test_texts_that_are_in_are_not_embedded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is asked for the records that follow alone."""
    scaled(monkeypatch, loaded=10)
    asked: list[str] = []

    def embed(texts: list[str]) -> Any:
        asked.extend(texts)
        return np.array([[len(text), 1.0] for text in texts])

    (tmp_path / "a.csv").write_text("\n".join(["key,value", *(f"item {one},{one}" for one in range(25)), "x,oops"]))
    with softkv.open(tmp_path / "s", embedder=embed) as db:
        with pytest.raises(BadRecord):
            db.load(tmp_path / "a.csv", kind="number", batch="x")
        (tmp_path / "a.csv").write_text("\n".join(["key,value", *(f"item {one},{one}" for one in range(25))]))
        asked.clear()
        assert db.load(tmp_path / "a.csv", kind="number", batch="x") == Loaded(25)
        assert db.load(tmp_path / "a.csv", batch="x") == Loaded(25)
    assert asked == [f"item {one}" for one in range(20, 25)]


def test_a_name_is_kept_for_seven_days_after_its_last_batch(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is kept whole until seven days after its last batch."""
    clock = [0]
    monkeypatch.setattr(batches, "_now", lambda: 1_700_000_000 + clock[0] * DAY)
    cut_off(tmp_path / "s", file, 25)
    with softkv.open(tmp_path / "s") as db:
        clock[0] = 6
        assert load(db, file) == Loaded(COUNT)
        clock[0] = 12
        db.add(values=[1.0], vectors=[[1.0, 0.0]])
        assert load(db, file) == Loaded(COUNT)
        assert len(db) == COUNT + 1
        clock[0] = 20
        assert load(db, file) == Loaded(COUNT)
        assert len(db) == 2 * COUNT + 1
        assert db.check().ok


def test_a_file_of_no_records_has_a_name_as_well(tmp_path: Path, file: Path) -> None:
    """Nothing else is loaded under it."""
    with softkv.open(tmp_path / "s") as db:
        assert load(db, table(tmp_path / "b.csv", [])) == load(db, table(tmp_path / "b.csv", [])) == Loaded(0)
        with pytest.raises(BatchMismatch):
            load(db, file)
        assert len(db) == 0
        assert db.check().ok


def test_two_threads_do_not_load_a_file_twice(tmp_path: Path, file: Path) -> None:
    """One of them stores it; the other is answered, or refused."""
    with softkv.open(tmp_path / "s") as db:
        together, found = threading.Barrier(2), list[object]()

        def send() -> None:
            together.wait()
            try:
                found.append(load(db, file))
            except SoftKVError as error:
                found.append(type(error))

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(map(str, found)) <= {str(Loaded(COUNT)), str(BatchMismatch)}
        load(db, file)
    assert held(tmp_path / "s") == [number * 10.0 for number in range(COUNT)]


@pytest.mark.parametrize("result", ["[]", "[0,-5,0,0,0,0]", "[1,2]", '["a"]', "[0,1000,0,0,0,0]"])
def test_a_damaged_record_is_never_believed(tmp_path: Path, file: Path, result: str) -> None:
    """A damaged record is never believed, and ends in nothing but an error of ours."""
    cut_off(tmp_path / "s", file, 25)
    (kept,) = sql(tmp_path / "s", 'SELECT id, digest, result, "commit", time FROM batches')
    content = (kept[0], kept[1], result, kept[3], kept[4])
    sql(tmp_path / "s", "UPDATE batches SET result = ?, seal = ?", result, seal(*content))
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises((BatchMismatch, StoreDamaged)):
            load(db, file)
        assert len(db) == 20
