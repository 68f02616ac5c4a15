"""What README shows of the command and of serving: its lines are run as they stand there, but for the port."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import softkv

from .servers import served

ROOT = Path(__file__).parent.parent


def blocks() -> list[str]:
    """The commands of the section, shell by shell, with lines that go on joined."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## From several shells, languages and machines\n")[1].split("\n## ")[0]
    return [block.replace("\\\n", " ") for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="README shows a line of curl, which is not installed here")
def test_a_second_shell_adds_and_asks_while_the_store_is_served(tmp_path: Path) -> None:
    """The command finds the server through the store; curl asks with the token that was printed."""
    first, second = blocks()
    assert "softkv serve films.softkv " in first
    films = tmp_path / "films.softkv"
    with softkv.open(films) as db:
        db.update({"The Desert Gold": 4, "Two Boats": 3})
    with served(films) as server:
        lines = second.replace("127.0.0.1:7411", f"{server.host}:{server.port}").splitlines()
        assert [line.split()[0] for line in lines] == ["softkv", "export", "curl"]
        assert lines[1].startswith("export SOFTKV_TOKEN=... ")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "SOFTKV_TOKEN": server.token}
        said = [
            subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
            )
            for line in (lines[0], lines[2])
        ]
        assert said[0].stderr == "added 1\n"
        answer = json.loads(said[1].stdout)
        assert answer["scored"] == 3
        assert len(answer["contributors"]) == 2
    with softkv.open(films) as db:
        assert db["The River"] == 4
        assert db.check().ok


@pytest.mark.slow
def test_the_command_finds_the_film_that_was_asked_for(tmp_path: Path) -> None:
    """The lines of README about the command run as they stand, and the first query finds the right film."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"## The command\n\n```sh\n(.*?)```", text, re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e"],
        input=block,
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    first = json.loads(done.stdout.splitlines()[0])
    assert first["contributors"][0]["key"] == "The Lost Map"
    assert first["contributors"][0]["weight"] > 0.9
    assert (tmp_path / "films.jsonl").is_file()
