"""`softkv index build`, `index status` and `index drop`."""

import csv
import io
import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from softkv_cli import output

import softkv

from .commands import Ran, Stream, ran

QUICK = ("--lists", 8, "--temperatures", 0.5, 1.0)
NONE = "no index: lookups scan"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hundred vectors with numbers as values, to be copied before they are changed."""
    path = tmp_path_factory.mktemp("filled") / "s"
    rng = np.random.default_rng(0)
    with softkv.open(path) as db:
        db.add(vectors=rng.standard_normal((400, 4)), values=rng.standard_normal(400))
    return path


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(filled, tmp_path / "s"))


def build(store: Path, *options: object) -> Ran:
    """Build an index quickly."""
    return ran("index", "build", "--db", store, *QUICK, *options)


def status(store: Path) -> Any:
    """What the command says of the index, as JSON."""
    return json.loads(ran("index", "status", "--db", store).out)


def whole(store: Path) -> bool:
    """Whether the store is as good as ever: sound, complete and open to writers."""
    with softkv.open(store) as db:
        return len(db) == 400 and db.lookup(np.ones(4)).scored == 400 and db.check().ok


def test_an_index_is_built_looked_at_and_dropped(store: Path) -> None:
    """Each tells in a line what it did, on stderr; the status is data."""
    assert status(store)["says"] == NONE
    done = build(store)
    assert (done.code, done.out) == (0, "")
    first, *stages, last = done.err.splitlines()
    assert first.startswith("this takes about ")
    assert first.endswith(" on the disk meanwhile and 1 MB in the end")
    assert [stage for stage in stages if stage != "noting signs of rows"] == [
        "finding centres",
        "assigning rows",
        "laying rows in order",
        "measuring lists",
        "rehearsing",
    ]
    assert last.startswith("built in ")
    assert last.endswith("s: 8 lists over 400 items, not needed yet: so few are scanned in a moment")
    assert build(store, "--no-progress").err.startswith("built in ")
    again = ran("index", "build", "--db", store, *QUICK[2:]).err.splitlines()
    assert again[1:] == ["nothing has changed since the index was built", f"left as it is{last[last.index(':') :]}"]
    with softkv.open(store, "r") as db:
        expected = db.info()
    assert status(store) == {
        "index": expected.to_dict()["index"],
        "says": str(expected.index),
        "backend": expected.backend,
    }
    assert ran("index", "drop", "--db", store) == (0, "", "dropped: lookups scan again\n")
    assert ran("index", "drop", "--db", store) == (0, "", "there was no index to drop\n")
    assert (status(store)["index"], status(store)["says"]) == (None, NONE)
    assert whole(store)


def test_the_status_has_every_form(store: Path) -> None:
    """Lines on a terminal, with how it was built; a line alone; CSV."""
    shown = ran("index", "status", "--db", store, terminal=True)
    assert [line.split("  ")[0] for line in shown.out.splitlines()] == ["index", "backend"]
    assert NONE in shown.out
    build(store)
    lines = ran("index", "status", "--db", store, terminal=True).out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["index", "calibrated", "built in", "backend"]
    assert lines[1].endswith("on 100 items, for T from 0.5 to 1")
    assert ran("index", "status", "--db", store, "--plain").out.startswith("8 lists over 400 items")
    (row,) = csv.DictReader(io.StringIO(ran("index", "status", "--db", store, "--csv").out))
    assert json.loads(row["index"])["lists"] == 8


def test_the_options_of_a_build_are_those_of_the_library(store: Path, tmp_path: Path) -> None:
    """They are lists, temperatures, queries and backend."""
    queries = np.random.default_rng(1).standard_normal((120, 4)).astype(np.float32)
    np.save(tmp_path / "queries.npy", queries)
    done = build(store, "--queries", tmp_path / "queries.npy", "--backend", "cpu")
    assert done.code == 0
    built = status(store)["index"]["built"]
    assert (built["calibrated_on"], built["queries"]) == ("queries", 120)
    assert built["temperatures"] == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--lists", "0"], 2, "--lists"),
        (["--lists", "401"], 1, "from 1 to 400 lists"),
        (["--temperatures", "1", "0.5"], 1, "the lowest and the highest temperature"),
        (["--temperatures", "0", "0.5"], 1, "the lowest and the highest temperature"),
        (["--temperatures", "1"], 2, "--temperatures"),
        (["--backend", "tpu"], 2, "--backend"),
        (["--queries", "few.npy"], 1, "at least 100 queries"),
        (["--queries", "wide.npy"], 1, "width 4"),
        (["--queries", "none.npy"], 1, "none.npy"),
        (["--queries", "text.npy"], 1, "text.npy"),
        (["--queries", "empty.npy"], 1, "width 4"),
    ],
)
def test_mistakes_are_said_in_a_line(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, said: str
) -> None:
    """A mistake is told in one line, and leaves no index."""
    monkeypatch.chdir(tmp_path)
    np.save("few.npy", np.ones((99, 4)))
    np.save("wide.npy", np.ones((120, 5)))
    np.save("empty.npy", np.ones((0, 4)))
    Path("text.npy").write_text("1,2,3,4\n")
    done = ran("index", "build", "--db", store, *options)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert status(store)["index"] is None
    assert whole(store)


def test_a_store_that_an_index_cannot_help_says_why(tmp_path: Path) -> None:
    """It has too few items, none, or a way to compare that has no lists."""
    with softkv.open(tmp_path / "few") as db:
        db.add(["a", "b"], [1.0, 2.0])
    done = ran("index", "build", "--db", tmp_path / "few")
    assert (done.code, done.out) == (1, "")
    assert "expected at least 4 items" in done.err
    softkv.open(tmp_path / "empty").close()
    assert "Add items first" in ran("index", "build", "--db", tmp_path / "empty").err
    with softkv.open(tmp_path / "laplace", compatibility="laplace") as db:
        db.add(vectors=np.eye(5), values=np.arange(5.0))
    assert "its lookups scan" in ran("index", "build", "--db", tmp_path / "laplace").err
    assert ran("index", "build", "--db", tmp_path / "none").code == 1
    assert not (tmp_path / "none").exists()


def test_without_faiss_it_says_what_to_install(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line for pip is told; the status and the end of an index need none."""
    assert build(store).code == 0
    monkeypatch.setitem(sys.modules, "faiss", None)
    done = build(store)
    assert (done.code, done.out) == (1, "")
    assert "pip install 'softkv[cpu]'" in done.err
    assert status(store)["index"]["lists"] == 8
    assert ran("index", "drop", "--db", store).code == 0
    assert whole(store)


