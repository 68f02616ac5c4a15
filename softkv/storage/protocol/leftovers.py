"""Remove what is no longer needed: generations that were replaced, and what a crash left of generations or indexes.

Removes only generations that the catalog has retired and no reader has open, and files with names of our own that the
catalog does not name: the generation of an unfinished rebuild is named and not retired, so it stays.
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
    """Remove old generations, oldest first, up to one that is being read; returns whether all are gone."""
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
                catalog.advance(head)  # changes nothing, but fails for a writer that another has replaced
                catalog.drop_generation(number)
            files.remove_tree(path)
            remove_unnamed(directory, catalog)
        finally:
            if pin is not None:
                pin.release()
    return True


def remove_unborn(parent: str, name: str) -> None:
    """Remove what a crash left of making or erasing the store `name`, unless another process is at work there.

    This includes what was left of a store under a name such as `.name.new-<token>`, which waits beside it to take its
    place, and is made and erased in the same way.
    """
    name, token = re.escape(name), "-[0-9a-f]{8}"
    ours = re.compile(rf"\.(?:{name}|\.{name}\.[a-z]+{token})\.(new|old){token}\Z")
    for found in filter(None, map(ours.match, files.list_directory(parent))):
        path = os.path.join(parent, found[0])
        if os.path.isfile(os.path.join(path, locks.LOCK)):
            try:
                lock = locks.lock_writer(path)
            except SoftKVError:
                continue
            files.remove_tree(path)
            lock.release()
        elif found[1] == "old" or _has_lost_lock(path):
            files.remove_tree(path)
        else:
            # Subtle: a process that has just made it adds LOCK now, and rmdir fails, or later, and then begins anew.
            with suppress(OSError):
                os.rmdir(path)


def _has_lost_lock(path: str) -> bool:
    """Whether the directory has files but no LOCK: LOCK is made first, so a loss of power must have removed it.

    Subtle: the names are read at once. A directory just begun is empty, and then has LOCK, perhaps only by now.
    """
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return bool(names) and locks.LOCK not in names
