"""The `softkv` command itself: its version, its help, and how an error becomes one message and an exit code."""

import os
import sys

import click

from softkv import __version__
from softkv.errors import SoftKVError

from .upkeep import check


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: softkv check --db films.softkv",
)
@click.version_option(__version__, prog_name="softkv")
def softkv() -> None:
    """A soft key-value store: look things up by likeness, and get an average with an error bar."""


softkv.add_command(check)


def main() -> None:
    """Run the command; a softkv error becomes its message on stderr and exit code 1."""
    try:
        softkv.main(standalone_mode=True)
    except SoftKVError as error:
        click.echo(f"softkv: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # Subtle: the interpreter flushes stdout once more at exit, and would complain about the same closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
