"""A limit on the cost of a statement: steps of SQLite's virtual machine, by the sizes of the catalog and the request.

A malicious catalog of a few pages can claim that a table has the same page a million times, or that a text has a
gigabyte. SQLite would read on for ever; so every statement has a limit of steps, more than an intact catalog of that
size needs, and no field may be longer than any that a store writes.

Knows no tables.
"""

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from softkv.errors import StoreDamaged

LONGEST_FIELD = 1 << 26  # bytes of a field, a row or a parameter: two texts, a payload and a key fit in
STEPS = 1_000_000  # between two checks: some hundredths of a second
FEWEST = 3 * STEPS
FOR_A_BYTE = 50  # of the catalog, or of a parameter; a row has thirty bytes and takes some fifty steps
FOR_A_ROW = 2_000  # that is written
MOST_LISTED = 1 << 20  # numbers in a parameter that is a list: so many take fewer steps, and fit in a field


class Endless(StoreDamaged):
    """A statement that took more steps than it can need. Asking for less would not be quicker."""


class Patience:
    """Counts the steps of each statement from its beginning, and ends one that takes too many."""

    def __init__(self, path: str) -> None:
        self._path, self._steps, self._asked = path, 0, 0
        self._arguments: Sequence[Any] = ()

    def watch(self, driver: sqlite3.Connection) -> None:
        """Limit the statements of a connection from now on."""
        driver.set_progress_handler(self._look, STEPS)
        if hasattr(driver, "setlimit"):  # from Python 3.11 on; without it SQLite's own limit holds, which is a gigabyte
            driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_FIELD)

    def begin(self, arguments: Sequence[Any], *, rows: int = 0) -> None:
        """Start counting for a new statement with these arguments, which writes so many rows."""
        self._steps, self._arguments, self._asked = 0, arguments, rows

    @property
    def exhausted(self) -> bool:
        """Whether the last statement was ended because it took too many steps."""
        return self._steps > self._most()

    def _look(self) -> int:
        # Subtle: an interrupt that arrives in here is lost, and only ends the statement; `exhausted` is False then.
        self._steps += STEPS
        return int(self.exhausted)

    def _most(self) -> int:
        size = sum(len(one) for one in self._arguments if isinstance(one, (str, bytes)))
        for name in (self._path, self._path + "-wal"):
            try:
                size += os.stat(name).st_size
            except OSError:
                continue
        return FEWEST + FOR_A_BYTE * size + FOR_A_ROW * self._asked
