"""How a README is told: its prose dressed, its code run, and nothing shown that was not computed just now."""

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import softkv_examples
from softkv_examples import load, narration, scratch, tell, titles
from softkv_examples.telling import told


def lines(text: str, width: int = 80) -> list[str]:
    """A README that a test wrote, told."""
    return list(told(text, width))


def test_prose_is_undressed_and_wrapped() -> None:
    """Marks go, words stay, and no line is wider than asked."""
    found = lines("# A title\n\nSome **bold** words and a [link](docs/x.md) that\ngo on.\n\n- one\n  more\n- two\n", 24)
    assert found == [
        "A title",
        "=======",
        "",
        "Some bold words and a",
        "link that go on.",
        "",
        "- one more",
        "- two",
    ]


def test_what_is_shown_is_what_came_out() -> None:
    """The output printed in the README is not believed, and names live from one block to the next."""
    found = lines("```pycon\n>>> x = 6\n>>> x * 7\n41\n```\n\nSo:\n\n```pycon\n>>> print(x)\n7\n```\n")
    assert found == ["    >>> x = 6", "    >>> x * 7", "    42", "", "So:", "", "    >>> print(x)", "    6"]


def test_statements_of_several_lines_are_shown_whole() -> None:
    """Lines that go on are marked as in the interpreter, and an empty line stays one."""
    found = lines("```pycon\n>>> for x in (1, 2):\n...     print(x)\n...     print()\n1\n```\n")
    assert found == [
        "    >>> for x in (1, 2):",
        "    ...     print(x)",
        "    ...     print()",
        "    1",
        "",
        "    2",
        "",
    ]


def test_other_blocks_are_shown_and_not_run() -> None:
    """A block of shell commands loses its fences only."""
    assert lines("```sh\nsoftkv demo\n```\n") == ["    softkv demo"]


def test_an_error_that_is_announced_is_shown_by_its_last_line() -> None:
    """The line is that of the error that was raised, not of the one that was announced."""
    found = lines("```pycon\n>>> {}['x']\nTraceback (most recent call last):\nValueError: no\n```\n")
    assert found == ["    >>> {}['x']", "    KeyError: 'x'"]


def test_an_error_that_is_not_announced_is_not_told_away() -> None:
    """It goes on to whoever asked for the tale, after the line that raised it."""
    tale = told("```pycon\n>>> 1 / 0\n1\n```\n", 80)
    assert next(tale) == "    >>> 1 / 0"
    with pytest.raises(ZeroDivisionError):
        next(tale)


def test_lines_come_while_the_code_runs() -> None:
    """A line of code is told before it runs, so that one sees what takes its time."""
    tale = told("```pycon\n>>> import sys; sys.told_marker = 1\n```\n", 80)
    assert isinstance(tale, Iterator)
    assert next(tale).endswith("sys.told_marker = 1")
    assert not hasattr(sys, "told_marker")
    assert list(tale) == []
    assert sys.__dict__.pop("told_marker") == 1


def test_the_interpreter_is_left_as_it_was() -> None:
    """Neither stdout nor the display hook nor the interpreter's `_` is touched between lines."""
    before = sys.stdout, sys.displayhook, getattr(builtins, "_", None)
    for _ in told("```pycon\n>>> 5\n5\n>>> print(6)\n6\n```\n", 80):
        assert (sys.stdout, sys.displayhook, getattr(builtins, "_", None)) == before


def test_titles_are_the_headings_in_the_order_of_telling() -> None:
    """They go from the dictionary to multi-head, and none is missing."""
    known = titles()
    assert next(iter(known)) == "incomes"
    assert list(known).index("words") < list(known).index("apple") < list(known).index("heads")
    for name, title in known.items():
        assert narration(name).startswith(f"# {title}\n")


def test_a_tale_is_told_from_its_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tell` computes: other incomes give other answers."""
    assert "    52000.0" in list(tell("incomes"))
    other = {**load("incomes"), "incomes": [1000, 2000, 3000]}
    monkeypatch.setattr(softkv_examples, "load", {"incomes": other}.get)
    assert "    1000.0" in list(tell("incomes"))


def test_a_name_that_is_not_there_is_refused() -> None:
    """It is before anything is told."""
    with pytest.raises(FileNotFoundError):
        tell("nonsense")


def test_scratch_folders_are_new_each_time() -> None:
    """Two stores of one name do not meet."""
    first, second = Path(scratch("x.softkv")), Path(scratch("x.softkv"))
    assert first != second
    assert first.parent.is_dir()
    assert not first.exists()
