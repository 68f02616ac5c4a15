"""Stores that benchmarks make: fresh ones, items that are added in batches, and the folder where stores are kept."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from softkv_cli.mixtures import Mixture

import softkv

BATCH = 10_000  # items added together


@contextmanager
def fresh(value: str | None, compatibility: str) -> Iterator[softkv.SoftKV]:
    """A store without items, which goes when it is left."""
    with (
        tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder,
        softkv.open(Path(folder) / "s", value=value, compatibility=compatibility) as db,
    ):
        yield db


@contextmanager
def kept_in(folder: Path | None) -> Iterator[Path]:
    """The folder that was asked for, made if need be; without one a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        yield place


def batches(start: int, stop: int) -> Iterator[tuple[slice, list[str]]]:
    """Parts of some items, with their keys."""
    for first in range(start, stop, BATCH):
        part = slice(first, min(first + BATCH, stop))
        yield part, [f"item {number}" for number in range(part.start, part.stop)]


def put(db: Any, items: Mixture, start: int, stop: int, **options: Any) -> None:
    """Add some of the items."""
    for part, keys in batches(start, stop):
        db.add(keys, items.values[part], vectors=items.keys[part], **options)
