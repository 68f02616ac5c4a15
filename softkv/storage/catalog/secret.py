"""The secret of a store: 32 random bytes, drawn when it is made or migrated to format 3.

What is drawn at random for the store follows from it, so that nobody who does not know it can foresee the draw.
A copy of a store has the same one, unless it goes on beside it; a repaired store has another.
"""

from secrets import token_bytes

from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.tables import insertion, seal

LENGTH = 32  # bytes


def make_secret(connection: Connection) -> None:
    """Draw it, or another, in the transaction of the caller."""
    content = token_bytes(LENGTH)
    connection.run(insertion("secret", replacing=True), (1, content, seal(content)))


def secret(connection: Connection) -> bytes:
    """The secret of a store; none, and so empty, before format 3."""
    if connection.user_version() < 3:
        return b""
    rows = connection.rows("SELECT content, seal FROM secret")
    content, found = rows[0] if len(rows) == 1 else (None, 0)
    if not isinstance(content, bytes) or len(content) != LENGTH or seal(content) != found:
        raise connection.damage("the secret is missing or damaged")
    return content
