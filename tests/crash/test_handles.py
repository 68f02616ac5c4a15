"""Handles that threads share while the store is compacted, indexed and closed, and handles that come and go.

Each runs in a process of its own, so that one that dies of it fails the test instead of ending it.
"""

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import softkv
from softkv.errors import HandleClosed
from softkv.storage import Store, check
from tests.crash.auditors import Auditor, Tally
from tests.crash.bank import COLUMNS, WIDTH, Bank
from tests.crash.children import PATIENCE, Child, Say
from tests.crash.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.usefixtures("small")]

THREADS = 3


def test_threads_read_through_a_handle_that_writes_compacts_builds_and_is_closed(
    path: Path, seed: int, thorough: bool
) -> None:
    """Every read is whole and new; when the handle is closed under them, each thread is told so by name."""
    with Child(partial(_share, path, seed, 60.0 if thorough else 8.0)) as child:
        [(_, closings, commits, compactions, builds, ends, found)] = child.all(4 * PATIENCE)
    tally = Tally(**found)
    print(f"\n{closings} times closed under load, {commits} commits, {compactions} compactions, {builds} indexes")
    print(tally)
    assert check(path).ok
    assert ends == {"HandleClosed": closings * (THREADS + 2)}
    assert closings > 0
    assert commits > 5
    assert compactions > 0
    assert tally.audits > 2


def _share(path: Path, seed: int, seconds: float, say: Say) -> None:
    """Lives of a handle, one after the other, each with threads that use it until it is closed."""
    import faiss

    faiss.omp_set_num_threads(1)
    random, ledger, tally, ends = Random(seed), Ledger(), Tally(), Counter[str]()
    Bank.found(path, ledger, sorted(COLUMNS)[seed % len(COLUMNS)])
    end, closings, done = time.monotonic() + seconds, 0, [0, 0, 0]
    while time.monotonic() < end:
        bank, lone = Bank(path, ledger, random), [Tally() for _ in range(THREADS)]
        jobs = [partial(_again, bank.step), partial(_again, partial(_look_after, bank))]
        jobs += [partial(_again, Auditor(bank.db, ledger, Random(random.random()), one).turn) for one in lone]
        threads = [threading.Thread(target=partial(_until_closed, job, ends)) for job in jobs]
        for thread in threads:
            thread.start()
        threading.Event().wait(random.random() * seconds / 4)
        bank.db.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread waits for ever"
        closings += 1
        done = [sum(two) for two in zip(done, (bank.commits, bank.compactions, bank.builds), strict=True)]
        tally = sum(lone, tally)
    gc.collect()
    say("done", closings, *done, dict(ends), asdict(tally))


def _until_closed(job: Callable[[], Any], ends: Counter[str]) -> None:
    try:
        job()
    except BaseException as error:
        if not isinstance(error, HandleClosed):
            import traceback

            traceback.print_exc()
        ends[type(error).__name__] += 1


def _again(step: Callable[[], Any]) -> None:
    while True:
        step()


def _look_after(bank: Bank) -> None:
    bank.compact()
    bank.db.build_index()
    bank.builds += 1


def test_a_store_that_is_closed_in_the_middle_of_calls_says_so_and_nothing_else(
    path: Path, seed: int, thorough: bool
) -> None:
    """Other threads may be in the middle of anything: no error of a driver, no damage that is none."""
    with Child(partial(_close_often, path, seed, 30.0 if thorough else 4.0)) as child:
        [(_, closings, calls, ends)] = child.all(4 * PATIENCE)
    print(f"\n{closings} times closed, {calls} calls before; ends: {ends}")
    assert set(ends) == {"HandleClosed"}
    assert closings > 2
    assert check(path).ok


def _close_often(path: Path, seed: int, seconds: float, say: Say) -> None:
    random, ends, closings, calls = Random(seed), Counter[str](), 0, [0]
    with Store.open(path, "c") as store:
        store.append([[1.0, 2.0]] * 300, [1.0] * 300, keys=[str(number) for number in range(300)])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        store = Store.open(path, random.choice("rw"))
        jobs = [partial(_again, partial(_call, store, one, calls)) for one in range(len(_calls(store)))]
        threads = [threading.Thread(target=partial(_until_closed, job, ends)) for job in jobs]
        for thread in threads:
            thread.start()
        threading.Event().wait(random.random() * 0.03)
        store.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread waits for ever"
        closings += 1
    say("done", closings, calls[0], dict(ends))


def _calls(store: Store) -> list[Callable[[], Any]]:
    def kept() -> None:
        with store.snapshot() as snapshot:
            assert len(list(snapshot.keys())) == 300
            assert snapshot.vectors([0, 299]).tolist() == [[1.0, 2.0]] * 2

    return [
        lambda: store.get("17"),
        lambda: store.find_many(["0", "299"]),
        lambda: [block.vectors.sum() for block in store.blocks(100)],
        kept,
    ]


def _call(store: Store, number: int, calls: list[int]) -> None:
    _calls(store)[number]()
    calls[0] += 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors and maps are counted in /proc")
def test_handles_that_come_and_go_leave_nothing_behind(path: Path, seed: int, thorough: bool) -> None:
    """Thousands of readers, with snapshots, lookups and errors, while a writer works."""
    ledger, opened = Ledger(), 10_000 if thorough else 400
    with Child(partial(_found, path, seed, ledger)) as founder:
        assert founder.hear() is None
    with (
        Child(partial(_work_on, path, seed, ledger)) as writer,
        Child(partial(_come_and_go, path, seed, opened)) as child,
    ):
        assert writer.hear() == ["open"]
        [(_, before, after)] = child.all(8 * PATIENCE)
    print(f"\n{opened} handles came and went; descriptors, maps and threads: {before} before, {after} after")
    assert after == before
    assert check(path).ok


def _found(path: Path, seed: int, ledger: Ledger, say: Say) -> None:
    import faiss

    faiss.omp_set_num_threads(1)
    Bank.found(path, ledger, sorted(COLUMNS)[seed % len(COLUMNS)])


def _work_on(path: Path, seed: int, ledger: Ledger, say: Say) -> None:
    bank = Bank(path, ledger, Random(seed))
    say("open")
    while True:
        bank.step()
        if bank.random.random() < 0.02:
            bank.compact()
        threading.Event().wait(0.01)  # leave some of the processor to the others


def _come_and_go(path: Path, seed: int, opened: int, say: Say) -> None:
    random = Random(seed)
    for _ in range(20):
        _use(path, random)
    gc.collect()
    before = _held_open(path)
    for _ in range(opened):
        _use(path, random)
    gc.collect()
    say("done", before, _held_open(path))


def _use(path: Path, random: Random) -> None:
    """Open, read a little or not at all, and close, or just let go."""
    db = softkv.open(path, "r")
    what = random.randrange(6)
    if what == 0:
        assert db.lookup([1.0] * WIDTH).scored
    elif what == 1:
        with db.snapshot() as view:
            assert len(view) == len(list(view))
    elif what == 2:
        view = db.snapshot()
        assert view["account 0"] is not None
    elif what == 3:
        with pytest.raises(softkv.errors.KeyMissing):
            db["nobody"]
    if random.random() < 0.9:
        db.close()


def _held_open(path: Path) -> list[int]:
    """How many descriptors this process has, maps of files of the store, and threads."""
    descriptors = len(os.listdir("/proc/self/fd"))
    with open("/proc/self/maps") as file:
        maps = sum(os.fspath(path) in line for line in file)
    return [descriptors, maps, threading.active_count()]
