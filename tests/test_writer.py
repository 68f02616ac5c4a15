"""The commit protocol: its order, what it writes, and what a handle is worth after every kind of failure."""

import _thread
import errno
import gc
import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from softkv.errors import (
    CommitUncertain,
    HandlePoisoned,
    StorageFailed,
    StorageFull,
    StoreDamaged,
    WriterFenced,
)
from softkv.storage import Store, check
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.tally import Tally
from softkv.storage.disk import files, locks
from softkv.storage.disk.arena import HEADER, Arena
from softkv.storage.layout import GRANULE, WINDOW
from tests.limits import fill, open_files, small_disk
from tests.stores import (
    CATALOG,
    FRUIT,
    GENERATION,
    closed_fruit,
    contents,
    forge,
    fruit,
    in_child,
    sql,
    uncertain,
    vectors,
)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="watches os.fdatasync")


class Steps:
    """What the protocol did, in order: writes, syncs and commits, each with the name of its file."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory, self.taken = directory, list[tuple[str, str, int]]()
        pwrite, sync, sync_directory, commit = os.pwrite, files.sync, files.sync_directory, Connection._commit

        def watched_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
            if self._name(descriptor) != "LOCK":  # the note of what was acknowledged: see test_acknowledged.py
                self.taken.append(("write", self._name(descriptor), offset))
            return pwrite(descriptor, data, offset)

        def watched_sync(descriptor: int, path: str) -> None:
            sync(descriptor, path)
            self.taken.append(("sync", os.path.basename(path), 0))

        def watched_directory(path: str) -> None:
            sync_directory(path)
            self.taken.append(("sync", os.path.basename(path), 0))

        def watched_commit(connection: Connection) -> None:
            self.taken.append(("commit", "", 0))
            commit(connection)

        patch.setattr(os, "pwrite", watched_pwrite)
        patch.setattr(files, "sync", watched_sync)
        patch.setattr(files, "sync_directory", watched_directory)
        patch.setattr(Connection, "_commit", watched_commit)

    def _name(self, descriptor: int) -> str:
        asked = os.fstat(descriptor)
        return next(path.name for path in self.directory.rglob("*") if path.stat().st_ino == asked.st_ino)

    def place(self, kind: str, name: str = "") -> int:
        """When a step was taken for the first time."""
        return next(i for i, step in enumerate(self.taken) if step[:2] == (kind, name))


@contextmanager
def failing(patch: pytest.MonkeyPatch, name: str, error: BaseException, *, times: int = 1) -> Iterator[list[int]]:
    """Let a function of os fail some times; gives the arguments of all its calls."""
    real, calls = getattr(os, name), list[int]()

    def sometimes(descriptor: int, *arguments: Any) -> Any:
        calls.append(descriptor)
        if len(calls) <= times:
            raise error
        return real(descriptor, *arguments)

    with patch.context() as patched:
        patched.setattr(os, name, sometimes)
        yield calls


def log_of(store: Path) -> tuple[int, int, int]:
    """The sizes of catalog and log, and when the catalog was last written."""
    catalog, log = (store / CATALOG).stat(), (store / f"{CATALOG}-wal").stat()
    return catalog.st_size, catalog.st_mtime_ns, log.st_size


# The order of the protocol


@pytest.mark.parametrize("rows", [1, 60_000])
def test_rows_are_durable_before_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Keys and values are written, then synced, then named by one commit; in threads or not."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.append(vectors(rows), np.zeros(rows))
        for name in ("keys.f32", "values.number"):
            assert steps.place("write", name) < steps.place("sync", name) < steps.place("commit")
        assert steps.place("write", "norms.f32") < steps.place("commit")
        assert [step[0] for step in steps.taken].count("commit") == 1
        assert steps.taken[-1][0] == "commit"
        assert store.check().ok


def test_a_single_add_syncs_no_more_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms are derived, so a small add syncs two files and commits, and nothing else."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.append(vectors(1), [7.0])
        assert sorted(step for step in steps.taken if step[0] != "write") == [
            ("commit", "", 0),
            ("sync", "keys.f32", 0),
            ("sync", "values.number", 0),
        ]
        assert store.check().ok


def test_norms_are_synced_with_each_full_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of norms that becomes complete is durable before its checksum is committed."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(WINDOW // 4 - 10, 4), np.zeros(WINDOW // 4 - 10))
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.append(vectors(20), np.zeros(20))
        assert steps.place("write", "norms.f32") < steps.place("sync", "norms.f32") < steps.place("commit")
        assert store.check().ok


def test_the_first_generation_is_durable_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the first batch, their directory and the store's are synced before the commit that names them."""
    with Store.open(tmp_path / "s", "c") as store:
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.append(vectors(3), [1.0, 2.0, 3.0])
        written = max(i for i, step in enumerate(steps.taken) if step[0] == "write")
        synced = [steps.place("sync", name) for name in ("keys.f32", "values.number", "norms.f32")]
        named = [steps.place("sync", name) for name in (GENERATION, "s")]
        assert written < min(synced) < max(synced) < named[0] < named[1] < steps.place("commit")
        assert store.check().ok


