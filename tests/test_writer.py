"""The commit protocol: wholly or not at all, whatever comes between."""

import _thread
import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.errors import (
    CommitUncertain,
    DuplicateKey,
    HandlePoisoned,
    SoftKVError,
    StorageFailed,
    StorageFull,
    StoreDamaged,
    WriterFenced,
)
from softkv.storage import Store, check, leftovers, writer
from softkv.storage.arena import Arena
from softkv.storage.catalog import Catalog
from softkv.storage.connection import Connection
from softkv.storage.generation import Generation
from softkv.storage.roster import Roster
from softkv.storage.writer import Added
from tests.stores import CATALOG, GENERATION, closed_fruit, contents, copied, footprint, fruit, vectors

# What happens to keys that are there already


def test_replacing_keeps_the_place_in_the_order(tmp_path: Path) -> None:
    """As in a dict: the last of a key that stands twice counts, in the place where the key was first."""
    truth = {"apple": 0.5, "pear": 2.0, "quince": -1.25}
    keys, values = ["pear", "plum", "fig", "plum", "pear"], [1.0, 2.0, 3.0, 4.0, 5.0]
    truth.update(zip(keys, values, strict=True))
    with fruit(tmp_path / "s") as store:
        added = store.append(vectors(5), values, keys=keys, on_conflict="replace")
        assert added == Added(first_row=3, first_number=4, count=3, replaced=1)
        assert [(key, store.get(key).value) for key in store.keys()] == list(truth.items())  # noqa: SIM118
        np.testing.assert_array_equal(store.get("plum").vector, vectors(5)[3])
        assert store.get("pear").payload is None
        assert store.check().ok


def test_ignoring_leaves_what_is_there(tmp_path: Path) -> None:
    """As setdefault: the first of a key that stands twice counts."""
    with fruit(tmp_path / "s") as store:
        before = contents(store)
        added = store.append(
            vectors(4), [1.0, 2.0, 3.0, 4.0], keys=["pear", "plum", None, "plum"], on_conflict="ignore"
        )
        assert added == Added(first_row=3, first_number=4, count=2, ignored=2)
        assert {name: contents(store)[name] for name in before} == before
        assert [store.get(name).value for name in ("plum", "#5")] == [2.0, 3.0]
        assert store.check().ok


def test_ignoring_everything_writes_nothing(tmp_path: Path) -> None:
    """Not even a commit."""
    with fruit(tmp_path / "s") as store:
        before, commit = footprint(tmp_path), store.commit
        added = store.append(vectors(2), [1.0, 2.0], keys=["pear", "apple"], on_conflict="ignore")
        assert (added.count, added.ignored) == (0, 2)
        assert (footprint(tmp_path), store.commit) == (before, commit)
        assert store.check().ok


def test_items_without_a_key_never_conflict(tmp_path: Path) -> None:
    """Each is a new one, whatever was asked for."""
    with Store.open(tmp_path / "s", "c") as store:
        for conflict in ("error", "replace", "ignore"):
            assert store.append(vectors(3), [1.0, 2.0, 3.0], on_conflict=conflict).count == 3
        assert list(store.keys()) == [f"#{number}" for number in range(1, 10)]
        assert store.check().ok


def test_every_batch_is_one_commit(tmp_path: Path) -> None:
    """Its number goes up by one, also when the batch replaces."""
    with fruit(tmp_path / "s") as store:
        commit = store.commit
        store.append(vectors(3), [1.0] * 3, keys=["apple", "pear", "plum"], on_conflict="replace")
        assert store.commit == commit + 1
        store.delete(["apple", "plum"])
        assert store.commit == commit + 2
        assert store.check().ok


def test_a_deletion_of_many_is_all_or_none(tmp_path: Path) -> None:
    """One missing key, and nothing is deleted; a key that stands twice is deleted once."""
    with fruit(tmp_path / "s") as store:
        before = contents(store)
        for missing in ("plum", "#77"):
            with pytest.raises(KeyError, match=missing):
                store.delete(["apple", missing, "pear"])
        assert contents(store) == before
        assert store.delete(["apple", "apple"]) == 1
        assert store.delete([]) == 0
        assert list(contents(store)) == ["pear", "quince"]
        assert store.check().ok


