"""`softkv add`: one item, or the items of a file."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import loading
from softkv.errors import CommitUncertain

from .commands import ran
from .databases import KINDS, values_of, vectors_of
from .scales import scaled

CSV = "title,stars,year\nThe Well,4.5,1990\nUpstream,3,2004\nNight Line,4,2011\n"


def test_one_item_is_added(tmp_path: Path) -> None:
    """A number where it can be one, else a text; what was told is on stderr, nothing on stdout."""
    done = ran("add", "The Well", "4.5", "--payload", '{"year": 1990}', "--db", tmp_path / "s")
    assert done == (0, "", "added 1\n")
    assert ran("add", "Upstream", "3", "--text", "two boats on a river", "-d", tmp_path / "s").code == 0
    with softkv.open(tmp_path / "s", "r") as db:
        assert dict(db) == {"The Well": 4.5, "Upstream": 3.0}
        assert db.item("The Well").payload == {"year": 1990}
        assert db.item("Upstream").text == "two boats on a river"
    assert ran("add", "a", "b", "--db", tmp_path / "t").code == 0
    with softkv.open(tmp_path / "t", "r") as db:
        assert db.info().value_kind == "text"


@pytest.mark.slow
def test_a_person_at_a_terminal_is_asked_for_the_value(tmp_path: Path) -> None:
    """Where the value is missing on a terminal, the command says what it waits for, and takes what is typed."""
    ours, theirs = os.openpty()
    script = "from softkv_cli.main import main; main()"
    command = [sys.executable, "-c", script, "add", "fig", "--vector", "1,0", "--db", str(tmp_path / "s")]
    with subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "type the VALUE of fig, and end it with Enter and Ctrl-D\n"
        os.write(ours, b"5\n\x04")
        assert process.stderr.read() == "added 1\n"
    assert process.returncode == 0
    with softkv.open(tmp_path / "s", "r") as db:
        assert dict(db) == {"fig": 5.0}


def test_a_value_on_stdin_that_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made or written."""
    command = [sys.executable, "-m", "softkv_cli", "add", "a", "--db", str(tmp_path / "s")]
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, input=b"\xff", env=strict, capture_output=True)
    assert done.returncode == 2
    assert b"expected VALUE on stdin as text, got bytes that are not utf-8" in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_value_may_come_from_stdin(tmp_path: Path) -> None:
    """It does when it is missing, or `-`: long texts do not fit a command line."""
    assert ran("add", "a", "--db", tmp_path / "s", stdin="a long\ntext\n").code == 0
    assert ran("add", "b", "-", "--db", tmp_path / "s", stdin="another").code == 0
    assert ran("get", "a", "--plain", "--db", tmp_path / "s").out == "a long\ntext\n"


def test_the_kind_of_one_item_may_be_given(tmp_path: Path) -> None:
    """A number that is a text, a label, a vector; then the store knows."""
    for kind, given, value in (("text", "7", "7"), ("label", "7", "7"), ("vector", "1,2", [1.0, 2.0])):
        assert ran("add", "a", given, "--kind", kind, "--db", tmp_path / kind).code == 0
        assert json.loads(ran("get", "a", "--db", tmp_path / kind).out)["value"] == value
    assert ran("add", "b", "3,4", "--db", tmp_path / "vector").code == 0
    assert ran("add", "b", "8", "--db", tmp_path / "text").code == 0
    assert json.loads(ran("get", "b", "--db", tmp_path / "text").out)["value"] == "8"
    assert ran("add", "a", "1", "--vector", "1,0,0", "--db", tmp_path / "bare").code == 0
    assert json.loads(ran("info", "--db", tmp_path / "bare").out)["key_width"] == 3


def test_a_file_is_added(tmp_path: Path) -> None:
    """Its columns are named; it may come from stdin as well."""
    (tmp_path / "films.csv").write_text(CSV)
    columns = ["--key", "title", "--value", "stars", "--payload", "year"]
    assert ran("add", "-i", tmp_path / "films.csv", *columns, "--db", tmp_path / "s") == (0, "", "added 3\n")
    assert ran("add", "-i", "-", "--format", "csv", *columns, "--db", tmp_path / "t", stdin=CSV).code == 0
    for path in ("s", "t"):
        with softkv.open(tmp_path / path, "r") as db:
            assert dict(db) == {"The Well": 4.5, "Upstream": 3.0, "Night Line": 4.0}
            assert db.item("Upstream").payload == {"year": 2004}
            assert db.check().ok


