"""What may enter a store: a batch of items, checked whole before the first byte is written.

Turns what a caller gave into arrays of the store's types and texts of known length, or names the first item that
cannot be used. Does not know what the store already holds.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.errors import (
    DuplicateKey,
    InputError,
    KeyMissing,
    KeyTextError,
    KindError,
    NotFinite,
    PayloadError,
    ShapeError,
)
from softkv.kinds import LONGEST_TEXT, ValueKind
from softkv.ndarrays import AnyArray, Floats, Matrix, Rows
from softkv.storage.layout import Layout

LONGEST_KEY = 1 << 16  # bytes of UTF-8
LONGEST_NAME = 255
LONGEST_PAYLOAD = 1 << 20
DEEPEST_PAYLOAD = 64
EXACT_INTEGER = 1 << 53  # the largest count that float64 holds without rounding
LARGEST_NUMBER = 1e150  # squares of larger ones, which the value scale is made of, would leave float64

Content = tuple[str | None, str | None, str | None]  # embedded text, value text, payload as JSON


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding a batch: rows and numbers of its new items, and how many keys were replaced or ignored."""

    first_row: int
    first_number: int
    count: int
    replaced: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Items ready to be written: one entry per item in every field that is not None."""

    layout: Layout
    keys: list[str | None]
    encoded: list[bytes | None]
    vectors: Matrix
    values: AnyArray  # empty for labels, whose codes the store assigns
    labels: list[str] | None
    contents: list[Content] | None

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, positions: Sequence[int]) -> "Batch":
        """The batch of these items alone, in this order."""
        return Batch(
            self.layout,
            [self.keys[i] for i in positions],
            [self.encoded[i] for i in positions],
            self.vectors[list(positions)],
            self.values[list(positions)] if self.labels is None else self.values,
            None if self.labels is None else [self.labels[i] for i in positions],
            None if self.contents is None else [self.contents[i] for i in positions],
        )

    def folded(self, *, last: bool) -> "Batch":
        """The batch with each key once: of the items with the same key, the last or the first is kept."""
        chosen: dict[object, int] = {}
        for position, key in enumerate(self.keys):
            name = position if key is None else key
            if last or name not in chosen:
                chosen[name] = position
        return self if len(chosen) == len(self) else self.take(list(chosen.values()))


def checked(
    vectors: Any,
    values: Any,
    *,
    keys: Sequence[str | None] | None,
    payloads: Sequence[Any] | None,
    texts: Sequence[str | None] | None,
    value_vectors: Any,
    layout: Layout | None,
    kind: ValueKind | None = None,
) -> Batch:
    """Check a batch against the layout of the store, or derive the layout where there is none yet."""
    matrix = _matrix(vectors, "key vector", layout.key_width if layout else None)
    count = len(matrix)
    if count == 0:
        raise ShapeError("the batch is empty: give at least one item")
    kind = layout.kind if layout else kind or _kind(values, value_vectors)
    if value_vectors is not None and not kind.embedded:
        raise KindError(f"value_vectors go with text values, but this store holds values of kind {kind.value!r}")
    labels: list[str] | None = None
    value_texts: list[str] | None = None
    blended: AnyArray = np.empty((0, 1))
    if kind.coded:
        labels = _texts(values, "label", kind.longest, count)
    elif kind.embedded:
        value_texts = _texts(values, "value", kind.longest, count)
        if value_vectors is None:
            raise KindError("text values need value_vectors, their embeddings: they are what is blended")
        blended = _matrix(value_vectors, "value vector", layout.value_width if layout else None)
    elif kind.narrow:
        blended = _numbers(values)
    else:
        blended = _matrix(values, "value", layout.value_width if layout else None)
    if labels is None and len(blended) != count:
        raise ShapeError(f"{count} key vectors but {len(blended)} values: give one value per key vector")
    plain_keys, encoded = _keys(keys, count)
    found = layout or Layout(matrix.shape[1], kind, blended.shape[1])
    return Batch(found, plain_keys, encoded, matrix, blended, labels, _contents(count, texts, value_texts, payloads))


def checked_key(key: object, name: str = "the key") -> bytes:
    """The UTF-8 form of a key; an error where this cannot be one."""
    if not isinstance(key, str):
        raise KeyTextError(f"{name} is a {type(key).__name__}, not a text")
    if key.startswith("#"):
        raise KeyTextError(f"{name} {shown(key)} starts with '#', which names items that have no key")
    return _encoded(key, name, LONGEST_KEY, KeyTextError)


def require_keys(keys: Sequence[Any]) -> None:
    """Refuse what cannot be the key of an item, and say where it stands."""
    if not _are_plain(keys):
        for position, key in enumerate(keys):
            checked_key(key, f"key {position}")


def keys_among(texts: Sequence[str]) -> list[str]:
    """The texts that can be the keys of items."""
    return list(texts) if _are_plain(texts) else [text for text in texts if _can_be_key(text)]


def _are_plain(keys: Sequence[Any]) -> bool:
    """Whether all keys are certainly valid, as is usual: checking them one by one takes twenty times as long."""
    try:
        text = "".join(keys)
    except TypeError:
        return False
    return text.isascii() and "\0" not in text and "#" not in text and max(map(len, keys), default=0) <= LONGEST_KEY


def _can_be_key(text: str) -> bool:
    try:
        return checked_key(text) is not None
    except KeyTextError:
        return False


def checked_name(given: object, what: str = "the name of an index file") -> str:
    """The name of an index file or of a batch; an error where it cannot be one."""
    if not isinstance(given, str):
        raise InputError(f"expected {what} as a text, got {type(given).__name__}.")
    with suppress(UnicodeEncodeError):
        if 0 < len(given.encode()) <= LONGEST_NAME and "\0" not in given:
            return given
    raise InputError(
        f"expected {what} as 1 to {LONGEST_NAME} bytes of UTF-8 without a NUL, got {shown(given)}. A UUID will do."
    )


def shown(text: str) -> str:
    """A text as it stands in a message: quoted, and cut short when it is long."""
    return repr(str(text) if len(text) <= 60 else text[:57] + "...")  # str: one of NumPy would be `np.str_('...')`


def refuse_duplicates(keys: list[str], found: Rows) -> None:
    """Name the keys that are there already, or stand twice in the batch."""
    if len(set(keys)) < len(keys):
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        twice = [key for position, key in enumerate(keys) if first[key] != position]
        raise DuplicateKey(f"{_listed(twice)} stands more than once in the batch. Nothing was written.", twice)
    if (found >= 0).any():
        there = [keys[i] for i in np.flatnonzero(found >= 0)]
        raise DuplicateKey(
            f"{_listed(there)} is there already. Nothing was written; use on_conflict='replace' or "
            "on_conflict='ignore'.",
            there,
        )


def refuse_missing(keys: list[str], found: Rows) -> None:
    """Name the keys that no item has, before anything is deleted."""
    missing = [keys[i] for i in np.flatnonzero(found < 0)]
    if missing:
        raise KeyMissing(f"no item has the key {shown(missing[0])}; {len(missing)} missing. Nothing was deleted.")


def _listed(keys: list[str]) -> str:
    more = f" (and {len(keys) - 3} more)" if len(keys) > 3 else ""
    return ("key " if len(keys) == 1 else "each of the keys ") + ", ".join(shown(key) for key in keys[:3]) + more


def _kind(values: Any, value_vectors: Any) -> ValueKind:
    if value_vectors is not None:
        return ValueKind.TEXT
    first = values[0] if isinstance(values, (list, tuple)) and values else values
    if isinstance(values, np.ndarray) and values.dtype.kind in "UO":
        first = values.flat[0] if values.size else ""
    if isinstance(first, str):
        return ValueKind.LABEL
    if first is values:
        return ValueKind.of_first(worded=False, axes=np.ndim(values) or 2)
    return ValueKind.of_first(worded=False, axes=2 if isinstance(first, (list, tuple)) or np.ndim(first) else 1)


def _real(given: Any, what: str) -> AnyArray:
    """The numbers that were given, as an array of a real dtype."""
    if isinstance(given, (list, tuple)):
        mixed = [one for one in given if isinstance(one, (str, bool, np.bool_))]  # which NumPy would convert
        odd = {"texts" if isinstance(one, str) else "booleans" for one in mixed}
        if odd:
            raise KindError(f"some {what}s are {' and '.join(sorted(odd))}; a store holds values of one kind")
    if np.ma.is_masked(given):
        raise KindError(f"some {what}s are masked; leave those items out, or fill them in")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ShapeError(f"{what}s are ragged: all must have the same width ({error})") from error
    except (TypeError, RuntimeError) as error:  # an array of another library that does not turn into one of NumPy's
        raise KindError(f"{what}s cannot be read as an array ({error})") from error
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise KindError(f"{what}s have dtype {array.dtype}; give real numbers (floats up to 64 bits, or integers)")
    if isinstance(given, (list, tuple)) and array.ndim == 2 and _holds_booleans(given, array):
        raise KindError(f"some {what}s hold booleans; give real numbers, 1.0 and 0.0 for instance")
    return array


def _holds_booleans(given: Sequence[Any], array: AnyArray) -> bool:
    """Whether a list of lists or arrays, of which NumPy has made this, holds booleans."""
    perhaps = np.flatnonzero(((array == 0) | (array == 1)).any(axis=1))  # looking at each number takes twice as long
    rows = [given[row] for row in perhaps.tolist()]
    listed = (set(map(type, row)) for row in rows if isinstance(row, (list, tuple)))
    arrays = (row.dtype.type for row in rows if isinstance(row, np.ndarray))
    return not {bool, np.bool_}.isdisjoint(set(arrays).union(*listed))


def _matrix(given: Any, what: str, width: int | None) -> Matrix:
    array = _real(given, what)
    if array.ndim != 2:
        raise ShapeError(f"{what}s have shape {array.shape}; give a matrix of one row per item")
    if width is not None and array.shape[1] != width:
        raise ShapeError(f"{what}s have width {array.shape[1]}, but this store holds width {width}")
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = np.ascontiguousarray(array, np.float32)
        # One sum instead of a mask of all cells: it is finite only if every cell is. When it overflows, look again.
        suspect = not math.isfinite(float(matrix.sum()))
    if suspect and not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])
        raise NotFinite(f"{what} {row} holds NaN, infinity or a number beyond float32's range (3.4e38)")
    return matrix


def checked_vectors(given: Any, what: str, width: int, count: int) -> Matrix:
    """New vectors of this width for items that are there already, one per item."""
    matrix = _matrix(given, what, None)
    if matrix.shape != (count, width):
        raise ShapeError(f"{what}s have shape {matrix.shape}; give {count} of them, one per item, of width {width}")
    return matrix


def _numbers(given: Any) -> Floats:
    array = _real(given, "value")
    if array.ndim != 1:
        raise ShapeError(f"values have shape {array.shape}; a store of numbers takes one number per item")
    # Integers among floats, or too large for one signed type, are silently rounded by NumPy, so the list is checked.
    listed = given if isinstance(given, (list, tuple)) else ()
    integers = [int(one) for one in listed if isinstance(one, (int, np.integer))]
    if array.dtype.kind in "iu" and array.size:
        integers = [int(array.min()), int(array.max())]
    if integers and max(abs(min(integers)), max(integers)) > EXACT_INTEGER:
        raise KindError(
            f"an integer value is beyond ±2^53 and would not come back unchanged: {min(integers)} to {max(integers)}"
        )
    numbers = np.ascontiguousarray(array, np.float64)
    usable = np.abs(numbers) <= LARGEST_NUMBER
    if not usable.all():
        raise NotFinite(f"value {int(np.flatnonzero(~usable)[0])} is NaN, infinity or beyond ±{LARGEST_NUMBER:g}")
    return numbers.reshape(-1, 1)


def _sequence(given: Any, what: str, count: int) -> list[Any]:
    """One entry per item; a single text is not a sequence of letters here, nor a dict one of its keys."""
    if isinstance(given, (str, bytes, Mapping, set, frozenset)) or not hasattr(given, "__len__"):
        raise ShapeError(f"{what}s must be a list with one entry per item, not a {type(given).__name__}")
    if len(given) != count:
        raise ShapeError(f"{count} key vectors but {len(given)} {what}s: give one per item (None where there is none)")
    return given.tolist() if isinstance(given, np.ndarray) else list(given)


def _texts(given: Any, what: str, longest: int, count: int) -> list[str]:
    texts = _sequence(given, what, count)
    for position, text in enumerate(texts):
        _require_text(text, f"{what} {position}", longest)
    return texts


def _require_text(text: object, name: str, longest: int) -> None:
    if not isinstance(text, str):
        raise KindError(f"{name} is of type {type(text).__name__}; give a text")
    _encoded(text, name, longest, KindError)


def _encoded(text: str, name: str, longest: int, error: type[InputError]) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as cause:
        raise error(f"{name} holds a lone surrogate at position {cause.start}, which is no text") from cause
    if len(encoded) > longest:
        raise error(f"{name} has {len(encoded):,} bytes; {longest:,} is the most")
    if b"\0" in encoded:
        raise error(f"{name} holds a NUL character at byte {encoded.index(0)}")
    return encoded


def _keys(given: Sequence[str | None] | None, count: int) -> tuple[list[str | None], list[bytes | None]]:
    if given is None:
        return [None] * count, [None] * count
    keys = _sequence(given, "key", count)
    if _are_plain(keys):
        return keys, [key.encode() for key in keys]
    return keys, [None if key is None else checked_key(key, f"key {position}") for position, key in enumerate(keys)]


def _contents(
    count: int, texts: Sequence[str | None] | None, values: list[str] | None, payloads: Sequence[Any] | None
) -> list[Content] | None:
    if texts is None and values is None and payloads is None:
        return None
    embedded = [None] * count if texts is None else _sequence(texts, "text", count)
    for position, text in enumerate(embedded):
        if text is not None:
            _require_text(text, f"text {position}", LONGEST_TEXT)
    given = [None] * count if payloads is None else _sequence(payloads, "payload", count)
    encoded = [None if one is None else checked_json(one, f"payload {place}") for place, one in enumerate(given)]
    carried: Sequence[str | None] = values or [None] * count
    return list(zip(embedded, carried, encoded, strict=True))


def checked_settings(settings: Mapping[str, Any]) -> str:
    """The settings of a store as JSON."""
    if not isinstance(settings, Mapping):
        raise InputError(f"settings are a {type(settings).__name__}; give a dict")
    return checked_json(dict(settings), "settings")


def checked_json(payload: Any, name: str) -> str:
    """A payload, or other JSON to be kept, as JSON text that reads back unchanged."""
    waiting, seen = [(payload, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST_PAYLOAD:
            raise PayloadError(f"{name} is nested deeper than {DEEPEST_PAYLOAD} levels")
        if seen > LONGEST_PAYLOAD:  # every value takes a byte; lists with shared parts may hold billions
            raise PayloadError(
                f"{name} has more than {LONGEST_PAYLOAD:,} values; {LONGEST_PAYLOAD:,} bytes is the most"
            )
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise PayloadError(f"{name} has a key that is not a text; JSON knows no other keys")
            waiting.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            waiting.extend((inner, depth + 1) for inner in value)
        elif value is not None and not isinstance(value, (str, int, float)):
            raise PayloadError(
                f"{name} holds a {type(value).__name__}, which JSON would not give back; "
                "use dict, list, str, int, float, bool and None"
            )
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise PayloadError(f"{name} cannot be JSON: {error}") from error
    _encoded(text, name, LONGEST_PAYLOAD, PayloadError)
    return text
