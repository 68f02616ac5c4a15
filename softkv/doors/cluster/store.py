"""All shards as one store to write to: takes the place of a `Store` under a handle.

A batch is checked whole before any of it is sent. Then all shards at once get their own items under the name of the
batch, each wholly or not at all. If not all succeed, `PartlyAdded` says which have, and sending the batch again
completes it, since a shard carries out a named batch only once.

Does not read (whole.py) or answer (asking.py).
"""

import functools
import hashlib
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from operator import methodcaller
from typing import Any, TypeVar, cast

import numpy as np

from softkv.asking.learned import Learned
from softkv.asking.view import View
from softkv.doors.cluster.checking import examined
from softkv.doors.cluster.manifest import Manifest, bucket_of, bucket_without_key
from softkv.doors.cluster.parts import added_by, columns_of, keys_of, numbers_of, outcomes, partly_added
from softkv.doors.cluster.shard import Carrier, LostShard, Shard, out_of_reach
from softkv.doors.cluster.whole import WholeSnapshot
from softkv.doors.remote.loading import name_of
from softkv.errors import (
    AccessRefused,
    CommitUncertain,
    HandleClosed,
    InputError,
    SoftKVError,
    StoreError,
    WriterFenced,
)
from softkv.storage import Added, Layout, Report
from softkv.storage.batch import Batch, checked, refuse_duplicates
from softkv.storage.catalog.batches import Stamp
from softkv.storage.disk.locks import FileLock
from softkv.storage.protocol.conflicts import checked_names, require_known, rows_of
from softkv.storage.threads import OwnLock

ResultT = TypeVar("ResultT")
OpenShard = Callable[[Manifest, int], Shard]  # opens a shard of a manifest, by its number


@dataclass(frozen=True, slots=True)
class Unnamed(Stamp):
    """A batch without a name from its caller: only shards that get a part of it record it."""


