"""A store that several processes use at once, through its server, which is started if there is none.

A server that is started here is independent: it continues when the process that started it is killed, and ends after a
time without requests. Of two that are started at the same time one gets the store, and serves both processes.

Does not know what the requests are.
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

ReplyT = TypeVar("ReplyT")
PAUSE = 0.05  # seconds between polls
LASTING = 0.5  # seconds to wait for a server that does not answer, before looking at its store
RESTARTS = 20.0  # seconds for which a request is repeated while servers end and start
STARTS = 60.0  # seconds for a started server to answer
TRIES, REFUSED = 2, 2.0  # servers to start while another process holds the store; seconds for the other to answer
LOCKED = "is open for writing by"  # in the message of a server that could not open the store


class Reaching:
    """The store at a path or a URL, also when its server ends and another one starts. Threads may share it."""

    def __init__(self, where: str, serving: Sequence[str]) -> None:
        """Use the store there; `serving` is the command, to which the path is appended, that serves it."""
        self._where = where if is_url(where) else os.path.realpath(os.path.expanduser(where))
        self._serving, self._lock = serving, threading.Lock()
        self._found: tuple[str, str | None] | None = None
        self._db: RemoteStore | None = None

    def ask(self, what: Callable[["RemoteStore"], ReplyT]) -> ReplyT:
        """Call a function with the store, again if the server ends meanwhile, so writes need a batch name."""
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
        """Close the connection; the server continues."""
        if self._db is not None:
            self._db.close()

    def _opened(self, url: str, token: str | None) -> "RemoteStore":
        # Imported here, since it takes longer than a client should wait for the list of tools.
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
        """Wait for a server of the store, whichever process started it."""
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
            with suppress(StoreLocked):  # another process has made it, and serves it
                open_store(self._where, value="text").close()

    def _child(self, said: Any) -> "subprocess.Popen[bytes]":
        """Start a server in a session of its own, so that it survives this process and signals to its group."""
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
