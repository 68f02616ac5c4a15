"""A lookup with all defaults filled in: what is passed from reader.py, which knows them, to those who compute.

Checks nothing.

Shapes: b queries, q query width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from softkv.maths.compatibility import Compatibility
from softkv.maths.heads import Heads

Compared = str | Compatibility | Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A lookup, all defaults filled in."""

    queries: Any  # (b, q)
    compatibility: Compared
    temperature: Any
    k: int | None = None
    where: Mapping[str, Any] | None = None
    mask: Any = None  # over the live items in their order
    causal: bool = False
    heads: Heads | None = None
    show: int = 10
    rounded: Any = 0.0  # how far each query is from the one that was given, (b,)
