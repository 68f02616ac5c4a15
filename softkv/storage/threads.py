"""Threads of one process: jobs that do not outlive the block they were started in, and the lock between threads.

Copying, checksums and syncs leave the interpreter's lock alone, so threads really run beside Python code here.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from softkv.errors import HandleForked

WorkT = TypeVar("WorkT")


@contextmanager
def beside(*jobs: Callable[[], WorkT]) -> Iterator[list["Future[WorkT]"]]:
    """Run jobs in threads beside the block. However the block ends, they have ended by then, and have results.

    Not a ThreadPoolExecutor: an interrupt while its threads start, or while their end is waited for, leaves them at
    work, and a row that is written late may cover a row of the next batch. Here nothing begins before all threads are
    there.
    """
    if not jobs:
        yield []
        return
    running: list[Future[WorkT]] = [Future() for _ in jobs]
    gate, manned = threading.Event(), False

    def work(job: Callable[[], WorkT], future: "Future[WorkT]") -> None:
        gate.wait()
        if manned:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    try:
        for job, future in zip(jobs, running, strict=True):
            threading.Thread(target=work, args=(job, future)).start()
        manned = True
        gate.set()
        yield running
    finally:
        gate.set()
        if manned:
            _outlast(running)


def _outlast(running: "Sequence[Future[WorkT]]") -> None:
    """Wait for all jobs, even when interrupted while waiting: the interrupt is raised again afterwards."""
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
        if os.getpid() != self._process:  # `is_inherited`, inlined: every read calls this several times
            raise HandleForked(
                f"{self._path} was opened by process {self._process}, and this is its child {os.getpid()}. "
                "A handle does not survive a fork: open the store again in this process."
            )

    def __enter__(self) -> None:
        self.require_own_process()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
