"""Servers in a thread of the test's own process, for handles and browsers that talk to them over a real socket."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from softkv.doors.server.app import make_app
from softkv.doors.server.gate import Gate, Rules, digest_of
from softkv.doors.server.metrics import Metrics
from softkv.doors.server.served import Stores

from .servers import Reached, eventually

TOKEN = "t" * 40


@contextmanager
def listening(*paths: Path) -> Iterator[str]:
    """Where the stores in these directories are served for the time of the block, to whoever asks."""
    with _listening(paths, lambda stores, _: make_app(stores)) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def guarded(*paths: Path, read_only: bool = False) -> Iterator[Reached]:
    """A server of these stores behind the gate, with a token that may write."""

    def gate(stores: Stores, port: int) -> Gate:
        rules = Rules(frozenset({("127.0.0.1", port)}), 80, writers=[digest_of(TOKEN.encode())])
        return Gate(make_app(stores), rules, Metrics(stores))

    with _listening(paths, gate, read_only=read_only) as port:
        yield Reached("127.0.0.1", port, TOKEN)


@contextmanager
def _listening(paths: tuple[Path, ...], app: Callable[[Stores, int], Any], *, read_only: bool = False) -> Iterator[int]:
    stores = Stores.open(paths, read_only=read_only)
    # Of TCP by name: otherwise asyncio does not know that it is, and answers wait for more to be sent with them.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app(stores, listener.getsockname()[1]), log_config=None, ws="none", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert eventually(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        stores.close()
