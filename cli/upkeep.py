"""Upkeep: `check`, `compact`, `reembed`, each the call of the same name in the library."""

import shlex
import sys

import click

from softkv.errors import InputError

from . import options, output


@click.command(epilog=options.example("softkv check --db films.softkv"))
@options.database
@click.option("--repair-to", "new", metavar="NEW", help="Write the good items to a new store at NEW.")
def check(path: str, new: str | None) -> None:
    """Compare everything in a store with its checksums, and say what is damaged.

    Changes nothing. The exit code is 0 when all is well and 1 when it is not; with --repair-to it is 0 when all items
    that are good were saved, and those that were lost are named.
    """
    from softkv.database import repair
    from softkv.storage import check as check_store

    if new is None:
        report = check_store(path)
        output.tell(str(report))
        sys.exit(0 if report.ok else 1)
    with output.hints():
        repaired = repair(path, new)
    output.tell(str(repaired.report))
    for one in repaired.missing:
        output.echo(f"  lost: {f'the item in row {one}' if isinstance(one, int) else repr(one)}")
    if len(repaired.missing) < repaired.lost:
        output.echo(f"  lost: {repaired.lost - len(repaired.missing)} items of which the catalog says nothing")
    output.echo(f"{repaired.saved} items saved to {new}, {repaired.lost} lost")


@click.command(epilog=options.example("softkv compact --db films.softkv"))
@options.database
@options.wait
def compact(path: str, wait: float) -> None:
    """Leave deleted and replaced items behind, and give their space back. Readers are not disturbed."""
    import softkv

    with softkv.open(path, "r") as db:
        before = db.info()
    with softkv.open(path, "w", wait=wait) as db:
        db.compact()
    with softkv.open(path, "r") as db:
        after = db.info()
    freed = max(0, before.bytes_on_disk - after.bytes_on_disk)
    output.say(f"left {before.dead_rows:,} dead rows behind" + (f"; {freed:,} bytes freed" if freed else ""))


@click.command(epilog=options.example("softkv reembed --model static --db films.softkv"))
@options.database
@options.model
@click.option("--abandon", is_flag=True, help="Drop a change that was begun; the store stays as it was.")
@options.wait
@options.progress_off
def reembed(path: str, model: str | None, abandon: bool, wait: float, no_progress: bool) -> None:
    """Embed all items again with another model. Interrupted, it goes on where it stopped.

    Needs room for the vectors of both models. Until it is done, readers see the old ones and nothing can be added.
    """
    import softkv

    with softkv.open(path, "w", wait=wait) as db:
        begun = db.info().unfinished
        if begun is None and abandon:
            raise InputError(f"no change of model was begun in {path}, so there is none to drop")
        if begun is None and model is None:
            raise click.UsageError("name the model to change to with --model; `softkv models` lists them")
        if abandon:
            db.abandon_reembedding()
            output.say("the change was dropped")
            return
        try:
            with output.progress("embedding", quiet=no_progress) as moved, output.hints():
                count = db.reembed(model, progress=moved)
        except KeyboardInterrupt:
            done = db.info().unfinished or "nothing was begun"
            again = f"`softkv reembed --db {shlex.quote(path)}`"
            output.say(f"interrupted: {done}. {again} goes on; with --abandon it drops what was begun.")
            raise
        name = db.info().embedder
    output.say(f"embedded {count:,} items with {name}")
