"""One surface: what a local handle answers, changes and refuses, a handle on a server does as well.

Every test runs with both kinds of handle. What is expected is asked of a local handle that reads the same files.
"""

import copy
import itertools
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import LearnedNotCarried, LooksLikeLabels, SoftKV
from softkv.database.intake import ColumnsDiffer
from softkv.errors import HandleClosed, HandleForked, InputError, SoftKVError
from softkv.maths.heads import Heads

from .databases import KINDS, filled, values_of, vectors_of
from .listening import listening

Opening = Callable[..., SoftKV]
COUNT = 1100  # more items than a page holds
QUERIES = vectors_of(3, seed=5)
STRANGE: Any = [
    lambda db: db["nowhere"],
    lambda db: db[7],
    lambda db: db["\ud800"],
    lambda db: db.item("#3"),
    lambda db: db.get_many("item 1"),
    lambda db: db.lookup([1.0, 2.0]),
    lambda db: db.lookup([float("nan")] * 5),
    lambda db: db.lookup(np.zeros((2, 2, 5))),
    lambda db: db.lookup(["a text", 1.0]),
    lambda db: db.lookup(np.array([True] * 5)),
    lambda db: db.lookup("a text"),
    lambda db: db.lookup(QUERIES[0], k=0),
    lambda db: db.lookup(QUERIES[0], temperature=-1.0),
    lambda db: db.lookup(QUERIES[0], temperature=float("nan")),
    lambda db: db.lookup(QUERIES[0], temperature=np.datetime64("2020-01-01", "ns")),
    lambda db: db.lookup(QUERIES[0], k=2, temperature=[0.5] * 5),
    lambda db: db.lookup(QUERIES, where={"even": True}, temperature=[0.5] * 2),
    lambda db: db.lookup(QUERIES, where={"even": True}, temperature=[0.5] * 4),
    lambda db: db.nearest(QUERIES, temperature=[0.5] * 2),
    lambda db: db.lookup(QUERIES[0], k=2, show=-3),
    lambda db: db.lookup(QUERIES[0], tolerance=float("inf")),
    lambda db: db.lookup(QUERIES[0], guarantee="none"),
    lambda db: db.lookup(QUERIES[0], compatibility="likeness"),
    lambda db: db.lookup(QUERIES[0], compatibility=5),
    lambda db: db.lookup(QUERIES[0], heads="two"),
    lambda db: db.lookup(QUERIES[0], where={"n": {"$near": 1}}),
    lambda db: db.lookup(QUERIES[0], where={"n": 10_000}),
    lambda db: db.lookup(QUERIES, mask=np.ones((2, 2), bool)),
    lambda db: db.lookup(QUERIES, mask=np.ones((2, len(db)), bool)),
    lambda db: db.lookup(QUERIES, mask=np.arange(3)[:, None] != np.ones(len(db))),
    lambda db: db.lookup(QUERIES, mask=np.zeros((3, len(db)), bool)),
    lambda db: db.lookup(QUERIES, mask=[[True], [True, False], [True]]),
    lambda db: db.lookup(QUERIES, mask=np.ones((3, len(db)), bool), where={"n": 10_000}),
    lambda db: db.compare(QUERIES),
    lambda db: list(db.select(start="one")),
    lambda db: list(db.select({"n": {"$near": 1}})),
    lambda db: db.add("item 1", 1.0, vectors=QUERIES[0]),
    lambda db: db.add(["a", "a"], [1.0, 2.0], vectors=QUERIES[:2]),
    lambda db: db.add("a", 1.0),
    lambda db: db.add("a"),
    lambda db: db.add({"a"}, [1.0], vectors=QUERIES[:1]),
    lambda db: db.add("a", "a text", vectors=QUERIES[0]),
    lambda db: db.add("a", 2**70, vectors=QUERIES[0]),
    lambda db: db.add("a", float("inf"), vectors=QUERIES[0]),
    lambda db: db.add("a", 1.0, vectors=[[1.0], [2.0, 3.0]]),
    lambda db: db.add("a", 1.0, vectors=np.zeros(5)),
    lambda db: db.add("a", 1.0, vectors=QUERIES[0], payloads={"n": float("nan")}),
    lambda db: db.add("a", 1.0, vectors=QUERIES[0], payloads={"n": {1}}),
    lambda db: db.add("a", 1.0, vectors=QUERIES[0], payloads=[{"n": 1}]),
    lambda db: db.set_values("item 1", 1.0, payloads=[{"n": 1}]),
    lambda db: db.add("a", 1.0, vectors=QUERIES[0], batch="\0"),
    lambda db: db.delete(["nowhere"]),
    lambda db: db.delete(),
    lambda db: db.delete(["item 1"], where={"n": 1}),
    lambda db: db.delete(where={}),
    lambda db: db.set_values(["nowhere"], [1.0]),
    lambda db: db.set_values(["item 1"], [1.0], expected=[-5.0]),
    lambda db: db.set_values(["item 1"], [1.0], expected=-5.0, batch="named"),
    lambda db: db.set_values(["item 1"], [1.0, 2.0]),
    lambda db: db.pop("nowhere"),
    lambda db: db.pop(7),
    lambda db: db.pop("\ud800"),
    lambda db: db.set_temperature(0.0),
    lambda db: db.build_index(lists=0),
    lambda db: db.build_index(temperatures=[2.0, 1.0]),
    lambda db: db.tune(k=0),
    lambda db: db.fit(rank=0),
    lambda db: db.fit([[1.0]], [1.0]),
    lambda db: db.evaluate(QUERIES, [1.0]),
    lambda db: db.export("nowhere/at/all.jsonl"),
    lambda db: db.export("items.xls"),
    lambda db: db.load("items.xls"),
]


