"""What it takes to make an index, and to tune: seconds, beside what was forecast, and labels beside numbers.

Run: SOFTKV_DATA=folder python -m tests.benchmarks.builds [wide range labels many large tune] [--scale X] [--rounds N]

    wide    300,000 keys 256 wide with values 128 wide, in 2,000 clusters
    range   100,000 keys 128 wide, rehearsed as far as by default, in turns with temperatures up to 7.6 times the rule's
    large   1,000,000 keys 384 wide with values 64 wide
    labels  30,000 keys 32 wide with 1,000 labels, in turns with numbers
    many    100,000 keys 64 wide with 5,000 labels in the same way, and with 5,000 that follow the keys; then lookups of
            these, in turns with scans
    tune    20,000 texts of CLINC150 and Banking77, embedded by the model that comes along, with their intents

Builds are of a fresh store each, on the CPU. Of labels the ratio to numbers is that of pairs. With the seconds of the
wall stand those of the processor, since on a machine with other work these tell more.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine

import softkv
from tests.benchmarks.filling import fresh
from tests.benchmarks.index_report import never_cheap
from tests.benchmarks.questions import Questions, banking77, clinc150, intents_of, texts_of

PARTS = ("wide", "range", "labels", "many", "large", "tune")
PIECE = 50_000  # items added together
ASKED = 200  # lookups
NARROW = 0.2, 7.6  # temperatures, as shares of that of the rule


def main() -> None:
    """Measure what was asked for, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="part", help=f"of {', '.join(PARTS)}; else all")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink all sizes, to try it out")
    parser.add_argument("--rounds", type=int, default=3, help="of pairs, and of tune")
    chosen = parser.parse_args()
    print(machine())
    print("| work | seconds | of the processor | forecast | stages | target |\n|---|---|---|---|---|---|")
    if "wide" in chosen.parts:
        built("300,000 × 256, values 128 wide", *mixture(int(300_000 * chosen.scale), 256, 128), "≤ 60 s")
    if "range" in chosen.parts:
        ranges(int(100_000 * chosen.scale), chosen.rounds, "≤ 1.3 ×")
    if "large" in chosen.parts:
        built("1,000,000 × 384, values 64 wide", *mixture(int(1_000_000 * chosen.scale), 384, 64), "≤ 80 s")
    if "labels" in chosen.parts:
        labels(int(30_000 * chosen.scale), 32, 1000, chosen.rounds, "≤ 1.3 ×")
    if "many" in chosen.parts:
        labels(int(100_000 * chosen.scale), 64, 5000, chosen.rounds, "≤ 2 ×")
        asked(int(100_000 * chosen.scale), 64, 5000)
    if "tune" in chosen.parts and "SOFTKV_DATA" in os.environ:
        tuned(Path(os.environ["SOFTKV_DATA"]), int(20_000 * chosen.scale), chosen.rounds)


