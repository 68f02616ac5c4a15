"""The stores of a server, by name: each with one handle, its queue of questions, its snapshots on loan and its jobs.

A store has one thread for writes and one for lookups of single queries. Other reads, long reads, and exports have
threads of their own, so that none of them keeps the others waiting.

Does not know of requests (endpoints.py).
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from softkv.asking.together import Together
from softkv.database.handle import SoftKV, StoreView
from softkv.database.opening import open as open_store
from softkv.database.summary import Info
from softkv.doors.server.jobs import Jobs
from softkv.doors.server.lane import ROOM, Lane, in_time
from softkv.doors.server.leases import Leases
from softkv.errors import Busy, InputError, StoreNotFound
from softkv.guard.guard import Guard
from softkv.storage import Backup, Report
from softkv.storage.protocol.opening import directory_of

CREWS = {"writes": 1, "reads": 2, "long": 2, "exports": 1}  # threads for each kind of work
EXPORTS = 4  # files that are written or sent at a time
HELD = 256 << 20  # bytes of the bodies of all requests that are not answered yet
MOST = 1000  # findings of a check that are shown
SUFFIX = ".softkv"


class Crew:
    """A few threads with a bounded queue."""

    def __init__(self, name: str, threads: int, room: int = ROOM) -> None:
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._room, self._waiting = room, 0

    def __len__(self) -> int:
        return self._waiting

    async def run(self, job: Callable[[], Any], seconds: float) -> Any:
        """The result of a job; it is not run if it has not begun by the deadline, or when its request is gone."""
        if self._waiting >= self._room:
            raise Busy(f"{self._waiting:,} requests wait for this store, and no more are taken. Ask again soon.", 1.0)
        kept = [job]
        begun = asyncio.wrap_future(self.executor.submit(lambda: kept.pop()()))
        self._waiting += 1
        begun.add_done_callback(partial(self._over, kept))
        return await in_time(begun, seconds)

    def _over(self, kept: list[Callable[[], Any]], begun: "asyncio.Future[Any]") -> None:
        """Count a job as done. One that was given up stays in the queue until a thread comes to it."""
        kept.clear()
        if not begun.cancelled():
            self._one_less()
            return
        with suppress(RuntimeError):  # the threads are at their end
            self.executor.submit(begun.get_loop().call_soon_threadsafe, self._one_less)

    def _one_less(self) -> None:
        self._waiting -= 1


class Served:
    """One store of a server."""

    def __init__(self, name: str, handle: SoftKV, *, read_only: bool, backups: str | None, model: str | None) -> None:
        """Serve a handle; `backups` is the folder for its backup, `model` the embedder for `reembed`."""
        self.name, self.handle, self.read_only = name, handle, read_only
        handle._findings.together = Together(1)  # the lane joins questions, and those it asks alone must stay alone
        self._backup = None if backups is None else os.path.join(backups, name)
        self.jobs = Jobs(handle, shown=self.shown, hidden=self.without_paths, backup=self._backup, model=model)
        self.crews = {work: Crew(f"{name} {work}", threads) for work, threads in CREWS.items()}
        self.exports = threading.Semaphore(EXPORTS)
        self.asking = ThreadPoolExecutor(1, thread_name_prefix=f"{name} looks up")
        self.lane, self.leases = Lane(self.asking), Leases(handle.snapshot)

    def now(self, *, partial: bool = False) -> StoreView:
        """The store as of its newest commit; shares the findings of the handle, and need not be closed."""
        view = self.handle._partial_view() if partial else self.handle._view()
        return StoreView(view, self.handle._embedding)

    @property
    def busy(self) -> bool:
        """Whether snapshots are held or jobs run, even if no request is waiting."""
        working = any(not job.over for job in self.jobs.all()) or any(map(len, self.crews.values()))
        return working or len(self.leases) > 0

    def without_paths(self, text: str) -> str:
        """A text without the directories of the store and of its backup."""
        text = text if self._backup is None else text.replace(self._backup, f"the backup of {self.name}")
        text = text.replace(self.handle.path, self.name)
        for shard in getattr(self.handle._store, "shards", ()):  # of a cluster, on whatever disk
            text = text.replace(shard.path, os.path.basename(shard.path))
        return text

    def shown(self, found: Any) -> Any:
        """A result without directories of the server, and with a limited number of findings."""
        hidden = self.without_paths
        if isinstance(found, Info):
            model = found.embedder
            found = replace(
                found,
                embedder=os.path.basename(model) if model and os.path.isabs(model) else model,
                projection=found.projection and hidden(found.projection),
                index=found.index and replace(found.index, problem=found.index.problem and hidden(found.index.problem)),
            )
        if isinstance(found, Guard):
            found = replace(found, about={name: one for name, one in found.about.items() if name != "embedder"})
        if isinstance(found, Report):
            findings, notes = ([hidden(one) for one in told[:MOST]] for told in (found.findings, found.notes))
            found = replace(found, findings=findings, notes=notes)
        return replace(found, path=self.name) if isinstance(found, (Info, Report, Backup)) else found

    def close(self) -> None:
        """Finish what runs, and close the store."""
        self.jobs.close()
        for executor in (self.asking, *(crew.executor for crew in self.crews.values())):
            executor.shutdown(cancel_futures=True)
        self.leases.close()
        self.handle.close()


class Stores:
    """The stores of a server, by name."""

    def __init__(self, served: Iterable[Served]) -> None:
        self._served = {one.name: one for one in served}
        self._held = 0

    @classmethod
    def open(
        cls,
        paths: Iterable[str | os.PathLike[str]],
        *,
        read_only: bool = False,
        backups: str | None = None,
        model: str | None = None,
        wait: float = 0.0,
    ) -> "Stores":
        """Open stores, all of them or none; each is named after its directory, without `.softkv`."""
        with ExitStack() as opened:
            found: list[Served] = []
            for path in paths:
                name = named(path)
                if any(one.name == name for one in found):
                    raise InputError(f"two stores would be called {name!r}. Serve one of them from another directory.")
                handle = opened.enter_context(open_store(directory_of(path), "r" if read_only else "w", wait=wait))
                found.append(Served(name, handle, read_only=read_only, backups=backups, model=model))
            opened.pop_all()
        return cls(found)

    def __getitem__(self, name: str) -> Served:
        if name not in self._served:
            raise StoreNotFound(f"this server has no store {name!r:.80}. GET /v1/stores names those that it has.")
        return self._served[name]

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def hold(self, size: int) -> None:
        """Count so many bytes of a body as held, or release them if negative; Busy if there are too many."""
        if size > 0 and self._held + size > HELD:
            raise Busy(f"{HELD >> 20} MiB of requests wait, and no more are taken. Ask again soon, or for less.", 1.0)
        self._held += size

    def close(self) -> None:
        """Finish what runs, and close all stores, also when one fails to."""
        with ExitStack() as closing:
            for one in self:
                closing.callback(one.close)


def named(path: str | os.PathLike[str]) -> str:
    """The name by which a server calls a store in this directory."""
    name = os.path.basename(os.path.abspath(os.fsdecode(path))).removesuffix(SUFFIX)
    if not name or not name.isprintable():
        raise InputError(f"a store in {os.fsdecode(path)!r} has no name that a URL can hold. Rename its directory.")
    return name
