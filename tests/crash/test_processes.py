"""One writer and many readers, in as many processes: what each may see, and what none of them may do to the others."""

import contextlib
import ctypes
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from softkv.errors import HandleForked, StoreExists, StoreLocked
from softkv.storage import Item, Snapshot, Store, check
from softkv.storage.disk import files
from softkv.storage.disk.arena import VerifiedRows
from tests.crash.children import PATIENCE, Child, Say
from tests.crash.rows import Proof

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.alone]

ACCOUNTS, DEPOSIT = 20, 100.0
LONG = 4.0  # seconds; no reader ever waits for a lock, and SQLite would give up after five
ONE = np.ones((1, 2), np.float32)


# One writer, three readers


def test_readers_see_whole_commits_while_a_writer_works(path: Path, seed: int, thorough: bool) -> None:
    """Every row proves itself, every snapshot adds up and stays as it is, and nobody waits."""
    seconds = 180 if thorough else 9
    end = time.monotonic() + seconds
    with Store.open(path, "c") as store:
        _open_accounts(store)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(Child(lambda say: _bank(path, Random(seed), end, say)))
        readers = [
            stack.enter_context(Child(lambda say, n=n: _audit(path, Random(seed + n), end, say))) for n in range(1, 4)
        ]
        (_, commits, compactions), *others = writer.all(seconds + PATIENCE)
        assert not others
        assert compactions > 5
        for reader in readers:
            [(_, audits, commits_seen, generations_seen, longest)] = reader.all()
            assert longest < LONG
            assert audits > 10
            assert commits_seen > 10
            assert generations_seen > 1
    with Store.open(path, "w") as store:
        assert store.commit >= commits
        _audit_snapshot(store.snapshot())
        report = store.check()
    assert report.ok, report
    assert not report.notes, report


def _open_accounts(store: Store) -> None:
    """Accounts whose values always add up to the same, and rows that come and go beside them."""
    accounts = [f"account {number}" for number in range(ACCOUNTS)]
    _write(store, accounts, [0] * ACCOUNTS, [DEPOSIT] * ACCOUNTS)


def _write(store: Store, names: list[str], versions: list[int], values: list[float]) -> None:
    proofs = [Proof(name, version) for name, version in zip(names, versions, strict=True)]
    store.append(
        np.array([proof.vector for proof in proofs]),
        np.array(values),
        keys=names,
        payloads=[{"version": version, "value": value} for version, value in zip(versions, values, strict=True)],
        on_conflict="replace",
    )


def _bank(path: Path, random: Random, end: float, say: Say) -> None:
    """The writer: transfers between accounts, guests that come, change and go, compactions, closing and opening."""
    store = Store.open(path, "w")
    balances, guests, version, compactions = [DEPOSIT] * ACCOUNTS, dict[str, int](), 0, 0
    while time.monotonic() < end:
        version += 1
        chance = random.random()
        if chance < 0.4:
            chosen = random.sample(range(ACCOUNTS), random.randint(2, ACCOUNTS))
            for giver, taker in itertools.pairwise(chosen):
                amount = float(random.randint(0, 9))
                balances[giver] -= amount
                balances[taker] += amount
            names = [f"account {number}" for number in chosen]
            _write(store, names, [version] * len(chosen), [balances[number] for number in chosen])
        elif chance < 0.7:
            fresh = [f"guest {random.randrange(3000)}" for _ in range(random.choice([1, 1, 10, 300]))]
            fresh = list(dict.fromkeys(fresh))
            _write(store, fresh, [version] * len(fresh), [float(version)] * len(fresh))
            guests.update(dict.fromkeys(fresh, version))
        elif chance < 0.9 and guests:
            leaving = random.sample(sorted(guests), random.randint(1, min(len(guests), 200)))
            store.delete(leaving)
            for name in leaving:
                del guests[name]
        elif chance < 0.97:
            store.compact()
            compactions += 1
        else:
            store.close()
            store = Store.open(path, "w")
    commits = store.commit
    store.close()
    say("done", commits, compactions)


