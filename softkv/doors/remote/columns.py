"""All items of a store behind a URL as arrays, fetched block by block, all of one commit.

Does not compare anything.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.asking.learned import Learned
from softkv.database.columns import BLOCK, StoreColumns
from softkv.doors.remote.connection import ServerConnection
from softkv.doors.shapes import hints_of
from softkv.guard.guard import Guard
from softkv.ndarrays import AnyArray, Matrix
from softkv.storage import Item

_ITEMS = {"items": list[Item], "next": int | None}
_GUARD = tuple[Guard | None, str | None]
_MORE = {"temperature": float, "count": int, "learned": AnyArray | None, "guard": _GUARD}
_BLOCK = {"vectors": AnyArray, "values": AnyArray, "next": int | None}
_FACTS = {name: hint for name, hint in hints_of(StoreColumns).items() if not name.startswith("_")}


@dataclass(frozen=True, slots=True, eq=False)
class RemoteColumns(StoreColumns):
    """The live items of one commit, and how the store compares them."""

    _connection: ServerConnection
    _fetch: Callable[[dict[str, Any], Any], Any]
    _first: dict[str, Any]  # what is told of the store

    @classmethod
    def behind(cls, connection: ServerConnection, fetch: Callable[[dict[str, Any], Any], Any]) -> "RemoteColumns":
        """The columns that can be fetched, of a store that is not empty."""
        first = fetch({"rows": 1}, _FACTS | _MORE)
        nothing: Any = None  # there is no view of files here
        facts = {name: first[name] for name in _FACTS}
        return cls(
            **facts, _view=nothing, _rows=np.empty(0, np.int64), _connection=connection, _fetch=fetch, _first=first
        )

    @property
    def temperature(self) -> float:
        """The temperature that the store remembers, or else the one by rule."""
        return float(self._first["temperature"])

    @property
    def learned(self) -> Learned | None:
        """What `fit` has learned, if anything, without the numbers of the keys."""
        told = self._first["learned"]
        return None if told is None else Learned.decoded(memoryview(told), rows=0, key_width=self.key_width)

    @property
    def guard(self) -> tuple[Guard | None, str | None]:
        """What the store promises of its answers, if anything, and why that is not about the items of now."""
        guard: tuple[Guard | None, str | None] = self._first["guard"]
        return guard

    def __len__(self) -> int:
        return int(self._first["count"])

    def blocks(self, rows: int = BLOCK) -> Iterator[tuple[Matrix, AnyArray]]:
        """Key vectors (b, d), and numbers (b,), codes of labels (b,) or vectors (b, p), some items at a time."""
        return (self.block(start, start + rows) for start in range(0, len(self), rows))

    def block(self, start: int, stop: int) -> tuple[Matrix, AnyArray]:
        """Key vectors and values, as those of `blocks`, of the items from one place to another."""
        pages = list(self._pages(_BLOCK, start, stop)) or [self._fetch({"start": len(self), "rows": 0}, _BLOCK)]
        with self._connection.believing():
            vectors, values = (np.concatenate([page[name] for page in pages]) for name in ("vectors", "values"))
        self._connection.require(vectors.shape == (len(values), self.key_width))
        return vectors, values

    def items(self, start: int, stop: int) -> list[Item]:
        """Everything about the items from one place to another."""
        return [one for page in self._pages(_ITEMS, start, stop, whole=True) for one in page["items"]]

    def _pages(self, told: Any, start: int, stop: int, **wanted: Any) -> Iterator[Any]:
        start, stop, _ = slice(start, stop).indices(len(self))
        return self._connection.pages(
            start, lambda place: self._fetch({"start": place, "rows": stop - place, **wanted}, told), stop
        )
