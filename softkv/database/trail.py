"""Load a file under the name of a batch: which of its records an earlier run stored, and whether it was the same file.

The store has one entry for the file, which each batch of rows updates: how many records are in, a digest of all of
them, and what became of them. So a file that is loaded again is compared by content, whatever the size of its batches.
A name for each batch of rows would not do: their size would count, and the first would be forgotten before the last.

Does not read files, and adds no items (loading.py).
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from softkv.database.stamping import pieces_of
from softkv.storage import Store
from softkv.storage.batch import checked_name
from softkv.storage.catalog.batches import Recorded, Stamp, mismatch

if TYPE_CHECKING:
    from softkv.files import Record

_END = b"the end"  # added to the digest once all records are in


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many records there were so far, and what became of them."""

    records: int = 0
    fresh: int = 0
    replaced: int = 0
    ignored: int = 0
    repeated: int = 0  # passed over, since their keys were there

    def plus(self, count: int, replaced: int, ignored: int) -> "Outcome":
        """The outcome with more items counted: added, replaced, ignored, repeated."""
        sums = self.fresh + count - replaced, self.replaced + replaced, self.ignored + ignored
        return Outcome(self.records, *sums, self.repeated)

    def numbers(self, *, ended: bool) -> tuple[int, ...]:
        """The outcome as numbers to record."""
        return int(ended), self.records, self.fresh, self.replaced, self.ignored, self.repeated


class Trail:
    """The records of a file that are in a store under a name, and those that are about to follow."""

    def __init__(self, name: str, *how: object) -> None:
        self._name = checked_name(name, "batch")
        self._digest = hashlib.sha256(b"load" + repr(how).encode())  # of all records so far
        self._written: bytes | None = None  # the digest that is recorded
        self._ended = False

    def beyond(self, store: Store, batches: "Iterator[list[Record]]") -> "tuple[Outcome, Iterator[list[Record]]]":
        """Compare the records that are in with those of the earlier run; returns its outcome and the other batches."""
        found = store.written(self._name)
        if found is None:
            return Outcome(), batches
        if len(found.result) != len(Outcome().numbers(ended=False)):  # of items that were added under this name
            raise mismatch(self._name, found.commit)
        outcome, self._ended = Outcome(*found.result[1:]), bool(found.result[0])
        rest = self._compared(found, outcome.records, batches)
        self._written = found.digest
        return outcome, chain([rest] if rest else [], batches)

    def take(self, batch: "Sequence[Record]") -> None:
        """Count the next records in the digest."""
        for record in batch:
            for piece in pieces_of(record):
                self._digest.update(piece)

    def stamp(self, before: Outcome, start: int) -> Stamp:
        """What the store records with the items of the records that were taken, from `start` on."""

        def told(added: Sequence[int]) -> Sequence[int]:
            return before.plus(*added[2:]).numbers(ended=False)

        return Stamp(self._name, self._digest.digest(), told, self._written, start)

    def follow(self, stamp: Stamp) -> None:
        """Take note that the stamped records are stored."""
        self._written = stamp.digest

    def end(self, store: Store, outcome: Outcome) -> None:
        """Record that these were all records, so that a longer file is another one."""
        if not self._ended:
            self._digest.update(_END)
            told = outcome.numbers(ended=True)
            store.delete([], stamp=Stamp(self._name, self._digest.digest(), lambda _: told, self._written))

    def _compared(self, found: Recorded, records: int, batches: "Iterator[list[Record]]") -> "list[Record]":
        """Read the records that are in; those of their last batch that are not are returned."""
        rest: list[Record] = []
        while records > 0:
            batch = next(batches, [])
            if not batch:
                raise mismatch(self._name, found.commit)
            self.take(batch[:records])
            rest, records = batch[records:], max(0, records - len(batch))
        digest = self._digest.copy()
        if self._ended:
            digest.update(_END)
            rest = rest or next(batches, [])
        if digest.digest() != found.digest or (self._ended and rest):
            raise mismatch(self._name, found.commit)
        return rest
