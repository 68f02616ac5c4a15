"""The `softkv` command: its help, its exit codes, its messages."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from softkv_cli.main import softkv

from softkv.storage import Store


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


@pytest.mark.parametrize("command", [[], *([name] for name in softkv.commands)])
def test_every_help_ends_with_an_example(command: list[str]) -> None:
    """Every help ends with a line that can be run."""
    said = CliRunner().invoke(softkv, [*command, "--help"]).output
    assert said.strip().splitlines()[-1].strip().startswith("Example: softkv")


def test_check_says_that_all_is_well(store: Path) -> None:
    """A sound store gives one line and exit code 0."""
    done = CliRunner().invoke(softkv, ["check", "--db", str(store)])
    assert done.exit_code == 0
    assert f"{store}: ok, commit 1, 3 items" in done.output


def test_check_names_damage_and_repairs_to_a_new_place(store: Path, tmp_path: Path) -> None:
    """Damage is named with exit code 1; --repair-to saves nothing that is doubtful and leaves the old store alone."""
    arena = store / "generation-000001" / "values.number"
    content = bytearray(arena.read_bytes())
    content[-1] ^= 1
    arena.write_bytes(content)
    done = CliRunner().invoke(softkv, ["check", "--db", str(store), "--repair-to", str(tmp_path / "new.softkv")])
    assert done.exit_code == 1
    assert "do not match their checksum" in done.output
    assert "0 items saved" in done.output
    assert arena.read_bytes() == content


@pytest.mark.slow
def test_an_error_is_a_message_and_not_a_traceback(tmp_path: Path) -> None:
    """A store that is not there: exit code 1, the message on stderr, nothing on stdout, nothing made."""
    done = softkv_process("check", "--db", tmp_path / "none.softkv")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("softkv: there is no store at ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_wrong_option_is_exit_code_2() -> None:
    """Usage errors are told from failures."""
    assert softkv_process("check", "--nonsense").returncode == 2


def test_the_store_is_found_by_the_environment(store: Path) -> None:
    """SOFTKV_DB names the store when no option does."""
    done = CliRunner().invoke(softkv, ["check"], env={"SOFTKV_DB": str(store)})
    assert done.exit_code == 0
