"""Soft lookup as scikit-learn estimators."""

import importlib
import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut, cross_val_predict, cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import softkv
from softkv import errors
from softkv.doors import held
from softkv.doors.held import Items, SamplesRounded, TargetsRounded
from softkv.doors.remote.connection import ServerConnection
from softkv.doors.remote.handle import RemoteStore
from softkv.doors.sklearn import SoftKVClassifier, SoftKVRegressor, SoftKVTransformer

from .databases import count_as_large
from .scales import scaled

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((120, 3)), RNG.standard_normal((120, 2))
LABELS = np.where(X[:, 0] > 0, "right", "left")
ASKED = RNG.standard_normal((20, 3))

SIZED: list[dict[str, Any]] = [
    {},
    {"compatibility": "cosine"},
    {"compatibility": "dot"},
    {"compatibility": "laplace"},
    {"temperature": 0.5},
    {"projection": True},
    {"projection": True, "compatibility": "cosine"},
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([SoftKVRegressor(), SoftKVClassifier(), SoftKVTransformer()])
def test_estimators_are_what_scikit_learn_expects(estimator: Any, check: Any) -> None:
    """Every check that scikit-learn has for such estimators."""
    check(estimator)


def test_a_regressor_is_kernel_regression() -> None:
    """The weights are those of scikit-learn's RBF kernel, normalised."""
    model = SoftKVRegressor(temperature=0.25).fit(X, Y[:, 0])
    kernel = RBF(0.5)(ASKED, X)
    assert model.predict(ASKED) == pytest.approx(kernel @ Y[:, 0] / kernel.sum(1), rel=1e-12)
    assert model.decision_evidence(ASKED) == pytest.approx(np.log(kernel.sum(1)), rel=1e-9, abs=1e-12)
    assert model.temperature_ == 0.25


def test_k_alone_at_a_high_temperature_are_the_neighbours() -> None:
    """The mean of the k nearest, as scikit-learn finds them; the classifier counts them."""
    model = SoftKVRegressor(temperature=1e9, k=5).fit(X, Y)
    assert model.predict(ASKED) == pytest.approx(KNeighborsRegressor(5).fit(X, Y).predict(ASKED), rel=1e-6)
    counted = SoftKVClassifier(temperature=1e9, k=5).fit(X, LABELS)
    neighbours = KNeighborsClassifier(5).fit(X, LABELS)
    assert counted.predict_proba(ASKED) == pytest.approx(neighbours.predict_proba(ASKED), abs=1e-6)
    assert counted.predict(ASKED).tolist() == neighbours.predict(ASKED).tolist()


def test_a_classifier_shares_weights_among_labels() -> None:
    """Probabilities of each class in their order, from plain softmax weights, and the evidence behind them."""
    model = SoftKVClassifier(compatibility="dot", temperature=0.5).fit(X, LABELS)
    logits = ASKED @ X.T / 0.5
    right = softmax(logits, axis=1) @ (LABELS == "right")
    assert model.classes_.tolist() == ["left", "right"]
    assert model.predict_proba(ASKED) == pytest.approx(np.stack([1 - right, right], axis=1), abs=1e-12)
    assert model.predict(ASKED).tolist() == np.where(right > 0.5, "right", "left").tolist()
    assert model.decision_evidence(ASKED) == pytest.approx(logsumexp(logits, axis=1), rel=1e-12)


def test_a_transformer_puts_vectors_into_context() -> None:
    """Attention over the vectors that it was fitted on."""
    model = SoftKVTransformer(compatibility="scaled_dot", temperature=1.0).fit(X)
    assert model.transform(ASKED) == pytest.approx(softmax(ASKED @ X.T / 3**0.5, axis=1) @ X, rel=1e-9)
    assert model.get_feature_names_out().tolist() == ["softkvtransformer0", "softkvtransformer1", "softkvtransformer2"]


COUNTS = np.random.default_rng(6).integers(0, 4, len(X))


@pytest.mark.parametrize("temperature", [0.05, 2.0, "auto"])
def test_a_weight_is_a_count(temperature: float | str) -> None:
    """2 is to stand there twice, 0 not to be there at all; also where a temperature is found, by leaving out one."""
    weights = RNG.integers(0, 4, len(X)) if temperature != "auto" else COUNTS
    twice = np.repeat(np.arange(len(X)), weights)
    for model, targets in ((SoftKVRegressor(), Y), (SoftKVClassifier(), LABELS)):
        model.set_params(temperature=temperature)
        weighted = clone(model).fit(X, targets, sample_weight=weights)
        repeated = clone(model).fit(X[twice], targets[twice])
        ask = "predict_proba" if targets is LABELS else "predict"
        assert getattr(weighted, ask)(ASKED) == pytest.approx(getattr(repeated, ask)(ASKED), rel=1e-9)
        assert weighted.decision_evidence(ASKED) == pytest.approx(repeated.decision_evidence(ASKED), rel=1e-9)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_probabilities_can_be_calibrated(method: str) -> None:
    """CalibratedClassifierCV calibrates them, with weights too, and of a classifier that stays as it is."""
    weights = np.random.default_rng(5).uniform(0, 2, len(X))
    frozen = FrozenEstimator(SoftKVClassifier().fit(X, LABELS))
    for given, shares in ((SoftKVClassifier(), weights), (SoftKVClassifier(), None), (frozen, None)):
        model = CalibratedClassifierCV(given, method=method, cv=3).fit(X, LABELS, sample_weight=shares)
        assert model.predict_proba(ASKED).sum(1) == pytest.approx(1.0)
        assert model.score(X, LABELS) > 0.8


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_what_is_transformed_comes_as_a_frame(library: str) -> None:
    """It does where that is set, with names and the index of what went in; in a pipeline too."""
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=[f"row {i}" for i in range(len(X))])
    plain = make_pipeline(StandardScaler(), SoftKVTransformer()).fit(frame)
    model = clone(plain).set_output(transform=library).fit(frame)
    found = model.transform(frame)
    assert type(found).__module__.split(".")[0] == library
    assert list(found.columns) == [f"softkvtransformer{column}" for column in range(3)]
    assert np.array_equal(np.asarray(found), plain.transform(frame))
    if library == "pandas":
        assert found.index.equals(frame.index)


