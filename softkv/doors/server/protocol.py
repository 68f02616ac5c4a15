"""Limit how long a client may take, and how many may be connected, on top of uvicorn's server.

Each connection has a few seconds of patience. They run out while the server waits for headers, for the next bytes of a
body, or for the client to take its answer, and are refilled by the bytes that arrive or are taken: a client has to keep
up some KiB a second. While the application works, nothing is counted.

Does not look into requests (gate.py).
"""

import asyncio
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from softkv.doors.server.gate import LONGEST_HEAD, SAFE
from softkv.doors.server.problems import Refused, reply_to
from softkv.errors import InputError

PATIENCE = 10.0  # seconds that a client is waited for
UNTAKEN = 256 << 20  # bytes of answers that wait for clients to take them
PACE = 16 << 10  # bytes a second that a client has to send or take
CONNECTIONS = 512
TICK = 0.5  # seconds from one look at the connections to the next
IDLE = 15  # seconds that a connection is kept between two requests
DRAIN = 10  # seconds that requests have to finish when the server ends
OWN = 48  # file descriptors reserved for each store, and for the rest of the process


class Listener(socket.socket):
    """A listening socket that closes surplus connections at once, even before TLS has begun."""

    connections = CONNECTIONS
    _accepted: tuple[socket.socket, ...] = ()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        connection, address = super().accept()
        self._accepted = tuple(one for one in self._accepted if one.fileno() >= 0)
        if len(self._accepted) >= self.connections:
            connection.close()
            raise BlockingIOError("too many connections")  # tells asyncio that no connection is waiting
        self._accepted += (connection,)
        return connection, address


class PatientProtocol(H11Protocol):
    """One connection."""

    _patience = PATIENCE
    untaken = 0  # bytes of the answer that waited for the client at the last look

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request; those of a body that is being read refill the patience."""
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is not h11.DONE:
            self._gain(len(data))
        super().data_received(data)

    def resume_writing(self) -> None:
        """Go on with an answer, after the client has taken enough of it."""
        self._patience = PATIENCE
        super().resume_writing()

    def look(self, seconds: float) -> None:
        """Take these seconds from the patience if the server waits for the client; disconnect when it has run out."""
        former, self.untaken = self.untaken, self.transport.get_write_buffer_size()
        self._gain(max(0, former - self.untaken))
        idle = self.timeout_keep_alive_task is not None  # uvicorn closes these
        sending = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused and not idle
        if not self.untaken and not sending and not self.transport.is_closing():
            self._patience = PATIENCE
            return
        self._patience -= seconds
        if self._patience <= 0:
            self.transport.abort()

    def _gain(self, size: int) -> None:
        self._patience = min(PATIENCE, self._patience + size / PACE)

    def _should_upgrade(self) -> bool:
        return False

    def send_400_response(self, _: str) -> None:
        """Refuse a request that is no HTTP, without repeating it; an answer that has begun is broken off."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or (self.cycle and self.cycle.response_started):
            self.transport.abort()
            return
        words = f"expected HTTP/1.1 with headers of at most {LONGEST_HEAD >> 10} KiB."
        status, _headers, body = reply_to(Refused(400, InputError(words)))
        kind = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
        events = (h11.Response(status_code=status, headers=[*kind, *SAFE.items()]), h11.Data(body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


class PatientServer(Server):
    """Serves one application on one socket until SIGTERM, Ctrl-C or `ends`, and then finishes what runs."""

    def __init__(
        self, app: Any, context: ssl.SSLContext | None, began: Callable[[], object], ends: Callable[[], bool]
    ) -> None:
        """Serve an application; `began` is called once it listens, and `ends` is asked regularly whether to end."""
        config = Config(
            app,
            http=PatientProtocol,
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="critical",  # lines of uvicorn could repeat what clients send
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=DRAIN,
            h11_max_incomplete_event_size=LONGEST_HEAD,
        )
        super().__init__(config)
        self._context, self._began, self._ends = context, began, ends
        self._looked = time.monotonic()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at these sockets. uvicorn itself has no limit for TLS handshakes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                lambda: PatientProtocol(self.config, self.server_state, self.lifespan.state),
                sock=listener,
                ssl=self._context,
                backlog=128,
                ssl_handshake_timeout=PATIENCE if self._context else None,
            )
            for listener in sockets or []
        ]
        self.started = True
        self._began()

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections now and then; uvicorn calls this ten times a second."""
        now = time.monotonic()
        if now - self._looked >= TICK:
            found = [one for one in self.server_state.connections if isinstance(one, PatientProtocol)]
            for one in found:
                one.look(now - self._looked)
            self._looked = now
            found.sort(key=lambda one: one.untaken)
            while sum(one.untaken for one in found) > UNTAKEN:  # many clients at the slowest pace would hold gigabytes
                found.pop().transport.abort()
        return await super().on_tick(counter) or self._ends()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGTERM and Ctrl-C. uvicorn itself raises them again before stores are closed."""
        former = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, action in former.items():
                signal.signal(one, action)
