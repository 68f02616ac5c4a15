"""What the route believes that drawing rows costs, beside what it takes, both as shares of a scan.

    python -m tests.benchmarks.measured_costs --items 1000000 --width 256 --folder FOLDER

The store of measured.py, with values 64 wide, is asked random directions: one, and several at once, which share a draw.
Up to half as many rows again are drawn as the route allows. For each number of queries a line
tells the rows that were read for each, by median over queries of like needs, the time beside that of a scan with as
many queries, and what the route would have said. Where the time reaches that of a scan, the forecast should be about 1:
if it is larger, lookups are scanned that drawing would answer sooner, and if it is smaller, they are drawn too long.
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import mixture

import softkv
from softkv.asking import route

from .filling import kept_in
from .measured import ASKED, VALUE_WIDTH, made

AT_ONCE = (1, 4, 16, 64, 256)
TOLERANCES = (0.04, 0.02, 0.014, 0.01, 0.008, 0.006)  # at a temperature of 0.05, from few rows to many
TEMPERATURE = 0.05
ALONE = 10  # lookups of one query at each tolerance
LIMIT, MORE = "softkv.asking.sampled.worth_drawing", 1.5  # times as many rows may be drawn as the route allows


def seconds(work: Any) -> tuple[float, Any]:
    """How long something took, and what it gave."""
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def lines(db: Any, queries: int) -> None:
    """Print how long it takes to draw for so many queries at once, and how long it should."""
    view = db._view()
    rows, width, most = view.snapshot.rows, view.layout.key_width, MORE * route.worth_drawing(view, queries)
    random, drawn, scans = np.random.default_rng(queries), [], []
    ask = partial(db.lookup, temperature=TEMPERATURE)
    for tolerance in TOLERANCES:
        for _ in range(ALONE if queries == 1 else 2):
            asked = random.standard_normal((queries, width)).astype(np.float32)
            with patch(LIMIT, lambda *_: most):
                took, found = seconds(partial(ask, asked, tolerance=tolerance))
            if set(found.routes) == {"measured"}:
                drawn.append((float(np.mean(found.rows_read)), took))
            scans.append(seconds(partial(ask, asked, tolerance=0))[0])
    scan = statistics.median(scans)
    started, each = route._drawing(view, queries)
    of_a_scan = rows * width * route._for_each(queries)
    for part in np.array_split(sorted(drawn), min(len(TOLERANCES), len(drawn) or 1)):
        read, took = np.median(part, axis=0)
        told = (started + each * read) / of_a_scan
        print(
            f"| {queries} | {read:,.0f} | {1e3 * took / queries:.1f} ms | {took / scan:.2f} | {told:.2f} |", flush=True
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=None, help="where stores are kept; a temporary one by default")
    given = parser.parse_args()
    print(f"{machine()}\n{given.items:,} items x {given.width}, mixture\n")
    with kept_in(given.folder) as folder:
        path = folder / f"mixture {given.items} x {given.width} by rule"
        if not path.exists():
            made(path, mixture(int(given.items * 1.05), given.width, VALUE_WIDTH, ASKED, seed=0), given.items)
        with softkv.open(path, "r") as db:
            db.lookup(np.ones(given.width, np.float32), tolerance=0)  # compares all checksums
            print(
                "| queries | rows of each | each takes | beside a scan | forecast |\n|---|---|---|---|---|", flush=True
            )
            for queries in AT_ONCE:
                lines(db, queries)


if __name__ == "__main__":
    main()
