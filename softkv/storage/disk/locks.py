"""One writer, and readers that pin what they read: advisory locks on LOCK and PIN.

A lock belongs to the open file, not to the process, so it is released the moment its holder dies, and nothing has to be
cleaned up. After a fork the child closes its copies: otherwise it would keep its dead parent's lock. Only the process
that took a lock unlocks it, explicitly, since a process being started may hold a copy of the open file for a moment.
"""

import os
import re
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TypeVar
from zlib import crc32

from softkv.errors import StoreDamaged, StoreLocked, WriterFenced, WritingUnsupported
from softkv.storage.disk import files

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # pragma: no cover - where there is no flock there is no writer either
    fcntl = None

LOCK, PIN = "LOCK", "PIN"  # the files that are locked: of a store, and of a generation
SERVER = "SERVER"  # the file with which a server says how to reach it, while it is the writer; see announced.py
_NETWORK = re.compile(r"nfs4?|cifs|smb2|smb3|smbfs|9p|afs|ceph|lustre|glusterfs|ncpfs|davfs|fuse\..*")

PAUSE = 0.05  # seconds from one attempt to become the writer to the next
Opened = TypeVar("Opened")
_LONGEST = 4096  # bytes of LOCK that are read
_NOTE = re.compile(rb"(commit \d{20} of [0-9a-f]+ with [0-9a-f]{8} )crc32 ([0-9a-f]{8})\n")

_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class FileLock:
    """A lock on an open file, released when the file is closed."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self._holder = b""  # the holder, as written in the file
        self._process = os.getpid()
        _held.add(self)

    def sign(self, holder: bytes, note: bytes) -> None:
        """Write the holder to the file, with a note below, in place of what was there."""
        self._holder = holder
        files.write_at(self.descriptor, memoryview(holder + note), 0, self.path)
        with files.translating(f"cannot write {self.path}"):
            os.ftruncate(self.descriptor, len(holder + note))

    def put_note(self, note: bytes) -> None:
        """Replace the note by another one of the same length."""
        files.write_at(self.descriptor, memoryview(note), len(self._holder), self.path)

    def forget_note(self) -> None:
        """Remove the note durably; only the holder stays in the file."""
        self.sign(self._holder, b"")
        files.sync(self.descriptor, self.path)

    def release(self) -> None:
        """Unlock and close the file. Subtle: a child only closes it; LOCK_UN would take the lock from its parent."""
        if self.descriptor >= 0:
            if fcntl is not None and os.getpid() == self._process:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)
        self.descriptor = -1


def _locked(path: str, *, exclusive: bool, create: bool = False) -> FileLock | None:
    """The lock on a file, or None when another lock prevents it."""
    descriptor = files.open_regular(path, write=exclusive, create=create)
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise files.translated(error, f"cannot lock {path}") from error
    return FileLock(path, descriptor)


def lock_writer(directory: str) -> FileLock:
    """Become the writer of a store; an error names the present one. Removes the SERVER file of a killed server."""
    lock = _locked(os.path.join(directory, LOCK), exclusive=True, create=True)
    if lock is None:
        text = _holder(directory)
        raise StoreLocked(
            f"{directory} is open for writing by {text or 'another process'}. Close it there, have "
            "it waited for with wait=SECONDS, or open with mode 'r'.",
            _pid_in(text),
        )
    holder = f"{_process(os.getpid())}{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n"
    try:
        with suppress(OSError):
            os.unlink(os.path.join(directory, SERVER))  # a killed server may have had the process number of this one
        lock.sign(holder.encode(), note_in(files.read_at(lock.descriptor, _LONGEST, 0, lock.path)))
    except BaseException:
        lock.release()
        raise
    return lock


def is_writer(pid: int, directory: str) -> bool:
    """Whether the process of this number, on this machine, is the writer of a store at present."""
    if not _holder(directory).startswith(_process(pid)):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False  # the lock is not tried: even a shared lock could keep the next writer out
    except PermissionError:
        pass
    lock = _locked(os.path.join(directory, LOCK), exclusive=False)
    if lock is not None:
        lock.release()
    return lock is None


def opened(attempt: Callable[[], Opened], wait: float) -> Opened:
    """What an attempt opens; it is repeated for so many seconds while another process is the writer."""
    # flock could sleep until the lock is free, but has no deadline, and a thread could not be woken from it.
    until = time.monotonic() + wait
    while True:
        try:
            return attempt()
        except StoreLocked:
            if time.monotonic() >= until:
                raise
        time.sleep(min(PAUSE, wait))


def require_held(lock: FileLock) -> None:
    """Refuse to go on when the lock file was replaced, so that there may be a second writer."""
    try:
        named, held = os.stat(lock.path), os.fstat(lock.descriptor)
    except OSError as error:
        raise WriterFenced(f"{lock.path} is gone, so another writer may be at work. Open the store again.") from error
    if not os.path.samestat(named, held):
        raise WriterFenced(f"{lock.path} was replaced, so another writer may be at work. Open the store again.")


def pin_shared(generation: str) -> FileLock | None:
    """Keep a generation from being removed; None when it is being removed right now."""
    try:
        return _locked(os.path.join(generation, PIN), exclusive=False)
    except StoreDamaged:  # it is gone already
        return None


def pin_exclusive(generation: str) -> FileLock | None:
    """The lock that keeps readers out of a generation; None when one has it open."""
    return _locked(os.path.join(generation, PIN), exclusive=True, create=True)


def require_writable_platform(directory: str, *, force: bool) -> None:
    """Refuse to write where locks or durability cannot be relied on."""
    if fcntl is None or sys.platform not in ("linux", "darwin"):
        raise WritingUnsupported(
            f"softkv writes on Linux and macOS only; on {sys.platform} it reads: open with mode 'r'"
        )
    kind = filesystem_kind(directory, _mounts())
    if not force and _NETWORK.fullmatch(kind):
        raise WritingUnsupported(
            f"{directory} lies on a network file system ({kind}), whose locks and syncs cannot be relied on. "
            "Put the store on a local disk, or open with force=True if one writer is certain."
        )


def filesystem_kind(path: str, mounts: str) -> str:
    """The type of the file system that holds `path`, from the text of /proc/self/mountinfo; "" when unknown."""
    path, best, kind = os.path.realpath(path), "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])  # blanks stand as \040
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _mounts() -> str:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def content(directory: str) -> bytes:
    """The content of LOCK."""
    return files.start_of(os.path.join(directory, LOCK), _LONGEST)


def note_of(number: int, store: str, record: int) -> bytes:
    """The line below the holder: a commit, its store, and a checksum of its record; see acknowledged.py."""
    text = b"commit %020d of %s with %08x " % (number, store.encode(), record)
    return text + b"crc32 %08x\n" % crc32(text)


def note_in(said: bytes) -> bytes:
    """The note in the content of LOCK; empty when there is no complete one."""
    whole = (note[0] for note in _NOTE.finditer(said) if int(note[2], 16) == crc32(note[1]))
    return next(whole, b"")


def _process(pid: int) -> str:
    """How LOCK names a process: with the node, since containers that share a store number their own processes."""
    return f"pid {pid} on {os.uname().nodename} since "


def _holder(directory: str) -> str:
    lines = content(directory)[:400].decode(errors="replace").strip().splitlines()
    return lines[0] if lines else ""


def _pid_in(holder: str) -> int | None:
    """The number of the process in the line of a holder."""
    words = holder.split()
    return int(words[1]) if len(words) > 1 and words[0] == "pid" and words[1].isdecimal() else None
