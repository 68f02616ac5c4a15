"""Pages of servers in a browser, and what tests do in them. Servers are threads of the test unless they have to end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import softkv

from .browsing import Watched, watched
from .servers import Reached, eventually

RENTS = {
    "a small room near the station": 540,
    "one room with a balcony": 620,
    "two rooms in the old town": 890,
    "two quiet rooms by the park": 940,
    "a large house": 2450,
}


def rents_at(path: Path) -> Path:
    """A store of five rents by texts."""
    with softkv.open(path) as db:
        db.update(RENTS)
    return path


OFTEN = "const later = setTimeout; setTimeout = (does, after) => later(does, after === 2000 ? 100 : after)"


@contextmanager
def looking(browser: Any, server: Reached, link: str | None = None, **options: Any) -> Iterator[Watched]:
    """The page of a server in a tab of its own, entered by its token; it looks twenty times as often at the server."""
    with watched(browser, **options) as seen:
        seen.page.add_init_script(OFTEN)
        seen.page.goto(f"http://{server.host}:{server.port}/#{server.token if link is None else link}")
        yield seen


def says(seen: Watched, place: str, text: str) -> bool:
    """Whether an element comes to hold a text."""
    return eventually(lambda: text in (seen.page.text_content(place) or ""))


def answered(seen: Watched) -> bool:
    """Whether the store comes to answer, in every way."""
    return eventually(lambda: seen.page.get_attribute("#answer", "aria-busy") == "false")


def asks(seen: Watched, text: str) -> None:
    """Ask in words, and wait for the answer of the store."""
    seen.page.fill("#text", text)
    seen.page.keyboard.press("Enter")
    assert says(seen, "#asked", text)
    assert answered(seen)


def chooses(seen: Watched, key: str) -> None:
    """Click an item in the list, and wait until it is told."""
    seen.page.click(f"#list tbody button:text-is('{key}')")
    assert says(seen, "#map-told", f"{key}: value ")
