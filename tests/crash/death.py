"""Ways for a process to die in the middle of its work: between two calls of the system, with or without power.

When the power goes, what was written but not synced may go with it. That is played here: writes of the storage layer
are noted until they are synced, and taken back before the process kills itself. What SQLite wrote stays, synced or not:
that is the hardest case, since the catalog must never name rows that are not durable.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any

from softkv.storage.disk import files

_CALLS = {
    "pwrite", "fdatasync", "fsync", "execute", "executemany", "fetchall", "open", "close", "ftruncate", "flock",
    "mkdir", "unlink", "rmdir", "rename", "mmap",
}  # fmt: skip


def die_after(calls: int, power: "Power | None" = None) -> None:
    """From now on, count calls that reach the operating system or SQLite, and die at one of them."""

    def die() -> None:
        if power is not None:
            power.cut()
        os.kill(os.getpid(), signal.SIGKILL)

    _at_call(calls, die)


def sleep_after(calls: int) -> None:
    """The same, but stop there until somebody says to go on."""
    _at_call(calls, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def _at_call(calls: int, end: Callable[[], None]) -> None:
    left = calls

    def count(frame: Any, event: str, called: Any) -> None:
        nonlocal left
        # Both ends of a call: dying at "c_return" is dying after the call and before anybody knows.
        if event in ("c_call", "c_return") and getattr(called, "__name__", "") in _CALLS:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                end()

    threading.setprofile(count)
    sys.setprofile(count)


class Power:
    """Notes what is not durable yet, so that it can be lost. For a process that is going to die."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._writes: list[tuple[str, int, bytes, int]] = []  # path, offset, what was there, how long the file was
        self._names: list[str] = []
        self._write_at, self._sync, self._sync_directory = files.write_at, files.sync, files.sync_directory
        self._create_file, self._make_directory = files.create_file, files.make_directory
        for ours in (self.write_at, self.sync, self.sync_directory, self.create_file, self.make_directory):
            setattr(files, ours.__name__, ours)

    def write_at(self, descriptor: int, data: memoryview, offset: int, path: str) -> None:
        """Write, and note what was there before."""
        before = os.pread(descriptor, data.nbytes, offset)
        self._writes.append((path, offset, before, os.fstat(descriptor).st_size))
        self._write_at(descriptor, data, offset, path)

    def sync(self, descriptor: int, path: str) -> None:
        """Sync, and forget what was noted of the file."""
        self._sync(descriptor, path)
        self._writes = [write for write in self._writes if write[0] != path]

    def sync_directory(self, path: str) -> None:
        """Sync, and forget what was noted of the names in it."""
        self._sync_directory(path)
        self._names = [name for name in self._names if os.path.dirname(name) != path]

    def create_file(self, path: str) -> int:
        """Create, and note the name."""
        self._names.append(path)
        return self._create_file(path)

    def make_directory(self, path: str) -> None:
        """Create, and note the name."""
        self._names.append(path)
        self._make_directory(path)

    def cut(self) -> None:
        """Take back, for each file or name by chance, all that is not durable."""
        lost = {path for path in sorted({write[0] for write in self._writes}) if self._random.random() < 0.7}
        for path, offset, before, size in reversed(self._writes):
            if path in lost and os.path.exists(path):
                descriptor = os.open(path, os.O_RDWR)
                os.pwrite(descriptor, before, offset)
                os.ftruncate(descriptor, size)
                os.close(descriptor)
        for name in reversed(self._names):
            if self._random.random() < 0.7:
                shutil.rmtree(name) if os.path.isdir(name) else os.path.exists(name) and os.unlink(name)
