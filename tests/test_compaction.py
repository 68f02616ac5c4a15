"""Compaction leaves the dead behind, changes no answer, and disturbs no reader."""

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from softkv.errors import StorageFailed, StorageFull, StoreDamaged
from softkv.storage import Store
from softkv.storage.catalog.roster import Roster
from softkv.storage.disk import files
from softkv.storage.disk.arena import HEADER
from softkv.storage.layout import GRANULE, WINDOW
from softkv.storage.protocol.generation import Complete
from tests.limits import few_files, open_files
from tests.stores import GENERATION, bytes_of, contents, flip, fruit, in_child, sql, vectors, wide

KINDS = ("number", "vector", "label", "text")


def generations(path: Path) -> list[str]:
    """The directories of generations that lie in a store."""
    return sorted(one.name for one in path.glob("generation-*"))


def mixed(path: Path, kind: str) -> Store:
    """A store of one kind with dead rows at start, middle and end, replaced keys and items without a key."""
    store = Store.open(path, "c")
    values = {
        "number": [float(i) for i in range(60)],
        "vector": vectors(60, 3, 5),
        "label": [f"label {i % 7}" for i in range(60)],
        "text": [f"text {i}" for i in range(60)],
    }[kind]
    keys = [None if i % 5 == 0 else f"key {i}" for i in range(60)]
    store.append(
        vectors(60),
        values,
        keys=keys,
        payloads=[{"i": i} if i % 2 else None for i in range(60)],
        texts=[f"text of {i}" if i % 3 else None for i in range(60)],
        value_vectors=vectors(60, 2, 9) if kind == "text" else None,
    )
    store.append(
        vectors(2, seed=3),
        values[:2],
        keys=["key 7", "key 9"],
        value_vectors=vectors(2, 2, 1) if kind == "text" else None,
        on_conflict="replace",
    )
    store.delete(["#1", "key 1", "key 2", "key 33", "key 58", "key 59"])
    return store


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_changes_no_answer(tmp_path: Path, kind: str) -> None:
    """Every item, its number, its place in the order and the settings are what they were; the dead rows are gone."""
    with mixed(tmp_path / "s.softkv", kind) as store:
        store.configure({"temperature": 0.5})
        before, scale = contents(store), store.value_scale
        store.compact()
        assert contents(store) == before
        assert store.rows == len(store) == len(before)
        assert store.settings == {"temperature": 0.5}
        assert store.value_scale == pytest.approx(scale)
        assert store.check().ok
    with Store.open(tmp_path / "s.softkv") as store:
        assert contents(store) == before


def test_work_goes_on_after_compaction(tmp_path: Path) -> None:
    """New items get new numbers, old ones can be replaced and deleted, and a second compaction follows the first."""
    with mixed(tmp_path / "s.softkv", "label") as store:
        store.compact()
        store.append(vectors(3, seed=8), ["new", "label 1", "new"], keys=["a", "key 3", None], on_conflict="replace")
        store.delete(["key 4", "#6"])
        before = contents(store)
        assert list(before)[-2:] == ["a", "#65"]
        store.compact()
        assert contents(store) == before
        assert store.check().ok


def test_a_store_without_dead_rows_is_left_alone(tmp_path: Path) -> None:
    """There is nothing to do, so nothing is written."""
    with Store.open(tmp_path / "s.softkv", "c") as store:
        store.append(vectors(3), [1.0, 2.0, 3.0])
        commit = store.commit
        store.compact()
        assert store.commit == commit
        assert (tmp_path / "s.softkv" / GENERATION).is_dir()
        assert store.check().ok


def test_an_empty_store_can_be_compacted(tmp_path: Path) -> None:
    """Before the first item there is no generation, and that is no error."""
    with Store.open(tmp_path / "s.softkv", "c") as store:
        store.compact()
        assert len(store) == 0
        assert store.check().ok


def test_a_store_of_nothing_but_dead_rows_becomes_empty(tmp_path: Path) -> None:
    """All rows go, the layout stays, and items can be added again."""
    with Store.open(tmp_path / "s.softkv", "c") as store:
        store.append(vectors(3), [1.0, 2.0, 3.0], keys=["a", "b", "c"])
        store.delete(["a", "b", "c"])
        store.compact()
        assert (store.rows, len(store), list(store.keys())) == (0, 0, [])
        store.append(vectors(1), [4.0], keys=["a"])
        assert store.get("a").value == 4.0
        assert store.check().ok


