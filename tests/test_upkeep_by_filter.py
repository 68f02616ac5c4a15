"""Items that a filter matches, by payload or value: deleted, given other values, asked; compared with plain Python."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softkv
from softkv.errors import BatchMismatch, FilterError, InputError, KeyTextError

from .commands import ran

NUMBERS = [-2.5, 0.0, 1.0, 3.0, 3.5, 1e12, 2.0**53, 7.0]
WORDS = ["crime", "drama", "Émile", "a", "b", "b", "zebra", ""]
ORDERS = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def filled(path: Path, kind: str, **options: Any) -> softkv.SoftKV:
    """Eight items of a kind, with payloads."""
    values: Any = {"number": NUMBERS, "label": [one or "none" for one in WORDS], "text": [one or "x" for one in WORDS]}
    db = softkv.open(path, value=kind, **options)
    texts = {} if kind != "text" else {"texts": [f"text {n}" for n in range(8)]}
    vectors = {} if kind == "text" else {"vectors": np.random.default_rng(0).standard_normal((8, 3))}
    db.add([f"k{n}" for n in range(8)], values[kind], payloads=[{"n": n} for n in range(8)], **vectors, **texts)
    return db


def holds(where: dict[str, Any], value: Any, payload: Any) -> bool:
    """What a filter means, for one item, in plain Python."""
    found = []
    for name, asked in where.items():
        if name in ("$and", "$or"):
            found.append((all if name == "$and" else any)(holds(part, value, payload) for part in asked))
        elif name == "$not":
            found.append(not holds(asked, value, payload))
        else:
            subject = value if name == "$value" else payload[name]
            operators = asked if isinstance(asked, dict) else {"$eq": asked}
            found.append(all(passes(operator, operand, subject) for operator, operand in operators.items()))
    return all(found)


def passes(operator: str, operand: Any, subject: Any) -> bool:
    """One operator."""
    if operator == "$not":
        return not all(passes(*pair, subject) for pair in operand.items())
    if operator in ("$in", "$nin"):
        return any(passes("$eq", one, subject) for one in operand) == (operator == "$in")
    alike = isinstance(operand, str) == isinstance(subject, str)
    if operator in ("$eq", "$ne"):
        return (alike and subject == operand) == (operator == "$eq")
    return alike and bool(ORDERS[operator](subject, operand))


operands = st.sampled_from([*NUMBERS, 3, 2**53 + 1, 0.5, -1, *WORDS])
tests = st.one_of(
    operands,
    st.dictionaries(st.sampled_from([*ORDERS, "$eq", "$ne"]), operands, min_size=1, max_size=2),
    st.lists(operands, max_size=3).map(lambda some: {"$in": some}),
    st.lists(operands, max_size=3).map(lambda some: {"$nin": some}),
    operands.map(lambda one: {"$not": {"$eq": one}}),
)
leaves = st.dictionaries(st.sampled_from(["$value", "n"]), tests, min_size=1, max_size=2)
filters = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"$and": some}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"$or": some}),
        inner.map(lambda one: {"$not": one}),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def stores() -> Any:
    """A store of each kind whose values can be asked for; one item of each is deleted."""
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: filled(Path(folder) / kind, kind) for kind in ("number", "label", "text")}
        for db in found.values():
            del db["k4"]
        yield found
        for db in found.values():
            db.close()


@pytest.mark.parametrize("kind", ["number", "label", "text"])
@settings(max_examples=150, deadline=None)
@given(where=filters)
def test_filters_on_values_mean_what_plain_python_says(stores: Any, kind: str, where: dict[str, Any]) -> None:
    """They stand alone, beside the payload, or within $and, $or and $not, also after a deletion."""
    db = stores[kind]
    expected = [one.name for one in db.select() if holds(where, one.value, one.payload)]
    assert [one.name for one in db.select(where)] == expected


def test_lookups_take_filters_on_values(tmp_path: Path) -> None:
    """Those items alone are averaged."""
    with filled(tmp_path / "s", "number") as db:
        answer = db.lookup([0.1, 0.2, 0.3], where={"$value": {"$gte": 1, "$lt": 4}}, tolerance=0)
        assert sorted(one.value for one in answer.contributors) == [1.0, 3.0, 3.5]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ({"$value": {}}, "a value or operators"),
        ({"$value": {"field": 1}}, "a value or operators"),
        ({"$value": {"$like": "a"}}, "one of the operators"),
        ({"$value": {"$gt": None}}, "a number or a text"),
        ({"n": {"$value": 1}}, "one of the operators"),
        ({"$valu": 1}, r"Did you mean \$value"),
    ],
)
def test_filters_that_cannot_be_understood_are_refused(tmp_path: Path, where: dict[str, Any], names: str) -> None:
    """The error tells the place, before anything is read or changed."""
    with filled(tmp_path / "s", "number") as db:
        for act in (db.select, lambda where: list(db.select(where)), lambda where: db.delete(where=where)):
            with pytest.raises(FilterError, match=names):
                list(act(where) or ())
        assert len(db) == 8


def test_vectors_have_no_order(tmp_path: Path) -> None:
    """A filter on them is refused."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b"], [[1.0, 2.0], [3.0, 4.0]], vectors=np.eye(2))
        with pytest.raises(FilterError, match="vectors"):
            list(db.select({"$value": 1}))


