"""`softkv guard`, and `query --known`."""

import csv
import io
import json
from pathlib import Path

import pytest

import softkv

from .commands import ran
from .test_guarding import labels_of, spots, store_of

NEAR, FAR = "2.2,2.2", "60,60"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A tuned store of labels, without a guard."""
    store_of(tmp_path / "s", "label").close()
    return tmp_path / "s"


def written(path: Path, points: object, labels: list[str]) -> Path:
    """Points and their labels as CSV."""
    lines = [f"{x!r},{y!r},{label}" for (x, y), label in zip(points.tolist(), labels, strict=True)]
    path.write_text("\n".join(["x,y,label", *lines]) + "\n")
    return path


def test_a_guard_is_made_told_kept_and_dropped(store: Path) -> None:
    """In every form; in `info` until it is dropped."""
    done = ran("guard", "--wrong-at-most", 0.1, "--db", store)
    told = json.loads(done.out)
    assert done.code == 0, done.err
    assert (told["wrong_at_most"], told["confidence"]) == (0.1, 0.95)
    assert 0.5 < told["answered"] <= 1.0
    assert float(ran("guard", "--wrong-at-most", 0.1, "--plain", "--db", store).out) == told["threshold"]
    shown = ran("guard", "--wrong-at-most", 0.1, "--db", store, terminal=True).out
    assert "of these wrong (at most 0.1 promised" in " ".join(shown.split())
    assert json.loads(ran("info", "--db", store).out)["guard"].startswith(f"{told['answered']:.1%} of ")
    assert ran("guard", "--drop", "--db", store) == (0, "", "dropped\n")
    assert ran("guard", "--drop", "--db", store) == (0, "", "there was no guard to drop\n")
    assert json.loads(ran("info", "--db", store).out)["guard"] is None


def test_a_small_store_promises_on_average(tmp_path: Path) -> None:
    """Where it is asked to; else it is refused."""
    store_of(tmp_path / "s", "label", count=150).close()
    assert "at least 74 items" in ran("guard", "--db", tmp_path / "s").err
    done = ran("guard", "--on-average", "--db", tmp_path / "s")
    assert done.code == 0, done.err
    assert "confidence" not in json.loads(done.out)
    assert "of all, on average" in json.loads(ran("info", "--db", tmp_path / "s").out)["guard"]


def test_queries_and_strangers_are_read_from_files(store: Path, tmp_path: Path) -> None:
    """As `compare --eval` reads them."""
    queries = written(tmp_path / "asked.csv", spots(40, 200), labels_of(spots(40, 200)))
    strangers = written(tmp_path / "others.csv", spots(41, 100) + 40.0, ["?"] * 100)
    columns = ("--vector", "x,y", "--value", "label")
    done = ran(
        "guard", "--queries", queries, "--strangers", strangers, "--strangers-at-most", 0.1, "--wrong-at-most", 0.1,
        *columns, "--db", store,
    )  # fmt: skip
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["who"], told["strangers"], told["strangers_at_most"]) == ("queries", 0.0, 0.1)


def test_a_query_that_is_not_known_ends_with_three(store: Path) -> None:
    """And is answered all the same; one that is known ends with none, and without the option all do."""
    ran("guard", "--wrong-at-most", 0.1, "--db", store)
    near = ran("query", "--vector", NEAR, "--known", "--db", store)
    far = ran("query", "--vector", FAR, "--known", "--db", store)
    assert (near.code, far.code) == (0, 3)
    assert (json.loads(near.out)["known"], json.loads(far.out)["known"]) == (True, False)
    assert json.loads(near.out)["promised"]["labels_within"] == ["True-True"]
    assert ran("query", "--vector", FAR, "--db", store).code == 0
    shown = ran("query", "--vector", FAR, "--db", store, terminal=True).out
    assert "not known (closest: True-True" in shown.splitlines()[0]
    table = list(csv.DictReader(io.StringIO(ran("query", "--vector", FAR, "--csv", "--db", store).out)))
    assert {row["known"] for row in table} == {"false"}


def test_lines_of_stdin_go_on_behind_one_that_is_not_known(tmp_path: Path) -> None:
    """All are answered, and the exit code is 3; where one is refused, 1."""
    with softkv.open(tmp_path / "s", value="label") as db:
        for kind, words in (("drink", ("tea", "coffee", "water", "milk")), ("animal", ("dog", "cat", "horse", "cow"))):
            texts = [f"{word} number {number}" for word in words for number in range(40)]
            db.add(texts, [kind] * len(texts))
        db.tune()
        db.guard(wrong_at_most=0.1)
        nonsense = "asdkjhasd lkjqwe"
        assert db.lookup(nonsense).known is False
    done = ran("query", "-", "--known", "--db", tmp_path / "s", stdin=f"a dog number 7\n{nonsense}\na cup of tea 3\n")
    assert [json.loads(line)["query"] for line in done.out.splitlines()] == [
        "a dog number 7",
        nonsense,
        "a cup of tea 3",
    ]
    assert json.loads(done.out.splitlines()[1])["known"] is False
    assert done.code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["query", "--vector", NEAR, "--known"], 1, "softkv guard"),
        (["query", "--vector", NEAR, "--hard", "--known"], 1, "softkv guard"),
        (["guard", "--wrong-at-most", "2"], 1, "wrong_at_most"),
        (["guard", "--strangers-at-most", "0.1"], 1, "expected strangers"),
        (["guard", "--on-average", "--confidence", "0.9"], 2, "leave out --confidence"),
        (["guard", "--wrong-at-most", "0.001"], 1, "at least"),
    ],
)
def test_what_cannot_be_told_or_promised_is_refused(store: Path, arguments: list[str], code: int, message: str) -> None:
    """With what to do."""
    done = ran(*arguments, "--db", store)
    assert done.code == code
    assert message in done.err