@pytest.fixture(params=["local", "remote"])
def opening(request: pytest.FixtureRequest) -> Iterator[Opening]:
    """Opens the store at a path: itself, or by its URL on a server that serves it until the end of the test."""
    with ExitStack() as ending:

        def opened(path: Path, *, like: str | None = None, **options: Any) -> SoftKV:
            if (like or request.param) == "remote":
                url = ending.enter_context(listening(path))
                return ending.enter_context(softkv.open(f"{url}/{path.name}", alone=True, token="", **options))
            return ending.enter_context(softkv.open(path, **options))

        yield opened


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, opening: Opening, tmp_path: Path) -> Iterator[tuple[SoftKV, SoftKV]]:
    """A handle on a store of values of a kind, and a local one that reads the same files; checked at the end."""
    filled(tmp_path / "s", request.param, COUNT).close()
    db = opening(tmp_path / "s")
    with softkv.open(tmp_path / "s", "r") as local:
        yield db, local
        assert db.check().ok


@pytest.fixture
def numbers(opening: Opening, tmp_path: Path) -> SoftKV:
    """A handle on a store of numbers."""
    filled(tmp_path / "s", "number").close()
    return opening(tmp_path / "s")


def same(one: Any, other: Any) -> bool:
    """Whether two values are of one type, and equal to the last bit."""
    return (
        type(one) is type(other)
        and np.array_equal(one, other)
        and getattr(one, "dtype", 0) == getattr(other, "dtype", 0)
    )


def test_a_store_reads_as_a_mapping(both: tuple[SoftKV, SoftKV]) -> None:
    """Keys, values and items in their order; membership, length, equality, and defaults."""
    db, local = both
    assert list(db) == list(local) == list(db.keys())
    assert all(map(same, db.values(), local.values()))
    assert [key for key, _ in db.items()] == list(local)
    assert all(map(same, dict(db.items()).values(), local.values()))
    key, value = next(iter(local.items()))
    assert (value in db.values(), (key, value) in db.items()) == (True, True)
    assert ([] in db.values(), (key, []) in db.items(), (5, value) in db.items()) == (False, False, False)
    assert len(db) == COUNT
    assert db == local
    assert ("item 5" in db, "nowhere" in db, 5 in db) == (True, False, False)
    assert same(db["item 5"], local["item 5"])
    if db.value_kind == "vector":
        db["item 5"][0] = 7.0  # of the caller's own
        assert same(db["item 5"], local["item 5"])
    assert [db.get("nowhere"), db.get("nowhere", 0), db.get("#x", 1), db.get("\0", 2)] == [None, 0, 1, 2]
    assert all(map(same, db.get_many(["item 9", "nowhere", "item 2"], 0), local.get_many(["item 9", "x", "item 2"], 0)))
    assert db.get_many([]) == []


