"""The `softkv` command: its help, its exit codes, its messages."""

import atexit
import gc
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from softkv_cli import main, wording
from softkv_cli.main import softkv

import softkv as softkv_library
from softkv import database
from softkv.files.record import shown
from softkv.storage import Store

from .commands import ran


def softkv_process(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """The command as a process of its own."""
    script = "from softkv_cli.main import main; main()"
    command = [sys.executable, "-c", script, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small store."""
    with Store.open(tmp_path / "small.softkv", "c") as made:
        made.append(np.eye(3), [1.0, 2.0, 3.0], keys=["a", "b", "c"])
    return tmp_path / "small.softkv"


def commands(group: click.Group = softkv, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The name of every command, and of those inside of it."""
    yield above
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))
        else:
            yield (*above, name)


def example(command: tuple[str, ...]) -> str:
    """The example at the end of the help of a command."""
    said = CliRunner().invoke(softkv, [*command, "--help"], env={"COLUMNS": "200"}).output
    return said.strip().splitlines()[-1].strip()


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_help_ends_with_an_example(command: tuple[str, ...]) -> None:
    """Every help ends with a line that can be run, of the command itself."""
    assert example(command).startswith(f"Example: softkv {' '.join(command)}")


@pytest.mark.parametrize("name", softkv.commands)
def test_the_help_tells_of_a_command_what_its_own_help_begins_with(name: str) -> None:
    """The list in the help is made without the files of the commands."""
    command = softkv.get_command(click.Context(softkv), name)
    assert command is not None
    assert softkv.commands[name].help == command.get_short_help_str(200)


# A large model is loaded, the worked examples are worked, or contestants rest between their turns.
SLOW = {("models", "distil"), ("models", "onnx"), ("demo",), ("bench",), ()}


