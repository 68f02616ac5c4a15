"""What a store learns, and how it is asked afterwards: with and without an index, after adds, deletions, compaction."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv import errors
from softkv.database import training

from .databases import count_as_large
from .scales import scaled

ITEMS, WIDTH = 900, 8


def keys_of(seed: int, count: int) -> np.ndarray:
    """Of eight features two matter, and the others are louder."""
    keys = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    keys[:, 2:] *= 3.0
    return keys


def numbers_of(keys: np.ndarray) -> np.ndarray:
    """A wave and a slope."""
    return 100.0 + 10.0 * np.sin(2 * keys[:, 0]) + 5.0 * keys[:, 1]


def labels_of(keys: np.ndarray) -> list[str]:
    """Four quadrants."""
    return [f"{x > 0} {y > 0}" for x, y in keys[:, :2].tolist()]


KEYS, QUERIES = keys_of(0, ITEMS), keys_of(1, 100)


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Few steps."""
    with pytest.MonkeyPatch.context() as patch:
        scaled(patch, steps=60, rehearsed=300)
        yield


@pytest.fixture
def waves(quick: None, tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """Numbers in a store that compares by distance."""
    with softkv.open(tmp_path / "waves.softkv", value="number", compatibility="gaussian") as db:
        db.add([str(n) for n in range(ITEMS)], numbers_of(KEYS), vectors=KEYS)
        yield db
        assert db.check().ok


@pytest.fixture
def quadrants(quick: None, tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """Labels in a store that compares directions."""
    with softkv.open(tmp_path / "quadrants.softkv", value="label", compatibility="cosine") as db:
        db.add([str(n) for n in range(ITEMS)], labels_of(KEYS), vectors=KEYS)
        yield db
        assert db.check().ok


def error_of(db: Any, **options: Any) -> float:
    """The root mean square error for queries that were never in the store."""
    return float(np.sqrt(((np.ravel(db.lookup(QUERIES, **options).value) - numbers_of(QUERIES)) ** 2).mean()))


def share_right(db: Any) -> float:
    """How many queries get their label."""
    answers = db.lookup(QUERIES)
    return float(np.mean([one.label == label for one, label in zip(answers, labels_of(QUERIES), strict=True)]))


def by_hand(db: softkv.SoftKV, asked: np.ndarray = QUERIES) -> np.ndarray:
    """The answers, in float64 from the metric and the items."""
    metric = db._view().learned.metric
    items = list(db.select())
    keys = np.array([item.vector for item in items], np.float64)
    values, queries = np.array([item.value for item in items]), asked.astype(np.float64)
    factors, found = metric.factors.astype(np.float64), []
    for query in queries:
        logits = -0.5 * (((query - keys) @ factors.T) ** 2).sum(1)
        weights = np.exp(logits - logits.max())
        found.append(weights @ values / weights.sum())
    return np.array(found)


def test_what_was_learned_answers_better(waves: softkv.SoftKV) -> None:
    """What was learned answers better than the best temperature alone, as the metric does, within the errors stated."""
    tuned = waves.tune()
    before = error_of(waves)
    fit = waves.fit(planes=False, hold_out=0)
    assert f"(RMSE {fit.loss**0.5:.4g} instead of {fit.before**0.5:.4g}), rank" in str(fit)
    assert f"(RMSE {tuned.loss**0.5:.4g}) for " in str(tuned)
    assert error_of(waves) < 0.6 * before
    assert error_of(waves, projection=False) == before
    assert fit.loss < 0.5 * fit.before
    assert (fit.items, fit.rank, fit.measure, fit.planes) == (ITEMS, WIDTH, "squared error", False)
    found, exact = waves.lookup(QUERIES), by_hand(waves)
    assert (np.abs(np.ravel(found.value) - exact) <= found.error).all()
    assert found.error.max() < 0.01 * waves.info().value_scale
    assert waves.nearest(QUERIES[0]).contributors[0].key == waves.lookup(QUERIES[0], k=1).contributors[0].key
    assert waves.compare(QUERIES[0]).soft.value == pytest.approx(waves.lookup(QUERIES[0]).value)


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("offset", [2000.0, 1.7e9])
def test_features_far_from_zero_are_compared_as_well(tmp_path: Path, offset: float, planes: bool) -> None:
    """Years and times are: what was learned counts from the middle of the keys, and so does the error."""
    rng = np.random.default_rng(3)
    wide = offset / 100
    keys = np.column_stack([offset + wide * rng.random(1500), rng.random(1500)]).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=keys, values=np.sin(6 * (keys[:, 0].astype(float) - offset) / wide) + keys[:, 1])
        db.fit(planes=planes)
        queries = np.column_stack([offset + wide * rng.random(30), rng.random(30)]).astype(np.float32)
        found = db.lookup(queries)
        assert found.error.max() < 0.01 * db.info().value_scale
        if not planes:
            assert (np.abs(found.value - by_hand(db, queries)) <= found.error).all()
        late = keys[:3] + np.float32(50 * wide)
        db.add(vectors=late, values=[0.0, 0.0, 0.0])
        assert (db.lookup(queries).error > found.error).all()


def test_items_that_come_and_go_are_compared_as_learned(waves: softkv.SoftKV) -> None:
    """Added, deleted, filtered, compacted, opened again."""
    waves.fit(planes=False)
    more = keys_of(2, 50)
    waves.add([f"more {n}" for n in range(50)], numbers_of(more), vectors=more, payloads=[{"late": True}] * 50)
    waves.delete([str(n) for n in range(0, 300, 3)])
    expected = by_hand(waves)
    assert np.ravel(waves.lookup(QUERIES).value) == pytest.approx(expected, rel=1e-4)
    late = waves.lookup(QUERIES, where={"late": True})
    assert (late.scored == 50).all()
    waves.compact()
    assert np.ravel(waves.lookup(QUERIES).value) == pytest.approx(expected, rel=1e-4)
    assert np.ravel(waves.lookup(QUERIES, where={"late": True}).value) == pytest.approx(np.ravel(late.value), rel=1e-5)
    with softkv.open(waves.path, "r") as reader:
        assert np.ravel(reader.lookup(QUERIES).value) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["waves", "quadrants"])
