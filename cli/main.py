"""The `softkv` command itself: its version, its help, and how an error becomes one message and an exit code."""

import sys

import click

from softkv import __version__
from softkv.errors import SoftKVError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="softkv")
def softkv() -> None:
    """A soft key-value store: look things up by likeness, and get an average with an error bar."""


def main() -> None:
    """Run the command; a softkv error becomes its message on stderr and exit code 1."""
    try:
        softkv()
    except SoftKVError as error:
        click.echo(f"softkv: {error}", err=True)
        sys.exit(1)
