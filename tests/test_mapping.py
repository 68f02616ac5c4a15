"""A database as a mapping: what an iteration sees, and many keys at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import SoftKV
from softkv.errors import KeyMissing, KeyTextError, StoreDamaged
from softkv.storage import Snapshot

from .databases import KINDS, filled, vectors_of
from .stores import sql

COUNT = 700  # more items than are read first


def test_an_iteration_runs_over_the_commit_that_it_started_on(tmp_path: Path) -> None:
    """What is added, replaced, deleted or compacted meanwhile changes nothing of it."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=[[float(number), 1.0] for number in range(5)], values=[float(number) for number in range(5)])
        for iteration in (iter(db), iter(db.items()), iter(db.values()), db.select()):
            before = len(db)
            seen = [next(iteration)]
            db.delete(next(iter(db)))
            db.add(vectors=[[9.0, 9.0]], values=[9.0])
            db.compact()
            assert len(seen + list(iteration)) == before
        assert db.check().ok


def values_of(kind: str) -> list[Any]:
    """As many different values of a kind."""
    numbers = [float(number) for number in range(COUNT)]
    if kind == "vector":
        return [np.array([number, -number], np.float32) for number in numbers]
    return numbers if kind == "number" else [f"value {number:.0f}" for number in numbers]


def moved(path: Path, kind: str) -> tuple[SoftKV, dict[str, Any]]:
    """A store with replaced, deleted and nameless items, and a dict to which the same was done."""
    db = softkv.open(path, value=kind, embedder=lambda texts: np.array([[len(text), 1.0] for text in texts]))
    values, vectors = values_of(kind), vectors_of(COUNT)[:, :2]
    keys = [None if number % 7 == 3 else f"key {number}" for number in range(COUNT)]
    db.add(keys, values, vectors=vectors)
    plain = {key or f"#{number + 1}": value for number, (key, value) in enumerate(zip(keys, values, strict=True))}
    replaced = [f"key {number}" for number in range(0, COUNT, 5) if number % 7 != 3]
    db.add(replaced, values[: len(replaced)], vectors=vectors[: len(replaced)], on_conflict="replace")
    plain.update(zip(replaced, values, strict=False))
    gone = list(plain)[::3]
    db.delete(gone)
    return db, {key: value for key, value in plain.items() if key not in gone}


