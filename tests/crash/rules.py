"""What no recorded process may do, whatever becomes of it.

- Map a file so that it can be written through the map: only SQLite does, its `-shm`.
- Open `catalog.sqlite*` by anything but SQLite: closing another descriptor would drop SQLite's locks.
- Sync an open file again after that failed: the system has dropped what it could not write.
- Name something by a commit, put it in place by a rename, or acknowledge it, before it is durable: rows and index files
  are synced, and so are the directories with new names in them.
"""

import os
import posixpath
import re
from collections.abc import Iterable

from tests.crash.calls import Call

PROT_WRITE, SHARED = 2, 1 << 8
CATALOG = "catalog.sqlite"
_ROWS = re.compile(r"(keys|values)\.\w+\Z")  # norms are derived: worked out again where they are short
_NUMBER = re.compile(r"[1-9][0-9]*\Z")
_START, _HEADER, _PAGE = 32, 24, 4096  # bytes: SQLite's log has frames of a header and a page


def broken(log: Iterable[Call], *, told: bool = True) -> list[str]:
    """The rules that a log breaks, and where; `told` says whether SQLite's calls can be told from others."""
    durability, sync, found = Durability(), Syncs(), list[str]()
    for call in log:
        if call.name == "mmap" and call.flags & PROT_WRITE and call.flags & SHARED and not call.path.endswith("-shm"):
            found.append(f"maps a file for writing: {call}")
        if call.name == "open" and told and CATALOG in call.path and not call.sqlite:
            found.append(f"opens the catalog beside SQLite: {call}")
        found += sync.wrong(call)
        found += durability.wrong(call)
    return found


class Syncs:
    """Which open files have failed to be synced."""

    def __init__(self) -> None:
        self._failed: set[tuple[str, int]] = set()

    def wrong(self, call: Call) -> list[str]:
        """What is wrong with this call."""
        file = (call.path, call.descriptor)
        if call.name == "close":
            self._failed.discard(file)
        if call.name not in ("fsync", "fdatasync"):
            return []
        found = [f"syncs again what failed to be synced: {call}"] if file in self._failed else []
        if call.error:
            self._failed.add(file)
        return found


