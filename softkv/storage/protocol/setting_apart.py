"""Make a copy of a store a separate store, used beside the first in the same cluster.

It gets random draws of its own, so that the errors of the two are independent. It keeps the names of the first store's
batches, so that a batch sent again is written to neither, but with results of 0, since the first store counts them.

Does not copy.
"""

from softkv.storage.catalog import batches
from softkv.storage.catalog.secret import make_secret
from softkv.storage.protocol.writer import Writer


def set_apart(writer: Writer) -> None:
    """Give the store a new secret, and set the results of its batches to 0."""
    with writer.work(), writer.commit():
        batches.count_nothing(writer.catalog.connection)
        make_secret(writer.catalog.connection)
