"""softkv's own exports, recognised by their headers: the items that `softkv export` wrote, as records.

A text that was embedded is embedded again by the store that takes it; an item without one keeps its vector. Of the
header only the kind of values is used; the rest is for `softkv import`.
"""

from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import ExitStack

from softkv.files.arrays import archive_in
from softkv.files.record import Columns, Record
from softkv.files.source import Source

LINE = b'{"softkv":{"format":'  # how an export in JSON lines begins


def is_export(source: Source) -> bool:
    """Whether this file has the header of an export; False for a file that cannot be read, whose reader says why."""
    if source.format == "jsonl":
        return source.peek(len(BOM_UTF8) + len(LINE)).removeprefix(BOM_UTF8).startswith(LINE)
    try:
        if source.format == "npz":
            from softkv.files.exports.npz import HEADER

            with open(source.path or "", "rb") as file, archive_in(file) as archive:
                return HEADER in archive.namelist()
        if source.format == "parquet":
            from pyarrow.parquet import read_schema

            return b"softkv" in (read_schema(source.path).metadata or {})
    except Exception:
        return False
    return False


def read(source: Source, columns: Columns, _kind: str | None) -> Iterator[Record]:
    """The records of an export."""
    from softkv.files.exports.formats import FORMATS  # imports the storage, which reading a table does not need

    if columns.named():
        why = "is an export of a store, whose columns are known; leave out key=, text=, value=, payload= and vector="
        raise source.refusals.fatal(why)
    with ExitStack() as stack:
        in_lines = source.format == "jsonl"
        file = source.stream if in_lines else stack.enter_context(open(source.path or "", "rb"))
        header, portions = FORMATS[f".{source.format}"].read(file, source.refusals.name)
        kind = None if header.layout is None else header.layout.kind.value
        for portion in portions:
            line = portion.start + (2 if in_lines else 1)
            items = zip(*(portion.columns[name] for name in ("key", "text", "value", "payload", "vector")), strict=True)
            for place, (key, text, value, payload, vector) in enumerate(items):
                yield Record(line + place, key, text, value, payload, vector if text is None else None, kind)
