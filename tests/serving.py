"""Clients of an application over small stores, without a socket."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from softkv.doors import wire
from softkv.doors.server.app import make_app
from softkv.doors.server.served import Stores

PACKED = {"content-type": wire.MEDIA_TYPE, "accept": wire.MEDIA_TYPE}


@contextmanager
def serving(*paths: Path, reader: bool = False, **options: Any) -> Iterator[TestClient]:
    """A client of an application over the stores in these directories, perhaps only a reader; ends with checks."""
    stores = Stores.open(paths, **options)
    app = make_app(stores)

    async def read(scope: Any, *sending: Any) -> None:
        await app(scope | {"softkv.role": "reader"}, *sending)  # as the gate says it

    try:
        with TestClient(read if reader else app, raise_server_exceptions=False) as client:
            yield client
            for one in stores:
                assert one.handle.check().ok
    finally:
        stores.close()


def ask(client: TestClient, path: str, document: Any, *, packed: bool = False, **headers: str) -> Any:
    """What the application answers to a document in JSON, or packed both ways; a problem is a failure."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    if packed:
        reply = client.post(path, content=wire.packed(document), headers=PACKED | named)
        assert reply.status_code < 300, reply.text
        return wire.unpacked(reply.content, classes=True)
    reply = client.post(path, json=document, headers=named)
    assert reply.status_code < 300, reply.text
    return reply.json()


def refused(client: TestClient, path: str, document: Any, **headers: str) -> tuple[int, str, str]:
    """The status, class and words of the problem that a document in JSON, or bytes, are answered with."""
    named = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    reply = client.post(path, content=body, headers=named)
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    problem = reply.json()
    assert problem["status"] == reply.status_code
    return reply.status_code, problem["error"], problem["detail"]
