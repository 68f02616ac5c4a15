"""Whether a directory is still the one that was there: a store may be erased and made anew while it is being opened.

What is opened file by file, by path, may then belong to two stores. So it is looked at before and after.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from softkv.errors import SoftKVError, StoreLocked

_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_ATTEMPTS = 1_000
Opened = TypeVar("Opened")


class Place:
    """A directory as it is now, or that there is none. It is held open, so that no other gets its number meanwhile."""

    def __init__(self, directory: str) -> None:
        self._directory, self._descriptor = directory, -1
        self._vacant = not os.path.lexists(directory)
        with suppress(OSError):  # nothing there, or nothing that may be opened: whoever opens the store says why
            self._descriptor = os.open(directory, _FLAGS)

    def has_changed(self) -> bool:
        """Whether another directory has taken its place, or none, or one has come where none was."""
        if self._descriptor < 0:
            return self._vacant and os.path.lexists(self._directory)
        try:
            named, held = os.stat(self._directory), os.fstat(self._descriptor)
        except OSError:
            return True
        return (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino)

    def close(self) -> None:
        """Let it go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def in_one_place(directory: str, attempt: Callable[[], Opened], close: Callable[[Opened], object]) -> Opened:
    """What an attempt opens, all of it in one directory; tried again when another came into its place meanwhile."""
    for _ in range(_ATTEMPTS):
        place = Place(directory)
        try:
            opened = attempt()
            if not place.has_changed():
                return opened
            close(opened)
        except SoftKVError:
            if not place.has_changed():
                raise
        finally:
            place.close()
    raise StoreLocked(f"{directory} is made anew again and again, too fast to be opened. Try later.")
