"""Items on their way from a store to a file or back: columns of a bounded number of consecutive items.

Columns of a file are compared here with its header, whatever its format. Does not know the formats.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from softkv.errors import BadRecord
from softkv.files import notation
from softkv.files.record import Misfit
from softkv.ndarrays import Rows
from softkv.progress import Progress as Progress
from softkv.storage import Layout, Snapshot

MOST_ITEMS = 10_000
MOST_BYTES = 1 << 24
MOST_TEXTS, FIRST_TEXTS = 1_000, 100  # items read at once from a store, as their texts may be long

Place = Callable[[int], str]  # where the item with this number, from 0, stands in its file

_TEXT: frozenset[type] = frozenset((str,))
_MAYBE_TEXT: frozenset[type] = frozenset((str, type(None)))
_NUMBER: frozenset[type] = frozenset((int, float))
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Portion:
    """The items from number `start` on: one entry per item in every column that `names` has for their layout."""

    start: int
    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.columns["vector"])

    def one(self, position: int) -> "Portion":
        """The item at this position alone."""
        there = slice(position, position + 1)
        return Portion(self.start + position, {name: column[there] for name, column in self.columns.items()})


def widths(layout: Layout) -> dict[str, int]:
    """The columns of vectors, and how many numbers each has."""
    blended = ["value_vector"] if layout.kind.embedded else ["value"] if layout.kind.axes > 1 else []
    return {"vector": layout.key_width} | dict.fromkeys(blended, layout.value_width)


def names(layout: Layout | None) -> list[str]:
    """The columns of items, in the order in which they are written."""
    return ["key", "text", *(dict.fromkeys(["value", *widths(layout)]) if layout else ()), "payload"]


def rows_at_once(layout: Layout, most: int = MOST_ITEMS) -> int:
    """How many items of this layout are held in memory at once."""
    return max(1, min(most, MOST_BYTES // (layout.keys.row_bytes + layout.values.row_bytes)))


def of_snapshot(snapshot: Snapshot) -> Iterator[Portion]:
    """Everything of the live items, in insertion order."""
    if snapshot.layout is None:
        return
    rows, most, start = snapshot.in_order(), rows_at_once(snapshot.layout, MOST_TEXTS), 0
    step = min(most, FIRST_TEXTS)
    while start < len(rows):
        portion = _portion(snapshot, snapshot.layout, rows[start : start + step], start)
        yield portion
        start += step
        step = max(1, min(most, 2 * step, step * MOST_BYTES // max(1, _carried(portion))))


def _portion(snapshot: Snapshot, layout: Layout, rows: Rows, start: int) -> Portion:
    items, cells = snapshot.items(rows), snapshot.values(rows)
    found = {
        "key": [item.key for item in items],
        "text": [item.text for item in items],
        "value": [item.value for item in items] if layout.kind.worded else cells,
        "vector": snapshot.vectors(rows),
        "value_vector": cells,
        "payload": [item.payload for item in items],
    }
    return Portion(start, {name: found[name] for name in names(layout)})


def _carried(portion: Portion) -> int:
    """The total length of the texts and payloads of a portion."""
    columns = portion.columns
    values = columns["value"] if "value_vector" in columns else []
    words = sum(len(text) for text in [*columns["text"], *values] if text is not None)
    return words + sum(len(notation.written(payload)) for payload in columns["payload"] if payload is not None)


def checked(start: int, columns: Mapping[str, Any], layout: Layout, where: Place) -> Portion:
    """The items that a file gives as columns; the first entry that is not of its type is named by its place.

    Columns of vectors, and of values that are no texts, may be arrays: their shapes and types are known already.
    """
    found = dict(columns)
    for name in ("key", "text"):
        _require_types(found[name], _MAYBE_TEXT, name, "a text or null", start, where)
    for name, width in widths(layout).items():
        if not isinstance(found[name], np.ndarray):
            rows = enumerate(found[name], start)
            found[name] = np.concatenate(
                [one if isinstance(one, np.ndarray) else row_of(one, name, width, where(row)) for row, one in rows]
            ).reshape(-1, width)
    if not isinstance(found["value"], np.ndarray):
        numeric = not layout.kind.worded
        types, expected = (_NUMBER, "a number") if numeric else (_TEXT, "a text")
        _require_types(found["value"], types, "value", expected, start, where)
    return Portion(start, found)


def row_of(given: Any, name: str, width: int, place: str) -> npt.NDArray[np.float32]:
    """A list of so many numbers as a vector."""
    if type(given) is not list:
        raise BadRecord(f"{place}: {name} is {notation.kind_of(given)}; expected a list of {width} numbers")
    if len(given) != width:
        raise BadRecord(f"{place}: {name} has {len(given)} numbers; expected {width}")
    if not _NUMBER.issuperset(map(type, given)):
        odd = next(one for one in given if type(one) not in _NUMBER)
        raise BadRecord(f"{place}: {name} holds {notation.kind_of(odd)}; expected {width} numbers")
    try:
        with np.errstate(over="ignore"):  # infinite results are refused later, with all that is not finite
            return np.array(given, np.float32)
    except OverflowError as error:
        raise BadRecord(f"{place}: {name} holds a whole number beyond float32's range") from error


def parsed(text: str, kind: type[T], expected: str, place: str) -> T:
    """The value of a JSON text; an error where it is not of this type."""
    try:
        found = notation.parsed(text)
    except Misfit as why:
        raise BadRecord(f"{place}: {why}; expected {expected}") from why
    if not isinstance(found, kind):
        raise BadRecord(f"{place}: this is {notation.kind_of(found)}; expected {expected}")
    return found


def _require_types(
    column: Sequence[Any], types: frozenset[type], name: str, expected: str, start: int, where: Place
) -> None:
    if not types.issuperset(map(type, column)):
        row, odd = next((row, one) for row, one in enumerate(column) if type(one) not in types)
        raise BadRecord(f"{where(start + row)}: {name} is {notation.kind_of(odd)}; expected {expected}")
