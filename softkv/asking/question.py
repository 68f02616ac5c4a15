"""A lookup with all defaults filled in, as it is passed from asker.py to the functions that compute answers.

Checks only what the parts of a question would not show: whether the whole is right.

Shapes: b queries, q query width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softkv.maths.arrays import library_of
from softkv.maths.compatibility import Compatibility
from softkv.maths.heads import Heads
from softkv.maths.inputs import temperature_of, whole_number
from softkv.maths.sampling import Elsewhere

LEARNED = "learned"  # as a compatibility: what the store has learned (learned.py)
TOLERANCE, CONFIDENCE = 0.01, 0.95  # of lookups that do not say
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
    rounded: Any = 0.0  # how far the numbers of the queries are from those that were given, (b, q)
    tolerance: float = 0.0  # how far an answer may be from the exact one, as a share of the value scale
    confidence: float = CONFIDENCE  # how sure that is to be
    guarantee: str | None = None  # "bound" where it must always hold
    beside: Elsewhere | None = None  # estimates of items in other shards that the answer is about as well

    @property
    def by_learned(self) -> bool:
        """Whether queries and keys are compared as the store has learned to."""
        return isinstance(self.compatibility, str) and self.compatibility == LEARNED

    @property
    def shifts(self) -> Any:
        """How far each query is from the one that was given, (b,)."""
        return np.linalg.norm(self.rounded, axis=-1) if np.ndim(self.rounded) else 0.0

    @property
    def asks_all(self) -> bool:
        """Whether every query may see every item."""
        return self.where is None and self.mask is None and not self.causal

    def checked(self) -> "Question":
        """The question itself, if `k`, `show` and the temperatures are such as a lookup takes.

        Parts of it do not tell: each has as many temperatures as queries, and shards are asked for other numbers.
        """
        if self.k is not None:
            whole_number("k", self.k, least=1)
        whole_number("show", self.show, least=0)
        temperature_of(library_of(self.queries), self.temperature, self.queries)
        return self

    def part(self, rows: Any) -> "Question":
        """The question with some of its queries alone."""

        def cut(x: Any) -> Any:
            return x[rows] if getattr(x, "ndim", 0) else x

        found = replace(self, queries=self.queries[rows], temperature=cut(self.temperature), rounded=cut(self.rounded))
        return found if self.beside is None else replace(found, beside=self.beside.of(rows))
