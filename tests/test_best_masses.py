"""The k best by an index: what share of the mass they hold is unknown, and nothing says otherwise."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.document_stores import heaviest
from softkv.doors.sklearn import SoftKVRegressor
from softkv.errors import InputError

from .commands import ran
from .databases import count_as_large
from .serving import ask, serving
from .stores import copied

ITEMS, WIDTH, CLUSTERS, QUERIES = 20_000, 24, 60, 200
BEST = [1, 5, 32]


def points(count: int, seed: int) -> np.ndarray:
    """Vectors in clusters."""
    rng = np.random.default_rng([3, seed])
    centres = np.random.default_rng(3).standard_normal((CLUSTERS, WIDTH))
    return (centres[rng.integers(0, CLUSTERS, count)] + 0.4 * rng.standard_normal((count, WIDTH))).astype(np.float32)


ASKED = points(QUERIES, 1)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[softkv.SoftKV]:
    """A store of clusters with an index, rehearsed at some temperatures, that counts as large."""
    keys = points(ITEMS, 0)
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=700)
        with softkv.open(tmp_path_factory.mktemp("clusters") / "s", compatibility="cosine") as made:
            made.add([str(number) for number in range(ITEMS)], keys[:, 0], vectors=keys)
            made.build_index()
            yield made
            assert made.check().ok


@pytest.mark.ci
@pytest.mark.parametrize("k", BEST)
@pytest.mark.parametrize("temperature", [0.002, 0.01, 0.1, 1.0])
def test_the_mass_of_the_k_best_is_unknown(db: softkv.SoftKV, k: int, temperature: float) -> None:
    """Weights are shares of these, which are those of all mass but for a factor."""
    found, exact = (db.lookup(ASKED, k=k, show=k, temperature=temperature, tolerance=one) for one in (0.01, 0))
    estimated = np.broadcast_to(np.array(found.route) == "calibrated", QUERIES)
    assert estimated.mean() > 0.9
    for name in ("log_mass", "mass"):
        assert (np.isnan(getattr(found, name)) == estimated).all()
        assert getattr(found, name)[~estimated] == pytest.approx(getattr(exact, name)[~estimated])
    assert found.weights[estimated].sum(1) == pytest.approx(1.0)
    same = estimated & (found.rows == exact.rows).all(1)
    assert same.sum() > 0.8 * QUERIES
    assert found.weights[same] == pytest.approx(exact.weights[same] / exact.mass[same, None], rel=1e-3, abs=1e-6)
    assert found.effective[same] == pytest.approx(exact.effective[same], rel=1e-3)


def test_an_unknown_mass_is_not_told(db: softkv.SoftKV) -> None:
    """Answers leave it out one by one, in words, in JSON and in tables."""
    answers = db.lookup(ASKED, k=5, temperature=0.01)
    number = answers.route.index("calibrated") if isinstance(answers.route, tuple) else 0
    one = answers[number]
    assert (one.log_mass, one.mass, one.log_mass_error, one.is_far) == (None, None, None, None)
    assert "log mass unknown" in repr(one)
    assert "% of the mass" not in repr(one)
    assert not {"mass", "log_mass", "is_far"} & set(json.loads(one.to_json()))
    table = answers.to_arrow().to_pylist()[number]
    assert (table["mass"], table["log_mass"]) == (None, None)
    assert "an unknown share" in repr(db.compare(ASKED[number], k=5))


def test_nothing_is_told_to_be_far_by_an_unknown_mass(db: softkv.SoftKV) -> None:
    """The best of a scan are told to be far; of those by an index nothing is said."""
    far = np.random.default_rng(5).standard_normal((20, WIDTH)).astype(np.float32)
    queries = np.vstack([ASKED, far])
    for k in BEST:
        found, exact = ([one.is_far for one in db.lookup(queries, k=k, tolerance=one)] for one in (0.01, 0))
        assert None in found
        assert set(exact) == {True, False}
        assert all(mine in (None, theirs) for mine, theirs in zip(found, exact, strict=True))


def test_queries_of_a_batch_know_each_its_own_mass(db: softkv.SoftKV) -> None:
    """One that is unlike those rehearsed is scanned, so that of it all is known, like a query that asks alone."""
    queries = np.vstack([ASKED[:1], -8.0 * ASKED[:1], ASKED[1:2]])
    found, alone = db.lookup(queries, k=5), [db.lookup(query, k=5) for query in queries]
    assert [one.route for one in found] == [one.route for one in alone] == ["calibrated", "scan", "calibrated"]
    assert [one.mass is None for one in found] == [one.mass is None for one in alone] == [True, False, True]
    assert found[1].log_mass == pytest.approx(alone[1].log_mass)


def test_documents_hold_a_share_of_all_mass(db: softkv.SoftKV) -> None:
    """No index knows all mass, so the documents are those of a scan."""
    asked: dict[str, Any] = {"k": 200, "mass": 0.5, "temperature": 0.02}
    names = [one.key for one in heaviest(db, ASKED[0], **asked)]
    exact = db.lookup(ASKED[0], show=200, temperature=0.02, tolerance=0).contributors
    count = 1 + int(np.argmax(np.cumsum([one.weight for one in exact]) >= 0.5))
    assert names == [one.key for one in exact[:count]]
    assert 1 < count < 200


def test_an_unknown_mass_goes_through_all_doors(db: softkv.SoftKV, tmp_path: Path) -> None:
    """Packed and in JSON; the command explains weights by the sum of these."""
    query = ASKED[0].tolist()
    asked = {"query": query, "k": 5, "show": 5, "temperature": 1.0}
    path = copied(Path(db.path), tmp_path / "s")
    with serving(path) as client:
        plain, packed = (ask(client, "/v1/s/lookup", asked, packed=one) for one in (False, True))
        assert "mass" not in plain
        assert (packed.mass, packed.log_mass) == (None, None)
        assert sum(one["weight"] for one in plain["contributors"]) == pytest.approx(1.0)
        assert sum(one.weight for one in packed.contributors) == pytest.approx(1.0)
    given = ("query", "--vector", ",".join(map(repr, query)), "--db", path, "-k", 5, "-n", 5, "-T", 1.0, "--explain")
    steps = json.loads(ran(*given).out)["arithmetic"]
    assert len(steps) == 5
    assert sum(step["weight"] for step in steps) == pytest.approx(1.0)


def test_nothing_is_promised_by_masses_that_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimator whose k best an index proposes is not calibrated by them; one that was before says no more."""
    keys = points(900, 2)
    model = SoftKVRegressor(k=3, path=tmp_path / "s").fit(keys[:400], keys[:400, 0])
    model.conformalize(keys[400:], keys[400:, 0], wrong_at_most=0.2)
    assert set(model.predict_known(keys[400:])) <= {True, False}
    count_as_large(monkeypatch)
    with softkv.open(tmp_path / "s") as db:
        db.build_index("hnsw")
    assert np.isnan(model.decision_evidence(keys[400:])).all()
    assert set(model.predict_known(keys[400:])) == {None}
    assert np.isnan(model.predict_interval(keys[400:])[1]).all()
    with pytest.raises(InputError, match="tolerance=0"):
        model.conformalize(keys[400:], keys[400:, 0])
