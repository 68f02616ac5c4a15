"""The arguments of lookups as types, so that editors and type checkers can tell an Answer from Answers.

Not used at run time. tests/test_typing.py compares the names with those of the methods.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from softkv.asking.question import Compared
from softkv.maths.heads import Heads

One = str | list[float] | tuple[float, ...]  # one query; an array may be one or many, which its type does not tell
Many = list[str] | tuple[str, ...] | list[list[float]]


class Nearest(TypedDict, total=False):
    """The options of `nearest`."""

    temperature: Any
    compatibility: Compared | None
    where: Mapping[str, Any] | None
    mask: Any
    projection: bool
    tolerance: float


class Lookup(Nearest, total=False):
    """The options of `lookup`."""

    k: int | None
    confidence: float
    guarantee: str | None
    heads: Heads | None
    show: int
    partial: bool
