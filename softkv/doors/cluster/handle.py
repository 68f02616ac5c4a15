"""A cluster as its users see it: a SoftKV over many stores. Made by `create`, opened by `softkv.open`.

Items are in the order of the shards, and in each in that in which they were added. What works on the files of one store
is refused, or done by each shard for itself.

Does not move items from shard to shard.
"""

import os
import secrets
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast

from softkv.asking.embedding import Embedding, Given
from softkv.asking.profile import Profile
from softkv.database import intake
from softkv.database.changes import require_values
from softkv.database.guarding import rebased
from softkv.database.handle import SoftKV, StoreView, open_here
from softkv.database.indexing import rehearsed_temperatures
from softkv.database.loading import Frame, Names, framed
from softkv.database.stamping import stamp
from softkv.database.summary import Info, index_of, size_of, summary, together
from softkv.database.training import Fit
from softkv.doors.cluster.asking import ask_shards
from softkv.doors.cluster.manifest import MOST, Manifest, Placed
from softkv.doors.cluster.shard import LocalShard, LostShard, Shard, evidence
from softkv.doors.cluster.store import ShardedStore, Unnamed
from softkv.doors.cluster.whole import WholeSnapshot, WholeView
from softkv.errors import InputError, StoreDamaged, StoreError, StoreExists
from softkv.progress import Progress
from softkv.storage import Added, Item, Store
from softkv.storage.catalog.batches import Stamp
from softkv.storage.disk import files

Method = TypeVar("Method", bound=Callable[..., Any])
Path = str | os.PathLike[str]
_ALONE = "Export it into one store, and do it there."


def create(
    path: Path,
    shards: int = 8,
    disks: Sequence[Path] = (),
    *,
    value: str | None = None,
    compatibility: str | None = None,
    temperature: float | None = None,
    force: bool = False,
) -> None:
    """Make a cluster of so many empty shards, in its directory or shared out to directories on several disks.

    >>> import softkv, tempfile, os
    >>> from softkv.doors.cluster.handle import create
    >>> path = os.path.join(tempfile.mkdtemp(), "films")
    >>> create(path, shards=3)
    >>> with softkv.open(path) as db:
    ...     added = db.add(["a shepherd looks for treasure", "two boats on a river"], ["The Alchemist", "Upstream"])
    ...     db.nearest("a boy searching for gold").texts[0].text
    'The Alchemist'
    """
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MOST:
        raise InputError(f"expected from 1 to {MOST} shards, got {shards!r}.")
    directory, identity = os.path.realpath(os.fsdecode(path)), secrets.token_hex(16)
    if os.path.lexists(directory):
        raise StoreExists(f"{directory} is there already. Choose another path for the cluster.")
    wanted = Profile().wishing(value=value, compatibility=compatibility, temperature=temperature, items=0)
    files.make_directory(directory)
    placed = []
    for number in range(shards):
        name = f"shard-{number:03}"
        if disks:
            disk = os.path.realpath(os.fsdecode(disks[number % len(disks)]))
            name = os.path.join(disk, f"{os.path.basename(directory)}-{identity[:8]}-{name}")
        with Store.open(os.path.join(directory, name), "c", force=force) as store, store.snapshot() as snapshot:
            placed.append(Placed(snapshot.store, name))
    Manifest.first(identity, placed, wanted.settings()).write(directory)


def joined(
    path: str,
    mode: str,
    *,
    value: str | None,
    compatibility: str | None,
    temperature: float | None,
    embedder: Given,
    force: bool,
    wait: float,
) -> "Cluster":
    """The cluster at a path, all of whose shards this process opens."""
    if mode == "n":
        raise InputError(f"{path} is a cluster, which is not started anew. Remove it, and create another.")
    manifest = Manifest.read(path)
    profile = Profile.of(manifest.settings)
    with ExitStack() as opened:
        shards = list[Shard]()
        for number in range(len(manifest.shards)):
            shards.append(_opened(path, manifest, number, mode, force, wait))
            opened.callback(shards[-1].close)
        store = ShardedStore(path, manifest, shards, writes=mode != "r")
        items = len(store) if compatibility is not None or temperature is not None else 0
        known = Profile() if mode == "r" else profile
        wanted = known.wishing(value=value, compatibility=compatibility, temperature=temperature, items=items)
        if mode != "r":
            store.settle_shards()
        db = Cluster(store, Embedding(embedder, path), wanted if wanted != profile else None, writes=mode != "r")
        opened.pop_all()
        return db


def _opened(path: str, manifest: Manifest, number: int, mode: str, force: bool, wait: float) -> Shard:
    """A shard, which has to be the store that the manifest says; to read, it may be missed when it is asked."""
    place = manifest.path_of(path, number)
    try:
        db = open_here(place, "r" if mode == "r" else "w", force=force, wait=wait)
    except (StoreError, OSError) as error:
        if mode != "r":
            raise
        return LostShard(place, error)
    found = db._view().snapshot.store
    if found != manifest.shards[number].id:
        db.close()
        raise StoreDamaged(
            f"{place} is store {found}, but shard {number} of {path} is {manifest.shards[number].id}. Bring that back."
        )
    return LocalShard(db)


def _refused(local: Method) -> Method:
    """A method like the local one that a cluster does not have."""

    @wraps(local)
    def refuse(_self: "Cluster", *_given: Any, **_options: Any) -> NoReturn:
        raise InputError(f"`{local.__name__}` is not done over shards. {_ALONE}")

    return cast(Method, refuse)


