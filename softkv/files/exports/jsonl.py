"""JSON lines: a header, then one object per item. For reading by people, text tools and programs in any language.

The cost of one line is bounded. The lines within other formats (npz.py) are written and read here too.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any, BinaryIO

import numpy as np

from softkv.errors import BadRecord
from softkv.files import notation
from softkv.files.decoding import FIXED
from softkv.files.exports import portions
from softkv.files.exports.decimals import rows_as_json
from softkv.files.exports.header import LONGEST_HEADER, Header
from softkv.files.exports.portions import Place, Portion, Progress
from softkv.files.lines import numbered
from softkv.files.record import Refusals
from softkv.files.source import Source
from softkv.storage import Snapshot
from softkv.storage.batch import LONGEST_PAYLOAD
from softkv.storage.layout import WIDEST

LONGEST_LINE = 1 << 28  # characters; the longest item a store can hold fits, were every character of it escaped
_SUSPECT = 1 << 22  # characters from which on a line is checked before it is parsed
_MOST_PARTS = 2 * WIDEST + LONGEST_PAYLOAD + 100  # numbers, names and texts in one line
_OBJECT = "one object per line"
_CUT = f"{_OBJECT}. The file may have been cut off here."
_NO_WIDTHS: Mapping[str, int] = {}


def place(number: int) -> str:
    """Where an item stands: the header is line 1."""
    return f"line {number + 2}"


def write(file: BinaryIO, snapshot: Snapshot, header: Header, progress: Progress) -> None:
    """Write a store."""
    file.write(header.text().encode() + b"\n")
    for portion in portions.of_snapshot(snapshot):
        file.writelines(written(portion.columns))
        progress(portion.start + len(portion), header.items)


def written(columns: Mapping[str, Any]) -> Iterator[bytes]:
    """A line for each item: an object of the fields that are there."""
    for fields in zip(*map(as_json, columns.values()), strict=True):
        named = zip(columns, fields, strict=True)
        yield ("{" + ",".join(f'"{name}":{field}' for name, field in named if field is not None) + "}\n").encode()


def as_json(column: Any) -> Iterable[str | None]:
    """Each entry of a column as JSON, None where there is none."""
    if isinstance(column, np.ndarray):
        if column.ndim == 2:
            return rows_as_json(column)
        column = column.tolist()
    return [None if one is None else notation.written(one) for one in column]


def read(file: BinaryIO, path: str) -> tuple[Header, Iterator[Portion]]:
    """The header and the items of a file; items are read as they are needed."""
    first = file.readline(LONGEST_HEADER + 1)
    header = Header.parse(first, f"{path}, line 1")
    return header, _portions(lines_in(file, path, begun=len(first)), header)


def _portions(source: Source, header: Header) -> Iterator[Portion]:
    layout = header.layout
    most, wide = (portions.rows_at_once(layout), portions.widths(layout)) if layout else (1, {})
    read = columns(source, header.items, portions.names(layout), place, most=most, widths=wide, first=2)
    for start, found in read:
        assert layout is not None  # a header without one has no items
        yield portions.checked(start, found, layout, lambda one: f"{source.refusals.name}, {place(one)}")


def lines_in(file: BinaryIO, name: str, *, begun: int = 0) -> Source:
    """Lines of UTF-8 in an open file, of which some bytes were taken before."""
    return Source(None, "jsonl", FIXED, file, Refusals(name, form="{}, line {}"), begun)


def columns(
    source: Source,
    count: int,
    names: Collection[str],
    place: Place,
    *,
    most: int,
    widths: Mapping[str, int] = _NO_WIDTHS,
    first: int = 1,
) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """The fields of `count` objects, as columns of as many as are held at once, with the number of the first of these.

    Other fields are refused, and so is anything after the last object. Fields that have a width become vectors.
    """
    held: list[tuple[Any, ...]] = []
    absent = {name: None if name in portions.names(None) else notation.MISSING for name in names}
    weight = 0
    for number, (line, where) in enumerate(_lines(source, count, place, first), 1):
        record = absent | _record(line, absent.keys(), where)
        for field, width in widths.items():
            record[field] = portions.row_of(record[field], field, width, where)
        held.append(tuple(record.values()))
        weight += len(line)
        if number < count and (len(held) >= most or weight >= portions.MOST_BYTES):
            yield number - len(held), _turned(absent, held)
            held, weight = [], 0
    if held:
        yield count - len(held), _turned(absent, held)


def _lines(source: Source, count: int, place: Place, first: int) -> Iterator[tuple[str, str]]:
    """The lines that are expected, with their places; anything after them is an error."""
    name, found = source.refusals.name, numbered(source, first=first, longest=LONGEST_LINE)
    for number in range(count):
        _, line = next(found, (0, ""))
        if not line:
            raise BadRecord(
                f"{name}: the file ends before {place(number)}, but its header says {count} items. "
                "It was cut off; take a whole copy."
            )
        yield line, f"{name}, {place(number)}"
    if not all(line.isspace() for _, line in found):
        raise BadRecord(f"{name}: something follows {place(count - 1)}, but the header says {count} items")


def _turned(names: Iterable[str], rows: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _record(line: str, names: Set[str], place: str) -> dict[str, Any]:
    if len(line) > _SUSPECT and notation.holds_more(line, _MOST_PARTS):
        raise BadRecord(f"{place}: the line holds more than {_MOST_PARTS:,} values, which no item does")
    record: dict[str, Any] = portions.parsed(line, dict, _OBJECT if line.endswith("\n") else _CUT, place)
    if not record.keys() <= names:
        raise BadRecord(f"{place}: unknown field {min(record.keys() - names)!r}; expected {sorted(names)}")
    return record
