"""Work beside the caller's own: jobs in threads that never outlive the block in which they were started.

Copying, checksums and syncs leave the interpreter's lock alone, so threads really run beside Python code here.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

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
