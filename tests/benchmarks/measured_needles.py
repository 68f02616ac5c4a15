"""Needles: single rows that outweigh all others together, and whether lookups that draw rows read them.

Strata that are read whole (the lists likeliest to hold the best row, lists of which a few rows hold most of the mass,
rows of no list) hide none. Of others, m of n rows are read, if they are visited at all, which happens with chance π; so
a draw misses a needle with probability 1 − π·m/n, which is C(n − 1, m)/C(n, m) where π is 1. All draws that are made
count here, also those after which an answer is scanned: whoever finds a needle sees how much rows differ.

Shapes: b needles, d key width.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from softkv_cli.mixtures import mixture, of_length_1

from softkv.index import measuring
from softkv.ndarrays import Matrix

from .index_report import always_measured
from .measured_lines import TOLERANCE, VALUE_WIDTH, WIDTH, Build, directions, store

RARE = 100  # one of so many items is a needle
LATE = 20  # one for so many items is added later
OUTWEIGHS = 0.5  # of the weight, at least
SHARP = 60.0  # one over the temperature of queries that are needles themselves
FAR, SLANT, FEW_LISTS = 3.0, 5.0, 50  # of needles that stand out of long lists
HEAD = (
    "| needles | outweigh all others | answers measured, scanned | draws that read their stratum whole: found "
    "| other draws: missed, expected | measured and missed |\n|---|---|---|---|---|---|"
)


class Needles(NamedTuple):
    """A store, and a query for each needle."""

    db: Any
    queries: Matrix  # (b, d)
    temperature: float


class Seen(NamedTuple):
    """One draw for a query whose needle is known: what its stratum gave."""

    whole: bool  # whether the stratum was read whole
    chance: float  # of reading the needle
    found: bool


@contextmanager
def early(build: Build) -> Iterator[Needles]:
    """Needles among the items, each asked for by its own key."""
    made = mixture(build.items, WIDTH, VALUE_WIDTH, build.queries, 1)
    made.keys[: build.queries] = made.queries
    with store(build, "early", made.keys, made.values, "cosine") as (db, _):
        yield Needles(db, made.queries, 1.0 / SHARP)


@contextmanager
def late(build: Build) -> Iterator[Needles]:
    """Needles that came after the build, among so many others that their lists were found, but for the last."""
    others = build.items // LATE
    made = mixture(build.items + others, WIDTH, VALUE_WIDTH, build.queries, 1)
    made.keys[build.items : build.items + build.queries] = made.queries
    first = slice(0, build.items)
    with store(build, "late", made.keys[first], made.values[first], "cosine") as (db, _):
        db.add(vectors=made.keys[build.items :], values=made.values[build.items :])
        yield Needles(db, made.queries, 1.0 / SHARP)


@contextmanager
def hidden(build: Build) -> Iterator[Needles]:
    """Needles that stand far out of long lists of the other items, each in a direction of its own."""
    rng, made = build.rng("hidden"), mixture(build.items, WIDTH, VALUE_WIDTH, 1, 1)
    along = of_length_1(directions(rng, build.queries, WIDTH))
    made.keys[: build.queries] += FAR * along
    with store(build, "hidden", made.keys, made.values, "dot", lists=FEW_LISTS) as (db, _):
        yield Needles(db, SLANT * along, 1.0)


KINDS: Mapping[str, Callable[[Build], AbstractContextManager[Needles]]] = {
    "asked for by their own keys": early,
    "asked for by their own keys, added later": late,
    f"far out of one of {FEW_LISTS} lists": hidden,
}


@contextmanager
def draws_seen(row: list[int], owner: list[int], seen: list[Seen]) -> Iterator[None]:
    """Note of each draw whether it read the last of some rows, which is in the last of some lists."""
    look = measuring._Measuring._look

    def noted(self: Any, left: Any, sizes: Any) -> Any:
        found, strata = look(self, left, sizes), left.model.values
        if sizes.rows.any():
            place = owner[-1]
            whole = place < 0 or bool(left.own[0, place] or sizes.whole(strata.counts)[place])
            chance = 1.0 if whole else float(sizes.chances[place] * sizes.rows[place] / strata.counts[place])
            seen.append(Seen(whole, chance, int(found.near(self.show).rows[0, 0]) == row[-1]))
        return found

    with patch.object(measuring._Measuring, "_look", noted):
        yield


def counted(needles: Needles) -> dict[str, Any]:
    """How many of the needles were found, and how many may be expected to be missed."""
    db, row, owner, seen = needles.db, list[int](), list[int](), list[Seen]()
    exact = db.lookup(needles.queries, temperature=needles.temperature, tolerance=0, show=1)
    heavy = np.flatnonzero(exact.weights[:, 0] > OUTWEIGHS)
    rows, ways, missed = exact.rows[heavy, 0], {"measured": 0, "scan": 0}, 0
    with always_measured(), draws_seen(row, owner, seen):
        for one, query, home in zip(rows.tolist(), needles.queries[heavy], db._view().index.owners(rows), strict=True):
            row.append(one)
            owner.append(int(home))
            found = db.lookup(query[None], temperature=needles.temperature, tolerance=TOLERANCE, show=1)
            ways[found.route] += 1
            missed += found.route == "measured" and int(found.rows[0, 0]) != one
    whole, others = [one for one in seen if one.whole], [one for one in seen if not one.whole]
    chances = np.array([one.chance for one in others])
    return {
        "heavy": len(heavy),
        **ways,
        "whole": len(whole),
        "found": sum(one.found for one in whole),
        "others": len(others),
        "missed": sum(not one.found for one in others),
        "expected": float((1.0 - chances).sum()),
        "deviation": float(np.sqrt((chances * (1.0 - chances)).sum())),
        "unnoticed": missed,
    }


def asked(items: int, folder: Path) -> dict[str, dict[str, Any]]:
    """All kinds, in stores of so many items."""
    build = Build(0, folder, items, items // RARE)
    found = {}
    for name, make in KINDS.items():
        with make(build) as needles:
            found[name] = counted(needles)
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Print a row for each kind; whether nothing was missed where all is read."""
    print(HEAD)
    for name, one in found.items():
        others = f"{one['missed']:,} of {one['others']:,}, {one['expected']:.1f} ± {one['deviation']:.1f}"
        print(
            f"| {name} | {one['heavy']:,} | {one['measured']:,}, {one['scan']:,} | {one['found']:,} of {one['whole']:,}"
            f" | {others if one['others'] else ''} | {one['unnoticed']:,} |",
            flush=True,
        )
    return all(one["found"] == one["whole"] for one in found.values())
