"""What the server answers is what a handle answers: in JSON and with arrays, one query or many, in every way to ask."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import softkv
from softkv import portrait
from softkv.answer import Answers
from softkv.doors.server.app import make_app
from softkv.doors.server.served import Stores
from softkv.maths.heads import Heads
from softkv.storage.batch import DEEPEST_PAYLOAD

from .databases import KINDS, filled, values_of, vectors_of
from .serving import ask, refused, serving

QUERIES = vectors_of(6, seed=9)
HEADS = Heads.random(2, query_width=5, key_width=5, value_width=3, head_width=4, seed=3)
MASK = np.arange(40) % 3 == 0

OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 3},
    {"k": 3, "show": 2, "tolerance": 0.0},
    {"temperature": 0.5, "compatibility": "gaussian"},
    {"where": {"n": {"$gte": 20}}, "show": 40},
    {"where": {"even": True}, "confidence": 0.9},
    {"guarantee": "bound", "projection": False},
    {"mask": MASK},
    {"show": 0},
]


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of each kind of values."""
    with filled(tmp_path / "fruit.softkv", request.param):
        pass
    return tmp_path / "fruit.softkv"


def plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON has them."""
    if "heads" in options:
        options = options | {"heads": {name: x.tolist() for name, x in options["heads"].arrays().items()}}
    return {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in options.items()}


def in_json(found: Any) -> Any:
    """A result as JSON has it."""
    return json.loads(portrait.as_json(found.to_dict() if hasattr(found, "to_dict") else asdict(found)))


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same types and hold the same numbers, bit by bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name.name), getattr(other, name.name)) for name in fields(one))
    return bool(one == other) or (one != one and other != other)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_query_alone_is_answered_as_by_a_handle(path: Path, options: dict[str, Any]) -> None:
    """Bit for bit, in JSON and packed; the answer says of which commit it is."""
    with serving(path) as client, softkv.open(path, "r") as db:
        expected = db.lookup(QUERIES[0], **options)
        told = {"query": QUERIES[0].tolist(), **plain(options)}
        assert ask(client, "/v1/fruit/lookup", told, softkv_alone="1") == in_json(expected)
        answer = ask(client, "/v1/fruit/lookup", {"query": QUERIES[0], **options}, packed=True, softkv_alone="1")
        assert same(answer, expected)
        commit = client.post("/v1/fruit/lookup", json=told).headers["softkv-commit"]
        assert int(commit) == db.info().commit


@pytest.mark.parametrize(
    "options", [*OPTIONS, {"mask": MASK ^ (np.arange(6) == 0)[:, None]}, {"temperature": np.arange(1.0, 7.0)}], ids=str
)
def test_many_queries_are_answered_as_by_a_handle(path: Path, options: dict[str, Any]) -> None:
    """Bit for bit, also with a mask or a temperature for each; packed, they name contributors without the store."""
    with serving(path) as client, softkv.open(path, "r") as db:
        expected = db.lookup(QUERIES, **options)
        told = {"queries": QUERIES.tolist(), **plain(options)}
        assert ask(client, "/v1/fruit/lookup", told) == in_json(expected)
        answers = ask(client, "/v1/fruit/lookup", {"queries": QUERIES, **options}, packed=True)
        assert isinstance(answers, Answers)
        assert same(replace(answers, source=None), replace(expected, source=None))
        assert all(map(same, answers, expected))


def test_heads_are_sent_by_their_projections(tmp_path: Path) -> None:
    """JSON has them as lists, packed they are arrays; one query or many."""
    filled(tmp_path / "fruit", "vector").close()
    arrays = HEADS.arrays()
    with serving(tmp_path / "fruit") as client, softkv.open(tmp_path / "fruit", "r") as db:
        one, many = db.lookup(QUERIES[0], heads=HEADS), db.lookup(QUERIES, heads=HEADS)
        told = {"heads": {name: x.tolist() for name, x in arrays.items()}}
        assert ask(client, "/v1/fruit/lookup", {"query": QUERIES[0].tolist(), **told}) == in_json(one)
        assert same(ask(client, "/v1/fruit/lookup", {"query": QUERIES[0], "heads": arrays}, packed=True), one)
        found = ask(client, "/v1/fruit/lookup", {"queries": QUERIES, "heads": arrays}, packed=True)
        assert same(found.head_weights, many.head_weights)
        assert same(found.value, many.value)


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}, {"where": {"even": False}}, {"tolerance": 0.1}], ids=str)
def test_nearest_is_answered_as_by_a_handle(path: Path, options: dict[str, Any]) -> None:
    """It is for one query and for many."""
    with serving(path) as client, softkv.open(path, "r") as db:
        one = ask(client, "/v1/fruit/nearest", {"query": QUERIES[1].tolist(), **options})
        assert one == in_json(db.nearest(QUERIES[1], **options))
        many = ask(client, "/v1/fruit/nearest", {"queries": QUERIES.tolist(), **options})
        assert many == in_json(db.nearest(QUERIES, **options))


def test_compare_is_answered_as_by_a_handle(path: Path) -> None:
    """It is so in JSON and packed, also for a query that is a key."""
    key = vectors_of(40)[7]
    with serving(path) as client, softkv.open(path, "r") as db:
        for query, options in ((QUERIES[0], {"k": 3, "show": 2}), (key, {}), (key, {"where": {"even": True}})):
            expected = db.compare(query, **options)
            assert ask(client, "/v1/fruit/compare", {"query": query.tolist(), **options}) == in_json(expected)
            found = ask(client, "/v1/fruit/compare", {"query": query, **options}, packed=True)
            assert in_json(found) == in_json(expected)
            assert type(found) is type(expected)


def test_self_attention_is_answered_as_by_a_handle(path: Path) -> None:
    """All items are asked; where all weights are named, they are a matrix at the client, too."""
    with serving(path) as client, softkv.open(path, "r") as db:
        for options in ({"causal": True, "k": 5}, {"show": 40, "temperature": 0.7}):
            expected = db.self_attention(**options)
            assert ask(client, "/v1/fruit/self_attention", options) == in_json(expected)
            found = ask(client, "/v1/fruit/self_attention", options, packed=True)
            assert same(replace(found, source=None), replace(expected, source=None))
        assert same(found.attention(), expected.attention())


@pytest.mark.parametrize("kind", ["number", "vector", "label"])
def test_evaluate_is_answered_as_by_a_handle(tmp_path: Path, kind: str) -> None:
    """Every way to look up, measured on the same queries."""
    filled(tmp_path / "fruit", kind).close()
    targets = values_of(kind, 6, seed=4)
    told = {"queries": QUERIES.tolist(), "targets": targets if kind == "label" else targets.tolist()}
    more = {"k": 4, "temperatures": [0.5, 2.0], "out_of_scope": (3 * QUERIES).tolist()}
    with serving(tmp_path / "fruit") as client, softkv.open(tmp_path / "fruit", "r") as db:
        expected = db.evaluate(QUERIES, targets, k=4, temperatures=(0.5, 2.0), out_of_scope=3 * QUERIES)
        assert ask(client, "/v1/fruit/evaluate", told | more) == in_json(expected)
        found = ask(client, "/v1/fruit/evaluate", {"queries": QUERIES, "targets": targets, **more}, packed=True)
        assert in_json(found) == in_json(expected)


def test_texts_ask_stores_that_embed_them(tmp_path: Path) -> None:
    """One text, many, and many at once that are asked together."""
    texts = ["a small room", "two rooms by the park", "a house", "a boat", "a garden with trees"]
    with softkv.open(tmp_path / "rents") as db:
        db.update({"a small room near the station": 540, "two rooms in the old town": 890, "a large house": 2450})
        expected = [db.lookup(text) for text in texts]
        many = in_json(db.lookup(texts))

    async def all_at_once(stores: Stores) -> list[Any]:
        transport = httpx.ASGITransport(make_app(stores))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            asked = (client.post("/v1/rents/lookup", json={"query": text}) for text in texts)
            return [reply.json() for reply in await asyncio.gather(*asked)]

    with serving(tmp_path / "rents") as client:
        assert ask(client, "/v1/rents/lookup", {"query": texts[0]}) == in_json(expected[0])
        assert ask(client, "/v1/rents/lookup", {"queries": texts}) == many
        found = asyncio.run(all_at_once(client.app.state.stores))  # type: ignore[attr-defined]
        assert [one["value"] for one in found] == pytest.approx([answer.value for answer in expected], rel=1e-6)


def test_what_a_store_has_learned_is_asked_unless_refused(tmp_path: Path) -> None:
    """`projection` refuses it, like that of a handle."""
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((300, 4)).astype(np.float32)
    with softkv.open(tmp_path / "learned", compatibility="gaussian") as db:
        db.add(vectors=keys, values=keys[:, 0] ** 2)
        db.fit()
        with_it, without = db.lookup(keys[0]), db.lookup(keys[0], projection=False)
    assert with_it.value != without.value
    with serving(tmp_path / "learned") as client:
        for options, expected in (({}, with_it), ({"projection": False}, without)):
            assert ask(client, "/v1/learned/lookup", {"query": keys[0].tolist(), **options}) == in_json(expected)


def test_queries_that_are_asked_together_are_right_within_rounding(path: Path) -> None:
    """Whatever their number, each gets the answer to its own query."""
    queries = vectors_of(200, seed=3)

    async def all_at_once(stores: Stores) -> list[Any]:
        transport = httpx.ASGITransport(make_app(stores))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            asked = (client.post("/v1/fruit/lookup", json={"query": one.tolist(), "show": 2}) for one in queries)
            return [reply.json() for reply in await asyncio.gather(*asked)]

    with serving(path) as client, softkv.open(path, "r") as db:
        found = asyncio.run(all_at_once(client.app.state.stores))  # type: ignore[attr-defined]
        for answer, query in zip(found, queries, strict=True):
            expected = in_json(db.lookup(query, show=2))
            assert answer["log_mass"] == pytest.approx(expected["log_mass"], rel=1e-5)
            assert [one["key"] for one in answer["contributors"]] == [one["key"] for one in expected["contributors"]]


def test_the_deepest_payload_is_told_of(tmp_path: Path) -> None:
    """JSON and packed answers have it, though an answer is around it."""
    payload: Any = {"$array": 0}
    for number in range(DEEPEST_PAYLOAD - 2):
        payload = [payload] if number % 2 else {"$dict": payload}
    with softkv.open(tmp_path / "deep") as db:
        db.add(["a"], [1.0], vectors=[[1.0, 0.0]], payloads=[payload])
    with serving(tmp_path / "deep") as client:
        told = {"queries": [[1.0, 0.0]]}
        assert ask(client, "/v1/deep/lookup", told)[0]["contributors"][0]["payload"] == payload
        assert ask(client, "/v1/deep/lookup", told, packed=True)[0].contributors[0].payload == payload


def test_what_is_asked_alone_is_not_mixed_with_what_others_ask(path: Path) -> None:
    """Asked alone, a question is answered bit for bit as by a handle that nobody else uses, whoever asks meanwhile."""
    queries = vectors_of(30, seed=8).tolist()
    with serving(path) as client, softkv.open(path, "r") as db:
        ways = [("lookup", "lookup"), ("compare", "compare"), ("nearest", "nearest")]
        expected = [in_json(getattr(db, ways[n % 3][1])(query)) for n, query in enumerate(queries)]
        with ThreadPoolExecutor(10) as threads:
            asked = [
                threads.submit(ask, client, f"/v1/fruit/{ways[n % 3][0]}", {"query": query}, softkv_alone="1")
                for n, query in enumerate(queries)
            ]
            assert [one.result() for one in asked] == expected


def test_info_names_the_store_and_no_directory(path: Path) -> None:
    """All other figures are those of a handle."""
    with serving(path) as client, softkv.open(path, "r") as db:
        reply = client.get("/v1/fruit/info")
        assert str(path.parent) not in reply.text
        found, expected = reply.json(), in_json(db.info())
        assert found.pop("path") == "fruit"
        assert found.pop("bytes_on_disk") > 0
        assert found == {name: one for name, one in expected.items() if name not in ("path", "bytes_on_disk")}
        (listed,) = client.get("/v1/stores").json()
        kind = expected["value_kind"]
        assert listed == {"name": "fruit", "items": 40, "value_kind": kind, "read_only": False}


def test_problems_name_the_store_and_no_directory(path: Path) -> None:
    """Words that would name the directory of the store name the store."""
    with serving(path) as client:
        status, name, words = refused(client, "/v1/fruit/lookup", {"query": "a text"})
        assert (status, name) in {(422, "EmbedderNeeded"), (422, "UnknownText"), (422, "InputError")}
        assert words.startswith("fruit ")
        assert str(path.parent) not in words


def test_an_answer_that_would_be_too_large_is_refused_before_it_is_computed(tmp_path: Path) -> None:
    """The number of queries times what each of them is told of decides."""
    with softkv.open(tmp_path / "wide") as db:
        db.add(vectors=vectors_of(3000, 2), values=np.zeros((3000, 512), np.float32))
    with serving(tmp_path / "wide") as client:
        for path, told, advice in (
            ("lookup", {"queries": [[1.0, 2.0]] * 6000}, "with fewer queries at once, or with a smaller show."),
            ("self_attention", {"show": 3000}, "with a smaller show."),
        ):
            status, name, words = refused(client, f"/v1/wide/{path}", told)
            assert (status, name) == (422, "InputError")
            assert "at most 64 MiB" in words
            assert words.endswith(f". Ask {advice}")
        assert ask(client, "/v1/wide/lookup", {"query": [1.0, 2.0]})["scored"] == 3000


def test_a_scene_that_is_too_large_says_what_makes_it_smaller(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items and queries do; it has no `show`."""
    monkeypatch.setattr("softkv.doors.server.endpoints.LARGEST_REPLY", 4000)
    with serving(path) as client:
        status, name, words = refused(client, "/v1/fruit/scene", {})
        assert (status, name) == (422, "InputError")
        assert words.endswith(". Ask for fewer items, or with fewer queries at once.")
        assert len(ask(client, "/v1/fruit/scene", {"items": 5})["numbers"]) == 5


def test_a_snapshot_is_read_as_it_was(path: Path) -> None:
    """Nothing written changes it, until it is closed; its name is of no use to anybody then."""
    with serving(path) as client:
        served = next(iter(client.app.state.stores))  # type: ignore[attr-defined]
        lease = client.post("/v1/fruit/snapshots").json()
        before = ask(client, "/v1/fruit/lookup", {"query": QUERIES[0].tolist()})
        served.handle.delete([f"item {number}" for number in range(20)])
        after = ask(client, "/v1/fruit/lookup", {"query": QUERIES[0].tolist()})
        held = {"softkv_snapshot": lease["snapshot"]}
        assert ask(client, "/v1/fruit/lookup", {"query": QUERIES[0].tolist()}, **held) == before != after
        assert client.get("/v1/fruit/info", headers={"softkv-snapshot": lease["snapshot"]}).json()["items"] == 40
        assert client.delete(f"/v1/fruit/snapshots/{lease['snapshot']}").status_code == 204
        status, name, _ = refused(client, "/v1/fruit/lookup", {"query": QUERIES[0].tolist()}, **held)
        assert (status, name) == (410, "SnapshotExpired")
