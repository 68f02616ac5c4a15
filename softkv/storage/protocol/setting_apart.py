"""Make a copy of a store one that goes on beside it, in the same cluster.

Its draws are its own, so that the errors of the two are independent. It knows the batches of the first, so that what is
sent again is written to neither, but counts nothing that they did, since the first does.

Does not copy.
"""

from softkv.storage.catalog import batches
from softkv.storage.catalog.secret import make_secret
from softkv.storage.protocol.writer import Writer


def set_apart(writer: Writer) -> None:
    """Give the store another secret, and no part in its batches."""
    with writer.work(), writer.commit():
        batches.count_nothing(writer.catalog.connection)
        make_secret(writer.catalog.connection)