def test_a_key_may_come_back_after_its_deletion(tmp_path: Path) -> None:
    """At the end of the order, as a new item."""
    with fruit(tmp_path / "s") as store:
        for _ in range(3):
            store.delete("apple")
            store.append(vectors(1), [7.0], keys=["apple"])
        assert list(store.keys()) == ["pear", "quince", "apple"]
        assert store.get("apple").number == 6
        assert store.check().ok


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 12 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """A file that leaves so many bytes free."""
    with open(disk / "filler", "wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(disk).free - leave))
    return disk / "filler"


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs")
@pytest.mark.parametrize("leave", [0, 20_000, 60_000, 200_000, 900_000])
def test_a_full_disk_keeps_nothing_of_the_batch(small_disk: Path, leave: int) -> None:
    """Whether the rows or the commit did not fit; after making room the same handle writes again."""
    with fruit(small_disk / "s") as store:
        before, commit = contents(store), store.commit
        filler = fill(small_disk, leave=leave)
        many = {"keys": [f"{i:01000}" for i in range(500)], "payloads": ["x" * 1_000] * 500}
        for _ in range(3):
            with pytest.raises(StorageFull, match=r"(?i)make room"):
                store.append(vectors(500), [1.0] * 500, **many)  # type: ignore[arg-type]
            assert (contents(store), store.commit) == (before, commit)
        filler.unlink()
        store.append(vectors(500), [1.0] * 500, **many)  # type: ignore[arg-type]
        assert len(store) == 503
        assert store.check().ok


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs")
@pytest.mark.parametrize("leave", [0, 5_000, 100_000])
def test_a_first_batch_that_does_not_fit_leaves_no_files(small_disk: Path, leave: int) -> None:
    """The disk is as full as before, and a smaller batch begins the store."""
    with Store.open(small_disk / "s", "c") as store:
        fill(small_disk, leave=leave)
        names, used = sorted(os.listdir(small_disk / "s")), shutil.disk_usage(small_disk).used
        with pytest.raises(StorageFull):
            store.append(vectors(300, 1_000), [1.0] * 300)
        assert sorted(os.listdir(small_disk / "s")) == names
        assert shutil.disk_usage(small_disk).used - used < 50_000  # what SQLite's log has grown by
        (small_disk / "filler").unlink()
        store.append(vectors(3), [1.0] * 3)
        assert store.check().ok


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs")
def test_a_compaction_that_does_not_fit_is_refused_before_the_first_byte(small_disk: Path) -> None:
    """The message says how much is needed; the dead stay where they are, and can be left behind later."""
    with Store.open(small_disk / "s", "c") as store:
        store.append(vectors(300, 1_000), [1.0] * 300, keys=[str(i) for i in range(300)])
        store.delete([str(i) for i in range(0, 300, 3)])
        fill(small_disk, leave=100_000)
        before, names = contents(store), sorted(os.listdir(small_disk / "s"))
        with pytest.raises(StorageFull, match="needs 1 MB"):
            store.compact()
        assert (contents(store), sorted(os.listdir(small_disk / "s"))) == (before, names)
        (small_disk / "filler").unlink()
        store.compact()
        assert (contents(store), store.rows) == (before, 200)
        assert store.check().ok


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """No file of this process can grow beyond this size: a full disk that needs no permission."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_arena_that_cannot_grow_keeps_nothing_of_the_batch(tmp_path: Path) -> None:
    """Half of the rows were written, none of them counts, and the next batch covers them."""
    with fruit(tmp_path / "s") as store:
        before = contents(store)
        with no_file_beyond(500_000), pytest.raises(StorageFull, match=r"keys\.f32"):
            store.append(vectors(100_000), np.ones(100_000))
        assert contents(store) == before
        assert (tmp_path / "s" / GENERATION / "keys.f32").stat().st_size > 100_000
        store.append(vectors(1), [1.0])
        assert store.check().ok


def test_a_commit_that_the_disk_refuses_is_uncertain(tmp_path: Path) -> None:
    """The log cannot grow, so SQLite fails at COMMIT: the handle is done for, and reopening tells what happened."""
    store = fruit(tmp_path / "s")
    commit, before, log = store.commit, contents(store), tmp_path / "s" / f"{CATALOG}-wal"
    with no_file_beyond(log.stat().st_size + 100), pytest.raises(CommitUncertain, match="commit number"):
        store.append(vectors(1), [1.0])
    for use in (lambda: len(store), lambda: store.append(vectors(1), [1.0]), lambda: store.get("apple")):
        with pytest.raises(HandlePoisoned, match="earlier write failed"):
            use()
    store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert (store.commit, contents(store)) == (commit, before)
        store.append(vectors(1), [1.0])
        assert store.check().ok


# A sync that fails


class Syncs:
    """Counts os.fdatasync, and fails it from a given call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.fail_from, self._sync = 0, 0, os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self.sync)

    def sync(self, descriptor: int) -> None:
        """In the place of os.fdatasync."""
        self.calls += 1
        if self.fail_from and self.calls >= self.fail_from:
            raise OSError(errno.EIO, "failed")
        self._sync(descriptor)


