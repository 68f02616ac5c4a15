"""Upkeep: `check`. Each command is the call of the same name in the library, and prints what it returns."""

import sys

import click

from .options import database


@click.command(epilog="Example: softkv check --db films.softkv --repair-to saved.softkv")
@database
@click.option("--repair-to", "new", metavar="NEW", help="Write the good items to a new store at NEW.")
def check(path: str, new: str | None) -> None:
    """Compare everything in a store with its checksums, and say what is damaged.

    Changes nothing. The exit code is 0 when all is well and 1 when it is not.
    """
    from softkv.storage import check as check_store
    from softkv.storage import repair

    if new is None:
        report = check_store(path)
        click.echo(report)
    else:
        repaired = repair(path, new)
        report = repaired.report
        click.echo(report)
        click.echo(f"{repaired.saved} items saved to {new}, {repaired.lost} lost")
    sys.exit(0 if report.ok else 1)
