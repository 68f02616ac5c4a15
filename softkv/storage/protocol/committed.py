"""The content of one commit: the rows, which of them are dead, and the pinned files they lie in.

The single place where a handle reads the state of its store, at first and later. Writes nothing.
"""

import os
from dataclasses import dataclass
from functools import cached_property

from softkv.errors import StoreDamaged
from softkv.logs import log_of
from softkv.storage.catalog.catalog import Catalog, Head, Standing
from softkv.storage.catalog.deaths import Deaths
from softkv.storage.catalog.roster import Roster
from softkv.storage.disk import locks
from softkv.storage.layout import generation_name
from softkv.storage.protocol.acknowledged import Acknowledged, require_acknowledged
from softkv.storage.protocol.generation import Generation

LOG = log_of(__name__)


@dataclass(frozen=True)
class Committed:
    """One commit. There is no standing and no generation before the first item."""

    head: Head
    standing: Standing | None
    deaths: Deaths
    generation: Generation | None

    @cached_property
    def acknowledged(self) -> Acknowledged:
        """The note of this commit that is kept outside the catalog."""
        return Acknowledged.of(self.head, self.standing)

    @property
    def rows(self) -> int:
        """How many rows are committed, dead ones included."""
        return self.standing.rows if self.standing else 0


def load(catalog: Catalog, directory: str, known: Committed | None, *, write: bool) -> Committed:
    """The newest commit. Files that `known` has open are kept when they are still current, and released otherwise.

    The catalog is compared with the `known` commit, or at first with the one that was acknowledged last.
    """
    acknowledged = known.acknowledged if known else Acknowledged.read(directory)
    for _ in range(1_000):
        found = _attempt(catalog, directory, known, acknowledged, write=write)
        if found is not None:
            if known and known.generation and known.generation is not found.generation:
                known.generation.release()
            if known and found.head.number != known.head.number:
                LOG.debug("%s is at commit %d", directory, found.head.number)
            return found
    raise StoreDamaged(f"{directory}: the generation that the catalog names cannot be pinned. Run `softkv check`.")


def _attempt(
    catalog: Catalog, directory: str, known: Committed | None, acknowledged: Acknowledged | None, *, write: bool
) -> Committed | None:
    """One try; None when a compaction came between reading the catalog and pinning the generation."""
    with catalog.connection.reading():
        head = catalog.head()
        if not head.generation:
            require_acknowledged(acknowledged, directory, head, None)
            return Committed(head, None, Deaths(), None)
        same = known if known and known.generation and known.generation.number == head.generation else None
        standing = catalog.standing(head.generation)
        require_acknowledged(acknowledged, directory, head, standing)
        catalog.require_room_for(standing)
        changed = catalog.deaths(standing, same.head.number if same else -1)
        if not same:
            Roster(catalog, head.generation).require_end(standing.rows, head.number)
    generation = same.generation if same else _pinned(catalog, directory, head, standing, write=write)
    if generation is None:
        return None
    try:
        generation.require_length(standing.rows)
        deaths = (same.deaths if same else Deaths()).replaced(changed)
        _require_sum(directory, standing, deaths)
    except BaseException:
        if not same:
            generation.release()
        raise
    generation.grow(standing)
    return Committed(head, standing, deaths, generation)


def _pinned(catalog: Catalog, directory: str, head: Head, standing: Standing, *, write: bool) -> Generation | None:
    """The files of a generation, or None when it was replaced before the pin held it."""
    pin = locks.pin_shared(os.path.join(directory, generation_name(head.generation)))
    if pin is None:
        return None
    # Subtle: the pinned directory may be one that is being removed, so the catalog is read again before it is used.
    if catalog.head().generation != head.generation:
        pin.release()
        return None
    return Generation.open(head.store, directory, standing, catalog, pin, write=write)


def _require_sum(directory: str, standing: Standing, deaths: Deaths) -> None:
    if deaths.count + standing.tally.count != standing.rows:
        raise StoreDamaged(
            f"{directory}: {standing.rows} rows, {standing.tally.count} of them live and {deaths.count} dead, "
            "do not add up. Run `softkv check`."
        )
