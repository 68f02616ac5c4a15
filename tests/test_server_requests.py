"""Requests that no client should send: each is answered with a problem, nothing is written, and the server goes on."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from softkv import errors
from softkv.database.handle import StoreView
from softkv.doors import wire
from softkv.doors.server import endpoints
from softkv.doors.server.app import make_app
from softkv.doors.server.gate import Gate, Rules, digest_of
from softkv.doors.server.metrics import Metrics
from softkv.doors.server.served import Stores
from softkv.errors import InputError

from .databases import filled, vectors_of
from .serving import ask, refused, serving
from .test_wire import HOSTILE

QUERY = [1.0, 0.0, 0.0, 0.0, 0.0]
PATIENCE = 60.0
ASKING = ("lookup", "nearest", "compare", "evaluate")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a server of 40 numbers; in the end they are all there, and nothing else, and lookups are answered."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as found:
        commit = found.get("/v1/fruit/info").json()["commit"]
        yield found
        assert found.get("/v1/fruit/info").json()["commit"] == commit
        assert ask(found, "/v1/fruit/lookup", {"query": QUERY})["scored"] == 40


DEEP = b"[" * 5000 + b"]" * 5000
MALFORMED = {
    "nothing": b"",
    "half a document": b'{"query": [1, 2',
    "two documents": b'{"query": "a"} {"query": "b"}',
    "a name twice": b'{"query": "a", "query": "b"}',
    "a name twice within": b'{"query": "a", "where": {"n": 1, "n": 2}}',
    "NaN": b'{"query": [NaN, 1, 1, 1, 1]}',
    "infinity": b'{"query": [-Infinity, 1, 1, 1, 1]}',
    "no UTF-8": b'{"query": "\xff\xfe"}',
    "UTF-16": '{"query": "a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"query": "a"}',
    "too deep": b'{"query": "a", "where": ' + DEEP + b"}",
    "objects too deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "a little too deep": b'{"query": "a", "where": {"n": ' + b"[" * 256 + b"]" * 256 + b"}}",
    "a number of many digits": b'{"query": "a", "k": ' + b"9" * 5000 + b"}",
    "a comment": b'{"query": "a" /* b */}',
    "a trailing comma": b'{"query": "a",}',
    "single quotes": b"{'query': 'a'}",
}


@pytest.mark.parametrize("path", [*ASKING, "items", "items/delete", "items/get"])
@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_json_is_a_400(client: TestClient, name: str, path: str) -> None:
    """It is for whatever is asked, and in words that say where."""
    status, error, words = refused(client, f"/v1/fruit/{path}", MALFORMED[name])
    assert (status, error) == (400, "InputError")
    assert "expected" in words
    assert len(words) < 400


UNFIT: dict[str, Any] = {
    "a list": [],
    "a text": "query",
    "null": None,
    "no query": {},
    "one and many": {"query": QUERY, "queries": [QUERY]},
    "an unknown option": {"query": QUERY, "colour": "red"},
    "an option of a handle alone": {"query": QUERY, "progress": None},
    "k as a text": {"query": QUERY, "k": "3"},
    "k as a fraction": {"query": QUERY, "k": 3.5},
    "k as true": {"query": QUERY, "k": True},
    "k of 0": {"query": QUERY, "k": 0},
    "a huge k": {"query": QUERY, "k": 10**100, "show": -1},
    "a negative show": {"query": QUERY, "show": -1},
    "a temperature of 0": {"query": QUERY, "temperature": 0},
    "a negative temperature": {"query": QUERY, "temperature": -1.5},
    "a temperature that is true": {"query": QUERY, "temperature": True},
    "a temperature for each of two": {"query": QUERY, "temperature": [1.0, 2.0]},
    "a temperature in words": {"query": QUERY, "temperature": "warm"},
    "a temperature without an end": b'{"query": [1, 0, 0, 0, 0], "temperature": 1e400}',
    "a tolerance below 0": {"query": QUERY, "tolerance": -0.1},
    "a tolerance without an end": b'{"query": [1, 0, 0, 0, 0], "tolerance": 1e400}',
    "a tolerance of null": {"query": QUERY, "tolerance": None},
    "a confidence of 1": {"query": QUERY, "confidence": 1},
    "another guarantee": {"query": QUERY, "guarantee": "surely"},
    "another compatibility": {"query": QUERY, "compatibility": "likeness"},
    "what is learned, where nothing is": {"query": QUERY, "compatibility": "learned"},
    "a compatibility that is a list": {"query": QUERY, "compatibility": [[1.0]]},
    "a filter that is a text": {"query": QUERY, "where": "n > 1"},
    "a filter of an unknown operator": {"query": QUERY, "where": {"n": {"$near": 1}}},
    "a filter without an end": b'{"query": [1, 0, 0, 0, 0], "where": {"n": 1e400}}',
    "a projection in words": {"query": QUERY, "projection": "yes"},
    "a short mask": {"query": QUERY, "mask": [True]},
    "a mask of numbers": {"query": QUERY, "mask": [1] * 40},
    "a mask of nothing": {"query": QUERY, "mask": [False] * 40},
    "heads that are a list": {"query": QUERY, "heads": [[1.0]]},
    "heads of null": {"query": QUERY, "heads": {"w_q": None, "w_k": [[[1.0] * 5]]}},
    "heads without keys": {"query": QUERY, "heads": {"w_q": [[[1.0] * 5]]}},
    "heads of few axes": {"query": QUERY, "heads": {"w_q": [1.0], "w_k": [1.0]}},
    "ragged heads": {"query": QUERY, "heads": {"w_q": [[[1.0], [1.0, 2.0]]], "w_k": [[[1.0] * 5]]}},
    "heads of texts": {"query": QUERY, "heads": {"w_q": [[["a"]]], "w_k": [[["b"]]]}},
    "an empty query": {"query": []},
    "a query of another width": {"query": [1.0, 2.0]},
    "a query that is a number": {"query": 1.5},
    "a query that is null": {"query": None},
    "a query that is an object": {"query": {"$array": 0}},
    "a query that is a matrix": {"query": [QUERY, QUERY]},
    "a query of texts": {"query": ["a", "b"]},
    "a query of true and false": {"query": [True, False, True, False, True]},
    "a query with null in it": {"query": [1.0, None, 1.0, 1.0, 1.0]},
    "a query with a text in it": {"query": [1.0, "1", 1.0, 1.0, 1.0]},
    "a query of huge numbers": {"query": [10**400, 1, 1, 1, 1]},
    "a query without an end": b'{"query": [1e400, 1, 1, 1, 1]}',
    "a query beyond float32": {"query": [1e200, 1, 1, 1, 1]},
    "a lone surrogate": b'{"query": "\\ud800"}',
    "queries that are a text": {"queries": "a"},
    "queries that are a vector": {"queries": QUERY},
    "ragged queries": {"queries": [QUERY, [1.0]]},
    "queries of texts and vectors": {"queries": ["a", QUERY]},
    "queries of three axes": {"queries": [[QUERY]]},
    "queries with true in them": {"queries": [QUERY, [True, 1.0, 1.0, 1.0, 1.0]]},
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_the_library_refuses_is_a_422_in_its_words(client: TestClient, name: str) -> None:
    """Classes of errors of input are; what is of a wrong type names the field."""
    told = UNFIT[name] if isinstance(UNFIT[name], bytes) else json.dumps(UNFIT[name]).encode()
    status, error, words = refused(client, "/v1/fruit/lookup", told)
    assert status == 422
    assert issubclass(getattr(errors, error), InputError)
    assert 10 < len(words) < 500


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["lookup", "items"])
def test_hostile_arrays_are_refused(client: TestClient, name: str, path: str) -> None:
    """They may ask or should be stored."""
    line = b'{"query":{"$array":0}}\n' if path == "lookup" else b'{"values":[1],"vectors":{"$array":0}}\n'
    reply = client.post(f"/v1/fruit/{path}", content=line + HOSTILE[name], headers={"content-type": wire.MEDIA_TYPE})
    assert (reply.status_code, reply.json()["error"]) == (422, "InputError")


@pytest.mark.parametrize(
    "query",
    [
        np.array([np.nan, 1, 1, 1, 1]),
        np.array([np.inf, 1, 1, 1, 1], np.float32),
        np.ones(5, bool),
        np.ones((1, 5)),
        np.float64(1.0),
        np.ones(4),
        np.ones((5, 5, 5, 5)),
        np.zeros((0, 5)),
        {"a": np.ones(5)},
        [np.ones(5), np.ones(4)],
        float("nan"),
    ],
    ids=repr,
)
def test_unfit_arrays_are_refused(client: TestClient, query: Any) -> None:
    """The library refuses the same."""
    body = wire.packed({"query": query})
    reply = client.post("/v1/fruit/lookup", content=body, headers={"content-type": wire.MEDIA_TYPE})
    assert reply.status_code == 422, reply.text


def test_filters_of_arrays_and_of_classes_are_refused(client: TestClient) -> None:
    """A packed body can hold what no payload can."""
    for where in ({"n": np.ones(2)}, {"n": float("nan")}, {"n": {3: 4}}, {3: 4}, {"n": (1, {"$in": 2})}):
        body = wire.packed({"query": np.ones(5), "where": where})
        reply = client.post("/v1/fruit/lookup", content=body, headers={"content-type": wire.MEDIA_TYPE})
        assert reply.status_code == 422, reply.text


def test_json_that_would_take_much_memory_is_refused_before_it_is_read(client: TestClient) -> None:
    """A list of lists takes thirty times its bytes."""
    status, error, words = refused(client, "/v1/fruit/lookup", b'{"query":[' + b"[]," * 4_000_000 + b"[]]}")
    assert (status, error) == (422, "InputError")
    assert "application/x-softkv-npy" in words


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "*/*"])
def test_bodies_of_other_types_are_a_415(client: TestClient, media: str) -> None:
    """A body of another type is a 415, so that no form of a page of another site is ever read."""
    assert refused(client, "/v1/fruit/lookup", b'{"query": [1, 0, 0, 0, 0]}', content_type=media)[0] == 415


def test_types_of_bodies_are_read_as_http_says(client: TestClient) -> None:
    """Case does not matter, and there may be parameters."""
    body = b'{"query": [1, 0, 0, 0, 0]}'
    reply = client.post("/v1/fruit/lookup", content=body, headers={"content-type": "Application/JSON; charset=utf-8"})
    assert reply.status_code == 200


@pytest.mark.parametrize("deadline", ["0", "-1", "nan", "inf", "601", "soon", "", "1e400", "0x10"])
def test_a_deadline_is_a_number_of_seconds(client: TestClient, deadline: str) -> None:
    """It is above 0, and at most ten minutes."""
    status, error, words = refused(client, "/v1/fruit/lookup", {"query": QUERY}, softkv_deadline=deadline)
    assert (status, error) == (422, "InputError")
    assert "Softkv-Deadline" in words


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/stores", "/v1/fruit", "/v1/fruit/lookup/", "/docs", "/redoc"]
)
def test_unknown_paths_are_a_404(client: TestClient, path: str) -> None:
    """The answer is a problem."""
    reply = client.get(path)
    assert (reply.status_code, reply.json()["status"]) == (404, 404)
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "name", ["berries", "Fruit", "..", "%2e%2e", "fruit%2f..", "fruit%00", "%ff", "a" * 5000, "😀"]
)
def test_unknown_stores_are_a_404(client: TestClient, name: str) -> None:
    """Their names may look like anything; no directory is looked at."""
    reply = client.get(f"/v1/{name}/info")
    assert reply.status_code == 404
    assert len(reply.content) < 500


@pytest.mark.parametrize(("method", "path"), [("GET", "lookup"), ("PUT", "items"), ("POST", "info"), ("TRACE", "info")])
def test_other_methods_are_a_405(client: TestClient, method: str, path: str) -> None:
    """The answer names the methods that there are."""
    reply = client.request(method, f"/v1/fruit/{path}")
    assert (reply.status_code, reply.headers["content-type"]) == (405, "application/problem+json")
    assert reply.headers["allow"]


def test_what_was_not_expected_is_a_500_without_words(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the class and the place, and not what was asked."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret of somebody")

    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr(StoreView, "lookup", broken)
        for told in ({"query": QUERY}, {"queries": [QUERY]}):
            status, error, words = refused(client, "/v1/fruit/lookup", told)
            assert (status, error) == (500, "ServerError")
            assert "secret" not in words
    assert "RuntimeError in POST /v1/{store}/lookup (broken" in caplog.text
    assert "secret" not in caplog.text


def test_a_store_that_is_read_only_refuses_writes(tmp_path: Path) -> None:
    """Writes are refused by a store that is read-only and by a token that may only read; both may look up."""
    filled(tmp_path / "fruit", "number").close()
    added = {"values": [1.0], "vectors": [QUERY]}
    with serving(tmp_path / "fruit", read_only=True) as client:
        status, error, words = refused(client, "/v1/fruit/items", added)
        assert (status, error) == (403, "AccessRefused")
        assert "read only" in words
        assert ask(client, "/v1/fruit/lookup", {"query": QUERY})["scored"] == 40
        assert client.get("/v1/stores").json()[0]["read_only"] is True


def test_who_may_only_read_is_told_so(tmp_path: Path) -> None:
    """A token that may only read is told so, and the page of the server shows no form that would be refused."""
    filled(tmp_path / "fruit", "number").close()
    for reader in (True, False):
        with serving(tmp_path / "fruit", reader=reader) as client:
            (listed,) = client.get("/v1/stores").json()
            assert listed == client.get("/v1/fruit/brief").json()
            assert listed["read_only"] is reader


def test_two_stores_of_one_name_are_refused(tmp_path: Path) -> None:
    """They are before either is open."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        filled(tmp_path / folder / "fruit.softkv", "number").close()
    with pytest.raises(InputError, match="'fruit'"):
        Stores.open([tmp_path / "a" / "fruit.softkv", tmp_path / "b" / "fruit.softkv"])
    for folder in ("a", "b"):
        Stores.open([tmp_path / folder / "fruit.softkv"]).close()


