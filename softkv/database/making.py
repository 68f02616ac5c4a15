"""Fill a new store beside its path, and move it to the path once it is complete.

It is made under another name and renamed once it is closed. A failure before that leaves the path as it was; a store
that is overwritten is moved aside, and moved back if the new one cannot take its place. What an interruption leaves
beside the path is put right when a store is next made or opened there (aside.py).

Does not know what goes into the store.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from softkv.database.aside import beside, put_back
from softkv.database.handle import SoftKV, open_here
from softkv.errors import StoreError, StoreExists, StoreNotFound
from softkv.storage import Store
from softkv.storage.protocol.opening import directory_of


@contextmanager
def made(
    path: str | os.PathLike[str], *, value: str, compatibility: str, temperature: float | None, overwrite: bool
) -> Iterator[SoftKV]:
    """Fill a new store, which is at `path` when this ends without an error. What is there is erased if it may be."""
    wanted = directory_of(path)
    put_back(wanted)
    items = _items(wanted)
    if items and not overwrite:
        raise _taken(wanted, items)
    token = secrets.token_hex(4)
    waiting = beside(wanted, "made", token)
    try:
        with open_here(waiting, "n", value=value, compatibility=compatibility, temperature=temperature) as db:
            yield db
        _take_place(waiting, wanted, beside(wanted, "kept", token), overwrite=overwrite)
    except BaseException:
        if items is None or os.path.lexists(wanted):  # else the new store is the only one left
            with suppress(StoreError):
                Store.erase(waiting)
        raise


def _take_place(made_store: str, wanted: str, aside: str, *, overwrite: bool) -> None:
    if _items(wanted) is None:
        Store.move(made_store, wanted)
        return
    Store.move(wanted, aside)
    try:
        # Only now can nothing be added to it any more.
        items = _items(aside)
        if items and not overwrite:
            raise _taken(wanted, items)
        Store.move(made_store, wanted)
    except BaseException:
        Store.move(aside, wanted)
        raise
    Store.erase(aside)


def _taken(path: str, items: int) -> StoreExists:
    return StoreExists(
        f"{path} holds {items:,} items. Ask them as they are, choose another path, or say overwrite=True."
    )


def _items(path: str) -> int | None:
    """How many items a store has; None where there is no store."""
    try:
        with open_here(path, "r") as db:
            return len(db)
    except StoreNotFound:
        return None
