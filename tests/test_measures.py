"""Measures of predictions: against scikit-learn and SciPy, and on paper."""

import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import metrics
from sklearn.calibration import calibration_curve

from softkv.learning import measures

LABELS = 5


def drawn(dtype: str = "float64", queries: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Distributions over labels, some of them certain, and the right labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((queries, LABELS))
    right = np.where(rng.random(queries) < 0.7, logits.argmax(1), rng.integers(0, LABELS, queries))
    shares = np.exp(logits)
    shares /= shares.sum(1, keepdims=True)
    shares[:40] = np.eye(LABELS)[rng.integers(0, LABELS, 40)]
    return shares.astype(dtype), right


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_labels_are_measured_as_scikit_learn_does(dtype: str) -> None:
    """Accuracy and log-loss, also of shares of 0 and 1, which count as the epsilon of their dtype."""
    shares, right = drawn(dtype)
    assert measures.correct(shares, right).mean() == metrics.accuracy_score(right, shares.argmax(1))
    given, least = shares[np.arange(len(right)), right].astype(np.float64), float(np.finfo(dtype).eps)
    by_hand = [-math.log(min(max(share, least), 1 - least)) for share in given.tolist()]
    assert measures.log_loss(shares, right) == pytest.approx(math.fsum(by_hand) / len(by_hand), rel=1e-12)
    if dtype == "float64":
        expected = metrics.log_loss(right, shares, labels=range(LABELS))
        assert measures.log_loss(shares, right) == pytest.approx(expected, rel=1e-9)


def test_a_label_that_no_item_has_is_wrong_and_costs_the_most() -> None:
    """It is neither left out nor taken for the last one."""
    shares = np.array([[0.25, 0.75], [0.25, 0.75]])
    assert measures.correct(shares, np.array([1, -1])).tolist() == [True, False]
    expected = (-np.log(0.75) - np.log(np.finfo(float).eps)) / 2
    assert measures.log_loss(shares, np.array([1, -1])) == pytest.approx(expected, rel=1e-12)


def test_reliability_is_that_of_scikit_learn() -> None:
    """Bins are equal, with their upper edges, and so are the means in them."""
    shares, right = drawn()
    confidence, hits = shares.max(1), measures.correct(shares, right)
    found = measures.reliability(confidence, hits)
    accuracy, sure = calibration_curve(hits, confidence, n_bins=15, strategy="uniform")
    assert [one.accuracy for one in found] == pytest.approx(accuracy, rel=1e-12)
    assert [one.confidence for one in found] == pytest.approx(sure, rel=1e-12)
    assert sum(one.queries for one in found) == 400


def test_the_calibration_error_on_paper() -> None:
    """Three of four right at 0.9, one of two at 0.6: (4 x 0.15 + 2 x 0.1) / 6."""
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.6, 0.6])
    right = np.array([True, True, True, False, True, False])
    found = measures.reliability(confidence, right)
    assert [(one.queries, one.accuracy) for one in found] == [(2, 0.5), (4, 0.75)]
    assert measures.calibration_error(found) == pytest.approx((4 * 0.15 + 2 * 0.1) / 6, rel=1e-12)
    sure = measures.reliability(np.array([1.0, 1.0]), np.array([True, True]))
    assert measures.calibration_error(sure) == 0.0


@pytest.mark.parametrize("rounded", [False, True])
def test_auroc_is_that_of_scikit_learn(rounded: bool) -> None:
    """It is so with ties and without."""
    rng = np.random.default_rng(1)
    inside, outside = rng.standard_normal(300) + 0.8, rng.standard_normal(200)
    if rounded:
        inside, outside = inside.round(), outside.round()
    truth = np.repeat([1, 0], [300, 200])
    expected = metrics.roc_auc_score(truth, np.concatenate([inside, outside]))
    assert measures.auroc(inside, outside) == pytest.approx(expected, rel=1e-12)


def test_auroc_on_paper() -> None:
    """Two of four pairs are in order and one is tied."""
    assert measures.auroc(np.array([2.0, 1.0]), np.array([1.0, 1.5])) == 2.5 / 4
    assert measures.auroc(np.array([3.0]), np.array([3.0])) == 0.5


def test_abstention_on_paper() -> None:
    """The surest first; those as sure as each other come together, whatever their order."""
    certainty, losses = np.array([1.0, 3.0, 2.0, 2.0]), np.array([1.0, 0.0, 1.0, 0.0])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        shares, means = measures.abstention(certainty[order], losses[order])
        assert shares.tolist() == [0.25, 0.75, 1.0]
        assert means == pytest.approx([0.0, 1 / 3, 0.5], rel=1e-12)


def test_numbers_are_measured_as_scikit_learn_and_scipy_do() -> None:
    """The root of the mean squared error, also of vectors, and the mean log density."""
    rng = np.random.default_rng(2)
    values, targets, spreads = rng.standard_normal(200), rng.standard_normal(200), rng.uniform(0.5, 2, 200)
    assert measures.rmse(values, targets) == pytest.approx(metrics.root_mean_squared_error(targets, values), rel=1e-12)
    wide, aims = rng.standard_normal((50, 3)), rng.standard_normal((50, 3))
    assert measures.rmse(wide, aims) == pytest.approx(np.linalg.norm(wide - aims) / np.sqrt(50), rel=1e-12)
    expected = norm.logpdf(targets, values, spreads).mean()
    assert measures.log_likelihood(values, spreads, targets) == pytest.approx(expected, rel=1e-12)


def test_no_other_widths_make_targets_likelier() -> None:
    """Neither another factor nor another of the least spreads; the ones that made the targets are found again."""
    rng = np.random.default_rng(3)
    values, spreads = rng.standard_normal(999), rng.uniform(0, 2, 999)
    targets = values + 1.5 * np.hypot(spreads, 0.25) * rng.standard_normal(999)
    least = np.array([0.0625, 0.125, 0.25, 0.5, 1.0])
    found = measures.likeliest_widths(values, spreads, targets, least)
    assert found.least == 0.25
    assert found.factor == pytest.approx(1.5, rel=0.05)
    best = measures.log_likelihood(values, found.of(spreads), targets)
    others = [measures.Widths(found.factor, 0.5), measures.Widths(1.01 * found.factor, 0.25)]
    for other in [*others, measures.Widths(0.99 * found.factor, 0.25)]:
        assert measures.log_likelihood(values, other.of(spreads), targets) < best


def test_intervals_hold_what_they_say_of_normal_targets() -> None:
    """Intervals for normal targets hold the share that they say, and more where spreads are twice too wide."""
    rng = np.random.default_rng(4)
    targets, zeros, ones = rng.standard_normal(20_000), np.zeros(20_000), np.ones(20_000)
    for level, held in measures.coverage(zeros, ones, targets):
        assert held == pytest.approx(level, abs=0.015)
    for level, held in measures.coverage(zeros, 2 * ones, targets):
        assert held == pytest.approx(2 * norm.cdf(2 * norm.ppf((1 + level) / 2)) - 1, abs=0.015)