SYNCED: dict[str, Callable[[Store], object]] = {
    "first": lambda store: store.append(vectors(1), [1.0], keys=["plum"]),
    "add": lambda store: store.append(vectors(1), [1.0], keys=["plum"]),
    "add many": lambda store: store.append(vectors(100_000), np.ones(100_000)),
    "compact": lambda store: store.compact(),
}


@pytest.mark.skipif(sys.platform != "linux", reason="fdatasync is what is made to fail")
@pytest.mark.parametrize("fail_from", [1, 2])
@pytest.mark.parametrize("work", ["first", "add", "add many", "compact"])
def test_a_failed_sync_ends_the_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, fail_from: int
) -> None:
    """Nothing is synced again, by us or by SQLite, also not at close; what was acknowledged before is there."""
    store = Store.open(tmp_path / "s", "c") if work == "first" else fruit(tmp_path / "s")
    if work == "compact":
        store.delete("pear")
    commit, before, syncs = store.commit, contents(store), Syncs(monkeypatch)
    syncs.fail_from = fail_from
    with pytest.raises(StorageFailed, match="durable"):
        SYNCED[work](store)
    failed, syncs.fail_from = syncs.calls, 0
    with pytest.raises(HandlePoisoned):
        store.append(vectors(1), [1.0])
    catalog = tmp_path / "s" / CATALOG
    states = [(path.stat().st_mtime_ns, path.stat().st_size) for path in (catalog, Path(f"{catalog}-wal"))]
    store.close()
    assert syncs.calls == failed
    assert [(path.stat().st_mtime_ns, path.stat().st_size) for path in (catalog, Path(f"{catalog}-wal"))] == states
    monkeypatch.undo()
    with Store.open(tmp_path / "s", "w") as store:
        assert (store.commit, contents(store)) == (commit, before)
        store.append(vectors(1), [1.0], keys=["plum"])
        assert store.check().ok


