"""Which rows of one generation match which filters; answers are kept, because the payload of a row never changes.

A commit adds rows at the end, so a filter that was used before is applied to the new rows only. Before the first filter
is applied to a row, the row is compared with its checksum, once for all filters; as with the windows of the arenas, it
is not compared again later.

Does not know which rows are live, so an answer holds for every commit. Writes nothing.
"""

import threading
from typing import TYPE_CHECKING

import numpy as np

from softkv.ndarrays import Flags
from softkv.storage.catalog.roster import Roster

if TYPE_CHECKING:
    from softkv.storage.filters.conditions import Condition

_KEPT = 8  # filters whose answers are kept, a byte per row each


class Matches:
    """The answers to the filters that were used last."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._sound = 0  # the rows before this one were compared with their checksums
        self._known: dict[Condition, Flags] = {}  # the filter used last is last
        self._lock = threading.Lock()

    def of(self, condition: "Condition", rows: int) -> Flags:
        """For each of the first `rows` rows, dead or alive, whether its payload meets a condition."""
        with self._lock:
            known = self._known.pop(condition, np.zeros(0, np.bool_))
            if len(known) < rows:
                self._verify(rows)
                known = np.append(known, self._roster.matching(condition, len(known), rows))
            self._known[condition] = known
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
            return known[:rows]

    def require_sound(self, rows: int) -> None:
        """Compare the first `rows` rows with their checksums, unless that is done."""
        with self._lock:
            self._verify(rows)

    def are_sound(self, rows: int) -> bool:
        """Whether the first `rows` rows were compared with their checksums."""
        return rows <= self._sound

    def _verify(self, rows: int) -> None:
        if rows > self._sound:
            self._roster.require_sound(self._sound, rows)
            self._sound = rows
