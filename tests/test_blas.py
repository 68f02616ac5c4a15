"""Products of matrices by one thread, for as long as somebody wants that."""

import itertools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import softkv
from softkv.asking import lists, sampled, scan
from softkv.asking.indexed import Indexes
from softkv.maths import blas
from softkv.maths.blas import at_most, free_threads
from softkv.maths.drift import Drift

from .databases import measured_always

# Of NumPy: other libraries of the process have a BLAS of their own.
BLAS = [one for one in ThreadpoolController().lib_controllers if "numpy.libs" in one.filepath]
pytestmark = pytest.mark.skipif(not BLAS, reason="NumPy brings no OpenBLAS of its own")


def counts() -> set[int]:
    """How many threads the BLAS of NumPy has."""
    return {one.num_threads for one in BLAS}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Two, whatever the machine has; and as many afterwards."""
    get_count, set_count = blas._threads() or (int, int)
    before = get_count()
    set_count(2)
    yield
    assert counts() == {2}
    set_count(before)


def test_one_thread_inside_and_as_many_as_before_afterwards() -> None:
    """BLAS has one thread inside and as many as before afterwards, also where one is inside twice, and on an error."""
    with at_most(1):
        assert counts() == {1}
        with at_most(1):
            assert counts() == {1}
        assert counts() == {1}
    assert counts() == {2}
    with pytest.raises(ValueError, match="inside"), at_most(1):
        raise ValueError("inside")


def test_the_last_to_leave_puts_back_what_was_there() -> None:
    """Two threads that overlap, of which the first to come is the first to go."""
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with at_most(1):
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    with at_most(1):
        thread.start()
        assert entered.wait(10)
    assert counts() == {1}
    left.set()
    thread.join()
    assert counts() == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_has_as_many_threads_as_its_parent_had_outside() -> None:
    """It has none of the threads that were inside, so nobody would put anything back there."""
    read, write = os.pipe()
    with at_most(1):
        child = os.fork()
        if not child:
            with at_most(1):
                inside = counts()
            os.write(write, repr((inside, counts())).encode())
            os._exit(0)
        os.waitpid(child, 0)
    assert os.read(read, 100).decode() in ("({1}, {2})", "({1}, {1})")  # a BLAS may start a child with one
    os.close(read)
    os.close(write)


def test_the_least_that_anybody_inside_wants_counts() -> None:
    """Two overlap and want different numbers, whichever of them leaves first."""
    outer, inner = at_most(2), at_most(1)
    outer.__enter__()
    inner.__enter__()
    assert counts() == {1}
    outer.__exit__(None, None, None)
    assert counts() == {1}
    inner.__exit__(None, None, None)
    with at_most(7):
        assert counts() == {2}


@pytest.mark.parametrize(("running", "count"), [([0], 2), ([1, 1, 0], 2), ([1], 1), ([9], 1)])
def test_threads_leave_processors_to_those_that_keep_them_busy(
    running: list[int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do so while they are looked at; of two processors one is always taken."""
    clock = itertools.count(step=blas.PROBED / 10)  # of its own: on a busy machine one look may take all the time
    monkeypatch.setattr(blas, "time", SimpleNamespace(perf_counter=lambda: next(clock), sleep=lambda _: None))
    told = iter([*running, *[running[-1]] * 1000])
    monkeypatch.setattr(blas, "_running_elsewhere", lambda: next(told))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with free_threads():
        assert counts() == {count}


@pytest.mark.alone
@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="the system does not tell")
def test_who_keeps_processors_busy_is_seen() -> None:
    """There is a process for each of them."""
    script = "import time\nuntil = time.monotonic() + 60\nprint(flush=True)\nwhile time.monotonic() < until: pass"
    count = os.cpu_count() or 1
    others = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for one in others:
            assert one.stdout is not None
            one.stdout.readline()
        assert blas._busy() >= count
        with free_threads():
            assert counts() == {1}
    finally:
        for one in others:
            one.kill()
            one.communicate()


