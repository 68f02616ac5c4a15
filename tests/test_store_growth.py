"""What must not grow: memory with the length of a stream, the catalog with the number of commits."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from softkv.storage import Store
from softkv.storage.catalog import connection

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parent.parent

_STREAMING = """
import sys
import numpy as np
from softkv.storage import Store
from tests.memory import peak
path, rows = sys.argv[1], int(sys.argv[2])
BATCH = 10_000
vectors = np.random.default_rng(1).random((BATCH, 8), np.float32)
peaks = []
with Store.open(path, "c") as store:
    peaks.append(peak())
    for start in range(0, rows, BATCH):
        numbers = range(start, start + BATCH)
        store.append(vectors, numbers, keys=[f"key {number}" for number in numbers])
    assert len(store) == rows
    peaks.append(peak())
print(*peaks)
"""


def test_streaming_takes_the_memory_of_a_batch(tmp_path: Path, thorough: bool) -> None:
    """However long the stream, memory grows by one batch and by what SQLite may keep of the catalog."""
    rows = 1_000_000 if thorough else 300_000
    command = [sys.executable, "-c", _STREAMING, str(tmp_path / "stream.softkv"), str(rows)]
    start, end = map(int, subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT).stdout.split())
    batch = 10_000 * 1_000  # bytes: an item with its key and its vector takes less
    cache = -connection._WRITER["cache_size"] * 1024 * 5 // 4  # with what SQLite adds to each page
    assert end - start < 2 * batch + cache, f"{start / 1e6:.0f} MB at the start, {end / 1e6:.0f} MB at the end"


def test_single_adds_leave_a_catalog_in_proportion_to_the_items(tmp_path: Path, thorough: bool) -> None:
    """An item takes the same place in the catalog whether it came alone or in a batch."""
    items = 20_000 if thorough else 2_000
    single, batch = tmp_path / "single.softkv", tmp_path / "batch.softkv"
    vector = np.ones((1, 8), np.float32)
    with Store.open(single, "c") as store:
        for number in range(items):
            store.append(vector, [float(number)], keys=[f"key {number}"])
    with Store.open(batch, "c") as store:
        keys = [f"key {number}" for number in range(items)]
        store.append(np.ones((items, 8), np.float32), np.arange(items), keys=keys)
    # SQLite's pages split in the middle when rows come one at a time, hence the half.
    assert _catalog_bytes(single) < 1.5 * _catalog_bytes(batch)
    assert _catalog_bytes(single) / items < 150


def _catalog_bytes(path: Path) -> int:
    return sum(os.path.getsize(path / name) for name in os.listdir(path) if name.startswith("catalog.sqlite"))
