"""Batches with a name are written once, however often they are sent, and never taken for others."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import softkv
from softkv.errors import (
    AccessRefused,
    BatchMismatch,
    DuplicateKey,
    InputError,
    KeyMissing,
    PayloadError,
    ShapeError,
    SoftKVError,
    StoreDamaged,
)
from softkv.storage import Store
from softkv.storage.catalog import batches
from softkv.storage.catalog.tables import seal
from tests.stores import sql

KEYS, VALUES, VECTORS = ["a", "b", "c"], [1.0, 2.0, 3.0], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
DAY = 24 * 3600


@pytest.fixture
def db(tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """An empty store of numbers; it is sound at the end."""
    with softkv.open(tmp_path / "s") as found:
        yield found
        assert found.check().ok


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the time, in days from some day on."""
    return lambda days: monkeypatch.setattr(batches, "_now", lambda: 1_700_000_000 + days * DAY)


def commit(db: softkv.SoftKV) -> int:
    """The number of the newest commit."""
    return db._store.commit


def test_a_batch_that_is_sent_again_is_written_once(db: softkv.SoftKV) -> None:
    """The result is that of the first time, and nothing is written: not even a commit."""
    first = db.add(KEYS, VALUES, vectors=VECTORS, batch="monday")
    before = commit(db)
    assert db.add(KEYS, VALUES, vectors=VECTORS, batch="monday") == first
    assert (len(db), commit(db)) == (3, before)
    assert db.add(values=[4.0], vectors=[[2.0, 1.0]], batch="tuesday") != first
    assert db.add(values=[4.0], vectors=[[2.0, 1.0]], batch="tuesday").first_number == 4
    assert len(db) == 4  # without keys nothing else would have noticed


def test_it_is_known_after_all_that_may_happen_in_between(tmp_path: Path) -> None:
    """Deletions, compaction, another embedder's worth of commits, and other handles."""
    path = tmp_path / "s"
    with softkv.open(path) as db:
        added = db.add(KEYS, VALUES, vectors=VECTORS, batch="adding")
        changed = db.set_values(["a", "b"], [7.0, 8.0], batch="changing")
        assert db.delete(["a", "c"], batch="deleting") == 2
    with softkv.open(path) as db:
        db.compact()
        before = commit(db), dict(db)
        assert db.add(KEYS, VALUES, vectors=VECTORS, batch="adding") == added
        assert db.set_values(["a", "b"], [7.0, 8.0], batch="changing") == changed
        assert db.delete(["a", "c"], batch="deleting") == 2
        assert (commit(db), dict(db)) == before == (before[0], {"b": 8.0})
        assert db.check().ok
    with softkv.open(path, "r") as db, pytest.raises(AccessRefused):
        db.add(KEYS, VALUES, vectors=VECTORS, batch="adding")


