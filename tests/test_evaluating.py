"""Evaluations: every measure from lookups made one by one, with scikit-learn; and nothing chosen by the queries."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import metrics
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

import softkv
from softkv.database import SoftKV
from softkv.database.evaluating import Evaluation, Way, evaluate
from softkv.errors import InputError, KindError, NotFinite, ShapeError

from .databases import count_as_large
from .test_guarding import labels_of, numbers_of, spots
from .test_guarding import store_of as guarded_store_of

WAYS = ["exact", "hard", "mean of 3", "top 3", "full soft"]
NAMES = np.array(["red", "green", "blue"])


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors around three centres, and which one."""
    rng = np.random.default_rng([7, seed])
    codes = rng.integers(0, 3, count)
    return (3 * np.eye(4)[codes] + 1.5 * rng.standard_normal((count, 4))).astype(np.float32), codes


def store_of(path: Path, kind: str) -> tuple[SoftKV, np.ndarray, Any]:
    """A store of sixty items, one deleted and one replaced, with the vectors and values that are left."""
    vectors, codes = points(61, 0)
    values: Any = NAMES[codes] if kind == "label" else (vectors[:, :2] if kind == "vector" else vectors @ np.arange(4))
    db = softkv.open(path, value=kind, compatibility="gaussian")
    db.add([f"item {place}" for place in range(61)], list(values), vectors=vectors)
    db.delete("item 60")
    return db, vectors[:60], values[:60]


def by_name(found: Evaluation) -> dict[str, Way]:
    """The ways by their names."""
    return {one.way: one for one in found.ways}


def test_abstention_goes_by_masses_that_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the k best that an index proposes are not, so all items are asked for them."""
    db, _, _ = store_of(tmp_path / "s", "label")
    (queries, codes), (strangers, _) = points(50, 1), points(20, 2)
    with db:
        options: dict[str, Any] = {"out_of_scope": strangers + 3, "k": 3}
        targets = NAMES[codes].tolist()
        exact = by_name(evaluate(db, queries, targets, **options))["top 3"]
        count_as_large(monkeypatch)
        db.build_index("hnsw")
        found = by_name(evaluate(db, queries, targets, **options))["top 3"]
        assert found.routes == {"proposed": 50}
        assert (found.auroc, found.accuracy) == (pytest.approx(exact.auroc), pytest.approx(exact.accuracy, abs=0.1))
        assert len(found.abstention) == len(exact.abstention)


def test_ways_say_how_they_were_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many queries by each route, and why most were scanned, where a scan is not a matter of course."""
    db, _, _ = store_of(tmp_path / "s", "label")
    queries, codes = points(50, 1)
    with db:
        plain = by_name(evaluate(db, queries, NAMES[codes].tolist(), k=3))
        assert plain["full soft"].routes == {"scan": 50}
        assert plain["full soft"].scanned is None
        assert (plain["exact"].routes, plain["exact"].rows_read) == ({}, None)
        assert plain["mean of 3"].rows_read == plain["full soft"].rows_read == len(db) + db.info().dead_rows
        count_as_large(monkeypatch)
        told = by_name(evaluate(db, queries, NAMES[codes].tolist(), k=3))
        assert told["hard"].scanned == "tolerance 0 asks for all items"
        assert told["full soft"].scanned == "there is no index; `softkv index build`"
        assert told["full soft"].accuracy == plain["full soft"].accuracy


