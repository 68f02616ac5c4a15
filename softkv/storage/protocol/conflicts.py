"""Decide what happens to the keys of a change, before anything is written.

Keys to add that exist already are refused, replaced or ignored. Keys to delete must all exist, or nothing is deleted.
Writes nothing.
"""

from collections.abc import Sequence

import numpy as np

from softkv.errors import InputError, KeyTextError, StoreDamaged
from softkv.ndarrays import Rows
from softkv.storage.batch import Batch, refuse_duplicates, refuse_missing
from softkv.storage.catalog.parsing import require_rows
from softkv.storage.catalog.roster import Roster
from softkv.storage.protocol.committed import Committed
from softkv.storage.protocol.snapshot import Snapshot

CONFLICTS = ("error", "replace", "ignore")


def require_known(on_conflict: str) -> None:
    """Refuse an `on_conflict` other than the three known ones."""
    if on_conflict not in CONFLICTS:
        raise InputError(f"on_conflict is {on_conflict!r}; use one of {', '.join(CONFLICTS)}")


def resolved(
    batch: Batch, on_conflict: str, committed: Committed, roster: Roster, path: str
) -> tuple[Batch, Rows, list[int]]:
    """The items to write, the rows they replace, and the place of each in the order of the store."""
    if on_conflict != "error":
        batch = batch.folded(last=on_conflict == "replace")
    named = [position for position, key in enumerate(batch.keys) if key is not None]
    keys = [key for key in batch.keys if key is not None]
    found = _existing(keys, committed, roster, path)
    if on_conflict == "error":
        refuse_duplicates(keys, found)
    present = dict(zip((named[i] for i in np.flatnonzero(found >= 0)), found[found >= 0].tolist(), strict=True))
    if on_conflict == "ignore" and present:
        batch, present = batch.take([i for i in range(len(batch)) if i not in present]), {}
    ordinals = list(range(committed.head.next_ordinal, committed.head.next_ordinal + len(batch)))
    doomed = np.array(list(present.values()), np.int64)
    if present:
        for position, entry in zip(present, roster.entries(doomed), strict=True):
            if entry.key != batch.keys[position]:
                raise StoreDamaged(f"{path}: the keys of the catalog lead to wrong rows. Run `softkv check`.")
            ordinals[position] = entry.ordinal
    return batch, doomed, ordinals


def _existing(keys: list[str], committed: Committed, roster: Roster, path: str) -> Rows:
    if not keys or committed.generation is None:
        return np.full(len(keys), -1, np.int64)
    return require_rows(roster.find_many(keys, committed.head.number), committed.rows, path)


def checked_names(keys: str | Sequence[str]) -> list[str]:
    """Keys and `#<number>`s, each once."""
    names = [keys] if isinstance(keys, str) else list(keys)
    if set(map(type, names)) != {str}:
        for position, name in enumerate(names):
            if not isinstance(name, str):
                raise KeyTextError(f"key {position} is a {type(name).__name__}, not a text")
    return list(dict.fromkeys(names))


def rows_of(names: Sequence[str], view: Snapshot) -> Rows:
    """The rows of the items with these names; refused when one of them is missing."""
    numbered = [name for name in names if name[:1] == "#"]
    named = [name for name in names if name[:1] != "#"] if numbered else list(names)
    rows = view.find_many(named)
    refuse_missing(named, rows)
    return np.concatenate([rows, np.array([view.find(name) for name in numbered], np.int64)])