def test_a_compacted_generation_is_durable_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction writes all files of the new generation and syncs them and their directories, then commits."""
    with fruit(tmp_path / "s") as store:
        store.delete("pear")
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.compact()
        written = max(i for i, step in enumerate(steps.taken) if step[0] == "write")
        synced = [steps.place("sync", name) for name in ("keys.f32", "values.number", "norms.f32")]
        named = [steps.place("sync", name) for name in ("generation-000002", "s")]
        assert written < min(synced) < max(synced) < named[0] < named[1] < steps.place("commit")
        assert store.check().ok


def test_deleting_writes_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion is one transaction and nothing else."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.delete(["apple", "pear"])
        assert steps.taken == [("commit", "", 0)]
        assert store.check().ok


def test_the_catalog_commits_durably(tmp_path: Path) -> None:
    """The writer's connection logs ahead and syncs each commit in full."""
    with fruit(tmp_path / "s") as store:
        connection = store._catalog.connection
        assert connection.value("PRAGMA journal_mode") == "wal"
        assert connection.value("PRAGMA synchronous") == 2
        assert connection.value("PRAGMA trusted_schema") in (0, None)
        assert store.check().ok


def test_rows_go_behind_the_committed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written where the committed ones end, whatever a crash left beyond, and never at the end of the file."""
    with fruit(tmp_path / "s") as store:
        for name in ("keys.f32", "values.number", "norms.f32"):
            with open(tmp_path / "s" / GENERATION / name, "ab") as file:
                file.write(b"garbage" * 1000)
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.append(vectors(2, seed=4), [7.0, 8.0], keys=["fig", "date"])
        assert sorted(step[1:] for step in steps.taken if step[0] == "write") == [
            ("keys.f32", HEADER + 3 * 16),
            ("norms.f32", HEADER + 3 * 4),
            ("values.number", HEADER + 3 * 8),
        ]
        assert store.vectors([3, 4]).tobytes() == vectors(2, seed=4).tobytes()
        assert [item.value for item in store.items(range(5))] == [*FRUIT.values(), 7.0, 8.0]
        assert store.check().ok
    with Store.open(tmp_path / "s", "w") as store:
        assert store.get("date").value == 8.0
        assert store.check().ok


# A full disk


@pytest.mark.parametrize("rows", [500, 600_000])
def test_a_full_disk_leaves_the_handle_usable(tmp_path: Path, rows: int) -> None:
    """A batch for which there is no space is refused whole; after making room the same handle writes again."""
    with small_disk(tmp_path / "disk", "8m") as disk, fruit(disk / "s") as store:
        before = contents(store), store.commit
        fill(disk / "filler")
        with pytest.raises(StorageFull, match="make room"):
            store.append(vectors(rows), np.zeros(rows))
        assert (contents(store), store.commit) == before
        (disk / "filler").unlink()
        store.append(vectors(500), np.zeros(500))
        assert len(store) == 503
        assert store.check().ok


def test_a_batch_that_is_too_large_does_not_fill_the_disk(tmp_path: Path) -> None:
    """The space that a refused batch took is given back, so that smaller changes and the close still have some."""
    with small_disk(tmp_path / "disk", "8m") as disk, fruit(disk / "s") as store:
        store.append(vectors(10), np.zeros(10))
        sizes = {path.name: path.stat().st_size for path in (disk / "s" / GENERATION).iterdir()}
        with pytest.raises(StorageFull):
            store.append(vectors(600_000), np.zeros(600_000))
        assert {path.name: path.stat().st_size for path in (disk / "s" / GENERATION).iterdir()} == sizes
        store.delete("pear")
        store.append(vectors(1, seed=4), [7.0], keys=["fig"])
        assert (len(store), store.get("fig").vector.tolist()) == (13, vectors(1, seed=4)[0].tolist())
        assert store.check().ok


def test_no_space_for_the_commit_leaves_the_handle_usable(tmp_path: Path) -> None:
    """When the disk is full at the very COMMIT, the commit did not happen, and the handle knows."""
    with small_disk(tmp_path / "disk", "4m") as disk, fruit(disk / "s") as store:
        before = contents(store), store.commit
        fill(disk / "filler")
        with pytest.raises(StorageFull):
            store.delete("pear")
        assert (contents(store), store.commit) == before
        (disk / "filler").unlink()
        store.delete("pear")
        assert list(store.keys()) == ["apple", "quince"]
        assert store.check().ok


def test_closing_on_a_full_disk_leaves_nothing_in_doubt(tmp_path: Path) -> None:
    """What closing would still write can wait: nothing that was acknowledged is uncertain, and nothing is lost."""
    with small_disk(tmp_path / "disk", "4m") as disk:
        store = fruit(disk / "s")
        expected = contents(store)
        fill(disk / "filler")
        store.close()  # an error would say that the last change was not kept
        with Store.open(disk / "s", "r") as store:
            assert contents(store) == expected
        (disk / "filler").unlink()
        with Store.open(disk / "s", "w") as store:
            assert contents(store) == expected
            assert store.check().ok


def test_a_full_disk_at_the_first_batch_leaves_nothing(tmp_path: Path) -> None:
    """Files of a first batch that did not fit go again, so that the disk is free for a smaller one."""
    with small_disk(tmp_path / "disk", "4m") as disk, Store.open(disk / "s", "c") as store:
        with pytest.raises(StorageFull):
            store.append(vectors(300_000), np.zeros(300_000))
        assert not list((disk / "s").glob("generation-*"))
        assert (len(store), store.commit) == (0, 0)
        store.append(vectors(2), ["red", "blue"])
        assert store.check().ok


def test_a_file_that_may_not_grow_leaves_the_handle_usable(tmp_path: Path) -> None:
    """A limit on the size of files is a full disk to the writer; when it is lifted the same handle goes on."""

    def write() -> None:
        with fruit(tmp_path / "s") as store:
            before = contents(store), store.commit
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
            with pytest.raises(StorageFull):
                store.append(vectors(100_000), np.zeros(100_000))
            assert (contents(store), store.commit) == before
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            store.append(vectors(100_000), np.zeros(100_000))
            assert len(store) == 100_003
            assert store.check().ok

    in_child(write)


def test_a_catalog_that_may_not_grow_leaves_the_handle_usable(tmp_path: Path) -> None:
    """When SQLite has no room the batch is refused, and the handle goes on once there is."""
    with fruit(tmp_path / "s") as store:
        before = contents(store), store.commit
        connection = store._catalog.connection
        pages = connection.value("PRAGMA page_count")
        connection.run(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StorageFull, match="full"):
            store.append(vectors(2000), np.zeros(2000), keys=["k" * 200 + str(i) for i in range(2000)])
        assert (contents(store), store.commit) == before
        connection.run("PRAGMA max_page_count=1000000")
        store.append(vectors(2000), np.zeros(2000), keys=["k" * 200 + str(i) for i in range(2000)])
        assert len(store) == 2003
        assert store.check().ok


# A failing disk


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that writes a part of what it is given is asked to write the rest."""
    pwrite, sizes = os.pwrite, list[int]()

    def short(descriptor: int, data: memoryview, offset: int) -> int:
        sizes.append(pwrite(descriptor, data[:7], offset))
        return sizes[-1]

    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", short)
            store.append(vectors(10, seed=4), np.arange(10))
        assert sum(sizes) == 10 * (16 + 8 + 4) + len(locks.note_of(2, store._view._head.store, 0))
        assert store.vectors(range(3, 13)).tobytes() == vectors(10, seed=4).tobytes()
        assert store.check().ok


