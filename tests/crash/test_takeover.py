"""A writer that is overtaken while it sleeps changes nothing when it wakes, and a store that is made anew is one store.

There is no taking over from a writer that lives: its lock is its own. But people remove lock files, and some file
systems lose locks. What is left then is the epoch in the catalog.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.errors import HandlePoisoned, StoreExists, StoreLocked, StoreNotFound, WriterFenced
from softkv.storage import check
from softkv.storage.catalog import connection
from tests.crash.children import Child, Say
from tests.crash.death import sleep_after

pytestmark = [pytest.mark.slow, pytest.mark.ci]

WIDTH = 64
PLAIN: dict[str, Any] = {"value": "number", "compatibility": "dot", "temperature": 1.0}  # no rule has to find anything
FENCED = (WriterFenced, HandlePoisoned)  # at the first attempt, and at those after one that failed in its middle


def test_a_writer_that_wakes_up_late_is_fenced_and_has_changed_nothing(
    path: Path, seed: int, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asleep anywhere, its LOCK removed, another writes on: it changes no byte of what the other has written."""
    monkeypatch.setitem(connection._BOTH, "busy_timeout", 20)  # ms that SQLite waits for one that sleeps in a commit
    random, end, toll = Random(seed), time.monotonic() + (60 if thorough else 8), Toll()
    softkv.open(path, **PLAIN).close()
    holds = dict[str, float]()
    while time.monotonic() < end:
        toll.lives += 1
        holds = _overtaken(path, f"life {toll.lives}", holds, random, toll)
        assert check(path).ok
    print(f"\n{toll}")
    assert toll.takeovers > 0
    assert toll.takeovers + toll.refused == toll.lives


@dataclass
class Toll:
    """What became of writers that slept."""

    lives: int = 0
    takeovers: int = 0
    refused: int = 0  # since it slept in the middle of a transaction, which nobody can take from it
    came_through: int = 0  # of what was in doubt when another took over


def _overtaken(path: Path, life: str, holds: dict[str, float], random: Random, toll: Toll) -> dict[str, float]:
    """One writer that sleeps, and another in its place; returns what the store holds, item by item."""
    last_before, calls = random.randrange(8), random.randrange(120) if random.random() < 0.7 else None
    with Child(partial(_add, path, life, last_before, calls)) as late:
        acknowledged = _asleep(late, last_before, calls, random)
        os.unlink(path / "LOCK")
        try:
            taken = _taken_over(path, f"{life} taken", random)
        except StoreLocked:
            taken = None
        late.signal(signal.SIGCONT)
        told = _last_words(late)
    with softkv.open(path, "w") as db:
        found, doubtful = _contents(db), _batches(life, acknowledged + 1, acknowledged + 2)
        if taken is None:  # it went on until it looked for its lock
            toll.refused, holds = toll.refused + 1, holds | _batches(life, 1, told + 1)
        else:
            assert told <= acknowledged + 1, "it was told that something was written after another took over"
            came_through = told > acknowledged or bool(doubtful.keys() & found.keys())
            toll.takeovers, toll.came_through = toll.takeovers + 1, toll.came_through + came_through
            holds = holds | _batches(life, 1, acknowledged + 1) | (doubtful if came_through else {}) | taken
        assert found == holds, f"batch {acknowledged + 1} of {life} is in doubt; {_differences(found, holds)}"
        return _emptied(db, holds)


def _batch(name: str, number: int) -> tuple[list[str], Any, Any]:
    """Keys, values and vectors of a batch, of one item or of thousands."""
    count = (1, 3, 800, 1, 200)[number % 5]
    keys = [f"{name} {number} {position}" for position in range(count)]
    values = np.arange(count) + 1000.0 * number
    return keys, values, np.repeat(values[:, None].astype(np.float32), WIDTH, axis=1) + 1


def _batches(name: str, first: int, stop: int) -> dict[str, float]:
    """The items of some batches."""
    found = dict[str, float]()
    for number in range(first, stop):
        keys, values, _ = _batch(name, number)
        found |= dict(zip(keys, values.tolist(), strict=True))
    return found


def _add(path: Path, name: str, last_before: int, calls: int | None, say: Say) -> None:
    """A writer that falls asleep some calls after a batch, adds until it is fenced, and then tries everything else."""
    db = softkv.open(path, "w")
    say("open", 0)
    number = 0
    try:
        while True:
            if number == last_before and calls is not None:
                sleep_after(calls)
            number += 1
            keys, values, vectors = _batch(name, number)
            db.add(keys, values, vectors=vectors)
            say("added", number)
            if number % 4 == 0:
                db.compact()
    except FENCED as error:
        say("fenced", type(error).__name__)
    attempts = [
        lambda: db.add("late", 1.0, vectors=np.ones(WIDTH)),
        db.compact,
        lambda: db.set_temperature(0.5),
        db.drop_index,
    ]
    if number > 1:  # else it may have written nothing, and there is nothing to delete
        attempts.append(lambda: db.delete(f"{name} 1 0"))
    for attempt in attempts:
        with pytest.raises(FENCED):
            attempt()
    with contextlib.suppress(FENCED):
        db.close()
    say("gone")


