"""Words: docstrings stand alone in an editor, and pages name options that there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from softkv_cli.main import softkv as command

ROOT = Path(__file__).parent.parent
CONTINUES = re.compile(
    r"(The same|The other|Those|These|Its|Their|It|They|As|And|But|Or|So|Also|By|With|Without|Of|Until|Beside|Likewise|"
    r"Instead|Here|Such|Like|Again|Even|Too|Else|Otherwise|In the place)\b"
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("data/*/README.md"))]


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a file, of its classes and of its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("folder", ["softkv", "cli", "data"])
def test_docstrings_stand_alone(folder: str) -> None:
    """None begins as if it went on with the name of its function, or with the docstring before it."""
    found = [text for path in (ROOT / folder).rglob("*.py") for text in docstrings(path.read_text(encoding="utf-8"))]
    assert len(found) > 20
    assert [text for text in found if CONTINUES.match(text)] == []


def test_a_docstring_says_more_than_a_shape() -> None:
    """Every docstring has a word beside its letters and axes, such as `(m, b)`."""
    files = [path for folder in ("softkv", "cli", "data") for path in (ROOT / folder).rglob("*.py")]
    found = [text for path in files for text in docstrings(path.read_text(encoding="utf-8")) if text]
    assert [text for text in found if not re.search(r"[A-Za-z]{3}", text) and "=" not in text] == []


def test_docstrings_of_tests_stand_alone() -> None:
    """None begins with a word that goes on with the name of its test."""
    going_on = "And|But|Or|Nor|Also|As|By|Then|Since|Until|Unless|Rather|So|Such|Even|Too|Once|Like|The same"
    begin = re.compile(rf'def (test_\w+)\([^"]*"""(?:{going_on})\b')
    found = {path.name: begin.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {name: tests for name, tests in found.items() if tests} == {}


@pytest.mark.parametrize(
    ("source", "alone"),
    [
        ('def f():\n    """The same for rows."""', False),
        ('"""As above."""', False),
        ('class A:\n    """And so on."""', False),
        ('async def f():\n    """Assign rows to lists."""', True),
    ],
)
def test_a_docstring_that_continues_is_seen(source: str, alone: bool) -> None:
    """Docstrings of files, classes and functions are looked at, and only whole words count."""
    assert any(CONTINUES.match(text) for text in docstrings(source)) != alone


def options(one: click.Command) -> set[str]:
    """The options of a command as they are typed."""
    return {"--help"}.union(*(set(param.opts) | set(param.secondary_opts) for param in one.params))


def called(line: str) -> tuple[str, click.Command, set[str]]:
    """The command that a line of a page calls, and the options that it has there."""
    words, found, name = re.split(r"[|;#)]|&&|\$\(", line)[0].split(), command, "softkv"
    for word in words:
        below = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
        if below is not None:
            found, name = below, f"{name} {word}"
    return name, found, {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_on_a_page_are_options_of_the_command(page: Path) -> None:
    """Lines of a shell and commands within sentences, with or without the word softkv, name options that exist."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"(?:^|[`$(]|&& )\s*softkv ([^`\n]*)|`([a-z]+ [^`\n]*)`", text, re.MULTILINE):
        name, found, named = called("".join(line))
        assert found is command or named <= options(found) | options(command), f"{name}: {line}"


def test_options_by_themselves_are_options_of_some_command() -> None:
    """Every option that docs/command.md names by itself is one that some command has."""
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", (ROOT / "docs" / "command.md").read_text(encoding="utf-8"))
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", (ROOT / "docs" / "options.md").read_text(encoding="utf-8")))
    assert len(set(named)) > 30
    assert set(named) <= known | {"--help"}


def test_an_option_of_another_command_is_seen() -> None:
    """An option of `query` that is given to `add` is one."""
    name, found, named = called('add "a key" 5 --db x -n=3 | softkv query - --known')
    assert (name, named, named - options(found)) == ("softkv add", {"--db", "-n"}, {"-n"})
