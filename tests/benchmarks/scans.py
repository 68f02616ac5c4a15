"""What lookups that compare all rows cost beside the same done by hand in torch, NumPy and FAISS.

Run: python -m tests.benchmarks.scans [SECTION ...] [--rows N] [--rounds N]

Work and yardsticks take turns in one process with the same threads, after a pause in which the threads of the one
before go to sleep. A ratio is that to the yardstick whose median is the lowest; it is the median of the rounds'
ratios, with their lower and upper quartile.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from softkv_cli.machine import machine

import softkv
from softkv.ndarrays import Matrix, Vector
from tests.benchmarks.index_contests import blas_from

WIDTH, NARROW, LABELS, BATCH, TOP = 384, 64, 1_000, 64, 32
TEMPERATURES = (0.001, 0.01, 0.1, 1.0, 10.0)
PAUSE = 0.1
HEAD = "| work | softkv | yardstick | its time | ratio | quartiles | goal |\n|---|---|---|---|---|---|---|"

Work = Callable[[], object]


class Bench(NamedTuple):
    """Where stores are made, of how many rows, and how often everything is measured."""

    folder: str
    rows: int
    rounds: int
    pause: float

    def keys(self, width: int = WIDTH) -> Matrix:
        """The keys of all stores of this width."""
        return np.random.default_rng(0).standard_normal((self.rows, width), dtype=np.float32)

    def store(self, name: str, keys: Matrix, values: Any) -> softkv.SoftKV:
        """A store of these, every second item marked; texts are labels."""
        kind = "label" if isinstance(values, list) else None
        db = softkv.open(os.path.join(self.folder, f"{name}.softkv"), "n", compatibility="scaled_dot", value=kind)
        db.add(vectors=keys, values=values, payloads=[{"even": number % 2 == 0} for number in range(len(keys))])
        return db

    def compare(self, work: str, ours: Work, theirs: Mapping[str, Work], goal: float) -> None:
        """Measure all in turn, and print a row."""
        everyone = {"": ours, **theirs}
        seconds: dict[str, list[float]] = {name: [] for name in everyone}
        for turn in range(self.rounds + 1):
            for name in list(everyone)[:: 1 if turn % 2 else -1]:
                seconds[name].append(self._timed(everyone[name]))
        medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
        best = min(theirs, key=lambda name: medians[name])
        ratios = [a / b for a, b in zip(seconds[""][1:], seconds[best][1:], strict=True)]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        print(
            f"| {work} | {medians[''] * 1e3:.3g} ms | {best} | {medians[best] * 1e3:.3g} ms | {middle:.2f} "
            f"| {low:.2f} to {high:.2f} | ≤ {goal:g} |",
            flush=True,
        )

    def _timed(self, work: Work) -> float:
        time.sleep(self.pause)
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


def main() -> None:
    """Measure the sections that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; by default all")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pause", type=float, default=PAUSE)
    options = parser.parse_args()
    print(f"{machine()}\n{options.rows:,} items, {options.rounds} rounds\n\n{HEAD}")
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder:
        for section in options.sections or SECTIONS:
            SECTIONS[section](Bench(folder, options.rows, options.rounds, options.pause))


def asked(count: int, width: int = WIDTH) -> Matrix:
    """A single query, or a batch."""
    queries = np.random.default_rng(1).standard_normal((count, width), dtype=np.float32)
    return queries[0] if count == 1 else queries


def told(count: int) -> str:
    """How many queries, in words."""
    return "1 query" if count == 1 else f"{count} queries"


def vectors(bench: Bench) -> None:
    """Values as wide as keys, at temperatures from sharp to flat, beside torch."""
    import torch

    keys, values = bench.keys(), np.random.default_rng(2).standard_normal((bench.rows, WIDTH), dtype=np.float32)
    stored, held = torch.from_numpy(keys), torch.from_numpy(values)

    def attention(queries: Any) -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(torch.atleast_2d(queries)[None, None], stored[None, None], held[None, None], scale=1.0)

    def formula(queries: Any) -> Any:
        if queries.ndim == 1:
            return torch.softmax(stored @ queries, 0) @ held
        return torch.softmax(queries @ stored.T, -1) @ held

    with bench.store("vectors", keys, values) as db:
        for count in (1, BATCH):
            for temperature in TEMPERATURES:
                queries = asked(count)
                scaled = torch.from_numpy(queries) / (temperature * WIDTH**0.5)
                bench.compare(
                    f"vectors, {told(count)}, T {temperature:g}",
                    lambda q=queries, t=temperature: db.lookup(q, temperature=t, tolerance=0),
                    {"torch attention": lambda s=scaled: attention(s), "torch formula": lambda s=scaled: formula(s)},
                    1.1 if count == 1 else 1.3,
                )


