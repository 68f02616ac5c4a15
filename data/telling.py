"""Show a README in a terminal: format its prose, and run its code.

The code of a README is in ```pycon blocks, as in a session of the interpreter. The outputs in the file are replaced by
those of the code as it runs now. The tests check that the two agree.

Does not know where READMEs are, or their order (__init__.py).
"""

import doctest
import io
import re
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
BULLET = "- "
INDENT = " " * 4


def told(text: str, width: int) -> Iterator[str]:
    """The lines of a README, with a blank line between paragraphs and blocks."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, piece in enumerate(_pieces(text, width, names)):
        if number:
            yield ""
        yield from piece


def _pieces(text: str, width: int, names: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The headings, paragraphs and blocks, each as an iterator of lines."""
    end = 0
    for block in BLOCK.finditer(text):
        yield from _prose(text[end : block.start()], width)
        yield _performed(block[2], names) if block[1] == "pycon" else _indented(block[2])
        end = block.end()
    yield from _prose(text[end:], width)


def _prose(text: str, width: int) -> Iterator[Iterator[str]]:
    for paragraph in filter(None, map(str.strip, re.split(r"\n\s*\n", text))):
        yield iter(_dressed(paragraph, width))


def _dressed(paragraph: str, width: int) -> list[str]:
    """A paragraph without Markdown syntax, wrapped."""
    if paragraph.startswith("#"):
        level, heading = paragraph.split(" ", 1)
        return [heading, ("=" if level == "#" else "-") * len(heading)]
    plain = LINK.sub(r"\1", paragraph).replace("**", "")
    if not plain.startswith(BULLET):
        return textwrap.wrap(plain, width, break_on_hyphens=False)
    return [
        line
        for item in re.split(r"^- ", plain, flags=re.MULTILINE)[1:]
        for line in textwrap.wrap(
            BULLET + " ".join(item.split()), width, subsequent_indent="  ", break_on_hyphens=False
        )
    ]


def _indented(text: str) -> Iterator[str]:
    return (f"{INDENT}{line}".rstrip() for line in text.splitlines())


def _performed(code: str, names: dict[str, Any]) -> Iterator[str]:
    """The examples of a block, each followed by what it prints."""
    for one in doctest.DocTestParser().get_examples(code):
        for number, line in enumerate(one.source.splitlines()):
            yield f"{INDENT}{'...' if number else '>>>'} {line}".rstrip()
        yield from _indented(_run(one, names))


def _run(one: doctest.Example, names: dict[str, Any]) -> str:
    """The output of one example. An exception that its README does not show is raised."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), _bare_display():
            exec(compile(one.source, "<example>", "single"), names)
    except Exception as error:
        if one.exc_msg is None:
            raise
        printed.writelines(traceback.format_exception_only(error))
    return printed.getvalue()


@contextmanager
def _bare_display() -> Iterator[None]:
    """Print the values of expressions as the interpreter does, but leave its `_` alone."""
    kept = sys.displayhook
    sys.displayhook = lambda value: None if value is None else print(repr(value))
    try:
        yield
    finally:
        sys.displayhook = kept
