"""The tour: the worked examples in small steps, from a dictionary to multi-head attention, walked in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from softkv_examples import ORDER, example, load
from softkv_examples.tour import content

from softkv.page import write

from .browsing import Watched, opened
from .commands import ran
from .servers import eventually

STEPS = json.loads((example("incomes").parent / "tour.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tour as a file, without the examples whose data are elsewhere."""
    path = tmp_path_factory.mktemp("tour") / "demo.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SOFTKV_DATA", raising=False)
        assert ran("demo", "--page", "-o", path).err.startswith(f"wrote {path}: ")
    return path


@pytest.fixture
def seen(browser: Any, file: Path) -> Iterator[Watched]:
    """The first step of the tour in a browser."""
    with opened(browser, file) as found:
        yield found


def answers(name: str) -> Any:
    """What an example should arrive at."""
    return load(name)["answers"]


def at(seen: Watched, title: str) -> Watched:
    """The page at the step of this title, by going on from where it is."""
    while seen.page.text_content("#tour-title") != title:
        before = seen.page.text_content("#tour-place")
        seen.page.click("#tour-next")
        seen.settled()
        assert seen.page.text_content("#tour-place") != before
    return seen


def test_every_example_has_steps_in_the_order_in_which_it_is_told() -> None:
    """The steps of an example follow its tale, and each names panels and a scene that there are."""
    told = content()
    examples = {scene["name"]: scene["example"] for scene in told["scenes"]}
    assert tuple(dict.fromkeys(examples[step["scene"]] for step in STEPS)) == ORDER
    page = (Path(__file__).parent.parent / "softkv" / "page" / "page.html").read_text("utf-8")
    panels = set(re.findall(r'<section id="(\w+)"', page))
    assert all(step["title"] and step["text"] and panels.issuperset(step["see"]) for step in STEPS)


@pytest.mark.chromium
@pytest.mark.ci
def test_the_tour_goes_from_its_first_step_to_its_last_and_back(seen: Watched) -> None:
    """One button each leads on and back, and nothing goes wrong on the way; a step is a link."""
    for number, step in enumerate(STEPS):
        assert seen.page.text_content("#tour-title") == step["title"]
        assert seen.page.text_content("#tour-place") == f"Step {number + 1} of {len(STEPS)}"
        assert seen.page.locator("section.seen").count() == len(step["see"])
        if number + 1 < len(STEPS):
            seen.page.click("#tour-next")
            seen.settled()
    assert seen.page.is_disabled("#tour-next")
    seen.page.focus("#tour-back")
    seen.page.keyboard.press("Enter")
    seen.settled()
    assert seen.page.text_content("#tour-title") == STEPS[-2]["title"]
    seen.page.select_option("#tour-choice", label="Is it a car?")
    seen.settled()
    assert seen.page.text_content("#title") == "Is it a car?"


@pytest.mark.chromium
@pytest.mark.ci
def test_the_numbers_of_the_tour_are_those_of_the_examples(seen: Watched) -> None:
    """What a step's sentences say stands beside them, and is what the example should arrive at."""
    incomes, near = answers("incomes"), {"abs": 1e-4}
    at(seen, "A dictionary, and a name that is not in it")
    assert "no such key" in seen.page.text_content("#ways tbody tr:first-child")
    at(seen, "From scores to weights")
    assert seen.all_exact("#list td:last-child") == pytest.approx(incomes["weights"], **near)
    assert seen.page.text_content("#bars li:first-child .share") == "62.2%"
    at(seen, "The answer")
    assert seen.page.text_content("#value") == "49,493"
    assert seen.exact("#spread") == pytest.approx(incomes["spread"], abs=1e-3)
    at(seen, "Temperature, cold")
    assert seen.exact("#value") == incomes["hard"]
    at(seen, "Temperature, warm")
    assert seen.exact("#effective") == pytest.approx(3)
    at(seen, "Did it know?")
    assert "the answer is a guess" in seen.page.text_content("#evidence-told")
    at(seen, "Keys that are texts")
    assert seen.all_exact("#list td:last-child") == pytest.approx(answers("books")["weights"], **near)
    at(seen, "Labels")
    assert seen.page.text_content("#value").startswith("bread.mp4 46.1%")
    at(seen, "A noisy day, smoothed")
    assert seen.exact("#value") == pytest.approx(answers("hours")["smoothed"][12], **near)
    at(seen, "Is it a car?")
    assert seen.exact("#value") == pytest.approx(answers("car")["rows"][0], **near)
    at(seen, "Ways to compare")
    assert seen.all_exact("#list td:last-child") == pytest.approx(answers("ways")["dot"]["weights"][0], **near)
    at(seen, "The same, by distance")
    assert seen.page.text_content("#bars li:first-child .name") == "a"
    at(seen, "Fruit or company?")
    assert seen.all_exact("#list td:last-child") == pytest.approx(answers("apple")["apple_weights"], **near)
    at(seen, "A learned way to compare")
    assert seen.page.text_content("#bars li:first-child .name") == "katze"
    at(seen, "Two heads")
    assert seen.page.text_content("#bars li:first-child .name") == "we"
    at(seen, "The other head")
    assert seen.page.text_content("#bars li:first-child .name") == "dawn"
    at(seen, "Multi-head attention")
    assert json.loads(seen.page.get_attribute("#value", "data-exact")) == pytest.approx(
        [-0.7641, -0.2907, -0.9100, 0.1167], **near
    )


@pytest.mark.chromium
@pytest.mark.ci
def test_a_link_leads_to_a_step_as_it_was_left(browser: Any, seen: Watched, file: Path) -> None:
    """It has the question and temperature of whoever was there, or the step's own where nothing was changed."""
    at(seen, "A close call")
    seen.page.click("#mean")
    seen.settled()
    assert eventually(lambda: re.search("step=9&.*T=mean", seen.page.evaluate("location.hash")))
    for link, warm in ((seen.page.evaluate("location.hash"), "plain mean"), ("#step=9", "hard")):
        with opened(browser, file, link) as again:
            assert again.page.text_content("#tour-title") == "A close call"
            assert again.page.text_content("#temperature").startswith(warm)


@pytest.mark.chromium
@pytest.mark.ci
def test_axe_finds_nothing_in_the_tour(seen: Watched) -> None:
    """Axe finds nothing in the tour, nor in the matrix that a step opens."""
    at(seen, "Every key asks")
    assert seen.page.is_visible("#matrix")
    found = Axe().run(seen.page)
    assert found.violations_count == 0, found.generate_report()


def test_examples_can_be_chosen(tmp_path: Path) -> None:
    """`softkv demo car --page` shows that one alone, with its steps."""
    told = content(["car"])
    assert [scene["name"] for scene in told["scenes"]] == ["car"]
    assert {step["scene"] for step in told["steps"]} == {"car"}
    write(told, tmp_path / "car.html", store=None, force=False)
    assert ran("demo", "nothing", "--page").code == 2


def test_a_browser_is_opened_at_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens a file that stays when the command is done."""
    urls: list[str] = []
    monkeypatch.setattr("webbrowser.open", urls.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ran("demo", "--page", "incomes").code == 0
    (url,) = urls
    assert "Nathaniel Hathaway" in Path(url.removeprefix("file://")).read_text("utf-8")
