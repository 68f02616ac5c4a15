"""The items of one generation column by column, for reading many: their order, their keys, their texts.

The place of a row in the order never changes, so it is read once; a commit adds rows at the end, and only these are
read then. Nothing is compared with checksums here: reading whole items finds a wrong one by its checksum, and other
callers use `Matches.require_sound` first.

Does not know which rows are live. Writes nothing.
"""

import json
import threading
from typing import Any

import numpy as np

from softkv.ndarrays import Flags, Rows
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.parsing import numbers_of
from softkv.storage.catalog.patience import MOST_LISTED
from softkv.storage.catalog.tables import items_name

_STRIDE = 1 << 13  # rows of one statement
_NEAR = 4  # with fewer than one wanted row in so many, rows are read by a list, which takes twice as long for each
_NAME, _VALUE = "coalesce(i.key, '#' || i.item)", "(SELECT c.value FROM contents c WHERE c.item = i.item)"


class Listing:
    """What a catalog says of many rows of a generation."""

    def __init__(self, catalog: Catalog, generation: int) -> None:
        self._catalog, self._items = catalog, items_name(generation)
        self._known: Rows = np.empty(0, np.int64)
        self._lock = threading.Lock()

    def ordinals(self, commit: int, live: Flags) -> Rows:
        """The place of each row in the order as of a commit; refused where other rows are live in the catalog."""
        with self._lock:
            starts = range(len(self._known), len(live), _STRIDE)
            if starts:
                found = [self._ordinals(start, commit, live[start : start + _STRIDE]) for start in starts]
                self._known = np.concatenate([self._known, *found])
            return self._known[: len(live)]

    def _ordinals(self, start: int, commit: int, live: Flags) -> Rows:
        # Items added one after another have the same difference between place and row: only the others are fetched.
        stop = start + len(live)
        within, seen = f"FROM {self._items} WHERE row >= ? AND row < ?", "(born <= ? AND (died IS NULL OR died > ?))"
        ((count, ahead),) = self._asked(f"SELECT count(*), CAST(max(ordinal - row) AS INTEGER) {within}", start, stop)
        found = self._asked(
            f"SELECT row, ordinal, {seen} {within} AND (ordinal - row IS NOT ? OR {seen} IS NOT 1)",
            *(commit, commit, start, stop, ahead, commit, commit),
        )
        ordinals, alive = np.arange(start, stop) + (ahead or 0), np.ones(len(live), np.bool_)
        if found:
            rows, others, states = zip(*found, strict=True)
            at = numbers_of(rows, self._path).clip(start, stop - 1) - start  # a damaged page leads to other rows
            ordinals[at], alive[at] = numbers_of(others, self._path), [bool(one) for one in states]
        if count != len(live) or not np.array_equal(alive, live):
            raise self._catalog.connection.damage("the list of items and the record of the dead disagree")
        return ordinals

    def names(self, rows: Rows) -> list[str]:
        """The keys of these rows, `#<number>` where there is none, in this order."""
        return self._column(_NAME, rows)

    def values(self, rows: Rows) -> list[str | None]:
        """The texts that are the values of these rows, in this order."""
        return self._column(_VALUE, rows)

    def _column(self, what: str, rows: Rows) -> list[Any]:
        first, last = int(rows.min()), int(rows.max()) + 1
        if last - first < _NEAR * len(rows):
            found = self._asked(
                f"SELECT i.row, {what} FROM {self._items} i WHERE i.row >= ? AND i.row < ?", first, last
            )
        else:
            asked = f"FROM json_each(?) asked JOIN {self._items} i ON i.row = asked.value"
            portions = [rows[start : start + MOST_LISTED].tolist() for start in range(0, len(rows), MOST_LISTED)]
            found = [one for some in portions for one in self._asked(f"SELECT i.row, {what} {asked}", json.dumps(some))]
        cells = dict(found)
        try:
            return [cells[row] for row in rows.tolist()]
        except KeyError as error:
            raise self._catalog.connection.damage(f"row {error} has no item") from error

    def _asked(self, sql: str, *arguments: Any) -> list[Any]:
        return self._catalog.connection.rows(sql, arguments)

    @property
    def _path(self) -> str:
        return self._catalog.connection.path
