"""What a guard keeps that is made of items held out: `SOFTKV_DATA=folder python -m tests.benchmarks.guard_held`.

60% of a UCI set learn, the rest is split evenly, again and again: one half is held out and calibrates, beside all other
items as well, and the other asks all items, as lookups do. That is observed, and not promised (docs/learning.md). A
guard of the same points as queries, which all items that learned answer, is asked the same of these items alone.

Does not judge what is promised (guard.py).
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine

from softkv.database.guarding import Examining
from softkv.guard.calibrating import Beside, Promise, calibrate, distances
from softkv.guard.guard import Guard, Seen

from .guard import LEVELS, SETS, _learned, _range, _splits
from .questions import uci


def main() -> None:
    """Print a line for each set and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--splits", type=int, default=20)
    chosen = parser.parse_args()
    print(machine())
    print("| data | 80, 90, 95% by items: held | splits below the 99% range | by queries | width at 90%, of these |")
    print("|---|---|---|---|---|")
    for name in chosen.sets:
        keys, numbers = uci(Path(os.environ["SOFTKV_DATA"]), name)
        order = np.random.default_rng(0).permutation(len(numbers))
        learn, rest = np.split(order, [int(0.6 * len(order))])
        keys = (keys - keys[learn].mean(0)) / (keys[learn].std(0) + 1e-12)
        for way, db in _learned(keys[learn], numbers[learn], "number", "gaussian"):
            db.add(vectors=keys[rest], values=numbers[rest])
            with db.snapshot() as frozen:
                asking = Examining(frozen, frozen._asked_view(), None)
                _compared(f"{name}, {way}", asking, keys[rest], numbers[rest], len(learn), chosen.splits)
            db.delete([item.name for item in db.select(start=len(learn))])


def _compared(title: str, asking: Examining, keys: Any, aims: Any, learn: int, splits: int) -> None:
    count, before = len(keys), np.arange(learn + len(keys)) < learn
    widths, part = asking.widths(before), asking.seen(keys, before, "")
    promise, found = Promise(0.5, None, 0.95), dict[str, list[list[float]]]()
    for some, others in _splits(count, count // 2, splits):
        mask = np.concatenate([np.ones(learn, np.bool_), some])
        left = asking.left_out(learn + np.flatnonzero(some), mask, "")
        items = int(mask.sum())
        how: dict[str, Any] = {"coded": False, "widths": widths, "items": learn}
        beside = Beside(left, aims[some], items - 1)
        guard = calibrate(part.taken(some), aims[some], None, promise, **how, beside=beside)
        asked = asking.seen(keys[others], mask, "")
        found.setdefault("items", []).append(_told(guard, asked, aims[others], items))
        plain = calibrate(part.taken(some), aims[some], None, promise, **how)
        found.setdefault("queries", []).append(_told(plain, part.taken(others), aims[others], learn))
    held, other = np.array(found["items"]), np.array(found["queries"])
    least = [_range(level, count // 2, count - count // 2)[0] for level in LEVELS]
    below = (held[:, :3] < least).sum(0).tolist()
    means = [", ".join(f"{one:.3f}" for one in each[:, :3].mean(0)) for each in (held, other)]
    ratio = held[:, 3].mean() / other[:, 3].mean()
    print(f"| {title} | {means[0]} | {below} of {splits} | {means[1]} | {ratio:.3f} x |", flush=True)


def _told(guard: Guard, asked: Seen, aims: Any, items: int) -> list[float]:
    """How much intervals hold at each level, and how far they reach at 90%."""
    guard = replace(guard, now=items)
    radii, off = [guard.radius(asked, level) for level in LEVELS], distances(asked.value, aims)
    return [*(float((off <= radius).mean()) for radius in radii), float(radii[1].mean())]


if __name__ == "__main__":
    main()
