"""One body for JSON and arrays: how a server and the handles on it exchange questions and results.

A body is one line of JSON and, after it, arrays as .npy files one after another; {"$array": 0} stands for the first.
Dataclasses and named tuples of a fixed table are written with their names ({"$class": "Added", ...}); tuples, and
numbers that JSON lacks, have names as well. Only a client decodes classes, and only those of the table.

Does not send anything, and does not use pickle.
"""

import io
import json
import math
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.doors.shapes import fits, hints_of
from softkv.errors import InputError
from softkv.files import notation
from softkv.files.record import Misfit
from softkv.ndarrays import AnyArray

MEDIA_TYPE = "application/x-softkv-npy"
LONGEST_BODY = 16 << 20  # most bytes of a request
DEPTH = 256  # most levels of nesting: the 64 of a payload, each perhaps with a tag, and those around it
_TAGS: dict[str, Any] = {"$array": None, "$dict": dict, "$float": float, "$tuple": tuple}
_HEADER, _EMPTY, _SHOWN = 10_000, 1 << 20, 100  # bytes of the header of an array, its axes without numbers, in messages
MOST_VALUES = 1 << 21  # most values in the JSON of a request: each takes tens of bytes of memory
ALIGNED = 64  # bytes: arrays of NumPy begin at a multiple of that, or of a part of it
_FEW = 1 << 16  # values are not counted in JSON that is shorter than this
_VERSIONS = {b"\x93NUMPY\x01\x00": 10, b"\x93NUMPY\x02\x00": 12}  # and where the header begins
_FIELD = re.compile(
    rb"""['"](?:descr['"]:['"](?P<dtype>[<>|=](?:f[248]|[iu][1248]|b1))['"]|fortran_order['"]:(?P<by_columns>True|False)"""
    rb"""|shape['"]:\((?P<shape>(?:[0-9]{1,19},)*(?:[0-9]{1,19})?)\))"""
)
_HOMES = {
    "Added": "softkv.storage.batch",
    "Answer": "softkv.answer",
    "Answers": "softkv.answer",
    "Backup": "softkv.storage.protocol.backup",
    "Comparison": "softkv.comparison",
    "Contributor": "softkv.answer",
    "Curve": "softkv.learning.tuning",
    "Described": "softkv.answer",
    "Evaluation": "softkv.database.evaluating",
    "Exact": "softkv.comparison",
    "Fit": "softkv.database.training",
    "Forecast": "softkv.index.forecast",
    "Guard": "softkv.guard.guard",
    "Heads": "softkv.maths.heads",
    "IndexInfo": "softkv.database.summary",
    "Info": "softkv.database.summary",
    "Item": "softkv.storage.protocol.item",
    "Kept": "softkv.answer",
    "Ranked": "softkv.guard.conformal",
    "Report": "softkv.storage.protocol.checking",
    "Survey": "softkv.storage.protocol.checking",
    "Tuned": "softkv.learning.tuning",
    "Warmth": "softkv.comparison",
    "Way": "softkv.database.evaluating",
    "WidthRule": "softkv.guard.widths",
}


