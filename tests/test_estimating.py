"""Lookups by an index: within what they state, whatever is compared and blended, and scanned where they must be."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv import errors
from softkv.asking import lists
from softkv.asking.question import Question
from softkv.index import planned, search
from softkv.index.calibration import Calibration
from softkv.index.opening import FIRST, NEAREST
from softkv.maths.compatibility import bilinear
from tests.crash.hostile.indexes import fill
from tests.crash.hostile.indexes import lists as altered

from .databases import count_as_large
from .scales import far_ring, scaled
from .test_list_layout import rewritten

ITEMS, WIDTH = 4000, 12
KINDS = {"cosine": "vector", "dot": "number", "gaussian": "label", "scaled_dot": "vector"}


def keys_of(rng: np.random.Generator, count: int) -> np.ndarray:
    """Keys in clusters of different sizes, and longer and shorter ones."""
    centres = np.random.default_rng(7).standard_normal((40, WIDTH))
    chosen = rng.choice(40, count, p=(weights := 1 / np.arange(1, 41)) / weights.sum())
    keys = centres[chosen] + 0.5 * rng.standard_normal((count, WIDTH))
    return (keys * rng.uniform(0.8, 1.2, (count, 1))).astype(np.float32)


def values_of(kind: str, keys: np.ndarray) -> Any:
    """Values that depend on keys."""
    smooth = np.tanh(keys @ np.random.default_rng(8).standard_normal((WIDTH, 5)))
    if kind == "number":
        return smooth[:, 0] * 100 + 1000
    return [f"class {one}" for one in smooth.argmax(1)] if kind == "label" else smooth.astype(np.float32)


@pytest.fixture(scope="module")
def large() -> Iterator[None]:
    """Stores count as large from the first item on."""
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=700)
        yield


@pytest.fixture(scope="module")
def stores(large: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, softkv.SoftKV]]:
    """A store with an index for each way to compare that can have one."""
    found = {}
    for compatibility, kind in KINDS.items():
        db = softkv.open(tmp_path_factory.mktemp("stores") / compatibility, value=kind, compatibility=compatibility)
        keys = keys_of(np.random.default_rng(1), ITEMS)
        db.add(vectors=keys, values=values_of(kind, keys))
        db.build_index()
        found[compatibility] = db
    yield found
    for db in found.values():
        assert db.check().ok
        db.close()


def apart(found: Any, exact: Any) -> np.ndarray:
    """How far the values of answers are from those of others."""
    return np.linalg.norm((found.value - exact.value).reshape(len(found.scored), -1), axis=1)


def kinds(answers: Any) -> tuple[str, ...]:
    """The kind of each error."""
    return answers.error_kind if isinstance(answers.error_kind, tuple) else (answers.error_kind,) * len(answers)


@pytest.mark.parametrize("compatibility", KINDS)
@pytest.mark.parametrize("warmer", [0.7, 1.5, 3.0])
@pytest.mark.parametrize("tolerance", [0.15, 0.3])
def test_estimates_are_as_close_as_they_say(
    stores: dict[str, softkv.SoftKV], compatibility: str, warmer: float, tolerance: float
) -> None:
    """At least the stated share of queries that were never in the store are, while reading a part of it."""
    db = stores[compatibility]
    queries = keys_of(np.random.default_rng(2), 300)
    temperature = db.info().temperature * warmer
    found = db.lookup(queries, temperature=temperature, tolerance=tolerance)
    exact = db.lookup(queries, temperature=temperature, tolerance=0)
    assert set(kinds(exact)) == {"exact"}
    assert kinds(found).count("calibrated") > 265  # one in ten reads on, and some of these are scanned
    assert (apart(found, exact) <= found.error).mean() >= 0.93
    assert (found.error <= tolerance * db.info().value_scale + 1e-6).all()
    assert (np.abs(found.log_mass - exact.log_mass) <= found.log_mass_error + 1e-6).mean() >= 0.9
    assert found.scored.mean() < 0.6 * ITEMS
    assert (found.mass <= 1.0).all()
    assert np.median(np.abs(np.log(found.effective / exact.effective))) < 0.4
    assert np.median(found.weights[:, :3].sum(1) / exact.weights[:, :3].sum(1)) > 0.6
    if found.spread is not None:
        assert np.median(np.abs(found.spread - exact.spread) / exact.spread) < 0.05


@pytest.mark.parametrize("compatibility", KINDS)
@pytest.mark.parametrize("warmer", [0.3, 2.0, 60.0])
def test_a_bound_always_holds(stores: dict[str, softkv.SoftKV], compatibility: str, warmer: float) -> None:
    """A bound holds for every query, also for those unlike any item; where it would take all rows, they are scanned."""
    db = stores[compatibility]
    queries = np.concatenate([keys_of(np.random.default_rng(3), 40), 3 * np.eye(WIDTH, dtype=np.float32)])
    temperature = db.info().temperature * warmer
    found = db.lookup(queries, temperature=temperature, tolerance=0.1, guarantee="bound")
    exact = db.lookup(queries, temperature=temperature, tolerance=0)
    assert set(kinds(found)) <= {"bound", "exact"}
    assert (apart(found, exact) <= found.error + exact.error).all()
    assert (found.error <= 0.1 * db.info().value_scale + 1e-3).all()
    if compatibility == "gaussian" and warmer < 60.0:  # squared distances vary too much within a list
        assert set(kinds(found)) == {"exact"}
        return
    bounded = np.array(kinds(found)) == "bound"
    assert bounded.sum() > 20
    assert (np.abs(found.log_mass - exact.log_mass) <= 1.1 * found.log_mass_error)[bounded].all()


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_values_far_from_zero_are_estimated_as_well_as_others(large: None, tmp_path: Path, offset: float) -> None:
    """Bounds hold, and so do estimates and their spreads: no list loses its values for being light, or far from 0."""
    rng = np.random.default_rng(31)
    points = rng.uniform(-3, 3, (6000, 1)).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="gaussian", temperature=0.05) as db:
        db.add(vectors=points, values=offset + 3.0 * points[:, 0].astype(float))
        db.build_index(lists=60)
        queries = np.linspace(-2.9, 2.9, 200).astype(np.float32)[:, None]
        for temperature in (0.05, 0.15):
            exact = db.lookup(queries, temperature=temperature, tolerance=0)
            found = db.lookup(queries, temperature=temperature, tolerance=0.05, guarantee="bound")
            assert kinds(found).count("bound") > 20
            assert (apart(found, exact) <= found.error + exact.error).all()
            estimated = db.lookup(queries, temperature=temperature, tolerance=0.1)
            assert kinds(estimated).count("calibrated") > 150
            assert (apart(estimated, exact) <= estimated.error).mean() > 0.93
            assert np.abs(estimated.spread / exact.spread - 1.0).max() < 0.2


@pytest.mark.parametrize("offset", [30.0, 1000.0, 1500.0])
def test_an_error_is_no_less_than_rounding_takes_of_large_logits(large: None, tmp_path: Path, offset: float) -> None:
    """Keys are far from zero, so that the products with them are large, and differ by little."""
    rng = np.random.default_rng(17)
    keys = np.column_stack([np.full(ITEMS, offset), keys_of(rng, ITEMS)]).astype(np.float32)
    values, queries = np.tanh(keys[:, 1].astype(float)), keys[::100] + np.float32(0.01)
    with softkv.open(tmp_path / "s", compatibility="dot", temperature=1.0) as db:
        db.add(vectors=keys, values=values)
        db.build_index(temperatures=(0.5, 4.0))
        found = db.lookup(queries, tolerance=0.01)
    scores = queries.astype(float) @ keys.T.astype(float)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights @ values / weights.sum(1)
    estimated = np.array(kinds(found)) == "calibrated"
    assert estimated.mean() > 0.8
    assert (np.abs(found.value - expected) <= found.error)[estimated].mean() > 0.93


def test_one_query_gets_what_a_batch_gets(stores: dict[str, softkv.SoftKV]) -> None:
    """Both agree to rounding; a single Answer carries its error and its kind."""
    db = stores["cosine"]
    queries = keys_of(np.random.default_rng(4), 20)
    together = db.lookup(queries)
    for number, query in enumerate(queries):
        alone = db.lookup(query)
        assert alone.value == pytest.approx(together.value[number], abs=1e-4)
        assert (alone.error_kind, alone.scored) == (kinds(together)[number], together.scored[number])
        assert alone.error == pytest.approx(together.error[number])
        assert (alone.log_mass_error or 0.0) == pytest.approx(together.log_mass_error[number], rel=1e-4)
        assert [one.row for one in alone.contributors] == together.rows[number].tolist()


@pytest.mark.parametrize("options", [{}, {"k": 5}, {"guarantee": "bound", "temperature": 50.0}], ids=str)
def test_large_batches_are_answered_in_parts(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A part has as many queries as there is room for; nobody sees the seams."""
    db, queries = stores["dot"], keys_of(np.random.default_rng(17), 40)
    whole = db.lookup(queries, tolerance=0.3, **options)
    monkeypatch.setattr(lists, "LOGITS", 4000)
    parts = db.lookup(queries, tolerance=0.3, **options)
    assert kinds(whole).count("exact") <= 5
    for name in ("value", "spread", "log_mass", "effective", "mass", "weights", "error"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-4, abs=1e-5, nan_ok=True)
    assert (parts.rows == whole.rows).all()
    assert (np.isnan(parts.mass) if "k" in options else parts.mass < 1.0).any()


