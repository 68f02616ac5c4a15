"""Opening a database and changing it."""

import math
import os
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softkv
from softkv import errors
from softkv.database import import_from
from softkv.errors import (
    AccessRefused,
    DuplicateKey,
    EmbedderNeeded,
    HandleClosed,
    InputError,
    KeyMissing,
    KindError,
    NotExpressible,
    StoreExists,
    StoreLocked,
    StoreNotFound,
    TemperatureError,
)

from .databases import KINDS, filled, vectors_of

QUERIES = vectors_of(3, seed=9)


def test_one_minute_with_texts(tmp_path: Path) -> None:
    """Texts in, a text out that is not word for word the question, after reopening as well."""
    path = tmp_path / "films.softkv"
    with softkv.open(path) as db:
        db["a shepherd looks for treasure in the desert"] = "The Alchemist"
        db["two boats race on a river"] = "Upstream"
        db["a detective solves a murder on a train"] = "Night Line"
    with softkv.open(path) as db:
        assert db.lookup("a crime on the railway").texts[0].text == "Night Line"
        assert db.nearest("boys sailing").texts[0].text == "Upstream"
        assert db.info().compatibility == "cosine"
        assert db.info().embedder == "static"
        assert db.check().ok


def test_setting_a_key_again_replaces_its_value(tmp_path: Path) -> None:
    """A store does what a dict does: the value changes, the place in the order does not; del takes it out."""
    with softkv.open(tmp_path / "s") as db:
        db["b"], db["a"], db["c"] = 1.0, 2.0, 3.0
        db["b"] = 10.0
        assert list(db.items()) == [("b", 10.0), ("a", 2.0), ("c", 3.0)]
        del db["a"]
        with pytest.raises(KeyMissing):
            del db["a"]
        assert db.pop("b") == 10.0
        assert db.pop("b", None) is None
        assert db.setdefault("c", 7.0) == 3.0
        assert db.setdefault("d", 7.0) == 7.0
        assert db.popitem() == ("d", 7.0)
        assert db.popitem() == ("c", 3.0)
        with pytest.raises(KeyError):
            db.popitem()
        assert db.check().ok


def test_many_items_are_updated_in_one_commit(tmp_path: Path) -> None:
    """`update` adds and replaces wholly or not at all."""
    with softkv.open(tmp_path / "s") as db:
        db["a"] = 1.0
        before = db.info().commit
        db.update({"a": 2.0, "b": 3.0}, c=4.0)
        assert db.info().commit == before + 1
        assert dict(db) == {"a": 2.0, "b": 3.0, "c": 4.0}
        db.update({})
        db.clear()
        assert dict(db) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_given_comes_back(tmp_path: Path, kind: str) -> None:
    """Values, payloads, vectors and texts, from the handle that wrote them and from the next."""
    values = {"number": [0.1, -2.5], "vector": [[1.0, 2.0], [3.0, 4.5]], "label": ["x", "y"], "text": ["T 1", "T 2"]}
    texts, payloads = ["one", "a second thing"], [{"a": [1, None]}, None]
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(["one", "two"], values[kind], texts=[None, "a second thing"], payloads=payloads)
    with softkv.open(tmp_path / "s", "r") as db:
        for name, value, text, payload in zip(db, values[kind], texts, payloads, strict=True):
            item = db.item(name)
            assert np.array_equal(item.value, value)
            assert (item.text, item.payload) == (text, payload)
        assert db.info().value_kind == kind


def test_one_item_is_added_like_many(tmp_path: Path) -> None:
    """A key that is a text is one item, with one value, vector, payload; a vector alone is one as well."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        added = db.add("one", 1.0, vectors=[1.0, 0.0], payloads={"p": 1})
        assert (added.count, added.replaced) == (1, 0)
        db.add(vectors=[0.0, 1.0], values=2.0)
        assert dict(db) == {"one": 1.0, "#2": 2.0}
        assert db.item("one").payload == {"p": 1}


@pytest.mark.parametrize(
    ("values", "kind", "compatibility"),
    [
        ([1.0, 2.0], "number", "cosine"),
        ([[1.0, 2.0], [0.0, 1.0]], "vector", "cosine"),
        (["a", "b"], "text", "cosine"),
        (np.array([1, 2]), "number", "cosine"),
    ],
)
def test_the_first_items_decide(tmp_path: Path, values: object, kind: str, compatibility: str) -> None:
    """Kind and comparison follow from what is added first, and hold from then on."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=[[1.0, 2.0], [2.0, 1.0]], values=values)
        assert (db.info().value_kind, db.info().compatibility) == (kind, compatibility)


