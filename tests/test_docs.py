"""The pages that show code: every block runs, prints what the page says, and agrees with the reference.

While a page runs, each plain lookup it makes, in arrays or in a store, is made once more by the reference, so a number
on the page cannot be both printed and wrong. Lookups with heads, matrices and functions are compared in test_examples;
those by what a store has learned are not compared.
"""

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.answer import Answers
from softkv.asking import asker
from softkv.asking.question import Question
from softkv.asking.view import View
from softkv.maths.compatibility import Compatibility

from . import reference

ROOT = Path(__file__).parent.parent
STORIES = ("backup", "cluster", "doors", "embedders", "filters", "index", "learning", "library", "lookup", "words")
PAGES = sorted([*(ROOT / "docs" / f"{name}.md" for name in STORIES), *ROOT.glob("data/*/README.md")])
BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
EXAMPLES = [("incomes", 10), ("books", 4), ("hours", 30), ("car", 10), ("words", 1), ("ways", 8), ("apple", 16)]
PAIRS = 6000  # of queries and keys that the reference compares in one lookup; of more queries it takes the first


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


def checked_store(ask: Any, count: list[int]) -> Any:
    """The lookup of a store, its answers compared with the reference; `count` grows by the lookups compared."""

    def compare(view: View, question: Question) -> Answers:
        found: Answers = ask(view, question)
        if question.heads is None and isinstance(question.compatibility, str) and not question.by_learned:
            rows = view.snapshot.in_order()
            places = {row: place for place, row in enumerate(rows.tolist())}  # the reference has no rows, but an order
            keys = view.snapshot.vectors(rows).tolist()
            values = view.snapshot.values(rows).tolist()
            if view.labels is not None:
                values = [view.labels[code] for code in values]
            matching = None if question.where is None else view.snapshot.matching(question.where)[rows].tolist()
            queries = keys if question.queries is None else np.asarray(question.queries).tolist()
            for row, query in enumerate(queries[: max(1, PAIRS // len(keys))]):
                agree(found[row], query, keys, values, row, places=places, **options_of(question, row, matching))
                count[0] += 1
        return found

    return compare


def options_of(question: Question, row: int, matching: list[bool] | None) -> dict[str, Any]:
    """What the reference is to be told of one query; which items match its filter is tests/test_filters.py's to say."""
    temperatures = np.ravel(question.temperature)
    assert question.mask is None or matching is None, "teach this test about masks with filters"
    return {
        "compatibility": question.compatibility,
        "temperature": float(temperatures[row % len(temperatures)]),
        "k": question.k,
        "mask": (question.mask[row] if np.ndim(question.mask) == 2 else question.mask)
        if matching is None
        else matching,
        "causal": question.causal,
    }


def agree(answer: Any, query: Any, keys: Any, values: Any, row: int, **options: Any) -> None:
    """Compare one answer with the reference; that of a store, whose keys are float32, within the error it states."""
    score = getattr(reference, options.pop("compatibility", "scaled_dot"))
    places = options.pop("places", range(len(keys)))
    if isinstance(values[0], str):
        values = [[float(value == label) for label in answer.labels] for value in values]
    columns = [value if np.ndim(value) else [value] for value in values]
    if options.pop("causal", False):
        options["mask"] = [other <= row for other in range(len(keys))]
    expected = reference.lookup(query, keys, columns, score=score, **options)
    in_arrays = answer.error is None
    near = {"rel": 1e-12, "abs": 1e-12} if in_arrays else {"rel": 1e-4, "abs": 1e-4}
    if in_arrays:
        assert np.ravel(answer.value) == pytest.approx(expected.value, **near)
    else:
        assert np.linalg.norm(np.ravel(answer.value) - expected.value) <= answer.error
    assert answer.log_mass == pytest.approx(expected.log_mass, **near)
    assert answer.effective == pytest.approx(expected.effective, **near)
    if answer.spread is not None:
        assert answer.spread == pytest.approx(expected.spread[0], rel=1e-5, abs=1e-7 * np.ptp(columns))
    for one in answer.contributors:
        assert one.weight == pytest.approx(np.exp(expected.logits[places[one.row]] - expected.log_mass), **near)
        assert one.score == pytest.approx(expected.logits[places[one.row]] * options.get("temperature", 1.0), **near)


def witnessed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on every plain lookup is compared with the reference; how many have been, in a list of one."""
    count = [0]
    monkeypatch.setattr(softkv, "soft_lookup", checked(count), raising=False)
    for name in ("ask", "ask_each"):
        monkeypatch.setattr(asker, name, checked_store(getattr(asker, name), count))
    return count


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_print_what_they_say(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The code of a page, run from top to bottom in an empty directory, gives the output that stands below it."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    if "softkv_examples.questions" in text:
        request.getfixturevalue("real_data")
    witnessed(monkeypatch)
    for part in re.split("^(?=## )", text, flags=re.MULTILINE) if page.stem == "doors" else [text]:  # a door at a time
        failed, report = failures(part, page.name)
        assert not failed, report
    assert not re.search(r"^>>> ", BLOCK.sub("", text), re.MULTILINE), "an example stands outside of a pycon block"


def test_the_story_is_compared_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page about lookups makes its plain lookups under the eye of the reference, and tells its steps in order."""
    count = witnessed(monkeypatch)
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
    witnessed(monkeypatch)
    monkeypatch.setattr(reference, "gaussian", lambda query, key: 2 * reference.laplace(query, key))
    monkeypatch.setattr(reference, "scaled_dot", reference.dot)
    for name in ("incomes", "words"):  # one looks up in a store, the other in arrays
        text = (ROOT / "data" / name / "README.md").read_text(encoding="utf-8")
        assert "AssertionError" in failures(text, name)[1]


@pytest.mark.parametrize(("name", "least"), EXAMPLES)
def test_the_lookups_of_an_example_are_compared_with_the_reference(
    name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples, too, make their plain lookups under the eye of the reference."""
    count = witnessed(monkeypatch)
    assert not failures((ROOT / "data" / name / "README.md").read_text(encoding="utf-8"), name)[0]
    assert count[0] >= least


ENTRANCES = ["answer", "database.handle", "database.opening", "embedders", "embedders.registry", "maths.heads", "plain"]


@pytest.mark.parametrize("name", ["softkv_examples", *(f"softkv.{name}" for name in ENTRANCES)])
def test_public_entry_points_carry_an_example_that_runs(name: str) -> None:
    """The examples in the docstrings of what the root exports print what they say."""
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_way_through_the_pages_names_each_of_them() -> None:
    """The list in docs/README.md leads to every page, and to no other."""
    way = ROOT / "docs" / "README.md"
    named = set(re.findall(r"\]\((\w+\.md)", way.read_text(encoding="utf-8")))
    assert named == {page.name for page in way.parent.glob("*.md")} - {way.name}
