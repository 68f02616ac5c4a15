"""One item a line: JSON objects, written, and read with a bound on what one line can cost.

Does not know which fields a format writes; it is told.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from softkv.errors import BadRecord
from softkv.files import notation
from softkv.files.decoding import FIXED
from softkv.files.exports.portions import MOST_BYTES, Place
from softkv.files.lines import numbered
from softkv.files.record import Misfit, Refusals
from softkv.files.source import Source
from softkv.storage.batch import LONGEST_PAYLOAD
from softkv.storage.layout import WIDEST

Record = dict[str, Any]

LONGEST_LINE = 1 << 28  # characters; the longest item a store can hold fits, were every character of it escaped
_SUSPECT = 1 << 22  # characters from which on a line is looked at before it is read
_MOST_PARTS = 2 * WIDEST + LONGEST_PAYLOAD + 100  # numbers, names and texts in one line
_NUMBERS = frozenset((int, float))


def as_json(column: Iterable[Any]) -> list[str | None]:
    """Each entry as JSON, None where there is none."""
    return [None if one is None else notation.written(one) for one in column]


def written(columns: Mapping[str, Iterable[str | None]]) -> Iterator[str]:
    """A line for each item: an object of the fields that are there, which are JSON already."""
    for fields in zip(*columns.values(), strict=True):
        named = zip(columns, fields, strict=True)
        yield "{" + ",".join(f'"{name}":{field}' for name, field in named if field is not None) + "}\n"


def source_of(file: BinaryIO, name: str, *, begun: int = 0) -> Source:
    """Lines of UTF-8 in an open file, of which some bytes were taken before."""
    return Source(None, "jsonl", FIXED, file, Refusals(name, form="{}, line {}"), begun)


def read(source: Source, place: Place, count: int, *, first: int = 1) -> Iterator[tuple[Record, int]]:
    """The objects of `count` lines, and how long each line is; asked for one more, refuse whatever follows them."""
    name, found = source.refusals.name, numbered(source, first=first, longest=LONGEST_LINE)
    for number in range(count):
        _, line = next(found, (0, ""))
        if not line:
            raise BadRecord(
                f"{name}: the file ends before {place(number)}, but its header says {count} items. "
                "It was cut off; take a whole copy."
            )
        yield _record(line, f"{name}, {place(number)}"), len(line)
    if not all(line.isspace() for _, line in found):
        raise BadRecord(f"{name}: something follows {place(count - 1)}, but the header says {count} items")


def items(
    records: Iterator[tuple[Record, int]],
    expected: frozenset[str],
    most: int,
    where: Place,
    take: Callable[[int, Record, str], None],
) -> tuple[list[str | None], list[str | None], list[Any]]:
    """Keys, texts and payloads of the next records, as many as are held at once; `take` is given each of them."""
    keys: list[str | None] = []
    texts, payloads, weight = [], [], 0
    while len(keys) < most and weight < MOST_BYTES:
        place = where(len(keys))
        record, size = next(records)
        key, text, payload = _carried(record, expected, place)
        take(len(keys), record, place)
        keys.append(key)
        texts.append(text)
        payloads.append(payload)
        weight += size
    return keys, texts, payloads


def _carried(record: Record, expected: frozenset[str], place: str) -> tuple[str | None, str | None, Any]:
    """Key, embedded text and payload of a record, in which no other fields may be than those expected."""
    if not record.keys() <= expected:
        raise BadRecord(f"{place}: unknown field {min(record.keys() - expected)!r}; expected {sorted(expected)}")
    for name in ("key", "text"):
        if not isinstance(record.get(name), (str, type(None))):
            raise BadRecord(f"{place}: {name} is {notation.kind_of(record[name])}; expected a text or null")
    return record.get("key"), record.get("text"), record.get("payload")


def required_text(record: Record, name: str, place: str) -> str:
    """The text in this field."""
    value = record.get(name)
    if not isinstance(value, str):
        raise BadRecord(f"{place}: {name} is {_found(record, name)}; expected a text")
    return value


def required_number(record: Record, name: str, place: str) -> int | float:
    """The number in this field."""
    value = record.get(name)
    if type(value) not in _NUMBERS:
        raise BadRecord(f"{place}: {name} is {_found(record, name)}; expected a number")
    return value  # type: ignore[return-value]


def fill(row: npt.NDArray[np.float32], record: Record, name: str, place: str) -> None:
    """Write the list of numbers in this field to `row`, which says how many there should be."""
    value = record.get(name)
    if type(value) is not list:
        raise BadRecord(f"{place}: {name} is {_found(record, name)}; expected a list of {len(row)} numbers")
    if len(value) != len(row):
        raise BadRecord(f"{place}: {name} has {len(value)} numbers; expected {len(row)}")
    if not _NUMBERS.issuperset(map(type, value)):
        odd = next(one for one in value if type(one) not in _NUMBERS)
        raise BadRecord(f"{place}: {name} holds {notation.kind_of(odd)}; expected {len(row)} numbers")
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused with all that is not finite
            row[:] = value
    except OverflowError as error:
        raise BadRecord(f"{place}: {name} holds a whole number beyond float32's range") from error


def _found(record: Record, name: str) -> str:
    return notation.kind_of(record[name]) if name in record else "missing"


def _record(line: str, place: str) -> Record:
    if len(line) > _SUSPECT and notation.holds_more(line, _MOST_PARTS):
        raise BadRecord(f"{place}: the line holds more than {_MOST_PARTS:,} values, which no item does")
    try:
        found = notation.parsed(line)
    except Misfit as why:
        whole = "" if line.endswith("\n") else " The file may have been cut off here."
        raise BadRecord(f"{place}: {why}; expected one object per line.{whole}") from why
    if not isinstance(found, dict):
        raise BadRecord(f"{place}: this is {notation.kind_of(found)}; expected one object per line")
    return found
