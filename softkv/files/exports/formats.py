"""Which formats there are, by the suffix of a file's name."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from softkv.errors import InputError
from softkv.files.exports import delimited, jsonl, npz, parquet
from softkv.files.exports.header import Header
from softkv.files.exports.portions import Place, Portion, Progress
from softkv.storage import Snapshot

Write = Callable[[BinaryIO, Snapshot, Header, Progress], None]


@dataclass(frozen=True, slots=True)
class Format:
    """How a store becomes a file, how its items are read back, and how one of them is named in a message."""

    write: Write
    read: Callable[[BinaryIO, str], tuple[Header, Iterator[Portion]]]
    place: Place


FORMATS: Mapping[str, Format] = {
    ".jsonl": Format(jsonl.write, jsonl.read, jsonl.place),
    ".parquet": Format(parquet.write, parquet.read, parquet.place),
    ".npz": Format(npz.write, npz.read, npz.place),
}
TABLE = ".csv"  # of items alone, from which no store is read
WRITTEN: Mapping[str, Write] = {**{suffix: one.write for suffix, one in FORMATS.items()}, TABLE: delimited.write}


def format_of(path: str) -> Format:
    """The format of a whole store by the suffix of its path."""
    suffix = suffix_of(path)
    if suffix == TABLE:
        raise InputError(
            f"{path}: CSV holds items, and not the store they were in. Add them to a store with `db.load` "
            "(`softkv add -i`)."
        )
    return FORMATS[suffix]


def suffix_of(path: str) -> str:
    """The suffix of a path, which has to be that of one of these formats."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in WRITTEN:
        names = ", ".join(one[1:] for one in WRITTEN)
        raise InputError(f"{path} has no suffix of a known format; its name has to end in one of {names}")
    return suffix
