"""A random search for answers that are farther from the truth than they say, or that a batch answers otherwise.

Two thousand cases by default, a hundred thousand with --thorough: a case is one batch of queries to one store.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from . import searching

QUESTIONS = 20  # to each store
STORES = {"plain": 60, "indexed": 25, "learned": 15}
LONGER = 50  # times as many with --thorough
DRAWN: dict[str, Callable[[Path, np.random.Generator], searching.Drawn]] = {
    "plain": searching.plain_store,
    "indexed": searching.indexed_store,
    "learned": searching.learned_store,
}


def searched(folder: Path, name: str, seed: int) -> tuple[list[str], Counter[str]]:
    """What is wrong in the answers of one store, and the kinds of errors that they stated."""
    rng, found = np.random.default_rng([seed, len(name)]), []
    with pytest.MonkeyPatch.context() as patch:
        searching.small_blocks(rng, patch)
        if name == "indexed":
            searching.small_indexes(patch)
        with DRAWN[name](folder / "store", rng) as store:
            for number in range(QUESTIONS):
                found += [f"seed {seed}, question {number}: {one}" for one in searching.findings(store)]
            found += [f"seed {seed}, {one}" for one in searching.lost(store, folder)]
            assert store.db.check().ok
    return found, store.met


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # hints about values and columns that were drawn
@pytest.mark.parametrize("name", STORES)
def test_no_answer_is_farther_off_than_it_says(tmp_path: Path, name: str, thorough: bool) -> None:
    """Anything is stored and asked; a batch answers as its queries alone, and so does a store that was exported."""
    wrong: list[str] = []
    met: Counter[str] = Counter()
    for seed in range(STORES[name] * (LONGER if thorough else 1)):
        with TemporaryDirectory(dir=tmp_path) as folder:
            found, kinds = searched(Path(folder), name, seed)
        wrong += found
        met += kinds
    assert not wrong, f"{len(wrong)} findings, the first: {wrong[0]}"
    expected: dict[str, Any] = {"plain": {"exact"}, "learned": {"exact"}, "indexed": {"exact", "bound", "calibrated"}}
    assert set(met) == expected[name]
    assert min(met.values()) > 200
