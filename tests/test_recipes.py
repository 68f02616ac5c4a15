"""The recipes of CONTRIBUTING.md: each, applied to a copy of the project, passes its tests, and so does its page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .test_docs import PAGES

ROOT = Path(__file__).resolve().parents[1]
RECIPES = re.findall(
    r"^### (.+?)\n.*?^```diff\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M | re.S
)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(("change", "diff"), RECIPES, ids=[name for name, _ in RECIPES])
def test_a_recipe_works_as_it_stands(tmp_path: Path, change: str, diff: str) -> None:
    """Its lines fit the files they are about, its form is the house's, and its tests and the code of its page pass."""
    for room in ("softkv", "cli", "data", "tests", "docs"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__", "figures"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    brought = re.findall(r"^\+\+\+ b/(tests/test_\w+\.py)$", diff, re.M)
    assert brought, f"the recipe of {change} brings no test"
    subprocess.run(["git", "apply", "-C1", "-"], cwd=tmp_path, input=diff.encode(), check=True)
    ruff, touched = Path(sys.executable).with_name("ruff"), re.findall(r"^\+\+\+ b/(\S+\.py)$", diff, re.M)
    for judged in (["check"], ["format", "--check"]):
        subprocess.run([ruff, *judged, *touched], cwd=tmp_path, check=True)
    for name, room in (("softkv_cli", "cli"), ("softkv_examples", "data")):
        (tmp_path / name).symlink_to(room)
    pages = {str(page.relative_to(ROOT)) for page in PAGES} & set(re.findall(r"^\+\+\+ b/(\S+\.md)$", diff, re.M))
    printed = [f"tests/test_docs.py::test_pages_print_what_they_say[{page}]" for page in sorted(pages)]
    for command in (
        ["tests.pages"],
        ["pytest", "-q", "-p", "no:cacheprovider", *brought, "tests/test_pages.py", *printed],
    ):
        told = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr
