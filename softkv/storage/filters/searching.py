"""The statement that finds the rows that meet a condition: the only assembled one, so SQLAlchemy composes it.

Imported at the first query with a filter: SQLAlchemy takes longer to load than all the rest of the storage.
Runs nothing (roster.py does).
"""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from softkv.storage.filters.conditions import PAYLOAD, Condition, Expression, in_sql

_DIALECT = sqlite.dialect()
_LONGEST_IN_SQL = 1 << 20  # characters of an operand; from here on Python takes a sixth, and SQLite has a limit


def search_for(items: str, condition: Condition) -> tuple[str, Callable[[int, int], list[Any]]]:
    """The statement for the rows that meet a condition, and the payloads of those where only Python can tell.

    Returned with it is a function (start, stop) that gives a value for every question mark.
    The condition is in the statement twice. A subquery instead would make SQLite compute all of it for every row.
    """
    found = _compiled(items, in_sql(condition))
    if any(isinstance(one, str) and len(one) > _LONGEST_IN_SQL for one in found.params.values()):
        found = _compiled(items, sa.null())  # all rows are left to Python
    names, values = tuple(found.positiontup or ()), found.params

    def arguments(start: int, stop: int) -> list[Any]:
        bound = {**values, "start": start, "stop": stop}
        return [bound[name] for name in names]

    return str(found), arguments


def _compiled(items: str, met: Expression) -> SQLCompiler:
    table = sa.table(items, sa.column("row"), sa.column("item"))
    contents = sa.table("contents", sa.column("item"))
    doubtful = sa.case((met, sa.null()), else_=sa.func.coalesce(PAYLOAD, "null"))
    return (
        sa.select(table.c.row, doubtful)
        .select_from(table.outerjoin(contents, contents.c.item == table.c.item))
        .where(table.c.row >= sa.bindparam("start"), table.c.row < sa.bindparam("stop"))
        .where(met.is_not(sa.literal_column("FALSE")))  # true or NULL
        .compile(dialect=_DIALECT)
    )