def _audit(path: Path, random: Random, end: float, say: Say) -> None:
    """A reader: snapshots that are looked at twice, with commits in between."""
    longest, audits, newest, generations = 0.0, 0, 0, set()
    commits = set()

    def timed(call: Any) -> Any:
        nonlocal longest
        start = time.monotonic()
        result = call()
        longest = max(longest, time.monotonic() - start)
        return result

    store = timed(lambda: Store.open(path, "r"))
    while time.monotonic() < end:
        with timed(store.snapshot) as snapshot:
            assert snapshot.commit >= newest, f"commit {snapshot.commit} after {newest}"
            before = timed(lambda: _audit_snapshot(snapshot))
            newest = timed(lambda store=store: store.commit)
            assert newest >= snapshot.commit
            while newest == snapshot.commit and time.monotonic() < end:
                newest = timed(lambda store=store: store.commit)
            after = timed(lambda: _audit_snapshot(snapshot))
            assert before == after
            generations.add(snapshot._generation.directory if snapshot._generation else "")
            commits.add(snapshot.commit)
        audits += 1
        guest = f"guest {random.randrange(3000)}"
        if (found := timed(partial(_found, store, guest))) is not None:
            _audit_item(found)
        if random.random() < 0.05:
            store.close()
            store = timed(lambda: Store.open(path, "r"))
    store.close()
    say("done", audits, len(commits), len(generations), longest)


def _found(store: Store, key: str) -> Item | None:
    with store.snapshot() as snapshot:
        return snapshot.get(key) if key in snapshot else None


def _audit_snapshot(snapshot: Snapshot) -> list[str]:
    """Look at everything; what is returned is the same whenever the same snapshot is looked at."""
    items = snapshot.items(snapshot.in_order())
    for item in items:
        _audit_item(item)
    accounts = [item for item in items if item.name.startswith("account")]
    assert len(accounts) == ACCOUNTS
    assert sum(float(item.value) for item in accounts) == ACCOUNTS * DEPOSIT  # type: ignore[arg-type]
    assert len(items) == len(snapshot) == int(snapshot.live.sum())
    assert [item.name for item in items] == list(snapshot.keys())
    live = np.concatenate([block.values[block.live] for block in snapshot.blocks(256)])
    assert sorted(live.tolist()) == sorted(item.value for item in items)
    return [f"{item.name} {item.payload} {item.row}" for item in items]


def _audit_item(item: Item) -> None:
    assert item.payload["value"] == item.value
    assert np.array_equal(item.vector, Proof(item.name, item.payload["version"]).vector), item


# Threads of one process


@pytest.mark.parametrize("mode", ["r", "w"])
def test_threads_share_a_handle(path: Path, mode: str, seed: int, thorough: bool) -> None:
    """Threads read through one handle while commits arrive, and each sees rows that prove themselves."""
    end = time.monotonic() + (30 if thorough else 3)
    writer = Store.open(path, "c")
    _open_accounts(writer)
    shared = writer if mode == "w" else Store.open(path, "r")
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while time.monotonic() < end and not failures:
                with shared.snapshot() as snapshot:
                    _audit_snapshot(snapshot)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    random, version = Random(seed), 0
    while time.monotonic() < end and not failures:
        version += 1
        names = [f"guest {random.randrange(200)}" for _ in range(random.choice([1, 5, 50]))]
        names = list(dict.fromkeys(names))
        _write(writer, names, [version] * len(names), [float(version)] * len(names))
        if random.random() < 0.05:
            writer.compact()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    shared.close()
    writer.close()
    assert check(path).ok


# One writer


