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


def format_of(path: str, name: str | None) -> Format:
    """The format of a whole store by its name ("jsonl", "parquet", "npz"), or by the suffix of the path."""
    if suffix_of(path, name, WRITTEN) == TABLE:
        raise InputError(
            f"{path}: CSV holds items, and not the store they were in. Add them to a store with `db.load` "
            "(`softkv add -i`)."
        )
    return FORMATS[suffix_of(path, name, FORMATS)]


def suffix_of(path: str, name: str | None, known: Mapping[str, object]) -> str:
    """The suffix of one of these formats: that of its name, or of the path."""
    names = ", ".join(suffix[1:] for suffix in known)
    if name is not None:
        if f".{name}" not in known:
            raise InputError(f"format is {name!r}; use one of {names}")
        return f".{name}"
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in known:
        raise InputError(f"{path} has no suffix of a known format; name it with format= as one of {names}")
    return suffix
