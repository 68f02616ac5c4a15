"""How many lookups a second eight threads get from one handle, beside one thread, with the threads of BLAS as they are.

Run: python -m tests.benchmarks.threads [--items N] [--rounds N]

Eight threads ask fifty single lookups each, one thread asks the same four hundred; in turn, and the figure is the
median of the ratios of the rates, for a store that is scanned and for one that has an index.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from softkv_cli.machine import machine

import softkv

THREADS, EACH, WIDTH, CLUSTERS = 8, 50, 256, 300


def main() -> None:
    """Measure both stores and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(machine())
    print("| store | one thread | eight threads | ratio | target |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder:
        queries = made(Path(folder) / "s", options.items)
        with softkv.open(Path(folder) / "s", "w") as db:
            measure("scanned", db, queries, options.rounds, "≥ 1.0")
            db.build_index()
            measure("indexed", db, queries, options.rounds, "≥ 1.3")


def made(path: Path, items: int) -> np.ndarray:
    """A store of keys in clusters, and queries like them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, WIDTH))

    def drawn(count: int) -> np.ndarray:
        noise = rng.standard_normal((count, WIDTH))
        return np.asarray(centres[rng.integers(0, CLUSTERS, count)] + 0.7 * noise, np.float32)

    keys = drawn(items)
    with softkv.open(path, "n") as db:
        db.add(vectors=keys, values=np.tanh(keys[:, 0]).astype(float))
    return drawn(THREADS * EACH)


def measure(name: str, db: softkv.SoftKV, queries: np.ndarray, rounds: int, target: str) -> None:
    """One line of the table."""
    rate(db, queries, 1)
    pairs = [(rate(db, queries, 1), rate(db, queries, THREADS)) for _ in range(rounds)]
    one, many = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratio = statistics.median(more / alone for alone, more in pairs)
    print(f"| {name}, {len(db):,} items | {one:,.0f}/s | {many:,.0f}/s | {ratio:.2f} | {target} |", flush=True)


def rate(db: softkv.SoftKV, queries: np.ndarray, threads: int) -> float:
    """Lookups a second."""

    def ask(some: np.ndarray) -> None:
        for query in some:
            db.lookup(query)

    asking = [threading.Thread(target=ask, args=(some,)) for some in np.array_split(queries, threads)]
    start = time.perf_counter()
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    return len(queries) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
