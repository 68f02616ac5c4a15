"""`softkv query` and `softkv compare`."""

import csv
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from softkv_cli.mixtures import mixture

import softkv
from softkv.portrait import short

from .commands import ran
from .databases import count_as_large
from .scales import scaled

RENTS = {
    "a small room near the station": 540.0,
    "one room with a balcony": 620.0,
    "two rooms in the old town": 890.0,
    "two quiet rooms by the park": 940.0,
    "a large house with a garden": 2450.0,
}
ASKED = "two rooms near the park"


@pytest.fixture(scope="module")
def rents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of numbers under texts, for reading."""
    path = tmp_path_factory.mktemp("rents") / "rents.softkv"
    with softkv.open(path) as db:
        db.add(list(RENTS), list(RENTS.values()), payloads=[{"rooms": number} for number in (1, 1, 2, 2, 6)])
    return path


@pytest.fixture(scope="module")
def answer(rents: Path) -> softkv.Answer:
    """What the library says to the question."""
    with softkv.open(rents, "r") as db:
        found = db.lookup(ASKED)
    assert isinstance(found, softkv.Answer)
    return found


def test_a_query_that_is_piped_is_a_line_of_json(rents: Path, answer: softkv.Answer) -> None:
    """It is the whole answer, as the library gives it."""
    done = ran("query", ASKED, "--db", rents)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {"query": ASKED, **answer.to_dict()}
    assert ran("query", ASKED, "-d", rents, "--json", terminal=True).out == done.out


def test_a_query_on_a_terminal_is_a_table_with_bars(rents: Path) -> None:
    """The value, who it is made of, how exact it is; no colours are needed to read it."""
    done = ran("query", ASKED, "--db", rents, "-n", 2, terminal=True)
    lines = [line.rstrip() for line in done.out.splitlines() if line.strip()]
    assert "(values spread by " in lines[0]
    assert "█" in done.out
    assert "two quiet rooms by the park" in done.out
    assert "large house" not in done.out
    assert "exact over 5" in lines[-1]


def test_no_color_is_respected(rents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR there is not one escape sequence of a colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[3" not in ran("query", ASKED, "--db", rents, terminal=True).out


def test_plain_is_the_value_alone(rents: Path, answer: softkv.Answer) -> None:
    """Scripts get a number and nothing else."""
    assert float(ran("query", ASKED, "--db", rents, "--plain").out) == answer.value


def test_csv_has_a_line_for_each_contributor(rents: Path, answer: softkv.Answer) -> None:
    """It has a header, and the numbers in full."""
    rows = list(csv.DictReader(io.StringIO(ran("query", ASKED, "--db", rents, "--csv").out)))
    assert [row["key"] for row in rows] == [one.key for one in answer.contributors]
    assert [float(row["weight"]) for row in rows] == [one.weight for one in answer.contributors]
    assert json.loads(rows[0]["payload"]) == answer.contributors[0].payload


def test_the_arithmetic_is_explained(rents: Path) -> None:
    """Score, ÷ T, exp, ÷ sum: each step follows from the one before, and the rest makes it whole."""
    steps = json.loads(ran("query", ASKED, "--db", rents, "-n", 2, "-T", 0.1, "--explain").out)["arithmetic"]
    best = steps[0]["score/T"]
    for step in steps[:2]:
        assert step["score/T"] == pytest.approx(step["score"] / 0.1)
        assert step["exp"] == pytest.approx(math.exp(step["score/T"] - best))
        assert step["weight"] == pytest.approx(step["exp"] / step["sum"])
    assert steps[2]["key"] == "(3 others)"
    assert sum(step["weight"] for step in steps) == pytest.approx(1.0)
    some = json.loads(ran("query", ASKED, "--db", rents, "-k", 2, "-n", 2, "-T", 0.1, "--explain").out)["arithmetic"]
    assert [step["weight"] for step in some] == pytest.approx([step["weight"] for step in steps])
    assert some[2]["key"] == "(all others)"
    table = ran("query", ASKED, "--db", rents, "-n", 2, "-T", 0.1, "--explain", terminal=True).out
    assert "÷ T = 0.1" in table
    assert f"{steps[0]['score/T']:.4f}" in table


def test_the_options_of_a_query_are_those_of_the_library(rents: Path) -> None:
    """k, temperature, comparison, filter, hard, vectors."""
    with softkv.open(rents, "r") as db:
        vector = [float(cell) for cell in db.item("one room with a balcony").vector]
        cases = {
            ("-k", "2"): db.lookup(ASKED, k=2),
            ("-T", "0.5"): db.lookup(ASKED, temperature=0.5),
            ("--compatibility", "gaussian"): db.lookup(ASKED, compatibility="gaussian"),
            ("--where", '{"rooms": {"$lt": 2}}'): db.lookup(ASKED, where={"rooms": {"$lt": 2}}),
            ("--hard",): db.nearest(ASKED),
            ("--tolerance", "0"): db.lookup(ASKED, tolerance=0),
        }
        for options, expected in cases.items():
            found = json.loads(ran("query", ASKED, "--db", rents, *options).out)
            assert found["value"] == expected.value
            assert found["scored"] == expected.scored
        found = json.loads(ran("query", "--vector", ",".join(map(str, vector)), "--db", rents).out)
        assert found["value"] == pytest.approx(db.lookup(vector).value)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of vectors with an index."""
    path = tmp_path_factory.mktemp("clusters") / "s"
    made = mixture(2000, 8, 4, 1, seed=0)
    with softkv.open(path, temperature=0.3) as db:
        db.add(vectors=made.keys, values=made.values)
        db.build_index(temperatures=(0.3, 0.4))
    return path


