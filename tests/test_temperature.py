"""The temperature of a store that was never tuned."""

import numpy as np
import pytest

from softkv.learning import temperature
from softkv.learning.temperature import ASKED, typical_temperature
from softkv.maths.compatibility import compatibility_of

from . import reference


def effective(keys: np.ndarray, live: np.ndarray, name: str, temperature: float, seed: int = 0) -> float:
    """The median effective number of the items asked, each left out, by the reference."""
    rows = np.flatnonzero(live)
    chosen = np.sort(np.random.default_rng(seed).choice(rows, min(ASKED, len(rows)), replace=False))
    found = []
    for row in chosen.tolist():
        others = [other for other in rows.tolist() if other != row]
        score, values = getattr(reference, name), [[0.0]] * len(others)
        query, rest = keys[row].tolist(), keys[others].tolist()
        found.append(reference.lookup(query, rest, values, score=score, temperature=temperature).effective)
    return float(np.median(found))


@pytest.mark.parametrize("name", ["cosine", "dot", "scaled_dot", "gaussian", "laplace"])
@pytest.mark.parametrize(("count", "wanted"), [(100, 10.0), (20, 5.0), (8, 2.0), (3, 1.5)])
def test_the_median_effective_number_is_the_one_wanted(name: str, count: int, wanted: float) -> None:
    """Left out one at a time, half of the items are explained by more than min(10, n / 4) others, half by fewer."""
    keys = np.random.default_rng(count).standard_normal((count, 6)).astype(np.float32)
    live = np.ones(count, np.bool_)
    found = typical_temperature(keys, live, name)
    assert found is not None
    assert effective(keys, live, name, found) == pytest.approx(wanted, rel=0.01)


def test_dead_rows_do_not_count() -> None:
    """The temperature of a store with dead rows is that of its live ones alone."""
    keys = np.random.default_rng(1).standard_normal((60, 5)).astype(np.float32)
    live = np.arange(60) % 3 > 0
    keys[~live] *= 100
    assert typical_temperature(keys, live, "dot") == typical_temperature(keys[live], np.ones(40, np.bool_), "dot")


def test_scores_of_any_scale_find_their_temperature() -> None:
    """Keys ten times as long have scores, and a temperature, a hundred times as high."""
    keys = np.random.default_rng(2).standard_normal((50, 5)).astype(np.float32)
    live = np.ones(50, np.bool_)
    small, large = typical_temperature(keys, live, "dot"), typical_temperature(keys * 10, live, "dot")
    assert small is not None
    assert large == pytest.approx(small * 100, rel=1e-4)


def test_items_that_are_all_alike_have_no_temperature() -> None:
    """Where no score tells one item from another, nothing is chosen."""
    assert typical_temperature(np.ones((9, 3), np.float32), np.ones(9, np.bool_), "dot") is None
    assert typical_temperature(np.ones((1, 3), np.float32), np.ones(1, np.bool_), "dot") is None
    assert typical_temperature(np.ones((4, 3), np.float32), np.zeros(4, np.bool_), "dot") is None


@pytest.mark.parametrize("name", ["cosine", "gaussian", "laplace"])
def test_rounding_tells_no_items_apart(name: str) -> None:
    """Keys in one direction, or all as far from each other: their scores differ in the last digits alone."""
    rng = np.random.default_rng(3)
    keys = np.eye(50) @ np.linalg.qr(rng.standard_normal((50, 50)))[0] if name == "gaussian" else np.eye(50)
    if name == "cosine":
        keys = rng.uniform(1, 2, (50, 1)) * rng.standard_normal(50)
    assert typical_temperature(keys.astype(np.float32), np.ones(50, bool), name) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["cosine", "dot", "scaled_dot"])
@pytest.mark.parametrize("width", [1, 2, 30])
def test_rounding_does_not_weigh_items_of_one_direction(width: int, name: str, dtype: type[np.floating]) -> None:
    """More items than should contribute share a direction: at their temperature they share the weight as well."""
    rng = np.random.default_rng(4)
    directions = rng.standard_normal((6, width)) if width > 1 else np.array([[1.0], [-1.0]])
    which = rng.integers(0, len(directions), 203)
    keys = (directions[which] * rng.uniform(0.5, 3, (203, 1))).astype(dtype)
    if name != "cosine":
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    found = typical_temperature(keys, np.ones(203, np.bool_), name)
    assert found is not None
    scores = compatibility_of(name).ask(keys[:9], 1.0)(keys, 0)
    apart = [np.ptp(scores[place][which == which[place]]) / found for place in range(9)]
    assert max(apart) < 0.2


