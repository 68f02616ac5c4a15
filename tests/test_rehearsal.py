"""Rehearsals: what is measured of lists is what asking them one query and one level at a time would have measured."""

from typing import Any

import numpy as np
import pytest

from softkv.index import rehearsal
from softkv.index.calibration import BEST
from softkv.index.opening import LEVELS, closed, opening, ranked
from softkv.index.rehearsal import Whole, rehearsed
from softkv.maths.farfield import estimated, estimated_apart, tilted
from softkv.maths.moments import measured, with_rows
from softkv.maths.summaries import Lists
from softkv.maths.symmetric import unpacked

from .scales import scaled

ITEMS, WIDTH, LISTS, LABELS = 3000, 6, 60, 9
TEMPERATURES = np.array([0.1, 0.4, 1.5])


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys in clusters, a list for each, and where the lists begin; one of them is empty, and one very long."""
    rng = np.random.default_rng(seed)
    sizes = np.sort(rng.multinomial(ITEMS, rng.dirichlet(np.ones(LISTS))))
    sizes[-1] += sizes[0]
    sizes[0] = 0
    keys = np.repeat(rng.standard_normal((LISTS, WIDTH)), sizes, axis=0) + 0.3 * rng.standard_normal((ITEMS, WIDTH))
    return keys.astype(np.float32), np.concatenate([[0], sizes.cumsum()])


def plainly(keys, values, offsets, lists, counted, query, temperature, scale):  # type: ignore[no-untyped-def]
    """Errors of the value and of the log mass at each level, by sums in float64 over the rows that are opened."""
    tilt, quick = tilted(lists, query[None] / temperature), lists.rounded()
    opened = opening(quick, tilted(quick, query[None] / temperature), scale=scale / lists.units.size)
    logits = keys.astype(np.float64) @ query / temperature
    weights = np.where(counted, np.exp(logits), 0.0)
    exact, owners = weights @ values / weights.sum(), np.repeat(np.arange(LISTS), np.diff(offsets))
    errors, masses = [], []
    for level in range(len(LEVELS)):
        unread = closed(opened.order, opened.stops[:, level], LISTS)
        far = estimated(lists, tilt, unread)
        mine = np.where(unread[0, owners], 0.0, weights)
        mass = mine.sum() + np.exp(far.peak) * far.mass
        total = mine @ values + np.exp(far.peak) * far.total[0]
        errors.append(np.linalg.norm(total / mass - exact) / scale)
        masses.append(abs(np.log(mass) - np.log(weights.sum())))
    return np.array(errors), np.array(masses)[:, 0]


def rehearsed_on(
    lists: Lists,
    offsets: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    counted: np.ndarray,
    queries: np.ndarray,
    *,
    whole: Lists,
    temperatures: np.ndarray,
    scale: float,
) -> Any:
    """What is rehearsed on queries that are no items, of which any score may be the highest."""
    return rehearsed(
        lists,
        offsets,
        lambda a, b: (keys[a:b], values[a:b]),
        counted,
        queries,
        np.zeros(len(queries)),
        temperatures,
        scale=scale,
        whole=Whole(whole, np.ones(ITEMS, np.bool_), np.full(len(queries), -1), np.full(len(queries), np.inf)),
    )


@pytest.mark.parametrize("kind", ["numbers", "far from zero", "vectors", "labels", "few labels at a time"])
def test_errors_are_those_of_one_query_at_a_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are of every kind, with rows that are held out, lists that are empty, and lists longer than a block."""
    if kind == "few labels at a time":  # and not all have a slope
        monkeypatch.setattr(rehearsal, "TOGETHER", 4)
        scaled(monkeypatch, sloped=6)
        kind = "labels"
    keys, offsets = drawn()
    rng, codes = np.random.default_rng(1), (np.abs(keys[:, 0]) * 4).astype(np.int64) % LABELS
    width = {"vectors": 5, "labels": LABELS}.get(kind, 1)
    values = np.eye(LABELS)[codes] if kind == "labels" else np.tanh(keys @ rng.standard_normal((WIDTH, width)))
    values = values + 1e6 if kind == "far from zero" else values
    given = codes if kind == "labels" else values if width == 1 else values.astype(np.float32)
    queries, counted = (keys[rng.choice(ITEMS, 7)] * 1.05).astype(np.float32), np.ones(ITEMS, np.bool_)
    lists = measured(lambda a, b: (keys[a:b], given[a:b]), offsets, labels=LABELS if kind == "labels" else 0)
    counted[gone := rng.choice(ITEMS, 200, replace=False)] = False
    whole = lists
    lists = with_rows(lists, np.searchsorted(offsets, gone, side="right") - 1, keys[gone], given[gone], sign=-1.0)
    scale = float(np.sqrt(values.var(axis=0).sum()))
    asked = lists, offsets, keys, given, counted, queries
    found = rehearsed_on(*asked, whole=whole, temperatures=TEMPERATURES, scale=scale)
    for number, query in enumerate(queries.astype(np.float64)):
        for place, temperature in enumerate(TEMPERATURES):
            errors, masses = plainly(keys, values, offsets, lists, counted, query, temperature, scale)
            assert found.errors[place, number] == pytest.approx(errors, rel=2e-3, abs=2e-5)
            assert found.log_mass_errors[place, number] == pytest.approx(masses, rel=2e-3, abs=2e-5)
    assert found.best == pytest.approx((queries @ keys[counted].T).max(1), rel=1e-5)


