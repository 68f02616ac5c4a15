"""Hints of the library on their way from a server to the caller of a handle: a few, by their class and their words.

Gives no hint itself (softkv/logs.py).
"""

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from softkv.database.carrying import LearnedNotCarried
from softkv.database.intake import ColumnsDiffer, LooksLikeLabels
from softkv.doors.shapes import fits
from softkv.files.exports.delimited import TextsNotCarried

HEADER = "Softkv-Hints"
MOST, LONGEST = 4, 500  # hints of an answer, and characters of each
_KINDS = {one.__name__: one for one in (ColumnsDiffer, LearnedNotCarried, LooksLikeLabels, TextsNotCarried)}


def told(found: Sequence[tuple[type[Warning], str]], hidden: Callable[[str], str]) -> list[list[str]]:
    """Hints as they are sent; `hidden` takes out of their words what is not for clients, such as directories."""
    return [[kind.__name__, hidden(words)[:LONGEST]] for kind, words in found[:MOST]]


def give(said: Any) -> None:
    """Warn the caller of the library as a server said, in a header or in a document; what is no hint is passed over."""
    with suppress(ValueError, RecursionError):
        said = json.loads(said) if isinstance(said, str) else said
    for kind, words in said[:MOST] if fits(said, list[list[str]]) and all(len(one) == 2 for one in said) else ():
        warnings.warn(words[:LONGEST], _KINDS.get(kind, UserWarning), stacklevel=_outside())


def _outside() -> int:
    """How many calls up the code is that called the library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == __name__.partition(".")[0]:
        frame, level = frame.f_back, level + 1
    return level
