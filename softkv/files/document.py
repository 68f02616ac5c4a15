"""A JSON document: a list of objects, or one object that maps keys to values; read element by element.

json.load would hold all of it at once. Here a window moves over the text, and an element that the window cuts off is
read again from a larger one. Invalid JSON ends the reading: there is no way to tell where the next element begins.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from softkv.files.decoding import Undecodable, pieces
from softkv.files.limits import LONGEST_RECORD
from softkv.files.lines import ends, too_long
from softkv.files.notation import DECODER, unreadable
from softkv.files.objects import Placed, records
from softkv.files.record import Columns, Misfit, Record, shown
from softkv.files.source import Source

BLANKS = " \t\r\n"
MORE_OF_A_NUMBER = ("", ".", "e", "e+", "e-", "E", "E+", "E-")  # what it may go on with, cut before the next digit
LENIENT = json.JSONDecoder()  # finds the end of an element that DECODER refuses


MAPPED = Columns(key="key", value=("value",))


def read(source: Source, columns: Columns, kind: str | None) -> Iterator[Record]:
    """The records of a document."""
    window = _Window(source)
    opening = window.next()
    if opening == "{" and columns.named():
        why = f"it maps keys to values and has no columns, so no {shown(columns.named()[0])} among them"
        raise source.refusals.fatal(why, window.line)
    if opening == "[":
        yield from records(_elements(window, "]", window.element), columns, kind, source.refusals)
    elif opening == "{":
        yield from records(_elements(window, "}", window.member), MAPPED, kind, source.refusals)
    else:
        why = "a list of objects is expected, or one object that maps keys to values"
        raise source.refusals.fatal(f"{why}, not {shown(opening)}" if opening else f"is empty; {why}", window.line)
    if window.next():
        raise source.refusals.fatal(
            "there is more after the end of the document; JSON lines? format='jsonl'", window.line
        )


def _elements(window: "_Window", closing: str, read: Callable[[], tuple[Any, int]]) -> Iterator[Placed]:
    if window.peek() == closing:
        window.next()
        return
    follows = ","
    while follows == ",":
        window.peek()
        line = window.line
        try:
            placed = (line, *read())
        except Misfit as why:
            placed = line, why, 0
        yield placed
        follows = window.next()
    if follows != closing:
        found = shown(follows) if follows else "the end"
        raise window.fatal(f"a comma or {closing!r} is expected, not {found}")


class _Window:
    """The part of a text in memory, and the line it begins on."""

    def __init__(self, source: Source) -> None:
        self._refusals, self._pieces = source.refusals, pieces(source)
        self._text, self._at = "", 0
        self._ended = False
        self.line = 1

    def next(self) -> str:
        """Step over the next character that is not blank, and return it; "" at the end."""
        found = self.peek()
        self._step(self._at + len(found))
        return found

    def peek(self) -> str:
        """Step up to the next character that is not blank, and return it; "" at the end."""
        while True:
            rest = len(self._text)
            at = self._at
            while at < rest and self._text[at] in BLANKS:
                at += 1
            self._step(at)
            if at < rest or not self._more():
                return self._text[at : at + 1]

    def fatal(self, why: str) -> Exception:
        """The error that ends the reading here."""
        return self._refusals.fatal(why, self.line)

    def member(self) -> tuple[Any, int]:
        """A name and what it maps to, as a key and its value."""
        if self.peek() != '"':
            raise self.fatal("a name in double quotes is expected")
        name, length = self.element()
        if self.next() != ":":
            raise self.fatal(f"a colon is expected after {shown(name)}")
        value, more = self.element()
        return {"key": name, "value": value}, length + more

    def element(self) -> tuple[Any, int]:
        """The next element, and its length; one that is valid JSON but not accepted is returned as a Misfit."""
        self.peek()
        try:
            element, end = self._decoded(DECODER)
        except Misfit:
            self._step(self._decoded(LENIENT)[1])
            raise
        length = end - self._at
        self._step(end)
        return element, length

    def _decoded(self, decoder: json.JSONDecoder) -> tuple[Any, int]:
        while True:
            try:
                element, end = decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._more():
                    raise self.fatal(self._unreadable(error)) from error
                continue
            # Subtle: a number may continue beyond the window, also one that seems to end before its last "." or "e+".
            if self._text[end : end + 3] not in MORE_OF_A_NUMBER or not self._more():
                return element, end

    def _unreadable(self, error: Exception) -> str:
        if len(self._text) - self._at > LONGEST_RECORD:
            return too_long("element")
        if isinstance(error, json.JSONDecodeError):
            return f"not JSON: {error.msg.lower()} at line {self.line + ends(self._text[self._at : error.pos])}"
        return unreadable(error)

    def _step(self, at: int) -> None:
        self.line += self._text.count("\n", self._at, at)
        self._at = at

    def _more(self) -> bool:
        """Widen the window, at least twofold; False at the end, or when it is too wide."""
        wanted = 2 * (len(self._text) - self._at)
        parts = [self._text[self._at :]]
        if wanted > 2 * LONGEST_RECORD or self._ended:
            return False
        while not self._ended and sum(map(len, parts)) <= wanted:
            parts.append(self._piece())
        grown = sum(map(len, parts[1:])) > 0
        self._text, self._at = "".join(parts), 0
        return grown

    def _piece(self) -> str:
        try:
            piece = next(self._pieces, None)
        except Undecodable as why:
            line = self.line + ends(self._text[self._at :])
            raise self._refusals.fatal(why, line) from why.__cause__
        self._ended = piece is None
        return piece or ""
