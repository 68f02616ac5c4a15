"""Filters on payloads as users write them, checked and turned into a condition.

    {"year": {"$gte": 2000}, "$or": [{"genre": "crime"}, {"stars": {"$gt": 4}}]}

All entries of a dict must hold. A plain name is that of a field of the payload. Its value is one of

    a text, number, boolean or None   the field equals it
    {"$gte": 2000, "$lt": 2010}       operators, all of which must hold
    {"born": {"$lt": 1900}}           a filter on the fields of an object, for a dict without operators

{"$value": ...} is about the value of an item, a number, label or text, and takes what a field takes.

Operators on a field: $eq $ne $gt $gte $lt $lte $in $nin $exists, and $not before operators, a value or a nested filter.
On whole filters: $and and $or with a list of them, $not with one.

Types matter. Numbers are compared with numbers, exactly, integers and floats; texts with texts, by code point. true and
false equal themselves, and never 1 or 0; null equals null. Lists and objects equal nothing. Only numbers and texts have
an order. A value of another type is neither above nor below nor equal, and so it differs: $ne, $nin and $not hold.

A field that is missing meets no condition but {"$exists": False}: not $ne either, nor $nin, nor $not on a field. Fields
are missing as well where there is no payload, or one that is not an object. $not before a whole filter simply inverts
its answer. {} matches everything.

A filter that cannot be understood is a FilterError that names the place. Does not read payloads (conditions.py does).
"""

import difflib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from softkv.errors import FilterError
from softkv.storage.batch import shown
from softkv.storage.filters.conditions import (
    ORDERS,
    VALUE,
    AnObject,
    Condition,
    Field,
    FieldPath,
    Joined,
    Not,
    Number,
    Ordered,
    Present,
    all_of,
    one_of,
)

DEEPEST_FILTER = 64
MOST_CONDITIONS = 1_000
MOST_MEMBERS = 10_000
ON_FILTERS = ("$and", "$or", "$not", VALUE)
ON_FIELDS = ("$eq", "$ne", *ORDERS, "$in", "$nin", "$exists", "$not")

Scalar = str | Number | bool | None


def condition_of(where: Mapping[str, Any]) -> Condition:
    """The condition that a filter states."""
    return _Reader().whole(where, "where", 1)


class _Reader:
    """Reads one filter, and counts what it holds: lists that share their parts may hold billions."""

    def __init__(self) -> None:
        self._seen = 0

    def whole(self, given: Any, at: str, level: int) -> Condition:
        """A filter on whole payloads."""
        self._count(at, level)
        if not isinstance(given, Mapping):
            raise _refusal(at, "a dict of fields and conditions", _described(given), 'Write {"field": value}.')
        return all_of(
            self._combined(name, operand, f"{at}[{_quoted(name)}]", level + 1)
            if isinstance(name, str) and name.startswith("$")
            else self._field(operand, (_field_name(name, at),), f"{at}[{_quoted(name)}]", level + 1)
            for name, operand in given.items()
        )

    def _combined(self, name: str, operand: Any, at: str, level: int) -> Condition:
        if name not in ON_FILTERS:
            raise _unknown(name, at, ON_FILTERS, "on whole filters", ON_FIELDS, "beside the name of a field")
        if name == "$not":
            return Not(self.whole(operand, at, level))
        if name == VALUE:
            return self._value(operand, at, level)
        if not isinstance(operand, (list, tuple)) or not operand:
            got = "an empty one" if isinstance(operand, (list, tuple)) else _described(operand)
            raise _refusal(at, "a list of filters", got, f'Write {{"{name}": [{{...}}, {{...}}]}}.')
        parts = [self.whole(one, f"{at}[{position}]", level) for position, one in enumerate(operand)]
        return all_of(parts) if name == "$and" else Joined(tuple(parts), every=False)

    def _value(self, given: Any, at: str, level: int) -> Condition:
        """The test of $value: a value, or operators; it has no fields."""
        names = [name for name in given if not str(name).startswith("$")] if isinstance(given, Mapping) else []
        if isinstance(given, Mapping) and (names or not given):
            raise _refusal(at, "a value or operators", "a dict without operators", 'Write {"$value": {"$gt": 3}}.')
        return self._field(given, (VALUE,), at, level)

    def _field(self, given: Any, path: FieldPath, at: str, level: int) -> Condition:
        """The test of a field: a value, operators, or a filter on its own fields."""
        self._count(at, level)
        if not isinstance(given, Mapping):
            return Field(path, one_of([_scalar(given, at)]))
        operators = [name for name in given if isinstance(name, str) and name.startswith("$")]
        names = [_field_name(name, at) for name in given if name not in operators]
        if operators and names:
            both = f"both {_quoted(operators[0])} and {_quoted(names[0])}"
            raise _refusal(at, "operators or the names of fields", both, 'Separate them: {"$and": [{...}, {...}]}.')
        if operators:
            return all_of(self._operator(name, given[name], path, f"{at}[{_quoted(name)}]", level) for name in given)
        nested = (
            self._field(operand, (*path, name), f"{at}[{_quoted(name)}]", level + 1)
            for name, operand in zip(names, given.values(), strict=True)
        )
        return all_of([Field(path, AnObject()), *nested])

    def _operator(self, name: str, operand: Any, path: FieldPath, at: str, level: int) -> Condition:
        self._count(at, level)
        if name in ORDERS:
            return Field(path, Ordered(name, _orderable(operand, at)))
        if name == "$exists":
            return Field(path, Present()) if _flag(operand, at) else Not(Field(path, Present()))
        if name in ("$eq", "$in"):
            return Field(path, one_of(_members(operand, at) if name == "$in" else [_scalar(operand, at)]))
        if name in ("$ne", "$nin"):
            differs = one_of(_members(operand, at) if name == "$nin" else [_scalar(operand, at)])
            return all_of([Field(path, Present()), Not(Field(path, differs))])
        if name != "$not":
            raise _unknown(name, at, ON_FIELDS, "on a field", ON_FILTERS, "on whole filters, outside of a field")
        if isinstance(operand, Mapping) and "$exists" in operand:
            advice = 'A missing field meets no $not. Turn the True or False of "$exists" around instead.'
            raise _refusal(at, "a condition on a field that is there", '"$exists"', advice)
        return all_of([Field(path, Present()), Not(self._field(operand, path, at, level + 1))])

    def _count(self, at: str, level: int) -> None:
        self._seen += 1
        if level > DEEPEST_FILTER:
            raise _refusal(at, f"at most {DEEPEST_FILTER} levels", "more", "Nest it less deeply.")
        if self._seen > MOST_CONDITIONS:
            advice = 'To compare one field with many values, use "$in".'
            raise _refusal("where", f"at most {MOST_CONDITIONS:,} conditions", "more", advice)