def test_with_k_the_heaviest_count_each_by_its_weight() -> None:
    """Which they are depends on the temperature, so none is chosen for them."""
    weights = RNG.uniform(0.1, 4, len(X))
    logits = -0.5 * np.square(ASKED[:, None] - X[None]).sum(2) / 0.3 + np.log(weights)
    logits[logits < np.sort(logits, axis=1)[:, -7:-6]] = -np.inf
    model = SoftKVRegressor(temperature=0.3, k=7).fit(X, Y, sample_weight=weights)
    assert model.predict(ASKED) == pytest.approx(softmax(logits, axis=1) @ Y, rel=1e-9)
    with pytest.raises(errors.NotExpressible, match="Give a temperature"):
        SoftKVRegressor(k=7).fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_of_one_direction_are_averaged_by_the_temperature_they_find(dtype: Any) -> None:
    """Nothing is to be gained below the rounding of cosines, and nothing there is tried."""
    rng = np.random.default_rng(6)
    signs = rng.choice([-1.0, 1.0], 200)
    features, targets = (signs * rng.uniform(0.5, 3, 200))[:, None].astype(dtype), signs + rng.standard_normal(200)
    model = SoftKVRegressor(compatibility="cosine").fit(features, targets)
    wanted = [targets[signs == sign].mean() for sign in (1.0, -1.0)]
    assert model.predict(np.array([[1.7], [-1.7]], dtype)) == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize("inputs", [5, 40], ids=["with planes", "many features"])
def test_weights_count_beside_what_was_learned(inputs: int) -> None:
    """The metric is learned from all samples alike; then a weight is a count again, for planes too."""
    features, targets = make_friedman1(200, n_features=inputs, noise=0.2, random_state=0)
    weights = np.random.default_rng(1).integers(1, 4, 200)
    twice = np.repeat(np.arange(200), weights)
    model = SoftKVRegressor(projection=True).fit(features, targets, sample_weight=weights)
    learned = model.held_.learned
    assert (learned.ridge is not None) == (inputs == 5)
    numbers = learned.metric.numbers(features[twice])
    repeated = replace(
        model.held_, items=Items(features[twice], targets[twice]), learned=replace(learned, numbers=numbers)
    )
    asked = features[:20] + 0.05
    expected = repeated.ask(asked, k=None, tolerance=0).value
    assert model.predict(asked) == pytest.approx(expected, rel=1e-5)
    unweighted = replace(model.held_, items=Items(features, targets))
    assert np.abs(model.predict(asked) - unweighted.ask(asked, k=None, tolerance=0).value).max() > 1e-3


def test_weights_count_when_the_temperature_is_chosen() -> None:
    """Where half of the samples are noise that counts next to nothing, the temperature is that of the others."""
    line = np.linspace(0, 10, 200)[:, None]
    wave, noise = np.sin(line[:, 0]) + RNG.standard_normal(200) * 0.2, RNG.standard_normal(200) * 5
    both, targets = np.concatenate([line, line + 1e-3]), np.concatenate([wave, noise])
    weights = np.repeat([1.0, 1e-9], 200)
    alone = SoftKVRegressor().fit(line, wave).temperature_
    assert SoftKVRegressor().fit(both, targets, sample_weight=weights).temperature_ == pytest.approx(alone, rel=0.05)
    assert SoftKVRegressor().fit(both, targets).temperature_ > 3 * alone


