"""What one does in the page, by mouse, touch and keyboard, in a real browser; and that it is for everybody."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

import softkv

from . import reference
from .browsing import Watched, opened
from .commands import ran
from .databases import filled, values_of, vectors_of
from .servers import eventually

pytestmark = pytest.mark.chromium
COUNT = 60
QUERIES = vectors_of(2, seed=7)
NEAR: dict[str, float] = {"rel": 1e-9, "abs": 1e-12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of sixty numbers, and a page of it that asks two queries."""
    path = tmp_path_factory.mktemp("page")
    with filled(path / "s.softkv", "number", COUNT, compatibility="gaussian", temperature=0.5) as db:
        db.page(path / "page.html", queries=QUERIES)
    return path


@pytest.fixture
def seen(browser: Any, folder: Path) -> Iterator[Watched]:
    """That page in a browser."""
    with opened(browser, folder / "page.html") as found:
        yield found


def expected(query: Any = QUERIES[0], **options: Any) -> reference.Expected:
    """What the reference says of a query of that store."""
    values = [[value] for value in values_of("number", COUNT)]
    how = {"score": reference.gaussian, "temperature": 0.5} | options
    return reference.lookup(np.asarray(query).tolist(), vectors_of(COUNT).tolist(), values, **how)


FOUND = """name => {
    const [chart, tip] = [document.getElementById('chart'), document.getElementById('tip')];
    const box = chart.getBoundingClientRect();
    for (let x = 8; x < box.width; x += 5) for (let y = 8; y < box.height; y += 5) {
        chart.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + x, clientY: box.top + y }));
        if (!tip.hidden && tip.firstChild.textContent === name) return { x, y };
    }
}"""


def place_of(seen: Watched, row: int) -> Any:
    """Where an item lies on the map: where its tooltip is shown."""
    seen.page.locator("#chart").scroll_into_view_if_needed()
    found = seen.page.evaluate(FOUND, f"item {row}")
    assert found, f"item {row} is nowhere"
    return found


def test_the_query_is_chosen_from_a_list(seen: Watched) -> None:
    """The keyboard chooses as well; the answer is that of the other query."""
    seen.page.focus("#query")
    seen.page.keyboard.press("ArrowDown")
    seen.settled()
    assert seen.page.text_content("#asked") == "“query 2”"
    assert seen.exact("#value") == pytest.approx(expected(QUERIES[1]).value[0], **NEAR)


def test_the_temperature_goes_from_hard_to_the_plain_mean(seen: Watched) -> None:
    """A drag of the mouse moves it; the farther, the more is weighed, and what is shown is of the temperature."""
    seen.page.locator("#warmth").scroll_into_view_if_needed()
    box = seen.page.locator("#warmth").bounding_box()
    middle = box["y"] + box["height"] / 2
    seen.page.mouse.move(box["x"] + 2, middle)
    seen.page.mouse.down()
    found = []
    for share in (0.0, 0.3, 0.45, 0.55, 0.7, 1.0):
        seen.page.mouse.move(box["x"] + share * box["width"], middle)
        seen.settled()
        found.append(seen.exact("#effective"))
        temperature = float(seen.page.get_attribute("#temperature", "data-exact"))
        if 0 < temperature < float("inf"):
            one = expected(temperature=temperature)
            assert seen.exact("#value") == pytest.approx(one.value[0], **NEAR)
            assert seen.exact("#spread") == pytest.approx(one.spread[0], **NEAR)
            assert seen.exact("#bars .share") == pytest.approx(max(one.weights), **NEAR)
    seen.page.mouse.up()
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, pytest.approx(COUNT))


def test_the_ends_are_buttons_for_fingers(browser: Any, folder: Path) -> None:
    """A tap on hard, plain mean and the store's own temperature."""
    with opened(browser, folder / "page.html", has_touch=True, viewport={"width": 375, "height": 700}) as seen:
        for button, effective in (("#hard", 1.0), ("#mean", COUNT), ("#usual", expected().effective)):
            seen.page.tap(button)
            seen.settled()
            assert seen.exact("#effective") == pytest.approx(effective, **NEAR)


