"""What the store costs beside the same bytes written by hand.

Run: python -m tests.benchmarks.storage [batches] [contest] [singles] [large] [migration] [many] [--rows N]

Every figure is a ratio taken in one run, work and yardstick alternating; a ratio is the median of the pairs' ratios.
The contest needs LanceDB (`pip install lancedb`), and says so where it is missing.
"""

import argparse
import functools
import itertools
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from softkv_cli.machine import machine

import softkv
from softkv.storage import Store
from softkv.storage.layout import WINDOW
from softkv.storage.protocol import generation
from tests.stores import as_format

WIDTH, BATCH = 384, 10_000


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help="all when none is named")
    parser.add_argument("--rows", type=int, default=1_000_000, help="items in the large store")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=None, help="where to write; a temporary folder by default")
    options = parser.parse_args()
    print(machine())
    print("| work | softkv | by hand | ratio | target |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-", dir=options.folder) as folder:
        work = {
            "batches": lambda: batches(folder, options.rounds),
            "contest": lambda: contest(folder, options.rounds),
            "singles": lambda: singles(folder, options.rounds),
            "large": lambda: large(folder, options.rows),
            "migration": lambda: [migration(folder, options.rows // 100), migration(folder, options.rows)],
            "many": lambda: many_singles(folder),
        }
        for section in options.sections or work:
            work[section]()


def row(work: str, ours: float, theirs: float, ratio: float, target: str) -> None:
    """One line of the table, times in seconds."""
    print(f"| {work} | {_time(ours)} | {_time(theirs)} | {ratio:.2f} | {target} |", flush=True)


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.2f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.0f} µs"
    )


def timed(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def paired(rounds: int, ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float, float]:
    """Medians of both, and the median ratio of the pairs."""
    pairs = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def batches(folder: str, rounds: int) -> None:
    """100,000 items in batches of 10,000, each acknowledged after the sync."""
    random_source = np.random.default_rng(1)
    vectors = random_source.standard_normal((BATCH, WIDTH), dtype=np.float32)
    values = random_source.standard_normal((BATCH, WIDTH), dtype=np.float32)
    names = [[f"item {i} of batch {b}" for i in range(BATCH)] for b in range(10)]

    fresh = itertools.count()

    def ours() -> None:
        with Store.open(os.path.join(folder, f"batches-{next(fresh)}.softkv"), "n") as store:
            for keys in names:
                store.append(vectors, values, keys=keys)

    def theirs() -> None:
        paths = [os.path.join(folder, f"plain-{next(fresh)}.{role}") for role in ("keys", "values")]
        files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in paths]
        for number in range(len(names)):
            for file, cells in zip(files, (vectors, values), strict=True):
                _write_all(file, cells, number * cells.nbytes)
            for file in files:
                os.fdatasync(file)
        for file in files:
            os.close(file)

    row("durable add, 100,000 × (384 + 384), batches of 10,000", *paired(rounds, ours, theirs), "≤ 2.2")
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


Batches = list[tuple[list[str], np.ndarray, np.ndarray]]  # names, keys and values


def contest(folder: str, rounds: int, batch: int = BATCH) -> None:
    """Ten batches through `db.add`, beside LanceDB, which syncs nothing, and beside their bytes by hand, in turns."""
    source, starts = np.random.default_rng(1), range(0, 10 * batch, batch)
    names = [[f"item {number}" for number in range(start, start + batch)] for start in starts]
    given = [(some, *source.standard_normal((2, batch, WIDTH), dtype=np.float32)) for some in names]
    works = {"softkv": _softkv(given), "pwrite + fdatasync": _by_hand(given), "LanceDB": _lancedb(given)}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            if work is not None:
                times[name].append(_timed_in(folder, work))
    ours = times.pop("softkv")
    for name, theirs in times.items():
        what = f"db.add, {10 * batch:,} × ({WIDTH} + {WIDTH}) in ten batches, beside {name}"
        if theirs:
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            row(what, statistics.median(ours), statistics.median(theirs), ratio, "")
        else:
            print(f"| {what} | {name} is not installed: pip install {name.lower()} | | | |", flush=True)


def _timed_in(folder: str, work: Callable[[str], None]) -> float:
    """How long one call takes in an empty folder, which then goes."""
    place = tempfile.mkdtemp(dir=folder)
    os.sync()  # what another has left unsynced is not to be waited for
    taken = timed(lambda: work(place))
    shutil.rmtree(place)
    return taken