class ShardedStore:
    """The shards of a cluster, in the place of a `Store`."""

    alone = True  # whether a writer here is the only one
    unfinished: None = None  # clusters have no `reembed`
    believing: Carrier | None = None  # calls shards by their last known commit; they raise `Moved` if it is not current

    def __init__(
        self,
        path: str,
        manifest: Manifest,
        shards: Sequence[Shard],
        lock: FileLock | None,
        *,
        opened: OpenShard,
        carrier: Carrier | None = None,
        writes: bool = False,
    ) -> None:
        """Take open shards, and the `lock` on the cluster if this process may write alone; it is released with them.

        With `writes` but without a lock other handles may write as well: each shard serialises its writers.
        """
        self.path, self.manifest, self.shards, self._lock = path, manifest, tuple(shards), lock
        self._opened, self._turns, self._writes, self._closed = opened, OwnLock(path), writes or lock is not None, False
        self.carrier = carrier or Carrier()
        self._last: Callable[[], WholeSnapshot | None] = lambda: None  # if it is still in use

    @property
    def settings(self) -> dict[str, Any]:
        """What the users of the cluster keep with it."""
        return dict(self.manifest.settings)

    @property
    def layout(self) -> Layout | None:
        """Widths and kind of value; None before the first item."""
        return self.newest().layout

    def newest(self, *, kept: bool = False, partial: bool = False) -> WholeSnapshot:
        """All shards, each at its newest commit; `kept` until it is closed; if `partial`, only those that answer."""
        with self._turns:
            views = self._views(kept=kept, partial=partial)
            made_of = (id(self.manifest), *map(id, views.values()))
            known = None if kept or partial else self._last()
            if known is not None and known.made_of == made_of:
                return known
            last = [getattr(one, "last_seen", None) for number, one in enumerate(self.shards) if number not in views]
            found = WholeSnapshot(
                views, self.path, self.manifest, owns=kept, partial=partial, last_seen=last, shards=self.shards
            )
            self._last = self._last if kept or partial else weakref.ref(found)
            return found

    def snapshot(self) -> WholeSnapshot:
        """A snapshot of all shards, taken one after the other."""
        return self.newest(kept=True)

    def _views(self, *, kept: bool, partial: bool) -> dict[int, View]:
        """Views of the shards, by number; an error if one is out of reach, unless `partial`."""
        self._require_open()
        self._follow()
        shards = [getattr(shard, "impatient", shard) if partial else shard for shard in self.shards]
        found = self.carrier.round([functools.partial(methodcaller("view", kept=kept), shard) for shard in shards])
        views = {number: one for number, one in enumerate(found) if not isinstance(one, Exception)}
        why = {number: one.__cause__ or one for number, one in enumerate(found) if number not in views}
        lost = [f"{self.shards[number].path} ({one})" for number, one in why.items()]
        if lost and not (partial and views):
            raise out_of_reach(self.path, lost)
        return views

    def _follow(self) -> None:
        """Follow another process to the newest manifest, unless only this handle writes, and open what was lost.

        Old shards are not closed, since another thread may be reading them; they go with their last user.
        """
        while not (self._writes and self.alone) and self.manifest.is_followed(self.path):  # also while opening
            manifest, known = Manifest.read(self.path), dict(zip(self.manifest.shards, self.shards, strict=True))
            shards = (known.get(one) or self._opened(manifest, n) for n, one in enumerate(manifest.shards))
            self.move_to(manifest, list(shards))
        if any(isinstance(one, LostShard) for one in self.shards):
            with self._turns:
                self.move_to(self.manifest, [self._found_again(number) for number in range(len(self.shards))])

    def _found_again(self, number: int) -> Shard:
        """A shard; if it is lost, it may be back where it was, or be lost for another reason now."""
        shard: Any = self.shards[number]
        if isinstance(shard, LostShard):
            try:
                return self._opened(self.manifest, number)
            except (StoreError, OSError) as error:  # such as another store in its place
                shard = LostShard(shard.path, error)
        return cast(Shard, shard)

    def is_at(self, manifest: Manifest) -> bool:
        """Whether the handle is open and still uses this manifest."""
        self._require_open()
        self._follow()
        return self.manifest is manifest

    def move_to(self, manifest: Manifest, shards: Sequence[Shard]) -> None:
        """Switch to another manifest, whose shards are open."""
        with self._turns:
            self.manifest, self.shards = manifest, tuple(shards)

    def __len__(self) -> int:
        return len(self.newest())

    # Writing

    def require_writable(self) -> None:
        """Refuse a handle that may not write, before any work is done."""
        self._require_open()
        self._follow()
        if not self._writes:
            raise AccessRefused(f"{self.path} is open for reading; open it with mode 'w' to change it")

    require_finished = require_writable  # clusters have no rebuild that could be unfinished

    def _require_open(self) -> None:
        if self._closed:
            raise HandleClosed(f"{self.path} was closed; open it again")

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings: first in a manifest, and then in each shard."""
        self.require_writable()
        if settings != self.manifest.settings:
            manifest = self.manifest.with_settings(settings)
            manifest.write(self.path)
            self.manifest = manifest
        self.settle_shards()

    def settle_shards(self) -> None:
        """Let each shard have the settings of all."""
        for shard in self.shards:
            shard.configure(self.manifest.settings_of_shards)

    def append(
        self,
        vectors: Any,
        values: Any,
        *,
        on_conflict: str = "error",
        settings: Mapping[str, Any] | None = None,
        stamp: Stamp | None = None,
        keys: Any = None,
        payloads: Any = None,
        texts: Any = None,
        value_vectors: Any = None,
    ) -> Added:
        """Add one batch; when this returns, each shard has its part on the disk."""
        self.require_writable()
        require_known(on_conflict)
        whole, named = self.newest(), self._named(stamp)
        before = {} if isinstance(stamp, Unnamed) else self._recorded(named, 5)
        columns: dict[str, Any] = {"keys": keys, "payloads": payloads, "texts": texts, "value_vectors": value_vectors}
        batch = checked(vectors, values, **columns, layout=whole.layout)
        parts = self._parts(batch, named.id)
        if on_conflict == "error":
            own = {shard: keys_of(batch, places) for shard, places in parts.items() if shard not in before}
            found = [whole.snapshots[shard].find_many(keys) for shard, keys in own.items()]
            refuse_duplicates(list(chain(*own.values())), np.concatenate([np.empty(0, np.int64), *found]))
        if settings is not None:
            self.configure(settings)

        def work(shard: int) -> list[int]:
            if shard not in parts:
                return numbers_of(self.shards[shard].append_nothing(named))
            part = columns_of(batch, parts[shard], payloads)
            return numbers_of(self.shards[shard].append(part, named, on_conflict))

        everyone = range(len(self.shards)) if _is_everywhere(stamp) else sorted(parts)
        return added_by(self._done(named, stamp, before, everyone, work), whole)

    def append_nothing(self, stamp: Stamp | None) -> Added:
        """The result of a batch that has no items; recorded under its name, if it has one."""
        if stamp is not None:
            named = self._named(stamp)
            before = self._recorded(named, 5)
            self._done(
                named,
                stamp,
                before,
                range(len(self.shards)),
                lambda shard: numbers_of(self.shards[shard].append_nothing(named)),
            )
        return Added(0, 0, 0)

    def delete(self, keys: str | Sequence[str], *, stamp: Stamp | None = None) -> int:
        """Delete the items with these names; when this returns, each shard has done so."""
        self.require_writable()
        if stamp is not None and stamp.tells is not None:
            if keys:  # its results, such as the value of an item that was popped, are not recorded in shards
                raise InputError("expected no batch with `pop` on a cluster. Read the item, and delete it by its key.")
            return 0  # the end of a file, of which each portion was a batch
        whole, named = self.newest(), self._named(stamp)
        before, parts = self._recorded(named, 1), dict[int, list[str]]()
        for name in checked_names(keys):
            parts.setdefault(whole.home(name)[0], []).append(name)
        rows_of([name for shard, names in parts.items() if shard not in before for name in names], whole)

        def work(shard: int) -> list[int]:
            own = [whole.home(name)[1] for name in parts.get(shard, ())]
            return [self.shards[shard].delete(own, named)]

        everyone = range(len(self.shards)) if _is_everywhere(stamp) else sorted(parts)
        return sum(one[0] for one in self._done(named, stamp, before, everyone, work).values())

    def recorded(self, stamp: Stamp | None) -> Added | None:
        """The result of a batch that all shards have recorded; `BatchMismatch` if one has recorded other content."""
        if stamp is None or isinstance(stamp, Unnamed):
            return None
        self._follow()
        before = self._recorded(self._named(stamp), 5)
        return added_by(before, self.newest()) if len(before) == len(self.shards) else None

    def done(self, stamp: Stamp) -> Mapping[int, list[int]]:
        """The results that shards have recorded under the name of a batch."""
        return self._recorded(self._named(stamp), 5)

    def written(self, _name: str) -> None:
        """No file is recorded: each portion of one is a batch."""

    def portions(self, batch: Sequence[Any]) -> list[Sequence[Any]]:
        """Records as they are sent together: all of them."""
        return [batch]

    def abandon(self) -> None:
        """There is no unfinished rebuild."""

    def _named(self, stamp: Stamp | None) -> Stamp:
        """The batch as shards record it, also after they were divided: both parts have the records of the whole."""
        name = uuid.uuid4().hex if stamp is None else stamp.id if stamp.tells is None else name_of(stamp)
        return Stamp(name, hashlib.sha256(b"" if stamp is None else stamp.digest).digest())

    def _recorded(self, stamp: Stamp, count: int) -> dict[int, list[int]]:
        """The results that shards have recorded under this name, by number."""
        found = [
            (number, self._in_turn(lambda shard: self.shards[shard].recorded(stamp, count), number))
            for number in range(len(self.shards))
        ]
        return {number: done for number, done in found if done is not None}

    def _in_turn(self, work: Callable[[int], ResultT], shard: int) -> ResultT:
        """The result of some work for a shard, of this number.

        Where another handle has changed the settings meanwhile, so that the shard refuses, it is done again by the
        newest manifest. Where items have moved to other shards, the shard's refusal stands.
        """
        while True:
            manifest = self.manifest
            try:
                return work(shard)
            except WriterFenced:
                self._follow()
                now = self.manifest
                if now is manifest or (now.shards, now.buckets) != (manifest.shards, manifest.buckets):
                    raise

    def _parts(self, batch: Batch, name: str) -> dict[int, list[int]]:
        """Which items of a batch go to each shard, by their places in it."""
        parts: dict[int, list[int]] = {}
        for place, key in enumerate(batch.keys):
            bucket = bucket_without_key(name, place) if key is None else bucket_of(key)
            parts.setdefault(self.manifest.buckets[bucket], []).append(place)
        return parts

    def _done(
        self,
        named: Stamp,
        stamp: Stamp | None,
        before: Mapping[int, ResultT],
        everyone: Sequence[int],
        work: Callable[[int], ResultT],
    ) -> dict[int, ResultT]:
        """The results of all these shards, old ones included; `PartlyAdded` unless all succeed or all refuse.

        Shards of this process work at the same time, since most of a write is waiting for the disk; those of other
        processes one after the other.
        """
        rest = [shard for shard in everyone if shard not in before]
        found = outcomes([functools.partial(self._in_turn, work, shard) for shard in rest], at_once=self.alone)
        failed = {shard: one for shard, one in zip(rest, found, strict=True) if isinstance(one, Exception)}
        done = {**before, **{shard: one for shard, one in zip(rest, found, strict=True) if shard not in failed}}
        refused = {shard: one for shard, one in failed.items() if _is_certain(one)}
        unknown = {shard: one for shard, one in failed.items() if shard not in refused}
        if refused and not done and not unknown:
            raise next(iter(refused.values()))
        if refused or unknown:
            why = next(iter([*refused.values(), *unknown.values()]))
            raise partly_added(named.id if stamp is not None else None, self.shards, done, refused, unknown) from why
        return done

    # Upkeep

    def put_index(self, name: str, content: Iterable[bytes | memoryview]) -> None:
        """Put the metric learned from all items into each shard, with the numbers of its own keys."""
        whole = self.newest()
        assert whole.layout is not None
        learned = Learned.decoded(memoryview(b"".join(content)), rows=whole.rows, key_width=whole.layout.key_width)
        for shard, snapshot in zip(self.shards, whole.snapshots, strict=True):
            shard.put_index(name, b"".join(learned.without_numbers().with_numbers(snapshot).encoded()))

    def drop_index(self, name: str) -> None:
        """Drop an index file in each shard."""
        for shard in self.shards:
            shard.drop_index(name)

    def check(self, *, at_least: int | None = None) -> Report:
        """Compare everything on the disk with everything else, in each shard."""
        self._require_open()
        self._follow()
        return examined(self.path, self.manifest, self.shards, at_least=at_least)

    def close(self) -> None:
        """Close all shards."""
        if not self._closed:
            self._closed = True
            with ExitStack() as closing:  # closes all of them, even if one raises, and the lock last
                if self._lock is not None:
                    closing.callback(self._lock.release)
                for shard in self.shards:
                    closing.callback(shard.close)


def _is_certain(error: Exception) -> bool:
    """Whether this error proves that the shard has not done its part."""
    return isinstance(error, SoftKVError) and not isinstance(error, CommitUncertain)


def _is_everywhere(stamp: Stamp | None) -> bool:
    """Whether shards without a part of a batch record its name too: later its filter might match items of theirs."""
    return stamp is not None and not isinstance(stamp, Unnamed) and stamp.tells is None
