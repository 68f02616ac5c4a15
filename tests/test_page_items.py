"""Items in the page of a server: all of them in the list, the first of an empty store, and payloads."""

from pathlib import Path
from typing import Any

import pytest

import softkv

from .browsing import opened
from .databases import filled
from .listening import guarded
from .looking import RENTS, answered, chooses, looking, rents_at, says
from .servers import Reached, eventually

pytestmark = pytest.mark.chromium


def item(server: Reached, name: str, key: str) -> Any:
    """What a store holds by a key."""
    return server.ask("POST", f"/v1/{name}/items/get", {"keys": [key], "whole": True})[1]["items"][0]


def test_all_items_of_a_larger_store_are_listed(browser: Any, tmp_path: Path) -> None:
    """Page by page to the last, filtered as well; one that is not on the map is held by the form."""
    filled(tmp_path / "many", "number", 2510).close()
    with guarded(tmp_path / "many") as server, looking(browser, server) as seen:
        assert answered(seen)
        assert says(seen, "#where-in", "1 to 25 of 2,510")
        names = "all => all.map(one => one.textContent)"
        for start in (26, 51):
            seen.page.click("#after")
            assert says(seen, "#where-in", f"{start} to {start + 24} of 2,510")
            shown = seen.page.eval_on_selector_all("#list th button", names)
            assert shown == [f"item {row}" for row in range(start - 1, start + 24)]
        seen.page.select_option("#field", "n")
        seen.page.select_option("#operator", "$gte")
        seen.page.fill("#operand", "2470")
        seen.page.click("#filter button")
        assert says(seen, "#where-in", "1 to 25")
        seen.page.click("#after")
        assert says(seen, "#where-in", "26 to 40")
        assert seen.page.is_disabled("#after")
        drawn = seen.page.eval_on_selector_all(
            "#list tbody tr", "all => all.map(one => one.cells[4].textContent !== '')"
        )
        assert set(drawn) == {True, False}
        seen.page.click(f"#list tbody tr:nth-child({1 + drawn.index(False)}) button")
        assert seen.page.input_value("#edit-key") == f"item {2495 + drawn.index(False)}"
        seen.page.fill("#edit-value", "7.5")
        seen.page.click("#save")
        assert says(seen, "#edited", "Saved")
        assert item(server, "many", f"item {2495 + drawn.index(False)}")["value"] == 7.5
        assert seen.told == []


def test_items_of_a_larger_store_are_found_wherever_they_are(browser: Any, tmp_path: Path) -> None:
    """They may be off the map, on other pages, or behind a filter; where none is found, that is said."""
    filled(tmp_path / "many", "number", 2510).close()
    names = "all => all.map(one => one.textContent)"
    with guarded(tmp_path / "many") as server, looking(browser, server) as seen:
        assert answered(seen)
        seen.page.fill("#find", "ITEM 24")
        found = []
        for told in ("1 to 2,414", "2,415 to 2,439", "2,440 to 2,464", "2,465 to 2,489", "2,490 to the last"):
            assert says(seen, "#where-in", f"found, from item {told}")
            found += seen.page.eval_on_selector_all("#list th button", names)
            if "last" not in told:
                seen.page.click("#after")
        assert found == [f"item {row}" for row in range(2510) if str(row).startswith("24")]
        assert seen.page.is_disabled("#after")
        seen.page.click("#before")
        assert says(seen, "#where-in", "25 found, from item 2,465 to 2,489")
        seen.page.fill("#find", "nobody")
        assert says(seen, "#where-in", "none found, from item 1 to the last")
        seen.page.fill("#find", "item 24")
        seen.page.select_option("#field", "n")
        seen.page.select_option("#operator", "$gte")
        seen.page.fill("#operand", "2470")
        seen.page.click("#filter button")
        assert says(seen, "#where-in", "25 found, from item 1 to 25")
        seen.page.fill("#find", "")
        assert says(seen, "#where-in", "1 to 25")
        assert seen.told == []


