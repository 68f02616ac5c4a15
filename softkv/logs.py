"""Logging by the standard `logging`, under the name `softkv`, and hints to the caller. Silent by default.

Each file logs under its own name, such as softkv.asking.asker. DEBUG is for frequent events (commits), INFO for
occasional ones (opening, building an index, a large scan), WARNING for problems (recovery, an index that cannot be
used).

A hint is a Python warning to the caller. A server collects hints, and sends them to the client with the answer.

The contents of items are never logged.
"""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logging.getLogger("softkv").addHandler(logging.NullHandler())


def log_of(module: str) -> logging.Logger:
    """The log of a module, by its `__name__`."""
    return logging.getLogger(module)


_INSIDE = (__name__.partition(".")[0], "contextlib")
_KEPT: ContextVar[list[tuple[type[Warning], str]] | None] = ContextVar("hints", default=None)


def hint(message: str, kind: type[Warning]) -> None:
    """Warn the code that called the library, or collect the hint within `keeping_hints`."""
    kept = _KEPT.get()
    if kept is None:
        # Not a number of frames given by each caller: most are reached from several methods, at different depths.
        warnings.warn(message, kind, stacklevel=outside())
    else:
        kept.append((kind, message))


def outside() -> int:
    """The stack level, seen by the caller of this function, of the code that called the library."""
    frame, level = sys._getframe(1), 1
    # Subtle: between two frames of the library is one of contextlib where a context manager of ours is entered.
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level


@contextmanager
def keeping_hints() -> Iterator[list[tuple[type[Warning], str]]]:
    """Collect the hints of this thread within the block instead of warning; `catch_warnings` affects all threads."""
    kept: list[tuple[type[Warning], str]] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)