def packed(document: Any) -> bytes:
    r"""A document of lists, dicts, texts, numbers, arrays and classes of the table as one body.

    >>> import numpy as np
    >>> body = packed({"query": np.array([0.5, 1.0]), "k": None})
    >>> body.split(b"\n")[0]
    b'{"query":{"$array":0},"k":null}'
    >>> unpacked(body)
    {'query': array([0.5, 1. ]), 'k': None}
    """
    arrays: list[AnyArray] = []
    text = json.dumps(_told(document, arrays), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = io.BytesIO()
    body.write(text.encode("utf-8", "surrogatepass") + b"\n")
    for array in arrays:
        np.lib.format.write_array(body, array, allow_pickle=False)
    return body.getvalue()


def _told(value: Any, arrays: list[AnyArray]) -> Any:
    """A value as JSON types; arrays are collected to be written after it."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "fiub" and not isinstance(value, np.longdouble):
        return _told(value.item(), arrays)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value) if value.ndim else value)
        return {"$array": len(arrays) - 1}
    if isinstance(value, list):
        return [_told(one, arrays) for one in value]
    name = type(value).__name__
    if name in _HOMES and (is_dataclass(value) or hasattr(value, "_fields")):
        names = [one.name for one in fields(value) if one.init] if is_dataclass(value) else value._fields
        return {"$class": name, "of": [_told(getattr(value, one), arrays) for one in names]}
    if isinstance(value, tuple):
        return {"$tuple": [_told(one, arrays) for one in value]}
    if isinstance(value, dict):
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        if plain:
            return {key: _told(one, arrays) for key, one in value.items()}
        return {"$dict": [[_told(key, arrays), _told(one, arrays)] for key, one in value.items()]}
    raise TypeError(f"a {name} cannot be sent")


def unpacked(body: bytes | bytearray, *, classes: bool = False) -> Any:
    """The document of a body; with `classes`, as in a client, also the dataclasses and named tuples of the table.

    Whatever the bytes are, it is an InputError or a document that holds no more than they say.
    """
    view, end = memoryview(body), body.find(b"\n")
    end = len(body) if end < 0 else end
    try:
        text = str(view[:end], "utf-8", "surrogatepass")
        if not classes:
            require_few(text)
        document = notation.parsed(text)
    except (UnicodeDecodeError, Misfit) as error:
        raise InputError(f"expected a line of JSON in UTF-8 first, got {error}.") from error
    arrays, rest = [], view[end + 1 :]
    while len(rest):
        array, rest = _array(rest)
        arrays.append(array)
    return _Making(arrays, classes).made(document, DEPTH)


def require_few(text: str) -> None:
    """Raise for JSON of a request that would take many times its length in memory."""
    if len(text) > _FEW and notation.holds_more(text, MOST_VALUES):
        raise InputError(f"expected at most {MOST_VALUES:,} values in JSON. Send arrays as {MEDIA_TYPE}.")


def _array(body: memoryview) -> tuple[AnyArray, memoryview]:
    """The .npy file at the start of some bytes, as an array that shares their memory if it can, and the bytes after."""
    version = bytes(body[:8])
    start = _VERSIONS.get(version, 8)
    length = int.from_bytes(body[8:start], "little")
    # Not by NumPy's reader, which evaluates the header, and warns of some.
    header = b"".join(bytes(body[start : start + length]).split()) if length <= _HEADER else b""
    found = {
        name: told for one in _FIELD.finditer(header) for name, told in one.groupdict().items() if told is not None
    }
    if version not in _VERSIONS or len(found) != 3 or _FIELD.sub(b"", header) not in (b"{,,}", b"{,,,}"):
        raise InputError(
            "expected arrays as .npy files of version 1.0 or 2.0, of numbers of at most 8 bytes or bool, got "
            f"something else, which begins with {bytes(body[:_SHOWN])!r}."
        )
    dtype, shape = np.dtype(found["dtype"].decode()), tuple(int(one) for one in found["shape"].split(b",") if one)
    body, size = body[start + length :], math.prod(shape) * dtype.itemsize
    if len(shape) > 4 or size > len(body) or (not size and math.prod(one or 1 for one in shape) > _EMPTY):
        raise InputError(f"expected an array of shape {shape!s:.60}, got fewer bytes, or more than 4 axes.")
    array = np.frombuffer(body[:size], dtype).reshape(shape, order="F" if found["by_columns"] == b"True" else "C")
    array = array.astype(dtype.newbyteorder("="), copy=False)
    # Where numbers lie otherwise in memory than in an array of NumPy's own, they are added up in another order.
    return array if array.ctypes.data % ALIGNED == 0 else array.copy(order="K"), body[size:]


class _Making:
    """Decodes a line of JSON with the arrays after it."""

    def __init__(self, arrays: list[AnyArray], classes: bool) -> None:
        self._arrays: list[AnyArray | None] = [*arrays]
        self._classes = classes

    def made(self, told: Any, depth: int) -> Any:
        """The value that is told, of at most so many levels."""
        if not depth:
            raise InputError(f"expected lists and objects at most {DEPTH} deep within each other.")
        if isinstance(told, list):
            return [self.made(one, depth - 1) for one in told]
        if not isinstance(told, dict):
            return told
        tag = next(iter(told), "")
        if len(told) == 1 and tag in _TAGS:
            return self._tagged(tag, told[tag], depth)
        if self._classes and tag == "$class":
            return self._of_class(told, depth)
        return {name: self.made(one, depth - 1) for name, one in told.items()}

    def _named(self, place: Any) -> AnyArray:
        if type(place) is not int or not 0 <= place < len(self._arrays):
            raise InputError(f"expected the number of one of {len(self._arrays)} arrays, got {place!r:.60}.")
        # Each may occur once: lists that repeat one array would become matrices that are too large for memory.
        array, self._arrays[place] = self._arrays[place], None
        if array is None:
            raise InputError(f"expected each array once, got the one of number {place} again.")
        return array

    def _tagged(self, tag: str, of: Any, depth: int) -> Any:
        if tag == "$array":
            return self._named(of)
        made = self.made(of, depth - 1)
        try:
            if tag == "$dict" and not self._classes and not all(isinstance(name, str) for name, _ in made):
                raise TypeError("a client chooses numbers that all have the same hash")
            return _TAGS[tag](made)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"expected what {tag} stands for, got {of!r:.60}.") from error

    def _of_class(self, told: dict[str, Any], depth: int) -> Any:
        name = told["$class"]
        if not isinstance(name, str) or name not in _HOMES:
            raise InputError(f"the server sent a {name!r:.60}, which this version of softkv does not know.")
        kind = getattr(import_module(_HOMES[name]), name)
        try:
            made = kind(*self.made(told["of"], depth - 1))
            if all(fits(getattr(made, one), hint) for one, hint in hints_of(kind).items()) and _belong_together(made):
                return made
        except (KeyError, TypeError, AttributeError):
            pass
        raise InputError(f"the server sent a {name} as no version of softkv does that this one knows.")


def _belong_together(made: Any) -> bool:
    """Whether the arrays of answers have a row for each query."""
    if not isinstance(made, Answers):
        return True
    whole = ("temperature", "labels", "kind", "log_mass_floor", "guard", "unguarded", "count", "source")
    each = {one.name: getattr(made, one.name) for one in fields(made) if one.name not in whole}
    needed = all(isinstance(each[name], np.ndarray) for name in ("value", "log_mass", "scored", "seen", "rows"))
    return needed and all(one is None or isinstance(one, str) or len(one) == len(made.scored) for one in each.values())
