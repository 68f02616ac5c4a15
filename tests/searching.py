"""Random stores and random questions to them, and whether the answers are as near the truth as they say.

The truth is computed in long double from what the store gives back, the plain way: all scores, one softmax, one mean.
Kinds, ways to compare, sizes from tiny to huge, offsets, outliers, weights, batches, borders of blocks, masks and
filters are drawn; a finding tells the seed it comes from.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import import_from
from softkv.maths import lookup

from .databases import count_as_large
from .scales import scaled

Wide = np.ndarray  # of long doubles
COMPARED = ("dot", "scaled_dot", "cosine", "gaussian", "laplace", "student", "uniform")
KINDS = ("number", "vector", "label")
LEAST = 2.0**-149  # the least number above 0 of float32
NAMES = [f"label {number}" for number in range(7)]


@dataclass
class Drawn:
    """A store that was drawn, and what it holds, row by row of the live items in their order."""

    db: softkv.SoftKV
    keys: Wide  # (n, d)
    values: Wide  # (n, p), labels one-hot in the order of the store
    score: Callable[[Wide, Wide], Wide]  # (b, d) x (n, d) -> (b, n)
    usual: float  # a temperature that suits the keys
    rng: np.random.Generator
    told: dict[str, Any]  # how it was drawn
    indexed: bool = False
    met: Counter[str] = field(default_factory=Counter)  # how many answers of each kind of error there were
    planes: Any = None  # (queries, logits, store) -> heights and spreads, where numbers are read off planes

    def __enter__(self) -> "Drawn":
        return self

    def __exit__(self, *_error: object) -> None:
        self.db.close()


def size(rng: np.random.Generator, most: int) -> float:
    """A size between 10^-most and 10^most, often 1."""
    return 1.0 if rng.random() < 0.3 else float(10.0 ** rng.uniform(-most, most))


def numbers(rng: np.random.Generator, count: int, width: int, most: int) -> np.ndarray:
    """Columns of numbers of unlike size: offset, with outliers, exponential, constant, or all sizes at once."""
    plain = rng.standard_normal((count, width))
    way = rng.choice(["plain", "offset", "outlier", "exponential", "constant", "sizes", "columns"])
    scale = size(rng, most)
    if way == "offset":
        return np.asarray(plain * scale + rng.choice([-1.0, 1.0]) * min(1e12, 10.0**most) * rng.random())
    if way == "outlier":
        plain[rng.integers(count)] *= 10.0 ** rng.uniform(0, most)
    if way == "exponential":
        return np.asarray(np.exp(np.clip(4.0 * plain * rng.uniform(1, 4), -60, 60)))
    if way == "constant":
        return np.full((count, width), plain[0, 0] * scale)
    if way == "sizes":
        return np.asarray(plain * 10.0 ** rng.uniform(-most, most, (count, 1)))
    if way == "columns":
        return np.asarray(plain * 10.0 ** rng.uniform(-most, most, width))
    return np.asarray(plain * scale)


def vectors(rng: np.random.Generator, count: int, width: int, most: int) -> np.ndarray:
    """Keys: scattered, in a few clusters, far from the origin, in pairs of equals, or of unlike lengths."""
    plain = rng.standard_normal((count, width))
    way = rng.choice(["plain", "clusters", "far", "pairs", "lengths"])
    if way == "clusters":
        plain = rng.standard_normal((4, width))[rng.integers(4, size=count)] + 0.05 * plain
    if way == "far":
        plain = plain + 10.0 ** rng.uniform(0, 4)
    if way == "pairs":
        plain = plain[rng.integers(count, size=count)]
    if way == "lengths":
        plain = plain * np.exp(rng.uniform(-3, 3, (count, 1)))
    return (plain * size(rng, most)).astype(np.float32)


def plain_store(folder: Path, rng: np.random.Generator) -> Drawn:
    """A store of some items that were never indexed and have never been learned from; some are deleted."""
    count, width = int(rng.integers(1, 201)), int(rng.integers(1, 9))
    kind, compatibility = str(rng.choice(KINDS)), str(rng.choice(COMPARED))
    given = vectors(rng, count, width, 12)
    if kind == "label":
        held: Any = [NAMES[code] for code in rng.integers(rng.integers(1, len(NAMES) + 1), size=count)]
    else:
        held = numbers(rng, count, 1 if kind == "number" else int(rng.integers(1, 5)), 30)
        held = held[:, 0] if kind == "number" else np.clip(held, -1e37, 1e37).astype(np.float32)
    db = softkv.open(folder, value=kind, compatibility=compatibility)
    db.add([f"{one}" for one in range(count)], held, vectors=given, payloads=[{"n": one % 5} for one in range(count)])
    gone = rng.permutation(count)[: int(count * rng.choice([0.0, 0.0, 0.2, 0.7]))]
    for one in gone.tolist():
        del db[f"{one}"]
    return drawn_of(db, rng, {"items": count, "gone": len(gone), "width": width})


def indexed_store(folder: Path, rng: np.random.Generator) -> Drawn:
    """A store with an index; afterwards some items were added, and others deleted."""
    count, width, kind = int(rng.integers(300, 1200)), int(rng.integers(1, 7)), str(rng.choice(KINDS))
    compatibility = str(rng.choice(["dot", "scaled_dot", "cosine", "gaussian"]))
    given = vectors(rng, count, width, 3)
    held: Any = [NAMES[code] for code in np.abs(given[:, 0] / np.abs(given).max() * 6.9).astype(int)]
    if kind != "label":
        held = numbers(rng, count, 1 if kind == "number" else 3, 12)
        held[:, 0] += np.abs(held).max() * np.tanh(given[:, 0] / np.abs(given).max()) * rng.choice([0.0, 1.0])
        held = held[:, 0] if kind == "number" else held.astype(np.float32)
    db = softkv.open(folder, value=kind, compatibility=compatibility)
    late = int(count * rng.choice([0.0, 0.2]))
    db.add([f"{one}" for one in range(late, count)], held[late:], vectors=given[late:])
    db.build_index(lists=int(rng.integers(1, 40)))
    if late:
        db.add([f"{one}" for one in range(late)], held[:late], vectors=given[:late])
    gone = rng.permutation(count)[: int(count * rng.choice([0.0, 0.0, 0.2]))]
    for one in gone.tolist():
        del db[f"{one}"]
    drawn = drawn_of(db, rng, {"items": count, "late": late, "gone": len(gone), "width": width, "indexed": True})
    drawn.indexed = True
    return drawn


def learned_store(folder: Path, rng: np.random.Generator) -> Drawn:
    """A store that has learned how to compare, perhaps to read numbers off planes."""
    count, width = int(rng.integers(40, 150)), int(rng.integers(2, 5))
    kind, compatibility = str(rng.choice(KINDS)), str(rng.choice(["cosine", "gaussian"]))
    given = vectors(rng, count, width, 2)
    level = given[:, 0] / np.abs(given).max()
    held: Any = [NAMES[code] for code in np.abs(level * 2.9).astype(int)]
    if kind != "label":
        held = np.stack([10.0 * np.tanh(3 * level), level**2, level], axis=1) * size(rng, 6)
        held = held + rng.choice([0.0, 1e4]) * np.abs(held).max()
        held[rng.integers(count)] *= rng.choice([1.0, 1e6])
        held = held[:, 0] if kind == "number" else held.astype(np.float32)
    db = softkv.open(folder, value=kind, compatibility=compatibility)
    db.add([f"{one}" for one in range(count)], held, vectors=given)
    for one in rng.permutation(count)[: int(count * rng.choice([0.0, 0.1]))].tolist():
        del db[f"{one}"]
    db.fit(planes=True if kind == "number" and compatibility == "gaussian" and rng.random() < 0.7 else None)
    drawn = drawn_of(db, rng, {"items": count, "width": width, "learned": True})
    learned = db._view().learned
    if learned is None:
        return drawn
    factors, centre = learned.metric.factors.astype(np.longdouble), learned.metric.centre.astype(np.longdouble)

    def projected(x: Wide) -> Wide:
        if learned.metric.directions:
            x = x / np.sqrt((x**2).sum(1, keepdims=True))
        return (x - centre) @ factors.T

    drawn.score, drawn.usual = lambda q, k: scores("gaussian", projected(q), projected(k)), 1.0
    if learned.ridge is not None:
        drawn.planes = lambda q, logits, store: on_planes(learned, q, logits, store)
    return drawn


def on_planes(learned: Any, queries: Wide, logits: Wide, store: Drawn) -> tuple[Wide, Wide]:
    """The heights at the queries of planes of least squares, with a ridge, and how far the numbers lie from them."""
    keys, asked = ((x - learned.metric.centre) / learned.units for x in (store.keys, queries))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    heights, spreads = [], []
    for share, query in zip(weights, asked, strict=True):
        middle, mean = share @ keys, share @ store.values[:, 0]
        known, numbers = keys - middle, store.values[:, 0] - mean
        spread = (known * share[:, None]).T @ known + np.longdouble(learned.ridge) * np.eye(keys.shape[1])
        slope = np.linalg.solve(spread.astype(np.float64), (known.T @ (share * numbers)).astype(np.float64))
        heights.append([mean + (query - middle) @ slope])
        spreads.append([np.sqrt(share @ (numbers - known @ slope) ** 2)])
    return np.array(heights), np.array(spreads)


def drawn_of(db: softkv.SoftKV, rng: np.random.Generator, told: dict[str, Any]) -> Drawn:
    """A store as it stands, with everything that it holds."""
    items, compatibility = list(db.select()), str(db.info().compatibility)
    held = np.array([item.vector for item in items]).astype(np.longdouble)
    usual = {"cosine": 1.0, "student": 1.0, "uniform": 1.0}.get(compatibility, float(np.abs(held).max()) or 1.0)
    if compatibility in ("dot", "scaled_dot", "gaussian"):
        usual **= 2
    if db.value_kind == "label":
        order = db.lookup(np.ones((1, held.shape[1])), compatibility="uniform").labels
        values = np.array([[item.value == name for name in order] for item in items]).astype(np.longdouble)
    else:
        values = np.array([np.ravel(item.value) for item in items]).astype(np.longdouble)
    told = {"kind": db.value_kind, "compatibility": compatibility, **told}
    return Drawn(db, held, values, partial(scores, compatibility), usual, rng, told)


def scores(compatibility: str, queries: Wide, keys: Wide) -> Wide:
    """All scores, (b, d) x (n, d) -> (b, n)."""
    if compatibility == "uniform":
        return np.zeros((len(queries), len(keys)), np.longdouble)
    if compatibility in ("gaussian", "laplace", "student"):
        apart = queries[:, None, :] - keys[None]
        squares = 0.5 * (apart**2).sum(-1)
        return {"gaussian": -squares, "laplace": -np.abs(apart).sum(-1), "student": -np.log1p(squares)}[compatibility]
    plain = (queries[:, None, :] * keys[None]).sum(-1)
    if compatibility == "scaled_dot":
        return plain / np.sqrt(np.longdouble(queries.shape[1]))
    if compatibility == "cosine":
        lengths = [np.sqrt((x**2).sum(-1)) for x in (queries, keys)]
        return plain / lengths[0][:, None] / lengths[1]
    return plain


def truth(logits: Wide, values: Wide, k: int | None) -> tuple[Wide, Wide]:
    """The weighted means and standard deviations, (b, p) both, of the k best rows or all; -inf leaves a row out."""
    logits = logits.copy()
    if k is not None and k < logits.shape[1]:
        last = -np.sort(-logits, axis=1)[:, k - 1 : k]
        extra = np.cumsum(logits == last, axis=1) > k - (logits > last).sum(1, keepdims=True)
        logits[(logits < last) | ((logits == last) & extra)] = -np.inf
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    means = weights @ values
    apart = (values[None] - means[:, None, :]) ** 2
    return means, np.sqrt((weights[:, :, None] * apart).sum(1))


def questions(store: Drawn) -> tuple[np.ndarray, dict[str, Any], np.ndarray]:
    """Queries, options of a lookup, and which items each query may see, (b, n)."""
    rng, count = store.rng, len(store.keys)
    queries = store.keys[rng.integers(count, size=int(rng.choice([1, 2, 7, 33])))].astype(np.float64)
    astray = rng.standard_normal(queries.shape) * np.abs(queries).max()
    queries = queries + rng.choice([0.0, 1e-6, 0.1, 1.0, 30.0]) * astray
    queries[~queries.any(axis=1)] = float(np.abs(store.keys).max()) or 1.0
    if rng.random() < 0.7:
        queries = queries.astype(np.float32)
    temperature = store.usual * 10.0 ** rng.uniform(-4, 3)
    options: dict[str, Any] = {"temperature": temperature, "show": int(rng.choice([0, 1, 10]))}
    if store.indexed:
        options["tolerance"] = float(10.0 ** rng.uniform(-3, 0))
        if rng.random() < 0.5:
            options["guarantee"] = "bound"
        else:
            options |= {"temperature": store.db.info().temperature * 10.0 ** rng.uniform(-0.5, 1), "tolerance": 0.3}
    seen = np.ones((len(queries), count), np.bool_)
    if rng.random() < 0.2:
        options["k"] = int(rng.integers(1, count + 2))
    if rng.random() < 0.15:
        seen = rng.random((len(queries), count)) < 0.5
        seen[:, rng.integers(count)] = True
        options["mask"] = seen
    return queries, options, seen


def findings(store: Drawn) -> Iterator[str]:
    """Where answers to some questions are farther from the truth than they say, alone or in a batch."""
    queries, options, seen = questions(store)
    try:
        found = store.db.lookup(queries, **options)
    except softkv.errors.NotFinite:
        return  # refused, with a reason
    wide = queries.astype(np.longdouble)
    logits = store.score(wide, store.keys) / np.longdouble(options["temperature"])
    logits = np.where(seen, logits, -np.inf)
    means, spreads = truth(logits, store.values, options.get("k"))
    if store.planes is not None and "k" not in options:  # the k best are averaged
        means, spreads = store.planes(wide, logits, store)
    kinds = found.error_kind if isinstance(found.error_kind, tuple) else (found.error_kind,) * len(queries)
    store.met.update(kinds)
    for one, kind in enumerate(kinds):
        said = {name: given for name, given in options.items() if name != "mask"}
        place = f"{store.told}, {said}{', masked' if 'mask' in options else ''}, query {one}: {kind}"
        value, error = np.ravel(found.value[one]).astype(np.longdouble), float(found.error[one])
        apart = np.sqrt(((value - means[one]) ** 2).sum())
        if kind in ("exact", "bound") and not apart <= error:
            yield f"{place} {value} ± {error}, in truth {means[one]}, {apart / (error or 1e-300):.3g} times as far"
        if found.spread is not None and kind == "exact":
            off = abs(float(found.spread[one] - spreads[one, 0]))
            lost = LEAST**0.5 * float(np.abs(store.values - means[one]).sum())  # of weights below those of float32
            if not off <= 3.0 * error + 1e-6 * spreads[one, 0] + lost:
                yield f"{place}, spread {found.spread[one]}, in truth {spreads[one, 0]}, error {error}"
    if len(queries) > 1:
        yield from _alone(store, queries, options, found)


def _alone(store: Drawn, queries: np.ndarray, options: dict[str, Any], found: Any) -> Iterator[str]:
    """Where one of the queries is answered otherwise alone than in a batch."""
    one = int(store.rng.integers(len(queries)))
    if "mask" in options:
        options = {**options, "mask": options["mask"][one]}
    alone = store.db.lookup(queries[one], **options)
    apart = np.linalg.norm(np.ravel(alone.value - found.value[one]).astype(np.float64))
    if not apart <= alone.error + found.error[one]:
        yield f"{store.told}, query {one}: alone {alone.value} ± {alone.error}, among {len(queries)} {found.value[one]}"


def lost(store: Drawn, folder: Path) -> Iterator[str]:
    """What an export to one of the formats, read into a new store, does not bring along."""
    file = folder / f"all.{store.rng.choice(['jsonl', 'npz', 'parquet'])}"
    store.db.export(file)
    import_from(file, folder / "copy")
    queries, options, _ = questions(store)
    options |= {"tolerance": 0.0, "show": 0}
    with softkv.open(folder / "copy", "r") as copy:
        for mine, others in zip(store.db.select(), copy.select(), strict=True):
            same = all(np.array_equal(*pair) for pair in ((mine.vector, others.vector), (mine.value, others.value)))
            if (mine.key, mine.payload) != (others.key, others.payload) or not same:
                yield f"{store.told}, {file.suffix}: {mine} became {others}"
        told = [
            (one.compatibility, one.temperature, one.value_kind, one.projection)
            for one in (store.db.info(), copy.info())
        ]
        if told[0] != told[1]:
            yield f"{store.told}, {file.suffix}: {told[0]} became {told[1]}"
        for temperature in (options["temperature"], None):
            try:
                found, again = (
                    db.lookup(queries, **{**options, "temperature": temperature}) for db in (store.db, copy)
                )
            except softkv.errors.NotFinite:
                continue
            if found.labels is not None:  # the copy knows none that no item has
                found = replace(found, value=found.value[:, [found.labels.index(one) for one in again.labels]])
            apart = np.linalg.norm((found.value - again.value).reshape(len(queries), -1).astype(np.float64), axis=1)
            if not (apart <= found.error + again.error).all():
                yield f"{store.told}, {file.suffix}: {found.value} became {again.value}"


def small_blocks(rng: np.random.Generator, patch: pytest.MonkeyPatch) -> None:
    """Blocks of rows and of queries of some other size than usual, so that small stores have many."""
    scaled(patch, rows=int(rng.choice([3, 16, 50, 1 << 17])))
    patch.setattr(lookup, "LOGITS", int(rng.choice([40, 300, 3 << 19])))
    scaled(patch, queries=int(rng.choice([2, 10, 1024])))


def small_indexes(patch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, and indexes rehearse with few items."""
    count_as_large(patch, rehearsed=240)
