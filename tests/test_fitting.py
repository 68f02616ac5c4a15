"""Learning a metric: what matters counts, what does not is forgotten, and nothing is learned from noise."""

import numpy as np
import pytest

from softkv.learning.fitting import Examples, fit
from softkv.learning.gradients import weights_of

RNG = np.random.default_rng(4)
VECTORS = RNG.standard_normal((500, 6)).astype(np.float32)
VECTORS[:, 3:] *= 4.0  # what is loud does not matter
WAVES = np.sin(2 * VECTORS[:, 0]) + VECTORS[:, 1]
SIGNS = (VECTORS[:, 0] > 0).astype(np.int32) + 2 * (VECTORS[:, 1] > 0)


def error_of(metric: object, train: slice, test: slice, values: np.ndarray) -> float:
    """The root mean square error of plain means."""
    projected = metric.projected(VECTORS)
    weights = weights_of(projected[test], projected[train], np.full(len(projected[test]), -1))
    return float(np.sqrt(((weights @ values[train] - values[test]) ** 2).mean()))


def test_features_that_matter_are_found() -> None:
    """Far better on rows that were never seen, and the others hardly count any more."""
    fitted = fit(Examples(VECTORS[:400], WAVES[:400, None]), steps=120)
    assert fitted.loss < 0.3 * fitted.started
    assert error_of(fitted.metric, slice(0, 400), slice(400, 500), WAVES) < 0.35
    lengths = np.linalg.norm(fitted.metric.factors, axis=0)
    assert lengths[:2].min() > 5 * lengths[3:].max()


def test_labels_are_learned() -> None:
    """The logarithm of the weight of the right one is what is learned from."""
    fitted = fit(Examples(VECTORS[:400], SIGNS[:400]), steps=120)
    assert fitted.loss < 0.4 * fitted.started
    projected = fitted.metric.projected(VECTORS)
    weights = weights_of(projected[400:], projected[:400], np.full(100, -1))
    found = np.stack([weights[:, SIGNS[:400] == one].sum(1) for one in range(4)], axis=1).argmax(1)
    assert (found == SIGNS[400:]).mean() > 0.85


def test_shuffled_labels_teach_nothing() -> None:
    """Items that took no part are not predicted better than by chance, and no loss says that they were."""
    shuffled = np.random.default_rng(5).permutation(SIGNS[:400])
    fitted = fit(Examples(VECTORS[:400], shuffled), steps=60)
    counts = np.bincount(shuffled, minlength=4) / 400
    assert fitted.loss > 0.9 * float(-(counts * np.log(counts)).sum())
    projected = fitted.metric.projected(VECTORS)
    weights = weights_of(projected[400:], projected[:400], np.full(100, -1))
    found = np.stack([weights[:, shuffled == one].sum(1) for one in range(4)], axis=1).argmax(1)
    assert (found == SIGNS[400:]).mean() < 0.45


def test_the_same_seed_learns_the_same() -> None:
    """What is learned follows from the seed, and another seed learns about as much."""
    some = Examples(VECTORS[:200], WAVES[:200, None])
    first, again, other = (fit(some, steps=20, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.metric.factors, again.metric.factors)
    assert not np.array_equal(first.metric.factors, other.metric.factors)


def test_a_low_rank_is_kept() -> None:
    """The metric has as many directions as were asked for."""
    fitted = fit(Examples(VECTORS[:300], WAVES[:300, None]), rank=2, steps=60)
    assert fitted.metric.factors.shape == (2, 6)
    assert fitted.loss < fitted.started


def test_units_do_not_matter() -> None:
    """Features in other units and from another origin are told apart as well, and what is learned speaks of them."""
    plain = fit(Examples(VECTORS[:300], WAVES[:300, None]), steps=40)
    units = np.array([1e3, 1e-3, 1, 1, 10, 1], np.float32)
    moved = fit(Examples(VECTORS[:300] * units + 5 * units, 7 + 100 * WAVES[:300, None]), steps=40)
    assert moved.loss == pytest.approx(1e4 * plain.loss, rel=0.05)
    assert moved.metric.factors * units == pytest.approx(plain.metric.factors, rel=0.1, abs=0.1)


def test_planes_are_learned_for_numbers() -> None:
    """With fewer items, a slope is closer than a mean."""
    items = Examples(VECTORS[:150], WAVES[:150, None])
    assert fit(items, steps=80, ridge=0.1).loss < fit(items, steps=80).loss


def test_queries_with_targets_are_learned_from() -> None:
    """They are unlike the items: of another origin; what matters in them is found all the same."""
    queries = Examples(VECTORS[250:450] + np.float32(0.2), WAVES[250:450, None])
    fitted = fit(Examples(VECTORS[:250], WAVES[:250, None]), queries, steps=80)
    assert fitted.loss < 0.5 * fitted.started


def test_directions_have_no_length() -> None:
    """Longer items teach cosines the same."""
    lengths = np.random.default_rng(6).uniform(0.5, 2.0, (300, 1)).astype(np.float32)
    first, second = (
        fit(Examples(vectors, SIGNS[:300]), directions=True, steps=20)
        for vectors in (VECTORS[:300], VECTORS[:300] * lengths)
    )
    assert first.metric.directions
    assert second.metric.factors == pytest.approx(first.metric.factors, rel=1e-3, abs=1e-3)


def test_progress_is_told() -> None:
    """Every step is told, and who is told may stop it."""
    told: list[tuple[int, int]] = []
    fit(Examples(VECTORS[:100], SIGNS[:100]), steps=10, told=lambda done, total: told.append((done, total)))
    assert told == [(done, 10) for done in range(1, 11)]

    def stop(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(Examples(VECTORS[:100], SIGNS[:100]), steps=10, told=stop)
