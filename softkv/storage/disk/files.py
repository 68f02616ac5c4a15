"""Plain files, made durable: open without following links, write everything or raise, sync, sync the directory.

Every failure of the operating system is raised as an error of ours. Does not know what the bytes mean.
"""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from softkv.errors import AccessRefused, NotAStore, StorageFailed, StorageFull, StoreDamaged, StoreError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM}
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def translated(error: OSError, doing: str) -> StoreError:
    """The error of ours that says what the operating system refused, and what to do."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return StorageFull(f"{doing}: {reason}. Nothing of it was kept; make room and write again.")
    if error.errno == errno.EROFS:
        return AccessRefused(
            f"{doing}: {reason}. A store there can only be read (mode 'r'). To write, copy it to another file system, "
            "or have this one mounted for writing."
        )
    if error.errno in _REFUSED:
        return AccessRefused(f"{doing}: {reason}. Ask for permission on the directory, or copy the store.")
    return StorageFailed(f"{doing}: {reason}")


@contextmanager
def translating(doing: str) -> Iterator[None]:
    """Wrap calls of the operating system: their errors are raised as ours, and ours are unchanged."""
    try:
        yield
    except StoreError:  # also an OSError, but one that says already what to do
        raise
    except OSError as error:
        raise translated(error, doing) from error


def open_regular(path: str, *, write: bool = False, create: bool = False) -> int:
    """Open a regular file, and nothing else: no link, no pipe, no device."""
    flags = (
        _FLAGS | getattr(os, "O_NONBLOCK", 0) | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
    )
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError as error:
        raise StoreDamaged(f"{path} is missing. `softkv check` tells what is left of the store.") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise NotAStore(f"{path} is not a regular file, so it is not opened") from error
        raise translated(error, f"cannot open {path}") from error
    try:
        _require_own(os.fstat(descriptor), path, write=write)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(path: str, *, write: bool = False) -> None:
    """Refuse a path that is there but not a regular file, or not to be written, without opening it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise translated(error, f"cannot look at {path}") from error
    _require_own(found, path, write=write)


def _require_own(found: os.stat_result, path: str, *, write: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAStore(f"{path} is not a regular file, so it is not opened")
    if write and found.st_nlink > 1:
        raise AccessRefused(
            f"{path} is one of {found.st_nlink} names of the same file (hard links), and writing would change what "
            "lies under the others. Copy the store (cp -R), and write to the copy."
        )


def is_directory(path: str) -> bool:
    """Whether this is a directory itself, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def write_at(descriptor: int, data: memoryview, offset: int, path: str) -> None:
    """Write all of `data` at `offset`; a short write is continued, an error is raised as ours."""
    data = data.cast("B")
    while data:
        try:
            written = os.pwrite(descriptor, data, offset)
        except OSError as error:
            raise translated(error, f"cannot write {path}") from error
        if written <= 0:
            raise StorageFailed(f"cannot write {path}: the system wrote {written} of {len(data)} bytes")
        data, offset = data[written:], offset + written


def begin_to_sync(descriptor: int, offset: int, size: int) -> None:
    """Have the system write these bytes to the disk in the background, so that `sync` has little left to wait for."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # the advice drops no unwritten bytes
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def read_at(descriptor: int, size: int, offset: int, path: str) -> bytes:
    """Read `size` bytes of a file from `offset` on, fewer only where it ends."""
    pieces = []
    with translating(f"cannot read {path}"):
        while size and (piece := _piece(descriptor, size, offset)):
            pieces.append(piece)
            size, offset = size - len(piece), offset + len(piece)
    return b"".join(pieces)


def _piece(descriptor: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # on Windows
    return os.read(descriptor, size)


def start_of(path: str, size: int) -> bytes:
    """Read the first `size` bytes of a regular file."""
    descriptor = open_regular(path)
    try:
        return read_at(descriptor, size, 0, path)
    finally:
        os.close(descriptor)


def sync(descriptor: int, path: str) -> None:
    """Make the content of a file durable. Subtle: never try again after an error; the kernel has dropped the pages."""
    try:
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(descriptor)
    except OSError as error:
        raise _lost(error, path) from error


def _lost(error: OSError, path: str) -> StorageFailed:
    """The error for a failed sync: pages may be lost, even if the system reports only a lack of space."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StorageFailed(f"cannot make {path} durable: {reason}. Close the handle and open the store again.")


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    with translating(f"cannot open {path}"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _lost(error, path) from error
    finally:
        os.close(descriptor)


def make_directory(path: str) -> None:
    """Make a directory that is not there yet."""
    with translating(f"cannot make {path}"):
        os.mkdir(path)


def create_file(path: str) -> int:
    """Make an empty regular file that is not there yet, open for writing."""
    with translating(f"cannot make {path}"):
        return os.open(path, _FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def write_new(path: str, content: bytes) -> None:
    """Make a file of this content; it is durable, but its directory entry is not yet."""
    descriptor = create_file(path)
    try:
        write_at(descriptor, memoryview(content), 0, path)
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def require_room(path: str, needed: int, doing: str) -> None:
    """Refuse before the first byte when the disk cannot hold what is about to be written."""
    with translating(f"cannot tell how much room there is at {path}"):
        free = shutil.disk_usage(path).free
    if free < needed:
        most, least = free // 10**5 / 10, -(-needed // 10**5) / 10
        raise StorageFull(f"{doing} needs {least:,.1f} MB and the disk has {most:,.1f} MB free. Make room first.")


def list_directory(path: str) -> list[str]:
    """The names in a directory, sorted."""
    with translating(f"cannot read {path}"):
        return sorted(os.listdir(path))


def remove_tree(path: str) -> None:
    """Remove a directory of ours, as far as the system permits; the next writer removes the rest."""
    if is_directory(path):  # rmtree would open a pipe, and wait for a process at its other end
        shutil.rmtree(path, ignore_errors=True)


def without_frames(error: StoreError) -> StoreError:
    """A copy of an error, to be kept: its traceback would keep the callers' files open after the handle is closed."""
    return type(error)(*error.args)
