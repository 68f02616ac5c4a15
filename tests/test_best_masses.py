"""The k best by an index: what share of the mass they hold, as close as is stated, or unknown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import lists
from softkv.database import indexing
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
        count_as_large(patch)
        patch.setattr(indexing, "REHEARSED", 700)
        with softkv.open(tmp_path_factory.mktemp("clusters") / "s", compatibility="cosine", temperature=0.01) as made:
            made.add([str(number) for number in range(ITEMS)], keys[:, 0], vectors=keys)
            made.build_index(temperatures=(0.002, 0.1))
            yield made
            assert made.check().ok


@pytest.mark.ci
@pytest.mark.parametrize("k", BEST)
@pytest.mark.parametrize("temperature", [0.002, 0.004, 0.01, 0.03, 0.1])
def test_masses_are_as_close_as_they_say(db: softkv.SoftKV, k: int, temperature: float) -> None:
    """For at least the stated share of those that are told, which nearly all are; and so are shares and weights."""
    found, exact = (db.lookup(ASKED, k=k, show=k, temperature=temperature, tolerance=one) for one in (0.01, 0))
    assert found.routes["calibrated"] > 0.9 * QUERIES
    estimated = np.broadcast_to(np.array(found.route) == "calibrated", QUERIES)
    told = estimated & ~np.isnan(found.log_mass)
    assert told.mean() > 0.85
    assert (np.isnan(found.mass) == np.isnan(found.log_mass)).all()
    off = np.abs(found.log_mass - exact.log_mass)
    assert (off <= found.log_mass_error)[told].mean() >= 0.93
    assert np.median(found.log_mass_error[told]) <= 0.06
    assert np.quantile(off[told], 0.95) < 0.06
    same = told & (found.rows[:, :k] == exact.rows[:, :k]).all(1)
    assert same.mean() > 0.8
    assert (np.abs(np.log(found.mass / exact.mass)) <= off + 1e-3)[same].all()
    assert (np.abs(found.weights - exact.weights)[same, :k] <= 1e-3 + np.expm1(off[same])[:, None]).all()


@pytest.mark.parametrize("k", BEST)
def test_few_rows_are_read_for_the_mass_alone(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Where the store is not small, not more than for the best: the others get no mass, and the same best rows."""
    asked: dict[str, Any] = {"k": k, "temperature": 0.01}
    whole = db.lookup(ASKED, **asked)
    monkeypatch.setattr(lists, "FOR_MASS", 0)
    found = db.lookup(ASKED, **asked)
    monkeypatch.setattr(lists.Asking, "plans", [None] * QUERIES)
    without = db.lookup(ASKED, **asked)
    assert (without.rows[:, :k] == found.rows[:, :k]).mean() > 0.98
    assert (without.rows_read <= found.rows_read).all()
    assert (found.rows_read <= whole.rows_read).all()
    assert whole.rows_read.mean() < 0.2 * ITEMS
    assert np.isnan(without.log_mass).all()


def test_a_floor_is_known_of_the_k_best(db: softkv.SoftKV) -> None:
    """Items and what lies among them are not far from it, and what lies elsewhere is, if its mass is known."""
    far = np.random.default_rng(5).standard_normal((20, WIDTH)).astype(np.float32)
    for k in BEST:
        found, exact = (
            [one.is_far for one in db.lookup(np.vstack([ASKED, far]), k=k, tolerance=tolerance)]
            for tolerance in (0.01, 0)
        )
        assert all(mine in (None, theirs) for mine, theirs in zip(found, exact, strict=True))


@pytest.mark.parametrize("k", BEST)
def test_a_mass_that_was_not_rehearsed_is_unknown(db: softkv.SoftKV, k: int) -> None:
    """At another temperature the best are found all the same; weights are shares of these."""
    found, exact = (db.lookup(ASKED, k=k, show=k, temperature=1.0, tolerance=one) for one in (0.01, 0))
    assert found.routes["calibrated"] > 0.9 * QUERIES
    number = next(place for place, one in enumerate(found) if one.route == "calibrated")
    one = found[number]
    assert (one.log_mass, one.mass, one.log_mass_error, one.is_far) == (None, None, None, None)
    assert found.weights[number, :k].sum() == pytest.approx(1.0)
    assert found.value[number] == pytest.approx(exact.value[number], abs=found.error[number])
    assert "log mass unknown" in repr(one)
    assert "% of the mass" not in repr(one)
    assert not {"mass", "log_mass"} & set(json.loads(one.to_json()))
    assert "an unknown share" in repr(db.compare(ASKED[number], k=k, temperature=1.0))


def test_queries_of_a_batch_know_each_its_own_mass(db: softkv.SoftKV) -> None:
    """Which they have when asked alone, also beside queries that know none."""
    temperatures = np.array([0.01, 1.0, 0.03])
    found = db.lookup(ASKED[:3], k=5, temperature=temperatures)
    alone = [db.lookup(query, k=5, temperature=one) for query, one in zip(ASKED, temperatures, strict=False)]
    assert [one.mass is None for one in found] == [one.mass is None for one in alone] == [False, True, False]
    assert [one.mass for one in found if one.mass] == pytest.approx([one.mass for one in alone if one.mass], rel=0.1)


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
    """An estimator whose k best an index proposes is not calibrated by them."""
    count_as_large(monkeypatch)
    keys = points(600, 2)
    model = SoftKVRegressor(k=3, path=tmp_path / "s").fit(keys[:400], keys[:400, 0])
    with softkv.open(tmp_path / "s") as db:
        db.build_index("hnsw")
    assert np.isnan(model.decision_evidence(keys[400:])).all()
    with pytest.raises(InputError, match="tolerance=0"):
        model.conformalize(keys[400:], keys[400:, 0])
