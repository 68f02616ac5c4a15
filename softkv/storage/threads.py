"""Threads of one process: jobs that do not outlive the block they were started in, and the lock between threads.

Copying, checksums and syncs leave the interpreter's lock alone, so threads really run beside Python code here.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from softkv.errors import HandleForked

Result = TypeVar("Result")


@contextmanager
def beside(*jobs: Callable[[], Result]) -> "Iterator[list[Future[Result]]]":
    """Run jobs in threads beside the block. However it ends, they have ended by then, and can be asked for results."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [pool.submit(job) for job in jobs]
        try:
            yield running
        finally:
            _outlast(running)


def _outlast(running: "Sequence[Future[Result]]") -> None:
    """Wait for all. Subtle: an interrupt usually arrives during this wait, and must wait as well.

    A write that went on behind the caller's back could cover rows of the next batch.
    """
    try:
        wait(running)
    except BaseException:
        _outlast(running)
        raise


class OwnLock:
    """Keeps the threads of one process apart; refuses a child of it.

    A child must not even wait: the thread that held the lock at the fork is not there to let it go.
    """

    def __init__(self, path: str) -> None:
        self._path, self._process, self._lock = path, os.getpid(), threading.RLock()

    def is_inherited(self) -> bool:
        """Whether this is a child of the process that made the lock."""
        return os.getpid() != self._process

    def require_own_process(self) -> None:
        """Refuse to work in a child."""
        if self.is_inherited():
            raise HandleForked(
                f"{self._path} was opened by process {self._process}, and this is its child {os.getpid()}. "
                "A handle does not survive a fork: open the store again in this process."
            )

    def __enter__(self) -> None:
        self.require_own_process()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