def test_a_list_that_is_thought_to_weigh_too_much_does_not_hide_the_errors_of_others() -> None:
    """Distances to rows that scatter widely make it seem to weigh e^200 times as much; others are wrong by e^6."""
    plain, offsets = drawn()
    plain[offsets[-2] :] *= 8.0
    keys = np.concatenate([plain, -0.5 * np.square(plain).sum(1)[:, None]], axis=1)
    values, queries, counted = np.tanh(keys[:, :1]), keys[[5, 40, 300]] + np.float32(0.3), np.ones(ITEMS, np.bool_)
    queries[:, -1] = 1.0
    lists, temperatures = measured(lambda a, b: (keys[a:b], values[a:b]), offsets), np.array([0.05, 0.1])
    asked = lists, offsets, keys, values, counted, queries
    found = rehearsed_on(*asked, whole=lists, temperatures=temperatures, scale=1.0)
    for number, query in enumerate(queries.astype(np.float64)):
        for place, temperature in enumerate(temperatures):
            errors, masses = plainly(keys, values, offsets, lists, counted, query, temperature, 1.0)
            assert found.errors[place, number] == pytest.approx(errors, rel=2e-3, abs=1e-3)
            assert found.log_mass_errors[place, number] == pytest.approx(masses, rel=2e-3, abs=1e-3)
    assert found.log_mass_errors[0, 2, 0] > 5.0


