"""Save the undamaged part of a store: write the rows whose checksums are right to a new one, in their order.

Never touches the old store, and never guesses: a row with one doubtful byte stays behind, and its item is named.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from softkv.errors import StoreDamaged, StoreExists
from softkv.ndarrays import Rows
from softkv.storage.catalog.connection import UNREADABLE
from softkv.storage.catalog.parsing import loaded
from softkv.storage.catalog.patience import Endless
from softkv.storage.catalog.roster import Roster, RosterEntry
from softkv.storage.layout import AnyPath
from softkv.storage.protocol import index_files, opening
from softkv.storage.protocol.backup import require_apart
from softkv.storage.protocol.checking import Report, Survey, survey
from softkv.storage.protocol.index_files import IndexFile
from softkv.storage.store import Store

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair: the report on the old store, and how many items were good and how many were not.

    `missing` has the key or `#<number>` of each item that was lost, or the number of its row where the catalog does not
    name the item. It has fewer than were lost where the catalog does not even know which rows there were. `rows` counts
    the rows of the damaged store, including deleted and replaced items. Items without a key keep their numbers up to
    `same_numbers`, and get new ones from there on.
    """

    report: Report
    saved: int
    lost: int
    missing: tuple[str | int, ...] = ()
    rows: int = 0
    same_numbers: int = 0


Carrying: TypeAlias = Callable[[dict[str, Any], Callable[[str], IndexFile | None], Repaired, Store], None]


def repair(path: AnyPath, new: AnyPath, *, carry: Carrying | None = None) -> Repaired:
    """Write the good items of the store at `path` to a new store. Items without a key get new numbers.

    The new store is at its path once it is complete, and a failure leaves nothing there.
    Settings come along, and index files do not. Where `carry` is given, it is handed the settings, a function that
    finds an index file of the old store by its name, what is returned, and the new store.
    """
    source, target = opening.directory_of(path), opening.directory_of(new)
    if not opening.is_vacant(target):
        raise StoreExists(f"{target} is there already; repairing writes to a new place and overwrites nothing")
    require_apart(source, target)
    with closing(survey(source)) as found:
        catalog, head = found.catalog, found.head
        if catalog is None or head is None or (head.generation and found.standing is None):
            raise StoreDamaged(f"nothing can be saved, since the catalog cannot be read: {found.report}")
        roster = Roster(catalog, head.generation)
        with (
            opening.named_beside(target) as building,
            Store.open(building, "c") as store,
            catalog.connection.reading(),
        ):
            saved, same = _save(found, roster, store)
            missing = _names(roster, np.flatnonzero(found.lost))
            rows, items = (found.standing.rows, found.standing.tally.count) if found.standing else (0, 0)
            done = Repaired(found.report, saved, max(items - saved, len(missing)), tuple(missing), rows, same)
            settings = loaded(found.standing.settings if found.standing else head.settings, "the settings")
            if carry is None:
                store.configure(settings)
            else:
                find = partial(index_files.find, catalog, found.report.path, head.generation, commit=head.number)
                carry(settings, find, done, store)
        return done


def _names(roster: Roster, rows: Rows) -> list[str | int]:
    """The names of the items in these rows; the row number where the record is damaged or missing."""
    if not len(rows):
        return []
    if len(rows) <= _BATCH:
        try:
            return [entry.name for entry in roster.entries(rows)]
        except UNREADABLE as error:
            if len(rows) == 1 or isinstance(error, Endless) or not _any_there(roster, rows):
                return list(rows.tolist())
    middle = len(rows) // 2
    return _names(roster, rows[:middle]) + _names(roster, rows[middle:])


def _any_there(roster: Roster, rows: Rows) -> bool:
    """Whether the catalog has any of these rows, which are consecutive: it may lack millions."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    if last - first > len(rows):
        return True
    there, _, _ = roster.survey(first, last)
    return bool(there.any())


def _save(found: Survey, roster: Roster, store: Store) -> tuple[int, int]:
    """Write the good rows; returns how many, and up to which number items without a key are called as before."""
    rows = np.flatnonzero(found.good).astype(np.int64)
    if not len(rows):
        return 0, 0
    ordinals = np.concatenate(
        [[entry.ordinal for entry in roster.entries(rows[i : i + _BATCH])] for i in range(0, len(rows), _BATCH)]
    )
    rows, same = rows[np.argsort(ordinals, kind="stable")], len(rows)
    for start in range(0, len(rows), _BATCH):
        entries = roster.entries(rows[start : start + _BATCH])
        _save_batch(found, rows[start : start + _BATCH], entries, store)
        moved = (place for place, one in enumerate(entries, start) if one.key is None and one.item != place + 1)
        same = min(same, next(moved, same))
    return len(rows), same


def _save_batch(found: Survey, rows: Rows, entries: list[RosterEntry], store: Store) -> None:
    assert found.standing is not None
    kind = found.standing.layout.kind
    vectors, cells = (arena.rows(min(len(found.good), arena.stored_rows()))[rows] for arena in found.arenas[:2])
    store.append(
        vectors,
        kind.read(cells, [entry.content[1] for entry in entries], found.labels.__getitem__),
        keys=[entry.key for entry in entries],
        texts=[entry.content[0] for entry in entries],
        payloads=[entry.payload for entry in entries],
        kind=kind,
        value_vectors=cells if kind.embedded else None,
    )
