"""A shard in a process of its own: carries out the messages it gets.

The store is opened when it is first used, for reading by one handle and for writing by another, so that readers do not
wait for writes. Each is opened again after a failure, except a writer that another has overtaken. What is read has a
name: views of a commit, of which the newest few are held, and snapshots, which are held until they are released or not
used for a while.

Does not know how messages arrive (actors.py), or where other shards are.
"""

import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from softkv.asking.profile import Profile
from softkv.asking.sampled import forecast
from softkv.asking.view import Reach, View, comparing_by
from softkv.database.handle import open_here
from softkv.database.summary import index_of
from softkv.doors.cluster.manifest import FORMAT, Manifest
from softkv.doors.cluster.shard import Shard, evidence
from softkv.errors import (
    FormatTooNew,
    HandleUnusable,
    SnapshotExpired,
    SoftKVError,
    StoreDamaged,
    StoreError,
    StoreReplaced,
    WriterFenced,
)
from softkv.storage import Layout
from softkv.storage.catalog.tally import Tally

PROTOCOL = 1  # of messages
KEPT = 600.0  # seconds for which an unused snapshot is held
RECENT = 16  # views of commits that are held
_OF_SNAPSHOTS = """__contains__ find find_many get items names read value found_values in_order live labels
    require_sound_order matching vectors values norms settings"""
OF_SNAPSHOTS = frozenset(_OF_SNAPSHOTS.split())
OF_VIEWS = frozenset({"describe", "farthest_key"})
READING = frozenset({"backup", "check", "forecast_index", "info"})
UPKEEP = READING | {"build_index", "drop_index", "compact"}
WRITING = frozenset({"recorded", "append", "append_nothing", "delete", "configure", "put_index", "drop_index"})