def test_labels_are_measured_in_every_way(tmp_path: Path) -> None:
    """They agree with scikit-learn's neighbours and measures, query by query."""
    db, vectors, values = store_of(tmp_path / "s", "label")
    queries, codes = points(50, 1)
    queries[:5], codes[:5] = vectors[:5], [int(np.flatnonzero(one == NAMES)[0]) for one in values[:5]]
    targets = NAMES[codes].tolist()
    with db:
        found = evaluate(db, queries, targets, k=3)
        ways = by_name(found)
        assert [one.way for one in found.ways] == WAYS
        assert (found.kind, found.items, found.queries, found.out_of_scope) == ("label", 60, 50, 0)
        assert (ways["exact"].answered, ways["exact"].accuracy) == (0.1, 0.1)
        for name, k in (("hard", 1), ("mean of 3", 3)):
            oracle = KNeighborsClassifier(k).fit(vectors, values)
            shares = oracle.predict_proba(queries).astype(np.float32)
            order = [list(oracle.classes_).index(one) for one in targets]
            expected = metrics.log_loss(order, shares, labels=range(3))
            assert ways[name].log_loss == pytest.approx(expected, rel=1e-4)
        answers = [db.lookup(query) for query in queries]
        shares = np.array([one.value for one in answers])
        right = [one.label == target for one, target in zip(answers, targets, strict=True)]
        assert ways["full soft"].accuracy == np.mean(right)
        order = [answers[0].labels.index(one) for one in targets]
        assert ways["full soft"].log_loss == pytest.approx(-np.log(shares[range(50), order]).mean(), rel=1e-5)
        top = [db.lookup(query, k=3).label == target for query, target in zip(queries, targets, strict=True)]
        assert ways["top 3"].accuracy == np.mean(top)
        assert ways["hard"].accuracy == np.mean(
            [db.nearest(q).label == t for q, t in zip(queries, targets, strict=True)]
        )
        gaps = [abs(sure - hits) for sure, hits in ways["full soft"].reliability]
        assert 0 < (ways["full soft"].calibration_error or 0) <= max(gaps)
        assert ways["full soft"].abstention[-1] == (1.0, pytest.approx(1 - np.mean(right)))
        assert db.check().ok


def test_what_is_out_of_scope_is_told_by_log_mass(tmp_path: Path) -> None:
    """It is told as well as scikit-learn counts; the mean of the k best has no say."""
    db, _, _ = store_of(tmp_path / "s", "label")
    queries, codes = points(30, 2)
    strangers = queries[:20] + 4
    with db:
        ways = by_name(evaluate(db, queries, NAMES[codes].tolist(), out_of_scope=strangers, k=3))
        log_mass = [db.lookup(query).log_mass for query in [*queries, *strangers]]
        expected = metrics.roc_auc_score(np.repeat([1, 0], [30, 20]), log_mass)
        assert ways["full soft"].auroc == pytest.approx(expected, rel=1e-12)
        assert expected > 0.6
        assert (ways["mean of 3"].auroc, ways["exact"].auroc) == (None, None)
        assert db.check().ok


def likelihood(left_out: Any, values: Any, answers: Any, targets: Any, scale: float) -> float:
    """The log-likelihood of targets, spreads widened by the factor and the floor that suit the items left out best."""
    best: tuple[float, float, float] = (-math.inf, 0.0, 0.0)
    for halvings in range(11):
        spreads = np.hypot(left_out[1], scale / 2**halvings)
        factor = np.sqrt(np.mean(np.square((values - left_out[0]) / spreads)))
        fits = norm.logpdf(values, left_out[0], factor * spreads).mean()
        best = max(best, (fits, factor, scale / 2**halvings))
    spreads = [best[1] * math.hypot(one.spread, best[2]) for one in answers]
    return float(norm.logpdf(targets, [one.value for one in answers], spreads).mean())


def test_numbers_are_measured_in_every_way(tmp_path: Path) -> None:
    """RMSE by scikit-learn; the likelihood with a factor that is found on items, each left out by hand."""
    db, vectors, values = store_of(tmp_path / "s", "number")
    queries, _ = points(40, 3)
    targets = queries @ np.arange(4) + 0.5
    with db:
        ways = by_name(evaluate(db, queries, targets, k=3))
        for name, k in (("hard", 1), ("mean of 3", 3)):
            oracle = KNeighborsRegressor(k).fit(vectors, values)
            assert ways[name].rmse == pytest.approx(
                metrics.root_mean_squared_error(targets, oracle.predict(queries)), rel=1e-5
            )
        assert (ways["exact"].answered, ways["exact"].rmse, ways["hard"].accuracy) == (0.0, None, None)
        others = [db.lookup(vectors[place], mask=np.arange(60) != place) for place in range(60)]
        left_out = [np.array([getattr(one, name) for one in others]) for name in ("value", "spread")]
        answers = [db.lookup(query) for query in queries]
        expected = likelihood(left_out, values, answers, targets, db.info().value_scale)
        assert ways["full soft"].log_likelihood == pytest.approx(expected, rel=1e-4)
        # A hard answer has no spread of its own, and gets that of all items that were left out.
        assert ways["hard"].log_likelihood is not None
        assert ways["hard"].log_likelihood > -10
        assert [level for level, _ in ways["full soft"].reliability][-1] == 0.95
        assert db.check().ok