@pytest.mark.parametrize(
    "weights",
    [np.full(120, -1.0), np.zeros(120), np.full(3, 1.0), np.full(120, np.nan), np.full(120, 1e307)],
    ids=["<0", "0", "few", "nan", "huge"],
)
def test_weights_that_cannot_be_are_refused(weights: Any) -> None:
    """Either scikit-learn or we refuse them, and nothing is fitted."""
    model = SoftKVRegressor()
    with pytest.raises(ValueError, match=r"weight|sample"):
        model.fit(X, Y, sample_weight=weights)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_auto_is_close_to_the_best_of_a_grid_search() -> None:
    """Leaving out samples finds what cross-validation over a grid finds, for one that is no part of either."""
    features, targets = make_friedman1(600, noise=0.5, random_state=0)
    scaled = StandardScaler().fit_transform(features)
    found = SoftKVRegressor().fit(scaled[:400], targets[:400])
    grid = GridSearchCV(SoftKVRegressor(), {"temperature": np.geomspace(0.01, 10, 25)}, cv=KFold(10))
    grid.fit(scaled[:400], targets[:400])
    assert found.score(scaled[400:], targets[400:]) > grid.score(scaled[400:], targets[400:]) - 0.02


@pytest.mark.parametrize("inputs", [5, 40], ids=["with planes", "many features"])
def test_a_projection_predicts_better(inputs: int) -> None:
    """Of features of which few matter, those are found; which samples judge depends on the seed."""
    features, targets = make_friedman1(500, n_features=inputs, noise=0.2, random_state=0)
    plain = SoftKVRegressor().fit(features[:400], targets[:400])
    fitted, again, other = (
        SoftKVRegressor(projection=True, random_state=seed).fit(features[:400], targets[:400]) for seed in (0, 0, 1)
    )
    before, after = (one.score(features[400:], targets[400:]) for one in (plain, fitted))
    assert after > before + 0.08
    assert (fitted.held_.learned.ridge is not None) == (inputs == 5)
    assert np.array_equal(again.predict(features[400:]), fitted.predict(features[400:]))
    assert not np.array_equal(other.predict(features[400:]), fitted.predict(features[400:]))


def test_a_projection_that_is_no_better_is_left_out(tmp_path: Path) -> None:
    """There is nothing to learn, in memory and on a path."""
    noise, labels = RNG.standard_normal((300, 20)), RNG.integers(0, 2, 300)
    plain = SoftKVClassifier().fit(noise, labels).predict_proba(noise[:5] + 1)
    for path in (None, tmp_path / "s"):
        model = SoftKVClassifier(projection=True, path=path).fit(noise, labels)
        assert model.predict_proba(noise[:5] + 1) == pytest.approx(plain, abs=1e-4)


@pytest.mark.parametrize("k", [3, 20])
def test_a_temperature_suits_the_k_that_count(k: int, tmp_path: Path) -> None:
    """It is the one that leaving out with scikit-learn finds, in memory and on a path."""
    features, targets = make_friedman1(150, noise=2.0, random_state=0)
    model = SoftKVRegressor(k=k).fit(features, targets)
    assert model.temperature_ != SoftKVRegressor().fit(features, targets).temperature_
    there = SoftKVRegressor(k=k, path=tmp_path / "s").fit(features, targets)
    assert there.temperature_ == pytest.approx(model.temperature_, rel=1e-6)  # on a path by rounded features
    grid = {"temperature": [model.temperature_ * one for one in (0.25, 0.7, 1.0, 1.4, 4.0)]}
    search = GridSearchCV(SoftKVRegressor(k=k), grid, cv=LeaveOneOut(), scoring="neg_mean_squared_error")
    assert search.fit(features, targets).best_params_["temperature"] == model.temperature_


def test_what_was_learned_is_the_same_on_a_path(tmp_path: Path) -> None:
    """From the same items and seed, a store learns and answers what is learned in memory."""
    features, targets = make_friedman1(300, n_features=5, noise=0.2, random_state=0)
    memory = SoftKVRegressor(projection=True, random_state=3).fit(features, targets)
    there = SoftKVRegressor(projection=True, random_state=3, path=tmp_path / "s").fit(features, targets)
    asked = features[:50] + 0.01
    assert there.predict(asked) == pytest.approx(memory.predict(asked), rel=0.02, abs=0.1)
    assert there.decision_evidence(asked) == pytest.approx(memory.decision_evidence(asked), rel=0.05, abs=0.1)
    assert there.temperature_ == memory.temperature_ == 1.0


def test_classes_may_be_projected_by_directions() -> None:
    """With cosine only directions count."""
    directions = RNG.standard_normal((1200, 10))
    labels = (directions[:, 0] > 0).astype(int)
    plain, fitted = (
        SoftKVClassifier(compatibility="cosine", projection=one).fit(directions[:800], labels[:800])
        for one in (False, True)
    )
    assert fitted.score(directions[800:], labels[800:]) > plain.score(directions[800:], labels[800:]) + 0.05
    assert fitted.predict(directions * 7).tolist() == fitted.predict(directions).tolist()


