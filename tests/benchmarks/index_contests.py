"""Who is faster: contestants asked in turn, in one process with the same threads; and the scans of a store.

Before each contestant there is a pause, in which the threads of the one before go to sleep. Whoever is fast answers
several queries in its turn, so that the slowest one in a hundred can be told.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import softkv
from softkv.ndarrays import Matrix

from .index_data import TEMPERATURE, in_memory, mixture, store_of
from .index_report import Bench, at_least, at_most

BURST, SLOW_BURST = 17, 3  # queries in a turn
TOP = 32
BATCH_ASKED = 256  # queries asked together
FLAT, SDPA, PLAIN = "faiss.IndexFlatIP", "torch, attention", "torch, formula"
EXACT = "exact torch"


class Work(NamedTuple):
    """What a contestant does with the query of a number, and how often in its turn."""

    ask: Callable[[int], Any]
    burst: int = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """The seconds that a contestant took for each call."""

    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median."""
        return float(np.median(self.seconds))

    @property
    def p99(self) -> float:
        """What one in a hundred takes longer than."""
        return float(np.quantile(self.seconds, 0.99))

    def __str__(self) -> str:
        return shown(self.p50) if len(self.seconds) < 100 else f"{shown(self.p50)}, p99 {shown(self.p99)}"