def test_vectors_have_an_rmse(tmp_path: Path) -> None:
    """The root of the mean squared distance, and no likelihood."""
    db, _, _ = store_of(tmp_path / "s", "vector")
    queries, _ = points(20, 4)
    with db:
        ways = by_name(evaluate(db, queries, queries[:, :2], k=3))
        apart = [np.linalg.norm(db.lookup(query).value - query[:2]) for query in queries]
        assert ways["full soft"].rmse == pytest.approx(np.sqrt(np.mean(np.square(apart))), rel=1e-5)
        assert ways["full soft"].log_likelihood is None
        assert db.check().ok


def test_what_was_learned_is_one_more_way(tmp_path: Path) -> None:
    """Measured as a plain lookup answers; left out where it is not wanted, or there is none."""
    db, _, _ = store_of(tmp_path / "s", "label")
    queries, codes = points(40, 5)
    targets = NAMES[codes].tolist()
    with db:
        db.set_temperature(50.0)  # which leaves much to be learned
        before = by_name(evaluate(db, queries, targets, k=3))
        assert db.fit(rank=2).kept
        found = evaluate(db, queries, targets, k=3, temperatures=[0.5, 1.0])
        ways = by_name(found)
        assert list(ways) == [*WAYS, "learned"]
        shares = db.lookup(queries)
        assert ways["learned"].accuracy == np.mean([a == b for a, b in zip(shares.label, targets, strict=True)])
        assert {name: ways[name].log_loss for name in WAYS} == {name: before[name].log_loss for name in WAYS}
        assert ways["learned"].warmth[1] == (1.0, pytest.approx(1 - (ways["learned"].accuracy or 0)))
        assert [len(one.warmth) for one in found.ways] == [0, 0, 0, 0, 2, 2]
        assert list(by_name(evaluate(db, queries, targets, k=3, projection=False))) == WAYS
        assert db.check().ok


def test_numbers_that_are_read_off_planes_are_measured_so(tmp_path: Path) -> None:
    """The learned way has the values of a plain lookup, and a width that suits planes."""
    db, _, _ = store_of(tmp_path / "s", "number")
    queries, _ = points(30, 6)
    targets = queries @ np.arange(4)
    with db:
        assert db.fit(planes=True).planes
        ways = by_name(evaluate(db, queries, targets, k=3))
        assert ways["learned"].rmse == pytest.approx(
            metrics.root_mean_squared_error(targets, db.lookup(queries).value), rel=1e-9
        )
        assert (ways["learned"].rmse or 0) < (ways["full soft"].rmse or 0) / 2
        assert (ways["learned"].log_likelihood or 0) > (ways["full soft"].log_likelihood or 0)
        assert db.check().ok


