"""A cluster has the surface of one store: what that answers, changes and refuses, it does as well, on 1, 3 or 8 shards.

What is expected is asked of one store of the same items.
"""

import multiprocessing
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import SoftKV
from softkv.doors.cluster.handle import Cluster, create
from softkv.errors import HandleClosed, HandleForked, NotExpressible, SoftKVError
from softkv.maths.heads import Heads

from .clusters import clustered, opened, require_alike
from .databases import KINDS, filled, vectors_of
from .test_surface import STRANGE

COUNT = 400
QUERIES = vectors_of(3, seed=5)


@pytest.fixture(params=[1, 3, 8])
def shards(request: pytest.FixtureRequest) -> int:
    """How many shards there are."""
    count: int = request.param
    return count


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, shards: int, tmp_path: Path) -> Iterator[tuple[Cluster, SoftKV]]:
    """A cluster, and one store of the same items; checked at the end."""
    with (
        clustered(tmp_path / "c", request.param, COUNT, shards=shards) as db,
        filled(tmp_path / "s", request.param, COUNT) as one,
    ):
        yield db, one
        assert db.check().ok


@pytest.fixture
def numbers(shards: int, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of numbers."""
    with clustered(tmp_path / "c", "number", shards=shards) as db:
        yield db


def test_a_cluster_reads_as_a_mapping(both: tuple[Cluster, SoftKV]) -> None:
    """Keys, values and items, each once; membership, length, equality, and defaults."""
    db, one = both
    assert sorted(db) == sorted(one)
    assert list(db) == list(db.keys()) == [key for key, _ in db.items()]
    assert all(np.array_equal(value, one[key]) for key, value in db.items())
    assert all(np.array_equal(value, one[key]) for key, value in zip(db, db.values(), strict=True))
    assert (len(db), db == one, one == db) == (COUNT, True, True)
    assert ("item 5" in db, "nowhere" in db, 5 in db, "\ud800" in db) == (True, False, False, False)
    assert np.array_equal(db["item 5"], one["item 5"])
    assert [db.get("nowhere"), db.get("nowhere", 0), db.get("#x", 1), db.get("\0", 2)] == [None, 0, 1, 2]
    wanted = ["item 9", "nowhere", "item 2", "#x"]
    assert all(map(np.array_equal, db.get_many(wanted, 0), one.get_many(wanted, 0)))
    assert db.get_many([]) == []


def test_items_are_told_whole(both: tuple[Cluster, SoftKV]) -> None:
    """They are found by key, by filter, and from one place to another, also counted from the end."""
    db, one = both
    names = list(db)
    for start, stop in ((0, None), (3, 5), (-2, None), (0, 2 - COUNT), (COUNT - 1, 5000), (5, 5)):
        assert [item.name for item in db.select(start=start, stop=stop)] == names[start:stop]
    told, whole = db.item("item 7"), one.item("item 7")
    assert (told.key, told.payload, told.text) == (whole.key, whole.payload, whole.text)
    np.testing.assert_array_equal(told.vector, whole.vector)
    assert np.array_equal(told.value, whole.value)
    assert {item.payload["n"] for item in db.select({"n": {"$gte": 380}, "even": True})} == set(range(380, 400, 2))


def test_lookups_answer_as_one_store_does(both: tuple[Cluster, SoftKV]) -> None:
    """One query or many, by any option, within what both say that rounding may change."""
    db, one = both
    in_order = np.array([int(key.removeprefix("item ")) for key in db])
    mask = np.random.default_rng(0).random((3, COUNT)) < 0.02
    mask[:, 0] = True
    options: list[dict[str, Any]] = [
        {},
        {"show": 40},
        {"k": 3, "temperature": 0.3, "show": 2},
        {"k": 1, "show": 7},
        {"k": COUNT, "show": 0},
        {"compatibility": "gaussian", "where": {"even": True}},
        {"where": {"n": {"$lt": 3}}},
        {"temperature": np.array([0.1, 0.2, 0.3])},
        {"tolerance": 0.0, "projection": False},
        {"compatibility": "dot", "temperature": 2.0, "guarantee": "bound"},
    ]
    for given in options:
        for queries in (QUERIES, QUERIES.astype(np.float64) / 3):
            require_alike(db.lookup(queries, **given), one.lookup(queries, **given))
    assert db.lookup(QUERIES, mask=mask.tolist()).to_json() == db.lookup(QUERIES, mask=mask).to_json()
    for some in (mask, mask[0], mask[:1]):
        found, other = db.lookup(QUERIES, mask=some[..., in_order], show=30), one.lookup(QUERIES, mask=some, show=30)
        require_alike(found, other)
        where = {"n": {"$lt": 200}}
        found = db.lookup(QUERIES, mask=some[..., in_order], where=where)
        require_alike(found, one.lookup(QUERIES, mask=some, where=where))
    assert db.lookup(QUERIES[0]).to_json() == db.lookup(QUERIES[:1])[0].to_json()
    assert len(db.lookup([])) == 0
    assert db.value_kind == one.value_kind


def test_the_ways_to_ask_agree_with_one_store(both: tuple[Cluster, SoftKV]) -> None:
    """The nearest, comparisons of all ways, and evaluations."""
    db, one = both
    require_alike(db.nearest(QUERIES), one.nearest(QUERIES))
    key = one.item("item 3").vector
    found, other = db.compare(key, k=4), one.compare(key, k=4)
    assert found.exact is not None
    assert other.exact is not None
    assert (found.exact.key, found.exact.payload) == (other.exact.key, other.exact.payload)
    assert found.top_k.to_dict()["contributors"][0]["key"] == other.top_k.to_dict()["contributors"][0]["key"]
    assert len(found.strip) == len(other.strip)
    assert db.compare(QUERIES[0]).exact is None
    info, expected = db.info(), one.info()
    for name in ("items", "value_kind", "key_width", "value_width", "compatibility", "embedder", "temperature"):
        assert getattr(info, name) == getattr(expected, name)
    assert info.value_scale == pytest.approx(expected.value_scale, rel=1e-6)
    if db.value_kind != "text":
        aims = [one[f"item {number}"] for number in (1, 2, 3)]
        ours, theirs = (each.evaluate(QUERIES, aims, k=3, out_of_scope=vectors_of(2, seed=9)) for each in (db, one))
        for mine, way in zip(ours.ways, theirs.ways, strict=True):
            assert mine.way == way.way
            for name in ("rmse", "log_loss", "auroc"):
                assert getattr(mine, name) in (None, pytest.approx(getattr(way, name) or 0.0, rel=1e-4))
                assert (getattr(mine, name) is None) == (getattr(way, name) is None)


def test_heads_and_attention_agree_with_one_store(shards: int, tmp_path: Path) -> None:
    """The value is that of all heads, and weights are in the order of the items."""
    heads = Heads.random(2, query_width=5, key_width=5, value_width=3, head_width=2, seed=0)
    mask = np.random.default_rng(0).random((3, 30)) < 0.3
    with clustered(tmp_path / "c", "vector", 30, shards=shards) as db, filled(tmp_path / "s", "vector", 30) as one:
        places = [list(one).index(key) for key in db]
        for some in (mask, mask[0], mask[:1]):
            found = db.lookup(QUERIES, heads=heads, mask=some[..., places])
            np.testing.assert_allclose(found.value, one.lookup(QUERIES, heads=heads, mask=some).value, atol=1e-5)
        for given in ({}, {"k": 4}, {"temperature": np.array([0.5, 1.0, 2.0])}):
            found, other = (each.lookup(QUERIES, heads=heads, show=30, **given) for each in (db, one))
            np.testing.assert_allclose(found.value, other.value, atol=1e-5)
            np.testing.assert_allclose(found.log_mass, other.log_mass, atol=1e-5)
            np.testing.assert_allclose(found.effective, other.effective, rtol=1e-5)
            assert (np.linalg.norm(found.value - other.value, axis=1) <= found.error + other.error).all()
            assert found.error.max() < 1e-3
            weights = other.attention(by_head=True)[..., places]
            np.testing.assert_allclose(found.attention(by_head=True), weights, atol=1e-6)
        mine = db.self_attention(temperature=0.4, show=30)
        theirs = one.self_attention(temperature=0.4, show=30)
        np.testing.assert_allclose(mine.attention(), theirs.attention()[np.ix_(places, places)], atol=1e-6)


def test_heads_do_not_project_labels(shards: int, tmp_path: Path) -> None:
    """A distribution over labels is refused in the words of one store."""
    heads, told = Heads.identity(1, width=5, value_width=3), list[str]()
    with clustered(tmp_path / "c", "label", 30, shards=shards) as db, filled(tmp_path / "s", "label", 30) as one:
        for each in (db, one):
            with pytest.raises(NotExpressible) as error:
                each.lookup(QUERIES, heads=heads)
            told.append(str(error.value))
    assert told[0] == told[1]


def test_texts_are_embedded_once_for_all_shards(shards: int, tmp_path: Path) -> None:
    """Keys, texts and queries; and whichever shard has the text."""
    create(tmp_path / "c", shards)
    with opened(tmp_path / "c") as db:
        db.add(["a shepherd", "two boats"], [1.0, 2.0], texts=["looks for gold", None])
        db["a quiet house"] = 3
        assert db.lookup("a boat on a river").contributors[0].key == "two boats"
        assert [one.contributors[0].key for one in db.nearest(["gold", "a house"])] == ["a shepherd", "a quiet house"]
        assert db.item("a shepherd").text == "looks for gold"
        assert db.info().embedder == "static"
    with opened(tmp_path / "c", mode="r") as db:
        assert db.lookup("a boat on a river").contributors[0].key == "two boats"


def test_labels_may_be_met_by_any_shard_first(tmp_path: Path) -> None:
    """Codes differ from shard to shard, and answers name them alike."""
    create(tmp_path / "c", 8, value="label")
    with opened(tmp_path / "c") as db, softkv.open(tmp_path / "s", value="label") as one:
        for number in range(40):
            given = {"vectors": vectors_of(40)[number]}
            for each in (db, one):
                each.add(f"item {number}", f"label {number * 7 % 11}", **given)
        views = db._view().filled
        assert len({view.labels for view in views}) == len(views)
        require_alike(db.lookup(QUERIES), one.lookup(QUERIES))
        require_alike(db.lookup(QUERIES, k=5), one.lookup(QUERIES, k=5))
        assert db.lookup(QUERIES).label == one.lookup(QUERIES).label


def test_columns_hold_every_item_once(both: tuple[Cluster, SoftKV]) -> None:
    """Block by block, with what a model has to know of the store."""
    db, one = both
    found, expected = db.columns(), one.columns()
    for name in ("kind", "compatibility", "key_width", "value_width", "temperature", "learned"):
        assert getattr(found, name) == getattr(expected, name)
    assert len(found) == COUNT
    vectors = np.concatenate([keys for keys, _ in found.blocks(300)])
    np.testing.assert_array_equal(vectors, [db.item(name).vector for name in db])
    assert [item.name for item in found.items(390, 2000)] == list(db)[390:]


def test_what_a_dict_does_a_cluster_does(shards: int, tmp_path: Path) -> None:
    """Each change and what it returns, beside a dict of Python; only the order is that of the shards."""
    create(tmp_path / "c", shards, value="number")
    with opened(tmp_path / "c") as db:
        model = dict[str, float]()
        for one in (db, model):
            one["first"] = 1.0
            one.update({"second": 2.0, "third": 3.0}, fourth=4.0)
            one["second"] = 5.0
            del one["third"]
        assert db.setdefault("second", 9.0) == model.setdefault("second", 9.0)
        assert db.setdefault("fifth", 9.0) == model.setdefault("fifth", 9.0)
        assert (db.pop("first"), db.pop("first", 0)) == (model.pop("first"), 0)
        assert [db.pop(key, None) for key in ("first", 7, "\0", "\ud800", "#99")] == [None] * 5
        key, value = db.popitem()
        assert model.pop(key) == value
        assert db == model
        db.clear()
        assert not db
        assert list(db.items()) == []


def test_changes_report_what_became_of_them(numbers: Cluster) -> None:
    """Counts, what was replaced or passed over, filters in the place of keys, and items without keys."""
    db = numbers
    added = db.add(["item 1", "new"], [7, 8], vectors=QUERIES[:2], on_conflict="ignore", payloads=[None, {"$array": 0}])
    assert (added.count, added.replaced, added.ignored) == (1, 0, 1)
    assert db.item("new").payload == {"$array": 0}
    assert db.add("item 2", np.float32(0.5), vectors=QUERIES[0], on_conflict="replace").replaced == 1
    assert db.set_values(["item 3", "item 4"], np.array([30, 40])).count == 2
    assert db.set_values(["item 3"], [31.0], expected=[30.0]).count == 1
    assert db.set_values(where={"n": {"$gte": 38}}, values=0.0).count == 2
    assert db.get_many(["item 2", "item 3", "item 4", "item 39"]) == [0.5, 31.0, 40.0, 0.0]
    assert db.delete({"item 5", "item 6"}) == 2
    assert db.delete(where={"n": {"$lt": 3}}) == 2  # item 2 has lost its payload
    nameless = f"#{db.add(vectors=QUERIES[2], values=1).first_number}"
    assert (nameless in db, db[nameless], db.item(nameless).name) == (True, 1.0, nameless)
    assert nameless in list(db)
    assert db.get_many([nameless, "#9999"], 0) == [1.0, 0]
    assert db.lookup(QUERIES[2], temperature=1e-3).contributors[0].key == nameless
    assert db.delete(nameless) == 1
    many = db.add(vectors=vectors_of(20, seed=3), values=np.arange(20.0))
    assert (many.count, len(db)) == (20, 57)
    names = [name for name in db if name.startswith("#")]
    assert sorted(db.get_many(names)) == list(range(20))
    assert db.delete(names) == 20


def test_a_batch_is_carried_out_once(numbers: Cluster) -> None:
    """Sent again under its name it returns what it returned, and other content is refused, for whatever shard."""
    keys = [f"new {number}" for number in range(10)]
    given = {"values": np.arange(10.0), "vectors": vectors_of(10)}
    first = numbers.add(keys, **given, batch="one")
    assert first.count == 10
    assert numbers.add(keys, **given, batch="one") == first
    assert numbers.set_values(keys, np.ones(10), batch="two") == numbers.set_values(keys, np.ones(10), batch="two")
    assert numbers.delete(keys[:4], batch="three") == numbers.delete(keys[:4], batch="three") == 4
    for key in ("a", "b", "c", "d", "e"):
        with pytest.raises(softkv.errors.BatchMismatch, match="one"):
            numbers.add([key], [3], vectors=QUERIES[:1], batch="one")
    assert numbers.delete(where={"n": 7}, batch="four") == 1
    again = vectors_of(30, seed=8)
    numbers.add([f"late {number}" for number in range(30)], np.zeros(30), vectors=again, payloads=[{"n": 7}] * 30)
    assert numbers.delete(where={"n": 7}, batch="four") == 1
    assert len(numbers) == 40 + 6 - 1 + 30


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, SoftKV]]:
    """A cluster and a store of the same numbers."""
    folder = tmp_path_factory.mktemp("twins")
    with clustered(folder / "the-cluster", "number") as db, filled(folder / "the-store", "number") as one:
        yield db, one


MISTAKEN: Any = [  # which a server refuses in words of its own
    lambda db: db.lookup(QUERIES[0], k="3"),
    lambda db: db.lookup(QUERIES[0], k=2, show="a"),
    lambda db: db.lookup(QUERIES[0], k=2, show=2.5),
    lambda db: db.compare(QUERIES[0], k=[2]),
    lambda db: db.evaluate(QUERIES, np.zeros(3), k=np.array([2, 3])),
    lambda db: db.check(at_least=1.5),
    lambda db: db.check(at_least="1"),
    lambda db: db.check(at_least=-1),
]


@pytest.mark.parametrize("wrong", [*STRANGE, *MISTAKEN], ids=range(len(STRANGE) + len(MISTAKEN)))
def test_refusals_are_the_same(wrong: Callable[[SoftKV], Any], twins: tuple[Cluster, SoftKV]) -> None:
    """A cluster refuses with the class and the words of a store, but for the path, and changes nothing."""
    db, before, words = twins[0], twins[0].info(), []
    for one in twins:
        with pytest.raises(SoftKVError) as refused:
            wrong(one)
        told = str(refused.value).replace(one.path, "PATH")
        words.append((refused.type, re.sub(r"to \d+ lists", "to so many lists", told)))  # of the items of a shard
    assert words[0] == words[1]
    assert db.info() == before


def test_a_snapshot_stays_as_it_is(numbers: Cluster) -> None:
    """Nothing that is written meanwhile changes it."""
    with numbers.snapshot() as then:
        commit, before = numbers.info().commit, numbers.lookup(QUERIES[0])
        numbers.clear()
        assert (len(then), len(numbers), then.commit, then.info().commit) == (40, 0, commit, commit)
        assert then.lookup(QUERIES[0]).to_json() == before.to_json()
        assert then.value_kind == "number"
        assert len(list(then.select())) == 40
    with pytest.raises(SoftKVError):
        then.lookup(QUERIES[0])


def test_an_iteration_runs_over_the_items_that_it_started_on(numbers: Cluster) -> None:
    """What is added, replaced and deleted meanwhile changes nothing of it."""
    walks = [iter(numbers), iter(numbers.items()), iter(numbers.values()), numbers.select()]
    for walk in walks:
        next(walk)
    numbers.delete([f"item {number}" for number in range(0, 40, 2)])
    numbers.add("late", 1.0, vectors=QUERIES[0])
    assert [sum(1 for _ in walk) for walk in walks] == [39] * 4


def test_a_handle_that_is_closed_says_so(numbers: Cluster) -> None:
    """It says so whatever it is asked."""
    numbers.close()
    numbers.close()
    for ask in (lambda: numbers.lookup(QUERIES[0]), lambda: len(numbers), lambda: numbers.add("a", 1.0, vectors=[1.0])):
        with pytest.raises(HandleClosed, match="open it again"):
            ask()


def test_a_handle_does_not_survive_a_fork(numbers: Cluster) -> None:
    """The child is told to open the cluster again, and leaves the handle of its parent alone."""

    def asked(tell: Any) -> None:
        try:
            numbers.lookup(QUERIES[0])
        except HandleForked as error:
            tell.send(str(error))
        finally:
            numbers.close()

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=asked, args=(there,))
    child.start()
    assert "open the store again" in here.recv()
    child.join()
    assert len(numbers) == 40


def test_rows_of_several_shards_are_compared_together(tmp_path: Path) -> None:
    """Rows are named by the numbers of the whole, and a run may end in another shard."""
    create(tmp_path / "c", shards=3, value="number", compatibility="cosine", temperature=0.1)
    with softkv.open(tmp_path / "c") as db:
        db.add(
            [f"key {n}" for n in range(300)], np.arange(300.0), vectors=np.random.default_rng(0).normal(size=(300, 4))
        )
        snapshot = db._view().snapshot
        every = np.arange(snapshot.rows)
        snapshot.runs(every, every + 1)
        assert snapshot.runs(every[:1], every[-1:] + 1).vectors.shape[1] == 4
