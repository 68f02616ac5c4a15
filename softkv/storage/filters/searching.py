"""The statement that looks for the rows of a condition: the one that is assembled, and so composed by SQLAlchemy.

Imported by the first who asks with a filter: it takes longer to load than all else of the storage.
Runs nothing (roster.py does).
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from softkv.storage.filters.conditions import PAYLOAD, Condition, in_sql

_DIALECT = sqlite.dialect()


@dataclass(frozen=True, slots=True)
class Bound:
    """A statement that carries values of its own; `arguments` puts them and those named in their places."""

    sql: str
    names: tuple[str, ...]
    values: dict[str, Any]

    @classmethod
    def of(cls, statement: Any) -> "Bound":
        """A statement of SQLAlchemy Core with what was bound in it."""
        found = statement.compile(dialect=_DIALECT)
        return cls(str(found), tuple(found.positiontup), found.params)

    def arguments(self, **named: Any) -> list[Any]:
        """One value for every question mark."""
        return [named.get(name, self.values[name]) for name in self.names]


def search_for(items: str, condition: Condition) -> Bound:
    """The rows from `start` to `stop` that meet a condition, and the payloads of those where only Python can tell.

    The condition stands there twice. A subquery in its place would have SQLite work out all of it for every row.
    """
    table = sa.table(items, sa.column("row"), sa.column("item"))
    contents, met = sa.table("contents", sa.column("item")), in_sql(condition)
    doubtful = sa.case((met, sa.null()), else_=sa.func.coalesce(PAYLOAD, "null"))
    return Bound.of(
        sa.select(table.c.row, doubtful)
        .select_from(table.outerjoin(contents, contents.c.item == table.c.item))
        .where(table.c.row >= sa.bindparam("start"), table.c.row < sa.bindparam("stop"))
        .where(met.is_not(sa.literal_column("FALSE")))  # true or NULL
    )
