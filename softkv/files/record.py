"""The input and output of a reader: columns, records, and the refusal of a bad record.

Does not read anything.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softkv.errors import BadRecord
from softkv.ndarrays import Floats

QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""  # a text as repr shows it
LINES, ROWS = "{}:{}", "{}: row {}"  # how places are shown: lines of a text, rows of a table


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns by their roles; for None and () the reader guesses.

    `payload` names columns that become parts of the payload, and `document` one with whole payloads as JSON. With
    `answered` False, as for plain queries, records need no values, and get none.
    """

    key: str | None = None
    text: str | None = None
    value: tuple[str, ...] = ()
    payload: tuple[str, ...] | None = None
    vector: tuple[str, ...] = ()
    document: str | None = None
    answered: bool = True

    def named(self) -> list[str]:
        """All names that are given, each once."""
        single = [name for name in (self.key, self.text, self.document) if name is not None]
        return list(dict.fromkeys([*single, *self.value, *(self.payload or ()), *self.vector]))


@dataclass(frozen=True, slots=True)
class Record:
    """One item as a file gives it; `line` is the line it begins on, or its row in a file without lines, from 1."""

    line: int
    key: str | None
    text: str | None
    value: Any
    payload: Any
    vector: list[float] | Floats | None
    kind: str | None = None  # the kind of the values, by the file itself
    compared: str | None = None  # how the program it comes from compares vectors, by our name


class Misfit(Exception):
    """Why something is not valid; where the line is known, it is turned into a BadRecord."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Adds the place to what is refused: raises, or reports it where the caller wants to go on."""

    name: str
    on_bad: Callable[[BadRecord], None] | None = None
    form: str = LINES

    def place(self, line: int | None = None) -> str:
        """The file, and the line or row in it."""
        if line is None:
            return self.name
        return self.form.format(self.name, line)

    def refuse(self, line: int, why: object) -> None:
        """Refuse one record: report it and go on if there is a callback, else raise."""
        bad = BadRecord(f"{self.place(line)}: {why}")
        if self.on_bad is None:
            raise bad
        self.on_bad(bad)

    def fatal(self, why: object, line: int | None = None) -> BadRecord:
        """The error for a file that cannot be read any further, even where bad records are only reported."""
        return BadRecord(f"{self.place(line)}: {why}")


def shown(text: object) -> str:
    """A cell as shown in a message: quoted, and cut short when it is long."""
    quoted = repr(text[:60]) if isinstance(text, str) else " ".join(str(text).split())
    if len(quoted) <= 60:
        return quoted
    left = re.sub(QUOTED, "", quoted[:56])  # a quote that is left has no other one
    return quoted[:56] + "..." + next((sign for sign in left if sign in "'\""), "")


def listed(names: "list[str] | tuple[str, ...]") -> str:
    """Names of columns as shown in a message; the first 20 of many."""
    some = ", ".join(shown(name) for name in names[:20])
    return some + (f" and {len(names) - 20} more" if len(names) > 20 else "")
