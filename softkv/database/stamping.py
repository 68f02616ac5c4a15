"""The digest of the content of a named batch, independent of the types in which it was given.

Numbers count as numbers, in lists, arrays or tables, and payloads as the JSON that is stored. Invalid input has a
digest as well, and is refused later with its reason. Embeddings are not in it, so no model is needed.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from softkv.ndarrays import AnyArray
from softkv.storage.batch import checked_json, checked_name
from softkv.storage.catalog.batches import Stamp

if TYPE_CHECKING:
    from softkv.files import Record

_STRIDE = 1 << 16  # numbers at a time, so that no copy of all of them is made


def stamp(batch: object, what: str, *columns: Any, payloads: list[Any] | None = None) -> Stamp | None:
    """The name of a batch and the digest of its operation and content; None if it has no name."""
    if batch is None or isinstance(batch, Stamp):  # a file has digests of its own (trail.py)
        return batch
    name, found = checked_name(batch, "batch"), hashlib.sha256()
    kept = [None if one is None else checked_json(one, f"payload {i}") for i, one in enumerate(payloads or [])]
    for column in (what, *columns, kept):
        for piece in _pieces(column):
            found.update(piece)
    return Stamp(name, found.digest())


def pieces_of(record: "Record") -> Iterator[bytes]:
    """A record of a file as bytes that no other record has."""
    for part in (record.key, record.text, record.value, record.vector):
        yield from _pieces(part)
    yield from _pieces(None if record.payload is None else checked_json(record.payload, "a payload"))


def _pieces(column: Any) -> Iterator[bytes]:
    """A column as bytes that no other column has."""
    numbers = _numbers(column)
    if numbers is not None:
        yield b"numbers" + repr(numbers.shape).encode()
        flat = numbers.reshape(-1)
        for start in range(0, len(flat), _STRIDE):
            yield flat[start : start + _STRIDE].astype("<f8").tobytes()
        return
    entries = column.tolist() if isinstance(column, np.ndarray) else column
    if isinstance(entries, (list, tuple)):
        yield b"list" + struct.pack("<q", len(entries))
        yield from map(_bytes_of, entries)
    else:
        yield _bytes_of(entries)


def _bytes_of(entry: Any) -> bytes:
    """The bytes of a text or of None; anything else is refused later, and only has to differ from these."""
    if isinstance(entry, str):
        encoded = entry.encode(errors="surrogatepass")
        return b"text" + struct.pack("<q", len(encoded)) + encoded
    return b"none" if entry is None else b"other" + type(entry).__name__.encode(errors="surrogatepass")


def _numbers(column: Any) -> AnyArray | None:
    """The column as an array of numbers, if it is one."""
    if column is None or isinstance(column, (str, bytes, Mapping)) or np.ma.is_masked(column):
        return None
    # Checked first: NumPy would give each text of a list the room of the longest.
    if isinstance(column, (list, tuple)) and any(one is None or isinstance(one, (str, bytes, bool)) for one in column):
        return None
    try:
        array = np.asarray(column)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in "fiu" and array.dtype.itemsize <= 8 and array.size else None
