"""A shard: one store, the calls that the handle on all shards makes to it, and how all are called in one round.

`Shard` is a store that this process has open; a stand-in for a store elsewhere is in far.py. A `Carrier` calls all
shards in one round.

Does not know of the other shards.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.asking.asker import ask
from softkv.asking.question import Question
from softkv.asking.rounding import moved_logits
from softkv.asking.route import MEASURED, route
from softkv.asking.sampled import Foretold, forecast
from softkv.asking.view import View
from softkv.database.handle import SoftKV
from softkv.errors import AllMasked, HandleClosed, HandleForked, OutOfReach, StoreError
from softkv.storage import Added
from softkv.storage.catalog.batches import Stamp

ROOM = 0.75  # the share of the tolerance that each shard may use
Calls = Sequence[Callable[[], Any]]


class Shard:
    """One store of several, which this process has open."""

    def __init__(self, db: SoftKV) -> None:
        self._db, self.path = db, db.path

    def view(self, *, kept: bool = False) -> View:
        """The newest commit of the shard, to read; `kept` whatever is written meanwhile, until it is closed."""
        return self._db._new_view() if kept else self._db._view()

    def recorded(self, stamp: Stamp, count: int) -> list[int] | None:
        """The recorded result of a batch, in so many numbers; `BatchMismatch` if it had other content."""
        return self._db._store._recorded(stamp, count)

    def append(self, columns: Mapping[str, Any], stamp: Stamp, on_conflict: str) -> Added:
        """Add items, wholly or not at all, and once under this name."""
        with self._db._changing:
            return self._db._append(**columns, stamp=stamp, on_conflict=on_conflict)

    def append_nothing(self, stamp: Stamp) -> Added:
        """Record the name of a batch that has no items for this shard."""
        return self._db._store.append_nothing(stamp)

    def delete(self, names: Sequence[str], stamp: Stamp) -> int:
        """Delete items, all of them or none, and once under this name."""
        with self._db._changing:
            return self._db._delete(names, stamp)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings, where these are others."""
        if self._db._store.settings != settings:
            self._db._store.configure(settings)

    def put_index(self, name: str, content: bytes) -> None:
        """Add an index file."""
        self._db._store.put_index(name, content)

    def drop_index(self, name: str) -> None:
        """Forget an index file."""
        self._db._store.drop_index(name)

    def upkeep(self, work: str, *given: Any, **options: Any) -> Any:
        """Call the method of this name of a handle on the store."""
        return getattr(self._db, work)(*given, **options)

    def close(self) -> None:
        """Close the store, without saving a temperature by rule of this shard alone, as its handle would."""
        self._db._unpin()
        self._db._store.close()


class Moved(Exception):
    """A shard was asked about its last known commit, and has a newer one."""


class LostShard:
    """Stands in for a store that cannot be opened, until it can: every call raises `OutOfReach`."""

    def __init__(self, path: str, why: Exception) -> None:
        self.path, self._why = path, why

    def __getattr__(self, name: str) -> Any:
        if name in vars(Shard):
            raise OutOfReach(f"{self.path} is out of reach: {self._why}", [self.path]) from self._why
        raise AttributeError(name)

    def close(self) -> None:
        """Nothing to close."""


def out_of_reach(path: str, lost: Sequence[str]) -> OutOfReach:
    """The error that names these shards."""
    return OutOfReach(
        f"These shards of {path} do not answer: {'; '.join(lost)}. Bring them back; only a lookup can do without them, "
        "and estimate (partial=True).",
        [one.partition(" (")[0] for one in lost],
    )


def evidence(view: View, question: Question, shards: int) -> Answers:
    """The answers of one of `shards` shards, whose exact answers state the rounding error of their log mass.

    Errors of drawn rows are independent, so each shard may have a larger one: that in the question, or the same for all
    shards. Other errors have to leave room for the change of the shares of the shards.
    """
    if view.labels is not None and question.beside is not None:  # which may not know labels that are newer
        more = ((0, 0), (0, len(view.labels) - question.beside.value.shape[1]))
        question = replace(question, beside=replace(question.beside, value=np.pad(question.beside.value, more)))
    wide = replace(question, tolerance=question.tolerance * (shards**0.5 if question.beside is None else 1.0))
    close = replace(question, tolerance=question.tolerance * (ROOM if shards > 1 else 1.0))
    found = ask(view, wide if route(view, wide).way == MEASURED else close)
    moved = moved_logits(view, found.log_mass, question)
    exact = np.broadcast_to(np.array(found.error_kind, object) == "exact", moved.shape)
    stated = 0.0 if found.log_mass_error is None else found.log_mass_error
    return replace(found, log_mass_error=np.where(exact, moved, stated))


def in_turn(calls: Calls) -> list[Any]:
    """The results of calls, made one after the other, since stores of one process share its processors."""
    return [call() for call in calls]


def at_once(calls: Calls) -> list[Any]:
    """The results of calls, each made in a thread of its own that only waits for another process."""
    with ThreadPoolExecutor(max(1, len(calls))) as threads:
        return list(threads.map(lambda call: call(), calls))


@dataclass(frozen=True, slots=True)
class Carrier:
    """How shards are called."""

    evidence: Callable[[View, Question, int], Answers] = evidence
    forecast: Callable[[View, Question], Foretold | None] = forecast
    calls: Callable[[Calls], list[Any]] = in_turn  # how those of a round are made

    def round(self, calls: Calls) -> list[Any]:
        """The result of a call to each shard, or why the shard did not answer."""
        return self.calls([partial(_tried, call) for call in calls])


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (HandleClosed, HandleForked):
        raise
    except (AllMasked, StoreError, OSError) as error:
        return error
