"""Upkeep: `check`, `compact`, `reembed`, `backup`, `restore`, each the call of the same name in the library."""

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from softkv.errors import InputError
from softkv.portrait import counted
from softkv.storage.disk.named import is_url

from . import options, output, served

if TYPE_CHECKING:
    from softkv.storage import Backup


@click.command(epilog=options.example("softkv check --db films.softkv"))
@options.database
@click.option("--repair-to", "new", metavar="NEW", help="Write the good items to a new store at NEW.")
@click.option(
    "--at-least",
    type=click.IntRange(min=0),
    metavar="COMMIT",
    help="Not ok before this commit: an older copy cannot tell that it is old. `softkv info` names the commit.",
)
def check(path: str, new: str | None, at_least: int | None) -> None:
    """Compare everything in a store with its checksums, and say what is damaged.

    Changes nothing. The exit code is 0 when all is well and 1 when it is not; with --repair-to it is 0 when all items
    that are good were saved, and those that were lost are named.
    """
    from softkv import database

    if new is not None and at_least is not None:
        raise click.UsageError("--repair-to and --at-least exclude each other; check first, then repair")
    if new is None:
        report = database.check(path, at_least=at_least)
        output.tell(str(report))
        if not report.ok and at_least is None:
            output.say("`softkv check --repair-to NEW` writes the good items to a new store, `softkv restore` a backup")
        sys.exit(0 if report.ok else 1)
    with output.hints():
        repaired = database.repair(served.require_path(path, "check --repair-to"), new)
    output.tell(str(repaired.report))
    for one in repaired.missing:
        output.echo(f"  lost: {f'the item in row {one}' if isinstance(one, int) else repr(one)}")
    if len(repaired.missing) < repaired.lost:
        unnamed = counted(repaired.lost - len(repaired.missing), "item")
        output.echo(f"  lost: {unnamed} of which the catalog says nothing")
    output.echo(f"{counted(repaired.saved, 'item')} saved to {new}, {repaired.lost:,} lost")


@click.command(epilog=options.example("softkv compact --db films.softkv"))
@options.database
@options.wait
def compact(path: str, wait: float) -> None:
    """Leave deleted and replaced items behind, and give their space back. Readers are not disturbed."""
    import softkv

    with softkv.open(path, "r") as db:  # before a writer opens it, which removes what was left already
        before = db.info()
    with served.writing(path, wait=wait) as db:
        db.compact()
    with softkv.open(path, "r") as db:
        after = db.info()
    freed, held = max(0, before.bytes_on_disk - after.bytes_on_disk), after.held_by_readers
    told = [f"left {counted(before.dead_rows, 'dead row')} behind"]
    told += [f"{freed:,} bytes freed"] if freed else []
    told += [f"{held:,} bytes go when those who read them let go"] if held else []
    output.say("; ".join(told))


@click.command(epilog=options.example("softkv backup films.backup --db films.softkv"))
@click.argument("directory", required=False)
@options.database
@options.force
@options.progress_off
def backup(directory: str | None, path: str, force: bool, no_progress: bool) -> None:
    """Copy a store into DIRECTORY, while others read and write it.

    DIRECTORY is new, or an earlier backup of the store: then only what is new is written. A backup is read like any
    store; `softkv restore` makes one of it that may be written to. A server, whose URL is given, has a folder of its
    own, and takes no DIRECTORY.
    """
    import softkv

    if directory is None and not is_url(path):
        raise click.UsageError("name the directory that the store is to be copied into")
    place: Any = directory  # None, of which a server alone makes something
    with softkv.open(path, "r") as db, output.progress("copying", quiet=no_progress) as moved:
        made = db.backup(place, force=force, progress=moved)
    _tell_copied(made)


@click.command(epilog=options.example("softkv restore films.backup --db again.softkv"))
@click.argument("directory")
@options.database
@options.disks
@options.force
@options.progress_off
def restore(directory: str, path: str, disks: tuple[str, ...], force: bool, no_progress: bool) -> None:
    """Make a store of the backup in DIRECTORY, where nothing is yet. The backup stays as it is."""
    import softkv

    target = served.require_path(path, "restore")
    with output.progress("copying", quiet=no_progress) as moved:
        made = softkv.restore(directory, target, disks=disks, force=force, progress=moved)
    _tell_copied(made)


def _tell_copied(made: "Backup") -> None:
    items = counted(made.items, "item")
    output.say(f"{items} as of commit {made.commit} in {made.path}; {counted(made.written, 'byte')} written")
    if made.left_out:
        output.say(f"left out, being damaged or missing: {', '.join(made.left_out)}; build or fit again")


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
    with served.writing(path, wait=wait) as db:
        begun = db.info().unfinished
        if begun is None and abandon:
            raise InputError(f"no change of model was begun in {path}, so there is none to drop")
        if begun is None and model is None and not is_url(db.path):
            raise click.UsageError("name the model to change to with --model; `softkv models` lists them")
        if abandon:
            db.abandon_reembedding()
            output.say("the change was dropped")
            return
        try:
            with output.progress("embedding", quiet=no_progress) as moved, output.hints():
                count = db.reembed(model, progress=moved)
        except KeyboardInterrupt:
            done, again = db.info().unfinished, f"softkv reembed --db {shlex.quote(path)}"
            if done is None:
                named = "" if model is None else f" --model {shlex.quote(model)}"
                output.say(f"interrupted: nothing was begun. `{again}{named}` begins again.")
            else:
                output.say(f"interrupted: {done}. `{again}` goes on; with --abandon it drops what was begun.")
            raise
        name = db.info().embedder
    output.say(f"embedded {counted(count, 'item')} with {name}")
