"""Clusters behind a server: as stores are, with errors of their own that programs can read."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import softkv
from softkv.doors.cluster import create
from softkv.doors.server.app import make_app
from softkv.doors.server.problems import document_of, error_of
from softkv.doors.server.served import Stores
from softkv.errors import InputError, OutOfReach, PartlyAdded, StorageFull, StoreLocked, Unauthorized

from .clusters import clustered
from .commands import ran
from .databases import KINDS, vectors_of
from .servers import served
from .serving import ask, refused, serving
from .test_cluster_missing import lost
from .test_cluster_writes import Failing

QUERIES = vectors_of(6, seed=5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_served_cluster_answers_as_at_its_path(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups, items, snapshots, figures and exports; and it is changed through its server."""
    clustered(tmp_path / "c", kind).close()
    with softkv.open(tmp_path / "c", "r") as db, served(tmp_path / "c", options=("--backups", tmp_path)) as server:
        with softkv.open(f"http://127.0.0.1:{server.port}/c", token=server.token) as far:
            np.testing.assert_array_equal(far.lookup(QUERIES).value, db.lookup(QUERIES).value)
            assert far.lookup(QUERIES[0], partial=True).out_of_reach is None
            assert list(far) == list(db)
            assert [str(one) for one in far.values()] == [str(one) for one in db.values()]
            assert far.info().to_dict() | {"path": db.path} == db.info().to_dict()
            assert far.export(tmp_path / "far.jsonl") == db.export(tmp_path / "near.jsonl")
            with far.snapshot() as before:
                far.add(["new", "other"], [db["item 1"]] * 2, vectors=vectors_of(2), batch="one")
                far.add(["new", "other"], [db["item 1"]] * 2, vectors=vectors_of(2), batch="one")
                assert (len(before), len(far), len(db)) == (40, 42, 42)
            with pytest.raises(InputError, match="delete it by its key"):
                far.pop("new")
            assert far.delete("new") == 1
            with pytest.raises(StoreLocked, match=f"http://127.0.0.1:{server.port}/c"):
                softkv.open(tmp_path / "c")
            assert far.check().ok
            monkeypatch.setenv("SOFTKV_TOKEN", server.token)
            assert ran("delete", "other", "-d", tmp_path / "c") == (0, "", "deleted 1\n")
            assert ran("check", "-d", f"http://127.0.0.1:{server.port}/c").code == 0
        assert len(db) == 40
    assert (tmp_path / "far.jsonl").read_bytes() == (tmp_path / "near.jsonl").read_bytes()


def test_shards_that_do_not_answer_are_a_problem_that_names_them(tmp_path: Path) -> None:
    """A problem names shards that do not answer, and no directory; the others answer, and the server goes on."""
    (tmp_path / "disk").mkdir()
    create(tmp_path / "c", 9, [tmp_path / "disk"], value="number")
    with softkv.open(tmp_path / "c") as db:
        db.add([f"item {number}" for number in range(60)], np.arange(60.0), vectors=vectors_of(60))
    gone = next((tmp_path / "disk").glob("*-shard-002"))
    gone.rename(tmp_path / "away")
    stores = Stores.open([tmp_path / "c"], read_only=True)
    with closing(stores), TestClient(make_app(stores), raise_server_exceptions=False) as client:
        query = {"query": QUERIES[0].tolist()}
        for path, document in (("lookup", query), ("items/get", {"keys": ["item 1"]})):
            status, error, detail = refused(client, f"/v1/c/{path}", document)
            assert (status, error) == (502, "OutOfReach")
            assert str(tmp_path) not in detail
        problem = client.post("/v1/c/lookup", json=query).json()
        assert problem["shards"] == [gone.name]
        for asked in (query, {"queries": QUERIES.tolist()}):
            found = ask(client, "/v1/c/lookup", asked | {"partial": True})
            one = found if isinstance(found, dict) else found[0]
            assert one["out_of_reach"] == 29 / 256
        told = client.get("/v1/stores").json()
        assert (told[0]["name"], told[0]["items"]) == ("c", None)


def test_a_served_cluster_with_a_shard_out_of_reach_is_opened_and_asked_in_part(tmp_path: Path) -> None:
    """Its other shards answer partial lookups; what else is asked, wished for or changed is out of reach."""
    clustered(tmp_path / "c", "number").close()
    lost(tmp_path / "c", 1)
    with served(tmp_path / "c", options=("--read-only",)) as server, softkv.open(tmp_path / "c", "r") as db:
        url = f"http://127.0.0.1:{server.port}/c"
        with softkv.open(url, token=server.token) as far:
            near = db.lookup(QUERIES, partial=True)
            assert far.lookup(QUERIES, partial=True).to_json() == near.to_json()
            for ask in (lambda: far.lookup(QUERIES), lambda: len(far), far.info):
                with pytest.raises(OutOfReach, match="shard-001"):
                    ask()
        for wish in ({"value": "number"}, {"compatibility": "dot"}, {"temperature": 1.0}, {"embedder": "static"}):
            with pytest.raises(OutOfReach, match="shard-001"):
                softkv.open(url, token=server.token, **wish)
        with pytest.raises(Unauthorized):
            softkv.open(url, token="another-token-than-that-of-the-server")


def test_a_change_that_some_shards_have_done_is_a_problem_that_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names what to send it again under, which completes it."""
    clustered(tmp_path / "c", "number").close()
    opened, open_all = list[Stores](), Stores.open
    monkeypatch.setattr(Stores, "open", lambda *given, **how: opened.append(open_all(*given, **how)) or opened[-1])
    keys = [f"new {number}" for number in range(12)]
    document = {"keys": keys, "values": list(range(12)), "vectors": vectors_of(12).tolist(), "batch": "one"}
    with serving(tmp_path / "c") as client:
        store = opened[-1]["c"].handle._store
        store.shards = tuple(map(Failing, store.shards))
        shard = store.shards[2]
        shard.before = StorageFull("the disk is full")
        reply = client.post("/v1/c/items", json=document)
        problem = reply.json()
        assert (reply.status_code, problem["error"], problem["batch"]) == (502, "PartlyAdded", "one")
        assert (problem["done"], problem["refused"]) == (["c/shard-000", "c/shard-001"], ["c/shard-002"])
        assert str(tmp_path) not in reply.text
        shard.before = None
        assert ask(client, "/v1/c/items", document)["count"] == 12


@pytest.mark.parametrize(
    "error", [PartlyAdded("some", "one", ["a"], ["b"], ["c"]), OutOfReach("gone", ["a", "b"])], ids=repr
)
def test_what_programs_ask_of_shards_comes_along(error: Any) -> None:
    """A problem brings it back, with the names of shards as they may be told."""

    def hidden(text: str) -> str:
        return text.replace("b", "x")

    found = error_of(json.loads(json.dumps(document_of(error, hidden))))
    assert type(found) is type(error)
    assert vars(found) == {
        name: tuple(map(hidden, one)) if isinstance(one, tuple) else one for name, one in vars(error).items()
    }
