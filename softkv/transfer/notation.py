"""JSON, written short and read strictly.

Strictly: Python's own reader takes NaN and Infinity, which are not JSON, and lets the last of two equal names win.

Does not know what the values mean.
"""

import json
from typing import Any


def written(value: Any) -> str:
    """A value as JSON, without a blank and without an escape that is not needed."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read(text: str) -> Any:
    """The value of a JSON text, or a ValueError that says what is wrong with it."""
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def holds_more(text: bytes, most: int) -> bool:
    """Whether a JSON text holds more values than these, about: a few bytes each, but tens or hundreds in memory."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * most:
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(outside.count(byte) for byte in b",[{") > most


def kind_of(value: Any) -> str:
    """What a value is called in JSON, for messages."""
    return _KINDS.get(type(value), type(value).__name__)


def _refuse(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_object)
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}
