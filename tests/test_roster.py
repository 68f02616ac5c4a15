"""Who lies in which row, as of a commit, against a history kept in a dict."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.errors import StoreDamaged
from softkv.storage import Store, check
from softkv.storage.catalog import roster
from softkv.storage.catalog.roster import NO_CONTENT, content_seal
from tests.stores import CATALOG, contents, sql, vectors


def test_every_commit_keeps_its_own_answer(tmp_path: Path) -> None:
    """Adding, replacing and deleting at random: each snapshot goes on saying what was true when it was taken."""
    random, truth, moments = np.random.default_rng(0), {}, []
    with Store.open(tmp_path / "s", "c") as store:
        for number in range(40):
            keys = [f"key {i}" for i in random.choice(12, random.integers(1, 5), replace=False)]
            if number % 3 == 2 and truth:
                doomed = list(truth)[: random.integers(1, len(truth) + 1)]
                store.delete(doomed)
                truth = {key: value for key, value in truth.items() if key not in doomed}
            else:
                values = [float(number)] * len(keys)
                store.append(vectors(len(keys)), values, keys=keys, on_conflict="replace")
                truth = {**truth, **dict(zip(keys, values, strict=True))}
            moments.append((store.snapshot(), dict(truth)))
        for snapshot, then in moments:
            assert {key: snapshot.get(key).value for key in snapshot.keys()} == then  # noqa: SIM118
            assert list(snapshot.keys()) == list(then)
            asked = [f"key {i}" for i in range(12)]
            assert [row >= 0 for row in snapshot.find_many(asked).tolist()] == [key in then for key in asked]
            assert [key in snapshot for key in asked] == [key in then for key in asked]
            assert snapshot.live.sum() == len(then) == len(snapshot)
            np.testing.assert_array_equal(np.sort(snapshot.in_order()), np.flatnonzero(snapshot.live))
            snapshot.close()
        assert store.check().ok


def test_a_hundred_thousand_keys_at_once(tmp_path: Path) -> None:
    """Added, found, fetched and deleted in one call each, in one statement each."""
    keys = [f"key {i}" for i in range(100_000)]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(np.ones((100_000, 1)), np.arange(100_000.0), keys=keys)
        shuffled = np.random.default_rng(0).permutation(100_000)
        asked = [keys[i] for i in shuffled] + ["none"] * 1_000
        np.testing.assert_array_equal(store.find_many(asked), [*shuffled, *[-1] * 1_000])
        names = [item.key for item in store.items(shuffled[:50_000])]
        assert names == asked[:50_000]
        assert store.delete(keys[::2] + keys[1:60_000:2]) == 80_000
        assert list(store.keys()) == keys[60_001::2]
        assert store.check().ok


def test_any_number_of_keys_may_be_asked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than Python may nest calls of what one statement takes, most of them of no item."""
    monkeypatch.setattr(roster, "_MOST_KEYS", 1)
    monkeypatch.setattr(roster, "MOST_LISTED", 1)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(2), [1.0, 2.0], keys=["a", "b"])
        asked = ["b", *(f"none {number}" for number in range(2_000)), "a"]
        assert store.found_values(asked) == {"b": 2.0, "a": 1.0}
        assert [item.key for item in store.items([0, 1] * 1_000)] == ["a", "b"] * 1_000


def test_keys_may_be_longer_together_than_a_parameter(tmp_path: Path) -> None:
    """SQLite takes 64 MiB; these are 69, and one of them is of an item."""
    asked = [f"{number} {'x' * 65_000}" for number in range(1_100)]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(1), [1.0], keys=asked[-1:])
        assert store.found_values(asked) == {asked[-1]: 1.0}
        assert store.find_many(asked).tolist() == [-1] * 1_099 + [0]


def test_items_without_a_key_are_found_by_their_number(tmp_path: Path) -> None:
    """They are #1, #2 and so on, and no other way of writing the number finds them."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(3), [1.0, 2.0, 3.0], keys=[None, "named", None])
        assert list(store.keys()) == ["#1", "named", "#3"]
        assert (store.get("#1").name, store.get("#3").value) == ("#1", 3.0)
        odd = ["#2", "#4", "#01", "# 1", "#", "#-1", "#1.0", "#\u0661", "#" + "9" * 30, "##1"]
        assert [name for name in odd if name in store] == []
        store.delete(["#1", "#1"])
        assert list(store.keys()) == ["named", "#3"]
        assert store.check().ok


def test_numbers_of_items_are_never_given_twice(tmp_path: Path) -> None:
    """They are not after a deletion, nor after a compaction, nor after reopening."""
    with Store.open(tmp_path / "s", "c") as store:
        assert store.append(vectors(2), [1.0, 2.0]).first_number == 1
        store.delete(["#1", "#2"])
        store.compact()
    with Store.open(tmp_path / "s", "w") as store:
        assert store.append(vectors(1), [1.0]).first_number == 3
        assert list(store.keys()) == ["#3"]
        assert store.check().ok


def test_a_row_may_be_asked_for_twice(tmp_path: Path) -> None:
    """Items come in the order of the question, as often as they stand in it."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(3), [1.0, 2.0, 3.0], keys=["a", "b", "c"])
        assert [item.key for item in store.items([2, 0, 2])] == ["c", "a", "c"]
        assert store.check().ok


