"""Options that every command shares."""

import click

database = click.option(
    "-d",
    "--db",
    "path",
    envvar="SOFTKV_DB",
    default="./store.softkv",
    show_default=True,
    show_envvar=True,
    metavar="PATH",
    help="The store.",
)
