"""What a process asked of the operating system, call by call, as shim.c wrote it down.

Replayed in this order on a copy of the folder as it was before, the calls that did not fail give the folder as it is
after them, apart from what SQLite writes through its map of `-shm`.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "open", "write", "truncate", "fsync", "fdatasync", "rename", "unlink", "rmdir", "mkdir", "mmap", "close", "mark",
    "flock", "sync_file_range",
)  # fmt: skip
_HEAD = struct.Struct("<IBBHHiiiqqQ")
_MAGIC = 0x6B766673


@dataclass(frozen=True)
class Call:
    """One call of the operating system on a path below the watched folder.

    A file that was removed while it was open has " (deleted)" at the end of its path.
    """

    number: int  # from 1, in the order in which they happened
    name: str  # one of NAMES; an fallocate is a truncate to the length that the file has then
    path: str  # relative to the watched folder ("" is the folder itself); for rename the old name
    offset: int = 0  # write: where (plain write(2) is resolved to its offset); mmap: the offset
    length: int = 0  # write: bytes written; truncate: the new length; mmap: the length
    data: bytes = b""  # write: what was written (what really went out, so a short write is short)
    target: str = ""  # rename: the new name; mark: what the workload says of itself
    flags: int = 0  # open: the flags; mmap: prot | shared << 8; flock: the operation
    error: int = 0  # errno when it failed; failed calls changed nothing (a short write has its short length)
    descriptor: int = -1  # the number of the open file; open: that it got
    sqlite: bool = False  # whether SQLite called, where that can be told: see recorder.sqlite_is_told

    def __str__(self) -> str:
        what = f"{self.length} at {self.offset}" if self.name in ("write", "truncate", "mmap") else self.target
        by = " by SQLite" if self.sqlite else ""
        return f"{self.number} {self.name} {self.path} {what}{by}{f' failed ({self.error})' if self.error else ''}"


def read(path: str | Path) -> list[Call]:
    """The calls of a log file; of a process that is dead, or that has disarmed."""
    content, start, calls = Path(path).read_bytes(), 0, list[Call]()
    while start < len(content):
        magic, name, sqlite, path_size, target_size, descriptor, flags, error, offset, length, size = _HEAD.unpack_from(
            content, start
        )
        start += _HEAD.size
        named, target, end = start + path_size, start + path_size + target_size, start + path_size + target_size + size
        if magic != _MAGIC or end > len(content):
            raise ValueError(f"the log {path} is torn after call {len(calls)}")
        texts = content[start:named].decode(errors="surrogateescape"), content[named:target].decode()
        what = (
            NAMES[name],
            texts[0],
            offset,
            length,
            content[target:end],
            texts[1],
            flags,
            error,
            descriptor,
            bool(sqlite),
        )
        calls.append(Call(len(calls) + 1, *what))
        start = end
    return calls