def test_a_write_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that writes nothing and reports no error is not asked for ever."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda *_: 0)
            with pytest.raises(StorageFailed, match="wrote 0 of 16 bytes"):
                store.append(vectors(1), [7.0])
        store.append(vectors(1), [8.0])
        assert store.get("#4").value == 8.0
        assert store.check().ok


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_failed_write_leaves_the_handle_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """An error while writing rows, in any of the files, is an error of ours and costs nothing but the batch."""
    with fruit(tmp_path / "s") as store:
        before = contents(store), store.commit
        pwrite, calls = os.pwrite, list[int]()

        def failing_write(descriptor: int, data: memoryview, offset: int) -> int:
            calls.append(descriptor)
            if len(calls) == turn:
                raise OSError(errno.EIO, "Input/output error")
            return pwrite(descriptor, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing_write)
            with pytest.raises(StorageFailed, match="cannot write"):
                store.append(vectors(1), [7.0])
        assert (contents(store), store.commit) == before
        store.append(vectors(1), [8.0])
        assert store.get("#4").value == 8.0
        assert store.check().ok


@linux_only
@pytest.mark.parametrize("rows", [1, 60_000])
def test_a_failed_sync_poisons_the_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """After a sync that failed nothing is synced again, every call says so, and reopening finds the state before."""
    store = fruit(tmp_path / "s")
    expected = contents(store)
    log = log_of(tmp_path / "s")
    with failing(monkeypatch, "fdatasync", OSError(errno.EIO, "Input/output error"), times=2) as calls:
        with pytest.raises(StorageFailed, match="durable"):
            store.append(vectors(rows), np.zeros(rows))
        synced = len(calls)
        for call in (
            lambda: store.append(vectors(1), [7.0]),
            lambda: store.delete("apple"),
            lambda: store.configure({}),
            lambda: store.get("apple"),
            lambda: store.commit,
            store.compact,
            store.snapshot,
        ):
            with pytest.raises(HandlePoisoned, match="an earlier write failed"):
                call()
        store.close()
        assert len(calls) == synced
    assert log_of(tmp_path / "s") == log, "nothing of the log was moved, which would have synced the catalog"
    with Store.open(tmp_path / "s", "w") as store:
        assert contents(store) == expected
        assert store.check().ok


