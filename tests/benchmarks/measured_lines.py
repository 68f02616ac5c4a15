"""What measured answers are asked, line by line: stores of many kinds, and the queries to each.

A build is a store of items of its own, with a secret of its own, from which all follows that is drawn; and an index of
as many lists as it has by default. Temperatures are drawn for each query, evenly by their logarithms, from a range
around that of the rule. All seeds follow from SEED and the number of the build.

Shapes: n items, b queries, d key width.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.mixtures import mixture, values_of

import softkv
from softkv.ndarrays import Matrix

from ..stores import with_secret

SEED = 20261124
WIDTH, VALUE_WIDTH, RANK_ONE_WIDTH = 32, 8, 64
TOLERANCE = 0.02  # of all lines but those with another
CALIBRATED_ON = 100  # queries: measured answers follow from no rehearsal, and it is as short as it may be
COLDER, COLD, MEDIUM, WARM, WARMER = (0.02, 0.2), (0.2, 1.0), (1.0, 10.0), (10.0, 100.0), (100.0, 1000.0)
LABELS = (2, 77, 5000)
CHANGED = 10  # one in so many is deleted, and as many are added


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """One of several: where its stores are, and how large they are."""

    number: int
    folder: Path
    items: int
    queries: int

    def rng(self, name: str) -> np.random.Generator:
        """What is random in what goes by a name."""
        return np.random.default_rng([SEED, self.number, *name.encode()])

    def secret(self, name: str) -> bytes:
        """The secret of the store of this name."""
        return hashlib.blake2b(f"{SEED} {self.number} {name}".encode(), digest_size=32).digest()


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Queries of one kind."""

    name: str
    queries: Matrix  # (b, d)
    times: tuple[float, float]  # from the lowest to the highest temperature, times that of the rule
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE

    def temperatures(self, rule: float, rng: np.random.Generator) -> Any:
        """A temperature for each query, (b,)."""
        return rule * np.exp(rng.uniform(*np.log(self.times), len(self.queries)))


Lines = Iterator[tuple[Any, float, Line]]  # the store, the temperature of the rule, and what to ask


@contextmanager
def store(
    build: Build, name: str, keys: Matrix, values: Any, compatibility: str, *, lists: int | None = None, **options: Any
) -> Iterator[tuple[Any, float]]:
    """A store of these items with its index, until it is left; and the temperature of the rule."""
    path = build.folder / name
    kind = "label" if isinstance(values, list) else "number" if values.ndim == 1 else "vector"
    names = [str(number) for number in range(len(keys))]
    with softkv.open(path, "n", value=kind, compatibility=compatibility) as db:
        db.add(names, values, vectors=keys, **options)
    with_secret(path, build.secret(name))
    with softkv.open(path) as db:
        rule = db._view().usual_temperature
        db.build_index(lists=lists, queries=keys[:CALIBRATED_ON], temperatures=(rule, rule))
        yield db, rule


def vectors(build: Build) -> Lines:
    """Queries, temperatures, filters and changes."""
    rng, late = build.rng("vectors"), build.items // CHANGED
    made = mixture(build.items + late, WIDTH, VALUE_WIDTH, build.queries, int(rng.integers(1 << 30)))
    keys, values, like = made.keys[: build.items], made.values[: build.items], made.queries
    strange = directions(rng, build.queries, WIDTH)
    payloads = payloads_of(keys, rng)
    with store(build, "vectors", keys, values, "cosine", payloads=payloads) as (db, rule):
        for times in (COLDER, COLD, MEDIUM, WARM, WARMER):
            yield db, rule, Line(f"like the items, T {told(times)}", like, times)
        for times in (MEDIUM, WARM):
            yield db, rule, Line(f"random directions, T {told(times)}", strange, times)
        for how, name in (("drawn", "at random"), ("side", "by cluster")):
            for tenths in (1, 5, 9):
                options = {"where": {how: {"$lt": tenths}}}
                yield db, rule, Line(f"filter of {tenths}0% {name}", like, (3.0, 100.0), options)
        db.delete([str(number) for number in rng.choice(build.items, late, replace=False)])
        db.add(vectors=made.keys[build.items :], values=made.values[build.items :])
        yield db, rule, Line("like the items, after 10% deleted and added", like, (3.0, 100.0))
        yield db, rule, Line("random directions, after 10% deleted and added", strange, (3.0, 100.0))