def test_an_index_helps_what_was_learned(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are within what they state, by reading a part; not without it, and not for what is learned next."""
    db: softkv.SoftKV = request.getfixturevalue(kind)
    count_as_large(monkeypatch, noted=20)
    db.fit(planes=False)
    db.build_index(lists=30)
    values = numbers_of(QUERIES[:30]) if kind == "waves" else labels_of(QUERIES[:30])
    for _ in range(2):
        found = db.lookup(QUERIES, tolerance=0.7, temperature=5.0)
        exact = db.lookup(QUERIES, tolerance=0, temperature=5.0)
        assert list(np.atleast_1d(found.error_kind)).count("calibrated") in (1, *range(51, 101))
        assert found.scored.mean() < 0.8 * len(db)
        apart = np.linalg.norm((found.value - exact.value).reshape(len(QUERIES), -1), axis=1)
        assert (apart <= found.error).mean() >= 0.92
        db.add(vectors=QUERIES[:30], values=values)
        db.delete([str(n) for n in range(30)] if "5" in db else [])
    assert db._view().index.known > db._view().index.rows
    assert db.lookup(QUERIES[0], tolerance=0.7, projection=False).error_kind == "exact"
    db.fit(planes=False, seed=1)
    assert db.lookup(QUERIES[0], tolerance=0.7).error_kind == "exact"
    assert "projection" in str(db.info().index)
    db.forget_fit()
    assert db.lookup(QUERIES[0], tolerance=0.7).error_kind == "exact"


def test_an_index_for_products_goes_on_without_what_was_learned(
    quadrants: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was built before, and helps who asks without."""
    count_as_large(monkeypatch)
    quadrants.build_index(lists=30)
    quadrants.fit()
    assert quadrants.lookup(QUERIES[0], tolerance=0.7).error_kind == "exact"
    found = quadrants.lookup(QUERIES, tolerance=0.7, projection=False)
    assert "calibrated" in np.atleast_1d(found.error_kind)


def test_planes_are_closer_than_means(waves: softkv.SoftKV) -> None:
    """They are where numbers rise; filters and masks as well; the k best are averaged."""
    fit = waves.fit(planes=True)
    assert fit.planes
    learned = waves._view().learned
    answers = waves.lookup(QUERIES)
    assert error_of(waves) < 0.5 * error_of(waves, projection=False)
    keys = np.array([item.vector for item in waves.select()])
    projected, asked = (learned.metric.projected(x).astype(np.float64) for x in (keys, QUERIES))
    features, numbers = learned.features(keys), numbers_of(KEYS)
    for number in range(5):
        weights = np.exp(-0.5 * ((projected - asked[number]) ** 2).sum(1))
        weights /= weights.sum()
        middle = weights @ features
        rows = np.sqrt(weights)[:, None] * (features - middle)
        slope = np.linalg.solve(
            rows.T @ rows + learned.ridge * np.eye(WIDTH),
            rows.T @ (np.sqrt(weights) * (numbers - weights @ numbers)),
        )
        height = weights @ numbers + slope @ (learned.features(QUERIES[[number]])[0] - middle)
        assert answers[number].value == pytest.approx(height, rel=1e-3)
        left = weights @ (numbers - weights @ numbers - (features - middle) @ slope) ** 2
        assert answers[number].spread == pytest.approx(np.sqrt(left), rel=0.02, abs=1e-3)
    mask = np.ones(ITEMS, np.bool_)
    assert waves.lookup(QUERIES, mask=mask).value == pytest.approx(answers.value)
    assert waves.lookup(QUERIES[0], k=5).value != pytest.approx(waves.lookup(QUERIES[0]).value)


def test_labels_are_learned_and_forgotten(quadrants: softkv.SoftKV) -> None:
    """Distributions, over the labels there are; and as before once it is forgotten."""
    before = quadrants.lookup(QUERIES).value
    plain = share_right(quadrants)
    fit = quadrants.fit()
    assert fit.measure == "log-loss"
    assert share_right(quadrants) > plain + 0.1
    quadrants.forget_fit()
    quadrants.forget_fit()
    assert np.array_equal(quadrants.lookup(QUERIES).value, before)
    assert not list(Path(quadrants.path, "index").iterdir())


def test_queries_with_targets_are_learned_from(quadrants: softkv.SoftKV) -> None:
    """Items are not asked for what they are."""
    asked = keys_of(3, 300)
    fit = quadrants.fit(asked, labels_of(asked))
    assert fit.loss < 0.8 * fit.before


def test_a_metric_that_is_no_better_changes_nothing(quick: None, tmp_path: Path) -> None:
    """Where there is nothing to learn, lookups compare as they were, and it is said."""
    noise = np.random.default_rng(0)
    with softkv.open(tmp_path / "s", value="label", compatibility="gaussian") as db:
        db.add(vectors=noise.standard_normal((300, 20)), values=noise.choice(["a", "b"], 300).tolist())
        db.tune()
        before, commit = db.lookup(np.ones((3, 20))).value, db.info().commit
        fit = db.fit()
        assert not fit.kept
        assert fit.loss >= fit.before
        assert "Nothing has changed" in str(fit)
        assert (db.info().commit, db.info().projection) == (commit, None)
        assert np.array_equal(db.lookup(np.ones((3, 20))).value, before)
        assert db.check().ok


def test_what_is_better_by_rounding_alone_is_not_kept(quick: None, tmp_path: Path) -> None:
    """Keys that are all alike tell nothing."""
    with softkv.open(tmp_path / "s", value="label", compatibility="gaussian") as db:
        db.add(vectors=np.ones((100, 4)), values=["a", "b", "a", "a"] * 25)
        assert not db.fit().kept
        assert db.check().ok


@pytest.mark.parametrize("value", [0.1, 7e6, 1e9 / 7, [7e6, 0.1]])
def test_values_that_are_all_equal_teach_nothing(quick: None, tmp_path: Path, value: Any) -> None:
    """Blends of them differ by rounding alone, so nothing is lost, and nothing is kept."""
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=KEYS[:300], values=[value] * 300)
        fit = db.fit()
        assert (fit.loss, fit.before, fit.kept) == (0.0, 0.0, False)
        assert db.tune().loss == 0.0
        assert db.check().ok


