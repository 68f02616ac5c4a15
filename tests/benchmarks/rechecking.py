"""What it costs to check a calibration within writes.

    python -m tests.benchmarks.rechecking --items 100000 --width 128 --folder FOLDER

A store of a mixture with an index, to which a tenth was added, so that a check is due; and a copy of it that checks
nothing. To both the same is added in turn: batches of 10,000 items, and then one item at a time until the check is
done. Lines say how much longer a write takes with the check, in pairs, and how many writes and seconds a check takes.
The stores are made in the folder, and removed. Does not judge: timings depend on the machine.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import Mixture, mixture

import softkv

VALUE_WIDTH, BATCH, BATCHES, MOST = 64, 10_000, 7, 5000
Write = Callable[[Any, int], None]


def added(db: Any, items: Mixture, first: int, count: int) -> None:
    """Add some of the items, from one on, around and around."""
    rows = np.arange(first, first + count) % len(items.keys)
    db.add([f"item {number}" for number in range(first, first + count)], items.values[rows], vectors=items.keys[rows])


def pairs(checking: Any, other: Any, write: Write, done: Callable[[int], bool]) -> list[tuple[float, float]]:
    """The seconds of each write with the check and without, in turn, until it is done."""
    found: list[tuple[float, float]] = []
    while not done(len(found)):
        seconds = [0.0, 0.0]
        for place in (len(found) % 2, 1 - len(found) % 2):
            started = time.perf_counter()
            write((checking, other)[place], len(found))
            seconds[place] = time.perf_counter() - started
        found.append((seconds[0], seconds[1]))
    return found


def told(name: str, found: list[tuple[float, float]]) -> None:
    """A line of the table."""
    more = sorted(1e3 * (one - other) for one, other in found)
    usual = 1e3 * statistics.median(other for _, other in found)
    print(
        f"| {name} | {len(found):,} | {usual:.1f} ms | {statistics.median(more):.1f} ms | "
        f"{more[int(0.95 * (len(more) - 1))]:.1f} ms | {more[-1]:.1f} ms |",
        flush=True,
    )


def compared(folder: Path, items: Mixture, count: int) -> None:
    """The table."""
    paths = [folder / "checking", folder / "other"]
    with softkv.open(paths[0], value="vector", temperature=0.07) as db:
        for first in range(0, count, BATCH):
            added(db, items, first, min(BATCH, count - first))
        db.build_index()
        db._rechecking.go_on = lambda *_: None
        for first in range(count, count + count // 10 + 1, BATCH):
            added(db, items, first, min(BATCH, count + count // 10 + 1 - first))
    shutil.copytree(paths[0], paths[1])
    print("| | writes | a write | more with the check, median | of 95% | at most |\n|---|---|---|---|---|---|")
    with softkv.open(paths[0]) as checking, softkv.open(paths[1]) as other:
        other._rechecking.go_on = lambda *_: None
        start = count + count // 10 + 1
        batches = min(BATCH, count)
        told(
            f"add {batches:,}",
            pairs(
                checking, other, lambda db, n: added(db, items, start + n * batches, batches), lambda n: n == BATCHES
            ),
        )
        start += BATCHES * batches

        def is_done(writes: int) -> bool:
            return checking._view().verdict is not None or writes == MOST

        found = pairs(checking, other, lambda db, n: added(db, items, start + n, 1), is_done)
        told("add one", found)
        more = sum(one - other for one, other in found)
        print(f"\nThe check took {len(found) + BATCHES:,} writes, and {more:.1f} s in those of one item: ", end="")
        print(checking._view().verdict)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    print(f"{machine()}\n\nA check of {given.items:,} × {given.width}, values {VALUE_WIDTH} wide\n", flush=True)
    items = mixture(given.items + given.items // 4, given.width, VALUE_WIDTH, 2000, 0)
    if given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        compared(Path(folder), items, given.items)


if __name__ == "__main__":
    main()