def test_a_snapshot_keeps_its_generation_until_it_is_closed(tmp_path: Path) -> None:
    """A reader's snapshot answers as before; its files go with the first write after it has let go."""
    path = tmp_path / "s.softkv"
    with mixed(path, "text") as store, Store.open(path) as reader:
        snapshot = reader.snapshot()
        before = contents(snapshot)
        store.delete(["key 3", "key 4"])
        store.compact()
        assert reader.find("key 6") != snapshot.find("key 6")
        assert contents(snapshot) == before
        assert (path / GENERATION).is_dir()
        snapshot.close()
        store.append(vectors(1), ["late"], value_vectors=vectors(1, 2))
        assert not (path / GENERATION).exists()
        assert store.check().ok


def test_older_generations_wait_for_their_readers_in_turn(tmp_path: Path) -> None:
    """Two snapshots of two generations both stay right, and all goes when they have gone."""
    path = tmp_path / "s.softkv"
    with mixed(path, "number") as store:
        first = store.snapshot()
        of_first = contents(first)
        store.delete(["key 3"])
        store.compact()
        second = store.snapshot()
        of_second = contents(second)
        store.delete(["key 4"])
        store.compact()
        second.close()
        store.delete(["key 6"])
        assert contents(first) == of_first  # its contents are shared with the younger, so both still are there
        assert set(of_first) - set(of_second) == {"key 3"}
        first.close()
        store.delete(["key 8"])
        assert generations(path) == ["generation-000003"]
        assert store.check().ok


def test_damage_is_not_carried_into_a_new_generation(tmp_path: Path) -> None:
    """A window that does not match its checksum stops the compaction, and the store is as it was."""
    path = tmp_path / "s.softkv"
    with wide(path) as store:
        store.delete("key 0")
    flip(path / GENERATION / "keys.f32", 4096 + 5 * (1 << 20) + 17)
    before = bytes_of(path / GENERATION)
    with Store.open(path, "w") as store:
        with pytest.raises(StoreDamaged, match="checksum"):
            store.compact()
        assert generations(path) == [GENERATION]
        assert len(store) == 23
        assert store.get("key 20").value == 20.0
    assert bytes_of(path / GENERATION) == before


def test_damaged_norms_are_worked_out_again(tmp_path: Path) -> None:
    """What is derived is never a reason to refuse; the new generation has it right."""
    path = tmp_path / "s.softkv"
    with mixed(path, "number"):
        pass
    flip(path / GENERATION / "norms.f32", 4096 + 40)
    with Store.open(path, "w") as store:
        store.compact()
        lengths = np.linalg.norm(store.vectors(range(store.rows)).astype(np.float64), axis=1)
        np.testing.assert_allclose(store.snapshot().norms(0, store.rows), lengths, rtol=1e-6)
        report = store.check()
        assert report.ok
        assert not report.notes


def test_a_compaction_that_does_not_fit_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space is looked at first, and the message says how much is needed."""
    with mixed(tmp_path / "s.softkv", "vector") as store:
        before = contents(store)
        usage = files.shutil.disk_usage(tmp_path)._replace(free=100)
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(StorageFull, match=r"needs .* MB and the disk has"):
            store.compact()
        monkeypatch.undo()
        assert generations(Path(store.path)) == [GENERATION]
        assert contents(store) == before
        store.compact()
        assert contents(store) == before
        assert store.check().ok


def test_a_compaction_that_fails_in_the_middle_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half-written generation is removed, and the same handle goes on."""
    with mixed(tmp_path / "s.softkv", "vector") as store:
        before = contents(store)

        def fail(*arguments: object) -> Complete:
            raise StorageFull("no space, says the test")

        monkeypatch.setattr("softkv.storage.protocol.compaction._copy_rows", fail)
        with pytest.raises(StorageFull):
            store.compact()
        monkeypatch.undo()
        assert generations(Path(store.path)) == [GENERATION]
        assert contents(store) == before
        store.compact()
        assert contents(store) == before
        assert store.check().ok


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed in /proc")
@pytest.mark.parametrize("spare", range(8))
def test_a_compaction_that_cannot_open_its_files_leaves_none_open(tmp_path: Path, spare: int) -> None:
    """Any of them may fail: the store is as it was, and can be compacted once there are more."""

    def compact() -> None:
        with fruit(tmp_path / "s") as store:
            store.delete("pear")
            before = contents(store)
            with few_files(spare), suppress(StorageFailed):
                store.compact()
        assert not open_files(tmp_path)
        with Store.open(tmp_path / "s", "w") as store:
            assert contents(store) == before
            store.compact()
            assert contents(store) == before
            assert store.check().ok

    in_child(compact)


