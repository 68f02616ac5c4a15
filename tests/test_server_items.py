"""Items over HTTP: by key, page by page, as columns, in JSON and with arrays; all as a handle has them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import softkv
from softkv.asking.learned import Learned
from softkv.doors.server import items
from softkv.storage import Item

from .databases import KINDS, filled, values_of, vectors_of
from .serving import ask, refused, serving

GET, SELECT, COLUMNS = "/v1/fruit/items/get", "/v1/fruit/items/select", "/v1/fruit/columns"


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of each kind of values, with an item that has no key, and rows that are dead."""
    with filled(tmp_path / "fruit", request.param) as db:
        db.add(values=values_of(request.param, 1), vectors=vectors_of(1))
        db.delete(["item 3", "item 7"])
    return tmp_path / "fruit"


def alike(one: Any, other: Any) -> bool:
    """Whether two items, or values, are the same in everything."""
    if isinstance(one, Item):
        return isinstance(other, Item) and all(alike(getattr(one, x.name), getattr(other, x.name)) for x in fields(one))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def told(item: Item, *, whole: bool) -> dict[str, Any]:
    """An item as its document."""
    value = item.value.tolist() if isinstance(item.value, np.ndarray) else item.value
    plain = {"key": item.name, "value": value, "payload": item.payload}
    return plain | ({"text": item.text, "vector": item.vector.tolist()} if whole else {})


def walked(client: TestClient, path: str, document: dict[str, Any], **options: Any) -> list[Any]:
    """All items of all pages."""
    found: list[Any] = []
    start: int | None = document.pop("start", 0)
    while start is not None:
        page = ask(client, path, document | {"start": start}, **options)
        assert page["next"] is None or page["next"] > start
        assert len(page["items"]) or page["next"] is None or "find" in document
        found += page["items"]
        start = page["next"]
    return found


def test_values_are_read_by_key(path: Path) -> None:
    """JSON has them as numbers, texts and lists; packed, they are as in a handle."""
    keys = ["item 1", "#41", "item 0", "item 1"]
    with serving(path) as client, softkv.open(path, "r") as db:
        expected = [db[key] for key in keys]
        found = ask(client, GET, {"keys": keys})
        plain = [one.tolist() if isinstance(one, np.ndarray) else one for one in expected]
        assert found == {"values": plain, "missing": [False] * 4, "next": None}
        assert all(map(alike, ask(client, GET, {"keys": keys}, packed=True)["values"], expected))


def test_a_missing_key_is_refused_or_has_the_default(path: Path) -> None:
    """The server does what `db[key]` or `get` does, also for what could not be a key."""
    with serving(path) as client, softkv.open(path, "r") as db:
        for whole in (False, True):
            assert refused(client, GET, {"keys": ["item 1", "item 3"], "whole": whole})[:2] == (404, "KeyMissing")
            assert refused(client, GET, {"keys": ["#no"], "whole": whole})[0] in (404, 422)
        found = ask(client, GET, {"keys": ["item 3", "item 1", "a\0b"], "default": "none"})
        assert found["values"][::2] == ["none", "none"]
        assert found["missing"] == [True, False, True]
        found = ask(client, GET, {"keys": ["item 1", "item 3"], "default": None, "whole": True}, packed=True)
        assert alike(found["items"][0], db.item("item 1"))
        assert found["items"][1] is None
        assert found["missing"] == [False, True]


def test_a_page_of_what_is_missing_ends_early_too(path: Path) -> None:
    """A long default, many times over, would be many times as long as the request."""
    with serving(path) as client:
        found = ask(client, GET, {"keys": ["no"] * 100, "default": "é" * (1 << 20)})
        assert len(found["values"]) == len(found["missing"]) == found["next"] == 2
        assert refused(client, GET, {"keys": ["no"], "default": [1.0]})[0] == 422


def test_whole_items_are_read_by_key(path: Path) -> None:
    """They come as documents with vector and text, or packed as items."""
    keys = ["item 5", "#41"]
    with serving(path) as client, softkv.open(path, "r") as db:
        expected = [db.item(key) for key in keys]
        assert ask(client, GET, {"keys": keys, "whole": True})["items"] == [told(one, whole=True) for one in expected]
        assert all(map(alike, ask(client, GET, {"keys": keys, "whole": True}, packed=True)["items"], expected))


