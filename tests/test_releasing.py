"""What a release states about itself, and the steps of making one that CONTRIBUTING.md lists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import softkv

ROOT = Path(__file__).parent.parent
STEPS = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Making a release\n")[2]


def test_the_changelog_begins_with_the_version() -> None:
    """The newest part of the changelog is about the version of the package, with its date once it is released."""
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first
    assert re.fullmatch(re.escape(softkv.__version__) + r" \((unreleased|\d{4}-\d\d-\d\d)\)", first[1])


def test_the_package_claims_the_system_that_tests_run_on() -> None:
    """The classifiers name Linux alone, and README says the same of macOS and Windows as docs/storage.md."""
    named = re.findall(r'"Operating System :: ([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert named == ["POSIX :: Linux"]
    untested = r"macOS[^.]*Windows[^.]*neither[^.]*tested"
    for page in ("README.md", "docs/storage.md"):
        assert re.search(untested, (ROOT / page).read_text(encoding="utf-8")), page


def test_the_steps_of_a_release_can_be_taken() -> None:
    """Scripts, modules and files that the steps name exist, and the scripts take the options."""
    assert [int(number) for number in re.findall(r"^(\d)\. ", STEPS, re.MULTILINE)] == [1, 2, 3, 4]
    said = re.findall(r"`([^`]+)`", STEPS)
    assert {"sh scripts/test --thorough", "python -m build"} <= set(said)
    for script in {one.split()[1] for one in said if one.startswith("sh ")}:
        assert (ROOT / script).is_file(), script
    for module in {one.split()[2] for one in said if one.startswith("python -m ")} - {"build"}:
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
    for path in re.findall(r"[\w/]+\.(?:md|py)\b", STEPS):
        assert (ROOT / path).is_file(), path


@pytest.mark.slow
@pytest.mark.ci
def test_a_change_is_checked_without_torch(tmp_path: Path) -> None:
    """On a machine without torch `sh scripts/check` lints and checks types, and says what the tests would need."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    bare = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    bare["PATH"] = os.pathsep.join(one for one in bare["PATH"].split(os.pathsep) if ".venv" not in one)
    bare["PYTHON"] = str(Path(sys.executable).resolve())
    done = subprocess.run(["sh", "scripts/check"], cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Success: no issues found" in done.stdout
    assert "the tests need torch" in done.stderr
    assert not list((tmp_path / ".venv").glob("lib/*/site-packages/torch"))
    (tmp_path / "softkv" / "kinds.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    failed = subprocess.run(["sh", "scripts/check"], cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert failed.returncode != 0, failed.stdout
