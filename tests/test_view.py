"""What a lookup needs to know of one commit, found once and kept up."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.asking.indexed import Indexes
from softkv.asking.view import COPIED, TOGETHER, Reach

from .databases import vectors_of


def test_values_lie_within_reach_of_their_middle(tmp_path: Path) -> None:
    """Many may come later, and far out; a value that is gone counts until compaction."""
    values = np.random.default_rng(0).standard_normal((TOGETHER + 100, 2)).astype(np.float32)
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=vectors_of(len(values)), values=values)
        first = db._view().reach
        assert first.radius == pytest.approx(np.linalg.norm(values - first.middle, axis=1).max())
        db.add("far", [100.0, 0.0], vectors=vectors_of(1)[0])
        with db.snapshot() as kept:
            assert db._view().reach.radius == pytest.approx(np.linalg.norm([100, 0] - first.middle))
            db.delete("far")
            assert db._view().reach.radius > 99
            db.compact()
            assert db._view().reach.radius == pytest.approx(first.radius, rel=0.1)
            assert kept._view().reach.radius > 99
        assert db.check().ok


def test_more_values_only_widen_the_reach() -> None:
    """Numbers or vectors, one by one or all at once around the same middle."""
    reach = Reach.of(np.array([1.0, 3.0]))
    assert (reach.middle.tolist(), reach.radius) == ([2.0], 1.0)
    assert reach.with_more(np.array([2.5])).radius == 1.0
    assert reach.with_more(np.array([12.0])).radius == 10.0
    assert Reach.of(np.array([[3.0, 4.0], [-3.0, -4.0]])).radius == 5.0
    many = np.random.default_rng(1).standard_normal((3 * COPIED // 7, 7)).astype(np.float32)
    many[-1] = 30.0
    assert (reach := Reach.of(many)).radius == np.linalg.norm(many - reach.middle, axis=1).max()
    assert reach.with_more(np.empty((0, 7))).radius == reach.radius


def test_a_scan_of_few_values_does_not_read_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their reach is told by the values, whatever a handle has read before, and that of many by the lists."""
    values = np.random.default_rng(2).standard_normal((400, 3)).astype(np.float32)
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=vectors_of(len(values)), values=values)
        db.build_index()
    read = list[str]()
    inner = Indexes._read
    monkeypatch.setattr(Indexes, "_read", lambda *given: (read.append("read"), inner(*given))[1])
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.lookup(vectors_of(1)[0]).route == "scan"
        assert not read
        told = db._view().reach
        assert told.radius == pytest.approx(np.linalg.norm(values - told.middle, axis=1).max())
    with softkv.open(tmp_path / "s", "r") as db:
        view = db._view()
        assert view.index is not None
        assert view.reach.radius == told.radius
    monkeypatch.setattr("softkv.asking.view.FEW_NUMBERS", 0)
    with softkv.open(tmp_path / "s", "r") as db:
        view = db._view()
        assert view.reach.radius >= np.linalg.norm(values - view.reach.middle, axis=1).max()
        assert view.reach.radius != told.radius