def test_a_second_writer_is_refused_at_once_with_the_pid_of_the_first(path: Path) -> None:
    """StoreLocked comes immediately, and names the process that holds the lock."""
    with Child(lambda say: _hold(path, say)) as holder:
        assert holder.hear() == ["open"]
        for mode in ("w", "c", "n"):
            start = time.monotonic()
            with pytest.raises(StoreLocked) as caught:
                Store.open(path, mode)
            assert time.monotonic() - start < 1
            assert caught.value.pid == holder.pid
        with Store.open(path, "r") as reader:
            assert len(reader) == 1


def test_of_processes_that_create_a_store_at_once_one_wins(path: Path) -> None:
    """The others are told who did, and the store is whole."""
    for attempt in range(10):
        target = path.with_name(f"{attempt}.softkv")
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(Child(partial(_try_to_create, target))) for _ in range(3)]
            outcomes = {child.pid: child.hear() for child in children}
            winners = [pid for pid, outcome in outcomes.items() if outcome == ["open"]]
            assert len(winners) == 1, outcomes
            assert all(outcome == ["locked", winners[0]] for pid, outcome in outcomes.items() if pid not in winners)
        assert check(target).ok
        assert sorted(os.listdir(path.parent)) == [f"{number}.softkv" for number in range(attempt + 1)]


def _try_to_create(path: Path, say: Say) -> None:
    try:
        store = Store.open(path, "c")
    except StoreLocked as error:
        say("locked", error.pid)
    else:
        say("open")
        signal.pause()
        store.close()


def _hold(path: Path, say: Say) -> None:
    """A writer that has written one item and then waits."""
    store = Store.open(path, "c")
    if not len(store):
        store.append(ONE, [1.0], keys=["first"])
    say("open")
    signal.pause()
    store.close()


def test_the_lock_of_a_killed_writer_is_free_at_once(path: Path) -> None:
    """No stale lock has to be removed or waited for."""
    for _ in range(5):
        with Child(lambda say: _hold(path, say)) as holder:
            assert holder.hear() == ["open"]
            holder.kill()
            with Store.open(path, "w") as store:
                assert len(store) == 1


def test_a_stopped_writer_keeps_its_lock_and_nobody_waits_for_it(path: Path, seed: int) -> None:
    """A writer that sleeps, wherever it is, is not dead: nobody takes over, readers go on, it goes on when it wakes."""
    random = Random(seed)
    with Child(partial(_add, path)) as writer:
        for _ in range(15):
            writer.hear()
            _spin(random.random() * 0.005)
            writer.signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(writer.pid, os.WUNTRACED)[1])
            with pytest.raises(StoreLocked) as caught:
                Store.open(path, "w")
            assert caught.value.pid == writer.pid
            with Child(partial(_count, path)) as reader:
                assert reader.hear(patience=20) is not None
            writer.signal(signal.SIGCONT)
        assert list(writer.all())[-1] == ["added", 99]
    with Store.open(path, "r") as store:
        assert len(store) == 100
    assert check(path).ok


def _add(path: Path, say: Say) -> None:
    store = Store.open(path, "c")
    for number in range(100):
        store.append(ONE, [1.0], keys=[f"item {number}"])
        say("added", number)
    store.close()


def _count(path: Path, say: Say) -> None:
    with Store.open(path, "r") as store, store.snapshot() as snapshot:
        say(len(snapshot), len(list(snapshot.keys())))


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


# Forks


