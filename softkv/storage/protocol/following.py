"""The newest commit for a reader, looked for on every call, by SQLite's cheapest test that nothing has changed.

A reader keeps its files open. That the catalog was replaced by another file is noticed here.
"""

import time

from softkv.errors import StorageFailed
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.connection import place_of
from softkv.storage.protocol import opening
from softkv.storage.protocol.committed import Committed

PAUSE = 0.01  # seconds between two checks of which file is there


class Following:
    """The last seen version of the catalog of one reading handle, and which file it was."""

    def __init__(self, directory: str, catalog: Catalog) -> None:
        self._directory, self._catalog = directory, catalog
        self._version, self._place = catalog.connection.data_version(), catalog.connection.place
        self._looked = 0.0

    def newest(self, known: Committed) -> Committed:
        """The newest commit; `StoreReplaced` when another copy of the store lies in its place."""
        while True:
            connection = self._catalog.connection
            if connection.thawed():
                self._catalog.connection, self._version = opening.connect(self._directory).connection, -1
                self._place = self._catalog.connection.place
                connection.close()
                continue
            self._require_in_place(known)
            try:
                version = connection.data_version()
                if version == self._version:
                    return known
                newest = opening.load_again(self._catalog, self._directory, known)
            except StorageFailed:
                if connection.thawed():
                    continue
                raise
            if not connection.thawed():
                self._version = version
                return newest

    def _require_in_place(self, known: Committed) -> None:
        """Refuse when another copy has replaced the store, since the old open files would be read on."""
        now = time.monotonic()
        if now < self._looked + PAUSE:
            return
        self._looked = now
        place = place_of(self._catalog.connection.path)
        if place != self._place and place is not None:
            self._looked = 0.0  # so that every call says so
            opening.require_no_copy(self._directory, known.head)
            self._place = place
