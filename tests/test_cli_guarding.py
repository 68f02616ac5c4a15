"""`softkv guard`, and `query --known`."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

import softkv

from .commands import ran
from .databases import filled
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
    """Every form tells it; `info` has it until it is dropped."""
    done = ran("guard", "--wrong-at-most", 0.1, "--db", store)
    told = json.loads(done.out)
    assert done.code == 0, done.err
    assert (told["wrong_at_most"], told["confidence"]) == (0.1, 0.95)
    assert 0.5 < told["known"] <= 1.0
    assert float(ran("guard", "--wrong-at-most", 0.1, "--plain", "--db", store).out) == told["threshold"]
    shown = ran("guard", "--wrong-at-most", 0.1, "--db", store, terminal=True).out
    assert "of the known are wrong (at most 10% promised" in " ".join(shown.split())
    assert json.loads(ran("info", "--db", store).out)["guard"].startswith(f"{told['known']:.1%} of ")
    assert ran("guard", "--drop", "--db", store) == (0, "", "dropped\n")
    assert ran("guard", "--drop", "--db", store) == (0, "", "there was no guard to drop\n")
    assert json.loads(ran("info", "--db", store).out)["guard"] is None


def test_a_small_store_promises_on_average(tmp_path: Path) -> None:
    """It does so where it is asked to; else it is refused."""
    store_of(tmp_path / "s", "label", count=150).close()
    refused = ran("guard", "--db", tmp_path / "s").err
    assert "at least 74 items" in refused
    assert "hold more out (`softkv tune --hold-out 0.5`), or ask for less; --on-average takes 19." in refused
    done = ran("guard", "--on-average", "--db", tmp_path / "s")
    assert done.code == 0, done.err
    assert "confidence" not in json.loads(done.out)
    told = json.loads(ran("info", "--db", tmp_path / "s").out)["guard"]
    assert "of all are known and wrong (at most 5% promised, on average)" in told


def test_a_refusal_names_the_options_of_the_command(tmp_path: Path) -> None:
    """It tells the least that can be kept, which is granted when asked for."""
    with filled(tmp_path / "s", "label", 600) as db:
        db.tune()
    refused = ran("guard", "--db", tmp_path / "s").err
    found = re.search(
        r"keeps --wrong-at-most=0.05 with .*kept here is (--wrong-at-most=0\.\d+)\. Ask for that", refused
    )
    assert found, refused
    assert ran("guard", found[1], "--db", tmp_path / "s").code == 0


def test_strangers_that_nothing_is_promised_of_are_said_to_be_measured(store: Path, tmp_path: Path) -> None:
    """The option that would promise is named."""
    strangers = written(tmp_path / "others.csv", spots(41, 100) + 40.0, ["?"] * 100)
    given = ("guard", "--wrong-at-most", 0.1, "--strangers", strangers, "--vector", "x,y", "--db", store)
    shown = " ".join(ran(*given, terminal=True).out.split())
    assert "0.0% of strangers are known (measured, not promised: --strangers-at-most)" in shown
    assert "measured" not in ran(*given, "--strangers-at-most", 0.1, terminal=True).out


def test_queries_that_are_items_are_left_out_and_counted(store: Path, tmp_path: Path) -> None:
    """JSON and words count them."""
    points = np.concatenate([spots(40, 200), spots(0, 600)[:3]])
    queries = written(tmp_path / "asked.csv", points, labels_of(points))
    given = (
        "guard",
        "--wrong-at-most",
        0.1,
        "--queries",
        queries,
        "--vector",
        "x,y",
        "--value",
        "label",
        "--db",
        store,
    )
    assert json.loads(ran(*given).out)["left_out"] == 3
    assert "3 more are items, or have the vector of one, and were left out" in " ".join(
        ran(*given, terminal=True).out.split()
    )


@pytest.mark.parametrize("options", [(), ("--hard",)])
def test_without_a_guard_a_query_is_not_known_if_it_is_far_from_all_items(
    store: Path, options: tuple[str, ...]
) -> None:
    """It is said, once, that this promises nothing; a guard that is about other questions is no such case."""
    near, far = (ran("query", "--vector", one, "--known", *options, "--db", store) for one in (NEAR, FAR))
    assert (near.code, far.code) == (0, 3)
    assert near.err == far.err
    assert near.err.count("\n") == 1
    assert "softkv guard" in near.err
    assert "nothing is promised" in near.err
    refused = ran("query", "--vector", NEAR, "--known", "-T", 0.5, *options, "--db", store)
    assert (refused.code, refused.out) == (1, "")
    ran("guard", "--wrong-at-most", 0.1, "--db", store)
    other = ran("query", "--vector", NEAR, "--known", "-T", 0.5, *options, "--db", store)
    assert (other.code, other.out) == (1, "")
    assert "the guard is about" in other.err


def test_queries_and_strangers_are_read_from_files(store: Path, tmp_path: Path) -> None:
    """They are read like those of `compare --eval`."""
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
    """Exit code 3 comes with the answer all the same; one that is known ends with 0, and without the option all do."""
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
        (
            ["query", "--vector", NEAR, "--known", "-T", "0.5"],
            1,
            "needs a guard, and this store has none: `softkv guard`",
        ),
        (["guard", "--wrong-at-most", "2"], 1, "expected --wrong-at-most to be"),
        (["guard", "--strangers-at-most", "0.1"], 1, "expected strangers"),
        (["guard", "--on-average", "--confidence", "0.9"], 2, "leave out --confidence"),
        (["guard", "--drop", "--queries", "asked.csv", "--confidence", "0.9"], 2, "leave out --confidence, --queries"),
        (["guard", "--wrong-at-most", "0.001"], 1, "at least"),
    ],
)
def test_what_cannot_be_told_or_promised_is_refused(store: Path, arguments: list[str], code: int, message: str) -> None:
    """The refusal says what to do."""
    done = ran(*arguments, "--db", store)
    assert done.code == code
    assert message in done.err