def test_keys_that_are_there(tmp_path: Path) -> None:
    """An error that says what to do; replaced or ignored when asked, and told."""
    (tmp_path / "films.csv").write_text(CSV)
    arguments = ["add", "-i", tmp_path / "films.csv", "--key", "title", "--value", "stars", "--db", tmp_path / "s"]
    assert ran(*arguments).code == 0
    again = ran(*arguments)
    assert again.code == 1
    assert "'The Well'" in again.err
    assert ran(*arguments, "--ignore").err == "added 0, ignored 3 that were there\n"
    assert ran(*arguments, "--replace").err == "added 0, replaced 3\n"


def test_repeated_keys_are_named_by_their_line_or_passed_over(tmp_path: Path) -> None:
    """Those that the store has, and those that stand twice in the file, of which the first goes in."""
    (tmp_path / "films.csv").write_text("title,stars\na,1\nb,2\na,3\nc,4\n")
    arguments = ["add", "-i", tmp_path / "films.csv", "--key", "title", "--value", "stars"]
    done = ran(*arguments, "--db", tmp_path / "s")
    assert done.code == 1
    assert "films.csv:4: the key 'a' is there already" in done.err
    assert not (tmp_path / "s").exists()
    done = ran(*arguments, "--db", tmp_path / "s", "--skip-bad")
    assert done.code == 0
    assert done.err.endswith("added 3, skipped 1\n")
    with softkv.open(tmp_path / "s", "r") as db:
        assert dict(db) == {"a": 1.0, "b": 2.0, "c": 4.0}
    assert ran(*arguments, "--db", tmp_path / "s", "--skip-bad").err.endswith("added 0, skipped 4\n")


def test_an_integer_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """It would come back as another number."""
    done = ran("add", "x", "9007199254740993", "--db", tmp_path / "s")
    assert done.code == 1
    assert "2^53" in done.err
    assert not (tmp_path / "s").exists()


def test_bad_lines_are_named_or_passed_over(tmp_path: Path) -> None:
    """File and line; with --skip-bad the rest goes in."""
    (tmp_path / "films.csv").write_text(CSV + "Broken,many,2020\nLast,5,2021\n")
    arguments = ["add", "-i", tmp_path / "films.csv", "--key", "title", "--value", "stars", "--kind", "number"]
    done = ran(*arguments, "--db", tmp_path / "s")
    assert done.code == 1
    assert "films.csv:5" in done.err
    done = ran(*arguments, "--db", tmp_path / "t", "--skip-bad")
    assert done.code == 0
    assert "skipped: " in done.err
    assert done.err.endswith("added 4, skipped 1\n")


def test_an_error_in_the_middle_keeps_what_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches before are stored, and the message says how to go on; that works."""
    scaled(monkeypatch, loaded=10)
    lines = [f"item {number},{number}\n" for number in range(35)]
    (tmp_path / "a.csv").write_text("key,value\n" + "".join(lines[:25]) + "item 25,oops\n" + "".join(lines[26:]))
    arguments = ["add", "-i", tmp_path / "a.csv", "--kind", "number", "--db", tmp_path / "s"]
    done = ran(*arguments)
    assert done.code == 1
    assert "The first 20 records are stored." in done.err
    assert "--skip 20" in done.err
    (tmp_path / "a.csv").write_text("key,value\n" + "".join(lines))
    assert ran(*arguments, "--skip", 20) == (0, "", "added 15\n")
    with softkv.open(tmp_path / "s", "r") as db:
        assert list(db.values()) == list(range(35))


@pytest.mark.slow
def test_ctrl_c_leaves_a_store_to_go_on_with(tmp_path: Path) -> None:
    """Exit code 130, the batches before are stored, and the message says how to go on."""
    lines = "".join(f"item {number},{number}\n" for number in range(200_000))
    (tmp_path / "lines.csv").write_text("key,value\n" + lines)
    script = "import softkv.database.loading as loading; loading.BATCH = 10; from softkv_cli.main import main; main()"
    command = [sys.executable, "-c", script, "add", "-i", str(tmp_path / "lines.csv"), "--db", str(tmp_path / "s")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "s").exists() or _items(tmp_path / "s") < 10:
            assert time.monotonic() < deadline
            assert process.poll() is None
        said = ""
        while process.poll() is None:  # Python drops the exception of a signal that comes while it calls back
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                said = process.communicate(timeout=5)[1]
    assert process.returncode == 130
    assert "interrupted. The first" in said
    stored = int(said.split("--skip ")[1].split(".")[0])
    assert 0 < stored < 200_000
    with softkv.open(tmp_path / "s", "r") as db:
        assert list(db.values()) == list(range(stored))
        assert db.check().ok


def test_ctrl_c_after_a_commit_counts_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after a commit counts what is stored, also before the command knows of it: --skip would store it again."""
    lines = "".join(f"item {number},{number}\n" for number in range(35))
    (tmp_path / "a.csv").write_text("key,value\n" + lines)
    added = loading._added

    def then_ctrl_c(db: Any, batch: Any, *given: Any) -> Any:
        found = added(db, batch, *given)
        if batch[0].key == "item 10":
            signal.raise_signal(signal.SIGINT)
        return found

    scaled(monkeypatch, loaded=10)
    arguments = ["add", "-i", tmp_path / "a.csv", "--db", tmp_path / "s"]
    with monkeypatch.context() as patch:
        patch.setattr(loading, "_added", then_ctrl_c)
        done = ran(*arguments)
    assert done.code == 130
    assert "The first 20 records are stored. Go on with the same command and --skip 20." in done.err
    assert ran(*arguments, "--skip", 20).err == "added 15\n"