def test_a_query_without_a_direction_is_named(quadrants: softkv.SoftKV) -> None:
    """It is before anything is learned, where directions are compared."""
    asked = keys_of(3, 300)
    asked[17] = 0
    with pytest.raises(errors.ZeroVector, match="query 17"):
        quadrants.fit(asked, labels_of(keys_of(3, 300)))


def test_before_is_what_the_store_would_have_lost(waves: softkv.SoftKV) -> None:
    """It is about what leaving out each item in turn says, as the store compares at its temperature."""
    tuned = waves.tune()
    assert waves.fit(planes=False).before == pytest.approx(tuned.loss, rel=0.35)
    waves.set_temperature(1e6)
    numbers = numbers_of(KEYS)
    assert waves.fit(planes=False).before == pytest.approx(numbers.var(), rel=0.35)


def test_info_says_by_what_lookups_compare(waves: softkv.SoftKV) -> None:
    """What was learned, and at which temperature, until it is forgotten."""
    waves.fit(rank=2, planes=False, hold_out=0)
    info = waves.info()
    assert info.projection == f"rank 2, from {ITEMS} items"
    assert (info.temperature, info.temperature_from) == (1.0, "learned")
    assert waves.lookup(QUERIES[0]).temperature == info.temperature
    waves.forget_fit()
    assert waves.info().projection is None
    assert waves.info().temperature == waves.lookup(QUERIES[0]).temperature != 1.0


