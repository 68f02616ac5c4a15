"""What is done to a store while its calls are recorded, by turns, so that the log says what was acknowledged when.

A session follows from a few words and numbers, so that the process that is recorded and the one that judges what is
left draw the same. Its first step makes the store, or recovers one; its last closes it.
"""

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import pytest

import softkv
from softkv.asking.indexed import CHECKED, NAME
from softkv.storage import Store
from softkv.storage.catalog import connection
from softkv.storage.protocol import generation
from tests.crash.calls import Call
from tests.crash.canonical import note_all
from tests.crash.children import Say
from tests.crash.planted import BUGS
from tests.crash.recorder import mark, recording
from tests.crash.workload import Expectation, Operation, perform, rebuild
from tests.scales import scaled
from tests.stores import as_format
from tests.tiny import shrink

STORE, BACKUP = "s.softkv", "backup"  # what the store and its backup are called, in the folder that is watched

COURSES = {  # what happens between the making and the closing
    "single adds": ["add"] * 8,
    "batches": ["batch", "batch", "ignore", "batch", "configure"],
    "replacing": ["batch", "replace", "add", "replace", "replace"],
    "deleting": ["batch", "delete", "delete", "add", "delete", "purge"],
    "compacting": ["batch", "delete", "compact", "add", "order", "delete", "compact"],
    "index files": ["batch", "index", "add", "index", "order", "drop", "order"],
    "derived parts": ["batch", "derive", "add", "derive", "merge", "delete", "derive", "compact", "derive", "order"],
    "parts of an index": ["batch", "index", "derive", "add", "derive", "index", "derive", "merge", "drop", "derive"],
    "closing": ["reopen", "add", "reopen", "delete", "batch", "reopen"],
    "rebuilding": ["batch", "rebuild", "add", "leave", "rebuild"],
    "a rebuild abandoned": ["batch", "leave", "abandon", "delete", "leave", "add"],
    "migrating": ["batch", "migrate", "add", "order", "migrate", "delete", "migrate"],
    "backups": ["batch", "derive", "backup", "add", "merge", "delete", "backup", "order", "backup", "leave", "backup"],
    "making anew": ["anew", "batch", "anew", "add"],
    "lists": ["profile", "many", "lists", "add", "delete", "lists", "hnsw"],
    "notes": ["profile", "many", "lists", "many", "note", "delete", "note", "add", "note"],
    "a mixture": [""] * 12,
}
RECOVERY = ["add", "compact"]
_PROFILE = {"compatibility": "dot", "temperature": {"value": 50.0, "origin": "given", "items": 0}}


@dataclass(frozen=True)
class Session:
    """The life of one writer. One that is resumed begins with what is left of another that had come this far."""

    name: str
    kind: str
    seed: int
    tiny: bool = False  # whether windows and bitmaps hold only a few rows
    bug: str = ""  # that is planted, if any
    resumed: int = -1

    def __str__(self) -> str:
        recovery = f", its recovery after step {self.resumed}" if self.resumed >= 0 else ""
        return f"{self.name} ({self.kind}, seed {self.seed}{', tiny' if self.tiny else ''}{recovery})"

    @cached_property
    def steps(self) -> list[tuple[Operation, Expectation]]:
        """What is done, and what the store must hold then."""
        random, state, course = Random(f"{self.seed} {self.resumed}"), Expectation(self.kind), COURSES[self.name]
        if self.resumed >= 0:
            state, course = dataclasses.replace(self, resumed=-1).steps[self.resumed][1], RECOVERY
        steps = [(Operation("open"), state)]
        for what in course:
            operation = _drawn(state, what, random)
            state = state.after(operation)
            steps.append((operation, state))
        return [*steps, (Operation("close"), state)]

    @property
    def given(self) -> dict[str, Any]:
        """As it travels to the child."""
        return dataclasses.asdict(self)

    def prepare(self) -> None:
        """Plant the bug, and let edges be near: of windows, bitmaps and SQLite's log. For a process of its own."""
        BUGS[self.bug]()
        if self.tiny:
            shrink(pytest.MonkeyPatch(), window=1024, block=64)
            connection._WRITER["wal_autocheckpoint"] = 30  # pages; else it is moved into the catalog at the end only
        if self.name == "notes":
            note_all(pytest.MonkeyPatch())
        if self.name == "migrating":  # what was written in an old format has old windows
            scaled(pytest.MonkeyPatch(), granules=generation.WINDOW)