@linux_only
def test_one_failed_sync_ends_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the keys cannot be synced the values are not written after them, nor anything committed."""
    store = fruit(tmp_path / "s")
    with monkeypatch.context() as patch:
        steps = Steps(tmp_path / "s", patch)
        with failing(monkeypatch, "fdatasync", OSError(errno.EIO, "Input/output error")):
            with pytest.raises(StorageFailed):
                store.append(vectors(1), [7.0])
            store.close()
    assert [step[:2] for step in steps.taken] == [("write", "keys.f32")]
    with Store.open(tmp_path / "s", "w") as store:
        assert list(store.keys()) == list(FRUIT)
        assert store.check().ok


@linux_only
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_sync_that_finds_no_space_poisons_and_does_not_say_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """StorageFull promises that the handle can go on once there is room; after a failed sync none can."""
    store = fruit(tmp_path / "s")
    refused = failing(monkeypatch, "fdatasync", OSError(number, os.strerror(number)))
    with refused, pytest.raises(StorageFailed, match="open the store again"):
        store.append(vectors(1), [7.0])
    with pytest.raises(HandlePoisoned):
        store.append(vectors(1), [7.0])
    store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert list(store.keys()) == list(FRUIT)
        assert store.check().ok


@linux_only
def test_a_writer_whose_log_may_have_no_name_after_a_power_cut_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite goes on when the directory that holds its log cannot be synced; what it commits could vanish with it."""
    path = closed_fruit(tmp_path / "s")
    with failing(monkeypatch, "fsync", OSError(errno.EIO, "Input/output error")):
        with pytest.raises(StorageFailed, match="durable"):
            Store.open(path, "w")
        with Store.open(path, "r") as reader:
            assert list(reader.keys()) == list(FRUIT)
    with Store.open(path, "w") as store:
        assert store.check().ok


@linux_only
def test_a_poisoned_handle_that_is_closed_keeps_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poisoned handle keeps nothing open once it is closed, nor a pin on an old generation."""
    store = fruit(tmp_path / "s")

    def caller() -> None:
        snapshot = store.snapshot()
        store.append(vectors(1), [7.0])
        snapshot.close()

    with failing(monkeypatch, "fdatasync", OSError(errno.EIO, "Input/output error")), pytest.raises(StorageFailed):
        caller()
    store.close()
    gc.collect()
    assert not open_files(tmp_path)
    with Store.open(tmp_path / "s", "w") as other:
        assert other.check().ok


@linux_only
@pytest.mark.parametrize("name", ["fdatasync", "fsync"])
def test_a_first_batch_that_cannot_be_durable_poisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The first generation is never named when its files or its directory could not be made durable."""
    store = Store.open(tmp_path / "s", "c")
    with failing(monkeypatch, name, OSError(errno.EIO, "Input/output error")):
        with pytest.raises(StorageFailed, match="durable"):
            store.append(vectors(1), [7.0])
        with pytest.raises(HandlePoisoned):
            store.append(vectors(1), [7.0])
        store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert (len(store), store.commit) == (0, 0)
        assert not list((tmp_path / "s").glob("generation-*"))
        store.append(vectors(1), [7.0])
        assert store.check().ok


