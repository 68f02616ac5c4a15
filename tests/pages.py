"""Two pages that are made of what stands in the code: `python -m tests.pages` writes them anew.

docs/reference.md has the public names with their docstrings, docs/options.md the commands with their options as click
knows them. tests/test_pages.py compares both with what would be written.

Does not judge what the texts say.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from softkv_cli.main import softkv as command

import softkv
from softkv import errors
from softkv.database.handle import StoreView

DOCS = Path(__file__).resolve().parents[1] / "docs"
FUNCTIONS = ("open", "import_from", "restore", "repair", "soft_lookup", "bilinear", "additive", "register")
CLASSES = (softkv.SoftKV, StoreView, softkv.Answer, softkv.Answers, softkv.Comparison, softkv.Heads)
FIRST = ("self", "cls", "reader")  # the arguments that a method is called on
MADE = "This page is made by `python -m tests.pages`"


def reference() -> str:
    """The page about the library."""
    parts = [
        "# Reference: the library\n",
        f"{MADE} of the docstrings. [library.md](library.md) teaches what is listed here.\n",
        "## Functions\n",
        *(_entry(f"softkv.{name}", getattr(softkv, name), "###") for name in FUNCTIONS),
    ]
    for one in CLASSES:
        parts += [f"## {one.__name__}\n", _text(one), *_fields(one)]
        parts += [_entry(name, member, "###") for name, member in _members(one)]
    parts += ["## Errors\n", f"```text\n{textwrap.dedent(errors.__doc__ or '').strip()}\n```\n"]
    return "\n".join(parts)


def options() -> str:
    """The page about the command."""
    parts = [
        "# Reference: the command\n",
        f"{MADE} of what the commands say of themselves. [command.md](command.md) teaches them.\n",
    ]
    for words, one in _commands("softkv", command):
        parts += [f"## {words}\n", _told(words, one)]
    return "\n".join(parts)


PAGES = {"reference.md": reference, "options.md": options}


def _members(one: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class, those of its bases included, by name; of a subclass what it adds or changes."""
    for name in sorted(dir(one)):
        member = inspect.getattr_static(one, name)
        inherited = one is StoreView and getattr(softkv.SoftKV, name, None) is getattr(one, name)
        ours = getattr(getattr(member, "fget", member), "__module__", None) or ""
        if name.startswith("_") or inherited or not ours.startswith("softkv"):
            continue
        if inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod, property)):
            yield name, member if isinstance(member, property) else getattr(one, name)


def _entry(name: str, of: Any, level: str) -> str:
    called = f"{name}{_signature(of)}" if callable(of) else f"{name}: {_signature(of.fget).rpartition(' -> ')[2]}"
    return f"{level} {name}\n\n```python\n{called}\n```\n\n{_text(of)}"


def _signature(of: Any) -> str:
    """The arguments and the result as they stand in the source."""
    found = ast.parse(textwrap.dedent(inspect.getsource(of))).body[0]
    assert isinstance(found, ast.FunctionDef)
    assert found.returns is not None
    given = [*found.args.posonlyargs, *found.args.args]
    defaults = [*[None] * (len(given) - len(found.args.defaults)), *found.args.defaults]
    pairs = zip(given, defaults, strict=True)
    told = [_argument(one, default) for one, default in pairs if one.arg not in FIRST]
    if found.args.vararg is not None or found.args.kwonlyargs:
        told.append("*" if found.args.vararg is None else f"*{ast.unparse(found.args.vararg)}")
    told += [
        _argument(one, default) for one, default in zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
    ]
    arguments, returns = ", ".join(told), ast.unparse(found.returns).strip("'")
    if len(arguments) + len(returns) > 90:
        arguments = "".join(f"\n    {one}," for one in told) + "\n"
    return f"({arguments}) -> {returns}"


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(one) + ("" if default is None else f" = {ast.unparse(default)}").replace("'", '"')


def _fields(one: type) -> list[str]:
    """The fields of a result, as they stand in its source with their comments."""
    lines = inspect.getsource(one).splitlines()
    told = [line.strip() for line in lines if re.match(r"    [a-z]\w*: ", line)]
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
    items = re.sub(r"(?m)^(\S+?): ", r"- `\1`: ", textwrap.dedent(found[2]))
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
    """What a command does, how it is called, and its options."""
    with click.Context(one, info_name=words) as context:
        usage = " ".join([words, *one.collect_usage_pieces(context)])
        about = textwrap.dedent(f"    {(one.help or '').strip()}").replace("\b\n", "").strip()
        told = [_option(param) for param in one.params if isinstance(param, click.Option) and not param.hidden]
    return "\n\n".join([f"```text\n{usage}\n```", about, "\n".join(told)]).rstrip() + "\n"


def _option(param: click.Option) -> str:
    names = ", ".join([*param.opts, *param.secondary_opts])
    takes = "" if param.is_flag or param.count else f" {param.metavar or _kind(param)}"
    return f"- `{names}{takes}`: {param.help or ''}".rstrip(": ")


def _kind(param: click.Option) -> str:
    return "|".join(map(str, param.type.choices)) if isinstance(param.type, click.Choice) else param.type.name.upper()


if __name__ == "__main__":
    for page, made in PAGES.items():
        (DOCS / page).write_text(made(), encoding="utf-8")