def numbers(build: Build) -> Lines:
    """Numbers, of which a few are far larger than all others."""
    keys, base, half, rng = clustered(build, "numbers")
    values = np.exp(1.5 * rng.standard_normal(len(keys)) + base)
    with store(build, "numbers", keys, values, "cosine") as (db, rule):
        yield db, rule, Line("numbers with heavy tails", half, (3.0, 100.0))


def labels(count: int, build: Build) -> Lines:
    """Labels that depend on keys, and as much on chance."""
    keys, base, half, rng = clustered(build, f"labels {count}")
    order = np.argsort(np.argsort(base / base.std() + rng.standard_normal(len(keys))))
    values = [f"label {code}" for code in (order * min(count, len(keys)) // len(keys)).tolist()]
    with store(build, f"labels {count}", keys, values, "cosine") as (db, rule):
        yield db, rule, Line(f"{count:,} labels", half, (3.0, 100.0))


def rank_one(build: Build) -> Lines:
    """Vectors along one direction: they have many columns, and all vary together."""
    keys, base, half, rng = clustered(build, "rank one")
    along = rng.standard_normal(RANK_ONE_WIDTH)
    values = ((base + rng.standard_normal(len(keys)))[:, None] * along).astype(np.float32)
    with store(build, "rank one", keys, values, "cosine") as (db, rule):
        yield db, rule, Line("values of rank one", half, (3.0, 100.0))


def gaussian(width: int, build: Build) -> Lines:
    """Squared distances in few axes: rows of a list differ much in them, and are not normal."""
    rng, name = build.rng(f"gaussian {width}"), f"gaussian {width}"
    keys = rng.standard_normal((build.items, width)).astype(np.float32)
    noise = 0.3 * rng.standard_normal((build.items, 2))
    values = (np.stack([np.sin(keys[:, 0]), keys[:, 1] ** 2], axis=1) + noise).astype(np.float32)
    queries = rng.standard_normal((build.queries, width)).astype(np.float32)
    queries[::2] *= 2  # farther than all items
    with store(build, name, keys, values, "gaussian") as (db, rule):
        for times in (COLD, MEDIUM, WARM):
            yield db, rule, Line(f"gaussian in {width} dimensions, T {told(times)}", queries, times)


def heads(build: Build) -> Lines:
    """Four learned projections of what is asked, of keys and of values."""
    keys, _, half, rng = clustered(build, "heads")
    values = values_of(keys, VALUE_WIDTH, rng)
    query, key = (rng.standard_normal((4, 16, WIDTH)) / np.sqrt(WIDTH) for _ in range(2))
    value = rng.standard_normal((4, VALUE_WIDTH, VALUE_WIDTH)) / VALUE_WIDTH
    options = {"heads": softkv.Heads(query, key, value)}
    with store(build, "heads", keys, values, "dot") as (db, rule):
        yield db, rule, Line("4 heads", half, (3.0, 100.0), options, 0.1)


STORES: dict[str, Callable[[Build], Lines]] = {
    "vectors": vectors,
    "numbers": numbers,
    **{f"labels {count}": partial(labels, count) for count in LABELS},
    "rank one": rank_one,
    **{f"gaussian {width}": partial(gaussian, width) for width in (4, 16)},
    "heads": heads,
}


def clustered(build: Build, name: str) -> tuple[Matrix, Any, Matrix, np.random.Generator]:
    """Keys, (n, d), numbers that follow from them, (n,), queries of which half are like the items, and what is left."""
    rng = build.rng(name)
    made = mixture(build.items, WIDTH, 1, build.queries, int(rng.integers(1 << 30)))
    queries = made.queries
    queries[::2] = directions(rng, len(queries[::2]), WIDTH)
    return made.keys, made.values[:, 0].astype(np.float64), queries, rng


def directions(rng: np.random.Generator, count: int, width: int) -> Matrix:
    """Queries that look nowhere in particular."""
    return rng.standard_normal((count, width)).astype(np.float32)


def payloads_of(keys: Matrix, rng: np.random.Generator) -> Sequence[dict[str, int]]:
    """Tenths of the items: drawn, and by how far they lie along the first axis."""
    drawn, order = rng.integers(0, 10, len(keys)), np.argsort(np.argsort(keys[:, 0]))
    sides = order * 10 // len(keys)
    return [{"drawn": one, "side": other} for one, other in zip(drawn.tolist(), sides.tolist(), strict=True)]


def told(times: tuple[float, float]) -> str:
    """A range of temperatures.

    >>> told((0.2, 1.0))
    '0.2 to 1 ×'
    """
    return f"{times[0]:g} to {times[1]:g} ×"
