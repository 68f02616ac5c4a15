"""What items that come and go after an index was built cost: lookups, adds, deletions, and building again.

    python -m tests.benchmarks.late --items 1000000 --width 384 --folder FOLDER

A mixture of 2,000 clusters with values 64 wide. Of a store with an index, copies are changed, each in one way, and
asked by a fresh process; beside it a store of the same items whose index was built whole. A line says how long the
first lookup took and the median of the others, what share of the rows they read, and for how many the answer was within
what it stated (against a scan). Adds, and deletions, are done in turn on a store with an index and on one without. Rows
that are far from all lists are added to another, and lookups and scans of it done in turn. Stores are kept in the
folder, and used again if they are there. Does not judge: timings depend on the machine.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import Mixture, mixture

import softkv

from .filling import BATCH, batches, kept_in, put
from .rechecking import pairs

VALUE_WIDTH, ASKED, PAIRS = 64, 200, 7
TEMPERATURES = (0.05, 0.07, 0.1)
SPARE = 0.55  # of the items, that are added later
Change = Callable[[Any, Mixture, int], None]


def added(share: float) -> Change:
    """A number of further items."""
    return lambda db, items, count: put(db, items, count, count + int(share * count))


def deleted(db: Any, items: Mixture, count: int) -> None:
    """A tenth of the items less."""
    db.delete([f"item {number}" for number in range(0, count, 10)])


def replaced(db: Any, items: Mixture, count: int) -> None:
    """A fifth of the items replaced by others."""
    others = Mixture(items.keys[count:], items.values[count:], items.queries)
    put(db, others, 0, count // 5, on_conflict="replace")


CHANGES: dict[str, Change] = {
    "5% added": added(0.05),
    "50% added": added(0.5),
    "10% deleted": deleted,
    "20% replaced": replaced,
}


def ask(path: Path, queries: np.ndarray) -> dict[str, float]:
    """In a process of its own: what lookups take, and whether they are right."""
    with softkv.open(path, "r") as db:
        started = time.perf_counter()
        db.lookup(queries[0], temperature=TEMPERATURES[0])
        first = time.perf_counter() - started
        seconds, within, read, calibrated = [], [], [], 0
        for temperature in TEMPERATURES:
            for query in queries:
                started = time.perf_counter()
                found = db.lookup(query, temperature=temperature)
                seconds.append(time.perf_counter() - started)
                read.append(found.rows_read)
                calibrated += found.route == "calibrated"
                if found.route == "calibrated":
                    true = db.lookup(query, temperature=temperature, tolerance=0)
                    within.append(bool(np.linalg.norm(found.value - true.value) <= found.error))
        return {
            "first": first,
            "median": statistics.median(seconds),
            "read": float(np.mean(read)) / len(db),
            "calibrated": calibrated / len(seconds),
            "within": float(np.mean(within)) if within else float("nan"),
        }


def asked(path: Path, queries: Path) -> dict[str, float]:
    """What a fresh process says of a store."""
    line = [sys.executable, "-m", "tests.benchmarks.late", "--ask", str(path), str(queries)]
    found: dict[str, float] = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return found


def row(name: str, found: dict[str, float], beside: float | None) -> None:
    """A line of the table."""
    ratio = "" if beside is None else f"{found['median'] / beside:.2f}"
    print(
        f"| {name} | {1e3 * found['first']:.0f} ms | {1e3 * found['median']:.2f} ms | {ratio} | {found['read']:.2%} | "
        f"{found['calibrated']:.1%} | {found['within']:.1%} |",
        flush=True,
    )


def lookups(folder: Path, base: Path, items: Mixture, count: int) -> None:
    """Lookups after each change, beside an index of the same items that was built whole."""
    print("| | first lookup | lookup | beside a fresh index | rows read | by the index | within what they state |")
    print("|---|---|---|---|---|---|---|")
    np.save(folder / "queries.npy", items.queries)
    row("as it was built", asked(base, folder / "queries.npy"), None)
    for name, change in CHANGES.items():
        late, whole = folder / f"{name} late", folder / f"{name} whole"
        if not whole.exists():
            shutil.copytree(base, late, dirs_exist_ok=True)
            with softkv.open(late) as db:
                change(db, items, count)
            shutil.copytree(late, whole)
            with softkv.open(whole) as db:
                db.build_index(whole=True)
        fresh = asked(whole, folder / "queries.npy")
        row(name, asked(late, folder / "queries.npy"), fresh["median"])
        row("a fresh index of these", fresh, None)


def beside(found: Sequence[Sequence[float]]) -> str:
    """The usual milliseconds of the first of each pair, and the ratios to the second."""
    ratios, usual = sorted(one / other for one, other in found), statistics.median(one for one, _ in found)
    return f"{1e3 * usual:.1f} ms | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def writes(folder: Path, base: Path, items: Mixture, count: int) -> None:
    """Adds and deletions with an index beside without, in turn."""
    paths = [folder / "with", folder / "without"]
    for path in paths:
        shutil.copytree(base, path, dirs_exist_ok=True)
    with softkv.open(paths[1]) as bare:
        bare.drop_index()
    print("\n| | with an index | beside without, median (least to most) |\n|---|---|---|")
    with softkv.open(paths[0]) as indexed, softkv.open(paths[1]) as bare:

        def compared(name: str, work: Callable[[Any, int], None]) -> None:
            found = pairs(indexed, bare, work, lambda turns: turns > PAIRS)[1:]  # the first reads the index
            print(f"| {name} | {beside(found)} |", flush=True)

        def batch(db: Any, turn: int) -> None:
            start, spare = count + turn * BATCH, turn * BATCH % (len(items.keys) - BATCH)
            keys = [f"item {number}" for number in range(start, start + BATCH)]
            db.add(keys, items.values[spare : spare + BATCH], vectors=items.keys[spare : spare + BATCH])

        def singles(db: Any, turn: int) -> None:
            for number in range(600):
                db.add(f"one {turn} {number}", items.values[number], vectors=items.keys[number])

        def fewer(db: Any, turn: int) -> None:
            db.delete([f"item {number}" for number in range(turn, count, count // 40_000)][:40_000])

        compared("add 10,000", batch)
        compared("add one, 600 times", singles)
        if count >= 40_000 * (PAIRS + 2):
            compared("delete 40,000", fewer)


def again(folder: Path, base: Path, items: Mixture, count: int) -> None:
    """Building again after a fifth was added: refined, and whole."""
    seconds = []
    for whole in (False, True):
        path = folder / "again"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, path)
        with softkv.open(path) as db:
            added(0.2)(db, items, count)
            started = time.perf_counter()
            db.build_index(whole=whole)
            seconds.append(time.perf_counter() - started)
    print(
        f"\n20% added, then built again: refined in {seconds[0]:.1f} s, {seconds[0] / seconds[1]:.2f} of a whole build"
    )


def loose(folder: Path, base: Path, items: Mixture, count: int) -> None:
    """Lookups where some of the rows are in no list, beside scans of the same store, in turn."""
    path = folder / "loose"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    print("\n| in no list | lookup | beside a scan, median (least to most) | answered by |\n|---|---|---|---|")
    with softkv.open(path) as db:
        for share in (0.02, 0.1, 0.2, 0.4):
            info = db.info().index
            more = int(share / (1.0 - share) * count) - (info.strangers + info.waiting)
            for part, keys in batches(0, more):
                names = [f"loose {share} {key}" for key in keys]
                db.add(names, items.values[part] + 1e3, vectors=items.keys[part])  # their values are far from all lists
            info, found, ways = db.info().index, [], set()
            for query in items.queries[:100]:
                seconds = [0.0, 0.0]
                for place, tolerance in enumerate((0.01, 0)):
                    started = time.perf_counter()
                    answer = db.lookup(query, temperature=TEMPERATURES[1], tolerance=tolerance)
                    seconds[place] = time.perf_counter() - started
                    ways |= {answer.route} if tolerance else set()
                found.append(seconds)
            left_out = (info.strangers + info.waiting) / len(db)
            print(f"| {left_out:.0%} | {beside(found)} | {', '.join(sorted(ways))} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where stores are kept; a temporary folder by default"
    )
    parser.add_argument("--only", nargs="*", default=["lookups", "writes", "again", "loose"])
    parser.add_argument("--ask", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        print(json.dumps(ask(given.ask[0], np.load(given.ask[1]))))
        return
    print(f"{machine()}\n{given.items:,} items x {given.width}")
    with kept_in(given.folder) as folder:
        items = mixture(int(given.items * (1 + SPARE)), given.width, VALUE_WIDTH, ASKED, 0)
        base = folder / f"base {given.items} x {given.width}"
        if not base.exists():
            with softkv.open(base, "n", temperature=0.07) as db:
                put(db, items, 0, given.items)
                db.build_index()
        for part in given.only:
            {"lookups": lookups, "writes": writes, "again": again, "loose": loose}[part](
                folder, base, items, given.items
            )


if __name__ == "__main__":
    main()
