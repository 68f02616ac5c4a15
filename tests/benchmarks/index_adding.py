"""Adding items in durable batches, beside LanceDB and Chroma, which are measured where they are installed.

Each stores a name, a vector and a number for every item, in the same batches, in a fresh folder each time. When a
call returns, softkv has synced what was added; what the others have is their own affair.
"""

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import softkv
from softkv.ndarrays import Matrix

from .index_contests import Taken, compared
from .index_data import WIDTH
from .index_report import Bench, Goal, at_most

COUNT, BATCH, ROUNDS = 100_000, 10_000, 3
Batch = tuple[list[str], Matrix, list[float]]  # names, vectors, numbers
Adding = Callable[[Path, list[Batch]], float]  # in a folder; the seconds it took, opening included


def adding(bench: Bench) -> None:
    """The same items into each of them, in turn."""
    batches = list(_batches(bench.sized(COUNT), bench.sized(BATCH)))
    rivals: dict[str, tuple[Adding, Goal]] = {
        "LanceDB": (_lancedb, at_most(1 / 1.5, "1/1.5")),
        "Chroma": (_chroma, at_most(1 / 25, "1/25")),
    }
    bench.begin(f"Adding: {bench.sized(COUNT):,} × {WIDTH}, in batches of {bench.sized(BATCH):,}, a commit for each")
    found = _in_turn(bench, {"softkv": _softkv, **{name: ours for name, (ours, _) in rivals.items()}}, batches)
    for name, (_, goal) in rivals.items():
        if found[name].seconds:
            compared(bench, "add all", found["softkv"], name, found[name], goal)
        else:
            bench.row("add all", str(found["softkv"]), f"{name}: not installed", goal)


def _batches(count: int, size: int) -> Iterator[Batch]:
    rng = np.random.default_rng(6)
    for start in range(0, count, size):
        numbers = range(start, min(start + size, count))
        vectors = rng.standard_normal((len(numbers), WIDTH), dtype=np.float32)
        yield [f"item {number}" for number in numbers], vectors, [float(number) for number in numbers]


def _in_turn(bench: Bench, ways: dict[str, Adding], batches: list[Batch]) -> dict[str, Taken]:
    """What each took; nothing for those that are not installed."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _, (name, way) in itertools.product(range(ROUNDS), ways.items()):
        folder = Path(tempfile.mkdtemp(dir=bench.folder))  # Chroma takes a path that it has seen for the same
        time.sleep(bench.pause)
        try:
            seconds[name].append(way(folder, batches))
        except ModuleNotFoundError:
            continue
        finally:
            shutil.rmtree(folder)
    return {name: Taken(tuple(taken)) for name, taken in seconds.items()}


def _softkv(folder: Path, batches: list[Batch]) -> float:
    start = time.perf_counter()
    with softkv.open(folder / "items.softkv", compatibility="cosine", temperature=0.05) as db:
        for names, vectors, numbers in batches:
            db.add(names, numbers, vectors=vectors)
    return time.perf_counter() - start


def _lancedb(folder: Path, batches: list[Batch]) -> float:
    import lancedb
    import pyarrow as pa

    vector = pa.list_(pa.float32(), WIDTH)
    schema = pa.schema([("id", pa.string()), ("vector", vector), ("number", pa.float64())])
    start = time.perf_counter()
    table = lancedb.connect(str(folder)).create_table("items", schema=schema)
    for names, vectors, numbers in batches:
        cells = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH)
        table.add(pa.table([pa.array(names), cells, pa.array(numbers)], schema=schema))
    return time.perf_counter() - start


def _chroma(folder: Path, batches: list[Batch]) -> float:
    import chromadb

    start = time.perf_counter()
    client = chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))
    items, most = client.create_collection("items", embedding_function=None), client.get_max_batch_size()
    for names, vectors, numbers in batches:
        for first in range(0, len(names), most):
            part = slice(first, first + most)
            told = [{"number": number} for number in numbers[part]]
            items.add(ids=names[part], embeddings=vectors[part], metadatas=told)
    return time.perf_counter() - start