@dataclass
class Promise:
    """What a log says, so far, that was acknowledged."""

    session: Session
    done: int = 0  # steps
    begun: bool = False  # whether one more has begun

    def hear(self, call: Call) -> None:
        """Take note of a mark."""
        if call.name == "mark":
            self.begun = call.target.startswith("begin")
            self.done += not self.begun

    @property
    def doubtful(self) -> Operation | None:
        """The operation that had begun and was not acknowledged."""
        return self.session.steps[self.done][0] if self.begun else None

    @property
    def possible(self) -> dict[int, Expectation]:
        """What the store may hold, by the step after which it does."""
        steps = self.session.steps
        numbers = [
            number for number in (self.done - 1, self.done) if number >= 0 and (number < self.done or self.begun)
        ]
        if self.session.resumed >= 0:
            numbers = numbers or [0]  # it was there before the first call
        return {number: steps[number][1] for number in numbers}

    @property
    def backups(self) -> list[Expectation]:
        """What the backup may hold: the store as it was when one was acknowledged last, or begun; none before that."""
        taken = [number for number, (one, _) in enumerate(self.session.steps) if one.what == "backup"]
        finished = [number for number in taken if number < self.done][-1:]
        begun = [self.done] if self.begun and self.done in taken else []
        return [self.session.steps[number][1] for number in finished + begun]

    @property
    def may_have_no_backup(self) -> bool:
        """Whether none was acknowledged."""
        return not any(one.what == "backup" for one, _ in self.session.steps[: self.done])

    @property
    def may_be_absent(self) -> bool:
        """Whether there may be no store, neither the old one nor a new one."""
        making = self.doubtful is not None and self.doubtful.what == "anew"
        return making or (not self.done and self.session.resumed < 0)


def live(say: Say, path: str, given: dict[str, Any], plan: dict[str, Any]) -> None:
    """Do it, recorded, in a child of its own."""
    session, store = Session(**given), None
    session.prepare()
    with recording(plan):
        for number, (operation, _) in enumerate(session.steps):
            mark(f"begin {number}")
            if store is None:
                store = Store.open(path, "w" if session.resumed >= 0 else "c")
            else:
                store = act(store, operation, session.kind)
            mark(f"done {number}")
    say("well")


def act(store: Store, operation: Operation, kind: str) -> Store:
    """Do one step; returns the handle to go on with."""
    if operation.what == "close":
        store.close()
    elif operation.what == "leave":
        rebuild(store, batches=1)
    elif operation.what == "backup":
        store.backup(os.path.join(os.path.dirname(store.path), BACKUP))
    elif operation.what == "abandon":
        store.abandon()
    elif operation.what == "migrate":
        store.close()
        as_format(Path(store.path), 2)
        return Store.open(store.path, "w")
    elif operation.what == "note":
        store.close()
        with softkv.open(store.path, "w") as db:
            db._settle()
            assert db._view().snapshot.derived_numbers(NAME)
            assert db._view().snapshot.derived_numbers(CHECKED)
        return Store.open(store.path, "w")
    elif operation.what in ("lists", "hnsw"):
        store.close()
        with softkv.open(store.path, "w") as db:
            db.build_index(operation.what)
        return Store.open(store.path, "w")
    else:
        return perform(store, operation, kind)
    return store


def _drawn(state: Expectation, what: str, random: Random) -> Operation:
    if what == "profile":
        return Operation("configure", settings=_PROFILE)
    return state.drawn(what, random) if what else state.draw(random)
