"""What a store does, for those who listen: the standard `logging`, under the name `softkv`, silent otherwise.

A file of the package logs under its own name, such as softkv.asking.asker. DEBUG is for what happens all the time
(commits), INFO for what happens now and then (opening, building an index, a large scan), WARNING for what should not
(recovery, an index that cannot be used).

A hint is a warning to whoever called; where the call came from elsewhere, it is kept for the answer.

The log says nothing of what items hold.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logging.getLogger("softkv").addHandler(logging.NullHandler())


def log_of(module: str) -> logging.Logger:
    """The log of a module, by its `__name__`."""
    return logging.getLogger(module)


_KEPT: ContextVar[list[tuple[type[Warning], str]] | None] = ContextVar("hints", default=None)


def hint(message: str, kind: type[Warning], *, stacklevel: int) -> None:
    """Warn as `warnings.warn` does, or keep the hint where hints are kept."""
    kept = _KEPT.get()
    if kept is None:
        warnings.warn(message, kind, stacklevel=stacklevel + 1)
    else:
        kept.append((kind, message))


@contextmanager
def keeping_hints() -> Iterator[list[tuple[type[Warning], str]]]:
    """Keep the hints of this thread within the block, and give none: not `catch_warnings`, which is for all threads."""
    kept: list[tuple[type[Warning], str]] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)
