"""Cells of a table, which are all texts, into keys, numbers and JSON: a whole column at once, by loops that run in C.

A column is converted as a whole or not at all; to find out which cell is to blame, convert columns of one cell.
Does not know rows, files or lines.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from softkv.files.limits import EXACT_INTEGER, LARGEST_CELL, LARGEST_NUMBER, LONGEST_KEY
from softkv.files.record import Misfit, shown

Cells = Sequence[str]

# What float() takes and this leaves out is no number to others: 1_000, nan, inf, and digits of other scripts.
NUMERAL = "0123456789.+-eE \t"
NUMBER = re.compile(r"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*")
NOT_FINITE = re.compile(r"[ \t]*[+-]?(nan|inf|infinity)[ \t]*", re.IGNORECASE)
GROUPED = re.compile(r"[ \t]*[+-]?[0-9]{1,3}([,' _.][0-9]{3})+([.,][0-9]+)?[ \t]*")
# Numbers that JSON gives back as they were: a code such as 007, or one longer than any count, is a text.
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")


def looks_like_number(cell: str) -> bool:
    """Whether a cell is a number and nothing else."""
    return NUMBER.fullmatch(cell) is not None


def are_numbers(cells: Cells) -> bool:
    """Whether a column is one of numbers: every cell that is not empty is one, or a NaN among numbers."""
    if "".join(cells).strip(NUMERAL) == "" and _floats(cells) is not None:
        return len(cells) > 0
    filled = [cell for cell in cells if cell.strip()]
    finite = [cell for cell in filled if looks_like_number(cell)]
    return bool(finite) and all(looks_like_number(cell) or NOT_FINITE.fullmatch(cell) for cell in filled)


def odd_among_numbers(cells: Cells) -> str | None:
    """The first cell that keeps a column from being one of numbers, where most cells are."""
    filled = [cell for cell in cells if cell.strip()]
    odd = [cell for cell in filled if not (looks_like_number(cell) or NOT_FINITE.fullmatch(cell))]
    return odd[0] if 0 < len(odd) * 2 < len(filled) else None


def numbers(cells: Cells, what: str) -> list[float]:
    """The cells as finite numbers that come back unchanged."""
    found = _unchecked(cells, what)
    largest = max(map(abs, found), default=0.0)
    if largest > LARGEST_NUMBER:
        raise Misfit(f"the {what} is beyond ±{LARGEST_NUMBER:g}")
    if largest >= EXACT_INTEGER:  # which the next integer is rounded to
        rounded = [cell for cell in cells if _is_rounded(cell)]
        if rounded:
            raise Misfit(f"the {what} {shown(rounded[0])} is an integer beyond ±2^53 and would not come back unchanged")
    return found


def matrix(columns: Sequence[Cells], what: str) -> list[npt.NDArray[np.float64]]:
    """Several columns of numbers as one vector per row."""
    rows = np.ascontiguousarray(np.array([_unchecked(cells, what) for cells in columns], np.float64).T)
    if rows.size and not np.abs(rows).max() <= LARGEST_CELL:
        raise Misfit(f"the {what} holds a number beyond the range of float32 (3.4e38)")
    return list(rows)


def keys(cells: Cells) -> Cells:
    """The cells as they are, if they can be keys."""
    first = {cell[:1] for cell in cells}
    if "" in first:
        raise Misfit("the key is empty")
    if "#" in first:
        odd = next(cell for cell in cells if cell.startswith("#"))
        raise Misfit(f"the key {shown(odd)} starts with '#', which names items that have no key")
    return fitting(cells, "key", LONGEST_KEY)


def filled(cells: Cells, what: str, longest: int) -> Cells:
    """The cells as they are, if none is empty and none too long."""
    if "" in cells:
        raise Misfit(f"the {what} is empty")
    return fitting(cells, what, longest)


def fitting(cells: Cells, what: str, longest: int) -> Cells:
    """The cells as they are, if they are texts that a store can keep."""
    # Subtle: a character takes at most four bytes, so most columns need no encoding to be sure.
    if max(map(len, cells), default=0) * 4 > longest:
        size = max(len(cell.encode()) for cell in cells)
        if size > longest:
            raise Misfit(f"the {what} has {size:,} bytes; {longest:,} is the most")
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


def _unchecked(cells: Cells, what: str) -> list[float]:
    """The cells as numbers, infinite where one is too large for a float."""
    found = _floats(cells) if "".join(cells).strip(NUMERAL) == "" else None
    if found is None:
        raise Misfit(_no_number(next(cell for cell in cells if not looks_like_number(cell)), what))
    return found


def _floats(cells: Cells) -> list[float] | None:
    try:
        return list(map(float, cells))
    except ValueError:
        return None


def _is_rounded(cell: str) -> bool:
    digits = cell.strip(" \t+-").lstrip("0")
    return digits.isdigit() and int(digits) > EXACT_INTEGER


def _no_number(cell: str, what: str) -> str:
    if not cell.strip():
        return f"the {what} is empty"
    if NOT_FINITE.fullmatch(cell):
        return f"the {what} {shown(cell)} is not a finite number"
    hint = "; write it without thousands separators" if GROUPED.fullmatch(cell) else ""
    return f"the {what} {shown(cell)} is not a number{hint}"
