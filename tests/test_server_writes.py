"""Writes over HTTP: whole or not at all, once however often they are sent, one after another, and only by who may."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import softkv
from softkv.database import SoftKV
from softkv.doors import wire
from softkv.doors.server.app import ENDPOINTS, make_app
from softkv.doors.server.served import Stores
from softkv.storage import Added

from .clusters import clustered
from .databases import KINDS, filled, values_of, vectors_of
from .serving import PACKED, ask, refused, serving

ITEMS, DELETE, CLEAR = "/v1/fruit/items", "/v1/fruit/items/delete", "/v1/fruit/items/clear"
BATCH = {"keys": ["x", "y"], "values": [1.0, 2.0], "vectors": vectors_of(2).tolist(), "batch": "monday"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of numbers."""
    filled(tmp_path / "fruit", "number").close()
    return tmp_path / "fruit"


def handle(client: TestClient) -> SoftKV:
    """The handle of the server itself."""
    app: Any = client.app
    found: SoftKV = app.state.stores["fruit"].handle
    return found


def patch(client: TestClient, document: Any, status: int = 200) -> Any:
    """What the application answers to a change of values."""
    reply = client.patch(ITEMS, json=document)
    assert reply.status_code == status, reply.text
    return reply.json()


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """What each of these returns, all begun together."""
    together = Barrier(len(work))

    def begin(one: Callable[[], Any]) -> Any:
        together.wait()
        return one()

    with ThreadPoolExecutor(len(work)) as threads:
        return list(threads.map(begin, work))


@pytest.mark.parametrize("kind", KINDS)
def test_items_are_written_as_by_a_handle(tmp_path: Path, kind: str) -> None:
    """Added, given other values and deleted, in JSON and packed; the answers are those of a handle."""
    values, vectors = values_of(kind, 4, seed=3), vectors_of(4, seed=3)
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    keys, payloads = ["a", None, "c", "d"], [{"n": 1}, None, ["x"], 5]
    filled(tmp_path / "fruit", kind).close()
    with serving(tmp_path / "fruit") as client, filled(tmp_path / "local", kind) as db:
        added = db.add(keys, values, vectors=vectors, payloads=payloads)
        given = {"keys": keys, "values": plain, "vectors": vectors.tolist(), "payloads": payloads}
        found = ask(client, ITEMS, given)
        assert Added(**found) == added
        again = {"keys": ["a", "c"], "values": values[2:], "vectors": vectors[:2], "on_conflict": "replace"}
        assert ask(client, ITEMS, again, packed=True) == db.add(**again)
        assert Added(**patch(client, {"keys": ["d"], "values": plain[:1]})) == db.set_values(["d"], values[:1])
        assert Added(**patch(client, {"where": {"n": {"$lt": 5}}, "values": plain[1]})) == db.set_values(
            where={"n": {"$lt": 5}}, values=values[1]
        )
        assert ask(client, DELETE, {"keys": ["item 7", "#42"]}) == {"deleted": db.delete(["item 7", "#42"])}
        assert ask(client, DELETE, {"where": {"even": True}}) == {"deleted": db.delete(where={"even": True})}
        assert handle(client) == db
        assert list(handle(client)) == list(db)


def test_texts_are_embedded_by_the_server(tmp_path: Path) -> None:
    """It has the embedder of the store; a single item needs no lists."""
    softkv.open(tmp_path / "fruit").close()
    with serving(tmp_path / "fruit") as client:
        assert ask(client, ITEMS, {"keys": "two boats on a river", "values": 2.0})["count"] == 1
        assert ask(client, ITEMS, {"keys": ["a"], "texts": ["a red house"], "values": [5.0]})["count"] == 1
        assert ask(client, "/v1/fruit/lookup", {"query": "a house", "k": 1})["value"] == 5.0


def test_a_batch_that_is_sent_again_is_written_once(path: Path) -> None:
    """The answer is that of the first time, in either form, and there is no new commit."""
    document = {"keys": ["item 1"], "values": [9.0], "expected": [float(values_of("number", 40)[1])], "batch": "b"}
    with serving(path) as client:
        added, changed = ask(client, ITEMS, BATCH), patch(client, document)
        deleted = ask(client, DELETE, {"keys": ["x"], "batch": "c"})
        before = handle(client).info().commit, dict(handle(client))
        assert ask(client, ITEMS, BATCH) == added
        assert ask(client, ITEMS, BATCH | {"vectors": vectors_of(2)}, packed=True) == Added(**added)
        assert patch(client, document) == changed
        assert ask(client, DELETE, {"keys": ["x"], "batch": "c"}) == deleted == {"deleted": 1}
        assert (handle(client).info().commit, dict(handle(client))) == before
    with serving(path) as client:  # another handle, as after a restart
        assert ask(client, ITEMS, BATCH) == added
        assert patch(client, document) == changed
        assert ask(client, DELETE, {"keys": ["x"], "batch": "c"}) == deleted
        assert dict(handle(client)) == before[1]