def _softkv(given: Batches) -> Callable[[str], None]:
    def add(path: str) -> None:
        with softkv.open(os.path.join(path, "s.softkv"), compatibility="cosine", temperature=0.05) as db:
            for names, keys, values in given:
                db.add(names, values, vectors=keys)

    return add


def _by_hand(given: Batches) -> Callable[[str], None]:
    def add(path: str) -> None:
        files = [os.open(os.path.join(path, role), os.O_RDWR | os.O_CREAT) for role in ("keys", "values")]
        for number, (_, *cells) in enumerate(given):
            for file, rows in zip(files, cells, strict=True):
                _write_all(file, rows, number * rows.nbytes)
            for file in files:
                os.fdatasync(file)
        for file in files:
            os.close(file)

    return add


def _lancedb(given: Batches) -> Callable[[str], None] | None:
    """Add these batches to a new table of LanceDB; None where it is not installed."""
    try:
        import lancedb
        import pyarrow as pa
    except ImportError:
        return None
    wide = pa.list_(pa.float32(), WIDTH)
    schema = pa.schema([("id", pa.string()), ("vector", wide), ("value", wide)])

    def add(path: str) -> None:
        table = lancedb.connect(path).create_table("items", schema=schema)
        for names, *cells in given:
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDTH) for rows in cells]
            table.add(pa.table([pa.array(names), *columns], schema=schema))

    return add


def _write_all(file: int, cells: np.ndarray, offset: int) -> None:
    data = memoryview(cells).cast("B")
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def singles(folder: str, rounds: int) -> None:
    """One item at a time, beside two writes, two syncs and one SQLite commit."""
    vector = np.ones((1, WIDTH), np.float32)
    files = [os.open(os.path.join(folder, f"single.{role}"), os.O_RDWR | os.O_CREAT) for role in ("keys", "values")]
    database = sqlite3.connect(os.path.join(folder, "single.sqlite"), isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, key TEXT UNIQUE)")
    count = [0]

    def theirs() -> None:
        for _ in range(200):
            for file in files:
                os.pwrite(file, vector, count[0] * vector.nbytes)
            for file in files:
                os.fdatasync(file)
            database.execute("INSERT INTO items VALUES (?, ?)", (count[0], f"item {count[0]}"))
            count[0] += 1

    with Store.open(os.path.join(folder, "singles.softkv"), "n") as store:

        def ours() -> None:
            for _ in range(200):
                store.append(vector, vector, keys=[f"item {store.commit}"])

        ours_all, theirs_all, ratio = paired(rounds * 3, ours, theirs)
        row("one durable add", ours_all / 200, theirs_all / 200, ratio, "≤ 3")
    database.close()
    for file in files:
        os.close(file)


def large(folder: str, rows: int) -> None:
    """A large store: opening it, reading from it, compacting it."""
    path = os.path.join(folder, "large.softkv")
    random_source = np.random.default_rng(2)
    vectors = random_source.standard_normal((BATCH, WIDTH), dtype=np.float32)
    with Store.open(path, "n") as store:
        for start in range(0, rows, BATCH):
            store.append(vectors, vectors, keys=[f"item {start + i}" for i in range(BATCH)])
        dead = [f"item {i}" for i in range(0, rows, 10)]
        for start in range(0, len(dead), BATCH):
            store.delete(dead[start : start + BATCH])
    opening, getting = [], []
    for _ in range(9):
        start_time = time.perf_counter()
        store = Store.open(path)
        opening.append(time.perf_counter() - start_time)
        store.close()
    print(f"| open {rows:,} items, 10% deleted | {_time(statistics.median(opening))} | | | ≤ 100 ms |")
    with Store.open(path) as store:
        names = [f"item {i}" for i in random.Random(3).sample(range(rows), 20_000) if i % 10]
        for name in names:
            start_time = time.perf_counter()
            store.get(name)
            getting.append(time.perf_counter() - start_time)
    first, later = statistics.mean(getting), statistics.median(getting)
    print(f"| get one item of {rows:,}, mean with the first touch of every window | {_time(first)} | | | |")
    print(f"| get one item of {rows:,}, median | {_time(later)} | | | ≤ 100 µs |", flush=True)
    with Store.open(path, "w") as store:
        dead = [f"item {i}" for i in range(rows) if i % 10 in (3, 7)]
        for start in range(0, len(dead), BATCH):
            store.delete(dead[start : start + BATCH])
        compaction(folder, store)
    shutil.rmtree(path)