def test_what_matches_is_deleted_in_one_commit(tmp_path: Path) -> None:
    """Nothing else is deleted, and nothing at all by a filter that matches nothing."""
    with filled(tmp_path / "s", "number") as db:
        commit = db.info().commit
        assert db.delete(where={"$value": {"$gt": 3}, "n": {"$lt": 6}}) == 2
        assert db.info().commit == commit + 1
        assert list(db) == ["k0", "k1", "k2", "k3", "k6", "k7"]
        assert db.delete(where={"n": 100}) == 0
        for wrong in ({}, None):
            with pytest.raises(InputError):
                db.delete(where=wrong)
        with pytest.raises(InputError, match="both"):
            db.delete("k0", where={"n": 0})
        assert len(db) == 6


def test_what_matches_is_given_a_value(tmp_path: Path) -> None:
    """All of it or nothing; vectors and payloads stay."""
    with filled(tmp_path / "s", "label") as db:
        vector = db.item("k4").vector
        assert db.set_values(where={"$value": {"$in": ["b", "a"]}}, values="letter").count == 3
        assert [one.name for one in db.select({"$value": "letter"})] == ["k3", "k4", "k5"]
        assert (db.item("k4").payload, db.item("k4").vector.tolist()) == ({"n": 4}, vector.tolist())
        assert db.set_values(where={"n": 100}, values="none at all").count == 0
        assert "none at all" not in db.values()
        with pytest.raises(InputError, match="both"):
            db.set_values(["k0"], ["x"], where={"n": 0})
    with softkv.open(tmp_path / "nameless") as db:
        db.add(vectors=np.eye(2), values=[1.0, 2.0])
        with pytest.raises(KeyTextError, match="#1 has no key"):
            db.set_values(where={"$value": {"$gt": 0}}, values=3.0)


def test_the_command_deletes_and_sets_by_filter(tmp_path: Path) -> None:
    """Keys or --where are given, and not both or neither."""
    filled(tmp_path / "s", "number").close()
    done = ran("set", 5, "--where", '{"$value": {"$lt": 1}}', "--db", tmp_path / "s")
    assert (done.code, done.err) == (0, "changed 2\n")
    assert ran("set", "2.5", "k7", "--db", tmp_path / "s").err == "changed 1\n"
    done = ran("delete", "--where", '{"$value": 5}', "--db", tmp_path / "s")
    assert (done.code, done.err) == (0, "deleted 2\n")
    found = [json.loads(line) for line in ran("list", "--db", tmp_path / "s").out.splitlines()]
    assert {one["key"]: one["value"] for one in found} == {
        "k2": 1.0, "k3": 3.0, "k4": 3.5, "k5": 1e12, "k6": 2.0**53, "k7": 2.5
    }  # fmt: skip
    for wrong in (("delete",), ("delete", "k2", "--where", '{"n": 1}'), ("set", 1)):
        assert ran(*wrong, "--db", tmp_path / "s").code == 2
    done = ran("set", "x", "k2", "--db", tmp_path / "s")
    assert (done.code, "expected a number" in done.err) == (1, True)
    assert len(ran("list", "--db", tmp_path / "s").out.splitlines()) == 6


def test_a_named_batch_by_filter_is_done_once(tmp_path: Path) -> None:
    """Sent again, it returns what it did, though the filter matches other items by now; with another it is refused."""
    with filled(tmp_path / "s", "number") as db:
        where = {"$value": {"$gte": 3}}
        assert db.delete(where=where, batch="d") == 5
        db.add("late", 9.0, vectors=[1.0, 2.0, 3.0])
        assert db.delete(where=where, batch="d") == 5
        assert "late" in db
        with pytest.raises(BatchMismatch):
            db.delete(where={"$value": {"$gte": 4}}, batch="d")
        first = db.set_values(where={"$value": {"$lt": 1}}, values=-1.0, batch="s")
        db.set_values(["k0"], [0.5])
        assert db.set_values(where={"$value": {"$lt": 1}}, values=-1.0, batch="s") == first
        assert db["k0"] == 0.5
        with pytest.raises(BatchMismatch):
            db.set_values(where={"$value": {"$lt": 1}}, values=-2.0, batch="s")


def test_a_named_batch_by_a_filter_of_tuples_is_that_of_lists(tmp_path: Path) -> None:
    """Filters take tuples and numbers of NumPy, so a batch does, and it is the one with lists."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b", "c"], [1.0, 2.0, 3.0], payloads=[{"n": n} for n in range(3)])
        assert db.delete(where={"n": {"$in": (np.int64(0), 2)}}, batch="d") == 2
        db.add("d", 4.0, payloads={"n": 0})
        assert db.delete(where={"n": {"$in": [0, 2]}}, batch="d") == 2
        assert list(db) == ["b", "d"]


def test_a_named_batch_that_matches_nothing_is_done_once_too(tmp_path: Path) -> None:
    """Sent again, it changes nothing that was added since; with other content, it is refused."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b"], [1.0, 2.0])
        where = {"$value": {"$gt": 10}}
        first = db.set_values(where=where, values=0.0, batch="s")
        assert first.count == 0
        assert db.delete(where=where, batch="d") == 0
        db.add("c", 11.0)
        commit = db.info().commit
        assert db.set_values(where=where, values=0.0, batch="s") == first
        assert db.delete(where=where, batch="d") == 0
        assert (db["c"], db.info().commit) == (11.0, commit)
        with pytest.raises(BatchMismatch):
            db.set_values(where=where, values=1.0, batch="s")
        assert db.set_values(where=where, values=0.0).count == 1
    with softkv.open(tmp_path / "s", "w") as db:
        assert db.set_values(where=where, values=5.0, batch="t").count == 0
        assert db.set_values(where=where, values=0.0, batch="s") == first
        assert db.check().ok
