"""Check values read from the catalog: a right checksum does not prove that softkv wrote them.

Does not read the catalog (roster.py, catalog.py).
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from softkv.errors import StoreDamaged
from softkv.ndarrays import Rows


def require_rows(found: Rows, rows: int, path: str) -> Rows:
    """Row numbers of the catalog, -1 included; an error where one is beyond the number of rows."""
    if len(found) and int(found.max()) >= rows:
        raise StoreDamaged(f"{path}: the catalog tells of row {found.max()}, but there are {rows}. Run `softkv check`.")
    return found


def numbers_of(found: Sequence[Any], path: str) -> Rows:
    """Numbers of the catalog as an array; an error where they are not whole numbers from 0 on."""
    try:
        numbers = np.fromiter(found, np.int64, len(found))
        if (numbers < 0).any():
            raise ValueError("below zero")
        return numbers
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreDamaged(f"{path}: a row number is not a whole number. Run `softkv check`.") from error


def loaded_settings(text: str, name: str = "the settings") -> dict[str, Any]:
    """Settings of the catalog; an error where they are not a JSON object."""
    found = loaded(text, name)
    if not isinstance(found, dict):
        raise StoreDamaged(f"{name} are a {type(found).__name__}, not a dict. Run `softkv check`.")
    return found


def loaded(text: str, name: str) -> Any:
    """A JSON value of the catalog. A right checksum does not prove that it is JSON at all."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"{name} cannot be read ({error}). Run `softkv check`.") from error
