"""Good stores that cases are made from: one of each kind, with and without an index. Made once, in a child."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from tests.databases import count_as_large

ITEMS, WIDTH = 12, 4
WORDS = ["a fox", "two dogs", "the sea", "winter", "a red house", "bread and butter"]
PROPOSERS = {
    "hnsw": "HNSW8,SQ8", "hnsw of pq": "HNSW8,PQ4", "flat": "Flat", "ivf": "IVF8,SQ8", "pq": "PQ4",
    "ivf of a graph": "IVF8_HNSW4,Flat", "ivf of pq": "IVF8,PQ4", "fast pq": "Pad12,IVF8,PQ3x4fs",
    "rabitq": "IVF8,RaBitQ", "fast rabitq": "RaBitQfs", "rotated": "RR8,SQ8", "pca": "PCA4,Flat",
}  # fmt: skip


def vectors(count: int, width: int = WIDTH) -> Any:
    """Key vectors, the same ones every time."""
    return np.random.default_rng([count, width]).standard_normal((count, width)).astype(np.float32)


def values(kind: str, count: int) -> Any:
    """Values of a kind."""
    if kind == "number":
        return [float(number) for number in range(count)]
    return vectors(count, 3) if kind == "vector" else [WORDS[number % len(WORDS)] for number in range(count)]


def make(folder: Path) -> None:
    """All templates, each a store under its name."""
    for kind in ("number", "vector", "label", "text"):
        _plain(folder / kind, kind)
    count_as_large(pytest.MonkeyPatch())
    for kind in ("number", "label"):
        with _large(folder / f"indexed {kind}", kind, 400) as db:
            db.build_index(lists=8)
    for name, kind in PROPOSERS.items():
        compatibility = "gaussian" if "HNSW8,PQ" in kind else "dot"
        with _large(folder / f"proposed {name}", "number", 300, compatibility) as db:
            db.build_index(kind)
    _begun(folder / "begun")
    softkv.open(folder / "empty").close()


def _plain(path: Path, kind: str) -> None:
    with softkv.open(path, value=kind) as db:
        names = [f"item {number}" for number in range(ITEMS)]
        db.add(names, values(kind, ITEMS), vectors=vectors(ITEMS), payloads=[{"n": n, "a": "b"} for n in range(ITEMS)])
        db.add(values=values(kind, 2), vectors=vectors(2))
        db.delete("item 5")
        db.add(["item 7"], values(kind, 1), vectors=vectors(1), on_conflict="replace")


def _large(path: Path, kind: str, count: int, compatibility: str = "cosine") -> Any:
    db = softkv.open(path, value=kind, compatibility=compatibility)
    names = [f"item {number}" for number in range(count)]
    db.add(names, values(kind, count), vectors=vectors(count, 12), payloads=[{"n": n} for n in range(count)])
    return db


def _begun(path: Path) -> None:
    """A store whose keys are being embedded anew."""
    from softkv.storage import Store

    _plain(path, "number")
    with Store.open(path, "w") as store:
        work = store.rebuild(key_width=6, settings=store.settings)
        waiting = work.waiting(5)
        work.write(vectors(len(waiting), 6), None)
