"""How lookups by the index grow with a store that is too large to be made in memory.

    python -m tests.benchmarks.index_streamed 250000 1000000 4000000 16000000 --folder FOLDER [--only-build]

A store of each size holds the first items of one mixture, which is made block by block; exact answers in float64 are
summed up on the way. Stores and indexes are kept in the folder and used again: one run can make them, and another one
ask them when the machine is quiet. The last line of each table compares the largest store with the smallest.
"""

import argparse
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import BLOCK, MOST_CENTRES, Clusters, values_by

import softkv

from .index_contests import shown, singly, turns
from .index_quality import judged_singly
from .index_report import Bench

WIDTH, VALUE_WIDTH, TEMPERATURE = 128, 64, 0.07
TEMPERATURES = (0.04, 0.12)  # that are rehearsed
ASKED = 100  # queries of each kind
SPREADS = (0.3, 1.5)  # of the queries
BLOCKS = 4  # of the mixture, added together

HEAD = "| items | lookup | a scan | within 1% | rows read | answered |\n|---|---|---|---|---|---|"


def main() -> None:
    """Make what is missing, and ask all stores in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="+", type=int)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only-build", action="store_true", help="make stores and indexes, and ask nothing")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    for items in chosen.items:
        made(chosen.folder, items)
    if not chosen.only_build:
        asked(chosen.folder, sorted(chosen.items), chosen.rounds)


def blocks(items: int) -> Iterator[tuple[Any, Any]]:
    """Keys and values, some at a time: the first of them do not depend on how many there are to be."""
    clusters, slopes = Clusters(np.random.default_rng(0), MOST_CENTRES, WIDTH), np.random.default_rng(1)
    how = slopes.standard_normal((WIDTH, VALUE_WIDTH), dtype=np.float32)
    size = BLOCK * BLOCKS
    for start in range(0, items, size):
        keys = clusters.keys(size)
        yield keys[: items - start], values_by(keys, how, slopes)[: items - start]


def queries() -> dict[str, Any]:
    """Queries like the items, and random directions."""
    like = Clusters(np.random.default_rng(0), MOST_CENTRES, WIDTH)
    strange = np.random.default_rng(3).standard_normal((ASKED, WIDTH), dtype=np.float32)
    return {"like the items": like.keys(ASKED, SPREADS, np.random.default_rng(2)), "random directions": strange}


def made(folder: Path, items: int) -> None:
    """The store of so many items, its index, and the exact answers beside it."""
    path, beside = folder / f"{items}.softkv", folder / f"{items}.npz"
    if not beside.exists():
        shutil.rmtree(path, ignore_errors=True)
        every = np.concatenate(list(queries().values())).astype(np.float64)
        every /= np.linalg.norm(every, axis=1, keepdims=True)
        mass, total = np.zeros((len(every), 1)), np.zeros((len(every), VALUE_WIDTH))
        with softkv.open(path, "n", compatibility="cosine", temperature=TEMPERATURE) as db:
            for keys, values in blocks(items):
                db.add(vectors=keys, values=values)
                weights = np.exp(every @ keys.T.astype(np.float64) / TEMPERATURE)
                mass += weights.sum(1, keepdims=True)
                total += weights @ values
        np.savez(beside, true=total / mass)
    with softkv.open(path, "w") as db:
        if db.info().index is None:
            started = time.perf_counter()
            db.build_index(temperatures=TEMPERATURES)
            print(f"index of {items:,} items: {time.perf_counter() - started:,.0f} s", flush=True)


def asked(folder: Path, sizes: list[int], rounds: int) -> None:
    """A line for each store and kind of queries, and what becomes of time and rows from the smallest to the largest."""
    bench = Bench(folder=folder, figures=folder, rounds=rounds)
    stores = {items: softkv.open(folder / f"{items}.softkv", "r") for items in sizes}
    for number, (name, some) in enumerate(queries().items()):
        print(f"\n{name}, T {TEMPERATURE}\n\n{HEAD}")
        works = {f"lookup {items}": singly(some, lambda one, db=db: db.lookup(one)) for items, db in stores.items()}
        works |= {
            f"scan {items}": singly(some, lambda one, db=db: db.lookup(one, tolerance=0), 1)
            for items, db in stores.items()
        }
        took = turns(bench, works)
        rows = {}
        for items, db in stores.items():
            true = np.load(folder / f"{items}.npz")["true"][number * ASKED : (number + 1) * ASKED]
            one = judged_singly(db, some, true, TEMPERATURE)
            rows[items] = float(one.read.mean())
            routes = json.dumps(Counter(one.routes.tolist()))
            lookup, scan = took[f"lookup {items}"], took[f"scan {items}"]
            print(f"| {items:,} | {lookup} | {scan} | {one} | {rows[items]:,.0f} | {routes} |", flush=True)
        first, last = sizes[0], sizes[-1]
        slower = took[f"lookup {last}"].p50 / took[f"lookup {first}"].p50
        wider = rows[last] / rows[first]
        print(f"\n{last // first} times the items: {slower:.2f} times as long, {wider:.2f} times the rows")
    print(f"the slowest lookup took {shown(max(max(one.seconds) for one in took.values()))}")
    for db in stores.values():
        db.close()


if __name__ == "__main__":
    main()
