"""The command `demo`: all tales at once, as a process of its own, and how it takes its options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from softkv_cli.demonstration import demo
from softkv_examples import titles

from .commands import ran

LONGEST = 100  # columns

COMMAND = ("-c", "from softkv_cli.main import main; main()", "demo")
MODULE = ("-m", "softkv_examples")


def demonstrated(*arguments: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Python as a process of its own, its temporary files in a folder of ours."""
    kept = {name: value for name, value in os.environ.items() if name not in ("SOFTKV_DATA", "NO_COLOR")}
    (folder / "tmp").mkdir()
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env=kept | {"TMPDIR": str(folder / "tmp"), "PYTHONIOENCODING": "utf-8"} | environment,
    )


def ragged(said: str) -> list[str]:
    """The lines that a terminal would break, and those that end in blanks."""
    return [line for line in said.splitlines() if len(line) > LONGEST or line != line.rstrip()]


@pytest.mark.slow
def test_the_whole_demonstration_runs(tmp_path: Path) -> None:
    """Every example is told with its facts, nothing goes to stderr, and no file is left behind."""
    done = demonstrated(*COMMAND, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for title in titles().values():
        assert f"\n{title}\n{'=' * len(title)}\n" in done.stdout
    for fact in (
        '>>> db.lookup("Hana")\n    49,493 (values spread by 2,019)\n',
        "softkv.errors.KeyMissing: no item has the key 'Hana'",
        "A pedlar walks back over the pass",
        "12:00  18.6",
        "1   0 0.5   1   1   0   1   0  -> 0.4998",
        "0.6271",
        "dot / d     a 0.1643",
        "apple  fruit 0.63 company 0.29",
        "{'tanh': 45,",
        "sail   -0.7641  -0.2907  -0.9100   0.1167",
        "soft 20 of 24 right",
    ):
        assert fact in done.stdout
    assert ragged(done.stdout) == []
    assert "\x1b" not in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


@pytest.mark.slow
def test_a_reader_who_leaves_early_is_not_scolded(tmp_path: Path) -> None:
    """A closed pipe ends the tale in silence, and its store goes too."""
    (tmp_path / "tmp").mkdir()
    script = f"{sys.executable} -m softkv_examples | head -n 30 >/dev/null"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    )
    assert done.stderr == ""
    assert list((tmp_path / "tmp").iterdir()) == []


def test_one_example_is_told_alone() -> None:
    """The one that was named is told, without the introduction to all."""
    done = CliRunner().invoke(demo, ["words"])
    assert done.exit_code == 0
    assert done.output.startswith("One word asks nine\n==================\n\n")
    assert not any(title in done.output for name, title in titles().items() if name != "words")


def test_examples_are_told_in_the_order_they_are_named() -> None:
    """Two names give two tales, with room between them."""
    said = CliRunner().invoke(demo, ["car", "words"]).output
    assert said.startswith("Is it a car?\n")
    assert "\n\n\nOne word asks nine\n" in said


def test_the_list_names_every_example() -> None:
    """It is JSON lines when piped, like every other list."""
    said = CliRunner().invoke(demo, ["--list"]).output.splitlines()
    assert len(said) == len(titles())
    assert said[0] == '{"name": "incomes", "title": "Incomes by name"}'


def test_a_name_that_is_not_there_is_a_misuse() -> None:
    """It ends with exit code 2, and the names that there are."""
    done = CliRunner().invoke(demo, ["nonsense"])
    assert done.exit_code == 2
    assert "there is no example 'nonsense'; there are incomes, books" in done.output


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_code_is_coloured_unless_that_is_unwanted(environment: dict[str, str], coloured: bool) -> None:
    """On a terminal headings are bold and code has a colour; NO_COLOR, if it says anything, takes both away."""
    said = CliRunner().invoke(demo, ["words"], color=True, env={"NO_COLOR": None, **environment}).output
    assert ("\x1b[36m    >>> import math" in said) is coloured
    assert ("\x1b[1mOne word asks nine" in said) is coloured
    assert ("\x1b" in said) is coloured


@pytest.mark.parametrize(("columns", "widest"), [("40", 60), ("72", 71), ("500", 96)])
def test_prose_fits_the_terminal(columns: str, widest: int) -> None:
    """It is not too narrow to read, and not wider than the eye likes."""
    said = CliRunner().invoke(demo, ["words"], env={"COLUMNS": columns}).output
    prose = [line for line in said.splitlines() if not line.startswith(" ")]
    assert widest - 12 < max(map(len, prose)) <= widest


def test_a_file_that_is_there_is_written_over_by_force_alone(tmp_path: Path) -> None:
    """A tour in place of somebody's file would be a loss."""
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    refused = ran("demo", "car", "-o", file)
    assert (refused.code, "--force" in refused.err, file.read_text()) == (1, True, "notes")
    assert ran("demo", "car", "-o", file, "--force").code == 0
    assert file.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.slow
def test_the_demo_of_a_checkout_goes_through_the_main_job(tmp_path: Path) -> None:
    """It adds, asks hard and soft, warmer, and what nobody knows, and says where the store is and what to do next."""
    root = Path(__file__).resolve().parents[1]
    (tmp_path / "demo").write_text((root / "scripts" / "demo").read_text(encoding="utf-8"), encoding="utf-8")
    ready = f'prepare() {{ PATH="{Path(sys.executable).parent}:$PATH"; }}\ncd "{root}"\n'  # all is installed already
    (tmp_path / "environment.sh").write_text(ready, encoding="utf-8")
    place = tmp_path / "desk.softkv"
    done = subprocess.run(
        ["sh", tmp_path / "demo"],
        capture_output=True,
        text=True,
        env=os.environ | {"SOFTKV_DB": str(place), "COLUMNS": "100"},
        check=True,
    )
    for fact in (
        "added 108",
        "reserve a book\nweight",
        "late fee 29.2%",
        "is below every item of the store",
        f"The store is {place}.",
        f"a tour in {tmp_path / 'demo.html'}",
        "softkv page -o page.html",
    ):
        assert fact in done.stdout
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) <= 50
