"""Read a store from one file.

The content of a file is checked like the arguments of a caller, by the store itself. This module only says where in the
file the mistake is.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from softkv.errors import BadRecord, DuplicateKey, InputError, StoreExists
from softkv.files.exports import disk
from softkv.files.exports.formats import format_of
from softkv.files.exports.header import Header
from softkv.files.exports.portions import Place, Portion
from softkv.storage import Layout, Store
from softkv.storage.batch import checked, shown


def load(
    path: str | os.PathLike[str],
    into: Store,
    *,
    accept: Callable[[Header], Header] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Read all items and the settings of an exported file into a new, empty store; returns how many items.

    Items go in batch by batch, the settings with the first. A file that is damaged is a BadRecord that says where; of
    that batch nothing is written, those before it stay. Items without a key get new numbers. Files of the header
    become index files, once there are rows. `accept` is shown the header before anything is written: it may raise, and
    returns the header to go by. `progress` is called with the items done and all there are.
    """
    given = disk.place(path)
    chosen = format_of(given)
    if into.layout is not None:
        raise StoreExists(f"{into.path} has items already, or had; read the file into a new store")
    with disk.opened(given) as file:
        header, portions = chosen.read(file, given)
        header = header if accept is None else accept(header)
        for portion in portions:
            _append(into, portion, header, given, chosen.place)
            for name, content in header.files.items() if portion.start == 0 else ():
                into.put_index(name, content)
            if progress is not None:
                progress(portion.start + len(portion), header.items)
        if not header.items:
            into.configure(header.settings)
    return header.items


def _append(into: Store, portion: Portion, header: Header, path: str, place: Place) -> None:
    settings = None if portion.start else header.settings
    try:
        _offer(into.append, portion, settings=settings, kind=header.layout and header.layout.kind)
    except InputError as error:
        position, reason = _culprit(portion, header.layout, error)
        raise BadRecord(f"{path}, {place(portion.start + position)}: {reason}") from error


def _offer(taker: Callable[..., Any], portion: Portion, **options: Any) -> None:
    columns = portion.columns
    taker(
        columns["vector"],
        columns["value"],
        keys=columns["key"],
        payloads=_unless_absent(columns["payload"]),
        texts=_unless_absent(columns["text"]),
        value_vectors=columns.get("value_vector"),
        **options,
    )


def _unless_absent(column: list[Any]) -> list[Any] | None:
    return None if all(entry is None for entry in column) else column


def _culprit(portion: Portion, layout: Layout | None, error: InputError) -> tuple[int, str]:
    """Which item of a refused batch is wrong, and why; found by checking each alone."""
    for position in range(len(portion)):
        try:
            _offer(checked, portion.one(position), layout=layout)
        except InputError as reason:
            return position, re.sub(r"^([a-z ]+?)s? 0\b", r"the \1", str(reason))
    if isinstance(error, DuplicateKey):
        keys = portion.columns["key"]
        position = _second(keys, error.keys)
        return position, f"the key {shown(str(keys[position]))} stands more than once in the file"
    return 0, str(error)


def _second(keys: Sequence[str | None], repeated: Sequence[str]) -> int:
    """Where a repeated key stands for the second time: in this batch, or else after one that is in the store."""
    doubtful, seen = set(repeated), set()
    places = [position for position, key in enumerate(keys) if key in doubtful]
    for position in places:
        if keys[position] in seen:
            return position
        seen.add(keys[position])
    return places[0]