def test_labels_that_all_differ_teach_nothing(tmp_path: Path) -> None:
    """No other item could know them, and nothing is remembered."""
    with softkv.open(tmp_path / "s", value="label", compatibility="gaussian") as db:
        db.add(vectors=KEYS[:30], values=[f"label {n}" for n in range(30)])
        before = db.info()
        for learn in (db.tune, db.fit):
            with pytest.raises(errors.InputError, match="no two items share a label"):
                learn()
        assert db.info() == before


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_what_was_learned_and_is_damaged_is_missed(waves: softkv.SoftKV, damage: str) -> None:
    """Lookups by it are refused, with what to do; those without it go on, and learning again mends it."""
    waves.fit(planes=False)
    (file,) = Path(waves.path, "index").iterdir()
    if damage == "missing":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with softkv.open(waves.path, "r") as reader:
        with pytest.raises(errors.IndexDamaged, match="projection=False"):
            reader.lookup(QUERIES[0])
        assert reader.lookup(QUERIES[0], projection=False).error_kind == "exact"
    waves.fit(planes=False)
    assert waves.lookup(QUERIES[0]).error_kind == "exact"


def test_a_tuned_store_remembers_its_temperature(quadrants: softkv.SoftKV) -> None:
    """A store asks by the temperature that it was tuned to, also by another way to compare, and when opened again."""
    tuned = quadrants.tune(compatibility=["cosine", "gaussian"], k=[5, 20])
    assert tuned.measure == "log-loss"
    assert len(tuned.curves) == 6
    assert tuned.loss == min(curve.best[0] for curve in tuned.curves)
    info, full = quadrants.info(), tuned.full
    assert full.k is None
    assert full.best[0] == min(curve.best[0] for curve in tuned.curves if curve.k is None)
    assert (info.temperature, info.compatibility) == (pytest.approx(full.best[1]), full.compatibility)
    assert info.temperature_from.startswith("tuned")
    assert all(f"by {curve.compatibility}" in str(tuned) for curve in tuned.curves if curve.k == 20)
    with softkv.open(quadrants.path, "r") as reader:
        assert reader.lookup(QUERIES[0]).temperature == pytest.approx(full.best[1])