@linux_only
@pytest.mark.parametrize("name", ["fdatasync", "fsync"])
def test_a_compaction_that_cannot_be_durable_poisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A new generation that cannot be made durable is never named; the old one is as it was."""
    store = fruit(tmp_path / "s")
    store.delete("pear")
    expected = contents(store)
    with failing(monkeypatch, name, OSError(errno.EIO, "Input/output error")):
        with pytest.raises(StorageFailed, match="durable"):
            store.compact()
        with pytest.raises(HandlePoisoned):
            store.get("apple")
        store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert contents(store) == expected
        assert [path.name for path in (tmp_path / "s").glob("generation-*")] == [GENERATION]
        assert store.check().ok


def test_an_error_at_the_commit_is_uncertain(tmp_path: Path) -> None:
    """When SQLite cannot write its log at COMMIT nobody can tell whether it happened; reopening tells."""

    def write() -> None:
        with Store.open(tmp_path / "s", "c") as store:
            store.append(vectors(3), list(FRUIT.values()), keys=list(FRUIT))
            for i in range(5):
                store.append(vectors(1), [float(i)])
            before, commit = contents(store), store.commit
            log = (tmp_path / "s" / f"{CATALOG}-wal").stat().st_size
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (log + 100, hard))
            with pytest.raises(CommitUncertain, match="Open the store again for writing and look at its commit number"):
                store.delete("pear")
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            with pytest.raises(HandlePoisoned):
                store.get("apple")
            assert (tmp_path / "s" / f"{CATALOG}-wal").stat().st_size >= log
        with Store.open(tmp_path / "s", "w") as store:
            assert (contents(store), store.commit) in ((before, commit), (without(before, "pear"), commit + 1))
            assert store.check().ok

    in_child(write)


def without(found: dict[str, Any], *names: str) -> dict[str, Any]:
    """Contents without some items."""
    return {name: item for name, item in found.items() if name not in names}


@pytest.mark.parametrize("happened", [False, True])
def test_reopening_tells_an_uncertain_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happened: bool) -> None:
    """After CommitUncertain the commit number of the reopened store says whether it happened, and so do its items."""
    store = fruit(tmp_path / "s")
    before = contents(store)

    with monkeypatch.context() as patch:
        uncertain(store, patch, happened=happened)
        with pytest.raises(CommitUncertain):
            store.delete("pear")
        with pytest.raises(HandlePoisoned):
            store.delete("apple")
    store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert store.commit == (2 if happened else 1)
        assert contents(store) == (without(before, "pear") if happened else before)
        assert store.check().ok


@pytest.mark.parametrize("happened", [False, True])
def test_an_uncertain_removal_of_old_rows_is_told_by_the_change_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """The change is kept, and its error says so; the handle has ended, and the next writer removes the old rows."""
    store, drop = fruit(tmp_path / "s"), Catalog.drop_generation
    store.delete("pear")
    expected = contents(store)

    def dropped(catalog: Catalog, number: int) -> None:
        uncertain(store, patch, happened=happened)
        drop(catalog, number)

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "drop_generation", dropped)
        with pytest.raises(CommitUncertain, match=r"commit 3 is kept, but .* old rows .*I/O error"):
            store.compact()
        with pytest.raises(HandlePoisoned, match="commit 3 is kept"):
            store.get("apple")
    store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert (contents(store), store.commit) == (expected, 3)
        assert [path.name for path in (tmp_path / "s").glob("generation-*")] == ["generation-000002"]
        assert store.check().ok


# Another writer


def test_a_writer_whose_epoch_has_passed_is_fenced(tmp_path: Path) -> None:
    """When another writer has taken over, the one that wakes up late writes nothing, not even at its close."""
    store = fruit(tmp_path / "s")
    forge(tmp_path / "s", "state", epoch=9)
    before = sql(tmp_path / "s", "SELECT * FROM state")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "s" / GENERATION).iterdir()}
    for write in (
        lambda: store.append(vectors(1), [7.0]),
        lambda: store.delete("apple"),
        lambda: store.configure({"a": 1}),
        store.compact,
    ):
        with pytest.raises(WriterFenced, match="another writer has changed the store"):
            write()
    assert {path.name: path.stat().st_size for path in (tmp_path / "s" / GENERATION).iterdir()} == sizes
    store.close()
    assert sql(tmp_path / "s", "SELECT * FROM state") == before
    with Store.open(tmp_path / "s", "w") as store:
        assert list(store.keys()) == list(FRUIT)
        assert store.check().ok


def test_a_writer_is_fenced_at_the_very_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer who takes over before the transaction wins: it looks at the epoch again, and writes no row."""
    store = fruit(tmp_path / "s")
    writing = Connection.writing

    def late(connection: Connection) -> Any:
        monkeypatch.setattr(Connection, "writing", writing)
        forge(tmp_path / "s", "state", epoch=9)
        return writing(connection)

    before = (tmp_path / "s" / GENERATION / "keys.f32").read_bytes()
    monkeypatch.setattr(Connection, "writing", late)
    with pytest.raises(WriterFenced, match="of writer 9"):
        store.append(vectors(1), [7.0])
    assert (tmp_path / "s" / GENERATION / "keys.f32").read_bytes() == before
    with pytest.raises(HandlePoisoned):
        store.append(vectors(1), [7.0])
    store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert list(store.keys()) == list(FRUIT)
        assert store.check().ok


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_that_is_no_longer_there_fences(tmp_path: Path, replaced: bool) -> None:
    """When LOCK was deleted or replaced there may be a second writer, so this one writes nothing."""
    with fruit(tmp_path / "s") as store:
        lock = tmp_path / "s" / "LOCK"
        lock.rename(tmp_path / "lock")
        if replaced:
            lock.write_bytes(b"")
        before = contents(store), store.commit
        for write in (lambda: store.append(vectors(1), [7.0]), lambda: store.delete("apple"), store.compact):
            with pytest.raises(WriterFenced, match=r"LOCK (is gone|was replaced)"):
                write()
        assert (contents(store), store.commit) == before
        assert store.check().ok


# Interrupts


# Python says aloud that it goes on after an interrupt that arrives while it clears something away.
interrupting = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupt:
    """Raise KeyboardInterrupt at the n-th place where Python would: when a function begins, or one in C has ended.

    Subtle: not at other events. Before a lock in C is let go Python takes no signal, and one raised there would
    block for ever what no interrupt can.
    """

    def __init__(self, turn: int) -> None:
        self.turn, self.seen = turn, 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, what: object) -> None:
        """Count what happens in our files and context managers, and interrupt when it is the turn."""
        file = frame.f_code.co_filename
        if event in ("call", "c_return") and (f"softkv{os.sep}storage" in file or file.endswith("contextlib.py")):
            self.seen += 1
            if self.seen == self.turn:
                self.where = f"{file}:{frame.f_lineno} {frame.f_code.co_name} {event} {what}"
                raise KeyboardInterrupt

    def during(self, work: Callable[[], object]) -> None:
        """Do some work, which the interrupt may end."""
        sys.setprofile(self)
        try:
            work()
        except KeyboardInterrupt:
            return
        finally:
            sys.setprofile(None)


