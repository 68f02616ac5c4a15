"""Batches with names given by callers: for seven days, a batch that is sent again under its name is not written again.

A caller that got no answer cannot tell whether a batch was written, and sends it again. The batch's name, a digest of
its content and its result are committed with its rows, so the second time they are found and nothing is written.

Does not know what a batch is made of: the caller that names one computes the digest as well.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from softkv.errors import BatchMismatch
from softkv.storage.batch import shown
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.parsing import loaded
from softkv.storage.catalog.tables import insertion, seal

KEPT = 7 * 24 * 3600  # seconds
_MINUTE = 60
_TOGETHER = 1_000  # the most old ones that one write removes, so that no write takes long after a pause


@dataclass(frozen=True, slots=True)
class Stamp:
    """The name that a caller gives a batch, and a digest of its content.

    The stamp of a part of a batch has more: a function from the part's result to what is recorded, the digest of the
    parts before it, which must match what is recorded so far, and the position at which the part begins.
    """

    id: str
    digest: bytes
    tells: Callable[[Sequence[int]], Sequence[int]] | None = None
    follows: bytes | None = None
    start: int = 0


class Recorded(NamedTuple):
    """What is recorded of a batch: the digest of its content, its result, and the commit."""

    digest: bytes
    result: list[int]
    commit: int


def found(connection: Connection, name: str) -> Recorded | None:
    """What is recorded under a name; None when nothing was written under it in the last seven days."""
    rows = connection.rows("SELECT * FROM batches WHERE id = ?", (name,))
    if not rows:
        return None
    told, when = _told(connection, rows[0])
    return None if when < _now() - KEPT else told


def _told(connection: Connection, row: Sequence[Any]) -> tuple[Recorded, int]:
    """What a row of the table records, and when it was written."""
    *content, sealed = row
    name, digest, result, commit, when = content
    if seal(*content) != sealed or not isinstance(when, int):
        raise connection.damage(f"the record of batch {shown(name)} is damaged")
    numbers = loaded(result, f"the result of batch {shown(name)}")
    if not isinstance(numbers, list) or not all(isinstance(one, int) for one in numbers):
        raise connection.damage(f"the result of batch {shown(name)} is not a list of numbers")
    return Recorded(digest, numbers, commit), when


def recorded(connection: Connection, stamp: Stamp, count: int) -> list[int] | None:
    """The result of a batch, in so many numbers; None when it is yet to be written."""
    before = found(connection, stamp.id)
    if before is None:
        return None
    if before.digest != (stamp.digest if stamp.tells is None else stamp.follows):
        raise mismatch(stamp.id, before.commit)
    if stamp.tells is not None:
        return None
    if len(before.result) != count:
        raise connection.damage(f"the result of batch {shown(stamp.id)} is damaged")
    return before.result


def mismatch(name: str, commit: int) -> BatchMismatch:
    """The error for a batch whose name was used for other content."""
    return BatchMismatch(
        f"batch {shown(name)} was written before, at commit {commit}, with other content. Nothing was written now. "
        "Give each batch an id of its own, and send it again as it was."
    )


def record(connection: Connection, stamp: Stamp, result: Sequence[int], commit: int) -> None:
    """Record the result of a batch, in the transaction that writes it."""
    told = result if stamp.tells is None else stamp.tells(result)
    content = (stamp.id, stamp.digest, json.dumps(list(told)), commit, _now())
    connection.run(insertion("batches", replacing=True), (*content, seal(*content)))


def count_nothing(connection: Connection) -> None:
    """Keep all batches, but with results of 0: another store counts what they changed."""
    for row in connection.rows("SELECT * FROM batches"):
        told, when = _told(connection, row)
        content = (row[0], told.digest, json.dumps([0] * len(told.result)), told.commit, when)
        connection.run(insertion("batches", replacing=True), (*content, seal(*content)))


def forget_old(connection: Connection, looked: int) -> int:
    """Remove batches older than seven days, in the transaction of any write, at most once a minute.

    Takes and returns the time of the last removal, 0 before the first.
    """
    now = _now()
    if abs(now - looked) < _MINUTE:
        return looked
    old = "SELECT rowid FROM batches WHERE time < ? ORDER BY time LIMIT ?"
    connection.run(f"DELETE FROM batches WHERE rowid IN ({old})", (now - KEPT, _TOGETHER))
    return now


def _now() -> int:
    return int(time.time())
