"""Records of a file, and batches of records.

Whatever the format, the same rules decide what becomes of keys, values, vectors and payloads. Does not know how any
format is written.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import groupby, islice

from softkv.errors import BadRecord, InputError, KindError
from softkv.files import arrays, arrow, collections, delimited, document, exported, indexes, objects, parquet
from softkv.files.decoding import checked_encoding
from softkv.files.record import Columns, Record, Refusals
from softkv.files.source import FORMATS, Source, opened
from softkv.kinds import ValueKind

KINDS = tuple(kind.value for kind in ValueKind)

COLLECTIONS = ("llm", "chroma")
PROGRAMS = (*COLLECTIONS, "faiss")

ANY = Columns()

Read = Callable[[Source, Columns, str | None], Iterator[Record]]
READ: dict[str, Read] = {
    "csv": delimited.read,
    "tsv": delimited.read,
    "jsonl": objects.read,
    "json": document.read,
    "parquet": parquet.read,
    "arrow": arrow.read,
    "npy": arrays.read_matrix,
    "npz": arrays.read_archive,
}


def records(
    source: str,
    *,
    format: str | None = None,  # noqa: A002
    columns: Columns = ANY,
    kind: str | None = None,
    on_bad: Callable[[BadRecord], None] | None = None,
    encoding: str | None = None,
    collection: str | None = None,
    values: str | None = None,
) -> Generator[Record, None, None]:
    """The records of a file, or of stdin for "-", one by one as they are asked for.

    The format is known by the suffix (.csv .tsv .jsonl .ndjson .json .parquet .arrow .feather .npy .npz, those of texts
    also with .gz) unless it is given; that of a pipe by its first bytes. Columns that are not named are guessed by
    their names. A record that cannot be an item raises BadRecord, which names the file and the line; with `on_bad` it
    is handed to that instead, and reading goes on. What is wrong with the file as a whole is always raised.

    Keys stay texts as they are ("007"); integers in JSON, Parquet and npz become their decimal text. In CSV and TSV a
    column of values is one of numbers if the whole first batch is, else of texts, and an empty cell is no value;
    elsewhere a value is what it is, and all are of the kind of the first. `kind` decides instead.

    Of other programs, "llm" is a file of its embeddings and "chroma" a directory, of which `collection` is read where
    there are several; "faiss" is an index, and `values` the file of any other format that its rows go with.
    """
    _require(format, FORMATS + PROGRAMS, "format", InputError)
    if (values is None) == (format == "faiss") or (collection is not None and format not in COLLECTIONS):
        raise InputError("expected values= for 'faiss' and only there, and collection= for 'llm' and 'chroma' alone")
    _require(kind, KINDS, "kind", KindError)
    if len(columns.value) > 1 and kind is not None and ValueKind(kind).axes == 1:
        raise KindError(f"{len(columns.value)} value columns make a vector, but the kind is {kind!r}; name one column")
    refusals = Refusals("stdin" if source == "-" else source, on_bad)
    if format in COLLECTIONS:
        return collections.read(format, source, collection, columns, kind, refusals)
    if values is not None:
        return indexes.read(source, lambda: records(values, columns=columns, kind=kind, encoding=encoding), refusals)
    return _records(source, format, checked_encoding(encoding), columns, kind, refusals)


def batches(records: Iterable[Record], rows: int) -> Iterator[list[Record]]:
    """The records in lists of at most this many, never an empty one; in each, all have vectors or none has."""
    if rows < 1:
        raise InputError(f"a batch has {rows} rows; give at least 1")
    return _batches(iter(records), rows)


def _batches(source: Iterator[Record], rows: int) -> Iterator[list[Record]]:
    for _, alike in groupby(source, lambda one: one.vector is None):
        while batch := list(islice(alike, rows)):
            yield batch


def _records(
    source: str, format_: str | None, encoding: str, columns: Columns, kind: str | None, refusals: Refusals
) -> Generator[Record, None, None]:
    with opened(source, format_, encoding, refusals) as found:
        read = exported.read if exported.is_export(found) else READ[found.format]
        yield from read(found, columns, kind)


def _require(given: str | None, known: tuple[str, ...], what: str, error: type[InputError]) -> None:
    if given is not None and given not in known:
        raise error(f"there is no {what} {given!r}; it is one of {', '.join(known)}")
