"""Remove what nobody needs any more: generations that another replaced, and what a crash left of one or of an index.

Removes only what the catalog says is retired and nobody reads, and what has a name of our own that it does not name:
the generation of an unfinished rebuild is named and not retired, so it stays.
"""

import os
import re
from contextlib import suppress

from softkv.errors import SoftKVError
from softkv.storage.catalog.catalog import Catalog, Head
from softkv.storage.disk import files, locks
from softkv.storage.layout import GENERATION_NAME, generation_name
from softkv.storage.protocol.index_files import remove_unnamed


def remove_leftovers(directory: str, catalog: Catalog) -> None:
    """Remove generations and index files that the catalog does not name: what a crash left. Only names of our own."""
    named = {generation_name(number) for number in catalog.generations()}
    for name in files.list_directory(directory):
        if GENERATION_NAME.match(name) and name not in named:
            files.remove_tree(os.path.join(directory, name))
    remove_unnamed(directory, catalog)


def remove_retired(directory: str, catalog: Catalog, head: Head) -> bool:
    """Remove old generations, oldest first, as far as nobody reads them; returns whether all are gone."""
    for number in catalog.generations():
        if number >= head.generation or not catalog.standing(number).retired:
            continue  # a younger one belongs to a rebuild
        path = os.path.join(directory, generation_name(number))
        ours = files.is_directory(path)
        pin = locks.pin_exclusive(path) if ours else None
        if pin is None and ours:
            return False  # a reader: contents of items are shared, so younger generations wait as well
        try:
            with catalog.connection.writing():
                catalog.advance(head)  # nothing changes for anybody, but a fenced writer must not get here
                catalog.drop_generation(number)
            files.remove_tree(path)
            remove_unnamed(directory, catalog)
        finally:
            if pin is not None:
                pin.release()
    return True


def remove_unborn(parent: str, name: str) -> None:
    """Remove what a crash left of making or erasing the store `name`, unless somebody is at work there."""
    ours = re.compile(rf"\.{re.escape(name)}\.(new|old)-[0-9a-f]{{8}}\Z")
    for found in filter(ours.match, files.list_directory(parent)):
        path = os.path.join(parent, found)
        if os.path.isfile(os.path.join(path, locks.LOCK)):
            try:
                lock = locks.lock_writer(path)
            except SoftKVError:
                continue
            files.remove_tree(path)
            lock.release()
        elif found.startswith(f".{name}.old-") or _has_lost_lock(path):
            files.remove_tree(path)
        else:
            # Subtle: whoever has just begun it makes LOCK at this moment, and this fails, or after, and begins anew.
            with suppress(OSError):
                os.rmdir(path)


def _has_lost_lock(path: str) -> bool:
    """Whether something is there, and no LOCK: it was made before all else, so the power has taken it.

    Subtle: the names are read at once. One just begun is empty, and then has LOCK, maybe since we looked for it.
    """
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return bool(names) and locks.LOCK not in names
