"""`status`, `check` and `repair` of clusters that may be damaged or have lost shards.

Unlike opening, these do not refuse a damaged cluster. They change nothing in it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import cast

from softkv.database import carrying
from softkv.database.summary import index_of, size_of
from softkv.doors.cluster.checking import examined
from softkv.doors.cluster.handle import opened_shard
from softkv.doors.cluster.making import make, shard_name
from softkv.doors.cluster.manifest import MOST, Manifest, Placed
from softkv.doors.cluster.shard import LostShard, Shard
from softkv.errors import SoftKVError
from softkv.storage import Repaired, Report, Store
from softkv.storage.protocol.backup import require_apart
from softkv.storage.protocol.opening import directory_of
from softkv.storage.store import AnyPath


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard in a few figures, with its path in the manifest; if it is not `reachable`, only `why`."""

    path: str
    buckets: int
    reachable: bool
    items: int | None = None
    commit: int | None = None
    bytes_on_disk: int | None = None
    index: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster and its shards; `epoch` is the number of the manifest that counts."""

    path: str
    id: str
    epoch: int
    shards: tuple[ShardState, ...]


def status(path: AnyPath) -> ClusterState:
    """The figures of each shard of a cluster, and whether it answers."""
    directory = directory_of(path)
    manifest = Manifest.read(directory)
    buckets = Counter(manifest.buckets)
    with _opened(directory, manifest) as shards:
        states = [_state(one, manifest.shards[number].path, buckets[number]) for number, one in enumerate(shards)]
    return ClusterState(directory, manifest.id, manifest.epoch, tuple(states))


def _state(shard: Shard, path: str, buckets: int) -> ShardState:
    try:
        view = shard.view()
    except (SoftKVError, OSError) as error:
        return ShardState(path, buckets, False, why=str(error.__cause__ or error))
    index, snapshot = index_of(view), view.snapshot
    told = None if index is None else str(index)
    return ShardState(path, buckets, True, len(snapshot), snapshot.commit, size_of(shard.path), told)


def check(path: AnyPath, *, at_least: int | None = None) -> Report:
    """Check a cluster as `check` of a handle does, even if it is too damaged for a handle."""
    directory = directory_of(path)
    try:
        manifest = Manifest.read(directory)
    except SoftKVError as error:
        return Report(directory, [str(error)])
    with _opened(directory, manifest) as shards:
        return examined(directory, manifest, shards, at_least=at_least)


@contextmanager
def _opened(directory: str, manifest: Manifest) -> Iterator[list[Shard]]:
    """All shards, open for reading within the block; a `LostShard` for each that cannot be opened."""
    with ExitStack() as closing:
        shards = list[Shard]()
        for number in range(len(manifest.shards)):
            try:
                shards.append(opened_shard(directory, manifest, number, "r", False, 0.0))
            except SoftKVError as error:
                shards.append(cast(Shard, LostShard(manifest.path_of(directory, number), error)))
            closing.callback(shards[-1].close)
        yield shards


def repair(path: AnyPath, new: AnyPath) -> Repaired:
    """Write the good items of a cluster to a new one, each shard for itself.

    A shard that cannot be read at all is empty there and counts as one lost item, since it is unknown how many it had.
    What was learned is carried over if it is in every shard.
    """
    source = directory_of(path)
    require_apart(source, directory_of(new))
    report, damaged = check(source), Manifest.read(source)
    parts, settings, missing = dict[str, Repaired](), dict(damaged.settings), list[str | int]()

    def fill(number: int, place: str) -> None:
        try:
            parts[place] = carrying.repair(damaged.path_of(source, number), place, shard=True)
        except (SoftKVError, OSError):  # the report has it
            Store.open(place, "c").close()
            missing.append(f"all items of {shard_name(number)}")
            parts[place] = Repaired(report, 0, 1)
        else:
            missing.extend(_named(number, name) for name in parts[place].missing)
        with Store.open(place, "r") as store:
            if "projection" not in store.settings:
                settings.pop("projection", None)

    def together() -> Repaired:
        saved, lost, rows = (sum(getattr(one, name) for one in parts.values()) for name in ("saved", "lost", "rows"))
        same = min(one.same_numbers * MOST + number for number, one in enumerate(parts.values()))
        return Repaired(report, saved, lost, tuple(missing), rows, same)

    def manifest(identity: str, placed: tuple[Placed, ...]) -> Manifest:
        done = together()
        found = Manifest(identity, 1, placed, damaged.buckets, carrying.moved(settings, done))
        for place in parts:
            carrying.settle_shard(place, found.settings_of_shards, done)
        return found

    make(new, len(damaged.shards), fill, manifest)
    return together()


def _named(shard: int, name: str | int) -> str:
    """The name in the cluster of an item that a shard has lost."""
    if isinstance(name, int):
        return f"row {name} of {shard_name(shard)}"
    return f"#{int(name[1:]) * MOST + shard}" if name.startswith("#") else name