def test_of_ways_that_are_the_same_the_present_one_stays(tmp_path: Path) -> None:
    """Cosine and dot are, on vectors of length 1, but for their rounding."""
    directions = KEYS / np.linalg.norm(KEYS, axis=1, keepdims=True)
    for present in ("dot", "cosine"):
        with softkv.open(tmp_path / present, value="label", compatibility=present) as db:
            db.add(vectors=directions, values=labels_of(KEYS))
            assert db.tune(compatibility=["cosine", "dot"]).compatibility == present
            assert db.info().compatibility == present


def test_a_store_larger_than_is_looked_at_is_sampled(quadrants: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temperature is about the same, dead rows are not asked, and learning draws as many."""
    quadrants.delete([str(n) for n in range(100)])
    whole = quadrants.tune(hold_out=0)
    monkeypatch.setattr(training, "MOST", 500)
    scaled(monkeypatch, pairs=0, sampled=256)
    some = quadrants.tune(hold_out=0)
    assert (whole.asked, whole.sampled, some.asked, some.sampled) == (800, None, 256, 256)
    assert "for 256 of 800 items, each left out; a sample of 256 was enough" in str(some)
    assert "sample" not in str(whole)
    assert 0.5 < some.temperature / whole.temperature < 2.0
    assert quadrants.fit(hold_out=0).items == 500


@pytest.mark.parametrize("offset", [1e7, 1.7e9])
def test_numbers_far_from_zero_are_tuned_alike(tmp_path: Path, offset: float) -> None:
    """A constant that is added to all of them changes neither temperature nor loss, with all items or the k best."""
    found = []
    for name, added in (("near", 0.0), ("far", offset)):
        with softkv.open(tmp_path / name, value="number", compatibility="gaussian") as db:
            db.add(vectors=KEYS, values=numbers_of(KEYS).astype(np.float64) + added)
            found.append(db.tune(k=10, hold_out=0))
    for near, far in zip(found[0].curves, found[1].curves, strict=True):
        assert far.best == pytest.approx(near.best, rel=1e-4)


def test_values_that_were_deleted_do_not_change_what_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted vector of 1e30 in a store larger than is looked at is as if it had never been there."""
    monkeypatch.setattr(training, "MOST", 500)
    with softkv.open(tmp_path / "s", value="vector", compatibility="gaussian") as db:
        db.add([str(n) for n in range(ITEMS)], np.stack([numbers_of(KEYS)] * 2, axis=1), vectors=KEYS)
        db.set_values(["7"], [[1e30, 1e30]])
        db.delete("7")
        there = db.tune(hold_out=0)
        db.compact()
        gone = db.tune(hold_out=0)
        assert there.temperature == pytest.approx(gone.temperature, rel=1e-3)
        assert there.loss == pytest.approx(gone.loss, rel=1e-3)
        assert db.check().ok


def test_texts_are_tuned_by_rule(tmp_path: Path) -> None:
    """Their averages are right for nobody; the rule says how many count."""
    with softkv.open(tmp_path / "s") as db:
        db.add([f"a book about the number {n}" for n in range(40)], [f"it says {n}" for n in range(40)])
        tuned = db.tune()
        assert tuned.measure == "effective number"
        assert db.info().temperature_from.startswith("tuned")
        assert np.median(db.lookup(["the number 7", "a book"]).effective) < 40


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda db: db.tune(compatibility="euclid"), errors.InputError),
        (lambda db: db.tune(compatibility=[]), errors.InputError),
        (lambda db: db.tune(compatibility=5), errors.InputError),
        (lambda db: db.tune(k=2.5), errors.InputError),
        (lambda db: db.tune(k="5"), errors.InputError),
        (lambda db: db.tune(k=np.array(2.5)), errors.InputError),
        (lambda db: db.forecast_index(queries=5), errors.ShapeError),
        (lambda db: db.forecast_index(lists=2.5), errors.InputError),
        (lambda db: db.tune(k=0), errors.InputError),
        (lambda db: db.tune(k=[5, True]), errors.InputError),
        (lambda db: db.fit(rank=9), errors.InputError),
        (lambda db: db.fit(rank=0), errors.InputError),
        (lambda db: db.fit(rank=np.float64(2.0)), errors.InputError),
        (lambda db: db.fit(planes=True), errors.InputError),
        (lambda db: db.fit(QUERIES), errors.InputError),
        (lambda db: db.fit(QUERIES, ["x"] * 100), errors.InputError),
        (lambda db: db.fit(QUERIES[:, :3], labels_of(QUERIES)), errors.ShapeError),
        (lambda db: db.fit(QUERIES, labels_of(QUERIES)[:50]), errors.ShapeError),
        (lambda db: db.lookup(QUERIES[0], projection="yes"), errors.KindError),
    ],
)
def test_mistakes_are_named_and_change_nothing(quadrants: softkv.SoftKV, call: Any, error: type[Exception]) -> None:
    """They are named before anything is written."""
    before = quadrants.info()
    with pytest.raises(error, match=r"expected|planes are for|no item has|has width"):
        call(quadrants)
    assert quadrants.info() == before


