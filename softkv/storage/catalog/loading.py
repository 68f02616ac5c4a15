"""What the catalog says, as far as it can be: a checksum does not keep out who computes one.

Does not read the catalog (roster.py, catalog.py).
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from softkv.errors import StoreDamaged
from softkv.storage.layout import Rows


def require_rows(found: Rows, rows: int, path: str) -> Rows:
    """Row numbers of the catalog, -1 among them, if there are so many rows."""
    if len(found) and int(found.max()) >= rows:
        raise StoreDamaged(f"{path}: the catalog tells of row {found.max()}, but there are {rows}. Run `softkv check`.")
    return found


def numbers_of(found: Sequence[Any], path: str) -> Rows:
    """Numbers of the catalog as an array, if that is what they are."""
    try:
        numbers = np.fromiter(found, np.int64, len(found))
        if (numbers < 0).any():
            raise ValueError("below zero")
        return numbers
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreDamaged(f"{path}: the number of a row is none. Run `softkv check`.") from error


def loaded_settings(text: str, name: str = "the settings") -> dict[str, Any]:
    """Settings of the catalog, which are an object of JSON."""
    found = loaded(text, name)
    if not isinstance(found, dict):
        raise StoreDamaged(f"{name} are a {type(found).__name__}, not a dict. Run `softkv check`.")
    return found


def loaded(text: str, name: str) -> Any:
    """JSON of the catalog. A checksum does not keep out who computes one, so it need not be JSON at all."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"{name} cannot be read ({error}). Run `softkv check`.") from error
