"""What writing a store to one file and reading it back costs, beside the same arrays written plainly.

Run: python -m tests.benchmarks.transfer [--rows N] [--width W]

MB/s are of the float32 key vectors; everything else of an item travels with them. Each figure is the median of rounds.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from softkv_cli.machine import machine

from softkv.files.exports import FORMATS, export, load
from softkv.storage import Store
from tests.benchmarks.storage import timed


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where to write; a temporary folder by default")
    options = parser.parse_args()
    vectors = np.random.default_rng(0).standard_normal((options.rows, options.width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    print(machine())
    print(f"{options.rows:,} × {options.width} numbers with keys and payloads\n")
    print("| format | file | write | MB/s | read | MB/s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-", dir=options.folder) as folder:
        for work in (ours, savez, dumps):
            work(Path(folder), vectors, options.rounds)


def ours(folder: Path, vectors: np.ndarray, rounds: int) -> None:
    """Every format of the store."""
    with Store.open(folder / "old.softkv", "c") as store:
        places = range(len(vectors))
        keys, payloads = [f"item {i}" for i in places], [{"number": i} for i in places]
        store.append(vectors, vectors[:, 0].astype(np.float64), keys=keys, payloads=payloads)
        with store.snapshot() as snapshot:
            for suffix in FORMATS:
                path = folder / f"store{suffix}"
                write = partial(export, snapshot, path, force=True)
                line(suffix, path, vectors, rounds, write, partial(loaded, path))


def loaded(path: Path) -> None:
    """Read a file into a new store."""
    with Store.open(path.with_suffix(".softkv"), "n") as store:
        load(path, store)


def savez(folder: Path, vectors: np.ndarray, rounds: int) -> None:
    """The bare arrays by NumPy: no keys, no payloads, no store."""
    path = folder / "plain.npz"

    def write() -> None:
        np.savez(path, vectors=vectors, values=vectors[:, 0].astype(np.float64))
        synced(path)

    def read() -> None:
        with np.load(path) as arrays:
            _ = arrays["vectors"], arrays["values"]

    line("np.savez", path, vectors, rounds, write, read)


def dumps(folder: Path, vectors: np.ndarray, rounds: int) -> None:
    """The bare vectors by json.dumps, one line each."""
    path = folder / "plain.jsonl"

    def write() -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row.tolist()) + "\n" for row in vectors)
        synced(path)

    def read() -> None:
        with open(path, encoding="utf-8") as file:
            _ = np.stack([np.array(json.loads(row), np.float32) for row in file])

    line("json.dumps", path, vectors, rounds, write, read)


def synced(path: Path) -> None:
    """Make a file durable, as an export is."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def line(
    name: str, path: Path, vectors: np.ndarray, rounds: int, write: Callable[[], object], read: Callable[[], object]
) -> None:
    """One line of the table."""
    taken = [(timed(write), timed(read)) for _ in range(rounds)]
    writing, reading = (statistics.median(column) for column in zip(*taken, strict=True))
    size = vectors.nbytes / 1e6
    print(
        f"| {name} | {path.stat().st_size / 1e6:.0f} MB | {writing:.2f} s | {size / writing:.0f} "
        f"| {reading:.2f} s | {size / reading:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
