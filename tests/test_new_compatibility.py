"""A new way to compare is one entry of a table: everything else asks the entry for what it needs to know."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softkv
from softkv.database import import_from
from softkv.doors.sklearn import SoftKVRegressor
from softkv.doors.torch import SoftKVLayer
from softkv.errors import NotExpressible, ZeroVector
from softkv.maths.compatibility import COMPATIBILITIES, Compatibility, cosine, linear

from .commands import ran
from .databases import count_as_large

RNG = np.random.default_rng(4)
KEYS, QUERIES = RNG.standard_normal((300, 4)).astype(np.float32), RNG.standard_normal((5, 4)).astype(np.float32)
VALUES = KEYS[:, 0] + KEYS[:, 1] ** 2


def chebyshev(queries: Any, sharpness: Any) -> Any:
    """Minus the largest difference along any axis."""

    def score(keys: Any, _first: int) -> Any:
        return -abs(queries[..., :, None, :] - keys[..., None, :, :]).max(-1) * np.float32(sharpness)

    return score


def doubled(queries: Any) -> Any:
    """Queries twice as long."""
    return 2.0 * queries


@pytest.fixture(autouse=True)
def _new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three new entries: by a distance, by a product, and by directions."""
    for one in (
        Compatibility("chebyshev", chebyshev, copies=True, degree=1, pairs=True),
        linear("doubled", doubled, lambda squares: 4.0 * squares),
        Compatibility(
            "angle", COMPATIBILITIES["cosine"].ask, degree=0, form="cosine", with_lengths=cosine, lukewarm=0.25
        ),
    ):
        monkeypatch.setitem(COMPATIBILITIES, one.name, one)


def expected(name: str, query: np.ndarray, temperature: float) -> float:
    """The mean by the formula."""
    wide, keys = query.astype(float), KEYS.astype(float)
    if name == "chebyshev":
        scores = -np.abs(wide - keys).max(1)
    else:
        scores = 2 * keys @ wide if name == "doubled" else keys @ wide / np.linalg.norm(keys, axis=1)
        scores = scores / np.linalg.norm(wide) if name == "angle" else scores
    weights = np.exp((scores - scores.max()) / temperature)
    return float(weights @ VALUES / weights.sum())


@pytest.mark.parametrize("name", ["chebyshev", "doubled", "angle"])
def test_a_store_compares_by_it(tmp_path: Path, name: str) -> None:
    """It chooses its temperature, states its rounding, is kept, asked by the command, exported and imported."""
    with softkv.open(tmp_path / "s", compatibility=name) as db:
        db.add(vectors=KEYS, values=VALUES.astype(float))
        temperature = db.info().temperature
        assert temperature is not None
        for query in QUERIES:
            answer = db.lookup(query)
            assert abs(answer.value - expected(name, query, temperature)) <= answer.error + 1e-6
        assert db.tune().temperature > 0
        db.export(tmp_path / "all.jsonl")
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.info().compatibility == name
        found = ran("query", "--vector", "1,2,3,4", "--db", tmp_path / "s", "--plain")
        assert float(found.out) == pytest.approx(db.lookup([1.0, 2.0, 3.0, 4.0]).value, rel=1e-6)
    import_from(tmp_path / "all.jsonl", tmp_path / "copy")
    with softkv.open(tmp_path / "copy", "r") as copy:
        assert copy.info().compatibility == name


def test_an_index_is_for_what_has_a_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and directions have one, and a refusal names those that have."""
    count_as_large(monkeypatch)
    for name in ("doubled", "angle"):
        with softkv.open(tmp_path / name, compatibility=name) as db:
            db.add(vectors=np.tile(KEYS, (8, 1)), values=np.tile(VALUES, 8).astype(float))
            db.build_index(lists=30)
            found = db.lookup(QUERIES, tolerance=0.9, temperature=3 * db.info().temperature, guarantee="bound")
            assert "bound" in found.routes, found.reason
    with softkv.open(tmp_path / "chebyshev", compatibility="chebyshev") as db:
        db.add(vectors=KEYS, values=VALUES.astype(float))
        with pytest.raises(NotExpressible, match="doubled, angle"):
            db.build_index()
        assert db.lookup(QUERIES[0]).reason.startswith("no index is for chebyshev")


def test_directions_refuse_what_has_none(tmp_path: Path) -> None:
    """A zero vector is refused, wherever it comes from."""
    with softkv.open(tmp_path / "s", compatibility="angle") as db:
        with pytest.raises(ZeroVector):
            db.add(vectors=[[0.0, 0.0]], values=[1.0])
        db.add(vectors=[[1.0, 0.0], [2.0, 0.0]], values=[1.0, 2.0])
        assert db.info().temperature == 0.25
    with pytest.raises(ZeroVector, match="angle"):
        SoftKVLayer(torch.zeros(2, 3), torch.zeros(2), compatibility="angle")


def test_the_doors_know_it() -> None:
    """An estimator knows it, and a layer does."""
    found = SoftKVRegressor(compatibility="chebyshev", temperature=0.3).fit(KEYS, VALUES).predict(QUERIES)
    assert found == pytest.approx([expected("chebyshev", query, 0.3) for query in QUERIES], rel=1e-4)
    layer = SoftKVLayer(torch.tensor(KEYS), torch.tensor(VALUES), compatibility="doubled", temperature=0.7)
    assert layer(torch.tensor(QUERIES)).detach().numpy() == pytest.approx(
        [expected("doubled", query, 0.7) for query in QUERIES], rel=1e-4
    )
