"""Zip archives whose list of members may lie.

Does not know what members hold.
"""

import io
import zipfile
from typing import BinaryIO, cast

from softkv.files.record import Misfit

LARGEST_READ = 1 << 25  # bytes at once


class _Sparing:
    """A file that gives little at once: zipfile reads the list of members whole, however long it is said to be.

    That list is many times larger in memory.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        here = file.tell()
        self._size = file.seek(0, io.SEEK_END)
        file.seek(here)

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._file.tell())
        wanted = left if size < 0 else min(size, left)
        if wanted > LARGEST_READ:
            raise Misfit(f"a part of it says it is {wanted:,} bytes long")
        return self._file.read(wanted)


def archive_in(file: BinaryIO) -> zipfile.ZipFile:
    """The archive that an open file holds."""
    return zipfile.ZipFile(cast(BinaryIO, _Sparing(file)))
