"""The embedder of one store, for handles, readers and snapshots that see different commits of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

import softkv
from softkv.embedders import find
from softkv.errors import EmbedderMismatch, EmbedderNeeded, EmbedderNotFound

FILMS = {"a shepherd": 1.0, "two boats": 2.0, "the sea": 3.0}


def embedder(width: int, seed: int) -> Callable[[Sequence[str]], np.ndarray]:
    """A function that gives every text a vector of its own."""

    def function(texts: Sequence[str]) -> np.ndarray:
        return np.array([np.random.default_rng([seed, crc32(text.encode())]).standard_normal(width) for text in texts])

    return function


def test_a_snapshot_is_asked_with_the_model_of_its_time(tmp_path: Path) -> None:
    """After a change of embedder the handle uses the new one, and what was kept before it the old one."""
    old, new = embedder(8, 1), embedder(12, 2)
    with softkv.open(tmp_path / "s", embedder=old) as db:
        db.update(FILMS)
        unasked, expected = db.snapshot(), db.lookup("two boats").value
        with db.snapshot() as asked, unasked:
            assert asked.lookup("two boats").value == expected
            db.reembed(new)
            assert asked.lookup("two boats").value == unasked.lookup("two boats").value == expected
            assert db.nearest("two boats").value == 2.0
        db["a train"] = 4.0
        assert db.item("a train").vector == pytest.approx(new(["a train"])[0], rel=1e-6)
        assert db.check().ok


def test_a_reader_follows_the_store_to_another_model(tmp_path: Path) -> None:
    """A reader that named no embedder uses the one that the store remembers now, also when it has asked before."""
    with softkv.open(tmp_path / "s", embedder=embedder(8, 1)) as db, softkv.open(tmp_path / "s", "r") as reader:
        db.update(FILMS)
        with pytest.raises(EmbedderNotFound):  # a function is not found by its name
            reader.lookup("two boats")
        db.reembed("static")
        assert reader.nearest("two boats").value == 2.0
        db.reembed(embedder(8, 1))
        with pytest.raises(EmbedderNotFound):
            reader.lookup("two boats")
        db.reembed("static")
        assert reader.nearest("two boats").value == 2.0
        named = softkv.open(tmp_path / "s", "r", embedder=embedder(8, 1))
        with named, pytest.raises(EmbedderMismatch):
            named.lookup("two boats")


def test_a_temperature_does_not_outlive_its_vectors(tmp_path: Path) -> None:
    """Neither a snapshot of the old vectors nor a reader that has asked them keeps theirs for the new ones."""

    def long(texts: Sequence[str]) -> np.ndarray:
        return embedder(8, 2)(texts) * 100

    path = tmp_path / "s"
    keys = [f"item {number}" for number in range(40)]
    with softkv.open(path, embedder=embedder(8, 1), compatibility="dot") as db, softkv.open(path, "r") as reader:
        db.add(keys, np.zeros(40))
        before = reader.lookup(np.ones(8)).temperature
        with db.snapshot() as kept:
            db.reembed(long)
            assert kept.lookup(np.ones(8)).temperature == before
            assert db.info().temperature > 1000 * before
            assert reader.info().temperature == db.info().temperature
            assert kept.lookup(np.ones(8)).temperature == before


def test_bare_vectors_take_the_embedder_that_is_named_for_them(tmp_path: Path) -> None:
    """Named when the store is opened, it answers texts, and adding one makes the store remember it."""
    given = find("static")
    with softkv.open(tmp_path / "s") as db:
        db.add(list(FILMS), list(FILMS.values()), vectors=given.documents(list(FILMS)))
        with pytest.raises(EmbedderNeeded):
            db.lookup("two boats")
    with softkv.open(tmp_path / "s", embedder="static") as db:
        assert db.nearest("two boats").value == 2.0
        db["a train"] = 4.0
    with softkv.open(tmp_path / "s") as db:
        assert db.nearest("a train").value == 4.0
        assert db.check().ok
