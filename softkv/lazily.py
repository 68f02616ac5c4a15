"""Public names of a package that are looked up on first use, so that importing the package loads nothing else.

Does not serve the root, which also hands out a module.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """What a package takes for its `__getattr__`; `homes` says in which module each of its names is."""

    def look_up(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(homes[name]), name)
        return found

    return look_up
