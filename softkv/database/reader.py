"""Everything that reads a store: by key as in a dict, and by likeness. Shared by handles and snapshots.

Looking up by likeness is in softkv/asking/asker.py.
"""

import html
import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

import numpy as np

from softkv.asking.asker import Asker
from softkv.asking.given import place_of, texts_of
from softkv.database.carrying import export_to
from softkv.database.columns import StoreColumns
from softkv.database.evaluating import evaluate
from softkv.database.summary import Info, summary
from softkv.errors import KeyMissing, KeyTextError, SoftKVError
from softkv.kinds import ValueKind
from softkv.maths.heads import Heads
from softkv.progress import Stages, untold
from softkv.storage import Item
from softkv.storage.batch import shown

if TYPE_CHECKING:
    import pyarrow

Value = Any  # a float, a label or text, or a vector of float32
AT_ONCE = 1000  # items that are read together
AT_A_TIME = 8  # queries of a page in a lookup


class Reader(Asker, Mapping[str, Value]):
    """A store to read: a Mapping in the order in which items were first added, and three ways to look things up."""

    # By key

    def __getitem__(self, key: str) -> Value:
        return self._view().snapshot.value(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default, also for what could not be a key."""
        try:
            return self._view().snapshot.value(key)
        except (KeyMissing, KeyTextError):
            return default

    def get_many(self, keys: Iterable[str], default: Any = None) -> list[Any]:
        """The value of each key, or the default, as `get` gives them, all of one commit and in one question.

        >>> import softkv, tempfile, os
        >>> with softkv.open(os.path.join(tempfile.mkdtemp(), "rents.softkv")) as db:
        ...     db.update({"a small room": 540, "a large house": 2450})
        ...     db.get_many(["a large house", "a boat", "a small room"], 0)
        [2450.0, 0, 540.0]
        """
        if isinstance(keys, str):
            raise KeyTextError(f"give a list of keys, or use get for the one key {shown(keys)}")
        asked = list(keys)
        found = self._found(asked)
        return [found.get(key, default) if isinstance(key, str) else default for key in asked]

    def _found(self, keys: list[Any]) -> dict[str, Value]:
        """The values of those of these keys that are there."""
        return self._view().snapshot.found_values(keys)

    def items(self) -> ItemsView[str, Value]:
        """Keys and values in their order, all of one commit."""
        return _Items(self)

    def values(self) -> ValuesView[Value]:
        """Values in their order, all of one commit."""
        return _Values(self)

    def _pairs(self) -> Iterator[tuple[str, Value]]:
        """Keys and values, read many at a time, all of one commit; one at a time takes far longer."""
        snapshot = self._view().snapshot
        return (
            pair
            for rows in snapshot.in_portions()
            for pair in zip(snapshot.names(rows), snapshot.read(rows), strict=True)
        )

    def _each_value(self) -> Iterator[Value]:
        """Values, read many at a time; keys are read only if the values are texts."""
        snapshot = self._view().snapshot
        return (value for rows in snapshot.in_portions() for value in snapshot.read(rows))

    def __contains__(self, key: object) -> bool:
        return key in self._view().snapshot

    def __iter__(self) -> Iterator[str]:
        return self._view().snapshot.keys()

    def __len__(self) -> int:
        return len(self._view().snapshot)

    def __eq__(self, other: object) -> bool:
        """Whether another mapping has the same keys and values, in any order, as for dicts."""
        if self is other or not isinstance(other, Mapping):
            return self is other
        if len(self) != len(other):
            return False
        # Subtle: values may be vectors, which Mapping would compare number by number and not know what to make of.
        mine, others = dict(self.items()), dict(other.items())
        return mine.keys() == others.keys() and all(_same(mine[key], others[key]) for key in mine)

    def item(self, key: str) -> Item:
        """Everything about the item with this key or `#<number>`: value, payload, key vector, embedded text."""
        return self._view().snapshot.get(key)

    def select(
        self, where: Mapping[str, Any] | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[Item]:
        """The items in their order whose payload matches `where`, from the one at `start` to that before `stop`."""
        view = self._view()
        snapshot, rows = view.snapshot, view.order
        if where is not None and len(rows):
            rows = rows[snapshot.matching(where)[rows]]
        rows = rows[place_of(start, "start") : place_of(stop, "stop")]
        for first in range(0, len(rows), AT_ONCE):
            yield from snapshot.items(rows[first : first + AT_ONCE])

    def columns(self) -> StoreColumns:
        """All items as arrays, block by block, for models that take them up whole."""
        return StoreColumns.of(self._asked_view())

    def to_arrow(self) -> "pyarrow.Table":
        """All items in their order as a pyarrow.Table: key, text, value, vector, and the payload as JSON.

        Whatever reads streams of Arrow (polars, pandas, duckdb) takes an open store itself, batch by batch.
        """
        return self._stream().read_all()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All items as a stream of Arrow, for other libraries."""
        return self._stream().__arrow_c_stream__(requested_schema)

    def _stream(self) -> Any:
        from softkv.files.arrow import stream_of

        info = self.info()
        kind = ValueKind(info.value_kind) if info.value_kind and info.key_width else None
        return stream_of(self.select(), kind, info.key_width or 0, info.value_width or 0)

    evaluate = evaluate

    # About the store

    @property
    def value_kind(self) -> str | None:
        """What values are: "number", "vector", "label" or "text"; None while nothing has decided it."""
        kind = self._view().kind
        return None if kind is None else kind.value

    def info(self) -> Info:
        """What the store is: items, widths, kind, how it compares, its embedder, its temperature, its size on disk."""
        return summary(self._view(), self._embedding.path)

    def _repr_html_(self) -> str:
        try:
            return self.info()._repr_html_()
        except SoftKVError:  # closed, or not to be reached: whoever shows a variable asks for no error
            return html.escape(repr(self))

    def export(
        self, path: str | os.PathLike[str], *, force: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Write everything to one .jsonl, .parquet or .npz file for `softkv import`; returns how many items.

        A .csv file holds the items alone, for spreadsheets and for `load`.
        """
        return export_to(self._view(), path, force=force, progress=progress)

    def page(
        self,
        path: str | os.PathLike[str],
        items: int = 2000,
        queries: Any = (),
        *,
        heads: Heads | None = None,
        force: bool = False,
    ) -> int:
        """Write an HTML file that shows how lookups come about; returns how many items whoever has it can read in it.

        Args:
            path: The file, such as page.html. It needs no network and no server.
            items: How many items it carries at most; of a larger store they are drawn, with a seed.
            queries: Texts or vectors that it asks, beside the keys of its items.
            heads: Learned projections to look up with.
            force: Overwrite the file.
        """
        from softkv.page import write

        scene = self.scene(items, queries, heads=heads)
        write({"scenes": [scene]}, path, store=self._embedding.path, force=force)
        return len(scene["numbers"])

    def scene(
        self, items: int = 2000, queries: Any = (), *, heads: Heads | None = None, progress: Stages = untold
    ) -> dict[str, Any]:
        """What a page shows of the store, as plain Python: items, the vectors of queries, and how much is evidence.

        `progress` is called with ("asking", done, all) while the queries are asked.
        """
        from softkv.page import PageQueries, scene_of

        view = self._asked_view()
        given = [queries] if isinstance(queries, str) else queries
        texts, (vectors, _, _) = texts_of(given), self._queries(view, given, None, heads)
        names = [f"query {number + 1}" for number in range(len(vectors))] if texts is None else texts
        answers: list[Any] = []
        while len(answers) < len(vectors):
            progress("asking", len(answers), len(vectors))
            answers += self.lookup(vectors[len(answers) : len(answers) + AT_A_TIME], heads=heads, show=1)
        asked = PageQueries(names, texts is not None, vectors, answers)
        return scene_of(view, os.path.basename(self._embedding.path), asked, items=items, heads=heads)


class _Items(ItemsView[str, Value]):
    _mapping: Reader

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return self._mapping._pairs()

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            return False
        missing = object()
        held = self._mapping.get(item[0], missing)
        return held is not missing and _same(held, item[1])


class _Values(ValuesView[Value]):
    _mapping: Reader

    def __iter__(self) -> Iterator[Value]:
        return self._mapping._each_value()

    def __contains__(self, value: object) -> bool:
        return any(_same(one, value) for one in self)


def _same(held: Value, given: Any) -> bool:
    """Whether two values are equal: vectors in shape and in each number, others as Python compares them."""
    try:
        return np.array_equal(held, given) if isinstance(held, np.ndarray) or np.ndim(given) else bool(held == given)
    except (TypeError, ValueError, RuntimeError):  # it cannot be an array, so it is no vector
        return False
