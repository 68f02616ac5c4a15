"""Give a cluster more shards: one after the other is divided in two, each bucket whole in one part or the other.

Nothing is changed in place. The store of a shard is copied twice, and in each copy the items of the other are deleted,
so everything else stays as it was: numbers, order, index, what was learned, recent batches. Then one manifest names
both copies in the place of the store, which is removed once nobody reads it. An interrupted division leaves copies that
no manifest names; they are removed, and never used.

Each old shard is divided into as many as any other, or one more. No shard is made of parts of several: it could not
tell whether a batch is done that only some of these have carried out.

Does not make a cluster smaller.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from softkv.database.guarding import rebased
from softkv.database.handle import SoftKV, open_here
from softkv.doors.cluster.handle import Cluster, joined
from softkv.doors.cluster.making import require_disks
from softkv.doors.cluster.manifest import MOST, Placed, bucket_of
from softkv.doors.cluster.places import next_place, remove_unnamed
from softkv.doors.cluster.shard import Shard
from softkv.doors.cluster.whole import WholeSnapshot
from softkv.errors import InputError
from softkv.maths.inputs import is_whole
from softkv.progress import Stages, untold
from softkv.storage import restore
from softkv.storage.protocol.opening import directory_of
from softkv.storage.store import AnyPath

TOGETHER = 50_000  # items that are deleted in one commit


@dataclass(frozen=True, slots=True)
class Grown:
    """The result of `grow`: how many shards there are, and how many items were moved to another one.

    Moved items without keys are `renamed`: they have other numbers. The directories that are `left` are still being
    read, and are removed when the cluster is next opened for writing.
    """

    path: str
    shards: int
    moved: int
    renamed: int
    left: tuple[str, ...]


def grow(
    path: AnyPath,
    shards: int = 16,
    disks: Sequence[AnyPath] = (),
    *,
    force: bool = False,
    wait: float = 0.0,
    progress: Stages | None = None,
) -> Grown:
    """Divide the shards of a cluster until there are so many, the new ones in its directory or on these disks.

    Readers go on meanwhile, and follow by themselves; writers are refused. If it is interrupted, the cluster is as
    before or after a division; call it again with the same disks to go on.

    >>> import softkv, tempfile, os
    >>> from softkv.doors.cluster import create, grow
    >>> path = os.path.join(tempfile.mkdtemp(), "rents")
    >>> create(path, shards=1, value="number")
    >>> with softkv.open(path) as db:
    ...     db.update({f"house {number}": number for number in range(100)})
    >>> grown = grow(path, shards=4)
    >>> with softkv.open(path) as db:
    ...     grown.shards, len(db), db["house 99"]
    (4, 100, 99.0)

    Args:
        path: The directory of the cluster.
        shards: The new number, up to 256. Shards are equally large if it is a multiple of the old one.
        disks: Directories in which the new shards are made in turn; otherwise that of the cluster.
        force: Also on a network file system, where locks and syncs may not hold.
        wait: How many seconds to wait for another process that writes.
        progress: Called with (stage, done, all) bytes.
    """
    require_disks(disks)
    directory, parents = directory_of(path), [directory_of(disk) for disk in disks]
    wishes: dict[str, Any] = dict.fromkeys(("value", "compatibility", "temperature", "embedder"))
    with joined(directory, "w", **wishes, force=force, wait=wait) as db:
        count = len(db._store.shards)
        if not is_whole(shards) or not count <= shards <= MOST:
            raise InputError(f"expected from {count} shards, which {directory} has, to {MOST}, got {shards!r}.")
        shards = int(shards)  # one of NumPy could not be in a manifest
        remove_unnamed(directory, parents)
        if shards > count:
            _forget_held_out(db)
        moved = renamed = 0
        try:
            for number in range(count, shards):
                parent = parents[number % len(parents)] if parents else directory
                others = _divide(db, shards, parent, force, progress or untold)
                moved, renamed = moved + len(others), renamed + sum(name.startswith("#") for name in others)
                remove_unnamed(directory)
        finally:
            left = remove_unnamed(directory, parents)
    return Grown(directory, shards, moved, renamed, tuple(left))


def next_division(buckets: Sequence[int], shards: int) -> tuple[int, tuple[int, ...]]:
    """The shard that is divided next on the way to so many, and the buckets as they are after that."""
    owned, after = np.bincount(buckets), np.array(buckets)
    parts = np.ones(len(owned), np.int64)
    for _ in range(len(owned), shards):
        parts[np.argmax(owned / parts)] += 1
    giver = int(np.argmax(parts))
    mine = np.flatnonzero(after == giver)
    after[mine[len(mine) - len(mine) // parts[giver] :]] = len(owned)
    return giver, tuple(after.tolist())


def _divide(db: Cluster, shards: int, parent: str, force: bool, told: Stages) -> list[str]:
    """Divide one shard; returns the old names of the items that were moved."""
    store, manifest = db._store, db._store.manifest
    giver, buckets = next_division(manifest.buckets, shards)
    old, taker, settings = store.shards[giver], len(manifest.shards), manifest.settings
    with store.snapshot() as whole, ExitStack() as closed:
        kept, moved = _shared_out(whole, giver, buckets)
        placed, opened = [*manifest.shards, manifest.shards[giver]], [*store.shards, old]
        rows = whole.rows - whole.snapshots[giver].rows
        for number, beside, others in ((taker, parent, kept), (giver, os.path.dirname(old.path), moved)):
            name = next_place(store.path, manifest, number, beside)
            place, stage = os.path.join(store.path, name), f"shard {number} of shard {giver}"
            restore(old.path, place, force=force, progress=partial(told, stage))
            part = open_here(place, "w", force=force)
            opened[number] = Shard(part)
            closed.callback(opened[number].close)
            if number == taker:
                part._store.set_apart()
            _leave_out(part, others)
            placed[number] = Placed(part._view().snapshot.store, name)
            rows += part._view().snapshot.rows
        if "guard" in settings:
            settings = rebased(settings, whole, rows)
        then = replace(manifest, epoch=manifest.epoch + 1, shards=tuple(placed), buckets=buckets, settings=settings)
        then.write(store.path)
        store.move_to(then, opened)
        closed.pop_all()
    old.close()
    return moved


def _shared_out(whole: WholeSnapshot, giver: int, buckets: Sequence[int]) -> tuple[list[str], list[str]]:
    """The names of the items of a shard that stay, and of those that move; without a key, the number decides."""
    own = np.flatnonzero(np.array(whole.manifest.buckets) == giver)
    taker, parts = len(whole.snapshots), (list[str](), list[str]())
    for name in whole.snapshots[giver].names(whole.snapshots[giver].in_order()):
        bucket = bucket_of(name)
        parts[buckets[own[bucket % len(own)] if name.startswith("#") else bucket] == taker].append(name)
    return parts


def _leave_out(part: SoftKV, names: Sequence[str]) -> None:
    """Delete items from a copy, and the rows that they had."""
    with part._changing:
        for start in range(0, len(names), TOGETHER):
            part._delete(names[start : start + TOGETHER])
    if part._view().snapshot.rows > len(part):
        part.compact()


def _forget_held_out(db: Cluster) -> None:
    """Forget which items took no part in learning, if that depends on names that are about to change."""
    store = db._store
    with store.snapshot() as whole:
        view = db._over(whole)
        temperature, name = view.profile.temperature, view.profile.projection
        if temperature is None and name is None:
            return
        if not any(one.startswith("#") for one in whole.names(whole.in_order())):
            return
        if temperature is not None and temperature.held:
            store.configure(replace(view.profile, temperature=replace(temperature, held=None)).settings())
        if name is not None and view.learned is not None and view.learned.facts.get("held"):
            facts = {**view.learned.facts, "held": 0.0}
            store.put_index(name, replace(view.learned.without_numbers(), facts=facts).encoded())
