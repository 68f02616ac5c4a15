"""The pages that show code: every block runs, prints what the page says, and agrees with the reference.

While a page runs, each plain lookup it makes is made once more by the reference, so a number on the page cannot be both
printed and wrong.
"""

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.maths.compatibility import Compatibility

from . import reference

ROOT = Path(__file__).parent.parent
STORIES = ("embedders", "filters", "lookup")
PAGES = sorted([*(ROOT / "docs" / f"{name}.md" for name in STORIES), *ROOT.glob("data/*/README.md")])
BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def failures(text: str, name: str) -> tuple[int, str]:
    """How many examples of a page fail, and the report about them."""
    code = "\n".join(BLOCK.findall(text))
    page = doctest.DocTestParser().get_doctest(code, {}, name, name, 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(page, out=said.append)
    return result.failed, "".join(said)


def checked(count: list[int]) -> Any:
    """soft_lookup, each answer compared with the reference; `count` grows by the lookups compared."""
    lookup = softkv.soft_lookup

    def compare(queries: Any, keys: Any, values: Any, **options: Any) -> Any:
        found = lookup(queries, keys, values, **options)
        if options.get("heads") is None and not isinstance(options.get("compatibility"), Compatibility):
            asked = [queries] if np.ndim(queries) == 1 else queries
            answers = [found] if np.ndim(queries) == 1 else list(found)
            for row, (query, answer) in enumerate(zip(asked, answers, strict=True)):
                agree(answer, query, keys, values, row, **options)
                count[0] += 1
        return found

    return compare


def agree(answer: Any, query: Any, keys: Any, values: Any, row: int, **options: Any) -> None:
    """Compare one answer with the reference."""
    score = getattr(reference, options.pop("compatibility", "scaled_dot"))
    if isinstance(values[0], str):
        values = [[float(value == label) for label in answer.labels] for value in values]
    columns = [value if np.ndim(value) else [value] for value in values]
    if options.pop("causal", False):
        options["mask"] = [other <= row for other in range(len(keys))]
    expected = reference.lookup(query, keys, columns, score=score, **options)
    assert np.ravel(answer.value) == pytest.approx(expected.value, rel=1e-12, abs=1e-12)
    assert answer.log_mass == pytest.approx(expected.log_mass, rel=1e-12, abs=1e-12)
    assert answer.effective == pytest.approx(expected.effective, rel=1e-12)
    if answer.spread is not None:
        assert answer.spread == pytest.approx(expected.spread[0], rel=1e-9, abs=1e-7 * np.ptp(columns))
    for one in answer.contributors:
        assert one.weight == pytest.approx(np.exp(expected.logits[one.row] - expected.log_mass), rel=1e-12)
        assert one.score == pytest.approx(expected.logits[one.row] * options.get("temperature", 1.0), abs=1e-12)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_print_what_they_say(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a page, run from top to bottom, gives the output that stands below it."""
    count = [0]
    monkeypatch.setattr(softkv, "soft_lookup", checked(count), raising=False)
    text = page.read_text(encoding="utf-8")
    failed, report = failures(text, page.name)
    assert not failed, report
    assert not re.search(r"^>>> ", BLOCK.sub("", text), re.MULTILINE), "an example stands outside of a pycon block"


def test_the_story_is_compared_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page about lookups makes its plain lookups under the eye of the reference, and tells its steps in order."""
    count = [0]
    monkeypatch.setattr(softkv, "soft_lookup", checked(count), raising=False)
    text = (ROOT / "docs" / "lookup.md").read_text(encoding="utf-8")
    failures(text, "lookup.md")
    assert count[0] > 50
    steps = ["dictionary", "near miss", "Scores", "Temperature", "Weights", "blend", "Heads"]
    positions = [re.search(rf"^## .*{step}", text, re.MULTILINE) for step in steps]
    found = [position.start() for position in positions if position is not None]
    assert len(found) == len(steps)
    assert found == sorted(found)


def test_a_page_that_is_wrong_is_seen_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page fails for a printed number that is off, and for a lookup that the reference contradicts."""
    wrong = "```pycon\n>>> 1 + 1\n3\n```\n"
    assert failures(wrong, "wrong")[0] == 1
    text = (ROOT / "data" / "incomes" / "README.md").read_text(encoding="utf-8")
    monkeypatch.setattr(softkv, "soft_lookup", checked([0]), raising=False)
    monkeypatch.setattr(reference, "gaussian", lambda query, key: 2 * reference.laplace(query, key))
    assert failures(text, "incomes")[0] > 0


@pytest.mark.parametrize(
    "name", ["softkv.plain", "softkv.answer", "softkv.maths.heads", "softkv.embedders", "softkv.embedders.registry"]
)
def test_public_entry_points_carry_an_example_that_runs(name: str) -> None:
    """The examples in the docstrings of what the root exports print what they say."""
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.attempted > 0
    assert result.failed == 0
