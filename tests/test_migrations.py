"""From an older format to this one: what is there stays as it is, and what is new is made at once and in one piece."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.errors import StoreDamaged
from softkv.storage import Store, check, repair
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.secret import secret
from softkv.storage.catalog.tables import seal
from softkv.storage.layout import FORMAT, GRANULE, WINDOW
from tests.stores import GENERATION, as_format, closed_fruit, contents, flip, sql, vectors, wide, without_constraints

from .scales import scaled

HEADER = 4096


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of format 2 with complete windows of a MiB each, as it was written then."""
    with monkeypatch.context() as patch:
        scaled(patch, granules=WINDOW)
        with wide(tmp_path / "old", 9, kind="vector") as store:
            store.delete("key 3")
    return as_format(tmp_path / "old", 2)


def granules(path: Path) -> list[tuple[int, int]]:
    """How many bytes of each generation are under one checksum."""
    return [(number, size) for number, size in sql(path, "SELECT generation, bytes FROM granules")]


def secret_of(path: Path) -> bytes:
    """The secret of a closed store."""
    connection = Connection(str(path / "catalog.sqlite"), write=False)
    try:
        return secret(connection)
    finally:
        connection.close()


def test_an_old_generation_keeps_its_windows_until_it_is_compacted(old: Path) -> None:
    """It is read, grows and is checked by windows of a MiB; the next generation has those of 16 KiB."""
    with Store.open(old, "w") as store:
        before = contents(store)
        store.append(vectors(3, 1 << 17, 7), vectors(3, 1 << 17, 8), keys=["x", "y", "z"])
        report = store.check()
        assert report.ok
        assert report.windows == 2 * 6 + 1
    assert granules(old) == [(1, WINDOW)]
    with Store.open(old, "w") as store:
        after = contents(store)
        assert {name: after[name] for name in before} == before
        store.compact()
        assert contents(store) == after
        assert store.check().windows == 2 * 11 * 32 + 1
    assert granules(old) == [(2, GRANULE)]


