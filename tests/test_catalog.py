"""The tables: every field of every row is protected, and nothing else is tolerated beside them."""

import shutil
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.errors import FormatTooNew, SoftKVError, StoreDamaged, WriterFenced
from softkv.storage import Store, check
from softkv.storage.catalog import catalog, patience
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.tables import item_seal, seal
from tests import tiny
from tests.stores import bytes_of, closed_fruit, copied, forge, sql, vectors, without_constraints


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a row in every table: labels, contents, dead rows, complete windows, settings."""
    path = tmp_path_factory.mktemp("everything") / "s"
    with Store.open(path, "c") as store:
        store.configure({"colour": "red"})
        store.append(
            vectors(3, 1 << 17),
            ["x", "y", "x"],
            keys=["a", "b", None],
            texts=["A", None, None],
            payloads=[{"n": 1}, None, [2]],
        )
        store.append(vectors(1, 1 << 17, 1), ["z"], keys=["b"], on_conflict="replace")
        assert store.check().ok
    row = ("monday", b"digest", "1", 1, 1_700_000_000)
    sql(path, "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", *row, seal(*row))
    assert check(path).ok
    return path


def columns(path: Path) -> list[tuple[str, str]]:
    """Every column of every table, but those by which rows are found; what is derived need not be right."""
    tables = [name for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    tables = [table for table in tables if table not in ("indexes", "derived")]
    described = [(table, column) for table in tables for column in sql(path, f"PRAGMA table_info({table})")]
    return [(table, f'"{name}"') for table, (_, name, _, _, _, key) in described if not key]


def altered(value: Any) -> Any:
    """Something else of the same type."""
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    return 9 if value is None else value + (1 if isinstance(value, int) else "!")


def test_every_field_of_every_row_is_protected(everything: Path, tmp_path: Path) -> None:
    """One field altered by SQL at a time, in each table: the check finds every one of them."""
    unnoticed, all_columns = [], columns(everything)
    for number, (table, column) in enumerate(all_columns):
        path = copied(everything, tmp_path / str(number))
        value = sql(path, f"SELECT {column} FROM {table} LIMIT 1")[0][0]
        sql(path, f"UPDATE {table} SET {column} = ? WHERE {column} IS ?", altered(value), value)
        if check(path).ok:
            unnoticed.append((table, column))
    assert len(all_columns) == 45
    assert unnoticed == []


def read_all(path: Path) -> None:
    """Ask for everything that the store holds, and hold it to what it should be."""
    with Store.open(path) as store:
        assert [store.get(key).value for key in ("a", "b", "#3")] == ["x", "z", "x"]
        assert [store.get(key).payload for key in ("a", "b", "#3")] == [{"n": 1}, None, [2]]
        store.vectors(range(4))


@pytest.mark.parametrize("table", ["state", "generations", "items_1", "contents", "windows", "deaths", "labels"])
def test_a_row_that_was_deleted_behind_the_back_is_missed(everything: Path, tmp_path: Path, table: str) -> None:
    """Any table may lack it; and whoever reads gets an error of ours."""
    path = copied(everything, tmp_path / "s")
    read_all(path)
    (row,) = sql(path, f"SELECT min({'window' if table == 'windows' else 'rowid'}) FROM {table}")
    sql(path, f"DELETE FROM {table} WHERE {'window' if table == 'windows' else 'rowid'} = ?", *row)
    assert not check(path).ok
    with pytest.raises(SoftKVError):
        read_all(path)


def test_a_row_that_came_to_nothing_is_damage(everything: Path, tmp_path: Path) -> None:
    """Every field is NULL, the checksum included."""
    path = copied(everything, tmp_path / "s")
    with without_constraints(path, "items_1"):
        sql(path, "UPDATE items_1 SET item = NULL, ordinal = NULL, born = NULL, died = NULL, seal = NULL WHERE row = 0")
    with Store.open(path) as store, pytest.raises(StoreDamaged, match="row 0 is damaged"):
        store.get("a")
    assert not check(path).ok


def test_fields_of_another_type_are_damage(everything: Path, tmp_path: Path) -> None:
    """Text where a number belongs is reported, and is no TypeError."""
    path = copied(everything, tmp_path / "s")
    sql(path, "UPDATE items_1 SET born = 'early', seal = 'none' WHERE row = 0")
    with Store.open(path) as store, pytest.raises(StoreDamaged, match="row 0 is damaged"):
        store.get("a")
    assert not check(path).ok


HOSTILE = [
    ("generations", {"rows": 2**53}),
    ("generations", {"rows": 2**62}),
    ("generations", {"rows": -1}),
    ("generations", {"rows": "many"}),
    ("generations", {"rows": 0}),
    ("generations", {"key_width": 2**40}),
    ("generations", {"key_width": 0}),
    ("generations", {"key_width": 3}),
    ("generations", {"key_width": "wide"}),
    ("generations", {"value_width": 2**40}),
    ("generations", {"value_width": -1}),
    ("generations", {"kind": "vector"}),
    ("generations", {"kind": "text"}),
    ("generations", {"kind": "../../etc/passwd"}),
    ("generations", {"kind": 7}),
    ("generations", {"keys_tail": "zero"}),
    ("generations", {"sums": b""}),
    ("generations", {"sums": bytes(8 * 25)}),
    ("generations", {"sums": np.array([np.inf] * 5).tobytes()}),
    ("generations", {"sums": np.array([np.nan] * 5).tobytes()}),
    ("generations", {"sums": np.array([-3.0, 0, 0, 0, 0]).tobytes()}),
    ("generations", {"sums": None}),
    ("state", {"generation": 2}),
    ("state", {"generation": 2**53}),
    ("state", {"generation": -1}),
    ("state", {"generation": "../somewhere"}),
    ("state", {"number": -1}),
    ("state", {"number": "first"}),
    ("state", {"epoch": "never"}),
    ("state", {"next_item": "x"}),
    ("state", {"store": "another"}),
]


@pytest.mark.parametrize(("table", "changes"), HOSTILE)
def test_a_catalog_that_lies_with_good_checksums_is_refused(
    tmp_path: Path, table: str, changes: dict[str, Any]
) -> None:
    """Whoever computes a checksum gets an error all the same, for reading and for writing, at no cost in memory."""
    path = closed_fruit(tmp_path / "s")
    with without_constraints(path, table):
        forge(path, table, **changes)
    tracemalloc.start()
    for mode in ("r", "w"):
        with pytest.raises(StoreDamaged):
            Store.open(path, mode)
    assert not check(path).ok
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_numbers_at_the_end_of_what_sqlite_holds_are_an_error_of_ours(tmp_path: Path) -> None:
    """The next item would have no number."""
    path = closed_fruit(tmp_path / "s")
    forge(path, "state", next_item=2**63 - 1)
    with Store.open(path, "w") as store:
        with pytest.raises(StoreDamaged, match="too large"):
            store.append(vectors(3), [1.0, 2.0, 3.0])
        assert len(store) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON state BEGIN DELETE FROM labels; END",
        "CREATE VIEW v AS SELECT * FROM state",
        "CREATE TABLE more (x)",
        "CREATE TABLE items_x (x)",
        "CREATE TABLE '7' (x)",
        "DROP TABLE deaths",
        "CREATE VIRTUAL TABLE more USING fts5(x)",
    ],
)
def test_tables_that_are_not_ours_are_refused(tmp_path: Path, statement: str) -> None:
    """Triggers and views would run what somebody else wrote; nothing in the catalog changes."""
    path = closed_fruit(tmp_path / "s")
    sql(path, statement)
    before = bytes_of(path)
    for mode in ("r", "w", "c", "n"):
        with pytest.raises(StoreDamaged, match="does not have the tables of a store"):
            Store.open(path, mode)
    assert bytes_of(path)["catalog.sqlite"] == before["catalog.sqlite"]
    assert not check(path).ok


def test_a_virtual_table_under_one_of_our_names_is_refused(tmp_path: Path) -> None:
    """Reading it would run the code of an extension."""
    path = closed_fruit(tmp_path / "s")
    connection = sqlite3.connect(path / "catalog.sqlite")
    connection.execute("DROP TABLE labels")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5(x)")
    connection.execute("CREATE VIRTUAL TABLE labels USING fts5vocab(words, row)")
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("DELETE FROM sqlite_master WHERE name LIKE 'words%'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreDamaged, match="table labels"):
        Store.open(path)


def test_a_newer_format_is_refused_with_its_number(tmp_path: Path) -> None:
    """Every mode refuses it, and nothing is erased."""
    path = closed_fruit(tmp_path / "s")
    sql(path, "PRAGMA user_version=99")
    before = bytes_of(path)
    for mode in ("r", "w", "c", "n"):
        with pytest.raises(FormatTooNew, match="has format 99; this softkv reads up to 3"):
            Store.open(path, mode)
    assert bytes_of(path)["catalog.sqlite"] == before["catalog.sqlite"]
    assert set(bytes_of(path)) - {"catalog.sqlite-wal", "catalog.sqlite-shm"} == set(before)


def test_a_writer_that_comes_late_is_fenced(tmp_path: Path) -> None:
    """The newest commit is compared whole before it is replaced."""
    connection = Connection(str(tmp_path / "c"), write=True, create=True)
    catalog = Catalog(connection)
    catalog.create("store")
    first = catalog.head()
    with connection.writing():
        second = catalog.advance(first, number=1)
    late = pytest.raises(WriterFenced, match="is at commit 1 of writer 0, but this handle left it at commit 0")
    with late, connection.writing():
        catalog.advance(first, number=1)
    assert catalog.head() == second
    connection.close()


def test_a_checksum_tells_types_and_borders_apart() -> None:
    """1 is not "1", ("ab", "c") is not ("a", "bc"), nothing is not an empty text."""
    variants = [(1,), ("1",), (b"1",), (None,), ("",), ("ab", "c"), ("a", "bc"), ("abc",), (1, 1), (11,)]
    assert len({seal(*variant) for variant in variants}) == len(variants)
    items = [(1, 2, 3, b"k", 0), (1, 2, 3, None, 0), (1, 2, 3, b"", 0), (1, 2, 3, b"k", 1), (12, 3, 0, b"k", 0)]
    assert len({item_seal(*item) for item in items}) == len(items)


def test_many_checksums_are_written_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch and a compaction with more of them than SQLite takes in one parameter, of at most 64 KiB here."""
    tiny.shrink(monkeypatch)
    monkeypatch.setattr(patience, "LONGEST_FIELD", 1 << 16)
    monkeypatch.setattr(catalog, "MOST_LISTED", 1 << 10)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(4_000, 16), np.arange(4_000.0))
        store.delete("#1")
        store.compact()
        assert store.check().ok


