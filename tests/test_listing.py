"""The list of items column by column: its order is that which SQLite would give."""

from pathlib import Path

import numpy as np
import pytest

from softkv.errors import StoreDamaged
from softkv.storage import Store
from softkv.storage.catalog import listing, patience

from .stores import sql


def test_the_order_is_read_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are added, replaced, deleted, compacted and shuffled; it is that of all live rows by their ordinals."""
    monkeypatch.setattr(listing, "_STRIDE", 16)
    chance, names = np.random.default_rng(0), [f"key {number}" for number in range(90)]
    with Store.open(tmp_path / "s", "c") as store, Store.open(tmp_path / "s") as reader:
        for step in range(12):
            some = chance.choice(names, 20, replace=False).tolist()
            store.append(np.ones((20, 2)), np.zeros(20), keys=some, on_conflict="replace")
            if step % 3 == 1:
                store.delete(list(store.keys())[step::4])
            if step % 5 == 4:
                store.compact(chance.permutation(np.flatnonzero(store.live)))
            query = f"SELECT row FROM items_{store.snapshot().generation} WHERE died IS NULL ORDER BY ordinal"
            expected = [row for (row,) in sql(tmp_path / "s", query)]
            with Store.open(tmp_path / "s") as fresh:
                for one in (store, reader, fresh):
                    assert one.in_order().tolist() == expected
                    assert one.last() == expected[-1]
                assert list(fresh.keys()) == [fresh.items([row])[0].key for row in expected]
        assert store.check().ok


def test_many_scattered_rows_are_read_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than SQLite takes in one parameter, where it takes at most 64 KiB."""
    monkeypatch.setattr(patience, "LONGEST_FIELD", 1 << 16)
    monkeypatch.setattr(listing, "MOST_LISTED", 1 << 10)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(np.ones((60_000, 1)), np.ones(60_000))
        rows = np.arange(59_999, 0, -5)
        assert store.names(rows) == [f"#{row + 1}" for row in rows]


@pytest.mark.parametrize("damage", ["DELETE FROM items_1 WHERE row = 40", "UPDATE items_1 SET died = 1 WHERE row = 40"])
def test_a_list_that_is_not_that_of_the_living_is_refused(tmp_path: Path, damage: str) -> None:
    """A list that is not that of the living is refused, also by who wants the last item alone."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(np.ones((60, 2)), np.zeros(60))
    sql(tmp_path / "s", damage)
    with Store.open(tmp_path / "s") as store:
        for ask in (store.last, store.in_order, lambda: next(store.keys())):
            with pytest.raises(StoreDamaged, match="disagree"):
                ask()
