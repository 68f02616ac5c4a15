"""Rows of CSV and TSV in batches, each row with the line it begins on, each batch with an invalid row after it, if any.

Quotes are as Excel writes them, in TSV too; a quote that does not close, or text after a closing one, is an error, and
not guessed at. Does not know what the rows mean.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice
from threading import Lock

from softkv.files.limits import LONGEST_RECORD, LONGEST_TEXT
from softkv.files.lines import Blocks, lines, too_long
from softkv.files.source import Source

Row = list[str]
Odd = tuple[int, str]  # the line where an invalid row begins, and what is wrong with it
Batch = tuple[list[int], list[Row], Odd | None]  # the lines that rows begin on, the rows, an invalid row after them
DELIMITERS = {"csv": ",", "tsv": "\t"}
BATCH = 1000  # rows: few enough to stay in the cache until they are records


class Rows:
    """The rows of a table in batches; `opened` counts the blocks of text they were taken from so far."""

    def __init__(self, source: Source) -> None:
        self.opened = 0
        self.has_nul = False
        self._refusals, self._blocks = source.refusals, Blocks(source)
        self._waiting = 0  # characters read since the last end of a row
        self._reader = csv.reader(chain.from_iterable(self._open()), delimiter=DELIMITERS[source.format], strict=True)

    def header(self) -> tuple[Row, int]:
        """The first row that is not blank, and the line that it begins on."""
        while True:
            start, self._waiting = self._reader.line_num + 1, 0
            try:
                with _FIELD_LIMIT:
                    row = next(self._reader, None)
            except csv.Error as error:
                raise self._refusals.fatal(_advice(error), start) from error
            if row is None:
                raise self._refusals.fatal(
                    "is empty; a first line that names the columns is expected, such as key,value"
                )
            if row:
                return row, start

    def __iter__(self) -> Iterator[Batch]:
        """Some rows at a time: not beyond the first that needs another block, so that long rows do not add up."""
        while True:
            rows: list[Row] = []
            starts, opened = [self._reader.line_num + 1], self.opened
            error: Exception | None = None
            try:
                with _FIELD_LIMIT:
                    for row in islice(self._reader, BATCH):
                        rows.append(row)
                        starts.append(self._reader.line_num + 1)
                        if self.opened != opened:
                            break
            except Exception as raised:  # raised after the rows before it are returned
                error = raised
            self._waiting = 0
            odd = (starts[-1], _advice(error)) if isinstance(error, csv.Error) else None
            if rows or odd:
                yield list(compress(starts, rows)), [row for row in rows if row], odd
            elif error is None:
                return
            if error is not None and odd is None:
                raise error

    def _open(self) -> Iterator[Iterable[str]]:
        """The lines of each block, noting that it was opened."""
        for _, text in self._blocks:
            if self._waiting > LONGEST_RECORD:
                raise self._refusals.fatal(too_long("row") + "; is a quote not closed?", self._reader.line_num)
            self._waiting += len(text)
            self.opened += 1
            self.has_nul = self.has_nul or "\0" in text
            yield lines(text)


class _FieldLimit:
    """Within its blocks, of any number of threads, the csv module takes fields as long as ours may be.

    That is a setting of the whole process, so it is as it was when the last block ends, and only then.
    """

    def __init__(self) -> None:
        self._lock, self._within, self._before = Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._before = csv.field_size_limit(LONGEST_TEXT)
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                csv.field_size_limit(self._before)


# Not a lock around all of a block: rows may wait for a pipe, into which another thread writes what it reads.
_FIELD_LIMIT = _FieldLimit()


def _advice(error: csv.Error) -> str:
    said = str(error)
    if "field larger" in said:
        return f"a field is longer than {LONGEST_TEXT:,} characters; is a quote not closed?"
    if "unexpected end" in said:
        return "a quote is opened here and never closed"
    if "expected after" in said:
        return "after a closing quote there must be a delimiter; a quote within quotes is written twice"
    return said
