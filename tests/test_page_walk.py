"""docs/page.md, step by step in a real browser: what it says is what one sees."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .browsing import Watched, opened
from .servers import eventually

pytestmark = [pytest.mark.chromium, pytest.mark.ci]
TEXT = (Path(__file__).parent.parent / "docs" / "page.md").read_text("utf-8")
STEPS = dict(re.findall(r"^(\d)\. (.*?)(?=^\d\. |^## )", TEXT, re.MULTILINE | re.DOTALL))
SHELL = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[0]


def says(step: int, *told: str | None) -> None:
    """The step of the document has these words."""
    words = " ".join(STEPS[str(step)].split())
    for one in told:
        assert one is not None
        assert one in words, (one, words)


def make(folder: Path) -> Path:
    """The page that the commands of the document make, in a folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", SHELL], cwd=folder, check=True, capture_output=True, env=os.environ | {"PATH": path})
    return folder / "page.html"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the document."""
    return make(tmp_path_factory.mktemp("walk"))


@pytest.fixture
def seen(browser: Any, file: Path) -> Iterator[Watched]:
    """That page in a browser."""
    with opened(browser, file) as found:
        yield found


def text(seen: Watched, place: str) -> str:
    """What an element shows."""
    return str(seen.page.text_content(place)).strip()


def test_step_1_a_dictionary_fails(seen: Watched) -> None:
    """The exact way has no answer."""
    says(1, text(seen, "#asked"), text(seen, "#ways caption"), "no such key")
    assert text(seen, "#ways tbody tr:first-child").startswith("exactno such key")


def test_step_2_a_soft_lookup_answers(seen: Watched) -> None:
    """The answer has a spread, and what it comes from."""
    says(2, f"{text(seen, '#value')} {text(seen, '#spread')}", text(seen, "#weights-title"))
    for place in (1, 2):
        bar = f"#bars li:nth-child({place})"
        says(2, f"{text(seen, f'{bar} .share')} ", f"“{text(seen, f'{bar} .name')}”")


def test_step_3_a_weight_is_arithmetic(seen: Watched) -> None:
    """Score, logit and weight stand in the steps, and those of another weight are its own."""
    lines = seen.page.eval_on_selector_all(
        "#arithmetic tr", "all => all.map(one => one.lastChild.textContent.slice(2))"
    )
    says(3, text(seen, "#steps-title"), f"a score of {lines[1]}.", f"it is {lines[2]}.", f"is {lines[4]}.")
    seen.page.click("#bars li:nth-child(4) button")
    seen.settled()
    assert text(seen, "#steps-of").startswith(text(seen, "#bars li:nth-child(4) .name"))


def test_step_4_temperature_decides_how_many_have_a_say(seen: Watched) -> None:
    """One item has it, or up to all five."""
    for button, effective, told in (("#hard", 1, "the best key takes all, {}."), ("#mean", 5, "was asked, {}.")):
        seen.page.click(button)
        seen.settled()
        says(4, f"*{text(seen, button)}*", told.format(text(seen, "#value")))
        assert seen.exact("#effective") == pytest.approx(effective)
    before = text(seen, "#value")
    seen.page.click("#usual")
    seen.settled()
    says(4, f"*{text(seen, '#usual')}*")
    assert text(seen, "#value") != before


def test_step_5_the_map_is_only_a_map(seen: Watched) -> None:
    """A key is chosen, its neighbours are listed, and it asks."""
    assert "Colour is value" in text(seen, "#legend")
    seen.page.focus("#chart")
    for turn in range(40):
        if seen.page.is_visible("#tip") and text(seen, "#tip strong") == "a large house":
            break
        seen.page.keyboard.press("ArrowRight")
        if "a large house" not in text(seen, "#tip strong"):
            seen.page.keyboard.press("ArrowDown" if turn % 2 else "ArrowUp")
    else:
        seen.page.click("#list tbody tr:nth-child(5) button")
    seen.page.keyboard.press("Enter")
    seen.settled()
    assert seen.page.locator("#near li").count() == 4
    says(5, "“a large house”", re.findall("all [0-9]+ dimensions", text(seen, "#near h3"))[0])
    says(5, f"*{text(seen, '#ask-key')}*")
    seen.page.click("#ask-key")
    seen.settled()
    says(5, f"{text(seen, '#ways tbody tr:first-child td')}.")


def test_step_6_a_filter_leaves_some_out(seen: Watched) -> None:
    """A field of the payloads decides which."""
    seen.page.select_option("#field", "floor")
    seen.page.select_option("#operator", label="≥")
    seen.page.fill("#operand", "2")
    seen.page.click("#filter button")
    seen.settled()
    says(6, f"*{text(seen, '#items-title')}*", "*floor*", "*≥* 2", f"{text(seen, '#count')} items take part")


def test_step_7_did_it_know(seen: Watched) -> None:
    """The other question is like nothing that is stored."""
    seen.page.select_option("#query", label="a recipe for lentil soup")
    seen.settled()
    says(7, text(seen, "#asked"), f"*{text(seen, '#evidence-title')}*", "the answer is a guess")
    assert "above that of none of 5 items" in text(seen, "#evidence-told")
    assert "the answer is a guess" in text(seen, "#evidence-told")


def test_step_8_take_it_along(browser: Any, seen: Watched, file: Path) -> None:
    """The link leads to what is seen."""
    seen.page.select_option("#query", "q1")
    seen.page.click("#mean")
    seen.settled()
    says(8, f"*{text(seen, '#lines-title')}*")
    assert eventually(lambda: "T=mean" in seen.page.evaluate("location.hash"))
    with opened(browser, file, seen.page.evaluate("location.hash")) as again:
        assert text(again, "main") == text(seen, "main")


def test_the_pictures_of_the_document_are_there_and_small() -> None:
    """Each that it or the README shows is a file."""
    names = re.findall(r"!\[[^]]*\]\(figures/([\w-]+\.png)\)", TEXT)
    assert len(names) == 6
    for name in names:
        size = (Path(__file__).parent.parent / "docs" / "figures" / name).stat().st_size
        assert 5_000 < size < 200_000