def test_a_zero_vector_among_the_first_means_dot(tmp_path: Path) -> None:
    """Cosine could not compare it; later ones are refused before anything is written."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=[[1.0, 2.0], [0.0, 0.0]], values=[1.0, 2.0])
        assert db.info().compatibility == "dot"
    with softkv.open(tmp_path / "t") as db:
        db.add(vectors=[[1.0, 2.0]], values=[1.0])
        for bad in ([[1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1e-46, 0.0]]):
            with pytest.raises(softkv.errors.ZeroVector, match="key vector 1"):
                db.add(vectors=bad, values=[1.0, 2.0])
        for bad in ([[3e38, 3e38]], [[1e-40, 0.0]]):
            with pytest.raises(softkv.errors.NotFinite, match="cosine cannot divide"):
                db.add(vectors=bad, values=[1.0])
        assert len(db) == 1
        db.add(vectors=[[1e-30, 0.0]], values=[1.0])
        assert db.lookup([1.0, 0.0]).scored == 2


def test_what_open_was_asked_for_is_remembered(tmp_path: Path) -> None:
    """It is before the first item as well, and holds against what the first items would suggest."""
    with softkv.open(tmp_path / "s", value="label", compatibility="gaussian", temperature=0.25):
        pass
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b"], ["x", "y"], vectors=[[1.0], [2.0]])
        found = db.info()
        assert (found.value_kind, found.compatibility, found.temperature) == ("label", "gaussian", 0.25)
        assert found.temperature_from == "given, from 0 items"


def test_what_contradicts_the_store_is_refused(tmp_path: Path) -> None:
    """Another kind, another comparison, a value of another kind: each names what the store has."""
    filled(tmp_path / "s", "number").close()
    with pytest.raises(KindError, match="'number', not 'text'"):
        softkv.open(tmp_path / "s", value="text")
    with pytest.raises(NotExpressible, match="'cosine', not 'dot'"):
        softkv.open(tmp_path / "s", compatibility="dot")
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(KindError, match="'number'"):
            db.add(["x"], ["a text"], vectors=vectors_of(1))
        with pytest.raises(EmbedderNeeded, match="vectors="):
            db["x"] = 1.0
    for wrong in ({"value": "colour"}, {"compatibility": "taste"}, {"temperature": 0}, {"mode": "a"}):
        with pytest.raises(InputError):
            softkv.open(tmp_path / "new", **wrong)
    assert not (tmp_path / "new").exists()
    with pytest.raises(StoreNotFound):
        softkv.open(tmp_path / "new", "r")


@pytest.mark.parametrize(
    "given",
    [
        {"keys": ["a"], "values": None},
        {"keys": ["a"], "values": [1.0, 2.0]},
        {"keys": ["a", "b"], "values": [1.0, 2.0], "texts": ["x"]},
        {"keys": [None], "values": [1.0]},
        {"keys": ["a"], "values": [1.0], "texts": ["b"], "vectors": [[1.0]]},
        {"keys": {"a": 1}, "values": [1.0]},
        {"keys": ["a"], "values": [1.0], "payloads": [{1: 2}]},
        {"keys": ["a"], "values": [float("nan")]},
        {"keys": ["a"], "values": [[1.0], [2.0]]},
        {"keys": ["a", "a"], "values": [1.0, 2.0]},
        {"keys": ["   "], "values": [1.0]},
        {"keys": ["a"], "values": [True]},
        {"keys": [], "values": []},
        {"keys": "a", "values": 1.0, "on_conflict": "maybe"},
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, given: dict[str, object]) -> None:
    """The store is as empty afterwards as before, and nothing is decided."""
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(InputError):
            db.add(**given)
        assert (len(db), db.info().value_kind, db.info().commit) == (0, None, 0)
        assert db.check().ok


def test_keys_that_are_there_are_an_error_or_not(tmp_path: Path) -> None:
    """They are named and refused by default; replaced or left alone when asked."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b"], [1.0, 2.0])
        with pytest.raises(DuplicateKey) as caught:
            db.add(["b", "c"], [5.0, 6.0])
        assert caught.value.keys == ("b",)
        assert db.add(["b", "c"], [5.0, 6.0], on_conflict="ignore").ignored == 1
        assert db.add(["a"], [9.0], on_conflict="replace").replaced == 1
        assert dict(db) == {"a": 9.0, "b": 2.0, "c": 6.0}


