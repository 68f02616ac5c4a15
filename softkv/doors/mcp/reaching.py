"""A store that several processes use at a time: reached through its server, which is started where there is none.

A server that is started here belongs to nobody: it goes on when the process that started it is killed, and ends when
nobody has asked it anything for a while. Of two that are started at the same time one gets the store, and serves both.

Does not know what is asked.
"""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from softkv.errors import Busy, HandleClosed, KindError, ServerUnreachable, StoreError, StoreLocked, Unauthorized
from softkv.kinds import ValueKind
from softkv.storage.disk.announced import Announcement, announced
from softkv.storage.disk.named import is_url

if TYPE_CHECKING:
    from softkv.doors.remote.handle import RemoteStore

Found = TypeVar("Found")
PAUSE = 0.05  # seconds from one look to the next
LASTING = 0.5  # seconds in which a server that is gone is waited for, before its store is looked at
RESTARTS = 20.0  # seconds in which a question is asked again, of a server that ended or was started meanwhile
STARTS = 60.0  # seconds in which a server has to answer
TRIES, REFUSED = 2, 2.0  # servers that are started while others hold the store, and the seconds these have to answer
LOCKED = "is open for writing by"  # in the words of a server that was refused for that


class Reaching:
    """The store at a path or a URL, whatever becomes of the process that serves it. Threads may share it."""

    def __init__(self, where: str, serving: Sequence[str]) -> None:
        """Reach a store; `serving` is the command that serves the path that is put behind it."""
        self._where = where if is_url(where) else os.path.realpath(os.path.expanduser(where))
        self._serving, self._lock = serving, threading.Lock()
        self._found: tuple[str, str | None] | None = None
        self._db: RemoteStore | None = None

    def ask(self, what: Callable[["RemoteStore"], Found]) -> Found:
        """What a function finds in the store; called anew where the server ends, so what writes needs a batch."""
        until = time.monotonic() + RESTARTS
        while True:
            try:
                return what(self._reached())
            except (Busy, HandleClosed, ServerUnreachable, Unauthorized):
                if is_url(self._where) or time.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    def without_path(self, text: str) -> str:
        """A text with the name of the store in the place of its path, and without its directory."""
        folder, name = os.path.split(self._where)
        text = text.replace(self._where, name)
        return text if is_url(self._where) or folder == os.sep else text.replace(folder, "its directory")

    def _reached(self) -> "RemoteStore":
        with self._lock:
            found: tuple[str, str | None] = (self._where, None)
            if not is_url(self._where):
                server = announced(self._where) or self._started()
                found = server.url, server.token
            if self._db is None or found != self._found:
                self.close()
                self._db, self._found = self._opened(*found), found
            return self._db

    def close(self) -> None:
        """Let go of the server, which goes on without this."""
        if self._db is not None:
            self._db.close()

    def _opened(self, url: str, token: str | None) -> "RemoteStore":
        # Not at the head of the file: it takes longer than a client should wait for the list of tools.
        from softkv.doors.remote.connection import PATIENCE, ServerConnection
        from softkv.doors.remote.handle import RemoteStore

        lasting = PATIENCE if is_url(self._where) else LASTING
        db = RemoteStore(ServerConnection(url, token, lasting=lasting), writes=True)
        kind = db.value_kind
        if kind and not ValueKind(kind).embedded:
            db.close()
            raise KindError(f"expected a store of texts, or one that is not there yet, got one of kind {kind!r}.")
        return db

    def _started(self) -> Announcement:
        """The server of the store, once there is one, whoever has started it."""
        self._make()
        with tempfile.TemporaryFile() as said:
            for _ in range(TRIES):
                child, until = self._child(said), time.monotonic() + STARTS
                while time.monotonic() < until:
                    found = announced(self._where)
                    if found is not None:
                        return found
                    if child.poll() is not None:
                        until = min(until, time.monotonic() + REFUSED)
                    time.sleep(PAUSE)
                said.seek(0)
                words = said.read().decode(errors="replace").strip().rpartition("\n")[2]
                if LOCKED not in words:
                    break
        words = words or f"none has begun within {STARTS:g} seconds."
        raise StoreError(f"the memories have no server, and none can be started: {words}")

    def _make(self) -> None:
        from softkv.database import open as open_store

        if not os.path.lexists(self._where):
            with suppress(StoreLocked):  # somebody else has made it, and serves it
                open_store(self._where, value="text").close()

    def _child(self, said: Any) -> "subprocess.Popen[bytes]":
        """A server in a session of its own, so that it outlives this process and what ends its group."""
        said.seek(0)
        said.truncate()
        # Subtle: in the directory of the project that a client was started in, Python would find modules of others.
        return subprocess.Popen(
            [*self._serving, self._where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            cwd=os.sep,
            start_new_session=True,
        )
