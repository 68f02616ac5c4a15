r"""Split text into blocks of whole lines, each with the number of its first line; a line may not grow without bound.

A line ends with \n, \r\n or \r, and with nothing else: str.splitlines would also break at form feeds and U+2028,
which may stand within a text. Does not split the blocks: readers use the C loop of io.StringIO for that.
"""

import io
import re
from collections.abc import Iterator

from softkv.files.decoding import Undecodable, pieces
from softkv.files.limits import BLOCK, LONGEST_RECORD
from softkv.files.source import Source

LINE_END = re.compile(r"\r\n|\n|\r")


class Blocks:
    """The text of a source in blocks that end where a line ends; a line that is too long becomes an empty one."""

    def __init__(self, source: Source, *, first: int = 1, longest: int | None = None) -> None:
        self._source = source
        self._line = first  # where the next block begins
        self._longest = longest or LONGEST_RECORD
        self._held: list[str] = []  # of one line that has no end yet
        self._return = ""  # a \r at the end of a piece: the next piece tells whether it is half of a \r\n
        self._length = 0
        self._skipping = False

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Numbers of lines, from 1, and the text that begins there."""
        for piece in self._pieces():
            text = self._return + piece
            self._return = "\r" if text.endswith("\r") else ""
            yield from self._given(self._unskipped(text[: len(text) - len(self._return)]))
        yield from self._given(self._unskipped(self._return), last=True)

    def _given(self, piece: str, *, last: bool = False) -> Iterator[tuple[int, str]]:
        cut = max(piece.rfind("\n"), piece.rfind("\r")) + 1
        if cut or (last and self._held):
            text = "".join((*self._held, piece[:cut]))
            self._held, self._length = [], 0
            line, self._line = self._line, self._line + ends(text)
            yield line, text
        self._hold(piece[cut:])

    def _hold(self, rest: str) -> None:
        if rest:
            self._held.append(rest)
            self._length += len(rest)
        if self._length > self._longest:
            self._source.refusals.refuse(self._line, too_long("line", self._longest))
            self._held, self._length, self._skipping = [], 0, True

    def _unskipped(self, piece: str) -> str:
        """A piece without the rest of a line that is skipped; the end of that line stays, so that lines are counted."""
        if not self._skipping:
            return piece
        found = [place for place in (piece.find("\n"), piece.find("\r")) if place >= 0]
        self._skipping = not found
        return piece[min(found) :] if found else ""

    def _pieces(self) -> Iterator[str]:
        try:
            yield from pieces(self._source)
        except Undecodable as why:
            raise self._source.refusals.fatal(why, self._line + len(self._return)) from why.__cause__


def numbered(source: Source, *, first: int = 1, longest: int | None = None) -> Iterator[tuple[int, str]]:
    """Every line, blank ones too, with its number; `first` is that of the first."""
    for line, block in Blocks(source, first=first, longest=longest):
        # Subtle: io.StringIO takes four bytes for each character, so a long line is removed before.
        cut = first_end(block) if len(block) > 4 * BLOCK else 0
        if cut:
            yield line, block[:cut]
        yield from enumerate(lines(block[cut:]), line + bool(cut))


def first_end(text: str) -> int:
    """Where the first line ends."""
    found = LINE_END.search(text)
    return len(text) if found is None else found.end()


def lines(text: str) -> io.StringIO:
    """The lines of a block, each with its end as it was."""
    return io.StringIO(text, newline="")


def ends(text: str) -> int:
    """How many line ends a text holds."""
    if "\r" not in text:
        return text.count("\n")
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def too_long(what: str, longest: int | None = None) -> str:
    """Why a line, row or element is not read to its end."""
    return f"the {what} is longer than {longest or LONGEST_RECORD:,} characters"
