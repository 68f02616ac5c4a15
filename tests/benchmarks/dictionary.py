"""What the calls of a dict cost on a store, beside SQLite and NumPy by hand.

Run: python -m tests.benchmarks.dictionary [--items N] [--rounds N]

The yardstick is the least that the same question takes: a table of keys in the order of the items, indexed by key, one
statement each, and the values as an array. It has no checksums, no commits and no readers beside it. Every figure is a
ratio taken in one run, work and yardstick alternating; a ratio is the median of the pairs' ratios.
"""

import argparse
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable

import numpy as np
from softkv_cli.machine import machine

import softkv
from tests.benchmarks.storage import paired, row

WIDTH, ASKED, DELETED = 16, 1_000, 0.4


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(machine())
    print("| work | softkv | by hand | ratio | target |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder:
        measure(folder, options.items, options.rounds)


def measure(folder: str, items: int, rounds: int) -> None:
    """One store and one table with the same items."""
    names = [f"item number {number}" for number in range(items)]
    values = np.arange(float(items))
    database = by_hand(os.path.join(folder, "plain.sqlite"), names)
    np.save(os.path.join(folder, "values.npy"), values)
    asked = [names[place] for place in np.random.default_rng(1).integers(0, items, ASKED)]
    with softkv.open(os.path.join(folder, "s.softkv"), "n") as db:
        db.add(names, values, vectors=np.random.default_rng(0).standard_normal((items, WIDTH), dtype=np.float32))
        db.info()  # the temperature by rule, which columns tell of, is found once

        def compare(work: str, ours: Callable[[], object], theirs: Callable[[], object], target: str) -> None:
            assert ours() == theirs()
            row(work, *paired(rounds, ours, theirs), target)

        whole(compare, db, database, folder)
        single(compare, db, database, asked, values)
        endings(db, database, rounds, names)


def by_hand(path: str, names: list[str]) -> sqlite3.Connection:
    """The names in a table, synced like a store."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute('CREATE TABLE items (row INTEGER PRIMARY KEY, "key" TEXT UNIQUE, died INTEGER)')
    database.execute("BEGIN")
    database.executemany("INSERT INTO items VALUES (?, ?, NULL)", enumerate(names))
    database.execute("COMMIT")
    return database


def whole(
    compare: Callable[..., None],
    db: softkv.SoftKV,
    database: sqlite3.Connection,
    folder: str,
) -> None:
    """All items, as dicts give them and as arrays."""

    def listed(what: str) -> list[tuple[object, ...]]:
        return database.execute(f"SELECT {what} FROM items WHERE died IS NULL ORDER BY row").fetchall()

    def taken() -> np.ndarray:
        rows = np.fromiter((row for (row,) in listed("row")), np.int64)
        return np.load(os.path.join(folder, "values.npy"), mmap_mode="r")[rows]

    def items() -> list[tuple[object, object]]:
        found = listed('row, "key"')
        values = np.load(os.path.join(folder, "values.npy"), mmap_mode="r")[[row for row, _ in found]]
        return list(zip((key for _, key in found), values.tolist(), strict=True))

    def columns() -> float:
        return float(sum(values.sum() for _, values in db.columns().blocks()))

    def fresh() -> list[str]:
        with softkv.open(os.path.join(folder, "s.softkv"), "r") as reader:
            return list(reader)

    compare("list(db) of a handle just opened", fresh, lambda: [key for (key,) in listed('"key"')], "")
    compare("list(db)", lambda: list(db), lambda: [key for (key,) in listed('"key"')], "≤ 3")
    compare("values()", lambda: list(db.values()), lambda: taken().tolist(), "≤ 3")
    compare("items()", lambda: list(db.items()), items, "≤ 3")
    compare("columns(), summed up", columns, lambda: float(taken().sum()), "≤ 3")


def single(
    compare: Callable[..., None], db: softkv.SoftKV, database: sqlite3.Connection, asked: list[str], values: np.ndarray
) -> None:
    """A thousand keys, one by one and together."""
    one = 'SELECT row FROM items WHERE "key" = ?'
    many = 'SELECT i.row FROM json_each(?) asked JOIN items i ON i."key" = asked.value ORDER BY asked.key'

    def got(key: str) -> float:
        return float(values[database.execute(one, (key,)).fetchone()[0]])

    def got_many() -> list[float]:
        return values[[row for (row,) in database.execute(many, (json.dumps(asked),))]].tolist()

    compare("get, 1,000 keys one by one", lambda: [db.get(key) for key in asked], lambda: list(map(got, asked)), "≤ 3")
    compare(
        "key in db, 1,000 one by one",
        lambda: [key in db for key in asked],
        lambda: [database.execute(one, (key,)).fetchone() is not None for key in asked],
        "≤ 3",
    )
    if hasattr(db, "get_many"):
        compare("get_many of 1,000 keys, all listed before", lambda: db.get_many(asked), got_many, "≤ 1.5")
        with softkv.open(db.path, "r") as reader:
            compare("get_many of 1,000 keys, none listed", lambda: reader.get_many(asked), got_many, "≤ 1.5")


def endings(db: softkv.SoftKV, database: sqlite3.Connection, rounds: int, names: list[str]) -> None:
    """The first and the last item, and many that go."""
    first = 'SELECT "key" FROM items ORDER BY row LIMIT 1'
    row("next(iter(db))", *paired(rounds, lambda: next(iter(db)), lambda: database.execute(first).fetchone()), "≤ 1 ms")
    left = iter(names)
    row("popitem, beside del", *paired(rounds, db.popitem, lambda: db.__delitem__(next(left))), "≤ 2")
    batches = np.array_split(np.array(names[len(names) // 20 : -len(names) // 20]), 2)
    told = [batch[: int(len(names) * DELETED)].tolist() for batch in batches]
    mine, same = iter(told), iter(told)

    def theirs() -> None:
        database.execute("BEGIN IMMEDIATE")
        database.executemany('DELETE FROM items WHERE "key" = ?', ((name,) for name in next(same)))
        database.execute("COMMIT")

    row(f"delete of {len(told[0]):,}", *paired(len(told), lambda: db.delete(next(mine)), theirs), "≤ 1.5")


if __name__ == "__main__":
    main()