def test_rows_are_shared_among_threads_and_errors_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once, whatever their number; by one thread where there is one processor."""
    monkeypatch.setattr(blas, "_granted", lambda: blas.SHARED)
    for processors, rows in ((1, 10), (2, 7), (3, 2), (64, 100), (4, 0)):
        monkeypatch.setattr(os, "cpu_count", lambda processors=processors: processors)
        seen, threads = np.zeros(rows + 5, int), set()

        def work(start: int, stop: int, seen: Any = seen, threads: Any = threads) -> None:
            seen[start:stop] += 1
            threads.add(threading.get_ident())

        blas.shared(work, 5, 5 + rows)
        assert (seen[5:] == 1).all()
        assert not seen[:5].any()
        assert 1 <= len(threads) <= min(processors, blas.SHARED)

    def fails(start: int, stop: int) -> None:
        if stop == 10:
            raise ValueError("the last rows")

    with pytest.raises(ValueError, match="the last rows"):
        blas.shared(fails, 0, 10)


def test_work_that_is_shared_may_share_work_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all threads are at work that waits for more, what no thread has begun is done by the one that waits."""
    monkeypatch.setattr(blas, "_granted", lambda: blas.SHARED)
    monkeypatch.setattr(os, "cpu_count", lambda: blas.SHARED)
    seen = np.zeros((8, 40, 40), int)

    def fill(line: Any, number: int, start: int, stop: int) -> None:
        line[start:stop] = number

    def ask(asker: int) -> None:
        def outer(start: int, stop: int) -> None:
            for row, line in enumerate(seen[asker, start:stop], start):
                blas.shared(partial(fill, line, 1 + row), 0, 40)

        blas.shared(outer, 0, 40)

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(len(seen))]
    for one in askers:
        one.start()
    for one in askers:
        one.join(60)
        assert not one.is_alive()
    assert (seen == 1 + np.arange(40)[:, None]).all()


def test_where_there_can_be_no_more_threads_the_caller_does_all_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once, also if a thread comes by later."""
    monkeypatch.setattr(blas, "_granted", lambda: blas.SHARED)
    monkeypatch.setattr(os, "cpu_count", lambda: blas.SHARED)
    monkeypatch.setattr(blas, "_workers", None)
    seen, start = np.zeros(10, int), threading.Thread.start

    def no_more(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    def add(first: int, last: int) -> None:
        seen[first:last] += 1

    monkeypatch.setattr(threading.Thread, "start", no_more)
    blas.shared(add, 0, 10)
    assert (seen == 1).all()
    monkeypatch.setattr(threading.Thread, "start", start)
    blas.shared(add, 0, 10)
    assert blas._workers is not None
    blas._workers.shutdown(wait=True)  # after all that was left to it
    assert (seen == 2).all()
    monkeypatch.setattr(blas, "_workers", None)


@pytest.mark.parametrize("granted", [1, 3])
def test_no_more_threads_share_work_than_blas_may_use(granted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that BLAS had before counts, also while it multiplies by one thread."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    parts, get_count, set_count = list[tuple[int, int]](), *(blas._threads() or ())
    before = get_count()
    try:
        set_count(granted)
        for context in (nullcontext(), at_most(1)):
            parts.clear()
            with context:
                blas.shared(lambda start, stop: parts.append((start, stop)), 0, 30)
            assert len(parts) == granted
    finally:
        set_count(before)


def test_threads_ignore_what_their_caller_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy keeps that for each thread."""
    monkeypatch.setattr(blas, "_granted", lambda: blas.SHARED)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    large = np.full(2, 1e300)

    def square(start: int, stop: int) -> None:
        np.square(large[start:stop])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(over="ignore"):
            blas.shared(square, 0, 2)
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            blas.shared(lambda start, stop: square(start, stop) if start else None, 0, 2)


@pytest.mark.parametrize("forks", [1, 2])
def test_a_forked_child_shares_work_as_well(forks: int) -> None:
    """It has none of the threads of its parent."""
    script = f"""
import os
import numpy as np
from softkv.maths import blas
os.cpu_count = blas._granted = lambda: 4

def fill():
    seen = np.zeros(100, int)
    blas.shared(lambda start, stop: seen[start:stop].__setitem__(slice(None), 1), 0, 100)
    return bool(seen.all())

assert fill()
for _ in range({forks}):
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        os._exit(0 if status == 0 and fill() else 1)
    assert fill()
"""
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], check=True, timeout=60)


def test_lists_are_asked_and_kept_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their products are small; a scan of all items takes all threads."""
    seen: dict[str, set[int]] = {}

    def watched(module: Any, name: str) -> None:
        inner = getattr(module, name)

        def outer(*given: Any, **options: Any) -> Any:
            seen[name] = counts()
            return inner(*given, **options)

        monkeypatch.setattr(module, name, outer)

    rng = np.random.default_rng(0)
    vectors, values = rng.standard_normal((3000, 8)).astype(np.float32), rng.standard_normal((3000, 2))
    measured_always(monkeypatch)
    small = ((lists, "calibrated"), (sampled, "measured"), (Indexes, "change"), (Drift, "applied"))
    for module, name in (*small, (scan, "lookup")):
        watched(module, name)
    with softkv.open(tmp_path / "s", temperature=0.5) as db:
        db.add(vectors=vectors[:2000], values=values[:2000])
        db.build_index()
        db.add(vectors=vectors[2000:], values=values[2000:])
    with softkv.open(tmp_path / "s", "r") as db:
        db.lookup(vectors[:4], tolerance=0.05)
        db.lookup(vectors[0], tolerance=0.05, temperature=500.0)
        db.lookup(vectors[0], tolerance=0)
    assert seen == {"change": {1}, "applied": {1}, "calibrated": {1}, "measured": {1}, "lookup": {2}}