def test_two_stores_are_asked_by_their_names(tmp_path: Path) -> None:
    """Each answers from its own items."""
    filled(tmp_path / "fruit.softkv", "number", count=40).close()
    filled(tmp_path / "berries", "label", count=10).close()
    with serving(tmp_path / "fruit.softkv", tmp_path / "berries") as client:
        assert [one["name"] for one in client.get("/v1/stores").json()] == ["fruit", "berries"]
        assert ask(client, "/v1/fruit/lookup", {"query": QUERY})["scored"] == 40
        assert ask(client, "/v1/berries/lookup", {"query": QUERY})["scored"] == 10


def test_a_store_may_be_called_as_the_list_of_them(tmp_path: Path) -> None:
    """Each of its paths is longer."""
    filled(tmp_path / "stores", "number").close()
    with serving(tmp_path / "stores") as client:
        assert client.get("/v1/stores").json() == [client.get("/v1/stores/brief").json()]
        assert client.get("/v1/stores/info").json()["items"] == 40


def test_large_bodies_are_read_beside_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies are read beside the event loop, and answered as small ones are."""
    queries, read, seen = vectors_of(3000), endpoints._parsed, dict[bool, int]()

    def parsed(body: bytes) -> Any:
        seen[len(body) > endpoints.ON_LOOP] = threading.get_ident()
        return read(body)

    monkeypatch.setattr(endpoints, "_parsed", parsed)
    ask(client, "/v1/fruit/lookup", {"query": QUERY})
    found = ask(client, "/v1/fruit/lookup", {"queries": queries.tolist(), "show": 1})
    assert len(found) == 3000
    assert len({seen[True], seen[False]}) == 2
    packed = ask(client, "/v1/fruit/lookup", {"queries": queries, "show": 1}, packed=True)
    assert [one["value"] for one in found] == packed.value.tolist()


def test_bodies_of_all_requests_together_have_a_bound(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a request is refused, and may come again; what was held is let go when requests are answered."""
    told = {"query": QUERY, "where": {"even": True}}
    with monkeypatch.context() as patch:
        patch.setattr("softkv.doors.server.served.HELD", 10)
        assert refused(client, "/v1/fruit/lookup", told)[:2] == (429, "Busy")
    for _ in range(3):
        assert refused(client, "/v1/fruit/lookup", b"{")[0] == 400
        assert ask(client, "/v1/fruit/lookup", told)["scored"] == 20
    assert client.app.state.stores._held == 0  # type: ignore[attr-defined]