def test_a_few_texts_that_repeat_bring_a_hint(tmp_path: Path) -> None:
    """Labels are not told from texts by their looks, so they are texts, and the hint says how to have labels."""
    from softkv.database import LooksLikeLabels

    keys = [f"word {number}" for number in range(12)]
    with softkv.open(tmp_path / "s") as db, pytest.warns(LooksLikeLabels, match="value='label'"):
        db.add(keys, ["yes", "no"] * 6)
    with softkv.open(tmp_path / "t") as db, warnings.catch_warnings():
        warnings.simplefilter("error")
        db.add(keys, [f"text {number}" for number in range(12)])
    with softkv.open(tmp_path / "u", value="label") as db, warnings.catch_warnings():
        warnings.simplefilter("error")
        db.add(keys, ["yes", "no"] * 6)


def test_the_writer_leaves_a_temperature_behind(tmp_path: Path) -> None:
    """Found by rule at close, kept while the store is less than four times as large, found again after that."""
    filled(tmp_path / "s", "number", count=40).close()
    with softkv.open(tmp_path / "s") as db:
        first = db.info()
        assert first.temperature_from == "rule, from 40 items"
        db.add(vectors=vectors_of(100, seed=4), values=np.zeros(100))
        assert db.info().temperature == first.temperature
    with softkv.open(tmp_path / "s") as db:
        assert db.info().temperature_from == "rule, from 40 items"
        db.add(vectors=vectors_of(20, seed=5), values=np.zeros(20))
        assert db.info().temperature_from == "rule, from 160 items"
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.info().temperature_from == "rule, from 160 items"
        assert db.info().temperature != first.temperature


def test_a_temperature_that_was_set_stays(tmp_path: Path) -> None:
    """It stays until it is taken back; a reader may have one of its own without changing the store."""
    with filled(tmp_path / "s", "number") as db:
        ruled = db.info().temperature
        db.set_temperature(0.5)
        assert (db.info().temperature, db.lookup(QUERIES[0]).temperature) == (0.5, 0.5)
        db.add(vectors=vectors_of(400, seed=4), values=np.zeros(400))
        with pytest.raises(TemperatureError):
            db.set_temperature(-1)
    with softkv.open(tmp_path / "s", "r", temperature=2.0) as db:
        assert db.lookup(QUERIES[0]).temperature == 2.0
    with softkv.open(tmp_path / "s") as db:
        assert db.info().temperature == 0.5
        db.set_temperature(None)
        assert db.info().temperature != 0.5
        assert db.info().temperature != ruled


def test_threads_share_a_handle(tmp_path: Path) -> None:
    """Many threads look up while one adds; every answer is one of a commit, and nothing fails."""
    found: list[int] = []
    failures: list[BaseException] = []
    with filled(tmp_path / "s", "number") as db:

        def ask() -> None:
            try:
                for _ in range(30):
                    found.append(db.lookup(QUERIES[0]).scored)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(20):
            db.add(f"new {number}", 1.0, vectors=QUERIES[1])
        for thread in threads:
            thread.join()
        assert not failures
        assert set(found) <= set(range(40, 61))
        assert db.check().ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_handle_does_not_survive_a_fork(tmp_path: Path) -> None:
    """The child is told to open the store itself; the parent goes on."""
    with filled(tmp_path / "s", "number") as db:
        db.lookup(QUERIES[0])
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                db.lookup(QUERIES[0])
            except softkv.errors.HandleForked:
                os.write(writing, b"refused")
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        assert os.read(reading, 20) == b"refused"
        os.close(reading)
        assert db.lookup(QUERIES[0]).scored == 40


