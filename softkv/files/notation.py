"""JSON, written compactly and read strictly.

Python's own reader is not strict: it accepts NaN and Infinity, which are not JSON, and keeps the last of equal names.

Does not know what the values mean.
"""

import json
from collections import Counter
from typing import Any, NoReturn

import numpy as np

from softkv.files.record import Misfit, shown

MISSING = ...  # stands for a missing field; a null is not missing

NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    np.ndarray: "a list",
    dict: "an object",
    type(None): "null",
    type(MISSING): "missing",
}


def written(value: Any) -> str:
    """A value as JSON, without a blank and without an escape that is not needed."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def parsed(text: str) -> Any:
    """The value that a JSON text stands for; a Misfit says what is wrong with the text."""
    text = text.strip(" \t\r\n")
    try:
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise Misfit(unreadable(error)) from error
    if end < len(text):
        raise Misfit(f"there is more after the JSON value: {shown(text[end:])} at character {end + 1}")
    return value


def unreadable(error: Exception) -> str:
    """Why a JSON text cannot be read."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg.lower()} at character {error.pos + 1}"
    if isinstance(error, RecursionError):
        return "JSON that is nested too deep"
    return "JSON with a number of too many digits"


def holds_more(text: str, most: int) -> bool:
    """Whether a JSON text holds more than about this many values: few bytes each, but tens or hundreds in memory."""
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') > 2 * most:
        return True
    outside = "".join(bare.split('"')[::2])
    return sum(map(outside.count, ",[{")) > most


def kind_of(value: Any) -> str:
    """What a value is called in JSON, for messages."""
    return NAMES.get(type(value), f"of type {type(value).__name__}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Misfit(f"the name {shown(twice)} stands twice in one object")
    return made


def _constant(name: str) -> NoReturn:
    raise Misfit(f"{name} is not JSON, and not a finite number")


DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)
