"""What a filter costs beside a loop in Python over the same payloads.

Run: python -m tests.benchmarks.filters [--rows N]

Every filter is asked of a handle that has compared all checksums ("asked"), and once more ("again"). The loops run over
payloads that are already in memory: as JSON, and parsed, as no store of this size would keep them.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from softkv_cli.machine import machine

from softkv.storage import Store
from tests.filtering import meets

BATCH = 10_000
GENRES = ["crime", "drama", "comedy", "horror", "western"]
FILTERS: list[tuple[str, dict[str, Any], Callable[[Any], bool]]] = [
    ("one text", {"genre": "crime"}, lambda film: film["genre"] == "crime"),
    ("one order", {"year": {"$gt": 2015}}, lambda film: film["year"] > 2015),
    ("floats that tie", {"stars": {"$gte": 4.5}}, lambda film: film["stars"] >= 4.5),
    ("100 values", {"year": {"$in": list(range(1900, 2000))}}, lambda film: film["year"] in range(1900, 2000)),
    (
        "three fields",
        {"year": {"$gte": 2000}, "$or": [{"genre": "crime"}, {"stars": {"$gt": 4}}]},
        lambda film: film["year"] >= 2000 and (film["genre"] == "crime" or film["stars"] > 4),
    ),
    (
        "names with escapes",
        {'a "name"': {"$exists": False}, "genre\\": {"$exists": False}},
        lambda film: "genre" in film,
    ),
    (
        "100 conditions",
        {"$or": [{"year": year} for year in range(1900, 2000)]},
        lambda film: any(film["year"] == year for year in range(1900, 2000)),
    ),
]


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder:
        path = os.path.join(folder, "films.softkv")
        films = filled(path, options.rows)
        written = [json.dumps(film) for film in films]
        print(f"{machine()}\n{options.rows:,} items, payloads of {np.mean([len(one) for one in written]):.0f} bytes\n")
        firsts(path, options.rounds)
        print("| filter | rows | asked | again | loop over JSON | loop over parsed |\n|---|---|---|---|---|---|")
        with Store.open(path) as store:
            store.matching({"nothing": 1})
            for name, where, by_hand in FILTERS:
                print(row(store, name, where, by_hand, films, written))


def filled(path: str, rows: int) -> list[dict[str, Any]]:
    """A store with this many payloads, closed; returns them."""
    chance = random.Random(0)
    films = [
        {
            "year": chance.randrange(1900, 2024),
            "genre": chance.choice(GENRES),
            "stars": chance.randrange(2, 11) / 2,
            "number": number,
        }
        for number in range(rows)
    ]
    with Store.open(path, "n") as store:
        for start in range(0, rows, BATCH):
            batch = films[start : start + BATCH]
            keys = [f"film {start + position}" for position in range(len(batch))]
            store.append(np.ones((len(batch), 2)), np.zeros(len(batch)), keys=keys, payloads=batch)
    return films


def firsts(path: str, rounds: int) -> None:
    """The first filter of a handle, which compares all checksums."""
    taken = []
    for _ in range(rounds):
        with Store.open(path) as store:
            taken.append(timed(lambda store=store: store.matching({"genre": "crime"}))[0])
    print(f"the first filter of a handle, checksums included: {statistics.median(taken) * 1e3:.0f} ms\n")


def row(
    store: Store,
    name: str,
    where: dict[str, Any],
    by_hand: Callable[[Any], bool],
    films: list[dict[str, Any]],
    written: list[str],
) -> str:
    """One line of the table; all three ways must agree."""
    asked, mask = timed(lambda: store.matching(where))
    again, _ = timed(lambda: store.matching(where))
    loop, expected = timed(lambda: [by_hand(json.loads(one)) for one in written])
    parsed, _ = timed(lambda: [by_hand(film) for film in films])
    assert mask.tolist() == expected
    assert mask[:100].tolist() == [meets(film, where) for film in films[:100]]
    times = " | ".join(f"{seconds * 1e3:.{1 if seconds < 0.01 else 0}f} ms" for seconds in (asked, again, loop, parsed))
    return f"| {name} | {mask.sum():,} | {times} |"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long one call takes, and what it gives."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


if __name__ == "__main__":
    main()
