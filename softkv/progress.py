"""What long work calls as it goes on."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]  # with how much is done, and of how much; 0 where that is not known
Stages: TypeAlias = Callable[[str, int, int], None]  # with the name of the stage before these


def untold(*_progress: object) -> None:
    """What is called where nobody wants to know."""
