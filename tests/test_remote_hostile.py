"""Servers that are none of ours: what they say is an error of the library, and none of it is carried out."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv.database import SoftKV
from softkv.doors import wire
from softkv.doors.remote import connection
from softkv.errors import ServerError

from .databases import filled


@contextmanager
def lied_to(path: Path, said: dict[str, tuple[dict[str, str], bytes]]) -> Iterator[tuple[SoftKV, list[str]]]:
    """A handle on a server that says what it is told to of paths with these endings, and the paths that were asked."""
    with filled(path, "number") as db:
        info = wire.packed(db.info())
    asked: list[str] = []

    class Liar(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(self.path)
            headers, body = said.get(self.path.rpartition("/")[2], ({}, info))
            self.send_response(200)
            for name, value in ({"Content-Type": wire.MEDIA_TYPE, "Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of the standard library

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            with softkv.open(f"http://127.0.0.1:{server.server_address[1]}/s", token="t" * 20) as db:
                yield db, asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", ["{store.__class__}", "{store:>9999999999}", "{", "{0}", "../../x", "a\nb", "é"])
def test_names_from_a_server_are_parts_of_paths_and_nothing_else(tmp_path: Path, name: str) -> None:
    """What they hold is neither a format nor another path."""
    said = {"snapshots": ({}, wire.packed({"snapshot": name, "commit": 1}))}
    with lied_to(tmp_path / "s", said) as (db, asked):
        db.snapshot().close()
    assert all(path.startswith(("/v1/s/snapshots", "/v1/s/info")) for path in asked)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b"{"),
        ({}, b'{"$array":0}\n'),
        ({"Content-Encoding": "gzip"}, b"none"),
        ({"Content-Type": "text/html"}, b""),
    ],
    ids=["half a document", "no array", "no gzip", "a page"],
)
def test_answers_that_cannot_be_read_are_errors_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], body: bytes
) -> None:
    """The error tells of the server, and not of what the caller gave, nor of the libraries of the client."""
    monkeypatch.setattr(connection, "PATIENCE", 0.0)
    with lied_to(tmp_path / "s", {"get": (headers, body)}) as (db, _), pytest.raises(ServerError):
        db.get("a")
