"""Tables for terminals of any width: words wrap, and a number is shown whole or not at all.

If the columns do not fit beside each other, bars are left out, and if that is not enough, each row is printed as
several lines. Does not know what the cells mean.
"""

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from .wording import NUMBER

BETWEEN = 3  # cells from one column to the next
LONGEST_WORD = 24  # cells; a longer word may be broken, unless it is a number


class Table:
    """Rows of texts below headings. Columns named in `whole` are never wrapped; those named "" are bars, or titles."""

    def __init__(self, *columns: str, whole: Sequence[str] = ()) -> None:
        self._columns, self._whole, self._rows = columns, whole, list[tuple[Text, ...]]()

    def add_row(self, *cells: str | Text) -> None:
        """Add a row of as many cells as there are columns; a text is no markup."""
        self._rows.append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells))

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        everything = range(len(self._columns))
        for places in (everything, [place for place in everything if self._columns[place] or not place]):
            widths = self._widths(places, options.max_width - BETWEEN * (len(places) - 1))
            if widths:
                yield self._drawn(places, widths)
                return
        yield from self._stacked()

    def _widths(self, places: Sequence[int], room: int) -> list[int]:
        """The widths of these columns, together at most the width of the terminal; empty if that is too little."""
        wanted, widths = [], []
        for place in places:
            cells = [self._columns[place], *(row[place].plain for row in self._rows)]
            lines = [line for cell in cells for line in cell.split("\n")]
            wanted.append(max(map(cell_len, lines)))
            widths.append(wanted[-1] if self._columns[place] in self._whole else max(map(_least, lines)))
        for _ in range(room - sum(widths)):
            narrow = [one for one, width in enumerate(widths) if width < wanted[one]]
            if narrow:
                widths[min(narrow, key=lambda one: widths[one])] += 1
        return widths if sum(widths) <= room else []

    def _drawn(self, places: Sequence[int], widths: Sequence[int]) -> Drawn:
        drawn = Drawn(box=box.SIMPLE, show_edge=False, pad_edge=False)
        for place, width in zip(places, widths, strict=True):
            drawn.add_column(Text(self._columns[place]), overflow="fold", width=width)
        for row in self._rows:
            drawn.add_row(*(row[place] for place in places))
        return drawn

    def _stacked(self) -> Iterator[Text]:
        """Every row as lines, each after its heading."""
        for number, row in enumerate(self._rows):
            if number:
                yield Text()
            for place, (name, cell) in enumerate(zip(self._columns, row, strict=True)):
                if cell.plain and (name or not place):
                    between = "" if not name else "\n" if "\n" in cell.plain else " "
                    yield Text.assemble((name, "bold"), between, cell)


def _least(line: str) -> int:
    """The width below which a number would be cut, or an ordinary word."""
    words = line.split()
    return max(
        (cell_len(one) if NUMBER.fullmatch(one) else min(cell_len(one), LONGEST_WORD) for one in words), default=1
    )
