"""Lookups of labels by an index, however many there are: within what they state of the full softmax in float64."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import lists
from softkv.maths.shares import PARTS
from tests import reference
from tests.crash.hostile.indexes import lists as altered

from .databases import count_as_large

ITEMS, WIDTH, ASKED = 3000, 12, 200
CASES = [(2, "dot"), (77, "gaussian"), (1024, "cosine"), (5000, "gaussian")]
WARMTHS = (0.3, 1.0, 3.0, 7.0)


@pytest.fixture(autouse=True, scope="module")
def large() -> Iterator[None]:
    """Stores count as large from the first item on."""
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=400)
        yield


def keys_of(rng: np.random.Generator, count: int) -> np.ndarray:
    """Keys in clusters of different sizes."""
    centres = np.random.default_rng(7).standard_normal((40, WIDTH))
    chosen = rng.choice(40, count, p=(weights := 1 / np.arange(1, 41)) / weights.sum())
    return (centres[chosen] + 0.5 * rng.standard_normal((count, WIDTH))).astype(np.float32)


def labels_of(rng: np.random.Generator, keys: np.ndarray, labels: int) -> list[str]:
    """A few labels are frequent and most are rare; which ones depends on where a key lies, but for a fifth of them."""
    shift = (np.tanh(keys @ np.random.default_rng(8).standard_normal(WIDTH)) * labels / 3).astype(np.int64)
    codes = (shift + (labels * rng.random(len(keys)) ** 4).astype(np.int64)) % labels
    codes = np.where(rng.random(len(keys)) < 0.2, rng.integers(0, labels, len(keys)), codes)
    return [f"label {code}" for code in codes]


def truth(
    keys: np.ndarray, given: list[str], names: Sequence[str], queries: np.ndarray, compatibility: str, warmth: float
) -> np.ndarray:
    """The distributions of the full softmax in float64, (b, p), at a temperature."""
    k, q = keys.astype(np.float64), queries.astype(np.float64)
    scores = q @ k.T
    if compatibility == "gaussian":
        scores = scores - 0.5 * (k * k).sum(1) - 0.5 * (q * q).sum(1)[:, None]
    if compatibility == "cosine":
        scores = scores / np.linalg.norm(k, axis=1) / np.linalg.norm(q, axis=1)[:, None]
    weights = np.exp((scores - scores.max(1, keepdims=True)) / warmth)
    places, found = {name: place for place, name in enumerate(names)}, np.zeros((len(names), len(queries)))
    np.add.at(found, [places[one] for one in given], weights.T / weights.sum(1))
    return found.T


@pytest.mark.parametrize("compatibility", ["dot", "cosine", "gaussian"])
def test_the_truth_is_that_of_the_reference(compatibility: str) -> None:
    """The reference takes one query, row by row."""
    rng = np.random.default_rng(0)
    keys, names = keys_of(rng, 200), ["a", "b", "c"]
    given, query = [names[number % 3] for number in range(200)], keys_of(rng, 1)
    values = [[float(one == name) for name in names] for one in given]
    expected = reference.lookup(
        query[0].tolist(), keys.tolist(), values, score=getattr(reference, compatibility), temperature=0.7
    )
    assert truth(keys, given, names, query, compatibility, 0.7)[0] == pytest.approx(expected.value, rel=1e-9)


def kinds(answers: Any) -> np.ndarray:
    """The kind of the error of each answer."""
    kind = answers.error_kind
    return np.array(kind if isinstance(kind, tuple) else (kind,) * len(answers))


def require_right(db: softkv.SoftKV, keys: np.ndarray, given: list[str], compatibility: str, seed: int) -> None:
    """Estimates are as close as they say, most often, and bounds always."""
    queries, usual = keys_of(np.random.default_rng(seed), ASKED), db.info().temperature
    held = []
    for warmth in WARMTHS:
        found = db.lookup(queries, temperature=usual * warmth, tolerance=0.1)
        true = truth(keys, given, found.labels, queries, compatibility, usual * warmth)
        held.append(np.linalg.norm(found.value - true, axis=1) <= found.error + 1e-6)
        assert (found.error <= 0.1 * db.info().value_scale + 1e-6).all()
        assert warmth < 1 or (kinds(found) == "calibrated").mean() > 0.5
    assert np.mean(held) >= 0.94
    assert np.mean(held, axis=1).min() >= 0.9
    found = db.lookup(queries, temperature=usual * 100, tolerance=0.1, guarantee="bound")
    true = truth(keys, given, found.labels, queries, compatibility, usual * 100)
    assert (kinds(found) == "bound").all()
    assert (np.linalg.norm(found.value - true, axis=1) <= found.error).all()


@pytest.mark.ci
@pytest.mark.parametrize(("labels", "compatibility"), CASES)
def test_answers_are_as_close_as_they_say(tmp_path: Path, labels: int, compatibility: str) -> None:
    """Cold and warm, after a build and after items came and went, some of them with labels that are new."""
    rng = np.random.default_rng([labels, len(compatibility)])
    keys = keys_of(rng, ITEMS)
    given = labels_of(rng, keys, labels)
    with softkv.open(tmp_path / "s", value="label", compatibility=compatibility) as db:
        names = [str(number) for number in range(ITEMS)]
        db.add(names, given, vectors=keys)
        db.build_index()
        require_right(db, keys, given, compatibility, 1)
        gone = rng.random(ITEMS) < 0.1
        db.delete([name for name, dead in zip(names, gone, strict=True) if dead])
        late = keys_of(rng, 150)
        given_late = [*labels_of(rng, late[:100], labels), *(f"new {number % 7}" for number in range(50))]
        db.add(vectors=late, values=given_late)
        left = [one for one, dead in zip(given, gone, strict=True) if not dead] + given_late
        require_right(db, np.concatenate([keys[~gone], late]), left, compatibility, 2)
        db.compact()
        require_right(db, np.concatenate([keys[~gone], late]), left, compatibility, 3)
        assert db.check().ok


@pytest.mark.ci
def test_many_labels_go_through_refining_and_an_export(tmp_path: Path) -> None:
    """An index is refined with labels that came since, and one is built of what was exported and imported."""
    rng = np.random.default_rng(11)
    keys = keys_of(rng, ITEMS + 900)
    given = [*labels_of(rng, keys[:ITEMS], 5000), *(f"new {number % 400}" for number in range(900))]
    with softkv.open(tmp_path / "s", value="label", compatibility="cosine") as db:
        db.add(vectors=keys[:ITEMS], values=given[:ITEMS])
        db.build_index()
        db.add(vectors=keys[ITEMS:], values=given[ITEMS:])
        stages = set[str]()
        db.build_index(progress=lambda stage, _done, _all: stages.add(stage))
        assert "refining lists" in stages
        assert len(db.lookup(keys[0]).labels) > 1024
        require_right(db, keys, given, "cosine", 12)
        db.export(tmp_path / "e.npz")
    softkv.import_from(tmp_path / "e.npz", tmp_path / "t")
    with softkv.open(tmp_path / "t") as db:
        assert db.info().index is None
        db.build_index()
        require_right(db, keys, given, "cosine", 13)
        assert db.check().ok


def test_every_item_may_have_a_label_of_its_own(tmp_path: Path) -> None:
    """A distribution is the weights themselves where each has one."""
    keys = keys_of(np.random.default_rng(1), ITEMS)
    given = [f"label {number}" for number in range(ITEMS)]
    with softkv.open(tmp_path / "s", value="label", compatibility="dot") as db:
        db.add(vectors=keys, values=given)
        db.build_index()
        require_right(db, keys, given, "dot", 4)
        assert db.check().ok


def test_many_queries_share_room_for_their_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers do not depend on how many are asked together."""
    rng = np.random.default_rng(3)
    keys = keys_of(rng, ITEMS // 2)
    with softkv.open(tmp_path / "s", value="label", compatibility="cosine") as db:
        db.add(vectors=keys, values=labels_of(rng, keys, 300))
        db.build_index()
        queries = keys_of(rng, 30)
        together = db.lookup(queries)
        asked: list[int] = []
        usual = lists.calibrated
        monkeypatch.setattr(lists, "SUMS", 4 * len(together.labels))
        monkeypatch.setattr(lists, "calibrated", lambda *a, **b: asked.append(len(a[3])) or usual(*a, **b))
        assert db.lookup(queries).value == pytest.approx(together.value, abs=1e-5)
        assert max(asked) == 4


def test_an_index_that_knows_other_labels_than_the_store_is_none(tmp_path: Path) -> None:
    """More labels than there are, or values where there should be shares: lookups scan, and `info` says why."""
    keys, change = keys_of(np.random.default_rng(6), 600), {"lists.values.labels": lambda x: x + 1}
    for kind in ("label", "number"):
        path = tmp_path / kind / "s"
        path.parent.mkdir()
        with softkv.open(path, value=kind, compatibility="dot") as db:
            db.add(vectors=keys, values=[f"label {n % 5}" if kind == "label" else float(n % 5) for n in range(600)])
            db.build_index(lists=10)
            expected = db.lookup(keys[0], tolerance=0)

        def other(_: Any, arrays: Any, kind: str = kind) -> None:
            if kind == "label":
                arrays.update({name: make(arrays[name]) for name, make in change.items()})
            else:  # all items have one label
                shares = (np.arange(11), np.zeros(10, np.int64), arrays["lists.counts"], [0], [1])
                arrays.update({f"lists.values.{part}": np.array(x) for part, x in zip(PARTS, shares, strict=True)})
                del arrays["lists.values"]

        altered(other)(path.parent)
        with softkv.open(path) as db:
            assert "values of shape" in db.info().index.problem
            assert np.all(db.lookup(keys[0]).value == expected.value)