def test_a_query_says_how_sure_it_has_to_be(clusters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerance, confidence and guarantee reach the library, and the error that comes back is shown with its kind."""
    count_as_large(monkeypatch)
    query = [float(cell) for cell in mixture(2000, 8, 4, 1, seed=0).queries[0]]
    ask = ("query", "--vector", ",".join(map(repr, query)), "--db", clusters)
    with softkv.open(clusters, "r") as db:
        scale = db.info().value_scale
        cases: dict[tuple[object, ...], softkv.Answer] = {
            (): db.lookup(query),
            ("--tolerance", 0.02): db.lookup(query, tolerance=0.02),
            ("--confidence", 0.8): db.lookup(query, confidence=0.8),
            ("--tolerance", 0.5, "--guarantee", "bound"): db.lookup(query, tolerance=0.5, guarantee="bound"),
            ("--tolerance", 0): db.lookup(query, tolerance=0),
        }
    found = [json.loads(ran(*ask, *options).out) for options in cases]
    for one, expected in zip(found, cases.values(), strict=True):
        assert {name: value for name, value in one.items() if name != "query"} == expected.to_dict()
    usual, rough, less_sure, bound, exact = found
    assert [one["error_kind"] for one in found] == ["calibrated"] * 3 + ["bound", "exact"]
    assert exact["error"] < less_sure["error"] == usual["error"] < rough["error"] < bound["error"]
    assert less_sure["scored"] <= usual["scored"]
    assert usual["error"] <= 0.01 * scale
    assert bound["error"] <= 0.5 * scale
    assert usual["log_mass_error"] > 0
    assert "log_mass_error" not in exact
    assert f"error {short(usual['error'])} (calibrated), " in ran(*ask, terminal=True).out


def test_many_vectors_come_from_stdin(clusters: Path) -> None:
    """One a line, in brackets or not, each called by the number of its line; what is none is reported by it."""
    queries = mixture(2000, 8, 4, 1, seed=0).keys[:3].astype(float).tolist()
    lines = [",".join(map(repr, queries[0])), repr(queries[1]), "1,2", "gold", "", repr(queries[2])]
    done = ran("query", "--vector", "-", "--db", clusters, "--tolerance", 0, stdin="\n".join(lines))
    found = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, [one["query"] for one in found]) == (1, [1, 2, 3, 4, 5, 6])
    assert [line.partition(": ")[0] for line in done.err.splitlines()] == ["stdin:3", "stdin:4", "stdin:5"]
    assert "'gold' is not a vector; give numbers between commas" in found[3]["error"]
    with softkv.open(clusters, "r") as db:
        wanted = db.lookup(queries, tolerance=0)
    assert np.array([found[place]["value"] for place in (0, 1, 5)]) == pytest.approx(wanted.value, rel=1e-5)
    done = ran("compare", "--vector", "-", "--db", clusters, "--csv", stdin="\n".join([*lines[:2], "gold"]))
    assert (done.code, done.err.partition(": ")[0]) == (1, "stdin:3")
    assert [line.split(",")[0] for line in done.out.splitlines() if ",soft," in line] == ["1", "2"]


def test_a_vector_and_a_text_exclude_each_other(clusters: Path) -> None:
    """A vector and a text exclude each other, also where both are on stdin."""
    assert ran("query", "-", "--vector", "-", "--db", clusters).code == 2


def test_many_queries_come_from_stdin(rents: Path) -> None:
    """One line each, one answer each; a line that says nothing is reported and does not silence the others."""
    done = ran("query", "-", "--db", rents, "--plain", stdin="a small room\n\na big house\r\n")
    assert done.code == 1
    first, second, third = done.out.splitlines()
    assert float(first) < 600
    assert second == ""
    assert float(third) > 2000
    assert done.err.startswith("stdin:2: ")
    found = ran("query", "-", "--db", rents, stdin="a room\n\u200b\n").out.splitlines()
    assert ["value" in json.loads(line) for line in found] == [True, False]
    assert "error" in json.loads(found[1])
    assert ran("query", "-", "--db", rents, stdin="a room\na house\n").code == 0


def test_lines_of_csv_can_be_joined_to_the_questions(rents: Path) -> None:
    """One header for all; the answer in every line of its contributors; a line for a question that was refused."""
    done = ran("query", "-", "--db", rents, "--csv", "-n", 2, stdin="a small room\n\na big house\n")
    assert done.code == 1
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["query"] for row in rows] == ["a small room"] * 2 + [""] + ["a big house"] * 2
    with softkv.open(rents, "r") as db:
        assert {float(rows[0]["answer"]), float(rows[1]["answer"])} == {db.lookup("a small room").value}
        assert float(rows[4]["answer"]) == db.lookup("a big house").value
    assert (rows[2]["answer"], rows[2]["key"]) == ("", "")
    assert "empty" in rows[2]["refused"]
    assert "stdin:2: " in done.err
    steps = ran("query", "-", "--db", rents, "--csv", "--explain", stdin="\na room\n").out
    assert [row["query"] for row in csv.DictReader(io.StringIO(steps))] == ["", *["a room"] * 5]
    ways = ran("compare", "-", "--db", rents, "--csv", stdin="a room\n\na house\n").out
    rows = list(csv.DictReader(io.StringIO(ways)))
    assert [row["query"] for row in rows] == ["a room"] * 4 + [""] + ["a house"] * 4
    assert [row["way"] for row in rows[:5]] == ["exact", "hard", "top_k", "soft", ""]


def test_a_vector_that_asks_is_not_printed_again(rents: Path) -> None:
    """It is long, and known to who asked; in no form, of no command."""
    with softkv.open(rents, "r") as db:
        vector = ",".join(repr(float(cell)) for cell in db.item("one room with a balcony").vector)
    for command in ("query", "compare"):
        assert "query" not in json.loads(ran(command, "--vector", vector, "--db", rents).out)
        rows = list(csv.DictReader(io.StringIO(ran(command, "--vector", vector, "--csv", "--db", rents).out)))
        assert {row["query"] for row in rows} == {""}


def test_labels_in_json_are_the_largest_and_the_rest(tmp_path: Path) -> None:
    """There are as many as -n says, heaviest first, and the sum of all others; one may be called `other` itself."""
    names = ["other", *(f"label {number}" for number in range(29))]
    with softkv.open(tmp_path / "s", value="label", temperature=5.0) as db:
        db.add([f"question {number}" for number in range(30)], names)
        whole = db.lookup("question 3").to_dict()["distribution"]
    largest = sorted(whole.values(), reverse=True)
    for arguments, count in (((), 10), (("-n", 2), 2), (("-n", 99), 30)):
        found = json.loads(ran("query", "question 3", "--db", tmp_path / "s", *arguments).out)
        assert list(found["distribution"].values()) == largest[:count]
        assert found["other"] == pytest.approx(sum(largest[count:]))
    found = json.loads(ran("compare", "question 3", "--db", tmp_path / "s", "-n", 3).out)
    assert [len(found[way]["distribution"]) for way in ("hard", "top_k", "soft")] == [1, 3, 3]
    assert found["soft"]["other"] == pytest.approx(sum(largest[3:]))
    assert "other" not in json.loads(ran("list", "--db", tmp_path / "s", "--limit", 1).out)


def test_a_large_scan_is_told_of_once(clusters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal is told the reason; a table has it in the last line; a pipe has it in JSON alone."""
    count_as_large(monkeypatch, large=2000 * 8 - 1)
    query = ",".join(map(repr, mixture(2000, 8, 4, 1, seed=0).queries[0].tolist()))
    ask = ("query", "--vector", query, "--db", clusters, "-T", 5)
    told = "temperature 5 was not rehearsed (0.3 to 0.4"
    found = ran(*ask, "--json", watched=True)
    assert found.err.startswith(f"hint: all 2,000 rows were read: {told}")
    assert found.err.count("hint") == 1
    assert json.loads(found.out)["reason"].startswith(told)
    assert ran(*ask, "--json").err == ""
    table = ran(*ask, terminal=True, watched=True)
    assert table.err == ""
    assert f"exact over 2,000: scanned, {told}" in " ".join(table.out.split())
    compared = ran("compare", *ask[1:], terminal=True, watched=True)
    assert (compared.err.count("hint"), compared.err) == (1, found.err)
    assert "scan, 2,000 rows" in compared.out
    scaled(monkeypatch, large=2000 * 8)
    assert ran(*ask, "--json", watched=True).err == ""


def test_the_hard_way_obeys_a_tolerance(clusters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one all items are looked at, with one those that the index proposes."""
    count_as_large(monkeypatch)
    query = ",".join(map(repr, mixture(2000, 8, 4, 1, seed=0).queries[0].tolist()))
    with softkv.open(clusters, "r") as db:
        asked = [float(cell) for cell in query.split(",")]
        expected = {(): db.nearest(asked), ("--tolerance", 0.01): db.nearest(asked, tolerance=0.01)}
    kinds = []
    for arguments, answer in expected.items():
        found = json.loads(ran("query", "--vector", query, "--hard", "--db", clusters, *arguments).out)
        assert found == answer.to_dict()
        kinds.append(found["error_kind"])
    assert kinds == ["exact", "calibrated"]


def test_a_comparison_shows_all_ways_side_by_side(rents: Path) -> None:
    """Exact, hard, top-k and full soft with weights, and a strip of temperatures."""
    key = "two rooms in the old town"
    table = ran("compare", key, "--db", rents, "-k", 2, terminal=True).out
    for word in ("exact", "hard", "top 2", "full soft", "effective", "of the mass", "890", "(usual)"):
        assert word in table
    plain = json.loads(ran("compare", key, "--db", rents, "-k", 2).out)
    with softkv.open(rents, "r") as db:
        assert plain == {"query": key, **db.compare(key, k=2).to_dict()}
    assert "no such key" in ran("compare", ASKED, "--db", rents, terminal=True).out
    rows = list(csv.DictReader(io.StringIO(ran("compare", key, "--db", rents, "--csv").out)))
    assert [row["way"] for row in rows] == ["exact", "hard", "top_k", "soft"]


def test_a_table_can_be_had_where_there_is_no_terminal(rents: Path) -> None:
    """`--table` prints what a terminal would be shown, without its colours."""
    shown = ran("query", ASKED, "--db", rents, terminal=True).out
    assert ran("query", ASKED, "--db", rents, "--table").out == re.sub(r"\x1b\[\d*m", "", shown)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["query"], 2, "give a text to look up, or --vector"),
        (["query", "a", "--vector", "1,2"], 2, "one of the two"),
        (["query", "a", "--hard", "-k", "2"], 2, "--hard is -k 1"),
        (["query", "a", "--hard", "-k", "1"], 2, "leave out -k"),
        (["query", "a", "--hard", "-n", "3"], 2, "leave out -n/--show"),
        (["query", "a", "--hard", "-n", "10"], 2, "leave out -n/--show"),
        (["query", "a", "--hard", "--confidence", "0.95"], 2, "leave out --confidence"),
        (["query", "a", "--hard", "--guarantee", "bound", "-n", "1"], 2, "leave out -n/--show, --guarantee"),
        (["query", "a", "--hard", "--tolerance", "-1"], 1, "tolerance"),
        (["compare", "--eval", "a.csv", "-n", "10"], 2, "leave out -n/--show"),
        (["query", "a", "--json", "--csv"], 2, "exclude each other"),
        (["query", "a", "--where", "{"], 2, "not JSON"),
        (["query", "a", "--where", '{"year": 2, "year": 1}'], 2, "the name 'year' stands twice"),
        (["query", "--vector", "1,x"], 2, "numbers between commas"),
        (["query", "--vector", "1,2"], 1, "width 2, but this store holds keys of width 256"),
        (["query", "a", "-T", "0"], 1, "above 0"),
        (["query", "a", "--compatibility", "taste"], 1, "uniform, got 'taste'. Check the spelling"),
        (["query", "a", "--compatibility", "bilinear"], 1, "They can be given in Python alone."),
        (["query", "a", "--where", '{"rooms": 99}'], 1, "no item matches"),
        (["query", "a", "--where", '{"rooms": {"$near": 9}}'], 1, "$near"),
        (["query", "a", "--tolerance", "-1"], 1, "tolerance"),
        (["query", "a", "--confidence", "1"], 1, "confidence to be a number between 0 and 1"),
        (["query", "a", "--guarantee", "sure"], 2, "bound"),
        (["query", ""], 1, ""),
    ],
)
def test_mistakes_are_said_in_a_line(rents: Path, arguments: list[str], code: int, said: str) -> None:
    """The line is on stderr, with nothing on stdout: 2 for a misuse, 1 for a refusal."""
    done = ran(*arguments, "--db", rents)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 5


def test_the_label_of_one_item_is_no_share(tmp_path: Path) -> None:
    """The best key has all of the distribution, and its weight among all stands below it."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(["a small room", "a big house"], ["flat", "house"])
    told = ran("query", "a house", "--hard", "--db", tmp_path / "s", terminal=True).out.splitlines()
    assert ("house" in told[0], "%" in told[0]) == (True, False)
    ways = ran("compare", "a house", "--db", tmp_path / "s", terminal=True).out
    assert "house 100.0%" not in ways


def test_a_server_that_is_named_without_its_scheme_is_asked_about(tmp_path: Path) -> None:
    """Where there is such a directory, it is meant."""
    done = ran("list", "--db", "localhost:7411/films")
    assert (done.code, "give the URL: http://localhost:7411/films" in done.err) == (1, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        (tmp_path / "disk:1").mkdir()
        assert ran("add", "a", "1", "--db", "disk:1/films").code == 0
        assert ran("list", "--db", "disk:1/films").code == 0


def test_reading_never_makes_a_store(tmp_path: Path) -> None:
    """A store that is not there is exit code 1, and still not there."""
    for command in (
        ["query", "a"],
        ["compare", "a"],
        ["get", "a"],
        ["list"],
        ["info"],
        ["path"],
        ["export", "a.jsonl"],
    ):
        done = ran(*command, "--db", tmp_path / "none.softkv")
        assert (done.code, done.out) == (1, "")
        assert "there is no store at" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_answer_on_a_line_holds_what_one_reads(tmp_path: Path) -> None:
    """It has texts and not their mean embedding, and the labels that have a weight."""
    with softkv.open(tmp_path / "s") as db:
        db.update({"where is my parcel": "On its way.", "I want my money back": "Within 30 days."})
    found = json.loads(ran("query", "my parcel", "--db", tmp_path / "s").out)
    assert found["value"] == "On its way."
    assert "embedding" not in found
    with softkv.open(tmp_path / "t", value="label", temperature=0.001) as db:
        db.update({"where is my parcel": "parcel", "I want my money back": "money"})
    found = json.loads(ran("compare", "where is my parcel", "--db", tmp_path / "t").out)
    assert found["soft"]["distribution"] == {"parcel": pytest.approx(1.0)}


def test_a_brackets_in_a_key_is_no_markup(tmp_path: Path) -> None:
    """What looks like a style of the table is text."""
    with softkv.open(tmp_path / "s") as db:
        db.add("[bold red]a key[/]", "[link=x]a value[/link]")
    table = ran("query", "a key", "--db", tmp_path / "s", terminal=True).out
    assert "[bold red]a key[/]" in table
    assert "[link=x]a value[/link]" in table


def test_many_lines_get_the_answers_that_each_would_get(rents: Path) -> None:
    """They are asked together, and one that cannot be asked is reported in its place."""
    lines = [f"a room of {number} square metres" for number in range(600)]
    lines[123] = lines[456] = ""
    done = ran("query", "-", "--db", rents, stdin="\n".join(lines))
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [line for line, answer in enumerate(found) if "error" in answer and "value" not in answer] == [123, 456]
    assert next(one for one in done.err.splitlines() if one.startswith("stdin:")).startswith("stdin:124: ")
    for line in (0, 122, 124, 599):
        alone = json.loads(ran("query", lines[line], "--db", rents, "--json").out)
        assert found[line]["query"] == lines[line]
        assert found[line]["value"] == pytest.approx(alone["value"])
        assert [one["key"] for one in found[line]["contributors"]] == [one["key"] for one in alone["contributors"]]


def test_a_line_is_answered_before_the_next_is_written(rents: Path) -> None:
    """The writer of a pipe waits for each answer."""
    command = [
        sys.executable,
        "-c",
        "from softkv_cli.main import main; main()",
        "query",
        "-",
        "--db",
        str(rents),
        "--plain",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            process.stdin.write("a room\n")
            process.stdin.flush()
            assert float(process.stdout.readline()) > 0
        process.stdin.close()
    assert process.returncode == 0


def test_a_list_shows_the_digits_in_which_values_far_from_zero_differ(tmp_path: Path) -> None:
    """A column of numbers has the digits that its values differ in; numbers near zero have four figures as ever."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b"], [1000000.25, 1000000.75], vectors=[[1.0, 0.0], [0.0, 1.0]])
    assert "1,000,000.25" in ran("list", "--table", "--db", tmp_path / "s").out
    found = ran("query", "--vector", "1,0", "--table", "--db", tmp_path / "s").out
    assert found.count("1,000,000.25") >= 1
    assert "1e+06" not in found
