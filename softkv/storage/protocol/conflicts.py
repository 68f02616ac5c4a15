"""What becomes of keys that are there already: they are refused, replaced or passed over, before anything is written.

Writes nothing.
"""

import numpy as np

from softkv.errors import InputError, StoreDamaged
from softkv.storage.batch import Batch, refuse_duplicates
from softkv.storage.catalog.loading import require_rows
from softkv.storage.catalog.roster import Roster
from softkv.storage.layout import Rows
from softkv.storage.protocol.committed import Committed

CONFLICTS = ("error", "replace", "ignore")


def require_known(on_conflict: str) -> None:
    """Refuse another word for what becomes of them."""
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
                raise StoreDamaged(f"{path}: the keys of the catalog lead astray. Run `softkv check`.")
            ordinals[position] = entry.ordinal
    return batch, doomed, ordinals


def _existing(keys: list[str], committed: Committed, roster: Roster, path: str) -> Rows:
    if not keys or committed.generation is None:
        return np.full(len(keys), -1, np.int64)
    return require_rows(roster.find_many(keys, committed.head.number), committed.rows, path)
