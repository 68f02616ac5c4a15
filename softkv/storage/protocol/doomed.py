"""Which rows a deletion is about: all of its keys and `#<number>`s are there, or nothing is deleted.

Writes nothing.
"""

from collections.abc import Sequence

import numpy as np

from softkv.errors import KeyTextError
from softkv.storage.batch import refuse_missing
from softkv.storage.layout import Rows
from softkv.storage.protocol.snapshot import Snapshot


def checked_names(keys: str | Sequence[str]) -> list[str]:
    """Keys and `#<number>`s, each once."""
    names = [keys] if isinstance(keys, str) else list(keys)
    if set(map(type, names)) != {str}:
        for position, name in enumerate(names):
            if not isinstance(name, str):
                raise KeyTextError(f"key {position} is a {type(name).__name__}, not a text")
    return list(dict.fromkeys(names))


def rows_of(names: Sequence[str], view: Snapshot) -> Rows:
    """The rows of the items with these names; refused when one of them is missing."""
    numbered = [name for name in names if name[:1] == "#"]
    named = [name for name in names if name[:1] != "#"] if numbered else list(names)
    rows = view.find_many(named)
    refuse_missing(named, rows)
    return np.concatenate([rows, np.array([view.find(name) for name in numbered], np.int64)])
