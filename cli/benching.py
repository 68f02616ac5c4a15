"""`bench`: this machine, softkv beside plain FAISS and plain NumPy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from softkv.errors import MissingExtra, StoreExists
from softkv.progress import untold

from . import options, output

if TYPE_CHECKING:
    from .contest import Result
    from .mixtures import Mixture

BATCH = 50_000  # items added together


@click.command(epilog=options.example("softkv bench --items 1000 --width 32 --repeats 1"))
@click.option("--items", type=click.IntRange(min=100), default=100_000, show_default=True, help="Items in the store.")
@click.option("--width", type=click.IntRange(min=1), default=384, show_default=True, help="Numbers in a key.")
@click.option("--value-width", type=click.IntRange(min=1), default=64, show_default=True, help="Numbers in a value.")
@click.option("--queries", type=click.IntRange(min=1), default=32, show_default=True, help="Queries in the batch.")
@options.temperature
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="What items are made from.")
@click.option("--repeats", type=click.IntRange(min=1), default=9, show_default=True, help="Rounds, for the medians.")
@click.option(
    "--pause",
    type=options.Seconds(min=0),
    default=0.1,
    show_default=True,
    help="Seconds between two contestants, in which the threads of the one before go to sleep.",
)
@click.option("--keep", metavar="PATH", help="Keep the store there; otherwise it goes.")
@options.form
@options.progress_off
def bench(
    items: int,
    width: int,
    value_width: int,
    queries: int,
    temperature: float | None,
    seed: int,
    repeats: int,
    pause: float,
    keep: str | None,
    form: str | None,
    no_progress: bool,
) -> None:
    """Measure lookups of a store and its index on this machine, beside plain FAISS and NumPy.

    Makes items in clusters, adds them to a store, builds its index, and asks all in turn, with the same threads.
    Ratios matter, single times do not.
    """
    import softkv

    from .contest import contest
    from .machine import machine, threads
    from .mixtures import mixture

    with _place(keep) as path, softkv.open(path, compatibility="cosine", temperature=temperature) as db:
        with output.stages("making items", quiet=no_progress) as moved:
            made = mixture(items, width, value_width, queries, seed)
            _fill(db, made, moved or untold)
            index = _build(db, moved or untold)
        if moved is not None:
            output.say("asking in turn ...")  # a bar that moves would take its share of the time
        info, count = db.info(), threads()
        found = contest(db, made, index=index, rounds=repeats, pause=pause, threads=count)
    facts = {
        "machine": machine(),
        "threads": count,
        "backend": info.backend,
        "items": items,
        "width": width,
        "value_width": value_width,
        "queries": queries,
        "seed": seed,
        "temperature": info.temperature,
        "index": None if info.index is None else str(info.index),
    }
    _print(facts, found, form)


@contextmanager
def _place(keep: str | None) -> Iterator[str]:
    """Where the store is made: at a new path, or in a directory that is removed, also after Ctrl-C."""
    if keep is not None:
        if os.path.lexists(keep):
            raise StoreExists(f"there is something at {keep} already. Name a new place with --keep.")
        try:
            yield keep
        except KeyboardInterrupt:
            output.say(f"interrupted: what was made until then is at {keep}")
            raise
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="softkv-bench-") as folder:
        yield os.path.join(folder, "bench.softkv")


def _fill(db: Any, made: "Mixture", told: Any) -> None:
    for start in range(0, len(made.keys), BATCH):
        part = slice(start, start + BATCH)
        db.add(vectors=made.keys[part], values=made.values[part])
        told("adding items", min(part.stop, len(made.keys)), len(made.keys))


def _build(db: Any, told: Any) -> bool:
    """Build the index; False, with a word about it, where there is no FAISS."""
    try:
        db.build_index(progress=told)
    except MissingExtra as error:
        output.say(f"{error}. The index and the rows of FAISS are left out.")
        return False
    return True


def _print(facts: dict[str, Any], found: "list[Result]", form: str | None) -> None:
    chosen = output.resolved(form)
    records = [asdict(one) for one in found]
    if chosen == "json":
        output.print_json({**facts, "ways": records})
    elif chosen == "table":
        output.show(*_headings(facts), "", _table(facts, found), *_footnotes(facts, found))
    else:
        output.print_records(records, [one.name for one in fields(found[0])], chosen, plain="one_ms")


def _headings(facts: dict[str, Any]) -> list[str]:
    size = f"{facts['items']:,} items, keys {facts['width']} wide, values {facts['value_width']} wide"
    return [
        facts["machine"],
        f"{size}, temperature {facts['temperature']:.4g}, {facts['threads']} threads, {facts['backend']}",
        f"index: {facts['index'] or 'none'}",
    ]


def _table(facts: dict[str, Any], found: "list[Result]") -> Any:
    many = f"{facts['queries']:,} queries"
    head = ["", "1 query", "÷ FAISS", "÷ NumPy", many, "÷ FAISS", "÷ NumPy", "error", "largest", "rows read"]
    table = output.new_table(*head)
    for one in found:
        times = [_times(one.one_ms, one.one_to_faiss, one.one_to_numpy)]
        times += [_times(one.batch_ms, one.batch_to_faiss, one.batch_to_numpy)]
        errors = ("" if error is None else f"{error:.2g}" for error in (one.error, one.largest_error))
        table.add_row(one.way, *times[0], *times[1], *errors, f"{one.rows_read:,.0f}")
    return table


def _times(ms: float, *ratios: float | None) -> list[str]:
    return [f"{ms:.2f} ms", *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios)]


def _footnotes(facts: dict[str, Any], found: "list[Result]") -> list[str]:
    """Lines below the table."""
    notes = [
        "",
        "error: from the full softmax in float64, as a share of the value scale, median and largest of the batch",
    ]
    for one in found:
        if one.largest_stated is not None:
            kept = f"states at most {one.largest_stated:.2g}, kept by {one.kept} of {facts['queries']}"
            estimated = "" if one.estimated is None else f"; {one.estimated} of {facts['queries']} estimated"
            scanned = f", the others scanned: {one.scanned}" if one.scanned else ""
            notes.append(f"{one.way}: {kept}{estimated}{scanned if estimated else ''}")
    return notes
