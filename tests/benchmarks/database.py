"""What a database costs above the arrays that it holds: lookups, first questions, adding texts, starting the command.

    python -m tests.benchmarks.database [--rows N ...] [--first N] [--texts N] [--lines N] [--repeats N]

Work and yardstick take turns in one run, on the same vectors with the same threads. Times are medians; ratios are what
counts.
"""

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine

import softkv
from softkv.embedders import find

WIDTH, FIRST_WIDTH = 384, 256
COMMAND = "from softkv_cli.main import main; main()"
ONE_CALL = (
    "import softkv, sys; db = softkv.open(sys.argv[1], 'r'); db.lookup(sys.stdin.read().splitlines()); db.close()"
)


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


def firsts(folder: Path, rows: int, repeats: int) -> None:
    """What a handle is asked first, opening included, beside one pass over the keys, or over payloads in SQL."""
    keys = np.random.default_rng(0).standard_normal((rows, FIRST_WIDTH), dtype=np.float32)
    payloads = [{"n": number} for number in range(rows)]
    np.save(folder / "keys.npy", keys)
    table = sqlite3.connect(folder / "payloads.sqlite")
    table.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, payload TEXT)")
    table.executemany("INSERT INTO items VALUES (?, ?)", enumerate(map(json.dumps, payloads)))
    table.commit()
    with softkv.open(folder / "first.softkv") as db:
        db.add(vectors=keys, values=np.zeros(rows), payloads=payloads)
    few = {"n": {"$lt": rows // 100}}
    asked = f"SELECT row FROM items WHERE json_extract(payload, '$.n') < {rows // 100}"

    def first(ask: Callable[[softkv.SoftKV], Any]) -> Any:
        with softkv.open(folder / "first.softkv", "r") as db:
            return ask(db)

    def ruled(compatibility: str) -> Any:
        known._findings.forget()  # as a writer finds it, which leaves it to readers
        return known._view().temperature_by_rule(compatibility)

    with softkv.open(folder / "first.softkv", "r") as known:
        works = {
            "one pass over the keys": lambda: np.load(folder / "keys.npy", mmap_mode="r").sum(),
            "first info()": lambda: first(lambda db: db.info()),
            "the temperature by rule, cosine": lambda: ruled("cosine"),
            "the temperature by rule, gaussian": lambda: ruled("gaussian"),
            "one pass over the payloads": lambda: table.execute(asked).fetchall(),
            "first where=, of which 1% match": lambda: first(lambda db: db.lookup(keys[0], where=few, temperature=1.0)),
            "where= again": lambda: known.lookup(keys[0], where=few, temperature=1.0),
        }
        beside = ["one pass over the keys"] * 4 + ["one pass over the payloads"] * 3
        table_of(rows, turns(works, repeats), beside)
    table.close()


def table_of(rows: int, found: dict[str, float], beside: list[str]) -> None:
    """A line for each work, with its ratio to the yardstick that it stands beside."""
    for (name, seconds), yardstick in zip(found.items(), beside, strict=True):
        print(f"| {rows:,} | {name} | {seconds * 1e3:.1f} ms | {seconds / found[yardstick]:.2f} |")


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


def starting(folder: Path, count: int, lines: int, repeats: int) -> None:
    """Commands as processes of their own on the texts just added, beside an interpreter that only imports NumPy.

    Many queries from stdin stand beside a process that asks the library for all of them in one call.
    """
    store = ["--db", str(folder / "texts.softkv")]
    arguments = {
        "softkv --help": ["--help"],
        "softkv get": ["get", texts_of(1)[0], *store],
        "softkv query": ["query", "what does number seven cost", *store],
    }
    plain = "python -c 'import numpy'"
    commands = {plain: [sys.executable, "-c", "import numpy"]}
    commands |= {name: [sys.executable, "-c", COMMAND, *given] for name, given in arguments.items()}
    one_call = f"one call of the library, {lines:,} queries"
    commands[one_call] = [sys.executable, "-c", ONE_CALL, store[1]]
    commands[f"softkv query -, {lines:,} lines"] = [sys.executable, "-c", COMMAND, "query", "-", *store]
    asked = "\n".join(texts_of(lines)).encode()
    works = {
        name: (lambda command=command: subprocess.run(command, check=True, capture_output=True, input=asked))
        for name, command in commands.items()
    }
    table_of(count, turns(works, repeats), [plain] * 4 + [one_call] * 2)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--first", type=int, default=300_000)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--lines", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=11)
    given = parser.parse_args()
    print(machine(), "\n\n| items | work | time | ratio |\n|---|---|---|---|", sep="")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rows in given.rows:
            lookups(folder, rows, given.repeats)
        firsts(folder, given.first, given.repeats)
        adding(folder, given.texts)
        starting(folder, given.texts, given.lines, given.repeats)


if __name__ == "__main__":
    main()
