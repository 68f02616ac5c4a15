"""Arrays and facts as bytes: a line of magic, a header in JSON, then the arrays, each aligned.

Nothing in it is executed, and every length is checked before it is used. The store has already compared the bytes with
their checksum (storage/protocol/index_files.py).
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from softkv.errors import FormatTooNew, IndexDamaged
from softkv.ndarrays import AnyArray

MAGIC = b"softkv index\n"
FORMAT = 4  # 1 knew of no rows that join lists, 2 held the share of each label in each list, 3 had no outline
READ = (2, 3, FORMAT)  # of 2 and 3 only labels differ, and those of format 2 are refused where they are decoded
ALIGNED = 64
LONGEST_HEADER = 1 << 24
TYPES = ("float32", "float64", "int8", "int32", "int64", "uint8")

Arrays = dict[str, AnyArray]


def encoded(facts: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Iterator[bytes | memoryview]:
    """The pieces of a file with these facts (JSON) and arrays."""
    table = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
    header = json.dumps({"facts": facts, "arrays": table}, separators=(",", ":")).encode()
    start = len(MAGIC) + 16 + len(header)
    yield MAGIC + FORMAT.to_bytes(8, "little") + len(header).to_bytes(8, "little") + header
    for array in arrays.values():
        yield b"\0" * (-start % ALIGNED)
        start += -start % ALIGNED + array.nbytes
        if array.nbytes:
            yield np.ascontiguousarray(array).data.cast("B")


def decoded(content: memoryview) -> tuple[dict[str, Any], Arrays]:
    """The facts and arrays of a file; the arrays are views of its bytes."""
    fixed = len(MAGIC) + 16
    if len(content) < fixed or bytes(content[: len(MAGIC)]) != MAGIC:
        raise IndexDamaged("this is not an index of softkv: build the index again")
    version, length = (int.from_bytes(content[at : at + 8], "little") for at in (len(MAGIC), len(MAGIC) + 8))
    if version not in READ:
        raise FormatTooNew(f"the index has format {version}, and this softkv knows {FORMAT}: build the index again")
    if length > min(LONGEST_HEADER, len(content) - fixed):
        raise IndexDamaged("the header of the index is longer than the index: build the index again")
    try:
        header = json.loads(bytes(content[fixed : fixed + length]))
        facts, table = dict(header["facts"]), dict(header["arrays"])
        return facts, _arrays(content, fixed + length, table)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise IndexDamaged(f"the header of the index cannot be read ({error}): build the index again") from error


def _arrays(content: memoryview, start: int, table: Mapping[str, Any]) -> Arrays:
    arrays: Arrays = {}
    for name, (kind, shape) in table.items():
        if kind not in TYPES or not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"array {name!r} is {kind} of shape {shape}")
        start += -start % ALIGNED
        count = math.prod(shape)
        if count * np.dtype(kind).itemsize > len(content) - start:
            raise ValueError(f"array {name!r} goes beyond the end")
        arrays[name] = np.frombuffer(content, kind, count, start).reshape(shape) if count else np.empty(shape, kind)
        start += arrays[name].nbytes
    return arrays
