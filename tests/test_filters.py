"""Filters on payloads: what they match, refuse, and do not believe. The judge is tests/filtering.py."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from softkv.errors import FilterError, HandleClosed, StoreDamaged
from softkv.storage import Store
from softkv.storage.catalog.roster import content_seal
from softkv.storage.catalog.tables import item_seal
from softkv.storage.filters.conditions import MOST_IN_SQL, Field, spellings
from softkv.storage.filters.searching import search_for
from softkv.storage.filters.worded import MOST_CONDITIONS, MOST_MEMBERS, condition_of
from tests.filtering import FILTERS, NUMBERS, NUMBERS_ONLY_IN_PAYLOADS, ODD, meets, payloads
from tests.stores import sql, vectors

FILMS: list[Any] = [
    {"year": 1999, "genre": "crime", "stars": 4.5, "seen": True, "author": {"born": 1899, "name": "Ann"}},
    {"year": 2000, "genre": "drama", "stars": 4, "seen": False, "author": {"born": 1950}},
    {"year": 2000.0, "genre": "Crime", "stars": None, "tags": ["crime"]},
    {"year": "2000", "genre": "crimes", "seen": 1, "author": "Ann"},
    {"year": True, "genre": ""},
    None,
    ["year"],
]
CARRIED = [json.loads(json.dumps(one)) for one in payloads(400)]


def filled(path: Path, carried: list[Any]) -> Store:
    """A new store of numbered items that carry these payloads, open for writing."""
    store = Store.open(path, "c")
    store.append(np.ones((len(carried), 1)), np.arange(float(len(carried))), payloads=carried)
    return store


def statements(store: Store) -> list[str]:
    """The statements that a store runs from now on, as they come."""
    seen: list[str] = []
    store._catalog.connection._driver.set_trace_callback(seen.append)
    return seen


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The few that the readable tests ask."""
    with filled(tmp_path_factory.mktemp("films") / "s", FILMS) as store:
        yield store
        assert store.check().ok


