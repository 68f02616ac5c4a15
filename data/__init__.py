"""Small worked examples, one folder each, and the code that shows them. Installed as `softkv_examples`.

A folder has a README.md with text and code, and a JSON file with the inputs and the expected results. `tell`
(telling.py) prints a README and runs its code.
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# From the dictionary to multi-head attention, and then to a help desk.
ORDER = ("incomes", "books", "hours", "car", "words", "ways", "apple", "translation", "heads", "intents")


def example(name: str) -> Path:
    """The folder of one worked example."""
    return Path(__file__).parent / name


def load(name: str) -> Any:
    """The JSON file of one worked example."""
    return json.loads((example(name) / f"{name}.json").read_text(encoding="utf-8"))


def narration(name: str) -> str:
    """The README of one worked example."""
    return (example(name) / "README.md").read_text(encoding="utf-8")


def titles() -> dict[str, str]:
    """The names of the examples and their titles, in reading order."""
    return {name: narration(name).splitlines()[0].removeprefix("# ") for name in ORDER}


def tell(name: str, *, width: int = 88) -> Iterator[str]:
    """The lines of one example for a terminal: its prose, its code, and the output of the code, which is run now.

    >>> lines = list(tell("incomes"))
    >>> lines[0]
    'Incomes by name'
    >>> [after for line, after in zip(lines, lines[1:]) if line.endswith('>>> db["Anna"]')]
    ['    52000.0']

    Args:
        name: One of `titles`.
        width: Where prose is wrapped. Code and its output are not wrapped.
    """
    from .telling import told  # it imports doctest, which takes a while

    return told(narration(name), width)


def scratch(name: str) -> str:
    """A path of this name in a new temporary folder, which is removed when the interpreter exits."""
    folder = tempfile.mkdtemp(prefix="softkv-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, name)
