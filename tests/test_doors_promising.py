"""Promises of scikit-learn estimators: known samples, intervals and sets, in the shapes of MAPIE."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.sklearn import SoftKVClassifier, SoftKVRegressor
from softkv.errors import InputError, KindError

from .test_guarding import labels_of, numbers_of, spots, store_of

FIT, OTHERS, ASKED = spots(0, 600), spots(1, 400), spots(2, 1000)


def test_intervals_hold_targets_as_often_as_promised() -> None:
    """Two levels hold at once; the predictions are those of `predict`."""
    model = SoftKVRegressor().fit(FIT, numbers_of(FIT)).conformalize(OTHERS, numbers_of(OTHERS))
    found, intervals = model.predict_interval(ASKED, [0.8, 0.95])
    assert (found == model.predict(ASKED)).all()
    assert intervals.shape == (1000, 2, 2)
    truth = numbers_of(ASKED)[:, None]
    held = ((intervals[:, 0] <= truth) & (truth <= intervals[:, 1])).mean(0)
    assert 0.73 < held[0] < 0.87
    assert 0.91 < held[1] < 0.99
    assert (np.diff(intervals, axis=1)[:, 0] > 0).all()


def test_a_level_is_needed() -> None:
    """An error says so, for intervals and for sets."""
    numbers = SoftKVRegressor().fit(FIT, numbers_of(FIT)).conformalize(OTHERS, numbers_of(OTHERS))
    labels = SoftKVClassifier().fit(FIT, labels_of(FIT)).conformalize(OTHERS, labels_of(OTHERS), wrong_at_most=0.1)
    for told in (numbers.predict_interval, labels.predict_set):
        with pytest.raises(InputError, match="one or more confidence levels"):
            told(ASKED, [])


def test_sets_hold_labels_as_often_as_promised() -> None:
    """None is empty; the predictions are those of `predict`."""
    model = SoftKVClassifier().fit(FIT, labels_of(FIT)).conformalize(OTHERS, labels_of(OTHERS), wrong_at_most=0.1)
    found, sets = model.predict_set(ASKED)
    assert found.tolist() == model.predict(ASKED).tolist()
    assert sets.shape == (1000, 4, 1)
    places = np.searchsorted(model.classes_, labels_of(ASKED))
    assert sets[np.arange(1000), places, 0].mean() > 0.87
    assert sets.any(1).all()
    wrong = np.array(labels_of(ASKED)) != found
    assert wrong[model.predict_known(ASKED)].mean() < 0.1
    assert not model.predict_known([[60.0, 60.0]])[0]


def test_on_a_path_it_is_the_same_as_in_memory(tmp_path: Path) -> None:
    """The guard is the estimator's own, and the store has none."""
    labels = labels_of(FIT)
    inside = SoftKVClassifier().fit(FIT, labels).conformalize(OTHERS, labels_of(OTHERS), wrong_at_most=0.1)
    onto = SoftKVClassifier(path=tmp_path / "s").fit(FIT, labels)
    onto.conformalize(OTHERS, labels_of(OTHERS), wrong_at_most=0.1)
    assert (inside.predict_known(ASKED) == onto.predict_known(ASKED)).mean() > 0.995
    assert (inside.predict_set(ASKED)[1] == onto.predict_set(ASKED)[1]).mean() > 0.995
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.info().guard is None


def test_a_store_brings_its_guard(tmp_path: Path) -> None:
    """There is nothing to calibrate then."""
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        db.add(vectors=FIT, values=numbers_of(FIT))
        db.tune()
        db.guard()
        expected = db.lookup(ASKED)
    model = SoftKVRegressor.from_store(tmp_path / "s")
    assert model.predict_known(ASKED).tolist() == expected.known.tolist()
    assert model.predict_interval(ASKED)[1][:, :, 0] == pytest.approx(expected.interval(0.9))