def shown(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> shown(0.0012345), shown(2.5)
    ('1.23 ms', '2.50 s')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def times(ratio: float) -> str:
    """A ratio as people say it.

    >>> times(0.025), times(1.071)
    ('1/40', '1.07 ×')
    """
    return f"{ratio:.3g} ×" if ratio > 0.5 else f"1/{1 / ratio:.3g}"


def turns(bench: Bench, works: Mapping[str, Work], rounds: int | None = None) -> dict[str, Taken]:
    """What each took; they are asked in turn, back and forth, and the first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range((rounds or bench.rounds) + 1):
        for name in list(works)[:: 1 if turn % 2 else -1]:
            time.sleep(bench.pause)
            work = works[name]
            for number in range(turn * work.burst, (turn + 1) * work.burst):
                start = time.perf_counter()
                work.ask(number)
                seconds[name].append(time.perf_counter() - start)
    return {name: Taken(tuple(taken[works[name].burst :])) for name, taken in seconds.items()}


def singly(queries: Matrix, ask: Callable[[Matrix], Any], burst: int = BURST) -> Work:
    """One query after the other."""
    return Work(lambda number: ask(queries[number % len(queries)]), burst)


def together(queries: Matrix, ask: Callable[[Matrix], Any]) -> Work:
    """All of them at once."""
    return Work(lambda _: ask(queries))


class Torch:
    """The two fast exact ways of torch, on the same arrays."""

    def __init__(self, keys: Matrix, values: Matrix) -> None:
        import torch

        self._torch = torch
        self._keys, self._values = torch.from_numpy(keys), torch.from_numpy(values)
        # Attention is slow on values that are not as wide as the keys.
        self._padded = torch.nn.functional.pad(self._values, (0, keys.shape[1] - values.shape[1]))

    def attention(self, queries: Matrix, temperature: float) -> Any:
        """Its own attention."""
        asked = self._torch.from_numpy(np.atleast_2d(queries))
        attend = self._torch.nn.functional.scaled_dot_product_attention
        return attend(asked[None, None], self._keys[None, None], self._padded[None, None], scale=1.0 / temperature)

    def formula(self, queries: Matrix, temperature: float) -> Any:
        """The formula as one would write it."""
        scaled = self._torch.from_numpy(queries / np.float32(temperature))
        if scaled.ndim == 1:
            return self._torch.softmax(self._keys @ scaled, 0) @ self._values
        return self._torch.softmax(scaled @ self._keys.T, -1) @ self._values

    def works(self, queries: Matrix, *, batch: bool) -> dict[str, Work]:
        """Both as contestants; how warm it is makes no difference to them."""

        def work(way: Callable[[Matrix, float], Any]) -> Work:
            def ask(asked: Matrix) -> Any:
                return way(asked, TEMPERATURE)

            return together(queries, ask) if batch else singly(queries, ask, SLOW_BURST)

        return {SDPA: work(self.attention), PLAIN: work(self.formula)}


def exact_torch(found: Mapping[str, Taken]) -> Taken:
    """The faster of the two."""
    return min((found[SDPA], found[PLAIN]), key=lambda taken: taken.p50)


@contextmanager
def blas_from(faiss: Any, queries: int) -> Iterator[None]:
    """FAISS multiplying matrices by BLAS from so many queries on; what was set comes back."""
    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = queries
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


def scans(bench: Bench) -> None:
    """All items compared, for the best of them and for the mean of all, and the best by the index."""
    import faiss

    data = mixture(bench)
    path, items = store_of(bench, data), in_memory(data)
    flat = faiss.IndexFlatIP(items.keys.shape[1])
    flat.add(items.keys)
    bench.begin(f"Scans: {data.count:,} × {items.keys.shape[1]}, top {TOP} and exact full softmax")
    with softkv.open(path, "r") as db:
        _one_query(bench, db, flat, items)
        with blas_from(faiss, 20):
            _many_queries(bench, db, flat, items.queries[: bench.sized(BATCH_ASKED, least=32)])


def _best(db: Any, tolerance: float) -> Callable[[Matrix], Any]:
    return lambda asked: db.lookup(asked, k=TOP, temperature=TEMPERATURE, tolerance=tolerance, show=TOP)


def _one_query(bench: Bench, db: Any, flat: Any, items: Any) -> None:
    queries = items.queries
    works = {
        FLAT: singly(queries, lambda asked: flat.search(asked[None], TOP), SLOW_BURST),
        "top": singly(queries, _best(db, 0), SLOW_BURST),
        "indexed": singly(queries, _best(db, 0.01)),
        "full": singly(queries, lambda asked: db.lookup(asked, temperature=TEMPERATURE, tolerance=0), SLOW_BURST),
    }
    found = turns(bench, {**works, **Torch(items.keys, items.values).works(queries, batch=False)})
    compared(bench, f"exact top-{TOP}, 1 query", found["top"], FLAT, found[FLAT], at_most(0.6))
    torch = exact_torch(found)
    compared(bench, "exact full softmax, 1 query", found["full"], EXACT, torch, at_most(1.1))
    compared(bench, f"top-{TOP} by the index, 1 query", found["indexed"], FLAT, found[FLAT], at_most(1 / 30, "1/30"))


def _many_queries(bench: Bench, db: Any, flat: Any, queries: Matrix) -> None:
    works = {
        "by BLAS": together(queries, lambda asked: flat.search(asked, TOP)),
        "top": together(queries, _best(db, 0)),
    }
    found = turns(bench, works, max(2, bench.rounds // 3))
    what, against = f"exact top-{TOP}, {len(queries)} queries", f"{FLAT} by BLAS"
    compared(bench, what, found["top"], against, found["by BLAS"], at_most(1.15))
    true = flat.search(queries, TOP)[1]
    for way, tolerance in (("by a scan", 0.0), ("by the index", 0.01)):
        recalled = recall(_best(db, tolerance)(queries), true)
        goal = at_least(0.99) if tolerance else None
        bench.row(f"recall of top-{TOP} {way}", f"{recalled:.4f}", FLAT, goal, recalled)


def recall(answers: Any, true: Any) -> float:
    """The share of the true items that are the heaviest; items are called by their numbers, from #1 on."""
    shares = []
    for answer, best in zip(answers, true, strict=True):
        numbers = {int(one.key[1:]) - 1 for one in answer.contributors[: len(best)]}
        shares.append(len(numbers.intersection(best.tolist())) / len(best))
    return float(np.mean(shares))


def compared(bench: Bench, what: str, ours: Taken, name: str, theirs: Taken, goal: Any = None) -> None:
    """A row with a ratio of medians."""
    ratio = ours.p50 / theirs.p50
    bench.row(what, f"{ours}: {times(ratio)}", f"{name}, {theirs}", goal, ratio)