def test_contributors_have_weights_and_scores(stores: dict[str, softkv.SoftKV]) -> None:
    """They are those of a scan, but for the share of a mass that is estimated."""
    db = stores["dot"]
    query = keys_of(np.random.default_rng(5), 1)[0]
    found, exact = db.lookup(query, show=5), db.lookup(query, show=5, tolerance=0)
    assert found.error_kind == "calibrated"
    for one, other in zip(found.contributors, exact.contributors, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-5)
        assert one.weight == pytest.approx(other.weight, rel=0.1)


def test_a_temperature_for_each_query(stores: dict[str, softkv.SoftKV]) -> None:
    """Each gets its own plan; those outside of the calibrated range are scanned."""
    db = stores["cosine"]
    usual = db.info().temperature
    queries = keys_of(np.random.default_rng(6), 4)
    temperatures = np.array([usual, usual * 2, usual * 1e4, usual / 1e3])
    found = db.lookup(queries, temperature=temperatures, tolerance=0.3)
    exact = db.lookup(queries, temperature=temperatures, tolerance=0)
    assert kinds(found) == ("calibrated", "calibrated", "exact", "exact")
    assert found.temperature == pytest.approx(temperatures)
    assert (apart(found, exact) <= found.error * 3 + exact.error).all()
    assert found.log_mass_error[2:] == pytest.approx(0.0)


