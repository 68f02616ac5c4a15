"""A store that grows tenfold after its index was built, while a reader asks all the time and the writer is killed.

    python -m tests.benchmarks.growing --items 100000 --upto 1000000 --width 384

A writer adds a mixture in batches of 10,000 and tells of each one that is acknowledged. From time to time it is
killed, and another goes on. A reader in a process of its own asks one query after the other, by the index, and every
tenth by a scan as well. A line for each stretch says what lookups and scans took, and for how many the answer was
within what it stated. In the end all that was acknowledged must be there, and the store must check.
"""

import argparse
import json
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import mixture

import softkv

from .filling import BATCH, batches, put

VALUE_WIDTH, ASKED, TEMPERATURE = 64, 400, 0.07
EVERY = 10  # lookups of which one is compared with a scan


def write(path: Path, folder: Path, upto: int) -> None:
    """Add what is not there yet, and tell of each batch that is acknowledged."""
    keys, values = np.load(folder / "keys.npy", mmap_mode="r"), np.load(folder / "values.npy", mmap_mode="r")
    with softkv.open(path, "w", wait=30) as db:
        for part, names in batches(len(db), upto):
            db.add(names, values[part], vectors=keys[part])
            print(part.stop, flush=True)


def read(path: Path, folder: Path) -> None:
    """Ask until stdin ends; a line for each lookup."""
    queries, number = np.load(folder / "queries.npy"), 0
    with softkv.open(path, "r") as db:
        while not select.select([sys.stdin], [], [], 0)[0]:
            query = queries[number % len(queries)]
            started = time.perf_counter()
            found = db.lookup(query, temperature=TEMPERATURE)
            told: dict[str, Any] = {"items": len(db), "lookup": time.perf_counter() - started, "route": found.route}
            if number % EVERY == 0:
                with db.snapshot() as now:
                    started = time.perf_counter()
                    true = now.lookup(query, temperature=TEMPERATURE, tolerance=0)
                    told["scan"] = time.perf_counter() - started
                    again = now.lookup(query, temperature=TEMPERATURE)
                told["within"] = bool(np.linalg.norm(again.value - true.value) <= again.error + true.error)
            number += 1
            print(json.dumps(told), flush=True)


def told(lines: list[dict[str, Any]], low: int, high: int) -> None:
    """What was asked while the store had so many items."""
    some = [one for one in lines if low <= one["items"] < high]
    if not some:
        return
    lookup = statistics.median(one["lookup"] for one in some)
    scans = [one for one in some if "scan" in one]
    scan = statistics.median(one["scan"] for one in scans) if scans else float("nan")
    within = statistics.mean(one["within"] for one in scans) if scans else float("nan")
    by_index = statistics.mean(one["route"] == "calibrated" for one in some)
    print(
        f"| {low:,} to {high:,} | {len(some)} | {1e3 * lookup:.2f} ms | {1e3 * scan:.2f} ms | {lookup / scan:.2f} | "
        f"{by_index:.1%} | {within:.1%} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--upto", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--role", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        role, path, folder, upto = given.role
        write(Path(path), Path(folder), int(upto)) if role == "write" else read(Path(path), Path(folder))
        return
    with tempfile.TemporaryDirectory() as name:
        print(f"{machine()}\n{given.items:,} to {given.upto:,} items x {given.width}")
        grow(Path(name), given.items, given.upto, given.width, given.kills)


def grow(folder: Path, items: int, upto: int, width: int, kills: int) -> None:
    """Make the store, let it grow, and print what the reader saw."""
    made, path = mixture(upto, width, VALUE_WIDTH, ASKED, 0), folder / "s"
    for name in ("keys", "values", "queries"):
        np.save(folder / name, getattr(made, name))
    with softkv.open(path, "n", temperature=TEMPERATURE) as db:
        put(db, made, 0, items)
        db.build_index()

    def role(name: str) -> list[str]:
        return [sys.executable, "-m", "tests.benchmarks.growing", "--role", name, str(path), str(folder), str(upto)]

    with (folder / "asked").open("w+") as asked:
        reader = subprocess.Popen(role("read"), stdin=subprocess.PIPE, stdout=asked, text=True)
        acknowledged, killed, rng = items, 0, np.random.default_rng(0)
        while acknowledged < upto:
            left = int(rng.integers(2, 2 + 2 * (upto - items) // BATCH // (kills + 1)))
            with subprocess.Popen(role("write"), stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                for done in writer.stdout:
                    acknowledged, left = int(done), left - 1
                    if left == 0:
                        time.sleep(float(rng.uniform(0, 0.3)))  # somewhere in the next batch
                        writer.kill()
            killed += writer.returncode == -signal.SIGKILL
        assert reader.stdin is not None
        reader.stdin.close()
        reader.wait()
        asked.seek(0)
        lines = [json.loads(line) for line in asked]
    print(f"{killed} writers were killed\n")
    print("| items | lookups | by the index | scan | beside it | not scanned | within what they state |")
    print("|---|---|---|---|---|---|---|")
    for low in range(items, upto, (upto - items) // 9):
        told(lines, low, low + (upto - items) // 9)
    with softkv.open(path, "r") as db:
        print(f"\n{len(db):,} items, {acknowledged:,} acknowledged; {db.info().index}; check ok: {db.check().ok}")


if __name__ == "__main__":
    main()
