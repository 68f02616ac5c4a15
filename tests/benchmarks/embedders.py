"""How fast are embedders, and how good? `SOFTKV_DATA=folder python -m tests.benchmarks.embedders`.

For each: seconds from the start of Python's imports to a loaded model, and to the vector of a first text, and resident
memory, all in fresh processes; texts a second on the 15,000 training questions of CLINC150 in one call, and one text at
a time; and, without --speed, how many of its 4,500 test questions (and of the 3,080 of Banking77) have the intent of
their nearest neighbour.

Does not judge: timings depend on the machine and its other users. The accuracy of the bundled one is held by a test.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from softkv_cli.machine import machine

from softkv.embedders import Embedder, find

from .questions import Questions, banking77, clinc150, texts_of

LOAD = """
import time
start = time.perf_counter()
from softkv.embedders import find
found = find({name!r})
loaded = time.perf_counter() - start
found.queries(["how much is a cup of coffee?"])
asked = time.perf_counter() - start
resident = next((line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")), "nan")
print(loaded, asked, float(resident) / 1e3)
"""


def main() -> None:
    """Measure each embedder, and print a table."""
    chosen = _options()
    print(machine())
    header = ("embedder", "width", "load s", "first s", "MB", "texts/s", "one ms", "clinc150", "banking77")
    print(("{:24}" + "{:>10}" * 8).format(*header))
    clinc, banking = (parts_of(Path(chosen.data)) for parts_of in (clinc150, banking77))
    for name in chosen.embedders:
        loaded, asked, megabytes = loading(name, repeats=chosen.repeats)
        embedder = find(name)
        many, one = speed(embedder, texts_of(clinc["train"]), repeats=chosen.repeats)
        row = f"{name:24}{embedder.width:10}{loaded:10.2f}{asked:10.2f}{megabytes:10.0f}{many:10,.0f}{one * 1e3:10.2f}"
        right = [accuracy(embedder, parts["train"], parts["test"]) for parts in (clinc, banking) if not chosen.speed]
        print(row + "".join(f"{share:10.1%}" for share in right))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time embedders and count their nearest neighbours.")
    parser.add_argument("embedders", nargs="*", default=["static"], help="names or folders")
    parser.add_argument("--data", default=os.environ.get("SOFTKV_DATA"), help="the folder of clinc150 and banking77")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--speed", action="store_true", help="count no neighbours, which takes minutes")
    chosen = parser.parse_args()
    if not chosen.data:
        parser.error("give --data or set SOFTKV_DATA: the folder with clinc150 and banking77")
    return chosen


def loading(name: str, *, repeats: int) -> list[float]:
    """Medians of new processes: seconds to a loaded embedder, seconds to a first vector, and resident megabytes."""
    command = [sys.executable, "-c", LOAD.format(name=name)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*(map(float, run.stdout.split()) for run in runs), strict=True)]


def speed(embedder: Embedder, texts: list[str], *, repeats: int) -> tuple[float, float]:
    """Texts a second in one call, and seconds for a single text; medians."""
    # A transformer takes a minute for all of them; its speed shows in fewer.
    embedder.documents(texts[:100])
    start = time.perf_counter()
    embedder.documents(texts[:500])
    part = texts if time.perf_counter() - start < 0.2 else texts[:1000]
    many = statistics.median(_seconds(embedder, part) for _ in range(repeats))
    one = statistics.median(_seconds(embedder, [text]) for text in texts[:200])
    return len(part) / many, one


def accuracy(embedder: Embedder, train: Questions, test: Questions) -> float:
    """The share of test texts whose nearest training text, by cosine, has the same label."""
    keys, queries = embedder.documents(texts_of(train)), embedder.queries(texts_of(test))
    for vectors in (keys, queries):
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = (queries @ keys.T).argmax(axis=1)
    return statistics.fmean(train[at][1] == label for at, (_, label) in zip(nearest, test, strict=True))


def _seconds(embedder: Embedder, texts: list[str]) -> float:
    start = time.perf_counter()
    embedder.documents(texts)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
