"""What the tests of the reader ask of a file: its good records, and what is said of the others."""

import os
from typing import Any

import pytest

from softkv.errors import BadRecord
from softkv.files import Record, records


def refused(path: str, **options: Any) -> tuple[list[Record], list[str]]:
    """The good records of a file, and what was said of the bad ones, without the folder."""
    said: list[BadRecord] = []
    good = list(records(path, on_bad=said.append, **options))
    return good, [str(error).removeprefix(os.path.dirname(path) + "/") for error in said]


def error_of(path: str, **options: Any) -> str:
    """The message with which reading ends, without the folder."""
    with pytest.raises(BadRecord) as error:
        list(records(path, on_bad=[].append, **options))
    return str(error.value).removeprefix(os.path.dirname(path) + "/")
