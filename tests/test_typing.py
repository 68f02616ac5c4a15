"""What a type checker knows of answers."""

import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

from softkv.asking.asked import Lookup, Nearest
from softkv.database import SoftKV

ASKED = """
import numpy as np
import softkv

db = softkv.open("nowhere.softkv")
reveal_type(db.lookup("a text"))
reveal_type(db.lookup([1.0, 2.0], k=3, where={"year": 1990}))
reveal_type(db.lookup(["a text", "another"], temperature=0.1))
reveal_type(db.nearest([[1.0], [2.0]]))
reveal_type(db.nearest("a text").contributors[0].weight)
reveal_type(db.lookup(np.zeros(3)))
with db.snapshot() as seen:
    reveal_type(seen.lookup("a text"))
answer, answers = db.lookup("a text"), db.lookup(["a text", "another"])
reveal_type((answer.known, answer.interval(), answer.labels_within(), answer.radius(), answer.to_json()))
reveal_type((answers.radius(), answers.labels_within(), answers[0], list(answers)))
reveal_type(softkv.soft_lookup([1.0], [[1.0]], [1.0]))
db.lookup("a text", temprature=0.1)
"""


@pytest.mark.parametrize(("method", "options"), [(SoftKV.lookup, Lookup), (SoftKV.nearest, Nearest)])
def test_a_type_checker_knows_the_options_of_lookups(method: object, options: type) -> None:
    """It knows all of them, and no others."""
    assert options.__annotations__.keys() == signature(method).parameters.keys() - {"self", "query"}  # type: ignore[arg-type]


def test_what_the_surface_returns_has_a_type() -> None:
    """Values alone have none, which are of the kind of the store, and lookups, which are overloaded."""
    page = (Path(__file__).parents[1] / "docs" / "reference.md").read_text(encoding="utf-8")
    returned = dict(re.findall(r"^([a-z][\w.]*)\([^`]*?\) -> ([^`]+?)$", page, re.MULTILINE))
    assert len(returned) > 50
    assert [name for name, kind in returned.items() if kind == "Any"] == ["get", "lookup", "nearest", "pop"]
    assert "`: Any`" not in page
    assert ": Any`: " not in page


@pytest.mark.slow
def test_a_type_checker_knows_one_answer_from_many(tmp_path: Path) -> None:
    """The type of the query tells; of an array it knows neither, and a misspelt option is found."""
    file = tmp_path / "asked.py"
    file.write_text(ASKED, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(file)]  # by the cache of the project
    told = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False).stdout
    revealed = [line.partition('is "')[2].rstrip('"') for line in told.splitlines() if "Revealed" in line]
    one, many = "softkv.answer.Answer", "softkv.answer.Answers"
    array, answers, found = "numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]", revealed[:7], revealed[7:]
    assert answers == [one, one, many, many, "float", "Any", one], told
    assert found[0] == "tuple[bool | None, tuple[float, float], tuple[object, ...], float, str]"
    assert found[1] == f"tuple[{array}, list[tuple[object, ...]], {one}, list[{one}]]"
    assert found[2] == f"{one} | {many}"
    assert 'No overload variant of "lookup"' in told