def test_they_work_where_estimators_work() -> None:
    """Pipelines, searches and cross-validation take them; cloned, pickled, and several outputs at once."""
    flowers, kinds = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), SoftKVTransformer(temperature=0.1), SoftKVClassifier())
    assert cross_val_score(pipeline, flowers, kinds, cv=5).mean() > 0.93
    search = GridSearchCV(SoftKVClassifier(), {"compatibility": ["gaussian", "cosine"], "k": [None, 5]})
    assert search.fit(flowers, kinds).best_score_ > 0.95
    probabilities = cross_val_predict(SoftKVClassifier(), flowers, kinds, method="predict_proba")
    assert probabilities.shape == (150, 3)
    both = MultiOutputClassifier(SoftKVClassifier()).fit(X, np.stack([X[:, 0] > 0, X[:, 1] > 0], axis=1))
    assert both.predict(ASKED).shape == (20, 2)


@pytest.mark.parametrize("projection", [False, True])
def test_a_copy_answers_the_same(projection: bool) -> None:
    """A pickle of what was fitted, and a clone that is fitted again."""
    model = SoftKVRegressor(projection=projection).fit(X, X[:, 0] * 3)
    assert pickle.loads(pickle.dumps(model)).predict(ASKED) == pytest.approx(model.predict(ASKED), rel=1e-12)
    assert clone(model).fit(X, X[:, 0] * 3).predict(ASKED) == pytest.approx(model.predict(ASKED), rel=1e-12)


def test_outputs_are_predicted_at_once_and_count_alike(tmp_path: Path) -> None:
    """Each output is what it would be alone; the temperature suits them all, whatever their units."""
    targets = np.stack([np.sin(X[:, 0] * 2), 1e6 * np.cos(X[:, 1])], axis=1)
    model = SoftKVRegressor(temperature=0.1).fit(X, targets)
    for column in (0, 1):
        alone = SoftKVRegressor(temperature=0.1).fit(X, targets[:, column])
        assert model.predict(ASKED)[:, column] == pytest.approx(alone.predict(ASKED), rel=1e-12)
    units = np.array([1.0, 1e-6])
    found, scaled = (SoftKVRegressor().fit(X, some).temperature_ for some in (targets, targets * units))
    assert found == pytest.approx(scaled, rel=1e-9)
    assert SoftKVRegressor(path=tmp_path / "s").fit(X, targets).temperature_ == pytest.approx(found, rel=1e-6)
    assert SoftKVRegressor().fit(X, targets[:, :1]).predict(ASKED).shape == (20, 1)


def test_on_a_path_there_is_a_store(tmp_path: Path) -> None:
    """Anybody may ask it, also as an estimator; a second fit does not erase it unless it is told to."""
    path = tmp_path / "labels.softkv"
    model = SoftKVClassifier(path=path).fit(X, LABELS)
    memory = SoftKVClassifier(temperature=model.temperature_).fit(X, LABELS)
    assert model.temperature_ == pytest.approx(SoftKVClassifier().fit(X, LABELS).temperature_, rel=0.01)
    assert model.predict_proba(ASKED) == pytest.approx(memory.predict_proba(ASKED), abs=1e-4)
    again, copied = SoftKVClassifier.from_store(path), pickle.loads(pickle.dumps(model))
    for other in (again, copied):
        assert other.predict_proba(ASKED) == pytest.approx(model.predict_proba(ASKED), abs=1e-6)
        assert other.predict(ASKED).tolist() == model.predict(ASKED).tolist()
    with pytest.raises(errors.StoreExists, match="120 items"):
        clone(model).fit(X, LABELS)
    assert again.get_params()["path"] == str(path)
    with pytest.raises(errors.StoreExists, match="120 items"):
        clone(again).fit(X, LABELS)
    clone(model).set_params(overwrite=True).fit(X[:30], LABELS[:30])  # while others have it open
    with softkv.open(path, "r") as db:
        assert len(db) == 30
        assert db.check().ok
        assert SoftKVClassifier.from_store(db).predict(ASKED).tolist() == model.predict(ASKED).tolist()
    assert [one.name for one in tmp_path.iterdir()] == ["labels.softkv"]


class Interrupted(BaseException):
    """What Ctrl-C does."""


def interrupting(*given: Any, **options: Any) -> None:
    """Ctrl-C in the middle."""
    raise Interrupted