OTHERS: dict[str, Callable[[softkv.SoftKV], object]] = {
    "other values": lambda db: db.add(KEYS, [1.0, 2.0, 4.0], vectors=VECTORS, batch="x"),
    "other keys": lambda db: db.add(["a", "b", "d"], VALUES, vectors=VECTORS, batch="x"),
    "other vectors": lambda db: db.add(KEYS, VALUES, vectors=VECTORS[::-1], batch="x"),
    "payloads": lambda db: db.add(KEYS, VALUES, vectors=VECTORS, payloads=[1, None, None], batch="x"),
    "fewer": lambda db: db.add(KEYS[:2], VALUES[:2], vectors=VECTORS[:2], batch="x"),
    "another rule for conflicts": lambda db: db.add(KEYS, VALUES, vectors=VECTORS, on_conflict="replace", batch="x"),
    "no keys": lambda db: db.add(values=VALUES, vectors=VECTORS, batch="x"),
    "embedded keys": lambda db: db.add(KEYS, VALUES, batch="x"),
    "texts": lambda db: db.add(KEYS, VALUES, texts=KEYS, batch="x"),
    "keys that are none": lambda db: db.add([1, 2, 3], VALUES, vectors=VECTORS, batch="x"),  # type: ignore[list-item]
    "a masked value": lambda db: db.add(KEYS, np.ma.array(VALUES, mask=[0, 0, 1]), vectors=VECTORS, batch="x"),
    "ragged vectors": lambda db: db.add(KEYS, VALUES, vectors=[[1.0], [2.0], [1.0, 2.0]], batch="x"),
    "a deletion": lambda db: db.delete(KEYS, batch="x"),
    "other values of items": lambda db: db.set_values(KEYS, VALUES, batch="x"),
    "nothing": lambda db: db.delete([], batch="x"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_content_under_the_same_name_is_refused(db: softkv.SoftKV, other: str) -> None:
    """Anything may be different; and nothing is written."""
    db.add(KEYS, VALUES, vectors=VECTORS, batch="x")
    before = commit(db)
    with pytest.raises(BatchMismatch, match="batch 'x' was written before, at commit 1, with other content"):
        OTHERS[other](db)
    assert (commit(db), dict(db)) == (before, dict(zip(KEYS, VALUES, strict=True)))


def test_the_same_content_is_known_however_it_is_wrapped(db: softkv.SoftKV) -> None:
    """Lists, arrays and tables of the same numbers and texts."""
    given = {"payloads": [{"n": 1}, None, "x"], "batch": "x"}
    first = db.add(KEYS, VALUES, vectors=VECTORS, **given)  # type: ignore[arg-type]
    for keys in (tuple(KEYS), np.array(KEYS), np.array(KEYS, object), pd.Series(KEYS), dict.fromkeys(KEYS).keys()):
        for values in ([1, 2, 3], np.array(VALUES), np.array(VALUES, np.float32), pd.Series(VALUES)):
            for vectors in (np.array(VECTORS), np.array(VECTORS, np.int8), [np.array(row) for row in VECTORS]):
                assert db.add(keys, values, vectors=vectors, **given) == first  # type: ignore[arg-type]
    assert db.add(KEYS, VALUES, vectors=pd.DataFrame(VECTORS), **given) == first  # type: ignore[arg-type]
    assert len(db) == 3


def test_one_item_is_a_batch_of_one(db: softkv.SoftKV) -> None:
    """It may be given alone or in lists; labels too."""
    first = db.add("k", 5.0, vectors=[1.0, 2.0], batch="x")
    assert db.add(["k"], [5], vectors=[[1.0, 2.0]], batch="x") == first


def test_borders_between_texts_count() -> None:
    """("ab", "c") is not ("a", "bc"), nothing is not an empty text, a number not its spelling."""
    from softkv.database.stamping import stamp

    columns: list[Any] = [
        ["ab", "c"],
        ["a", "bc"],
        ["abc"],
        ["abc", ""],
        ["abc", None],
        [1.0],
        ["1.0"],
        [[1.0]],
        [],
        None,
    ]
    columns += [[True], [1.0, 1.0], "ab", ["ab"]]
    found = [stamp("x", "add", column, None) for column in columns] + [
        stamp("x", "add", None, one) for one in columns[:-1]
    ]
    digests = [one.digest for one in found if one is not None]
    assert len(digests) == len(columns) * 2 - 1
    assert len(set(digests)) == len(digests) - 1  # nothing at all stands twice


def test_texts_are_not_embedded_again(tmp_path: Path) -> None:
    """What was given is compared, not its vectors: the model is not asked, and may be another by now."""
    asked: list[str] = []

    def embedder(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.array([[len(text), 1.0, text.count("e")] for text in texts], np.float32)

    with softkv.open(tmp_path / "s", embedder=embedder) as db:
        first = db.add(["one", "three"], ["een", "drie"], batch="x")
        changed = db.set_values(["one"], ["eins"], batch="y")
        asked.clear()
        assert db.add(["one", "three"], ["een", "drie"], batch="x") == first
        assert db.set_values(["one"], ["eins"], batch="y") == changed
        with pytest.raises(BatchMismatch):
            db.add(["one", "three"], ["een", "three"], batch="x")
        assert asked == []
        assert (db["one"], len(db)) == ("eins", 2)
        assert db.check().ok


def test_a_name_is_free_until_a_batch_was_written(db: softkv.SoftKV) -> None:
    """What is refused leaves none: twice the same key, a key that is there, an empty batch, a generator, bad JSON."""
    refused: list[tuple[type[SoftKVError], Callable[[], object]]] = [
        (DuplicateKey, lambda: db.add(["a", "a"], [1.0, 2.0], vectors=VECTORS[:2], batch="x")),
        (ShapeError, lambda: db.add([], [], vectors=np.empty((0, 2)), batch="x")),
        (ShapeError, lambda: db.add((key for key in KEYS), VALUES, vectors=VECTORS, batch="x")),  # type: ignore[arg-type]
        (PayloadError, lambda: db.add(KEYS, VALUES, vectors=VECTORS, payloads=[{1}, None, None], batch="x")),
        (KeyMissing, lambda: db.delete(["nobody"], batch="x")),
        (KeyMissing, lambda: db.set_values(["nobody"], [1.0], batch="x")),
    ]
    for kind, work in refused:
        with pytest.raises(kind):
            work()
    assert commit(db) == 0
    db.add(KEYS, VALUES, vectors=VECTORS, batch="x")
    with pytest.raises(DuplicateKey):
        db.add(KEYS, VALUES, vectors=VECTORS, batch="y")
    assert db.delete(["a"], batch="y") == 1


def test_keys_twice_in_a_batch_and_keys_that_are_there(db: softkv.SoftKV) -> None:
    """What was replaced and passed over is told again as it was told the first time."""
    first = db.add(["a", "b", "a"], VALUES, vectors=VECTORS, on_conflict="replace", batch="x")
    assert (first.count, db["a"]) == (2, 3.0)
    again = db.add(["a", "c"], VALUES[:2], vectors=VECTORS[:2], on_conflict="replace", batch="y")
    assert (again.count, again.replaced) == (2, 1)
    passed = db.add(["a", "b"], VALUES[:2], vectors=VECTORS[:2], on_conflict="ignore", batch="z")
    assert (passed.count, passed.ignored) == (0, 2)
    db.delete(["a", "b"])
    assert db.add(["a", "b", "a"], VALUES, vectors=VECTORS, on_conflict="replace", batch="x") == first
    assert db.add(["a", "c"], VALUES[:2], vectors=VECTORS[:2], on_conflict="replace", batch="y") == again
    assert db.add(["a", "b"], VALUES[:2], vectors=VECTORS[:2], on_conflict="ignore", batch="z") == passed
    assert list(db) == ["c"]


def test_a_deletion_of_nothing_has_a_name_as_well(db: softkv.SoftKV) -> None:
    """One store never had an item, and one has."""
    assert db.delete([], batch="x") == 0
    assert db.delete(iter([]), batch="x") == 0
    db.add(KEYS, VALUES, vectors=VECTORS)
    assert db.delete([], batch="y") == 0
    for name in ("x", "y"):
        with pytest.raises(BatchMismatch):
            db.delete(["a"], batch=name)
    assert len(db) == 3


def test_a_deletion_may_be_given_in_any_order(db: softkv.SoftKV) -> None:
    """A generator will do, or a set, whose order is by chance."""
    db.add([f"key {i}" for i in range(50)], np.arange(50.0), vectors=np.ones((50, 2)))
    names = {f"key {i}" for i in range(20)}
    assert db.delete((name for name in sorted(names)), batch="x") == 20
    assert db.delete(names, batch="x") == 20
    assert db.delete([*sorted(names, reverse=True), "key 3"], batch="x") == 20
    assert len(db) == 30


def test_batches_are_kept_for_seven_days(db: softkv.SoftKV, clock: Callable[[int], None], tmp_path: Path) -> None:
    """After that their names are free again, and a later write of any kind removes them."""
    clock(0)
    first = db.add(values=[1.0], vectors=[[1.0, 2.0]], batch="old")
    clock(7)
    assert db.add(values=[1.0], vectors=[[1.0, 2.0]], batch="old") == first
    db.add(values=[1.0], vectors=[[1.0, 2.0]], batch="newer")
    clock(8)
    with pytest.raises(BatchMismatch):
        db.add(values=[2.0], vectors=[[1.0, 2.0]], batch="newer")
    assert db._store._catalog.connection.rows("SELECT id FROM batches ORDER BY id") == [("newer",), ("old",)]
    assert db.add(values=[2.0], vectors=[[1.0, 2.0]], batch="old").first_number == 3
    clock(15)
    db.set_temperature(0.3)
    assert db._store._catalog.connection.rows("SELECT id FROM batches") == [("old",)]
    clock(16)
    db.delete(["#1"])
    assert db._store._catalog.connection.rows("SELECT id FROM batches") == []


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "\ud800", 7, b"x", ["x"]])
def test_a_name_that_cannot_be_one_is_refused(db: softkv.SoftKV, name: Any) -> None:
    """It is refused before anything is written."""
    for work in (
        lambda: db.add(KEYS, VALUES, vectors=VECTORS, batch=name),
        lambda: db.delete([], batch=name),
        lambda: db.set_values([], [], batch=name),
    ):
        with pytest.raises(InputError, match="expected batch as"):
            work()
    assert commit(db) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": b"x"},
        {"result": "[1]"},
        {"result": "{"},
        {"result": '["a",1,2,3,4]'},
        {"result": "7"},
        {"time": 2**62},
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_damaged_record_is_never_believed(tmp_path: Path, changes: dict[str, Any], sealed: bool) -> None:
    """It is an error to who sends the batch again, also under a checksum that is right, and nothing is written."""
    with softkv.open(tmp_path / "s") as db:
        added = db.add(KEYS, VALUES, vectors=VECTORS, batch="x")
    ((*content, found),) = sql(tmp_path / "s", "SELECT * FROM batches")
    row = dict(zip(("id", "digest", "result", "commit", "time"), content, strict=True)) | changes
    sql(tmp_path / "s", "DELETE FROM batches")
    mark = seal(*row.values()) if sealed else found
    sql(tmp_path / "s", "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", *row.values(), mark)
    with softkv.open(tmp_path / "s") as db:
        assert db.check().ok == sealed
        before = commit(db)
        if sealed and "time" in changes:
            assert db.add(KEYS, VALUES, vectors=VECTORS, batch="x") == added
        else:
            with pytest.raises(BatchMismatch if sealed and "digest" in changes else StoreDamaged):
                db.add(KEYS, VALUES, vectors=VECTORS, batch="x")
        assert (commit(db), len(db)) == (before, 3)


@pytest.mark.parametrize("changes", [{"digest": b"x"}, {"result": "[1]"}, {"result": "{"}])
def test_a_damaged_record_is_not_sealed_anew_in_a_copy(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Making a copy a store of its own is refused where a record of a batch is damaged, which stays as it is."""
    with softkv.open(tmp_path / "s") as db:
        db.add(KEYS, VALUES, vectors=VECTORS, batch="x")
    (column,) = changes
    sql(tmp_path / "s", f"UPDATE batches SET {column} = ?", changes[column])
    before = sql(tmp_path / "s", "SELECT * FROM batches")
    with Store.open(tmp_path / "s", "w") as store, pytest.raises(StoreDamaged, match="batch 'x' is damaged"):
        store.set_apart()
    assert sql(tmp_path / "s", "SELECT * FROM batches") == before


def test_the_record_says_what_was_written(db: softkv.SoftKV) -> None:
    """Name, digest, result, commit and time, in the row that the commit of the items wrote."""
    added = db.add(KEYS, VALUES, vectors=VECTORS, batch="x")
    ((name, digest, result, number, when, _),) = db._store._catalog.connection.rows("SELECT * FROM batches")
    assert (name, len(digest), number) == ("x", 32, commit(db))
    assert json.loads(result) == [added.first_row, added.first_number, added.count, added.replaced, added.ignored]
    assert when > 1_700_000_000
