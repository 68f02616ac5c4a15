"""Backups: copies of one commit, made beside a writer, that go on from earlier ones and become stores again."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from softkv_cli.main import softkv as command

import softkv
from softkv.errors import (
    AccessRefused,
    BackupRefused,
    InputError,
    StoreDamaged,
    StoreError,
    StoreExists,
    StoreLocked,
    StoreReplaced,
    WriterFenced,
)
from softkv.storage import Store, backup, check, restore
from softkv.storage.disk import locks
from softkv.storage.protocol import following
from tests.crash.workload import rebuild
from tests.stores import (
    as_format,
    bytes_of,
    closed_fruit,
    contents,
    flip,
    fruit,
    names_by_row,
    sql,
    vectors,
    wrong_index,
)

WIDTH = 16


def grow(store: Store, count: int, first: int = 0) -> None:
    """Add items whose values and payloads follow from their numbers."""
    numbers = range(first, first + count)
    store.append(
        vectors(count, WIDTH, seed=first),
        [float(number) for number in numbers],
        keys=[f"key {number}" for number in numbers],
        payloads=[{"n": number} for number in numbers],
    )


def same(copy: Path, store: Store) -> None:
    """A copy is sound and says what the store says."""
    report = check(copy)
    assert report.ok, report
    assert not report.notes, report
    with Store.open(copy, "r") as reader:
        assert contents(reader) == contents(store)
        assert reader.commit == store.commit
        with reader.snapshot() as snapshot:
            assert not wrong_index(snapshot)


def kept(directory: Path) -> dict[str, bytes]:
    """The bytes of every file but those that come with being opened."""
    return {name: one for name, one in bytes_of(directory).items() if not name.endswith(("LOCK", "-wal", "-shm"))}


def test_a_backup_says_what_the_store_says(tmp_path: Path) -> None:
    """Empty, with items, with an index file, with dead rows, after a compaction: each time into the same directory."""
    target = tmp_path / "backup"
    with Store.open(tmp_path / "s.softkv", "c") as store:
        assert backup(store.path, target).items == 0
        same(target, store)
        grow(store, 3_000)
        store.backup(target)
        same(target, store)
        store.put_index("names", names_by_row(store, range(store.rows)))
        store.delete([f"key {number}" for number in range(0, 3_000, 7)])
        store.backup(target)
        same(target, store)
        store.compact(np.flatnonzero(store.live)[::-1])
        store.configure({"a": 1})
        store.backup(target)
        same(target, store)
        assert sorted(one.name for one in target.iterdir() if "generation" in one.name) == ["generation-000002"]


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    """Of 20,000 rows and an index file the earlier backup has all but a hundred; of its bytes none is touched."""
    target = tmp_path / "backup"
    with Store.open(tmp_path / "s.softkv", "c") as store:
        grow(store, 20_000)
        store.put_index("large", b"x" * 1_000_000)
        first = store.backup(target)
        keys = target / "generation-000001" / "keys.f32"
        before = keys.read_bytes()
        grow(store, 100, first=20_000)
        told: list[tuple[int, int]] = []
        second = store.backup(target, progress=lambda done, total: told.append((done, total)))
        same(target, store)
    catalog = os.path.getsize(target / "catalog.sqlite")
    assert first.written > 2_000_000 + catalog / 2
    assert second.written - catalog < 100 * 4 * (WIDTH + 3) + 4096
    assert keys.read_bytes()[: len(before)] == before
    assert told[-1] == (100 * (4 * WIDTH + 8 + 4),) * 2
    assert (second.commit, second.items, second.left_out) == (3, 20_100, ())


@pytest.mark.slow
def test_a_backup_beside_a_writer_holds_one_commit(tmp_path: Path) -> None:
    """Each is whole, no older than what was acknowledged before it began, while another thread does everything."""
    path, target, done = tmp_path / "s.softkv", tmp_path / "backup", threading.Event()
    acknowledged = [0]

    def work() -> None:
        with Store.open(path, "w") as store:
            for number in range(60):
                grow(store, 50, first=50 * number)
                store.put_index("names", names_by_row(store, range(store.rows)))
                if number % 9 == 4:
                    store.delete([f"key {50 * number - one}" for one in range(50)])
                if number % 5 == 2:
                    store.compact(np.flatnonzero(store.live))
                acknowledged[0] = store.commit
        done.set()

    Store.open(path, "c").close()
    thread = threading.Thread(target=work)
    thread.start()
    made = 0
    try:
        while not done.is_set():
            known = acknowledged[0]
            assert backup(path, target).commit >= known
            report = check(target)
            assert report.ok, report
            with Store.open(target, "r") as reader, reader.snapshot() as snapshot:
                assert len(snapshot) % 50 == 0
                assert not wrong_index(snapshot)
                for item in snapshot.items(snapshot.in_order()[::17]):
                    assert item.payload == {"n": int(item.value)}
            made += 1
    finally:
        thread.join()
    assert made > 3
    backup(path, target)
    with Store.open(path, "r") as store:
        same(target, store)


def test_a_handle_backs_up_what_it_has_acknowledged(tmp_path: Path) -> None:
    """With payloads, labels, an index and what `fit` has learned: the backup, and what is restored, answer the same."""
    keys = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    labels = np.where(keys[:, 0] > 0, "right", "left").tolist()
    with softkv.open(tmp_path / "db.softkv", value="label") as db:
        db.add(
            [f"key {number}" for number in range(600)], labels, vectors=keys, payloads=[{"n": n} for n in range(600)]
        )
        db.fit(seed=1)
        db.build_index(lists=8)
        assert db.backup(tmp_path / "backup").items == 600
        softkv.restore(tmp_path / "backup", tmp_path / "again.softkv")
        queries = keys[:20] + 0.05
        wanted = db.lookup(queries).value
        filtered = db.lookup(queries[0], where={"n": {"$lt": 100}}).value
    for copy in ("backup", "again.softkv"):
        with softkv.open(tmp_path / copy, "r") as reader:
            assert np.array_equal(reader.lookup(queries).value, wanted)
            assert np.array_equal(reader.lookup(queries[0], where={"n": {"$lt": 100}}).value, filtered)
            assert reader.info().projection is not None
            assert (reader.info().backup is None) == (copy != "backup")
    with softkv.open(tmp_path / "again.softkv", "w") as again:
        again.add("new", "left", vectors=keys[0])
        assert len(again) == 601


def test_a_backup_is_not_written_to(tmp_path: Path) -> None:
    """A writer may not, nor one who would begin anew; but what is restored from it is written to."""
    target = tmp_path / "backup"
    backup(closed_fruit(tmp_path / "s.softkv"), target)
    before = bytes_of(target)
    for mode in "wcn":
        with pytest.raises(AccessRefused, match="softkv restore"):
            Store.open(target, mode)
    assert bytes_of(target) == before
    assert restore(target, tmp_path / "new.softkv").items == 3
    with Store.open(tmp_path / "new.softkv", "w") as store:
        store.delete("apple")


@pytest.mark.parametrize("what", ["a store", "files", "another", "older", "other history", "itself", "inside"])
def test_what_is_no_earlier_backup_is_left_alone(tmp_path: Path, what: str) -> None:
    """A store of its own, other files, a backup of another store or of a newer one, and the store itself."""
    path, target = tmp_path / "s.softkv", tmp_path / "backup"
    closed_fruit(path)
    if what == "a store":
        closed_fruit(target)
    elif what == "files":
        target.mkdir()
        (target / "letter.txt").write_text("dear")
    elif what == "another":
        backup(closed_fruit(tmp_path / "other.softkv"), target)
    elif what in ("older", "other history"):
        shutil.copytree(path, tmp_path / "copy.softkv")
        with Store.open(tmp_path / "copy.softkv", "w") as copy:
            copy.append(vectors(1, seed=3), [3.0], keys=["only here"])
        backup(tmp_path / "copy.softkv", target)
        with Store.open(path, "w") as store:
            for number in range(3 if what == "other history" else 0):
                store.append(vectors(1, seed=4), [7.0], keys=[f"and here {number}"])
    else:
        target = path if what == "itself" else path / "index" / "backup"
    before = kept(tmp_path)
    with pytest.raises(BackupRefused):
        backup(path, target)
    assert kept(tmp_path) == before


def test_a_restored_store_is_a_store_of_its_own(tmp_path: Path) -> None:
    """It and the lost one may go on apart: neither is backed up over the backup of the other."""
    lost, target, again = tmp_path / "s.softkv", tmp_path / "backup", tmp_path / "again.softkv"
    with Store.open(lost, "c") as store:
        grow(store, 100)
        store.backup(target)
    restore(target, again)
    with Store.open(again, "w") as store:
        store.delete("key 1")
        with pytest.raises(BackupRefused, match="another store"):
            store.backup(target)
        store.backup(tmp_path / "second")
        same(tmp_path / "second", store)
    backup(lost, target)
    restore(tmp_path / "second", tmp_path / "third.softkv")
    told = (tmp_path / "third.softkv" / "RESTORED").read_text()
    assert [line.split()[-1] for line in told.splitlines()] == ["1", "2"]


@pytest.mark.parametrize("apart", ["delete", "configure", "key"])
def test_copies_that_went_apart_at_one_commit_are_told_apart(tmp_path: Path, apart: str) -> None:
    """Copied by hand, and changed alike in number but not in kind."""
    path, other, target = closed_fruit(tmp_path / "s.softkv"), tmp_path / "copy.softkv", tmp_path / "backup"
    shutil.copytree(path, other)
    for number, one in enumerate((other, path)):
        with Store.open(one, "w") as store:
            if apart == "delete":
                store.delete(["apple", "pear"][number])
            elif apart == "configure":
                store.configure({"number": number})
            else:
                store.append(vectors(1, seed=number), [float(number)], keys=[f"key {number}"])
        if one == other:
            backup(other, target)
    before = kept(target)
    with pytest.raises(BackupRefused, match="changed apart"):
        backup(path, target)
    assert kept(target) == before


def test_nothing_is_restored_over_anything(tmp_path: Path) -> None:
    """A store that is there stays, whatever state it is in."""
    path, target = closed_fruit(tmp_path / "s.softkv"), tmp_path / "backup"
    backup(path, target)
    before = bytes_of(path)
    with pytest.raises(StoreExists):
        restore(target, path)
    assert bytes_of(path) == before


def test_one_backup_at_a_time(tmp_path: Path) -> None:
    """Another into the same directory is refused while one is being made."""
    path, target = closed_fruit(tmp_path / "s.softkv"), tmp_path / "backup"
    backup(path, target)
    lock = locks.lock_writer(str(target))
    with pytest.raises(StoreLocked):
        backup(path, target)
    lock.release()
    backup(path, target)


@pytest.mark.parametrize("file", ["keys.f32", "values.number"])
def test_damaged_rows_are_not_copied(tmp_path: Path, file: str) -> None:
    """The backup is refused, a new one is not there, and the earlier one stays as it was."""
    path, earlier = tmp_path / "s.softkv", tmp_path / "earlier"
    with Store.open(path, "c") as store:
        grow(store, 2_000)
        store.backup(earlier)
        grow(store, 2_000, first=2_000)
    before = kept(earlier)["catalog.sqlite"]
    arena = path / "generation-000001" / file
    flip(arena, os.path.getsize(arena) - 5_000)
    for target in (earlier, tmp_path / "new"):
        with pytest.raises(StoreDamaged, match="checksum"):
            backup(path, target)
    assert kept(earlier)["catalog.sqlite"] == before
    assert check(earlier).ok
    assert sorted(one.name for one in tmp_path.iterdir()) == ["earlier", "s.softkv"]


def test_a_damaged_index_file_is_left_out_and_named(tmp_path: Path) -> None:
    """One that is altered and one that is missing; all items are in the backup."""
    path, target = tmp_path / "s.softkv", tmp_path / "backup"
    with fruit(path) as store:
        for name in ("altered", "missing", "good"):
            store.put_index(name, name.encode() * 100)
        numbers = sorted(int(one.name) for one in (path / "index").iterdir())
        flip(path / "index" / str(numbers[0]), 50)
        (path / "index" / str(numbers[1])).unlink()
        made = store.backup(target)
    assert sorted(made.left_out) == ["altered", "missing"]
    assert (made.items, check(target).ok) == (3, True)
    with Store.open(target, "r") as reader, reader.snapshot() as snapshot:
        good = snapshot.index("good")
        assert good is not None
        assert bytes(good.read()) == b"good" * 100


def test_norms_are_copied_again_where_they_were_mended(tmp_path: Path) -> None:
    """They are derived: lost in the earlier backup, they come with the next one."""
    path, target = tmp_path / "s.softkv", tmp_path / "backup"
    with Store.open(path, "c") as store:
        grow(store, 500)
        store.backup(target)
        (target / "generation-000001" / "norms.f32").unlink()
        grow(store, 5, first=500)
        store.backup(target)
        same(target, store)


def test_an_unfinished_rebuild_is_finished_after_a_restore(tmp_path: Path) -> None:
    """Its progress is in the backup, also when it goes on, or is dropped and begun anew between two backups."""
    path, target, again = tmp_path / "s.softkv", tmp_path / "backup", tmp_path / "again.softkv"
    with Store.open(path, "c") as store:
        grow(store, 200)
        rebuild(store, batches=2)
        store.backup(target)
        store.abandon()
        rebuild(store, batches=1)
        store.backup(target)
        assert check(target).ok
        wanted = contents(store)
    restore(target, again)
    with Store.open(again, "w") as store:
        assert store.unfinished is not None
        assert store.unfinished.done == 40
        rebuild(store)
        assert store.unfinished is None
        assert {name: one[1:] for name, one in contents(store).items()} == {
            name: one[1:] for name, one in wanted.items()
        }


def test_a_refused_backup_leaves_the_unfinished_rebuild_of_the_earlier_one(tmp_path: Path) -> None:
    """A refused backup leaves the unfinished rebuild of the earlier one, though the store has dropped it since."""
    path, target = tmp_path / "s.softkv", tmp_path / "backup"
    with Store.open(path, "c") as store:
        grow(store, 200)
        rebuild(store, batches=2)
        store.backup(target)
        store.abandon()
        rebuild(store, batches=1)
        flip(path / "generation-000002" / "keys.f32", 4096 + 100)
        with pytest.raises(StoreDamaged, match="checksum"):
            store.backup(target)
    with Store.open(target, "r") as reader:
        assert reader.unfinished is not None
        assert reader.unfinished.done == 80
        assert check(target).ok


def test_a_missing_rebuild_of_the_store_is_damage(tmp_path: Path) -> None:
    """Its files are gone: a backup is refused in words, and the earlier one keeps what it has of the rebuild."""
    path, target = tmp_path / "s.softkv", tmp_path / "backup"
    with Store.open(path, "c") as store:
        grow(store, 200)
        rebuild(store, batches=2)
        store.backup(target)
    shutil.rmtree(path / "generation-000002")
    for place in (target, tmp_path / "new"):
        with pytest.raises(StoreDamaged, match="generation-000002 is missing"):
            backup(path, place)
    with Store.open(target, "r") as reader:
        assert reader.unfinished is not None
        assert reader.unfinished.done == 80


def test_a_missing_index_file_keeps_no_store_that_is_written_to_from_being_copied(tmp_path: Path) -> None:
    """It is left out at once: that the store has moved on meanwhile is not why it is missing."""
    path, stop, waits = tmp_path / "s.softkv", threading.Event(), threading.Event()
    with fruit(path) as store:
        store.put_index("gone", b"x")
    (path / "index" / next(one.name for one in (path / "index").iterdir())).unlink()

    def work() -> None:
        with Store.open(path, "w") as writer:
            number = 0
            while not stop.is_set():
                writer.append(vectors(1, seed=number), [1.0])
                waits.set()
                number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert waits.wait(30)
        assert backup(path, tmp_path / "backup").left_out == ("gone",)
    finally:
        stop.set()
        thread.join()
    assert check(tmp_path / "backup").ok


def test_a_damaged_record_of_an_index_is_left_out(tmp_path: Path) -> None:
    """It may be of the store, or of the earlier backup."""
    path, target = tmp_path / "s.softkv", tmp_path / "backup"
    with fruit(path) as store:
        store.put_index("one", b"x")
    backup(path, target)
    sql(target, "UPDATE indexes SET seal = seal + 1")
    assert backup(path, target).left_out == ()
    with Store.open(target, "r") as reader, reader.snapshot() as snapshot:
        assert snapshot.index("one") is not None
    sql(path, "UPDATE indexes SET seal = seal + 1")
    assert backup(path, target).left_out == ("one",)


def test_what_an_interrupted_backup_left_goes_before_the_next(tmp_path: Path) -> None:
    """It takes room, and no writer may open a backup to remove it."""
    path, target = tmp_path / "s.softkv", tmp_path / "backup"
    with Store.open(path, "c") as store:
        grow(store, 100)
        store.backup(target)

        def stop(_done: int, _all: int) -> None:
            raise KeyboardInterrupt

        for _ in range(3):
            store.compact(np.flatnonzero(store.live))
            with pytest.raises(KeyboardInterrupt):
                store.backup(target, progress=stop)
        assert sum("generation" in one.name for one in target.iterdir()) == 2
        store.backup(target)
        same(target, store)


def test_a_retired_generation_of_an_older_format_is_not_copied(tmp_path: Path) -> None:
    """Its records are not copied either, in which no table of this format is looked for."""
    path = tmp_path / "s.softkv"
    with Store.open(path, "c") as store:
        grow(store, 50)
        with Store.open(path, "r") as reader, reader.snapshot():
            store.delete("key 1")
            store.compact()
            shutil.copytree(path, tmp_path / "old.softkv")
    as_format(tmp_path / "old.softkv", 2)
    assert backup(tmp_path / "old.softkv", tmp_path / "backup").items == 49
    assert check(tmp_path / "backup").ok


def test_what_others_may_not_read_they_may_not_read_in_a_backup(tmp_path: Path) -> None:
    """The directory has the permissions of that of the store; with it what lies inside is as private."""
    path = closed_fruit(tmp_path / "s.softkv")
    path.chmod(0o700)
    backup(path, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again.softkv")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("backup", "again.softkv")] == [0o700] * 2


def test_a_store_of_an_older_format_is_copied_as_it_is(tmp_path: Path) -> None:
    """The backup of a store of format 2 goes on when a writer has brought the store to this format."""
    path, target = closed_fruit(tmp_path / "s.softkv"), tmp_path / "backup"
    as_format(path, 2)
    backup(path, target)
    with Store.open(path, "r") as old:
        same(target, old)
    with Store.open(path, "w") as store:
        store.append(vectors(1), [9.0], keys=["plum"])
        store.backup(target)
        same(target, store)


# What a handle that knew better notices


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store, of which an older copy was kept."""
    path = closed_fruit(tmp_path / "s.softkv")
    backup(path, tmp_path / "backup")
    with Store.open(path, "w") as store:
        store.delete("apple")
    return path


