"""A new store that takes its place only when all that is to go into it has gone into it.

It is made beside the path where it is wanted, under a name of its own, and renamed once it is closed. Whatever fails
before leaves the path as it was.

Does not know what goes into it.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from softkv.database.handle import SoftKV
from softkv.database.handle import open as open_store
from softkv.errors import StoreError, StoreExists, StoreNotFound
from softkv.storage import Store


@contextmanager
def made(
    path: str | os.PathLike[str],
    *,
    value: str,
    compatibility: str,
    temperature: float | None,
    overwrite: bool,
) -> Iterator[SoftKV]:
    """Fill a new store, which is at `path` when this ends without an error. What is there is erased if it may be."""
    wanted = os.path.abspath(os.fspath(path))
    _require_free(wanted, overwrite=overwrite)
    beside = os.path.join(os.path.dirname(wanted), f".{os.path.basename(wanted)}.made-{secrets.token_hex(4)}")
    try:
        with open_store(beside, "n", value=value, compatibility=compatibility, temperature=temperature) as db:
            yield db
        if _items(wanted) is not None:
            Store.erase(wanted)
        Store.move(beside, wanted)
    except BaseException:
        with suppress(StoreError):
            Store.erase(beside)
        raise


def _require_free(path: str, *, overwrite: bool) -> None:
    items = _items(path)
    if items and not overwrite:
        raise StoreExists(
            f"{path} holds {items:,} items. Ask them as they are, choose another path, or allow it to be overwritten."
        )


def _items(path: str) -> int | None:
    """How many items a store has; None where there is no store."""
    try:
        with open_store(path, "r") as db:
            return len(db)
    except StoreNotFound:
        return None
