"""What reading records costs beside the bare parsers of the standard library on the same text.

Run: python -m tests.benchmarks.reading [--rows N]

Every figure is a ratio taken in one run, ours and the yardstick alternating; a ratio is the median of pairs.
The last line is what making that many Record objects costs by itself, which no way of reading can avoid.
"""

import argparse
import collections
import csv
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from itertools import repeat

import numpy as np
from softkv_cli.machine import machine

from softkv.files import Columns, Record, records
from tests.benchmarks.storage import paired, timed

WIDTH = 384


def main() -> None:
    """Measure every format and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="lines of the short tables")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print("| work | softkv | bare parser | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder:
        for work, ours, theirs in cases(folder, options.rows):
            row(work, options.rounds, ours, theirs)
    bare_records = map(Record, range(options.rows), repeat("key"), *[repeat(None)] * 4)
    seconds = timed(lambda: drained(bare_records))
    print(f"| {options.rows:,} records, made of nothing | {seconds:.2f} s | | |")


Case = tuple[str, Callable[[], Iterable[object]], Callable[[], Iterable[object]]]


def cases(folder: str, rows: int) -> Iterable[Case]:
    """What is read, how we read it, and how it is parsed bare."""
    numbers = np.random.default_rng(1).standard_normal((max(rows // 100, 1), WIDTH)).round(6)
    table = written(folder, "short.csv", ["key,value", *(f"item {i},{i / 7:.3f}" for i in range(rows))])
    yield f"CSV, {rows:,} short lines, numbers", lambda: records(table), lambda: bare(table)
    texts = written(folder, "texts.csv", ["key,value", *(f'item {i},"a text, of item {i}"' for i in range(rows))])
    yield f"CSV, {rows:,} short lines, quoted texts", lambda: records(texts), lambda: bare(texts)
    lines = written(folder, "short.jsonl", [json.dumps({"key": f"item {i}", "value": i / 7}) for i in range(rows)])
    yield f"JSON lines, {rows:,} short lines", lambda: records(lines), lambda: map(json.loads, text(lines))
    names = tuple(f"x{i}" for i in range(WIDTH))
    wide = written(
        folder, "wide.csv", [",".join(("key", "value", *names)), *(f"k,1,{','.join(map(str, one))}" for one in numbers)]
    )
    columns = Columns(vector=names)
    yield f"CSV, {len(numbers):,} × {WIDTH} numbers", lambda: records(wide, columns=columns), lambda: bare(wide)
    vectors = written(
        folder, "vectors.jsonl", [json.dumps({"key": "k", "value": 1, "vector": one.tolist()}) for one in numbers]
    )
    yield (
        f"JSON lines, {len(numbers):,} × {WIDTH} numbers",
        lambda: records(vectors),
        lambda: map(json.loads, text(vectors)),
    )


def written(folder: str, name: str, lines: Iterable[str]) -> str:
    """The path of a file of these lines."""
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def text(path: str) -> Iterable[str]:
    """The lines of a file."""
    with open(path, encoding="utf-8", newline="") as file:
        yield from file


def bare(path: str) -> Iterable[object]:
    """The rows of a table, as csv gives them."""
    with open(path, encoding="utf-8", newline="") as file:
        yield from csv.reader(file)


def drained(rows: Iterable[object]) -> None:
    """Read everything, and keep nothing."""
    collections.deque(rows, maxlen=0)


def row(work: str, rounds: int, ours: Callable[[], Iterable[object]], theirs: Callable[[], Iterable[object]]) -> None:
    """One line of the table: medians of both, and the median ratio of the pairs."""
    left, right, ratio = paired(rounds, lambda: drained(ours()), lambda: drained(theirs()))
    print(f"| {work} | {left:.2f} s | {right:.2f} s | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
