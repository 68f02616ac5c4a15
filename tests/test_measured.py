"""Lookups that were not rehearsed are measured: within what they state, whatever is asked, or scanned where dear."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import lists as asking_lists
from softkv.asking import route
from softkv.index import looks, measuring, planned, search, strata
from softkv.maths import blas
from softkv.maths.compatibility import additive, bilinear
from softkv.maths.strata import Draw
from tests.crash.hostile.indexes import fill
from tests.crash.hostile.indexes import lists as altered
from tests.stores import with_secret

from .databases import measured_always
from .scales import scaled

ITEMS, WIDTH = 12_000, 10
KINDS = {"cosine": "vector", "dot": "number", "gaussian": "label"}
SMALL = {"cosine": 0.05, "dot": 0.3, "gaussian": 0.5}  # temperatures that are rehearsed
TOLERANCE = 0.05
MATRIX = np.random.default_rng(6).standard_normal((WIDTH, WIDTH)) / 2
QUERIES = np.random.default_rng(5).standard_normal((120, WIDTH)).astype(np.float32)  # in no cluster


def keys_of(seed: int, count: int) -> np.ndarray:
    """Keys in clusters of different sizes."""
    centres, rng = np.random.default_rng(7).standard_normal((40, WIDTH)), np.random.default_rng(seed)
    chosen = rng.choice(40, count, p=(weights := 1 / np.arange(1, 41)) / weights.sum())
    return (centres[chosen] + 0.5 * rng.standard_normal((count, WIDTH))).astype(np.float32)


def values_of(kind: str, keys: np.ndarray) -> Any:
    """Values that depend on keys, and vary by themselves."""
    count, width = keys.shape
    smooth = np.tanh(keys @ np.random.default_rng(8).standard_normal((width, 5)))
    smooth = smooth + np.random.default_rng(count).normal(size=(count, 5))
    if kind == "number":
        return smooth[:, 0] * 100 + 5000
    return [f"class {one}" for one in smooth.argmax(1)] if kind == "label" else smooth.astype(np.float32)


@pytest.fixture(scope="module")
def large() -> Iterator[None]:
    """Stores count as large from the first item on, and to draw rows takes no time."""
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        yield


@pytest.fixture(scope="module")
def stores(large: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, softkv.SoftKV]]:
    """A store for each way to compare, whose secret is fixed, so that the same rows are drawn every time."""
    found = {}
    for compatibility, kind in KINDS.items():
        path = tmp_path_factory.mktemp("stores") / compatibility
        keys = keys_of(1, ITEMS)
        payloads = [{"third": number % 3 == 0, "left": bool(key[0] < 0)} for number, key in enumerate(keys)]
        temperature = SMALL[compatibility]
        with softkv.open(path, value=kind, compatibility=compatibility, temperature=temperature) as db:
            db.add([str(number) for number in range(ITEMS)], values_of(kind, keys), vectors=keys, payloads=payloads)
        with_secret(path, compatibility.encode().ljust(32))
        found[compatibility] = softkv.open(path)
        found[compatibility].build_index(temperatures=(temperature / 5, 4 * temperature))
    yield found
    for db in found.values():
        assert db.check().ok
        db.close()


def apart(found: Any, exact: Any) -> np.ndarray:
    """How far answers are from each other."""
    count = len(found.scored)
    return np.linalg.norm((np.asarray(found.value) - np.asarray(exact.value)).reshape(count, -1), axis=1)


def kinds(found: Any) -> np.ndarray:
    """What is said of the error of each answer."""
    return np.broadcast_to(np.asarray(found.error_kind), len(found.scored))


def most_misses(count: int) -> int:
    """How many of so many statements that hold with 0.95 may fail; more would fail once in 10,000 times."""
    chances = [math.comb(count, k) * 0.05**k * 0.95 ** (count - k) for k in range(count + 1)]
    return next((k for k in range(count + 1) if sum(chances[k + 1 :]) < 1e-4), count)


def assert_kept(db: softkv.SoftKV, queries: np.ndarray, least: int, **options: Any) -> None:
    """At least so many are measured, and 95 in a hundred of these keep what they state, but for chance."""
    given = {"tolerance": TOLERANCE} | options
    pairs = [  # asked one by one, each has a draw of its own
        tuple(db.lookup(query[None], **given | {"tolerance": tolerance}) for tolerance in (TOLERANCE, 0))
        for query in queries
    ]
    measured = [(found, exact) for found, exact in pairs if found.error_kind == "measured"]
    assert len(measured) >= least
    allowed = most_misses(len(measured))
    assert sum(apart(found, exact)[0] > found.error[0] for found, exact in measured) <= allowed
    missed = [np.abs(found.log_mass - exact.log_mass) > found.log_mass_error for found, exact in measured]
    assert sum(bool(one[0]) for one in missed) <= allowed
    for name in ("effective", "spread"):
        pairs = [(one, true) for one, true in measured if getattr(one, f"{name}_error") is not None]
        assert len(pairs) == (len(measured) if name == "effective" or db._view().layout.kind.scalar else 0)
        off = [abs(getattr(one, name) - getattr(true, name)) > getattr(one, f"{name}_error") for one, true in pairs]
        assert sum(bool(one[0]) for one in off) <= allowed
    for found, exact in measured:
        assert found.route == "measured"
        assert found.error[0] <= TOLERANCE * db._view().snapshot.value_scale * 1.001
        assert found.scored[0] < 0.5 * len(db)
        assert found.rows_read[0] > found.scored[0]
        assert np.array_equal(found.seen, exact.seen)
        if db._view().layout.kind.coded:  # no label has less than nothing
            assert found.value.min() >= 0
            assert found.value.sum() == pytest.approx(1, rel=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("compatibility", KINDS)
@pytest.mark.parametrize("times", [12.0, 100.0])
def test_temperatures_that_were_not_rehearsed_are_measured(
    stores: dict[str, softkv.SoftKV], compatibility: str, times: float
) -> None:
    """They are, whatever is compared and blended."""
    assert_kept(stores[compatibility], QUERIES, 100, temperature=times * SMALL[compatibility])


@pytest.mark.ci
@pytest.mark.parametrize("compatibility", KINDS)
def test_filters_and_masks_are_measured(stores: dict[str, softkv.SoftKV], compatibility: str) -> None:
    """They leave items spread over all lists, or those of some lists alone."""
    db, temperature = stores[compatibility], 12 * SMALL[compatibility]
    assert_kept(db, QUERIES[:60], 40, where={"third": False}, temperature=temperature)
    assert_kept(db, QUERIES[:60], 40, where={"left": True}, temperature=temperature)
    assert_kept(db, QUERIES[:60], 40, mask=np.arange(ITEMS) % 4 > 0, temperature=temperature)
    assert_kept(db, QUERIES[:60], 40, mask=np.arange(ITEMS) > 999, where={"left": False}, temperature=temperature)


@pytest.mark.parametrize("compatibility", KINDS)
def test_a_batch_shares_a_draw(stores: dict[str, softkv.SoftKV], compatibility: str) -> None:
    """Each batch of three is within what it states as often as that says, taken over many of them."""
    db, rng = stores[compatibility], np.random.default_rng(21)
    missed = []
    for times in (6.0, 20.0):
        for _ in range(40):
            queries = np.concatenate([keys_of(int(rng.integers(1e9)), 2), rng.standard_normal((1, WIDTH))])
            found, exact = (
                db.lookup(queries, temperature=times * SMALL[compatibility], tolerance=tolerance)
                for tolerance in (TOLERANCE, 0)
            )
            if (measured := kinds(found) == "measured").any():
                missed.append(float((apart(found, exact) > found.error)[measured].mean()))
    assert len(missed) > 50
    assert sum(missed) <= most_misses(len(missed))  # as if all of a batch missed together


@pytest.mark.parametrize("threads", [2, 4])
def test_answers_do_not_depend_on_how_many_threads_there_are(
    stores: dict[str, softkv.SoftKV], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is answered some queries at a time, each with a draw of its own, by as many threads as there are."""
    monkeypatch.setattr(measuring, "TOGETHER", 20)
    monkeypatch.setattr(blas.os, "cpu_count", lambda: threads)
    monkeypatch.setattr(blas, "_granted", lambda: threads)
    found = []
    for most in (1, threads):
        monkeypatch.setattr(blas, "SHARED", most)
        found.append(stores["cosine"].lookup(QUERIES[:93], temperature=20 * SMALL["cosine"], tolerance=TOLERANCE))
    one, several = found
    assert kinds(one).tolist() == kinds(several).tolist() == ["measured"] * 93
    for name in ("value", "error", "log_mass", "log_mass_error", "effective", "weights", "rows_read"):
        assert np.array_equal(getattr(one, name), getattr(several, name)), name


