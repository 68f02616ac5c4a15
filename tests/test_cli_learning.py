"""`softkv tune`, `softkv fit`, `softkv compare --eval`, and `--no-projection`."""

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

import softkv
from softkv.database import training
from softkv.database.evaluating import evaluate

from .commands import ran

COLORS = ["red", "green", "blue"]
WAYS = ["exact", "hard", "mean of 3", "top 3", "full soft"]


def points(count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Vectors around three centres, and their names."""
    rng = np.random.default_rng([3, seed])
    codes = rng.integers(0, 3, count)
    return (3 * np.eye(4)[codes] + 1.5 * rng.standard_normal((count, 4))).astype(np.float32), [
        COLORS[code] for code in codes
    ]


def written(path: Path, vectors: np.ndarray, values: list[Any]) -> Path:
    """A CSV of vectors in columns a to d, and values."""
    lines = [",".join([*map(str, vector), str(value)]) for vector, value in zip(vectors.tolist(), values, strict=True)]
    path.write_text("\n".join(["a,b,c,d,color", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty vectors with labels, to be copied before they are changed."""
    path = tmp_path_factory.mktemp("filled") / "s"
    vectors, names = points(60, 0)
    with softkv.open(path, value="label", compatibility="gaussian") as db:
        db.add(vectors=vectors, values=names)
    return path


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(filled, tmp_path / "s"))


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """Thirty queries with their answers."""
    return written(tmp_path / "asked.csv", *points(30, 1))


FILE = ("--vector", "a,b,c,d", "--value", "color")


def whole(store: Path) -> bool:
    """Whether the store is sound, and complete."""
    with softkv.open(store) as db:
        return len(db) == 60 and db.check().ok


def test_tune_remembers_what_the_library_finds(store: Path, tmp_path: Path) -> None:
    """It says so in every form; what it remembers is said on stderr."""
    with softkv.open(shutil.copytree(store, tmp_path / "other")) as db:
        expected = db.tune(hold_out=0)
    done = ran("tune", "--hold-out", 0, "--db", store)
    found = json.loads(done.out)
    assert (done.code, found["temperature"]) == (0, expected.temperature)
    assert (found["loss"], found["measure"], found["asked"]) == (expected.loss, "log-loss", 60)
    assert done.err.startswith("remembered: temperature ")
    with softkv.open(store, "r") as db:
        assert db.info().temperature == expected.temperature
    assert float(ran("tune", "--hold-out", 0, "--db", store, "--plain").out) == expected.temperature
    shown = ran("tune", "--db", store, terminal=True).out
    assert "log-loss" in shown.splitlines()[0]
    assert "(best)" in shown
    assert whole(store)


def test_tune_tries_what_it_is_told(store: Path) -> None:
    """Ways to compare, and numbers of best items, each with its curve."""
    done = ran(
        "tune", "--db", store, "-k", 3, "-k", 5, "--compatibility", "dot", "--compatibility", "gaussian", "--csv"
    )
    rows = list(csv.DictReader(io.StringIO(done.out)))
    tried = {(row["compatibility"], row["k"]) for row in rows}
    assert tried == {(way, k) for way in ("dot", "gaussian") for k in ("", "3", "5")}
    with softkv.open(store, "r") as db:
        assert done.err.endswith(f", {db.info().compatibility}\n")
    assert whole(store)


def test_fit_learns_and_forgets(store: Path) -> None:
    """Lookups compare by what was learned until it is dropped; --no-projection never does."""
    ask = ("query", "--vector", "1,0,0,0", "--db", store)
    before = json.loads(ran(*ask).out)
    done = ran("fit", "--rank", 2, "--hold-out", 0, "--db", store)
    found = json.loads(done.out)
    assert (done.code, found["items"], found["rank"], found["measure"]) == (0, 60, 2, "log-loss")
    learned = json.loads(ran(*ask).out)
    assert learned["log_mass"] != before["log_mass"]
    assert json.loads(ran(*ask, "--no-projection").out) == before
    plain = ran("compare", "--vector", "1,0,0,0", "--no-projection", "--db", store)
    assert json.loads(plain.out)["soft"]["log_mass"] == pytest.approx(before["log_mass"], rel=1e-6)
    assert json.loads(ran("info", "--db", store).out)["projection"] == "rank 2, from 60 items"
    assert ran("fit", "--drop", "--db", store) == (0, "", "dropped: keys are compared as they are given\n")
    assert ran("fit", "--drop", "--db", store) == (0, "", "nothing was learned, so there is nothing to drop\n")
    assert json.loads(ran("info", "--db", store).out)["projection"] is None
    assert json.loads(ran(*ask).out) == before
    assert whole(store)


