"""Which threads multiply matrices: one of BLAS, where waiting for a second one takes longer than it saves, or our own.

BLAS gives a part of all but tiny products to other threads, and waits for them. Where another process keeps their
processors busy, a product of a third of a millisecond takes four to eight: an index that reads little and multiplies
small matrices is then no faster than a scan. What is large enough to be worth the wait keeps all threads. Where many
rows are looked at independently, they are shared among threads that wait for each other once.

Does not decide what is large (asking/, database/).
"""

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from functools import cache
from itertools import pairwise, product
from typing import final

from numpy.linalg import _umath_linalg

MOST = 4  # threads that share rows


def shared(work: Callable[[int, int], None], start: int, stop: int) -> None:
    """Do work on the rows from `start` to `stop`, shared among as many threads as there are processors."""
    count = min(MOST, os.cpu_count() or 1, stop - start)
    if count < 2:
        return work(start, stop)
    ends = [start + (stop - start) * number // count for number in range(count + 1)]
    with ThreadPoolExecutor(count - 1) as others:
        running = [others.submit(work, *ends) for ends in pairwise(ends[1:])]
        work(*ends[:2])
    for one in running:
        one.result()
    return None


@final
class Switched(ContextDecorator):
    """Something of the process that is changed as long as anybody is inside; the last to leave puts it back.

    A lock held all the while would be simpler, but those inside would wait for each other.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        """Of what changes it, and gives what puts it back."""
        self._change, self._inside, self._lock = change, 0, threading.Lock()
        self._back: Callable[[], None] = lambda: None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._left_behind)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._back = self._change()
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._back()

    def _left_behind(self) -> None:
        """In a child of the process there is none of the threads that were inside."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            self._back()


@cache
def _threads() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How many threads the OpenBLAS of NumPy has, and what sets it; None where NumPy uses another BLAS."""
    # Not by threadpoolctl: from 3.8 on, only the first thread that sets a number is heard as long as it lives.
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


def _to_one() -> Callable[[], None]:
    """Set one thread; what is given sets what was there before."""
    threads = _threads()
    if threads is None:
        return lambda: None
    get_count, set_count = threads
    before = get_count()
    set_count(1)
    return lambda: set_count(before)


one_thread = Switched(_to_one)