def test_without_a_guard_nothing_is_promised() -> None:
    """Nothing is promised without a guard, with too few samples, or as an interval of several outputs."""
    model = SoftKVRegressor().fit(FIT, numbers_of(FIT))
    with pytest.raises(InputError, match="conformalize"):
        model.predict_known(ASKED)
    few = r"79 samples that `fit` has not seen, of which a fourth.*got 78\. Give more, or.*confidence=None.*takes 26\."
    with pytest.raises(InputError, match=few):
        model.conformalize(OTHERS[:78], numbers_of(OTHERS)[:78])
    assert model.conformalize(OTHERS[:79], numbers_of(OTHERS)[:79]).guard_
    with pytest.raises(InputError, match=r"at least 26 samples.*on average, got 25\. Give more, or ask for less\.$"):
        model.conformalize(OTHERS[:25], numbers_of(OTHERS)[:25], confidence=None)
    assert model.conformalize(OTHERS[:26], numbers_of(OTHERS)[:26], confidence=None).guard_
    with pytest.raises(InputError, match="at least 74 samples that `fit` has not seen, which it takes"):
        SoftKVClassifier().fit(FIT, labels_of(FIT)).conformalize(OTHERS[:73], labels_of(OTHERS)[:73])
    double = SoftKVRegressor().fit(FIT, FIT).conformalize(OTHERS, OTHERS)
    with pytest.raises(KindError, match="radius"):
        double.predict_interval(ASKED)