@pytest.mark.parametrize("named", [[], ["--batch", "monday"]])
def test_a_commit_that_is_uncertain_is_looked_for_before_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    """Without keys --skip would add the batch twice, so the message says which commit tells; with a name none does."""
    (tmp_path / "a.csv").write_text("vector,value\n" + "".join(f'"[1,{n}]",{n}\n' for n in range(35)))
    added = loading._added

    def then_uncertain(db: Any, batch: Any, *given: Any) -> Any:
        found = added(db, batch, *given)
        if batch[0].value == 10:
            raise CommitUncertain("it may have happened.")
        return found

    scaled(monkeypatch, loaded=10)
    arguments = ["add", "-i", tmp_path / "a.csv", "--db", tmp_path / "s", "--compatibility", "cosine", *named]
    with monkeypatch.context() as patch:
        patch.setattr(loading, "_added", then_uncertain)
        done = ran(*arguments)
    assert done.code == 1
    assert "The first 10 records are stored, and the next 10 may be." in done.err
    if named:
        assert "go on with the same command." in done.err
        assert ran(*arguments).err == "added 35\n"
    else:
        before = re.search(r"commit: if it is above (\d+), go on with --skip 20, else with --skip 10\.", done.err)
        assert before
        assert json.loads(ran("info", "--json", "--db", tmp_path / "s").out)["commit"] > int(before[1])
        assert ran(*arguments, "--skip", 20).err == "added 15\n"
    with softkv.open(tmp_path / "s", "r") as db:
        assert list(db.values()) == list(range(35))


def _items(path: Path) -> int:
    with softkv.open(path, "r") as db:
        return len(db)


def test_one_odd_cell_among_numbers_is_hinted_at(tmp_path: Path) -> None:
    """It makes the column one of texts, which is seldom what was meant; the hint names it and what helps."""
    (tmp_path / "a.csv").write_text("key,value\na,1\nb,2\nc,N/A\nd,4\n")
    arguments = ["add", "-i", tmp_path / "a.csv"]
    done = ran(*arguments, "--db", tmp_path / "s")
    assert done.code == 0
    assert done.err.startswith("hint: values are taken as texts, since 'N/A' is no number; with --kind number")
    done = ran(*arguments, "--db", tmp_path / "t", "--kind", "number", "--skip-bad")
    assert "hint" not in done.err
    assert done.err.endswith("added 3, skipped 1\n")
    (tmp_path / "a.csv").write_text("key,value\na,one\nb,2\nc,three\n")
    done = ran(*arguments, "--db", tmp_path / "u")
    assert "no number" not in done.err