def test_advice_is_in_the_words_of_the_command(store: Path) -> None:
    """A damaged index names the command that makes another, in the status and in `info`."""
    build(store)
    (file,) = (store / "index").iterdir()
    file.write_bytes(b"nothing")
    said = status(store)["says"]
    assert said.startswith("cannot be used, so lookups scan: ")
    assert "`softkv index build`" in said
    assert said in " ".join(ran("info", "--db", store, terminal=True).out.split())
    assert build(store).code == 0
    assert "8 lists" in status(store)["says"]


def interrupt_after(monkeypatch: pytest.MonkeyPatch, place: str, name: str) -> None:
    """Ctrl-C comes right after the next call of this function."""
    module = __import__(place, fromlist=[name])
    work = getattr(module, name)

    def then_ctrl_c(*given: Any, **options: Any) -> Any:
        found = work(*given, **options)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(module, name, then_ctrl_c)


def test_a_build_on_a_terminal_shows_where_it_is(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar with the name of the stage and how far that is, instead of a line for each."""
    monkeypatch.setenv("TERM", "xterm")
    shown = ran("index", "build", "--db", store, *QUICK, watched=True).err
    assert shown.startswith("this takes about ")
    assert re.search(r"rehearsing .* \d+/\d+", shown)
    assert "\nrehearsing\n" not in shown


@pytest.mark.parametrize(
    ("place", "name", "left", "again"),
    [
        ("softkv.index.building", "assigned", "the index is the one from before", "starts again"),
        ("softkv.database.indexing", "measured", "lookups scan", "goes on from the last finished stage"),
        ("softkv.database.indexing", "rehearsed", "lookups scan", "goes on from the last finished stage"),
    ],
)
def test_ctrl_c_loses_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str, left: str, again: str
) -> None:
    """The exit code is 130, what is left is said, and the store goes on; also while it had an index already."""
    assert build(store).code == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, place, name)
        done = build(store)
    assert (done.code, done.out) == (130, "")
    assert f"Nothing is lost, and {left}. `softkv index build --db " in done.err
    assert done.err.rstrip().endswith(f"` {again}.")
    assert (status(store)["index"] is None) == (left == "lookups scan")
    assert whole(store)
    assert build(store).code == 0


def test_stages_are_shown_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows them by their names, each from its start; nothing else does."""
    terminal = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with output.stages("reading") as moved:
        assert moved is not None
        moved("finding centres", 3, 8)
        moved("assigning rows", 10, 400)
    assert "assigning rows" in terminal.text()
    assert "10/400" in terminal.text()
    with output.stages("reading", quiet=True) as moved:
        assert moved is None
    monkeypatch.setattr(sys, "stderr", Stream())
    with output.stages("reading") as moved:
        assert moved is None