def test_an_old_generation_that_is_indexed_gets_the_new_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building an index lays the rows anew, and it answers what the store answered before."""
    keys = vectors(600, 8)
    with monkeypatch.context() as patch:
        scaled(patch, granules=WINDOW)
        with softkv.open(tmp_path / "old", compatibility="gaussian") as db:
            db.add(vectors=keys, values=keys[:, 0].astype(float))
    with softkv.open(as_format(tmp_path / "old", 2), "w") as db:
        before = db.lookup(keys[0], tolerance=0)
        db.build_index(lists=10)
        assert db.lookup(keys[0], tolerance=0).value == pytest.approx(before.value, rel=1e-6)
        assert db.check().ok
    assert granules(tmp_path / "old") == [(2, GRANULE)]


def test_damage_of_an_old_generation_is_found_by_its_windows(old: Path) -> None:
    """One bad byte makes a MiB doubtful, before it is migrated and after."""
    flip(old / GENERATION / "keys.f32", HEADER + WINDOW + 5)
    for mode in ("r", "w"):
        with Store.open(old, mode) as store:
            with pytest.raises(StoreDamaged, match=f"bytes {HEADER + WINDOW} to {HEADER + 2 * WINDOW} do not match"):
                store.get("key 2")
            assert store.get("key 4").key == "key 4"
            assert len(store.check().findings) == 1


def test_all_that_format_3_has_is_made_at_once(old: Path) -> None:
    """Four tables, how the checksums of what is there are divided, and a secret, whatever is added later."""
    assert secret_of(old) == b""
    Store.open(old, "w").close()
    assert sql(old, "PRAGMA user_version") == [(FORMAT,)] == [(3,)]
    first = secret_of(old)
    assert (granules(old), len(first)) == ([(1, WINDOW)], 32)
    for table in ("batches", "derived"):
        assert sql(old, f"SELECT count(*) FROM {table}") == [(0,)]
    with Store.open(old, "w") as store:
        store.compact()
        assert store.check().ok
    assert secret_of(old) == first


def test_every_store_has_a_secret_of_its_own(tmp_path: Path) -> None:
    """Every store has a secret of its own, also one that was repaired from another."""
    first, second = closed_fruit(tmp_path / "first"), closed_fruit(tmp_path / "second")
    repair(first, tmp_path / "third")
    assert len({secret_of(path) for path in (first, second, tmp_path / "third")}) == 3


@pytest.mark.parametrize(
    "statement", ["DELETE FROM secret", "UPDATE secret SET content = x'00'", "UPDATE secret SET content = 'text'"]
)
def test_a_secret_that_is_damaged_is_found(tmp_path: Path, statement: str) -> None:
    """A damaged secret is an error, and is never used."""
    path = closed_fruit(tmp_path / "s")
    sql(path, statement)
    assert "secret is missing or damaged" in str(check(path))
    with pytest.raises(StoreDamaged, match="secret is missing or damaged"):
        secret_of(path)


def test_a_migration_reads_no_row(old: Path) -> None:
    """A migration touches the catalog alone, whatever lies in the arenas, and takes no longer in a large store."""
    for file in ("keys.f32", "values.vector"):
        flip(old / GENERATION / file, HEADER + 5)
        flip(old / GENERATION / file, HEADER + 3 * WINDOW)
    Store.open(old, "w").close()
    assert sql(old, "PRAGMA user_version") == [(3,)]


def test_a_reader_stays_open_while_a_writer_migrates_and_compacts(old: Path) -> None:
    """It reads the old generation by its windows, and the new one by those of that."""
    with Store.open(old) as reader:
        before = contents(reader)
        with Store.open(old, "w") as store:
            assert contents(reader) == before
            store.compact()
            assert contents(reader) == before == contents(store)
            assert store.check().ok
        assert reader.check().ok


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM granules",
        "UPDATE granules SET bytes = 8192",
        "UPDATE granules SET seal = seal + 1",
    ],
)
@pytest.mark.parametrize("size", [GRANULE, WINDOW])
def test_without_the_record_of_granules_a_store_can_still_be_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, size: int
) -> None:
    """It does not open; but as many checksums as there are tell how they are divided."""
    with monkeypatch.context() as patch:
        scaled(patch, granules=size)
        with wide(tmp_path / "s", 8) as store:
            expected = {name: item[1:] for name, item in contents(store).items()}
    sql(tmp_path / "s", statement)
    for mode in ("r", "w"):
        with pytest.raises(StoreDamaged, match="how the checksums of generation 1 are divided"):
            Store.open(tmp_path / "s", mode)
    assert not check(tmp_path / "s").ok
    assert repair(tmp_path / "s", tmp_path / "new").lost == 0
    with Store.open(tmp_path / "new") as store:
        assert {name: item[1:] for name, item in contents(store).items()} == expected


@pytest.mark.parametrize("size", [0, -1, 4, 12, 1 << 21, 1 << 60, "many", None, 2.5])
def test_granules_that_cannot_be_are_refused(tmp_path: Path, size: object) -> None:
    """A checksum does not keep out who computes one."""
    path = closed_fruit(tmp_path / "s")
    with without_constraints(path, "granules"):
        sql(path, "UPDATE granules SET bytes = ?, seal = ?", size, seal(1, size))  # type: ignore[arg-type]
    with pytest.raises(StoreDamaged, match="how the checksums of generation 1 are divided"):
        Store.open(path)


def test_neighbouring_checksums_are_asked_for_at_once(tmp_path: Path) -> None:
    """One question for all windows that are read, wherever they lie, and for those around a few."""
    with wide(tmp_path / "s", 8) as store:
        _ = store.commit
    with Store.open(tmp_path / "s") as store:
        asked = []
        store._catalog.connection._driver.set_trace_callback(
            lambda one: asked.append(one) if "windows" in one else None
        )
        store.vectors([6])
        store.vectors([7])
        assert len(asked) == 1
        store.vectors([1, 3])
        assert len(asked) == 2
        assert np.array_equal(store.vectors(range(8)), vectors(8, 1 << 17))
        assert len(asked) == 3
        store._catalog.connection._driver.set_trace_callback(None)


def test_a_missing_checksum_is_missed_by_its_own_window_alone(tmp_path: Path) -> None:
    """Its neighbours, whose checksums are asked for together with it, are compared and read."""
    wide(tmp_path / "s", 8).close()
    sql(tmp_path / "s", "DELETE FROM windows WHERE role = 'keys' AND window = 3")
    with Store.open(tmp_path / "s") as store:  # a row has 32 windows
        assert np.array_equal(store.vectors([1]), vectors(8, 1 << 17)[1:2])
        with pytest.raises(StoreDamaged, match="are missing"):
            store.vectors([0])
        assert np.array_equal(store.vectors(range(1, 8)), vectors(8, 1 << 17)[1:])