@pytest.mark.parametrize("where", [None, {"even": True}, {"n": {"$gte": 30}}, {"n": -1}], ids=str)
def test_items_are_selected_page_by_page(path: Path, where: dict[str, Any] | None) -> None:
    """They keep their order, however long the pages are; with a start and a stop as `select` has them."""
    with serving(path) as client, softkv.open(path, "r") as db:
        for start, stop, limit in (
            (0, None, 99),
            (0, None, 7),
            (3, 12, 4),
            (5, 5, 9),
            (5, 3, 9),
            (100, None, 9),
            (100, 7, 9),
        ):
            wanted = {"where": where, "start": start, "stop": stop, "limit": limit}
            expected = list(db.select(where, start=start, stop=stop))
            plain = walked(client, SELECT, dict(wanted))
            assert plain == [told(one, whole=False) for one in expected]
            whole = walked(client, SELECT, wanted | {"whole": True}, packed=True)
            assert len(whole) == len(expected)
            assert all(map(alike, whole, expected))


@pytest.mark.parametrize("find", ["ITEM 1", "#41", "m 2", "nobody", ""])
def test_items_are_found_by_what_their_key_contains(path: Path, find: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case does not matter, nor how few are looked at for a page; after the filter, between a start and a stop."""
    with serving(path) as client, softkv.open(path, "r") as db:
        for searched, limit, stop in ((1 << 16, 1000, None), (1 << 16, 2, None), (5, 2, None), (7, 1000, 12)):
            monkeypatch.setattr(items, "SEARCHED", searched)
            for where in (None, {"even": True}):
                among = db.select(where, start=3, stop=stop)
                expected = [told(one, whole=False) for one in among if find.lower() in one.name]
                wanted = {"where": where, "find": find, "start": 3, "stop": stop, "limit": limit}
                assert walked(client, SELECT, wanted) == expected


def test_items_are_found_by_their_text(tmp_path: Path) -> None:
    """What was embedded, where that is not the key; by characters of any alphabet."""
    with softkv.open(tmp_path / "fruit") as db:
        db.add(["a", "b"], [1.0, 2.0], texts=["a Straße by the river", "ΟΔΥΣΣΕΥΣ at sea"])
        db.add(["river c"], [3.0])
    with serving(tmp_path / "fruit") as client:
        for find, keys in (("River", ["a", "river c"]), ("STRASSE", ["a"]), ("οδυσσευς", ["b"]), ("mountain", [])):
            assert [one["key"] for one in ask(client, SELECT, {"find": find})["items"]] == keys
        assert refused(client, SELECT, {"find": 3})[0] == 422


def test_pages_of_a_snapshot_go_together(path: Path) -> None:
    """What is written between two of them is not in the second."""
    with serving(path) as client:
        lease = client.post("/v1/fruit/snapshots").json()
        before = ask(client, SELECT, {"limit": 1000}, softkv_snapshot=lease["snapshot"])["items"]
        first = ask(client, SELECT, {"limit": 10}, softkv_snapshot=lease["snapshot"])
        assert ask(client, "/v1/fruit/items/delete", {"keys": ["item 1", "item 30"]}) == {"deleted": 2}
        reply = client.post(SELECT, json={"start": first["next"]}, headers={"softkv-snapshot": lease["snapshot"]})
        assert first["items"] + reply.json()["items"] == before
        assert int(reply.headers["softkv-commit"]) == lease["commit"]
        assert "item 30" not in [one["key"] for one in ask(client, SELECT, {})["items"]]
        assert ask(client, GET, {"keys": ["item 1"]}, softkv_snapshot=lease["snapshot"])["missing"] == [False]
        assert refused(client, GET, {"keys": ["item 1"]})[1] == "KeyMissing"
        assert refused(client, GET, {"keys": ["item 1"]}, softkv_snapshot="other")[:2] == (410, "SnapshotExpired")


def test_a_page_ends_early_rather_than_being_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads, texts or vectors may make it large; one item at least is on each."""
    with softkv.open(tmp_path / "fruit") as db:
        db.add(
            [f"house {n}" for n in range(60)],
            [f"{n} boats " + "on the sea " * 40 for n in range(60)],
            payloads=[{"n": "é" * n} for n in range(60)],
        )
    monkeypatch.setattr(items, "PAGE", 20_000)
    with serving(tmp_path / "fruit") as client, softkv.open(tmp_path / "fruit", "r") as db:
        keys = list(db)
        for document in ({}, {"whole": True}):
            page = client.post(SELECT, json=document)
            assert len(page.content) <= 20_000
            assert 0 < page.json()["next"] < 60
            assert [one["key"] for one in walked(client, SELECT, document)] == keys
        page = ask(client, GET, {"keys": keys})
        assert 30 < page["next"] < 60
        assert page["values"] == [db[key] for key in keys[: page["next"]]]
        assert len(page["missing"]) == page["next"]
        monkeypatch.setattr(items, "PAGE", 10)
        assert ask(client, SELECT, {})["next"] == 1
        assert ask(client, GET, {"keys": keys})["next"] == 1
        assert ask(client, COLUMNS, {}, packed=True)["next"] == 1


def test_columns_come_block_by_block(path: Path) -> None:
    """Packed, as a handle's columns have them, with what they are told of the store by the first."""
    with serving(path) as client, softkv.open(path, "r") as db:
        columns = db.columns()
        ((vectors, values),) = columns.blocks()
        first = ask(client, COLUMNS, {"rows": 16}, packed=True)
        for name in ("store", "commit", "kind", "labels", "compatibility", "key_width", "value_width", "temperature"):
            assert first[name] == getattr(columns, name)
        assert (first["count"], first["learned"]) == (len(columns), None)
        second = ask(client, COLUMNS, {"start": first["next"], "rows": 1000}, packed=True)
        assert second["next"] is None
        assert "store" not in second
        for name, expected in (("vectors", vectors), ("values", values)):
            assert alike(np.concatenate([first[name], second[name]]), expected)
        assert ask(client, COLUMNS, {"start": 38})["vectors"] == vectors[38:].tolist()
        found = walked(client, COLUMNS, {"whole": True, "rows": 9}, packed=True)
        assert all(map(alike, found, columns.items(0, 100)))
        assert len(found) == 39
        for start in (39, 100):
            for whole in (False, True):
                assert ask(client, COLUMNS, {"start": start, "whole": whole})["next"] is None


def test_columns_bring_what_was_learned(tmp_path: Path) -> None:
    """They bring the bytes of its file."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, 6)).astype(np.float32)
    with softkv.open(tmp_path / "fruit", value="number", compatibility="gaussian") as db:
        db.add(vectors=vectors, values=np.sin(3 * vectors[:, 0]))
        assert db.fit().kept
    with serving(tmp_path / "fruit") as client, softkv.open(tmp_path / "fruit", "r") as db:
        found = ask(client, COLUMNS, {"rows": 0}, packed=True)
        assert (found["next"], len(found["vectors"])) == (0, 0)
        learned, expected = Learned.decoded(found["learned"].data, rows=0, key_width=6), db.columns().learned
        assert expected is not None
        assert np.array_equal(learned.metric.factors, expected.metric.factors)


def test_what_cannot_be_read_is_refused(path: Path) -> None:
    """The words of the library refuse it, or the form does."""
    with serving(path) as client:
        for document in ({"limit": 1001}, {"limit": 0}, {"start": -1}, {"start": True}, {"pages": 1}, {"whole": 1}):
            assert refused(client, SELECT, document)[:2] == (422, "InputError")
        assert refused(client, SELECT, {"where": {"n": {"$near": 1}}})[:2] == (422, "FilterError")
        for document in ({}, {"keys": "item 1"}, {"keys": [1]}, {"keys": [None]}):
            assert refused(client, GET, document)[:2] == (422, "InputError")
        assert refused(client, COLUMNS, {"rows": (1 << 16) + 1})[:2] == (422, "InputError")
        assert refused(client, "/v1/other/items/get", {"keys": []})[:2] == (404, "StoreNotFound")


def test_an_empty_store_has_no_items(tmp_path: Path) -> None:
    """It has no page of them, no values, and no columns."""
    softkv.open(tmp_path / "fruit").close()
    with serving(tmp_path / "fruit") as client:
        assert ask(client, SELECT, {}) == {"items": [], "next": None}
        assert ask(client, GET, {"keys": []}) == {"values": [], "missing": [], "next": None}
        assert refused(client, COLUMNS, {})[:2] == (422, "EmptyStore")