def test_queries_unlike_all_items_are_not_trusted(stores: dict[str, softkv.SoftKV]) -> None:
    """A dot product with a query a hundred times as long is as sharp as a temperature that nobody calibrated."""
    db = stores["dot"]
    query = keys_of(np.random.default_rng(7), 1)[0]
    assert db.lookup(query).error_kind == "calibrated"
    assert db.lookup(query * 100).error_kind == "exact"
    assert db.lookup(query * 0).error_kind == "exact"


@pytest.mark.parametrize("outlier", ["deleted", "added"])
def test_errors_are_of_the_same_size_whatever_the_scale_of_values_is_by_now(
    large: None, tmp_path: Path, outlier: str
) -> None:
    """One value of -9999 among ordinary ones, as for what is unknown, goes or comes after the build."""
    keys = keys_of(np.random.default_rng(1), ITEMS + 1)
    held = np.tanh(keys @ np.random.default_rng(8).standard_normal(WIDTH)) + keys[:, 0]
    held[-1] = -9999.0
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add([str(number) for number in range(ITEMS)], held[:ITEMS], vectors=keys[:ITEMS])
        if outlier == "deleted":
            db.add("outlier", float(held[-1]), vectors=keys[-1])
        db.build_index()
        asked = keys_of(np.random.default_rng(2), 100)
        warm = 1.5 * db.info().temperature
        before = db.lookup(asked, temperature=warm)
        if outlier == "deleted":
            del db["outlier"]
        else:
            db.add("outlier", float(held[-1]), vectors=keys[-1])
        found, exact = (db.lookup(asked, temperature=warm, tolerance=tolerance) for tolerance in (0.01, 0))
        assert kinds(before).count("calibrated") > 90
        assert (apart(found, exact) <= found.error).mean() > 0.9
        estimated = np.array(kinds(found)) == "calibrated"
        if estimated.any():
            off = np.abs(found.log_mass - exact.log_mass)[estimated]
            assert (off <= np.asarray(found.log_mass_error)[estimated]).mean() > 0.9
        if outlier == "added":
            assert estimated.sum() > 80
            assert found.error[estimated] == pytest.approx(0.01 * db._view().snapshot.value_scale, rel=1e-6)
        db.build_index()
        assert kinds(db.lookup(asked, temperature=warm)).count("calibrated") > 80


