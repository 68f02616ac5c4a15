"""The last commit that was acknowledged, noted in LOCK: its only record outside the catalog.

The catalog alone cannot tell that it has lost a commit. Without its log, or with a damaged one, SQLite returns the
state before; so does a page whose write was lost. The note is written after each commit and not synced, since a sync
would cost as much as the commit. So it may be behind the catalog of a writer that did not close, and then proves
nothing; it is never ahead of an undamaged catalog.

A store whose LOCK is gone, or has no note that matches its checksum, is accepted as it is.
"""

from contextlib import suppress
from dataclasses import dataclass

from softkv.errors import StoreDamaged, StoreError
from softkv.storage.catalog.catalog import Head, Standing
from softkv.storage.catalog.tables import seal
from softkv.storage.disk import files, locks
from softkv.storage.layout import CATALOG


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit: its store, its number, and a checksum of its record of the rows."""

    store: str
    number: int
    record: int

    @classmethod
    def of(cls, head: Head, standing: Standing | None) -> "Acknowledged":
        """The commit that a catalog is at."""
        return cls(head.store, head.number, 0 if standing is None else _record(standing))

    @classmethod
    def read(cls, directory: str) -> "Acknowledged | None":
        """The note in LOCK, if there is one; read it before the catalog, which a writer may be changing."""
        with suppress(StoreError):  # without a note; whether the store can be opened depends on the catalog
            note = locks.note_in(locks.content(directory))
            if note:
                words = note.decode().split()
                return cls(words[3], int(words[1]), int(words[5], 16))
        return None

    def put(self, lock: locks.FileLock, *, durably: bool = False) -> None:
        """Write the note to the lock file that a writer holds."""
        lock.put_note(locks.note_of(self.number, self.store, self.record))
        if durably:
            files.sync(lock.descriptor, lock.path)

    def objection(self, head: Head, standing: Standing | None) -> str | None:
        """Why a catalog that was read after this note must have lost a commit; None where it need not have."""
        if self.store != head.store or self.number < head.number:
            return None
        if self.number > head.number:
            return (
                f"the catalog is at commit {head.number}, but commit {self.number} was acknowledged. Was {CATALOG}-wal "
                "lost, or damaged, or left behind by a copy?"
            )
        if Acknowledged.of(head, standing) != self:
            return f"what the catalog says of the rows is not what commit {self.number} said: a write to it was lost."
        return None

    def surprise(self, head: Head) -> str | None:
        """Why a catalog is ahead of this note in a way that cannot be; None where it is not.

        A writer that closes makes the note durable before it marks the catalog as closed; so then it is not behind.
        """
        if self.store != head.store or self.number >= head.number or head.writing:
            return None
        return f"the last writer closed at commit {self.number}, but the catalog is at commit {head.number}."


def require_acknowledged(known: Acknowledged | None, directory: str, head: Head, standing: Standing | None) -> None:
    """Refuse a catalog that has lost an acknowledged commit."""
    _refuse(directory, known.objection(head, standing) if known else None)


def require_at_close(directory: str, head: Head) -> None:
    """Refuse a catalog that is ahead of where its last writer closed; called by the next writer, with the lock held."""
    known = Acknowledged.read(directory)
    _refuse(directory, known.surprise(head) if known else None)


def _refuse(directory: str, objection: str | None) -> None:
    if objection:
        raise StoreDamaged(
            f"{directory}: {objection} Bring back the whole store from one copy; "
            "`softkv check --repair-to NEW` saves what is there."
        )


def _record(standing: Standing) -> int:
    """A checksum of what only a commit changes: without derived rows, and without whether the generation is retired."""
    layout = standing.layout
    widths = (layout.key_width, layout.kind.value, layout.value_width)
    return seal(
        standing.generation, standing.rows, *widths, *standing.tails[:2], standing.tally.pack(), standing.settings
    )
