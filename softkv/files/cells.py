"""Convert cells of a table, which are all texts, to typed fields: a whole column at once, by loops that run in C.

A column is converted as a whole or not at all; to find out which cell is wrong, convert columns of one cell.
Does not know rows, files or lines.
"""

import re
from collections.abc import Sequence
from contextlib import suppress

from softkv.files.limits import EXACT_INTEGER
from softkv.files.record import Misfit, shown

Cells = Sequence[str]

# Excludes what float() accepts but other programs do not: 1_000, nan, inf, and digits of other scripts.
NUMERAL = "0123456789.+-eE \t"
NUMBER = re.compile(r"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*")
NOT_FINITE = re.compile(r"[ \t]*[+-]?(nan|inf|infinity)[ \t]*", re.IGNORECASE)
GROUPED = re.compile(r"[ \t]*[+-]?[0-9]{1,3}([,' _.][0-9]{3})+([.,][0-9]+)?[ \t]*")
# Numbers that JSON returns unchanged: a code such as 007, or one longer than any count, is a text.
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")


def looks_like_number(cell: str) -> bool:
    """Whether a cell is a number and nothing else."""
    return NUMBER.fullmatch(cell) is not None


def worded_by_first(cells: Cells) -> tuple[bool, str | None]:
    """Whether a column holds texts, and the first cell that is no number where most cells are numbers.

    They are numbers if every cell that is not empty is one, or a NaN among numbers; else texts.
    """
    filled = [cell for cell in cells if cell.strip()]
    odd = [cell for cell in filled if not looks_like_number(cell)]
    if len(odd) < len(filled) and all(map(NOT_FINITE.fullmatch, odd)):
        return False, None
    texts = [cell for cell in odd if not NOT_FINITE.fullmatch(cell)]
    return True, texts[0] if 0 < len(texts) * 2 < len(filled) else None


def numbers(cells: Cells, what: str) -> list[float]:
    """The cells as numbers; an integer that would be rounded is an error."""
    found = floats(cells, what)
    if max(max(found), -min(found)) >= EXACT_INTEGER:
        rounded = [cell for cell in cells if _is_rounded(cell)]
        if rounded:
            raise Misfit(f"the {what} {shown(rounded[0])} is an integer beyond ±2^53 and would not come back unchanged")
    return found


def filled(cells: Cells, what: str) -> Cells:
    """The cells as they are, if none is empty."""
    if "" in cells:
        raise Misfit(f"the {what} is empty")
    return cells


def json_numbers(cells: Cells) -> list[int | float | None] | None:
    """The cells as numbers that JSON gives back unchanged, None where a cell is empty; or None if one is a text."""
    found: list[int | float | None] = []
    for cell in cells:
        if not cell:
            found.append(None)
        elif INTEGER.fullmatch(cell):
            found.append(int(cell))
        elif DECIMAL.fullmatch(cell):
            found.append(float(cell))
        else:
            return None
    return found


def floats(cells: Cells, what: str) -> list[float]:
    """The cells as numbers, infinite where one is too large for a float."""
    if not "".join(cells).strip(NUMERAL):
        with suppress(ValueError):
            return list(map(float, cells))
    raise Misfit(_no_number(next(cell for cell in cells if not looks_like_number(cell)), what))


def _is_rounded(cell: str) -> bool:
    digits = cell.strip(" \t+-").lstrip("0")
    return digits.isdigit() and (len(digits) > len(str(EXACT_INTEGER)) or int(digits) > EXACT_INTEGER)


def _no_number(cell: str, what: str) -> str:
    if not cell.strip():
        return f"the {what} is empty"
    if NOT_FINITE.fullmatch(cell):
        return f"the {what} {shown(cell)} is not a finite number"
    hint = "; write it without thousands separators" if GROUPED.fullmatch(cell) else ""
    return f"the {what} {shown(cell)} is not a number{hint}"
