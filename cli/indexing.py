"""The index that spares lookups most of the keys: `index build`, `index status`, `index drop`."""

import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from softkv.errors import SoftKVError

from . import options, output, served
from .wording import in_options

if TYPE_CHECKING:
    from softkv.database.summary import Info

NONE = "no index: lookups scan"


@click.group(epilog=options.example("softkv index status --db films.softkv"))
@options.store_before
def index() -> None:
    """Build, look at or drop the index by which lookups read a few percent of a large store."""


@index.command(epilog=options.example("softkv index build --db films.softkv"))
@options.database
@click.option(
    "--kind", default="lists", show_default=True, help="lists; or hnsw, ivf, pq, rabitq or a FAISS factory string."
)
@click.option("--lists", type=click.IntRange(min=1), help="How many lists the items are divided into.")
@click.option(
    "--temperatures",
    nargs=2,
    type=float,
    metavar="LOW HIGH",
    help="The temperatures to calibrate for; by default around that of the store.",
)
@click.option("--queries", metavar="FILE.npy", help="Vectors like those to be asked, to calibrate on; else items are.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "cpu", "gpu"]),
    default="auto",
    show_default=True,
    help="Where the lists are made.",
)
@click.option("--whole", is_flag=True, help="Make all lists anew, also where those there are could be refined.")
@options.wait
@options.progress_off
def build(
    path: str,
    kind: str,
    lists: int | None,
    temperatures: tuple[float, float] | None,
    queries: str | None,
    backend: str,
    whole: bool,
    wait: float,
    no_progress: bool,
) -> None:
    """Build an index of all items, or refine the one there is. Lookups go on meanwhile.

    Items that are added later find their lists as they are added.
    """
    from softkv.database.indexing import UNCHANGED

    vectors, stages = None if queries is None else _vectors(queries), set()
    wanted: dict[str, Any] = {"lists": lists, "queries": vectors, "temperatures": temperatures, "whole": whole}
    with served.writing(path, wait=wait) as db:
        started = time.monotonic()
        try:
            if not no_progress:
                output.say(_forecast(db, kind, **wanted))
            with output.stages("reading", quiet=no_progress, lines=True) as moved:

                def noted(stage: str, done: int, total: int) -> None:
                    stages.add(stage)
                    if moved is not None:
                        moved(stage, done, total)

                found = db.build_index(kind, backend=backend, progress=noted, **wanted)
        except KeyboardInterrupt:
            output.say(_interrupted(db, path))
            raise
    did = "left as it is" if UNCHANGED in stages else f"built in {time.monotonic() - started:.1f} s"
    output.say(f"{did}: {_told(found)}")


@index.command(epilog=options.example("softkv index status --db films.softkv"))
@options.database
@options.form
def status(path: str, form: str | None) -> None:
    """Say what the index is of, what was added and deleted since, and why it cannot be used if it cannot."""
    import softkv

    with softkv.open(path, "r") as db:
        found = db.info()
    record = {"index": found.to_dict()["index"], "says": _told(found), "backend": found.backend}
    if output.resolved(form) == "json":
        output.print_json(record)
    elif form == "csv":
        output.print_csv([record], list(record))
    else:
        output.tell("\n".join(_lines(found)) if form != "plain" else record["says"])


@index.command(epilog=options.example("softkv index drop --db films.softkv"))
@options.database
@options.wait
def drop(path: str, wait: float) -> None:
    """Forget the index; lookups scan again. No item is touched."""
    with served.writing(path, wait=wait) as db:
        there = db.info().index is not None
        db.drop_index()
    output.say("dropped: lookups scan again" if there else "there was no index to drop")


def _told(found: "Info") -> str:
    """The part of `info` about the index, with options of the command in its advice."""
    if found.index is None:
        return NONE if found.proposer is None else f"{NONE}, but rows are proposed for {found.proposer}"
    return in_options(str(found.index))


def _lines(found: "Info") -> list[str]:
    """The facts about an index and how it was built, a line for each."""
    shown = {"index": _told(found)}
    built = found.index.built if found.index else {}
    if built:
        low, high = built["temperatures"]
        shown["calibrated"] = f"on {built['queries']:,} {built['calibrated_on']}, for T from {low:.4g} to {high:.4g}"
        shown["built in"] = f"{built['seconds']} s"
    if found.index and found.index.checked:
        shown["checked"] = found.index.checked
    shown["backend"] = found.backend
    return [f"{name:10}  {says}" for name, says in shown.items()]


def _vectors(file: str) -> Any:
    """The vectors in an npy file, or `-` for one on stdin."""
    import numpy as np

    from softkv.files import records

    found: list[Any] = [one.vector for one in records(file, format="npy")]
    return np.stack(found) if found else np.empty((0, 0), np.float32)


def _forecast(db: Any, kind: str, **wanted: Any) -> str:
    """The forecast of the build, in words."""
    begun = db.info().building if kind == "lists" else None
    return f"this takes {db.forecast_index(kind, **wanted)}" + (f"; less, since an index {begun}" if begun else "")


def _interrupted(db: Any, path: str) -> str:
    """What an interrupted build leaves, in words."""
    again = f"`softkv index build --db {shlex.quote(path)}` starts again."
    try:
        info = db.info()
        state = "lookups scan" if info.index is None else "the index is the one from before"
        again = (
            again if info.building is None else again.replace("starts again", "goes on from the last finished stage")
        )
    except SoftKVError:
        return f"interrupted. {again}"
    return f"interrupted. Nothing is lost, and {state}. {again}"
