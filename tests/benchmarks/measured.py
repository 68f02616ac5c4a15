"""Lookups that no rehearsal was about, beside scans: other temperatures, random directions, filters.

    python -m tests.benchmarks.measured --items 1000000 --width 384 --folder FOLDER [--spectrum]

A mixture of 2,000 clusters, or one Gaussian, with values 64 wide, the temperature by rule and an index as it is built
by default; afterwards 5% of the items are added and 1% deleted. Queries like the items are asked at the temperature by
rule and at both ends of the rehearsed range as well. A fresh process asks one query after the other, each in turn by
the index, by a scan, and where torch is installed by its softmax over all keys, as products or as its attention,
whichever is faster there. A line says how the queries were answered, what share of the rows was read, for how many
estimates the answer was within what it stated against the scan, the median time and its ratios to the others, and at
the temperatures of the goals whether they are reached: nothing scanned, as many within as 95% may leave, and a tenth of
torch for queries like the items, half of it for others. The first lookups of fresh processes come last. Stores are kept
in the folder, and used again. Where a goal is missed, the command fails.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine
from softkv_cli.mixtures import Mixture, mixture

import softkv
from softkv.asking.question import CONFIDENCE
from softkv.index.verdict import CHANCE, at_most

from .filling import batches, kept_in, put
from .index_data import one_gaussian

VALUE_WIDTH, ASKED = 64, 60
LAPLACE, AT_ONCE = (0.5, 5.0), 256
ROOM = 1 << 30  # numbers in keys, of which there is a copy for torch
TEMPERATURES = (0.02, 0.05, 0.07, 0.1, 0.5, 5.0)
GOALS = (0.05, 0.07, 0.1)  # the temperatures at which goals are judged
LIKE, OTHERS = 0.1, 0.5  # the goals beside torch, of queries like the items and of all others
FIRST = (("by a plan", 0.07, 0.01), ("measured", 20.0, 0.01), ("by a scan", 20.0, 0.0))  # with their tolerances
FILTERS: dict[str, dict[str, Any]] = {
    "a tenth at random": {"tenth": True},
    "a tenth by cluster": {"far left": True},
    "half at random": {"half": True},
    "half by cluster": {"left": True},
    "nine tenths at random": {"most": True},
    "nine tenths by cluster": {"far left": False},
}


def made(path: Path, items: Mixture, count: int) -> None:
    """A store of these items with an index, some that came since, and some that went."""
    firsts = items.keys[:, 0]
    far = np.quantile(firsts, 0.1)

    def payload(number: int) -> dict[str, bool]:
        told = {"half": number % 2 == 0, "most": number % 10 > 0, "tenth": number % 10 == 3}
        return told | {"left": bool(firsts[number] < 0), "far left": bool(firsts[number] < far)}

    with softkv.open(path, "n") as db:
        for part, names in batches(0, count):
            payloads = [payload(number) for number in range(part.start, part.stop)]
            db.add(names, items.values[part], vectors=items.keys[part], payloads=payloads)
        db.build_index()
        put(db, items, count, len(items.keys))
        db.delete([f"item {number}" for number in range(0, count, 100)])


def exact_torch(db: Any) -> Callable[..., Any] | None:
    """A softmax over the directions of keys by torch in the faster of two ways; None without it, or without room."""
    try:
        import torch
    except ImportError:
        return None
    snapshot = db._view().snapshot
    if snapshot.rows * snapshot.layout.key_width > ROOM:
        return None
    rows = np.flatnonzero(snapshot.live)
    keys, values = torch.from_numpy(snapshot.vectors(rows)), torch.from_numpy(snapshot.values(rows))
    keys /= torch.linalg.norm(keys, dim=1, keepdim=True)

    def by_products(direction: Any, mask: Any) -> Any:
        scores = keys @ direction
        return torch.softmax(scores if mask is None else scores.masked_fill_(mask, -torch.inf), 0) @ values

    def by_attention(direction: Any, mask: Any) -> Any:
        seen = None if mask is None else ~mask[None, None, None]
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(direction[None, None, None], keys[None, None], values[None, None], attn_mask=seen, scale=1.0)

    def seconds(way: Callable[[Any, Any], Any]) -> float:
        started = time.perf_counter()
        for _ in range(3):
            way(keys[0], None)
        return time.perf_counter() - started

    fastest = min((by_products, by_attention, by_products, by_attention), key=seconds)

    def ask(query: np.ndarray, temperature: float, mask: Any) -> Any:
        return fastest(torch.from_numpy(query / np.linalg.norm(query) / temperature), mask)

    return ask


def compared(db: Any, queries: np.ndarray, temperature: float, torch: Any, goal: float = 0.0, **options: Any) -> str:
    """The cells of a line; the goal is that beside torch."""
    seconds: dict[str, list[float]] = {"index": [], "scan": [], "torch": []}
    ways, read, within = Counter[str](), list[float](), list[bool]()
    left_out = None
    if torch is not None and "where" in options:
        import torch as library

        snapshot = db._view().snapshot
        left_out = library.from_numpy(~snapshot.matching(options["where"])[snapshot.live])

    def timed(name: str, work: Callable[..., Any], *given: Any, **how: Any) -> Any:
        started = time.perf_counter()
        found = work(*given, **how)
        seconds[name].append(time.perf_counter() - started)
        return found

    db.lookup(queries[0], temperature=temperature, **options)
    for query in queries:
        found = timed("index", db.lookup, query, temperature=temperature, **options)
        true = timed("scan", db.lookup, query, temperature=temperature, tolerance=0, **options)
        if torch is not None:
            timed("torch", torch, query, temperature, left_out)
        routes = np.broadcast_to(np.asarray(found.route), np.shape(found.rows_read) or 1)
        ways.update(routes.tolist())
        read.append(float(np.mean(found.rows_read)) / len(db))
        kept = np.atleast_1d(np.linalg.norm(found.value - true.value, axis=-1) <= found.error + true.error)
        within.extend(kept[routes != "scan"].tolist())
    kinds = ", ".join(f"{ways[way] / ways.total():.0%} {way}" for way in sorted(ways))
    kept = f"{np.mean(within):.1%}" if within else ""
    median = {name: statistics.median(some) for name, some in seconds.items() if some}
    ratios = [f"{median['index'] / median[name]:.2f}" if name in median else "" for name in ("scan", "torch")]
    told = ""
    if goal and temperature in GOALS and "torch" in median:
        kept_so = at_most(sum(within), len(within), CONFIDENCE) >= CHANCE
        reached = not ways["scan"] and kept_so and median["index"] <= goal * median["torch"]
        told = "reached" if reached else "missed"
    return f"{kinds} | {np.mean(read):.2%} | {kept} | {1e3 * median['index']:.1f} ms | {' | '.join(ratios)} | {told} |"


def ends(db: Any) -> list[float]:
    """All temperatures, that by rule, and the ends of the range that the index was rehearsed for."""
    return sorted({*TEMPERATURES, db.info().temperature, *db.info().index.built["temperatures"]})


def ask(path: Path, asked: np.ndarray, part: str) -> bool:
    """Print the lines whose names have this part, in a process of its own; whether all their goals are reached."""
    strange, missed = np.random.default_rng(1).standard_normal(asked.shape).astype(np.float32), False

    def line(name: str, temperature: float, *given: Any, **options: Any) -> None:
        nonlocal missed
        if part not in (name := f"{name}, T {temperature:.3g}"):
            return
        cells = compared(db, given[0], temperature, *given[1:], **options)
        missed |= cells.endswith("missed |")
        print(f"| {name} | {cells}", flush=True)

    with softkv.open(path, "r") as db:
        torch = exact_torch(db)
        for name, queries, goal in (("like the items", asked, LIKE), ("random directions", strange, OTHERS)):
            for temperature in ends(db) if goal == LIKE else TEMPERATURES:
                line(name, temperature, queries, torch, goal)
        for name, where in FILTERS.items():
            for temperature in (*GOALS, 0.5):
                line(name, temperature, asked[:30], torch, OTHERS, where=where)
        for temperature in LAPLACE:
            line("laplace", temperature, asked[:10], None, compatibility="laplace")
        many = np.random.default_rng(2).standard_normal((5, AT_ONCE, asked.shape[1])).astype(np.float32)
        for temperature in (0.07, 0.1, 0.5):
            line(f"{AT_ONCE} random directions at once", temperature, many, None)
    return not missed


def first(path: Path, temperature: float, tolerance: float) -> float:
    """How long the first lookup of a fresh process takes."""
    line = [sys.executable, "-m", "tests.benchmarks.measured", "--first", str(path), str(temperature), str(tolerance)]
    return float(json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--folder", type=Path, default=None, help="where stores are kept; a temporary one by default")
    parser.add_argument("--spectrum", action="store_true", help="one Gaussian instead of clusters")
    parser.add_argument("--lines", default="", help='only those whose names have this, such as "T 0.05"')
    parser.add_argument("--ask", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        sys.exit(0 if ask(given.ask[0], np.load(given.ask[1]), given.lines) else 1)
    if given.first:
        path, temperature, tolerance = given.first
        with softkv.open(path, "r") as db:
            query, started = db._view().snapshot.vectors(np.array([5]))[0], time.perf_counter()
            db.lookup(query, temperature=float(temperature), tolerance=float(tolerance))
            print(time.perf_counter() - started)
        return
    kind, make = ("spectrum", one_gaussian) if given.spectrum else ("mixture", partial(mixture, seed=0))
    print(f"{machine()}\n{given.items:,} items x {given.width}, {kind}\n")
    with kept_in(given.folder) as folder:
        items = make(int(given.items * 1.05), given.width, VALUE_WIDTH, ASKED)
        path = folder / f"{kind} {given.items} x {given.width} by rule"
        queries = path.with_suffix(".queries.npy")
        np.save(queries, items.queries)
        if not path.exists():
            made(path, items, given.items)
        del items
        print("| asked | answered | rows read | within what they state | lookup | beside a scan | beside torch | |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        command = [sys.executable, "-m", "tests.benchmarks.measured", "--lines", given.lines, "--ask", path, queries]
        found = subprocess.run(command)
        for name, temperature, tolerance in FIRST:
            seconds = statistics.median(first(path, temperature, tolerance) for _ in range(5))
            print(f"first lookup of a process, {name}, T {temperature:g}: {1e3 * seconds:.0f} ms")
    sys.exit(found.returncode)


if __name__ == "__main__":
    main()
