"""What a hostile case is, and the list of all of them.

A case has a name, makes something hostile in a folder of its own, and says what is tried with it. A module of this
package adds its cases with `case`; nothing is made before a child process asks for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Attempt = Callable[[Path, Any], Any]  # in this folder, with a function that takes steps
Made = Callable[[Path], Any]  # in this folder; what it returns is handed to every attempt


@dataclass(frozen=True)
class Case:
    """One hostile thing."""

    name: str
    group: str
    make: Made
    template: str | None = None  # the store that is copied to "s" in the folder before
    attempts: tuple[str | Attempt, ...] = ()  # functions, or the names of those in attempts.py
    refused: bool | None = None  # whether to open or read it must be refused (True), or must work (False)
    heavy: bool = False  # only in the thorough run

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"


def as_it_is(folder: Path) -> None:
    """Makes nothing hostile."""


CASES: list[Case] = []


def case(name: str, group: str, make: Made, **options: Any) -> None:
    """Add a case; its name must be new."""
    new = Case(name, group, make, **options)
    if any(str(one) == str(new) for one in CASES):
        raise ValueError(f"there are two cases called {new}")
    CASES.append(new)
