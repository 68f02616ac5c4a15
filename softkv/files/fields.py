"""Fields that have a type already, as those of JSON, Parquet and NumPy, into the parts of a record.

Types are taken as they are: "3.5" is a text, true is nothing that can be blended. Only integers bend, into the decimal
text of a key or a label, because that is what people number things with.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.files.limits import (
    DEEPEST_PAYLOAD,
    EXACT_INTEGER,
    LARGEST_CELL,
    LARGEST_NUMBER,
    LONGEST_KEY,
    LONGEST_PAYLOAD,
    LONGEST_TEXT,
)
from softkv.files.notation import kind_of, parsed, written
from softkv.files.record import Misfit, Record, shown
from softkv.files.roles import Roles
from softkv.kinds import ValueKind

_NUMBERS, _TEXTS = ValueKind.of_first(worded=False), ValueKind.of_first(worded=True)
_VECTORS = ValueKind.of_first(worded=False, axes=2)


class Vectors:
    """Vectors of one width: the first one's."""

    def __init__(self, what: str) -> None:
        self._what, self._width = what, 0

    def __call__(self, given: Any) -> npt.NDArray[np.float64]:
        """A list of numbers, or a single one, as a vector."""
        vector = self._array([given] if type(given) in (int, float) else given)
        if not vector.size:
            raise Misfit(f"the {self._what} has no numbers in it")
        if not np.abs(vector).max() <= LARGEST_CELL:
            raise Misfit(f"the {self._what} holds NaN, infinity or a number beyond the range of float32 (3.4e38)")
        if vector.size != (self._width or vector.size):
            raise Misfit(f"the {self._what} has {vector.size} numbers, but those before it have {self._width}")
        self._width = vector.size
        return vector

    def _array(self, given: Any) -> npt.NDArray[np.float64]:
        if isinstance(given, np.ndarray):
            return given.astype(np.float64, copy=False)
        if not isinstance(given, list):
            raise Misfit(f"the {self._what} is {kind_of(given)}; give a list of numbers")
        if not {int, float}.issuperset(map(type, given)):
            odd = next(one for one in given if type(one) not in (int, float))
            raise Misfit(f"the {self._what} holds {kind_of(odd)}; give a list of numbers")
        try:
            return np.array(given, np.float64)
        except OverflowError as error:
            raise Misfit(f"the {self._what} holds an integer beyond the range of float32 (3.4e38)") from error


class Values:
    """Values of one kind: the one that was asked for, or the first one's."""

    def __init__(self, kind: str | None) -> None:
        self._kind = None if kind is None else ValueKind(kind)
        self._reason = "" if self._kind is None else f"(kind={self._kind.value!r})"
        self._vectors = Vectors("value")

    def __call__(self, given: Any) -> Any:
        """The value as it was given, if it is of this kind."""
        found = _found(given)
        if self._kind is None:
            self._kind, self._reason = found, "(as the first one is)"
        kind = self._kind
        if kind.coded and type(given) is int:
            return text(str(given), "value", kind.longest)
        if found is not kind and (found.worded, found.axes) != (kind.worded, kind.axes):
            raise Misfit(f"the value {shown(given)} is {kind_of(given)}, but values are {kind.value}s {self._reason}")
        if kind.axes > 1:
            return self._vectors(given)
        return text(given, "value", kind.longest) if kind.longest else number(given)