@pytest.fixture(scope="module")
def diverse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Hundreds of payloads of every sort, none of which a filter may damage."""
    with filled(tmp_path_factory.mktemp("diverse") / "s", CARRIED) as store:
        yield store
        assert [store.get(f"#{number + 1}").payload for number in range(len(CARRIED))] == CARRIED
        assert store.check().ok


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"genre": "crime"}, [0]),
        ({"year": 2000}, [1, 2]),
        ({"year": {"$eq": 2000.0}}, [1, 2]),
        ({"year": {"$ne": 2000}}, [0, 3, 4]),
        ({"year": {"$gt": 1999}}, [1, 2]),
        ({"year": {"$gte": 1999}}, [0, 1, 2]),
        ({"year": {"$lt": 2000}}, [0]),
        ({"year": {"$lte": 2000}}, [0, 1, 2]),
        ({"year": {"$gt": 1999, "$lt": 2000}}, []),
        ({"year": {"$lte": "3"}}, [3]),
        ({"genre": {"$gt": "crime"}}, [1, 3]),
        ({"genre": {"$lt": "crime"}}, [2, 4]),
        ({"genre": {"$in": ["drama", "", 7, None]}}, [1, 4]),
        ({"stars": {"$in": [4.5, 4.0]}}, [0, 1]),
        ({"stars": {"$in": []}}, []),
        ({"stars": {"$nin": [4, True]}}, [0, 2]),
        ({"stars": {"$nin": []}}, [0, 1, 2]),
        ({"stars": None}, [2]),
        ({"stars": {"$ne": None}}, [0, 1]),
        ({"stars": {"$exists": True}}, [0, 1, 2]),
        ({"stars": {"$exists": False}}, [3, 4, 5, 6]),
        ({"seen": True}, [0]),
        ({"seen": {"$in": [False]}}, [1]),
        ({"seen": 1}, [3]),
        ({"seen": {"$ne": 1}}, [0, 1]),
        ({"year": {"$not": {"$gt": 1999}}}, [0, 3, 4]),
        ({"year": {"$not": 2000}}, [0, 3, 4]),
        ({"year": {"$not": {"$not": 2000}}}, [1, 2]),
        ({"author": {"born": {"$lt": 1900}}}, [0]),
        ({"author": {"name": {"$exists": False}}}, [1]),
        ({"author": {}}, [0, 1]),
        ({"author": {"$not": {"name": "Ann"}}}, [1, 3]),
        ({"author": "Ann"}, [3]),
        ({"tags": "crime"}, []),
        ({"tags": {"$ne": "crime"}}, [2]),
        ({"tags": {"crime": {"$exists": True}}}, []),
        ({"$and": [{"year": 2000}, {"seen": {"$exists": True}}]}, [1]),
        ({"$or": [{"genre": "drama"}, {"stars": {"$gt": 4}}]}, [0, 1]),
        ({"$not": {"year": 2000}}, [0, 3, 4, 5, 6]),
        ({"$not": {}}, []),
        ({"year": {"$gte": 1999}, "$or": [{"genre": "crime"}, {"stars": {"$gt": 4}}]}, [0]),
        ({"year": {"$exists": False, "$ne": 3}}, []),
    ],
    ids=lambda one: json.dumps(one) if isinstance(one, dict) else "",
)
def test_each_operator_means_what_its_page_says(films: Store, where: dict[str, Any], rows: list[int]) -> None:
    """Seven payloads are judged by hand; and the judge of the other tests agrees."""
    assert np.flatnonzero(films.matching(where)).tolist() == rows
    assert [row for row, payload in enumerate(FILMS) if meets(payload, where)] == rows


@given(FILTERS)
@settings(max_examples=300)
def test_filters_agree_with_the_judge(diverse: Store, where: dict[str, Any]) -> None:
    """Any filter on payloads of every sort: as the store answers, and as the condition does without SQL."""
    expected = [meets(payload, where) for payload in CARRIED]
    assert diverse.matching(where).tolist() == expected
    condition = condition_of(where)
    assert [condition.holds(payload) for payload in CARRIED] == expected


def test_the_comparison_with_the_judge_is_seen_failing(diverse: Store) -> None:
    """A judge for whom True is 1, or for whom a missing field differs, is at odds with the store."""
    loose = [isinstance(one, dict) and one.get("a", 0) == 1 for one in CARRIED]
    assert diverse.matching({"a": 1}).tolist() != loose
    absent = [not (isinstance(one, dict) and one.get("a") == "b") for one in CARRIED]
    assert diverse.matching({"a": {"$ne": "b"}}).tolist() != absent


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_any_name_of_a_field_finds_that_field(diverse: Store, name: str) -> None:
    """Dots, brackets, quotes, escapes and SQL in a name are letters; so they are in the name of an object around it."""
    for where in ({name: {"$exists": True}}, {name: {"$ne": 1}}, {"a": {name: {"$exists": True}}}, {name: {"a": 1}}):
        expected = [meets(payload, where) for payload in CARRIED]
        assert diverse.matching(where).tolist() == expected
    assert diverse.matching({name: {"$exists": True}}).sum() > 30


def test_sql_in_a_filter_is_a_text(tmp_path: Path) -> None:
    """A name and an operand of SQL match themselves, and wildcards match nothing else."""
    texts = ["'; DROP TABLE contents; --", "%", "_", "a.b", 'a"b', "[0]", "?", ":start", "') OR 1=1 --", "*"]
    with filled(tmp_path / "s", [{text: text} for text in texts]) as store:
        for row, text in enumerate(texts):
            for asked in (text, {"$in": [text, "none"]}, {"$gte": text}):
                assert np.flatnonzero(store.matching({text: asked})).tolist() == [row]
            assert len(store) == len(texts)
        assert store.check().ok


def test_names_and_operands_stay_out_of_the_sql(tmp_path: Path) -> None:
    """Every statement is the same whatever is asked for."""
    with filled(tmp_path / "s", FILMS) as store:
        bare: list[set[str]] = []
        execute, driver = store._catalog.connection.rows, store._catalog.connection
        for name, text, number in (("genre", "crime", 4), ("stars'--", "'; DROP TABLE", 7)):
            seen: set[str] = set()
            driver.rows = lambda sql, arguments=(), seen=seen: seen.add(sql) or execute(sql, arguments)  # type: ignore
            store.snapshot().matching({name: {"$in": [text, "x"], "$ne": number}, "$not": {"n": {name: text}}})
            bare.append({one for one in seen if "json_type" in one})
        del driver.rows  # type: ignore[method-assign]
        assert bare[0] == bare[1]
        assert len(bare[0]) == 1
        assert store.check().ok


def test_sqlite_alone_answers_ordinary_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python is asked only where SQLite may be wrong; here it would refuse."""

    def refuse(self: Field, payload: Any) -> bool:
        raise AssertionError("Python was asked")

    with filled(tmp_path / "s", [*FILMS, {"a.b": "é", "n": 2**53 + 1}]) as store:
        monkeypatch.setattr(Field, "holds", refuse)
        assert store.matching({"genre": {"$gte": "crime"}, "year": {"$gt": 1999}}).sum() == 1
        assert store.matching({"a.b": "é", "n": {"$in": [2**53 + 1, 0.5]}, "q": {"$exists": False}}).sum() == 1
        assert store.matching({"author": {"$not": {"born": {"$lt": 1900}}}}).sum() == 2
        with pytest.raises(AssertionError, match="Python was asked"):
            store.matching({"stars": 4.5})
        assert store.check().ok