@pytest.mark.parametrize("route", ["calibrated", "measured"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_single_answers_do_not_depend_on_how_many_threads_there_are(
    stores: dict[str, softkv.SoftKV], kind: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of one query are read, and their sums made, in the same parts by one thread and by several."""
    db, tolerance = stores[kind], TOLERANCE if route == "measured" else 0.2
    ask = partial(db.lookup, temperature=SMALL[kind] * (20 if route == "measured" else 1), tolerance=tolerance)
    queries = QUERIES[:20] if route == "measured" else keys_of(9, 20)
    whole = [ask(query) for query in queries]
    monkeypatch.setattr("softkv.maths.strata.AT_ONCE", 300)
    monkeypatch.setattr(looks, "READ", 500)
    monkeypatch.setattr(search, "LONG", 300)
    monkeypatch.setattr(blas.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(blas, "_granted", lambda: 3)
    found = []
    for most in (1, 3):
        monkeypatch.setattr(blas, "SHARED", most)
        found.append([ask(query) for query in queries])
    assert sum(one.route == route for one in found[0]) > 10
    for one, other, before in zip(*found, whole, strict=True):
        for name in ("value", "error", "log_mass", "log_mass_error", "effective", "rows_read"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert before.route == one.route
        for name in ("log_mass", "effective", "rows_read"):
            assert getattr(one, name) == pytest.approx(getattr(before, name), rel=1e-4), name


def test_all_of_a_large_batch_are_measured_where_some_show_that_they_are_unlike_those_rehearsed(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists are not asked for each of them."""
    db, options = stores["cosine"], {"temperature": SMALL["cosine"] * 4, "tolerance": TOLERANCE}
    queries = np.random.default_rng(22).standard_normal((200, WIDTH)).astype(np.float32)
    strange = queries[[db.lookup(query, **options).reason == route.UNSURE for query in queries]]
    strange = np.tile(strange, (6, 1))
    assert len(strange) >= 128
    asked, plain = list[int](), asking_lists.estimate

    def noted(view: Any, question: Any, *given: Any, **how: Any) -> Any:
        asked.append(len(question.queries))
        return plain(view, question, *given, **how)

    monkeypatch.setattr(asking_lists, "estimate", noted)
    found = db.lookup(strange, **options)
    assert asked == [4]
    reasons = set(np.broadcast_to(np.asarray(found.reason, object), len(strange)))
    assert reasons <= {route.UNSURE, f"{route.UNSURE}, and {route.UNMEASURED}; a larger tolerance needs fewer"}
    exact = db.lookup(strange, **options | {"tolerance": 0})
    assert (apart(found, exact) <= found.error).mean() > 0.8


def test_where_a_plan_would_read_more_than_is_drawn_rows_are_drawn(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If drawing does not do, the plan is followed after all."""
    db, options = stores["cosine"], {"temperature": 3 * SMALL["cosine"], "tolerance": TOLERANCE}
    queries = keys_of(23, 40)
    planned = db.lookup(queries, **options)
    calibrated = kinds(planned) == "calibrated"
    assert calibrated.sum() > 30
    monkeypatch.setattr(route, "LISTED", (1e9, 1e9))
    drawn = db.lookup(queries, **options)
    reasons, ways = (np.broadcast_to(np.asarray(one, object), len(queries)) for one in (drawn.reason, drawn.route))
    measured = ways == "measured"
    assert measured.any()
    assert set(reasons[measured & calibrated]) == {route.PLANNED}
    exact = db.lookup(queries, **options | {"tolerance": 0})
    assert (apart(drawn, exact) <= drawn.error).mean() > 0.8
    monkeypatch.setattr("softkv.asking.sampled.worth_drawing", lambda *_: 10.0)
    again = db.lookup(queries, **options)
    assert (kinds(again) == "calibrated").tolist() == calibrated.tolist()
    scaled(monkeypatch, scattered=1e9)
    ways = np.broadcast_to(np.asarray(db.lookup(queries, **options).route, object), len(queries))
    assert set(ways) <= {"measured", "scan"}  # what drawing does not do is scanned, where the plan would take longer
    assert np.allclose(again.value[calibrated], planned.value[calibrated])


def test_a_larger_draw_tells_where_a_small_one_needs_hardly_more_than_may_be_read(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More queries are measured then, as often within what they state; what was drawn in vain counts as read."""
    db, options = stores["cosine"], {"temperature": 12 * SMALL["cosine"], "tolerance": TOLERANCE}
    for name, rows in (("PILOT", 30), ("FEWEST", 10)):
        monkeypatch.setattr(measuring, name, rows)
    monkeypatch.setattr(strata, "ENOUGH", ITEMS)
    monkeypatch.setattr("softkv.asking.sampled.worth_drawing", lambda *_: 1550.0)
    exact = db.lookup(QUERIES, **options | {"tolerance": 0})
    found: dict[bool, list[softkv.Answer]] = {}
    for again in (False, True):
        monkeypatch.setattr(measuring, "CLOSE", 1.5 if again else 1.0)
        found[again] = [db.lookup(query, **options) for query in QUERIES]
    once, twice = (np.array([one.route == "measured" for one in found[again]]) for again in (False, True))
    assert not (once & ~twice).any()
    gained = [(found[True][number], exact[number]) for number in np.flatnonzero(twice & ~once).tolist()]
    assert len(gained) > 15
    assert np.mean([np.linalg.norm(one.value - true.value) <= one.error for one, true in gained]) > 0.8
    assert min(one.rows_read - one.scored for one, _ in gained) > 2 * 30  # more than one first draw


def test_a_query_unlike_those_rehearsed_is_measured(stores: dict[str, softkv.SoftKV]) -> None:
    """Its temperature was rehearsed; the reason says why the rehearsals did not do."""
    db = stores["cosine"]
    found = db.lookup(QUERIES, temperature=4 * SMALL["cosine"], tolerance=TOLERANCE)
    unlike = [reason for reason, way in zip(found.reason, found.route, strict=True) if way == "measured"]
    assert len(unlike) > 10
    assert set(unlike) == {route.UNSURE}
    assert_kept(db, QUERIES, 10, temperature=4 * SMALL["cosine"])


def test_rows_of_no_list_are_not_read_for_a_plan_that_does_not_hold(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measured answer reads them, so they would be read twice."""
    db, with_tail, held = stores["cosine"], planned._with_tail, list[bool]()

    def watched(*given: Any) -> Any:
        held.append(bool(given[3].sure.all()))
        return with_tail(*given)

    monkeypatch.setattr(planned, "_with_tail", watched)
    found = [db.lookup(query, temperature=4 * SMALL["cosine"], tolerance=TOLERANCE) for query in QUERIES]
    assert 0 < len(held) == sum(one.route == "calibrated" for one in found) < len(QUERIES) - 10
    assert all(held)


@pytest.mark.parametrize("compatibility", KINDS)
@pytest.mark.parametrize("times", [0.001, 0.02, 0.1])
def test_where_a_few_rows_hold_all_mass_these_are_read(
    stores: dict[str, softkv.SoftKV], compatibility: str, times: float
) -> None:
    """Queries that are like the items may leave nothing to draw, not even a number that float64 tells from 0."""
    assert_kept(stores[compatibility], keys_of(9, 60), 30, temperature=times * SMALL[compatibility])
    assert_kept(stores[compatibility], QUERIES[:60], 20, temperature=times * SMALL[compatibility])


def test_what_is_stated_is_of_the_confidence_that_was_asked_for(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of it takes more rows, and so does a smaller tolerance; fewer do where lists correct what rows tell."""
    db, temperature = stores["cosine"], 12 * SMALL["cosine"]

    def read(**options: Any) -> float:
        found = db.lookup(QUERIES[:20], temperature=temperature, **options)
        assert found.error_kind == "measured"
        return float(np.mean(found.rows_read))

    monkeypatch.setattr(strata, "ENOUGH", 2)
    corrected = read(tolerance=0.05)
    monkeypatch.setattr(strata, "ENOUGH", ITEMS)
    assert read(tolerance=0.05, confidence=0.8) < read(tolerance=0.05) < read(tolerance=0.05, confidence=0.99)
    assert corrected < read(tolerance=0.05) < read(tolerance=0.04)


def test_who_asks_again_gets_the_same_answer(stores: dict[str, softkv.SoftKV]) -> None:
    """Another process gets it as well; a batch has a draw of its own, and so has another store."""
    db, options = stores["cosine"], {"temperature": 12 * SMALL["cosine"], "tolerance": TOLERANCE}
    batch, alone = db.lookup(QUERIES[:5], **options), db.lookup(QUERIES[0], **options)
    assert batch.error_kind == alone.error_kind == "measured"
    with softkv.open(db.path, "r") as again:
        assert np.array_equal(again.lookup(QUERIES[:5], **options).value, batch.value)
        assert np.array_equal(again.lookup(QUERIES[0], **options).value, alone.value)
    assert not np.array_equal(batch.value[0], alone.value)


def test_the_heaviest_of_the_rows_that_were_read_are_named(stores: dict[str, softkv.SoftKV]) -> None:
    """The share that they have of all is told; what was read holds less than all."""
    db, options = stores["cosine"], {"temperature": 12 * SMALL["cosine"]}
    answer, exact = db.lookup(QUERIES[0], tolerance=TOLERANCE, **options), db.lookup(QUERIES[0], tolerance=0, **options)
    weights = [one.weight for one in answer.contributors]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] <= exact.contributors[0].weight * 1.2
    assert 0 < answer.mass < 0.6
    told = json.loads(answer.to_json())
    assert (told["route"], told["error_kind"], told["contributors_are"]) == (
        "measured",
        "measured",
        "the heaviest of the rows read",
    )
    assert "(measured)" in repr(answer)
    numbers = stores["dot"]
    warm = {"temperature": 12 * SMALL["dot"]}
    found, true = (
        numbers.lookup(QUERIES[:20], tolerance=TOLERANCE, **warm),
        numbers.lookup(QUERIES[:20], tolerance=0, **warm),
    )
    assert np.allclose(found.spread, true.spread, rtol=0.1)
    assert np.allclose(found.effective, true.effective, rtol=0.2)


def test_heads_are_measured_one_by_one(stores: dict[str, softkv.SoftKV]) -> None:
    """What each asks is a question like any other, also with a filter or a mask; each states errors of its own."""
    rng = np.random.default_rng(3)
    query, key, value = (rng.standard_normal((2, 6, n)) / np.sqrt(n) for n in (WIDTH, WIDTH, 5))
    heads = softkv.Heads(query, key, value)
    options: dict[str, Any] = {"heads": heads, "temperature": 6.0}
    db = stores["cosine"]
    path = Path(f"{db.path} dot")
    with softkv.open(path, value="vector", compatibility="dot", temperature=0.3) as other:
        keys = keys_of(1, ITEMS)
        payloads = [{"odd": bool(number % 2)} for number in range(ITEMS)]
        other.add(vectors=keys, values=values_of("vector", keys), payloads=payloads)
    with_secret(path, b"x" * 32)
    with softkv.open(path) as other:
        other.build_index(temperatures=(0.06, 1.2))
        for some in ({}, {"where": {"odd": True}}, {"mask": np.arange(ITEMS) % 4 > 0}):
            asked = options | some
            found, exact = (other.lookup(QUERIES[:20], tolerance=tolerance, **asked) for tolerance in (0.3, 0))
            assert "measured" in str(found.error_kind)
            assert (apart(found, exact) <= found.error).mean() > 0.8
            assert (np.abs(found.log_mass - exact.log_mass) <= found.log_mass_error).mean() > 0.8
            assert (np.abs(found.effective - exact.effective) <= found.effective_error).mean() > 0.8


@pytest.mark.ci
@pytest.mark.parametrize(
    ("compatibility", "other", "temperature"),
    [
        ("cosine", "laplace", 3.0),
        ("cosine", "dot", 2.0),
        ("cosine", bilinear(MATRIX), 4.0),
        ("dot", "student", 0.3),
        ("dot", "gaussian", 3.0),
        ("dot", bilinear(MATRIX), 4.0),
        ("gaussian", "laplace", 1.5),
        ("gaussian", "cosine", 0.3),
    ],
    ids=lambda given: getattr(given, "name", str(given)),
)
def test_other_ways_to_compare_than_that_of_the_index_are_measured(
    stores: dict[str, softkv.SoftKV], compatibility: str, other: Any, temperature: float
) -> None:
    """Some rows of each list tell which matter, where its statistics are about something else."""
    assert_kept(stores[compatibility], QUERIES, 50, compatibility=other, temperature=temperature)
    assert_kept(stores[compatibility], keys_of(31, 100), 50, compatibility=other, temperature=temperature)
    cold = {"compatibility": other, "temperature": temperature / 100}
    assert_kept(stores[compatibility], keys_of(32, 30), 0, **cold)


def test_a_way_to_compare_that_nobody_knows_is_scanned(stores: dict[str, softkv.SoftKV]) -> None:
    """A function of the user's own, and one for which all pairs are worked out."""
    rng = np.random.default_rng(3)
    ways = [lambda queries, keys: queries @ keys.T, additive(*rng.random((2, 3, WIDTH)), rng.random(3))]
    for way in ways:
        found = stores["dot"].lookup(QUERIES[0], compatibility=way, temperature=9.0, tolerance=TOLERANCE)
        assert (found.route, found.error_kind) == ("scan", "exact")


def test_a_withdrawn_calibration_is_not_believed_and_queries_are_measured(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temperature was rehearsed; they are asked alone and with a filter."""
    db, options = stores["cosine"], {"temperature": 2 * SMALL["cosine"], "tolerance": TOLERANCE}
    assert db.lookup(keys_of(33, 1)[0], **options).route == "calibrated"
    monkeypatch.setattr(route, "against_calibration", lambda *_: "it does not hold")
    for where in (None, {"third": False}):
        found = db.lookup(keys_of(33, 20), **options, where=where)
        assert "measured" in found.routes
        exact = db.lookup(keys_of(33, 20), **options | {"tolerance": 0}, where=where)
        assert (apart(found, exact) <= found.error).mean() > 0.7
        assert "it does not hold" in str(found.reason)


def test_a_comparison_is_measured_where_a_lookup_would_be(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so of each answer; without a tolerance it is exact."""
    monkeypatch.setattr(route, "LISTED", (2.0, 2.0))  # some of its answers would follow a plan
    db, query = stores["dot"], QUERIES[3]
    options = {"temperature": 12 * SMALL["dot"], "tolerance": TOLERANCE}
    found, exact = db.compare(query, **options), db.compare(query, **options | {"tolerance": 0})
    assert found.soft.error_kind == "measured"
    assert abs(found.soft.value - exact.soft.value) <= 2 * found.soft.error
    kinds_of_strip = [one.error_kind for one in found.strip]
    assert kinds_of_strip.count("measured") >= 2
    for one, true in zip(found.strip, exact.strip, strict=True):
        assert true.error_kind == "exact"
        assert abs(one.value - true.value) <= 2 * one.error + 1e-6 * abs(true.value)
    assert "(measured)" in repr(found)
    assert "(measured)" not in repr(exact)


@pytest.mark.parametrize(
    ("options", "way"),
    [
        ({"tolerance": 0}, "scan"),
        ({"tolerance": 0.0005}, "scan"),
        ({"where": {"rare": True}}, "gather"),
        ({"mask": np.ones((1, ITEMS + 1), np.bool_)}, "scan"),
        ({"compatibility": "laplace", "temperature": 0.01}, "scan"),
    ],
    ids=str,
)
def test_what_is_not_measured(stores: dict[str, softkv.SoftKV], options: dict[str, Any], way: str) -> None:
    """Answers are exact then, and say why."""
    db = stores["cosine"]
    db.add("rare", np.zeros(5), vectors=np.ones(WIDTH), payloads={"rare": True}, on_conflict="replace")
    found = db.lookup(QUERIES[0], **{"tolerance": TOLERANCE, "temperature": 12 * SMALL["cosine"]} | options)
    assert (found.route, found.error_kind) == (way, "exact")
    assert found.reason


def test_rows_that_a_filter_leaves_are_gathered_where_that_takes_less_time_than_drawing(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store so large that copying the few that are left takes longer, some of them are drawn."""
    asked = {"temperature": 100 * SMALL["cosine"], "tolerance": 0.2, "mask": np.arange(len(stores["cosine"])) % 20 == 0}
    assert set(stores["cosine"].lookup(QUERIES[:20], **asked).routes) == {"gather"}
    monkeypatch.setattr(route, "TYPICAL", 0)
    found, exact = (stores["cosine"].lookup(QUERIES[:20], **asked | {"tolerance": one}) for one in (0.2, 0.0))
    assert found.routes["measured"] > 10
    assert (apart(found, exact) <= found.error).mean() > 0.8


def test_where_all_values_are_equal_no_larger_tolerance_is_advised(large: None, tmp_path: Path) -> None:
    """A tolerance is a share of how far values lie apart, so that none would need fewer rows."""
    keys = keys_of(9, ITEMS)
    with softkv.open(tmp_path / "s", compatibility="cosine", value="number") as db:
        db.add(vectors=keys, values=np.full(ITEMS, 7.0))
        db.build_index(temperatures=(0.05, 0.1))
        found = [db.lookup(query, temperature=1.0, tolerance=0.05) for query in QUERIES[:20]]
    assert {one.value for one in found} == {7.0}
    assert not [one.reason for one in found if "larger tolerance" in one.reason]
    assert [one.reason for one in found if one.reason.endswith(route.UNMEASURED)]


def test_a_tolerance_that_needs_most_rows_says_so(stores: dict[str, softkv.SoftKV]) -> None:
    """It is said beside why the rehearsals did not do."""
    found = stores["cosine"].lookup(QUERIES[:2], temperature=12 * SMALL["cosine"], tolerance=0.0005)
    assert found.reason.endswith(f"{route.UNMEASURED}; a larger tolerance needs fewer")
    assert "was not rehearsed" in found.reason


@pytest.mark.ci
def test_items_that_came_and_went_count(large: None, tmp_path: Path) -> None:
    """Late rows of lists are drawn as well, those of no list are read, and dead ones count no more."""
    keys = keys_of(1, ITEMS)
    with softkv.open(tmp_path / "s", value="vector", compatibility="cosine", temperature=0.05) as db:
        payloads = [{"third": number % 3 == 0} for number in range(ITEMS)]
        db.add([str(number) for number in range(ITEMS)], values_of("vector", keys), vectors=keys, payloads=payloads)
    with_secret(tmp_path / "s", b"s" * 32)
    with softkv.open(tmp_path / "s") as db:
        db.build_index(temperatures=(0.01, 0.2))
        more = keys_of(2, 3000)
        payloads = [{"third": number % 3 == 0} for number in range(3000)]
        db.add(
            [f"late {number}" for number in range(3000)],
            values_of("vector", more) + 1.0,
            vectors=more,
            payloads=payloads,
        )
        db.delete([str(number) for number in range(0, ITEMS, 5)])
        db.add([f"few {number}" for number in range(200)], values_of("vector", more[:200]), vectors=more[:200])
        assert_kept(db, QUERIES, 100, temperature=0.6)
        assert_kept(db, QUERIES, 100, temperature=5.0)
        with softkv.open(tmp_path / "s", "r") as fresh:
            assert_kept(fresh, QUERIES[:60], 40, temperature=0.6, where={"third": False})
        db.compact()
        assert_kept(db, QUERIES, 100, temperature=0.6)


WRONG: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "rows count for the list beside theirs": lambda draw: {"counts": np.maximum(draw.sizes, np.roll(draw.counts, 1))},
    "lists visited by chance count once": lambda draw: {"chances": np.ones(len(draw.chances))},
}


@pytest.mark.parametrize("bug", WRONG)
def test_a_wrong_stratum_is_noticed(
    stores: dict[str, softkv.SoftKV], bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More answers miss what they state than chance allows for, where lists do not correct what rows tell."""
    monkeypatch.setattr(strata, "ENOUGH", ITEMS)
    true = Draw._of.__func__  # type: ignore[attr-defined]

    def patched(cls: type[Draw], *given: Any) -> Draw:
        draw = true(cls, *given)
        return replace(draw, **WRONG[bug](draw))

    monkeypatch.setattr(Draw, "_of", classmethod(patched))
    with pytest.raises(AssertionError, match=r"assert (np.int64\()?\d+\)? <= 1\d\b"):
        assert_kept(stores["cosine"], QUERIES, 0, temperature=12 * SMALL["cosine"])


def test_values_of_unlike_magnitude_and_offset(large: None, tmp_path: Path) -> None:
    """Far from zero, one column a thousand times as large, and one outlier."""
    keys = keys_of(1, ITEMS)
    values = values_of("vector", keys).astype(np.float64) * [1.0, 1000.0, 1e-3, 1.0, 1.0] + 1e4
    values[17] += 1e5
    with softkv.open(tmp_path / "s", value="vector", compatibility="cosine", temperature=0.05) as db:
        db.add([str(number) for number in range(ITEMS)], values, vectors=keys)
    with_secret(tmp_path / "s", b"t" * 32)
    with softkv.open(tmp_path / "s") as db:
        db.build_index(temperatures=(0.01, 0.2))
        assert_kept(db, QUERIES, 60, temperature=0.6)


def test_a_key_far_beyond_all_others_of_its_list_is_not_missed(large: None, tmp_path: Path) -> None:
    """A key that is twenty times as long as all others holds all of the mass for many queries by dot products."""
    rng = np.random.default_rng(2)
    centres = rng.standard_normal((100, 32))

    def some(count: int) -> np.ndarray:
        return (centres[rng.integers(0, 100, count)] + 0.5 * rng.standard_normal((count, 32))).astype(np.float32)

    keys = some(ITEMS)
    keys[77] *= 20.0
    with softkv.open(tmp_path / "s", value="number", compatibility="dot") as db:
        db.add(vectors=keys, values=values_of("number", keys))
    with_secret(tmp_path / "s", b"l" * 32)
    with softkv.open(tmp_path / "s") as db:
        db.build_index(lists=80)
        queries, colder = some(100), 0.25 * db.info().temperature
        found, exact = (db.lookup(queries, temperature=colder, tolerance=one) for one in (TOLERANCE, 0))
        measured = kinds(found) == "measured"
        assert measured.sum() > 80
        assert (apart(found, exact) <= found.error)[measured].mean() > 0.98


def test_one_row_with_all_of_the_mass_has_a_spread(large: None, tmp_path: Path) -> None:
    """It is 0, and not the root of a number below 0, where the mass of all others is corrected to less than nothing."""
    keys = keys_of(1, ITEMS)
    keys[77] *= 20.0
    with softkv.open(tmp_path / "s", value="number", compatibility="dot", temperature=2.0) as db:
        db.add(vectors=keys, values=values_of("number", keys))
        db.build_index(lists=60, queries=10.0 * keys_of(3, 200))  # lengths of which none is asked
        found = [db.lookup(query, temperature=0.4, tolerance=TOLERANCE) for query in keys_of(9, 100)]
        assert sum(one.error_kind == "measured" for one in found) > 50
        assert np.isfinite([(one.spread, one.error) for one in found]).all()


def test_the_spread_of_numbers_with_heavy_tails(large: None, tmp_path: Path) -> None:
    """A few rows have most of it: those that were drawn do not tell of it, but the farthest row of each list does."""
    rng = np.random.default_rng(5)
    keys = (rng.standard_normal((60, WIDTH))[rng.integers(0, 60, 24_000)]).astype(np.float32)
    keys += 0.4 * rng.standard_normal(keys.shape).astype(np.float32)
    with softkv.open(tmp_path / "s", value="number", compatibility="cosine", temperature=0.5) as db:
        db.add(vectors=keys, values=rng.standard_t(1.5, len(keys)))
    with_secret(tmp_path / "s", b"t" * 32)
    with softkv.open(tmp_path / "s") as db:
        db.build_index(lists=200, queries=keys[:100], temperatures=(0.1, 0.2))
        queries = keys[rng.choice(len(keys), 100)] + 0.2 * rng.standard_normal((100, WIDTH)).astype(np.float32)
        assert_kept(db, queries, 60, temperature=1.0)


def test_masses_are_kept_where_values_would_do_with_far_fewer_rows(large: None, tmp_path: Path) -> None:
    """An outlier makes all that a few rows could do to the value small beside the tolerance, and not to the mass."""
    keys = keys_of(1, ITEMS)
    values = np.random.default_rng(4).standard_normal(ITEMS)
    values[17] = 1e6
    with softkv.open(tmp_path / "s", value="number", compatibility="cosine", temperature=0.02) as db:
        db.add(vectors=keys, values=values)
    with_secret(tmp_path / "s", b"p" * 32)
    with softkv.open(tmp_path / "s") as db:
        db.build_index(queries=keys[:100], temperatures=(0.01, 0.2))
        for temperature in (0.002, 0.004):
            assert_kept(db, keys_of(9, 100), 60, temperature=temperature)


@pytest.mark.ci
def test_lists_whose_spread_is_not_normal(large: None, tmp_path: Path) -> None:
    """In four axes squared distances vary much within a list, and some are thought to have far too much mass."""
    rng = np.random.default_rng(3)
    keys = rng.standard_normal((ITEMS, 4)).astype(np.float32)
    values = np.stack([np.sin(keys[:, 0]), keys[:, 1] ** 2], axis=1) + 0.3 * rng.standard_normal((ITEMS, 2))
    with softkv.open(tmp_path / "s", value="vector", compatibility="gaussian", temperature=2.0) as db:
        db.add([str(number) for number in range(ITEMS)], values, vectors=keys)
    with_secret(tmp_path / "s", b"w" * 32)
    with softkv.open(tmp_path / "s") as db:
        db.build_index(temperatures=(2.0, 3.0))
        queries = rng.standard_normal((150, 4)).astype(np.float32)
        for temperature in (0.02, 0.05, 0.1, 0.3):
            assert_kept(db, queries, 1, temperature=temperature)
            assert_kept(db, 2 * queries, 1, temperature=temperature)


@pytest.mark.parametrize("tolerance", [1e300, 1e-300, 0.05])
@pytest.mark.parametrize("confidence", [1e-12, 1 - 1e-12])
def test_whatever_is_asked_for_is_answered(
    stores: dict[str, softkv.SoftKV], tolerance: float, confidence: float
) -> None:
    """A scan answers where no rows would do."""
    found = stores["cosine"].lookup(QUERIES[:3], temperature=5.0, tolerance=tolerance, confidence=confidence)
    assert np.isfinite(found.value).all()
    assert np.isfinite(found.error).all()
    assert set(kinds(found)) <= {"exact", "measured"}


@pytest.mark.parametrize("size", [1e-30, 1e30, 1e140])
def test_values_near_the_ends_of_the_numbers(large: None, tmp_path: Path, size: float) -> None:
    """Measured, or scanned where their squares leave them."""
    keys = keys_of(1, 4000)
    with softkv.open(tmp_path / "s", value="number", compatibility="cosine", temperature=0.05) as db:
        db.add(vectors=keys, values=values_of("number", keys) * size)
        db.build_index(temperatures=(0.01, 0.2))
        found, exact = (db.lookup(QUERIES[:20], temperature=0.6, tolerance=tolerance) for tolerance in (0.1, 0))
        assert np.isfinite(found.value).all()
        assert (np.abs(found.value - exact.value) <= 3 * (found.error + exact.error)).all()


@pytest.fixture(scope="module")
def plain(large: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of numbers."""
    folder, keys = tmp_path_factory.mktemp("plain"), keys_of(1, 2500)
    with softkv.open(folder / "s", value="number", compatibility="cosine", temperature=0.05) as db:
        db.add(vectors=keys, values=values_of("number", keys))
    with_secret(folder / "s", b"v" * 32)
    with softkv.open(folder / "s") as db:
        db.build_index(temperatures=(0.01, 0.2))
    return folder


@pytest.mark.parametrize("statistic", ["means", "spreads", "outside", "scatter", "values", "counts", "noise"])
@pytest.mark.parametrize("value", [1e-300, 1e30, 1e300])
def test_statistics_that_are_nonsense_make_no_answer_wrong(
    plain: Path, tmp_path: Path, statistic: str, value: float
) -> None:
    """Nonsense in the statistics makes no answer wrong: the index is refused, or asked for advice that is bad."""
    shutil.copytree(plain, tmp_path / "copy")
    altered(fill(f"lists.{statistic}", value))(tmp_path / "copy")
    with softkv.open(tmp_path / "copy" / "s", "r") as db:
        found, exact = (db.lookup(QUERIES[:30], temperature=0.6, tolerance=tolerance) for tolerance in (0.3, 0))
        assert (np.abs(found.value - exact.value) <= found.error + exact.error).mean() >= 0.85


@pytest.mark.ci
def test_of_many_labels_few_occur_in_a_list(large: None, tmp_path: Path) -> None:
    """Statistics hold only these, and so do samples."""
    keys = keys_of(1, ITEMS)
    order = np.argsort(np.argsort(keys[:, 0] + np.random.default_rng(2).standard_normal(ITEMS)))
    with softkv.open(tmp_path / "s", value="label", compatibility="cosine", temperature=0.05) as db:
        db.add([str(number) for number in range(ITEMS)], [f"label {one // 4}" for one in order], vectors=keys)
    with_secret(tmp_path / "s", b"u" * 32)
    with softkv.open(tmp_path / "s") as db:
        db.build_index(temperatures=(0.01, 0.2))
        assert_kept(db, QUERIES, 60, temperature=0.6)
