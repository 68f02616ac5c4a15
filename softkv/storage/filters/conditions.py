"""The conditions of a filter on a payload, in two forms that mean the same: an expression of SQL, and plain Python.

SQL answers for nearly every row, at a fraction of the time; but SQLite reads JSON in its own way. It cuts texts off at
an escaped NUL, rounds integers beyond 64 bits, reads some floats slightly wrong on some machines, and differs between
versions about names that are written with escapes. Wherever that could change an answer, the expression is NULL, which
AND, OR and NOT of SQL treat as unknown. Such rows are left to Python, which is exact.

Names and operands are bound parameters, never a part of the SQL.

Does not read filters as users write them (worded.py), nor rows (roster.py).
"""

import json
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import sqlalchemy as sa

FieldPath = tuple[str, ...]  # the names that lead to a field
Number = int | float
Expression = sa.ColumnElement[Any]

DEEPEST_IN_SQL = 16  # SQLite's parser keeps a stack of 100 symbols
MOST_IN_SQL = 16  # tests of fields; from here on Python is as fast, and SQLite 3.31 takes only 999 parameters
_NEAR = 1e-13  # relative; far more than a float of SQLite is ever off
_TINY = 1e-300  # the same near zero, where floats lose digits

VALUE = "$value"  # the value of an item, as if it were a field of its payload: no field has such a name
ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_MISSING = object()
PAYLOAD: Expression = sa.literal_column("contents.payload", sa.Text)


class Condition(Protocol):
    """A condition on a payload. `sql` is 1, 0, or NULL where only `holds` can tell.

    Conditions can be compared and hashed, and equal ones mean the same.
    """

    def sql(self) -> Expression:
        """The condition as an expression over contents.payload."""

    def holds(self, payload: Any) -> bool:
        """Whether a payload meets it."""


class Test(Protocol):
    """A test of one field that is present. `sql` must be 0 for a field that is missing."""

    def sql(self, kind: Expression, value: Expression) -> Expression:
        """The test as an expression over the JSON type ('missing' if need be) and the value of a field."""

    def holds(self, found: Any) -> bool:
        """Whether the value of a field meets it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """All parts hold, or, without `every`, at least one. With no parts, every payload meets it."""

    parts: tuple[Condition, ...]
    every: bool = True

    def sql(self) -> Expression:
        parts = [part.sql() for part in self.parts]
        return sa.and_(sa.true(), *parts) if self.every else sa.or_(sa.false(), *parts)

    def holds(self, payload: Any) -> bool:
        return (all if self.every else any)(part.holds(payload) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    """A part does not hold."""

    part: Condition

    def sql(self) -> Expression:
        return sa.not_(self.part.sql())

    def holds(self, payload: Any) -> bool:
        return not self.part.holds(payload)


@dataclass(frozen=True, slots=True)
class Field:
    """A field is present, and its value passes a test."""

    path: FieldPath
    test: Test

    def sql(self) -> Expression:
        if not all(_is_plain(name) for name in self.path):
            return _perhaps_escaped()
        place = "$" + "".join(f'."{name}"' for name in self.path)
        kind = sa.func.coalesce(sa.func.json_type(PAYLOAD, place), _constant("missing"))
        return self.test.sql(kind, sa.func.json_extract(PAYLOAD, place))

    def holds(self, payload: Any) -> bool:
        for name in self.path:
            payload = payload.get(name, _MISSING) if isinstance(payload, dict) else _MISSING
        return payload is not _MISSING and self.test.holds(payload)


@dataclass(frozen=True, slots=True)
class Present:
    """Any value, null included."""

    def sql(self, kind: Expression, value: Expression) -> Expression:
        return kind != _constant("missing")

    def holds(self, found: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class AnObject:
    """An object, whatever its fields."""

    def sql(self, kind: Expression, value: Expression) -> Expression:
        return kind == _constant("object")

    def holds(self, found: Any) -> bool:
        return isinstance(found, dict)


@dataclass(frozen=True, slots=True)
class Among:
    """Equal to one of these, types included: 1 is 1.0, and neither is true."""

    texts: frozenset[str]
    numbers: frozenset[Number]
    others: frozenset[bool | None]

    def sql(self, kind: Expression, value: Expression) -> Expression:
        """The test for equality; unknown for a float that seems equal."""
        parts = [kind == _constant(json.dumps(other)) for other in self.others]
        if self.texts:
            parts.append(sa.and_(kind == _constant("text"), _equal(value, list(self.texts))))
        if self.numbers:
            found = _equal(value, [spelling for number in self.numbers for spelling in spellings(number)])
            exact = sa.case((sa.func.typeof(value) == _constant("real"), sa.null()), else_=sa.true())
            parts.append(sa.and_(_one_of(kind, "integer", "real"), sa.case((found, exact), else_=sa.false())))
        return sa.or_(sa.false(), *parts)

    def holds(self, found: Any) -> bool:
        if isinstance(found, str):
            return found in self.texts
        if _is_number(found):
            return found in self.numbers
        return (found is None or isinstance(found, bool)) and found in self.others


@dataclass(frozen=True, slots=True)
class Ordered:
    """Above or below this number or text. Texts are ordered by their code points."""

    order: str
    operand: Number | str

    def sql(self, kind: Expression, value: Expression) -> Expression:
        """A comparison within the type; unknown for a float very close to the operand."""
        compared = ORDERS[self.order](value, self.operand)
        if isinstance(self.operand, str):
            return sa.and_(kind == _constant("text"), compared)
        near = abs(float(self.operand)) * _NEAR + _TINY
        is_near = sa.and_(
            sa.func.typeof(value) == _constant("real"), value.between(self.operand - near, self.operand + near)
        )
        return sa.and_(_one_of(kind, "integer", "real"), sa.case((is_near, sa.null()), else_=compared))

    def holds(self, found: Any) -> bool:
        of_its_type = isinstance(found, str) if isinstance(self.operand, str) else _is_number(found)
        return bool(of_its_type and ORDERS[self.order](found, self.operand))


def one_of(members: Iterable[str | Number | bool | None]) -> Among:
    """The test for being equal to one of these."""
    listed = list(members)
    texts = frozenset(member for member in listed if isinstance(member, str))
    numbers = frozenset(member for member in listed if _is_number(member))
    return Among(texts, numbers, frozenset(one for one in listed if one is None or isinstance(one, bool)))


def all_of(parts: Iterable[Condition]) -> Condition:
    """The condition that all of these hold; a single one is returned as it is, and nested ones are flattened."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Joined) and part.every else (part,))]
    return flat[0] if len(flat) == 1 else Joined(tuple(flat))