def test_items_are_told_whole(both: tuple[SoftKV, SoftKV]) -> None:
    """They are found by key, by filter, and from one place to another, also beyond a page and counted from the end."""
    db, local = both
    for start, stop in ((0, None), (3, 5), (-2, None), (0, -1098), (1099, 5000), (5, 5), (5, 3), (5000, 9)):
        found, expected = (list(one.select(start=start, stop=stop)) for one in (db, local))
        assert [one.name for one in found] == [one.name for one in expected]
    told, whole = db.item("item 7"), local.item("item 7")
    assert (told.row, told.number, told.key, told.payload, told.text) == (7, 8, "item 7", {"n": 7, "even": False}, None)
    assert same(told.vector, whole.vector)
    assert same(told.value, whole.value)
    assert [one.payload["n"] for one in db.select({"n": {"$gte": 20}, "even": True}, start=1, stop=3)] == [22, 24]


def test_lookups_answer_to_the_last_bit(both: tuple[SoftKV, SoftKV]) -> None:
    """They do for one query or many, by any option."""
    db, local = both
    options: list[dict[str, Any]] = [
        {},
        {"k": 3, "temperature": 0.3, "show": 2},
        {"compatibility": "gaussian", "where": {"even": True}, "temperature": np.longdouble(0.5)},
        {"mask": np.arange(COUNT) % 3 == 0, "tolerance": 0.0, "projection": False},
    ]
    for given in options:
        for query in (QUERIES[0], QUERIES[0].tolist(), QUERIES, QUERIES.astype(np.float64) / 3):
            found, expected = db.lookup(query, **given), local.lookup(query, **given)
            assert type(found) is type(expected)
            assert same(found.value, expected.value)
            assert found.to_json() == expected.to_json()
    temperatures = np.array([0.1, 0.2, 0.3])
    for each in (temperatures, temperatures.astype(np.longdouble), list(temperatures.astype(np.longdouble))):
        assert db.lookup(QUERIES, temperature=each).to_dict() == local.lookup(QUERIES, temperature=each).to_dict()
    assert repr(db.nearest(QUERIES[1])) == repr(local.nearest(QUERIES[1]))
    assert db.compare(QUERIES[2], k=4).to_json() == local.compare(QUERIES[2], k=4).to_json()
    assert len(db.lookup([])) == len(local.lookup([])) == 0
    assert repr(db.info()).replace(db.path, local.path) == repr(local.info())
    assert db.value_kind == local.value_kind


def test_attention_is_the_same_matrix(opening: Opening, tmp_path: Path) -> None:
    """Attention is the same matrix, also of heads and of items that ask each other; weights have the order of items."""
    filled(tmp_path / "s", "vector", 12).close()
    db = opening(tmp_path / "s")
    with softkv.open(tmp_path / "s", "r") as local:
        asked = {"causal": True, "temperature": 0.4, "show": 12}
        assert same(db.self_attention(**asked).attention(), local.self_attention(**asked).attention())
        heads = Heads.random(2, query_width=5, key_width=5, value_width=3, head_width=2, seed=0)
        found, expected = (one.lookup(QUERIES, heads=heads, show=12) for one in (db, local))
        assert same(found.value, expected.value)
        assert same(found.attention(by_head=True), expected.attention(by_head=True))


def test_texts_are_embedded_where_the_store_is(opening: Opening, tmp_path: Path) -> None:
    """Keys, texts and queries are."""
    softkv.open(tmp_path / "s").close()
    db = opening(tmp_path / "s")
    db.add(["a shepherd", "two boats"], [1.0, 2.0], texts=["looks for gold", None])
    db["a quiet house"] = 3
    assert db.lookup("a boat on a river").contributors[0].key == "two boats"
    assert [one.contributors[0].key for one in db.nearest(["gold", "a house"])] == ["a shepherd", "a quiet house"]
    assert db.item("a shepherd").text == "looks for gold"
    assert db.info().embedder == "static"


def test_columns_are_the_same_arrays(both: tuple[SoftKV, SoftKV]) -> None:
    """Block by block, with what a model has to know of the store."""
    db, local = both
    found, expected = db.columns(), local.columns()
    names = ("store", "commit", "kind", "labels", "compatibility", "key_width", "value_width", "temperature", "learned")
    assert [getattr(found, name) for name in names] == [getattr(expected, name) for name in names]
    assert len(found) == COUNT
    for ours, theirs in zip(found.blocks(300), expected.blocks(300), strict=True):
        assert all(map(same, ours, theirs))
    for start, stop in ((1090, 2000), (0, 0), (7, 7), (5, 3), (COUNT, 6000), (5000, 6000), (-3, COUNT), (1090, -4)):
        assert all(map(same, found.block(start, stop), expected.block(start, stop)))
        assert [one.name for one in found.items(start, stop)] == [one.name for one in expected.items(start, stop)]