@pytest.mark.parametrize("there", [False, True], ids=["a new path", "a store to overwrite"])
@pytest.mark.parametrize(
    ("parameters", "change", "error"),
    [
        ({"compatibility": "cosine"}, lambda x, y: (np.vstack([x[1:], 0 * x[:1]]), y), errors.ZeroVector),
        ({}, lambda x, y: (x, y * 1e300), errors.NotFinite),
        ({}, lambda x, y: (x * 1e200, y), errors.InputError),
        ({"projection": True}, lambda x, y: (x[:10], y[:10]), errors.InputError),
        ({"projection": True, "compatibility": "laplace"}, lambda x, y: (x, y), errors.NotExpressible),
        ({"projection": True}, lambda x, y: (x, y), Interrupted),
    ],
    ids=["zero", "values", "keys", "few", "laplace", "ctrl-c"],
)
def test_a_fit_that_fails_leaves_a_path_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, parameters: Any, change: Any, error: type
) -> None:
    """Nothing is erased, nothing is left behind, and the next fit works."""
    path = tmp_path / "s"
    if there:
        SoftKVRegressor(path=path).fit(X[:50], Y[:50, 0])
    with monkeypatch.context() as patch:
        if error is Interrupted:
            patch.setattr(softkv.SoftKV, "fit", interrupting)
        with pytest.raises(error), np.errstate(all="ignore"):
            SoftKVRegressor(path=path, overwrite=True, **parameters).fit(*change(X, Y[:, 0]))
    assert [one.name for one in tmp_path.iterdir()] == (["s"] if there else [])
    if there:
        with softkv.open(path, "r") as db:
            assert len(db) == 50
            assert db.check().ok
    SoftKVRegressor(path=path, overwrite=there).fit(X, Y[:, 0])
    with softkv.open(path, "r") as db:
        assert len(db) == 120
        assert db.check().ok


def test_a_classifier_notices_labels_it_was_not_fitted_on(tmp_path: Path) -> None:
    """It does where they have a share; those that nobody carries any more do not matter."""
    model = SoftKVClassifier(path=tmp_path / "s").fit(X, LABELS)
    probabilities = model.predict_proba(ASKED)
    with softkv.open(tmp_path / "s") as db:
        db.add(["new"], ["above"], vectors=ASKED[:1])
        with pytest.raises(errors.KindError, match="'above' by now"):
            model.predict(ASKED)
        assert SoftKVClassifier.from_store(db).classes_.tolist() == ["above", "left", "right"]
        db.delete("new")
    assert model.predict_proba(ASKED) == pytest.approx(probabilities, abs=1e-6)


def test_a_path_that_holds_something_else_by_now_is_an_error(tmp_path: Path) -> None:
    """Numbers are no classes, and classes no numbers; a pickle knows as well."""
    path = tmp_path / "s"
    model = SoftKVClassifier(path=path).fit(X, LABELS)
    copied = pickle.dumps(model)
    model.predict(ASKED)
    SoftKVRegressor(path=path, overwrite=True).fit(X, Y[:, 0])
    for one in (model, pickle.loads(copied)):
        with pytest.raises(errors.KindError, match="holds number"):
            one.predict(ASKED)


def test_k_counts_of_what_a_store_holds_now(tmp_path: Path) -> None:
    """Not of what it held when the estimator was made: it may have grown since, or have fewer items than k."""
    path = tmp_path / "s"
    fitted = SoftKVRegressor(path=path, k=10, temperature=1.0).fit(X[:5], Y[:5])
    taken = SoftKVRegressor.from_store(path, k=10, temperature=1.0)
    few = SoftKVRegressor(k=10, temperature=1.0).fit(X[:5], Y[:5]).predict(ASKED)
    for model in (fitted, taken):
        assert model.predict(ASKED) == pytest.approx(few, abs=1e-5)
    with softkv.open(path) as db:
        db.add(vectors=X[5:], values=Y[5:].astype(np.float32))
    many = SoftKVRegressor(k=10, temperature=1.0).fit(X, Y).predict(ASKED)
    for model in (fitted, taken):
        assert model.predict(ASKED) == pytest.approx(many, abs=1e-5)


@pytest.mark.parametrize("size", [1e-20, 1.0, 300.0])
@pytest.mark.parametrize("compatibility", ["dot", "cosine", "gaussian"])
def test_weights_count_beside_scores_of_any_size(compatibility: str, size: float) -> None:
    """A sample of weight 3 is three samples, also in float32 and where scores leave few digits for it."""
    samples = np.full((2, 4), size, np.float32)
    for temperature in (1e-6, 1.0) if compatibility == "cosine" else (1.0,):
        model = SoftKVRegressor(compatibility=compatibility, temperature=temperature)
        found = model.fit(samples, [0.0, 1.0], sample_weight=[1, 3]).predict(samples[:1])
        assert found == pytest.approx(0.75, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_path_is_read_as_it_is_now(tmp_path: Path) -> None:
    """Its temperature, its items, by any thread, and by a process that was forked."""
    path = tmp_path / "s"
    model = SoftKVRegressor(path=path).fit(X, Y[:, 0])
    model.predict(ASKED)
    with softkv.open(path) as db:
        db.set_temperature(5.0)
        assert model.temperature_ == 5.0
        warm = SoftKVRegressor(temperature=5.0).fit(X, Y[:, 0])
        assert model.predict(ASKED) == pytest.approx(warm.predict(ASKED), abs=1e-4)
    asked = SoftKVRegressor.from_store(path, temperature=0.2)
    assert asked.temperature_ == 0.2
    expected = SoftKVRegressor(temperature=0.2).fit(X, Y[:, 0]).predict(ASKED)
    assert asked.predict(ASKED) == pytest.approx(expected, abs=1e-4)
    copied = pickle.loads(pickle.dumps(asked))
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: id(copied.held_.db()), range(32)))) == 1
        for found in threads.map(lambda _: copied.predict(ASKED), range(8)):
            assert found == pytest.approx(expected, abs=1e-4)
    with get_context("fork").Pool(1) as processes:
        assert processes.apply(copied.predict, (ASKED,)) == pytest.approx(expected, abs=1e-4)