def migration(folder: str, rows: int, rounds: int = 9) -> None:
    """Opening a store of format 2 to write, which brings it to this format, beside opening it once more."""
    path, vectors = os.path.join(folder, "old.softkv"), np.ones((BATCH, 64), np.float32)
    granule, generation.GRANULE = generation.GRANULE, WINDOW  # as format 2 has it
    with Store.open(path, "n") as store:
        for start in range(0, rows, BATCH):
            store.append(vectors, vectors, keys=[f"item {start + number}" for number in range(BATCH)])
    generation.GRANULE = granule

    def opened() -> None:
        Store.open(path, "w").close()

    def migrated() -> float:
        as_format(Path(path), 2)
        return timed(opened)

    times = [(migrated(), timed(opened)) for _ in range(rounds)]
    ours, again = (statistics.median(some) for some in zip(*times, strict=True))
    row(f"open {rows:,} items of format 2 to write, beside once more", ours, again, ours / again, "≤ 100 ms")
    shutil.rmtree(path)


def compaction(folder: str, store: Store) -> None:
    """Compact beside copying the live bytes by hand, while a reader keeps asking."""
    reader, stop, waits = Store.open(store.path), threading.Event(), []
    names = list(itertools.islice(reader.keys(), 10_000))

    def ask() -> None:
        source = random.Random(4)
        while not stop.is_set():
            start = time.perf_counter()
            reader.get(source.choice(names))
            waits.append(time.perf_counter() - start)
            stop.wait(0.005)

    theirs = timed(lambda: _copy_live(folder, store))
    asking = threading.Thread(target=ask)
    asking.start()
    ours = timed(store.compact)
    stop.set()
    asking.join()
    reader.close()
    again = timed(lambda: _copy_live(folder, store))
    plain = (theirs + again) / 2
    row(f"compact {len(store):,} live items out of 1/0.7 as many", ours, plain, ours / plain, "≤ 2")
    print(f"| longest wait of a reader meanwhile, of {len(waits)} reads | {_time(max(waits))} | | | never blocked |")
    ordering(store, ours)


def ordering(store: Store, plain: float, rounds: int = 3) -> None:
    """Compact into random orders, beside the compaction of the same items that came before."""
    times = []
    for seed in range(rounds):
        order = np.random.default_rng(seed).permutation(np.flatnonzero(store.live))
        times.append(timed(functools.partial(store.compact, order)))
    taken = statistics.median(times)
    row(f"compact {len(store):,} items into a random order, beside without", taken, plain, taken / plain, "≤ 2")


def _copy_live(folder: str, store: Store) -> None:
    """The live bytes of keys and values, copied and synced with nothing checked."""
    with open(os.path.join(folder, "copy"), "wb", buffering=0) as file:
        for block in store.blocks(4_096):
            rows = np.flatnonzero(block.live)
            for cells in (block.vectors, block.values):
                _write_next(file.fileno(), cells if len(rows) == len(cells) else cells[rows])
        os.fdatasync(file.fileno())
    os.unlink(os.path.join(folder, "copy"))


def _write_next(file: int, cells: np.ndarray) -> None:
    data = memoryview(np.ascontiguousarray(cells)).cast("B")
    while data:
        data = data[os.write(file, data) :]


def many_singles(folder: str, count: int = 20_000) -> None:
    """The catalog after single adds, beside the catalog after one batch of the same items."""
    vector = np.ones((count, 8), np.float32)
    keys = [f"item {i}" for i in range(count)]
    sizes = []
    for name, size in (("one by one", 1), ("at once", count)):
        path = os.path.join(folder, f"{size}.softkv")
        with Store.open(path, "n") as store:
            for start in range(0, count, size):
                store.append(vector[:size], vector[:size], keys=keys[start : start + size])
        sizes.append(os.path.getsize(os.path.join(path, "catalog.sqlite")))
        shutil.rmtree(path)
        print(
            f"| catalog after {count:,} items added {name} | {sizes[-1] / count:.0f} bytes an item | | | |", flush=True
        )
    print(f"| one by one beside at once | | | {sizes[0] / sizes[1]:.2f} | in proportion to the items |")


if __name__ == "__main__":
    main()
