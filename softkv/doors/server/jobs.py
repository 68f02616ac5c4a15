"""Long work on a store as jobs: start, watch and cancel them; results are kept for a while.

Jobs that write run one after another, and so do those that only read; lookups and adds go on meanwhile, except while
rows are copied. A job is cancelled when it next reports progress, so the store is then as after an error in the work.

Does not know of requests (app.py). Takes no paths or names of models from clients: both are options of the server.
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from softkv.database import SoftKV
from softkv.doors import hints
from softkv.doors.server.problems import document_of
from softkv.doors.wire import packed
from softkv.errors import BatchMismatch, Busy, InputError, KeyMissing, StoreError
from softkv.logs import keeping_hints, log_of
from softkv.progress import Stages

LOG = log_of(__name__)
UNFINISHED, FINISHED = 8, 64  # the most jobs of a store: waiting or running, and over but still known
HEARTBEAT = 15.0  # seconds without news after which watchers get a sign of life
PACE = 0.1  # the least seconds between two pieces of news


class JobCancelled(Exception):
    """Raised within the work of a job that is cancelled."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job: what it does, whether it writes to the store, and whether it can be cancelled while it runs."""

    run: "Callable[[Jobs, Stages, Mapping[str, Any]], Any]"
    writes: bool = True
    cancels: bool = True


class Job:
    """One piece of work: waiting, running, done, failed or cancelled."""

    def __init__(
        self, called: str, name: str, digest: bytes, run: Callable[[Stages], Any], hidden: Callable[[str], str] = str
    ) -> None:
        """A job that will `run`; `hidden` takes from the words of its errors what clients must not see."""
        self.id, self.name, self.digest = called, name, digest  # of the name and the options
        self.state, self.result, self.hints = "waiting", None, list[list[str]]()
        self.problem: dict[str, Any] | None = None
        self._run: Callable[[Stages], Any] | None = run  # and what it was given, until it is over
        self._hidden = hidden
        self._progress: tuple[str, int, int] | None = None
        self._cancelled = False
        self._changing = threading.Lock()
        self._watchers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state not in ("waiting", "running")

    def told(self) -> dict[str, Any]:
        """How far it is, without its result."""
        stage, done, whole = self._progress or (None, 0, 0)
        progress = None if stage is None else {"stage": stage, "done": done, "all": whole}
        return {"job": self.id, "work": self.name, "state": self.state, "progress": progress}

    def go(self) -> None:
        """Do the work, in the calling thread."""
        run = self._run
        if run is None or not self._turn("waiting", "running"):
            return
        try:
            with keeping_hints() as found:
                self.result, state = run(self._tell), "done"
            self.hints = hints.told(found, self._hidden)
        except JobCancelled:
            state = "cancelled"
        except Exception as error:
            self.problem, state = document_of(error, self._hidden), "failed"
            LOG.warning("job %s (%s) came to a %s", self.id, self.name, type(error).__name__)
        LOG.info("job %s (%s) is %s", self.id, self.name, state)
        self._run = None
        self._turn("running", state)

    def cancel(self) -> None:
        """Cancel it, at once or when it next reports progress; an error if it cannot be cancelled, or is over."""
        if self._turn("waiting", "cancelled"):
            self._run = None
            return
        if self.over:
            raise StoreError(f"job {self.id} is {self.state} already, so there is nothing to cancel.")
        if not WORKS[self.name].cancels:
            raise StoreError(f"{self.name} cannot be cancelled once it runs. Wait until it is done.")
        self._cancelled = True

    def _tell(self, stage: str, done: int, whole: int) -> None:
        """Note how far the work is; raises JobCancelled if it was cancelled."""
        if self._cancelled:
            raise JobCancelled
        self._progress = stage, int(done), int(whole)
        self._wake()

    def _turn(self, former: str, state: str) -> bool:
        """Change from one state to another, if it is in the former."""
        with self._changing:
            if self.state != former:
                return False
            self.state = state
        self._wake()
        return True

    def _wake(self) -> None:
        for loop, news in tuple(self._watchers):
            if not news.is_set():
                with suppress(RuntimeError):  # the event loop of this watcher has ended
                    loop.call_soon_threadsafe(news.set)

    async def watched(self) -> AsyncIterator[bool]:
        """True whenever there is news, False where there is none for a while; ends after the last news."""
        watcher = asyncio.get_running_loop(), asyncio.Event()
        self._watchers.add(watcher)
        try:
            over = False
            while not over:
                watcher[1].clear()
                over = self.over  # read before the news is sent, so that the last news says that it is over
                yield True
                while not over and not await _comes(watcher[1]):
                    yield False
                await asyncio.sleep(0 if over else PACE)
        finally:
            self._watchers.discard(watcher)


