"""On paper: what 1 and 10 billion items would take, computed from measured parts.

    python -m tests.benchmarks.cluster_paper [--millis 2.7] [--bytes-each 1700] [--round-ms 1.0] [--gigabits 10]

Nothing of this was run. Each figure is one of the parts below, times how many there are. The defaults of `millis` and
`message` were measured (docs/measurements.md, tests/benchmarks/cluster.py); the others are to be given as they are.
"""

import argparse
from dataclasses import dataclass

WIDTH, ITEMS = 384, (1_000_000_000, 10_000_000_000)
SHARDS = 256  # at most


@dataclass(frozen=True)
class Parts:
    """What was measured of one store of a million items of width 384, and of messages."""

    millis: float  # of a lookup with an index, on two cores
    bytes_each: float  # of an item on the disk, with its key, its norm and its part of the catalog
    index_each: float  # of an item in the index file
    round_ms: float  # of a message to a shard and back
    message: float  # bytes of a query to and from a shard
    merge_ms: float  # of one more shard, at the handle
    gigabits: float  # of the network
    machine_gb: float  # of memory
    per_machine: int  # shards


def told(items: int, parts: Parts) -> list[tuple[str, str]]:
    """The figures of so many items."""
    each = items / SHARDS
    machines = -(-SHARDS // parts.per_machine)
    disk, index = each * parts.bytes_each, each * parts.index_each
    # A lookup reads a share of the rows that falls with their number, so a straight line is the worst case.
    shard_ms = parts.millis * each / 1e6
    cores = parts.per_machine  # two for each shard that was measured on two
    handle_ms = 2 * parts.round_ms + SHARDS * parts.merge_ms + SHARDS * parts.message * 8 / parts.gigabits / 1e6
    resident = parts.per_machine * (each * (WIDTH * 4 + parts.index_each)) / 1e9
    return [
        ("items of each shard", f"{each / 1e6:,.1f} million"),
        ("machines, of shards each", f"{machines}, of {parts.per_machine} ({2 * cores} cores)"),
        ("disk of a machine", f"{parts.per_machine * (disk + index) / 1e12:.2f} TB"),
        ("memory that holds all keys and indexes", f"{resident:,.0f} GB of {parts.machine_gb:,.0f}"),
        ("a lookup: the slowest shard, at worst", f"{shard_ms:,.0f} ms"),
        ("a lookup: messages and merging", f"{handle_ms:,.1f} ms"),
        ("network of a handle, 100 lookups a second", f"{100 * SHARDS * parts.message * 8 / 1e9:.2f} Gbit/s"),
        ("what breaks first", _first(resident > parts.machine_gb, shard_ms > 1000.0)),
    ]


def _first(memory: bool, slow: bool) -> str:
    if memory:
        return "keys do not fit in memory, so rows are read from the disk"
    return "a shard takes longer than a second" if slow else "the handle: merging is one process"


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"millis": 2.7, "bytes_each": 1700.0, "index_each": 60.0, "round_ms": 1.0, "message": 4900.0}
    defaults |= {"merge_ms": 0.05, "gigabits": 10.0, "machine_gb": 256.0, "per_machine": 8}
    for name, number in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(number), default=number)
    parts = Parts(**vars(parser.parse_args()))
    for items in ITEMS:
        print(f"\n### {items:,} items, on paper\n\n| figure | |\n|---|---|")
        for name, figure in told(items, parts):
            print(f"| {name} | {figure} |")


if __name__ == "__main__":
    main()
