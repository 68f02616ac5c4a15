"""One regular file: read as it is, or written whole or not at all.

A file is written under another name in the same directory, synced, and given its name last. A failure of the operating
system is raised as an error of ours.

Does not know what the bytes mean.
"""

import io
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from softkv.errors import BadRecord, InputError, StoreExists, StoreNotFound
from softkv.storage.disk import files

_BUFFER = 1 << 20


class _RegularFile(io.FileIO):
    """A file whose failures are errors of ours; errors from the caller's own code are unchanged."""

    def __init__(self, descriptor: int, mode: str, path: str) -> None:
        super().__init__(descriptor, mode)
        self._path = path

    def write(self, data: Any, /) -> int:
        with files.translating(f"cannot write {self._path}"):
            return super().write(data)

    def readinto(self, buffer: Any, /) -> int:
        with files.translating(f"cannot read {self._path}"):
            return super().readinto(buffer)


def place(path: str | os.PathLike[str]) -> str:
    """A path as one that does not change with the working directory; links on the way are followed, not at its end."""
    given = os.fsdecode(path)
    if "\0" in given:
        raise InputError(f"the path {given!r} holds a NUL character, which no path can")
    folder, name = os.path.split(os.path.abspath(given))
    return os.path.join(os.path.realpath(folder), name)


def require_free(path: str, *, store: str | None, force: bool) -> None:
    """Refuse a target that is impossible, exists already, or lies in the store's directory, if that is local."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreNotFound(f"{folder} is not a directory, so {os.path.basename(path)} cannot be written there")
    if store is not None and _lies_in(folder, store):
        raise InputError(f"{path} lies in the store that is exported; write to a place outside of {store}")
    if not os.path.lexists(path):
        return
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise StoreExists(f"{path} is there already and is not a regular file, so it is never replaced")
    if not force:
        raise StoreExists(f"{path} is there already. Choose another path, or replace it with force=True.")


def _lies_in(folder: str, store: str) -> bool:
    """Whether a folder is the store's or below it, even under another name."""
    with files.translating(f"cannot look at {store}"):
        while not os.path.samefile(folder, store):
            above = os.path.dirname(folder)
            if above == folder:
                return False
            folder = above
    return True


@contextmanager
def written(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """A new file to write to. It gets its name when the block succeeds, and otherwise it is removed."""
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".softkv-export-{secrets.token_hex(8)}")
    raw = _RegularFile(files.create_file(temporary), "wb", path)
    try:
        try:
            file = io.BufferedWriter(raw, _BUFFER)
            yield file
            file.flush()
            files.sync(raw.fileno(), path)
        finally:
            raw.close()  # not `file`, which would try again to write what could not be written
        _name(temporary, path, force=force)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    files.sync_directory(folder)


@contextmanager
def nameless() -> Iterator[BinaryIO]:
    """A new file without a name, to write to and read again; it is gone when closed, however the process ends."""
    try:
        with tempfile.TemporaryFile(prefix="softkv-", buffering=0) as made:
            descriptor = os.dup(made.fileno())
    except OSError as error:
        raise files.translated(error, "cannot make a temporary file") from error
    with _RegularFile(descriptor, "wb", "a temporary file") as raw:
        file = io.BufferedWriter(raw, _BUFFER)  # referenced here, since it closes `raw` when it is no longer used
        yield file


def _name(temporary: str, path: str, *, force: bool) -> None:
    try:
        if force or not _linked(temporary, path):
            os.replace(temporary, path)
    except FileExistsError as error:
        raise StoreExists(f"{path} came into being meanwhile, so it was left alone") from error
    except OSError as error:
        raise files.translated(error, f"cannot name {path}") from error


def _linked(temporary: str, path: str) -> bool:
    """Give a file its name in one step, unless the name is taken; False where the file system cannot do that."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        if os.path.lexists(path):
            raise FileExistsError(path) from error
        return False
    os.unlink(temporary)
    return True


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A regular file, and nothing else, to read from."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError as error:
        raise StoreNotFound(f"there is no file {path}") from error
    except OSError as error:
        raise files.translated(error, f"cannot open {path}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadRecord(f"{path} is not a regular file; an export of a store is one")
    with io.BufferedReader(_RegularFile(descriptor, "rb", path), _BUFFER) as file:
        yield file
