"""Files of queries whose answers are known: the options that name their columns, and their rows."""

from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import click

from softkv.errors import BadRecord

from .options import Command, encoding, file_format

if TYPE_CHECKING:
    from softkv.files import Record


@dataclass(frozen=True, slots=True)
class Naming:
    """How to read a file of queries. None means that the reader guesses."""

    format: str | None
    encoding: str
    key: str | None
    text: str | None
    value: tuple[str, ...]
    vector: tuple[str, ...] = ()

    @property
    def given(self) -> bool:
        """Whether anything but the encoding was asked for."""
        return bool(self.format or self.key or self.text or self.value)


def options(command: Command) -> Command:
    """--key, --text, --value, --format and --encoding; the command gets them as `naming`."""

    @wraps(command)
    def named(*args: Any, **given: Any) -> Any:
        key, text, value = (given.pop(f"{name}_column") for name in ("key", "text", "value"))
        naming = Naming(given.pop("file_format"), given.pop("encoding"), key, text, names_of(value))
        return command(*args, naming=naming, **given)

    wrapped: Any = named
    for option in (
        encoding,
        file_format,
        click.option("--value", "value_column", metavar="COLUMN,...", help="The column of FILE with the answers."),
        click.option("--text", "text_column", metavar="COLUMN", help="The column of FILE with the texts that ask."),
        click.option(
            "--key", "key_column", metavar="COLUMN", help="The column of FILE with the keys, where these ask."
        ),
    ):
        wrapped = option(wrapped)
    return cast(Command, wrapped)


def names_of(given: str | None) -> tuple[str, ...]:
    """Names between commas."""
    return () if given is None else tuple(name.strip() for name in given.split(","))


def queries_of(source: str, naming: Naming, kind: str | None, *, answered: bool = True) -> tuple[Any, list[Any]]:
    """The queries in a file, texts or vectors, and what they should be answered, if anything."""
    import numpy as np

    from softkv.files import Columns, records

    columns = Columns(naming.key, naming.text, naming.value, (), naming.vector, answered=answered)
    found = list(records(source, format=naming.format, columns=columns, kind=kind, encoding=naming.encoding))
    if found and all(one.vector is not None for one in found):
        return np.stack([np.asarray(one.vector) for one in found]), [one.value for one in found]
    return [_text_of(one, source) for one in found], [one.value for one in found]


def strangers_of(source: str, naming: Naming) -> Any:
    """The queries in a file, whose answers, if there are any, are ignored."""
    if source.lower().endswith(".npy"):  # a matrix has no columns to name
        naming = Naming(None, naming.encoding, None, None, ())
    return queries_of(source, replace(naming, value=()), None, answered=False)[0]


def _text_of(record: "Record", source: str) -> str:
    text = record.key if record.text is None else record.text
    if text is None:
        place = "stdin" if source == "-" else source
        raise BadRecord(f"{place}:{record.line}: there is neither a text nor a vector to ask with. Leave it out.")
    return text
