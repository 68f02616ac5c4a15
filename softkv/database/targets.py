"""The right answers to queries, checked and made into arrays that suit the values of a store.

Does not look anything up (evaluating.py) and learns nothing (training.py).

Shapes: b queries, p value width.
"""

import reprlib
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.asking.given import array_of
from softkv.asking.view import View
from softkv.errors import InputError, KindError, NotFinite, ShapeError
from softkv.ndarrays import AnyArray, Floats
from softkv.storage.batch import LARGEST_NUMBER


def targets_of(view: View, given: Any) -> AnyArray:
    """Codes of labels (b,), -1 for those that no item has, or numbers (b,), or vectors (b, p)."""
    if isinstance(given, (str, bytes, Mapping, Set)) or not hasattr(given, "__iter__") or not hasattr(given, "__len__"):
        raise KindError(f"expected targets as a list with one for each query, got {type(given).__name__}.")
    return _numbers(view, given) if view.labels is None else _codes(view.labels, given)


def _codes(labels: tuple[str, ...], given: Any) -> npt.NDArray[np.int64]:
    known, names = {label: code for code, label in enumerate(labels)}, list(given)
    wrong = [one for one in names if not isinstance(one, str)]
    if wrong:
        raise KindError(
            f"expected labels, which are texts, as targets, got {reprlib.repr(wrong[0])}. Turn them into texts."
        )
    found = np.array([known.get(one, -1) for one in names], np.int64)
    if len(found) and (found < 0).all():
        raise InputError(
            f"no item has any of the labels that were expected, such as {str(names[0])!r}; those of the store are like "
            f"{labels[0]!r}. Give targets that are labels of the store."
        )
    return found


def _numbers(view: View, given: Any) -> Floats:
    values, kind = array_of(given, "targets"), view.layout.kind
    wanted = () if kind.narrow else (view.layout.value_width,)
    if values.dtype.kind not in "fiub":
        kind_of_one, one = "vectors" if wanted else "numbers", reprlib.repr(next(iter(given)))
        raise KindError(f"expected targets that are {kind_of_one}, one for each query, got {one}.")
    if values.shape[1:] != wanted:
        raise ShapeError(f"expected targets of shape {('queries', *wanted)}, got {values.shape}.")
    found: Floats = values.astype(np.float64)
    if not (np.abs(found) <= LARGEST_NUMBER).all():
        raise NotFinite(f"expected targets within ±{LARGEST_NUMBER:g}, got others, or NaN. Leave such queries out.")
    return found
