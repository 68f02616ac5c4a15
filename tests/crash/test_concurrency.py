"""One writer and three readers, as users open them: what is read is one commit, whole, and the newest.

The writer adds, replaces, deletes, compacts and builds indexes; it is left alone, or stopped, or killed and replaced.
What each commit must hold stands in a ledger that all processes share.
"""

import contextlib
import math
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

import softkv
from softkv.errors import StoreLocked
from softkv.storage import check
from tests.crash.auditors import Tally, read
from tests.crash.bank import COLUMNS, Bank, audit
from tests.crash.children import PATIENCE, Child, Say
from tests.crash.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.alone, pytest.mark.usefixtures("small")]

READERS = 3
LONGEST = 5.0  # seconds that no call of a reader may take, on a busy machine
COMPACTION, BUILD = 2.0, 4.0  # seconds between two
OVERTAKING = 0.0005  # of the steps at which a compaction need not wait for an index to be built
UNTOLD = 8  # messages of a writer before something happens to it, at most


def test_readers_see_the_newest_commit_whole_whatever_a_writer_does(path: Path, seed: int, thorough: bool) -> None:
    """Every item proves itself, every commit adds up, every lookup keeps its error, and nobody waits."""
    seconds = 400 if thorough else 45
    ledger, end = _founded(path, seed), time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(Child(lambda say: _write(path, ledger, Random(seed), end, say)))
        readers = _readers(stack, path, ledger, seed)
        told = [message for message in writer.all(seconds + PATIENCE) if message[0] == "done"]
        tally = _heard(readers, ledger)
    [(_, commits, compactions, builds, overtaken)] = told
    print(f"\n{commits} commits, {compactions} compactions, {builds} indexes built, {overtaken} overtaken; {tally}")
    _require_whole(path, ledger)
    _require_work(tally, seconds)
    assert commits > seconds / 5
    assert compactions > seconds / 100
    assert builds > 0


def test_readers_go_on_while_writers_are_stopped_and_killed_and_replaced(path: Path, seed: int, thorough: bool) -> None:
    """Nothing acknowledged is lost, no reader waits for a writer that sleeps, and the next writer opens at once."""
    seconds = 200 if thorough else 25
    ledger, end, random = _founded(path, seed), time.monotonic() + seconds, Random(seed)
    kills, stops, longest, commits = 0, 0, 0.0, 0
    with contextlib.ExitStack() as stack:
        readers = _readers(stack, path, ledger, seed)
        while time.monotonic() < end:
            started = time.monotonic()
            with Child(partial(_write, path, ledger, Random(f"{seed} {kills}"), math.inf, pace=0.1)) as writer:
                assert writer.hear() == ["open"]
                longest = max(longest, time.monotonic() - started)
                for _ in range(random.randrange(3)):
                    _let_work(writer, random)
                    stops += _stopped(path, writer, ledger, readers)
                _let_work(writer, random)
                writer.kill()
                kills, commits = kills + 1, max(commits, ledger.announced)
        tally = _heard(readers, ledger)
    print(f"\n{commits} commits, {kills} writers killed, {stops} stopped; the next there within {longest:.2f} s")
    print(tally)
    _require_whole(path, ledger)
    _require_work(tally, seconds)
    assert kills > seconds / 30
    assert stops > seconds / 30
    assert longest < LONGEST


def _founded(path: Path, seed: int) -> Ledger:
    ledger = Ledger()
    with Child(partial(_found, path, ledger, sorted(COLUMNS)[seed % len(COLUMNS)])) as founder:
        assert founder.hear() is None
    return ledger


def _found(path: Path, ledger: Ledger, kind: str, say: Say) -> None:
    _one_thread()
    Bank.found(path, ledger, kind)


def _one_thread() -> None:
    """In a child: the threads of the parent's FAISS did not survive the fork, and would be waited for."""
    import faiss

    faiss.omp_set_num_threads(1)


def _write(path: Path, ledger: Ledger, random: Random, end: float, say: Say, *, pace: float = 1.0) -> None:
    """A writer with upkeep at its hours; says so when it is there and from time to time, and counts at the end."""
    _one_thread()
    bank = Bank(path, ledger, random)
    say("open")
    compaction = build = time.monotonic()
    while (now := time.monotonic()) < end:
        if bank.building:
            build = now
        if now - compaction > pace * COMPACTION and (not bank.building or random.random() < OVERTAKING):
            bank.compact()
            compaction = time.monotonic()
        elif now - build > pace * BUILD and not bank.building:
            bank.build()
            build = time.monotonic()
        elif random.random() < 0.002 and end < math.inf:  # who is to be stopped must be the writer at any moment
            bank.reopen()
        else:
            bank.step()
        if random.random() < 0.1:
            say("working")
    bank.close()
    say("done", bank.commits, bank.compactions, bank.builds, bank.overtaken)


def _readers(stack: contextlib.ExitStack, path: Path, ledger: Ledger, seed: int) -> list[Child]:
    works = [partial(read, path, ledger, number, Random(f"{seed} {number}")) for number in range(READERS)]
    return [stack.enter_context(Child(work)) for work in works]


def _heard(readers: list[Child], ledger: Ledger) -> Tally:
    """What all readers did together, until now."""
    ledger.end()
    tally = Tally()
    for reader in readers:
        [(_, found)] = reader.all(2 * PATIENCE)
        tally += Tally(**found)
    return tally


def _require_work(tally: Tally, seconds: float) -> None:
    """It was done, and enough of it, also on a busy machine."""
    assert tally.longest < LONGEST
    assert tally.audits > seconds / 5
    assert tally.again > seconds / 50
    assert len(tally.commits) > seconds / 10
    assert len(tally.generations) > seconds / 100
    assert tally.calibrated > 0
    assert tally.bound > 0
    assert tally.within >= 0.9 * tally.calibrated


def _require_whole(path: Path, ledger: Ledger) -> None:
    """At the end the store holds what it must, and nothing is wrong with it."""
    with softkv.open(path, "w") as db, db.snapshot() as view:
        assert view.commit >= ledger.announced
        assert audit(list(view.select())).entry == ledger.entry(view.commit)
    report = check(path)
    assert report.ok, report
    assert not report.notes, report


def _let_work(writer: Child, random: Random) -> None:
    """For some of its steps, and then for a part of one."""
    for _ in range(random.randrange(UNTOLD)):
        assert writer.hear() is not None
    end = time.perf_counter() + random.random() * 0.02
    while time.perf_counter() < end:
        pass


def _stopped(path: Path, writer: Child, ledger: Ledger, readers: list[Child]) -> int:
    """Stop it wherever it is: it is still the writer, and all readers go on. Then let it go on, too."""
    writer.signal(signal.SIGSTOP)
    if os.WIFEXITED(os.waitpid(writer.pid, os.WUNTRACED)[1]):
        raise AssertionError(f"the writer ended: {writer.hear()}")
    with pytest.raises(StoreLocked) as caught:
        softkv.open(path, "w")
    assert caught.value.pid == writer.pid
    before = [ledger.turns(number) for number in range(len(readers))]
    started, pause = time.monotonic(), threading.Event()
    while any(ledger.turns(number) < turns + 2 for number, turns in enumerate(before)):
        assert not [reader.hear() for reader in readers if reader.speaks()]  # it has failed, and that is raised here
        assert time.monotonic() - started < PATIENCE, "a reader waits for a writer that is stopped"
        pause.wait(0.005)
    writer.signal(signal.SIGCONT)
    return 1
