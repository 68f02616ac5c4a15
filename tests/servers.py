"""Real servers: `softkv serve` in processes of their own, and clients that do as they please on sockets."""

import http.client
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import softkv

LONGEST = 30.0  # seconds that anything here is waited for
_MAIN = """
import sys
from softkv.doors.server import protocol
protocol.PATIENCE = protocol.PatientProtocol._patience = float(sys.argv.pop(1))
protocol.DRAIN = min(5, protocol.PATIENCE)
protocol.UNTAKEN = int(sys.argv.pop(1)) or protocol.UNTAKEN
protocol.IDLE = float(sys.argv.pop(1))
from softkv_cli.main import main
main()
"""


@dataclass
class Reached:
    """A server, wherever it runs."""

    host: str = ""
    port: int = 0
    token: str = ""

    def connection(self) -> socket.socket:
        """A connection to it, on which nothing was said yet."""
        return socket.create_connection((self.host, self.port), LONGEST)

    def ask(self, method: str, path: str, document: Any = None, **headers: str) -> tuple[int, Any]:
        """One request with the token on a connection of its own: the status, and what came."""
        client = http.client.HTTPConnection(self.host, self.port, timeout=LONGEST)
        try:
            return asked(client, method, path, document, **{"Authorization": f"Bearer {self.token}"} | headers)
        finally:
            client.close()


@dataclass(kw_only=True)
class Running(Reached):
    """A server in a process of its own."""

    process: "subprocess.Popen[str]"
    errors: Path

    def log(self) -> str:
        """What it has told so far."""
        return self.errors.read_text()

    def descriptors(self) -> int:
        """How many files it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Have it end, and tell its exit code."""
        self.process.send_signal(sent)
        return self.process.wait(LONGEST)


def asked(
    client: http.client.HTTPConnection, method: str, path: str, document: Any = None, **headers: str
) -> tuple[int, Any]:
    """One request on an open connection."""
    body = None if document is None else json.dumps(document)
    client.request(method, path, body, {"Content-Type": "application/json"} | headers)
    reply = client.getresponse()
    said = reply.read()
    return reply.status, json.loads(said) if "json" in (reply.getheader("Content-Type") or "") else said.decode()


def films(path: Path, items: int = 2) -> Path:
    """A store of numbers by keys k0, k1 and so on."""
    with softkv.open(path) as db:
        numbers = range(items)
        db.add([f"k{one}" for one in numbers], [float(one) for one in numbers], vectors=[[1.0, one] for one in numbers])
    return path


@contextmanager
def served(
    *paths: Path,
    options: tuple[object, ...] = (),
    patience: float = 10.0,
    files: int = 0,
    untaken: int = 0,
    idle: float = 15.0,
) -> Iterator[Running]:
    """Serve stores at a free port for the time of the block; `files` is how many the process may open."""
    arguments = [str(patience), str(untaken), str(idle), "serve", *map(str, paths), "--port", "0", *map(str, options)]
    errors = paths[0].parent / f"errors-{time.monotonic_ns()}"

    def limited() -> None:
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    with errors.open("w") as told:
        command = [sys.executable, "-c", _MAIN, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True, preexec_fn=limited)
    running = Running(process=process, errors=errors)
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], LONGEST)[0], "it has not begun"
        line = process.stdout.readline()
        found = re.fullmatch(r"https?://\[?([^/]+?)\]?:(\d+)/(?:#(.+))?\n", line)
        assert found, f"{line!r} and {running.log()}"
        running.host, running.port, running.token = found[1], int(found[2]), found[3] or ""
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LONGEST)
        if process.stdout is not None:
            process.stdout.close()


def eventually(holds: Callable[[], object], within: float = LONGEST) -> bool:
    """Whether a condition comes to hold."""
    until = time.monotonic() + within
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection; what it said before is thrown away."""
    try:
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(1 << 20):
                return True
    except OSError:
        return True
    return False
