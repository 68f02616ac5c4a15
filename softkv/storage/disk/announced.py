"""How to reach the server of a store: the file SERVER in it, with the URL, a token and the number of the process.

It is valid only while that process, on this machine or in this container, is the writer, and the next writer removes
it: so the file of a server that was killed misleads no process. It is readable by its owner alone; a file that other
users could read or have written is ignored.

Is no part of the store: copies of the store leave it out, and a damaged file counts as no server.
"""

import json
import os
import stat
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from softkv.errors import StoreError
from softkv.storage.disk import files, locks
from softkv.storage.disk.named import is_url

SERVER = locks.SERVER
_LONGEST = 4096  # bytes of SERVER that are read; a longer file is ignored


@dataclass(frozen=True, slots=True)
class Announcement:
    """The URL of the server of a store, the token it expects, and the number of its process."""

    url: str
    token: str = field(repr=False)
    pid: int


def announce(directory: str, announcement: Announcement) -> None:
    """Write SERVER whole or not at all; for the writer of the store alone."""
    path, beside = os.path.join(directory, SERVER), os.path.join(directory, SERVER + ".new")
    with files.translating(f"cannot write {path}"):
        with suppress(FileNotFoundError):
            os.unlink(beside)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(announcement), file)
        os.replace(beside, path)


def withdraw(directory: str) -> None:
    """Remove SERVER, if this process wrote it; errors are ignored, since the file is soon invalid."""
    found = _read(directory)
    if found is not None and found.pid == os.getpid():
        with suppress(OSError):
            os.unlink(os.path.join(directory, SERVER))


def announced(directory: str) -> Announcement | None:
    """The server of a store, if it has one now that this user may use."""
    found = _read(directory)
    try:
        return found if found is not None and locks.is_writer(found.pid, directory) else None
    except StoreError:
        return None


def _read(directory: str) -> Announcement | None:
    path = os.path.join(directory, SERVER)
    try:
        descriptor = files.open_regular(path)
    except StoreError:
        return None
    try:
        status = os.fstat(descriptor)
        said = files.read_at(descriptor, _LONGEST + 1, 0, path)
        ours = sys.platform != "win32" and status.st_uid == os.geteuid()
        trusted = ours and not stat.S_IMODE(status.st_mode) & 0o077
        return _parsed(said) if trusted and len(said) <= _LONGEST else None
    except (StoreError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _parsed(said: bytes) -> Announcement:
    """The content of SERVER; a ValueError where `announce` cannot have written it."""
    found = json.loads(said)
    if not isinstance(found, dict) or {name: type(one) for name, one in found.items()} != (
        {"url": str, "token": str, "pid": int}
    ):
        raise ValueError("not what a server writes")
    if not is_url(found["url"]) or not (found["url"] + found["token"]).isascii():
        raise ValueError("not the URL of a server")
    return Announcement(**found)