def test_items_without_a_key_are_found_by_their_number(browser: Any, tmp_path: Path) -> None:
    """They are found by the number with # that the store calls them by."""
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(values=[1.0, 2.0, 3.0], vectors=[[0.0], [1.0], [2.0]])
        db.page(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as seen:
        for find, told in (("#2", "1 to 1 of 1"), ("null", "no item")):
            seen.page.fill("#find", find)
            seen.settled()
            assert seen.page.text_content("#where-in") == told


def test_long_texts_that_begin_alike_stay_apart(browser: Any, tmp_path: Path) -> None:
    """A key of more than a thousand characters is found, and so is no other that begins like it."""
    keys = [f"{'é👍k' * 500} {end}" for end in ("one", "two")]
    with softkv.open(tmp_path / "s", embedder=lambda texts: [[1.0, len(text[-3:].strip("o"))] for text in texts]) as db:
        db.add(keys, [f"{'word ' * 300}{end}" for end in ("one", "two")])
        db.page(tmp_path / "page.html", queries=[keys[1], "é👍k" * 500])
    with opened(browser, tmp_path / "page.html") as seen:
        for query, found in (("q0", True), ("q1", False)):
            seen.page.select_option("#query", query)
            seen.settled()
            exact = seen.page.inner_text("#ways tbody tr:first-child td:nth-child(2)")
            assert ("word word" in exact, "no such key" in exact) == (found, not found)


def test_an_empty_store_is_filled_from_the_page(browser: Any, tmp_path: Path) -> None:
    """Its first item says what values are; until then there is the form alone."""
    softkv.open(tmp_path / "nothing").close()
    with guarded(tmp_path / "nothing") as server, looking(browser, server) as seen:
        assert says(seen, "#about", "This store is empty")
        assert seen.page.is_visible("#editing")
        assert not seen.page.is_visible("#answer")
        for key, value in list(RENTS.items())[:2]:
            seen.page.fill("#edit-key", key)
            seen.page.fill("#edit-value", str(value))
            seen.page.fill("#edit-payload", '{"floor": 2}')
            seen.page.click("#save")
            assert says(seen, "#edited", f"Added {key}")
        assert answered(seen)
        assert says(seen, "#about", "2 items; values are numbers")
        assert (item(server, "nothing", key)["value"], item(server, "nothing", key)["payload"]) == (620, {"floor": 2})


def test_payloads_are_edited_as_json(browser: Any, tmp_path: Path) -> None:
    """What is no JSON is refused, and a payload that the form has not shown is not replaced."""
    key = "a large house"
    with guarded(rents_at(tmp_path / "rents")) as server, looking(browser, server) as seen:
        assert answered(seen)
        before = item(server, "rents", key)
        chooses(seen, key)
        seen.page.fill("#edit-payload", "{floor: 2}")
        seen.page.click("#save")
        assert says(seen, "#problem", "This is no JSON")
        seen.page.fill("#edit-payload", '{"floor": [0, 1]}')
        seen.page.click("#save")
        assert says(seen, "#edited", "Saved")
        assert item(server, "rents", key) == before | {"payload": {"floor": [0, 1]}}
        assert says(seen, "#list", '{"floor":[0,1]}')
        changed = {"keys": [key], "values": [2450], "payloads": [{"floor": 7}]}
        assert server.ask("PATCH", "/v1/rents/items", changed)[0] == 200
        seen.page.fill("#edit-payload", "")
        seen.page.click("#save")
        assert says(seen, "#edited", "Nothing was changed")
        assert seen.page.input_value("#edit-payload") == '{"floor":7}'
        seen.page.fill("#edit-payload", "")
        seen.page.click("#save")
        assert says(seen, "#edited", "Saved")
        assert item(server, "rents", key) == before
        assert eventually(lambda: "floor" not in seen.page.text_content("#list"))
