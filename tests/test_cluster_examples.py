"""The worked examples over shards: every lookup of their pages is what the reference says, and nothing is refused.

What pages print is compared over one store (test_docs.py): items of shards come in another order.
"""

import pytest

from . import over_shards
from .test_docs import EXAMPLES, ROOT, failures, witnessed


@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize(("name", "least"), EXAMPLES)
def test_the_lookups_of_an_example_hold_over_shards(
    name: str, least: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of plain lookups, as many as a page makes."""
    monkeypatch.setattr("softkv.open", over_shards.opening(shards))
    count = witnessed(monkeypatch)
    said = failures((ROOT / "data" / name / "README.md").read_text(encoding="utf-8"), name)[1]
    assert "Exception raised" not in said, said
    assert count[0] >= least
