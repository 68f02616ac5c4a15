"""Ways to look for a planted bug: what the suite has, in small pieces, run in processes that have the bug.

Each is an iterator that does one run at a time and raises an AssertionError when the run finds something, as it would
in the test that it was taken from. None of them knows what it looks for.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

import softkv
from softkv.storage import Store, check
from softkv.storage.catalog import connection
from tests.crash import (
    test_auditors,
    test_concurrency,
    test_kill,
    test_points,
    test_processes,
    test_refusals,
    test_takeover,
)
from tests.crash.blackouts import Hunt, recorded
from tests.crash.canonical import Canon
from tests.crash.children import Child, Say
from tests.crash.planted import BUGS
from tests.crash.recorder import Nursery
from tests.crash.rows import KINDS
from tests.crash.sessions import Session
from tests.crash.stage import Stage

POINTS, EACH = 30, 6  # calls of a session after which the power is lost, and ways in which it is
LIVES = 3  # of writers that are killed in one store
SECONDS = 2.0  # of readers beside a writer
ALL = 1000  # runs: each call of a workload comes once, in any order


class Infested(Nursery):
    """A nursery whose children all have a bug. The process is another's, who closes it."""

    def __init__(self, nursery: Nursery, bug: str) -> None:
        self._process, self._socket, self._bug = nursery._process, nursery._socket, bug

    def child(self, work: str, *arguments: Any) -> Any:
        """Run the work in a child that has the bug."""
        return super().child("tests.crash.planted:infested", self._bug, work, *arguments)


@dataclass
class Grounds:
    """Where to look, and for what."""

    bug: str
    random: Random
    nursery: Nursery
    quick: Path  # a folder in memory where there is one
    folder: Path
    _numbers: Iterator[int] = field(default_factory=count)

    def fresh(self) -> Path:
        """An empty folder."""
        path = self.folder / str(next(self._numbers))
        path.mkdir()
        return path

    def seeded(self) -> Random:
        """Another source of chance in every run, drawn here and not in the child."""
        return Random(self.random.random())

    def stage(self, name: str, kind: str) -> Stage:
        """A workload on a store that is right, played by processes that are not."""
        canon = Canon(name, kind or self.random.choice(KINDS), self.random.random() < 0.5)
        stage = Stage(self.nursery, self.fresh() / "stage", canon)
        stage.nursery = Infested(self.nursery, self.bug)
        return stage

    def run(self, work: Callable[[], object]) -> None:
        """Do this in a child that has the bug; raises what is raised there."""

        def live(say: Say) -> None:
            BUGS[self.bug]()
            try:
                work()
            except pytest.skip.Exception as reason:
                say("skipped", str(reason))

        with Child(live) as child:
            for _, reason in child.all():
                pytest.skip(reason)
            assert child.wait() == 0, f"the process died: {child.status}"


@dataclass(frozen=True)
class Hunter:
    """A way to look, and what it is called."""

    name: str
    look: Callable[[Grounds], Iterator[None]]
    within: int  # runs in which a bug must be found: 1 where nothing is left to chance


def power(course: str = "single adds") -> Hunter:
    """Lose the power in sessions of a course: test_power.py."""

    def look(grounds: Grounds) -> Iterator[None]:
        random = grounds.random
        while True:
            kind, tiny = random.choice(KINDS), random.random() < 0.5
            session = Session(course, kind, random.randrange(10**6), tiny=tiny, bug=grounds.bug)
            log = recorded(grounds.nursery, session, grounds.quick)
            hunt = Hunt(session, log, grounds.quick, grounds.fresh() / "wrong", EACH)
            hunt.run(random.random(), hunt.points(random, POINTS))
            yield

    return Hunter("crash/test_power.py::test_nothing_acknowledged_is_lost_with_the_power", look, 6)


