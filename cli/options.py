"""Options that several commands share."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from softkv.errors import InputError
from softkv.kinds import ValueKind

STORE = "softkv.store"  # the key in a context of the store that was named before the command
FORMS = {
    "plain": "Bare values, one a line.",
    "csv": "CSV with a header.",
    "json": "JSON, one line each (the default when piped).",
    "table": "A table (the default on a terminal).",
}
Command = TypeVar("Command", bound=Callable[..., Any])


def example(line: str) -> str:
    """The example at the end of a help, which a test runs. It is not wrapped, so that it can be copied."""
    return f"\b\nExample: {line}"


def given(*names: str) -> list[str]:
    """The options among these that were given to the command, in all spellings, even if with the default value."""
    context = click.get_current_context()
    found = [one for one in context.command.params if one.name in names]
    return ["/".join(one.opts) for one in found if _named(context, one)]


def _named(context: click.Context, option: click.Parameter) -> bool:
    return context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE


def _keep_store(context: click.Context, _option: click.Parameter, path: str | None) -> None:
    if path is not None:
        context.meta[STORE] = path


def _one(context: click.Context, _argument: click.Parameter, words: tuple[str, ...]) -> str | None:
    """The text to look up; refuses several words, which have to be quoted in a shell."""
    if len(words) > 1:
        quoted = f'softkv {context.command.name} "{" ".join(words)}"'
        raise click.UsageError(f"expected one TEXT, got {len(words)}. Put quotes around it: {quoted}")
    return words[0] if words else None


def _store(context: click.Context, option: click.Parameter, path: str) -> str:
    """The store named after the command, else before it, else by the environment, else the usual one."""
    return path if _named(context, option) else str(context.meta.get(STORE, path))


store_before = click.option(
    "-d",
    "--db",
    "path",
    metavar="PATH",
    expose_value=False,
    callback=_keep_store,
    help="The store; it may as well stand after the command.",
)
one_text = click.argument("text", nargs=-1, metavar="[TEXT]", callback=_one)
database = click.option(
    "-d",
    "--db",
    "path",
    callback=_store,
    envvar="SOFTKV_DB",
    default="./store.softkv",
    show_default=True,
    show_envvar=True,
    metavar="PATH",
    help="The store.",
)
model = click.option(
    "-m", "--model", metavar="NAME", help="What turns texts into vectors: a name of `softkv models`, or a folder."
)
compatibility = click.option(
    "--compatibility",
    metavar="NAME",
    help="How to compare, such as cosine, dot or gaussian; another name is answered by all there are.",
)
temperature = click.option(
    "-T", "--temperature", type=float, help="What scores are divided by: low is sharp, high is smooth."
)


class Seconds(click.FloatRange):
    """A time on the command line, which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time, or the error of the command."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is no time; give seconds", param, ctx)
        return found


batch = click.option(
    "--batch",
    metavar="NAME",
    help="A name for this call: sent again under it within seven days, it is carried out once.",
)
wait = click.option(
    "--wait",
    type=Seconds(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for another process that writes to the store.",
)
disks = click.option(
    "--disk",
    "disks",
    multiple=True,
    metavar="DIR",
    help="Where shards of a cluster are to lie, instead of in its directory; several times.",
)
force = click.option("--force", is_flag=True, help="Also on a network file system, where locks and syncs may not hold.")
progress_off = click.option("--no-progress", is_flag=True, help="Show no progress bar.")
encoding = click.option("--encoding", default="utf-8-sig", show_default=True, help="The encoding of FILE.")
file_format = click.option("--format", "file_format", help="The format of FILE, when its name does not tell.")


def json_of(given: str) -> Any:
    """A parameter that is JSON, read as strictly as a file is."""
    from softkv.files.notation import parsed
    from softkv.files.record import Misfit

    try:
        return parsed(given)
    except Misfit as error:
        raise click.BadParameter(f"{given[:60]!r} cannot be read: {error}") from None


def numbers_of(given: str) -> list[float]:
    """A vector on the command line: numbers between commas, in brackets or not."""
    try:
        return [float(cell) for cell in given.strip().strip("[]").split(",")]
    except ValueError:
        raise click.BadParameter(f"{given!r} is not a vector; give numbers between commas, as in 0.5,1,-2") from None


def value_of(given: str, kind: str | None) -> Any:
    """A value on the command line: a number if it can be one, unless it is to be something else."""
    known = None if kind is None else ValueKind(kind)
    if known and known.axes > 1:
        return numbers_of(given)
    if known and known.worded:
        return given
    for number in (int, float):  # an integer stays one, so that one too large to be kept is refused and not rounded
        try:
            return number(given)
        except ValueError:
            continue
    if known:
        raise InputError(f"expected a number as the value, as this store holds, got {given!r}.")
    return given


where = click.option(
    "--where",
    type=json_of,
    metavar="JSON",
    help="""Only items whose payload matches, as in '{"year": {"$gte": 2000}}'.""",
)


def form(command: Command) -> Command:
    """The options of FORMS, of which one may be given; the command gets `form`, None without any of them."""

    @wraps(command)
    def chosen(*args: Any, **options: Any) -> Any:
        asked = [name for name in FORMS if options.pop(name)]
        if len(asked) > 1:
            raise click.UsageError(f"--{asked[0]} and --{asked[1]} exclude each other; give one of them")
        return command(*args, form=asked[0] if asked else None, **options)

    wrapped: Any = chosen
    for name, says in FORMS.items():
        wrapped = click.option(f"--{name}", is_flag=True, help=says)(wrapped)
    return cast(Command, wrapped)