def test_a_query_a_little_harder_than_those_rehearsed_reads_on(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the answer of a plan that stops later, and none if its doubt is still unusual four levels later."""
    db, query, seen = stores["cosine"], keys_of(np.random.default_rng(17), 1)[0], []
    planning, opening = Calibration.plan, planned.opening

    def noted(*given: Any, **options: Any) -> Any:
        seen.append(opening(*given, **options))
        return seen[-1]

    def asked(level: int, farthest: float) -> Any:
        def plan(known: Calibration, *given: Any) -> Any:
            found = planning(known, *given)
            assert found is not None
            return replace(found, doubt=0.0, least=level, most=level, farthest=farthest, surprise=np.inf)

        monkeypatch.setattr(Calibration, "plan", plan)
        return db.lookup(query, temperature=0.05, tolerance=0.05)

    monkeypatch.setattr(planned, "HARMLESS", 0.0)
    monkeypatch.setattr(planned, "opening", noted)
    usual, later = asked(8, np.inf), asked(9, np.inf)
    doubts, stops = seen[0].doubts[0], seen[0].stops[0]
    assert 0 <= doubts[13] < doubts[12] < doubts[9] < doubts[8]
    assert stops[8] < stops[9]
    on = asked(8, float(doubts[9]))
    assert on.error_kind == "calibrated"
    assert on.rows_read == later.rows_read
    assert on.value == pytest.approx(later.value, rel=1e-6)
    assert usual.rows_read < on.rows_read
    assert asked(8, float(doubts[8])).rows_read == usual.rows_read
    assert asked(8, float(doubts[13])).error_kind != "calibrated"


@pytest.mark.parametrize("compatibility", ["gaussian", "cosine"])
def test_queries_between_clusters_are_read_on_for_or_not_answered_as_rehearsed(
    large: None, tmp_path: Path, compatibility: str
) -> None:
    """They are nearly as near to items as these are to each other, but have doubts that few of these had."""
    rng = np.random.default_rng(6)
    centres = rng.standard_normal((100, 32))

    def some(count: int, share: float = 0.0) -> np.ndarray:
        one, other = (centres[rng.integers(0, 100, count)] for _ in range(2))
        return ((1 - share) * one + share * other + 0.5 * rng.standard_normal((count, 32))).astype(np.float32)

    keys = some(10_000)
    with softkv.open(tmp_path / "s", compatibility=compatibility) as db:
        db.add(vectors=keys, values=np.sin(keys[:, 0]))
        db.build_index(lists=250)
        for times in (1, 5):
            temperature = times * db.info().temperature
            like, between = some(100), np.concatenate([some(100, 0.25), some(100, 0.5)])
            assert kinds(db.lookup(like, temperature=temperature)).count("calibrated") > 80
            found, exact = (db.lookup(between, temperature=temperature, tolerance=one) for one in (0.01, 0))
            estimated = np.array(kinds(found)) == "calibrated"
            assert (apart(found, exact) > found.error)[estimated].sum() <= 0.05 * len(between)
            if estimated.any():
                strayed = np.abs(found.log_mass - exact.log_mass) > found.log_mass_error
                assert strayed[estimated].sum() <= 0.05 * len(between)


def test_an_answer_that_rests_on_lists_nobody_opened_is_none(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least is expected of closed lists; if they are said to hold all of the mass by far, statistics are wrong."""
    db, asked, estimated = stores["cosine"], keys_of(np.random.default_rng(4), 40), planned.estimated
    assert kinds(db.lookup(asked)).count("calibrated") > 30
    for more, trusted in ((-1.0, True), (60.0, False)):

        def expecting(*given: Any, more: float = more, **options: Any) -> Any:
            found = estimated(*given, **options)
            return replace(found, peak=found.peak + more)

        monkeypatch.setattr(planned, "estimated", expecting)
        monkeypatch.setattr(Calibration, "plan", _trusting(Calibration.plan))
        assert (kinds(db.lookup(asked)).count("calibrated") > 30) == trusted


def test_an_answer_that_rests_on_the_highest_rows_of_closed_lists_is_none(large: None, tmp_path: Path) -> None:
    """On a rolled sheet log masses were off by up to 7.5, as a list that nobody opened seemed to hold a near row."""
    rng = np.random.default_rng(0)
    angles = 1.5 * np.pi * (1 + 2 * rng.random(ITEMS))
    sheet = np.stack([angles * np.cos(angles), 21 * rng.random(ITEMS), angles * np.sin(angles)], 1)
    turned = sheet @ np.linalg.qr(rng.standard_normal((6, 6)))[0][:3]
    keys = (turned + 0.05 * rng.standard_normal((ITEMS, 6))).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=keys, values=keys)
        db.build_index(lists=200)
        for times in (0.5, 1.0):
            temperature = times * db.info().temperature
            found, exact = (db.lookup(keys[:400], temperature=temperature, tolerance=one) for one in (0.01, 0))
            estimated = np.array(kinds(found)) == "calibrated"
            assert estimated.sum() > 380
            assert np.abs(found.log_mass - exact.log_mass)[estimated].max() < 0.2


def _trusting(plan: Any) -> Any:
    """The plans without a limit of how far the mass may be from what is foretold."""

    def found(known: Calibration, *given: Any) -> Any:
        one = plan(known, *given)
        return one and replace(one, surprise=np.inf)

    return found


