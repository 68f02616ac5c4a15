"""Vectors of any size are compared as ordinary ones are, or refused before they are written."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv import errors, soft_lookup
from softkv.database import import_from
from softkv.learning.temperature import typical_temperature
from softkv.maths.compatibility import COMPATIBILITIES
from softkv.storage import Store
from tests import reference

RNG = np.random.default_rng(0)
POINTS, ASKED = RNG.uniform(-3, 3, (200, 3)), RNG.uniform(-3, 3, (20, 3))
HEIGHTS = np.sin(POINTS[:, 0]) + POINTS[:, 1]
NAMES = ["cosine", "dot", "scaled_dot", "gaussian", "laplace"]
# Powers of two, so that nothing but the size changes; near 1e-30, 1e-19, 1e19 and 1e30.
SIZES = [2.0**-100, 2.0**-63, 2.0**63, 2.0**100]


def score_size(name: str, size: float) -> float:
    """How much larger scores are of vectors so much longer."""
    return float(size ** (COMPATIBILITIES[name].degree or 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_lookups_answer_at_any_size_as_at_one(name: str, size: float) -> None:
    """They are float32, by one temperature and by one for each query, with the scores that the reference gives."""
    keys, queries = (x.astype(np.float32) for x in (POINTS, ASKED))
    kept = {"compatibility": name, "values": HEIGHTS}
    expected: Any = soft_lookup(queries, keys, temperature=0.5, **kept)
    sized = 0.5 * score_size(name, size)
    for temperature in (sized, np.full(len(queries), sized)):
        found: Any = soft_lookup(queries * size, keys * size, temperature=temperature, **kept)
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-5)
        np.testing.assert_allclose(found.log_mass, expected.log_mass, rtol=1e-5)
    first = int(found.rows[0, 0])
    score = getattr(reference, name)((queries[0] * size).tolist(), (keys[first] * size).tolist())
    assert found.scores[0, 0] == pytest.approx(score, rel=1e-4)


def test_what_is_larger_by_far_beside_tiny_rows_is_compared_all_the_same() -> None:
    """Rows of 1e-19 among ordinary ones, features of 1e-25 beside ordinary ones, and a far row among tiny ones."""
    mixed = POINTS.astype(np.float32)
    mixed[::7] *= np.float32(1e-19)
    mixed[:, 2] *= np.float32(1e-25)
    tiny = (POINTS * 2.0**-100).astype(np.float32)
    tiny[0] = 1e-15
    for keys, queries, temperature in ((mixed, ASKED, 0.5), (tiny, ASKED * 2.0**-100, 0.5 * 2.0**-200)):
        asked = queries.astype(np.float32)
        found: Any = soft_lookup(asked, keys, HEIGHTS, compatibility="gaussian", temperature=temperature)
        for number, query in enumerate(asked.tolist()):
            expected = reference.lookup(
                query, keys.tolist(), [[x] for x in HEIGHTS], score=reference.gaussian, temperature=temperature
            )
            assert found.value[number] == pytest.approx(expected.value[0], rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_the_temperature_by_rule_goes_with_the_scores(name: str, size: float) -> None:
    """Vectors c times as long get c^degree times the temperature."""
    keys = POINTS.astype(np.float32)
    everything = np.ones(len(keys), np.bool_)
    usual, found = (typical_temperature(some, everything, name) for some in (keys, keys * np.float32(size)))
    assert usual is not None
    assert found == pytest.approx(usual * score_size(name, size), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_store_answers_at_any_size_as_at_one(tmp_path: Path, name: str) -> None:
    """It does by rule, tuned, with the k best, and compared; it is checked, and what it exports comes back."""
    answers: dict[float, list[Any]] = {}
    measured: dict[float, list[Any]] = {}
    for size in (1.0, *SIZES):
        with softkv.open(tmp_path / f"{size}", compatibility=name) as db:
            db.add(vectors=POINTS * size, values=HEIGHTS)
            found: Any = [db.lookup(ASKED * size), db.lookup(ASKED * size, k=5), db.compare(ASKED[0] * size).soft]
            before = db.info().temperature or 1.0
            db.tune()
            found.append(db.lookup(ASKED * size))
            measured[size] = [one.rmse for one in db.evaluate(ASKED * size, HEIGHTS[:20]).ways]
            assert (db.info().temperature or 1.0) != before
            assert db.check().ok
            db.export(tmp_path / f"{size}.npz")
        import_from(tmp_path / f"{size}.npz", tmp_path / f"{size} again")
        with softkv.open(tmp_path / f"{size} again") as again:
            found.append(again.lookup(ASKED * size))
        answers[size] = found
    for size in SIZES:
        np.testing.assert_allclose(measured[size][1:], measured[1.0][1:], rtol=1e-4)
        for one, usual in zip(answers[size], answers[1.0], strict=True):
            assert (np.abs(np.asarray(one.value) - usual.value) <= np.asarray(one.error) + usual.error).all()
            assert np.max(one.error) < 1e-2


@pytest.mark.parametrize("name", ["gaussian", "cosine"])
@pytest.mark.parametrize("planes", [None, False])
def test_a_store_learns_at_any_size_as_at_one(tmp_path: Path, name: str, planes: bool | None) -> None:
    """A fitted store of tiny or huge keys says what it says of ordinary ones, on planes and off them."""
    losses = []
    for size in (1.0, *SIZES):
        with softkv.open(tmp_path / f"{size}", compatibility=name) as db:
            db.add(vectors=POINTS * size, values=HEIGHTS)
            fitted = db.fit(planes=planes if name == "gaussian" else None)
            assert fitted.kept
            found: Any = db.lookup(ASKED * size)
            assert np.isfinite(found.error).all()
            losses.append((fitted.loss, np.square(found.value - np.sin(ASKED[:, 0]) - ASKED[:, 1]).mean()))
    np.testing.assert_allclose(losses, [losses[0]] * len(losses), rtol=0.05)


@pytest.mark.parametrize("name", ["gaussian", "dot", "laplace"])
def test_first_vectors_that_vanish_in_float32_are_refused(tmp_path: Path, name: str) -> None:
    """Nothing is written; beside longer ones such a vector is as good as zero, and taken."""
    with softkv.open(tmp_path / "a", compatibility=name) as db:
        for tiny in (1e-38, 1e-60):
            with pytest.raises(errors.NotFinite, match=r"expected .* at least 1e-37, .* got .* Scale .* up"):
                db.add(vectors=POINTS * tiny, values=HEIGHTS)
        assert len(db) == 0
        db.add(vectors=np.concatenate([POINTS, POINTS[:1] * 1e-60]), values=[*HEIGHTS, 1.0])
        db.add(vectors=POINTS[1:2] * 1e-60, values=[2.0])
        assert len(db) == 202
        assert db.check().ok


def test_an_index_is_refused_where_lists_could_not_hold_squares(tmp_path: Path) -> None:
    """Distances and products of tiny or huge keys are scanned; directions, and what is learned, have no size."""
    for name in ("gaussian", "dot", "cosine"):
        for size in SIZES:
            with softkv.open(tmp_path / f"{name} {size}", compatibility=name) as db:
                db.add(vectors=POINTS * size, values=HEIGHTS)
                if name == "cosine":
                    db.build_index()
                    continue
                with pytest.raises(errors.NotExpressible, match=r"expected keys of sizes .* scale the vectors"):
                    db.build_index()
                assert len(db.lookup(ASKED * size)) == len(ASKED)


@pytest.mark.parametrize("size", [1e-60, 1e30, 1e30 * 2**20])
def test_values_of_any_size_are_learned_from(tmp_path: Path, size: float) -> None:
    """Numbers, and within float32 vectors, far from 1: the loss goes with their squares."""
    for kind, values in (("number", HEIGHTS), ("vector", np.stack([HEIGHTS, -HEIGHTS], axis=1))):
        losses = []
        for one in (1.0, size):
            if kind == "vector" and one < 1e-30:
                continue
            with softkv.open(tmp_path / f"{kind} {one}", compatibility="gaussian") as db:
                db.add(vectors=POINTS, values=values * one)
                losses += [db.fit(planes=False).loss / one**2, db.tune().loss / one**2]
        np.testing.assert_allclose(losses, (losses[:2] * 2)[: len(losses)], rtol=1e-2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e34, 1e38])
def test_rows_of_sizes_that_are_refused_by_now_can_be_read_all_the_same(tmp_path: Path, name: str, size: float) -> None:
    """Those of an older store: it opens, is checked and exported, and lookups answer, or say that they cannot."""
    with Store.open(tmp_path / "a", "c") as store:
        store.append((POINTS * size).astype(np.float32), HEIGHTS)
        store.configure({"value": "number", "compatibility": name})
    with softkv.open(tmp_path / "a") as db:
        assert db.check().ok
        assert db.export(tmp_path / "a.npz") == len(db) == 200
        for ask in (
            db.lookup,
            db.compare,
            lambda query: db.lookup(query, k=3),
            lambda _: db.tune(),
            lambda _: db.fit(),
        ):
            with suppress(errors.InputError):
                ask((POINTS[0] * size).astype(np.float32))
        assert "200" in str(db.info())
    assert import_from(tmp_path / "a.npz", tmp_path / "b") == 200
