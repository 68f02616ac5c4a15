"""Save what is good of a damaged store: write the rows that check out to a new one, in their order.

Never touches the old store, and never guesses: a row with one doubtful byte stays behind and is counted.
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.errors import StoreDamaged, StoreExists
from softkv.storage import opening
from softkv.storage.checking import Report, Survey, survey
from softkv.storage.layout import Rows, ValueKind
from softkv.storage.loading import loaded
from softkv.storage.roster import Entry, Roster
from softkv.storage.store import Store

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was saved: the report on the old store, and how many items were good and how many were not."""

    report: Report
    saved: int
    lost: int


def repair(path: str | os.PathLike[str], new: str | os.PathLike[str]) -> Repaired:
    """Write the good items of the store at `path` to a new store. Items without a key get new numbers."""
    target = os.path.abspath(os.fspath(new))
    if not opening.is_vacant(target):
        raise StoreExists(f"{target} is there already; repairing writes to a new place and overwrites nothing")
    found = survey(os.path.abspath(os.fspath(path)))
    try:
        if found.catalog is None or found.head is None or (found.head.generation and found.standing is None):
            raise StoreDamaged(f"nothing can be saved, since the catalog cannot be read: {found.report}")
        with Store.open(target, "c") as store, found.catalog.connection.reading():
            saved = _save(found, Roster(found.catalog, found.head.generation), store)
            store.configure(loaded(found.standing.settings if found.standing else found.head.settings, "the settings"))
        return Repaired(found.report, saved, (found.standing.tally.count if found.standing else 0) - saved)
    finally:
        found.close()


def _save(found: Survey, roster: Roster, store: Store) -> int:
    rows = np.flatnonzero(found.good).astype(np.int64)
    if not len(rows):
        return 0
    ordinals = np.concatenate(
        [[entry.ordinal for entry in roster.entries(rows[i : i + _BATCH])] for i in range(0, len(rows), _BATCH)]
    )
    rows = rows[np.argsort(ordinals, kind="stable")]
    for start in range(0, len(rows), _BATCH):
        _save_batch(found, rows[start : start + _BATCH], roster.entries(rows[start : start + _BATCH]), store)
    return len(rows)


def _save_batch(found: Survey, rows: Rows, entries: list[Entry], store: Store) -> None:
    assert found.standing is not None
    kind = found.standing.layout.kind
    vectors, cells = (arena.rows(min(len(found.good), arena.stored_rows()))[rows] for arena in found.arenas[:2])
    values: Any = cells[:, 0] if kind is ValueKind.NUMBER else cells
    if kind is ValueKind.LABEL:
        values = [found.labels[code] for code in cells[:, 0].tolist()]
    elif kind is ValueKind.TEXT:
        values = [entry.content[1] for entry in entries]
    store.append(
        vectors,
        values,
        keys=[entry.key for entry in entries],
        texts=[entry.content[0] for entry in entries],
        payloads=[None if entry.content[2] is None else loaded(entry.content[2], "a payload") for entry in entries],
        value_vectors=cells if kind is ValueKind.TEXT else None,
    )