class Durability:
    """What has been written or named and is not durable yet."""

    def __init__(self) -> None:
        self._written: dict[str, Call] = {}  # by path: the first write since the last sync
        self._named: dict[str, Call] = {}  # by path: the call that made it, since the last sync of its directory
        self._committed: dict[str, Call] = {}  # by path of SQLite's log: the end of a commit since its last sync
        self._used: set[str] = set()  # SQLite's logs that were written to: to read, it opens one that is there
        self._ending: Call | None = None  # the header of a frame that ends a commit, until it is synced

    def wrong(self, call: Call) -> list[str]:
        """What is wrong with this call. One that failed changes nothing: what it should have synced is not."""
        if call.error:
            if call.name in ("fsync", "fdatasync"):
                self._committed.pop(call.path, None)
                self._ending = None  # SQLite says so; see durable_commits for who does not listen
            if call.name == "write" and self._ending and self._ends(call, self._ending):
                self._committed.pop(call.path, None)  # a part of the page was written, and then the disk was full
                self._ending = None
            return []
        if ends_commit(call):
            self._take_note(call)
            store = posixpath.dirname(call.path) + "/"
            named = [path for path in self._rows_and_indexes() if path.startswith(store.removeprefix("/"))]
            return self._pending("is named by a commit", call, named)
        if call.name == "mark" and call.target.startswith("done"):
            return self._pending("is acknowledged", call, self._acknowledged())
        if call.name == "mark" and call.target.startswith("gave up"):
            for noted in (self._written, self._named, self._committed):
                noted.clear()  # it lies where nothing refers to it, and is written again
        if call.name == "rename":
            inside = [path for path in (*self._written, *self._named) if path.startswith(call.path + "/")]
            wrong = self._pending("is put in place", call, [path for path in inside if not _is_passing(path)])
            self._rename(call)
            return wrong
        self._take_note(call)
        return []

    @staticmethod
    def _ends(call: Call, ending: Call) -> bool:
        """Whether this writes the page of a frame, or the rest of it, of which this is the header."""
        return call.path == ending.path and 0 < call.offset - ending.offset < _HEADER + _PAGE

    def _take_note(self, call: Call) -> None:
        if call.name in ("write", "truncate"):
            self._written.setdefault(call.path, call)
            self._used.add(call.path)
            if ends_commit(call):
                self._ending = call
            elif self._ending and call.path == self._ending.path and call.offset >= self._ending.offset + _HEADER:
                self._committed[call.path] = self._ending
        elif call.name == "mkdir" or (call.name == "open" and _makes(call) and call.path not in self._used):
            self._named[call.path] = call
        elif call.name in ("fsync", "fdatasync"):
            self._written.pop(call.path, None)
            if self._committed.pop(call.path, None):
                self._ending = None
            if call.name == "fsync" or call.sqlite:
                self._named = {path: one for path, one in self._named.items() if posixpath.dirname(path) != call.path}
        elif call.name in ("unlink", "rmdir"):
            self._written.pop(call.path, None)
            self._named.pop(call.path, None)
            self._used.discard(call.path)

    def _rename(self, call: Call) -> None:
        for noted in (self._written, self._named):
            for path in [path for path in noted if path == call.path or path.startswith(call.path + "/")]:
                noted[call.target + path[len(call.path) :]] = noted.pop(path)
        self._named[call.target] = call

    def _rows_and_indexes(self) -> list[str]:
        written = [path for path in self._written if _is_rows(path) or _is_index(path)]
        return written + [path for path in self._named if not _is_passing(path) and not _is_log(path)]

    def _acknowledged(self) -> list[str]:
        return (
            self._rows_and_indexes()
            + list(self._committed)
            + [path for path in self._named if _is_log(path) and path in self._used]
        )

    def _pending(self, what: str, call: Call, paths: list[str]) -> list[str]:
        origins = {path: self._named.get(path) or self._committed.get(path) or self._written[path] for path in paths}
        return [f"{path} {what} before it is durable: {one}, then {call}" for path, one in origins.items()]


def durable_commits(log: Iterable[Call]) -> int:
    """How many commits of SQLite were synced."""
    waiting = durable = 0
    for call in log:
        if not call.error and ends_commit(call):
            waiting += 1
        elif call.name == "fdatasync" and _is_log(call.path):
            durable, waiting = durable + (0 if call.error else waiting), 0
    return durable


def ends_commit(call: Call) -> bool:
    """Whether this is the frame of SQLite's log that makes what was written before it a commit."""
    if call.name != "write" or not _is_log(call.path):
        return False
    at_header = call.offset >= _START and (call.offset - _START) % (_HEADER + _PAGE) == 0
    return at_header and call.length >= 8 and call.data[4:8] != bytes(4)  # the pages of the catalog, after a commit


def _makes(call: Call) -> bool:
    """Whether an open may have made the file: SQLite's log is made by whoever comes first."""
    return bool(call.flags & os.O_CREAT and (call.flags & os.O_EXCL or _is_log(call.path)))


def _is_log(path: str) -> bool:
    return path.endswith(f"{CATALOG}-wal")


def _is_rows(path: str) -> bool:
    return bool(_ROWS.match(posixpath.basename(path)))


def _is_index(path: str) -> bool:
    folder, name = posixpath.split(path)
    return posixpath.basename(folder) == "index" and bool(_NUMBER.match(name))


def _is_passing(path: str) -> bool:
    """What need not last: what is locked, what is SQLite's own care, what is worked out or copied again."""
    name = posixpath.basename(path.removesuffix(" (deleted)"))
    return name == "LOCK" or name.startswith((CATALOG + "-journal", CATALOG + "-shm", CATALOG + ".new", "norms."))