def kinds(bench: Bench) -> None:
    """Numbers, labels and narrow vectors, by distances and directions, beside NumPy with kept lengths."""
    keys, chance = bench.keys(), np.random.default_rng(3)
    lengths = np.linalg.norm(keys, axis=1)
    blended: dict[str, tuple[Any, Callable[[Matrix], object]]] = {}
    numbers = chance.standard_normal(bench.rows, dtype=np.float32)
    blended["numbers"] = numbers, lambda weights: weights @ numbers
    codes = chance.integers(0, LABELS, bench.rows)
    names = [f"label {code}" for code in codes]
    blended["labels"] = names, lambda weights: [np.bincount(codes, one, LABELS) for one in np.atleast_2d(weights)]
    narrow = chance.standard_normal((bench.rows, NARROW), dtype=np.float32)
    blended[f"{NARROW}-wide vectors"] = narrow, lambda weights: weights @ narrow

    for kind, (values, blend) in blended.items():
        with bench.store(kind, keys, values) as db:
            for compatibility in ("gaussian", "cosine"):
                for count in (1, BATCH):
                    for temperature in TEMPERATURES[::2]:
                        how = {"temperature": temperature, "compatibility": compatibility}
                        plain = partial(by_hand, asked(count), keys, lengths, blend, **how)
                        bench.compare(
                            f"{kind}, {compatibility}, {told(count)}, T {temperature:g}",
                            partial(db.lookup, asked(count), tolerance=0, **how),
                            {"NumPy": plain},
                            1.2,
                        )


def by_hand(
    queries: Matrix,
    keys: Matrix,
    lengths: Vector,
    blend: Callable[[Matrix], object],
    *,
    compatibility: str,
    temperature: float,
) -> object:
    """The mean by a softmax over the scores, in float32."""
    if compatibility == "cosine":
        queries = queries / np.linalg.norm(queries, axis=-1, keepdims=True)
    scores = keys @ queries if queries.ndim == 1 else queries @ keys.T
    scores = scores / lengths if compatibility == "cosine" else scores - 0.5 * lengths**2
    scores *= np.float32(1.0 / temperature)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return blend(weights / weights.sum(-1, keepdims=True))


def masks(bench: Bench) -> None:
    """A mask that leaves a quarter, and a filter that leaves half, beside all items."""
    keys, chance = bench.keys(), np.random.default_rng(4)
    mask = chance.permutation(bench.rows) < bench.rows // 4
    values = {"numbers": chance.standard_normal(bench.rows), "vectors": chance.standard_normal((bench.rows, WIDTH))}
    for kind, held in values.items():
        with bench.store(f"masked {kind}", keys, held) as db:
            for count in (1, BATCH):
                queries = asked(count)

                def ask(q: Matrix = queries, **how: Any) -> object:
                    return db.lookup(q, temperature=1.0, tolerance=0, **how)

                plainly = {"without": ask}
                bench.compare(f"mask of a quarter, {kind}, {told(count)}", lambda: ask(mask=mask), plainly, 1.3)
                bench.compare(
                    f"filter of a half, {kind}, {told(count)}", lambda: ask(where={"even": True}), plainly, 1.1
                )
            each = {
                "one scan for each": lambda some=queries: [db.lookup(q, temperature=1.0, tolerance=0) for q in some]
            }
            work = f"filter of a half, {kind}, {told(BATCH)}, beside single ones without"
            bench.compare(work, lambda: ask(where={"even": True}), each, 1.0)


def contributors(bench: Bench) -> None:
    """Many of the heaviest items named, beside the usual number."""
    keys, queries = bench.keys(NARROW), asked(100, NARROW)
    with bench.store("shown", keys, np.random.default_rng(5).standard_normal(bench.rows)) as db:
        shown = min(1_000, bench.rows)
        for temperature in (0.1, 1.0):

            def ask(temperature: float = temperature, **how: int) -> object:
                return db.lookup(queries, temperature=temperature, tolerance=0, **how)

            work = f"show={shown:,}, {told(len(queries))}, keys {NARROW} wide, T {temperature:g}"
            bench.compare(work, lambda: ask(show=shown), {"as many as usual": ask}, 1.5)


def best(bench: Bench) -> None:
    """The best of all by a scan, beside the flat index of FAISS."""
    import faiss

    keys = bench.keys()
    flat = faiss.IndexFlatIP(WIDTH)
    flat.add(keys)
    with bench.store("best", keys, np.random.default_rng(6).standard_normal(bench.rows)) as db, blas_from(faiss, 20):
        for count, goal in ((1, 0.6), (256, 1.05)):
            queries = asked(count)
            bench.compare(
                f"exact top-{TOP}, {told(count)}",
                lambda q=queries: db.lookup(q, k=TOP, show=TOP, compatibility="dot", temperature=1.0, tolerance=0),
                {"IndexFlatIP": lambda q=queries: flat.search(np.atleast_2d(q), TOP)},
                goal,
            )


SECTIONS = {one.__name__: one for one in (vectors, kinds, masks, contributors, best)}

if __name__ == "__main__":
    main()