@dataclass(frozen=True, slots=True)
class Terms:
    """What a message says of its sender: the cluster as it knows it, and which protocol it speaks."""

    cluster: str
    epoch: int  # of the manifest
    protocol: int = PROTOCOL
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a shard: some work, for a view by its name or for the store."""

    terms: Terms
    work: str
    given: tuple[Any, ...] = ()
    options: Mapping[str, Any] | None = None
    view: str | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """Facts about one commit of a shard that are sent at once; `reach` and `longest_key` only if it has items."""

    name: str
    store: str
    commit: int
    generation: int
    secret: bytes
    layout: Layout | None
    profile: Profile
    rows: int
    count: int
    value_scale: float
    tally: Tally
    longest_key: float = 0.0
    reach: Reach | None = None
    indexed: bool = False

    @classmethod
    def of(cls, name: str, view: View) -> "Header":
        """The header of a view."""
        one = view.snapshot
        told = (one.store, one.commit, one.generation, one.secret, one.layout, view.profile, one.rows, len(one))
        found = cls(name, *told, one.value_scale, one.tally)
        if not len(one):
            return found
        return replace(found, longest_key=view.longest_key, reach=view.reach, indexed=view.index is not None)


def _mode_of(message: Message) -> str:
    """The mode of the handle that does what a message asks for."""
    writes = message.work in WRITING or (message.work == "upkeep" and message.given[0] not in READING)
    return "w" if writes else "r"


class HostedShard:
    """A store that is one shard of a cluster."""

    def __init__(self, path: str, store: str, cluster: str, directory: str) -> None:
        self._path, self._store, self._cluster, self._epoch = path, store, cluster, 0
        self._views: dict[str, tuple[View, float | None]] = {}  # and until when it is held; None for those of commits
        self._open: dict[str, Shard] = {}  # by mode
        self._lock = threading.RLock()
        self._fenced: WriterFenced | None = None
        with suppress(StoreError, OSError):  # not every machine has the directory of the cluster
            self._epoch = Manifest.read(directory).epoch

    def answer(self, message: Message) -> tuple[bool, Any]:
        """Whether it was done, and the result, or the error."""
        try:
            self._require_understood(message)
            return True, self._done(message)
        except HandleUnusable as error:
            self._forget(_mode_of(message))
            return False, error
        except SoftKVError as error:
            return False, error

    def close(self) -> None:
        """Close the store."""
        for mode in list(self._open):
            self._forget(mode)

    def _require_understood(self, message: Message) -> None:
        terms = message.terms
        if (terms.protocol, terms.format) != (PROTOCOL, FORMAT):
            raise FormatTooNew(
                f"{self._path} is held by a softkv of protocol {PROTOCOL} and format {FORMAT}, and asked by one of "
                f"{terms.protocol} and {terms.format}. Stop the cluster, and start it with one version everywhere."
            )
        if terms.cluster != self._cluster:
            raise StoreReplaced(f"{self._path} is a shard of cluster {self._cluster}, not of {terms.cluster}.")
        with self._lock:
            if terms.epoch < self._epoch and message.work in WRITING:
                raise WriterFenced(
                    f"the cluster of {self._path} is at manifest {self._epoch} by now, not {terms.epoch}. Ask again."
                )
            self._epoch = max(self._epoch, terms.epoch)

    def _done(self, message: Message) -> Any:
        work, given, options = message.work, message.given, dict(message.options or {})
        if work == "process":
            return os.getpid()
        if work == "view":
            return self._told(*given, **options)
        if work == "forget":
            with self._lock:
                view, _ = self._views.pop(message.view or "", (None, None))
            return None if view is None else view.snapshot.close()
        if work in WRITING or (work == "upkeep" and given[0] in UPKEEP):
            return self._write(_mode_of(message), work, given, options)
        if options.pop("newest", False) and self._told(message.view, kept=False) is not None:
            return None
        view = self._view_of(message.view or "", work)
        if work in ("evidence", "forecast", "learned"):
            projection, *asked = given
            view = comparing_by(view, projection)
            if work == "learned":
                return None if view.learned is None else view.learned.without_numbers()
            return forecast(view, *asked) if work == "forecast" else self._evidence(view, *asked)
        if work == "index_info":
            return index_of(view)
        if work not in OF_SNAPSHOTS | OF_VIEWS:
            raise FormatTooNew(f"{self._path} does not know what {work!r} is. Update softkv where it is.")
        found = getattr(view if work in OF_VIEWS else view.snapshot, work)
        return found(*given, **options) if callable(found) else found

    def _write(self, mode: str, work: str, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
        if self._fenced is not None and mode == "w":
            raise WriterFenced(str(self._fenced))
        try:
            return getattr(self._opened(mode), work)(*given, **options)
        except WriterFenced as error:
            # Never opened again by this process: two processes that do so would fence each other without end.
            self._fenced = error.with_traceback(None)
            self._forget("w")
            raise

    def _evidence(self, view: View, question: Any, shards: int) -> Any:
        """The answers of this shard; for a single query with its contributors, which saves another round."""
        found = evidence(view, question, shards)
        return replace(found, guard=None, source=found.source if len(found) == 1 else None)

    def _told(self, known: str | None, *, kept: bool) -> Header | None:
        """The header of the newest commit; None if the sender knows that commit."""
        view = self._opened("r").view(kept=kept)
        one = view.snapshot
        name = secrets.token_hex(8) if kept else f"{one.store} {one.generation} {one.commit}"
        with self._lock:
            now = time.monotonic()
            over = [other for other, (_, end) in self._views.items() if end is not None and end < now]
            plain = [other for other, (_, end) in self._views.items() if end is None and other != name]
            for other in [*over, *plain[: max(0, len(plain) + 1 - RECENT)]]:
                del self._views[other]
            view, _ = self._views.setdefault(name, (view, now + KEPT if kept else None))
        return None if name == known else Header.of(name, view)

    def _view_of(self, name: str, work: str) -> View:
        """The view of this name; if it is gone, as after a restart, the newest commit if that is the same."""
        with self._lock:
            view, until = self._views.get(name, (None, None))
            if view is not None:
                self._views[name] = view, None if until is None else time.monotonic() + KEPT
                return view
        newest = self._opened("r").view()
        one = newest.snapshot
        store, generation, commit = name.split(" ") if name.count(" ") == 2 else ("", "", "-1")
        there = (store, generation) == (one.store, str(one.generation))
        if there and (int(commit) == one.commit or work in ("items", "describe")):  # rows of a generation never change
            return newest
        raise SnapshotExpired(f"{self._path} holds the view {name!r} no more. Ask again, or take a new snapshot.")

    def _opened(self, mode: str) -> Shard:
        """The store, if it is the right one; never made here, since a missing store was not empty."""
        with self._lock:
            if mode not in self._open:
                db = open_here(self._path, mode)
                found = db._view().snapshot.store
                if found != self._store:
                    db.close()
                    raise StoreDamaged(
                        f"{self._path} is store {found}, but the shard is {self._store}. Bring that back."
                    )
                self._open[mode] = Shard(db)
            return self._open[mode]

    def _forget(self, mode: str) -> None:
        with self._lock:
            shard = self._open.pop(mode, None)
            if mode == "r":
                self._views.clear()
        if shard is not None:
            with suppress(StoreError, OSError):
                shard.close()
