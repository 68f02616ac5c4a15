"""What the commands print: data to stdout, everything else to stderr.

A table on a terminal, JSON lines when piped, or what --table, --json, --csv and --plain ask for. rich is loaded only
where a table or a progress bar is really shown.
"""

import json
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import chain
from operator import methodcaller
from typing import TYPE_CHECKING, Any, cast

import click

from softkv.errors import BadRecord
from softkv.portrait import BAR, as_json, bar, harmless, short
from softkv.progress import Progress, Stages

from .wording import in_options

if TYPE_CHECKING:
    from .table import Table

Printed = Mapping[str, Any]
_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
INDENT = 12  # of the lines that continue a wrapped one


def resolved(form: str | None) -> str:
    """The form that was asked for, else a table on a terminal, else JSON."""
    return form or ("table" if sys.stdout.isatty() else "json")


def say(message: str) -> None:
    """Write a message to stderr; a failure to write it is ignored."""
    with suppress(OSError):
        click.echo(harmless(message), err=True)


def echo(text: str) -> None:
    """Write a line of data as it is; on a terminal control characters are escaped."""
    # Subtle: without `color` click removes from a pipe what looks like colours, which would change data.
    click.echo(harmless(text) if sys.stdout.isatty() else text, color=True)


def tell(text: str) -> None:
    """Write lines of prose: on a terminal they wrap between words, indented."""
    wide = shutil.get_terminal_size().columns
    how: dict[str, Any] = {"subsequent_indent": " " * min(INDENT, wide // 4), "break_long_words": False}
    for line in text.splitlines():
        echo("\n".join(textwrap.wrap(line, wide, break_on_hyphens=False, **how)) if sys.stdout.isatty() else line)


def print_json(record: Any) -> None:
    """One line of JSON."""
    # JSON escapes control characters itself.
    click.echo(as_json(record).translate(_IN_JSON))


def print_records(records: Iterable[Printed], columns: Sequence[str], form: str | None, *, plain: str) -> None:
    """Records in any form; `plain` is the column that --plain prints.

    A table leaves out columns that are empty everywhere.
    """
    chosen = resolved(form)
    if chosen == "json":
        for record in records:
            print_json({name: value for name, value in record.items() if value is not None})
    elif chosen == "csv":
        print_csv(records, columns)
    elif chosen == "plain":
        for record in records:
            echo(plain_text(record[plain]))
    else:
        rows = list(records)
        filled = [name for name in columns if any(row.get(name) is not None for row in rows)]
        table = new_table(*filled)
        scales = {name: _apart([row.get(name) for row in rows]) for name in filled}
        for row in rows:
            table.add_row(*(in_table(row.get(name), scales[name]) for name in filled))
        show(table)


def _apart(cells: Sequence[Any]) -> float:
    """How far the numbers of a column lie apart."""
    told = [cell for cell in cells if isinstance(cell, float)]
    return max(told) - min(told) if told else 0.0


def print_csv(records: Iterable[Printed], columns: Sequence[str], *, header: bool = True) -> None:
    """A header, unless it stands there already, and a line for each record."""
    from softkv.files.exports.delimited import line

    if header:
        sys.stdout.write(line(columns))
    for record in records:
        cells = [_cell(record.get(name)) for name in columns]
        sys.stdout.write(line(map(harmless, cells) if sys.stdout.isatty() else cells))


def plain_text(value: Any) -> str:
    """A value with nothing around it: a text as it is, a vector as JSON."""
    return value if isinstance(value, str) else _cell(value)


def new_table(*columns: str, whole: Sequence[str] = ()) -> "Table":
    """An empty table in the style of the command; the columns named in `whole` are never wrapped."""
    from .table import Table

    return Table(*columns, whole=whole)


def share(weight: float) -> str:
    """A bar for a weight, as long as the terminal has room for, of characters that it can show."""
    cells = min(BAR, max(5, shutil.get_terminal_size().columns // 5))
    drawn = bar(weight, cells)
    try:
        drawn.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return ("#" * round(weight * cells)).ljust(cells)
    return drawn


def in_table(value: Any, scale: float = 0.0) -> Any:
    """A value as it stands in a cell of a table: never markup, however many brackets it has.

    Numbers have the digits of differences of this scale.
    """
    from rich.text import Text

    return Text(short(json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, bool)) else value, scale))


def show(*renderables: Any) -> None:
    """Print something that rich can render."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for renderable in renderables:
        console.print(renderable)


@contextmanager
def progress(doing: str, *, quiet: bool = False) -> Iterator[Progress | None]:
    """A progress bar on stderr: a function (done, all) to move it, or None where there is no terminal to show it on."""
    with stages(doing, quiet=quiet) as moved:
        yield moved and (lambda done, total: moved(doing, done, total))


@contextmanager
def stages(first: str, *, quiet: bool = False, lines: bool = False) -> Iterator[Stages | None]:
    """A progress bar for work that has stages: a function (stage, done, all), whose bar starts anew with every stage.

    Where there is no terminal, `lines` prints a line for each stage when it begins.
    """
    if lines and not quiet and not sys.stderr.isatty():
        yield _a_line_each()
        return
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, now = bar.add_task(first, total=None), first

        def moved(stage: str, done: int, total: int) -> None:
            nonlocal now
            if stage != now:
                bar.reset(task, description=stage, total=total or None)
                now = stage
            bar.update(task, completed=done, total=total or None)

        yield moved


def _a_line_each() -> Stages:
    """A function that says the name of each stage when it begins."""
    said: set[str] = set()

    def moved(stage: str, _done: int, _total: int) -> None:
        if stage not in said:
            said.add(stage)
            say(stage)

    return moved


@contextmanager
def hints() -> Iterator[list[str]]:
    """Within the block, print warnings of the library to stderr; those printed so far are in the list."""
    said: list[str] = []

    def show(message: Warning | str, *_place: Any, **_more: Any) -> None:
        said.append(in_options(str(message)))
        say(f"hint: {said[-1]}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield said


def lines_of_stdin() -> Iterator[str]:
    """The lines of stdin."""
    return chain.from_iterable(lines_at_hand())


def lines_at_hand(most: int = 1) -> Iterator[list[str]]:
    """The lines of stdin, in batches of those that have arrived, up to so many; lines already there never wait."""
    number = 0
    for arrived in _arrived():
        for start in range(0, len(arrived), most):
            lines: list[str] = []
            for line in arrived[start : start + most]:
                number += 1
                try:
                    lines.append(line.decode().rstrip("\r"))
                except UnicodeDecodeError as error:
                    yield lines
                    where = f"stdin:{number}: byte {error.start} of the line"
                    raise BadRecord(f"{where} is not UTF-8. Convert it with iconv.") from error
            yield lines


def _arrived() -> Iterator[list[bytes]]:
    begun: list[bytes] = []  # the parts of a line that has not ended
    stdin = cast(BufferedReader, sys.stdin.buffer)
    while piece := stdin.read1(1 << 16):
        first, *more = piece.split(b"\n")
        begun.append(first)
        if more:
            yield [b"".join(begun), *more[:-1]]
            begun = more[-1:]
    if any(begun):
        yield [b"".join(begun)]


def expanded(names: Iterable[str]) -> Iterator[str]:
    """The names, with the lines of stdin in the place of `-`; empty lines are ignored."""
    return chain.from_iterable(filter(None, lines_of_stdin()) if name == "-" else [name] for name in names)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=methodcaller("tolist"))
