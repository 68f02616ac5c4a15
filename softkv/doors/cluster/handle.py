"""A cluster as its users see it: a SoftKV over many stores. Made by `create`, opened by `softkv.open`.

Items come shard by shard, and in each shard in the order in which they were added. What works on the files of one store
is refused, or done for each shard.

Does not move items from shard to shard.
"""

import os
import shlex
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

from softkv.asking.embedding import AnyEmbedder, Embedding
from softkv.asking.profile import Profile
from softkv.asking.scan import require_items
from softkv.asking.spanning import NAME as TOGETHER
from softkv.asking.view import View
from softkv.database import intake
from softkv.database.begun import FEWEST
from softkv.database.changes import require_values
from softkv.database.guarding import rebased
from softkv.database.handle import SoftKV, StoreView, name_server, open_here
from softkv.database.indexing import rehearsed_temperatures
from softkv.database.rehearsing import rehearsed_together
from softkv.database.summary import Info, index_of, proposer_of, size_of, summary, together, unlisted
from softkv.database.training import Fit
from softkv.doors.cluster.asking import ask_shards
from softkv.doors.cluster.making import backup, make
from softkv.doors.cluster.manifest import MOST, Manifest
from softkv.doors.cluster.places import remove_unnamed
from softkv.doors.cluster.shard import Carrier, LostShard, Moved, Shard
from softkv.doors.cluster.store import ShardedStore, Unnamed
from softkv.doors.cluster.whole import WholeSnapshot, WholeView
from softkv.errors import (
    AccessRefused,
    IndexDamaged,
    InputError,
    OutOfReach,
    SnapshotExpired,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreNotFound,
)
from softkv.maths.inputs import is_whole
from softkv.progress import Progress
from softkv.storage import Backup, Item, Store
from softkv.storage.catalog.batches import Stamp
from softkv.storage.disk import locks
from softkv.storage.protocol.opening import is_backup
from softkv.storage.store import MODES, AnyPath


def create(
    path: AnyPath,
    shards: int = 8,
    disks: Sequence[AnyPath] = (),
    *,
    value: str | None = None,
    compatibility: str | None = None,
    temperature: float | None = None,
    force: bool = False,
) -> None:
    """Make a cluster of so many empty shards, in its directory or shared out to directories on several disks.

    >>> import softkv, tempfile, os
    >>> from softkv.doors.cluster import create
    >>> path = os.path.join(tempfile.mkdtemp(), "films")
    >>> create(path, shards=3)
    >>> with softkv.open(path) as db:
    ...     added = db.add(["a shepherd looks for treasure", "two boats on a river"], ["The Alchemist", "Upstream"])
    ...     db.nearest("a boy searching for gold").texts[0].text
    'The Alchemist'
    """
    if not is_whole(shards) or not 1 <= shards <= MOST:
        raise InputError(f"expected from 1 to {MOST} shards, got {shards!r}.")
    wanted = Profile().wishing(value=value, compatibility=compatibility, temperature=temperature, items=0)
    make(
        path,
        int(shards),
        lambda _number, place: Store.open(place, "c", force=force).close(),
        lambda identity, placed: Manifest.first(identity, placed, wanted.settings()),
        disks=disks,
        force=force,
    )


def require_mode(path: str, mode: str) -> None:
    """Refuse modes that a cluster at this path is not opened in, however its shards are held."""
    if mode == "n":
        raise InputError(f"{path} is a cluster, which is not started anew. Remove it, and create another.")
    if mode not in MODES:
        raise InputError(f"mode is {mode!r}; use one of {', '.join(MODES)}")
    if mode != "r" and is_backup(path):
        again = f"softkv restore {shlex.quote(path)} --db NEW"
        raise AccessRefused(f"{path} is a backup, which only `softkv backup` writes to. Make a cluster of it: {again}")