def _asleep(late: Child, last_before: int, calls: int | None, random: Random) -> int:
    """Wait until it sleeps, or stop it; returns the number of the last batch that it said was added."""
    messages = [late.hear() for _ in range(last_before + 1)]
    if calls is None:
        wait = time.perf_counter() + random.random() * 0.02
        while time.perf_counter() < wait:
            pass
        late.signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(late.pid, os.WUNTRACED)[1])
    while late.speaks():
        messages.append(late.hear())
    assert messages[-1] is not None
    return int(messages[-1][1])


def _taken_over(path: Path, name: str, random: Random) -> dict[str, float]:
    """Another writer opens, and writes where the late one was about to."""
    with softkv.open(path, "w") as db:
        batches = random.randrange(1, 4)
        for number in range(1, batches + 1):
            keys, values, vectors = _batch(name, number + random.randrange(2) * 5)
            db.add([f"{name} {number} {position}" for position in range(len(keys))], values, vectors=vectors)
        if random.random() < 0.3:
            db.compact()
        return {key: value for key, value in _contents(db).items() if key.startswith(name)}


def _last_words(late: Child) -> int:
    """The number of the last batch that it was told is written, once it has given up."""
    last, messages = 0, list(late.all())
    assert [message[0] for message in messages][-2:] == ["fenced", "gone"], messages[-3:]
    for message in messages:
        last = message[1] if message[0] == "added" else last
    return last


def _contents(db: Any) -> dict[str, float]:
    """Every item, whose vector must be that of its value."""
    found = {}
    for item in db.select():
        assert (item.vector == np.float32(item.value) + 1).all(), item.name
        found[item.name] = item.value
    return found


def _differences(found: dict[str, float], wanted: dict[str, float]) -> str:
    lost, more = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    return f"lost {sorted(lost)[:3]} ({len(lost)}), too many {sorted(more)[:3]} ({len(more)})"


def _emptied(db: Any, holds: dict[str, float]) -> dict[str, float]:
    """Now and then all of it goes, so that stores stay small."""
    if len(holds) > 5_000:
        db.clear()
        db.compact()
        return {}
    return holds


# Made anew


def test_a_reader_that_opens_while_a_store_is_made_anew_sees_one_of_them_or_none(
    path: Path, seed: int, thorough: bool
) -> None:
    """It sees the old one, the new one, one without items yet, or none: no parts of two, and no damage."""
    end = time.monotonic() + (60 if thorough else 6)
    with contextlib.ExitStack() as stack:
        makers = [stack.enter_context(Child(partial(_make_anew, path, seed + number, end))) for number in range(2)]
        openers = [stack.enter_context(Child(partial(_open_any, path, mode, end))) for mode in ("r", "r", "w")]
        made = [sum(said[1] for said in maker.all()) for maker in makers]
        met = sum((Counter(said[1]) for opener in openers for said in opener.all()), Counter[str]())
    print(f"\nmade anew {made} times; openers met {dict(met)}")
    assert check(path).ok
    assert set(met) <= {"whole", "empty", "StoreNotFound", "StoreLocked"}
    assert sum(made) > 1
    assert met["whole"] > 0


def _make_anew(path: Path, seed: int, end: float, say: Say) -> None:
    """A store with items of one life, and then another, and another."""
    made = 0
    while time.monotonic() < end:
        with contextlib.suppress(StoreLocked, StoreExists), softkv.open(path, "n", **PLAIN) as db:
            made += 1
            if made % 2:
                threading.Event().wait(0.01)  # so that some open it while it is empty
            life = seed * 1000.0 + made
            keys = [f"{position}" for position in range(50)]
            db.add(keys, [life] * 50, vectors=np.full((50, WIDTH), life, np.float32))
            if made % 3 == 0:
                db.add(keys, [life + 0.5] * 50, vectors=np.full((50, WIDTH), life, np.float32), on_conflict="replace")
                db.compact()
            threading.Event().wait(0.01)  # so that some open it while it is there
    say("made", made)


def _open_any(path: Path, mode: str, end: float, say: Say) -> None:
    """Open what is there, as often as can be, and look at all of it, now and a moment later."""
    met = Counter[str]()
    while time.monotonic() < end:
        try:
            with softkv.open(path, mode) as db:
                with db.snapshot() as view:
                    met[_one_life(view)] += 1
                with contextlib.suppress(WriterFenced):
                    _one_life(db.snapshot())
        except (StoreNotFound, StoreLocked) as error:
            met[type(error).__name__] += 1
    say("met", dict(met))


def _one_life(view: Any) -> str:
    """All items are of one store."""
    items = list(view.select())
    assert len(items) in (0, 50)
    assert len({item.value for item in items}) < 2
    assert all((item.vector == np.float32(int(item.value))).all() for item in items)
    return "whole" if items else "empty"
