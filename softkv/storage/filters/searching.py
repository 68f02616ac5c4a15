"""The statement that looks for the rows of a condition: the one that is assembled, and so composed by SQLAlchemy.

Imported by the first who asks with a filter: it takes longer to load than all else of the storage.
Runs nothing (roster.py does).
"""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from softkv.storage.filters.conditions import PAYLOAD, Condition, in_sql

_DIALECT = sqlite.dialect()


def search_for(items: str, condition: Condition) -> tuple[str, Callable[[int, int], list[Any]]]:
    """The statement for the rows that meet a condition, and the payloads of those where only Python can tell.

    Beside it, what gives a value for every question mark, of the rows from a number to before another one.
    The condition stands there twice. A subquery in its place would have SQLite work out all of it for every row.
    """
    table = sa.table(items, sa.column("row"), sa.column("item"))
    contents, met = sa.table("contents", sa.column("item")), in_sql(condition)
    doubtful = sa.case((met, sa.null()), else_=sa.func.coalesce(PAYLOAD, "null"))
    found = (
        sa.select(table.c.row, doubtful)
        .select_from(table.outerjoin(contents, contents.c.item == table.c.item))
        .where(table.c.row >= sa.bindparam("start"), table.c.row < sa.bindparam("stop"))
        .where(met.is_not(sa.literal_column("FALSE")))  # true or NULL
        .compile(dialect=_DIALECT)
    )
    names, values = tuple(found.positiontup or ()), found.params

    def arguments(start: int, stop: int) -> list[Any]:
        bound = {**values, "start": start, "stop": stop}
        return [bound[name] for name in names]

    return str(found), arguments