class Cluster(SoftKV):
    """A soft key-value store in many parts. Made by `softkv.open`; use it as a context manager, or close it."""

    _store: Any

    def __init__(self, store: ShardedStore, embedding: Embedding, wanted: Profile | None, *, writes: bool) -> None:
        super().__init__(cast(Store, store), embedding, wanted, writes=writes)

    def _view(self) -> WholeView:
        with self._lock:
            newest, seen = self._store.newest(), cast(WholeView | None, self._seen)
            same = seen is not None and seen.snapshot.manifest is newest.manifest
            if (
                seen is None
                or not same
                or any(a is not b for a, b in zip(seen.snapshot.views, newest.views, strict=True))
            ):
                self._seen = seen = self._over(newest)
            return seen

    def _new_view(self) -> WholeView:
        return self._over(self._store.snapshot())

    def _over(self, snapshot: WholeSnapshot) -> WholeView:
        view = WholeView(snapshot, self._findings, lambda whole, question: ask_shards(whole, question, evidence))
        return self._wished(view)

    def info(self) -> Info:
        """What the cluster is, in the figures of one store; `commit` is the sum of those of its shards."""
        parts = [index_of(view) for view in self._view().filled]
        elsewhere = [shard.path for shard in self._store.shards if os.path.dirname(shard.path) != self.path]
        found = summary(self._view(), self.path)
        indexes = [one for one in parts if one is not None]
        index = together(indexes) if indexes and len(indexes) == len(parts) else None
        return replace(found, index=index, bytes_on_disk=found.bytes_on_disk + sum(map(size_of, elsewhere)))

    def lookup(self, query: Any, *, partial: bool = False, **options: Any) -> Any:
        """Look a query up softly, as `lookup` of a store does, over the items of all shards.

        Where shards do not answer, this is an `OutOfReach` that names them, unless it may be `partial`: then the others
        answer, `out_of_reach` is the share of the mass that those have that do not, and `error` is how far the answer
        may be from that of all. That is told by how the shards that answer differ, of which there have to be eight.
        """
        if not partial:
            return super().lookup(query, **options)
        if options.get("heads") is not None or options.get("mask") is not None:
            raise InputError("expected neither heads nor a mask with partial=True, since they are about all items.")
        with self._lock:
            view = self._over(self._store.reachable())
        return StoreView(view, self._embedding).lookup(query, **options)

    def add(
        self,
        keys: str | Sequence[str | None] | Frame | None = None,
        values: Any = None,
        *,
        vectors: Any = None,
        texts: str | Sequence[str | None] | None = None,
        payloads: Any = None,
        key: str | None = None,
        text: str | None = None,
        value: Names = None,
        payload: Names = None,
        vector: Names = None,
        on_conflict: str = "error",
        batch: str | None = None,
        progress: Progress | None = None,
    ) -> Added:
        """Add one item or many, as `add` of a store does; when this returns, they are on the disks of all their shards.

        Each shard adds its part wholly or not at all. Where some have done so and others have not, `PartlyAdded` says
        which, and under what name (`batch`) the same items are to be added again to complete it.
        """
        columns = framed(self, keys, (key, text, value, payload, vector), (values, vectors, texts, payloads))
        if columns is not None:
            return self.add(**columns, on_conflict=on_conflict, batch=batch, progress=progress)
        options: dict[str, Any] = {"vectors": vectors, "texts": texts, "payloads": payloads, "on_conflict": on_conflict}
        named: Any = batch
        if batch is None:
            what, name = intake.given(keys, values, vectors, texts, payloads), uuid.uuid4().hex
            given = (what.keys, what.values, what.vectors, what.texts)
            made = stamp(name, "add", on_conflict, *given, payloads=what.payloads)
            assert made is not None
            named = Unnamed(made.id, made.digest)
        return super().add(keys, values, **options, batch=named, progress=progress)

    def fit(self, *given: Any, planes: bool | None = None, **options: Any) -> Fit:
        """Learn to compare from the items of all shards, as `fit` of a store does, but without planes."""
        empty = [shard.path for shard in self._store.shards if not len(shard.view().snapshot)]
        if planes or empty:
            raise InputError(f"expected no planes, and items in each shard, to learn from; none are in {empty}.")
        return super().fit(*given, planes=False, **options)

    def build_index(self, kind: str = "lists", **options: Any) -> Info:
        """Build an index in each shard, as `build_index` of a store does, for the temperatures of all."""
        self._store.require_writable()
        view = cast(WholeView, self._asked_view())
        if kind == "lists":
            steps = rehearsed_temperatures(view, options.get("temperatures"))
            options["temperatures"] = float(steps[0]), float(steps[-1])
        for shard in self._store.shards:
            if len(shard.view().snapshot):
                shard.upkeep("build_index", kind, **options)
        return self.info()

    def drop_index(self) -> None:
        """Forget the indexes of all shards; lookups scan again."""
        for shard in self._store.shards:
            shard.upkeep("drop_index")

    def compact(self) -> None:
        """Leave deleted and replaced items of all shards behind, one shard after the other."""
        with self._changing:
            if "guard" in self._store.settings:
                self._store.configure(rebased(self._store.settings, self._view()))
            for shard in self._store.shards:
                shard.upkeep("compact")

    forecast_index = _refused(SoftKV.forecast_index)
    reembed = _refused(SoftKV.reembed)
    backup = _refused(SoftKV.backup)

    def _require_values(self, named: Stamp | None, items: Sequence[Item], expected: Any) -> None:
        """Refuse a batch where items have other values by now, of shards that have not done their part before."""
        done = self._store.done(named) if named is not None and len(items) == len(expected) else ()
        left = [place for place, item in enumerate(items) if self._store.manifest.shard_of(item.name) not in done]
        pairs = items, expected
        require_values(*([one[place] for place in left] for one in pairs) if len(left) < len(items) else pairs)

    def _settle(self) -> None:
        """Each shard has settled its own part."""

    def __repr__(self) -> str:
        return f"<Cluster {self.path!r}>"