def test_fit_learns_from_queries_with_their_answers(store: Path, asked: Path) -> None:
    """Their file is read like one of `add -i`; a line on a terminal tells of it."""
    done = ran("fit", "--queries", asked, *FILE, "--hold-out", 0, "--db", store, terminal=True)
    assert done.code == 0, done.err
    assert done.out.startswith("learned from 60 items")
    assert whole(store)


def test_an_interrupted_fit_changes_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends it with a line; keys are compared as before."""
    learned = training.best_fit

    def then_ctrl_c(*given: Any, **options: Any) -> Any:
        found = learned(*given, **options)
        signal.raise_signal(signal.SIGINT)
        return found

    ask = ("query", "--vector", "1,0,0,0", "--db", store)
    before = ran(*ask)
    monkeypatch.setattr(training, "best_fit", then_ctrl_c)
    done = ran("fit", "--rank", 2, "--db", store)
    assert (done.code, done.out) == (130, "")
    assert "Nothing is lost" in done.err
    assert ran(*ask) == before
    assert whole(store)


def evaluation(store: Path, asked: Path, *options: object, **how: Any) -> Any:
    """What `compare --eval` says."""
    return ran("compare", "--eval", asked, *FILE, "-k", 3, "--db", store, *options, **how)


def test_compare_measures_what_the_library_does(store: Path, asked: Path) -> None:
    """A line of JSON for each way; what was asked is said on stderr."""
    vectors, names = points(30, 1)
    with softkv.open(store, "r") as db:
        expected = evaluate(db, vectors, names, k=3)
    done = evaluation(store, asked)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, done.err) == (0, "30 queries, asked of 60 items\n")
    assert [row["way"] for row in rows] == WAYS
    for row, one in zip(rows, expected.ways, strict=True):
        assert row == {name: getattr(one, name) for name in row}
        assert {"answered", "accuracy", "log_loss"} <= set(row)
    assert whole(store)


def test_an_evaluation_has_every_form(store: Path, asked: Path) -> None:
    """It is a table, CSV, or the first measure alone."""
    table = re.sub(r"\x1b\[[\d;]*m", "", evaluation(store, asked, terminal=True).out).splitlines()
    assert table[0].split()[:4] == ["way", "temperature", "answered", "accuracy"]
    assert [line.split("  ")[0].strip() for line in table[2:]] == WAYS
    rows = list(csv.DictReader(io.StringIO(evaluation(store, asked, "--csv").out)))
    assert [row["rmse"] for row in rows] == [""] * 5
    plain = evaluation(store, asked, "--plain").out.splitlines()
    assert plain == [row["accuracy"] for row in rows]


def test_the_learned_way_is_measured_unless_it_is_left_out(store: Path, asked: Path) -> None:
    """There is one way more after `fit`."""
    ran("fit", "--rank", 2, "--db", store)
    ways = [json.loads(line)["way"] for line in evaluation(store, asked).out.splitlines()]
    assert ways == [*WAYS, "learned"]
    ways = [json.loads(line)["way"] for line in evaluation(store, asked, "--no-projection").out.splitlines()]
    assert ways == WAYS


@pytest.mark.parametrize("kind", ["csv", "npy"])
def test_queries_out_of_scope_need_no_answers(store: Path, asked: Path, tmp_path: Path, kind: str) -> None:
    """Whatever stands where answers would be is not looked at, and there may be none."""
    strangers = points(20, 2)[0] + 5
    file = tmp_path / f"strangers.{kind}"
    if kind == "npy":
        np.save(file, strangers)
    else:
        file.write_text("a,b,c,d\n" + "\n".join(",".join(map(str, one)) for one in strangers.tolist()) + "\n")
    done = evaluation(store, asked, "--out-of-scope", file)
    assert done.err == "30 queries and 20 that are out of scope, asked of 60 items\n"
    rows = {row["way"]: row for row in map(json.loads, done.out.splitlines())}
    assert rows["full soft"]["auroc"] > 0.6
    assert "auroc" not in rows["mean of 3"]


@pytest.mark.parametrize("others", ["question\ngood morning", "question,kind,place\ngood morning,?,?"])
def test_texts_are_asked_too(tmp_path: Path, others: str) -> None:
    """Their column is guessed, as in a table of two, or named; what is out of scope needs no answers."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(["a red apple", "a blue car", "a ripe pear"], ["fruit", "thing", "fruit"])
    (tmp_path / "asked.csv").write_text("question,kind\na green apple,fruit\na blue car,thing\n")
    (tmp_path / "other.csv").write_text(others)
    strange = ("--out-of-scope", tmp_path / "other.csv")
    for options in ((), strange, ("--text", "question", "--value", "kind", *strange)):
        done = ran("compare", "--eval", tmp_path / "asked.csv", "--db", tmp_path / "s", *options)
        rows = {row["way"]: row for row in map(json.loads, done.out.splitlines())}
        assert (rows["exact"]["answered"], rows["full soft"]["accuracy"]) == (0.5, 1.0)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_an_evaluation_is_drawn(store: Path, asked: Path, tmp_path: Path, suffix: str) -> None:
    """It becomes a PNG or an SVG with three panels; the figures are printed all the same."""
    ran("fit", "--rank", 2, "--db", store)
    drawn = tmp_path / f"drawn.{suffix}"
    done = evaluation(store, asked, "--plot", drawn)
    assert (done.code, len(done.out.splitlines())) == (0, 6), done.err
    assert done.err.splitlines()[-1] == f"drawn in {drawn}"
    content = drawn.read_bytes()
    if suffix == "png":
        assert content.startswith(b"\x89PNG")
    else:
        for title in (b"Reliability", b"Temperature", b"Abstention", b"learned"):
            assert title in content


