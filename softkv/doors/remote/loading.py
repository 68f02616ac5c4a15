"""Stands in for the files of a store behind a URL, as far as database/loading.py needs them.

There is no record of whole files: each batch of records has a name of its own, made of the name given for the file and
the number of records before it, so that a batch that is sent again is written once.

Does not send anything itself.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from softkv.doors.remote.reading import RemoteReader
from softkv.errors import AccessRefused, NotRemote
from softkv.storage.catalog.batches import Stamp

if TYPE_CHECKING:
    from softkv.files import Record

ROOM = 8 << 20  # bytes of records that are sent together, about: half of what a server takes
NUMBER = 25  # bytes of a number in JSON at most, with its comma
VALUE = 5  # bytes that a value in JSON counts for at least, of which a server takes so many at once (wire.py)


class Unfiled:
    """Stands in for the files of a store: the kind of its values, and whether it may be written to."""

    layout = None

    def __init__(self, reader: RemoteReader, *, writes: bool) -> None:
        self._reader, self._writes = reader, writes

    def require_writable(self) -> None:
        """Refuse to write by a handle that was opened to read."""
        if not self._writes:
            raise AccessRefused(
                f"{self._reader.path} was opened to be read (mode 'r'). Open it without a mode to write."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the store that a file could contradict."""
        kind = self._reader.value_kind
        return {} if kind is None else {"value": kind}

    def configure(self, settings: dict[str, Any]) -> NoReturn:
        """Refuse to change settings."""
        raise NotRemote(
            f"this store is empty, and has not settled that its values are {settings['value']}s. Make it with value= "
            "by its path before it is served, or add the first items with `add`."
        )

    def portions(self, batch: "Sequence[Record]") -> "Iterator[Sequence[Record]]":
        """Records in portions that fit into a request."""
        start, room = 0, ROOM
        for place, one in enumerate(batch):
            weight = _weight(one)
            if place > start and weight > room:
                yield batch[start:place]
                start, room = place, ROOM
            room -= weight
        yield batch[start:]

    def written(self, _name: str) -> None:
        """No file is recorded."""

    def delete(self, _keys: list[str], *, stamp: Stamp) -> None:
        """Record nothing at the end of a file."""


def name_of(stamp: Stamp) -> str:
    """The name of the batch of records that the stamp was made for."""
    return f"{stamp.id}/{stamp.start}"  # and not where they end: the last ones of a longer file are others


def _weight(one: "Record") -> int:
    words = repr((one.key, one.text, one.payload, one.value if isinstance(one.value, str) else ""))
    numbers = 0 if isinstance(one.value, str) else np.size(one.value)
    values = sum(map(words.count, ",[{:"))  # at least as many as there are
    return (
        max(len(words.encode(errors="replace")), VALUE * values)
        + NUMBER * numbers
        + 8 * np.size(0 if one.vector is None else one.vector)
        + 100
    )
