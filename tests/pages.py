"""Two pages that are made of what stands in the code: `python -m tests.pages` writes them anew.

docs/reference.md has the public names with their docstrings, docs/options.md the commands with their options as click
knows them. tests/test_pages.py compares both with what would be written.

Does not judge what the texts say.
"""

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
from softkv_cli.main import softkv as command

import softkv
from softkv import errors
from softkv.answer import Contributor, RankedText
from softkv.comparison import Exact, Warmth
from softkv.database.columns import StoreColumns
from softkv.database.evaluating import Evaluation, Way
from softkv.database.handle import StoreView
from softkv.database.loading import Loaded
from softkv.database.summary import IndexInfo, Info
from softkv.database.training import Fit
from softkv.guard.guard import Guard
from softkv.index.forecast import Forecast
from softkv.learning.tuning import Tuned
from softkv.storage import Added, Backup, Item, Repaired, Report

DOCS = Path(__file__).resolve().parents[1] / "docs"
FUNCTIONS = (
    *("softkv.open", "softkv.import_from", "softkv.restore", "softkv.repair", "softkv.soft_lookup", "softkv.bilinear"),
    *("softkv.additive", "softkv.register", "softkv.embedders.find", "softkv.embedders.names"),
)
CLASSES = (softkv.SoftKV, StoreView, softkv.Answer, softkv.Answers, softkv.Comparison, StoreColumns, softkv.Heads)
RESULTS = (
    *(Contributor, RankedText, Exact, Warmth, Item, Added, Loaded, Info, IndexInfo, Tuned, Fit, Evaluation, Way),
    *(Guard, Forecast, Backup, Report, Repaired),
)
# What has no underscore since other files of the library use it, and is not for users.
INTERNAL = {
    "Answers": ("of", "source"),
    "StoreColumns": ("of",),
    "Heads": ("arrays", "like", "project", "rewrite", "squared"),
    "Guard": ("evidence", "scores", "widths", "base", "now"),
}
FIRST = ("self", "cls", "reader")  # the arguments that a method is called on
PATH = str | os.PathLike[str]  # which modules call AnyPath
DOORS = (
    "scikit-learn, PyTorch, LangChain and Haystack are in [doors.md](doors.md), clusters in [cluster.md](cluster.md)."
)
ARRAYS = "A `Matrix` is a NumPy array of float32, an `AnyArray` one of any type: `softkv/ndarrays.py` has these names."
MADE = "This page is made by `python -m tests.pages`"


def reference() -> str:
    """The page about the library."""
    parts = [
        "# Reference: the library\n",
        f"{MADE} of the docstrings. [library.md](library.md) teaches what is listed here; {DOORS} {ARRAYS}\n",
        *_contents(),
        "## Functions\n",
        *(_entry(name, attrgetter(name.removeprefix("softkv."))(softkv), "###") for name in FUNCTIONS),
    ]
    for one in CLASSES:
        parts += [f"## {one.__name__}\n", _text(one), *_fields(one), *(_filled(line, one) for line in _attributes(one))]
        methods = [(name, member) for name, member in _members(one) if not isinstance(member, property)]
        parts += [_filled(_entry(name, member, "###"), one) for name, member in methods]
    parts += ["## Results\n", "What methods return, with the fields that it has.\n"]
    for one in RESULTS:
        parts += [f"### {one.__name__}\n", _text(one), *_fields(one), *_attributes(one)]
    parts += ["## Errors\n", f"```text\n{textwrap.dedent(errors.__doc__ or '').strip()}\n```\n"]
    return "\n".join(parts)


def options() -> str:
    """The page about the command."""
    told = list(_commands("softkv", command))
    parts = [
        "# Reference: the command\n",
        f"{MADE} of what the commands say of themselves. [command.md](command.md) teaches them, and says how they end "
        "([exit codes](command.md#how-it-ends)).\n",
        *(f"- [{words}](#{words.replace(' ', '-')}): {one.get_short_help_str(200)}" for words, one in told),
        "",
    ]
    for words, one in told:
        parts += [f"## {words}\n", _told(words, one)]
    return "\n".join(parts)


PAGES = {"reference.md": reference, "options.md": options}


def _contents() -> Iterator[str]:
    """A line for each section, with the names in it."""
    sections = {"Functions": list(FUNCTIONS)}
    sections |= {one.__name__: [name for name, _ in _members(one)] for one in CLASSES}
    sections |= {"Results": [one.__name__ for one in RESULTS], "Errors": []}
    for section, names in sections.items():
        yield f"- [{section}](#{section.lower()}): {', '.join(f'`{name}`' for name in names)}".rstrip(": ")
    yield ""


