"""The secret of a store: 32 random bytes, drawn when it is made or migrated to format 3.

Random draws for the store follow from it, so that they cannot be predicted without it. A copy of a store has the same
secret, unless the copy goes on as another store of a cluster; a repaired store has a new one.
"""

from secrets import token_bytes

from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.tables import insertion, seal

LENGTH = 32  # bytes


def make_secret(connection: Connection) -> None:
    """Draw a new secret, in the transaction of the caller."""
    content = token_bytes(LENGTH)
    connection.run(insertion("secret", replacing=True), (1, content, seal(content)))


def secret(connection: Connection) -> bytes:
    """The secret of a store; empty before format 3."""
    if connection.user_version() < 3:
        return b""
    rows = connection.rows("SELECT content, seal FROM secret")
    content, found = rows[0] if len(rows) == 1 else (None, 0)
    if not isinstance(content, bytes) or len(content) != LENGTH or seal(content) != found:
        raise connection.damage("the secret is missing or damaged")
    return content
