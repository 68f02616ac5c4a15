"""The secret of a store: 32 random bytes, drawn when it is made or migrated to format 3, and never changed.

What is drawn at random for the store follows from it, so that nobody who does not know it can foresee the draw.
A copy of a store has the same one, and a repaired store another.
"""

import secrets

from softkv.errors import StoreDamaged
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.tables import insertion, seal

LENGTH = 32  # bytes


def make_secret(connection: Connection) -> None:
    """Draw it, in the transaction of the caller."""
    content = secrets.token_bytes(LENGTH)
    connection.run(insertion("secret"), (1, content, seal(content)))


def secret(connection: Connection) -> bytes:
    """The secret of a store; none, and so empty, before format 3."""
    if connection.user_version() < 3:
        return b""
    rows = connection.rows("SELECT content, seal FROM secret")
    if (
        len(rows) != 1
        or not isinstance(rows[0][0], bytes)
        or seal(rows[0][0]) != rows[0][1]
        or len(rows[0][0]) != LENGTH
    ):
        raise StoreDamaged(f"{connection.path}: the secret is missing or damaged. Run `softkv check`.")
    return rows[0][0]