def test_many_windows_are_copied_row_by_row_right(tmp_path: Path) -> None:
    """Rows keep their cells where a copy spans many windows and skips rows in all of them."""
    path = tmp_path / "s.softkv"
    with wide(path, rows=40, kind="vector") as store:
        store.delete([f"key {i}" for i in range(0, 40, 3)])
        kept = [i for i in range(40) if i % 3]
        store.compact()
        assert np.array_equal(store.vectors(range(len(kept))), vectors(40, 1 << 17)[kept])
        assert np.array_equal(store.values(range(len(kept))), vectors(40, 1 << 17, 1)[kept])
        assert store.check().ok


def test_the_disk_is_free_when_it_returns(tmp_path: Path) -> None:
    """Nobody reads the old generation, so it is gone, and nothing of it is left in the catalog."""
    with wide(tmp_path / "s", 8) as store:
        store.delete([f"key {i}" for i in range(6)])
        store.compact()
        assert generations(tmp_path / "s") == ["generation-000002"]
        assert store.check().ok
    assert (tmp_path / "s" / "generation-000002" / "keys.f32").stat().st_size == HEADER + WINDOW
    assert sql(tmp_path / "s", "SELECT DISTINCT generation FROM windows") == [(2,)]
    assert sql(tmp_path / "s", "SELECT count(*) FROM deaths") == [(0,)]
    assert sql(tmp_path / "s", "SELECT count(*) FROM sqlite_master WHERE tbl_name = 'items_1'") == [(0,)]


def test_what_the_dead_carried_goes_with_them(tmp_path: Path) -> None:
    """Payloads of deleted items do not stay in the catalog for ever."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(1), [9.0], keys=["pear"], payloads=["new"], on_conflict="replace")
        store.delete("apple")
        store.compact()
        assert [store.get(key).payload for key in ("pear", "quince")] == ["new", {"name": "quince"}]
        assert store.check().ok
    assert sql(tmp_path / "s", "SELECT item, payload FROM contents ORDER BY item") == [
        (3, '{"name":"quince"}'),
        (4, '"new"'),
    ]


def test_a_new_writer_removes_what_a_reader_kept(tmp_path: Path) -> None:
    """The generation was retired while somebody read it, and the writer that retired it is gone."""
    path = tmp_path / "s"
    with Store.open(path, "c") as store:
        store.append(vectors(2), [1.0, 2.0], keys=["a", "b"])
        with Store.open(path) as reader:
            store.delete("a")
            store.compact()
            store.close()
            assert list(reader.keys()) == ["b"]
            snapshot = reader.snapshot()
            snapshot.close()
    Store.open(path, "w").close()
    with Store.open(path) as reader:
        assert generations(path) == ["generation-000002"]
        assert reader.check().ok


def test_what_was_verified_before_is_verified_again(tmp_path: Path) -> None:
    """A bit that fell over after it was read must not get a new checksum."""
    with wide(tmp_path / "s", 8) as store:
        list(store.blocks())
        store.delete("key 7")
        flip(tmp_path / "s" / GENERATION / "values.number", HEADER + 5)
        with pytest.raises(StoreDamaged, match=r"values\.number"):
            store.compact()


def test_readers_read_while_a_compaction_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of it a reader opens, asks, takes a snapshot and sees the state before."""
    seen: list[object] = []
    copy = Roster.copy_live

    def meanwhile(roster: Roster, generation: int, count: int) -> None:
        copy(roster, generation, count)
        with Store.open(tmp_path / "s") as reader, reader.snapshot() as snapshot:
            seen.append((contents(reader), contents(snapshot), reader.commit, reader.check().ok))

    with fruit(tmp_path / "s") as store:
        store.delete("apple")
        expected = (contents(store), contents(store), store.commit, True)
        monkeypatch.setattr(Roster, "copy_live", meanwhile)
        store.compact()
        assert seen == [expected]
        assert store.check().ok


def test_windows_of_the_new_generation_have_their_checksums(tmp_path: Path) -> None:
    """Rows of an odd width, so that they cross windows, and a part of them dead."""
    width = 70_001
    with Store.open(tmp_path / "s", "c") as store:
        for start in range(0, 20, 4):
            store.append(vectors(4, width, start), vectors(4, width, start), keys=[str(start + i) for i in range(4)])
        store.delete([str(i) for i in range(0, 20, 3)])
        expected = {name: item[2] for name, item in contents(store).items()}
        store.compact()
        report = store.check()
        assert report.ok
        assert report.windows == 2 * -(-13 * width * 4 // GRANULE) + 1
        assert {name: item[2] for name, item in contents(store).items()} == expected