def in_sql(condition: Condition) -> Expression:
    """The whole condition as an expression; NULL, so that Python decides, for what SQLite cannot be relied on."""
    depth, tests = _size(condition)
    if depth > DEEPEST_IN_SQL or tests > MOST_IN_SQL:
        return sa.null()
    cut_off = sa.func.instr(PAYLOAD, "\\u0000") > 0
    return sa.case((cut_off, sa.null()), else_=condition.sql())


def _size(condition: Condition) -> tuple[int, int]:
    """How deep a condition is, and how many tests of fields it holds."""
    if isinstance(condition, Joined):
        sizes = [_size(part) for part in condition.parts]
        return 1 + max((depth for depth, _ in sizes), default=0), sum(tests for _, tests in sizes)
    if isinstance(condition, Not):
        depth, tests = _size(condition.part)
        return depth + 1, tests
    return 1, 1


def _perhaps_escaped() -> Expression:
    """A test of a field whose name cannot be in a path of SQLite: 0, or NULL where the payload may have such a name."""
    escaped, nameless = sa.func.instr(PAYLOAD, "\\") > 0, sa.func.instr(PAYLOAD, '"":') > 0
    return sa.case((sa.or_(escaped, nameless), sa.null()), else_=sa.false())


def _is_plain(name: str) -> bool:
    """Whether JSON writes a name without escapes, so that it can be in a path of SQLite.

    Before version 3.45 or so it cannot be empty either.
    """
    return bool(name) and json.dumps(name, ensure_ascii=False) == f'"{name}"'


def spellings(number: Number) -> Iterator[Number]:
    """A number in all the ways JSON may write it: SQLite reads equal texts to the same number, if not the exact one."""
    yield number
    if isinstance(number, int) and float(number) == number:
        yield float(number)
    if isinstance(number, float) and number.is_integer():
        yield int(number)


def _equal(value: Expression, members: list[Any]) -> Expression:
    """Whether a value is one of these; however many, they are one bound parameter."""
    if len(members) == 1:
        alone: Expression = value == members[0]
        return alone
    listed = sa.func.json_each(json.dumps(members, ensure_ascii=False)).table_valued("value", name="listed")
    return value.in_(sa.select(listed.c.value))


def _is_number(found: object) -> TypeGuard[Number]:
    return isinstance(found, (int, float)) and not isinstance(found, bool)


def _one_of(kind: Expression, *names: str) -> Expression:
    return kind.in_([_constant(name) for name in names])


def _constant(name: str) -> Expression:
    """A fixed word of SQL, not from user input."""
    return sa.literal_column(f"'{name}'")