def add(store: Store, turn: int) -> None:
    """Add one item."""
    store.append(vectors(1), ["red"], keys=[f"new {turn}"], payloads=[{"turn": turn}])


def replace(store: Store, turn: int) -> None:
    """Replace an item by one with another label."""
    store.append(vectors(1), [f"label {turn}"], keys=["first"], payloads=[turn], on_conflict="replace")


def delete(store: Store, turn: int) -> None:
    """Delete an item."""
    store.delete(f"item {turn}")


def compact(store: Store, turn: int) -> None:
    """Leave the dead behind, of whom there are some."""
    store.compact()


@interrupting
@pytest.mark.parametrize(("work", "stride"), [(add, 5), (replace, 5), (delete, 5), (compact, 17)])
def test_an_interrupt_anywhere_leaves_the_handle_right(
    tmp_path: Path, seed: int, work: Callable[[Store, int], None], stride: int
) -> None:
    """Interrupted at any call, right after COMMIT too, a change is there or not, and the same handle is right."""
    with Store.open(tmp_path / "s", "c") as store, Store.open(tmp_path / "s") as reader:
        store.append(vectors(1000), ["red"] * 1000, keys=["first", *(f"item {i}" for i in range(999))])
        interrupted, turn, done = True, 1 + seed % stride, 0
        while interrupted:
            before, commit = len(store), store.commit
            interrupt = Interrupt(turn)
            interrupt.during(partial(work, store, turn))
            interrupted, told = bool(interrupt.where), f"at step {turn} in {interrupt.where}"
            happened = store.commit - commit
            assert happened in (0, 1), told
            assert len(store) - before == {add: 1, delete: -1}.get(work, 0) * happened, told
            assert (reader.commit, len(reader)) == (store.commit, len(store)), told
            if work is replace:
                assert (store.get("first").value == f"label {turn}") == happened, told
            elif work is not compact:
                assert (f"{'new' if work is add else 'item'} {turn}" in store) == (happened == (work is add)), told
            store.append(vectors(1), ["green"], keys=["after"], on_conflict="replace")
            assert reader.get("after").value == "green", told
            turn, done = turn + stride, done + happened
        assert done >= 1
        assert turn > 100, "the work has many steps"
        assert store.check().ok
        live = Counter(item.value for item in store.items(store.in_order()))
        assert {label: count for _, label, count in store._catalog.labels() if count} == live


@interrupting
def test_an_interrupt_of_the_first_batch_leaves_the_handle_right(tmp_path: Path, seed: int) -> None:
    """The first batch, too, is there or not, its files with it."""
    interrupted, turn = True, 1 + seed % 23
    while interrupted:
        with Store.open(tmp_path / "s", "n") as store:
            interrupt = Interrupt(turn)
            interrupt.during(partial(add, store, 1))
            interrupted, told = bool(interrupt.where), f"at step {turn} in {interrupt.where}"
            assert list(store.keys()) == ["new 1"] * store.commit, told
            store.append(vectors(1), ["blue"], keys=["after"])
            assert store.get("after").value == "blue", told
            assert store.check().ok, told
        turn += 23
    assert turn > 100, "the work has many steps"


# Checksums


def checksums(file: Path, length: int) -> list[int]:
    """The checksum of every window of a file of rows, the unfinished one last."""
    data = file.read_bytes()[HEADER : HEADER + length]
    assert len(data) == length
    return [crc32(data[start : start + GRANULE]) for start in range(0, length, GRANULE)]


def require_checksums(store: Path, rows: int, widths: dict[str, int]) -> None:
    """Compare what the catalog of a closed store keeps with the files."""
    for position, (name, row_bytes) in enumerate(widths.items()):
        role = name.split(".")[0]
        finished = sql(store, "SELECT checksum FROM windows WHERE role = ? ORDER BY window", role)
        tail = sql(store, "SELECT keys_tail, values_tail, norms_tail FROM generations")[0][position]
        kept = [checksum for (checksum,) in finished] + ([tail] if rows * row_bytes % GRANULE else [])
        assert kept == checksums(store / GENERATION / name, rows * row_bytes), name
        if rows * row_bytes % GRANULE == 0:
            assert tail == 0


def test_many_small_adds_keep_one_checksum(tmp_path: Path) -> None:
    """The checksum of the unfinished window grows with every add, and equals that of the file."""
    with Store.open(tmp_path / "s", "c") as store:
        for i in range(100):
            store.append(vectors(1 + i % 3, 5, seed=i), np.full(1 + i % 3, i))
        rows = store.rows
        assert store.check().ok
    require_checksums(tmp_path / "s", rows, {"keys.f32": 20, "values.number": 8, "norms.f32": 4})
    assert sql(tmp_path / "s", "SELECT count(*) FROM windows") == [(0,)]


def test_batches_across_windows_keep_every_checksum(tmp_path: Path) -> None:
    """Rows that lie across the boundary of two windows count to both."""
    with Store.open(tmp_path / "s", "c") as store:
        for i in range(8):
            store.append(vectors(30_001, 3, seed=i), np.arange(30_001))
        rows = store.rows
        assert store.check().ok
    require_checksums(tmp_path / "s", rows, {"keys.f32": 12, "values.number": 8, "norms.f32": 4})
    assert sql(tmp_path / "s", "SELECT count(*) FROM windows") == [(175 + 117 + 58,)]