def joined(path: str, mode: str, *, embedder: AnyEmbedder, force: bool, wait: float, **wishes: Any) -> "Cluster":
    """The cluster at a path, with all shards opened by this process."""
    require_mode(path, mode)

    def shard(manifest: Manifest, number: int) -> Shard:
        return opened_shard(path, manifest, number, mode, force, wait)

    with ExitStack() as opened:
        lock = None
        if mode != "r":
            locks.require_writable_platform(path, force=force)
            try:
                lock = locks.opened(lambda: locks.lock_writer(path), wait)
            except StoreLocked as error:
                name_server(path, error)
                raise
            opened.callback(lock.release)
        manifest, shards = _all_opened(path, shard)
        for one in shards:
            opened.callback(one.close)
        store = ShardedStore(path, manifest, shards, lock, opened=shard)
        if mode != "r":
            remove_unnamed(path)
        db = over(store, mode, embedder=embedder, **wishes)
        opened.pop_all()
        return db


def over(store: ShardedStore, mode: str, *, embedder: AnyEmbedder, **wishes: Any) -> "Cluster":
    """A handle on these shards, after they got the settings of the cluster and those asked for."""
    profile = Profile.of(store.manifest.settings)
    wished = wishes["compatibility"] is not None or wishes["temperature"] is not None
    known = Profile() if mode == "r" else profile
    wanted = known.wishing(**wishes, items=len(store) if wished else 0)
    if mode != "r":
        store.settle_shards()
    return Cluster(store, Embedding(embedder, store.path), wanted if wanted != profile else None, writes=mode != "r")


def _all_opened(path: str, shard: Callable[[Manifest, int], Shard]) -> tuple[Manifest, list[Shard]]:
    """The current manifest and its shards; retried if another manifest appears before all are open."""
    while True:
        manifest, shards = Manifest.read(path), list[Shard]()
        with ExitStack() as opened:
            try:
                for number in range(len(manifest.shards)):
                    shards.append(shard(manifest, number))
                    opened.callback(shards[-1].close)
            except (StoreError, OSError):
                if not manifest.is_followed(path):
                    raise
            if not manifest.is_followed(path):
                opened.pop_all()
                return manifest, shards


def opened_shard(path: str, manifest: Manifest, number: int, mode: str, force: bool, wait: float) -> Shard:
    """A shard, which has to be the store that the manifest names; for reading it may be missing until it is asked."""
    place = manifest.path_of(path, number)
    try:
        db = open_here(place, "r" if mode == "r" else "w", force=force, wait=wait)
    except (StoreError, OSError) as error:
        if isinstance(error, StoreNotFound):  # its advice is to make one
            error = StoreNotFound(f"shard {number} of {path} is not at {place}. Bring it back, or mount its disk.")
        if isinstance(error, StoreLocked):
            error = StoreLocked(
                f"{error} If it is a process of the cluster, open ray:{path} instead, or end it: "
                f"`softkv cluster stop {shlex.quote(path)}`.",
                error.pid,
            )
        if mode != "r":
            raise error from None
        return cast(Shard, LostShard(place, error))
    found = db._view().snapshot.store
    if found != manifest.shards[number].id:
        db.close()
        raise StoreDamaged(
            f"{place} is store {found}, but shard {number} of {path} is {manifest.shards[number].id}. Bring that back."
        )
    return Shard(db)