def test_a_reader_notices_another_copy_in_the_place_of_its_store(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restored under the same path: the handle says so on every call, and a new one reads what is there."""
    monkeypatch.setattr(following, "PAUSE", 0.0)
    with softkv.open(older, "r") as reader:
        assert len(reader) == 2
        older.rename(tmp_path / "aside")
        restore(tmp_path / "backup", older)
        for _ in range(2):
            with pytest.raises(StoreReplaced, match="commit 2"):
                len(reader)
    with softkv.open(older, "r") as reader:
        assert len(reader) == 3


def test_a_writer_notices_another_copy_in_the_place_of_its_store(older: Path, tmp_path: Path) -> None:
    """It does before it writes, and before it backs up what others have put there."""
    with Store.open(older, "w") as writer:
        older.rename(tmp_path / "aside")
        restore(tmp_path / "backup", older)
        with pytest.raises(WriterFenced):
            writer.append(vectors(1), [1.0])
        with pytest.raises(WriterFenced):
            writer.backup(tmp_path / "backup")


def test_an_older_catalog_put_over_the_newer_is_noticed(tmp_path: Path) -> None:
    """Byte by byte into the same file, as some tools copy: the handle knew a later commit."""
    with fruit(tmp_path / "s.softkv") as store:
        backup(store.path, tmp_path / "backup")
        store.delete("apple")
    with Store.open(tmp_path / "s.softkv", "r") as reader:
        assert len(reader) == 2
        connection = reader._catalog.connection
        connection.close()
        with open(tmp_path / "s.softkv" / "catalog.sqlite", "r+b") as file:
            file.write((tmp_path / "backup" / "catalog.sqlite").read_bytes())
        reader._catalog.connection = type(connection)(connection.path, write=False)
        reader._following._version = -1
        with pytest.raises(StoreDamaged, match="was acknowledged"):
            len(reader)


def test_a_store_made_anew_is_not_taken_for_a_copy(tmp_path: Path) -> None:
    """A reader of one that was erased keeps what it has open."""
    path = closed_fruit(tmp_path / "s.softkv")
    with Store.open(path, "r") as reader:
        assert len(reader) == 3
        Store.open(path, "n").close()
        assert len(reader) == 3
        assert reader.get("apple").value


def test_a_handle_does_not_back_up_a_store_made_anew_in_its_place(tmp_path: Path) -> None:
    """What it would copy is not what it reads."""
    path = closed_fruit(tmp_path / "s.softkv")
    with Store.open(path, "r") as reader:
        Store.open(path, "n").close()
        with pytest.raises(StoreReplaced):
            reader.backup(tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_check_says_that_a_copy_is_older_than_it_should_be(older: Path, tmp_path: Path) -> None:
    """What cannot be seen from a copy itself: it is sound."""
    assert check(older, at_least=2).ok
    assert check(tmp_path / "backup").ok
    report = check(tmp_path / "backup", at_least=2)
    assert [one for one in report.findings if "older copy" in one]
    with softkv.open(tmp_path / "backup", "r") as db:
        assert not db.check(at_least=2).ok
        with pytest.raises(InputError, match="number of a commit"):
            db.check(at_least="2")  # type: ignore[arg-type]


# The command


def test_the_command_backs_up_and_restores(tmp_path: Path) -> None:
    """It does what is documented: a backup, another one, a restore, a check of how new it is."""
    path, target = closed_fruit(tmp_path / "s.softkv"), tmp_path / "backup"

    def run(*arguments: object, code: int = 0) -> str:
        done = CliRunner().invoke(command, [str(one) for one in arguments])
        assert done.exit_code == code, done.output
        return done.output

    assert "3 items as of commit 1" in run("backup", target, "--db", path)
    assert "3 items" in run("backup", target, "--db", path)
    assert "3 items" in run("restore", target, "--db", tmp_path / "new.softkv")
    run("restore", target, "--db", tmp_path / "new.softkv", code=1)
    run("check", "--db", target, "--at-least", 1)
    assert "older copy" in run("check", "--db", target, "--at-least", 2, code=1)
    run("check", "--db", target, "--at-least", 2, "--repair-to", tmp_path / "x", code=2)
    assert "softkv backup" in run("info", "--db", target)
    run("backup", path / "inside", "--db", path, code=1)


def test_a_backup_where_there_is_no_store(tmp_path: Path) -> None:
    """Nothing is made for it."""
    with pytest.raises(StoreError):
        backup(tmp_path / "none", tmp_path / "backup")
    with pytest.raises((StoreError, InputError)):
        restore(tmp_path / "none", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