@pytest.mark.parametrize("width", [1_003, 4_096, 5_000, 2_048, 8_192, 131_072])
def test_rows_as_large_as_windows_keep_every_checksum(tmp_path: Path, width: int) -> None:
    """Rows of a part of a window, of one window exactly, or of several, one at a time and together."""
    with Store.open(tmp_path / "s", "c") as store:
        for count in (1, 1, 2, 3):
            store.append(vectors(count, width), np.zeros(count))
        assert store.vectors([6, 2]).tobytes() == vectors(3, width)[[2, 0]].tobytes()
        assert store.check().ok
    require_checksums(tmp_path / "s", 7, {"keys.f32": 4 * width, "values.number": 8, "norms.f32": 4})


def test_a_window_filled_to_its_end_starts_the_next_from_nothing(tmp_path: Path) -> None:
    """When the last row ends where its window does, there is no unfinished window."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(GRANULE // 16 - 1), np.zeros(GRANULE // 16 - 1))
        store.append(vectors(1), [0.0])
        assert store.check().ok
    require_checksums(tmp_path / "s", GRANULE // 16, {"keys.f32": 16, "values.number": 8, "norms.f32": 4})
    with Store.open(tmp_path / "s", "w") as store:
        store.append(vectors(1), [0.0])
        assert store.check().ok
    require_checksums(tmp_path / "s", GRANULE // 16 + 1, {"keys.f32": 16, "values.number": 8, "norms.f32": 4})


# What every commit keeps up to date


def test_label_counts_follow_every_change(tmp_path: Path) -> None:
    """How many live items carry each label is kept through adding, replacing, deleting, compacting, reopening."""
    random = np.random.default_rng(5)
    model: dict[str, str] = {}
    store = Store.open(tmp_path / "s", "c")
    for step in range(40):
        names = list(dict.fromkeys(f"key {i}" for i in random.integers(0, 30, 6)))
        if step % 4 == 3:
            doomed = [name for name in names if name in model]
            store.delete(doomed)
            for name in doomed:
                del model[name]
        else:
            labels = [f"label {i}" for i in random.integers(0, 2 + step // 5, len(names))]
            store.append(vectors(len(names)), labels, keys=names, on_conflict="replace")
            model |= dict(zip(names, labels, strict=True))
        if step % 10 == 9:
            store.compact()
        if step % 15 == 14:
            store.close()
            store = Store.open(tmp_path / "s", "w")
        assert {label: count for _, label, count in store._catalog.labels() if count} == Counter(model.values())
        shares = np.array(list(Counter(model.values()).values())) / max(len(model), 1)
        assert store.value_scale == pytest.approx(np.sqrt(1 - (shares**2).sum()), abs=1e-12)
    assert {name: store.get(name).value for name in store.keys()} == model  # noqa: SIM118
    assert store.check().ok
    store.close()


def test_a_label_keeps_its_code(tmp_path: Path) -> None:
    """A code stands for the same label for ever, even when no item carries it for a while."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(3), ["red", "blue", "green"])
        store.delete(["#2"])
        store.compact()
        store.append(vectors(2), ["black", "blue"])
        assert store._catalog.labels() == [(0, "red", 1), (1, "blue", 1), (2, "green", 1), (3, "black", 1)]
        assert [item.value for item in store.items(range(4))] == ["red", "green", "black", "blue"]
        assert store.check().ok


def test_sums_follow_every_change(tmp_path: Path) -> None:
    """Count and sums in the catalog are those of the live values, after any mixture of changes."""
    random = np.random.default_rng(6)
    model: dict[str, np.ndarray] = {}
    with Store.open(tmp_path / "s", "c") as store:
        for step in range(30):
            names = list(dict.fromkeys(f"key {i}" for i in random.integers(0, 20, 5)))
            if step % 3 == 2:
                doomed = [name for name in names if name in model]
                store.delete(doomed)
                for name in doomed:
                    del model[name]
            else:
                values = random.normal(3, 2, (len(names), 4)).astype(np.float32)
                store.append(vectors(len(names)), values, keys=names, on_conflict="replace")
                model |= dict(zip(names, values, strict=True))
            alive = np.array(list(model.values()), np.float64)
            assert store.value_scale == pytest.approx(np.sqrt(alive.var(axis=0).sum()), rel=1e-9)
        assert store.check().ok
    tally = Tally.unpack(sql(tmp_path / "s", "SELECT sums FROM generations")[0][0])
    assert tally.count == len(model)
    np.testing.assert_allclose(tally.total + tally.count * tally.origin, alive.sum(axis=0), rtol=1e-9)


# The end of a handle


def test_a_closed_store_has_no_log(tmp_path: Path) -> None:
    """At its end a writer has moved its log into the catalog, and says that all is well."""
    fruit(tmp_path / "s").close()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["LOCK", CATALOG, GENERATION, "index"]
    assert sql(tmp_path / "s", "SELECT writing FROM state") == [(0,)]
    with Store.open(tmp_path / "s") as store:
        assert store.check().ok