def test_a_path_with_an_index_answers_within_the_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It estimates where it may, and is exact where it must."""
    count_as_large(monkeypatch, rehearsed=300)
    middles = RNG.standard_normal((40, 8)) * 4
    features = np.repeat(middles, 60, axis=0) + RNG.standard_normal((2400, 8)) * 0.3
    model = SoftKVRegressor(path=tmp_path / "s", temperature=0.3, tolerance=0).fit(features, features[:, 0])
    with softkv.open(tmp_path / "s") as db:
        db.build_index(lists=40)
    exact = model.predict(features[:50] + 0.05)
    loose = SoftKVRegressor.from_store(tmp_path / "s", tolerance=0.05)
    assert model.held_.ask(features[:50] + 0.05, k=None, tolerance=0).error_kind == "exact"
    assert "calibrated" in loose.held_.ask(features[:50] + 0.05, k=None, tolerance=0.05).error_kind
    found = loose.predict(features[:50] + 0.05)
    assert not np.array_equal(found, exact)
    assert found == pytest.approx(exact, abs=0.1 * features[:, 0].std())


def test_a_refit_that_fails_leaves_what_was_fitted() -> None:
    """Classes and items go together."""
    model = SoftKVClassifier().fit(X, LABELS)
    with pytest.raises(errors.NotExpressible):
        model.set_params(projection=True, compatibility="dot").fit(X, np.arange(120) % 5)
    assert model.predict(ASKED).tolist() == SoftKVClassifier().fit(X, LABELS).predict(ASKED).tolist()
    with pytest.raises(NotFittedError):
        SoftKVClassifier().predict(X)


def test_samples_are_copied() -> None:
    """What happens to them later is not seen."""
    mine = X.copy()
    model = SoftKVRegressor(temperature=0.3).fit(mine, Y)
    expected = model.predict(ASKED)
    mine += 1
    assert np.array_equal(model.predict(ASKED), expected)


def test_a_path_may_hold_numbers_and_vectors(tmp_path: Path) -> None:
    """Single numbers, several, and vectors in context, each within what the store promises."""
    for name, model, targets in (
        ("n", SoftKVRegressor(temperature=0.3), Y[:, 0]),
        ("v", SoftKVRegressor(temperature=0.3, k=6), Y),
        ("t", SoftKVTransformer(temperature=0.3), None),
    ):
        there = clone(model).set_params(path=tmp_path / name).fit(X, targets)
        ask = "transform" if targets is None else "predict"
        expected = getattr(model.fit(X, targets), ask)(ASKED)
        assert getattr(there, ask)(ASKED) == pytest.approx(expected, abs=1e-4)
        found = type(model).from_store(tmp_path / name, k=model.k)
        assert getattr(found, ask)(ASKED) == pytest.approx(expected, abs=1e-4)
        assert found.n_features_in_ == 3


def test_classes_of_any_type_come_back_from_a_path(tmp_path: Path) -> None:
    """A store knows labels as texts; the estimator gives its own classes."""
    numbers = np.where(X[:, 1] > 0, 30, 7)
    model = SoftKVClassifier(path=tmp_path / "s").fit(X, numbers)
    assert model.classes_.tolist() == [7, 30]
    assert set(model.predict(ASKED).tolist()) <= {7, 30}
    assert model.predict(X).tolist() == SoftKVClassifier().fit(X, numbers).predict(X).tolist()


def test_a_store_of_another_kind_is_refused(tmp_path: Path) -> None:
    """The error names the kind; no answer means something else."""
    SoftKVRegressor(path=tmp_path / "s").fit(X, Y[:, 0])
    with pytest.raises(errors.KindError, match="SoftKVClassifier predicts label"):
        SoftKVClassifier.from_store(tmp_path / "s")
    with pytest.raises(errors.StoreNotFound):
        SoftKVRegressor.from_store(tmp_path / "other")
    remote: Any = RemoteStore(ServerConnection("http://localhost:8001/s", "a-token"), writes=False)
    with remote, softkv.open(tmp_path / "s", "r") as db, db.snapshot() as snapshot:
        for store in (remote, snapshot):
            with pytest.raises(errors.KindError, match=rf"{type(store).__name__}\. Give the directory"):
                SoftKVClassifier.from_store(store)
    for address in ("http://localhost:8001/s", f"ray:{tmp_path / 's'}"):
        with pytest.raises(errors.InputError, match="on this machine"):
            SoftKVRegressor.from_store(address)
        with pytest.raises(errors.InputError, match="on this machine"):
            SoftKVRegressor(path=address).fit(X, Y)


def test_what_a_path_cannot_hold_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """Weights, and ways to compare that have no name."""
    for parameters, given in (
        ({}, {"sample_weight": np.ones(120)}),
        ({"compatibility": lambda q, k: q @ k.T}, {}),
    ):
        with pytest.raises(errors.NotExpressible):
            SoftKVRegressor(path=tmp_path / "s", **parameters).fit(X, Y, **given)
        assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0},
        {"temperature": "warm"},
        {"temperature": True},
        {"temperature": float("nan")},
        {"k": 0},
        {"k": 2.5},
        {"k": True},
        {"projection": "yes"},
        {"compatibility": "nearness"},
        {"compatibility": "laplace", "projection": True},
        {"temperature": 2.0, "projection": True},
        {"tolerance": -1},
        {"tolerance": "small"},
        {"path": 5},
        {"overwrite": 1},
    ],
    ids=str,
)
def test_parameters_that_cannot_be_are_refused(parameters: dict[str, Any]) -> None:
    """They are when it is fitted, as scikit-learn wants it, and by name."""
    model = SoftKVRegressor(**parameters)
    with pytest.raises(errors.InputError):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_sparse_samples_are_refused_clearly() -> None:
    """Softkv compares all features."""
    with pytest.raises(TypeError, match="dense"):
        SoftKVRegressor().fit(scipy.sparse.csr_matrix(X), Y)


def test_too_few_samples_to_learn_from_are_told(tmp_path: Path) -> None:
    """A projection needs some; a temperature falls back to the one by rule."""
    with pytest.raises(errors.InputError, match="at least 20"):
        SoftKVRegressor(projection=True).fit(X[:10], Y[:10])
    assert SoftKVRegressor().fit(X[:10], Y[:10]).temperature_ > 0
    assert SoftKVRegressor().fit(X[:1], Y[:1]).predict(ASKED[:2]) == pytest.approx(Y[[0, 0]])


def test_of_many_samples_some_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many samples a part is asked, and the temperature is about that of all of them."""
    features, targets = make_friedman1(700, noise=0.5, random_state=0)
    every = SoftKVRegressor().fit(features, targets).temperature_
    monkeypatch.setattr(held, "MOST", 400)
    scaled(monkeypatch, pairs=1, sampled=256)
    some = SoftKVRegressor().fit(features, targets).temperature_
    assert some != every
    assert some == pytest.approx(every, rel=0.4)
    learned = SoftKVRegressor(projection=True).fit(features[:600], targets[:600])
    assert learned.score(features[600:], targets[600:]) > 0.8


