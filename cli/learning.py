"""What a store learns from its own items: `tune` a temperature, `fit` a way to compare."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from softkv.portrait import number

from . import labelled, options, output, served
from .wording import in_options

if TYPE_CHECKING:
    from softkv.learning.tuning import Tuned

TRIED = ("compatibility", "k", "temperature", "loss")
holding = click.option(
    "--hold-out",
    type=float,
    default=0.2,
    show_default=True,
    help="The share of items that take no part, for `guard`; 0 for none.",
)
seeded = click.option("--seed", type=int, default=0, show_default=True, help="Chooses the items that are asked.")


@click.command(epilog=options.example("softkv tune --db films.softkv"))
@options.database
@click.option(
    "-k", "ks", type=click.IntRange(min=1), multiple=True, help="Try the k best items too; may be given again."
)
@click.option(
    "--compatibility", "ways", multiple=True, metavar="NAME", help="Try this way to compare; may be given again."
)
@holding
@seeded
@options.wait
@options.progress_off
@options.form
def tune(
    path: str,
    ks: tuple[int, ...],
    ways: tuple[str, ...],
    hold_out: float,
    seed: int,
    wait: float,
    no_progress: bool,
    form: str | None,
) -> None:
    """Choose the temperature at which items, left out one by one, are best predicted by others.

    The store asks so from now on, and compares by the best of the ways that were tried.
    """
    with served.writing(path, wait=wait) as db, output.stages("tuning", quiet=no_progress) as moved:
        found = db.tune(compatibility=ways or None, k=ks or None, hold_out=hold_out, seed=seed, progress=moved)
        learned = db.info().projection is not None
    chosen = output.resolved(form)
    if chosen == "json":
        output.print_json(asdict(found))
    elif chosen == "csv":
        output.print_csv(_tried(found), TRIED)
    elif chosen == "plain":
        click.echo(output.plain_text(found.temperature))
    else:
        output.show(str(found).splitlines()[0], _curve(found))
    _, temperature = found.full.best
    output.say(f"remembered: temperature {number(temperature)}, {found.full.compatibility}")
    if learned:
        output.say("lookups compare by what was learned; this is for those that say --no-projection")


def _tried(found: "Tuned") -> list[dict[str, Any]]:
    """Every temperature that was tried, of every way to compare and every k."""
    return [
        {"compatibility": curve.compatibility, "k": curve.k, "temperature": temperature, "loss": loss}
        for curve in found.curves
        for temperature, loss in zip(curve.temperatures, curve.losses, strict=True)
    ]


def _curve(found: "Tuned") -> Any:
    """The losses around the best, as bars."""
    rows = [one for one in _tried(found) if (one["compatibility"], one["k"]) == (found.compatibility, found.k)]
    least, most = min(one["loss"] for one in rows), max(one["loss"] for one in rows)
    table = output.new_table("temperature", found.measure, "", whole=("",))
    for one in rows:
        mark = " (best)" if one["temperature"] == found.temperature else ""
        share = (one["loss"] - least) / (most - least) if most > least else 0.0
        table.add_row(number(one["temperature"]) + mark, number(one["loss"]), output.share(share))
    return table


@click.command(epilog=options.example("softkv fit --db films.softkv --rank 8"))
@options.database
@click.option("--rank", type=click.IntRange(min=1), help="How many directions count; by default all, at most 384.")
@click.option(
    "--planes/--no-planes",
    default=None,
    help="Read numbers off planes through the items, or not; by default as turns out better.",
)
@click.option("--queries", "source", metavar="FILE", help="Queries whose answers are known, if unlike the items.")
@labelled.options
@click.option("--vector", metavar="COLUMN,...", help="The columns of FILE with the vectors that ask.")
@holding
@seeded
@click.option("--drop", is_flag=True, help="Forget what was learned.")
@options.wait
@options.progress_off
@options.form
def fit(
    path: str,
    rank: int | None,
    planes: bool | None,
    source: str | None,
    naming: labelled.Naming,
    vector: str | None,
    hold_out: float,
    seed: int,
    drop: bool,
    wait: float,
    no_progress: bool,
    form: str | None,
) -> None:
    """Learn to compare: so that items, left out, are best predicted by the others.

    No vector that is stored changes. Where items that took no part are predicted better, lookups compare so from now
    on, unless they say --no-projection, and an index has to be built again; else nothing changes.
    """
    if drop and not (rank is None and planes is None and source is None):
        raise click.UsageError("--drop only forgets; leave out what is about learning")
    if source is None and (naming.given or vector is not None):
        raise click.UsageError("columns are those of a file; name it with --queries")
    with served.writing(path, wait=wait) as db:
        if drop:
            dropped = db.forget_fit()
            output.say(
                "dropped: keys are compared as they are given"
                if dropped
                else "nothing was learned, so there is nothing to drop"
            )
            return
        queries, targets = None, None
        if source is not None:
            naming = replace(naming, vector=labelled.names_of(vector))
            queries, targets = labelled.queries_of(source, naming, db.value_kind)
        try:
            with output.stages("fitting", quiet=no_progress) as moved:
                found = db.fit(queries, targets, rank=rank, planes=planes, hold_out=hold_out, seed=seed, progress=moved)
        except KeyboardInterrupt:
            output.say("interrupted. Nothing is lost: keys are compared as before.")
            raise
    record = {**asdict(found), "kept": found.kept}
    chosen = output.resolved(form)
    if chosen == "table":
        output.tell(str(found))
    elif chosen == "json":
        output.print_json(record)
    else:
        output.print_records([record], [name for name in record if name != "curve"], chosen, plain="loss")


@click.command(epilog=options.example("softkv guard --wrong-at-most 0.1 --db films.softkv"))
@options.database
@click.option(
    "--wrong-at-most",
    type=float,
    default=0.05,
    show_default=True,
    help="The share of known answers that may be wrong; where values are no labels, of queries turned away.",
)
@click.option("--strangers-at-most", type=float, help="The share of --strangers that may be known.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="How sure that is to be.")
@click.option(
    "--on-average", is_flag=True, help="Promise shares of all queries, on average; takes a third of the items."
)
@click.option(
    "--queries", "source", metavar="FILE", help="Calibrate on queries whose answers are known, and not items."
)
@click.option("--strangers", metavar="FILE", help="Queries that no item answers.")
@labelled.options
@click.option("--vector", metavar="COLUMN,...", help="The columns of files with the vectors that ask.")
@click.option("--drop", is_flag=True, help="Forget the guard.")
@options.wait
@options.progress_off
@options.form
def guard(
    path: str,
    wrong_at_most: float,
    strangers_at_most: float | None,
    confidence: float,
    on_average: bool,
    source: str | None,
    strangers: str | None,
    naming: labelled.Naming,
    vector: str | None,
    drop: bool,
    wait: float,
    no_progress: bool,
    form: str | None,
) -> None:
    """Find out how much evidence right answers have; answers then say whether they are known.

    Items that `tune` and `fit` left out are asked of all others. See `query --known`.
    """
    if on_average and options.given("confidence"):
        raise click.UsageError("--on-average promises nothing with a confidence; leave out --confidence")
    if drop and (extra := options.given("wrong_at_most", "strangers_at_most", "confidence", "source", "strangers")):
        raise click.UsageError(f"--drop only forgets; leave out {', '.join(extra)}")
    naming = replace(naming, vector=labelled.names_of(vector))
    with served.writing(path, wait=wait) as db:
        if drop:
            output.say("dropped" if db.forget_guard() else "there was no guard to drop")
            return
        queries, answers = (None, None) if source is None else labelled.queries_of(source, naming, db.value_kind)
        others = None if strangers is None else labelled.strangers_of(strangers, naming)
        with output.stages("calibrating", quiet=no_progress) as moved:
            sure = None if on_average else confidence
            found = db.guard(wrong_at_most, strangers_at_most, sure, queries, answers, others, progress=moved)
    record = {"threshold": found.threshold, **found.asked, **found.found}
    if output.resolved(form) == "table":
        output.tell(in_options(str(found)))
    else:
        output.print_records([record], list(record), form, plain="threshold")