def test_a_closed_handle_says_so(tmp_path: Path) -> None:
    """Closing twice is fine; asking afterwards is not."""
    db = filled(tmp_path / "s", "number")
    db.close()
    db.close()
    for ask in (lambda: db.lookup(QUERIES[0]), lambda: db["item 0"], lambda: len(db), db.info):
        with pytest.raises(HandleClosed):
            ask()


def test_what_was_exported_comes_back(tmp_path: Path) -> None:
    """A store made of an export answers as the first one did; one that is there already is not touched."""
    with filled(tmp_path / "s", "number") as db:
        assert db.export(tmp_path / "all.jsonl") == 40
        expected = db.lookup(QUERIES[0])
        info = db.info()
    assert import_from(tmp_path / "all.jsonl", tmp_path / "t") == 40
    with softkv.open(tmp_path / "t") as db:
        assert db.lookup(QUERIES[0]).value == expected.value
        assert db.info().temperature == info.temperature
        assert db.check().ok
    with pytest.raises(StoreExists):
        import_from(tmp_path / "all.jsonl", tmp_path / "t")
    (tmp_path / "bad.jsonl").write_text((tmp_path / "all.jsonl").read_text()[:-30])
    with pytest.raises(InputError):
        import_from(tmp_path / "bad.jsonl", tmp_path / "u")
    assert not (tmp_path / "u").exists()


def test_a_reader_cannot_add(tmp_path: Path) -> None:
    """A reader that is to add says that it cannot, before a model is loaded for it."""
    filled(tmp_path / "s", "number").close()
    with softkv.open(tmp_path / "s", "r") as db, pytest.raises(AccessRefused, match="open for reading"):
        db.add("a", 1.0)


def test_only_keys_are_deleted_by_key(tmp_path: Path) -> None:
    """A list after `del` is no key, as in a dict, and nothing goes."""
    with filled(tmp_path / "s", "number", count=3) as db:
        for key in (["item 0", "item 1"], 5, None):
            with pytest.raises(InputError):
                del db[key]
        assert db.pop("#9", 1.0) == db.pop(5, 1.0) == db.get("\0", 1.0) == 1.0
        assert len(db) == 3


def test_an_item_is_popped_by_one_thread_alone(tmp_path: Path) -> None:
    """However many pop at once, each item comes out once; the others get their default."""
    found: list[float] = []
    failures: list[BaseException] = []
    with filled(tmp_path / "s", "number", count=30) as db:
        values = list(db.values())

        def empty() -> None:
            try:
                for number in range(30):
                    value = db.pop(f"item {number}", None)
                    found.extend([] if value is None else [value])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=empty) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert sorted(found) == sorted(values)
        assert db.check().ok