def test_a_weight_is_chosen_to_see_how_it_comes_about(seen: Watched) -> None:
    """A click, or Enter on it, and the steps are its own."""
    third = seen.page.text_content("#bars li:nth-child(3) .name")
    seen.page.click("#bars li:nth-child(3) button")
    seen.settled()
    assert seen.page.text_content("#steps-of").startswith(f"{third} → ")
    seen.page.focus("#bars li:nth-child(2) button")
    seen.page.keyboard.press("Enter")
    seen.settled()
    second = seen.page.text_content("#bars li:nth-child(2) .name")
    assert seen.page.text_content("#steps-of").startswith(f"{second} → ")
    assert seen.page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_top_k_takes_any_k(seen: Watched) -> None:
    """The blend of the k heaviest, and the share of the weight that they hold; more than there are is all."""
    for k in (1, 7, 500):
        seen.page.fill("#k", str(k))
        seen.settled()
        found = expected(k=min(k, COUNT))
        assert seen.exact("#ways tbody tr:nth-child(3) td:nth-child(2)") == pytest.approx(found.value[0], **NEAR)
        assert seen.exact("#ways tbody tr:nth-child(3) td:nth-child(3)") == pytest.approx(found.mass, **NEAR)


def test_the_map_tells_what_is_pointed_at_and_takes_a_click(seen: Watched) -> None:
    """A tooltip under the mouse; a click shows the neighbours in all dimensions, and then the key can ask."""
    place = place_of(seen, 7)
    seen.page.hover("#chart", position=place)
    assert seen.page.text_content("#tip strong") == "item 7"
    assert "weight" in seen.page.text_content("#tip")
    seen.page.click("#chart", position=place)
    seen.settled()
    assert seen.page.text_content("#map-told").startswith("item 7: value ")
    key, vectors = vectors_of(COUNT)[7], vectors_of(COUNT)
    apart = np.linalg.norm(vectors - key, axis=1)
    near = [f"item {row}" for row in np.argsort(apart)[1:9]]
    assert seen.page.eval_on_selector_all("#near li button", "all => all.map(one => one.textContent)") == near
    seen.page.click("#ask-key")
    seen.settled()
    assert seen.page.text_content("#asked") == "the key of “item 7”"
    assert seen.exact("#value") == pytest.approx(expected(key).value[0], **NEAR)
    assert seen.page.text_content("#ways tbody tr:first-child td") != "no such key: a dictionary fails"


def test_the_map_says_that_its_distances_mislead(seen: Watched) -> None:
    """The page says that distances on its map mislead, and that weights do not come from there."""
    assert "Distances here mislead; weights do not come from here" in seen.page.text_content("#map-note")


def test_the_map_is_walked_by_the_keyboard(seen: Watched) -> None:
    """Arrow keys go from key to key, Enter chooses, Escape leaves."""
    seen.page.focus("#chart")
    names = set()
    for arrow in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowDown", "ArrowDown", "ArrowRight"):
        seen.page.keyboard.press(arrow)
        names.add(seen.page.text_content("#tip strong"))
    assert len(names) > 3
    seen.page.keyboard.press("Enter")
    seen.settled()
    assert seen.page.text_content("#map-told").startswith(f"{seen.page.text_content('#tip strong')}: value ")
    seen.page.keyboard.press("Escape")
    seen.settled()
    assert not seen.page.is_visible("#near")


def test_the_map_takes_fingers(browser: Any, folder: Path) -> None:
    """A tap chooses the key that is nearest."""
    with opened(browser, folder / "page.html", has_touch=True, viewport={"width": 375, "height": 800}) as seen:
        seen.page.tap("#chart", position=place_of(seen, 20))
        seen.settled()
        assert seen.page.text_content("#map-told").startswith("item 20: value ")


def test_self_attention_is_a_matrix_that_can_be_read(seen: Watched) -> None:
    """Each item asks all, or those up to itself; a cell is told under the mouse and by arrow keys."""
    seen.page.click("#attend")
    seen.settled()
    assert seen.page.is_visible("#matrix")
    seen.page.focus("#matrix")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        seen.page.keyboard.press(key)
    weights = expected(vectors_of(COUNT)[2]).weights
    assert seen.exact("#cell") == pytest.approx(weights[1], **NEAR)
    assert seen.page.text_content("#cell").startswith("item 2 gives item 1 ")
    seen.page.check("#causal")
    seen.settled()
    seen.page.focus("#matrix")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        seen.page.keyboard.press(key)
    heard = expected(vectors_of(COUNT)[2], mask=[row <= 2 for row in range(COUNT)]).weights
    assert seen.exact("#cell") == pytest.approx(heard[1], **NEAR)
    box = seen.page.locator("#matrix").bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] - 3)
    assert seen.page.text_content("#cell").startswith(f"item {COUNT - 1} gives item {COUNT - 1} ")


