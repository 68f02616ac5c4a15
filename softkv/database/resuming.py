"""What to say of a file that was loaded in part: how many of its records are stored, and how to go on.

After some errors a batch may be stored, or some of it. Keys, a name, a commit or a second add then tell what is there;
to go on as if nothing were would add records without keys twice.

Does not load (loading.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softkv.errors import CommitUncertain, PartlyAdded, ServerError
from softkv.storage import Store

if TYPE_CHECKING:
    from softkv.files import Record

UNCLEAR = (CommitUncertain, PartlyAdded, ServerError)  # errors after which a change may have been made


@dataclass(frozen=True, slots=True)
class Unclear:
    """The records of a batch that may be stored, and what can tell."""

    records: int
    keyed: bool
    commit: int | None  # of the store before them
    batch: str | None  # the name under which a cluster completes what some of its shards have done

    @classmethod
    def after(cls, error: BaseException, batch: "Sequence[Record]", commit: int | None) -> "Unclear":
        """What an error left open about a batch that was added to a store of this commit."""
        name = error.batch if isinstance(error, PartlyAdded) else None
        return cls(len(batch), all(one.key is not None for one in batch), commit, name)

    def onward(self, seen: int, on_conflict: str) -> str:
        """How to go on where nothing has a name, after so many records that are stored."""
        if self.keyed:
            ignoring = " and on_conflict='ignore', which passes over those that are" if on_conflict == "error" else ""
            return f"Go on with skip={seen}{ignoring}."
        if self.batch is not None:
            these = f"Add these alone by `add`, with batch={self.batch!r}, which completes them"
            return f"{these}, and go on with skip={seen + self.records}."
        after, before = f"go on with skip={seen + self.records}", f"with skip={seen}"
        if self.commit is None:
            return f"Look whether they are: if so, {after}, else {before}."
        return f"Open the store again, and look at its commit: if it is above {self.commit}, {after}, else {before}."


def told(seen: int, unclear: Unclear | None) -> str:
    """How many records of a file are stored, and how many more may be."""
    if unclear is None:
        return f"The first {seen:,} records are stored."
    if not seen:
        return f"The first {unclear.records:,} records may be stored."
    return f"The first {seen:,} records are stored, and the next {unclear.records:,} may be."


def commit_of(db: Any) -> int | None:
    """The newest commit on the disk; None for a cluster, and where that is the disk of a server, with other writers."""
    if not isinstance(db._store, Store):
        return None
    with Store.open(db.path) as store:
        return store.commit
