"""Lookups over shards beside those of one store of all items, and adds: time, and rows read.

    python -m tests.benchmarks.shards [--items 200000] [--folder FOLDER]

Everything runs in one process. A line is about lookups of one kind over so many shards: how long they take beside
those of one store, by calls that take turns, and how many rows they read beside those. Exact lookups scan. Others are
asked of a mixture of 2,000 clusters, with queries like the items: calibrated ones, and those for the 16 best, at the
temperature that the indexes were built for, measured ones at a warm one. To scan shards of this size takes less time
than to draw rows of them; so that they are estimated all the same, nothing is thought to cost time, and the times of
these lines are not what a user would wait. Adds are durable batches of 1,000 items, by turns as well. Stores are kept
in the folder, and used again.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import Mixture, mixture

import softkv
from softkv.asking import route
from softkv.doors.cluster.handle import create

from .filling import put
from .index_report import always_measured

SHARDS, QUERIES, ROUNDS = (1, 2, 4, 8, 16), 64, 7
WIDTH, EXACT_WIDTH, BUILT_FOR, WARM = 64, 128, 0.07, 1.0
BATCH, BATCHES, ADDED_TO = 1000, 20, 4
HEAD = "| lookup | shards | ms of one store, ratio | rows read, ratio | 64 queries: ms, ratio | rows read, ratio |"


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200_000, help="of estimates")
    parser.add_argument("--exact-items", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.folder or Path(folder)
        print(f"{machine()}\n{options.exact_items:,} x {EXACT_WIDTH} scanned, {options.items:,} x {WIDTH} estimated\n")
        print(f"{HEAD}\n|---|---|---|---|---|---|", flush=True)
        lookups(place / "exact", options.exact_items, EXACT_WIDTH, {"exact": {"tolerance": 0.0}})
        ways: dict[str, Any] = {"calibrated": {"temperature": BUILT_FOR}, "measured": {"temperature": WARM}}
        ways["16 best"] = ways["calibrated"] | {"k": 16}
        lookups(place / "estimated", options.items, WIDTH, ways)
        adds(Path(folder))


def lookups(folder: Path, items: int, width: int, ways: dict[str, dict[str, Any]]) -> None:
    """Lookups of these ways over each number of shards, beside one store."""
    folder.mkdir(parents=True, exist_ok=True)
    made = mixture(items, width, 4, QUERIES, 0)
    queries = made.queries
    with ExitStack() as opened:
        one = opened.enter_context(filled(folder / "store", 0, made, items, index="exact" not in ways))
        for count in SHARDS:
            with filled(folder / str(count), count, made, items, index="exact" not in ways) as db:
                for name, options in ways.items():
                    with _pricing(name):
                        cells = [compared(one, db, some, options) for some in (queries[:1], queries)]
                    print(f"| {name} | {count} | {' | '.join(cells)} |", flush=True)


def filled(path: Path, shards: int, made: Mixture, items: int, *, index: bool) -> softkv.SoftKV:
    """A store, or a cluster, of these items."""
    if path.exists():
        return softkv.open(path)
    if shards:
        create(path, shards, value="vector", compatibility="cosine", temperature=BUILT_FOR)
    db = softkv.open(path, temperature=BUILT_FOR)
    put(db, made, 0, items)
    if index:
        db.build_index()
    return db


def _pricing(name: str) -> AbstractContextManager[Any]:
    """What lookups are believed to cost, so that they are answered in this way."""
    if name == "measured":
        return always_measured()
    return nullcontext() if name == "exact" else patch.multiple(route, CHEAP=0.0)


def compared(one: softkv.SoftKV, db: softkv.SoftKV, queries: Any, options: dict[str, Any]) -> str:
    """The cells of a line: milliseconds and rows read of one store, each with the ratio."""
    calls = [partial(each.lookup, queries, **options) for each in (one, db)]
    rows = [float(call().rows_read.mean()) for call in calls]
    times = in_turns(calls, ROUNDS)
    return f"{times[0] * 1e3:.1f}, {times[1] / times[0]:.2f} | {rows[0]:,.0f}, {rows[1] / rows[0]:.2f}"


def in_turns(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The median seconds of each of these calls."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def adds(folder: Path) -> None:
    """Durable batches to a cluster beside one store."""
    rng = np.random.default_rng(0)
    create(folder / "added to", ADDED_TO, value="number")
    with softkv.open(folder / "one", value="number") as one, softkv.open(folder / "added to") as db:
        numbers = {id(one): 0, id(db): 0}

        def add(to: Any) -> None:
            first = numbers[id(to)]
            numbers[id(to)] += BATCH
            names = [f"item {number}" for number in range(first, first + BATCH)]
            to.add(names, rng.random(BATCH), vectors=rng.standard_normal((BATCH, EXACT_WIDTH)).astype(np.float32))

        times = in_turns([partial(add, one), partial(add, db)], BATCHES)
    rates = [BATCH / seconds for seconds in times]
    print(
        f"\nAdds of {BATCH:,} x {EXACT_WIDTH}: {rates[0]:,.0f} items/s, over {ADDED_TO} shards {rates[1]:,.0f}", end=""
    )
    print(f" ({rates[1] / rates[0]:.2f} of the rate)")


if __name__ == "__main__":
    main()