def test_checksums_of_rows_that_lie_apart_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement reads those of many places, some of them in a list; one that is missing or was changed is told."""
    tiny.shrink(monkeypatch)
    monkeypatch.setattr(catalog, "MOST_LISTED", 50)
    rows, asked, plain = np.arange(0, 4_000, 31), list[str](), Connection.rows

    def noted(self: Connection, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        asked.append(statement)
        return plain(self, statement, *given)

    cells = vectors(4_000, 16)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(cells, np.arange(4_000.0))
    monkeypatch.setattr(Connection, "rows", noted)
    with Store.open(tmp_path / "s", "r") as store:
        assert np.array_equal(store.vectors(rows), cells[rows])
    assert len([one for one in asked if "FROM windows" in one or "JOIN windows" in one]) <= 2 + len(rows) // 25
    for change, told in (
        ("DELETE FROM windows", "are missing"),
        ("UPDATE windows SET checksum = checksum + 1", "do not match"),
    ):
        shutil.copytree(tmp_path / "s", tmp_path / "t")
        sql(tmp_path / "t", f"{change} WHERE role = 'keys' AND window = {31 * 70 * 2}")
        with Store.open(tmp_path / "t", "r") as store:
            with pytest.raises(StoreDamaged, match=told):
                store.vectors(rows)
            assert np.array_equal(store.vectors(rows[:60]), cells[rows[:60]])
        shutil.rmtree(tmp_path / "t")