def test_no_more_lists_are_read_once_the_likeliest_show_that_a_query_is_unlike_the_items(
    large: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of keys without clusters a plan reads many lists for each query; none, where statistics tell as much."""
    rng, asked, read = np.random.default_rng(9), planned.read_lists, [0]
    keys = (rng.standard_normal((4040, 64)) * np.arange(1, 65) ** -0.7).astype(np.float32)

    def counted(index: Any, arena: Any, some: Any, chosen: Any, show: int) -> Any:
        read[-1] += sum(map(len, chosen))
        return asked(index, arena, some, chosen, show)

    with softkv.open(tmp_path / "s", compatibility="cosine") as db:
        db.add(vectors=keys[40:], values=keys[40:, :5])
        db.build_index()
        usual = db.lookup(keys[:40], temperature=0.05)
        monkeypatch.setattr(planned, "read_lists", counted)
        monkeypatch.setattr(Calibration, "strange", 2.0)  # no cosine is so high
        likeliest = search.likeliest
        for ahead, more in ((ITEMS, 50.0), (0, 50.0), (0, 0.0)):
            monkeypatch.setattr(planned, "AHEAD", ahead)
            monkeypatch.setattr(search, "likeliest", lambda lists, tilt, more=more: likeliest(lists, tilt) + more)
            read.append(0)
            db._findings = type(db._findings)()
            db._seen = None
            assert "calibrated" not in kinds(db.lookup(keys[:40], temperature=0.05))
    assert kinds(usual).count("calibrated") >= 30
    assert read[1] > 1000
    assert 0 < read[2] <= 40 * (FIRST + NEAREST)
    assert read[3] == 0


def test_dot_products_with_long_keys_do_not_hide_that_a_query_is_unlike_the_items(large: None, tmp_path: Path) -> None:
    """Random directions have as large products as items have, but point at none of their clusters."""
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((150, 32))

    def some(count: int) -> np.ndarray:
        plain = centres[rng.integers(0, 150, count)] + 0.5 * rng.standard_normal((count, 32))
        return (plain * np.exp(0.5 * rng.standard_normal((count, 1)))).astype(np.float32)

    keys, strange = some(10_000), 6.0 * rng.standard_normal((80, 32)).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=keys, values=np.sin(keys[:, 0]))
        db.build_index()
        usual, like = db.info().temperature, some(80)
        for options in ({"temperature": usual}, {"temperature": 5 * usual}, {"k": 3}):
            assert kinds(db.lookup(like, **options)).count("calibrated") > 60
            assert kinds(db.lookup(strange, **options)).count("calibrated") < 8
    rewritten(tmp_path / "s", lambda index: replace(index, calibration=replace(index.calibration, closest=np.empty(0))))
    with softkv.open(tmp_path / "s") as db:  # an index of an earlier version does not know where queries point
        assert kinds(db.lookup(strange, temperature=usual)).count("calibrated") > 40
        db.build_index()
        assert kinds(db.lookup(strange, temperature=usual)).count("calibrated") < 8


def test_lists_that_are_read_ahead_are_read_once(
    stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are the same, from as many rows, whether or not the likeliest lists are read before the others."""
    db, asked, read_lists = stores["dot"], keys_of(np.random.default_rng(4), 40), planned.read_lists
    read = [0]

    def counted(index: Any, arena: Any, some: Any, chosen: Any, show: int) -> Any:
        found = read_lists(index, arena, some, chosen, show)
        read[-1] += int(found.scored.sum())
        return found

    monkeypatch.setattr(planned, "read_lists", counted)
    found = []
    for ahead in (ITEMS, 0):
        monkeypatch.setattr(planned, "AHEAD", ahead)
        read.append(0)
        found.append(db.lookup(asked))
    estimated = np.array(kinds(found[0])) == "calibrated"
    assert estimated.sum() > 30
    assert kinds(found[1]) == kinds(found[0])
    assert np.array_equal(found[1].rows_read, found[0].rows_read)
    assert np.array_equal(found[1].rows, found[0].rows)
    assert found[1].value == pytest.approx(found[0].value, rel=1e-5)
    assert found[1].log_mass == pytest.approx(found[0].log_mass, rel=1e-6)
    assert read[1] == read[2] > 0


def test_other_ways_to_compare_use_the_index_where_it_fits(stores: dict[str, softkv.SoftKV]) -> None:
    """An index for dot products serves those with a rewritten query; others are scanned."""
    db = stores["dot"]
    query, usual = keys_of(np.random.default_rng(8), 1)[0], db.info().temperature
    turned = np.linalg.qr(np.random.default_rng(9).standard_normal((WIDTH, WIDTH)))[0]
    for compatibility, temperature in (("scaled_dot", usual / WIDTH**0.5), (bilinear(turned), usual)):
        found = db.lookup(
            query @ turned.T if temperature == usual else query, compatibility=compatibility, temperature=temperature
        )
        exact = db.lookup(
            query @ turned.T if temperature == usual else query,
            compatibility=compatibility,
            temperature=temperature,
            tolerance=0,
        )
        assert found.error_kind == "calibrated"
        assert abs(found.value - exact.value) <= found.error * 2
    for compatibility in ("cosine", "laplace", "gaussian", lambda q, k: q @ k.T):
        assert db.lookup(query, compatibility=compatibility).error_kind == "exact"


@pytest.mark.parametrize("compatibility", KINDS)
@pytest.mark.parametrize("k", [1, 10, 64])
def test_the_best_rows_are_found(stores: dict[str, softkv.SoftKV], compatibility: str, k: int) -> None:
    """All k of them, for the stated share of queries, by reading a part of the store; also deleted and added to."""
    db = stores[compatibility]
    queries = keys_of(np.random.default_rng(12), 200)
    found, exact = db.lookup(queries, k=k, show=k), db.lookup(queries, k=k, show=k, tolerance=0)
    assert kinds(found).count("calibrated") > 180
    same = (found.rows == exact.rows).all(1)
    assert same.mean() >= 0.9
    assert apart(found, exact)[same].max() < 1e-4 * (1 + np.abs(exact.value).max())
    assert found.scores[same] == pytest.approx(exact.scores[same], rel=1e-4, abs=1e-4)
    assert found.effective[same] == pytest.approx(exact.effective[same], rel=1e-3)
    assert (found.scored == k).all()
    nearest = db.nearest(queries, tolerance=0.01)
    assert (nearest.rows[:, 0] == exact.rows[:, 0]).mean() >= 0.9
    assert set(kinds(db.nearest(queries))) == {"exact"}


@pytest.mark.parametrize(
    "options",
    [
        {"k": 5, "guarantee": "bound"},
        {"k": 65},
        {"k": 5, "confidence": 0.99999},
        {"tolerance": 0},
        {"mask": np.ones(ITEMS, np.bool_)},
        {"where": {}},
        {"tolerance": 1e-9},
    ],
    ids=str,
)
def test_what_is_not_a_plain_lookup_is_scanned(stores: dict[str, softkv.SoftKV], options: dict[str, Any]) -> None:
    """Questions other than plain lookups are scanned, and answered exactly."""
    db = stores["cosine"]
    assert db.lookup(keys_of(np.random.default_rng(10), 1)[0], **options).error_kind == "exact"


def test_small_stores_are_scanned(stores: dict[str, softkv.SoftKV], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a few thousand rows takes no longer than anything else."""
    scaled(monkeypatch, cheap=ITEMS * WIDTH)
    assert stores["cosine"].lookup(np.ones(WIDTH)).error_kind == "exact"


@pytest.mark.parametrize(
    ("query", "options", "error"),
    [
        (np.full(WIDTH, np.nan), {}, errors.NotFinite),
        (np.zeros(WIDTH), {}, errors.ZeroVector),
        (np.ones(WIDTH), {"temperature": 0.0}, errors.TemperatureError),
        (np.ones(WIDTH), {"temperature": np.array([1.0, 2.0])}, errors.ShapeError),
        (np.ones(WIDTH), {"show": -1}, errors.KindError),
        (np.ones(WIDTH + 1), {}, errors.ShapeError),
    ],
)
def test_mistakes_are_named_as_in_a_scan(
    stores: dict[str, softkv.SoftKV], query: np.ndarray, options: dict[str, Any], error: type[Exception]
) -> None:
    """An index changes no error."""
    for tolerance in (0.01, 0.0):
        with pytest.raises(error):
            stores["cosine"].lookup(query, tolerance=tolerance, **options)


def test_threads_share_an_index(stores: dict[str, softkv.SoftKV]) -> None:
    """Threads that ask the same index get the same answers."""
    db, queries = stores["gaussian"], keys_of(np.random.default_rng(11), 30)
    expected, wrong = db.lookup(queries).value, []

    def ask() -> None:
        wrong.extend(n for n in range(30) if not np.allclose(db.lookup(queries[n]).value, expected[n], atol=1e-4))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("compatibility", KINDS)
def test_adds_and_deletions_are_seen_at_once(large: None, tmp_path: Path, compatibility: str) -> None:
    """What was added is scanned, what was deleted leaves the statistics, and the error still holds; also compacted."""
    kind = KINDS[compatibility]
    with softkv.open(tmp_path / "s", value=kind, compatibility=compatibility) as db:
        rng = np.random.default_rng(12)
        keys = keys_of(rng, ITEMS)
        db.add([str(n) for n in range(ITEMS)], values_of(kind, keys), vectors=keys)
        db.build_index()
        db.delete([str(n) for n in rng.choice(ITEMS, ITEMS // 3, replace=False)])
        more = keys_of(rng, 200)
        db.add(vectors=more, values=values_of(kind, more))
        if kind == "label":
            db.add("new", "class that was never there", vectors=more[0])
        queries = keys_of(rng, 200)
        for _ in range(2):
            for options in ({}, {"guarantee": "bound", "temperature": db.info().temperature * 100}):
                found, exact = (
                    db.lookup(queries, tolerance=0.05, **options),
                    db.lookup(queries, **(options | {"tolerance": 0})),
                )
                assert kinds(found).count("exact") < (190 if options else 20)
                share = (apart(found, exact) <= found.error + exact.error).mean()
                assert share >= (1.0 if options else 0.92)
                assert (found.scored <= len(db)).all()
            db.compact()
        assert db.check().ok


@pytest.mark.parametrize("compatibility", KINDS)
def test_rows_that_were_added_are_in_lists_for_every_process(
    large: None, tmp_path: Path, compatibility: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new reader reads few of them; answers are as good as before, also of an earlier commit, and compacted."""
    scaled(monkeypatch, noted=50)
    kind = KINDS[compatibility]
    with softkv.open(tmp_path / "s", value=kind, compatibility=compatibility) as db:
        rng = np.random.default_rng(22)
        keys = keys_of(rng, ITEMS)
        db.add(vectors=keys, values=values_of(kind, keys))
        db.build_index()
        more = keys_of(rng, 1000)
        db.add([str(n) for n in range(1000)], values_of(kind, more), vectors=more)
        if kind == "label":
            db.add("new", "class that was never there", vectors=more[0])
        db.delete([str(n) for n in range(0, 200, 2)])
        queries = keys_of(rng, 200)
        with db.snapshot() as then:
            expected = then.lookup(queries[:20], tolerance=0.1)
            db.add([f"late {n}" for n in range(60)], values_of(kind, more[:60]), vectors=more[:60])
            db.delete([str(n) for n in range(1, 200, 2)])
            assert then.lookup(queries[:20], tolerance=0.1).value == pytest.approx(expected.value)
        with softkv.open(tmp_path / "s", "r") as reader:
            index = reader._view().index
            assert index is not None
            assert ITEMS + 1060 <= index.known <= reader._view().snapshot.rows
            assert len(index.strangers) < 100
            strangers = np.count_nonzero(db._view().snapshot.live[index.strangers])
            assert index.quick.counts.sum() == len(db) - strangers
        db.compact()
        laid = db._view().index
        assert laid is not None
        assert laid.rows >= ITEMS + 700
        assert list(db)[-60:] == [f"late {n}" for n in range(60)]
        for number in range(2):
            for options in ({}, {"guarantee": "bound", "temperature": db.info().temperature * 100}, {"k": 10}):
                found = db.lookup(queries, tolerance=0.1, **options)
                exact = db.lookup(queries, **(options | {"tolerance": 0}))
                few = "k" in options and "dot" in compatibility  # keys are the best of most queries
                told = np.ravel(found.reason).tolist()
                assert all("10 best of most" in one for one in told) if few else kinds(found).count("exact") < 20
                share = (apart(found, exact) <= found.error + exact.error).mean()
                assert share >= (1.0 if "guarantee" in options else 0.92), (number, options)
                assert (found.scored <= len(db)).all()
            db.delete([str(n) for n in range(200, 300)] if not number else [])
        assert db.check().ok


def test_rows_unlike_all_lists_belong_to_none(large: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read by every lookup, so that nothing is estimated from lists that they are not like."""
    scaled(monkeypatch, noted=50)
    with softkv.open(tmp_path / "s", value="vector", compatibility="dot") as db:
        keys = keys_of(np.random.default_rng(23), ITEMS)
        db.add(vectors=keys, values=values_of("vector", keys))
        db.build_index()
        odd = np.full((300, WIDTH), 5.0, np.float32)
        odd[::10] = keys[:30]  # these fit
        db.add(vectors=odd, values=values_of("vector", odd))
        index = db._view().index
        assert index is not None
        assert index.strangers.tolist() == [row for row in range(ITEMS, ITEMS + 300) if (row - ITEMS) % 10]
        found = db.lookup(keys[:100])
        assert (found.scored >= 270).all()
        assert (apart(found, db.lookup(keys[:100], tolerance=0)) <= found.error).mean() >= 0.9
        told = db.info().index
        assert told is not None
        assert (told.added, told.strangers, told.waiting) == (300, 270, 0)
        assert "270 of 4,300 items are in no list" in (told.again or "")
        assert db.check().ok


def test_a_snapshot_keeps_the_index_of_its_time(large: None, tmp_path: Path) -> None:
    """Deletions after it are none of its business."""
    with softkv.open(tmp_path / "s", compatibility="cosine") as db:
        keys = keys_of(np.random.default_rng(13), ITEMS)
        db.add([str(n) for n in range(ITEMS)], values_of("vector", keys), vectors=keys)
        db.build_index()
        with db.snapshot() as before:
            expected = before.lookup(keys[:50])
            db.delete([str(n) for n in range(500)])
            db.lookup(keys[:50])
            again = before.lookup(keys[:50])
            assert again.value == pytest.approx(expected.value)
            assert set(kinds(again)) == {"calibrated"}
            assert db.lookup(keys[:50], tolerance=0).value != pytest.approx(expected.value)


def test_the_best_rows_are_found_where_lists_are_empty(large: None, tmp_path: Path) -> None:
    """Lists that lost all their rows expect nothing, and hide nothing."""
    with softkv.open(tmp_path / "s", compatibility="cosine") as db:
        keys = keys_of(np.random.default_rng(14), ITEMS)
        db.add([str(n) for n in range(ITEMS)], values_of("vector", keys), vectors=keys)
        db.build_index(lists=400)
        owners = db._view().index.owners(np.arange(ITEMS))
        items = list(db.select())
        db.delete([item.name for item in items if owners[item.row] % 2])
        queries = keys_of(np.random.default_rng(15), 100)
        found, exact = db.lookup(queries, k=8, show=8), db.lookup(queries, k=8, show=8, tolerance=0)
        assert kinds(found).count("calibrated") > 80
        assert np.mean([len(set(a) & set(b)) / 8 for a, b in zip(found.rows, exact.rows, strict=True)]) > 0.95


@pytest.mark.parametrize("compatibility", ["dot", "scaled_dot"])
@pytest.mark.parametrize("options", [{}, {"guarantee": "bound"}], ids=str)
def test_heads_are_estimated_too(stores: dict[str, softkv.SoftKV], compatibility: str, options: dict[str, Any]) -> None:
    """Each head is a lookup of its own; values, masses and the weights of each head are those of a scan, nearly."""
    db = stores[compatibility]
    p = db.info().value_width
    heads = softkv.Heads.random(3, query_width=7, key_width=WIDTH, value_width=p, head_width=4, output_width=2, seed=1)
    queries = np.random.default_rng(16).standard_normal((30, 7))
    temperature = db.info().temperature * (1 if not options else 30)
    asked = {"heads": heads, "temperature": temperature, "compatibility": compatibility, "show": 5}
    found = db.lookup(queries, tolerance=0.5, **asked, **options)
    exact = db.lookup(queries, tolerance=0, **asked)
    assert kinds(found).count("bound" if options else "calibrated") > 10
    assert (apart(found, exact) <= found.error + exact.error).mean() >= (1.0 if options else 0.9)
    assert found.value.shape == exact.value.shape
    assert found.log_mass.shape == exact.log_mass.shape == (30, 3)
    assert np.median(np.abs(found.log_mass - exact.log_mass)) < 0.2
    assert found.head_weights.shape == exact.head_weights.shape
    sure = np.array(kinds(found)) == "exact"
    assert found.value[sure] == pytest.approx(exact.value[sure], rel=1e-4, abs=1e-4)
    assert found.rows[sure].tolist() == exact.rows[sure].tolist()
    assert found.scores[sure] == pytest.approx(exact.scores[sure], rel=1e-4, abs=1e-4)
    one = db.lookup(queries[0], tolerance=0.5, **asked, **options)
    assert one.value == pytest.approx(found.value[0], rel=1e-3, abs=1e-3)


def test_texts_are_blended_by_their_embeddings(large: None, tmp_path: Path) -> None:
    """The mean embedding is that of a scan, nearly, and the ranked texts are those of the heaviest items."""
    rng = np.random.default_rng(18)
    keys = keys_of(rng, ITEMS)
    words = np.array(["river", "train", "bread", "winter", "money", "music"])
    texts = [
        f"{one} {two}" for one, two in zip(words[keys[:, :6].argmax(1)], words[keys[:, 6:].argmax(1)], strict=True)
    ]
    with softkv.open(tmp_path / "s", value="text", compatibility="cosine") as db:
        db.add(vectors=keys, values=texts)
        db.build_index()
        queries = keys_of(rng, 100)
        warm = db.info().temperature * 3
        found = db.lookup(queries, tolerance=0.2, temperature=warm)
        exact = db.lookup(queries, tolerance=0, temperature=warm)
        assert kinds(found).count("calibrated") > 90
        assert (apart(found, exact) <= found.error).mean() >= 0.93
        assert np.mean([a.texts[0].text == b.texts[0].text for a, b in zip(found, exact, strict=True)]) > 0.7


@pytest.mark.parametrize("statistic", ["values", "scatter"])
def test_an_error_without_end_is_no_answer(large: None, tmp_path: Path, statistic: str) -> None:
    """Statistics of a damaged index may be so large that no number says how far off they are: then rows are read."""
    with softkv.open(tmp_path / "s", value="number") as db:
        keys = keys_of(np.random.default_rng(5), 1000)
        db.add(vectors=keys, values=values_of("number", keys))
        db.build_index()
    altered(fill(f"lists.{statistic}", -1e300))(tmp_path)
    with softkv.open(tmp_path / "s", "r") as db:
        found = db.lookup(keys[:200], tolerance=1.0, confidence=0.5)
        assert np.isfinite(found.error).all()
        assert np.isfinite(found.value).all()


def test_a_deleted_row_is_not_the_best_of_lists(large: None, tmp_path: Path) -> None:
    """Gaussians of rows far below a deleted one are told by differences, also where lists score them."""
    queries, keys, left = far_ring()
    with softkv.open(tmp_path / "s", compatibility="gaussian", value="number", temperature=1.0) as db:
        db.add([str(row) for row in range(len(keys))], np.arange(len(keys)) % 7.0, vectors=keys.astype(np.float32))
        db.build_index()
        db.delete(["0"])
        view = db._view()
        question = Question(queries.astype(np.float32), compatibility="gaussian", temperature=1.0)
        rows = np.flatnonzero(view.snapshot.live)
        found = lists.Asking(view, view.index, question).logits(0, view.snapshot.rows)[0, rows]
        expected = -0.5 * ((queries - view.snapshot.vectors(rows).astype(np.float64)) ** 2).sum(1)
    near = expected > expected.max() - 40
    assert len(rows) == left.sum()
    assert found[near] == pytest.approx(expected[near], abs=1e-3)