def test_a_forked_child_is_refused(path: Path) -> None:
    """Writer, reader and what a snapshot asks of the catalog say HandleForked in a child, and nothing else."""
    writer = Store.open(path, "c")
    writer.append(ONE, [1.0], keys=["first"], payloads=[{"a": 1}])
    reader = Store.open(path, "r")
    with writer.snapshot() as written, reader.snapshot() as read:
        calls = {
            "append": lambda: writer.append(ONE, [1.0]),
            "delete": lambda: writer.delete("first"),
            "compact": writer.compact,
            "configure": lambda: writer.configure({}),
            "len": lambda: len(writer),
            "get": lambda: reader.get("first"),
            "contains": lambda: "first" in reader,
            "snapshot": reader.snapshot,
            "check": reader.check,
            "written get": lambda: written.get("first"),
            "read get": lambda: read.get("first"),
            "read order": read.in_order,
            "read keys": lambda: list(read.keys()),
            "read many": lambda: read.find_many(["first"]),
        }

        def use(say: Say) -> None:
            for name, call in calls.items():
                try:
                    say(name, f"worked: {call()}")
                except HandleForked:
                    say(name, "refused")
            written.close()
            read.close()
            writer.close()
            reader.close()

        with Child(use) as child:
            assert list(child.all()) == [[name, "refused"] for name in calls]
        _parent_is_unharmed(path, writer, reader)


def _parent_is_unharmed(path: Path, writer: Store, reader: Store) -> None:
    """After a child came and went: still locked, still logged, and writing works."""
    assert (path / "catalog.sqlite-wal").exists()
    with Child(lambda say: _try_to_create(path, say)) as other:
        assert other.hear() == ["locked", os.getpid()]
    number = len(writer)
    writer.append(ONE, [2.0], keys=["after the fork"])
    assert len(reader) == len(writer) == number + 1
    reader.close()
    writer.close()
    with Store.open(path, "w") as store:
        assert len(store) == number + 1
        report = store.check()
    assert report.ok, report


@pytest.mark.parametrize("moment", ["idle", "writing"])
def test_a_forked_child_is_refused_at_once_whatever_other_threads_of_its_parent_did(path: Path, moment: str) -> None:
    """No lock that a thread of the parent held at the fork keeps the child waiting, even at its end."""
    writer = Store.open(path, "c")
    writer.append(ONE, [1.0], keys=["first"])
    reader = Store.open(path, "r")
    snapshot = writer.snapshot()
    stop = threading.Event()

    def keep_writing() -> None:
        while not stop.is_set():
            writer.append(ONE, [1.0], keys=["again"], on_conflict="replace")
            assert len(reader) == 2

    thread = threading.Thread(target=keep_writing)
    if moment == "writing":
        thread.start()

    def use(say: Say) -> None:
        signal.alarm(20)  # a child that waits for ever dies of it, and says nothing
        for call in (lambda: len(writer), lambda: len(reader), lambda: snapshot.get("first")):
            with contextlib.suppress(HandleForked):
                call()
                say("worked")
        snapshot.close()
        writer.close()
        reader.close()
        say("refused")

    try:
        for _ in range(20):
            with Child(use) as child:
                assert list(child.all()) == [["refused"]]
    finally:
        stop.set()
        if moment == "writing":
            thread.join()
    snapshot.close()
    _parent_is_unharmed(path, writer, reader)


_FORKING = """
import os, sys, threading
import numpy as np
from softkv.errors import HandleForked
from softkv.storage import Store
path, way, order = sys.argv[1:]
one = np.ones((1, 2), np.float32)
store = Store.open(path, "w")
reader = Store.open(path, "r")
store.append(one, [1.0], keys=["before"])
snapshot = store.snapshot()
before = os.stat(path + "/catalog.sqlite-wal")
if order == "in a transaction":
    context = store._catalog.connection.writing()
    context.__enter__()
    store._catalog.connection.run("UPDATE state SET settings = 'torn'")
child = os.fork()
if not child:
    if way == "exit":
        sys.exit(7)  # through the whole end of the interpreter
    if way == "collect":
        import gc
        del store, reader, snapshot
        gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
if order == "in a transaction":
    store._catalog.connection.run("ROLLBACK")
after = os.stat(path + "/catalog.sqlite-wal")
assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size), (before, after)
assert os.path.exists(path + "/catalog.sqlite-shm")
for number in range(20):
    store.append(one, [1.0], keys=[f"after {number}"])
assert len(reader) == len(store) == 22
print(os.getpid(), flush=True)
sys.stdin.readline()
reader.close()
store.close()
"""