def test_counts_may_be_numbers_of_numpy(quadrants: softkv.SoftKV) -> None:
    """They are kept as those of Python are, in files as well."""
    assert quadrants.tune(k=np.int64(5)).k in (None, 5)
    assert quadrants.tune(k=np.array([3, 5], np.int8)).k in (None, 3, 5)
    assert quadrants.fit(rank=np.int32(2)).rank == 2
    quadrants.forget_fit()
    assert quadrants.forecast_index(lists=np.int64(8)).seconds > 0
    assert quadrants.build_index(lists=np.int64(8)).index.lists == 8
    assert quadrants.check().ok


def test_a_temperature_of_vectors_that_are_gone_is_not_remembered(tmp_path: Path) -> None:
    """Items may be embedded anew while they are tuned; a compaction meanwhile leaves them as they are."""

    def lengths(texts: list[str]) -> np.ndarray:
        return np.array([[len(text), text.count("a"), 1.0] for text in texts], np.float32)

    with softkv.open(tmp_path / "s", value="number", embedder=lengths) as db:
        db.update({f"thing {n} {'a' * (n % 7)}": float(n % 12) for n in range(100)})
        tuned = db.tune(progress=lambda *_: db.compact())
        assert db.info().temperature == tuned.temperature
        db.set_temperature(3.0)
        with pytest.raises(errors.StoreError, match="embedded anew while it was tuned"):
            db.tune(progress=lambda *_: db.reembed(lambda texts: lengths(texts)[:, ::-1] ** 2))
        assert (db.info().temperature, db.info().temperature_from) == (3.0, "given, from 100 items")


def test_texts_that_are_all_held_out_are_not_tuned(tmp_path: Path) -> None:
    """None is left that a temperature could be about."""
    with softkv.open(tmp_path / "s") as db:
        db["x"] = "y"
        with pytest.raises(errors.InputError, match="are held out"):
            db.tune(hold_out=0.5)
        assert not db.info().temperature_from.startswith("tuned")
        assert db.tune(hold_out=0.0).items == 1


