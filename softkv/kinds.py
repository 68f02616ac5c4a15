"""The kinds of values, and what is so of each: how it is kept, what the caller gives and gets, by what it is measured.

Other files ask a kind for the fact that they need, never which kind it is, so that a new kind is stated here, and then
taken in where values are checked: storage/batch.py and files/fields.py.

Knows no arrays and no files.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

LONGEST_LABEL = 1 << 16  # bytes of UTF-8
LONGEST_TEXT = 1 << 24


class Facts:
    """What may be asked of a kind, with the answer where the kind states no other."""

    dtype: str  # of the cells that are kept, and blended
    narrow: bool = False  # a value is one cell, so the width of values is 1
    coded: bool = False  # cells are codes of labels: shares are blended, and items counted instead of values summed up
    embedded: bool = False  # cells are the embedding of a text, which is kept beside them and made anew by other models
    axes: int = 1  # of an array of values, as the caller gives them
    longest: int = 0  # bytes of UTF-8 in a value that is a text; 0 where values are numbers
    measure: str = "squared error"  # what a temperature or a metric is chosen by

    @property
    def worded(self) -> bool:
        """Whether the caller gives and gets texts."""
        return self.longest > 0

    @property
    def scalar(self) -> bool:
        """Whether a value is one number, so that a mean has a spread, and may be read off planes."""
        return self.narrow and not self.coded

    def read(self, cells: Any, texts: Sequence[str | None], label: Callable[[int], str]) -> list[Any]:
        """What the caller gets back of rows: their cells, the texts beside them, or the labels of their codes."""
        if self.embedded:
            return list(texts)
        if self.coded:
            return [label(code) for code in cells[:, 0].tolist()]
        return cells[:, 0].tolist() if self.narrow else list(cells)


class ValueKind(Facts, str, Enum):
    """What is blended: numbers, vectors, labels (by their code) or texts (by their embedding).

    >>> ValueKind("label").coded, ValueKind.NUMBER.coded, [kind.value for kind in ValueKind if kind.worded]
    (True, False, ['label', 'text'])
    """

    NUMBER = "number", {"dtype": "<f8", "narrow": True}
    VECTOR = "vector", {"dtype": "<f4", "axes": 2}
    LABEL = "label", {"dtype": "<i4", "narrow": True, "coded": True, "longest": LONGEST_LABEL, "measure": "log-loss"}
    TEXT = "text", {"dtype": "<f4", "embedded": True, "longest": LONGEST_TEXT}

    def __new__(cls, name: str, facts: dict[str, Any] | None = None) -> "ValueKind":
        """A member, by its name alone; what it states stands over the answers of `Facts`."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        stated = facts or {}
        assert stated.keys() <= Facts.__annotations__.keys()
        vars(kind).update(stated)
        return kind

    @classmethod
    def of_first(cls, *, worded: bool, axes: int = 1) -> "ValueKind":
        """The kind of the first values, where nothing else says it: texts are labels only where that is asked for."""
        if worded:
            return cls.TEXT
        return cls.VECTOR if axes > 1 else cls.NUMBER