def mixture(items: int, key_width: int, value_width: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys around 2,000 centres, and values that follow them, not linearly."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((2000, key_width), dtype=np.float32)
    keys = centres[rng.integers(0, 2000, items)]
    keys += np.float32(0.6) * rng.standard_normal(keys.shape, dtype=np.float32)
    return keys, np.tanh(keys[:, :value_width])


def built(
    work: str,
    keys: np.ndarray,
    values: Any,
    target: str,
    kind: str | None = None,
    times: tuple[float, float] | None = None,
) -> float:
    """Build an index of these, in a fresh store; print a line, and return the seconds.

    It is rehearsed from and to so many `times` the temperature by rule, or as far as by default.
    """
    with fresh(kind, "cosine") as db:
        for start in range(0, len(keys), PIECE):
            db.add(vectors=keys[start : start + PIECE], values=values[start : start + PIECE])
        rule = db.info().temperature  # which is found once, and no part of a build
        temperatures = None if times is None else (times[0] * rule, times[1] * rule)
        forecast, begun = db.forecast_index(temperatures=temperatures), {}

        def told(stage: str, _done: int, _total: int) -> None:
            begun.setdefault(stage, time.perf_counter())

        wall, processor = timed(lambda: db.build_index(backend="cpu", temperatures=temperatures, progress=told))
        ends = [*list(begun.values())[1:], time.perf_counter()]
    stages = ", ".join(f"{name} {end - start:.1f}" for (name, start), end in zip(begun.items(), ends, strict=True))
    print(f"| {work} | {wall:.1f} | {processor:.1f} | {forecast.seconds:.0f} | {stages} | {target} |", flush=True)
    return wall


def ranges(items: int, rounds: int, target: str) -> None:
    """Temperatures as far as by default, and fewer."""
    keys, values = mixture(items, 128, 64)
    ratios, work = [], f"{items:,} × 128"
    for _ in range(rounds):
        narrow = built(f"{work}, rehearsed to {NARROW[1]} × the rule's temperature", keys, values, "", times=NARROW)
        ratios.append(built(f"{work}, rehearsed to 100 ×", keys, values, "") / narrow)
    ratio("100 × beside less", ratios, target)


def ratio(work: str, ratios: list[float], target: str) -> None:
    """Print the line about what took how many times as long as something else."""
    print(f"| {work} | {np.median(ratios):.2f} × | | | {min(ratios):.2f}–{max(ratios):.2f} | {target} |", flush=True)


def labels(items: int, width: int, count: int, rounds: int, target: str) -> None:
    """Labels as values, drawn for each item, as many as are asked for."""
    keys, values = mixture(items, width, 1)
    names = np.array([f"label {number}" for number in np.random.default_rng(1).integers(0, count, items)], object)
    ratios, work = [], f"{items:,} × {width}"
    for _ in range(rounds):
        numbers = built(f"{work} with numbers", keys, values[:, 0].astype(float), "", "number")
        ratios.append(built(f"{work} with {count:,} labels", keys, names, "", "label") / numbers)
    ratio(f"{count:,} labels beside numbers", ratios, target)


def asked(items: int, width: int, count: int) -> None:
    """Lookups of labels that follow the keys, by the index and by a scan in turns."""
    keys, _ = mixture(items, width, 1)
    rng = np.random.default_rng(1)
    chosen = keys[rng.choice(items, min(count, items), replace=False)]
    parts = (keys[start : start + PIECE // 10] for start in range(0, items, PIECE // 10))
    nearest = np.concatenate([(part @ chosen.T - (chosen**2).sum(1) / 2).argmax(1) for part in parts])
    queries = keys[rng.choice(items, ASKED)] + np.float32(0.2) * rng.standard_normal((ASKED, width), dtype=np.float32)
    with never_cheap(), fresh("label", "cosine") as db:
        for start in range(0, items, PIECE):
            some = slice(start, start + PIECE)
            db.add(vectors=keys[some], values=[f"label {number}" for number in nearest[some]])
        seconds = timed(lambda: db.build_index(backend="cpu"))[0]
        print(f"| {items:,} × {width} with {count:,} labels that follow keys | {seconds:.1f} | | | | |")
        for warmth in (1.0, 4.0):
            temperature = db.info().temperature * warmth
            pairs = [(singly(db, query, temperature, 0.01), singly(db, query, temperature, 0)) for query in queries]
            found, scanned = np.array(pairs[1:]).T
            ratio, ends = np.median(found / scanned), np.quantile(found / scanned, (0.1, 0.9))
            told = f"{ratio:.2f} × a scan ({ends[0]:.2f}–{ends[1]:.2f})"
            print(f"| a lookup at {warmth:g} × the temperature by rule | {np.median(found):.2g} | | | {told} | |")


def singly(db: softkv.SoftKV, query: np.ndarray, temperature: float, tolerance: float) -> float:
    """Seconds for one lookup."""
    return timed(lambda: db.lookup(query, temperature=temperature, tolerance=tolerance))[0]


def tuned(data: Path, items: int, rounds: int) -> None:
    """The temperature of texts with their intents."""
    from softkv.embedders import find

    questions = questions_of(data)[:items]
    vectors = find("static").documents(texts_of(questions))
    with fresh("label", "cosine") as db:
        db.add(vectors=vectors, values=intents_of(questions))
        db.info()
        found: list[Any] = []
        for _ in range(rounds):
            wall, processor = timed(lambda: found.append(db.tune()))
            print(
                f"| tune {items:,} texts | {wall:.1f} | {processor:.1f} | | {str(found[-1]).splitlines()[0]} | ≤ 15 s |"
            )


def questions_of(data: Path) -> Questions:
    """All texts with their intents, in an order drawn."""
    found = [one for parts in (clinc150(data), banking77(data)) for part in parts.values() for one in part]
    return [found[place] for place in np.random.default_rng(0).permutation(len(found))]


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the wall and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


if __name__ == "__main__":
    main()