@pytest.mark.skipif(sys.platform != "linux", reason="fdatasync is what is made to fail")
def test_a_sync_that_fails_at_close_is_reported_and_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is free, nothing is lost, and SQLite does not try again."""
    store, syncs = fruit(tmp_path / "s"), Syncs(monkeypatch)
    before, syncs.fail_from = contents(store), 1
    with pytest.raises(StorageFailed, match=r"norms.f32 durable"):
        store.close()
    assert (tmp_path / "s" / f"{CATALOG}-wal").stat().st_size > 0
    monkeypatch.undo()
    with Store.open(tmp_path / "s", "w") as store:
        assert contents(store) == before
        assert store.check().ok


def test_rows_are_durable_before_the_commit_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values are written, then synced, then named; in that order for a first and for a later batch."""
    steps: list[str] = []

    def watch(owner: Any, name: str, note: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            steps.append(note(*arguments))
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(Arena, "write", lambda arena, *_: f"write {arena.shape.role}")
    watch(Arena, "sync", lambda arena: f"sync {arena.shape.role}")
    watch(Connection, "_commit", lambda _: "commit")
    with Store.open(tmp_path / "s", "c") as store:
        for _ in range(2):
            steps.clear()
            store.append(vectors(1), [1.0])
            assert steps[-1] == "commit"
            for role in ("keys", "values"):
                assert steps.index(f"write {role}") < steps.index(f"sync {role}") < steps.index("commit")
        assert store.check().ok


# Another writer


def test_a_writer_whose_lock_was_replaced_is_fenced(tmp_path: Path) -> None:
    """Another has taken over: the first writes nothing more, also not at close."""
    first = fruit(tmp_path / "s")
    (tmp_path / "s" / "LOCK").rename(tmp_path / "taken")
    with pytest.raises(WriterFenced, match="LOCK is gone"):
        first.append(vectors(1), [1.0])
    with Store.open(tmp_path / "s", "w") as second:
        second.append(vectors(1), [2.0], keys=["plum"])
        for work in (lambda: first.append(vectors(1), [1.0]), lambda: first.delete("apple"), first.compact):
            with pytest.raises(WriterFenced, match="LOCK was replaced"):
                work()
        first.close()
        second.append(vectors(1), [3.0], keys=["fig"])
        assert list(second.keys()) == ["apple", "pear", "quince", "plum", "fig"]
        assert second.check().ok


def test_a_writer_that_wakes_up_late_is_fenced_by_its_epoch(tmp_path: Path) -> None:
    """Even when the lock looks as it should: the number of the writer in the catalog is another."""
    first, lock = fruit(tmp_path / "s"), tmp_path / "s" / "LOCK"
    lock.rename(tmp_path / "taken")
    Store.open(tmp_path / "s", "w").close()
    (tmp_path / "taken").rename(lock)
    for work in (
        lambda: first.append(vectors(1), [1.0]),
        lambda: first.delete("apple"),
        lambda: first.configure({}),
        first.compact,
    ):
        with pytest.raises(WriterFenced, match="another writer"):
            work()
    first.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert len(store) == 3
        assert store.check().ok


# Interrupts


STEPS: list[tuple[Any, str]] = [
    (Arena, "write"),
    (Arena, "sync"),
    (Generation, "create"),
    (Generation, "make_durable"),
    (Catalog, "advance"),
    (Catalog, "create_items"),
    (Catalog, "index_items"),
    (Catalog, "put_windows"),
    (Catalog, "put_deaths"),
    (Catalog, "put_labels"),
    (Catalog, "put_standing"),
    (Catalog, "drop_generation"),
    (Roster, "enrol"),
    (Roster, "bury"),
    (Roster, "copy_live"),
    (Roster, "find_many"),
    (Connection, "_commit"),
    (writer, "load"),
    (writer, "remove_retired"),
    (leftovers.files, "remove_tree"),
]


class Wire:
    """Raises KeyboardInterrupt at the n-th time that a step begins or ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for owner, name in STEPS:
            original = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
            bound = isinstance(original, classmethod)
            wired = self._wired(original.__func__ if bound else original)
            monkeypatch.setattr(owner, name, classmethod(wired) if bound else wired)

    def _wired(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wired(*arguments: Any, **options: Any) -> Any:
            self._trip()
            result = original(*arguments, **options)
            self._trip()
            return result

        return wired

    def _trip(self) -> None:
        self.left -= 1
        if self.left == 0 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt


WORK: dict[str, Callable[[Store], object]] = {
    "first": lambda store: store.append(vectors(2), ["x", "y"], keys=["a", None], payloads=[{"n": 1}, None]),
    "append": lambda store: store.append(vectors(2), ["x", "z"], keys=["d", None]),
    "replace": lambda store: store.append(vectors(2), ["z", "z"], keys=["a", "d"], on_conflict="replace"),
    "delete": lambda store: store.delete(["a", "c"]),
    "compact": lambda store: store.compact(),
    "configure": lambda store: store.configure({"colour": "red"}),
}


@pytest.mark.parametrize("name", WORK)
def test_an_interrupt_at_any_step_leaves_the_store_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Ctrl-C at every step there is, one after the other; the same handle is right at once, and writes again."""
    with Store.open(tmp_path / "origin", "c") as store:
        if name != "first":
            store.append(vectors(3), ["x", "y", "x"], keys=["a", "b", "c"], payloads=[1, 2, 3])
            store.delete("b")
    seen = set()
    for at in range(1, 1_000):
        path = copied(tmp_path / "origin", tmp_path / str(at))
        with Store.open(path, "w") as store:
            before = (contents(store), store.settings, store.rows)
            with monkeypatch.context() as patches:
                wire = Wire(patches, at)
                with suppress(KeyboardInterrupt):
                    WORK[name](store)
            with Store.open(path) as reader:
                now = (contents(store), store.settings, store.rows)
                assert (contents(reader), reader.settings, reader.rows) == now
            seen.add(now == before)
            store.append(vectors(1), ["new"], keys=["new"])
            assert contents(store) == {**now[0], "new": contents(store)["new"]}
            report = store.check()
            assert report.ok, report
        if report.notes:  # a directory that was made in the very moment
            Store.open(path, "w").close()
        assert len([one for one in os.listdir(path) if one.startswith("generation")]) == 1, at
        shutil.rmtree(path)
        if wire.left > 0:
            break
    assert wire.left > 0
    assert at > 5
    assert seen == {True, False}


@pytest.mark.parametrize("work", ["add many", "compact"])
def test_an_interrupt_waits_for_the_threads_that_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
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
            SYNCED[work](store)
        assert {"keys", "values"} <= set(written)
        ended.set()
        monkeypatch.undo()
        assert contents(store) == before
        store.append(vectors(1), [1.0])
        assert store.check().ok


def test_an_error_in_the_middle_leaves_the_handle_good(tmp_path: Path) -> None:
    """A refused batch between two good ones, many times; labels and sums are in step in the end."""
    with Store.open(tmp_path / "s", "c") as store:
        for number in range(10):
            store.append(vectors(2), [f"label {number}", "x"], keys=[f"key {number}", None])
            with pytest.raises(DuplicateKey):
                store.append(vectors(2), ["never", "seen"], keys=["fresh", f"key {number}"])
        assert "never" not in store.snapshot().labels()
        assert store.check().ok


# What lies behind the committed rows


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


# Threads


def test_threads_share_a_writer(tmp_path: Path) -> None:
    """Four threads add, replace and delete their own keys while others read; everyone sees whole batches."""
    problems: list[BaseException] = []
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(1), [0.0], keys=["first"])

        def write(name: int) -> None:
            try:
                for number in range(15):
                    keys = [f"{name} {number} {i}" for i in range(5)]
                    store.append(np.full((5, 4), number), [float(number)] * 5, keys=keys)
                    store.append(np.full((1, 4), 99), [99.0], keys=keys[:1], on_conflict="replace")
                    store.delete(keys[1:3])
            except BaseException as error:
                problems.append(error)

        def read() -> None:
            try:
                for _ in range(60):
                    with store.snapshot() as snapshot:
                        names = list(snapshot.keys())
                        assert len(names) == len(snapshot)
                        for item in snapshot.items(snapshot.find_many(names[-5:])):
                            assert item.value == item.vector[0] or item.key == "first"
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        threads += [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert len(store) == 1 + 4 * 15 * 3
        assert store.check().ok


def test_threads_share_a_reader(tmp_path: Path) -> None:
    """Four threads read through one handle while the store grows, shrinks and is compacted."""
    problems: list[BaseException] = []
    done = threading.Event()
    with Store.open(tmp_path / "s", "c") as store:
        store.append(np.zeros((1, 4)), [0.0], keys=["first"])
        with Store.open(tmp_path / "s") as reader:

            def read() -> None:
                try:
                    while not done.is_set():
                        for block in reader.blocks(100):
                            np.testing.assert_array_equal(block.vectors[:, 0] * block.live, block.values * block.live)
                        with reader.snapshot() as snapshot:
                            rows = snapshot.in_order()
                            items = snapshot.items(rows[-20:])
                            assert [item.value for item in items] == [item.vector[0] for item in items]
                except BaseException as error:
                    problems.append(error)

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            try:
                for number in range(1, 40):
                    keys = [f"{number} {i}" for i in range(50)]
                    store.append(np.full((50, 4), number), [float(number)] * 50, keys=keys)
                    store.delete(keys[::3])
                    if number % 10 == 0:
                        store.compact()
            except SoftKVError as error:
                problems.append(error)
            done.set()
            for thread in threads:
                thread.join()
        assert problems == []
        assert store.check().ok