@pytest.mark.parametrize(
    ("carried", "where"),
    [
        ("x\0y", {"a": "x"}),
        ("x\0y", {"a": {"$gt": "x"}}),
        ("x\0", {"a": {"$ne": "x"}}),
        ("\\u0000", {"a": "\\u0000"}),
        (2**63 + 1, {"a": {"$gt": float(2**63)}}),
        (2**63 + 1, {"a": float(2**63)}),
        (2**63, {"a": {"$gt": 2**63 - 1}}),
        (2**63, {"a": float(2**63)}),
        (2**70, {"a": {"$in": [float(2**70), 0.5]}}),
        (10**400, {"a": {"$gt": 1.7976931348623157e308}}),
        (-(10**400), {"a": {"$lt": -1.7976931348623157e308}}),
        (2**53 + 1, {"a": float(2**53)}),
        (2**53 + 1, {"a": {"$gt": float(2**53)}}),
        (0.1 + 0.2, {"a": 0.3}),
        (0.1 + 0.2, {"a": {"$gt": 0.3}}),
        (-0.0, {"a": 0}),
        (5e-324, {"a": {"$gt": 0}}),
        (1e16, {"a": 10**16}),
        ([1], {"a": "[1]"}),
        ([1], {"a": {"$gt": "["}}),
        ({}, {"a": {"$in": ["{}", "x"]}}),
    ],
)
def test_what_sqlite_would_get_wrong_is_right(tmp_path: Path, carried: Any, where: dict[str, Any]) -> None:
    """Texts with NUL, integers beyond 64 bits, floats next to each other, lists as texts: exact, one by one."""
    with filled(tmp_path / "s", [{"a": carried}]) as store:
        assert store.matching(where).tolist() == [meets({"a": carried}, where)]
        assert store.check().ok


def test_paths_hold_only_what_every_version_of_sqlite_reads_alike() -> None:
    """Names that are empty, or that JSON writes with escapes, get into none, wherever they stand."""
    for name in ("", 'a"b', "a\\b", "a\nb", "\x1f"):
        for where in ({name: 1}, {"a": {name: {"$gt": 1}}}, {name: {"a": {"$exists": True}}}):
            bound = search_for("items_1", condition_of(where))[1](0, 1)
            assert {one for one in bound if str(one).startswith('$."')} <= {'$."a"'}
    assert '$."a.b"."[0]"' in search_for("items_1", condition_of({"a.b": {"[0]": 1}}))[1](0, 1)


