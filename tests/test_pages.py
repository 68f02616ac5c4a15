"""The pages that are made of the code are as they would be made now."""

import pytest

from .pages import DOCS, PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_made_of_the_code_is_as_it_would_be_made_now(page: str) -> None:
    """Where this fails, `python -m tests.pages` writes the page anew."""
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page]()
