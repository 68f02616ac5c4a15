"""The metric that a store has learned: its file, and the numbers of the keys that go with it.

It lies beside the index files, under a name that the settings of the store hold, so a store never uses half of it: the
file that the settings name is complete and matches its checksum, or lookups raise an error.

A compaction carries it over, with the numbers of the rows that are left. Those of rows that were added since are
computed when they are first needed, once for each handle.

Does not learn it (training.py), nor compare by it (maths/metric.py).

Shapes: n rows, d key width, r rank of the metric.
"""

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from softkv.asking.profile import Temperature, is_floor
from softkv.asking.question import LEARNED
from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.encoding import decoded, encoded
from softkv.maths.compatibility import Compatibility
from softkv.maths.metric import Metric
from softkv.ndarrays import Floats, Matrix, Rows, Vector
from softkv.storage import Snapshot
from softkv.storage.protocol.index_files import IndexFile

PREFIX = "projection-"  # of its file; the rest is its number
TOGETHER = 50_000  # keys that are read together
AGAIN = "Fit it again (`softkv fit`), drop it (`softkv fit --drop`), or ask without it (projection=False)."


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """A metric, with what it needs beside it."""

    metric: Metric
    numbers: Vector  # (n,), −½‖Lk‖² of the first rows
    units: Vector  # (d,), the standard deviation of each feature when it was learned
    ridge: float | None = None  # of the plane through numbers as values, None for their mean
    facts: Mapping[str, Any] = field(default_factory=dict)  # how it was learned, for people

    @property
    def temperature(self) -> Temperature:
        """The temperature that is part of it, and the floor of the items that it was learned from."""
        items, floor = self.facts.get("items"), self.facts.get("floor")
        return Temperature(1.0, "learned", items or 0, floor if is_floor(floor, items) else None)

    def compatibility(self, inverse_lengths: Vector | None) -> Compatibility:
        """The way to compare, for rows of these lengths."""
        return replace(self.metric.compatibility(self.numbers, inverse_lengths), name=LEARNED)

    def of_rows(self, rows: Rows) -> "Learned":
        """The metric, for some of the rows."""
        return replace(self, numbers=self.numbers[rows])

    def with_numbers(self, snapshot: Snapshot) -> "Learned":
        """The metric with the numbers of all rows of a snapshot; those that are not known yet are computed."""
        starts = range(len(self.numbers), snapshot.rows, TOGETHER)
        rows = (np.arange(start, min(start + TOGETHER, snapshot.rows)) for start in starts)
        more = [self.metric.numbers(snapshot.vectors(some)) for some in rows]
        return replace(self, numbers=np.concatenate([self.numbers, *more])) if more else self

    def without_numbers(self) -> "Learned":
        """The metric for keys in any order: numbers are computed where they are needed."""
        return self.of_rows(np.empty(0, np.int64))

    def features(self, vectors: Matrix) -> Floats:
        """Vectors as the plane sees them, (n, d)."""
        return (vectors.astype(np.float64) - self.metric.centre) / self.units

    def encoded(self) -> Iterator[bytes | memoryview]:
        """The metric as bytes, piece by piece."""
        facts = {"directions": self.metric.directions, "ridge": self.ridge, "learned": dict(self.facts)}
        arrays = {"factors": self.metric.factors, "centre": self.metric.centre, "units": self.units}
        return encoded(facts, {**arrays, "numbers": self.numbers})

    @classmethod
    def decoded(cls, content: memoryview, *, rows: int, key_width: int) -> "Learned":
        """The metric in these bytes, checked against the arena."""
        facts, arrays = decoded(content)
        try:
            factors, centre, units, numbers = (arrays[name] for name in ("factors", "centre", "units", "numbers"))
            directions, ridge, learned = bool(facts["directions"]), facts["ridge"], dict(facts["learned"])
            learned |= {name: int(learned.get(name, 0)) for name in ("items", "last")}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise IndexDamaged(f"the learned projection cannot be read ({error}). {AGAIN}") from error
        shapes = [factors.shape[1:], centre.shape, units.shape]
        if factors.ndim != 2 or shapes != [(key_width,)] * 3 or numbers.ndim != 1 or len(numbers) > rows:
            raise IndexDamaged(f"the learned projection is not one of keys of width {key_width}. {AGAIN}")
        right = all(one.dtype == np.float32 and np.isfinite(one).all() for one in (factors, centre, units, numbers))
        flat = ridge is None or (isinstance(ridge, float) and 0 < ridge < math.inf)
        if not right or not flat or not (units > 0).all() or (directions and centre.any()):
            raise IndexDamaged(f"the learned projection holds what is no number. {AGAIN}")
        return cls(Metric(factors, centre, directions), numbers, units, ridge, learned)


class Projections:
    """The metric that a handle has read, shared with its snapshots."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._file: tuple[str, int] | None = None  # the name of the file that was read, and the generation
        self._learned: Learned | None = None
        self._farthest = 0, 0.0  # how many rows were looked at, and how far from the centre they are

    def of(self, snapshot: Snapshot, name: str) -> Learned:
        """The metric of this name, with the numbers of all rows of the snapshot."""
        with self._lock:
            if self._learned is None or self._file != (name, snapshot.generation):
                self._learned, self._file = read(snapshot, name), (name, snapshot.generation)
                self._farthest = 0, 0.0
            self._learned = self._learned.with_numbers(snapshot)
            return self._learned

    def farthest(self, snapshot: Snapshot, name: str) -> float:
        """How far the keys of all rows are from the centre of this metric, at most, with features in their units."""
        with self._lock:
            learned = self.of(snapshot, name)
            seen, farthest = self._farthest
            for start in range(seen, snapshot.rows, TOGETHER):
                rows = np.arange(start, min(start + TOGETHER, snapshot.rows))
                apart = learned.features(snapshot.vectors(rows))
                farthest = max(farthest, math.sqrt(float(np.einsum("ij,ij->i", apart, apart).max())))
            self._farthest = max(seen, snapshot.rows), farthest
            return farthest


def read(snapshot: Snapshot, name: str) -> Learned:
    """The metric of this name, as it was written."""
    assert snapshot.layout is not None
    return read_file(snapshot.index(name), snapshot.path, snapshot.layout.key_width)


def read_file(file: IndexFile | None, path: str, key_width: int) -> Learned:
    """The metric in a file of the store at this path."""
    if file is None:
        raise IndexDamaged(f"the projection that {path} has learned is not there any more. {AGAIN}")
    try:
        return Learned.decoded(file.read(), rows=file.rows, key_width=key_width)
    except (IndexDamaged, FormatTooNew) as error:
        raise IndexDamaged(f"the projection that {path} has learned cannot be used: {error} {AGAIN}") from error
    finally:
        file.close()


def carried(snapshot: Snapshot, name: str | None, rows: Rows) -> dict[str, Any]:
    """The file of the metric for a generation with these rows, one after the other; nothing when there is none.

    One that is damaged is left behind, and goes on being missed.
    """
    if name is None:
        return {}
    try:
        learned = Projections().of(snapshot, name)
    except IndexDamaged:
        return {}
    return {name: learned.of_rows(rows).encoded()}
