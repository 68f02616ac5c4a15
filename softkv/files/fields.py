"""Convert columns of fields, whose entries are typed already, to the parts of records: a whole column at once.

Types are kept as they are: "3.5" is a text, and true cannot be blended. Only integers are converted, to the decimal
text of a key or a label, because people number things with them. A column is accepted as a whole or not at all; to
find out which entry is wrong, Builder takes columns of one entry.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import contains
from typing import Any

import numpy as np

from softkv.files import limits
from softkv.files.notation import MISSING, kind_of, parsed, written
from softkv.files.record import Columns, Misfit, Record, Refusals, shown
from softkv.kinds import ValueKind
from softkv.ndarrays import Floats

Column = Any  # a sequence with an entry per record, or a matrix with a row per record
Convert = Mapping[tuple[str, str], Callable[[Any], Column]]  # by role and name: cells of a table into fields

_A_NUMBER, _A_TEXT = ValueKind.of_first(worded=False), ValueKind.of_first(worded=True)
_A_VECTOR = ValueKind.of_first(worded=False, axes=2)
KINDS = {int: _A_NUMBER, float: _A_NUMBER, str: _A_TEXT, list: _A_VECTOR, np.ndarray: _A_VECTOR}
NUMBERS: frozenset[type] = frozenset((int, float))


class Builder:
    """Makes records of columns; in `packed` ones payload documents are texts of JSON, and no field is missing."""

    def __init__(
        self, roles: Columns, kind: str | None, *, packed: bool = False, convert: Convert | None = None
    ) -> None:
        self._roles, self._packed, self._convert = roles, packed, convert or {}
        self._values, self._vectors = Values(kind), Vectors("vector")

    def records(self, lines: Sequence[int], columns: Mapping[str, Column], refusals: Refusals) -> Iterator[Record]:
        """The records that begin on these lines, without those that are refused."""
        try:
            made = self._made(columns, len(lines))
        except Misfit as why:
            if len(lines) == 1:
                refusals.refuse(lines[0], why)
                return
            for row, line in enumerate(lines):
                alone = {name: column[row : row + 1] for name, column in columns.items()}
                yield from self.records([line], alone, refusals)
        else:
            yield from map(Record, lines, *made)

    def _made(self, columns: Mapping[str, Column], count: int) -> list[Any]:
        roles = self._roles
        key = self._single(columns, "key", roles.key)
        key = None if key is None else keys(key)
        text = self._single(columns, "text", roles.text)
        text = None if text is None else texts(text, "text", limits.LONGEST_TEXT)
        if text is None and not roles.vector and (key is None or None in key):
            raise Misfit("it has no key, no text and no vector: there is nothing to compare it by")
        payload = self._payloads(columns)
        value = self._values(self._joined(columns, "value", roles.value)) if roles.value else None
        vector = self._vectors(self._joined(columns, "vector", roles.vector)) if roles.vector else None
        return [repeat(None, count) if one is None else one for one in (key, text, value, payload, vector)]

    def _cells(self, columns: Mapping[str, Column], role: str, name: str) -> Column:
        convert = self._convert.get((role, name))
        return columns[name] if convert is None else convert(columns[name])

    def _single(self, columns: Mapping[str, Column], role: str, name: str | None) -> Column:
        if name is None:
            return None
        cells = self._cells(columns, role, name)
        if not self._packed and MISSING in cells:
            raise Misfit(f"it has no {shown(name)}")
        return cells

    def _joined(self, columns: Mapping[str, Column], role: str, names: Sequence[str]) -> Column:
        """One column as it is, or several as one of lists."""
        found = [self._single(columns, role, name) for name in names]
        if len(found) == 1:
            return found[0]
        if all(isinstance(one, np.ndarray) for one in found):
            return np.stack(found, axis=1)
        return list(map(list, zip(*found, strict=True)))

    def _payloads(self, columns: Mapping[str, Column]) -> list[Any] | None:
        names, document = self._roles.payload, self._roles.document
        if names:
            rows = zip(*(self._cells(columns, "payload", name) for name in names), strict=True)
            parts = (zip(names, row, strict=True) for row in rows)
            if self._packed:
                return list(map(payload, map(dict, parts)))
            return [payload({name: one for name, one in part if one is not MISSING}) for part in parts]
        if document is None:
            return None
        given = [None if one is MISSING else one for one in columns[document]]
        if self._packed:
            given = [(parsed(one) if one else None) if isinstance(one, str) else one for one in given]
        return [None if one is None else payload(one) for one in given]


class Vectors:
    """Vectors of one width: the first one's."""

    def __init__(self, what: str) -> None:
        self._what, self._width = what, 0

    def __call__(self, cells: Column) -> list[Floats]:
        """Lists of numbers, or single ones, as vectors."""
        matrix = self._matrix(cells)
        width = matrix.shape[1]
        if not width:
            raise Misfit(f"the {self._what} has no numbers in it")
        if not max(matrix.max(), -matrix.min()) <= limits.LARGEST_CELL:
            raise Misfit(f"the {self._what} holds NaN, infinity or a number beyond the range of float32 (3.4e38)")
        if width != (self._width or width):
            raise Misfit(f"the {self._what} has {width} numbers, but those before it have {self._width}")
        self._width = width
        return list(matrix)

    def _matrix(self, cells: Column) -> Floats:
        if isinstance(cells, np.ndarray):
            return cells.astype(np.float64, copy=False)
        rows = [[one] if type(one) in NUMBERS else one for one in cells]
        if {list} != set(map(type, rows)):
            odd = next(one for one in rows if type(one) is not list)
            raise Misfit(f"the {self._what} is {kind_of(odd)}; give a list of numbers")
        if not NUMBERS.issuperset(map(type, chain.from_iterable(rows))):
            odd = next(one for one in chain.from_iterable(rows) if type(one) not in NUMBERS)
            raise Misfit(f"the {self._what} holds {kind_of(odd)}; give a list of numbers")
        if len(set(map(len, rows))) > 1:
            raise Misfit(f"the {self._what}s differ in width")
        try:
            return np.array(rows, np.float64)
        except OverflowError as error:
            raise Misfit(f"the {self._what} holds an integer beyond the range of float32 (3.4e38)") from error


