"""Child processes that start in a millisecond and are heard over a pipe.

A child is forked from the test process, where everything is imported and no store is open. It never returns into the
test: it ends when it is killed, or with `os._exit` when its work is done. What went wrong in it is raised in the test.
"""

import contextlib
import json
import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Say = Callable[..., None]
PATIENCE = 60  # seconds without a word after which a child counts as hung


class ChildFailed(AssertionError):
    """The child raised; the message is its traceback."""


class Child:
    """A forked process that runs `work(say)`, where `say` sends one JSON list to the parent."""

    def __init__(self, work: Callable[[Say], object]) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn that threads do not survive; the only ones here are idle ones of the BLAS.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            run(work, writing)
        os.close(writing)
        self._pipe, self._heard, self.status = reading, b"", -1

    def hear(self, patience: float = PATIENCE) -> list[Any] | None:
        """The next message, or None when the child has ended."""
        while b"\n" not in self._heard:
            if not select.select([self._pipe], [], [], patience)[0]:
                raise AssertionError(f"child {self.pid} has said nothing for {patience} seconds")
            if not (piece := os.read(self._pipe, 1 << 16)):
                return None
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        message: list[Any] = json.loads(line)
        if message[0] == "failed":
            raise ChildFailed(f"child {self.pid}:\n{message[1]}")
        return message

    def speaks(self) -> bool:
        """Whether there is a message that was not heard yet, or the beginning of one."""
        return b"\n" in self._heard or bool(select.select([self._pipe], [], [], 0)[0])

    def all(self, patience: float = PATIENCE) -> Iterator[list[Any]]:
        """The messages until the child ends."""
        while (message := self.hear(patience)) is not None:
            yield message

    def kill(self) -> None:
        """End it the hard way, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        """Send a signal, unless the child is gone."""
        if self.status < 0:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait until it is gone; returns the status."""
        if self.status < 0:
            self.status = os.waitpid(self.pid, 0)[1]
        return self.status

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        os.close(self._pipe)


def run(work: Callable[[Say], object], writing: int) -> None:
    """In the child: do its work, tell what went wrong, and end."""

    def say(*message: object) -> None:
        os.write(writing, json.dumps(message).encode() + b"\n")

    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        work(say)
        status = 0
    except BaseException:
        say("failed", traceback.format_exc())
    finally:
        os._exit(status)
