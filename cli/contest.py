"""A store beside plain FAISS and plain NumPy, asked in turn on the same items: how long each takes, how exact it is.

Each is asked once, unmeasured, before it counts, and between two of them there is a pause in which the threads of the
former go to sleep. Times are medians. FAISS multiplies matrices by BLAS here, up to four times as fast as by default.

Does not make the items (mixtures.py) or print anything (benching.py).

Shapes: n items, b queries, d key width, p value width.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.index.engine import by_blas
from softkv.ndarrays import Floats

from .mixtures import Mixture

Contender = Callable[[Any], Any]

TOP = 32
SCAN, ESTIMATE, BEST = "softkv, full softmax by a scan", "softkv, full softmax within 1%", f"softkv, top {TOP}"
FLAT, PLAIN = f"FAISS flat, top {TOP}", "NumPy, full softmax"
BLOCK = 1 << 14  # items that are compared together in float64


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one contestant. Errors are those of the batch, as shares of the value scale; None without values.

    Distances are from the full softmax in float64, also that of a top-k answer, which does not promise to be near it.
    """

    way: str
    one_ms: float  # one query
    one_to_faiss: float | None  # the same as a multiple of FAISS's time; None without FAISS
    one_to_numpy: float
    batch_ms: float
    batch_to_faiss: float | None
    batch_to_numpy: float
    rows_read: float  # for a query, on the average
    error: float | None = None  # the median of the queries
    largest_error: float | None = None
    largest_stated: float | None = None  # what softkv says the error is at most
    kept: int | None = None  # queries whose error is at most what was stated for them
    estimated: int | None = None  # queries that were not scanned
    scanned: str | None = None  # why the others were


def contest(db: Any, made: Mixture, *, index: bool, rounds: int, pause: float, threads: int) -> list[Result]:
    """Ask all contestants; without `index` the estimate and FAISS are left out."""
    info = db.info()
    ways: dict[str, Contender] = {
        SCAN: lambda asked: db.lookup(asked, tolerance=0),
        ESTIMATE: db.lookup,
        BEST: lambda asked: db.lookup(asked, k=TOP),
        PLAIN: lambda asked: plain(asked, made, info.temperature),
    }
    if not index:
        del ways[ESTIMATE]
        return _results(ways, made, info, rounds, pause)
    with _flat(made, threads) as search:
        return _results({**ways, FLAT: search}, made, info, rounds, pause)


def plain(asked: Any, made: Mixture, temperature: float) -> Any:
    """The formula as one would write it, for one query or many."""
    if asked.ndim == 1:
        weights = made.keys @ (asked / temperature)
        weights -= weights.max()
        np.exp(weights, out=weights)
        return weights @ made.values / weights.sum()
    weights = (asked / temperature) @ made.keys.T
    weights -= weights.max(axis=1, keepdims=True)
    np.exp(weights, out=weights)
    return weights @ made.values / weights.sum(axis=1, keepdims=True)


def exact(made: Mixture, temperature: float) -> Floats:
    """The full softmax of all queries in float64, a block of items after the other, (b, p)."""
    asked = _directions(made.queries)
    peak = np.full(len(asked), -np.inf)
    mass, total = np.zeros(len(asked)), np.zeros((len(asked), made.values.shape[1]))
    for start in range(0, len(made.keys), BLOCK):
        part = slice(start, start + BLOCK)
        logits = asked @ _directions(made.keys[part]).T / temperature
        higher = np.maximum(peak, logits.max(axis=1))
        fading, weights = np.exp(peak - higher), np.exp(logits - higher[:, None])
        mass = mass * fading + weights.sum(axis=1)
        total = total * fading[:, None] + weights @ made.values[part].astype(np.float64)
        peak = higher
    return total / mass[:, None]


def turns(works: Mapping[str, Callable[[int], Any]], rounds: int, pause: float) -> dict[str, float]:
    """The median seconds of each work, run in turn, back and forth; each gets the number of the round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in list(works)[:: 1 if number % 2 else -1]:
            time.sleep(pause)
            start = time.perf_counter()
            works[name](number)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


@contextmanager
def _flat(made: Mixture, threads: int) -> Iterator[Contender]:
    """The search of a FAISS index that compares with all keys, with as many threads as NumPy has."""
    with by_blas("softkv bench") as faiss:
        found = faiss.IndexFlatIP(made.keys.shape[1])
        found.add(made.keys)
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(threads)
        try:
            yield lambda asked: found.search(np.atleast_2d(asked), TOP)
        finally:
            faiss.omp_set_num_threads(before)


def _results(ways: Mapping[str, Contender], made: Mixture, info: Any, rounds: int, pause: float) -> list[Result]:
    queries = made.queries
    one = turns({name: _one_of(queries, ask) for name, ask in ways.items()}, rounds, pause)
    batch = turns({name: _all_of(queries, ask) for name, ask in ways.items()}, rounds, pause)
    true, found = exact(made, info.temperature), []
    for name, ask in ways.items():
        facts: dict[str, Any] = {
            "rows_read": float(info.items),
            **_times("one", name, one),
            **_times("batch", name, batch),
        }
        if name != FLAT:
            facts |= _exactness(name, ask(queries), true, info.value_scale)
        found.append(Result(way=name, **facts))
    return found


def _times(what: str, name: str, seconds: Mapping[str, float]) -> dict[str, float | None]:
    return {
        f"{what}_ms": seconds[name] * 1e3,
        f"{what}_to_faiss": seconds[name] / seconds[FLAT] if FLAT in seconds else None,
        f"{what}_to_numpy": seconds[name] / seconds[PLAIN],
    }


def _one_of(queries: Any, ask: Contender) -> Callable[[int], Any]:
    """Another query in every round, the same for all."""
    return lambda number: ask(queries[number % len(queries)])


def _all_of(queries: Any, ask: Contender) -> Callable[[int], Any]:
    return lambda _: ask(queries)


def _exactness(name: str, answers: Any, true: Floats, scale: float) -> dict[str, Any]:
    values = answers if name == PLAIN else answers.value
    errors = np.linalg.norm(values - true, axis=1) / scale
    found: dict[str, Any] = {"error": float(np.median(errors)), "largest_error": float(errors.max())}
    if name in (SCAN, ESTIMATE):
        stated = answers.error / scale
        found |= {"largest_stated": float(stated.max()), "kept": int((errors <= stated).sum())}
    if name == ESTIMATE:
        found |= {"estimated": len(true) - answers.routes.get("scan", 0), "scanned": answers.scanned}
    if name in (ESTIMATE, BEST):
        found["rows_read"] = float(np.mean(answers.rows_read))
    return found


def _directions(vectors: Any) -> Floats:
    doubled = vectors.astype(np.float64)
    found: Floats = doubled / np.linalg.norm(doubled, axis=1, keepdims=True)
    return found
