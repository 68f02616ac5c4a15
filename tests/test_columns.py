"""All items of a store as arrays."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv import errors

RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((50, 3)).astype(np.float32)


@pytest.mark.parametrize("block", [7, 1000])
@pytest.mark.parametrize("kind", ["number", "vector", "label"])
def test_columns_are_the_live_items(tmp_path: Path, kind: str, block: int) -> None:
    """They come in blocks of any size, without what was deleted or replaced, in the order of `items`."""
    values = {"number": np.arange(50.0), "vector": VECTORS * 2, "label": [f"l{i % 4}" for i in range(50)]}[kind]
    keys = [f"k{i}" for i in range(50)]
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(keys, values, vectors=VECTORS)
        db.delete(["k3", "k20"])
        db.add(["k5"], values[:1], vectors=-VECTORS[5:6], on_conflict="replace")
        columns = db.columns()
        found = list(columns.blocks(block))
        vectors, blended = (np.concatenate(parts) for parts in zip(*found, strict=True))
        items = columns.items(0, len(columns))
        assert len(columns) == len(vectors) == len(items) == len(db) == 48
        assert (columns.kind, columns.key_width, columns.compatibility) == (kind, 3, "cosine")
        assert columns.value_width == {"number": 1, "vector": 3, "label": 1}[kind]
        assert columns.temperature == db.info().temperature
        assert {one.key for one in items} == set(db)
        for one, vector, value in zip(items, vectors, blended, strict=True):
            assert np.array_equal(one.vector, vector)
            assert np.array_equal(one.value, value if columns.labels is None else columns.labels[value])
        assert db.check().ok


def test_columns_stay_at_their_commit(tmp_path: Path) -> None:
    """What is added, deleted and compacted later is not in them."""
    with softkv.open(tmp_path / "s") as db:
        db.add([f"k{i}" for i in range(50)], np.arange(50.0), vectors=VECTORS)
        columns = db.columns()
        db.add(vectors=VECTORS, values=np.arange(50.0))
        db.delete([f"k{i}" for i in range(0, 50, 2)])
        db.compact()
        vectors, values = (np.concatenate(parts) for parts in zip(*columns.blocks(7), strict=True))
        assert np.array_equal(vectors, VECTORS)
        assert np.array_equal(values, np.arange(50.0))
        assert len(columns) == 50
        assert columns.commit < db.columns().commit
        assert columns.store == db.columns().store
        assert len(db.columns()) == 75


def test_columns_of_nothing_are_refused(tmp_path: Path) -> None:
    """There is nothing to take up."""
    with softkv.open(tmp_path / "s") as db, pytest.raises(errors.EmptyStore):
        db.columns()
