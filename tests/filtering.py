"""Filters evaluated the slow and obvious way, straight from the dict that a user writes, and payloads to try them on.

Imports nothing from softkv. Numbers are compared as fractions, which have no rounding to hide behind.
"""

import random
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

PLAIN = ["year", "genre", "a", "b", "A"]
ODD = [
    *(
        "",
        "a.b",
        "a b",
        "a[0]",
        "[0]",
        "0",
        "#",
        "%",
        "_",
        "null",
        "é",
        "日本",
        "😀",
        "\u2028",
        "\x7f",
        "*",
        "?",
        ":a",
        "//",
    ),
    *('a"b', '"', "a\\b", "\\", "a\nb", "\t", "\\u0061", "'", "'; DROP TABLE contents; --", '."a"', "a'b", "x" * 300),
]
ONLY_IN_PAYLOADS = ["a\0b", "\0", "$.a", "$gt", "$"]
NUMBERS: list[int | float] = [
    *(
        0,
        1,
        -1,
        2,
        3,
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        0.1,
        0.3,
        0.1 + 0.2,
        1 / 3,
        2 / 3,
        1e-5,
        123456789.12345678,
        1e16,
        10**16,
    ),
    *(2**53, 2**53 + 1, float(2**53), float(2**53 + 2), 9007199254740991.0, 9007199254740993, 2**63 - 1, -(2**63)),
    *(
        float(2**63),
        -float(2**63),
        float(2**70),
        1e22,
        1e23,
        1e308,
        1.7976931348623157e308,
        5e-324,
        -5e-324,
        1.2345e-310,
    ),
]
TEXTS = [
    "",
    "a",
    "b",
    "A",
    "ab",
    "x",
    "1",
    "1.0",
    "true",
    "null",
    "é",
    "z",
    "\uffff",
    "😀",
    'a"b',
    "a\\",
    "%",
    "_",
    "'",
    "\n",
]
NUMBERS_ONLY_IN_PAYLOADS = [2**63, 2**63 + 1, -(2**63) - 1, 2**64, 2**70, 2**70 + 1, 10**22, 10**400, -(10**400)]
TEXTS_ONLY_IN_PAYLOADS = ["a\0", "x\0y", "\0", "\\u0000"]


def meets(payload: Any, where: dict[str, Any]) -> bool:
    """Whether a payload meets a filter."""
    for name, asked in where.items():
        if name == "$and":
            holds = all(meets(payload, one) for one in asked)
        elif name == "$or":
            holds = any(meets(payload, one) for one in asked)
        elif name == "$not":
            holds = not meets(payload, asked)
        else:
            holds = field_meets(payload, name, asked)
        if not holds:
            return False
    return True


def field_meets(holder: Any, name: str, asked: Any) -> bool:
    """Whether a field of an object, which may not be there, meets what stands beside its name."""
    there = isinstance(holder, dict) and name in holder
    if not isinstance(asked, dict):
        return there and same(holder[name], asked)
    if [key for key in asked if key[:1] == "$"]:
        return all(passes(holder, name, key, operand, there) for key, operand in asked.items())
    if not there or not isinstance(holder[name], dict):
        return False
    return all(field_meets(holder[name], inner, operand) for inner, operand in asked.items())


def passes(holder: Any, name: str, key: str, operand: Any, there: bool) -> bool:
    """Whether a field passes one operator."""
    if key == "$exists":
        return there == operand
    if not there:
        return False
    value = holder[name]
    if key == "$not":
        return not field_meets(holder, name, operand)
    if key in ("$eq", "$ne"):
        return same(value, operand) == (key == "$eq")
    if key in ("$in", "$nin"):
        return any(same(value, one) for one in operand) == (key == "$in")
    if kind(value) != kind(operand):
        return False
    left, right = sortable(value), sortable(operand)
    return {"$gt": left > right, "$gte": left >= right, "$lt": left < right, "$lte": left <= right}[key]


def kind(value: Any) -> str:
    """The type of a value in JSON."""
    if value is None:
        return "null"
    names = {bool: "truth", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names[type(value)]


def same(value: Any, asked: Any) -> bool:
    """Whether two values are equal, types included."""
    if kind(value) != kind(asked) or kind(value) in ("list", "object"):
        return False
    return bool(sortable(value) == sortable(asked))


def sortable(value: Any) -> Any:
    """A number without rounding; a text as its code points."""
    if kind(value) == "number":
        return Fraction(value)
    return [ord(letter) for letter in value] if isinstance(value, str) else value


def payloads(count: int, seed: int = 0) -> list[Any]:
    """Payloads of every sort: none, no objects, few and many fields, odd names, values of all types, nested."""
    chance = random.Random(seed)
    values = [None, True, False, *NUMBERS, *TEXTS, *NUMBERS_ONLY_IN_PAYLOADS, *TEXTS_ONLY_IN_PAYLOADS, [], [1], {}]

    def value(depth: int) -> Any:
        if depth < 3 and chance.random() < 0.3:
            return thing(depth + 1) if chance.random() < 0.8 else [value(depth + 1) for _ in range(chance.randrange(3))]
        return chance.choice(values)

    def thing(depth: int) -> dict[str, Any]:
        names = PLAIN if chance.random() < 0.6 else [*PLAIN, *ODD, *ONLY_IN_PAYLOADS]
        return {chance.choice(names): value(depth) for _ in range(chance.randrange(6))}

    odd = [None, 5, "a", True, [], [{"a": 1}], {}, {"a": None}]
    full = [{name: value(1) for name in [*PLAIN, *ODD, *ONLY_IN_PAYLOADS]} for _ in range(count // 10)]
    return (odd + full + [thing(0) for _ in range(count)])[:count]


def _operators(fields: "st.SearchStrategy[Any]") -> "st.SearchStrategy[dict[str, Any]]":
    scalars = st.sampled_from([None, True, False, *NUMBERS, *TEXTS])
    ordered = st.sampled_from([*NUMBERS, *TEXTS])
    operands = {
        **dict.fromkeys(["$eq", "$ne"], scalars),
        **dict.fromkeys(["$gt", "$gte", "$lt", "$lte"], ordered),
        **dict.fromkeys(["$in", "$nin"], st.lists(scalars, max_size=5)),
        "$exists": st.booleans(),
        "$not": fields.filter(lambda asked: not (isinstance(asked, dict) and "$exists" in asked)),
    }
    pairs = st.sampled_from(list(operands)).flatmap(lambda key: st.tuples(st.just(key), operands[key]))
    return st.lists(pairs, min_size=1, max_size=2).map(dict)


_names = st.sampled_from(PLAIN) | st.sampled_from([*PLAIN, *ODD])
_fields = st.recursive(
    st.sampled_from([None, True, False, *NUMBERS, *TEXTS]),
    lambda inner: _operators(inner) | st.dictionaries(_names, inner, max_size=2),
    max_leaves=4,
)


def _combined(inner: "st.SearchStrategy[Any]") -> "st.SearchStrategy[dict[str, Any]]":
    several = st.lists(inner, min_size=1, max_size=3)
    whole = st.fixed_dictionaries({}, optional={"$and": several, "$or": several, "$not": inner})
    return st.tuples(whole, st.dictionaries(_names, _fields, max_size=2)).map(lambda two: {**two[0], **two[1]})


FILTERS = st.recursive(st.dictionaries(_names, _fields, min_size=1, max_size=2), _combined, max_leaves=4)
