"""Whether a directory is still the one that was there: a store may be erased and made anew while it is being opened.

What is opened file by file, by path, may then belong to two stores. So it is looked at before and after.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from softkv.errors import SoftKVError, StoreLocked

_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_ATTEMPTS = 1_000
Opened = TypeVar("Opened")


@contextmanager
def _watched(directory: str) -> Iterator[Callable[[], bool]]:
    """Whether another directory has taken the place of this one since, or none, or one has come where none was.

    It is held open, so that no other gets its number meanwhile.
    """
    vacant, descriptor = not os.path.lexists(directory), -1
    with suppress(OSError):  # nothing there, or nothing that may be opened: whoever opens the store says why
        descriptor = os.open(directory, _FLAGS)

    def has_changed() -> bool:
        if descriptor < 0:
            return vacant and os.path.lexists(directory)
        try:
            return not os.path.samestat(os.stat(directory), os.fstat(descriptor))
        except OSError:
            return True

    try:
        yield has_changed
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def in_one_place(directory: str, attempt: Callable[[], Opened], close: Callable[[Opened], object]) -> Opened:
    """What an attempt opens, all of it in one directory; tried again when another came into its place meanwhile."""
    for _ in range(_ATTEMPTS):
        with _watched(directory) as has_changed:
            try:
                opened = attempt()
                if not has_changed():
                    return opened
                close(opened)
            except SoftKVError:
                if not has_changed():
                    raise
    raise StoreLocked(f"{directory} is made anew again and again, too fast to be opened. Try later.")
