"""The dictionary side: `get`, `delete`, `list`, `info`, `path`."""

import os
import sys
from typing import Any

import click

from . import options, output, served
from .wording import in_options

ON_A_TERMINAL = 50  # items that `list` shows on a terminal
COLUMNS = ("key", "value", "payload", "text")


@click.command(epilog=options.example('softkv get "The Alchemist" --db films.softkv'))
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@options.database
@options.form
def get(keys: tuple[str, ...], path: str, form: str | None) -> None:
    """Print the items with exactly these keys; `-` reads keys from stdin. A key that is not there is exit code 1."""
    named = list(output.expanded(keys))
    told = served.asked(path, "items/get", {"keys": named, "whole": True})
    if told is not None and told["next"] is None:
        found = [_record(served.Told(one | {"name": one["key"]})) for one in told["items"]]
    else:
        import softkv

        with softkv.open(path, "r") as db:
            found = [_record(db.item(key)) for key in named]
    output.print_records(found, COLUMNS, form, plain="value")


@click.command(epilog=options.example('softkv delete "The Alchemist" --db films.softkv'))
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@options.database
@options.where
@options.batch
@options.wait
def delete(keys: tuple[str, ...], path: str, where: Any, batch: str | None, wait: float) -> None:
    """Delete the items with these keys, or those that --where matches, all of them or none.

    `-` reads keys from stdin.
    """
    named = _named(keys, where)
    with served.writing(path, wait=wait) as db:
        count = db.delete(named, where=where, batch=batch)
    output.say(f"deleted {count:,}")


@click.command("set", epilog=options.example('softkv set "A map." "The Alchemist" --db films.softkv'))
@click.argument("value")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@options.database
@options.where
@options.batch
@options.wait
def set_(value: str, keys: tuple[str, ...], path: str, where: Any, batch: str | None, wait: float) -> None:
    """Give the items with these keys, or those that --where matches, another value: all or none."""
    named = _named(keys, where)
    with served.writing(path, wait=wait) as db:
        given = options.value_of(value, db.value_kind)
        values = given if named is None else [given] * len(named)
        found = db.set_values(named, values, where=where, batch=batch)
    output.say(f"changed {found.count:,}")


def _named(keys: tuple[str, ...], where: Any) -> list[str] | None:
    """The keys that were named; None where a filter stands instead."""
    if bool(keys) == (where is not None):
        raise click.UsageError("give keys, or --where; one of the two")
    return list(output.expanded(keys)) if keys else None


@click.command("list", epilog=options.example("softkv list --db films.softkv --limit 3"))
@options.database
@click.option("-n", "--limit", type=click.IntRange(min=0), help=f"At most so many ({ON_A_TERMINAL} on a terminal).")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Pass over the first so many.")
@options.where
@options.form
def list_(path: str, limit: int | None, skip: int, where: Any, form: str | None) -> None:
    """List the items in the order in which they were first added."""
    import softkv

    shown = limit if limit is not None else ON_A_TERMINAL if output.resolved(form) == "table" else None
    with softkv.open(path, "r") as db, db.snapshot() as view:
        found = view.select(where, start=skip, stop=None if shown is None else skip + shown)
        output.print_records(map(_record, found), COLUMNS, form, plain="key")
        if limit is None and shown is not None and any(view.select(where, start=skip + shown, stop=skip + shown + 1)):
            output.say(f"there are more; --limit says how many to show (the store has {len(view):,})")


@click.command(epilog=options.example("softkv info --db films.softkv"))
@options.database
@options.form
def info(path: str, form: str | None) -> None:
    """Say what a store is: items, kind of value, embedder, temperature, size."""
    import softkv

    with softkv.open(path, "r") as db:
        found = db.info()
    if output.resolved(form) == "json":
        output.print_json(found.to_dict())
    elif form == "csv":
        output.print_csv([found.to_dict()], list(found.to_dict()))
    else:
        output.tell(in_options(str(found)))


@click.command("path", epilog=options.example("softkv path --db films.softkv"))
@options.database
def path_(path: str) -> None:
    """Print where the store is; exit code 1 when there is none."""
    import softkv

    with softkv.open(path, "r") as db:
        if sys.stdout.isatty():
            output.echo(db.path)
        else:  # a script goes on with its bytes, which need not be text
            click.echo(os.fsencode(db.path))


def _record(item: Any) -> dict[str, Any]:
    text = None if item.text == item.key else item.text
    return {"key": item.name, "value": item.value, "payload": item.payload, "text": text}