def test_what_a_dict_does_a_store_does(opening: Opening, tmp_path: Path) -> None:
    """Each change and what it returns, beside a dict of Python."""
    softkv.open(tmp_path / "s", value="number").close()
    db, model = opening(tmp_path / "s"), dict[str, float]()
    for one in (db, model):
        one["first"] = 1.0
        one.update({"second": 2.0, "third": 3.0}, fourth=4.0)
        one["second"] = 5.0
        del one["third"]
    assert db.setdefault("second", 9.0) == model.setdefault("second", 9.0)
    assert db.setdefault("fifth", 9.0) == model.setdefault("fifth", 9.0)
    assert (db.pop("first"), db.pop("first", 0)) == (model.pop("first"), 0)
    assert [db.pop(key, None) for key in ("first", 7, "\0", "\ud800", "#99")] == [None] * 5
    assert db.popitem() == model.popitem()
    assert list(db.items()) == list(model.items())
    db.clear()
    assert not db
    assert list(db.items()) == []


def test_changes_report_what_became_of_them(numbers: SoftKV) -> None:
    """Counts, what was replaced or passed over, and filters in the place of keys."""
    db = numbers
    added = db.add(["item 1", "new"], [7, 8], vectors=QUERIES[:2], on_conflict="ignore", payloads=[None, {"$array": 0}])
    assert (added.count, added.replaced, added.ignored) == (1, 0, 1)
    assert db.item("new").payload == {"$array": 0}
    assert db.add(vectors=QUERIES[0], values=1).first_number == 42
    assert db.add("item 2", np.float32(0.5), vectors=QUERIES[0], on_conflict="replace").replaced == 1
    assert db.set_values(["item 3", "item 4"], np.array([30, 40])).count == 2
    assert db.set_values(["item 3"], [31.0], expected=[30.0], payloads=[{"n": 99}]).count == 1
    assert db.item("item 3").payload == {"n": 99}
    assert db.set_values(where={"n": {"$gte": 38, "$lt": 99}}, values=0.0).count == 2
    assert db.get_many(["item 2", "item 3", "item 4", "item 39"]) == [0.5, 31.0, 40.0, 0.0]
    assert db.delete({"item 5", "item 6"}) == 2
    assert db.delete(where={"n": {"$lt": 3}}) == 2  # item 2 has lost its payload
    assert db.delete(where={"n": {"$in": (7, 8)}}) == 2
    assert db.delete("#42") == 1
    assert len(db) == 35


def test_a_batch_is_carried_out_once(numbers: SoftKV) -> None:
    """Sent again under its name it returns what it returned, and other content is refused."""
    first = numbers.add(["a"], [1], vectors=QUERIES[:1], batch="one")
    assert numbers.add(["a"], [1], vectors=QUERIES[:1], batch="one") == first
    assert numbers.set_values(["a"], [2.0], batch="two") == numbers.set_values(["a"], [2.0], batch="two")
    assert numbers.delete(["a"], batch="three") == numbers.delete(["a"], batch="three") == 1
    with pytest.raises(softkv.errors.BatchMismatch, match="one"):
        numbers.add(["a"], [3], vectors=QUERIES[:1], batch="one")


@pytest.mark.parametrize("wrong", STRANGE, ids=range(len(STRANGE)))
def test_refusals_are_the_same(wrong: Callable[[SoftKV], Any], twins: tuple[SoftKV, SoftKV]) -> None:
    """They have one class and one wording, but for the name of the store; and nothing has changed."""
    db, local = twins
    words = []
    for one in (db, local):
        with pytest.raises(SoftKVError) as refused:
            wrong(one)
        words.append((refused.type, str(refused.value).replace(one.path, "PATH").replace("the-remote-one", "PATH")))
    assert words[0] == words[1]
    assert db.info().commit == local.info().commit


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SoftKV, SoftKV]]:
    """Two equal stores of numbers, one of them behind a URL."""
    folder = tmp_path_factory.mktemp("twins")
    for name in ("the-remote-one", "the-local-one"):
        filled(folder / name, "number").close()
    with (
        listening(folder / "the-remote-one") as url,
        softkv.open(folder / "the-local-one") as local,
        softkv.open(f"{url}/the-remote-one", token="") as db,
    ):
        yield db, local