@pytest.mark.parametrize("order", ["at rest", "in a transaction"])
@pytest.mark.parametrize("way", ["exit", "_exit", "collect"])
def test_the_end_of_a_forked_child_does_nothing_to_the_store(path: Path, way: str, order: str) -> None:
    """However it ends, it neither unlocks, nor checkpoints, nor removes the log, nor harms what its parent writes."""
    with Store.open(path, "c") as store:
        store.append(ONE, [1.0], keys=["first"])
    script = [sys.executable, "-W", "error", "-c", _FORKING, str(path), way, order]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = parent.stdout.readline()
        assert pid, "the script failed; its traceback is above"
        with pytest.raises(StoreLocked) as caught:
            Store.open(path, "w")
        assert caught.value.pid == int(pid)
        parent.communicate("\n", timeout=60)
    assert parent.returncode == 0
    with Store.open(path, "w") as store:
        assert len(store) == 22
        assert store.check().ok


def test_a_dead_parent_leaves_no_lock_with_its_forked_child(path: Path) -> None:
    """The child lives on with nothing in its hands: a new writer opens at once."""

    def parent(say: Say) -> None:
        store = Store.open(path, "c")
        store.append(ONE, [1.0], keys=["first"])
        if not os.fork():
            say("child", os.getpid())
            signal.pause()
        signal.pause()

    with Child(parent) as dying:
        said = dying.hear()
        assert said is not None
        dying.kill()
        try:
            with Store.open(path, "w") as store:
                assert len(store) == 1
                store.append(ONE, [1.0])
        finally:
            os.kill(said[1], signal.SIGKILL)
    assert check(path).ok


def test_a_closed_store_is_free_though_a_copy_of_the_process_lives_on(path: Path) -> None:
    """Some programs fork without telling Python. Closing gives up the lock itself, not only this handle on it."""
    store = Store.open(path, "c")
    reading, writing = os.pipe()
    copy = ctypes.CDLL(None).fork()
    if not copy:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        store.close()
        Store.open(path, "w").close()
    finally:
        os.close(writing)
        os.waitpid(copy, 0)