def test_a_long_write_keeps_neither_probes_nor_other_stores_waiting(tmp_path: Path) -> None:
    """Whether it is ready, and its figures, are what was last known; what asks another store is answered."""
    for name in ("busy", "other"):
        filled(tmp_path / name, "number", count=40).close()
    stores = Stores.open([tmp_path / "busy", tmp_path / "other"])
    metrics = Metrics(stores)
    rules = Rules(frozenset({("testserver", 80)}), 80, [digest_of(b"t" * 20)])
    with TestClient(Gate(make_app(stores), rules, metrics), headers={"Authorization": "Bearer " + "t" * 20}) as client:
        stores["other"].handle.delete("item 1")
        handle: Any = stores["busy"].handle
        done, held = threading.Event(), threading.Event()

        def write() -> None:
            with handle._lock, handle._store._lock:
                held.set()
                assert done.wait(PATIENCE)

        writer = threading.Thread(target=write)
        writer.start()
        assert held.wait(PATIENCE)
        for _ in range(20):
            assert client.get("/ready").status_code == 204
        figures = client.get("/metrics").text
        assert client.post("/v1/other/lookup", json={"query": QUERY}).status_code == 200
        assert client.post("/v1/other/lookup", json={"queries": vectors_of(3000).tolist()}).status_code == 200
        assert client.get("/v1/stores", headers={"softkv-deadline": "0.1"}).status_code == 504
        done.set()
        writer.join()
        assert 'store_items{store="busy"} 40.0' in figures
        assert 'store_items{store="other"} 39.0' in figures
        handle.close()
        assert client.get("/ready").status_code == 503
    stores.close()
