"""Parts of what is derived from the rows of a generation: bytes under a name, each numbered by the commit it came with.

They are a cache, so damaged parts are left out and logged, and never cause an error. Parts never change; several can be
replaced by one with the same meaning.

Does not know what the bytes mean. Callers hold the transactions in which parts are written.
"""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from softkv.errors import InputError, StoreDamaged
from softkv.logs import log_of
from softkv.storage.batch import shown
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.patience import LONGEST_FIELD
from softkv.storage.catalog.tables import insertion, seal

LOG = log_of(__name__)

LONGEST = LONGEST_FIELD // 2  # bytes of a part: the limit for a field holds for a whole row of the catalog too
_OF = "FROM derived WHERE generation = ? AND name = ?"
_NUMBERS = f"SELECT part {_OF} AND part > ? AND part <= ? ORDER BY part"
_PART = f"SELECT * {_OF} AND part = ?"
_NEXT = "SELECT rowid, * FROM derived WHERE rowid > ? ORDER BY rowid LIMIT 1"


def checked_number(given: object) -> int:
    """The number of a part; an error where this is not an integer."""
    try:
        return index(given)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"expected the number of a part, got {type(given).__name__}") from error


def put(
    connection: Connection, generation: int, name: str, part: int, content: bytes, instead_of: Iterable[int]
) -> None:
    """Add a part, and remove others."""
    connection.run_many(f"DELETE {_OF} AND part = ?", [(generation, name, number) for number in instead_of])
    row = (generation, name, part, content)
    connection.run(insertion("derived", replacing=True), (*row, seal(*row)))


def numbers(connection: Connection, generation: int, name: str, after: int, commit: int) -> list[int]:
    """The numbers of the parts of this name from commits after `after` up to this one, rising; reads no content."""
    after = max(after, 0)
    if not generation or after >= commit or connection.user_version() < 3:
        return []
    try:
        found = {number for (number,) in connection.rows(_NUMBERS, (generation, name, after, commit))}
    except StoreDamaged as error:
        LOG.warning("%s: parts of %s cannot be listed, and are done without: %s", connection.path, shown(name), error)
        return []
    if odd := [number for number in found if not isinstance(number, int)]:
        LOG.warning("%s: %d parts of %s have no number, and are done without", connection.path, len(odd), shown(name))
    return sorted(found.difference(odd))


def parts(connection: Connection, generation: int, name: str, after: int, commit: int) -> list[tuple[int, bytes]]:
    """The undamaged parts of this name from commits after `after` up to this one, with their numbers, which rise."""
    found: list[tuple[int, bytes]] = []
    with connection.reading():
        room = connection.size()  # in a damaged catalog many rows may share pages, which must not fill the memory
        for number in numbers(connection, generation, name, after, commit):
            content = _sound_content(connection, generation, name, number)
            room -= len(content or b"")
            if content is None or room < 0:
                LOG.warning("%s: part %d of %s is damaged, and done without", connection.path, number, shown(name))
            else:
                found.append((number, content))
    return found


def _sound_content(connection: Connection, *key: Any) -> bytes | None:
    try:
        rows = connection.rows(_PART, key)
    except StoreDamaged:
        return None
    return rows[0][3] if rows and rows[0][:3] == key and _is_sound(rows[0]) else None


def _is_sound(row: Sequence[Any]) -> bool:
    """Whether this is a valid part with a right checksum, which alone does not prove that softkv wrote it."""
    *content, found = row
    _, name, part, held = content
    is_part = isinstance(name, str) and isinstance(part, int) and part > 0 and isinstance(held, bytes)
    return is_part and seal(*content) == found


def damaged_rows(connection: Connection) -> list[int]:
    """The rows of the table that are damaged parts, of any generation and name; one is read at a time."""
    odd, last, room = [], -1 << 63, connection.size()
    while rows := connection.rows(_NEXT, (last,)):
        row, *content = rows[0]
        room -= len(content[3]) if isinstance(content[3], (str, bytes)) else 0
        if row <= last or room < 0:
            raise StoreDamaged(f"{connection.path}: the table of derived parts leads back to earlier rows.")
        if not _is_sound(content):
            odd.append(row)
        last = row
    return odd