def test_threads_that_set_a_default_agree_on_it(tmp_path: Path) -> None:
    """The first one counts, and all get that one back."""
    found: list[float] = []
    start = threading.Barrier(4)

    def settle(number: int) -> None:
        start.wait()
        found.append(db.setdefault("two words", float(number)))

    with softkv.open(tmp_path / "s") as db:
        db["one"] = 1.0
        threads = [threading.Thread(target=settle, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [db["two words"]] * 4


def test_lookups_do_not_wait_for_texts_to_be_embedded(tmp_path: Path) -> None:
    """While one thread embeds a batch, others read what is there."""
    asked, answered = threading.Event(), threading.Event()

    def slow(texts: list[str]) -> np.ndarray:
        if "slow" in texts:
            asked.set()
            assert answered.wait(10)
        return np.array([[len(text), 1.0] for text in texts])

    with softkv.open(tmp_path / "s", embedder=slow) as db:
        db["a"] = 1.0
        adding = threading.Thread(target=db.add, args=("slow", 2.0))
        adding.start()
        assert asked.wait(10)
        assert db.lookup([1.0, 1.0]).scored == len(db) == 1
        answered.set()
        adding.join()
        assert db["slow"] == 2.0


def test_a_refilled_store_finds_its_temperature_anew(tmp_path: Path) -> None:
    """What suited the items that are gone need not suit the new ones, nor another way to compare."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=vectors_of(40), values=np.zeros(40))
        before = db.info().temperature
    with softkv.open(tmp_path / "s") as db:
        db.clear()
        assert db.info().temperature is None
        db.add(vectors=vectors_of(40) * 100, values=np.zeros(40))
        assert db.info().temperature == pytest.approx(before * 10_000, rel=0.1)
        db.clear()
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=vectors_of(40), values=np.zeros(40))
        plain = softkv.open(tmp_path / "t", compatibility="gaussian")
        plain.add(vectors=vectors_of(40), values=np.zeros(40))
        assert db.info().temperature == pytest.approx(plain.info().temperature, rel=0.1)
        plain.close()


def test_a_wish_of_a_reader_leaves_the_rest_to_the_store(tmp_path: Path) -> None:
    """Opened with one wish, it follows the store in everything else."""
    with softkv.open(tmp_path / "s") as db, softkv.open(tmp_path / "s", "r", compatibility="dot") as reader:
        assert reader.info().compatibility == "dot"
        db.add(vectors=vectors_of(40), values=np.zeros(40))
        db.set_temperature(0.5)
        assert (reader.info().compatibility, reader.info().temperature) == ("cosine", 0.5)
        db.set_temperature(0.25)
        assert reader.info().temperature == 0.25


@pytest.mark.parametrize("scale", [1e-25, 1e-20, 1e18, 1e19, 1e25])
@pytest.mark.parametrize("compatibility", ["dot", "gaussian", "laplace"])
def test_keys_of_any_size_can_be_kept_and_closed(tmp_path: Path, compatibility: str, scale: float) -> None:
    """A lookup answers, a reader finds all of them, and nothing warns."""
    with softkv.open(tmp_path / "s", compatibility=compatibility) as db:
        db.add(vectors=vectors_of(10) * scale, values=np.arange(10.0))
        assert 0 <= db.lookup(vectors_of(1)[0] * scale).value <= 9
    with softkv.open(tmp_path / "s", "r") as db:
        assert len(db) == 10


KEYS = st.sampled_from(["a", "b", "c", "d", "é", "e\u0301"])
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["set", "setdefault"]), KEYS, st.integers(-9, 9)),
    st.tuples(st.sampled_from(["del", "pop", "get"]), KEYS, st.just(0)),
    st.tuples(st.sampled_from(["popitem", "clear", "compact"]), st.just(""), st.just(0)),
    st.tuples(st.just("update"), st.dictionaries(KEYS, st.integers(-9, 9)), st.just(0)),
)


def applied(change: tuple[str, Any, int], to: Any) -> Any:
    """What a dict, or what should be like one, gives back."""
    name, key, value = change
    try:
        if name == "set":
            to[key] = float(value)
        elif name == "del":
            del to[key]
        elif name == "compact":
            getattr(to, "compact", list)()  # which a dict needs not
        elif name == "update":
            to.update({one: float(number) for one, number in key.items()})
        elif name in ("popitem", "clear"):
            return getattr(to, name)()
        elif name == "setdefault":
            return to.setdefault(key, float(value))
        else:
            return getattr(to, name)(key, None) if name == "get" else to.pop(key)
    except KeyError:
        return KeyError
    return None


@settings(max_examples=25, deadline=None)
@given(changes=st.lists(CHANGES, max_size=12))
def test_a_database_does_what_a_dict_does(changes: list[Any]) -> None:
    """Whatever is done to both, both say the same and hold the same, in the same order."""
    plain: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, softkv.open(Path(folder) / "s", embedder=lengths) as db:
        for change in changes:
            assert applied(change, db) == applied(change, plain)
            assert (list(db), list(db.values()), list(db.items())) == (
                list(plain),
                list(plain.values()),
                list(plain.items()),
            )
            assert (len(db), "a" in db, db.get("b")) == (len(plain), "a" in plain, plain.get("b"))
            assert (next(iter(db), None), next(iter(db.items()), None)) == (
                next(iter(plain), None),
                next(iter(plain.items()), None),
            )
            asked = ["b", "x", "a", "b", "e\u0301"]
            assert db.get_many(asked, -1.0) == [plain.get(key, -1.0) for key in asked]
        assert db.check().ok


def lengths(texts: list[str]) -> np.ndarray:
    """A small embedder: how long a text is, and where it stands in the alphabet."""
    return np.array([[len(text), ord(text[0]), 1.0] for text in texts])


def test_a_reader_finds_the_temperature_that_the_writer_leaves(tmp_path: Path) -> None:
    """Both find the same by rule, and so does whoever opens the store later, until a quarter is left of it."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=vectors_of(80), values=np.zeros(80))
        with softkv.open(tmp_path / "s", "r") as reader:
            found = reader.info().temperature
            assert found == db.info().temperature
    with softkv.open(tmp_path / "s") as db:
        assert db.info().temperature == found
        db.delete([f"#{number}" for number in range(1, 60)])
        assert db.info().temperature_from == "rule, from 80 items"
        db.delete([f"#{number}" for number in range(60, 65)])
        assert db.info().temperature_from == "rule, from 16 items"
        assert db.info().temperature != found


@pytest.mark.parametrize("kind", ["number", "vector", "label", "text"])
def test_items_get_other_values_and_keep_the_rest(tmp_path: Path, kind: str) -> None:
    """Place, key vector, text and payload stay; the store blends the new values."""
    old, new = {
        "number": ([1.0, 2.0, 3.0], [7.0, 9.0]),
        "vector": (np.eye(3), np.ones((2, 3))),
        "label": (["a", "b", "a"], ["c", "b"]),
        "text": (["one thing", "two things", "three things"], ["a rock", "a boat"]),
    }[kind]
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(["x", "y", "z"], old, texts=["red apples", None, "green pears"], payloads=[{"n": 1}, None, [2]])
        before = [db.item(key) for key in db]
        added = db.set_values(["z", "x"], new)
        assert (added.count, added.replaced) == (2, 2)
        assert list(db) == [was.key for was in before]
        assert np.array_equal(db["x"], new[1])
        assert np.array_equal(db["z"], new[0])
        for was in before:
            now = db.item(was.key)
            assert (now.text, now.payload) == (was.text, was.payload)
            assert np.array_equal(now.vector, was.vector)
        if kind == "text":
            assert db.lookup("red apples", temperature=0.01).texts[0].text == "a boat"
        assert db.check().ok


def test_items_are_given_other_payloads_with_their_values(tmp_path: Path) -> None:
    """There are as many as keys, and of items that are named; what they are compared by stays."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["x", "y"], [1.0, 2.0], vectors=np.eye(2), payloads=[{"n": 1}, {"n": 2}])
        db.set_values(["y", "x"], [2.0, 3.0], payloads=[{"n": 5}, None], expected=[2.0, 1.0], batch="one")
        assert [(one.value, one.payload, one.vector.tolist()) for one in map(db.item, "xy")] == [
            (3.0, None, [1, 0]),
            (2.0, {"n": 5}, [0, 1]),
        ]
        with pytest.raises(errors.BatchMismatch):
            db.set_values(["y", "x"], [2.0, 3.0], payloads=[None, None], expected=[2.0, 1.0], batch="one")
        for wrong in ({"keys": ["x"], "payloads": []}, {"where": {"n": 5}, "payloads": [None]}):
            with pytest.raises(errors.InputError):
                db.set_values(values=[1.0], **wrong)
        assert db.item("y").payload == {"n": 5}
        assert db.check().ok


@pytest.mark.parametrize(
    ("keys", "values", "error"),
    [
        (["x", "nobody"], [1.0, 2.0], errors.KeyMissing),
        (["x", None], [1.0, 2.0], errors.KeyTextError),
        (["#1"], [1.0], errors.KeyTextError),
        (["x"], [1.0, 2.0], errors.ShapeError),
        (["x"], ["text"], errors.KindError),
        (["x"], [np.nan], errors.NotFinite),
    ],
    ids=["missing", "none", "nameless", "counts", "kind", "nan"],
)
def test_other_values_that_cannot_be_are_refused(tmp_path: Path, keys: Any, values: Any, error: type) -> None:
    """Values that no item can have are refused, and nothing is written."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["x", "y"], [1.0, 2.0], vectors=np.eye(2))
        commit = db.info().commit
        with pytest.raises(error):
            db.set_values(keys, values)
        assert (db.info().commit, dict(db)) == (commit, {"x": 1.0, "y": 2.0})
        assert db.check().ok


def test_values_are_replaced_only_where_they_are_as_expected(tmp_path: Path) -> None:
    """The store compares them in its own precision; each key once, and a value for each."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["x", "y"], [[0.1, 0.2], [0.3, 0.4]], vectors=np.eye(2))
        db.set_values(["y", "x"], [[5, 6], [7, 8]], expected=[[0.3, 0.4], [0.1, 0.2]])
        assert db["x"].tolist() == [7, 8]
        for keys, expected, error in (
            (["x"], [[0.1, 0.2]], errors.StoreError),
            (["x", "x"], [[7, 8], [7, 8]], errors.DuplicateKey),
            (["x", "y"], [[7, 8]], errors.ShapeError),
            (["x"], [{}], errors.KindError),
            (["x"], ["seven"], errors.KindError),
            (["x"], [[10**400, 8]], errors.KindError),
        ):
            with pytest.raises(error):
                db.set_values(keys, [[1, 1]] * len(keys), expected=expected)
        assert {key: value.tolist() for key, value in db.items()} == {"x": [7, 8], "y": [5, 6]}
        assert db.check().ok


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [("number", 2.0, 3.0), ("label", "sea", "land"), ("vector", [0.5, 2.0], [1.0, 1.0])],
)
def test_one_value_is_expected_where_one_is_given(tmp_path: Path, kind: str, old: Any, new: Any) -> None:
    """Of one key that is a text, or of all items that match a filter; a list with one for each will do as well."""
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(["x", "y", "z"], [old] * 3, vectors=np.eye(3), payloads=[{"n": 1}, {"n": 2}, {"n": 2}])
        for some, count in ({"keys": "x"}, 1), ({"where": {"n": 2}}, 2):
            with pytest.raises(errors.StoreError, match="another by now"):
                db.set_values(values=new, expected=new, **some)
            assert db.set_values(values=new, expected=old, **some).count == count
            assert db.set_values(values=old, expected=[new] * count, **some).count == count
            with pytest.raises(errors.ShapeError):
                db.set_values(values=new, expected=[new] * 5, **some)
        with pytest.raises(errors.ShapeError, match="one for each of 1 keys"):
            db.set_values(["x"], [new], expected=old if kind != "vector" else 2.0)
        assert all(np.array_equal(value, old) for value in db.values())


def test_a_writer_waits_for_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for as long as it is told to, in every mode; readers wait for none."""
    with softkv.open(tmp_path / "s", value="label") as other:
        other["a red apple"] = "fruit"
        for mode in ("c", "w", "n"):
            with pytest.raises(StoreLocked, match="wait=SECONDS"):
                softkv.open(tmp_path / "s", mode, wait=0.01)
        with softkv.open(tmp_path / "s", "r", wait=60) as reader:
            assert len(reader) == 1
        monkeypatch.setattr("softkv.storage.disk.locks.time.sleep", lambda _seconds: other.close())
        with softkv.open(tmp_path / "s", "w", wait=60) as db:
            db["a blue car"] = "thing"
            assert db.check().ok
    for wrong in (-1, math.nan, "1", None):
        with pytest.raises(InputError, match="seconds, 0 or more"):
            softkv.open(tmp_path / "new", wait=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
