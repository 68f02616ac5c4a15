"""Turn the arguments of `add` into the columns of one batch: embed texts, decide the kind, make one item a list of one.

The text of an item is kept, so that a better model can embed it again; an item without text was given as a bare vector.
Shapes, types and lengths are checked by the storage, for all callers.

Does not write.
"""

from collections.abc import KeysView, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softkv.asking.embedding import Embedding
from softkv.asking.profile import Profile
from softkv.errors import EmbedderNeeded, InputError, KindError, NotFinite, ShapeError, ZeroVector
from softkv.kinds import ValueKind
from softkv.logs import hint
from softkv.maths.compatibility import compatibility_of
from softkv.ndarrays import AnyArray
from softkv.progress import Progress
from softkv.storage import Layout

SHORTEST, LONGEST = 1e-37, 1e32  # lengths that float32 can divide by, at any usual temperature
EPSILON = 1e-6  # of its largest number: a column that varies less is constant, but for rounding
REPEATING = 8  # fewer texts get no hint that they look like labels


LOOKED_AT = 10_000  # vectors whose columns are looked at
UNEVEN = 100.0  # a hint is given if a column spreads so many times as widely as another


class ColumnsDiffer(UserWarning):
    """The columns of bare vectors differ so much in spread that some hardly count by cosine."""


class LooksLikeItems(UserWarning):
    """One vector and one value have equally many numbers, as the columns of many items have."""


