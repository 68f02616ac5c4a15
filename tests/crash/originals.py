"""Real stores to damage, each with an older copy, a newer one, and another store of the same shape.

They are made with everything that a store can hold: payloads, items without keys, replaced and deleted ones, settings,
an index with rows behind it, derived parts; some with pages of 512 bytes, so that even a small catalog is a tree of
several levels.
"""

import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import softkv
from tests.crash.children import Child, Say
from tests.stores import CATALOG, bytes_of

Files = dict[str, bytes]  # by their names under the directory of the store
WIDTH, VALUE_WIDTH = 4, 3


@dataclass(frozen=True)
class Recipe:
    """What a store is made of."""

    kind: str  # of the values
    items: int
    index: str = "lists"
    tiny: bool = False  # with windows and bitmaps of a few rows
    page: int = 512  # bytes of a page of the catalog
    unclean: bool = False  # as its writer left it that had no time to close


@dataclass(frozen=True)
class Original:
    """The bytes of a store, and of the copies that parts of it may be taken from."""

    recipe: Recipe
    whole: Files
    older: Files
    newer: Files
    other: Files


def made(recipe: Recipe, folder: Path) -> Original:
    """The store and its copies, made by a child: whatever a writer leaves in a process goes with it."""
    folder.mkdir()
    with Child(lambda say: _make(recipe, folder, say)) as child:
        assert [said for (said,) in child.all()] == ["made"]
    copies = {name: bytes_of(folder / name) for name in ("whole", "older", "newer", "other")}
    assert bool(copies["whole"].get(f"{CATALOG}-wal")) == recipe.unclean
    return Original(recipe, **copies)


def alone() -> None:
    """Let FAISS use one thread: those of the parent did not survive the fork, and would be waited for."""
    import faiss

    faiss.omp_set_num_threads(1)


def _make(recipe: Recipe, folder: Path, say: Say) -> None:
    path = folder / "store"
    alone()
    _begun(path, recipe, seed=1)
    _copy(path, folder / "older")
    db = softkv.open(path)
    _go_on(db, recipe, seed=2)
    if not recipe.unclean:
        db.close()
    _copy(path, folder / "whole")
    if not recipe.unclean:
        db = softkv.open(path)
    _go_on(db, recipe, seed=3)
    db.close()
    _copy(path, folder / "newer")
    _begun(folder / "other", recipe, seed=4)
    with softkv.open(folder / "other") as other:
        _go_on(other, recipe, seed=5)
    say("made")


def _begun(path: Path, recipe: Recipe, *, seed: int) -> None:
    """A store with an index."""
    softkv.open(path, value=recipe.kind, compatibility="cosine").close()
    _set_page(path, recipe.page)
    rng = np.random.default_rng(seed)
    with softkv.open(path) as db:
        names = [None if number % 7 == 3 else _name(number) for number in range(recipe.items)]
        _add(db, recipe, names, rng)
        _add(db, recipe, [_name(number) for number in (1, 4, 5)], rng)
        db.delete([_name(0), _name(6)])
        db.set_temperature(0.5 + seed)
        if recipe.index == "lists":
            db.build_index(lists=max(2, recipe.items // 12), temperatures=(0.5, 2.0))
        else:
            db.build_index(recipe.index)
        _derive(db)


def _go_on(db: Any, recipe: Recipe, *, seed: int) -> None:
    """A tail behind the index, a replaced row in it, a dead one of each, and another temperature."""
    rng = np.random.default_rng(seed)
    _add(db, recipe, [f"tail {seed} {number}" for number in range(4)], rng)
    _add(db, recipe, [_name(seed + 8)], rng)
    db.delete([f"tail {seed} 1", _name(seed + 13)])
    db.set_temperature(1.0 + seed / 10)
    _derive(db)


def _derive(db: Any) -> None:
    """Put a derived part on pages of its own; it begins with the name of the store, so that no other's is taken."""
    with db._store.snapshot() as snapshot:
        db._store.put_derived("beside", f"{snapshot.store} {snapshot.commit} ".encode() * 40)


def _name(number: int) -> str:
    """Some look like numbers, which a text must never become."""
    return str(number) if number % 3 == 0 else f"item {number}"


def _add(db: Any, recipe: Recipe, names: list[str | None], rng: np.random.Generator) -> None:
    keys = rng.standard_normal((len(names), WIDTH))
    payloads = [None if number % 5 == 2 else {"n": int(n)} for number, n in enumerate(rng.integers(0, 90, len(names)))]
    db.add(names, _values(recipe.kind, len(names), rng), vectors=keys, payloads=payloads, on_conflict="replace")


def _values(kind: str, count: int, rng: np.random.Generator) -> Any:
    if kind == "number":
        return rng.normal(3.0, 2.0, count)
    if kind == "vector":
        return rng.standard_normal((count, VALUE_WIDTH)).astype(np.float32)
    some = [f"colour {number}" for number in range(4)] if kind == "label" else ["a fox", "the sea", "winter", "bread"]
    return [some[number] for number in rng.integers(0, len(some), count)]


def _set_page(path: Path, size: int) -> None:
    """Lay the catalog out in pages of another size, as any program that knows SQLite may."""
    driver = sqlite3.connect(path / CATALOG, isolation_level=None)
    for statement in ("journal_mode=delete", f"page_size={size}"):
        driver.execute(f"PRAGMA {statement}").fetchall()
    driver.execute("VACUUM")
    driver.execute("PRAGMA journal_mode=wal").fetchall()
    driver.close()


def _copy(path: Path, target: Path) -> None:
    """By another process, since the catalog may be open in this one."""
    subprocess.run(["cp", "-R", path, target], check=True)