def test_few_items_teach_nothing(tmp_path: Path) -> None:
    """There is nobody to leave out."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(vectors=KEYS[:10], values=labels_of(KEYS[:10]))
        for learn in (db.tune, db.fit):
            with pytest.raises(errors.InputError, match="at least 20 items"):
                learn()


WRONG_TARGETS: list[tuple[str, Any, type[Exception], str]] = [
    ("number", ["a"] * 30, errors.KindError, "expected targets that are numbers.* got 'a'"),
    ("number", [None] * 30, errors.KindError, "expected targets that are numbers.* got None"),
    ("number", [10**400] * 30, errors.KindError, "expected targets that are numbers"),
    ("number", 3.0, errors.KindError, "expected targets as a list .* got float"),
    ("number", {"a": 1.0}, errors.KindError, "expected targets as a list .* got dict"),
    ("number", iter([1.0] * 30), errors.KindError, "expected targets as a list"),
    ("number", [[1.0]] * 29 + [[1.0, 2.0]], errors.ShapeError, "targets are ragged"),
    ("number", np.ones((30, 3)), errors.ShapeError, r"targets of shape \('queries',\), got \(30, 3\)"),
    ("number", [1.0] * 29, errors.ShapeError, "30 queries and 29 targets"),
    ("number", [float("nan")] * 30, errors.NotFinite, "expected targets within"),
    ("number", [1e200] * 30, errors.NotFinite, "expected targets within"),
    ("vector", [1.0] * 30, errors.ShapeError, r"targets of shape \('queries', 2\), got \(30,\)"),
    ("vector", ["a"] * 30, errors.KindError, "expected targets that are vectors.* got 'a'"),
    ("label", [1.0] * 30, errors.KindError, "expected labels, which are texts, as targets, got 1.0"),
    ("label", [{}] * 30, errors.KindError, "expected labels, which are texts, as targets"),
    ("label", ["True True"] * 29 + ["nowhere"], errors.InputError, "no item has the label 'nowhere'"),
    ("label", np.array(["True True"] * 29 + ["nowhere"]), errors.InputError, "no item has the label 'nowhere'"),
    ("label", np.array(["nowhere"] * 30), errors.InputError, "such as 'nowhere'"),
]


@pytest.mark.parametrize(("kind", "targets", "error", "said"), WRONG_TARGETS)
def test_wrong_targets_are_named_before_anything_is_learned(
    tmp_path: Path, kind: str, targets: Any, error: type[Exception], said: str
) -> None:
    """Kind, width, number or size may be wrong, in `fit` as in `evaluate`; the store stays as it was."""
    values = {"number": numbers_of(KEYS), "vector": KEYS[:, :2], "label": labels_of(KEYS)}[kind]
    with softkv.open(tmp_path / "a", value=kind, compatibility="gaussian") as db:
        db.add(vectors=KEYS, values=values)
        with pytest.raises(error, match=said):
            db.fit(QUERIES[:30], targets)
        if kind != "label" or not isinstance(targets[0], str):
            with pytest.raises(error, match=said.replace("queries and", "queries,")):
                db.evaluate(QUERIES[:30], targets)
        assert db.info().projection is None


def test_targets_that_are_vectors_are_compared_with_values_as_they_are(tmp_path: Path, quick: None) -> None:
    """Where the mean of the values is far from zero, queries that are the items learn what the items learn."""
    with softkv.open(tmp_path / "a", compatibility="gaussian") as db:
        values = np.stack([numbers_of(KEYS), -numbers_of(KEYS)], axis=1) + 1000.0
        db.add(vectors=KEYS, values=values)
        alone, asked = db.fit(), db.fit(KEYS + np.float32(1e-3), values)
        assert asked.loss < 2 * alone.loss


def test_targets_far_beyond_the_values_teach_nothing(tmp_path: Path, quick: None) -> None:
    """Targets of 1e30 for numbers near 100: nothing overflows, and nothing is better."""
    with softkv.open(tmp_path / "a", compatibility="gaussian") as db:
        db.add(vectors=KEYS, values=numbers_of(KEYS))
        fitted = db.fit(QUERIES, [1e30] * len(QUERIES))
        assert not fitted.kept
        assert fitted.loss == pytest.approx(1e60, rel=1e-3)


@pytest.mark.parametrize("ask", ["lookup", "nearest", "compare", "self_attention"])
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_a_store_that_has_learned_nothing_cannot_compare_as_it_has_learned(
    ask: str, temperature: float | None, tmp_path: Path
) -> None:
    """To ask for it by name is refused in words."""
    with softkv.open(tmp_path / "s", value="number") as db:
        db.add(vectors=[[1.0, 2.0], [2.0, 1.0]], values=[1.0, 2.0])
        query = [] if ask == "self_attention" else [[1.0, 2.0]]
        options: dict[str, Any] = {} if ask in ("nearest", "compare") else {"temperature": temperature}
        with pytest.raises(errors.NotExpressible, match="has learned no way to compare"):
            getattr(db, ask)(*query, compatibility="learned", **options)