@pytest.mark.parametrize("kind", ["store", "cluster"])
def test_all_items_are_deleted_in_one_commit(tmp_path: Path, kind: str) -> None:
    """Items without keys too; sent again under its name, it deletes nothing that was added since."""
    (filled if kind == "store" else clustered)(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as client:
        db = handle(client)
        db.add(values=[1.0], vectors=vectors_of(1))
        before = db.info().commit
        assert ask(client, CLEAR, {"batch": "tuesday"}) == {"deleted": 41}
        assert (list(db), db.info().commit - before) == ([], 1 if kind == "store" else 3)  # one of each shard
        ask(client, ITEMS, BATCH)
        assert ask(client, CLEAR, {"batch": "tuesday"}) == {"deleted": 41}
        assert sorted(db) == ["x", "y"]
        assert refused(client, DELETE, {"keys": ["x"], "batch": "tuesday"})[:2] == (409, "BatchMismatch")
        assert ask(client, CLEAR, {}) == {"deleted": 2}
        assert ask(client, CLEAR, {}) == {"deleted": 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["item 3", None])
def test_what_is_popped_is_told_again(tmp_path: Path, kind: str, key: str | None) -> None:
    """It is told to the last bit, though the item is gone; without a key it is the last one. Another key is refused."""
    with filled(tmp_path / "fruit", kind) as db:
        name = key or "item 39"
        value = db[name]
    with serving(tmp_path / "fruit") as client:
        for _ in range(2):
            told = ask(client, f"{ITEMS}/pop", {"key": key, "batch": "b"}, packed=True)
            assert (told["key"], type(told["value"])) == (name, type(value))
            assert np.array_equal(told["value"], value)
            said = ask(client, f"{ITEMS}/pop", {"key": key, "batch": "b"})["value"]
            assert said == (value.tolist() if isinstance(value, np.ndarray) else value)
        assert refused(client, f"{ITEMS}/pop", {"key": "item 5", "batch": "b"})[:2] == (409, "BatchMismatch")
        assert refused(client, ITEMS, BATCH | {"batch": "b"})[:2] == (409, "BatchMismatch")
        assert refused(client, f"{ITEMS}/pop", {"key": name})[:2] == (404, "KeyMissing")
        assert ask(client, f"{ITEMS}/select", {})["next"] is None
        assert len(ask(client, f"{ITEMS}/select", {})["items"]) == 39


def test_a_batch_that_is_sent_twice_at_once_is_written_once(path: Path) -> None:
    """Both are answered, with one result."""
    with serving(path) as client:
        for number in range(10):
            document = {"values": [1.0], "vectors": vectors_of(1).tolist(), "batch": f"batch {number}"}
            found = at_once(*[lambda document=document: ask(client, ITEMS, document)] * 3)
            assert found[0] == found[1] == found[2]
            assert len(handle(client)) == 41 + number


def test_the_name_of_a_batch_is_refused_for_other_content(path: Path) -> None:
    """Anything may differ; nothing is written."""
    with serving(path) as client:
        ask(client, ITEMS, BATCH)
        before = handle(client).info().commit
        for other in ({"keys": ["x", "z"]}, {"values": [1.0, 3.0]}, {"on_conflict": "replace"}, {"payloads": [1, 2]}):
            assert refused(client, ITEMS, BATCH | other)[:2] == (409, "BatchMismatch")
        assert patch(client, {"keys": ["x"], "values": [1.0], "batch": "monday"}, 409)["error"] == "BatchMismatch"
        assert refused(client, DELETE, {"keys": ["x"], "batch": "monday"})[:2] == (409, "BatchMismatch")
        assert handle(client).info().commit == before


def test_values_are_compared_and_set(path: Path) -> None:
    """They are set only if they are what the client last saw; otherwise a conflict, and nothing is written."""
    with serving(path) as client:
        value = ask(client, "/v1/fruit/items/get", {"keys": ["item 1"]})["values"][0]
        patch(client, {"keys": ["item 1"], "values": [7.0], "expected": [value]})
        problem = patch(client, {"keys": ["item 1"], "values": [8.0], "expected": [value]}, 409)
        assert problem["error"] == "StoreError"
        assert "'item 1' is another by now" in problem["detail"]
        assert handle(client)["item 1"] == 7.0


def test_counters_count_every_client(path: Path) -> None:
    """Each reads, adds one, and tries again where another was there first."""

    def count(client: TestClient) -> None:
        for _ in range(8):
            done = False
            while not done:
                (value,) = ask(client, "/v1/fruit/items/get", {"keys": ["item 0"]})["values"]
                reply = client.patch(ITEMS, json={"keys": ["item 0"], "values": [value + 1], "expected": [value]})
                assert reply.status_code in (200, 409), reply.text
                done = reply.status_code == 200

    with serving(path) as client:
        before = handle(client)["item 0"]
        at_once(*[lambda: count(client)] * 3)
        assert handle(client)["item 0"] == pytest.approx(before + 24, abs=1e-9)


def test_two_clients_write_at_once_and_nothing_is_lost(path: Path) -> None:
    """Adds, changes and deletions; each is there or gone, as it was acknowledged."""

    def write(client: TestClient, name: str) -> None:
        for number in range(20):
            keys, vectors = [f"{name} {number} {one}" for one in "abc"], vectors_of(3)
            ask(client, ITEMS, {"keys": keys, "values": np.arange(3.0), "vectors": vectors}, packed=True)
            patch(client, {"keys": keys[:1], "values": [float(number)]})
            ask(client, DELETE, {"keys": keys[2:]})

    with serving(path) as client:
        at_once(lambda: write(client, "left"), lambda: write(client, "right"))
        for name in ("left", "right"):
            expected = {f"{name} {number} a": float(number) for number in range(20)}
            expected |= {f"{name} {number} b": 1.0 for number in range(20)}
            assert {key: value for key, value in handle(client).items() if key.startswith(name)} == expected


def test_what_has_not_begun_at_its_deadline_is_not_written(path: Path) -> None:
    """It waits behind another write; what has begun is written, though nobody waits for its answer any more."""
    with serving(path) as client:
        late = {"softkv-deadline": "0.2"}
        with handle(client)._changing:
            replies = at_once(
                lambda: client.post(ITEMS, json=BATCH, headers=late),
                lambda: client.post(ITEMS, json=BATCH | {"keys": ["p", "q"], "batch": "b"}, headers=late),
            )
            assert [(one.status_code, one.json()["error"]) for one in replies] == [(504, "DeadlinePassed")] * 2
        ask(client, ITEMS, BATCH | {"keys": ["last", None], "batch": "c"})  # comes after what has begun
        assert len(handle(client)) == 44
        assert ("x" in handle(client)) != ("p" in handle(client))


def test_a_write_goes_on_when_its_client_has_left(path: Path) -> None:
    """What has begun is finished."""
    stores = Stores.open([path])
    served, app, body = stores["fruit"], make_app(stores), json.dumps(BATCH).encode()

    async def leave() -> None:
        messages = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            """Nobody hears it."""

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": ITEMS, "query_string": b"", "headers": headers}
        writer = served.crews["writes"]
        with served.handle._changing:
            answering = asyncio.ensure_future(app(scope, receive, send))
            while not writer.executor._work_queue.empty() or not len(writer):
                await asyncio.sleep(0.001)
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering

    asyncio.run(leave())
    stores.close()
    with softkv.open(path, "r") as db:
        assert (db["x"], db["y"]) == (1.0, 2.0)


WRITES: list[tuple[str, str, Any]] = [
    ("POST", ITEMS, BATCH),
    ("PATCH", ITEMS, {"keys": ["item 1"], "values": [1.0]}),
    ("POST", DELETE, {"keys": ["item 1"]}),
    ("POST", CLEAR, {}),
    ("POST", f"{ITEMS}/pop", {"key": "item 1"}),
    ("PUT", "/v1/fruit/temperature", {"temperature": 0.5}),
    ("DELETE", "/v1/fruit/index", None),
    ("DELETE", "/v1/fruit/fit", None),
    ("DELETE", "/v1/fruit/guard", None),
    ("DELETE", "/v1/fruit/reembedding", None),
]


@pytest.mark.parametrize("options", [{"reader": True}, {"read_only": True}], ids=str)
def test_who_may_only_read_writes_nothing(path: Path, options: dict[str, Any]) -> None:
    """Every write is refused before its body is looked at; a store that is only read is not changed by its server."""
    told = {(one.method, one.path.replace("{store}", "fruit")) for one in ENDPOINTS if one.writes}
    assert told == {(method, where) for method, where, _ in WRITES}
    with serving(path, **options) as client:
        for method, where, document in WRITES:
            for body in (json.dumps(document).encode(), b"{"):
                reply = client.request(method, where, content=body, headers={"content-type": "application/json"})
                assert (reply.status_code, reply.json()["error"]) == (403, "AccessRefused")
    with softkv.open(path, "r") as db:
        assert len(db) == 40


REFUSED: list[tuple[str, Any, int, str]] = [
    (ITEMS, {"keys": ["item 1"], "values": [1.0], "vectors": [[1.0] * 5]}, 409, "DuplicateKey"),
    (ITEMS, {"keys": ["x"], "values": [1.0], "vectors": [[1.0] * 4]}, 422, "ShapeError"),
    (ITEMS, {"keys": ["x"], "values": ["red"], "vectors": [[1.0] * 5]}, 422, "KindError"),
    (ITEMS, {"keys": ["x"], "values": [1.0], "vectors": [[0.0] * 5]}, 422, "ZeroVector"),
    (ITEMS, {"keys": ["x", "x"], "values": [1.0, 2.0], "vectors": [[1.0] * 5] * 2}, 409, "DuplicateKey"),
    (ITEMS, {"keys": ["#1"], "values": [1.0], "vectors": [[1.0] * 5]}, 422, "KeyTextError"),
    (ITEMS, {"keys": ["x"], "values": [1.0], "vectors": [["1"] * 5]}, 422, "KindError"),
    (ITEMS, {"keys": ["x"], "values": {"a": 1}, "vectors": [[1.0] * 5]}, 422, "ShapeError"),
    (ITEMS, {"keys": ["x"], "values": [[1.0]], "vectors": [[1.0] * 5]}, 422, "ShapeError"),
    (ITEMS, {"keys": ["x"], "vectors": [[1.0] * 5]}, 422, "InputError"),
    (ITEMS, {"keys": ["x"], "values": [1.0], "vectors": [[1.0] * 5], "path": "/"}, 422, "InputError"),
    (ITEMS, {"keys": ["x"], "values": [1.0], "vectors": [[1.0] * 5], "on_conflict": "erase"}, 422, "InputError"),
    (ITEMS, {"keys": ["x"], "values": [1.0], "vectors": [[1.0] * 5], "batch": ""}, 422, "InputError"),
    (ITEMS, {"keys": [1], "values": [1.0], "vectors": [[1.0] * 5]}, 422, "InputError"),
    (ITEMS, b'{"keys": ["x"], "values": [NaN]}', 400, "InputError"),
    (ITEMS, b'{"keys": ["x"], "values": [1e400], "vectors": [[1, 1, 1, 1, 1]]}', 422, "NotFinite"),
    (ITEMS, [], 422, "InputError"),
    (DELETE, {"keys": ["item 1", "nobody"]}, 404, "KeyMissing"),
    (DELETE, {}, 422, "InputError"),
    (DELETE, {"where": {}}, 422, "InputError"),
    (DELETE, {"keys": ["item 1"], "where": {"n": 1}}, 422, "InputError"),
    (CLEAR, {"where": {"n": 1}}, 422, "InputError"),
    (CLEAR, {"batch": ""}, 422, "InputError"),
]


@pytest.mark.parametrize(("where", "document", "status", "error"), REFUSED, ids=str)
def test_what_cannot_be_written_is_refused_whole(
    path: Path, where: str, document: Any, status: int, error: str
) -> None:
    """The class and the words are those of the library; nothing is written."""
    with serving(path) as client:
        before = handle(client).info().commit
        assert refused(client, where, document)[:2] == (status, error)
        assert handle(client).info().commit == before


def test_a_duplicate_key_is_named(path: Path) -> None:
    """A field of the problem names it, for programs."""
    with serving(path) as client:
        document = {"keys": ["new", "item 3"], "values": [1.0, 2.0], "vectors": vectors_of(2).tolist()}
        problem = client.post(ITEMS, json=document).json()
        assert problem["keys"] == ["item 3"]
        packed = client.post(ITEMS, content=wire.packed(document | {"vectors": vectors_of(2)}), headers=PACKED)
        assert packed.json() == problem


def test_the_temperature_the_index_and_what_was_learned_are_set_aside(path: Path) -> None:
    """What the store remembers is changed, and the answers with it."""
    with serving(path) as client:
        db, where = handle(client), "/v1/fruit/temperature"
        assert client.put(where, json={"temperature": 0.25}).json() is None
        assert (db.info().temperature, db.info().temperature_from) == (0.25, "given, from 40 items")
        for wrong in (0, -1.0, "warm"):
            assert client.put(where, json={"temperature": wrong}).status_code == 422
        assert client.put(where, json={}).status_code == 422
        assert db.info().temperature == 0.25
        assert client.put(where, json={"temperature": None}).json() is None
        assert str(db.info().temperature_from).startswith("rule")
        db.build_index(lists=4)
        assert client.delete("/v1/fruit/index").json() is None
        assert db.info().index is None
        assert client.delete("/v1/fruit/fit").json() is False