def test_a_snapshot_stays_as_it_is(numbers: SoftKV) -> None:
    """Nothing that is written meanwhile changes it."""
    with numbers.snapshot() as then:
        commit, before = numbers.info().commit, numbers.lookup(QUERIES[0])
        numbers.clear()
        assert (len(then), len(numbers), then.commit, then.info().commit) == (40, 0, commit, commit)
        assert then.lookup(QUERIES[0]).to_json() == before.to_json()
        assert then["item 1"] == values_of("number", 40)[1]
        assert then.value_kind == "number"
        assert len(list(then.select())) == 40
    with pytest.raises(SoftKVError):
        then.lookup(QUERIES[0])


def test_a_snapshot_of_an_empty_store_stays_empty(opening: Opening, tmp_path: Path) -> None:
    """Its length, kind, items and figures do not follow the store."""
    softkv.open(tmp_path / "s").close()
    db = opening(tmp_path / "s")
    with db.snapshot() as then:
        db.add("late", 1.0, vectors=QUERIES[0])
        assert (len(then), then.value_kind, list(then), then.info().items) == (0, None, [], 0)
        assert (len(db), db.value_kind) == (1, "number")


def test_an_iteration_runs_over_the_commit_that_it_started_on(opening: Opening, tmp_path: Path) -> None:
    """What is added, replaced and deleted meanwhile changes nothing of it."""
    filled(tmp_path / "s", "number", COUNT).close()
    db = opening(tmp_path / "s")
    walks = [iter(db), iter(db.items()), iter(db.values()), db.select()]
    for walk in walks:
        next(walk)
    db.delete([f"item {number}" for number in range(0, COUNT, 2)])
    db.add("late", 1.0, vectors=QUERIES[0])
    assert [sum(1 for _ in walk) for walk in walks] == [COUNT - 1] * 4


def test_upkeep_changes_how_a_store_answers(opening: Opening, tmp_path: Path) -> None:
    """An index, a temperature, a metric, a compaction; and progress is told."""
    filled(tmp_path / "s", "number", 600).close()
    db, told = opening(tmp_path / "s"), list[str]()

    def heard(stage: str, _done: int, _all: int) -> None:
        told.append(stage)

    info = db.build_index(lists=4, progress=heard)
    assert info.index is not None
    assert info.index.lists == 4
    db.drop_index()
    assert db.info().index is None
    tuned = db.tune(k=[3], progress=heard)
    assert {one.k for one in tuned.curves} == {None, 3}
    assert db.info().temperature == tuned.full.best[1]
    guard = db.guard(0.1, progress=heard)
    with softkv.open(tmp_path / "s", "r") as local:
        judged, here = db.lookup(QUERIES), local.lookup(QUERIES)
        assert judged.known.tolist() == here.known.tolist()
        assert judged[0].interval(0.9) == here[0].interval(0.9)
        assert local.info().guard == db.info().guard == str(guard)
    assert db.forget_guard()
    assert not db.forget_guard()
    db.set_temperature(0.25)
    assert db.info().temperature == 0.25
    db.set_temperature(None)
    fit = db.fit(rank=2, seed=1, progress=heard)
    assert (fit.items, fit.rank) == (475, 2)
    assert db.forget_fit() == fit.kept
    assert not db.forget_fit()
    db.delete(where={"even": True})
    db.compact()
    assert (len(db), db.info().dead_rows) == (300, 0)
    assert told
    assert db.check(at_least=10**6).ok is False


def test_a_build_is_forecast_where_it_would_run(numbers: SoftKV) -> None:
    """It is of the class of the library, or its error; a change of model that was not begun is dropped in peace."""
    told = numbers.forecast_index(lists=4, temperatures=(0.1, 2.0))
    assert (type(told).__name__, told.seconds > 0, told.kept > 0) == ("Forecast", True, True)
    with pytest.raises(softkv.errors.InputError, match="lists"):
        numbers.forecast_index("hnsw", lists=4)
    commit = numbers.info().commit
    numbers.abandon_reembedding()
    assert numbers.info().commit == commit


def test_a_change_of_model_is_abandoned(opening: Opening, tmp_path: Path) -> None:
    """Nothing else is written before that."""
    with softkv.open(tmp_path / "s") as local:
        local.update({"a shepherd": 1.0, "two boats": 2.0})
        found: Any = local
        found._store.rebuild(key_width=3, settings=found._store.settings)
    db = opening(tmp_path / "s")
    with pytest.raises(softkv.errors.Unfinished):
        db["a house"] = 3.0
    assert "embedded anew" in str(db.info().unfinished)
    db.abandon_reembedding()
    db["a house"] = 3.0
    assert (len(db), db.info().unfinished) == (3, None)