def test_every_spelling_of_a_number_is_asked_for() -> None:
    """A version of SQLite that reads 1e22 a hair off reads 10000000000000000000000 as another number."""
    for number in NUMBERS:
        for other in [*NUMBERS, *NUMBERS_ONLY_IN_PAYLOADS]:
            if number == other != 0:
                assert json.dumps(other) in [json.dumps(one) for one in spellings(number)]


def test_a_name_cut_off_at_a_nul_is_another_name(tmp_path: Path) -> None:
    """SQLite reads the first letter alone; a filter does not."""
    with filled(tmp_path / "s", [{"a\0b": 1}, {"a": 1}, {"a\0b": 2, "a": 1}]) as store:
        assert store.matching({"a": 1}).tolist() == [False, True, True]
        assert store.matching({"a": {"$exists": False}}).tolist() == [True, False, False]
        assert store.check().ok


@pytest.mark.parametrize(
    "where",
    [
        {"$or": [{"a": number} for number in range(MOST_IN_SQL)]},
        {"$or": [{"a": number} for number in range(MOST_IN_SQL + 1)]},
        {"$and": [{"a": {"$ne": number}} for number in range(MOST_CONDITIONS // 3)]},
        {"$or": [{"a": {"$in": [number, str(number), None, True, False]}} for number in range(MOST_CONDITIONS // 3)]},
        {"a": {"$in": list(range(MOST_MEMBERS))}},
        {"a": {"$nin": [str(number) for number in range(MOST_MEMBERS)]}},
        {"A": {"$in": [number / 8 for number in range(MOST_MEMBERS)]}},
    ],
    ids=lambda where: next(iter(where)),
)
def test_large_filters_are_answered(diverse: Store, where: dict[str, Any]) -> None:
    """More than SQLite would take in one expression, and thousands of values."""
    assert diverse.matching(where)[:80].tolist() == [meets(payload, where) for payload in CARRIED[:80]]


@pytest.mark.parametrize("place", ["members", "operand", "name"])
def test_long_filters_are_answered(diverse: Store, place: str) -> None:
    """Texts that are together longer than SQLite takes, which is 64 MiB; shorter ones are met by the same payloads."""
    long = "y" * 7_000
    assert all(len(json.dumps(payload)) < len(long) for payload in CARRIED)
    where: dict[str, Any]
    alike: dict[str, Any]
    where, alike = {
        "members": (
            {"a": {"$nin": ["x", *(f"{n} {long}" for n in range(9_900))]}},
            {"a": {"$nin": ["x", f"0 {long}"]}},
        ),
        "operand": ({"a": {"$lt": long * 9_900}}, {"a": {"$lt": long}}),
        "name": ({long * 9_900: {"$exists": False}}, {long: {"$exists": False}}),
    }[place]
    expected = [meets(payload, alike) for payload in CARRIED]
    assert diverse.matching(where).tolist() == expected == diverse.matching(alike).tolist()


@pytest.mark.parametrize("levels", [3, 14, 15, 16, 17, 40, 62])
def test_deep_filters_are_answered(diverse: Store, levels: int) -> None:
    """More levels than SQLite's parser would follow, of $not, of $and and $or, on a field, and of objects."""
    negated: dict[str, Any] = {"a": {"$gte": 0}}
    either: dict[str, Any] = {"a": {"$gte": 0}}
    on_field: Any = {"$gte": 0}
    inside: Any = {"$ne": 0}
    for level in range(levels):
        negated = {"$not": negated}
        either = (
            {"b": level, "$or": [{"a": {"$lt": level}}, either]} if level % 2 else {"$and": [either, {"$or": [{}]}]}
        )
        on_field, inside = {"$not": on_field}, {"a": inside}
    for where in (negated, {"a": on_field}, inside) if levels > 31 else (negated, either, {"a": on_field}, inside):
        assert diverse.matching(where).tolist() == [meets(payload, where) for payload in CARRIED]


def test_numpy_values_are_those_of_python(films: Store) -> None:
    """Scalars that came out of an array match."""
    scalars = [np.int16(2000), np.uint64(2000), np.float16(2000), np.float64(2000)]
    assert [np.flatnonzero(films.matching({"year": one})).tolist() for one in scalars] == [[1, 2]] * 4
    assert films.matching({np.str_("genre"): np.str_("crime")}).sum() == 1
    assert films.matching({"seen": np.bool_(True)}).sum() == 1
    assert films.matching({"seen": {"$exists": np.bool_(False)}}).sum() == 4


def deep(shell: Callable[[Any], Any], levels: int) -> Any:
    """A filter with this many levels around it."""
    where: Any = {"a": 1}
    for _ in range(levels):
        where = shell(where)
    return where


def endless() -> dict[str, Any]:
    """A filter that holds itself."""
    where: dict[str, Any] = {}
    where["$and"] = [where]
    return where


def billions() -> dict[str, Any]:
    """A small filter whose parts, each used twice, would take forever to visit."""
    where: dict[str, Any] = {}
    for _ in range(50):
        where = {"$and": [where, where]}
    return where


@pytest.mark.parametrize(
    ("where", "place", "words"),
    [
        (None, "where", "expected a dict of fields and conditions, got None"),
        ([], "where", "got a list"),
        ("year", "where", "got 'year'"),
        ({5: 1}, "where", "expected texts as names of fields, got 5"),
        ({None: 1}, "where", "got None"),
        ({"a\0": 1}, "a name in where", "without NUL"),
        ({"a": {"\ud800": 1}}, 'a name in where["a"]', "lone surrogate at position 0"),
        ({"$gt": 1}, 'where["$gt"]', "$gt stands beside the name of a field"),
        ({"$nor": [{}]}, 'where["$nor"]', "Did you mean $or?"),
        ({"$where": "1"}, 'where["$where"]', "names start with $ cannot be asked for"),
        ({"year": {"$gte ": 1}}, 'where["year"]["$gte "]', "Did you mean $gte?"),
        ({"year": {"$or": [1, 2]}}, 'where["year"]["$or"]', "$or stands on whole filters"),
        (
            {"year": {"$regex": "x"}},
            'where["year"]["$regex"]',
            "$eq $ne $gt $gte $lt $lte $in $nin $exists $not, got '$regex'. Fields",
        ),
        ({"year": {"$": 1}}, 'where["year"]["$"]', "one of the operators on a field"),
        ({"a": {"$gt": 1, "b": 2}}, 'where["a"]', 'got both "$gt" and "b"'),
        ({"$or": []}, 'where["$or"]', "expected a list of filters, got an empty one"),
        ({"$and": {}}, 'where["$and"]', "got a dict"),
        ({"$or": [{}, 5]}, 'where["$or"][1]', "got 5"),
        ({"$not": [{}]}, 'where["$not"]', "got a list"),
        ({"$not": {"$or": [{"a": {"b": [1]}}]}}, 'where["$not"]["$or"][0]["a"]["b"]', '{"$in": [...]}'),
        ({"a": [1]}, 'where["a"]', "got a list"),
        ({"a": (1, 2)}, 'where["a"]', "got a tuple"),
        ({"a": np.ones(3)}, 'where["a"]', "got a ndarray"),
        ({"a": {"$eq": {"b": 1}}}, 'where["a"]["$eq"]', "got a dict"),
        ({"a": b"x"}, 'where["a"]', "got a bytes. Convert it"),
        ({"a": object()}, 'where["a"]', "got an object"),
        ({"a": 1j}, 'where["a"]', "got a complex"),
        ({"a": np.datetime64("2020-01-01T00:00:00", "ns")}, 'where["a"]', "got a datetime64"),
        ({"a": np.timedelta64(5, "ns")}, 'where["a"]', "got a timedelta64"),
        ({"a": float("nan")}, 'where["a"]', "expected a finite number, got nan"),
        ({"a": {"$lt": np.float32("inf")}}, 'where["a"]["$lt"]', "got inf"),
        ({"a": 2**63}, 'where["a"]', "expected an integer of 64 bits, got one of 65"),
        ({"a": {"$gt": -(2**63) - 1}}, 'where["a"]["$gt"]', "Use a float"),
        ({"a": 10**5000}, 'where["a"]', "64 bits"),
        ({"a": "x\0"}, 'where["a"]', "expected a text without NUL"),
        ({"a": {"$in": ["x", "\udfff"]}}, 'where["a"]["$in"][1]', "lone surrogate"),
        ({"a": {"$in": "abc"}}, 'where["a"]["$in"]', "expected a list of values, got 'abc'"),
        ({"a": {"$nin": {1, 2}}}, 'where["a"]["$nin"]', "got a set"),
        ({"a": {"$in": [[1]]}}, 'where["a"]["$in"][0]', "got a list"),
        ({"a": {"$in": [0] * (MOST_MEMBERS + 1)}}, 'where["a"]["$in"]', "expected at most 10,000 values, got 10,001"),
        ({"a": {"$gt": True}}, 'where["a"]["$gt"]', "expected a number or a text, got True"),
        ({"a": {"$lte": None}}, 'where["a"]["$lte"]', "got None"),
        ({"a": {"$gte": [1]}}, 'where["a"]["$gte"]', "got a list"),
        ({"a": {"$exists": 1}}, 'where["a"]["$exists"]', "expected True or False, got 1"),
        ({"a": {"$not": {"$exists": True}}}, 'where["a"]["$not"]', "Turn the True or False"),
        ({"x" * 99: [1]}, 'where["' + "x" * 57 + '..."]', "got a list"),
        ({'a"\n': [1]}, 'where["a\\"\\n"]', "got a list"),
        (deep(lambda inner: {"$not": inner}, 64), "where" + '["$not"]' * 63, "expected at most 64 levels"),
        (deep(lambda inner: {"a": inner}, 64), "where" + '["a"]' * 63, "expected at most 64 levels"),
        (deep(lambda inner: {"$or": [inner]}, 64), "where" + '["$or"][0]' * 63, "expected at most 64 levels"),
        (deep(lambda inner: {"a": {"$not": inner["a"]}}, 63), 'where["a"]' + '["$not"]' * 62, "at most 64 levels"),
        (endless(), "where", "expected at most 64 levels"),
        (billions(), "where", "expected at most 1,000 conditions"),
        ({"$or": [{"a": 1}] * 500}, "where", "expected at most 1,000 conditions, got more"),
    ],
    ids=lambda one: None if isinstance(one, str) else "where",
)
def test_what_cannot_be_understood_is_refused(films: Store, where: Any, place: str, words: str) -> None:
    """The error tells the place in the filter, what was expected, what was got, and what to do."""
    with pytest.raises(FilterError) as caught:
        films.matching(where)
    message = str(caught.value)
    assert message.startswith(place)
    assert words in message
    assert ": expected " in message
    assert message.endswith((".", "?"))
    message.encode()


def test_a_filter_is_checked_before_the_store_is_asked(tmp_path: Path) -> None:
    """A wrong filter is refused even by an empty store, which answers the others with no rows."""
    with Store.open(tmp_path / "s", "c") as store:
        with pytest.raises(FilterError):
            store.matching({"a": {"$near": 1}})
        assert store.matching({"a": 1}).shape == store.matching({}).shape == (0,)
        assert store.check().ok


def test_a_filter_sees_the_newest_commit_and_a_snapshot_its_own(tmp_path: Path) -> None:
    """Rows of a snapshot stay where they are through deletions, replacements, additions and compactions."""
    where = {"n": {"$gte": 2}}
    with Store.open(tmp_path / "s", "c") as store, Store.open(tmp_path / "s") as reader:
        store.append(vectors(4), [0.0] * 4, keys=list("abcd"), payloads=[{"n": number} for number in range(4)])
        snapshots = [(store.snapshot(), [False, False, True, True])]
        for one in (store, reader, snapshots[0][0]):
            assert one.matching(where).tolist() == [False, False, True, True]
        store.delete("c")
        store.append(vectors(2), [0.0] * 2, keys=["a", "e"], payloads=[{"n": 9}, {"n": 8}], on_conflict="replace")
        snapshots.append((reader.snapshot(), [False, False, False, True, True, True]))
        assert reader.matching(where).tolist() == store.matching(where).tolist() == snapshots[1][1]
        assert store.matching({}).tolist() == [False, True, False, True, True, True]
        store.compact()
        store.append(vectors(1), [0.0], keys=["d"], payloads=[{"n": 1}], on_conflict="replace")
        store.delete("e")
        assert [item.key for item in store.items(np.flatnonzero(store.matching(where)))] == ["a"]
        assert reader.matching(where).tolist() == store.matching(where).tolist()
        for snapshot, expected in snapshots:
            assert snapshot.matching(where).tolist() == expected
            assert snapshot.matching({"$not": where}).tolist() == (snapshot.live & ~np.array(expected)).tolist()
            snapshot.close()
        assert store.check().ok


def test_an_answer_belongs_to_who_asked(tmp_path: Path) -> None:
    """Writing into a mask changes no later answer."""
    with filled(tmp_path / "s", FILMS) as store:
        for where in ({}, {"genre": "crime"}):
            first = store.matching(where)
            expected = first.tolist()
            first[:] = ~first
            assert store.matching(where).tolist() == expected
        assert store.check().ok


def test_a_filter_asked_again_reads_only_new_rows(tmp_path: Path) -> None:
    """Payloads never change: what was answered is remembered, as long as not too many others come between."""
    with filled(tmp_path / "s", FILMS) as store:
        where = {"genre": "crime"}
        store.matching(where)
        seen = statements(store)
        assert store.matching({"genre": {"$eq": "crime"}}).sum() == 1
        assert [one for one in seen if "contents" in one] == []
        store.append([[1.0]], [0.0], payloads=[{"genre": "crime"}])
        seen.clear()
        assert np.flatnonzero(store.matching(where)).tolist() == [0, 7]
        asked = [one for one in seen if "contents" in one]
        assert len(asked) == 2
        assert all(".row >= 7" in one.replace('"', "") for one in asked)
        for number in range(8):
            store.matching({"year": number})
        seen.clear()
        assert np.flatnonzero(store.matching(where)).tolist() == [0, 7]
        assert len([one for one in seen if 'row" >= 0' in one]) == 1
        assert store.check().ok


def test_filters_that_python_takes_for_equal_are_told_apart(tmp_path: Path) -> None:
    """1, 1.0 and True have the same hash; the answers of the last two are not those of the first."""
    with filled(tmp_path / "s", [{"a": 1}, {"a": True}, {"a": "1"}, {"a": 0}, {"a": False}]) as store:
        asked = [1, True, 1.0, "1", "2", {"$in": [0]}, {"$in": [False]}, {"$nin": [0, True]}, {"$nin": [False, 1]}]
        answers = [np.flatnonzero(store.matching({"a": one})).tolist() for one in asked]
        assert answers == [[0], [1], [0], [2], [], [3], [4], [0, 2, 4], [1, 2, 3]]
        orders = [{"$gt": 0}, {"$gte": 0}, {"$gt": "0"}, {"$gt": 1}, {"$lt": 1}]
        answers = [np.flatnonzero(store.matching({"a": one})).tolist() for one in orders]
        assert answers == [[0], [0, 3], [2], [], [3]]
        assert store.check().ok


def test_threads_may_ask_together(tmp_path: Path) -> None:
    """Each gets the answer to its own question, and checksums are compared once for all."""
    wrong: list[int] = []
    together = threading.Barrier(5)
    with filled(tmp_path / "s", [{"n": number % 5} for number in range(20_000)]) as store:
        seen = statements(store)

        def ask(number: int) -> None:
            together.wait()
            for _ in range(10):
                if np.flatnonzero(store.matching({"n": number})).tolist() != list(range(number, 20_000, 5)):
                    wrong.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        compared = [one for one in seen if "c.value" in one]
        assert len(compared) == len(set(compared)) > 1
        assert store.check().ok


def test_a_closed_snapshot_answers_no_filter(tmp_path: Path) -> None:
    """A closed snapshot answers no filter, also none that it has answered before."""
    with filled(tmp_path / "s", FILMS) as store:
        snapshot = store.snapshot()
        snapshot.matching({"year": 2000})
        snapshot.close()
        for where in ({}, {"year": 2000}):
            with pytest.raises(HandleClosed):
                snapshot.matching(where)
        assert store.check().ok


@pytest.mark.parametrize(
    "harm",
    [
        'UPDATE contents SET payload = \'{"genre":"crime"}\' WHERE item = 2',
        "UPDATE contents SET payload = NULL WHERE item = 2",
        "UPDATE contents SET payload = '{\"genre\":' WHERE item = 2",
        "UPDATE contents SET payload = CAST(x'7b2261ff' AS TEXT) WHERE item = 2",
        "UPDATE contents SET payload = x'7b7d' WHERE item = 2",
        "UPDATE contents SET text = 'other' WHERE item = 2",
        "DELETE FROM contents WHERE item = 2",
        "DELETE FROM items_1 WHERE row = 1",
        "UPDATE items_1 SET item = 1 WHERE row = 1",
        "UPDATE items_1 SET seal = seal + 1 WHERE row = 1",
    ],
)
def test_a_filter_believes_no_altered_payload(tmp_path: Path, harm: str) -> None:
    """An error names the altered row, whether or not it would match, for every filter that reads payloads."""
    filled(tmp_path / "s", FILMS).close()
    sql(tmp_path / "s", harm)
    with Store.open(tmp_path / "s") as store:
        for where in ({"genre": "crime"}, {"year": 1999}, {"nothing": 1}, {"genre": "crime"}):
            with pytest.raises(StoreDamaged, match="row 1 is damaged"):
                store.matching(where)
        assert store.matching({}).all()
        assert not store.check().ok


def test_rows_that_came_later_are_compared_as_well(tmp_path: Path) -> None:
    """What a handle has compared, it believes; new rows it has not."""
    with filled(tmp_path / "s", FILMS) as store, Store.open(tmp_path / "s") as reader:
        assert reader.matching({"year": 2000}).sum() == 2
        with reader.snapshot() as before:
            store.append(vectors(1, 1), [0.0], payloads=[{"year": 1980}])
            store.close()
            sql(tmp_path / "s", "UPDATE contents SET payload = '{\"year\":2000}' WHERE item = 8")
            with pytest.raises(StoreDamaged, match="row 7 is damaged"):
                reader.matching({"year": 2000})
            assert before.matching({"year": {"$lt": 2000}}).sum() == 1


def test_a_payload_that_is_no_json_is_damage(tmp_path: Path) -> None:
    """A payload that is no JSON is damage, also with a checksum that is right, and no error of SQLite or Python."""
    filled(tmp_path / "s", [{"a": 1}]).close()
    ((item, ordinal, born),) = sql(tmp_path / "s", "SELECT item, ordinal, born FROM items_1")
    for forged in ("{", "\\u0000"):
        seal = item_seal(item, ordinal, born, None, content_seal((None, None, forged)))
        sql(tmp_path / "s", "UPDATE contents SET payload = ?", forged)
        sql(tmp_path / "s", "UPDATE items_1 SET seal = ?", seal)
        with Store.open(tmp_path / "s") as store, pytest.raises(StoreDamaged):
            store.matching({"a": 1})
