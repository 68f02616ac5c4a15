"""The index of a store that proposes rows for the k best: its file, read once.

An index that is missing, damaged, or of another format is not used, nor is any without FAISS: the k best are then found
by a scan, whose reason says so.
"""

import threading

from softkv.errors import FormatTooNew, IndexDamaged, MissingExtra
from softkv.index.candidates import Proposer
from softkv.storage import IndexFile, Snapshot

PROPOSER = "proposer"  # the name of the index file


class Proposers:
    """The proposer that a handle has read, shared with its snapshots."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may ask. What is read is put in place whole
        self._file: tuple[int, int] | None = None
        self._found: Proposer | None = None
        self._problem: str | None = None

    def there(self, snapshot: Snapshot) -> bool:
        """Whether there is one, usable or not."""
        try:
            file = snapshot.index(PROPOSER)
        except IndexDamaged:
            return True
        if file is not None:
            file.close()
        return file is not None

    def of(self, snapshot: Snapshot) -> tuple[Proposer | None, str | None]:
        """The proposer of this commit; or None, and why there is none that can be used, unless none was built."""
        with self._lock:
            try:
                file = snapshot.index(PROPOSER)
            except IndexDamaged as error:
                return None, f"the index cannot be used: {error}"
            if file is None:
                return None, None
            with_file = snapshot.generation, file.commit
            try:
                if self._file != with_file:
                    found, problem = _read_or_problem(file, snapshot)
                    self._file, self._found, self._problem = with_file, found, problem
                return self._found, self._problem
            finally:
                file.close()


def _read_or_problem(file: IndexFile, snapshot: Snapshot) -> tuple[Proposer | None, str | None]:
    try:
        return _read(file.read(), snapshot, file.rows), None
    except (IndexDamaged, FormatTooNew) as error:
        return None, f"the index cannot be used: {error}"
    except MissingExtra as error:
        return None, f"the index cannot be asked: {error}"


def _read(content: memoryview, snapshot: Snapshot, rows: int) -> Proposer:
    assert snapshot.layout is not None
    known = int.from_bytes(content[:8], "little")
    if known > rows:
        raise IndexDamaged(f"the proposer knows {known} rows, but {rows} were there: build it again")
    return Proposer.from_bytes(content[8:], width=snapshot.layout.key_width, rows=known)