@pytest.mark.parametrize("order", ["as added", "compacted", "backwards"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_items_come_as_from_a_dict(tmp_path: Path, kind: str, order: str) -> None:
    """Many at a time, of every kind, wherever their rows lie: the same items in the same order as one by one."""
    db, plain = moved(tmp_path / "s", kind)
    with db:
        if order != "as added":
            rows = np.flatnonzero(db._store.live)
            db._store.compact(rows[::-1] if order == "backwards" else rows)
        assert list(db) == list(plain)
        assert [key for key, _ in db.items()] == list(plain)
        for found in (db.values(), [value for _, value in db.items()], db.get_many(plain), map(db.get, plain)):
            assert all(np.array_equal(one, other) for one, other in zip(found, plain.values(), strict=True))
        assert next(iter(db)) == next(iter(plain))
        assert db.popitem()[0] == plain.popitem()[0]
        assert list(db) == list(plain)
        assert db.check().ok


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_and_values_are_found_as_in_a_dict(tmp_path: Path, kind: str) -> None:
    """Vectors are equal in shape and in each number; what could be no key, and no value, is not among them."""
    with filled(tmp_path / "s", kind) as db:
        for key, value in db.items():
            assert (key, value) in db.items()
            assert value in db.values()
            assert [key, value] not in db.items()
        for odd in (None, [[1.0], [1.0, 2.0]], np.ones((2, 2)), np.full(2, 7.0), {}, np.array("a"), "", -55):
            assert odd not in db.values()
            assert odd not in db.items()
            assert all((key, odd) not in db.items() for key in ("item 1", 5, None, "#x", "nobody", "a\0", [1]))
        if kind == "vector":
            assert db["item 1"].tolist() in db.values()
            assert ("item 1", db["item 1"].tolist()) in db.items()
            assert db["item 1"][:1] not in db.values()


def test_a_key_of_numpy_is_named_as_a_text(tmp_path: Path) -> None:
    """Columns of a table have texts of a type of their own."""
    with filled(tmp_path / "s", "number") as db:
        for missed in (lambda: db[np.str_("nobody")], lambda: db.delete(np.array(["nobody"]))):
            with pytest.raises(KeyMissing, match="has the key 'nobody'"):
                missed()


def test_values_are_read_many_at_a_time_to_find_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time takes twelve times as long."""
    with filled(tmp_path / "s", "number") as db:
        monkeypatch.setattr(Snapshot, "value", None)
        assert db.popitem not in db.values()
        assert next(iter(db.values())) in db.values()


def test_many_keys_are_asked_for_as_one_is(tmp_path: Path) -> None:
    """What is absent, deleted or could not be a key gets the default; an item may stand in the list twice."""
    with softkv.open(tmp_path / "s") as db:
        assert db.get_many(["a"], 0) == [0]
        db.add(["a", "é", None, "gone", ""], [1.0, 2.0, 3.0, 4.0, 5.0], vectors=np.eye(5))
        with db.snapshot() as then:
            db.delete("gone")
            db.add(["a"], [9.0], vectors=[np.ones(5)], on_conflict="replace")
            assert then.get_many(["gone", "a", "b"]) == [4.0, 1.0, None]
        asked: list[Any] = ["é", "#3", "a", "#1", "#03", "gone", "a\0", "\ud800", 5, None, [1], "", "é", "x" * 70_000]
        assert db.get_many(asked, -1.0) == [db.get(key, -1.0) for key in asked]
        assert db.get_many([]) == []
        assert db.get_many(iter(["a"])) == [9.0]
        with pytest.raises(KeyTextError, match="use get for the one key 'a'"):
            db.get_many("a")
        assert db.check().ok


@pytest.mark.parametrize("kind", KINDS)
def test_many_keys_are_asked_for_as_one_is_after_all_were_listed(tmp_path: Path, kind: str) -> None:
    """Rows that were compared with their checksums are not read again: the same values, contents only of texts."""
    db, plain = moved(tmp_path / "s", kind)
    named = [key for key in plain if not key.startswith("#")]
    asked = [*named, "gone", *(f"key {number}" for number in range(40)), *named[:9]]
    with db, db.snapshot() as then:
        fresh = db.get_many(asked)
        assert list(db) == list(plain)
        statements = list[str]()
        db._store._catalog.connection._driver.set_trace_callback(statements.append)
        listed = db.get_many(asked)
        db._store._catalog.connection._driver.set_trace_callback(None)
        for one, other, key in zip(fresh, listed, asked, strict=True):
            assert np.array_equal(one, other)
            assert np.array_equal(other, plain.get(key))
        assert len(named) > 100
        assert any("contents" in one for one in statements) == (kind == "text")
        db.delete(named[:3])
        db.add(named[3:5], values_of(kind)[:2], vectors=vectors_of(2)[:, :2], on_conflict="replace")
        list(db)
        for key, now, before in zip(named, db.get_many(named), then.get_many(named), strict=True):
            assert np.array_equal(now, db.get(key))
            assert np.array_equal(before, plain[key])
        assert db.check().ok


def test_many_keys_lead_to_no_dead_row(tmp_path: Path) -> None:
    """One is dead by the record of the dead alone, all rows being as they were written."""
    with softkv.open(tmp_path / "s") as db:
        db.add([f"key {number}" for number in range(COUNT)], np.arange(COUNT), vectors=vectors_of(COUNT))
        list(db)
        snapshot = db._store.snapshot()
        snapshot._live = snapshot.live.copy()
        snapshot._live[500] = False
        snapshot._deaths = snapshot._deaths.replaced(snapshot._deaths.buried(np.array([500])))
        with pytest.raises(StoreDamaged, match="'key 500' is live in one place and dead in another"):
            snapshot.found_values([f"key {number}" for number in range(COUNT)])
        snapshot.close()


@pytest.mark.parametrize(
    "change", ["ordinal = 650 WHERE row = 500", "key = 'other' WHERE row = 500", "item = 9999 WHERE row = 500"]
)
def test_a_damaged_row_is_noticed_by_all_who_read_it(tmp_path: Path, change: str) -> None:
    """To list keys, values or items finds the damage; to read the first item alone does not touch it."""
    with softkv.open(tmp_path / "s") as db:
        db.add([f"key {number}" for number in range(COUNT)], np.arange(COUNT), vectors=vectors_of(COUNT))
    sql(tmp_path / "s", f"UPDATE items_1 SET {change}")
    with softkv.open(tmp_path / "s", "r") as db:
        assert next(iter(db)) == "key 0"
        for ask in (lambda: list(db), lambda: list(db.values()), lambda: list(db.items())):
            with pytest.raises(StoreDamaged, match="row 500 is damaged"):
                ask()
        if "key" not in change:
            with pytest.raises(StoreDamaged, match="row 500 is damaged"):
                db.get_many(["key 1", "key 500"])


def test_a_text_that_is_missing_is_damage(tmp_path: Path) -> None:
    """It is damage where all are asked for, and where one is."""
    with softkv.open(tmp_path / "s", value="text", embedder=lambda texts: np.ones((len(texts), 2))) as db:
        db.add([f"key {number}" for number in range(COUNT)], values_of("text"))
    sql(tmp_path / "s", "DELETE FROM contents WHERE item = 500")
    with softkv.open(tmp_path / "s", "r", embedder=lambda texts: np.ones((len(texts), 2))) as db:
        for ask in (lambda: db["key 499"], lambda: list(db.values()), lambda: db.get_many(["key 499"])):
            with pytest.raises(StoreDamaged):
                ask()
