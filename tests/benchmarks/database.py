"""What a database costs above the arrays that it holds: lookups, adding texts, starting the command.

    python -m tests.benchmarks.database

Work and yardstick take turns in one run, on the same vectors with the same threads. Times are medians; ratios are what
counts.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import softkv
from softkv.embedders import find

from .machine import machine

WIDTH = 384
TEXTS = 100_000
COMMAND = "from softkv_cli.main import main; main()"


def turns(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median seconds of each work, taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def lookups(folder: Path, rows: int, repeats: int) -> None:
    """One query by cosine, from a store and from plain arrays; with a filter; with a tenth of the items deleted."""
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((rows, WIDTH), dtype=np.float32), rng.standard_normal(rows)
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    query = rng.standard_normal(WIDTH).astype(np.float32)
    with softkv.open(folder / f"{rows}.softkv", temperature=0.05) as db:
        for start in range(0, rows, 100_000):
            part = slice(start, start + 100_000)
            payloads = [{"n": number} for number in range(start, min(start + 100_000, rows))]
            db.add(vectors=keys[part], values=values[part], payloads=payloads)
        few, most = {"n": {"$lt": rows // 100}}, {"n": {"$gte": rows // 100}}
        options: dict[str, Any] = {"compatibility": "dot", "temperature": 0.05}
        whole = db.snapshot()
        db.delete([f"#{number}" for number in range(1, rows, 10)])
        works = {
            "soft_lookup of unit keys": lambda: softkv.soft_lookup(query, unit, values, **options),
            "db.lookup": lambda: whole.lookup(query),
            "db.lookup where 1% match": lambda: whole.lookup(query, where=few),
            "db.lookup where 99% match": lambda: whole.lookup(query, where=most),
            "db.nearest": lambda: whole.nearest(query),
            "db.lookup, a tenth deleted": lambda: db.lookup(query),
        }
        found = turns(works, repeats)
        whole.close()
    plain = found["soft_lookup of unit keys"]
    for name, seconds in found.items():
        print(f"| {rows:,} | {name} | {seconds * 1e3:.2f} ms | {seconds / plain:.2f} |")


def texts_of(count: int) -> list[str]:
    """Questions, all different."""
    return [f"how much is item {number} of the list, and may I send it back?" for number in range(count)]


def adding(folder: Path, count: int) -> None:
    """Texts with numbers as values, in one batch: embedding, and all of it."""
    texts, embedder = texts_of(count), find("static")
    embedder.documents(texts[:10])
    start = time.perf_counter()
    embedder.documents(texts)
    embedding = time.perf_counter() - start
    start = time.perf_counter()
    with softkv.open(folder / "texts.softkv", temperature=0.05) as db:
        db.add(texts, np.arange(float(count)))
    whole = time.perf_counter() - start
    print(f"| {count:,} | db.add of texts | {whole:.2f} s | {whole / embedding:.2f} of embedding alone |")


def starting(folder: Path, count: int, repeats: int) -> None:
    """Commands as processes of their own on the texts just added, beside an interpreter that only imports NumPy."""
    store = ["--db", str(folder / "texts.softkv")]
    arguments = {
        "softkv --help": ["--help"],
        "softkv get": ["get", texts_of(1)[0], *store],
        "softkv query": ["query", "what does number seven cost", *store],
    }
    plain = "python -c 'import numpy'"
    commands = {plain: [sys.executable, "-c", "import numpy"]}
    commands |= {name: [sys.executable, "-c", COMMAND, *given] for name, given in arguments.items()}
    works = {
        name: (lambda command=command: subprocess.run(command, check=True, capture_output=True))
        for name, command in commands.items()
    }
    for name, seconds in (found := turns(works, repeats)).items():
        print(f"| {count:,} | {name} | {seconds * 1e3:.0f} ms | {seconds / found[plain]:.2f} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=11)
    given = parser.parse_args()
    print(machine(), "\n\n| items | work | time | ratio |\n|---|---|---|---|", sep="")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rows in given.rows:
            lookups(folder, rows, given.repeats)
        adding(folder, TEXTS)
        starting(folder, TEXTS, given.repeats)


if __name__ == "__main__":
    main()
