"""A shard in another process: a stand-in for `Shard` that asks it by messages.

A message is sent again until it is answered or its deadline has passed. That is safe for reads, and for writes since a
shard carries out a named batch only once. After the deadline a read raises `OutOfReach`, and a write `CommitUncertain`.

Does not know how messages are sent (actors.py) or carried out (hosting.py).
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NoReturn, Protocol, cast

from softkv.answer import Answers, Described, Kept
from softkv.asking.learned import Learned
from softkv.asking.question import Question
from softkv.asking.sampled import Foretold
from softkv.asking.view import View
from softkv.doors.cluster.hosting import OF_SNAPSHOTS, READING, WRITING, Header, Message, Terms
from softkv.doors.cluster.manifest import Manifest
from softkv.doors.cluster.shard import Calls, Carrier, Moved, Shard, at_once
from softkv.doors.cluster.store import ShardedStore
from softkv.errors import CommitUncertain, HandleClosed, OutOfReach, StoreReplaced
from softkv.storage.catalog.batches import Stamp

PAUSE = 0.05  # seconds between two tries
LONG = 24 * 3600.0  # seconds that an index, or a comparison of everything, may take


class Unanswered(Exception):
    """A message got no answer, and may have been carried out or not."""


class Sender(Protocol):
    """Sends messages to a shard and returns its answers."""

    def send(self, message: Message, seconds: float, *, writes: bool, revive: bool) -> tuple[bool, Any]:
        """Whether it was done, and the result; `Unanswered` if that is not known after so many seconds.

        With `revive`, a process of the shard that has ended is started again.
        """

    def close(self) -> None:
        """Send nothing any more."""


class FarShard:
    """A store that another process has open."""

    def __init__(self, path: str, sender: Sender, terms: Callable[[], Terms], deadline: float) -> None:
        """Send messages with these terms; each has to be answered within so many seconds."""
        self.path, self._sender, self._terms, self._deadline = path, sender, terms, deadline
        self._patient, self._closed = True, False
        self._last: FarView | None = None
        self._told: list[Header] = []  # the last one

    @cached_property
    def impatient(self) -> "FarShard":
        """The shard as asked with `partial=True`: only once, and without starting its process again."""
        found = copy.copy(self)
        found._patient, found._last = False, None
        return found

    @property
    def last_seen(self) -> Header | None:
        """The header in its last answer."""
        return self._told[-1] if self._told else None

    def view(self, *, kept: bool = False) -> View:
        """The newest commit of the shard, to read; `kept` whatever is written meanwhile, until it is closed."""
        last = self._last
        header = self.read("view", (None if last is None or kept else last.header.name,), {"kept": kept})
        if header is None:
            assert last is not None
            return cast(View, last)
        self._told[:] = [header]
        found = FarView(self, header, kept=kept)
        if not kept:
            self._last = found
        return cast(View, found)

    def __getattr__(self, name: str) -> Any:
        """The method of `Shard` of this name, which writes."""
        if name not in WRITING:
            raise AttributeError(name)
        return partial(self._write, name)

    def upkeep(self, work: str, *given: Any, **options: Any) -> Any:
        """Call the method of this name of a handle on the store."""
        return self._asked(Message(self._terms(), "upkeep", (work, *given), options), LONG, writes=work not in READING)

    def close(self) -> None:
        """Send nothing any more; the store stays open where it is."""
        self._closed = True
        self._sender.close()

    def read(
        self, work: str, given: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None, view: str | None = None
    ) -> Any:
        """The result of some work that changes nothing."""
        return self._asked(Message(self._terms(), work, given, options, view), self._deadline, writes=False)

    def _write(self, work: str, *given: Any) -> Any:
        # The caller's subclasses of Stamp are unknown in the other process.
        plain = tuple(Stamp(one.id, one.digest) if isinstance(one, Stamp) else one for one in given)
        return self._asked(Message(self._terms(), work, plain), self._deadline, writes=True)

    def _asked(self, message: Message, seconds: float, *, writes: bool) -> Any:
        if self._closed:
            raise HandleClosed(f"{self.path} was closed; open the cluster again")
        until = time.monotonic() + seconds
        while True:
            if seconds > self._deadline:  # do not wait so long for a shard that is gone
                self.read("process")
            try:
                done, found = self._sender.send(message, until - time.monotonic(), writes=writes, revive=self._patient)
            except Unanswered as error:
                if self._patient and until - time.monotonic() > PAUSE:
                    time.sleep(PAUSE)
                    continue
                if writes:
                    raise CommitUncertain(
                        f"{self.path} did not say whether it has done its part ({error}). Make the change again."
                    ) from error
                raise OutOfReach(f"{self.path} does not answer: {error}", [self.path]) from error
            if done:
                return found
            raise found


class FarSnapshot:
    """A stand-in for the `Snapshot` of a shard in another process, with what a handle on all shards needs of it."""

    def __init__(self, shard: FarShard, header: Header, *, kept: bool) -> None:
        self._shard, self._header, self._kept = shard, header, kept
        self._found: dict[str, Any] = {}  # results that never change, kept since they are used repeatedly
        self.path = shard.path

    def __getattr__(self, name: str) -> Any:
        if name in Header.__slots__:
            return getattr(self._header, name)
        if name not in OF_SNAPSHOTS:
            raise AttributeError(name)
        if name in ("live", "settings"):
            return self._once(name)
        return partial(self._once, name) if name in ("labels", "in_order") else partial(self.ask, name)

    def __len__(self) -> int:
        return self._header.count

    def __contains__(self, key: object) -> bool:
        return bool(self.ask("__contains__", key))

    def ask(self, work: str, *given: Any, **options: Any) -> Any:
        """Ask the snapshot in the other process."""
        return self._shard.read(work, given, options, self._header.name)

    def _once(self, work: str) -> Any:
        if work not in self._found:
            self._found[work] = self.ask(work)
        return self._found[work]

    def close(self) -> None:
        """Release the snapshot in the other process, if it is held there."""
        if self._kept:
            self._kept = False
            with suppress(OutOfReach, HandleClosed):  # then it is released when its time is over
                self._shard.read("forget", view=self._header.name)


class FarView:
    """A stand-in for the `View` of a shard in another process, with what a handle on all shards needs of it."""

    def __init__(self, shard: FarShard, header: Header, *, kept: bool) -> None:
        self.header, self._shard, self.profile = header, shard, header.profile
        self.snapshot = FarSnapshot(shard, header, kept=kept)
        self.longest_key, self.reach = header.longest_key, header.reach
        self._described: dict[int, Described] = {}

    @cached_property
    def learned(self) -> Learned | None:
        """What the shard has learned, without the numbers of its keys, which are asked for by nobody here."""
        name = self.profile.projection
        return None if name is None else cast(Learned, self._shard.read("learned", (name,), view=self.header.name))

    @property
    def farthest_key(self) -> float:
        """How far keys are from the centre of what was learned."""
        return float(self.snapshot.ask("farthest_key"))

    def index_info(self) -> Any:
        """The index of the shard in a few figures."""
        return self.snapshot.ask("index_info")

    def evidence(self, question: Question, shards: int, *, newest: bool = False) -> Answers:
        """The answers of the shard about its own items; `Moved` if this has to be the `newest` commit and is not."""
        asked = self.profile.projection, question, shards
        found = self._shard.read("evidence", asked, {"newest": newest}, view=self.header.name)
        if found is None:
            raise Moved
        if isinstance(found.source, Kept):
            self._described = found.source.found
        return cast(Answers, found)

    def forecast(self, question: Question) -> Foretold | None:
        """Estimates by its lists before any row is read; None, without a message, if it has no lists."""
        if not self.header.indexed:
            return None
        return cast(
            Foretold | None, self._shard.read("forecast", (self.profile.projection, question), view=self.header.name)
        )

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The labels in the order of their codes, or None when values are not labels."""
        return tuple(self.snapshot.labels()) if self.header.layout and self.header.layout.kind.coded else None

    def describe(self, rows: Sequence[int]) -> list[Described]:
        """The items in these rows; those of the last single query came with its answer."""
        known = self._described
        return (
            [known[row] for row in rows] if all(row in known for row in rows) else self.snapshot.ask("describe", rows)
        )


def _others(manifest: Manifest, number: int) -> NoReturn:
    raise StoreReplaced(f"{manifest.shards[number].path} is a new shard: the cluster was given others; open it again")


class FarStore(ShardedStore):
    """The shards of a cluster, each in another process, which other handles may use as well."""

    alone = False

    def __init__(
        self,
        path: str,
        manifest: Manifest,
        senders: Sequence[Sender],
        *,
        writes: bool,
        deadline: float,
        calls: Callable[[Calls], list[Any]] = at_once,
    ) -> None:
        """Ask shards through these senders; `calls` makes the calls of a round."""

        def terms() -> Terms:
            return Terms(self.manifest.id, self.manifest.epoch)

        made = (FarShard(manifest.path_of(path, number), one, terms, deadline) for number, one in enumerate(senders))
        shards = cast(Sequence[Shard], list(made))
        # What is called with a view of a shard: a FarView, whatever the types say.
        carrier = Carrier(cast(Any, FarView.evidence), cast(Any, FarView.forecast), calls)
        self.believing: Carrier = replace(carrier, evidence=partial(FarView.evidence, newest=True))
        super().__init__(path, manifest, shards, None, opened=_others, writes=writes, carrier=carrier)
