"""What every commit of a store must hold, in memory that all processes share.

The writer enters a commit before it makes it, and announces it when the store has acknowledged it. So a reader can tell
of any commit whether it holds what it must, and whether it should have seen a later one.
"""

import mmap
import struct

COMMITS = 1 << 17
READERS = 8
_ENTRY = struct.Struct("<QQ")  # a sum over all items, and how many there are
_NUMBER = struct.Struct("<Q")
_ANNOUNCED, _OVER, _TURNS, _ENTRIES = 0, 8, 16, 4096

Entry = tuple[int, int]


class Ledger:
    """Made before the processes are forked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ENTRIES + COMMITS * _ENTRY.size)

    def enter(self, commit: int, entry: Entry, *, commits: int = 1) -> None:
        """What this commit will hold, and those after it that change nothing."""
        for number in range(commit, commit + commits):
            _ENTRY.pack_into(self._memory, _ENTRIES + number * _ENTRY.size, *entry)

    def entry(self, commit: int) -> Entry:
        """What this commit must hold."""
        found: Entry = _ENTRY.unpack_from(self._memory, _ENTRIES + commit * _ENTRY.size)
        return found

    def announce(self, commit: int) -> None:
        """From now on nobody may see an older one."""
        _NUMBER.pack_into(self._memory, _ANNOUNCED, commit)

    @property
    def announced(self) -> int:
        """The newest commit that was acknowledged, or one before it."""
        return int(_NUMBER.unpack_from(self._memory, _ANNOUNCED)[0])

    def end(self) -> None:
        """Let all readers come to an end."""
        _NUMBER.pack_into(self._memory, _OVER, 1)

    @property
    def over(self) -> bool:
        """Whether readers shall come to an end."""
        return bool(_NUMBER.unpack_from(self._memory, _OVER)[0])

    def turned(self, reader: int) -> None:
        """A reader has read once more."""
        _NUMBER.pack_into(self._memory, _TURNS + 8 * reader, self.turns(reader) + 1)

    def turns(self, reader: int) -> int:
        """How often a reader has read."""
        return int(_NUMBER.unpack_from(self._memory, _TURNS + 8 * reader)[0])
