"""A real Chromium for tests of the page, watched: whatever it asks of a network, or tells its console, is kept."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REQUIRED = "SOFTKV_CHROMIUM"  # set where a missing Chromium is an error


@dataclass
class Watched:
    """A page in a browser, and what it did that it should not do."""

    page: Any
    told: list[str] = field(default_factory=list)  # on the console, by errors, or as breaches of the policy
    asked: list[str] = field(default_factory=list)  # URLs, but for the page itself

    def exact(self, place: str) -> float:
        """The number behind what an element shows."""
        return float(self.page.get_attribute(place, "data-exact"))

    def all_exact(self, places: str) -> list[float]:
        """The numbers behind what elements show."""
        found = self.page.eval_on_selector_all(places, "all => all.map(one => one.dataset.exact)")
        return [float(one) for one in found]

    def settled(self) -> None:
        """Wait until what was done is drawn."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextmanager
def launched() -> Iterator[Any]:
    """A browser for many pages; without one the test is skipped, or fails where one is required."""
    if CHROMIUM is None:
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)("no Chromium is installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as found:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # which root has none of
        browser = found.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser: Any, **options: Any) -> Iterator[Watched]:
    """A new page in a context of its own, as wide as a laptop unless said otherwise."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
    page = context.new_page()
    seen = Watched(page)
    page.on("console", lambda message: seen.told.append(message.text))
    page.on("pageerror", lambda error: seen.told.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', one => console.error('refused', one.violatedDirective))"
    )
    try:
        yield seen
    finally:
        context.close()


@contextmanager
def opened(browser: Any, path: Path, link: str = "", **options: Any) -> Iterator[Watched]:
    """A file in the browser. At the end it has asked nobody for anything, and its console is silent."""
    with watched(browser, **options) as seen:
        seen.page.goto(f"{path.as_uri()}{link}")
        seen.settled()
        yield seen
        assert seen.told == []
        assert {one for one in seen.asked if not one.startswith("data:image/svg+xml,")} == {path.as_uri()}
