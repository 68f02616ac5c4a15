"""`compare --eval FILE`: every way to look up, measured on queries whose answers are known."""

from pathlib import Path
from typing import Any

import click

from softkv.portrait import counted, short

from . import output
from .labelled import Naming, queries_of, strangers_of
from .wording import in_options

DRAWN = (".png", ".svg")
STEPS = tuple(2.0 ** (half / 2) for half in range(-6, 7))  # of the temperatures in a plot


def plot_to(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    """A file to draw into; refused before anything is asked if that is impossible."""
    if given is None:
        return None
    if Path(given).suffix.lower() not in DRAWN:
        raise click.BadParameter(f"{given!r} is neither a .png nor a .svg; give a name that ends so")
    if not Path(given).resolve().parent.is_dir():
        raise click.BadParameter(f"the folder of {given!r} is not there; make it first")
    return given


def evaluate(
    path: str,
    source: str,
    naming: Naming,
    out_of_scope: str | None,
    *,
    plot: str | None,
    model: str | None,
    quiet: bool,
    form: str | None,
    **how: Any,
) -> None:
    """Ask all queries of the file, print how good the answers are, and draw it."""
    import softkv

    if plot is not None:
        from . import plotting

        plotting.require()
    with softkv.open(path, "r", embedder=model) as db:
        queries, targets = queries_of(source, naming, db.value_kind)
        strangers = None if out_of_scope is None else strangers_of(out_of_scope, naming)
        with output.stages("asking", quiet=quiet) as moved:
            found = db.evaluate(
                queries,
                targets,
                out_of_scope=strangers,
                temperatures=() if plot is None else STEPS,
                progress=moved,
                **how,
            )
    _print(found, form)
    others = f" and {found.out_of_scope:,} that are out of scope" if found.out_of_scope else ""
    output.say(f"{found.queries:,} queries{others}, asked of {counted(found.items, 'item')}")
    if plot is not None:
        plotting.draw(found, plot)
        output.say(f"drawn in {plot}")


def _print(found: Any, form: str | None) -> None:
    from softkv.database.evaluating import MEASURES

    columns = ("way", "temperature", "answered", *MEASURES, "routes", "scanned", "rows_read")
    records = [{name: getattr(one, name) for name in columns} for one in found.ways]
    if output.resolved(form) != "table":
        output.print_records(records, columns, form, plain=found.measures[0])
        return
    names = ("way", "temperature", "answered", *found.measures, "rows_read")
    table = output.new_table(*(name.replace("_", " ") for name in names))
    for record in records:
        cells = {**record, "answered": f"{record['answered']:.1%}"}
        table.add_row(*("" if cells[name] is None else short(cells[name]) for name in names))
    output.show(table)
    for way in found.ways:
        if way.scanned:
            output.say(f"{way.way}: {way.routes['scan']:,} scanned, {in_options(way.scanned)}")
