"""Items on their way from a store to a file or back: columns of a bounded number of consecutive items.

Does not know the formats.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from softkv.files import notation
from softkv.kinds import ValueKind
from softkv.progress import Progress as Progress
from softkv.storage import Layout, Snapshot
from softkv.storage.layout import Matrix, Rows

MOST_ITEMS = 10_000
MOST_BYTES = 1 << 24
MOST_TEXTS, FIRST_TEXTS = 1_000, 100  # items read at once from a store: how long their texts are is known only then

Place = Callable[[int], str]  # where the item with this number, from 0, stands in its file


@dataclass(frozen=True, slots=True)
class Portion:
    """The items from number `start` on: one entry per item in every column."""

    start: int
    keys: list[str | None]
    texts: list[str | None]
    payloads: list[Any]
    vectors: Matrix
    values: Any  # numbers, vectors, labels or texts
    value_vectors: Matrix | None  # of texts

    def __len__(self) -> int:
        return len(self.vectors)

    def one(self, position: int) -> "Portion":
        """The item at this position alone."""
        there = slice(position, position + 1)
        return Portion(
            self.start + position,
            self.keys[there],
            self.texts[there],
            self.payloads[there],
            self.vectors[there],
            self.values[there],
            None if self.value_vectors is None else self.value_vectors[there],
        )


def rows_at_once(layout: Layout, most: int = MOST_ITEMS) -> int:
    """How many items of this layout are held in memory at once."""
    return max(1, min(most, MOST_BYTES // (layout.keys.row_bytes + layout.values.row_bytes)))


def row_portions(snapshot: Snapshot) -> Iterator[Rows]:
    """The rows of the live items in insertion order, a bounded number at a time."""
    if snapshot.layout is not None:
        rows, step = snapshot.in_order(), rows_at_once(snapshot.layout)
        for start in range(0, len(rows), step):
            yield rows[start : start + step]


def of_snapshot(snapshot: Snapshot) -> Iterator[Portion]:
    """Everything of the live items, in insertion order."""
    if snapshot.layout is None:
        return
    rows, most, start = snapshot.in_order(), rows_at_once(snapshot.layout, MOST_TEXTS), 0
    step = min(most, FIRST_TEXTS)
    while start < len(rows):
        portion = _portion(snapshot, snapshot.layout.kind, rows[start : start + step], start)
        yield portion
        start += step
        step = max(1, min(most, 2 * step, step * MOST_BYTES // max(1, _carried(portion))))


def _portion(snapshot: Snapshot, kind: ValueKind, rows: Rows, start: int) -> Portion:
    items, cells = snapshot.items(rows), snapshot.values(rows)
    return Portion(
        start,
        [item.key for item in items],
        [item.text for item in items],
        [item.payload for item in items],
        snapshot.vectors(rows),
        [item.value for item in items] if kind.worded else cells,
        cells if kind.embedded else None,
    )


def _carried(portion: Portion) -> int:
    """How long the texts and payloads of a portion are."""
    values = portion.values if portion.value_vectors is not None else []
    words = sum(len(text) for text in [*portion.texts, *values] if text is not None)
    return words + sum(len(notation.written(payload)) for payload in portion.payloads if payload is not None)
