"""The types of progress callbacks."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]  # (done, total); total is 0 where it is not known
Stages: TypeAlias = Callable[[str, int, int], None]  # (name of the stage, done, total)


def untold(*_progress: object) -> None:
    """No-op progress callback."""