def test_a_forked_child_that_outlives_its_parent_leaves_the_log_alone(path: Path) -> None:
    """The last that has the catalog open, once its parent is dead, a child still does not touch it."""
    with subprocess.Popen(
        [sys.executable, "-c", _ORPHAN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == b"forked\n"
        parent.kill()
        parent.wait()
        log = os.stat(path / "catalog.sqlite-wal")
        parent.stdin.close()  # now the child goes, through the whole end of the interpreter
        assert parent.stdout.read() == b"going\n"  # to the end of the pipe, which is the end of the child
    assert (path / "catalog.sqlite-wal").exists()
    assert os.stat(path / "catalog.sqlite-wal").st_ino == log.st_ino
    with Store.open(path, "w") as store:
        assert len(store) == 1


_ORPHAN = """
import os, sys
import numpy as np
from softkv.storage import Store
store = Store.open(sys.argv[1], "c")
store.append(np.ones((1, 2), np.float32), [1.0], keys=["first"])
if os.fork():
    sys.stdin.readline()
else:
    print("forked", flush=True)
    sys.stdin.readline()
    print("going", flush=True)
"""


# Races, made to happen


def test_a_reader_that_is_late_for_a_generation_takes_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening PIN and locking it, the generation may be compacted away."""
    writer = Store.open(path, "c")
    writer.append(np.ones((3, 2), np.float32), np.ones(3), keys=["a", "b", "c"])
    writer.delete("b")
    flock, late = fcntl.flock, []

    def lock(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH and not late:
            late.append(descriptor)
            writer.compact()
            writer.append(ONE, [1.0], keys=["d"])  # the first write that finds the old generation unread
            assert not (path / "generation-000001").exists()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    with Store.open(path, "r") as reader:
        assert late
        assert list(reader.keys()) == ["a", "c", "d"]
    writer.close()
    assert check(path).ok


def test_a_block_stays_readable_while_another_thread_sees_newer_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between mapping rows and comparing them with their checksums, the handle may have moved on."""
    writer = Store.open(path, "c")
    writer.append(ONE, [1.0])
    reader = Store.open(path, "r")
    verify = VerifiedRows._verify
    moved: list[int] = []

    def move_on(rows: VerifiedRows, *arguments: Any) -> None:
        if rows.arena is reader._committed.generation.arenas[0] and not moved:  # type: ignore[union-attr]
            writer.append(ONE, [2.0])
            moved.append(reader.commit)
        verify(rows, *arguments)

    with reader.snapshot() as snapshot:
        monkeypatch.setattr(VerifiedRows, "_verify", move_on)
        assert snapshot.vectors([0]).tolist() == [[1.0, 1.0]]
    assert moved
    reader.close()
    writer.close()


def test_erasing_a_store_leaves_alone_what_is_made_in_its_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between moving the old store away and finishing with it, another process may make a new one there."""
    Store.open(path, "c").close()
    sync, others = files.sync_directory, list[Store]()

    def meanwhile(directory: str) -> None:
        sync(directory)
        if not path.exists() and not others:
            monkeypatch.setattr(files, "sync_directory", sync)
            others.append(Store.open(path, "c"))
            others[0].append(ONE, [1.0], keys=["first"])

    monkeypatch.setattr(files, "sync_directory", meanwhile)
    with pytest.raises(StoreExists):
        Store.open(path, "n")
    assert (path / "catalog.sqlite-wal").exists()
    with Store.open(path, "r") as reader:
        assert list(reader.keys()) == ["first"]
    others[0].close()
    assert check(path).ok


def test_a_reader_of_an_erased_store_leaves_alone_what_is_made_in_its_place(path: Path) -> None:
    """It keeps what it has read, and takes nothing away when it goes."""
    with Store.open(path, "c") as store:
        store.append(ONE, [1.0], keys=["old"])
    reader = Store.open(path, "r")
    new = Store.open(path, "n")
    new.append(ONE, [2.0], keys=["new"])
    assert list(reader.keys()) == ["old"]
    reader.close()
    assert (path / "catalog.sqlite-wal").exists()
    with Store.open(path, "r") as other:
        assert list(other.keys()) == ["new"]
    new.close()
    assert check(path).ok


# What is opened


_LISTENING = """
import os, sys
opened = []
def listen(event, arguments):
    if event == "open" and "catalog.sqlite" in os.fsdecode(arguments[0] if not isinstance(arguments[0], int) else ""):
        opened.append(arguments)
sys.addaudithook(listen)
import numpy as np
from softkv.storage import Store, check
from softkv.storage import repair
path = sys.argv[1]
one = np.ones((1, 2), np.float32)
for mode in ("c", "w", "n"):
    with Store.open(path, mode) as store, Store.open(path, "r") as reader:
        for number in range(5):
            store.append(one, [1.0], keys=[f"{mode} {number}"], payloads=[{"a": 1}])
        store.delete("%s 3" % mode)
        with reader.snapshot() as snapshot:
            store.compact()
            assert len(list(snapshot.keys())) == 4 + 4 * (mode == "w"), list(snapshot.keys())
        assert store.check().ok
assert check(path).ok
assert repair(path, path + ".new").lost == 0
os.chmod(path, 0o555)
Store.open(path, "r").close()
os.chmod(path, 0o755)
assert not opened, opened
open(path + "/catalog.sqlite").close()
assert opened, "the hook hears nothing"
"""


def test_only_sqlite_opens_the_catalog(path: Path) -> None:
    """Closing any other descriptor on it would drop SQLite's locks."""
    subprocess.run([sys.executable, "-c", _LISTENING, str(path)], check=True, timeout=60)
