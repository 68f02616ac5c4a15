"""Rows of CSV and TSV in batches, each row with the line it begins on, each batch with what went wrong after it.

Quotes are as Excel writes them, in TSV too; a quote that does not close, or text after a closing one, is an error and
no guess. Does not know what the rows mean, and raises nothing: what came before an error is to be used first.
"""

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice

from softkv.files.limits import LONGEST_RECORD, LONGEST_TEXT
from softkv.files.lines import Blocks, lines, too_long
from softkv.files.record import Misfit
from softkv.files.source import Source

Row = list[str]
DELIMITERS = {"csv": ",", "tsv": "\t"}
BATCH = 1000  # rows: few enough to stay in the cache until they are records


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are not blank, and the lines they begin on.

    `error` is what went wrong with the row after them, which begins on `line`: a Misfit if the rows behind it can
    still be read.
    """

    starts: list[int]
    rows: list[Row]
    error: Exception | None
    line: int


class Rows:
    """The rows of a table in batches; `opened` counts the blocks of text they were taken from so far."""

    def __init__(self, source: Source) -> None:
        self.opened = 0
        self.has_nul = False
        self._refusals, self._blocks = source.refusals, Blocks(source)
        self._waiting = 0  # characters without the end of a row
        self._ended = False
        self._reader = csv.reader(chain.from_iterable(self._open()), delimiter=DELIMITERS[source.format], strict=True)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self._batch()
            if batch.error is None and not batch.rows and self._ended:
                return
            yield batch

    def _batch(self) -> Batch:
        """Some rows: not beyond the first that needs another block, so that long rows do not add up."""
        rows: list[Row] = []
        lasts, opened = [self._reader.line_num], self.opened
        error: Exception | None = None
        try:
            with _field_limit():
                for row in islice(self._reader, BATCH):
                    rows.append(row)
                    lasts.append(self._reader.line_num)
                    if self.opened != opened:
                        break
        except csv.Error as raised:
            error = Misfit(_advice(raised))
        except Exception as raised:
            error = raised
        self._waiting = 0
        self._ended = error is None and not rows
        starts = [last + 1 for last in lasts]
        line = starts.pop()
        if [] in rows:
            starts = [start for start, row in zip(starts, rows, strict=True) if row]
            rows = [row for row in rows if row]
        return Batch(starts, rows, error, line)

    def _open(self) -> Iterator[Iterable[str]]:
        """The lines of each block, noting that it was opened."""
        for _, text in self._blocks:
            if self._waiting > LONGEST_RECORD:
                raise self._refusals.fatal(too_long("row") + "; is a quote not closed?", self._reader.line_num)
            self._waiting += len(text)
            self.opened += 1
            self.has_nul = self.has_nul or "\0" in text
            yield lines(text)


@contextmanager
def _field_limit() -> Iterator[None]:
    """The longest field that csv reads is a setting of the whole process: ours while ours are read, not longer."""
    before = csv.field_size_limit(LONGEST_TEXT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _advice(error: csv.Error) -> str:
    said = str(error)
    if "field larger" in said:
        return f"a field is longer than {LONGEST_TEXT:,} characters; is a quote not closed?"
    if "unexpected end" in said:
        return "a quote is opened here and never closed"
    if "expected after" in said:
        return "after a closing quote there must be a delimiter; a quote within quotes is written twice"
    return said
