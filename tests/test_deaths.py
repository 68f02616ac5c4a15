"""The bitmaps of the dead, against a set of row numbers."""

from typing import Any

import numpy as np
import pytest

from softkv.errors import StoreDamaged
from softkv.storage.catalog.deaths import BLOCK, BLOCK_BYTES, Deaths, bitmap_of


def test_a_million_rows_have_the_mask_that_a_set_says() -> None:
    """Deaths in several rounds, at the edges of blocks too; the mask is NumPy's of the set of the dead."""
    rows, dead, random = 1_000_003, np.zeros(1_000_003, np.bool_), np.random.default_rng(0)
    deaths = Deaths()
    for count in (1, 1_000, 100_000):
        doomed = np.setdiff1d(random.choice(rows, count, replace=False), np.flatnonzero(dead))
        dead[doomed] = True
        deaths = deaths.replaced(deaths.buried(doomed))
    edges = np.setdiff1d([0, BLOCK - 1, BLOCK, rows - 1], np.flatnonzero(dead))
    dead[edges] = True
    deaths = deaths.replaced(deaths.buried(edges))
    np.testing.assert_array_equal(deaths.live(rows), ~dead)
    assert deaths.count == int(dead.sum())


def test_the_mask_cannot_be_changed() -> None:
    """Readers share it."""
    assert not Deaths().live(10).flags.writeable


def test_the_mask_is_as_long_as_the_rows() -> None:
    """The mask is as long as the rows, also of none, and of just a block."""
    for rows in (0, 1, BLOCK, BLOCK + 1):
        assert Deaths().live(rows).shape == (rows,)


def test_a_row_is_dead_or_it_is_not() -> None:
    """One question about one row, in blocks with deaths and in blocks without."""
    doomed = np.array([3, BLOCK + 8])
    deaths = Deaths().replaced(Deaths().buried(doomed))
    assert [row for row in (0, 2, 3, 4, BLOCK, BLOCK + 8, 5 * BLOCK) if row in deaths] == [3, BLOCK + 8]


def test_the_dead_of_a_snapshot_stay_as_they_were() -> None:
    """What dies later dies in another record."""
    before = Deaths().replaced(Deaths().buried(np.array([1])))
    after = before.replaced(before.buried(np.array([2])))
    assert (before.live(4).tolist(), after.live(4).tolist()) == ([True, False, True, True], [True, False, False, True])
    assert (before.count, after.count) == (1, 2)


def test_only_the_blocks_in_which_somebody_dies_change() -> None:
    """A deletion writes 8 KB a block, not the whole record."""
    assert set(Deaths().buried(np.array([5, 6, 3 * BLOCK]))) == {0, 3}


@pytest.mark.parametrize("blob", [None, "text", 7, b"", bytes(BLOCK_BYTES - 1), bytes(BLOCK_BYTES + 1)])
def test_what_is_no_bitmap_is_damage(blob: object) -> None:
    """It may be of another type, or of another length."""
    with pytest.raises(StoreDamaged, match="block 0"):
        bitmap_of(blob, 0, 100)


@pytest.mark.parametrize("block", [-1, 1, 1 << 40, "0"])
def test_a_bitmap_of_rows_that_are_not_there_is_damage(block: Any) -> None:
    """A block number sizes the mask, so it is held to the row count first."""
    with pytest.raises(StoreDamaged, match="dead rows"):
        bitmap_of(bytes(BLOCK_BYTES), block, BLOCK)
