"""Detect that a directory was replaced: a store may be erased and made anew while it is being opened.

Files that are opened one by one, by path, may then belong to two stores. So the directory is compared before and after.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from softkv.errors import SoftKVError, StoreLocked

_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_ATTEMPTS = 1_000
OpenedT = TypeVar("OpenedT")


@contextmanager
def _watched(directory: str) -> Iterator[Callable[[], bool]]:
    """A function that tells whether the directory at this path has since been replaced, removed or created.

    The directory is held open, so that no other can get its inode number meanwhile.
    """
    vacant, descriptor = not os.path.lexists(directory), -1
    with suppress(OSError):  # missing, or not to be opened: opening the store says why
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


def in_one_place(directory: str, attempt: Callable[[], OpenedT], close: Callable[[OpenedT], object]) -> OpenedT:
    """What an attempt opens, all of it in one directory; tried again when the directory was replaced meanwhile."""
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