def points(name: str, kind: str = "") -> Hunter:
    """Die at calls of a workload: test_points.py."""

    def look(grounds: Grounds) -> Iterator[None]:
        stage = grounds.stage(name, kind)
        everywhere = list(test_points._points(stage))
        for fatal, moment in grounds.random.sample(everywhere, len(everywhere)):
            test_points._die_and_recover(stage, fatal, moment, grounds.random)
            yield

    return Hunter(f"crash/test_points.py::test_a_death_at_any_call_leaves_all_or_nothing[{name}]", look, ALL)


def refusals(name: str, kind: str = "") -> Hunter:
    """Refuse calls of a workload: test_refusals.py."""

    def look(grounds: Grounds) -> Iterator[None]:
        stage = grounds.stage(name, kind)
        cases = list(test_refusals._cases(stage))
        for call, error, sticky in grounds.random.sample(cases, len(cases)):
            test_refusals._refuse(stage, call, error, sticky=sticky)
            yield

    return Hunter(f"crash/test_refusals.py::test_whatever_is_refused_is_said_and_nothing_is_lost[{name}]", look, ALL)


def kills() -> Hunter:
    """Kill writers one after the other: test_kill.py."""

    def life(path: Path, random: Random) -> None:
        test_kill._many_lives(path, random.choice(KINDS), "call", LIVES, random, test_kill.Toll())

    def look(grounds: Grounds) -> Iterator[None]:
        while True:
            grounds.run(partial(life, grounds.fresh() / "s", grounds.seeded()))
            yield

    return Hunter("crash/test_kill.py::test_a_killed_writer_loses_nothing[call]", look, 10)


def takeovers() -> Hunter:
    """Take over from writers that sleep: test_takeover.py."""

    def life(path: Path, random: Random) -> None:
        connection._BOTH["busy_timeout"] = 20
        softkv.open(path, **test_takeover.PLAIN).close()
        test_takeover._overtaken(path, "life", {}, random, test_takeover.Toll())
        report = check(path)
        assert report.ok, report

    def look(grounds: Grounds) -> Iterator[None]:
        while True:
            grounds.run(partial(life, grounds.fresh() / "s", grounds.seeded()))
            yield

    return Hunter(
        "crash/test_takeover.py::test_a_writer_that_wakes_up_late_is_fenced_and_has_changed_nothing", look, 30
    )


def readers() -> Hunter:
    """Readers beside a writer: test_processes.py."""

    def audit(path: Path, random: Random) -> None:
        with Store.open(path, "c") as store:
            test_processes._open_accounts(store)
        end = monotonic() + SECONDS
        with Child(lambda say: test_processes._bank(path, random, end, say)) as writer:
            with Child(lambda say: test_processes._audit(path, random, end, say)) as reader:
                list(reader.all())
            list(writer.all())

    def look(grounds: Grounds) -> Iterator[None]:
        while True:
            grounds.run(partial(audit, grounds.fresh() / "s", grounds.seeded()))
            yield

    return Hunter("crash/test_processes.py::test_readers_see_whole_commits_while_a_writer_works", look, 30)


def auditors() -> Hunter:
    """Auditors of answers: test_auditors.py."""

    def audit(folder: Path) -> None:
        test_concurrency._one_thread()
        with test_auditors.at_work(folder) as bank:
            test_auditors.test_auditors_are_content_with_a_store_that_is_right(bank)

    def look(grounds: Grounds) -> Iterator[None]:
        while True:
            grounds.run(partial(audit, grounds.fresh()))
            yield

    return Hunter("crash/test_auditors.py::test_auditors_are_content_with_a_store_that_is_right", look, 2)


def by_test(function: Callable[..., None], **given: Any) -> Hunter:
    """A test as it is, with what it asks for."""

    def once(folder: Path, seed: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            known = {"tmp_path": folder, "path": folder / "s", "seed": seed, "thorough": False, "monkeypatch": patch}
            wanted = inspect.signature(function).parameters
            function(**{name: {**known, **given}[name] for name in wanted})

    def look(grounds: Grounds) -> Iterator[None]:
        while True:
            grounds.run(partial(once, grounds.fresh(), grounds.random.randrange(10**6)))
            yield

    return Hunter(f"{function.__module__.removeprefix('tests.').replace('.', '/')}.py::{function.__name__}", look, 1)
