"""The package as others get it: a wheel, installed in an empty environment outside the checkout."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from softkv.embedders.onnx import write

from .embedding import WORDS, tiny_model

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.ci]


def run(*command: object, folder: Path) -> str:
    """What a command prints; a failure shows all of it."""
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout: building in place would leave files there."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "-co", "--exclude-standard", folder=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, folder / "source", folder=folder)
    (built,) = folder.glob("*.whl")
    return built


def environment(wheel: object, folder: Path) -> Path:
    """The folder of commands of an environment that holds nothing but a wheel and what it asks for."""
    venv.create(folder, with_pip=True)
    pip = folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
    run(*pip, wheel, folder=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with no extra."""
    return environment(wheel, tmp_path_factory.mktemp("environment"))


def test_the_wheel_installs_only_our_names(wheel: Path) -> None:
    """A wheel brings softkv, its command and its examples, and no top-level cli, data or tests."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "softkv",
        "softkv_cli",
        "softkv_examples",
    }
    assert "softkv/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    """No module and no data file of the checkout is missing from the wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, package in (("softkv", "softkv"), ("cli", "softkv_cli"), ("data", "softkv_examples")):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{package}/{path.relative_to(ROOT / folder)}" in names


def test_the_bundled_embedder_is_small(wheel: Path) -> None:
    """The static embedder takes at most 8 MB of the wheel, and comes with its licence and attribution."""
    files = [one for one in zipfile.ZipFile(wheel).infolist() if one.filename.startswith("softkv/embedders/bundled/")]
    assert sum(one.compress_size for one in files) <= 8_000_000
    assert {Path(one.filename).name for one in files} >= {"vectors.npy", "tokenizer.json", "LICENSE", "NOTICE"}


def test_the_command_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """`softkv --version` and `--help` run outside the checkout, with no extra installed."""
    assert run(installed / "softkv", "--version", folder=tmp_path).strip() == "softkv, version 0.1.0"
    assert "Usage: softkv" in run(installed / "softkv", "--help", folder=tmp_path)


def test_the_examples_run_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The demonstration works from an installed wheel, outside the checkout, and leaves nothing behind."""
    said = run(installed / "python", "-m", "softkv_examples", folder=tmp_path)
    assert "49,493 (values spread by 2,019)" in said
    assert "What did they want?" in said
    assert list(tmp_path.iterdir()) == []


def test_texts_are_embedded_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The bundled embedder is found where the wheel put it."""
    script = "from softkv.embedders import find; print(find('static').documents(['a boy looking for treasure']).shape)"
    assert run(installed / "python", "-c", script, folder=tmp_path).strip() == "(1, 256)"


def test_the_installed_types_are_seen(installed: Path) -> None:
    """The installed package says that it is typed, and imports without any extra."""
    script = "import softkv.storage, importlib.resources as r; print(r.files('softkv').joinpath('py.typed').is_file())"
    assert run(installed / "python", "-c", script, folder=installed).strip() == "True"


DOCTESTS = """
import doctest, softkv.doors.{} as door
found = doctest.testmod(door)
assert found.attempted and not found.failed, found
"""
DOORS = {name: DOCTESTS.format(name) for name in ("sklearn", "torch", "langchain", "haystack")} | {
    "parquet": """
import pyarrow, softkv
with softkv.open("s", value="number") as db:
    db.add(pyarrow.table({"title": ["tea"], "stars": [4.0]}), key="title", value="stars")
    assert db.to_arrow()["value"].to_pylist() == db.lookup(["coffee"]).to_arrow()["value"].to_pylist() == [4.0]
""",
    "mcp": """
import json, subprocess, sys
hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}
asked = [{"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"}]
command = [sys.executable, "-m", "softkv_cli", "mcp", "--db", "m"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as client:
    client.stdin.writelines(json.dumps({"jsonrpc": "2.0"} | one) + "\\n" for one in asked)
    assert json.loads(client.stdout.readline())["result"]["serverInfo"]["name"] == "softkv"
    client.stdin.write('{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}\\n')
    assert len(json.loads(client.stdout.readline())["result"]["tools"]) == 5
""",
    "onnx": """
import softkv
with softkv.open("s", embedder="./model") as db:
    db["{}"] = 1.0
    assert db.lookup("{}").value == 1.0
""".format(*WORDS),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_opens_from_the_wheel(door: str, wheel: Path, thorough: bool, tmp_path: Path) -> None:
    """Its lines run beside the libraries that are here; with --thorough where there is nothing but its extra.

    But for torch, which comes with gigabytes for GPUs.
    """
    (work := tmp_path / "work").mkdir()
    if door == "onnx":
        write(str(tiny_model(tmp_path / "tiny")), work / "model")
    alone = thorough and door != "torch"
    python = environment(f"{wheel}[{door}]", tmp_path / "alone") / "python" if alone else Path(sys.executable)
    place = tmp_path / ("alone" if alone else "unpacked")
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    script = f"import softkv; assert softkv.__file__.startswith({str(place)!r}), softkv.__file__" + DOORS[door]
    run("env", f"PYTHONPATH={'' if alone else place}", python, "-c", script, folder=work)