def _members(one: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class, those of its bases included, by name; of a subclass what it adds or changes."""
    for name in sorted(dir(one)):
        member = inspect.getattr_static(one, name)
        ours = getattr(getattr(member, "fget", member), "__module__", None) or ""
        hidden = name.startswith("_") or name in INTERNAL.get(one.__name__, ()) or name in _inherited(one)
        if hidden or not ours.startswith("softkv"):
            continue
        if inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod, property)):
            yield name, member if isinstance(member, property) else getattr(one, name)


def _inherited(one: type) -> list[str]:
    """What a view of a store has as the store has it."""
    if one is not StoreView:
        return []
    both = {name for name, _ in _members(softkv.SoftKV)}
    return sorted(name for name in both if getattr(softkv.SoftKV, name) is getattr(one, name, None))


def _attributes(one: type) -> list[str]:
    """The properties of a class, a line each; of a view also what it shares with a store."""
    told = []
    for name, member in _members(one):
        if isinstance(member, property):
            prose = [part for part in (inspect.getdoc(member) or "").split("\n\n") if not part.startswith(">>>")]
            kind = _signature(member.fget).rpartition(" -> ")[2]
            told.append(f"- `{name}: {kind}`: {' '.join(' '.join(prose).split())}")
    if shared := _inherited(one):
        told += ["", f"It has what reads of [SoftKV](#softkv), too: {', '.join(f'`{name}`' for name in shared)}."]
    return [*told, ""] if told else []


def _filled(text: str, one: type) -> str:
    """What is said of a member of a class, with the types that it gives to the variables of a base."""
    head = ast.parse(inspect.getsource(one)).body[0]
    assert isinstance(head, ast.ClassDef)
    for base, written in zip(one.__bases__, head.bases, strict=False):
        given = [ast.unparse(kind) for kind in getattr(getattr(written, "slice", None), "elts", ())]
        for variable, kind in zip(getattr(base, "__parameters__", ()), given, strict=False):
            text = re.sub(rf"(?<=-> ){variable.__name__}\b|(?<=: ){variable.__name__}(?= \|)", kind, text)
    return text


def _entry(name: str, of: Any, level: str) -> str:
    return f"{level} {name}\n\n```python\n{name}{_signature(of)}\n```\n\n{_text(of)}"


def _signature(of: Any) -> str:
    """The arguments and the result as they stand in the source."""
    found = ast.parse(textwrap.dedent(inspect.getsource(of))).body[0]
    assert isinstance(found, ast.FunctionDef)
    assert found.returns is not None
    given = [*found.args.posonlyargs, *found.args.args]
    defaults = [*[None] * (len(given) - len(found.args.defaults)), *found.args.defaults]
    pairs, names = zip(given, defaults, strict=True), inspect.unwrap(of).__globals__
    told = [_argument(one, default, names) for one, default in pairs if one.arg not in FIRST]
    if found.args.vararg is not None or found.args.kwonlyargs:
        told.append("*" if found.args.vararg is None else f"*{ast.unparse(found.args.vararg)}")
    pairs = zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
    told += [_argument(one, default, names) for one, default in pairs]
    arguments, returns = ", ".join(told), ast.unparse(found.returns).strip("'")
    if len(arguments) + len(returns) > 90:
        arguments = "".join(f"\n    {one}," for one in told) + "\n"
    return f"({arguments}) -> {returns}"


def _argument(one: ast.arg, default: ast.expr | None, names: Mapping[str, Any]) -> str:
    """An argument with its default, of which the value is told where the source has a name for it."""
    told = ast.unparse(one)
    if names.get("AnyPath") == PATH:
        told = re.sub(r"\bAnyPath\b", "str | os.PathLike[str]", told)
    if default is None:
        return told
    named = names[default.id] if isinstance(default, ast.Name) else None
    value = repr(named) if isinstance(named, int | float | str) else ast.unparse(default)
    return f"{told} = {value}".replace("'", '"')


def _fields(one: type) -> list[str]:
    """The fields of a result, as they stand in its source with their comments."""
    lines = inspect.getsource(one).splitlines()
    fields = [line.strip() for line in lines if re.match(r"    [a-z]\w*: ", line)]
    told = [line for line in fields if line.partition(":")[0] not in INTERNAL.get(one.__name__, ())]
    return [] if not told else ["```python", *told, "```\n"]


def _text(of: Any) -> str:
    """A docstring, its examples and its arguments as Markdown."""
    found = inspect.getdoc(of) or ""
    lines, example = [], False
    for line in found.splitlines():
        if line.startswith(">>> ") and not example:
            lines, example = [*lines, "```text"], True
        if example and not line:
            lines, example = [*lines, "```"], False
        lines.append(line)
    text = "\n".join([*lines, "```"] if example else lines)
    return re.sub(r"(?m)^(Args|Returns|Raises):\n((?:    .*\n?)+)", _arguments, text) + "\n"


def _arguments(found: re.Match[str]) -> str:
    given = re.sub(rf"(?m)^({'|'.join(FIRST)}): .*\n(    .*\n?)*", "", textwrap.dedent(found[2]))
    items = re.sub(r"(?m)^(\S+?): ", r"- `\1`: ", given)
    return f"{found[1]}:\n\n{items}"


def _commands(words: str, one: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield words, one
    if isinstance(one, click.Group):
        context = click.Context(one)
        for name in one.list_commands(context):
            found = one.get_command(context, name)
            assert found is not None
            yield from _commands(f"{words} {name}", found)


def _told(words: str, one: click.Command) -> str:
    """What a command does, how it is called, its options as its help has them, and its example."""
    with click.Context(one, info_name=words) as context:
        usage = " ".join([words, *one.collect_usage_pieces(context)])
        about = textwrap.dedent(f"    {(one.help or '').strip()}").replace("\b\n", "").strip()
        records = [param.get_help_record(context) for param in one.params if isinstance(param, click.Option)]
    told = [f"- `{record[0]}`: {' '.join(record[1].split())}".rstrip(": ") for record in records if record]
    example = f"```sh\n{(one.epilog or '').replace(chr(8), '').strip().removeprefix('Example: ')}\n```"
    return "\n\n".join([f"```text\n{usage}\n```", about, "\n".join(told), example]).rstrip() + "\n"


if __name__ == "__main__":
    for page, made in PAGES.items():
        (DOCS / page).write_text(made(), encoding="utf-8")
