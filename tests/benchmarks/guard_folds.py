"""Few items: hold some out, or fold them (CV+)? `SOFTKV_DATA=folder python -m tests.benchmarks.guard_folds`.

Many small stores are drawn; each is tuned on what does not calibrate, and judged on 500 queries. The intervals are of
absolute residuals, at the same promise: that of the held-out ones is 1 - α, and of five folds 1 - 2α.

    hold out  the k-th smallest residual of m items held out, k = 0.9 (m + 1), asked of a store of the others
    folds     y is left out where (N + K) / (n + K) <= 0.05, and N of n residuals are as large as its own in the store
              of their fold. Within a fold (1 + its part of N) / (1 + its size) is a conformal p-value; this is the
              mean of K of them, weighted by sizes, and twice a mean of p-values is one (Vovk and Wang 2020)
    factor 1  folds as they are often used: y is left out where (N + 1) / (n + 1) <= 0.1, which promises less than 0.8

Does not scale residuals, and looks at no labels: how many items each takes is the same for these.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine

from softkv.guard.conformal import Ranked

from .filling import fresh
from .questions import uci

SHARE, FOLDS, QUERIES = 0.9, 5, 500
SIZES, HELD = (45, 60, 100, 150, 200, 300), (0.2, 0.5)


def main() -> None:
    """Print a line for each size and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["wave", "concrete"], help="wave, or a UCI set")
    parser.add_argument("--stores", type=int, default=40)
    chosen = parser.parse_args()
    print(machine())
    print("| data | items | way | held, mean | deviation | lowest in 20 | width |\n|---|---|---|---|---|---|---|")
    for name in chosen.sets:
        for count in SIZES:
            found: dict[str, list[tuple[float, float]]] = {}
            for seed in range(chosen.stores):
                for way, low, high, wanted in _intervals(*_drawn(name, count, np.random.default_rng([seed, count]))):
                    held = float(((low <= wanted) & (wanted <= high)).mean())
                    found.setdefault(way, []).append((held, float((high - low).mean())))
            for way, pairs in found.items():
                shares, wide = np.array(pairs).T
                told = f"{shares.mean():.3f} | {shares.std():.3f} | {np.quantile(shares, 0.05):.3f} | {wide.mean():.4g}"
                print(f"| {name} | {count} | {way} | {told} |", flush=True)


def _drawn(name: str, count: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any, np.random.Generator]:
    """Items and queries with their numbers, and what draws parts of them."""
    if name == "wave":
        x = rng.uniform(-3, 3, count + QUERIES)
        keys, numbers = x[:, None], np.sin(x) + 0.3 * (x > 0) * rng.standard_normal(len(x))
    else:
        keys, numbers = uci(Path(os.environ["SOFTKV_DATA"]), name)
        some = rng.permutation(len(keys))[: count + QUERIES]
        keys, numbers = keys[some], numbers[some]
        keys = (keys - keys[:count].mean(0)) / (keys[:count].std(0) + 1e-12)
    return keys[:count], numbers[:count], keys[count:], numbers[count:], rng


def _intervals(keys: Any, numbers: Any, queries: Any, wanted: Any, rng: Any) -> Any:
    """The way, the low and high ends, and the numbers that are to be between."""
    count, order = len(keys), rng.permutation(len(keys))
    for share in HELD:
        held = np.isin(np.arange(count), order[: round(share * count)])
        values = _answers(keys[~held], numbers[~held], np.concatenate([keys[held], queries]))
        off = Ranked.of(np.abs(values[: held.sum()] - numbers[held])).quantile(SHARE)
        if np.isfinite(off):
            middle = values[held.sum() :]
            yield f"hold out {share:.0%}", middle - off, middle + off, wanted
    fold, off, middles = np.argsort(order) % FOLDS, np.empty(count), np.empty((len(queries), count))
    for number in range(FOLDS):
        mine = fold == number
        values = _answers(keys[~mine], numbers[~mine], np.concatenate([keys[mine], queries]))
        off[mine] = np.abs(values[: mine.sum()] - numbers[mine])
        middles[:, mine] = values[mine.sum() :, None]
    low, high = np.sort(middles - off, axis=1), np.sort(middles + off, axis=1)
    for way, most in (
        (f"{FOLDS} folds", (1.0 - SHARE) / 2.0 * (count + FOLDS) - FOLDS),
        (f"{FOLDS} folds, factor 1", (1.0 - SHARE) * (count + 1) - 1),
    ):
        out = int(np.floor(round(most, 9)))  # N at most, of what is left out
        if out >= 0:
            yield way, low[:, out], high[:, -1 - out], wanted


def _answers(keys: Any, numbers: Any, queries: Any) -> Any:
    """What a store of these items, tuned on them, answers."""
    with fresh("number", "gaussian") as db:
        db.add(vectors=keys, values=numbers)
        db.tune(hold_out=0)
        return db.lookup(queries, show=1, tolerance=0).value


if __name__ == "__main__":
    main()
