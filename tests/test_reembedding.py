"""Embedding all items of a store again, with another model."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.embedders import find
from softkv.errors import EmbedderMismatch, EmbedderNeeded, InputError, Unfinished

from .scales import scaled

TEXTS = [f"a text about the number {number}" for number in range(25)]


def letters(texts: list[str]) -> list[list[float]]:
    """Counts of vowels, none of them zero in all."""
    return [[text.count(letter) + 0.5 for letter in "aeiou"] for text in texts]


@pytest.mark.parametrize("kind", ["number", "label", "text", "vector"])
def test_everything_but_the_vectors_stays(tmp_path: Path, kind: str) -> None:
    """Keys and value texts have the vectors of the new model; order, values, payloads and numbers are as before."""
    values = {"number": np.arange(25.0), "label": ["odd", "even"] * 12 + ["odd"], "text": [f"v {t}" for t in TEXTS]}
    values["vector"] = np.random.default_rng(0).standard_normal((25, 3))
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(TEXTS, values[kind], payloads=[{"n": number} for number in range(25)])
        db.add(values=values[kind][:1], texts=["an item without a key"])
        db.delete(TEXTS[3])
        before = [(item.name, item.text, item.payload, np.asarray(item.value).tolist()) for item in db.select()]
        assert db.reembed(letters) == 25
        after = list(db.select())
        assert [(item.name, item.text, item.payload, np.asarray(item.value).tolist()) for item in after] == before
        expected = letters([str(item.text) for item in after])
        assert np.stack([item.vector for item in after]).tolist() == np.float32(expected).tolist()
        assert (db.info().key_width, db.info().dead_rows) == (5, 0)
        answer = db.lookup("a question")
        assert answer.scored == 25
        if kind == "text":
            assert answer.value.shape == (5,)
        db["one more"] = values[kind][0]
        assert db.check().ok
    with softkv.open(tmp_path / "s", "r", embedder=letters) as db:
        assert db.lookup("a question").scored == 26
    with softkv.open(tmp_path / "s", "r", embedder="static") as db, pytest.raises(EmbedderMismatch, match="reembed"):
        db.lookup("a question")


def test_progress_is_told_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told in batches, the last of which says that all is done."""
    scaled(monkeypatch, reembedded=10)
    told: list[tuple[int, int]] = []
    with softkv.open(tmp_path / "s") as db:
        db.add(TEXTS, np.arange(25.0))
        db.reembed(letters, progress=lambda done, total: told.append((done, total)))
    assert told == [(10, 25), (20, 25), (25, 25)]


def test_a_temperature_by_rule_is_found_again(tmp_path: Path) -> None:
    """The scores are others now; one that was given stays."""
    for given in (None, 0.3):
        with softkv.open(tmp_path / str(given), temperature=given) as db:
            db.add(TEXTS, np.arange(25.0))
            before = db.info().temperature
            db.reembed(letters)
            assert (db.info().temperature == before) is (given is not None)


def test_a_model_must_be_named_to_begin_with(tmp_path: Path) -> None:
    """Nothing is begun without the name of a model, nor where an item has no text."""
    with softkv.open(tmp_path / "s") as db:
        db.add(TEXTS, np.arange(25.0))
        with pytest.raises(InputError, match="softkv models"):
            db.reembed(None)
        db.add(["bare"], [1.0], vectors=find("static").documents(["bare"]))
        with pytest.raises(EmbedderNeeded, match="1 of 26 items"):
            db.reembed(letters)
        assert db.info().unfinished is None
        assert db.info().embedder == "static"


@pytest.mark.parametrize("work", ["tune", "fit", "guard", "build_index"])
def test_nothing_is_computed_that_could_not_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """While items have begun to be embedded anew, work whose result could not be written is refused at its start."""
    scaled(monkeypatch, reembedded=10)
    asked = list[int]()

    def failing(texts: list[str]) -> list[list[float]]:
        asked.append(len(texts))
        if sum(asked) > 20:
            raise OSError("the model is gone")
        return letters(texts)

    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(TEXTS, ["odd", "even"] * 12 + ["odd"])
        with pytest.raises(OSError, match="gone"):
            db.reembed(failing)
        told = list[object]()
        with pytest.raises(Unfinished, match="10 of 25 items"):
            getattr(db, work)(progress=lambda *stage: told.append(stage))
        assert told == []
