"""How `compare` shows one query, looked up in every way: side by side, and from cold to warm."""

import shutil
import textwrap
from typing import Any

from softkv.portrait import estimate_of, exact_of, name_of, number, scale_of, value_of

from . import output
from .wording import NUMBER

COLUMNS = ("query", "way", "value", "refused")
WAYS = ("hard", "top_k", "soft")
SHOWN = 5  # contributors of each way
WIDEST, NARROWEST, BESIDE = 31, 15, 34  # characters: of the column of a way at most, at least; and of what is beside it
LINES = 2  # of a key
SHARE = "  0.0% "  # what stands before a key


def bare(answer: Any) -> Any:
    """The value of an answer with nothing around it."""
    texts = answer.texts
    return texts[0].text if texts else answer.label if answer.labels is not None else _listed(answer.value)


def values(found: Any) -> list[dict[str, Any]]:
    """The value of each way, with nothing around it."""
    exact = None if found.exact is None else _listed(found.exact.value)
    return [{"way": "exact", "value": exact}, *({"way": way, "value": bare(getattr(found, way))} for way in WAYS)]


def show(found: Any) -> None:
    """Show the ways as a table, and below it the strip of temperatures."""
    output.show(_ways(found), _strip(found))


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _ways(found: Any) -> Any:
    """The four ways as columns: the value, who it is made of, and how much of the mass that is."""
    ways = [getattr(found, way) for way in WAYS]
    heads = ("hard", f"top {found.top_k.scored}", "full soft")
    wide = max(NARROWEST, min(WIDEST, (shutil.get_terminal_size().columns - BESIDE) // len(ways)))
    scale = scale_of(found.soft)
    table = output.new_table("", "exact", *heads, whole=heads)
    table.add_row("value", exact_of(found, scale), *("\n".join(_wrapped(value_of(way, scale), wide)) for way in ways))
    made_of = ("\n".join(_contributor(one, wide) for one in way.contributors[:SHOWN]) for way in ways)
    table.add_row("weights", "", *made_of)
    table.add_row("effective", "", *(number(way.effective) for way in ways))
    table.add_row("of the mass", "", *("unknown" if way.mass is None else f"{way.mass:.1%}" for way in ways))
    if any(told := [estimate_of(way) for way in ways]):
        table.add_row("error", "", *told)
    if any(way.reason for way in ways):
        routes = (f"{way.route}, {way.rows_read:,} rows" for way in ways)
        table.add_row("route", "", *("\n".join(_wrapped(route, wide)) for route in routes))
    return table


def _contributor(one: Any, wide: int) -> str:
    """A weight and a key, in lines of this width."""
    first, *more = _wrapped(name_of(one), wide - len(SHARE), max_lines=LINES) or [""]
    return "\n".join([f"{one.weight:6.1%} {first}", *(" " * len(SHARE) + line for line in more)])


def _wrapped(text: str, room: int, **how: Any) -> list[str]:
    """A text in lines of this width; a word that is longer is cut short, and a number left out."""
    cut = (0 if NUMBER.fullmatch(word) else room - 1 for word in text.split())
    words = (word if len(word) <= room else f"{word[:end]}…" for word, end in zip(text.split(), cut, strict=True))
    return textwrap.wrap(" ".join(words), room, break_on_hyphens=False, placeholder="…", **how)


def _strip(found: Any) -> Any:
    """The query from cold, where the best key takes all, to warm, where all count alike."""
    errors, scale = ("error",) if any(map(estimate_of, found.strip)) else (), scale_of(found.soft)
    table = output.new_table("temperature", "weight of the best", "", "effective", "value", *errors, whole=("",))
    for one in found.strip:
        usual = " (usual)" if one.temperature == found.soft.temperature else ""
        weight = (f"{one.weight:.1%}", output.share(one.weight))
        cells = (number(one.effective), output.in_table(one.value, scale), *([estimate_of(one)] if errors else []))
        table.add_row(number(one.temperature) + usual, *weight, *cells)
    return table
