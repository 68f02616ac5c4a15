"""The `softkv` command itself: its version, its help, and how an error becomes one message and an exit code."""

import atexit
import gc
import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from softkv import __version__
from softkv.errors import SoftKVError

from . import options

COMMANDS = {  # with the file and the help of each: importing all files for --help would take as long as importing click
    "add": ("adding", "Add the item KEY with this VALUE (missing or `-`: from stdin), or the items of a file."),
    "backup": ("upkeep", "Copy a store into DIRECTORY, while others read and write it."),
    "bench": ("benching", "Measure lookups of a store and its index on this machine, beside plain FAISS and NumPy."),
    "check": ("upkeep", "Compare everything in a store with its checksums, and say what is damaged."),
    "cluster": ("clustering", "Make and look at clusters: several stores that all other commands take for one."),
    "compact": ("upkeep", "Leave deleted and replaced items behind, and give their space back."),
    "compare": ("asking", "Look TEXT up side by side: exact, hard, top-k and full soft; then at other temperatures."),
    "delete": ("dictionary", "Delete the items with these keys, or those that --where matches, all of them or none."),
    "demo": ("demonstration", "Show what a soft lookup is, by worked examples: all of them, or those named."),
    "export": ("transfer", "Write everything in a store to FILE (.jsonl, .parquet, .npz), or the items to .csv."),
    "fit": ("learning", "Learn to compare: so that items, left out, are best predicted by the others."),
    "get": ("dictionary", "Print the items with exactly these keys; `-` reads keys from stdin."),
    "guard": ("learning", "Find out how much evidence right answers have; answers then say whether they are known."),
    "import": ("transfer", "Make a new store of what `softkv export` wrote."),
    "index": ("indexing", "Build, look at or drop the index by which lookups read a few percent of a large store."),
    "info": ("dictionary", "Say what a store is: items, kind of value, embedder, temperature, size."),
    "list": ("dictionary", "List the items in the order in which they were first added."),
    "mcp": ("serving", "Be the memory of an agent: answer by the Model Context Protocol on stdin and stdout."),
    "models": ("models", "List the models that turn texts into vectors, compare fingerprints, distil or convert one."),
    "page": ("transfer", "Write FILE, a page that shows how lookups come about; it needs no network and no server."),
    "path": ("dictionary", "Print where the store is; exit code 1 when there is none."),
    "query": ("asking", "Look TEXT up softly: the average of all values, each weighted by how well its key compares."),
    "reembed": ("upkeep", "Embed all items again with another model."),
    "restore": ("upkeep", "Make a store of the backup in DIRECTORY, where nothing is yet."),
    "serve": ("serving", "Serve stores over HTTP, until Ctrl-C."),
    "set": ("dictionary", "Give the items with these keys, or those that --where matches, another value: all or none."),
    "tune": ("learning", "Choose the temperature at which items, left out one by one, are best predicted by others."),
}
INTERRUPTED = 130
UNREAD = 141  # as of a program that a closed pipe ends


class Commands(click.Group):
    """The commands, each imported when it is called."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; `commands` only has its line of help."""
        if super().get_command(ctx, cmd_name) is None:
            return None
        file = import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        return next(one for one in vars(file).values() if isinstance(one, click.Command) and one.name == cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click itself would end with 1 where a pipe was closed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(UNREAD) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without their files."""
        click.Group(commands=self.commands).format_commands(ctx, formatter)


@click.group(
    cls=Commands,
    commands={name: click.Command(name, help=does) for name, (_, does) in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=options.example("softkv demo"),
)
@click.version_option(__version__, prog_name="softkv")
@options.store_before
@click.pass_context
def softkv(context: click.Context) -> None:
    """A soft key-value store: look things up by likeness, and get an average with an error bar."""
    command = softkv.get_command(context, context.invoked_subcommand or "")
    if options.STORE in context.meta and command and "path" not in [one.name for one in command.params]:
        raise click.UsageError(f"`softkv {command.name}` uses no store; leave out -d/--db")


def main() -> None:
    """Run the command. Exit codes: 0 done, 1 refused or not ok, 2 misused, 130 interrupted, 141 no reader left."""
    # Looking for cycles in all that was imported takes a quarter of a short command, most of it at exit.
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)
    _replace_what_is_closed()
    # What the terminal has no sign for is spelled out: the answer is worth more than its bars.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = softkv.main(prog_name="softkv", standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(code)
    except SoftKVError as error:
        from . import output
        from .wording import in_options

        output.say(f"softkv: {in_options(str(error))}")
        sys.exit(1)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        # Subtle: click takes every EOFError for a user who ended the input. Nothing here asks one, so it is a fault.
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None
        sys.exit(INTERRUPTED)
    except OSError as error:  # a pipe that was closed, a disk that is full: the rest cannot be written
        if isinstance(error, BrokenPipeError):
            sys.exit(UNREAD)
        from . import output

        output.say(f"softkv: the output cannot be written: {error.strerror}")
        sys.exit(1)
    finally:
        _give_up_what_cannot_be_written()


def _replace_what_is_closed() -> None:
    """Put /dev/null in the place of standard streams that are closed: nothing on stdin, and no notes on stderr."""
    # Subtle: or a file of the store would get the number of one, and whatever else writes to stderr would write there.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Only for reading: what is printed to a stdout that is closed is an error and not lost in silence.
            null = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, os.fdopen(null, mode))


def _give_up_what_cannot_be_written() -> None:
    # Subtle: the interpreter flushes both once more at exit, and where that fails, it complains and exits with 120.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