def test_texts_are_announced_before_they_are_written(tmp_path: Path) -> None:
    """How to have labels is said once, but not where the kind was given, is known, or another hint says it."""
    (tmp_path / "a.csv").write_text("key,value\na,one\nb,two\nc,three\n")
    (tmp_path / "b.jsonl").write_text('{"key": "d", "value": "four"}\n{"key": "e", "value": 5}\n')
    said = "hint: values are taken as texts, of which an answer names the likeliest; as labels, by --kind label, each"
    done = ran("add", "-i", tmp_path / "a.csv", "--db", tmp_path / "s")
    assert done.err.startswith(said)
    assert done.err.count("hint") == 1
    refused = ran("add", "-i", tmp_path / "b.jsonl", "--db", tmp_path / "t")
    assert (refused.code, (tmp_path / "t").exists()) == (1, False)
    assert ran("add", "-i", tmp_path / "a.csv", "--ignore", "--db", tmp_path / "s").err.startswith("added 0")
    for kind in ("label", "text"):
        assert ran("add", "-i", tmp_path / "a.csv", "--kind", kind, "--db", tmp_path / kind).err == "added 3\n"
    (tmp_path / "a.csv").write_text("key,value\na,1\nb,2\nc,N/A\nd,4\n")
    assert ran("add", "-i", tmp_path / "a.csv", "--db", tmp_path / "u").err.count("hint") == 1