def test_without_matplotlib_it_says_what_to_install(
    store: Path, asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so before anything is asked."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = evaluation(store, asked, "--plot", tmp_path / "drawn.png")
    assert (done.code, done.out) == (1, "")
    assert "pip install 'softkv[plot]'" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tune", "-k", "0"], 2, "-k"),
        (["tune", "--compatibility", "cosin"], 1, "'cosin'"),
        (["fit", "--rank", "5"], 1, "rank from 1 to 4"),
        (["fit", "--planes"], 1, "planes are for numbers"),
        (["fit", "--drop", "--rank", "2"], 2, "--drop"),
        (["fit", "--value", "color"], 2, "--queries"),
        (["fit", "--queries", "none.csv"], 1, "none.csv"),
        (["fit", "--queries", "few.csv", *FILE], 1, "at least 20 queries"),
        (["compare", "--eval", "none.csv"], 1, "none.csv"),
        (["compare", "--eval", "few.csv", "--value", "colour"], 1, "there is no column 'colour'"),
        (["compare", "--eval", "few.csv", "--vector", "a,b", "--value", "color"], 1, "width 2"),
        (["compare", "--eval", "odd.csv", *FILE], 1, "no item has any of the labels"),
        (["compare", "--eval", "empty.csv", *FILE], 1, "0 queries"),
        (["compare", "--eval", "few.csv", "a text"], 2, "--eval"),
        (["compare", "--eval", "few.csv", "--where", "{}"], 2, "--where"),
        (["compare", "--eval", "few.csv", *FILE, "--plot", "drawn.gif"], 2, ".png"),
        (["compare", "--eval", "few.csv", *FILE, "--plot", "none/drawn.png"], 2, "folder"),
        (["compare", "--vector", "1,2,3,4", "--plot", "drawn.png"], 2, "--eval"),
        (["compare", "--vector", "1,2,3,4", "--value", "color"], 2, "--eval"),
        (["compare", "--vector", "a,b"], 2, "numbers between commas"),
    ],
)
def test_mistakes_are_said_in_a_line(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    """The line is on stderr, and nothing is changed."""
    monkeypatch.chdir(tmp_path)
    vectors, names = points(5, 4)
    written(Path("few.csv"), vectors, names)
    written(Path("odd.csv"), vectors, ["pink"] * 5)
    Path("empty.csv").write_text("a,b,c,d,color\n")
    with softkv.open(store, "r") as db:
        before = db.info().commit
    done = ran(*arguments, "--db", store)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
    with softkv.open(store, "r") as db:
        assert db.info().commit == before
    assert whole(store)


def test_too_few_items_to_learn_from_are_named(tmp_path: Path) -> None:
    """A message says how many items it takes to learn, and a store that is not there is not made."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b"], [1.0, 2.0])
    for command in ("tune", "fit"):
        assert "at least 20 items" in ran(command, "--db", tmp_path / "s").err
        assert ran(command, "--db", tmp_path / "none").code == 1
    assert not (tmp_path / "none").exists()
