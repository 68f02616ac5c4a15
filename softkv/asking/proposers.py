"""The index of a store that proposes rows for the k best: its file, read once.

An index that is missing, damaged, or of another format is not used: the k best are then found by a scan.
"""

import threading

from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.candidates import Proposer
from softkv.storage import Snapshot

PROPOSER = "proposer"  # the name of the index file


class Proposers:
    """The proposer that a handle has read, shared with its snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: tuple[int, int] | None = None
        self._found: Proposer | None = None

    def there(self, snapshot: Snapshot) -> bool:
        """Whether there is one, usable or not."""
        try:
            file = snapshot.index(PROPOSER)
        except IndexDamaged:
            return True
        if file is not None:
            file.close()
        return file is not None

    def of(self, snapshot: Snapshot) -> Proposer | None:
        """The proposer of this commit, or None when there is none that can be used."""
        with self._lock:
            try:
                file = snapshot.index(PROPOSER)
                if file is None:
                    return None
                with_file = snapshot.generation, file.commit
                if self._file != with_file:
                    self._found, self._file = None, with_file
                    self._found = _read(file.read(), snapshot, file.rows)
                file.close()
            except (IndexDamaged, FormatTooNew):
                return None
            return self._found


def _read(content: memoryview, snapshot: Snapshot, rows: int) -> Proposer:
    assert snapshot.layout is not None
    known = int.from_bytes(content[:8], "little")
    if known > rows:
        raise IndexDamaged(f"the proposer knows {known} rows, but {rows} were there: build it again")
    return Proposer.from_bytes(content[8:], width=snapshot.layout.key_width, rows=known)
