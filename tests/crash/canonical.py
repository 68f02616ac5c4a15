"""Fifteen workloads, one call each, small enough to end them at every single call of the operating system.

Each starts from a store that was prepared for it, and the parent knows what the store must hold before and after. The
functions whose first argument is `say` run in recorded children; see recorder.py.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import rechecking
from softkv.storage import Added, Store, backup, check, restore
from softkv.storage.catalog.batches import Stamp
from softkv.storage.protocol import generation
from tests.crash.children import Say
from tests.crash.recorder import BEFORE, Plan, mark, recording
from tests.crash.rows import Proof, append
from tests.crash.workload import Expectation, Operation, differences, perform
from tests.databases import count_as_large
from tests.scales import scaled
from tests.stores import as_format, names_by_row
from tests.test_settling_courses import problem
from tests.tiny import shrink

NAMES = (
    "add", "batch", "retry", "replace", "delete", "compact", "build index", "open", "migrate", "close", "backup",
    "restore", "derive", "merge", "note",
)  # fmt: skip
WORKLOADS = [pytest.param(name, marks=[pytest.mark.ci] * (name == "build index")) for name in NAMES]  # it is long
COPYING = ("backup", "restore")
CHANGING = (
    "add",
    "batch",
    "retry",
    "replace",
    "delete",
    "derive",
    "merge",
    "note",
)  # the others leave items and parts there
SEVERAL = ("build index",)  # commits, between which an old generation is removed


@dataclass(frozen=True)
class Canon:
    """One workload on a store of one kind, whose windows may be small enough for every edge to be near."""

    name: str
    kind: str
    tiny: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}{', small windows' if self.tiny else ''})"

    @property
    def given(self) -> list[Any]:
        """As it travels to a child."""
        return [self.name, self.kind, self.tiny]

    @property
    def before(self) -> Expectation:
        """What the store that was prepared holds."""
        expected = Expectation(self.kind)
        for operation in (*_PREPARATION, *_DERIVATION):
            expected = expected.after(operation)
        if self.name in ("open", "close"):
            expected = expected.after(_LAST_ADD)
        if self.name in ("build index", "note"):
            warm = {"value": 0.1, "origin": "given", "items": 21}
            expected.settings = {"value": self.kind, "compatibility": "cosine", "temperature": warm}
            expected.doubted = True  # one of its commits is that of another generation
        if self.name == "note":
            expected = expected.after(_LAST_ADD)
            expected.parts = []  # they went with the generation in which no index was
        if self.name == "migrate":
            expected = expected.after(Operation("migrate"))
        return expected

    @property
    def operation(self) -> Operation:
        """What it does to the items."""
        before = self.before
        if self.name not in CHANGING:
            return Operation("compact" if self.name == "compact" else "nothing")
        if self.name in ("derive", "merge"):
            return Operation(self.name, token=before.tokens + 1)
        if self.name == "add":
            return Operation("add", keys=["new"], proofs=[Proof("new", 900)])
        if self.name in ("batch", "retry"):
            return Operation("add", **_rows([f"new {i}" if i % 3 else None for i in range(40)], 900))
        if self.name == "replace":
            return Operation("replace", **_rows([*list(before.items)[3:8:2], "new"], 900))
        return Operation("delete", names=list(before.items)[1:12:3])

    @property
    def after(self) -> Expectation:
        """What the store holds once it is done."""
        return self.before.after(self.operation)


def _rows(keys: list[str | None], version: int) -> dict[str, Any]:
    return {"keys": keys, "proofs": [Proof(key or "nameless", version + i) for i, key in enumerate(keys)]}


_FIRST = Operation("add", **_rows([f"key {i}" if i % 4 else None for i in range(24)], 0))
_PREPARATION = (_FIRST, Operation("delete", names=["key 2", "#1", "key 19"]))
_DERIVATION = (Operation("derive", token=1), Operation("derive", token=2), Operation("derive", token=3))
_LAST_ADD = Operation("add", **_rows(["late", None], 100))


@contextlib.contextmanager
def windows(canon: Canon) -> Iterator[None]:
    """Windows and bitmaps of the size that the workload wants."""
    with pytest.MonkeyPatch.context() as patch:
        if canon.tiny:
            shrink(patch, window=1024, block=16)
        if canon.name == "migrate":  # what was written in an old format has old windows
            scaled(patch, granules=generation.WINDOW)
        if canon.name == "note":
            note_all(patch)
        yield


def note_all(patch: pytest.MonkeyPatch) -> None:
    """Let the lists of every row be noted after each write, and the calibration be checked within one."""
    count_as_large(patch, noted=1)
    patch.setattr(rechecking, "clock", lambda: 0.0)


def prepare(say: Say, path: str, *given: Any) -> None:
    """Make the store that a workload starts from, and for a copy of it the earlier backup."""
    canon = Canon(*given)
    with windows(canon), Store.open(path, "c") as store:
        for number, operation in enumerate(_PREPARATION):
            perform(store, operation, canon.kind)
            if canon.name in COPYING and number == 0:
                store.backup(_backup_of(path))
        store.put_index("names", names_by_row(store, range(store.rows)))
        for operation in _DERIVATION:
            perform(store, operation, canon.kind)
        store.configure(canon.before.settings)
        if canon.name == "restore":
            store.backup(_backup_of(path))
        if canon.name == "open":
            perform(store, _LAST_ADD, canon.kind)
            _die_while_compacting(path, store)
    if canon.name == "note":
        with windows(canon), softkv.open(path, "w") as handle:
            handle.build_index(lists=2, temperatures=(0.1, 0.1), backend="cpu")
            perform(handle._store, _LAST_ADD, canon.kind)
    if canon.name == "migrate":
        as_format(Path(path), 2)


def _die_while_compacting(path: str, store: Store) -> None:
    """Leave all that a death can leave: a log, half a generation, a file in index/, norms that were not synced."""
    index, norms = os.path.join(path, "index", "77"), os.path.join(path, "generation-000001", "norms.f32")
    Path(index).write_bytes(b"nobody's")
    os.truncate(norms, os.path.getsize(norms) - 6)
    with recording(Plan(path, fatal=21, moment=BEFORE)):
        store.compact()


def run(say: Say, path: str, plan: dict[str, Any], *given: Any) -> None:
    """Do the workload once; says what it is about to do, and that it is done."""
    canon = Canon(*given)
    with windows(canon):
        handle = opened(path, canon)
        with recording(plan):
            mark("begin")
            say("begin")
            act(handle, path, canon)
            mark("done")
            say("done")
        os._exit(0)  # as little is closed as after a death


def opened(path: str, canon: Canon) -> Any:
    """The handle that the workload acts on, open before anything is recorded."""
    if canon.name in ("open", "migrate", *COPYING):
        return None
    if canon.name in ("build index", "note"):
        return softkv.open(path, "w")
    store = Store.open(path, "w")
    if canon.name == "close":
        perform(store, _LAST_ADD, canon.kind)
    return store


def act(handle: Any, path: str, canon: Canon) -> Any:
    """Do what the workload is about; returns the handle that is open then."""
    if canon.name == "restore":
        restore(_backup_of(path), _restored_from(path))
    if canon.name == "backup":
        backup(path, _backup_of(path))
    if canon.name in ("open", "migrate", *COPYING):
        return Store.open(path, "w")
    if canon.name == "build index":
        handle.build_index(lists=2, temperatures=(0.1, 0.1), backend="cpu")
    elif canon.name == "note":
        handle.delete(canon.operation.names)
    elif canon.name == "close":
        handle.close()
    elif canon.name == "compact":
        handle.compact()
    elif canon.name == "retry":
        send(handle, canon)
    else:
        perform(handle, canon.operation, canon.kind)
    return handle


def send(store: Store, canon: Canon) -> Added:
    """Add a batch under a name, some of its items without a key, so that nothing else keeps them from coming twice."""
    operation = canon.operation
    return append(store, canon.kind, operation.keys, operation.proofs, stamp=Stamp("the batch", b"its digest"))


# What must hold afterwards


def agrees(store: Store, canon: Canon, *, done: bool | None, copies: bool = True) -> tuple[bool, list[str]]:
    """Whether the workload happened, and what is wrong; `done` is None when it is in doubt."""
    with store.snapshot() as snapshot:
        before, after = differences(snapshot, canon.before), differences(snapshot, canon.after)
        if canon.name == "build index":
            before = after = after + _wrong_lookup(store.path)
        if canon.name == "note":
            noted = wrong_notes(store.path)
            before, after = before + noted, after + noted
        if canon.name in COPYING and copies:
            before = before + _wrong_copies(store.path, canon, done=False)
            after = after + _wrong_copies(store.path, canon, done=True)
    if done is None:
        done = not after
        return done, before if not done else []
    return done, after if done else before


def _wrong_lookup(path: str) -> list[str]:
    """Whether lookups say the same with the index, if there is one, as without."""
    with softkv.open(path, "r") as database:
        query = np.linspace(1, 2, database.info().key_width, dtype=np.float32)
        exact, quick = database.lookup(query, tolerance=0), database.lookup(query, tolerance=0.3)
        apart = float(np.linalg.norm(np.atleast_1d(np.asarray(exact.value) - np.asarray(quick.value))))
        return [] if apart <= exact.error + quick.error else [f"a lookup says {quick} instead of {exact}"]


def wrong_notes(path: str) -> list[str]:
    """What a new reader believes of the rows in lists that they do not say, where there is an index."""
    with softkv.open(path, "r") as database:
        view = database._view()
        found = None if view.index is None else problem(view)
        many = view.verdict is not None and view.verdict.changes > view.changes
        return [found] * (found is not None) + ["a verdict is about changes that did not happen"] * many


def _backup_of(path: str) -> str:
    return os.path.join(os.path.dirname(path), "backup")


def _restored_from(path: str) -> str:
    return os.path.join(os.path.dirname(path), "restored")


def _wrong_copies(path: str, canon: Canon, *, done: bool) -> list[str]:
    """What is wrong with the copies beside a store: each is there whole or not at all, and there when it was done."""
    earlier = [Expectation(canon.kind).after(_FIRST)] if canon.name == "backup" and not done else []
    wrong = _differing(_backup_of(path), [canon.before, *earlier])
    restored = _restored_from(path)
    if canon.name == "restore" and (done or os.path.exists(restored)):
        wrong += _differing(restored, [canon.before])
    return wrong


def _differing(copy: str, expected: list[Expectation]) -> list[str]:
    """What a copy says otherwise than all of these, and what a check finds in it."""
    if not os.path.exists(copy):
        return [f"{copy} is not there"]
    with Store.open(copy, "r") as store, store.snapshot() as snapshot:
        found = [differences(snapshot, one) for one in expected]
        report = store.check()
    return ([] if [] in found else [f"{copy} says {found}"]) + report.findings


def copied_again(store: Store, canon: Canon) -> None:
    """Whatever became of a copy, the next one is whole, and a writer opens what was restored."""
    store.backup(_backup_of(store.path))
    restored = _restored_from(store.path)
    if not os.path.exists(restored):
        restore(_backup_of(store.path), restored)
    wrong = _wrong_copies(store.path, canon, done=True)
    assert not wrong, wrong
    reports = [check(copy) for copy in (_backup_of(store.path), restored)]
    assert not any(report.notes for report in reports), reports
    beside = [name for name in os.listdir(os.path.dirname(store.path)) if name.startswith(".restored")]
    assert not beside, beside
    if canon.name == "restore":
        with Store.open(restored, "w") as again:
            write_more(again, canon, done=False)


def recover(say: Say, path: str, plan: dict[str, Any], done: bool | None, *given: Any) -> None:
    """Read what a death left, then open it for writing: that is the part to be recorded. Says whether it happened."""
    canon = Canon(*given)
    with windows(canon):
        with Store.open(path, "r") as reader:
            happened, wrong = agrees(reader, canon, done=done)
            report = reader.check()
        assert not wrong, wrong
        assert report.ok, report
        say("happened", happened)
        with recording(plan):
            store = Store.open(path, "w")
        goes_on(store, canon, happened)


def goes_on(store: Store, canon: Canon, done: bool) -> None:
    """A writer sees the same, has tidied up, and writes."""
    _, wrong = agrees(store, canon, done=done)
    assert not wrong, wrong
    report = store.check()
    assert report.ok, report
    assert not report.notes, report
    if canon.name == "retry":  # whoever was not answered sends it again
        assert send(store, canon) == Added(len(canon.before.items) + 3, canon.before.next_number, 40)
        done = True
        _, wrong = agrees(store, canon, done=True)
        assert not wrong, wrong
    if canon.name in COPYING:
        copied_again(store, canon)
    more = write_more(store, canon, done=done)
    store.close()
    with Store.open(store.path, "r") as reader, reader.snapshot() as snapshot:
        wrong = differences(snapshot, more)
        assert not wrong, wrong
        assert reader.check().ok


def write_more(store: Store, canon: Canon, *, done: bool) -> Expectation:
    """One more batch, which is there afterwards with all the others; returns what the store holds then."""
    expected = canon.after if done else canon.before
    more = Operation("add", **_rows(["more", None], 950))
    append(store, canon.kind, more.keys, more.proofs)
    with store.snapshot() as snapshot:
        wrong = differences(snapshot, expected.after(more))
    assert not wrong, wrong
    return expected.after(more)


def outcomes_of(canon: Canon, outcomes: set[str]) -> set[str]:
    """What a refused workload may become: a later commit also says that it is unknown what became of a removal."""
    more = {"HandlePoisoned"} if canon.name in SEVERAL and "CommitUncertain" in outcomes else set()
    return outcomes | more
