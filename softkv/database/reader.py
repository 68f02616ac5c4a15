"""Everything that reads a store: by key as in a dict, and by likeness. Shared by handles and snapshots.

Fills in the defaults of a lookup and says what a query is: a text, a vector, or many of either. The lookup itself is
asking.py.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import replace
from typing import Any

import numpy as np

from softkv.answer import Answer, Answers, Comparison, Exact, Warmth
from softkv.database import asking
from softkv.database.carrying import export_to
from softkv.database.columns import Columns
from softkv.database.embedding import Embedding
from softkv.database.evaluating import evaluate
from softkv.database.given import array_of, comparison_of, place_of, temperatures_of, texts_of
from softkv.database.profile import checked_temperature
from softkv.database.question import LEARNED, Compared, Question
from softkv.database.summary import Info, summary
from softkv.database.view import View
from softkv.errors import KeyMissing, KeyTextError, KindError, ShapeError
from softkv.maths.heads import Heads
from softkv.storage import Item

Value = Any  # a float, a label or text, or a vector of float32
AT_ONCE = 1000  # items that are read together
STEPS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)  # temperatures of a comparison, as shares of the usual one


class Reader(Mapping[str, Value]):
    """A store to read: a Mapping in the order in which items were first added, and three ways to look things up."""

    _embedding: Embedding

    @abstractmethod
    def _view(self) -> View:
        """The commit to read."""

    # By key

    def __getitem__(self, key: str) -> Value:
        return self._view().snapshot.get(key).value

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default, also for what could not be a key."""
        try:
            return self[key]
        except (KeyMissing, KeyTextError):
            return default

    def items(self) -> ItemsView[str, Value]:
        """Keys and values in their order, all of one commit."""
        return _Items(self)

    def values(self) -> ValuesView[Value]:
        """Values in their order, all of one commit."""
        return _Values(self)

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
        return mine.keys() == others.keys() and all(np.array_equal(mine[key], others[key]) for key in mine)

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

    def columns(self) -> Columns:
        """All items as arrays, block by block, for models that take them up whole."""
        return Columns.of(self._asked_view())

    # By likeness

    def lookup(
        self,
        query: Any,
        *,
        k: int | None = None,
        temperature: Any = None,
        compatibility: Compared | None = None,
        tolerance: float = 0.01,
        confidence: float = 0.95,
        guarantee: str | None = None,
        where: Mapping[str, Any] | None = None,
        mask: Any = None,
        heads: Heads | None = None,
        projection: bool = True,
        show: int = 10,
    ) -> Any:
        """Look a query up softly: the average of all values, each weighted by how well its key compares.

        Args:
            query: A text or a vector gives an Answer; a list of texts or a matrix gives Answers.
            k: Blend only the k heaviest items; `mass` then says what share of all they hold.
            temperature: What scores are divided by; one, or one for each query. By default that of the store (`info`).
            compatibility: Another way to compare than that of the store.
            tolerance: How far the value may be from that of the exact full softmax, as a share of the value scale.
            confidence: How sure that is to be, where the answer is estimated.
            guarantee: "bound" for an error that always holds, whatever is asked; by default it holds as surely as
                `confidence` says, for queries like those that the index was calibrated on. Without an index, with
                `tolerance=0`, and where a promise could not be kept otherwise, all items are scanned.
            where: Only items whose payload matches, such as {"year": {"$gte": 2000}}.
            mask: Boolean, (items,) or (queries, items) in the order of the store: True where a query may see an item.
            heads: Learned projections, several lookups at once; the temperature is then 1, unless given.
            projection: Compare as the store has learned to (`fit`), if it has, and not by another compatibility or with
                heads; the temperature is then 1, unless given. False compares as if it had never learned.
            show: How many of the heaviest items to name as contributors.
        """
        asking.checked_options(tolerance, confidence, guarantee)
        view = self._asked_view()
        queries, rounded, one = self._queries(view, query, compatibility, heads)
        compared = self._compared(view, compatibility, heads, projection)
        found = asking.ask(
            view,
            Question(
                queries,
                compatibility=compared,
                temperature=self._temperature(view, temperature, compared, heads),
                k=k,
                where=where,
                mask=mask,
                heads=heads,
                show=show,
                rounded=rounded,
                tolerance=tolerance,
                confidence=confidence,
                guarantee=guarantee,
            ),
        )
        return found[0] if one else found

    def nearest(
        self,
        query: Any,
        *,
        temperature: Any = None,
        compatibility: Compared | None = None,
        where: Mapping[str, Any] | None = None,
        mask: Any = None,
        projection: bool = True,
        tolerance: float = 0.0,
    ) -> Any:
        """Look a query up the hard way: the best key takes all. An Answer with one contributor, or Answers of such.

        With a `tolerance`, the best key is one that the index found, which it is with confidence 0.95.
        """
        options: dict[str, Any] = {"temperature": temperature, "compatibility": compatibility, "tolerance": tolerance}
        return self.lookup(query, k=1, where=where, mask=mask, projection=projection, show=1, **options)

    def compare(
        self,
        query: Any,
        *,
        k: int = 10,
        temperature: float | None = None,
        compatibility: Compared | None = None,
        where: Mapping[str, Any] | None = None,
        projection: bool = True,
        show: int = 10,
    ) -> Comparison:
        """Look one query up in every way: by equality, the best key, the k best, and all; also at other temperatures.

        By equality means that a text is a key of the store, or that a vector is, number by number, a key vector.
        """
        view = self._asked_view()
        queries, rounded, one = self._queries(view, query, compatibility, None)
        if not one:
            raise ShapeError("expected one text or one vector to compare, got several. Compare them one at a time.")
        compared = self._compared(view, compatibility, None, projection)
        usual = checked_temperature(self._temperature(view, temperature, compared, None))
        soft = Question(
            queries,
            compatibility=compared,
            temperature=usual,
            where=where,
            show=show,
            rounded=rounded,
        )
        temperatures = np.array([usual * step for step in STEPS])
        strip = replace(soft, queries=queries.repeat(len(STEPS), axis=0), temperature=temperatures, show=1)
        return Comparison(
            exact=self._equal(view, query),
            hard=asking.ask(view, replace(soft, k=1, show=1))[0],
            top_k=asking.ask(view, replace(soft, k=k))[0],
            soft=asking.ask(view, soft)[0],
            strip=tuple(_warmth(answer) for answer in asking.ask(view, strip)),
        )

    def self_attention(
        self,
        *,
        causal: bool = False,
        temperature: Any = None,
        compatibility: Compared | None = None,
        k: int | None = None,
        mask: Any = None,
        heads: Heads | None = None,
        show: int = 10,
    ) -> Answers:
        """Every item asks all items, itself included, in the order of the store; `causal`: only those up to itself."""
        view = self._asked_view()
        compared = self._compared(view, compatibility, heads, False)
        return asking.ask_each(
            view,
            Question(
                None,
                compatibility=compared,
                temperature=self._temperature(view, temperature, compared, heads),
                k=k,
                mask=mask,
                causal=causal,
                heads=heads,
                show=show,
            ),
        )

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

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Write everything to one .jsonl, .parquet or .npz file for `softkv import`; returns how many items."""
        return export_to(self._view(), path, force=force, progress=progress)

    # Defaults

    def _asked_view(self) -> View:
        view = self._view()
        asking.require_items(view.snapshot)
        return view

    def _queries(
        self, view: View, query: Any, compatibility: Compared | None, heads: Heads | None
    ) -> tuple[Any, Any, bool]:
        """The queries as a matrix, how far its numbers are from those given, and whether there was one, not a batch."""
        texts = texts_of(query)
        if texts is not None:
            embedded = self._embedding.queries(texts, view.profile.embedder, view.layout.key_width)
            return embedded, 0.0, isinstance(query, str)
        array = array_of(query, "queries")
        if array.dtype.kind not in "fiu":
            raise KindError(f"expected a text, a vector, or many of either as the query, got {array.dtype}.")
        if array.ndim not in (1, 2):
            raise ShapeError(f"expected one vector or a matrix of them as the query, got shape {array.shape}.")
        if array.shape == (0,):  # an empty list asks nothing, be it of texts or of vectors
            array = np.empty((0, view.layout.key_width), np.float32)
        free = heads is not None or not (compatibility is None or isinstance(compatibility, str))
        if array.shape[-1] != view.layout.key_width and not free:
            known = view.profile.embedder
            made = "" if known is None else f" (embedder {known.name!r})"
            raise ShapeError(
                f"the query has width {array.shape[-1]}, but this store holds keys of width {view.layout.key_width}"
                f"{made}. Embed it with the same model, or open another store."
            )
        given = np.atleast_2d(array)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name, in the lookup
            queries = given.astype(np.float32)
            return queries, np.abs(given - queries), array.ndim == 1

    def _compared(self, view: View, given: Compared | None, heads: Heads | None, projection: bool) -> Compared:
        if heads is not None and not isinstance(heads, Heads):
            raise KindError(
                f"expected heads to be softkv.Heads, got {type(heads).__name__}. Stack the projections in it."
            )
        if not isinstance(projection, bool):
            raise KindError(f"expected projection to be True or False, got {projection!r}. Learn one with `fit`.")
        if given is not None:
            return comparison_of(given)
        if projection and heads is None and view.learned is not None:
            return LEARNED
        return "scaled_dot" if heads is not None else view.profile.compatibility or "dot"

    def _temperature(self, view: View, given: Any, compared: Compared, heads: Heads | None) -> Any:
        if given is not None:
            return temperatures_of(given)
        # The scores of a function, a matrix or what was learned have a scale of their own, which is not ours to choose.
        known = isinstance(compared, str) and compared != LEARNED and heads is None
        return view.temperature(str(compared)).value if known else 1.0

    def _equal(self, view: View, query: Any) -> Exact | None:
        snapshot = view.snapshot
        if isinstance(query, str):
            item = snapshot.get(query) if query in snapshot else None
        else:
            row = asking.row_equal_to(snapshot, np.asarray(query, np.float32))
            item = None if row is None else snapshot.items([row])[0]
        return None if item is None else Exact(item.name, item.value, item.payload)


class _Items(ItemsView[str, Value]):
    """Read a thousand at a time: one after the other takes ten times as long, and would go from commit to commit."""

    _mapping: Reader

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return ((item.name, item.value) for item in self._mapping.select())


class _Values(ValuesView[Value]):
    """As above."""

    _mapping: Reader

    def __iter__(self) -> Iterator[Value]:
        return (item.value for item in self._mapping.select())


def _warmth(answer: Answer) -> Warmth:
    texts = answer.texts
    value = texts[0].text if texts else answer.value if answer.labels is None else answer.label
    return Warmth(answer.temperature, answer.effective, answer.contributors[0].weight, value)
