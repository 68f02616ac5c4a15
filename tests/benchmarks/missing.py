"""How often answers without some shards are within what they state, by how much of the mass the missing shards held.

    python -m tests.benchmarks.missing [--parts 200]

Items are shared out to 16 shards anew so many times, and what some of these answer to ten queries is compared with what
all do. A statement is to hold in 95% of all answers. What the missing held, nobody knows who only asks the others: so
where they held much more than their share of the items, fewer statements hold, and where they held less, more.
"""

import argparse
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import softkv
from softkv.doors.cluster.merging import Sides
from softkv.doors.cluster.missing import widened
from softkv.ndarrays import Flags, Floats

SHARDS, ROWS, WIDTH = 16, 1500, 16
GONE, TEMPERATURES = (1, 3), (0.02, 0.05, 0.3, 1.0)
EDGES = (0.0, 0.5, 1.0, 2.0, np.inf)  # of the mass that the missing held, as multiples of their share of the items
HEAD = "| gone | temperature | items that contribute | values | masses | held < 0.5 | < 1 | < 2 | more |"


class Tried(NamedTuple):
    """Answers to queries, (b,) each: whether they are within what they state, and what the missing held."""

    values: Flags
    masses: Flags
    held: Floats  # of the mass, as a multiple of their share of the items
    effective: Floats


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=200)
    parts = parser.parse_args().parts
    print(f"{HEAD}\n|{'---|' * 9}")
    for gone in GONE:
        for temperature in TEMPERATURES:
            found = tried(gone, temperature, parts, 10)
            where = np.digitize(found.held, EDGES) - 1
            cells = [_share(found.values[where == place]) for place in range(len(EDGES) - 1)]
            told = f"{np.median(found.effective):,.0f} | {found.values.mean():.1%} | {found.masses.mean():.1%}"
            print(f"| {gone} of {SHARDS} | {temperature} | {told} | {' | '.join(cells)} |", flush=True)


def _share(within: Flags) -> str:
    return f"{within.mean():.1%} of {len(within):,}" if len(within) else ""


def tried(gone: int, temperature: float, parts: int, queries: int) -> Tried:
    """So many queries to each of so many ways to share items out, where the first shards are gone."""
    rng, found = np.random.default_rng(gone), []
    keys = rng.standard_normal((ROWS, WIDTH))
    values = keys @ rng.standard_normal(WIDTH) + 0.3 * rng.standard_normal(ROWS)
    for _ in range(parts):
        owners, asked, shards = rng.integers(0, SHARDS, ROWS), rng.standard_normal((queries, WIDTH)), []
        for shard in range(SHARDS):
            some, options = owners == shard, {"compatibility": "cosine", "temperature": temperature}
            exact: Any = softkv.soft_lookup(asked, keys[some], values[some], **options)
            shards.append(replace(exact, error=np.zeros(queries)))
        whole, others = (Sides(tuple(those)).merged(0) for those in (shards, shards[gone:]))
        told = widened(others, shards[gone:], gone / SHARDS, 0.95)
        assert told.error is not None
        assert told.log_mass_error is not None
        apart, moved = np.abs(told.value - whole.value), np.abs(told.log_mass - whole.log_mass)
        held = -np.expm1(others.log_mass - whole.log_mass) * SHARDS / gone
        found.append((apart <= told.error, moved <= told.log_mass_error, held, whole.effective))
    return Tried(*map(np.concatenate, zip(*found, strict=True)))


if __name__ == "__main__":
    main()
