"""Write parts of what is derived from the rows of a generation: each in a commit of its own, after that of its rows.

They are kept in the catalog, so a part is there with its commit or not at all. Does not know what is in them.
"""

from collections.abc import Sequence
from typing import Any

from softkv.errors import InputError, KindError
from softkv.storage.catalog.derived import LONGEST, checked_number, put
from softkv.storage.disk import files
from softkv.storage.protocol.index_files import checked_name
from softkv.storage.protocol.writer import Writer


def put_derived(writer: Writer, name: str, content: bytes, instead_of: Sequence[int]) -> int:
    """Add a part to the present generation, and remove those that it replaces; returns its number."""
    checked_name(name)
    held, replaced = _checked(content), _numbers(instead_of)
    with writer.work():
        standing = writer.committed.standing
        if standing is None:
            raise InputError(f"{writer.directory} has no rows yet, so nothing is derived from them. Add items first.")
        twice = 2 * len(held)  # in the log first
        files.require_room(writer.directory, twice, f"adding a derived part to {writer.directory}")
        with writer.commit() as head:
            known = [number for number in replaced if 0 < number < head.number]
            put(writer.catalog.connection, standing.generation, name, head.number, held, known)
        return head.number


def _checked(content: Any) -> bytes:
    """The bytes of a buffer, copied only where they may still change."""
    try:
        held = content if isinstance(content, bytes) else memoryview(content).tobytes()
    except TypeError as error:
        raise KindError(f"a part of what is derived holds bytes, not a {type(content).__name__}") from error
    if len(held) > LONGEST:
        raise InputError(f"a part of what is derived has at most {LONGEST:,} bytes, not {len(held):,}. Put several.")
    return held


def _numbers(given: Any) -> list[int]:
    try:
        return [checked_number(number) for number in given]
    except TypeError as error:
        raise InputError(f"expected instead_of as numbers of parts, got {type(given).__name__}") from error