@pytest.mark.parametrize("where", ["memory", "path"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_that_were_fitted_calibrate_nothing(tmp_path: Path, where: str, dtype: Any) -> None:
    """Intervals are those of the others, whatever their targets; where too few are left it is refused."""
    fit, wanted = FIT.copy(), numbers_of(FIT)
    fit[0] = 0.0
    model = SoftKVRegressor(path=tmp_path / "s" if where == "path" else None).fit(fit, wanted)
    again = np.where(fit == 0.0, -0.0, fit).astype(dtype)
    with pytest.raises(InputError, match=r"not seen \(it has seen 600 others\), of which.*got 0\."):
        model.conformalize(again, wanted)
    expected = model.conformalize(OTHERS.astype(dtype), numbers_of(OTHERS)).predict_interval(ASKED)[1]
    mixed, targets = np.concatenate([again, OTHERS.astype(dtype)]), np.concatenate([wanted + 1e6, numbers_of(OTHERS)])
    assert model.conformalize(mixed, targets).predict_interval(ASKED)[1] == pytest.approx(expected, rel=1e-4)
    assert model.guard_.found["left_out"] == 600
    assert "of 300 samples are known" in str(model.guard_)
    assert str(model.guard_).endswith("600 more are items, or have the vector of one, and were left out")


def test_other_predictions_than_were_calibrated_promise_nothing(tmp_path: Path) -> None:
    """Another fit, another k, and another temperature of the store do; what only `fit` reads may be set."""
    wanted = numbers_of(FIT)
    model = SoftKVRegressor(k=50).fit(FIT, wanted).conformalize(OTHERS, numbers_of(OTHERS))
    model.set_params(temperature=9.0).predict_interval(ASKED)
    with pytest.raises(InputError, match=r"'k': 50.*as calibrated, got .*'k': 1,"):
        model.set_params(k=1).predict_interval(ASKED)
    with pytest.raises(InputError, match="conformalize"):
        model.fit(FIT + 40.0, wanted).predict_interval(ASKED)
    store_of(tmp_path / "s", "number").close()
    model = SoftKVRegressor.from_store(tmp_path / "s").conformalize(OTHERS, numbers_of(OTHERS))
    with softkv.open(tmp_path / "s") as db:
        db.set_temperature(3.0)
    with pytest.raises(InputError, match="as calibrated, got"):
        model.predict_known(ASKED)


@pytest.mark.parametrize("change", ["replaced", "replaced and compacted", "other store", "other compatibility"])
def test_items_that_others_take_the_place_of_promise_nothing(tmp_path: Path, change: str) -> None:
    """The store at the path has as many items as before, and is asked at the same temperature."""
    labels = labels_of(FIT)
    model = SoftKVClassifier(path=tmp_path / "s", temperature=1.0).fit(FIT, labels)
    model.conformalize(OTHERS, labels_of(OTHERS), wrong_at_most=0.1).predict_set(ASKED)
    if change == "other store":
        SoftKVClassifier(path=tmp_path / "s", temperature=1.0, overwrite=True).fit(FIT[::-1], labels[::-1])
    with softkv.open(tmp_path / "s") as db:
        if change == "other compatibility":
            db.tune(compatibility="laplace")
        elif change != "other store":
            db.delete([f"#{number}" for number in range(1, 61)])
            db.add(vectors=FIT[:60], values=labels[:1] * 60)
        if "compacted" in change:
            db.compact()
    with pytest.raises(InputError, match=r"60 of 600 changed|as calibrated, got"):
        model.predict_set(ASKED)


def test_levels_come_in_the_order_in_which_they_are_asked_for() -> None:
    """A single one has an axis as well, as those of MAPIE have."""
    model = SoftKVRegressor().fit(FIT, numbers_of(FIT)).conformalize(OTHERS, numbers_of(OTHERS))
    narrow, wide = (model.predict_interval(ASKED, level)[1] for level in (0.5, 0.9))
    both = model.predict_interval(ASKED, (0.9, 0.5))[1]
    assert narrow.shape == (1000, 2, 1)
    assert (both == np.concatenate([wide, narrow], axis=2)).all()
    one, several = (SoftKVClassifier().fit(FIT, labels_of(FIT)) for _ in range(2))
    for each in (one, several):
        each.conformalize(OTHERS, labels_of(OTHERS), wrong_at_most=0.1)
    sets = several.predict_set(ASKED, [0.99, 0.8])[1]
    assert sets.dtype == np.bool_
    assert (sets[:, :, 1:] == one.predict_set(ASKED, 0.8)[1]).all()
    assert (sets[:, :, 0] >= sets[:, :, 1]).all()


def test_classes_are_known_by_what_they_are_and_not_by_how_they_are_written() -> None:
    """1.0 is 1, and a store's labels are texts."""
    places = {name: number for number, name in enumerate(sorted(set(labels_of(FIT))))}
    fit, others = ([places[one] for one in labels_of(some)] for some in (FIT, OTHERS))
    model = SoftKVClassifier().fit(FIT, fit)
    sets = [
        model.conformalize(OTHERS, given, wrong_at_most=0.1).predict_set(ASKED)[1]
        for given in (others, np.array(others, np.float64), np.array(others)[:, None])
    ]
    assert all((one == sets[0]).all() for one in sets)


@pytest.mark.parametrize(
    "given",
    [numbers_of(OTHERS)[:-1], np.where(np.arange(400) == 7, np.nan, 1.0), np.zeros((2, 200)), 1.0],
    ids=["few", "nan", "wide", "one"],
)
def test_targets_that_do_not_go_with_the_samples_are_refused(given: object) -> None:
    """Their shape is refused, and numbers that are not finite; of labels, how many there are."""
    model = SoftKVRegressor().fit(FIT, numbers_of(FIT))
    with pytest.raises(InputError, match="expected finite targets of shape"):
        model.conformalize(OTHERS, given)
    with pytest.raises(InputError, match="a label for each of 400 samples, got 399"):
        SoftKVClassifier().fit(FIT, labels_of(FIT)).conformalize(OTHERS, labels_of(OTHERS)[:-1])


def test_a_store_that_changes_below_an_estimator_promises_nothing(tmp_path: Path) -> None:
    """A tenth of its items may; not more, no label that is new, and nothing that was learned since."""
    model = SoftKVClassifier(path=tmp_path / "s").fit(FIT, labels_of(FIT))
    model.conformalize(OTHERS, labels_of(OTHERS), wrong_at_most=0.1)
    before = model.predict_set(ASKED)[1]
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=spots(7, 50), values=labels_of(spots(7, 50)))
        assert (model.predict_set(ASKED)[1] == before).mean() > 0.98
        db.add(vectors=[[30.0, 30.0]], values=["new"])
        with pytest.raises(KindError, match=r"'new'.*from_store"):
            model.predict_set([[30.0, 30.0]])
        db.add(vectors=spots(8, 50), values=labels_of(spots(8, 50)))
    with pytest.raises(InputError, match="101 of 600 changed"):
        model.predict_set(ASKED)
    with store_of(tmp_path / "t", "number") as db:
        db.fit(rank=1)
        model = SoftKVRegressor.from_store(tmp_path / "t").conformalize(OTHERS, numbers_of(OTHERS))
        assert db.fit(rank=2).kept
    with pytest.raises(InputError, match=r"'projection'.*as calibrated, got"):
        model.predict_interval(ASKED)
