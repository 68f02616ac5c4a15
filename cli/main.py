"""The `softkv` command itself: its version, its help, and how an error becomes one message and an exit code."""

import io
import os
import sys

import click

from softkv import __version__
from softkv.errors import SoftKVError

from . import (
    adding,
    asking,
    benching,
    clustering,
    demonstration,
    dictionary,
    indexing,
    learning,
    models,
    options,
    output,
    serving,
    transfer,
    upkeep,
)
from .wording import in_options

INTERRUPTED = 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=options.example("softkv demo"),
)
@click.version_option(__version__, prog_name="softkv")
@options.store_before
@click.pass_context
def softkv(context: click.Context) -> None:
    """A soft key-value store: look things up by likeness, and get an average with an error bar."""
    command = softkv.commands.get(context.invoked_subcommand or "")
    if options.STORE in context.meta and command and "path" not in [one.name for one in command.params]:
        raise click.UsageError(f"`softkv {command.name}` uses no store; leave out -d/--db")


for command in (
    adding.add,
    asking.query,
    asking.compare,
    dictionary.get,
    dictionary.delete,
    dictionary.set_,
    dictionary.list_,
    dictionary.info,
    dictionary.path_,
    upkeep.check,
    upkeep.compact,
    upkeep.reembed,
    upkeep.backup,
    upkeep.restore,
    indexing.index,
    learning.tune,
    learning.fit,
    learning.guard,
    transfer.export,
    transfer.import_,
    transfer.page,
    models.models,
    demonstration.demo,
    benching.bench,
    clustering.cluster,
    serving.serve,
    serving.mcp,
):
    softkv.add_command(command)


def main() -> None:
    """Run the command. Exit codes: 0 done, 1 refused or not ok, 2 misused, 130 interrupted."""
    # What the terminal has no sign for is spelled out: the answer is worth more than its bars.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = softkv.main(prog_name="softkv", standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(code)
    except SoftKVError as error:
        output.say(f"softkv: {in_options(str(error))}")
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except OSError as error:  # a pipe that was closed, a disk that is full: nobody is left to read the rest
        if not isinstance(error, BrokenPipeError):
            click.echo(f"softkv: the output cannot be written: {error.strerror}", err=True)
        # Subtle: the interpreter flushes stdout once more at exit, and would complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
