"""Which threads multiply matrices: those of BLAS where they help, or our own.

BLAS splits all but tiny products among its threads, and waits for them. Where another process keeps their processors
busy, a product of a third of a millisecond takes four to eight: an index that reads little and multiplies small
matrices is then no faster than a scan. Work that is large enough to be worth the wait uses the processors that are
free. Rows that are computed independently are split among threads that wait for each other only once.

Does not decide what is large (asking/, database/).
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from numpy.linalg import _umath_linalg

SHARED = 4  # the most threads that rows are split among
PROBED = 0.02  # seconds: a few turns of the scheduler


def shared(work: Callable[[int, int], None], start: int, stop: int) -> None:
    """Do work on the rows from `start` to `stop`, split among as many threads as there are processors, at most four.

    There are no more of them than BLAS may use, which is how processes are told to leave processors to others. Errors
    of numbers that the caller ignores are ignored by all of them.
    """
    count = min(SHARED, os.cpu_count() or 1, _granted(), stop - start)
    if count < 2:
        return work(start, stop)
    ends, ignored = [start + (stop - start) * number // count for number in range(count + 1)], np.geterr()

    def part(first: int, last: int) -> None:
        with np.errstate(**ignored):
            work(first, last)

    others = [(Future[None](), some) for some in pairwise(ends[1:])]
    for one, some in others:
        _begin(partial(_run, one, partial(part, *some)))
    try:
        part(*ends[:2])
    finally:
        # What no thread has begun is done here: all may be at work that waits for other work of this kind.
        begun = {one for one, _ in others if not one.cancel()}
        wait(begun)
    for one, some in others:
        if one in begun:
            one.result()
        else:
            part(*some)
    return None


def _begin(work: Callable[[], None]) -> None:
    """Have work done by a thread as soon as one is free; never, where there can be no more threads."""
    global _workers
    with suppress(RuntimeError):
        if _workers is None:
            _workers = ThreadPoolExecutor(SHARED - 1, "softkv-rows")
        _workers.submit(work)


def _run(told: Future[None], work: Callable[[], None]) -> None:
    """Do work, unless it was cancelled, and tell how it ended."""
    if not told.set_running_or_notify_cancel():
        return
    try:
        work()
    except BaseException as error:
        told.set_exception(error)
    else:
        told.set_result(None)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Multiply matrices with at most this many threads; when the last such block ends, the old number is set again.

    >>> with at_most(1):
    ...     pass
    """
    # Holding a lock for the whole block would be simpler, but concurrent blocks would wait for each other.
    with _turn:
        _wanted.append(count)
        _set_least()
    try:
        yield
    finally:
        with _turn:
            _wanted.remove(count)
            _set_least()


@contextmanager
def free_threads() -> Iterator[None]:
    """Multiply matrices with as many threads as processors are idle when the block begins."""
    with at_most(max(1, (os.cpu_count() or 1) - _busy())):
        yield


_workers: ThreadPoolExecutor | None = None  # kept, since to start a thread takes as long as much of the work
_turn = threading.Lock()
_wanted = list[int]()  # the limits of the open blocks
_before = 0  # threads, before any block was open


def _set_least() -> None:
    """Set the smallest limit of the open blocks, or the number from before them."""
    global _before
    threads = _threads()
    if threads is None:
        return
    get_count, set_count = threads
    if len(_wanted) == 1 and not _before:
        _before = get_count()
    set_count(min([_before, *_wanted]))
    _before = _before if _wanted else 0


def _granted() -> int:
    """How many threads BLAS uses while no block is open."""
    threads = _threads()
    return SHARED if threads is None else _before or threads[0]()


def _left_behind() -> None:
    """Reset the state in a forked child, which has none of the threads that had open blocks."""
    global _turn, _workers
    _turn, _workers = threading.Lock(), None
    if _wanted:
        _wanted.clear()
        _set_least()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left_behind)


@cache
def _threads() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The functions that get and set the thread count of NumPy's OpenBLAS; None where NumPy uses another BLAS."""
    # Not by threadpoolctl: from 3.8 on, only the first thread that sets a number has any effect while it lives.
    try:
        numpy = ctypes.CDLL(_umath_linalg.__file__)
    except OSError:
        return None
    for start, end in product(("scipy_", ""), ("64_", "_64", "")):  # as wheels, conda and distributions name them
        names = [f"{start}openblas_{what}_num_threads{end}" for what in ("get", "set")]
        if all(hasattr(numpy, name) for name in names):
            get_count, set_count = (getattr(numpy, name) for name in names)
            return get_count, set_count
    return None


def _busy() -> int:
    """How many processors other processes keep busy throughout the probe; 0 where the system does not tell."""
    least, until = _running_elsewhere(), time.perf_counter() + PROBED
    while least > 0 and time.perf_counter() < until:
        time.sleep(PROBED / 10)
        least = min(least, _running_elsewhere())
    return max(0, least)


def _running_elsewhere() -> int:
    """How many threads of other processes run, or wait for a processor."""
    with suppress(OSError, ValueError, IndexError):
        everywhere = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        states = (stat.read_text().rpartition(")")[2].split()[0] for stat in Path("/proc/self/task").glob("*/stat"))
        return everywhere - sum(state == "R" for state in states)  # BLAS waits for the next product without sleeping
    return 0
