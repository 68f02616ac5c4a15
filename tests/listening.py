"""Servers in a thread of the test's own process, for handles that talk to them over a real socket."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from softkv.doors.server.app import make_app
from softkv.doors.server.served import Stores

from .servers import eventually


@contextmanager
def listening(*paths: Path) -> Iterator[str]:
    """Where the stores in these directories are served for the time of the block, to whoever asks."""
    stores = Stores.open(paths)
    # Of TCP by name: otherwise asyncio does not know that it is, and answers wait for more to be sent with them.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(make_app(stores), log_config=None, ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        stores.close()