def test_floats_of_32_bits_stay_what_they_are() -> None:
    """They are compared and transformed in float32."""
    for dtype in (np.float32, np.float64):
        model = SoftKVTransformer(temperature=1.0).fit(X.astype(dtype))
        assert model.transform(ASKED.astype(dtype)).dtype == dtype


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the door says what to type."""
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "softkv.doors.sklearn")
    with pytest.raises(errors.MissingExtra, match=r"needs scikit-learn, .* pip install 'softkv\[sklearn\]'$"):
        importlib.import_module("softkv.doors.sklearn")


@pytest.mark.parametrize("size", [1e-60, 1e-30, 1e-19, 1e19, 1e30, 1e60])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("options", SIZED, ids=str)
def test_features_of_any_size_predict_as_ordinary_ones(size: float, dtype: Any, options: dict[str, Any]) -> None:
    """All three estimators, with a temperature that is chosen or given, or with a projection."""
    if dtype is np.float32 and not 1e-37 < size < 1e37:
        return
    draw = np.random.default_rng(0)
    samples, asked = draw.uniform(-3, 3, (120, 3)), draw.uniform(-3, 3, (20, 3))
    heights, weights = np.sin(samples[:, 0]) + samples[:, 1], draw.uniform(0.5, 2, 120)
    for model, wanted in ((SoftKVRegressor, heights), (SoftKVClassifier, heights > 0), (SoftKVTransformer, None)):
        some = {name: x for name, x in options.items() if model is not SoftKVTransformer or name != "projection"}
        found = []
        for one in (1.0, size):
            squared = one if some.get("compatibility") == "laplace" else one**2
            given = some | ({"temperature": 0.5 * squared} if "temperature" in some else {})
            fitted = model(**given).fit((samples * one).astype(dtype), wanted, sample_weight=weights)
            queries = (asked * one).astype(dtype)
            if model is SoftKVTransformer:
                found.append(fitted.transform(queries) / dtype(one))
            else:
                found.append((fitted.predict_proba if model is SoftKVClassifier else fitted.predict)(queries))
            found.append(fitted.decision_evidence(queries))
            if not some.get("projection"):
                degree = {"cosine": 0, "laplace": 1}.get(some.get("compatibility", "gaussian"), 2)
                found.append(np.array(fitted.temperature_ / one**degree))
        half = len(found) // 2
        for usual, sized in zip(found[:half], found[half:], strict=True):
            np.testing.assert_allclose(sized, usual, rtol=2e-2 if dtype is np.float32 else 1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1e-19, 1e-30, 1e30])
def test_a_path_holds_features_of_any_size(tmp_path: Path, size: float) -> None:
    """What float32 can hold is predicted from a store as from memory; what vanishes there is refused, and not made."""
    draw = np.random.default_rng(0)
    samples, asked = draw.uniform(-3, 3, (120, 3)), draw.uniform(-3, 3, (20, 3))
    heights = np.sin(samples[:, 0]) + samples[:, 1]
    for projection in (False, True):
        memory = SoftKVRegressor(projection=projection).fit(samples, heights).predict(asked)
        kept = SoftKVRegressor(projection=projection, path=tmp_path / f"{projection}").fit(samples * size, heights)
        np.testing.assert_allclose(kept.predict(asked * size), memory, rtol=1e-2, atol=1e-2)
    with pytest.raises(errors.NotFinite, match="Scale the vectors"):
        SoftKVRegressor(path=tmp_path / "gone").fit(samples * 1e-60, heights)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("fails", ["weights", "temperature", "samples", "path"])
@pytest.mark.parametrize("model", [SoftKVRegressor, SoftKVClassifier, SoftKVTransformer])
def test_a_fit_that_fails_leaves_what_was_fitted_before(tmp_path: Path, model: Any, fails: str) -> None:
    """Predictions, attributes and the number of features are those of the fit before; unfitted stays unfitted."""
    wanted = {SoftKVRegressor: Y[:, 0], SoftKVClassifier: LABELS, SoftKVTransformer: None}[model]
    fitted = model(temperature=1.0).fit(X, wanted)
    before, answers = dict(vars(fitted)), fitted.decision_evidence(ASKED)
    weights = None
    for one in (fitted, model()):
        known = dict(vars(one))
        if fails == "weights":
            weights = -np.ones(len(X))
        elif fails == "temperature":
            one.set_params(temperature=-1.0)
        elif fails == "path":
            one.set_params(path=tmp_path / "nowhere" / "s")
        known.update(one.get_params())
        more = np.hstack([X, X])
        with pytest.raises((errors.SoftKVError, ValueError)):
            one.fit(np.full_like(more, np.nan) if fails == "samples" else more, wanted, sample_weight=weights)
        assert vars(one) == known
    assert fitted.n_features_in_ == before["n_features_in_"] == 3
    np.testing.assert_array_equal(fitted.decision_evidence(ASKED), answers)


def test_several_targets_that_float32_would_round_away_are_said_to_be(tmp_path: Path) -> None:
    """Seconds since 1970 are rounded to minutes on a path; a single target is not, nor are any in memory."""
    samples, seconds = np.arange(200.0)[:, None], 1.7e9 + np.arange(200.0)
    both = np.column_stack([seconds, seconds])
    with pytest.warns(TargetsRounded, match="moves them by up to 64"):
        SoftKVRegressor(path=tmp_path / "both", temperature=1.0).fit(samples, both)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftKVRegressor(path=tmp_path / "one", temperature=1.0).fit(samples, seconds)
        SoftKVRegressor(path=tmp_path / "near", temperature=1.0).fit(samples, both - 1.7e9)
        SoftKVRegressor(temperature=1.0).fit(samples, both)


def test_features_that_float32_would_round_away_are_said_to_be(tmp_path: Path) -> None:
    """Seconds since 1970 are, on a path; what is constant or near 0 is not, nor is anything in memory."""
    hour = np.sort(RNG.uniform(0, 3600, 200))
    samples, wanted = np.column_stack([hour + 1.7e9, np.full(200, 0.1), hour]), np.sin(hour / 60)
    with pytest.warns(SamplesRounded, match=r"moves them by up to 6[34].*Subtract their means"):
        SoftKVRegressor(path=tmp_path / "seconds").fit(samples, wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftKVRegressor(path=tmp_path / "near").fit(samples - [1.7e9, 0, 0], wanted)
        SoftKVRegressor(path=tmp_path / "short").fit(samples.astype(np.float32), wanted)
        SoftKVRegressor().fit(samples, wanted)


@pytest.mark.filterwarnings("ignore::softkv.doors.held.SamplesRounded")
def test_the_temperature_is_tuned_by_the_features_that_are_stored(tmp_path: Path) -> None:
    """On a path it is that of features that were rounded before."""
    hour = np.sort(RNG.uniform(0, 3600, 200))
    samples, wanted = hour[:, None] + 1.7e9, np.sin(hour / 60)
    rounded = samples.astype(np.float32).astype(np.float64)
    found = SoftKVRegressor(path=tmp_path / "s").fit(samples, wanted).temperature_
    assert found == SoftKVRegressor(path=tmp_path / "rounded").fit(rounded, wanted).temperature_
    assert found > 2 * SoftKVRegressor().fit(samples, wanted).temperature_