class Builder:
    """Makes records of fields by name; what `packed` payload documents hold is a text of JSON."""

    def __init__(self, roles: Roles, kind: str | None, *, packed: bool = False) -> None:
        self._roles, self._packed = roles, packed
        self._value, self._vector = Values(kind), Vectors("vector")

    def record(self, line: int, fields: Mapping[str, Any]) -> Record:
        """The record of one row or object."""
        roles = self._roles
        found_key = None if roles.key is None else key(_field(fields, roles.key))
        found_text = None if roles.text is None else text(_field(fields, roles.text), "text", LONGEST_TEXT)
        if found_key is None and found_text is None and not roles.vector:
            raise Misfit("it has no key, no text and no vector: there is nothing to compare it by")
        payload = self._payload(fields)
        value = self._value(_joined(fields, roles.value)) if roles.value else None
        vector = self._vector(_joined(fields, roles.vector)) if roles.vector else None
        return Record(line, found_key, found_text, value, payload, vector)

    def _payload(self, fields: Mapping[str, Any]) -> Any:
        names, document = self._roles.payload, self._roles.document
        if names:
            return payload({name: fields[name] for name in names if name in fields})
        given = None if document is None else fields.get(document)
        if self._packed and isinstance(given, str):
            given = parsed(given) if given else None
        return payload(given)


def key(given: Any) -> str | None:
    """A key as the store takes it; null where the item has none."""
    if given is None:
        return None
    if type(given) is int:
        return str(given)
    found = text(given, "key", LONGEST_KEY)
    if not found:
        raise Misfit("the key is empty")
    if found.startswith("#"):
        raise Misfit(f"the key {shown(found)} starts with '#', which names items that have no key")
    return found


def text(given: Any, what: str, longest: int) -> str:
    """A text as the store takes it."""
    if not isinstance(given, str):
        raise Misfit(f"the {what} {shown(given)} is {kind_of(given)}, not a text")
    if not given.isascii() or len(given) > longest:
        try:
            size = len(given.encode())
        except UnicodeEncodeError as error:
            raise Misfit(
                f"the {what} holds a lone surrogate at character {error.start + 1}, which is no text"
            ) from error
        if size > longest:
            raise Misfit(f"the {what} has {size:,} bytes; {longest:,} is the most")
    if "\0" in given:
        raise Misfit(f"the {what} holds a NUL character at character {given.index(chr(0)) + 1}")
    return given


def number(given: int | float) -> int | float:
    """A finite number that comes back unchanged."""
    if isinstance(given, int) and abs(given) > EXACT_INTEGER:
        raise Misfit("the value is an integer beyond ±2^53 and would not come back unchanged")
    if not abs(given) <= LARGEST_NUMBER:
        raise Misfit("the value is not a finite number" if not math.isfinite(given) else _too_large())
    return given


def payload(given: Any) -> Any:
    """A payload, or a part of one, as the store takes it."""
    if given is None:
        return None
    try:
        document = written(given)
        size = len(document.encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise Misfit(f"the payload cannot be JSON: {error}") from error
    if size > LONGEST_PAYLOAD:
        raise Misfit(f"the payload has {size:,} bytes as JSON; {LONGEST_PAYLOAD:,} is the most")
    # Subtle: as long as there are fewer brackets than levels, nobody has to walk down to know the depth.
    if document.count("[") + document.count("{") >= DEEPEST_PAYLOAD and _depth(given) > DEEPEST_PAYLOAD:
        raise Misfit(f"the payload is nested deeper than {DEEPEST_PAYLOAD} levels")
    return given


def _found(given: Any) -> ValueKind:
    if type(given) in (int, float):
        return _NUMBERS
    if isinstance(given, str):
        return _TEXTS
    if isinstance(given, (list, np.ndarray)):
        return _VECTORS
    raise Misfit(f"the value is {kind_of(given)}; give a number, a text or a list of numbers")


def _joined(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """One field as it is, or several as a list."""
    return _field(fields, names[0]) if len(names) == 1 else [_field(fields, name) for name in names]


def _field(fields: Mapping[str, Any], name: str) -> Any:
    try:
        return fields[name]
    except KeyError:
        raise Misfit(f"it has no {shown(name)}") from None


def _too_large() -> str:
    return f"the value is beyond ±{LARGEST_NUMBER:g}"


def _depth(given: Any) -> int:
    """How many levels deep, the value itself being the first."""
    waiting, deepest = [(given, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        deepest = max(deepest, depth)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting.extend((one, depth + 1) for one in inner)
    return deepest
