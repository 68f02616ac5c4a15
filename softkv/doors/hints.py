"""Send hints of the library from a server to the caller of a handle: a few for each answer, as class and message.

Does not create hints (softkv/logs.py).
"""

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from softkv.database.carrying import LearnedNotCarried
from softkv.database.intake import ColumnsDiffer, LooksLikeItems, LooksLikeLabels
from softkv.doors.shapes import fits
from softkv.files.exports.delimited import TextsNotCarried
from softkv.logs import outside

HEADER = "Softkv-Hints"
MOST, LONGEST = 4, 500  # most hints for an answer, and most characters of each
_KINDS = {
    one.__name__: one for one in (ColumnsDiffer, LearnedNotCarried, LooksLikeItems, LooksLikeLabels, TextsNotCarried)
}


def told(found: Sequence[tuple[type[Warning], str]], hidden: Callable[[str], str]) -> list[list[str]]:
    """Hints in the form in which they are sent; `hidden` removes what clients may not see, such as directories."""
    return [[kind.__name__, hidden(words)[:LONGEST]] for kind, words in found[:MOST]]


def give(said: Any) -> None:
    """Issue the warnings that a server sent, in a header or in a document, to the caller; others are ignored."""
    with suppress(ValueError, RecursionError):
        said = json.loads(said) if isinstance(said, str) else said
    for kind, words in said[:MOST] if fits(said, list[list[str]]) and all(len(one) == 2 for one in said) else ():
        warnings.warn(words[:LONGEST], _KINDS.get(kind, UserWarning), stacklevel=outside())