@pytest.mark.parametrize("form", ["jsonl", "parquet", "npz"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_added_with_its_kind(tmp_path: Path, kind: str, form: str) -> None:
    """Items with keys and without, embedded texts and bare vectors; into a new store, and into one that is there."""
    file = tmp_path / f"a.{form}"
    with softkv.open(tmp_path / "s", value=kind, embedder="static") as db:
        values = list(values_of(kind, 6))
        db.add(
            ["a red fox", "two dogs", None], values[:3], texts=[None, "many dogs", "a bird"], payloads=[{"n": 1}] * 3
        )
        db.add(["x", "y", None], values[3:], vectors=vectors_of(3, 256))
        assert db.export(file) == 6
        expected = [(one.key, one.text, one.payload, np.asarray(one.value).tolist()) for one in db.select()]
        vectors = [one.vector for one in db.select()]
    done = ran("add", "-i", file, "--db", tmp_path / "t")
    assert done.code == 0, done.err
    assert done.err.startswith(f"hint: {file} is an export of a store, and its values are {kind}s again; ")
    with softkv.open(tmp_path / "t", "r") as db:
        assert db.info().value_kind == kind
        assert [(one.key, one.text, one.payload, np.asarray(one.value).tolist()) for one in db.select()] == expected
        assert np.allclose([one.vector for one in db.select()], vectors, atol=1e-6)
        assert db.check().ok
    assert ran("add", "-i", file, "--replace", "--db", tmp_path / "t").code == 0
    (tmp_path / "fresh").mkdir()
    named = ran("add", "-i", file, "--key", "key", "--db", tmp_path / "fresh" / "s")
    assert (named.code, list((tmp_path / "fresh").iterdir())) == (1, [])
    assert "leave out --key" in named.err


def test_an_export_may_come_through_a_pipe(tmp_path: Path) -> None:
    """It comes as JSON lines; other objects whose first name is softkv are none."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.update({"a fox": "animal", "a tree": "plant"})
        db.export(tmp_path / "a.jsonl")
    assert ran("add", "-i", "-", "--db", tmp_path / "t", stdin=(tmp_path / "a.jsonl").read_text()).code == 0
    with softkv.open(tmp_path / "t", "r") as db:
        assert (db.info().value_kind, dict(db)) == ("label", {"a fox": "animal", "a tree": "plant"})
    line = '{"softkv":"a dictionary","value":2}\n'
    assert ran("add", "-i", "-", "--key", "softkv", "--db", tmp_path / "u", stdin=line).code == 0


def test_after_a_kill_the_same_command_says_how_to_go_on(tmp_path: Path) -> None:
    """Killed between two batches: the error of the next run says with which --skip, and that adds exactly the rest."""
    lines = [f"item {number},{number}" for number in range(35)]
    (tmp_path / "a.csv").write_text("\n".join(["key,value", *lines]) + "\n")
    arguments = ["add", "-i", str(tmp_path / "a.csv"), "--db", str(tmp_path / "s")]
    killed = (
        "import os, signal, softkv.database.loading as loading; loading.BATCH = 10; add = loading.Loading._add\n"
        "def then_die(self, *given):\n"
        "    add(self, *given)\n"
        "    if self.seen == 20: os.kill(os.getpid(), signal.SIGKILL)\n"
        "loading.Loading._add = then_die\nfrom softkv_cli.main import main; main()"
    )
    assert subprocess.run([sys.executable, "-c", killed, *arguments]).returncode == -signal.SIGKILL
    again = ran(*arguments)
    assert again.code == 1
    assert "a.csv:2: the key 'item 0' is there already, and so are those of the first 20 records" in again.err
    assert ran(*arguments, "--skip", again.err.split("--skip ")[1].split(".")[0]) == (0, "", "added 15\n")
    with softkv.open(tmp_path / "s", "r") as db:
        assert list(db.values()) == list(range(35))
    assert "go on with --skip 35" in ran(*arguments, "--skip", 7).err
    with softkv.open(tmp_path / "s") as db:
        db.delete("item 0")
    assert "--skip 2" not in ran(*arguments).err.replace("--skip-bad", "")


def test_records_without_keys_do_not_say_how_far_a_run_came(tmp_path: Path) -> None:
    """They are added again, which is said before; among others they hide where the store ends, so nothing is said."""
    (tmp_path / "a.csv").write_text("x,y,value\n1,2,3\n2,1,4\n")
    arguments = ["add", "-i", tmp_path / "a.csv", "--vector", "x,y", "--db", tmp_path / "s"]
    assert ran(*arguments).err.endswith("\nadded 2\n")
    again = ran(*arguments)
    assert "the store has 2 items, and records without keys are added to them" in again.err
    assert again.err.endswith("added 2\n")
    assert ran(*arguments, "--skip", 1).err == "added 1\n"
    lines = [{"key": "a", "value": 1}, {"key": "b", "value": 1}, {"value": 2}, {"key": "c", "value": 3}]
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"text": "a text", "key": None, **one}) + "\n" for one in lines)
    )
    mixed = ["add", "-i", tmp_path / "b.jsonl", "--text", "text", "--db", tmp_path / "t"]
    assert ran(*mixed).code == 0
    assert "is there already. Give it another" in ran(*mixed).err


def test_uneven_columns_are_hinted_at(tmp_path: Path) -> None:
    """One hint tells of a file of several batches, in words of the command; none where the comparison was chosen."""
    lines = [f"{number % 7},{1000 * (number * 5 % 11)},{number}" for number in range(1, 40)]
    (tmp_path / "a.csv").write_text("\n".join(["rooms,space,rent", *lines]) + "\n")
    arguments = ["add", "-i", tmp_path / "a.csv", "--vector", "rooms,space", "--value", "rent", "--skip", 1]
    with pytest.MonkeyPatch.context() as patch:
        scaled(patch, loaded=10)
        done = ran(*arguments, "--db", tmp_path / "s")
    assert done.code == 0
    assert done.err.count("hint: column 1 of the vectors varies") == 1
    assert "start the store anew with --compatibility gaussian and let `softkv fit` learn" in done.err
    assert ran(*arguments, "--compatibility", "cosine", "--db", tmp_path / "t").err == "added 38\n"


def test_several_columns_of_numbers_are_said_to_be_compared_by_cosine(tmp_path: Path) -> None:
    """It is said once, where nobody chose how to compare; not where it was said already that scales differ."""
    (tmp_path / "even.csv").write_text("x,y,z\n" + "\n".join(f"{n % 7},{n % 5 + 1},{n}" for n in range(40)))
    (tmp_path / "uneven.csv").write_text("x,y,z\n" + "\n".join(f"{n % 7 * 1000},{n % 5 + 1},{n}" for n in range(40)))
    for number, (file, columns, more, told) in enumerate(
        [
            ("even", "x,y", [], 1),
            ("even", "x", [], 0),
            ("even", "x,y", ["--compatibility", "gaussian"], 0),
            ("uneven", "x,y", [], 0),
        ]
    ):
        add = ["add", "-i", tmp_path / f"{file}.csv", "--vector", columns, "--value", "z", "-d", tmp_path / str(number)]
        done = ran(*add, *more)
        assert (done.code, done.err.count("hint: vectors are compared by cosine")) == (0, told)
        assert "by cosine" not in ran(*add).err


def test_labels_are_hinted_at(tmp_path: Path) -> None:
    """A few texts that repeat: the hint names the option, and it is no warning of Python's."""
    (tmp_path / "a.csv").write_text("text,intent\n" + "".join(f"question {n},{'yn'[n % 2]}\n" for n in range(12)))
    done = ran("add", "-i", tmp_path / "a.csv", "--key", "text", "--value", "intent", "--db", tmp_path / "s")
    assert done.code == 0
    assert done.err.startswith("hint: 12 values are only 2 different texts")
    assert "Warning" not in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["add"], 2, "give a KEY and a VALUE, a file with -i"),
        (["add", "a", "1", "-i", "b.csv"], 2, "one of them"),
        (["add", "-i", "none.csv"], 1, "none.csv"),
        (["add", "a", "1", "--kind", "colour"], 2, "colour"),
        (["add", "a", "x", "--kind", "number"], 1, "expected a number"),
        (["add", "a", "1", "--compatibility", "taste"], 1, "Check the spelling"),
        (["add", "a", "1", "-m", "my:function"], 1, "my:function"),
        (["add", "#1", "1"], 1, "starts with '#'"),
        (["add", "a", "1", "--payload", "{"], 2, "not JSON"),
        (["add", "a", "1", "--payload", '{"x": NaN}'], 2, "NaN is not JSON"),
    ],
)
def test_mistakes_make_no_store(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    """A refusal is said in a few lines, and leaves no item behind."""
    done = ran(*arguments, "--db", tmp_path / "s")
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) <= 5
    assert not (tmp_path / "s").exists()


