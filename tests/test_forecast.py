"""What a build of an index will take, said before it begins."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv import errors
from softkv.index import forecast as forecasting
from softkv.index.forecast import Forecast, forecast

USUAL = {"rows": 100_000, "key_width": 64, "value_width": 1, "labelled": False, "row_bytes": 268, "lists": 2000}
USUAL |= {"queries": 1440, "temperatures": 10}


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is always as fast."""
    monkeypatch.setattr(forecasting, "speeds", lambda: (1e-11, 3.5e-10))


@pytest.mark.parametrize("more", ["rows", "key_width", "value_width", "lists", "queries", "temperatures", "row_bytes"])
@pytest.mark.parametrize("labels", [False, True])
def test_more_of_anything_takes_longer(more: str, labels: bool) -> None:
    """Twice as much of one thing is forecast to take longer, and no less room on the disk."""
    usual = USUAL | {"labelled": labels}
    less, found = forecast(**usual), forecast(**usual | {more: 2 * usual[more]})
    assert less.seconds < found.seconds < 5 * less.seconds
    assert less.meanwhile <= found.meanwhile


def test_refining_takes_less() -> None:
    """No centres are found then."""
    assert forecast(**USUAL, refined=True).seconds < forecast(**USUAL).seconds


def test_it_is_said_in_words_that_suit_its_size() -> None:
    """They are seconds or minutes, megabytes or gigabytes."""
    assert str(Forecast(12.4, 5_000_000, 10)) == "about 12 s, 5 MB on the disk meanwhile and 1 MB in the end"
    assert str(Forecast(600, 2_300_000_000, 7_400_000)) == (
        "about 10 minutes, 2.3 GB on the disk meanwhile and 7 MB in the end"
    )


def test_the_room_is_that_of_the_index(tmp_path: Path) -> None:
    """It is so to a fifth; and what decides about the time is what the store holds."""
    keys = np.random.default_rng(0).standard_normal((2000, 8))
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(errors.EmptyStore):
            db.forecast_index()
        db.add(vectors=keys, values=keys[:, :3])
        told, longer = db.forecast_index(), db.forecast_index(temperatures=(1e-3, 1e3))
        assert told.seconds < longer.seconds
        assert told.meanwhile >= 2000 * 4 * (8 + 3 + 1)
        with pytest.raises(errors.InputError):
            db.forecast_index(lists=0)
        db.build_index()
    (file,) = (tmp_path / "s" / "index").iterdir()
    assert told.kept == pytest.approx(file.stat().st_size, rel=0.35)


def test_the_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a product are cheaper than numbers of an exp, or nearly so."""
    monkeypatch.undo()
    multiplied, exponentiated = forecasting.speeds()
    assert 0 < multiplied < 1e-6
    assert 0 < exponentiated < 1e-4


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "pq", "rabitq", "IVF64_HNSW16,SQ8", "Flat"])
def test_the_room_of_a_proposer_is_forecast(kind: str, tmp_path: Path) -> None:
    """It is so to a tenth, from a small one, for all kinds; more rows take longer."""
    keys = np.random.default_rng(0).standard_normal((9000, 20))
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=keys[:5000], values=keys[:5000, 0])
        few = db.forecast_index(kind)
        db.add(vectors=keys[5000:], values=keys[5000:, 0])
        told = db.forecast_index(kind)
        assert few.kept < told.kept == told.meanwhile
        with pytest.raises(errors.InputError, match="only for lists"):
            db.forecast_index(kind, lists=3)
        db.build_index(kind)
    (file,) = (tmp_path / "s" / "index").iterdir()
    assert told.kept == pytest.approx(file.stat().st_size, rel=0.1)


def test_a_store_too_small_for_a_proposer_is_forecast(tmp_path: Path) -> None:
    """A store of one row is, as well; a kind that is none is refused by its name."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=[[1.0, 2.0]], values=[1.0])
        assert db.forecast_index("hnsw").seconds < 2
        with pytest.raises(errors.InputError, match="nonsense"):
            db.forecast_index("nonsense")