async def _comes(news: asyncio.Event) -> bool:
    """Whether there is news before the next heartbeat."""
    try:
        return await asyncio.wait_for(news.wait(), HEARTBEAT)
    except asyncio.TimeoutError:  # another class than TimeoutError until Python 3.11
        return False


class Jobs:
    """The jobs of one store; `backup` is the directory of its backup, `model` the embedder for `reembed`."""

    def __init__(
        self,
        db: SoftKV,
        *,
        shown: Callable[[Any], Any],
        hidden: Callable[[str], str],
        backup: str | None,
        model: str | None,
    ) -> None:
        """Run jobs on a store; results are passed through `shown`, and words of errors through `hidden`."""
        self.db, self._shown, self._hidden, self.backup, self.model = db, shown, hidden, backup, model
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._lanes = {writes: ThreadPoolExecutor(1, "softkv-job") for writes in (True, False)}

    def start(self, name: str, options: Mapping[str, Any], called: str | None = None) -> Job:
        """Start a job, or queue it; one that is known under this id is not started again."""
        if name == "backup" and self.backup is None:
            raise InputError("this server has no folder for backups. Start it with `softkv serve --backups DIR`.")
        if name == "reembed" and self.model is None:
            raise InputError("this server has no model to embed with anew. Start it with `softkv serve --model NAME`.")
        work, digest = WORKS[name], sha256(packed([name, options])).digest()
        called = called or secrets.token_hex(8)
        job = Job(called, name, digest, lambda told: self._shown(work.run(self, told, options)), self._hidden)
        with self._lock:
            known = self._jobs.get(called)
            if known is not None and known.digest != digest:
                raise BatchMismatch(f"job {called} was started with other work or options. Give each an id of its own.")
            if known is not None:
                return known
            if sum(not one.over for one in self._jobs.values()) >= UNFINISHED:
                raise Busy(f"{UNFINISHED} jobs of this store are not done yet. Wait for one, or cancel one.", after=5.0)
            over = [one.id for one in self._jobs.values() if one.over]
            for forgotten in over[: max(0, len(over) - FINISHED + 1)]:
                del self._jobs[forgotten]
            self._jobs[job.id] = job
            self._lanes[work.writes].submit(job.go)
        return job

    def __getitem__(self, name: str) -> Job:
        """A job by its id."""
        with self._lock:
            if name not in self._jobs:
                raise KeyMissing(f"there is no job {name!r:.60}: it never was, or is forgotten by now")
            return self._jobs[name]

    def all(self) -> list[Job]:
        """The jobs that are known, the oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def close(self) -> None:
        """Cancel what can be, and wait for the rest."""
        for job in self.all():
            with suppress(StoreError):
                job.cancel()
        for lane in self._lanes.values():
            lane.shutdown()


WORKS: Mapping[str, JobKind] = {
    "build_index": JobKind(lambda jobs, told, options: jobs.db.build_index(**options, progress=told)),
    "tune": JobKind(lambda jobs, told, options: jobs.db.tune(**options, progress=told)),
    "fit": JobKind(lambda jobs, told, options: jobs.db.fit(**options, progress=told)),
    "guard": JobKind(lambda jobs, told, options: jobs.db.guard(**options, progress=told)),
    "compact": JobKind(lambda jobs, _, __: jobs.db.compact(), cancels=False),
    "reembed": JobKind(lambda jobs, told, _: jobs.db.reembed(jobs.model, progress=partial(told, "embedding"))),
    "check": JobKind(lambda jobs, _, options: jobs.db.check(**options), writes=False, cancels=False),
    "backup": JobKind(
        lambda jobs, told, _: jobs.db.backup(jobs.backup or "", progress=partial(told, "copying")), writes=False
    ),
}