@linux_only
def test_norms_that_cannot_be_synced_at_the_end_leave_the_next_writer_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at close loses nothing that was acknowledged, and the store is not marked as well."""
    store = fruit(tmp_path / "s")
    expected = contents(store)
    with failing(monkeypatch, "fdatasync", OSError(errno.EIO, "Input/output error")), pytest.raises(StorageFailed):
        store.close()
    assert sql(tmp_path / "s", "SELECT writing FROM state") == [(1,)]
    with Store.open(tmp_path / "s", "w") as store:
        assert contents(store) == expected
        assert store.check().ok


def test_a_compaction_needs_room_first(tmp_path: Path) -> None:
    """Compaction looks for room before its first byte, and leaves everything as it was when there is none."""
    with small_disk(tmp_path / "disk", "8m") as disk, Store.open(disk / "s", "c") as store:
        store.append(vectors(2000, 512), np.zeros(2000))
        store.delete("#1")
        before = store.commit, len(store)
        with pytest.raises(StorageFull, match=r"compacting .* needs .* MB and the disk has"):
            store.compact()
        assert (store.commit, len(store)) == before
        assert [path.name for path in (disk / "s").glob("generation-*")] == [GENERATION]
        assert store.check().ok


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected: Python swallows an interrupt that falls into a callback of the collector."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    "work",
    [lambda store: store.append(vectors(100_000, seed=1), np.zeros(100_000)), Store.compact],
    ids=["add many", "compact"],
)
def test_an_interrupt_waits_for_the_threads_that_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Store], object]
) -> None:
    """Rows of the interrupted batch that are written late would cover those of the next."""
    written, ended, write = [], threading.Event(), Arena.write

    def slow(arena: Arena, row: int, rows: np.ndarray) -> None:
        if threading.current_thread() is not threading.main_thread() and arena.shape.role == "keys":
            _thread.interrupt_main()
            ended.wait(0.3)  # as long as the main thread does not wait for this one
        write(arena, row, rows)
        written.append(arena.shape.role)

    with fruit(tmp_path / "s") as store:
        store.delete("pear")
        before = contents(store)
        monkeypatch.setattr(Arena, "write", slow)
        with pytest.raises(KeyboardInterrupt):
            work(store)
        assert "keys" in written  # by the thread that sent the interrupt; the other may not even have begun
        ended.set()
        monkeypatch.undo()
        assert contents(store) == before
        store.append(vectors(1), [1.0])
        assert store.check().ok


def test_bytes_behind_the_committed_rows_are_believed_by_nobody(tmp_path: Path) -> None:
    """What a crash left there is covered by the next write."""
    path = closed_fruit(tmp_path / "s")
    for file in ("keys.f32", "values.number", "norms.f32"):
        with open(path / GENERATION / file, "ab") as arena:
            arena.write(b"\xff" * 1_000)
    with Store.open(path, "w") as store:
        assert (len(store), store.rows) == (3, 3)
        store.append(vectors(1, seed=5), [4.0], keys=["plum"])
        np.testing.assert_array_equal(store.get("plum").vector, vectors(1, seed=5)[0])
        assert store.check().ok


def test_damage_stops_a_replacement_that_has_to_read_it(tmp_path: Path) -> None:
    """The sums cannot take away a value that cannot be believed; nothing is written, and other work goes on."""
    with fruit(tmp_path / "s") as store:
        with open(tmp_path / "s" / GENERATION / "values.number", "r+b") as arena:
            arena.seek(4_096 + 3)
            arena.write(b"\xff")
        with Store.open(tmp_path / "s") as reader:
            commit = reader.commit
            for work in (
                lambda: store.delete("apple"),
                lambda: store.append(vectors(1), [1.0], keys=["apple"], on_conflict="replace"),
            ):
                with pytest.raises(StoreDamaged, match=r"values.number"):
                    work()
            assert reader.commit == commit
        store.append(vectors(1), [1.0])
    assert not check(tmp_path / "s").ok


@pytest.mark.parametrize("mode", ["r", "w"])
def test_threads_get_the_rows_that_they_asked_for(tmp_path: Path, mode: str) -> None:
    """Six threads ask the same question with different rows, as close together as threads can be."""
    count, problems = 500, []
    with Store.open(tmp_path / "s", "c") as store:
        store.append(
            np.repeat(np.arange(count), 4).reshape(-1, 4), np.arange(count), keys=[str(i) for i in range(count)]
        )

    def ask(store: Store, seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(150):
                rows = random.integers(0, count, 3)
                found = [(item.key, item.value, item.vector[0]) for item in store.items(rows)]
                assert found == [(str(row), row, row) for row in rows.tolist()]
        except BaseException as error:
            problems.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Store.open(tmp_path / "s", mode) as store:
            threads = [threading.Thread(target=ask, args=(store, seed)) for seed in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert problems == []
            assert store.check().ok
    finally:
        sys.setswitchinterval(interval)