def test_items_are_browsed_and_found(seen: Watched) -> None:
    """Page by page, or by what their keys hold; where nothing is found, that is said."""
    assert seen.page.text_content("#where-in") == "1 to 25 of 60"
    seen.page.click("#after")
    seen.page.click("#after")
    seen.settled()
    assert seen.page.text_content("#where-in") == "51 to 60 of 60"
    assert seen.page.is_disabled("#after")
    seen.page.fill("#find", "ITEM 3")
    seen.settled()
    assert seen.page.text_content("#where-in") == "1 to 11 of 11"
    seen.page.fill("#find", "nobody")
    seen.settled()
    assert seen.page.text_content("#where-in") == "no item"


def test_a_filter_that_nothing_meets_leaves_nothing_to_say(seen: Watched) -> None:
    """The answer says so, and all items come back by one button."""
    seen.page.select_option("#field", "even")
    seen.page.fill("#operand", "perhaps")
    seen.page.click("#filter button")
    seen.settled()
    assert seen.page.text_content("#value") == "nothing: the filter leaves no item"
    assert seen.page.text_content("#steps-of") == "No item is left to weigh."
    seen.page.click("#everyone")
    seen.settled()
    assert seen.exact("#value") == pytest.approx(expected().value[0], **NEAR)


def test_any_state_is_a_link(browser: Any, seen: Watched, folder: Path) -> None:
    """Whoever opens it sees the same query, temperature, k, filter and item; what is nonsense in a link is left out."""
    seen.page.select_option("#query", "q1")
    seen.page.fill("#k", "5")
    seen.page.select_option("#field", "n")
    seen.page.select_option("#operator", "$lte")
    seen.page.fill("#operand", "40")
    seen.page.click("#filter button")
    seen.page.click("#bars li:nth-child(2) button")
    seen.page.focus("#warmth")
    seen.page.keyboard.press("ArrowRight")
    assert eventually(lambda: "T=" in seen.page.evaluate("location.hash"))
    told = [seen.page.text_content(one) for one in ("#asked", "#value", "#steps-of", "#filtered", "#ways")]
    link = seen.page.evaluate("location.hash")
    assert seen.page.text_content("#line-link").endswith(link)
    with opened(browser, folder / "page.html", link) as again:
        assert [again.page.text_content(one) for one in ("#asked", "#value", "#steps-of", "#filtered", "#ways")] == told
    nonsense = "#query=q99&T=-3&k=x&where={&look=777&head=5&step=4&scene=9"
    with opened(browser, folder / "page.html", nonsense) as usual:
        assert usual.exact("#value") == pytest.approx(expected().value[0], **NEAR)


def test_a_state_is_in_the_link_soon_however_often_it_is_drawn_again(seen: Watched) -> None:
    """A page of a server draws after each look at its store, and may look again before the link was written."""
    seen.page.evaluate("setInterval(() => dispatchEvent(new Event('resize')), 20)")
    seen.page.click("#mean")
    assert eventually(lambda: "T=mean" in seen.page.evaluate("location.hash"))


@pytest.mark.parametrize(
    "link", ["", "#T=hard", "#T=mean", "#T=0.21&look=3", '#where={"n":{"$lt":30},"even":{"$eq":true}}']
)
def test_the_lines_for_python_and_the_shell_give_what_is_shown(
    link: str, browser: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are run, and answer alike."""
    monkeypatch.chdir(folder)
    with opened(browser, folder / "page.html", link) as seen:
        shown = seen.exact("#value")
        lines = [seen.page.text_content(f"#line-{name}") for name in ("python", "command", "curl")]
    answer = eval(lines[0], {"softkv": softkv})
    assert answer.value == pytest.approx(shown, rel=1e-5)
    words = shlex.split(lines[1])
    assert words[0] == "softkv"
    assert json.loads(ran(*words[1:], "--json").out)["value"] == pytest.approx(shown, rel=1e-5)
    asked = json.loads(shlex.split(lines[2])[-1])
    assert asked["query"] == pytest.approx(QUERIES[0].tolist(), rel=1e-6)


def test_the_line_for_a_key_asks_with_that_key(browser: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python asks by its name."""
    monkeypatch.chdir(folder)
    with opened(browser, folder / "page.html", "#query=i12") as seen:
        shown, line = seen.exact("#value"), seen.page.text_content("#line-python")
    names: dict[str, Any] = {"softkv": softkv}
    first, second = line.split("; ")
    exec(first, names)
    assert eval(second, names).value == pytest.approx(shown, rel=1e-5)
    names["db"].close()


SIZES = [(375, "light"), (375, "dark"), (1280, "light"), (1280, "dark"), (2560, "light"), (2560, "dark")]


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_axe_finds_nothing_to_object_to(width: int, scheme: str, browser: Any, folder: Path) -> None:
    """It finds nothing at each size and in both colours, all being open; and nothing is wider than the screen."""
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "reduced_motion": "reduce"}
    with opened(browser, folder / "page.html", "#look=8", **options) as seen:
        seen.page.click("#attend")
        seen.settled()
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        moving = "getComputedStyle(document.querySelector('.bar i')).transitionDuration"
        assert seen.page.evaluate(moving) == "0s"


