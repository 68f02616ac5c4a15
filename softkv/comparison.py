"""The result of `compare`: one query in all ways of lookup.

Does not compute anything or print itself (portrait.py).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from softkv import portrait
from softkv.answer import Answer


class Exact(NamedTuple):
    """The item whose key equals the query."""

    key: str
    value: Any
    payload: Any


class Warmth(NamedTuple):
    """A summary of the answer at one temperature."""

    temperature: float
    effective: float
    weight: float  # of the heaviest row
    value: Any  # the number, the vector, the most probable label, or the heaviest text
    error: float | None = None  # how far the value may be from the exact one
    error_kind: str = "exact"

    @classmethod
    def of(cls, answer: Answer) -> "Warmth":
        """The summary of an answer."""
        texts = answer.texts
        value = texts[0].text if texts else answer.value if answer.labels is None else answer.label
        weight = answer.contributors[0].weight
        return cls(answer.temperature, answer.effective, weight, value, answer.error, answer.error_kind)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """One query in all ways of lookup: by an equal key, by the best key, by the k best, by all."""

    exact: Exact | None  # None where no key equals the query
    hard: Answer
    top_k: Answer
    soft: Answer
    strip: tuple[Warmth, ...]  # the soft answer from low temperatures (the hard answer) to high ones (the mean)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python."""
        return portrait.comparison_as_dict(self)

    def to_json(self) -> str:
        """Everything as JSON, in one line."""
        return portrait.as_json(self.to_dict())

    def __repr__(self) -> str:
        return portrait.comparison_as_text(self)

    def _repr_html_(self) -> str:
        return portrait.comparison_as_html(self)