class Cluster(SoftKV):
    """A soft key-value store in many parts. Made by `softkv.open`; use it as a context manager, or close it.

    Each shard adds its part of a batch wholly or not at all. Where some have done so and others have not, `PartlyAdded`
    says which, and under what name (`batch`) the same items are to be added again to complete it.
    """

    _store: Any

    def __init__(self, store: ShardedStore, embedding: Embedding, wanted: Profile | None, *, writes: bool) -> None:
        super().__init__(cast(Store, store), embedding, wanted, writes=writes)
        self._believed: WholeView | None = None  # a view that was current twice, and so probably still is

    def lookup(self, query: Any, **options: Any) -> Any:
        """Look a query up softly, as `lookup` of a store does.

        Shards in other processes answer about their last known commit, or say that they have a newer one: so one round
        of messages is enough if nothing has changed. Otherwise all are read and asked again.
        """
        believed = self._believed
        if believed is not None and not options.get("partial") and options.get("mask") is None:
            if self._store.is_at(believed.snapshot.manifest):
                with suppress(Moved, SnapshotExpired):
                    return StoreView(believed, self._embedding).lookup(query, **options)
            self._believed = None
        return super().lookup(query, **options)

    def _view(self) -> WholeView:
        with self._lock:
            newest, seen = self._store.newest(), cast(WholeView | None, self._seen)
            if seen is None or seen.snapshot is not newest:
                self._seen, self._believed = self._over(newest), None
            elif self._believed is None and self._store.believing and all(len(one.snapshot) for one in newest.views):
                self._believed = self._over(seen.snapshot, self._store.believing)
            return cast(WholeView, self._seen)

    def _new_view(self) -> WholeView:
        return self._over(self._store.snapshot())

    def _partial_view(self) -> WholeView:
        with self._lock:
            found = self._over(self._store.newest(partial=True))
            there = set(found.snapshot.numbers)
            lost = [shard.path for number, shard in enumerate(self._store.shards) if number not in there]
            if lost and not len(found.snapshot):
                raise OutOfReach(
                    f"Of {self.path} only empty shards answer, and not {', '.join(lost)}. Bring them back.",
                    lost,
                )
            return found

    def _over(self, snapshot: WholeSnapshot, carrier: Carrier | None = None) -> WholeView:
        ask = partial(ask_shards, carrier=carrier or self._store.carrier)
        return self._wished(WholeView(snapshot, self._findings, ask))

    def info(self) -> Info:
        """What the cluster is, in the figures of one store; `commit` is the sum of those of its shards."""
        there = [view for view in self._view().filled if len(view.snapshot) >= FEWEST]
        parts = [index_of(view) if isinstance(view, View) else view.index_info() for view in there]
        elsewhere = [shard.path for shard in self._store.shards if os.path.dirname(shard.path) != self.path]
        found = summary(self._view(), self.path)
        indexes = [one for one in parts if one is not None]
        others = sum(len(view.snapshot) for view, one in zip(there, parts, strict=True) if one is None)
        if indexes and others:
            indexes.append(unlisted(others))
        index = together(indexes) if indexes else None
        proposers = [proposer_of(view) for view in self._view().filled if isinstance(view, View)]
        found = replace(found, proposer=next(filter(None, proposers), None))
        return replace(found, index=index, bytes_on_disk=found.bytes_on_disk + sum(map(size_of, elsewhere)))

    def _batch_of(self, what: intake.Given, batch: str | None, on_conflict: str) -> Stamp:
        """The name of a batch, or a new one, so that a batch done in part can be completed."""
        named = super()._batch_of(what, uuid.uuid4().hex if batch is None else batch, on_conflict)
        assert named is not None
        return named if batch is not None else Unnamed(named.id, named.digest)

    def fit(self, *given: Any, planes: bool | None = None, **options: Any) -> Fit:
        """Learn to compare from the items of all shards, as `fit` of a store does, but without planes."""
        if planes:
            raise InputError(
                "expected no planes (planes=True): a cluster does not read answers off them. Leave it out."
            )
        empty = [one.path for one in self._view().snapshot.snapshots if not len(one)]
        if empty:
            raise InputError(f"expected items in each shard to learn from; none are in {', '.join(empty)}.")
        return super().fit(*given, planes=False, **options)

    def build_index(self, kind: str = "lists", **options: Any) -> Info:
        """Build an index in each shard, as `build_index` of a store does, for the temperatures of all."""
        self._store.require_writable()
        view = cast(WholeView, self._asked_view())
        if kind == "lists":
            steps = rehearsed_temperatures(view, options.get("temperatures"))
            options["temperatures"] = float(steps[0]), float(steps[-1])
        with self._keeping_count():
            for shard in self._to_index():
                shard.upkeep("build_index", kind, **options)
        if kind == "lists":
            whole, queries = cast(WholeView, self._asked_view()), options.get("queries")
            steps = rehearsed_temperatures(whole, options["temperatures"])
            if queries is not None or not whole.is_rehearsed(steps):
                self._keep(rehearsed_together(whole, steps, queries, options.get("progress")))
        return self.info()

    @contextmanager
    def _keeping_count(self) -> Iterator[None]:
        """Within the block rows of shards may move; the guard remembers how many items had changed before.

        As in a store, an interruption leaves too many changes counted. Items that are replaced meanwhile, in a shard
        whose rows have not moved yet, are not counted: nothing tells of them afterwards.
        """
        if "guard" not in self._store.settings:
            yield
            return
        with self._changing:
            whole = self._view().snapshot
            kept = rebased(self._store.settings, whole)["guard"]
            self._store.configure({**self._store.settings, "guard": kept})
            before = [(one.generation, one.rows, len(one)) for one in whole.snapshots]
            del whole  # it would keep the files of the old generations
        try:
            yield
        finally:
            with self._changing:
                if self._store.settings.get("guard") == kept:  # else it was made anew, or dropped
                    now = [one.generation for one in self._view().snapshot.snapshots]
                    left = [items if now[n] != was else rows for n, (was, rows, items) in enumerate(before)]
                    base = [sum(left), *kept["base"][1:]]
                    self._store.configure({**self._store.settings, "guard": {**kept, "base": base}})

    def _keep(self, rehearsed: bytes | None) -> None:
        """Store the calibration by all lists together, if there is one, in the first shard with rows, if any has."""
        filled = (shard for shard in self._store.shards if shard.view().snapshot.rows)
        if rehearsed is not None and (first := next(filled, None)) is not None:
            first.put_index(TOGETHER, rehearsed)

    def _to_index(self) -> list[Shard]:
        """The shards with enough items for an index; if none has, the first with any, which then raises the error."""
        filled = [shard for shard in self._store.shards if len(shard.view().snapshot)]
        return [shard for shard in filled if len(shard.view().snapshot) >= FEWEST] or filled[:1]

    def forecast_index(self, kind: str = "lists", **options: Any) -> Any:
        """What `build_index` would take, as `forecast_index` of a store tells it: shards build one after the other."""
        require_items(self._view().snapshot)
        parts = [one.upkeep("forecast_index", kind, **options) for one in self._to_index()]
        seconds, kept = (sum(getattr(one, name) for one in parts) for name in ("seconds", "kept"))
        return replace(parts[0], seconds=seconds, meanwhile=max(one.meanwhile for one in parts), kept=kept)

    def drop_index(self) -> None:
        """Forget the indexes of all shards; lookups scan again."""
        for shard in self._store.shards:
            shard.upkeep("drop_index")
            shard.drop_index(TOGETHER)

    def compact(self) -> None:
        """Leave deleted and replaced items of all shards behind, one shard after the other."""
        with self._changing, self._keeping_count():
            file = self._view().rehearsed  # it stays readable
            for shard in self._store.shards:
                shard.upkeep("compact")
            with suppress(IndexDamaged):
                self._keep(None if file is None else bytes(file.read()))

    def backup(self, directory: AnyPath, *, force: bool = False, progress: Progress | None = None) -> Backup:
        """Copy the cluster into a directory, or what is new into an earlier backup, as `backup` of a store does.

        Each shard is copied as of one commit, one after the other. This handle changes nothing meanwhile; of what other
        handles change, some shards may have their part and others not. Processes of shards write what they hold.
        """
        with self._changing:
            return backup(self._store, directory, force=force, progress=progress if self._store.alone else None)

    def reembed(self, *_given: Any, **_options: Any) -> NoReturn:
        """Refused for clusters: embedding again works in one store."""
        raise InputError("`reembed` is not done over shards. Export it into one store, and do it there.")

    def _require_values(self, named: Stamp | None, items: Sequence[Item], expected: Any) -> None:
        """Refuse a change if items have other values than `expected`, in shards that have not done their part yet."""
        paired = intake.is_column(expected) and len(items) == len(expected)
        done = self._store.done(named) if named is not None and paired else ()
        left = [place for place, item in enumerate(items) if self._store.manifest.shard_of(item.name) not in done]
        pairs = items, expected
        require_values(*([one[place] for place in left] for one in pairs) if len(left) < len(items) else pairs)

    def _leave_temperature(self) -> None:
        """Save the temperature by rule as a store does, unless other handles use the shards as well."""
        if self._store.alone:
            super()._leave_temperature()

    def _settle(self) -> None:
        """Nothing to do: each shard has noted its own part."""

    def __repr__(self) -> str:
        return f"<Cluster {self.path!r}>"
