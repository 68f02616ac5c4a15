"""Heads in the page: brought to that of a server, a switch between them, and the line that asks by them."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

import softkv

from .browsing import opened
from .databases import filled, values_of, vectors_of
from .listening import guarded
from .looking import answered, asks, looking, rents_at, says
from .servers import eventually

pytestmark = pytest.mark.chromium
TEXT = (Path(__file__).parent.parent / "docs" / "page.md").read_text("utf-8")
(WRITTEN,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LARGE = 2500  # items, of which a page shows some


@pytest.fixture
def heads() -> softkv.Heads:
    """Two heads for keys of five numbers and values of three."""
    return softkv.Heads.random(2, query_width=5, key_width=5, value_width=3, head_width=3, seed=0)


@pytest.fixture
def file(heads: softkv.Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Their file, by the line of the document."""
    monkeypatch.chdir(tmp_path)
    exec(WRITTEN, {"Path": Path, "dataclasses": dataclasses, "json": json, "heads": heads})
    return tmp_path / "heads.json"


def cells(seen: Any) -> list[float]:
    """The numbers of the answer."""
    found: list[float] = json.loads(seen.page.get_attribute("#value", "data-exact") or "[]")
    return found


@pytest.mark.parametrize("count", [40, LARGE])
def test_heads_are_brought_to_the_page_of_a_server(
    count: int, browser: Any, tmp_path: Path, heads: softkv.Heads, file: Path
) -> None:
    """The store answers by all of them, at the ends of the slider as well; the switch shows one alone."""
    filled(tmp_path / "s", "vector", count, compatibility="dot").close()
    with (
        guarded(tmp_path / "s", read_only=True) as server,
        looking(browser, server) as seen,
        softkv.open(tmp_path / "s", "r") as db,
    ):
        assert answered(seen)
        before = cells(seen)
        assert not seen.page.is_visible("#heads")
        seen.page.set_input_files("#projections", file)
        assert says(seen, "#heads", "head 2")
        assert answered(seen)
        query = db.item(seen.page.text_content("#asked").split("“")[1][:-1]).vector
        answer = db.lookup(query, heads=heads, show=12)
        assert cells(seen) == pytest.approx(answer.value.tolist(), rel=1e-6)
        assert seen.exact("#error") == pytest.approx(answer.error, rel=1e-6)
        assert seen.exact("#effective") == pytest.approx(np.mean(answer.effective), rel=1e-6)
        assert seen.all_exact("#bars .share") == pytest.approx([one.weight for one in answer.contributors], rel=1e-5)
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()
        for head in (0, 1):
            seen.page.click(f"#heads button:nth-child({head + 2})")
            assert eventually(lambda n=head: seen.exact("#effective") == pytest.approx(answer.effective[n], rel=1e-6))
            assert seen.exact("#logmass") == pytest.approx(answer.log_mass[head], rel=1e-6)
        plain = np.repeat(np.mean(values_of("vector", count), 0)[None, None], 2, 0)
        ends = {"#hard": db.lookup(query, heads=heads, k=1).value, "#mean": heads.project(plain)[0]}
        for button, value in ends.items():
            seen.page.click(button)
            assert eventually(lambda value=value: cells(seen) == pytest.approx(value.tolist(), rel=1e-5, abs=1e-6))
            assert answered(seen)
            assert cells(seen) == pytest.approx(value.tolist(), rel=1e-5, abs=1e-6)
        seen.page.click("#usual")
        seen.page.click("#headless")
        assert eventually(lambda: not seen.page.is_visible("#heads"))
        assert eventually(lambda: cells(seen) == pytest.approx(before, rel=1e-9))
        assert seen.told == []


def test_questions_that_were_typed_are_asked_by_heads(browser: Any, tmp_path: Path) -> None:
    """They are, typed before the heads came or after, and when another client has written to the store."""
    heads = softkv.Heads.random(2, query_width=256, key_width=256, value_width=1, head_width=8, seed=0)
    (tmp_path / "heads.json").write_text(json.dumps(dataclasses.asdict(heads), default=lambda x: x.tolist()))
    path = rents_at(tmp_path / "rents")
    with guarded(path) as server, looking(browser, server) as seen:

        def agrees(question: str) -> None:
            with softkv.open(path, "r") as db:
                value = db.lookup(question, heads=heads).value
            assert eventually(lambda: cells(seen) == pytest.approx(value.tolist(), rel=1e-6))
            assert seen.page.is_visible("#heads")

        assert answered(seen)
        asks(seen, "two rooms near the park")
        seen.page.set_input_files("#projections", tmp_path / "heads.json")
        assert says(seen, "#heads", "head 2")
        agrees("two rooms near the park")
        asks(seen, "a palace")
        agrees("a palace")
        assert server.ask("PATCH", "/v1/rents/items", {"keys": ["a large house"], "values": [9999]})[0] == 200
        assert says(seen, "#list", "9,999")
        agrees("a palace")
        assert seen.told == []


def test_heads_that_do_not_fit_leave_the_page_as_it_was(browser: Any, tmp_path: Path, file: Path) -> None:
    """Those of another width and what is no JSON are refused; where values are labels there is no place for any."""
    path = rents_at(tmp_path / "rents")
    filled(tmp_path / "colours", "label").close()
    (tmp_path / "other.json").write_text("w_q: 1")
    with guarded(path, tmp_path / "colours") as server, looking(browser, server) as seen:
        assert answered(seen)
        shown = seen.exact("#value")
        for name, told in ((file, "these heads take"), (tmp_path / "other.json", "This is no JSON")):
            seen.page.set_input_files("#projections", name)
            assert says(seen, "#problem", told)
            assert not seen.page.is_visible("#heads")
            assert seen.exact("#value") == shown
        seen.page.select_option("#store", "colours")
        assert says(seen, "#title", "colours")
        assert not seen.page.is_visible("#projections")


@pytest.mark.parametrize("link", ["", "#T=0.3", "#T=hard", "#T=mean"])
def test_the_line_for_python_gives_what_heads_show(
    link: str, browser: Any, tmp_path: Path, heads: softkv.Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does at the ends of the slider as well."""
    monkeypatch.chdir(tmp_path)
    with filled(tmp_path / "s.softkv", "vector", 40, compatibility="dot") as db:
        db.page(tmp_path / "page.html", queries=vectors_of(1, seed=7), heads=heads)
    with opened(browser, tmp_path / "page.html", link) as seen:
        shown, line = cells(seen), seen.page.text_content("#line-python")
    answer = eval(line, {"softkv": softkv, "heads": heads})
    assert answer.value.tolist() == pytest.approx(shown, rel=1e-5, abs=1e-6)