def test_evaluation_finds_the_same_measures(opening: Opening, tmp_path: Path) -> None:
    """Answers of some queries are known, and no item answers others."""
    filled(tmp_path / "s", "label").close()
    db = opening(tmp_path / "s")
    with softkv.open(tmp_path / "s", "r") as local:
        given = (QUERIES, ["red", "green", "blue"])
        options = {"k": 3, "out_of_scope": vectors_of(2, seed=9), "temperatures": (0.5, 2.0)}
        assert db.evaluate(*given, **options) == local.evaluate(*given, **options)


@pytest.mark.parametrize("ending", [".jsonl", ".npz", ".csv"])
def test_a_store_leaves_as_a_file_and_comes_back(opening: Opening, tmp_path: Path, ending: str) -> None:
    """The bytes of the file are those that the store itself would write, and `load` reads them."""
    filled(tmp_path / "s", "number", COUNT).close()
    db = opening(tmp_path / "s")
    file, expected = tmp_path / f"here{ending}", tmp_path / f"there{ending}"
    assert db.export(file) == COUNT
    with softkv.open(tmp_path / "s", "r") as local:
        local.export(expected)
    assert ending == ".npz" or file.read_bytes() == expected.read_bytes()
    with pytest.raises(softkv.errors.StoreExists, match="force"):
        db.export(file)
    assert db.export(file, force=True) == COUNT
    if ending != ".npz":
        loaded = db.load(file, on_conflict="replace")
        assert (loaded.count, loaded.replaced) == (COUNT, COUNT)
        db.clear()
        assert db.load(file, batch="the file").count == db.load(file, batch="the file").count == COUNT
        assert list(db) == [f"item {number}" for number in range(COUNT)]


def test_hints_reach_who_gave_rise_to_them(opening: Opening, tmp_path: Path) -> None:
    """Each has its class and the line that called, and comes once."""
    softkv.open(tmp_path / "texts").close()
    db = opening(tmp_path / "texts")
    with pytest.warns(LooksLikeLabels, match="value='label'") as told:
        db.add([f"word {n}" for n in range(12)], ["yes", "no"] * 6)
    assert [(one.category, one.filename) for one in told] == [(LooksLikeLabels, __file__)]
    softkv.open(tmp_path / "vectors").close()
    db = opening(tmp_path / "vectors")
    rows = np.random.default_rng(0).uniform(1, 8, (300, 2)) * [1.0, 1000.0]
    with pytest.warns(ColumnsDiffer, match="column 1 .* as much as column 0"):
        db.add(vectors=rows, values=rows[:, 0])
    assert db.fit(rank=2).kept
    with pytest.warns(LearnedNotCarried, match="CSV holds items alone"):
        db.export(tmp_path / "items.csv")


def test_hints_reach_code_without_a_module(opening: Opening, tmp_path: Path) -> None:
    """Code that `exec` runs need not have a name, and is told after its items were written."""
    softkv.open(tmp_path / "texts").close()
    db = opening(tmp_path / "texts")
    with pytest.warns(LooksLikeLabels, match="value='label'"):
        exec('db.add([f"word {n}" for n in range(12)], ["yes", "no"] * 6)', {"db": db})
    assert len(db) == 12


def test_a_handle_that_is_closed_says_so(numbers: SoftKV) -> None:
    """It says so whatever it is asked."""
    numbers.close()
    numbers.close()
    with pytest.raises(HandleClosed, match="open it again"):
        numbers.lookup(QUERIES[0])


def test_a_handle_is_neither_pickled_nor_copied(numbers: SoftKV) -> None:
    """The error says to open the store where it is used, also for a method that is sent to another process."""
    with numbers.snapshot() as snapshot:
        for one, attempt in itertools.product((numbers, snapshot, [numbers.lookup]), (pickle.dumps, copy.deepcopy)):
            with pytest.raises(InputError, match="open the store where it is used"):
                attempt(one)
    assert len(numbers) == 40


def test_a_handle_does_not_survive_a_fork(numbers: SoftKV) -> None:
    """The child is told to open the store again, and leaves the handle of its parent alone."""

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
    said = here.recv() if here.poll(60) else "nothing"
    child.join(60)
    child.kill()
    assert "open the store again" in said
    assert len(numbers) == 40
