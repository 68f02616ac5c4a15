"""A whole store as a file over HTTP: as a handle writes it, of one commit, and gone afterwards."""

import asyncio
import gc
import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

import softkv
from softkv.database.carrying import import_from
from softkv.doors.server import items, served
from softkv.doors.server.app import make_app
from softkv.doors.server.served import Stores
from softkv.files.exports.formats import WRITTEN

from . import servers as running
from .databases import KINDS, filled
from .serving import ask, serving

EXPORT = "/v1/fruit/export"
FORMATS = [suffix[1:] for suffix in WRITTEN]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def opened(folder: Path, process: int | str = "self") -> list[str]:
    """Files that a process has open and that lie, or lay, in a folder."""
    found = []
    for one in Path(f"/proc/{process}/fd").iterdir():
        try:
            found.append(os.readlink(one))
        except OSError:  # that of the listing itself
            continue
    return [name for name in found if name.startswith(str(folder))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_the_file_is_that_of_a_handle(tmp_path: Path, scratch: Path, kind: str, name: str) -> None:
    """Byte by byte, of every format; nothing of it is left on the server."""
    filled(tmp_path / "fruit", kind).close()
    with serving(tmp_path / "fruit") as client, softkv.open(tmp_path / "fruit", "r") as db:
        db.export(tmp_path / f"local.{name}")
        reply = client.get(EXPORT, params={"format": name})
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "application/octet-stream"
        assert reply.headers["content-length"] == str(len(reply.content))
        assert reply.headers["softkv-commit"] == str(db.info().commit)
        assert reply.content == (tmp_path / f"local.{name}").read_bytes()
        assert (list(scratch.iterdir()), opened(scratch)) == ([], [])


def test_an_export_is_read_by_another_store(tmp_path: Path, scratch: Path) -> None:
    """JSONL unless another format is named; longer than what is sent at once."""
    vectors = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    with softkv.open(tmp_path / "fruit") as db:
        db.add([f"{n}" for n in range(300)], np.arange(300.0), vectors=vectors)
        expected = dict(db)
    with serving(tmp_path / "fruit") as client:
        content = client.get(EXPORT).content
    assert len(content) > 2 * items.PIECE
    (tmp_path / "all.jsonl").write_bytes(content)
    assert import_from(tmp_path / "all.jsonl", tmp_path / "new") == 300
    with softkv.open(tmp_path / "new", "r") as new:
        assert dict(new) == expected


def test_an_export_is_of_the_snapshot_that_is_named(tmp_path: Path, scratch: Path) -> None:
    """What was written since is not in it."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as client:
        before, lease = client.get(EXPORT).content, client.post("/v1/fruit/snapshots").json()
        ask(client, "/v1/fruit/items/delete", {"keys": ["item 1"]})
        named = {"softkv-snapshot": lease["snapshot"]}
        assert client.get(EXPORT, headers=named).content == before
        assert client.get(EXPORT).content != before
        assert client.get(EXPORT, headers={"softkv-snapshot": "other"}).status_code == 410


@pytest.mark.parametrize("name", ["sql", "", "JSONL", "../jsonl", "jsonl\0"], ids=repr)
def test_other_formats_are_refused(tmp_path: Path, scratch: Path, name: str) -> None:
    """The words name those there are."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as client:
        reply = client.get(EXPORT, params={"format": name})
        assert (reply.status_code, reply.json()["error"]) == (422, "InputError")
        assert "use one of jsonl, parquet, npz, csv" in reply.json()["detail"]
        assert list(scratch.iterdir()) == []


def test_a_server_that_is_killed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export never had a name, however far it was."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    with running.served(running.films(tmp_path / "fruit", 20_000)) as server, server.connection() as client:
        ask = f"GET /v1/fruit/export HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}"
        client.sendall(f"{ask}\r\n\r\n".encode())
        assert running.eventually(lambda: opened(tmp_path / "scratch", server.process.pid))
        server.end(signal.SIGKILL)
        assert list((tmp_path / "scratch").iterdir()) == []


def test_what_takes_too_long_is_given_up(tmp_path: Path, scratch: Path) -> None:
    """It is when the deadline of the client has passed; nothing is left of it."""
    filled(tmp_path / "fruit", "number", 3000).close()
    with serving(tmp_path / "fruit") as client:
        reply = client.get(EXPORT, headers={"softkv-deadline": "0.000001"})
        assert (reply.status_code, reply.json()["error"]) == (504, "DeadlinePassed")
    assert (list(scratch.iterdir()), opened(scratch)) == ([], [])


def test_a_store_that_cannot_be_copied_here_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no folder for temporary files; the words do not tell of it."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as client:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        reply = client.get(EXPORT)
        assert reply.status_code == 500
        assert str(tmp_path) not in reply.text


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_nothing_is_left_when_a_client_leaves(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The server may hear of it, or find out when it sends."""
    monkeypatch.setattr(items, "PIECE", 1000)
    filled(tmp_path / "fruit", "number").close()
    stores = Stores.open([tmp_path / "fruit"])
    app = make_app(stores)

    async def leave() -> int:
        left, heard = asyncio.Event(), []

        async def receive() -> Any:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            heard.append(message)
            if len(heard) > 2:
                left.set()
                if version == "2.4":
                    raise OSError

        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": version}, "method": "GET", "path": EXPORT}
        scope |= {"query_string": b"", "headers": []}
        with suppress(ClientDisconnect):
            await asyncio.wait_for(app(scope, receive, send), 60)
        return len(heard)

    assert asyncio.run(leave()) < 10
    gc.collect()
    assert (list(scratch.iterdir()), opened(scratch)) == ([], [])
    stores.close()


def test_only_so_many_files_are_sent_at_a_time(tmp_path: Path, scratch: Path) -> None:
    """Each takes room on the disk; when one has been sent, there is room for another."""
    filled(tmp_path / "fruit", "number").close()
    stores = Stores.open([tmp_path / "fruit"])
    app = make_app(stores)

    async def status(reading: asyncio.Event, began: asyncio.Semaphore) -> int:
        heard: list[int] = []

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                heard.append(message["status"])
                began.release()
            await reading.wait()

        scope = {"type": "http", "method": "GET", "path": EXPORT, "query_string": b"", "headers": []}
        await asyncio.wait_for(app(scope, receive, send), 60)
        return heard[0]

    async def several() -> None:
        reading, began, at_once = asyncio.Event(), asyncio.Semaphore(0), asyncio.Event()
        at_once.set()
        first = [asyncio.ensure_future(status(reading, began)) for _ in range(served.EXPORTS)]
        for _ in first:
            await asyncio.wait_for(began.acquire(), 60)
        assert await status(at_once, began) == 429
        reading.set()
        assert await asyncio.gather(*first) == [200] * served.EXPORTS
        assert await status(at_once, began) == 200

    asyncio.run(several())
    assert opened(scratch) == []
    stores.close()


def test_readers_may_export(tmp_path: Path, scratch: Path) -> None:
    """It only reads."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit", reader=True) as client:
        assert isinstance(client, TestClient)
        assert client.get(EXPORT).content.count(b"\n") > 40