class Values:
    """Values of one kind: the one that was asked for, or the first one's."""

    def __init__(self, kind: str | None) -> None:
        self._kind = None if kind is None else ValueKind(kind)
        self._reason = f"(kind={kind!r})"
        self._vectors = Vectors("value")

    def __call__(self, cells: Column) -> Any:
        """The values as they were given, if they are of this kind."""
        if self._kind is not None and self._kind.coded:
            cells = [str(one) if type(one) is int else one for one in cells]
        self._require_alike(cells)
        if self._kind is None:
            self._kind, self._reason = KINDS[type(cells[0])], "(as the first one is)"
        if self._kind.axes > 1:
            return self._vectors(cells)
        return texts(cells, "value", self._kind.longest) if self._kind.worded else numbers(cells)

    def _require_alike(self, cells: Column) -> None:
        expected = self._kind or KINDS.get(type(cells[0]))
        for odd in set(map(type, cells)):
            if odd not in KINDS or expected is None or not _alike(KINDS[odd], expected):
                given = next(one for one in cells if type(one) is odd)
                if odd not in KINDS:
                    raise Misfit(f"the value is {kind_of(given)}; give a number, a text or a list of numbers")
                kind = expected.value if expected else "other"
                raise Misfit(f"the value {shown(given)} is {kind_of(given)}, but values are {kind}s {self._reason}")


def _alike(found: ValueKind, expected: ValueKind) -> bool:
    """Whether what was found can be a value of this kind: a text can be a label."""
    return (found.worded, found.axes) == (expected.worded, expected.axes)


def keys(cells: Column) -> Sequence[str | None]:
    """Keys as the store takes them; null where an item has none."""
    found: Sequence[str | None] = cells
    given: Sequence[str] = cells
    if {str} != set(map(type, cells)):
        found = [str(one) if type(one) is int else one for one in cells]
        given = [one for one in found if one is not None]
    first = {key[:1] for key in texts(given, "key", limits.LONGEST_KEY)}
    if "" in first:
        raise Misfit("the key is empty")
    if "#" in first:
        odd = next(key for key in given if key.startswith("#"))
        raise Misfit(f"the key {shown(odd)} starts with '#', which names items that have no key")
    return found


def texts(cells: Sequence[str], what: str, longest: int) -> Sequence[str]:
    """Texts as the store takes them."""
    if set(map(type, cells)) - {str}:
        odd = next(one for one in cells if type(one) is not str)
        raise Misfit(f"the {what} {shown(odd)} is {kind_of(odd)}, not a text")
    # Subtle: a character takes at most four bytes, so most columns need not be encoded to check the length. Nothing is
    # joined: equal texts of a Parquet file are held once, and joining could make a small file huge in memory.
    if max(map(len, cells), default=0) * 4 > longest or not all(map(str.isascii, cells)):
        try:
            size = max(len(cell.encode()) for cell in cells)
        except UnicodeEncodeError as error:
            raise Misfit(
                f"the {what} holds a lone surrogate at character {error.start + 1}, which is no text"
            ) from error
        if size > longest:
            raise Misfit(f"the {what} has {size:,} bytes; {longest:,} is the most")
    if any(map(contains, cells, repeat("\0"))):
        odd = next(cell for cell in cells if "\0" in cell)
        raise Misfit(f"the {what} holds a NUL character at character {odd.index(chr(0)) + 1}")
    return cells


def numbers(cells: list[int | float]) -> list[int | float]:
    """Finite numbers that come back unchanged."""
    largest = max(max(cells), -min(cells))  # or NaN
    if not largest < limits.EXACT_INTEGER and any(
        type(one) is int and abs(one) > limits.EXACT_INTEGER for one in cells
    ):
        raise Misfit("the value is an integer beyond ±2^53 and would not come back unchanged")
    if largest > limits.LARGEST_NUMBER:
        raise Misfit(f"the value is beyond ±{limits.LARGEST_NUMBER:g}")
    if math.isnan(sum(cells)):
        raise Misfit("the value is not a finite number")
    return cells


def payload(given: Any) -> Any:
    """A payload, or a part of one, as the store takes it."""
    try:
        document = written(given)
        size = len(document.encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise Misfit(f"the payload cannot be JSON: {error}") from error
    if size > limits.LONGEST_PAYLOAD:
        raise Misfit(f"the payload has {size:,} bytes as JSON; {limits.LONGEST_PAYLOAD:,} is the most")
    # Subtle: with fewer brackets than levels, the depth need not be measured.
    if document.count("[") + document.count("{") >= limits.DEEPEST_PAYLOAD and _depth(given) > limits.DEEPEST_PAYLOAD:
        raise Misfit(f"the payload is nested deeper than {limits.DEEPEST_PAYLOAD} levels")
    return given


def _depth(given: Any) -> int:
    """How many levels deep, the value itself being the first."""
    waiting, deepest = [(given, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        deepest = max(deepest, depth)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting.extend((one, depth + 1) for one in inner)
    return deepest