RAY = {("cluster", "start"), ("cluster", "stop"), ("cluster", "processes")}  # are run in test_cluster_ray.py
ENDLESS = {("serve",), ("mcp",)} | RAY  # are run, and ended, in test_cli_serving.py and test_mcp.py


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=[pytest.mark.slow, pytest.mark.ci] if one in SLOW else ())
        for one in commands()
        if one not in ENDLESS
    ],
    ids=" ".join,
)
def test_every_example_runs(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the store that it names, every example does what it is for."""
    monkeypatch.chdir(tmp_path)
    if command != ("add",):
        with database.open("films.softkv") as db:
            db.add(["The Alchemist", "Upstream"], ["A shepherd travels in search of treasure.", "Two boats race."])
            db.export("films.jsonl") if command == ("import",) else None
            db.add(["The Lost Map", "The Desert Gold"], ["A map.", "A desert."]) if command[:1] == ("index",) else None
            films = [f"film {number}" for number in range(20)] if command == ("fit",) else []
            db.backup("films.backup") if command == ("restore",) else None
            db.add(films, [f"About {film}." for film in films]) if films else None
    if command == ("guard",):  # of items with labels, some of which took no part in learning
        kinds = ["treasure", "boats", "deserts"] * 100
        with database.open("films.softkv", "n", value="label") as db:
            db.add([f"film {number}, about {kind}" for number, kind in enumerate(kinds)], kinds)
            db.tune()
    if command[:1] == ("cluster",) and command[1:] not in ((), ("create",)):
        assert ran("cluster", "create", "films").code == 0
        assert command[1] != "restore" or ran("backup", "films.backup", "--db", "films").code == 0
    done = ran(*shlex.split(example(command).removeprefix("Example: softkv")))
    assert done.code == 0, done.err
    assert done.out or done.err


def test_check_says_that_all_is_well(store: Path) -> None:
    """A sound store gives one line and exit code 0."""
    done = CliRunner().invoke(softkv, ["check", "--db", str(store)])
    assert done.exit_code == 0
    assert f"{store}: ok, commit 1, 3 items" in done.output


def test_check_names_damage_and_repairs_to_a_new_place(store: Path, tmp_path: Path) -> None:
    """--repair-to saves nothing that is doubtful, names what it lost, leaves the old store alone, and succeeds."""
    arena = store / "generation-000001" / "values.number"
    content = bytearray(arena.read_bytes())
    content[-1] ^= 1
    arena.write_bytes(content)
    done = CliRunner().invoke(softkv, ["check", "--db", str(store), "--repair-to", str(tmp_path / "new.softkv")])
    assert done.exit_code == 0
    assert "do not match their checksum" in done.output
    assert f"0 items saved to {tmp_path / 'new.softkv'}, 3 lost" in done.output
    assert len([line for line in done.output.splitlines() if line.startswith("  lost: ")]) == 3
    assert CliRunner().invoke(softkv, ["check", "--db", str(store)]).exit_code == 1
    assert arena.read_bytes() == content


@pytest.mark.slow
def test_an_error_is_a_message_and_not_a_traceback(tmp_path: Path) -> None:
    """A store that is not there: exit code 1, the message on stderr, nothing on stdout, nothing made."""
    done = softkv_process("check", "--db", tmp_path / "none.softkv")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("softkv: there is no store at ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@cache
def sources() -> str:
    """The library, with each message in one piece, and {} for every field in it."""
    paths = Path(softkv_library.__file__).parent.rglob("*.py")
    joined = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text(encoding="utf-8") for path in paths))
    return re.sub(r"\{[^{}]*\}", "{}", joined)


@pytest.mark.parametrize("phrase", [phrase for phrase, _ in wording.PHRASES])
def test_the_library_says_what_the_command_rewords(phrase: str) -> None:
    """Every phrase that is put in the words of the command stands in the library."""
    assert re.search(re.escape(phrase).replace(r"\{\}", r"(\{\}|'\w+')"), sources()), phrase


@pytest.mark.parametrize(
    "argument", f"{wording.ARGUMENTS}|{wording.BARE}".replace("values?", "value|values").split("|")
)
def test_an_argument_that_becomes_an_option_is_both(argument: str) -> None:
    """Messages of the library name the argument, and a command has the option."""
    assert re.search(rf'"[^"\n]*\b{argument}{"" if argument in wording.BARE else "="}', sources())
    named = set[str]()
    for names in commands():
        one: click.Command = softkv
        for name in names:
            assert isinstance(one, click.Group)
            one = one.get_command(click.Context(one), name) or one
        named.update(option for parameter in one.params for option in parameter.opts)
    assert f"--{argument.replace('_', '-')}" in named


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("which column? Give key=, text= or vector=; there", "which column? Give --key, --text or --vector; there"),
        ("take backend='auto' or 'cpu'; with skip_bad=True", "take --backend auto or cpu; with --skip-bad"),
        ("if they are labels, use value='label'. Or ask with tolerance=0.",
         "if they are labels, use --kind label. Or ask with --tolerance 0."),
        ("wrong_at_most has to be; keeps wrong_at_most=0.05", "--wrong-at-most has to be; keeps --wrong-at-most=0.05"),
        ("numpy.savez(path, vectors=..., values=...).", "numpy.savez(path, vectors=..., values=...)."),
    ],
)  # fmt: skip
def test_arguments_in_messages_become_options(message: str, said: str) -> None:
    """Whatever the sentence around them is; code to type is left alone."""
    assert wording.in_options(message) == said


@pytest.mark.parametrize(
    "text",
    ["kind='number'", "value=, or skip_bad=True", "it's k=1 or value='label' \"`fit`\"", "wrong_at_most",
     "\\' key=, \\", "key= " * 20, "'key= \\" * 9, "\"' key= \\" * 8, ["key= "] * 20, {"a'": " key= " * 20}],
)  # fmt: skip
def test_quoted_texts_of_users_stay_as_given(text: object) -> None:
    """Keys, cells and names of columns, cut short or not; the library's words around them become options."""
    quoted = shown(text)
    refused = f"{quoted} and {quoted} are there already; use on_conflict='replace', or leave out key= ({quoted})."
    said = refused.replace(" on_conflict='replace', or leave out key= (", " --replace, or leave out --key (")
    assert wording.in_options(refused) == said


@pytest.mark.parametrize("name", ["kind=book, key=", "value='label'.csv", "wait, value=, such"])
@pytest.mark.parametrize("given", ["{}", "--db={}", "./{}/"])
def test_paths_in_messages_stay_as_given(name: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path stands in messages without quotes; it is one that the command was given, absolute or not."""
    monkeypatch.setattr(sys, "argv", ["softkv", "add", given.format(name)])
    message = wording.in_options(f"{name}: see /stores/{name}, give value=, such as '{{value=}}'")
    assert message == f"{name}: see /stores/{name}, give --value, such as '{{value=}}'"


def test_what_the_terminal_cannot_show_is_spelled_out(store: Path) -> None:
    """No sign ends in a traceback."""
    script = "from softkv_cli.main import main; main()"
    command = [sys.executable, "-c", script, "list", "--csv", "--db", str(store)]
    with Store.open(store, "w") as opened:
        opened.append(np.eye(1, 3), [4.0], keys=["a 🦊"])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "a \\U0001f98a,4.0" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["list", "info"])
def test_output_that_cannot_be_written_is_one_line(store: Path, command: str) -> None:
    """A full disk behind stdout is exit code 1 and no traceback."""
    script = "from softkv_cli.main import main; main()"
    with open("/dev/full", "w") as full:
        arguments = [sys.executable, "-c", script, command, "--db", str(store)]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "cannot be written" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_note_that_cannot_be_written_fails_no_command(store: Path, unbuffered: str) -> None:
    """With a full disk behind stderr an item is added and the command succeeds; errors keep their exit codes."""
    script = "from softkv_cli.main import main; main()"
    added = ["add", "fig", "4", "--vector", "[0, 0, 1]"]
    for arguments, code in ((added, 0), (["get", "nothing"], 1), (["check", "--nonsense"], 2)):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-c", script, *arguments]
            whole = os.environ | {"SOFTKV_DB": str(store), "PYTHONUNBUFFERED": unbuffered}
            assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, env=whole).returncode == code
    with Store.open(store) as opened:
        assert "fig" in opened


def test_standard_streams_may_be_closed(store: Path) -> None:
    """What was added is added, as the exit code says; what cannot be printed is an error in one line."""
    command = [sys.executable, "-c", "from softkv_cli.main import main; main()"]

    def closing(streams: str, *arguments: str) -> tuple[int, str]:
        script = ["sh", "-c", f'exec "$@" {streams}', "sh", *command, *arguments]
        done = subprocess.run(script, stderr=subprocess.PIPE, text=True, env=os.environ | {"SOFTKV_DB": str(store)})
        return done.returncode, done.stderr

    added = ["add", "fig", "4", "--vector", "[0, 0, 1]"]
    unwritten = "softkv: the output cannot be written: Bad file descriptor\n"
    assert closing("<&- >&- 2>&-", *added) == (0, "")
    assert closing(">&-", *added, "--replace") == (0, "added 0, replaced 1\n")
    assert closing(">&-", "list") == closing(">&-", "info", "--json") == (1, unwritten)
    assert closing("<&-", "get", "-") == (0, "")
    assert closing("<&-", "add", "plum")[0] == 2
    with Store.open(store) as opened:
        assert "fig" in opened
        assert opened.check().ok


@pytest.mark.slow
def test_a_wrong_option_is_exit_code_2() -> None:
    """Usage errors are told from failures."""
    assert softkv_process("check", "--nonsense").returncode == 2


def test_the_store_is_found_by_the_environment(store: Path) -> None:
    """SOFTKV_DB names the store when no option does."""
    done = CliRunner().invoke(softkv, ["check"], env={"SOFTKV_DB": str(store)})
    assert done.exit_code == 0


def test_the_store_may_be_named_before_the_command(store: Path, tmp_path: Path) -> None:
    """It may stand before a command within a group; what stands after it wins, and both win over the environment."""
    for arguments in (["list"], ["index", "status"], ["check"]):
        expected = ran(*arguments, "--db", store)
        assert expected.code == 0
        assert ran("-d", store, *arguments) == ran("--db", store, *arguments) == expected
        assert ran("-d", tmp_path / "none", *arguments, "-d", store) == expected
        done = CliRunner().invoke(softkv, ["-d", str(store), *arguments], env={"SOFTKV_DB": str(tmp_path / "none")})
        assert done.exit_code == 0
    assert ran("index", "-d", store, "status").out == ran("index", "status", "-d", store).out
    assert str(tmp_path / "none") in ran("-d", tmp_path / "none", "list").err
    for command in ("models", "demo", "bench"):
        done = ran("-d", store, command)
        assert (done.code, done.out) == (2, "")
        assert f"`softkv {command}` uses no store" in done.err


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """Copied into a shell, one after the other, they do what they say."""
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    lines = readme.split("## The command")[1].split("```sh\n")[1].split("```")[0]
    softkv_here = f'softkv() {{ "{sys.executable}" -c "from softkv_cli.main import main; main()" "$@"; }}\n'
    done = subprocess.run(["sh", "-e", "-c", softkv_here + lines], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "added 3" in done.stderr
    assert "arithmetic" in done.stdout
    assert (tmp_path / "films.jsonl").exists()


def test_an_end_of_file_in_the_code_is_no_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown, such as that of a module which a full disk has cut off, and no exit with 130 that says nothing."""

    def cut_off(name: str, package: str) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr(main, "import_module", cut_off)
    monkeypatch.setattr(sys, "argv", ["softkv", "path"])
    with pytest.raises(EOFError, match="marshal data too short"):
        main.main()
    atexit.unregister(gc.freeze)
