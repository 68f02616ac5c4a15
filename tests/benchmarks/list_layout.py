"""What it costs to choose the head of each list and to shuffle its body: builds and compactions with and without that.

    OPENBLAS_NUM_THREADS=1 python -m tests.benchmarks.list_layout --items 300000 --width 256 --folder FOLDER

Of a mixture of 2,000 clusters with values 64 wide: an index that is built whole; one that is refined after a fifth of
the items was added; and a compaction after a tenth was added and a tenth deleted. Copies of the same store are changed
in turns; a ratio is that of a pair, and after the median of all stand the least and the largest. Without means that
rows stay in the order in which they were assigned. Seconds are those of the processor, since with other work on the
machine these tell more; OPENBLAS_NUM_THREADS=1 keeps what waits out of them. Stores are kept in the folder, and used
again if they are there. `divided` says what it takes to gather a part of the rows of a list.
"""

import argparse
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import mixture

import softkv
from softkv.asking import indexed
from softkv.database import indexing

from .filling import kept_in, put
from .late import VALUE_WIDTH, added, deleted

Work = Callable[[Any], Any]
DIVIDED = "divided"
WORKS: dict[str, tuple[str, Work, str]] = {
    "whole": ("items", lambda db: db.build_index(whole=True), "≤ 1.05"),
    "refined": ("grown", lambda db: db.build_index(), "≤ 1.25"),
    "compacted": ("changed", lambda db: db.compact(), "≤ 1.1"),
}


def stores(folder: Path, count: int, width: int) -> None:
    """A store without an index, one with an index to which a fifth was added, and one with as much gone as come."""
    if (folder / "changed").exists():
        return
    items = mixture(count + count // 5, width, VALUE_WIDTH, 1, 0)
    with softkv.open(folder / "items", "n", temperature=0.07) as db:
        put(db, items, 0, count)
    shutil.copytree(folder / "items", folder / "grown")
    with softkv.open(folder / "grown") as db:
        db.build_index()
    shutil.copytree(folder / "grown", folder / "changed")
    with softkv.open(folder / "grown") as db:
        added(0.2)(db, items, count)
    with softkv.open(folder / "changed") as db:
        added(0.1)(db, items, count)
        deleted(db, items, count)


def unordered(
    _snapshot: Any, _form: Any, rows: np.ndarray, offsets: np.ndarray, **_: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The rows as they are."""
    return rows, np.zeros(len(offsets) - 1, np.int64)


def seconds(base: Path, work: Work) -> float:
    """How long the processor works on a copy of a store."""
    path = base.with_name("at work")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    with softkv.open(path) as db:
        started = time.process_time()
        work(db)
        return time.process_time() - started


def compared(base: Path, name: str, work: Work, rounds: int, goal: str) -> None:
    """A line for one kind of work, done in turns with and without."""
    pairs = []
    for _ in range(rounds):
        with patch.object(indexing, "with_heads", unordered), patch.object(indexed, "with_heads", unordered):
            without = seconds(base, work)
        pairs.append((without, seconds(base, work)))
    ratios = [beside / without for without, beside in pairs]
    without, beside = (statistics.median(one) for one in zip(*pairs, strict=True))
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
    print(f"| {name} | {without:.2f} s | {beside:.2f} s | {spread} | {goal} |", flush=True)


def divided(count: int, width: int) -> None:
    """What it takes to read parts of lists that were divided where they lie, beside all of each list in one run."""
    made, rng = 128, np.random.default_rng(0)
    keys, query = rng.standard_normal((count, width), np.float32), rng.standard_normal(width, np.float32)
    print("\n| a list of | in one run | its half, gathered | as many as it was made of, gathered |\n|---|---|---|---|")
    for grown in (1, 2, 4, 8):
        size = made * grown
        firsts = rng.permutation(count // size)[:3000] * size
        some = [np.sort(rng.permutation(size)[:part]) for part in (size // 2, made)]
        taken = []
        for part in (None, *some):  # one after the other, or the second would find in the cache what the first has read
            seconds = []
            for first in firsts:
                started = time.perf_counter()
                (keys[first : first + size] if part is None else keys[first + part]) @ query
                seconds.append(time.perf_counter() - started)
            taken.append(statistics.median(seconds))
        print(f"| {grown} times its rows | {' | '.join(f'{1e6 * one:.1f} µs' for one in taken)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", default=[*WORKS, DIVIDED], help=f"of {', '.join(WORKS)}, divided; else all")
    parser.add_argument("--items", type=int, default=300_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where stores are kept; a temporary one by default")
    given = parser.parse_args()
    with kept_in(given.folder) as folder:
        print(f"{machine()}\n{given.items:,} items x {given.width}\n")
        if DIVIDED in given.works:
            given.works.remove(DIVIDED)
            divided(given.items, given.width)
        if given.works:
            stores(folder, given.items, given.width)
            print("\n| work | without | with heads | ratio | goal |\n|---|---|---|---|---|")
        for name in given.works:
            base, work, goal = WORKS[name]
            compared(folder / base, name, work, given.rounds, goal)


if __name__ == "__main__":
    main()
