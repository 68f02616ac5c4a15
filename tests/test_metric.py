"""A learned metric: the same distances, asked as products, whatever is counted from where."""

import numpy as np
import pytest

from softkv.maths import metric as module
from softkv.maths.blending import Vectors
from softkv.maths.lookup import lookup
from softkv.maths.metric import Metric

D, R, N = 6, 4, 50
RNG = np.random.default_rng(0)
KEYS, QUERIES = (RNG.standard_normal((count, D)).astype(np.float32) for count in (N, 7))
FACTORS = RNG.standard_normal((R, D)).astype(np.float32)


def distances(metric: Metric, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """−½‖L(q − k)‖² in float64, pair by pair."""
    found = np.empty((len(queries), len(keys)))
    for i, query in enumerate(queries.astype(np.float64)):
        for j, key in enumerate(keys.astype(np.float64)):
            if metric.directions:
                query, key = query / np.linalg.norm(query), key / np.linalg.norm(key)
            apart = metric.factors.astype(np.float64) @ (query - key)
            found[i, j] = -0.5 * float(apart @ apart)
    return found


@pytest.mark.parametrize("centre", [0.0, 1000.0])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_logits_are_those_of_the_distances(centre: float, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from the origin as well, where the products alone would cancel; in blocks of any size."""
    monkeypatch.setattr(module, "BLOCK", 8)
    keys, queries = KEYS + np.float32(centre), QUERIES + np.float32(centre)
    metric = Metric(FACTORS, np.full(D, centre, np.float32))
    scorer = metric.compatibility(metric.numbers(keys), None).ask(queries, 1.0 / temperature)
    found = np.concatenate([scorer(keys[:20], 0), scorer(keys[20:], 20)], axis=1)
    assert found == pytest.approx(distances(metric, queries, keys) / temperature, rel=2e-4, abs=2e-3)
    assert found.dtype == np.float32
    assert found.max() <= 0.0


@pytest.mark.parametrize("directions", [False, True])
def test_the_number_of_a_key_does_not_depend_on_the_keys_beside_it(directions: bool) -> None:
    """Bit for bit, however many are multiplied together: a copy of a store must answer as the store does."""
    keys, factors = (np.random.default_rng(1).standard_normal((n, 60)).astype(np.float32) for n in (500, 30))
    metric = Metric(factors, np.zeros(60, np.float32), directions)
    together = metric.numbers(keys)
    assert np.concatenate([metric.numbers(key[None]) for key in keys]).tobytes() == together.tobytes()
    assert metric.numbers(keys[7:]).tobytes() == together[7:].tobytes()


def test_of_directions_only_the_direction_counts() -> None:
    """Longer keys and queries are as near as shorter ones."""
    metric = Metric(FACTORS, np.zeros(D, np.float32), directions=True)
    inverse = (1.0 / np.linalg.norm(KEYS, axis=1)).astype(np.float32)
    found = metric.compatibility(metric.numbers(KEYS), inverse).ask(QUERIES, 1.0)(KEYS, 0)
    assert found == pytest.approx(distances(metric, QUERIES, KEYS), rel=1e-4, abs=1e-4)
    longer = metric.compatibility(metric.numbers(3 * KEYS), inverse / 3).ask(5 * QUERIES, 1.0)(3 * KEYS, 0)
    assert longer == pytest.approx(found, rel=1e-4, abs=1e-4)


def test_a_lookup_by_a_metric_is_one_by_its_distances() -> None:
    """Each query with a temperature of its own; the weights are those of a Gaussian of L(q − k)."""
    metric = Metric(FACTORS, np.zeros(D, np.float32))
    values, temperatures = RNG.standard_normal((N, 3)).astype(np.float32), np.linspace(0.5, 2.0, len(QUERIES))
    found = lookup(
        QUERIES,
        KEYS,
        Vectors(values),
        compatibility=metric.compatibility(metric.numbers(KEYS), None),
        temperature=temperatures,
    )
    weights = np.exp(distances(metric, QUERIES, KEYS) / temperatures[:, None])
    assert found.value == pytest.approx(weights @ values / weights.sum(1, keepdims=True), rel=1e-4, abs=1e-5)
    assert found.log_mass == pytest.approx(np.log(weights.sum(1)), rel=1e-5, abs=1e-4)
