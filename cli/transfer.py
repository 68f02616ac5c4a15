"""The whole store as one file, and back: `export` and `import`."""

import click

from . import options, output


@click.command(epilog=options.example("softkv export films.jsonl --db films.softkv"))
@click.argument("file")
@options.database
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@options.progress_off
def export(file: str, path: str, force: bool, no_progress: bool) -> None:
    """Write everything in a store to FILE: .jsonl, .parquet or .npz."""
    import softkv

    with softkv.open(path, "r") as db, output.progress("exporting", quiet=no_progress) as moved, output.hints():
        count = db.export(file, force=force, progress=moved)
    output.say(f"exported {count:,} items to {file}")


@click.command("import", epilog=options.example("softkv import films.jsonl --db copy.softkv"))
@click.argument("file")
@options.database
@options.progress_off
def import_(file: str, path: str, no_progress: bool) -> None:
    """Make a new store of what `softkv export` wrote. Other files are for `softkv add -i`."""
    from softkv.database import import_from

    with output.progress("importing", quiet=no_progress) as moved, output.hints():
        count = import_from(file, path, progress=moved)
    output.say(f"imported {count:,} items into {path}")
