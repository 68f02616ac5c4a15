"""What must hold after the power was lost: nothing acknowledged is gone, nothing half is there, and work goes on."""

import os
import traceback
from pathlib import Path
from random import Random

import numpy as np

import softkv
from softkv.storage import Report, Snapshot, Store
from softkv.storage.protocol.opening import is_vacant
from tests.crash.canonical import wrong_notes
from tests.crash.disk import Tree
from tests.crash.rows import KEY_WIDTH
from tests.crash.sessions import BACKUP, STORE, Promise
from tests.crash.workload import Expectation, Operation, differences, perform

ABSENT = -1
_NEXT = ["add"] * 6 + ["replace", "delete", "compact", "index", "configure", "rebuild"]


def lay(tree: Tree, folder: Path) -> Path:
    """Write down what is left, below a folder; returns the path of the store."""
    folder.mkdir()
    for name, content in tree.items():
        if content is None:
            os.mkdir(folder / name)
        else:
            with open(folder / name, "xb", buffering=0) as file:
                file.write(content)
    return folder / STORE


def judged(path: Path, promise: Promise, random: Random) -> int:
    """Open what is left, to read and to write, and go on; returns the step after which it is, or ABSENT.

    Raises AssertionError when something does not hold.
    """
    try:
        if is_vacant(os.fspath(path)):
            assert promise.may_be_absent, "the store is gone"
            return _begin_anew(path, promise, random)
        step, state = _read(path, promise)
        if promise.session.name == "backups" and promise.session.resumed < 0:
            _judge_backup(path.parent / BACKUP, path, promise, state)
        _write(path, promise, state, random)
        return step
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(traceback.format_exc()) from error


def _begin_anew(path: Path, promise: Promise, random: Random) -> int:
    """Where there is no store one can be made, and what was left of another goes, but for a directory just begun."""
    state = Expectation(promise.session.kind)
    with Store.open(path, "c") as store:
        _go_on(store, state.drawn("add", random), state)
    others = [other.name for other in path.parent.iterdir() if other != path and any(other.iterdir())]
    assert not others, f"{others} will stay for ever"
    return ABSENT


def _read(path: Path, promise: Promise) -> tuple[int, Expectation]:
    """A reader comes first: it sees one of the states that are possible, whole, and nothing else."""
    with Store.open(path, "r") as reader:
        with reader.snapshot() as snapshot:
            found = {step: differences(snapshot, state) for step, state in promise.possible.items()}
            fitting = [step for step, wrong in found.items() if not wrong]
            assert fitting, f"in doubt is {promise.doubtful}; differences by step: {found}"
            _answers(path, snapshot, promise)
        _require_sound(reader.check())
    return fitting[0], promise.possible[fitting[0]]


def _judge_backup(backup: Path, path: Path, promise: Promise, state: Expectation) -> None:
    """What was acknowledged as a backup is one, whole; and the next one is whole whatever became of the last."""
    assert promise.may_have_no_backup or not is_vacant(os.fspath(backup)), "the backup is gone"
    if not is_vacant(os.fspath(backup)):
        _require_backup(backup, promise.backups)
    with Store.open(path, "r") as reader:
        reader.backup(backup)
    _require_backup(backup, [state])


def _require_backup(backup: Path, possible: list[Expectation]) -> None:
    with Store.open(backup, "r") as reader:
        with reader.snapshot() as snapshot:
            found = [differences(snapshot, state) for state in possible]
        assert [] in found, f"the backup differs: {found}"
        _require_sound(reader.check())


def _answers(path: Path, snapshot: Snapshot, promise: Promise) -> None:
    """With an index the answers are as they are without."""
    if promise.session.name == "lists" and snapshot.index("lists") is not None and len(snapshot):
        query = np.full(KEY_WIDTH, 0.1, np.float32)
        with softkv.open(path, "r") as db:
            whole, soon = db.lookup(query, tolerance=0), db.lookup(query, guarantee="bound", tolerance=0.01)
        assert np.abs(np.asarray(whole.value) - np.asarray(soon.value)).max() <= soon.error + whole.error
    if promise.session.name == "notes":
        wrong = wrong_notes(os.fspath(path))
        assert not wrong, wrong


def _write(path: Path, promise: Promise, state: Expectation, random: Random) -> None:
    """A writer sees the same, leaves nothing behind that nobody needs, and goes on."""
    with Store.open(path, "w") as store:
        with store.snapshot() as snapshot:
            wrong = differences(snapshot, state)
        assert not wrong, f"the writer sees another state than the reader: {wrong}"
        if random.random() < 0.3:
            report = store.check()
            _require_sound(report)
            notes = [note for note in report.notes if "unfinished rebuild" not in note]
            assert not notes, f"the writer has left something: {notes}"
        _go_on(store, state.drawn(random.choice(_NEXT), random), state)
    if random.random() < 0.1:
        with Store.open(path, "r") as reader:
            _require_sound(reader.check())


def _go_on(store: Store, operation: Operation, state: Expectation) -> None:
    perform(store, operation, state.kind)
    with store.snapshot() as snapshot:
        wrong = differences(snapshot, state.after(operation))
    assert not wrong, f"after {operation}: {wrong}"


def _require_sound(report: Report) -> None:
    """No damage; and an index file that is named is whole, since it was durable before it was named."""
    assert report.ok, str(report)
    assert not [note for note in report.notes if "index file" in note], str(report)