def test_a_file_with_a_name_goes_on_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No --skip is needed, records without keys are not warned of, and what is complete says what it added."""
    scaled(monkeypatch, loaded=10)
    lines = [f"{number},1,{number}" for number in range(35)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y,value", *lines[:25], "25,1,oops", *lines[26:]]))
    arguments = ["add", "-i", tmp_path / "a.csv", "--vector", "x,y", "--kind", "number", "--batch", "monday"]
    arguments += ["--db", tmp_path / "s"]
    broken = ran(*arguments)
    assert (broken.code, "--skip" in broken.err) == (1, False)
    assert (
        "The first 20 records are stored. Mend what the next line says, and go on with the same command." in broken.err
    )
    (tmp_path / "a.csv").write_text("\n".join(["x,y,value", *lines]))
    for _ in range(2):
        assert ran(*arguments) == (0, "", "added 35\n")
    with softkv.open(tmp_path / "s", "r") as db:
        assert next(iter(db.columns().blocks(100)))[1].tolist() == list(range(35))


def test_ctrl_c_under_a_name_goes_on_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the last batch is written is followed by the same command, which goes on."""
    (tmp_path / "a.csv").write_text("key,value\n" + "".join(f"item {number},{number}\n" for number in range(15)))
    added = loading._added

    def then_ctrl_c(*given: Any) -> Any:
        found = added(*given)
        if given[1][0].key == "item 10":
            signal.raise_signal(signal.SIGINT)
        return found

    scaled(monkeypatch, loaded=10)
    arguments = ["add", "-i", tmp_path / "a.csv", "--batch", "monday", "--db", tmp_path / "s"]
    with monkeypatch.context() as patch:
        patch.setattr(loading, "_added", then_ctrl_c)
        done = ran(*arguments)
    assert done.code == 130
    assert "interrupted. The first 15 records are stored. Go on with the same command.\n" in done.err
    assert ran(*arguments) == (0, "", "added 15\n")


def test_calls_with_a_name_are_carried_out_once(tmp_path: Path) -> None:
    """Adding one item, giving values and deleting; with other content they are refused."""
    path = ["--db", tmp_path / "s"]
    vector = ["--vector", "1,0"]
    for _ in range(2):
        assert ran("add", "a key", "1", *vector, "--batch", "one", *path) == (0, "", "added 1\n")
    refused = ran("add", "a key", "2", *vector, "--batch", "one", *path)
    assert (refused.code, "batch 'one' was written before" in refused.err) == (1, True)
    for _ in range(2):
        assert ran("set", "5", "a key", "--batch", "two", *path) == (0, "", "changed 1\n")
    assert ran("set", "7", "a key", *path).code == 0
    assert ran("set", "5", "a key", "--batch", "two", *path) == (0, "", "changed 1\n")
    with softkv.open(tmp_path / "s", "r") as db:
        assert db["a key"] == 7
    for _ in range(2):
        assert ran("delete", "a key", "--batch", "three", *path) == (0, "", "deleted 1\n")
    assert ran("add", "a key", "1", *vector, *path).code == 0
    assert ran("delete", "a key", "--batch", "three", *path) == (0, "", "deleted 1\n")
    with softkv.open(tmp_path / "s", "r") as db:
        assert db["a key"] == 1