def test_texts_are_asked_by_their_embedding_and_found_by_their_key(tmp_path: Path) -> None:
    """A text that is a key is there for the exact way."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(["a red apple", "a blue car", "a ripe pear"], ["fruit", "thing", "fruit"])
        asked = ["a green apple", "a blue car"]
        seen: list[tuple[str, int, int]] = []
        found = evaluate(
            db, asked, ["fruit", "thing"], k=2, out_of_scope=["good morning"], progress=lambda *all: seen.append(all)
        )
        assert (by_name(found)["exact"].answered, by_name(found)["full soft"].accuracy) == (0.5, 1.0)
        assert seen[:2] == [("hard", 2, 2), ("hard, out of scope", 1, 1)]
        assert str(found).splitlines()[0].split() == [
            "way",
            "temperature",
            "answered",
            "accuracy",
            "log",
            "loss",
            "calibration",
            "error",
            "auroc",
        ]
        assert found.to_dict()["ways"][0]["way"] == "exact"
        assert db.check().ok


@pytest.mark.parametrize(
    ("kind", "queries", "targets", "error", "said"),
    [
        ("label", np.ones((2, 4)), ["red"], ShapeError, "2 queries, 1 targets"),
        ("label", np.ones((0, 4)), [], ShapeError, "0 queries"),
        ("label", np.ones(4), ["red"], ShapeError, "many queries"),
        ("label", np.ones((1, 3)), ["red"], ShapeError, "width 3"),
        ("label", np.ones((1, 4)), ["pink"], InputError, "'pink'"),
        ("label", np.ones((1, 4)), [1], KindError, "got 1"),
        ("number", np.ones((1, 4)), ["red"], KindError, "numbers"),
        ("number", np.ones((1, 4)), [np.nan], NotFinite, "NaN"),
        ("number", np.ones((1, 4)), [[1.0]], ShapeError, r"\(1, 1\)"),
        ("vector", np.ones((1, 4)), [[1.0]], ShapeError, r"\('queries', 2\)"),
    ],
)
def test_what_cannot_be_measured_is_named(
    tmp_path: Path, kind: str, queries: Any, targets: Any, error: type[Exception], said: str
) -> None:
    """Queries without a target each, or targets of another kind."""
    db, _, _ = store_of(tmp_path / "s", kind)
    with db, pytest.raises(error, match=said):
        evaluate(db, queries, targets)


def test_texts_as_values_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    """Texts as values are neither right nor wrong, so there is nothing to measure."""
    with softkv.open(tmp_path / "s") as db:
        db["a boat"] = "It floats."
        with pytest.raises(KindError, match="neither right nor wrong"):
            evaluate(db, ["a ship"], ["It floats."])


@pytest.mark.parametrize("kind", ["number", "vector"])
def test_the_exact_way_has_no_error_of_the_few_that_it_answered(tmp_path: Path, kind: str) -> None:
    """It would be 0, beside ways that answer all queries; where it answers all, it has one."""
    db, vectors, values = store_of(tmp_path / "s", kind)
    with db:
        ways = by_name(evaluate(db, np.concatenate([vectors[:5], vectors[5:20] + 1]), values[:20] + 0.5, k=3))
        assert (ways["exact"].answered, ways["exact"].rmse) == (0.25, None)
        assert ways["hard"].rmse is not None
        ways = by_name(evaluate(db, vectors[:20], values[:20] + 0.5, k=3))
        expected = 0.5 * math.sqrt(np.size(values[0]))
        assert (ways["exact"].answered, ways["exact"].rmse) == (1.0, pytest.approx(expected, rel=1e-5))


@pytest.mark.parametrize("kind", ["label", "number"])
def test_the_way_that_a_guard_is_about_says_what_is_known(tmp_path: Path, kind: str) -> None:
    """How many queries and strangers are known, and of labels how many of these wrong; the other ways say nothing."""
    asked, strangers = spots(70, 300), spots(71, 80) + 40.0
    with guarded_store_of(tmp_path / "s", kind) as db:
        aims: Any = labels_of(asked) if kind == "label" else numbers_of(asked)
        bare = db.evaluate(asked, aims, out_of_scope=strangers)
        db.guard(wrong_at_most=0.2)
        found, answers = by_name(db.evaluate(asked, aims, out_of_scope=strangers)), db.lookup(asked)
        assert found["full soft"].known == answers.known.mean()
        assert found["full soft"].strangers_known == db.lookup(strangers).known.mean() < 0.5
        wrong = None if kind == "number" else (np.array(answers.label) != aims)[answers.known].mean()
        assert found["full soft"].wrong_known == wrong
    assert {
        (one.known, one.wrong_known, one.strangers_known) for name, one in found.items() if name != "full soft"
    } == {(None, None, None)}
    assert "known" not in bare.measures