def test_a_hostile_store_shows_itself_harmlessly(browser: Any, tmp_path: Path) -> None:
    """Keys that are markup, turn text around or are 64 KiB long; values and vectors at the ends of their types."""
    keys = [
        "</script><img src=x onerror=alert(1)>",
        "ab\u202edc\u2066",
        "k" * 65000,
        "\u200b",
        "'; rm -rf $HOME #",
        "{{data}}",
    ]
    values = [1e150, -1e150, 5e-324, 0.0, -0.0, 1e100]
    vectors = np.array([[1e30, 0], [0, 1e30], [1e-30, 0], [-1e30, 1e30], [1e37, 1e37], [0, 0]], np.float32)
    payloads: list[Any] = [{"</script>": "\u202e"}, {"__proto__": 1}, [1, 2], "text", None, {"constructor": None}]
    with softkv.open(tmp_path / "s", compatibility="laplace") as db:
        db.add(keys, values, vectors=vectors, payloads=payloads)
        db.page(tmp_path / "page.html", queries=[[1e30, 1e30]])
        value = db.lookup([1e30, 1e30]).value
    for link in ("", "#T=hard", "#T=mean", "#look=2", '#where={"__proto__":{"$eq":1}}'):
        with opened(browser, tmp_path / "page.html", link) as seen:
            assert "NaN" not in seen.page.inner_text("body")
            assert "\u202e" not in seen.page.inner_text("body")
            assert seen.page.locator("img").count() == 0
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= 1280
            if not link:
                assert seen.exact("#value") == pytest.approx(value, abs=1e-12 * max(values))
            if "where" in link:
                assert seen.page.text_content("#count") == "1 of 6"


def test_a_line_for_a_shell_has_no_keystrokes(browser: Any, folder: Path, tmp_path: Path) -> None:
    """What a link or a name carries of control characters leaves no command; Python and JSON write them as escapes."""
    where = quote(json.dumps({"a\x7f\u202e": {"$ne": "\x9b"}}, ensure_ascii=False))
    with opened(browser, folder / "page.html", f"#where={where}") as seen:
        assert seen.page.text_content("#line-python")
        assert seen.page.locator("#line-command").count() == 0
        assert seen.page.text_content("#line-curl").isprintable()
    with filled(tmp_path / "s\x03\u202e", "number", 5) as db:
        db.page(tmp_path / "page.html", queries=QUERIES)
    with opened(browser, tmp_path / "page.html") as seen:
        assert seen.page.text_content("#line-python")
        assert seen.page.locator("#line-command, #line-curl").count() == 0
        assert "\u202e" not in seen.page.title()
        assert "\\u202e" in seen.page.title()


@pytest.mark.parametrize("depth", [900, 20_000])
def test_a_filter_of_a_link_may_be_nested_too_deeply(depth: int, browser: Any, folder: Path) -> None:
    """It is left out where it is too long, and shown where it is not; nothing overflows."""
    link = '#where={"n":{"$ne":' + "[" * depth + "]" * depth + "}}"
    with opened(browser, folder / "page.html", link) as seen:
        assert seen.page.text_content("#count").startswith("60")
        assert seen.page.text_content("#line-python")


def test_ten_thousand_labels_are_shown_without_a_colour_each(browser: Any, tmp_path: Path) -> None:
    """The most frequent have one, the others are counted."""
    with softkv.open(tmp_path / "s", value="label", compatibility="gaussian") as db:
        names = [f"label {number}" for number in range(10_000)]
        db.add(values=names, vectors=np.random.default_rng(0).standard_normal((10_000, 2)))
        assert db.page(tmp_path / "page.html", items=10_000) == 10_000
    with opened(browser, tmp_path / "page.html") as seen:
        assert seen.page.locator("#legend .swatch").count() == 8
        assert "9,993 others" in seen.page.text_content("#legend")
        assert seen.page.text_content("#count") == "10,000"
