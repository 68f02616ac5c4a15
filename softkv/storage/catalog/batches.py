"""Batches that callers have named: what is sent again under its name is written once, for seven days.

A caller who got no answer cannot tell whether a batch was written, and sends it again. Its name, a digest of what is in
it and what became of it are committed with its rows, so the second time they are found and nothing is written.

Does not know what a batch is made of: whoever names one makes the digest as well.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from softkv.errors import BatchMismatch
from softkv.storage.batch import shown
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.loading import loaded
from softkv.storage.catalog.tables import insertion, seal

KEPT = 7 * 24 * 3600  # seconds
_MINUTE = 60
_TOGETHER = 1_000  # old ones that one write removes, so that none takes long after a pause


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a caller calls a batch, and a digest of what is in it.

    One that is written in parts says for each what is recorded of it, by what became of the part, and the digest of the
    parts before, which must be what is recorded so far, and the place at which the part begins.
    """

    id: str
    digest: bytes
    tells: Callable[[Sequence[int]], Sequence[int]] | None = None
    follows: bytes | None = None
    start: int = 0


class Recorded(NamedTuple):
    """What is recorded of a batch: the digest of its content, what became of it, and the commit."""

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
        raise connection.damage(f"the result of batch {shown(name)} is none")
    return Recorded(digest, numbers, commit), when


def recorded(connection: Connection, stamp: Stamp, count: int) -> list[int] | None:
    """What became of a batch, in so many numbers; None when it is to be written."""
    before = found(connection, stamp.id)
    if before is None:
        return None
    if before.digest != (stamp.digest if stamp.tells is None else stamp.follows):
        raise mismatch(stamp.id, before.commit)
    if stamp.tells is not None:
        return None
    if len(before.result) != count:
        raise connection.damage(f"the result of batch {shown(stamp.id)} is none")
    return before.result


def mismatch(name: str, commit: int) -> BatchMismatch:
    """What was sent under a name is not what was written under it."""
    return BatchMismatch(
        f"batch {shown(name)} was written before, at commit {commit}, with other content. Nothing was written now. "
        "Give each batch an id of its own, and send it again as it was."
    )


def record(connection: Connection, stamp: Stamp, result: Sequence[int], commit: int) -> None:
    """Say what became of a batch, in the transaction that writes it."""
    told = result if stamp.tells is None else stamp.tells(result)
    content = (stamp.id, stamp.digest, json.dumps(list(told)), commit, _now())
    connection.run(insertion("batches", replacing=True), (*content, seal(*content)))


def count_nothing(connection: Connection) -> None:
    """Remember all batches as they are, but that nothing became of them here: another store counts what did."""
    for row in connection.rows("SELECT * FROM batches"):
        told, when = _told(connection, row)
        content = (row[0], told.digest, json.dumps([0] * len(told.result)), told.commit, when)
        connection.run(insertion("batches", replacing=True), (*content, seal(*content)))


def forget_old(connection: Connection, looked: int) -> int:
    """Remove batches of more than seven days ago, in the transaction of any write, if there was no look this minute.

    Returns when the last look was, which is 0 before the first.
    """
    now = _now()
    if abs(now - looked) < _MINUTE:
        return looked
    old = "SELECT rowid FROM batches WHERE time < ? ORDER BY time LIMIT ?"
    connection.run(f"DELETE FROM batches WHERE rowid IN ({old})", (now - KEPT, _TOGETHER))
    return now


def _now() -> int:
    return int(time.time())
