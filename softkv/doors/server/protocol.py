"""How long a client may take, and how many may be connected: uvicorn's server with patience that ends.

Each connection has a few seconds of patience. They run out while its headers, the next bytes of its body, or room for
its answer are waited for, and come back with what really arrives or is taken, so a client has to keep up a pace of
some KiB a second. While the application works, nothing is counted.

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
OWN = 48  # descriptors that are left to each store, and to the rest of the process


class Listener(socket.socket):
    """A listening socket that closes at once what would be a connection too many, also before TLS has begun."""

    connections = CONNECTIONS
    _accepted: tuple[socket.socket, ...] = ()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        connection, address = super().accept()
        self._accepted = tuple(one for one in self._accepted if one.fileno() >= 0)
        if len(self._accepted) >= self.connections:
            connection.close()
            raise BlockingIOError("too many connections")  # for asyncio: nobody else is waiting now
        self._accepted += (connection,)
        return connection, address


class PatientProtocol(H11Protocol):
    """One connection."""

    _patience = PATIENCE
    untaken = 0  # bytes of the answer that waited for the client at the last look

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request; those of a body that is still wanted bring patience."""
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is not h11.DONE:
            self._gain(len(data))
        super().data_received(data)

    def resume_writing(self) -> None:
        """Go on with an answer, of which the client has taken enough for now."""
        self._patience = PATIENCE
        super().resume_writing()

    def look(self, seconds: float) -> None:
        """Take these seconds from the patience if the client is waited for, and break off when there is none left."""
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
        """Refuse what is no HTTP, without a word of it; an answer that has begun is broken off."""
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
        self,
        app: Any,
        context: ssl.SSLContext | None,
        began: Callable[[], object],
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve an application; `began` is called when it is, and `ends` says now and then whether to end."""
        config = Config(
            app,
            http=PatientProtocol,
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="critical",  # uvicorn's own words are neither counted nor without content
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
        """Listen at these sockets. uvicorn's own way cannot be told how long a TLS handshake may take."""
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
            while sum(one.untaken for one in found) > UNTAKEN:  # many clients at the least pace would hold gigabytes
                found.pop().transport.abort()
        return await super().on_tick(counter) or self._ends()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM and Ctrl-C as the wish to end. uvicorn's own way raises them again before stores are closed."""
        former = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, action in former.items():
                signal.signal(one, action)
