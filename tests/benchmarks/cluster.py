"""What processes of shards cost: a query beyond the work of the shards, its bytes, and how long a death is felt.

    OPENBLAS_NUM_THREADS=1 python -m tests.benchmarks.cluster [--shards 1 2 4] [--rows 4000] [--rounds 300]

A lookup over processes is compared with one of the same shards in this process, by turns, so that what is left is what
messages and processes cost, less what is gained by asking shards at once. Nothing else should run on the machine. With
OPENBLAS_NUM_THREADS=1 both multiply matrices by one thread for each shard.
"""

import argparse
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import softkv
from softkv.doors.cluster import actors
from softkv.doors.cluster.actors import DEADLINE
from softkv.doors.cluster.handle import create
from tests.raylets import Machines, held

GOALS = {"one": 4.0, "batch": 0.3, "bytes": 8192, "again": 3.0}
BATCH = 64


def in_turn(works: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The medians of the milliseconds that each of these takes, one after the other, again and again."""
    found = np.empty((rounds, len(works)))
    for place in np.ndindex(*found.shape):
        start = time.perf_counter()
        works[place[1]]()
        found[place] = 1e3 * (time.perf_counter() - start)
    return [float(one) for one in np.median(found[rounds // 10 :], 0)]


def sizes(db: Any, query: Any) -> int:
    """The bytes of the messages and answers of one query, of all shards together, each counted as it travels."""
    total, send = [0], actors.ActorSender.send

    def counting(sender: Any, message: Any, *given: Any, **options: Any) -> Any:
        found = send(sender, message, *given, **options)
        total[0] += len(pickle.dumps(message)) + len(pickle.dumps(found))
        return found

    actors.ActorSender.send = counting  # type: ignore[method-assign]
    try:
        db.lookup(query)
    finally:
        actors.ActorSender.send = send  # type: ignore[method-assign]
    return total[0]


def queries(shards: int, rows: int, width: int, rounds: int) -> None:
    """Lookups over so many shards, and the death of one."""
    rng = np.random.default_rng(shards)
    keys, asked = (rng.standard_normal((count, width)).astype(np.float32) for count in (rows, BATCH))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "c")
        create(path, shards, value="number", temperature=0.1)
        with softkv.open(f"ray:{path}") as db, softkv.open(path, "r") as here:
            db.add([f"item {number}" for number in range(rows)], rng.standard_normal(rows), vectors=keys)
            for name, query, goal in (("one query", asked[0], "one"), (f"each of {BATCH}", asked, "batch")):
                each = 1 if query.ndim == 1 else BATCH
                works = [partial(one.lookup, query) for one in (db, here)]
                far, near = (millis / each for millis in in_turn(works, rounds))
                row(shards, f"{name}, beyond the shards' own work", f"{far - near:.2f} ms", far - near <= GOALS[goal])
                row(shards, f"{name}, in all; in one process", f"{far:.2f}; {near:.2f} ms", None)
            size = sizes(db, asked[0]) / shards
            row(shards, "bytes of a query to and from a shard", f"{size:,.0f}", size <= GOALS["bytes"])
            gone = float(np.median([until_again(db, asked[0]) for _ in range(3)]))
            row(shards, "process killed, until it answers again", f"{gone:.1f} s", gone <= GOALS["again"])


def until_again(db: Any, query: Any) -> float:
    """The seconds that the death of a process keeps a question waiting."""
    os.kill(actors.processes(db)[-1] or 0, signal.SIGKILL)
    start = time.perf_counter()
    db.lookup(query)
    return time.perf_counter() - start


def machine_gone() -> None:
    """How long it takes to answer in part once a machine is gone, and in all once it is back."""
    with tempfile.TemporaryDirectory() as folder:
        machines = Machines(Path(folder), 2)
        try:
            path, query = Path(folder) / "c", np.ones(5, np.float32)
            with held(machines, path) as patient, held(machines, path, mode="r", wait=DEADLINE) as db:
                db.lookup(query)
                machines.remove(1)
                start = time.perf_counter()
                while db.lookup(query, partial=True).out_of_reach is None:
                    pass
                took = time.perf_counter() - start
                row(2, "machine gone, until it is answered in part", f"{took:.1f} s", took <= DEADLINE)
                machines.bring_back(1)
                start = time.perf_counter()
                patient.lookup(query)
                row(2, "machine back, until it is answered in all", f"{time.perf_counter() - start:.1f} s", None)
        finally:
            machines.close()


def row(shards: int, what: str, found: str, reached: bool | None) -> None:
    """One line of the table."""
    print(
        f"| {shards} | {what} | {found} | {'' if reached is None else 'yes' if reached else '**missed**'} |", flush=True
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    for name, number in (("rows", 4000), ("width", 384), ("rounds", 300)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    print("| shards | figure | found | goal reached |\n|---|---|---|---|")
    for shards in given.shards:
        queries(shards, given.rows, given.width, given.rounds)
    machine_gone()


if __name__ == "__main__":
    main()
