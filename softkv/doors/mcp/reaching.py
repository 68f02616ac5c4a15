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

from softkv.errors import KindError, ServerUnreachable, StoreError, StoreLocked, Unauthorized
from softkv.kinds import ValueKind
from softkv.storage.disk.announced import announced
from softkv.storage.disk.named import is_url

if TYPE_CHECKING:
    from softkv.database import SoftKV

Found = TypeVar("Found")
PAUSE = 0.05  # seconds from one look to the next
LASTING = 2.0  # seconds in which a server that is gone is waited for, before its store is looked at
RESTARTS = 20.0  # seconds in which a question is asked again, of a server that ended or was started meanwhile
REFUSED, AGAIN = 10.0, 4.0  # seconds until it counts that a server was refused, and until it is tried once more
STARTS = 60.0  # seconds in which a server has to answer


class Reaching:
    """The store at a path or a URL, whatever becomes of the process that serves it. Threads may share it."""

    def __init__(self, where: str, serving: Sequence[str]) -> None:
        """Reach a store; `serving` is the command that serves the path that is put behind it."""
        self._where = where if is_url(where) else os.path.realpath(os.path.expanduser(where))
        self._serving, self._lock = serving, threading.Lock()
        self._found: tuple[str, str | None] | None = None
        self._db: SoftKV | None = None

    def ask(self, what: Callable[["SoftKV"], Found]) -> Found:
        """What a function finds in the store; called anew where the server ends, so what writes needs a batch."""
        until = time.monotonic() + RESTARTS
        while True:
            try:
                return what(self._reached())
            except (ServerUnreachable, Unauthorized):
                if is_url(self._where) or time.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    def without_path(self, text: str) -> str:
        """A text with the name of the store in the place of its path."""
        return text.replace(self._where, os.path.basename(self._where))

    def _reached(self) -> "SoftKV":
        with self._lock:
            found: tuple[str, str | None] = (self._where, None)
            if not is_url(self._where):
                server = announced(self._where) or self._started()
                found = server.url, server.token
            if self._db is None or found != self._found:
                self._db, self._found = self._opened(*found), found
            return self._db

    def _opened(self, url: str, token: str | None) -> "SoftKV":
        from softkv.database import open as open_store  # takes longer than a client should wait for the list of tools

        db: Any = open_store(url, "w", token=token)
        if not is_url(self._where):
            db._connection.lasting = db._connection.patience = LASTING
        info = db.info()
        if info.value_kind and not ValueKind(info.value_kind).embedded:
            raise KindError(f"this store holds values of kind {info.value_kind!r}, and memories are texts. {_OTHER}")
        if info.items and info.embedder is None:
            raise KindError(f"this store holds vectors, and no text can be compared with them. {_OTHER}")
        opened: SoftKV = db
        return opened

    def _started(self) -> Any:
        """The server of the store, once there is one, whoever has started it."""
        self._make()
        began, tried, child = time.monotonic(), 0.0, None
        with tempfile.TemporaryFile() as said:
            while (found := announced(self._where)) is None:
                now = time.monotonic()
                refused = child is not None and child.poll() is not None
                if now > began + (REFUSED if refused else STARTS):
                    said.seek(0)
                    words = said.read().decode(errors="replace").strip() or f"none answers after {STARTS:g} seconds."
                    raise StoreError(f"there is no server for the memories, and none can be started: {words}")
                if child is None or (refused and now > tried + AGAIN):
                    child, tried = self._child(said), now
                time.sleep(PAUSE)
        return found

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


_OTHER = "Name a store of texts, or one that is not there yet, which is made."
