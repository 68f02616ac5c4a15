"""How the figures of the index are told: a table for each section, what was to be reached, and whether it was.

Figures that are drawn later, or compared with later ones, are kept in the folder of the run.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from softkv.asking import route
from softkv.index.calibration import Calibration

HEAD = "| what | figure | against | goal | reached |\n|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure is to be: at most a number, or at least."""

    limit: float
    shown: str
    least: bool = False

    def reached(self, figure: float) -> str:
        """Whether it is, or by how much not."""
        if figure >= self.limit if self.least else figure <= self.limit:
            return "yes"
        missed = 1.0 - figure / self.limit if self.least else figure / self.limit - 1.0
        if missed >= 1:
            return f"missed: {figure / self.limit:.3g} × the goal"
        return f"missed by {missed:.1%}" if missed < 0.1 else f"missed by {missed:.0%}"


def at_most(limit: float, shown: str = "") -> Goal:
    """The goal not to exceed a number.

    >>> at_most(0.6).reached(0.75)
    'missed by 25%'
    """
    return Goal(limit, f"≤ {shown or format(limit, 'g')}")


def at_least(limit: float, shown: str = "") -> Goal:
    """The goal not to stay below a number.

    >>> at_least(0.95, "95%").reached(0.95)
    'yes'
    """
    return Goal(limit, f"≥ {shown or format(limit, 'g')}", least=True)


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """One run: where it works, how large, how often; and what it tells."""

    folder: Path
    figures: Path
    scale: float = 1.0
    rounds: int = 15
    pause: float = 0.2  # seconds, in which the threads of the contestant before go to sleep
    threads: int = 1
    texts: str | None = None  # the folder of clinc150 and banking77
    anew: set[str] | None = None  # indexes that were built by this run; None where those of others will do
    begun: list[str] = field(default_factory=list)

    def sized(self, count: float, least: int = 1) -> int:
        """A number of items, scaled down."""
        return max(least, round(count * self.scale))

    def begin(self, title: str, *notes: str) -> None:
        """The head of a section, and of its table."""
        print("\n".join(["", f"### {title}", "", *(f"{note}\n" for note in notes), HEAD]), flush=True)
        self.begun.append(title)

    def row(
        self, what: str, figure: str, against: str = "", goal: Goal | None = None, value: float | None = None
    ) -> None:
        """A line of the table; `value` is compared with the goal."""
        reached = "" if goal is None or value is None else goal.reached(value)
        print(f"| {what} | {figure} | {against} | {goal.shown if goal else ''} | {reached} |", flush=True)

    def keep(self, name: str, found: Mapping[str, Any]) -> None:
        """Remember figures under a name, for later sections and later runs."""
        (self.folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")

    def kept(self, name: str) -> dict[str, Any] | None:
        """What was remembered, if it was."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


Section = Callable[[Bench], None]


@contextmanager
def never_cheap() -> Iterator[str]:
    """Let no store be so small that it is scanned; gives the words to say so."""
    with patch.multiple(route, CHEAP=0, SCATTERED=0):
        yield "So small a store would be scanned by itself; here its index is asked all the same (`CHEAP = 0`)."


FREE = dict.fromkeys(("CHEAP", "STARTED", "STARTED_EACH", "DRAWN_NUMBER", "ASKED_NUMBER"), 0.0)
UNPRICED = FREE | {"DRAWN": 1e-9, "GATHERED": 1 << 40, "ALONE": 1 << 40}


@contextmanager
def always_measured() -> Iterator[str]:
    """Let every question that suits the lists be measured, if that takes no more than 40% of the rows.

    Changes what the route believes that things cost, and finds no plan that was rehearsed; nothing in how is measured.
    Gives the words to say so.
    """
    with patch.multiple(route, **UNPRICED), patch.object(Calibration, "plan", lambda *_: None):
        yield "Scans, few rows that a filter leaves and rehearsed plans would be cheaper; here all are measured."