def _members(given: Any, at: str) -> list[Scalar]:
    if not isinstance(given, (list, tuple)):
        raise _refusal(
            at, "a list of values", _described(given), "Write [value, ...]; for a single value use $eq or $ne."
        )
    if len(given) > MOST_MEMBERS:
        advice = "Ask in several turns, and combine the masks with | (for $in) or & (for $nin)."
        raise _refusal(at, f"at most {MOST_MEMBERS:,} values", f"{len(given):,}", advice)
    return [_scalar(member, f"{at}[{position}]") for position, member in enumerate(given)]


def _scalar(given: Any, at: str) -> Scalar:
    """A value that a payload could hold, as Python's own type."""
    value = given.item() if isinstance(given, np.generic) and given.dtype.kind in "biuf" else given
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, at)
    if isinstance(value, int):
        return _integer(int(value), at)
    if isinstance(value, float):
        return _finite(float(value), at)
    several = isinstance(value, (list, tuple, set, frozenset, Mapping, np.ndarray))
    advice = 'Lists and objects equal nothing; for one of several values write {"$in": [...]}.' if several else ""
    advice = advice or "Convert it to what the payloads hold."
    raise _refusal(at, "a text, a number, True, False or None", _described(value), advice)


def _orderable(given: Any, at: str) -> str | Number:
    value = _scalar(given, at)
    if value is None or isinstance(value, bool):
        advice = "Nothing else has an order; use $eq, $ne, $in or $nin."
        raise _refusal(at, "a number or a text", _described(value), advice)
    return value


def _flag(given: Any, at: str) -> bool:
    if not isinstance(given, (bool, np.bool_)):
        advice = "True asks for a field that is there, False for one that is not."
        raise _refusal(at, "True or False", _described(given), advice)
    return bool(given)


def _integer(value: int, at: str) -> int:
    if not -(2**63) <= value < 2**63:
        advice = "Use a float, such as 1e20: it is compared with whole numbers exactly."
        raise _refusal(at, "an integer of 64 bits", f"one of {value.bit_length() + 1}", advice)
    return value


def _finite(value: float, at: str) -> float:
    if not math.isfinite(value):
        advice = 'No payload holds such a number; {"$exists": True} asks for any value.'
        raise _refusal(at, "a finite number", _described(value), advice)
    return value


def _text(value: str, at: str) -> str:
    if "\0" in value:
        raise _refusal(at, "a text without NUL", _described(value), "Leave that character out.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        advice = f"Remove the lone surrogate at position {error.start}."
        raise _refusal(at, "a text of Unicode characters", _described(value), advice) from error
    return str.__str__(value)  # also turns NumPy's texts into Python's


def _field_name(name: object, at: str) -> str:
    if not isinstance(name, str):
        raise _refusal(at, "texts as names of fields", _described(name), "JSON knows no other names.")
    return _text(name, f"a name in {at}")


def _unknown(name: str, at: str, known: tuple[str, ...], here: str, others: tuple[str, ...], there: str) -> FilterError:
    """The error for a name with a $ that is no operator at this place."""
    near = difflib.get_close_matches(name, known, 1, cutoff=0.7)
    advice = f"{name} stands {there}." if name in others else f"Did you mean {near[0]}?" if near else ""
    advice = advice or "Fields whose names start with $ cannot be asked for."
    return _refusal(at, f"one of the operators {here}, {' '.join(known)}", shown(name), advice)


def _refusal(at: str, expected: str, got: str, advice: str) -> FilterError:
    return FilterError(f"{at}: expected {expected}, got {got}. {advice}")


def _described(value: object) -> str:
    """A value as shown in a message; for large values, and for objects with a repr of their own, the type."""
    if isinstance(value, str):
        return shown(value)
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**63):
        return repr(value)
    return f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"


def _quoted(name: str) -> str:
    """A name as shown in a path: where["name"]."""
    short = name if len(name) <= 60 else name[:57] + "..."
    return json.dumps(short, ensure_ascii=not short.isprintable())