@pytest.mark.parametrize("far", [False, True])
def test_depths_are_those_of_a_store_without_the_one_that_asks(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are measured anew without that row alone, and its best are among all others."""
    scaled(monkeypatch, read=1.0)
    keys, offsets = drawn()
    keys[offsets[-2] :: 40] *= 30.0 if far else 1.0
    keys[0] = keys[1] + 0.01  # what is asked by the only other row of a list
    values, askers = keys[:, :1], np.array([0, 1, 2, 700, 1500, 2999])
    most = np.full(len(askers), 30.0)
    whole = measured(lambda a, b: (keys[a:b], values[a:b]), offsets)
    counted = np.ones(ITEMS, np.bool_)
    counted[askers] = False
    owners = np.searchsorted(offsets, np.arange(ITEMS), side="right") - 1
    held_out = with_rows(whole, owners[askers], keys[askers], values[askers], sign=-1.0)
    found = rehearsed(
        held_out,
        offsets,
        lambda a, b: (keys[a:b], values[a:b]),
        counted,
        keys[askers],
        np.zeros(len(askers)),
        TEMPERATURES,
        scale=1.0,
        whole=Whole(whole, np.ones(ITEMS, np.bool_), askers, most),
    )
    for number, row in enumerate(askers.tolist()):
        alone = with_rows(whole, owners[[row]], keys[[row]], values[[row]], sign=-1.0).rounded()
        scores = keys.astype(np.float64) @ keys[row]
        scores[row] = -np.inf
        for place, k in enumerate(BEST):
            order, before = ranked(alone, tilted(alone, keys[[row]]), k, most[:1])
            best = owners[np.argsort(-scores)[:k]]
            expected = max(before[0, order[0] == owner].item() for owner in best.tolist())
            assert found.depths[number, place] == pytest.approx(expected, abs=0.02)  # the list counts one row more
    assert found.best == pytest.approx((keys[askers] @ keys[counted].T).max(1), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.4, 0.02, 0.001])
def test_lists_are_opened_in_the_same_order_in_float32(temperature: float) -> None:
    """At low temperatures most errors are smaller beside the largest than float32 has numbers for."""
    keys, offsets = drawn()
    lists = measured(lambda a, b: (keys[a:b], keys[a:b, :3]), offsets)
    for query in keys[::500]:
        wide, narrow = (
            opening(some, tilted(some, query[None] / temperature), scale=1.0) for some in (lists, lists.narrow())
        )
        there = int((lists.counts > 1).sum())
        assert (narrow.order[:, :there] == wide.order[:, :there]).all()
        assert (lists.counts[narrow.order[0, there:]] <= 1).all()  # these are known without reading them
        assert (np.diff(narrow.doubts) <= 0).all()


def test_estimates_of_sets_of_lists_are_those_of_each_set_alone() -> None:
    """Estimates of sets of lists are those of each set alone, also where a set is empty."""
    keys, offsets = drawn()
    lists = measured(lambda a, b: (keys[a:b], keys[a:b, :3]), offsets).narrow()
    sets = np.random.default_rng(2).integers(0, 3, (4, LISTS)).astype(np.int8)
    sets[0][sets[0] == 1] = 0
    sharpness = np.array([0.5, 1.0, 2.0, 8.0])
    tilt = tilted(lists, keys[7] * sharpness[:, None])
    peak = tilt.logs.max(1) - 1.0
    apart = estimated_apart(lists, unpacked(lists.spreads, lists.leading), tilt, sharpness, sets, 3, peak=peak)
    for number in range(3):
        alone = estimated(lists, tilt, sets == number)
        scale = np.exp(np.where(alone.mass > 0, alone.peak, peak) - peak)
        assert apart.shares.sum(2)[:, number] == pytest.approx(alone.mass * scale, rel=1e-4, abs=1e-7)
        total = (apart.valued(lists) + apart.pulled)[:, number]
        assert total == pytest.approx(alone.total * scale[:, None], rel=1e-3, abs=1e-5)


def test_doubts_do_not_depend_on_how_rows_are_counted() -> None:
    """Lookups know how many rows lists were made of; as cold as masses underflow, doubts are those of the rehearsal."""
    rng = np.random.default_rng(3)
    keys = (rng.standard_normal((30, 1, 8)) + 0.05 * rng.standard_normal((30, 40, 8))).reshape(-1, 8)
    lists = measured(lambda start, stop: (keys[start:stop], keys[start:stop, :2]), np.arange(0, 1201, 40)).rounded()
    tilt = tilted(lists, (20.0 * keys[::97]).astype(np.float32))
    plain, counted = (opening(lists, tilt, scale=1.0, made_of=made_of) for made_of in (None, np.full(30, 40)))
    assert (plain.doubts == 0).any()
    assert np.array_equal(plain.doubts, counted.doubts)
    assert np.array_equal(plain.stops, counted.stops)
