"""What the page draws of an answer, what fingers do in it, and what its policy refuses, in a real browser."""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv

from . import reference
from .browsing import Watched, opened, watched
from .databases import filled, values_of, vectors_of
from .servers import eventually

STYLE = (Path(softkv.__file__).parent / "page" / "page.css").read_text("utf-8")
COUNT = 40
SPY = """() => {
    const pen = CanvasRenderingContext2D.prototype;
    const [arc, fill, moveTo] = [pen.arc, pen.fill, pen.moveTo];
    window.drawn = { discs: [], moves: [] };
    let last = null;
    pen.arc = function (...told) { last = told; return arc.apply(this, told); };
    pen.fill = function () { drawn.discs.push([...last.slice(0, 3), this.fillStyle]); return fill.apply(this); };
    pen.moveTo = function (...told) { drawn.moves.push([...told, this.strokeStyle]); return moveTo.apply(this, told); };
}"""
# How colours look to those who lack one kind of cone: linear RGB to linear RGB (Machado, Oliveira and Fernandes, 2009).
SEEN_WITHOUT = {
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page of forty numbers."""
    with filled(tmp_path / "s", "number", COUNT, compatibility="gaussian", temperature=0.5) as db:
        heads = softkv.Heads.random(2, query_width=5, key_width=5, value_width=1, head_width=3, seed=0)
        db.page(tmp_path / "page.html", queries=vectors_of(2, seed=7))
        db.page(tmp_path / "heads.html", queries=vectors_of(1, seed=7), heads=heads)
    return tmp_path / "page.html"


@pytest.fixture
def touched(browser: Any, page: Path) -> Iterator[Watched]:
    """That page on a phone."""
    with opened(browser, page, has_touch=True, viewport={"width": 375, "height": 800}) as seen:
        yield seen


def weights_of(query: Any) -> np.ndarray:
    """What the reference weighs the items of that page with."""
    how: dict[str, Any] = {"score": reference.gaussian, "temperature": 0.5}
    return np.array(reference.lookup(query.tolist(), vectors_of(COUNT).tolist(), [[0.0]] * COUNT, **how).weights)


@pytest.mark.chromium
def test_area_is_weight_and_a_cross_is_the_query(browser: Any, page: Path) -> None:
    """Squares of radii are in proportion to weights, where these are not too small to see; a key asks where it lies."""
    with opened(browser, page) as seen:
        seen.page.evaluate(SPY)
        seen.page.evaluate("location.hash = 'query=i8'")
        seen.page.wait_for_function("document.getElementById('asked').textContent.includes('item 7')")
        seen.settled()
        drawn = seen.page.evaluate("drawn")
    discs, weights = drawn["discs"][-COUNT:], sorted(weights_of(vectors_of(COUNT)[7]))[::-1]
    areas = [(disc[2] ** 2, weight) for disc, weight in zip(discs, weights, strict=True) if disc[2] > 2.5]
    assert len(areas) > 3
    assert [area / areas[0][0] for area, _ in areas] == pytest.approx([one / areas[0][1] for _, one in areas])
    mark = re.findall(r"--mark: (#\w+)", STYLE)[0]
    (left, across, _), (middle, _, _) = [place for place in drawn["moves"] if place[2] == mark][-2:]
    assert [left + 8, across, middle] == pytest.approx([discs[0][0], discs[0][1], discs[0][0]])


@pytest.mark.chromium
@pytest.mark.parametrize("kind", ["label", "number"])
def test_colour_is_value_or_label(kind: str, browser: Any, tmp_path: Path) -> None:
    """Items of one value have one colour, and of another another."""
    query = vectors_of(1, seed=7)
    with filled(tmp_path / "s", kind, COUNT, compatibility="gaussian", temperature=0.5) as db:
        db.page(tmp_path / "page.html", queries=query)
    with opened(browser, tmp_path / "page.html") as seen:
        seen.page.evaluate(SPY)
        seen.page.click("#hard")
        seen.page.click("#usual")
        seen.settled()
        colours = [one[3] for one in seen.page.evaluate("drawn.discs")[-COUNT:]]
    values = [str(values_of(kind, COUNT)[row]) for row in np.argsort(-weights_of(query[0]))]
    told = set(zip(values, colours, strict=True))
    assert len(told) == len(set(values)) > 2
    assert len(set(colours)) > 2


@pytest.mark.chromium
def test_fingers_do_what_a_mouse_does(touched: Watched, browser: Any, page: Path) -> None:
    """Drag the temperature, choose a weight, read the matrix, filter, browse, and switch between heads."""
    finger = touched.page.context.new_cdp_session(touched.page)
    box = touched.page.locator("#warmth").bounding_box()
    found = []
    for kind, share in (("touchStart", 0.5), ("touchMove", 0.6), ("touchMove", 0.9), ("touchEnd", None)):
        places = [] if share is None else [{"x": box["x"] + share * box["width"], "y": box["y"] + box["height"] / 2}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
        touched.settled()
        found.append(touched.exact("#effective"))
    assert found[0] < found[1] < found[2] == found[3]
    touched.page.tap("#bars li:nth-child(3) button")
    touched.settled()
    third = touched.page.text_content("#bars li:nth-child(3) .name")
    assert touched.page.text_content("#steps-of").startswith(f"{third} → ")
    touched.page.tap("#attend")
    touched.settled()
    touched.page.tap("#matrix", position={"x": 4, "y": 4})
    assert touched.page.text_content("#cell").startswith("item 0 gives item 0 ")
    touched.page.select_option("#field", "n")
    touched.page.fill("#operand", "7")
    touched.page.tap("#filter button")
    touched.settled()
    assert touched.page.text_content("#count") == "1 of 40"
    touched.page.tap("#everyone")
    touched.page.tap("#after")
    touched.settled()
    assert touched.page.text_content("#where-in") == "26 to 40 of 40"
    with opened(browser, page.with_name("heads.html"), has_touch=True, viewport={"width": 375, "height": 800}) as seen:
        both = seen.exact("#effective")
        seen.page.tap("#heads button:nth-child(2)")
        seen.settled()
        first = seen.exact("#effective")
        seen.page.focus("#heads button:nth-child(3)")
        seen.page.keyboard.press("Enter")
        seen.settled()
        assert len({both, first, seen.exact("#effective")}) == 3


WIDTHS = """all => all.map(one => {
    const [range, told] = [document.createRange(), one.textContent];
    range.selectNodeContents(one);
    const right = range.getBoundingClientRect().right;
    const widths = [...'0123456789'].map(digit => {
        one.textContent = digit.repeat(9);
        range.selectNodeContents(one);
        return range.getBoundingClientRect().width;
    });
    one.textContent = told;
    return [right, Math.max(...widths) - Math.min(...widths), getComputedStyle(one).fontVariantNumeric];
})"""


@pytest.mark.chromium
@pytest.mark.parametrize("place", ["#bars .share", "#ways td.number", "#list td:nth-child(5)", ".facts dd"])
def test_numbers_are_aligned(place: str, browser: Any, page: Path) -> None:
    """All digits are equally wide, whatever the font, and the numbers of a column end at one edge."""
    with opened(browser, page) as seen:
        shown = [one for one in seen.page.eval_on_selector_all(place, WIDTHS) if one[0] > 0]  # others are hidden
    assert len(shown) > 2
    assert {one[2] for one in shown} == {"tabular-nums"}
    assert max(one[1] for one in shown) < 0.01
    assert max(one[0] for one in shown) - min(one[0] for one in shown) < 0.5


@pytest.mark.chromium
def test_the_policy_refuses_what_is_not_of_the_page(browser: Any, page: Path) -> None:
    """A script, a style, a picture and a request that something might bring into it."""
    with watched(browser) as seen:
        seen.page.goto(page.as_uri())
        seen.page.evaluate("""() => {
            const add = (tag, told) => document.body.append(Object.assign(document.createElement(tag), told));
            add('script', { textContent: 'window.broken = 1' });
            add('style', { textContent: 'body { display: none }' });
            add('img', { src: 'http://127.0.0.1:9/picture.png' });
            fetch('http://127.0.0.1:9/').catch(() => 0);
        }""")
        wanted = {"script-src-elem", "style-src-elem", "img-src", "connect-src"}

        def refused() -> set[str]:
            seen.settled()
            return {one.removeprefix("refused ") for one in seen.told}

        assert eventually(lambda: wanted <= refused())
        assert seen.page.evaluate("window.broken") is None
        assert seen.page.is_visible("#answer")


@pytest.mark.chromium
def test_of_many_items_two_hundred_attend_to_each_other(browser: Any, tmp_path: Path) -> None:
    """More could not be told apart; and the page says how many it has, and that who has it can read them."""
    with filled(tmp_path / "s", "number", 300, compatibility="gaussian", temperature=0.5) as db:
        db.page(tmp_path / "page.html", items=250, queries=vectors_of(1, seed=7))
        last = db.scene(items=250)["keys"][199]
    with opened(browser, tmp_path / "page.html") as seen:
        assert "250 of 300 items, drawn with seed 0" in seen.page.text_content("#about")
        assert "This file holds the items it shows" in seen.page.text_content("#foot")
        seen.page.click("#attend")
        seen.settled()
        assert "200" in seen.page.text_content("#attention-note")
        box = seen.page.locator("#matrix").bounding_box()
        seen.page.click("#matrix", position={"x": box["width"] / 2, "y": box["height"] - 2})  # the last row
        for _ in range(2):  # and none follows
            seen.page.keyboard.press("ArrowDown")
        asking = seen.page.text_content("#cell").split(" gives ")[0]
    assert asking == last


def linear(colour: str) -> np.ndarray:
    """The light of a colour #rrggbb, without the screen's curve."""
    given = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """Where light lies in CIE L*a*b*, in which distances are about as large as they look."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ light
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("without", [None, *SEEN_WITHOUT])
def test_colours_are_told_apart_by_the_colour_blind(scheme: int, without: str | None) -> None:
    """Those of labels, that of all others, and three places on the scale of numbers, to eyes of every kind."""
    blind = np.eye(3) if without is None else np.array(SEEN_WITHOUT[without])
    names = [[*(f"c{number}" for number in range(7)), "rest"], ["low", "middle", "high"]]
    for some in names:
        places = [lab(np.clip(blind @ linear(re.findall(rf"--{one}: (#\w+)", STYLE)[scheme]), 0, 1)) for one in some]
        assert min(np.linalg.norm(a - b) for a, b in combinations(places, 2)) > 10