def test_items_that_are_missing_are_counted(tmp_path: Path) -> None:
    """A row without an item is damage, not a shorter list."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(3), [1.0, 2.0, 3.0])
    sql(tmp_path / "s", "DELETE FROM items_1 WHERE row = 1")
    with Store.open(tmp_path / "s") as store, pytest.raises(StoreDamaged, match="1 items are missing"):
        store.items([0, 1, 2])


def test_what_is_carried_along_is_protected(tmp_path: Path) -> None:
    """A payload altered by SQL is an error where it is read, and only there."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(2), [1.0, 2.0], keys=["a", "b"], payloads=[{"sum": 100}, {"sum": 200}])
        before = contents(store)
    sql(tmp_path / "s", "UPDATE contents SET payload = '{\"sum\":900}' WHERE item = 1")
    with Store.open(tmp_path / "s") as store:
        with pytest.raises(StoreDamaged, match="row 0 is damaged"):
            store.get("a")
        assert store.get("b").payload == before["b"][4]


def test_a_checksum_tells_what_is_carried_along_apart() -> None:
    """Texts in other places, empty ones and none at all."""
    variants = [("a", "b", None), ("b", "a", None), ("a", None, "b"), ("ab", None, None), ("", "", ""), ("", None, "")]
    assert len({content_seal(variant) for variant in variants}) == len(variants)
    assert content_seal(NO_CONTENT) == 0


def misled(path: Path, key: str, row: int, other: int) -> Path:
    """A closed store in whose index of the living keys one leads to another row than its own."""
    with Store.open(path, "c") as store:
        store.append(vectors(6), np.arange(6), keys=[f"key {i}" for i in range(6)])
        store.append(vectors(1), [9.0], keys=["key 3"], on_conflict="replace")
        assert store.find(key) == row
    content = (path / CATALOG).read_bytes()
    assert content.count(key.encode() + bytes([row])) == 1  # the rows themselves have their key before other fields
    (path / CATALOG).write_bytes(content.replace(key.encode() + bytes([row]), key.encode() + bytes([other])))
    return path


def test_an_index_that_leads_to_another_row_is_damage(tmp_path: Path) -> None:
    """The wrong item is neither given, nor deleted, nor replaced."""
    with Store.open(misled(tmp_path / "s", "key 5", 5, 4), "w") as store:
        for ask in (
            lambda: store.get("key 5"),
            lambda: store.find_many(["key 1", "key 5"]),
            lambda: store.delete("key 5"),
            lambda: store.append(vectors(1), [1.0], keys=["key 5"], on_conflict="replace"),
            lambda: store.append(vectors(1), [1.0], keys=["key 5"]),
        ):
            with pytest.raises(StoreDamaged):
                ask()
        assert store.get("key 4").value == 4.0
        assert len(store) == 6
        assert not store.check().ok


def test_an_index_of_the_living_that_leads_to_the_dead_is_damage(tmp_path: Path) -> None:
    """An index from before the key was replaced is one; else the key would seem to be missing."""
    with Store.open(misled(tmp_path / "s", "key 3", 6, 3)) as store:
        with pytest.raises(StoreDamaged, match="row 3"):
            store.get("key 3")
        assert not store.check().ok


def test_an_index_that_leads_nowhere_is_damage(tmp_path: Path) -> None:
    """Its key is not taken for one that no item has."""
    with Store.open(misled(tmp_path / "s", "key 5", 5, 77), "w") as store:
        for ask in (
            lambda: store.get("key 5"),
            lambda: store.find_many(["key 1", "key 5"]),
            lambda: store.delete(["key 1", "key 5"]),
        ):
            with pytest.raises(StoreDamaged):
                ask()
        assert len(store) == 6


@pytest.mark.parametrize("row", [0, 3, 5])
def test_an_item_that_is_not_listed_any_more_is_missed(tmp_path: Path, row: int) -> None:
    """The last one when the store is opened, the others when they are listed: never a shorter list."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(6), np.arange(6), keys=[f"key {i}" for i in range(6)])
    sql(tmp_path / "s", "DELETE FROM items_1 WHERE row = ?", row)
    if row == 5:
        with pytest.raises(StoreDamaged, match="ends with row 4 of commit 1, but there are 6 rows"):
            Store.open(tmp_path / "s")
    else:
        with Store.open(tmp_path / "s") as store:
            for ask in (store.in_order, lambda: list(store.keys())):
                with pytest.raises(StoreDamaged, match="disagree"):
                    ask()
    assert not check(tmp_path / "s").ok


def test_a_place_in_the_order_is_compared_where_no_item_is_read(tmp_path: Path) -> None:
    """One look compares all rows; who reads the items would notice without."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(6), np.arange(6), keys=[f"key {i}" for i in range(6)])
    sql(tmp_path / "s", "UPDATE items_1 SET ordinal = 9 WHERE row = 2")
    with Store.open(tmp_path / "s") as store:
        assert store.in_order().tolist() == [0, 1, 3, 4, 5, 2]
        with pytest.raises(StoreDamaged, match="row 2 is damaged"):
            store.snapshot().require_sound_order()
        with pytest.raises(StoreDamaged, match="row 2 is damaged"):
            list(store.keys())
        assert not store.check().ok
    with softkv.open(tmp_path / "s", "r") as db:
        for ask in (db.self_attention, lambda: db.lookup(np.ones(4), mask=np.ones(6, np.bool_))):
            with pytest.raises(StoreDamaged, match="row 2 is damaged"):
                ask()


@pytest.mark.parametrize("name", ["key 2", "#7"])
def test_an_item_that_seems_to_come_later_is_damage(tmp_path: Path, name: str) -> None:
    """A commit of birth that is not what was written: the item is not said to be missing."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(7), np.arange(7), keys=[*(f"key {i}" for i in range(6)), None])
        store.append(vectors(1), [1.0])
    sql(tmp_path / "s", "UPDATE items_1 SET born = 99 WHERE row IN (2, 6)")
    with Store.open(tmp_path / "s") as store:
        with pytest.raises(StoreDamaged, match=r"row [26] is damaged"):
            store.get(name)
        assert not store.check().ok
