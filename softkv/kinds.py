"""The kinds of values and their properties: how values are stored, given and returned, and how answers are measured.

Other files use these properties and never test for a certain kind, so that a new kind needs an entry here, and code
where values are checked: storage/batch.py and files/fields.py.

Does not read arrays or files.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

LONGEST_LABEL = 1 << 16  # bytes of UTF-8
LONGEST_TEXT = 1 << 24


class Facts:
    """The properties of a kind, with their defaults."""

    dtype: str  # of the cells that are stored and blended
    narrow: bool = False  # a value is one cell, so the width of values is 1
    coded: bool = False  # cells are codes of labels, and answers are the labels' shares of the weight
    embedded: bool = False  # cells are the embedding of a text, which is stored as well, to be embedded by other models
    axes: int = 1  # of an array of values, as the caller gives them
    longest: int = 0  # most bytes of UTF-8 in a value that is a text; 0 where values are numbers
    measure: str = "squared error"  # the loss by which a temperature or a metric is chosen

    @property
    def worded(self) -> bool:
        """Whether values are texts for the caller."""
        return self.longest > 0

    @property
    def scalar(self) -> bool:
        """Whether a value is one number, so that a mean has a spread, and may be read off planes."""
        return self.narrow and not self.coded

    def read(self, cells: Any, texts: Sequence[str | None], label: Callable[[int], str]) -> list[Any]:
        """The values of rows as the caller gets them: their cells, their texts, or the labels of their codes."""
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
        """Make a member of this name; the given facts override the defaults of `Facts`."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        stated = facts or {}
        assert stated.keys() <= Facts.__annotations__.keys()
        vars(kind).update(stated)
        return kind

    @classmethod
    def of_first(cls, *, worded: bool, axes: int = 1) -> "ValueKind":
        """The kind inferred from the first values; texts become labels only where that is asked for."""
        if worded:
            return cls.TEXT
        return cls.VECTOR if axes > 1 else cls.NUMBER
