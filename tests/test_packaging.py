"""The package as others get it: a wheel, installed in an empty environment outside the checkout."""

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("door", ["langchain", "haystack"])
def test_a_door_opens_from_the_wheel(door: str, wheel: Path, thorough: bool, tmp_path: Path) -> None:
    """The examples of a door run in an environment that holds nothing but its extra."""
    if not thorough:
        pytest.skip("installing what LangChain and Haystack need takes long: --thorough")
    script = f"import doctest, softkv.doors.{door} as door; print(doctest.testmod(door))"
    told = run(environment(f"{wheel}[{door}]", tmp_path) / "python", "-c", script, folder=tmp_path)
    assert re.search(r"failed=0, attempted=[1-9]", told), told
