"""Make a cluster, back it up as of one commit of each shard, and restore a backup.

The directory of a cluster is filled beside its place and then moved there, so that it is there whole or not at all. A
backup is laid out as a cluster of backups of the shards, and only `backup` writes to it.

Does not open a cluster (handle.py).
"""

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from softkv.doors.cluster.manifest import Manifest, Placed
from softkv.errors import BackupRefused, InputError, StoreError, StoreExists, StoreLocked
from softkv.progress import Progress
from softkv.storage import Backup, Store
from softkv.storage import restore as restore_store
from softkv.storage.disk import files, locks
from softkv.storage.disk.named import is_cluster
from softkv.storage.layout import BACKUP
from softkv.storage.protocol import opening
from softkv.storage.protocol.backup import require_apart
from softkv.storage.store import AnyPath

if TYPE_CHECKING:
    from softkv.doors.cluster.store import ShardedStore


def make(
    path: AnyPath,
    shards: int,
    fill: Callable[[int, str], Any],
    manifest: Callable[[str, tuple[Placed, ...]], Manifest],
    *,
    disks: Sequence[AnyPath] = (),
    force: bool = False,
) -> str:
    """Make a cluster at a path where nothing is; returns its directory.

    `fill` makes the store of each shard, by its number, at a path; `manifest` gets a new id and where they lie.
    """
    require_disks(disks)
    directory, identity, placed = opening.directory_of(path), secrets.token_hex(16), list[Placed]()
    if not opening.is_vacant(directory):
        raise StoreExists(f"{directory} is there already. Choose another path for the cluster.")
    with ExitStack() as undone:
        with opening.made_beside(directory, force=force) as (building, lock):
            for number in range(shards):
                name = shard_name(number)
                if disks:
                    name = f"{os.path.basename(directory)}-{identity[:8]}-{name}"
                    name = os.path.join(opening.directory_of(disks[number % len(disks)]), name)
                    undone.callback(files.remove_tree, name)
                fill(number, os.path.join(building, name))
                with Store.open(os.path.join(building, name), "r") as store, store.snapshot() as snapshot:
                    placed.append(Placed(snapshot.store, name))
            manifest(identity, tuple(placed)).write(building)
        undone.pop_all()
    lock.release()
    return directory


def require_disks(disks: Any) -> None:
    """Refuse one path in the place of several, before anything is made."""
    if isinstance(disks, (str, bytes, os.PathLike)):
        raise InputError(f"expected disks as a list of directories, got {disks!r}. Give [{disks!r}].")


def shard_name(number: int) -> str:
    """The name of the directory of a shard in that of its cluster."""
    return f"shard-{number:03}"


def backup(store: "ShardedStore", target: AnyPath, *, force: bool, progress: Progress | None) -> Backup:
    """Copy each shard as of its newest commit into a new directory; into an earlier backup, copy only what is new."""
    directory = opening.directory_of(target)
    require_apart(store.path, directory)
    if opening.is_vacant(directory):
        with opening.made_beside(directory, force=force) as (building, lock):
            os.chmod(building, _mode(store.path))
            manifest, made = _copied(store, building, force, progress)
            manifest.write(building)
            note = f"A backup of cluster {manifest.id}. Only `softkv backup` writes to it.\n"
            files.write_new(os.path.join(building, BACKUP), note.encode())
            files.sync_directory(building)
    else:
        _require_earlier(directory, store.manifest)
        lock = locks.lock_writer(directory)
        try:
            earlier = Manifest.read(directory)
            manifest, made = _copied(store, directory, force, progress)
            for epoch in range(earlier.epoch + 1, manifest.epoch + 1):  # none is left out, so that readers follow
                replace(manifest, epoch=epoch).write(directory)
        except BaseException:
            lock.release()
            raise
    lock.release()
    return _together(directory, manifest, made)


def _copied(
    store: "ShardedStore", directory: str, force: bool, progress: Progress | None
) -> tuple[Manifest, list[Backup]]:
    """Backups of all shards and the manifest; made again if another manifest appears meanwhile."""
    made, first = list[Backup](), store.newest().manifest
    while True:
        manifest = store.newest().manifest
        if manifest.shards != first.shards:
            raise StoreLocked(f"{store.path} was given other shards meanwhile. Copy it again.")
        for number, shard in enumerate(store.shards):
            place = os.path.join(directory, shard_name(number))
            one: Backup = shard.upkeep("backup", place, force=force, progress=progress)
            if not opening.is_backup(place):
                raise BackupRefused(f"{place} was written on another machine. Name a directory that all machines see.")
            before = made[number].written if number < len(made) else 0
            made[number : number + 1] = [replace(one, written=one.written + before)]
        if not manifest.is_followed(store.path):
            shards = (replace(one, path=shard_name(number)) for number, one in enumerate(manifest.shards))
            return replace(manifest, shards=tuple(shards)), made


def _require_earlier(directory: str, manifest: Manifest) -> None:
    """Refuse a directory that is no earlier backup of this cluster with the same buckets."""
    if not is_cluster(directory) or not opening.is_backup(directory):
        raise BackupRefused(f"{directory} is neither empty nor a backup of a cluster, so nothing is written there.")
    earlier = Manifest.read(directory)
    # With other buckets an interrupted backup would be inconsistent: items that have moved might be in no shard.
    same = [(one.id, one.buckets, [shard.id for shard in one.shards]) for one in (earlier, manifest)]
    if same[0] != same[1] or earlier.epoch > manifest.epoch:
        raise BackupRefused(f"{directory} is of another cluster, of a later one, or of other shards. Name another.")


def restore(
    path: AnyPath,
    target: AnyPath,
    *,
    disks: Sequence[AnyPath] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Backup:
    """Copy a backup of a cluster to where nothing is, or its shards to several disks, as a cluster of its own."""
    source = opening.directory_of(path)
    require_apart(source, opening.directory_of(target))
    copied, made = Manifest.read(source), list[Backup]()

    def fill(number: int, place: str) -> None:
        made.append(restore_store(copied.path_of(source, number), place, force=force, progress=progress))

    def manifest(identity: str, placed: tuple[Placed, ...]) -> Manifest:
        if copied.is_followed(source):
            raise StoreError(f"{source} was changed meanwhile. Restore a backup of it, or try again.")
        return replace(copied, id=identity, shards=placed)

    directory = make(target, len(copied.shards), fill, manifest, disks=disks, force=force)
    os.chmod(directory, _mode(source))
    return _together(directory, copied, made)


def _mode(directory: str) -> int:
    """The permissions of a directory, which a copy of it gets as well."""
    return os.stat(directory).st_mode & 0o777 | 0o700


def _together(directory: str, manifest: Manifest, made: Sequence[Backup]) -> Backup:
    """The results of copying all shards, as one."""
    return Backup(
        directory,
        manifest.changes + sum(one.commit for one in made),
        sum(one.items for one in made),
        sum(one.written for one in made),
        tuple(f"{shard_name(number)}: {name}" for number, one in enumerate(made) for name in one.left_out),
    )
