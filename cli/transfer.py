"""The whole store as one file, and back: `export` and `import`; and a file to look at: `page`."""

import os
import shlex

import click

from softkv.portrait import counted

from . import options, output, served


@click.command(epilog=options.example("softkv export films.jsonl --db films.softkv"))
@click.argument("file")
@options.database
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@options.progress_off
def export(file: str, path: str, force: bool, no_progress: bool) -> None:
    """Write everything in a store to FILE (.jsonl, .parquet, .npz), or the items to .csv."""
    import softkv

    with softkv.open(path, "r") as db, output.progress("exporting", quiet=no_progress) as moved, output.hints():
        count = db.export(file, force=force, progress=moved)
        kind = db.value_kind
    output.say(f"exported {counted(count, 'item')} to {file}")
    if file.lower().endswith(".csv"):
        output.say(f"hint: a table holds items alone; {_reading(file, kind)} reads them into a store")


def _reading(file: str, kind: str | None) -> str:
    """The command that reads the same items from a table that was exported."""
    from softkv.files.exports.delimited import options

    with open(file, encoding="utf-8") as table:
        named = options(table.readline().strip().split(","), kind)
    return (
        " ".join(["`softkv add -i", shlex.quote(file), *(f"--{name} {given}" for name, given in named.items())]) + "`"
    )


@click.command("import", epilog=options.example("softkv import films.jsonl --db copy.softkv"))
@click.argument("file")
@options.database
@options.progress_off
def import_(file: str, path: str, no_progress: bool) -> None:
    """Make a new store of what `softkv export` wrote. Other files are for `softkv add -i`."""
    from softkv.database import import_from

    with output.progress("importing", quiet=no_progress) as moved, output.hints():
        count = import_from(file, served.require_path(path, "import"), progress=moved)
    output.say(f"imported {counted(count, 'item')} into {path}")


@click.command(epilog=options.example('softkv page -o page.html --query "treasure" --db films.softkv'))
@click.option("-o", "--output", "file", required=True, metavar="FILE", help="The file to write, such as page.html.")
@click.option("--items", type=click.IntRange(1), default=2000, show_default=True, help="How many it carries at most.")
@click.option("--query", "queries", multiple=True, metavar="TEXT", help="What it asks, besides keys; several times.")
@options.database
@options.model
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def page(file: str, items: int, queries: tuple[str, ...], path: str, model: str | None, force: bool) -> None:
    """Write FILE, a page that shows how lookups come about; it needs no network and no server."""
    import softkv

    with softkv.open(path, "r", embedder=model) as db, output.hints():
        shown, there = db.page(file, items, list(queries), force=force), len(db)
    drawn = "" if shown == there else f" of {there:,}, drawn with a seed"
    output.say(
        f"wrote {file}: whoever has it can read its {counted(shown, 'item')}{drawn} ({os.path.getsize(file):,} bytes)"
    )
