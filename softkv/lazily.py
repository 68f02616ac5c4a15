"""Import the public names of a package on first use, so that importing the package itself loads nothing else.

The root has its own version, since one of its names is a module.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for a package; `homes` gives the module of each of its public names."""

    def look_up(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(homes[name]), name)
        return found

    return look_up
