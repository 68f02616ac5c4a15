"""Check that a value from a server has the type that an annotation says.

Supports the annotations of the library's results: numbers, texts, lists, tuples, mappings, unions, literals, arrays,
classes. A dict of annotations means a dict with at least these fields; a list with one annotation means a list.

Does not check the contents of arrays.
"""

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

hints_of = cache(get_type_hints)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says.

    >>> fits([1, 2], list[int]), fits([1, "a"], list[int]), fits({"a": 1}, dict[str, float | None]), fits(True, int)
    (True, False, True, False)
    """
    origin, of = get_origin(hint) or hint, get_args(hint)
    if isinstance(hint, dict):
        return isinstance(value, dict) and all(name in value and fits(value[name], one) for name, one in hint.items())
    if isinstance(hint, list):
        return isinstance(value, list) and all(fits(one, hint[0]) for one in value)
    if hint in (Any, object):
        return True
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in of)
    if origin is Literal:
        return value in of
    if hint in (int, float):
        return type(value) in (int, hint)
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if not name.startswith("_"))
    return isinstance(value, origin) and _holds(value, origin, of)


def _holds(value: Any, origin: Any, of: tuple[Any, ...]) -> bool:
    """Whether the elements of a list, a tuple or a mapping fit."""
    if not of or of[0] is Any or origin not in (list, tuple, dict, Mapping):
        return True
    if origin in (dict, Mapping):
        return all(fits(key, of[0]) and fits(one, of[1]) for key, one in value.items())
    if origin is tuple and of[-1] is not ...:
        return len(value) == len(of) and all(map(fits, value, of))
    return all(fits(one, of[0]) for one in value)