def test_where_rounding_decides_nothing_no_temperature_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances of equal keys are exactly 0; one far item is not what scores of the others are rounded by."""
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((200, 6)).astype(np.float32)
    live, twice, far = np.ones(200, np.bool_), keys[np.arange(200) % 6], keys.copy()
    far[0] *= 1e4
    cases = [(twice, "gaussian"), (twice, "laplace"), (far, "dot"), (far, "gaussian"), (keys, "cosine"), (keys, "dot")]
    found = [typical_temperature(some, live, name) for some, name in cases]
    monkeypatch.setattr(temperature, "ROUNDINGS", 0.0)
    assert found == [typical_temperature(some, live, name) for some, name in cases]


def test_two_items_get_one_that_tells_them_apart() -> None:
    """Of two items one is left when the other asks, so each is asked about itself as well."""
    keys = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    found = typical_temperature(keys, np.ones(2, np.bool_), "cosine")
    assert found is not None
    answer = reference.lookup([1.0, 0.0], keys.tolist(), [[0.0], [0.0]], score=reference.cosine, temperature=found)
    assert answer.effective == pytest.approx(1.25, rel=0.01)


def test_one_far_item_leaves_the_others_their_resolution() -> None:
    """A gap a million times the others does not swallow the bins that the others need."""
    keys = np.random.default_rng(3).standard_normal((100, 4)).astype(np.float32)
    keys[0] *= 1e4
    live = np.ones(100, np.bool_)
    found = typical_temperature(keys, live, "gaussian")
    assert found is not None
    assert effective(keys, live, "gaussian", found) == pytest.approx(10, rel=0.02)


@pytest.mark.parametrize("count", range(2, 11))
@pytest.mark.parametrize("name", ["cosine", "gaussian"])
def test_small_stores_get_one_as_well(name: str, count: int) -> None:
    """Two items or more, some of them twice, get one that is finite, above 0, and neither frozen nor uniform."""
    keys = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)
    for some in (keys, np.concatenate([keys, keys])):
        live = np.ones(len(some), np.bool_)
        found = typical_temperature(some, live, name)
        assert found is not None
        assert 0 < found < 1e6
        if len(some) > 2:
            assert 1.0 < effective(some, live, name, found) < len(some)


@pytest.mark.parametrize("name", ["cosine", "gaussian"])
def test_fewer_items_of_a_large_store_are_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they say is close to what more of them say, and the time does not grow with their number."""
    keys = np.random.default_rng(9).standard_normal((20_000, 8)).astype(np.float32)
    live = np.ones(len(keys), np.bool_)
    usual = typical_temperature(keys, live, name)
    monkeypatch.setattr(temperature, "SCORED", 1 << 10)
    assert len(temperature.asked_of(keys, np.arange(len(keys)), 0, temperature.SCORED)) == temperature.FEWEST_ASKED
    fewer = typical_temperature(keys, live, name)
    assert usual is not None
    assert fewer is not None
    assert fewer == pytest.approx(usual, rel=0.15)


@pytest.mark.parametrize("kind", ["numbers", "mostly zeros", "equal"])
def test_items_are_drawn_by_their_keys(kind: str) -> None:
    """They may lie anywhere, with whatever dead beside them: the same keys, and so the same temperature."""
    keys = np.random.default_rng(10).standard_normal((3000, 40)).astype(np.float32)
    if kind == "mostly zeros":
        keys[:, :-1] = 0.0
        keys[::2, :-1] = np.eye(39, dtype=np.float32)[np.arange(1500) % 39]
    if kind == "equal":
        keys = keys[np.arange(3000) % 100]
    order = np.random.default_rng(11).permutation(len(keys))
    moved, live = np.insert(keys[order], 7, 1.0, axis=0), np.ones(3001, np.bool_)
    live[7] = False
    first = temperature.asked_of(keys, np.arange(3000), 0, 1 << 20)
    again = temperature.asked_of(moved, np.flatnonzero(live), 0, 1 << 20)
    assert len(set(first.tolist())) == ASKED
    assert np.array_equal(keys[first], moved[again])
    found = typical_temperature(keys, np.ones(3000, np.bool_), "gaussian")
    assert typical_temperature(moved, live, "gaussian") == pytest.approx(found, rel=1e-6)


def test_a_draw_is_fair() -> None:
    """The keys that are drawn are like the others: their mean is as far from that of all as chance has it."""
    keys = np.random.default_rng(12).standard_normal((20_000, 6)).astype(np.float32)
    drawn = np.array(
        [keys[temperature.asked_of(keys, np.arange(20_000), seed, temperature.SCORED)].mean(0) for seed in range(40)]
    )
    assert np.abs(drawn).max() * ASKED**0.5 < 4.5
    assert 0.8 < drawn.std() * ASKED**0.5 < 1.2


HOURS = np.random.default_rng(13).integers(0, 24, 2000).astype(np.float32)[:, None]


@pytest.mark.parametrize("name", ["gaussian", "laplace", "student"])
def test_copies_of_a_key_count_once_where_they_alone_reach_the_number_wanted(name: str) -> None:
    """The temperature of 2,000 hours of the day is that of the 24 hours: a quarter of them contribute."""
    found = typical_temperature(HOURS, np.ones(2000, np.bool_), name)
    hours = np.unique(HOURS, axis=0)
    assert found == pytest.approx(typical_temperature(hours, np.ones(24, np.bool_), name), rel=1e-6)
    assert found is not None
    assert effective(hours, np.ones(24, np.bool_), name, found) == pytest.approx(6, rel=0.05)


def test_copies_of_directions_count_once_as_well() -> None:
    """Whole numbers in two columns, compared by cosine, get no temperature at which only rounding tells them apart."""
    keys = np.random.default_rng(14).integers(1, 6, (3000, 2)).astype(np.float32)
    found = typical_temperature(keys, np.ones(3000, np.bool_), "cosine")
    assert found is not None
    assert found > 1e-4


@pytest.mark.parametrize("copies", [5, 9])
def test_fewer_copies_than_wanted_count_one_by_one(copies: int) -> None:
    """Stores whose items do not reach the number wanted by copies alone keep the plain rule."""
    keys = np.repeat(np.random.default_rng(15).standard_normal((60, 3)), copies, axis=0).astype(np.float32)
    found = typical_temperature(keys, np.ones(len(keys), np.bool_), "gaussian")
    assert found is not None
    assert effective(keys, np.ones(len(keys), np.bool_), "gaussian", found) == pytest.approx(10, rel=0.15)


def test_dead_copies_do_not_count() -> None:
    """Hours whose items are all deleted take no part in the temperature."""
    live = HOURS[:, 0] < 12
    found = typical_temperature(HOURS, live, "gaussian")
    assert found == typical_temperature(HOURS[live], np.ones(int(live.sum()), np.bool_), "gaussian")
