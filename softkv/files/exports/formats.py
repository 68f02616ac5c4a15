"""Which formats there are, by the suffix of a file's name."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

from softkv.errors import InputError
from softkv.files.exports import jsonl, npz, parquet
from softkv.files.exports.header import Header
from softkv.files.exports.portions import Place, Portion, Progress
from softkv.storage import Snapshot


@dataclass(frozen=True, slots=True)
class Format:
    """How a store becomes a file, how its items are read back, and how one of them is named in a message."""

    write: Callable[[BinaryIO, Snapshot, Header, Progress], None]
    read: Callable[[BinaryIO, str], tuple[Header, Iterator[Portion]]]
    place: Place


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        ".jsonl": Format(jsonl.write, jsonl.read, jsonl.place),
        ".parquet": Format(parquet.write, parquet.read, parquet.place),
        ".npz": Format(npz.write, npz.read, npz.place),
    }
)


def format_of(path: str, name: str | None) -> Format:
    """The format of this name ("jsonl", "parquet", "npz"), or by the suffix of the path."""
    known = ", ".join(suffix[1:] for suffix in FORMATS)
    if name is not None:
        if f".{name}" not in FORMATS:
            raise InputError(f"format is {name!r}; use one of {known}")
        return FORMATS[f".{name}"]
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in FORMATS:
        raise InputError(f"{path} has no suffix of a known format; name it with format= as one of {known}")
    return FORMATS[suffix]
