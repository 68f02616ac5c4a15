"""Filters on the values of items, beside those on their payloads: which rows meet a condition.

In a condition the value is like a field of the payload, with a name that no payload can have. Conditions without it are
left to the catalog; those on it are tested here, on arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from softkv.ndarrays import Flags, Floats
from softkv.storage.filters.conditions import ORDERS, VALUE, Among, Condition, Field, Joined, Not, Ordered, Test, all_of

Testing = Callable[[Test], Flags]


def asks_value(condition: Condition) -> bool:
    """Whether a condition tests the value anywhere."""
    if isinstance(condition, Field):
        return condition.path == (VALUE,)
    parts = (condition.part,) if isinstance(condition, Not) else getattr(condition, "parts", ())
    return any(map(asks_value, parts))


def meeting(condition: Condition, payloads: Callable[[Condition], Flags], values: Testing) -> Flags:
    """The rows that meet a condition, from functions that answer conditions on payloads and tests of values."""
    if not asks_value(condition):
        return payloads(condition)
    if isinstance(condition, Field):
        return values(condition.test)
    if isinstance(condition, Not):
        return ~meeting(condition.part, payloads, values)
    assert isinstance(condition, Joined)
    others = [part for part in condition.parts if not asks_value(part)]
    masks = [meeting(part, payloads, values) for part in condition.parts if asks_value(part)]
    if others:
        masks.append(payloads(all_of(others) if condition.every else Joined(tuple(others), every=False)))
    found: Flags = (np.all if condition.every else np.any)(masks, axis=0)
    return found


def of_numbers(test: Test, numbers: Floats) -> Flags:
    """Which numbers pass a test."""
    if isinstance(test, Ordered) and not isinstance(test.operand, str) and float(test.operand) == test.operand:
        found: Flags = ORDERS[test.order](numbers, float(test.operand))
        return found
    if isinstance(test, Among):
        return np.isin(numbers, [float(one) for one in test.numbers if float(one) == one])
    return of_each(test, numbers.tolist())


def of_each(test: Test, values: Sequence[Any]) -> Flags:
    """Which values pass a test, one by one."""
    return np.fromiter((test.holds(one) for one in values), np.bool_, len(values))