class LooksLikeLabels(UserWarning):
    """A few texts repeat among the values, as labels do."""


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of `add`, a list for each."""

    keys: list[str | None] | None
    values: Any
    vectors: Any
    texts: list[str | None] | None
    payloads: list[Any] | None
    bare: bool = False  # one vector without a key or a list around it

    @property
    def count(self) -> int:
        """How many items there are, by the first column that was given."""
        for column in (self.keys, self.vectors, self.texts, self.values):
            if column is not None:
                return len(column)
        return 0


def is_frame(given: Any) -> bool:
    """Whether something has columns with names, and hands them out as Arrow; a single column has none."""
    return hasattr(given, "__arrow_c_stream__") and (hasattr(given, "columns") or hasattr(given, "schema"))


def given(keys: Any, values: Any, vectors: Any, texts: Any, payloads: Any) -> Given:
    """The arguments of `add` as lists: one key is a text, one vector has one axis."""
    if values is None:
        raise InputError("expected values to blend, got none. Give them: add(keys, values), or update(a dict).")
    if texts is not None and vectors is not None:
        raise InputError("expected texts= to embed or vectors= that are embedded already, got both. Leave out one.")
    if is_frame(payloads):
        from softkv.files.arrow import rows_of

        payloads = rows_of(payloads)
    one = isinstance(keys, str) or (keys is None and (isinstance(texts, str) or _axes(vectors) == 1))
    if one:
        _require_own_payload(payloads)
        alone = [None if x is None else [x] for x in (keys, vectors, texts, payloads)]
        return Given(alone[0], [values], alone[1], alone[2], alone[3], bare=keys is None and vectors is not None)
    for name, column in (("keys", keys), ("values", values), ("texts", texts), ("payloads", payloads)):
        if column is not None and not is_column(column):
            raise ShapeError(
                f"expected {name} as a list with one entry per item, got {type(column).__name__}. For a single item "
                "give its key as a text."
            )
    return Given(_list(keys), _indexed(values), vectors, _list(texts), _list(payloads))


def _require_own_payload(payload: Any) -> None:
    """Refuse a list of one object for a single item: it would be kept as a list, which no filter by fields matches."""
    if isinstance(payload, (list, tuple)) and len(payload) == 1 and isinstance(payload[0], dict):
        raise ShapeError(
            "expected the payload of a single item, got a list of one. Give the object itself; to store a list, give "
            "lists: keys=[key], values=[value], payloads=[[{...}]]."
        )


def prepared(
    what: Given, profile: Profile, layout: Layout | None, embedding: Embedding, progress: Progress | None
) -> tuple[dict[str, Any], Profile]:
    """The columns of the batch, ready for the storage, and the profile of the store after it."""
    kind = _kind(what.values, profile, layout)
    texts: list[str | None] | None = None
    vectors = what.vectors
    if vectors is None:
        _require_embedder(profile, layout, embedding)
        texts = _embedded_texts(what)
        profile = replace(profile, embedder=embedding.identity(profile.embedder))
        vectors = embedding.documents(_all_texts(texts), profile.embedder, progress)
    value_vectors = None
    if kind.embedded:
        profile = replace(profile, embedder=embedding.identity(profile.embedder))
        told = _value_texts(what.values)
        value_vectors = vectors if told == texts else embedding.documents(told, profile.embedder, progress)
    if layout is None and kind.embedded and profile.value is None:
        _hint_at_labels(what.values)
    if layout is None and what.bare:
        _hint_at_columns(vectors[0], what.values[0])
    if profile.compatibility is None:
        profile = replace(profile, compatibility="cosine" if texts is not None else _comparison_of(vectors))
        if texts is None and profile.compatibility == "cosine":
            _hint_at_scales(vectors)
    if compatibility_of(profile.compatibility or "dot").with_lengths is not None:
        _require_directions(vectors)
    elif layout is None:
        _require_size(vectors)
    columns = {"vectors": vectors, "values": what.values, "value_vectors": value_vectors}
    columns |= {"keys": what.keys, "texts": texts, "payloads": what.payloads}
    return columns, replace(profile, value=kind)


def embedded_values(what: Given, profile: Profile, layout: Layout | None, embedding: Embedding) -> Any:
    """The vectors of texts as values; None for values of other kinds."""
    if layout is None or not layout.kind.embedded:
        return None
    return embedding.documents(_value_texts(what.values), profile.embedder, None)


def _kind(values: Any, profile: Profile, layout: Layout | None) -> ValueKind:
    """The kind of the store, else the one asked for, else that of the first values; an error if they do not fit."""
    first = values[0] if hasattr(values, "__getitem__") and len(values) else None
    is_text = isinstance(first, str)
    decided = layout.kind if layout else profile.value
    if decided is None:
        return ValueKind.of_first(worded=is_text, axes=_axes(values))
    if first is not None and is_text != decided.worded:
        raise KindError(
            f"expected values of kind {decided.value!r}, as this store holds, got {type(first).__name__} as the first. "
            "Convert them, or make another store for them."
        )
    if layout is None and not is_text and (_axes(values) > 1) != (decided.axes > 1):
        raise KindError(f"expected values of kind {decided.value!r}, got an array of {_axes(values)} axes.")
    return decided


def _require_embedder(profile: Profile, layout: Layout | None, embedding: Embedding) -> None:
    if layout is not None and profile.embedder is None and not embedding.is_given:
        raise EmbedderNeeded(
            f"{embedding.path} holds bare vectors, and knows no embedder that turns a text into one. Give vectors of "
            f"width {layout.key_width}: add(keys, values, vectors=...), or open the store with embedder= and the model "
            "that its vectors come from."
        )
    identity = embedding.identity(profile.embedder)
    if layout is not None and identity.width != layout.key_width:
        raise EmbedderNeeded(
            f"{embedding.path} holds keys of width {layout.key_width}, but its embedder {identity.name!r} makes "
            f"vectors of width {identity.width}. Give vectors=, or open the store with embedder= and the model "
            "that they come from."
        )


def _embedded_texts(what: Given) -> list[str | None]:
    """The text to embed for each item: its text, or else its key."""
    count = what.count
    keys = [None] * count if what.keys is None else what.keys
    texts = [None] * count if what.texts is None else what.texts
    if len(keys) != len(texts):
        raise ShapeError(f"expected one text for each of the {len(keys)} keys, got {len(texts)}. Use None for the key.")
    return [key if text is None else text for key, text in zip(keys, texts, strict=True)]


def _all_texts(found: Sequence[Any]) -> list[str]:
    for position, text in enumerate(found):
        if not isinstance(text, str):
            raise EmbedderNeeded(
                f"item {position} has neither a key nor a text to embed. Give it one, or give vectors=."
                if text is None
                else f"item {position} has a {type(text).__name__} where a text is embedded. Give a text."
            )
    return list(found)


def _value_texts(values: Any) -> list[str]:
    for position, text in enumerate(values):
        if not isinstance(text, str):
            raise KindError(
                f"value {position} is of type {type(text).__name__}, but values are texts here. Give a text for each "
                "item."
            )
    return list(values)


def look_like_labels(values: Sequence[str]) -> bool:
    """Whether texts repeat so often that they look like labels; if so, a hint says it before they are written."""
    return len(values) >= REPEATING and len(set(values)) * 4 <= len(values)


def _hint_at_labels(values: Any) -> None:
    if look_like_labels(values):
        hint(
            f"{len(values)} values are only {len(set(values))} different texts: if they are labels, start the store "
            "anew with value='label', and answers will be distributions over them.",
            LooksLikeLabels,
        )


def _hint_at_columns(vector: Any, value: Any) -> None:
    """Warn that two columns make a single item; a vector that is its own value is a memory of that vector."""
    key, told = _matrix(vector), _matrix(value)
    if key.ndim == 1 and key.size > 1 and key.shape == told.shape and not np.array_equal(key, told):
        hint(
            f"one vector and one value of {key.size:,} numbers each make a single item. If they are columns, start the "
            f"store anew: for {key.size:,} items of width 1 give vectors=x[:, None].",
            LooksLikeItems,
        )


def _hint_at_scales(vectors: Any) -> None:
    """Warn that columns differ in scale, unless cosine was asked for; constant columns do not count."""
    matrix = _matrix(vectors)[:LOOKED_AT]
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        return  # the storage says what is wrong with it
    spreads = matrix.std(axis=0, dtype=np.float64)
    varying = np.flatnonzero(spreads > EPSILON * np.abs(matrix).max(axis=0))
    if not len(varying):
        return
    most, least = varying[spreads[varying].argmax()], varying[spreads[varying].argmin()]
    if spreads[most] > UNEVEN * spreads[least]:
        hint(
            f"column {most} of the vectors varies {spreads[most] / spreads[least]:,.0f} times as much as column "
            f"{least}, which cosine, the usual comparison, therefore hardly sees. Bring them to one scale, or start "
            "the store anew with compatibility='gaussian' and let `fit` learn their scales.",
            ColumnsDiffer,
        )


def _comparison_of(vectors: Any) -> str:
    """How to compare bare vectors where nothing else was asked for."""
    matrix = _matrix(vectors)
    if matrix.ndim == 2 and matrix.shape[1] == 1:
        return "gaussian"  # of single numbers cosine sees the sign alone
    return "dot" if matrix.ndim == 2 and not matrix.any(axis=1).all() else "cosine"


def _require_directions(vectors: Any) -> None:
    """Refuse vectors that cosine cannot compare: they would make every later lookup fail."""
    matrix = _matrix(vectors)
    if matrix.ndim != 2 or not len(matrix):
        return  # the storage says what is wrong with it
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", matrix, matrix)
    odd = np.flatnonzero(~((squares > 1e-30) & (squares < 1e36)))
    for row in odd.tolist():
        length = float(np.linalg.norm(matrix[row].astype(np.float64)))
        if length == 0:
            raise ZeroVector(
                f"key vector {row} is zero and has no direction, but this store compares by cosine. Leave it out, or "
                "make a store with compatibility='dot' or 'gaussian'. Nothing was written."
            )
        if not SHORTEST < length < LONGEST and np.isfinite(length):
            raise NotFinite(
                f"key vector {row} has length {length:g}, which cosine cannot divide by in float32. Scale the vectors "
                "to lengths near 1. Nothing was written."
            )


def _require_size(vectors: Any) -> None:
    """Refuse first vectors that float32 can hardly tell from zero; beside longer ones such vectors are allowed."""
    try:
        largest = float(np.abs(np.asarray(vectors, np.float64)).max(initial=0.0))
    except (TypeError, ValueError, RuntimeError):
        return  # the storage says what is wrong with it
    if 0 < largest < SHORTEST:
        raise NotFinite(
            f"expected key vectors with numbers of at least {SHORTEST:g}, which float32 holds in full, got none above "
            f"{largest:g}. Scale the vectors up, queries alike. Nothing was written."
        )


def _matrix(vectors: Any) -> AnyArray:
    nothing = np.empty(0, np.float32)  # the storage says what is wrong with it
    try:
        array = np.asarray(vectors)
        with np.errstate(over="ignore"):
            return array.astype(np.float32) if array.dtype.kind in "fiu" else nothing
    except (TypeError, ValueError, RuntimeError):
        return nothing


def _axes(x: Any) -> int:
    """How many axes there are, by the first entries alone."""
    if x is None or isinstance(x, (str, bytes, Mapping)):
        return 0
    if hasattr(x, "shape"):  # not x.ndim, which frames of polars lack, and whose x[0] is a frame, too
        return len(x.shape)
    return (
        1 + _axes(x[0])
        if hasattr(x, "__getitem__") and hasattr(x, "__len__") and len(x)
        else int(hasattr(x, "__len__"))
    )


def is_column(x: Any) -> bool:
    """Whether this has one entry per item, in an order; a set has no order."""
    if isinstance(x, (str, bytes, Mapping)) or (isinstance(x, Set) and not isinstance(x, KeysView)):
        return False
    return hasattr(x, "__len__") and getattr(x, "ndim", 1) > 0


def _indexed(values: Any) -> Any:
    """Values that can be indexed from 0: columns of a table may have another index, and views have none."""
    if hasattr(values, "to_numpy"):
        return values.to_numpy()
    return list(values) if isinstance(values, (KeysView, ValuesView)) else values


def _list(column: Any) -> list[Any] | None:
    return None if column is None else column.tolist() if hasattr(column, "tolist") else list(column)
