"""The definitions of the tables: what they mean to others; catalogs that have them in any spelling are ours."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import softkv
from softkv.storage import Store, check
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.tables import TABLES, insertion, items_definition, items_indexes, tables_of
from softkv.storage.layout import FORMAT
from tests import reference
from tests.stores import closed_fruit, contents, sql

KEPT = sorted((Path(__file__).parent / "catalogs").glob("*.zip"))  # stores, and what wrote them
NUMBER, TEXT, BYTES = "INTEGER", "TEXT", "BLOB"

# Of each table the columns, those that may be NULL with a question mark, and how many of the first are its key.
MEANING: dict[str, tuple[int, dict[str, str]]] = {
    "contents": (1, {"item": NUMBER, "text?": TEXT, "value?": TEXT, "payload?": TEXT}),
    "deaths": (2, {"generation": NUMBER, "block": NUMBER, "changed": NUMBER, "bitmap": BYTES, "seal": NUMBER}),
    "generations": (
        1,
        {"generation": NUMBER, "rows": NUMBER, "key_width": NUMBER, "kind": TEXT, "value_width": NUMBER}
        | {"keys_tail": NUMBER, "values_tail": NUMBER, "norms_tail": NUMBER, "sums": BYTES, "settings": TEXT}
        | {"retired": NUMBER, "seal": NUMBER},
    ),
    "indexes": (
        2,
        {"generation": NUMBER, "name": TEXT, "file": NUMBER, "rows": NUMBER, "number": NUMBER, "size": NUMBER}
        | {"sha256": BYTES, "seal": NUMBER},
    ),
    "labels": (1, {"code": NUMBER, "label": TEXT, "count": NUMBER, "seal": NUMBER}),
    "state": (
        1,
        {"id": NUMBER, "store": TEXT, "number": NUMBER, "epoch": NUMBER, "generation": NUMBER, "next_item": NUMBER}
        | {"next_ordinal": NUMBER, "writing": NUMBER, "settings": TEXT, "seal": NUMBER},
    ),
    "windows": (3, {"generation": NUMBER, "role": TEXT, "window": NUMBER, "checksum": NUMBER}),
    "granules": (1, {"generation": NUMBER, "bytes": NUMBER, "seal": NUMBER}),
    "derived": (3, {"generation": NUMBER, "name": TEXT, "part": NUMBER, "content": BYTES, "seal": NUMBER}),
    "batches": (
        1,
        {"id": TEXT, "digest": BYTES, "result": TEXT, "commit": NUMBER, "time": NUMBER, "seal": NUMBER},
    ),
    "secret": (1, {"id": NUMBER, "content": BYTES, "seal": NUMBER}),
    "items_1": (
        1,
        {"row": NUMBER, "item": NUMBER, "ordinal": NUMBER, "key?": TEXT, "born": NUMBER, "died?": NUMBER}
        | {"seal": NUMBER},
    ),
}


@pytest.fixture
def reflected(tmp_path: Path) -> Any:
    """What SQLAlchemy finds in the catalog of a new store."""
    engine = sa.create_engine(f"sqlite:///{closed_fruit(tmp_path / 's') / 'catalog.sqlite'}")
    yield sa.inspect(engine)
    engine.dispose()


def test_a_new_catalog_means_what_is_written_here(reflected: Any) -> None:
    """Every table with its columns, their types, what may be NULL, and its key, as SQLAlchemy reads them."""
    assert set(reflected.get_table_names()) == set(MEANING)
    for table, (keys, columns) in MEANING.items():
        found = reflected.get_columns(table)
        assert {one["name"] + "?" * one["nullable"]: str(one["type"]) for one in found} == columns, table
        assert reflected.get_pk_constraint(table)["constrained_columns"] == list(columns)[:keys], table
        assert all(one["default"] is None for one in found)
        assert reflected.get_foreign_keys(table) == reflected.get_check_constraints(table) == []
        unique = [one["column_names"] for one in reflected.get_unique_constraints(table)]
        assert unique == ([["label"]] if table == "labels" else [])
        assert reflected.get_table_options(table) == ({"sqlite_with_rowid": False} if table == "windows" else {})


def test_the_indexes_mean_what_is_written_here(reflected: Any) -> None:
    """Live keys are unique; keys of dead rows, numbers of items without a key, and old batches are looked up."""
    found = {
        one["name"]: (one["column_names"], bool(one["unique"]), str(one["dialect_options"]["sqlite_where"]))
        for one in reflected.get_indexes("items_1")
    }
    assert found == {
        "items_1_dead": (["key"], False, 'died IS NOT NULL AND "key" IS NOT NULL'),
        "items_1_live": (["key"], True, 'died IS NULL AND "key" IS NOT NULL'),
        "items_1_nameless": (["item"], False, '"key" IS NULL'),
    }
    others = [one for table in MEANING if table != "items_1" for one in reflected.get_indexes(table)]
    assert [(one["name"], one["column_names"], bool(one["unique"])) for one in others] == [
        ("batches_time", ["time"], False)
    ]


def unpacked(kept: Path, folder: Path) -> Path:
    """A copy of a store that was kept."""
    shutil.unpack_archive(kept, folder)
    return folder / "store"


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.stem)
def test_a_catalog_of_an_earlier_version_is_ours(kept: Path, tmp_path: Path) -> None:
    """Written through the oldest SQLAlchemy and the newest: read as it is, then migrated, with all that it holds."""
    path = unpacked(kept, tmp_path)
    number = int(kept.stem.split("-")[1])
    assert sql(path, "PRAGMA user_version") == [(number,)]
    with Store.open(path) as store:
        before = contents(store)
        assert list(before) == ["a", "#3", "c"]
        assert [store.get(name).value for name in before] == ["x", "x", "w"]
        assert store.live[store.matching({"n": {"$lt": 4}})].sum() == 2
        assert store.settings == {"colour": "red"}
        index = store.snapshot().index("names")
        assert (index is None) if number == 1 else (index is not None and bytes(index.read()) == b"first")
        assert check(path).ok
    assert sql(path, "PRAGMA user_version") == [(number,)]
    answered_as_by_hand(path, before)
    with Store.open(path, "w") as store:
        assert contents(store) == before
        store.append([[1.0, 2.0, 3.0, 4.0]], ["x"], keys=["new"])
        store.compact()
        assert list(store.keys()) == [*before, "new"]
        assert store.check().ok
        before = contents(store)
    assert sql(path, "PRAGMA user_version") == [(FORMAT,)]
    answered_as_by_hand(path, before)


def answered_as_by_hand(path: Path, items: dict[str, tuple[Any, ...]]) -> None:
    """What is asked of a store is answered as the slow and obvious way answers it in float64."""
    with softkv.open(path, "r") as db:
        keys, labels = [db.item(name).vector.tolist() for name in items], sorted(set(db.values()))
        values = [[float(db[name] == label) for label in labels] for name in items]
        for query, k in (([1.0, 0.0, 0.0, 0.0], None), ([0.3, -1.0, 0.2, 0.1], None), ([0.3, -1.0, 0.2, 0.1], 2)):
            expected = reference.lookup(query, keys, values, score=reference.dot, temperature=2.0, k=k)
            found = db.lookup(query, temperature=2.0, k=k)
            shares = dict(zip(found.labels or (), found.value.tolist(), strict=True))
            assert [shares[label] for label in labels] == pytest.approx(expected.value, abs=1e-6)
            assert (found.log_mass, found.mass) == pytest.approx((expected.log_mass, expected.mass), abs=1e-6)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.stem)
def test_the_definitions_are_those_of_earlier_catalogs_to_the_letter(kept: Path, tmp_path: Path) -> None:
    """Blanks and quotes too, though these need not be."""
    path = unpacked(kept, tmp_path)
    number = int(kept.stem.split("-")[1])
    wanted = {name: TABLES[name] for name in tables_of(number)}
    wanted |= {"items_2": items_definition(2), **items_indexes(2)}
    assert dict(sql(path, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")) == wanted


def test_other_blanks_and_quotes_are_ours_as_well(tmp_path: Path) -> None:
    """A definition is compared without them, so a catalog that was written in another spelling opens."""
    path = closed_fruit(tmp_path / "s")
    schema = "UPDATE sqlite_master SET sql = replace(replace(sql, 'seal', '\"seal\"'), char(9), '  ')"
    connection = Connection(str(path / "catalog.sqlite"), write=True)
    connection.run("PRAGMA writable_schema=ON")
    connection.run(schema)
    connection.close()
    with Store.open(path, "w") as store:
        assert list(store.keys()) == ["apple", "pear", "quince"]
        assert store.check().ok


def test_a_row_is_written_with_a_question_mark_for_every_column(tmp_path: Path) -> None:
    """A row is written with a question mark for every column, so that nothing a user gave is part of the SQL."""
    connection = Connection(str(tmp_path / "c"), write=True, create=True)
    Catalog(connection).create("store")
    for table in TABLES:
        columns = connection.rows(f"PRAGMA table_info({table})")
        for replacing in (False, True):
            assert insertion(table, replacing=replacing).count("?") == len(columns)
    connection.close()
