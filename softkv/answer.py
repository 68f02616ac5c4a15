"""The results of a lookup: frozen dataclasses over arrays. `Answers` for many queries, `Answer` for one.

Does not compute anything but this: it picks one query out of many, and puts weights in the order of the rows. Does not
contain the items, only row numbers; keys, values and payloads of rows are read from the store when an answer is looked
at. Printing is in portrait.py.

Shapes: b queries, p value width, s rows shown, h heads. Arrays are NumPy or torch, whichever was asked with.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from softkv import portrait
from softkv.errors import ShapeError
from softkv.guard.guard import Guard
from softkv.guard.judged import Judged
from softkv.kinds import ValueKind
from softkv.maths.arrays import library_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

Array: TypeAlias = Any
KINDS = ("exact", "bound", "measured", "calibrated", "unknown")  # kinds of errors, the surest first
_TOGETHER = 64  # answers whose contributors are asked for at once
_WHERE_KNOWN = ("log_mass", "mass", "log_mass_error", "effective_error", "spread_error")  # NaN where one has none
_AS_FOUND = ("log_mass", "effective", "mass", "scored", "seen", "rows", "weights", "scores", "head_weights")


class Described(NamedTuple):
    """The key of a row, and its value, payload and text."""

    key: str | None = None  # the key, or #<number> for an item without one
    value: Any = None  # as it was given
    payload: Any = None
    text: str | None = None  # what was embedded, where that is not the key


class Describing(Protocol):
    """A source of the items in rows: a store at the commit that was asked."""

    def describe(self, rows: Sequence[int]) -> list[Described]:
        """The items in these rows."""

    def places(self, rows: Array) -> Array:
        """Where the items in these rows are in the order of all items."""


class Kept(NamedTuple):
    """The items of some rows, kept for pickled answers, which have no store."""

    found: dict[int, Described]
    placed: dict[int, int]  # where all rows are named, and so their order may be asked for

    def describe(self, rows: Sequence[int]) -> list[Described]:
        """The items in these rows."""
        return [self.found[row] for row in rows]

    def places(self, rows: Array) -> Array:
        """Where the items in these rows are in the order of all items."""
        return np.array([self.placed.get(row, 0) for row in rows.reshape(-1).tolist()], np.int64).reshape(rows.shape)


@dataclass(frozen=True, slots=True)
class Contributor:
    """One of the rows that an answer is made of. Rows of plain arrays have no key, value or payload."""

    row: int
    weight: float  # its share of the mass of all rows, or where `mass` is None of the value's; with heads, the mean
    score: float  # how alike query and key are: the compatibility, before bias and temperature
    key: str | None = None
    value: Any = field(default=None, compare=False)  # perhaps an array, which is not simply equal or unequal
    payload: Any = field(default=None, compare=False)
    text: str | None = None  # what was embedded, where that is not the key


class RankedText(NamedTuple):
    """A stored text and the weight it has in an answer."""

    text: str
    weight: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer(Judged[bool, float, tuple[object, ...], tuple[float, float]]):
    """The answer to one query. Single numbers are floats, or tensors without axes when asked with tensors.

    >>> import softkv
    >>> answer = softkv.soft_lookup([1.0, 0.0], [[2.0, 0.0], [0.0, 2.0]], [10.0, 20.0], compatibility="dot")
    >>> round(answer.value, 3), [round(one.weight, 3) for one in answer.contributors]
    (11.192, [0.881, 0.119])
    >>> answer
    11.19 (values spread by 3.24)
      █████████████████▋     88.1%  row 0
      ██▍                    11.9%  row 1
    log mass 2.127, effective 1.441, temperature 1, exact over 2
    """

    value: Any  # the mean number, the mean vector (p,), the mean embedding of texts, or the distribution over `labels`
    spread: Any  # the weighted standard deviation of numbers, else None
    log_mass: Any  # log Σ exp(logit) over all rows: how much is known here; None if unknown; with heads (h,)
    effective: Any  # how many rows really contributed; with heads (h,)
    mass: Any  # the share of the full mass that the rows in the value hold, None if unknown; with heads (h,)
    scored: int  # how many rows are in the value
    temperature: Any
    contributors: tuple[Contributor, ...]  # the heaviest first
    head_weights: Array | None = None  # (h, s), the shares of the contributors in each head
    labels: tuple[object, ...] | None = None
    kind: str | None = None  # number, vector, label or text; None for the values of plain arrays
    error: float | None = None  # how far `value` may be from the exact one, over all rows or, with k, the k heaviest
    error_kind: str = "exact"  # or "bound", "calibrated", "measured", "unknown"
    log_mass_error: Any = None  # how far `log_mass` may be from the exact one, where it is estimated; with heads (h,)
    effective_error: Any = None  # how far `effective` may be, where it is measured; with heads (h,)
    spread_error: float | None = None  # how far `spread` may be, where it is measured
    log_mass_floor: float | None = None  # the lowest log mass of an item of the store, left out, where it is known
    route: str | None = None  # how it was computed: one of the routes in asking/route.py
    reason: str | None = None  # why this route, and what would change it
    rows_read: int | None = None  # how many rows were compared
    out_of_reach: float | None = None  # the largest share of the mass in shards that did not answer, if any did not
    guard: Guard | None = None  # the promises of the store about such answers (softkv/guard)
    unguarded: str | None = None  # why the guard of the store does not apply to this answer

    @property
    def is_far(self) -> bool | None:
        """Whether the log mass is below that of every item of the store, left out; None where that is not known.

        The floor (`log_mass_floor`) is measured when a store finds its temperature, for lookups of all items with this
        temperature and compatibility. An estimated `log_mass` has to lie below it by more than its error.
        """
        if self.log_mass_floor is None or self.log_mass is None:
            return None
        if self.error_kind != "exact" and self.log_mass_error is None:
            return None
        return bool(self.log_mass + (self.log_mass_error or 0.0) < self.log_mass_floor)

    @property
    def label(self) -> object:
        """The most probable label, or None when the values are not labels."""
        return None if self.labels is None else self.labels[int(self.value.argmax())]

    @property
    def texts(self) -> tuple[RankedText, ...] | None:
        """The texts of the contributors, equal ones joined, the heaviest first; None when the values are not texts."""
        if self.kind is None or not ValueKind(self.kind).embedded:
            return None
        weights: dict[str, float] = {}
        for one in self.contributors:
            weights[one.value] = weights.get(one.value, 0.0) + one.weight
        return tuple(RankedText(*pair) for pair in sorted(weights.items(), key=lambda pair: -pair[1]))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python: dicts, lists, numbers, texts."""
        return portrait.as_dict(self)

    def to_json(self) -> str:
        """Everything as JSON, in one line."""
        return portrait.as_json(self.to_dict())

    def to_pandas(self) -> "pandas.DataFrame":
        """The contributors as a DataFrame; needs pandas."""
        return portrait.as_frame([self]).drop(columns="query")

    def __repr__(self) -> str:
        return portrait.as_text(self)

    def _repr_html_(self) -> str:
        return portrait.as_html(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answers(Judged[npt.NDArray[Any], npt.NDArray[Any], list[tuple[object, ...]], npt.NDArray[Any]]):
    """The answers to many queries: arrays first, an `Answer` for each on demand.

    Leading axes of the queries are leading axes of every array, before the (b, ...) given here. `answers[0]` is one
    `Answer`, and `answers[:10]` are the `Answers` to these queries, as of a list. The contributors of an answer are
    read from the store when the answer is taken, so the store has to be open; pickled answers contain them.
    """

    value: Array  # (b,) numbers, (b, p) vectors, (b, labels) distributions; with heads (b, o)
    spread: Array | None  # (b,), for numbers
    log_mass: Array  # (b,), NaN where unknown; with heads (b, h)
    effective: Array  # (b,); with heads (b, h)
    mass: Array | None  # (b,), NaN where unknown; with heads (b, h)
    scored: Array  # (b,)
    seen: Array  # (b,), how many rows the query may see
    temperature: Any  # one for all, or (b,)
    rows: Array  # (b, s), the heaviest first; -1 where there are fewer
    weights: Array  # (b, s), in the order of `rows`; a matrix of all weights is `attention()`
    scores: Array  # (b, s)
    head_weights: Array | None = None  # (b, h, s)
    labels: tuple[object, ...] | None = None
    kind: str | None = None
    error: Array | None = None  # (b,)
    error_kind: str | tuple[str, ...] = "exact"  # of all, or of each
    log_mass_error: Array | None = None  # (b,), where it is estimated; with heads (b, h), for each head by itself
    effective_error: Array | None = None  # (b,), where it is measured, else NaN; with heads (b, h)
    spread_error: Array | None = None  # (b,), where it is measured, else NaN
    log_mass_floor: float | None = None  # of all, where it is known
    route: str | tuple[str, ...] | None = None  # of all, or of each
    reason: str | tuple[str, ...] | None = None  # of all, or of each
    rows_read: Array | None = None  # (b,), of stores
    out_of_reach: Array | None = None  # (b,), where shards did not answer
    count: int = 0  # of all rows, or items of the store
    guard: Guard | None = None  # of all
    unguarded: str | None = None  # of all
    source: Describing | None = None

    @classmethod
    def of(
        cls, found: Any, temperature: Any, labels: tuple[object, ...] | None, count: int, *, numbers: bool
    ) -> "Answers":
        """Answers from the result of softkv/maths/lookup.py; single numbers lose the axis of their width."""
        told = {name: getattr(found, name) for name in _AS_FOUND}
        value = found.value[..., 0] if numbers else found.value
        spread = None if found.spread is None else found.spread[..., 0]
        return cls(value=value, spread=spread, temperature=temperature, labels=labels, count=count, **told)

    def __len__(self) -> int:
        return int(self.scored.shape[0])

    def __iter__(self) -> Iterator[Answer]:
        for start in range(0, len(self), _TOGETHER):  # reading the contributors one by one takes five times as long
            some = range(start, min(start + _TOGETHER, len(self)))
            yield from map(self._answer, some, self._contributors(some))

    @overload
    def __getitem__(self, index: int) -> Answer: ...

    @overload
    def __getitem__(self, index: slice) -> "Answers": ...

    def __getitem__(self, index: int | slice) -> "Answer | Answers":
        if not isinstance(index, slice):
            return self._answer(index, self._contributors([index])[0])
        self._require_one_axis()
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "labels"}  # one set for all
        each = {name: x[index] for name, x in told.items() if isinstance(x, tuple) or getattr(x, "ndim", False)}
        return replace(self, **each)

    def _answer(self, index: int, contributors: tuple[Contributor, ...]) -> Answer:
        told = {name: _of_one(getattr(self, name), index) for name in _OF_EACH}
        told |= {name: None for name in _WHERE_KNOWN if isinstance(told[name], float) and math.isnan(told[name])}
        return Answer(**told, scored=int(self.scored[index]), contributors=contributors, labels=self.labels)

    @property
    def label(self) -> tuple[object, ...] | None:
        """The most probable label of each query, in order, or None when the values are not labels."""
        if self.labels is None:
            return None
        return tuple(self.labels[code] for code in self.value.argmax(-1).reshape(-1).tolist())

    @property
    def routes(self) -> dict[str, int]:
        """How many queries were answered by each route; empty where no store was asked."""
        if self.route is None:
            return {}
        return dict(Counter(self.route)) if isinstance(self.route, tuple) else {self.route: len(self)}

    @property
    def scanned(self) -> str | None:
        """The most common reason why queries were scanned, in a store that is not small; None if none was scanned."""
        scans = (index for index in range(len(self)) if _of_one(self.route, index) == "scan")
        found = Counter(reason for reason in (_of_one(self.reason, index) for index in scans) if reason).most_common(1)
        return found[0][0] if found else None

    def attention(self, *, by_head: bool = False) -> Array:
        """All weights as a matrix (b, n), in the order of the rows or of the items of the store; 0 for unseen rows.

        The answers have to name every row that a query sees, so look up with `show=` the number of rows. With heads it
        is the mean over heads; with `by_head` (b, h, n).

        >>> import softkv
        >>> keys = [[0.0, 1.0], [1.0, 0.0]]
        >>> answers = softkv.soft_lookup([[1.0, 0.0], [0.0, 1.0]], keys, keys, compatibility="dot")
        >>> answers.attention().round(2).tolist(), answers.weights.round(2).tolist()
        ([[0.27, 0.73], [0.73, 0.27]], [[0.73, 0.27], [0.73, 0.27]])
        """
        self._require_all_weights()
        weights = self.head_weights if by_head else self.weights[..., None, :]
        if weights is None:
            raise ShapeError(
                "no heads were asked, so no weights are by head. Leave out by_head, or look up with heads=."
            )
        library = library_of(weights)
        places = library.maximum(self.rows, 0)  # where there is no row (-1), the weight is 0
        if self.source is not None:
            places = self.source.places(places)
        found = library.sums_by_code(places, weights, self.count)
        return found if by_head else found[..., 0, :]

    @property
    def _unnamed(self) -> Array:
        """How many of the rows that a query sees are not named, (b,)."""
        return self.seen - (self.rows >= 0).sum(-1)

    def _require_all_weights(self) -> None:
        for number, unnamed in enumerate(self._unnamed.reshape(-1).tolist()):
            if unnamed:
                seen = int(self.seen.reshape(-1)[number])
                scan = "" if self.error_kind == "exact" else " and tolerance=0"
                raise ShapeError(
                    f"these answers named {seen - unnamed} of the {seen} rows that query "
                    f"{number % self.seen.shape[-1]} sees, so not all weights are known. Ask with "
                    f"show={int(self.seen.max())}{scan}."
                )

    def to_dict(self) -> list[dict[str, Any]]:
        """Each answer as plain Python."""
        return [answer.to_dict() for answer in self]

    def to_json(self) -> str:
        """Everything as JSON, in one line."""
        return portrait.as_json(self.to_dict())

    def to_pandas(self) -> "pandas.DataFrame":
        """The contributors of all queries as a DataFrame, with the number of each query; needs pandas."""
        return portrait.as_frame(list(self))

    def to_arrow(self) -> "pyarrow.Table":
        """A pyarrow.Table with a row for each query: the fields of its answer, and its contributors as a list."""
        return portrait.as_arrow(self)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The table as a stream of Arrow, which polars, pandas and duckdb read."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return portrait.answers_as_text(self)

    def _repr_html_(self) -> str:
        return portrait.answers_as_html(self)

    def __reduce__(self) -> tuple[object, ...]:
        source = self.source
        if source is not None:
            rows = sorted({row for row in self.rows.reshape(-1).tolist() if row >= 0})
            placed = [] if self._unnamed.any() else source.places(np.array(rows, np.int64)).tolist()
            source = Kept(dict(zip(rows, source.describe(rows), strict=True)), dict(zip(rows, placed, strict=False)))
        kept = [getattr(self, one.name) for one in fields(self) if one.name != "source"]
        return type(self), (*kept, source)

    def _require_one_axis(self) -> None:
        if self.scored.ndim != 1:
            raise ShapeError(
                f"these answers have axes {tuple(self.scored.shape)}, so one index names no query. Index their arrays."
            )

    def _contributors(self, indexes: Sequence[int]) -> list[tuple[Contributor, ...]]:
        """The contributors of some answers, read from the store together."""
        self._require_one_axis()
        columns = [(self.rows[one].tolist(), self.weights[one].tolist(), self.scores[one].tolist()) for one in indexes]
        found = [[one for one in zip(*column, strict=True) if one[0] >= 0] for column in columns]
        if self.source is None:
            return [tuple(Contributor(*one) for one in some) for some in found]
        rows = sorted({row for some in found for row, _, _ in some})
        described = dict(zip(rows, self.source.describe(rows), strict=True))
        return [tuple(Contributor(*one, *described[one[0]]) for one in some) for some in found]


_OF_EACH = {one.name for one in fields(Answer)} & {one.name for one in fields(Answers)} - {"labels", "scored"}


def _of_one(told: Any, index: int) -> Any:
    """The entry of one query in a field that has one for all queries or for each; numbers as floats, except tensors."""
    one = told[index] if isinstance(told, tuple) or getattr(told, "ndim", False) else told
    return one if not hasattr(one, "ndim") or one.ndim or hasattr(one, "requires_grad") else one.item()
