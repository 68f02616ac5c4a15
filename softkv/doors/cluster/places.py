"""Where shards lie: the names of their directories, and directories that the manifest does not name.

Does not open them, and moves nothing.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

from softkv.doors.cluster.manifest import Manifest
from softkv.errors import StoreError
from softkv.storage.disk import files, locks
from softkv.storage.layout import GENERATION_NAME


def next_place(directory: str, manifest: Manifest, number: int, parent: str) -> str:
    """A new name in a directory for a shard of the next manifest; it was never used before."""
    name = f"shard-{number:03}-{manifest.epoch + 1:010}"
    if parent == directory:
        return name
    return os.path.join(parent, f"{os.path.basename(directory)}-{manifest.id[:8]}-{name}")


def remove_unnamed(directory: str, parents: Iterable[str] = ()) -> list[str]:
    """Remove unused shards, beside the others and in other directories; returns those that are still being read.

    The caller has to hold the lock on the cluster, so that no shard is being made.
    """
    files.sync_directory(directory)  # a manifest that is not durable may be gone, and another one count
    manifest = Manifest.read(directory)
    # A directory that was never a shard has no readers, but an error in flight may still hold it open.
    return [path for path, epoch in unnamed(directory, manifest, parents) if not _removed(path, epoch > manifest.epoch)]


def unnamed(directory: str, manifest: Manifest, parents: Iterable[str] = ()) -> Iterator[tuple[str, int]]:
    """Unused shards, old or unfinished, with the number of their manifest; beside the shards and elsewhere."""
    named = {os.path.realpath(manifest.path_of(directory, number)) for number in range(len(manifest.shards))}
    ours = re.compile(rf"\.?(.+-{manifest.id[:8]}-)?shard-[0-9]{{3}}(?:-([0-9]{{10}}))?(\.new-[0-9a-f]{{8}})?\Z")
    home = os.path.realpath(directory)
    for parent in sorted({home, *map(os.path.dirname, named), *map(os.path.realpath, parents)}):
        with suppress(StoreError):  # what cannot be looked into stays as it is
            for name in files.list_directory(parent):
                found, path = ours.match(name), os.path.join(parent, name)
                if found and (found[1] or parent == home) and path not in named and files.is_directory(path):
                    yield path, int(found[2] or 0)


def _removed(path: str, though_read: bool) -> bool:
    """Remove a store that nobody writes to or reads; returns whether it was removed."""
    with ExitStack() as held:
        try:
            held.callback(locks.lock_writer(path).release)
            for name in filter(GENERATION_NAME.match, () if though_read else files.list_directory(path)):
                pin = locks.pin_exclusive(os.path.join(path, name))
                if pin is None:
                    return False
                held.callback(pin.release)
        except StoreError:
            return False
        files.remove_tree(path)
    return not os.path.lexists(path)
