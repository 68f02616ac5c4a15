"""Migrate the catalog from one format to the next: tables are only added, so older formats are read as they are.

A migration reads no arena, and happens in one transaction of the next writer, before anything else is changed.
"""

from collections.abc import Callable

from softkv.logs import log_of
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.secret import make_secret
from softkv.storage.catalog.tables import definitions_since
from softkv.storage.layout import FORMAT, WINDOW

LOG = log_of(__name__)

READABLE = (1, 2)  # older formats that are read as they are


def migrate(catalog: Catalog, found: int) -> None:
    """Bring an older catalog to the present format, one step after the other, in one transaction."""
    with catalog.connection.writing():
        for step in range(found, FORMAT):
            for definition in definitions_since(step + 1):
                catalog.connection.run(definition)
            MIGRATIONS[step](catalog)
        catalog.connection.run(f"PRAGMA user_version={FORMAT}")
    LOG.info("brought %s from format %d to %d", catalog.connection.path, found, FORMAT)


def _record_granules(catalog: Catalog) -> None:
    """To format 3: record the granules of the generations, which have the old size, and make a secret."""
    for generation in catalog.generations():
        catalog.put_granule(generation, WINDOW)
    make_secret(catalog.connection)


# The steps from each format to the next, besides making its new tables.
MIGRATIONS: dict[int, Callable[[Catalog], None]] = {1: lambda _: None, 2: _record_granules}
