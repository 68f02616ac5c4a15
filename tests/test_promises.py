"""The documents say what is there: every test they name exists, and every error they list is one of ours."""

import ast
import re
from pathlib import Path

import pytest

from softkv import errors

ROOT = Path(__file__).parent.parent
STORAGE = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", STORAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_promise_names_a_test_that_is_there(file: str, name: str) -> None:
    """A promise of docs/storage.md is held by a test of that name in that file."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_promise_is_held_by_a_test() -> None:
    """No row of the table of promises goes without."""
    table = STORAGE.split("## Promises")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| you may")]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row] == []


def test_the_errors_that_the_documents_list_exist() -> None:
    """The table of errors names classes of softkv.errors."""
    table = STORAGE.split("## Errors")[1].split("\n## ")[0]
    names = re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)
    assert len(names) > 5
    assert [name for name in names if not hasattr(errors, name)] == []


@pytest.mark.parametrize("document", ["README.md", "docs/storage.md", "docs/measurements.md"])
def test_the_files_that_the_documents_name_exist(document: str) -> None:
    """No document points to a file that is not there."""
    text = (ROOT / document).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []
    named = re.findall(r"`((?:softkv|cli|data|tests|scripts|docs)/[\w/.]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
