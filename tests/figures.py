"""Take the pictures of docs/page.md, by `python -m tests.figures`."""

import tempfile
from pathlib import Path
from typing import Any

from softkv_examples.tour import content

from softkv.page import write

from .browsing import launched, opened
from .test_page_walk import make

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
CAUSAL = 20  # the step of the tour in which all words ask


def taken(browser: Any, file: Path, name: str, link: str = "", place: str | None = None, **options: Any) -> None:
    """One picture: of an element, or of what is seen without scrolling."""
    options = {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"} | options
    with opened(browser, file, link, **options) as seen:
        target = seen.page if place is None else seen.page.locator(place)
        target.screenshot(path=FOLDER / f"{name}.png")


def main() -> None:
    """All of them."""
    folder = Path(tempfile.mkdtemp())
    make(folder)
    write(content(), folder / "demo.html", store=None, force=True)
    phone = {"viewport": {"width": 375, "height": 760}, "color_scheme": "dark"}
    with launched() as browser:
        taken(browser, folder / "page.html", "page")
        taken(browser, folder / "page.html", "page-steps", place="#steps")
        taken(browser, folder / "page.html", "page-evidence", "#query=q1", place="#evidence")
        taken(browser, folder / "page.html", "page-phone", **phone)
        taken(browser, folder / "demo.html", "page-tour", "#step=4")
        taken(browser, folder / "demo.html", "page-attention", f"#step={CAUSAL}", place="#matrix")


if __name__ == "__main__":
    main()
