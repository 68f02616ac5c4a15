"""Clients of `softkv mcp`, the real command in a process of its own: line by line, or by the client of the SDK."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

import softkv
from softkv.storage.disk.announced import Announcement, announced
from tests.servers import LONGEST, eventually

COMMAND = str(Path(sys.executable).with_name("softkv"))
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Window:
    """One client, whose messages are what the tests write; `lines` is all that came on stdout."""

    def __init__(self, store: object, *options: object, errors: Path, **started: Any) -> None:
        command = [COMMAND, "mcp", "--db", str(store), "--idle-end", "60", *map(str, options)]
        self.errors, self.lines, self._asked = errors, list[bytes](), 0
        with errors.open("ab") as told:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, bufsize=0, **started
            )

    def say(self, line: bytes) -> None:
        """Send a line as it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")

    def hear(self) -> Any:
        """The next message."""
        stdout = self.process.stdout
        assert stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([stdout], [], [], 2 * LONGEST)[0], f"no answer: {self.errors.read_text()}"
            piece = stdout.read(1 << 16)
            if not piece:
                raise EOFError(self.errors.read_text())
            line += piece
        self.lines += line.splitlines()
        return json.loads(self.lines[-1])

    def ask(self, method: str, **params: Any) -> Any:
        """What a request is answered."""
        self._asked += 1
        self.say(json.dumps({"jsonrpc": "2.0", "id": self._asked, "method": method, "params": params}).encode())
        answer = self.hear()
        assert answer["id"] == self._asked
        return answer.get("result", answer.get("error"))

    def greet(self, version: str = HELLO["protocolVersion"]) -> Any:
        """The handshake, up to the point at which tools may be called."""
        found = self.ask("initialize", **HELLO | {"protocolVersion": version})
        self.say(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        return found

    def call(self, tool: str, **arguments: Any) -> Any:
        """What a tool returns; the words of its error, where it comes to one."""
        found = self.ask("tools/call", name=tool, arguments=arguments)
        (text,) = found["content"]
        return text["text"] if found.get("isError") else found["structuredContent"]

    def end(self) -> int:
        """Go away in order, and tell how the command ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LONGEST)


@contextmanager
def window(store: object, *options: object, errors: Path, **started: Any) -> Iterator[Window]:
    """A client that is ready, and killed at the end of the block if it is still there."""
    found = Window(store, *options, errors=errors, **started)
    try:
        found.greet()
        yield found
    finally:
        found.process.kill()
        found.process.wait(LONGEST)
        for stream in (found.process.stdin, found.process.stdout):
            if stream is not None:
                stream.close()


@asynccontextmanager
async def client(store: object, *options: object, errors: Path, mode: str = "auto") -> AsyncIterator[Client]:
    """A client of the SDK, which compares what it gets with the schemas of the tools."""
    arguments = ["mcp", "--db", str(store), "--idle-end", "60", *map(str, options)]
    with errors.open("a") as told:
        async with Client(stdio_client(StdioServerParameters(command=COMMAND, args=arguments), told), mode=mode) as one:
            yield one


def server_of(store: Path) -> Announcement:
    """The server that a store has now."""
    found = announced(str(store))
    assert found is not None
    return found


@contextmanager
def whole(store: Path) -> Iterator[Path]:
    """A store that is not there yet; at the end its server is ended, and all that is in it has to be whole."""
    try:
        yield store
    finally:
        found = announced(str(store))
        if found is not None:
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGTERM)
        assert eventually(lambda: announced(str(store)) is None)
    if store.exists():
        with softkv.open(store, wait=LONGEST) as db:
            assert db.check().ok
