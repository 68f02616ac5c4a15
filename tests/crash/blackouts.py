"""Record a session, lose the power after some of its calls, and judge what may be left.

Judging is done by children, each for some of the calls. The first state that does not hold what was promised ends the
hunt, with all that is needed to see it again.
"""

import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

from softkv.storage import Store
from softkv.storage.layout import CATALOG
from tests.crash import calls
from tests.crash.aftermath import ABSENT, judged, lay
from tests.crash.calls import Call
from tests.crash.children import Child, Say
from tests.crash.disk import Disk, Tree
from tests.crash.outages import outages
from tests.crash.recorder import Nursery, Plan
from tests.crash.sessions import STORE, Promise, Session

PATIENCE = 600  # seconds that one child may take
_SYNCS = ("fsync", "fdatasync", "mark")
_CHANGES = ("write", "truncate", "rename", "unlink", "rmdir", "mkdir", *_SYNCS)


@dataclass
class Toll:
    """What the outages hit."""

    calls: int = 0
    states: int = 0  # different ones
    in_doubt: int = 0
    came_through: int = 0  # of those in doubt
    absent: int = 0
    sessions: int = 0  # that were recorded
    recoveries: int = 0  # that were recorded as well

    def add(self, other: "Toll") -> None:
        """Take those of another together with these."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        return (
            f"{self.states} states after {self.calls} calls in {self.sessions} sessions, {self.recoveries} recoveries; "
            f"in doubt: {self.in_doubt}, {self.came_through} of them came through; without a store: {self.absent}"
        )


@dataclass(frozen=True)
class Hunt:
    """Some ways to lose the power in one recorded session."""

    session: Session
    log: list[Call]
    folder: Path  # where what is left is laid down
    evidence: Path  # where what is not right is kept; not there yet
    each: int  # ways after one call
    beginning: Tree = field(default_factory=dict)
    stale: bytes | None = None  # what may be left of a memory map

    def points(self, random: Random, count: int) -> list[int]:
        """Numbers of calls, about as many of each step, most of them with as much unsynced as there ever is in it.

        Those are the calls before a sync or a mark.
        """
        heaps: dict[int, tuple[list[int], list[int]]] = {}  # of each step: those calls, and the others
        promise = Promise(self.session)
        for call, after in zip(self.log, [*self.log[1:], None], strict=True):
            promise.hear(call)
            if _counts(call):
                peak = after is None or after.name in _SYNCS
                heaps.setdefault(promise.done, ([], []))[not peak].append(call.number)
        picked: list[int] = []
        while heaps and len(picked) < count:
            step = random.choice(list(heaps))
            peaks, others = heaps[step]
            heap = peaks if peaks and (not others or random.random() < 0.75) else others
            picked.append(heap.pop(random.randrange(len(heap))))
            if not peaks and not others:
                del heaps[step]
        return sorted(picked)

    def run(self, seed: float, points: list[int], kept: float = 0.0) -> "tuple[Toll, list[Left]]":
        """Lose the power after these calls, in a child; raises AssertionError at the first state that is not right.

        Returns a share of the states that were, to be used again.
        """
        toll, left = Toll(), []
        with Child(lambda say: self._judge_all(say, points, seed, kept)) as child:
            for what, *rest in child.all(PATIENCE):
                if what == "wrong":
                    raise AssertionError("\n".join(rest))
                if what == "left":
                    left.append(Left(*rest))
                else:
                    toll.add(Toll(**rest[0]))
        return toll, left

    def _judge_all(self, say: Say, points: list[int], seed: float, kept: float) -> None:
        self.session.prepare()
        toll, seen = Toll(calls=len(points)), set()
        for disk, promise, call in self._moments(points):
            for way, (what, tree) in enumerate(self._states(disk, call.number, seed)):
                mark, random = (promise.done, promise.begun, _digest(tree)), Random(f"{seed} {call.number} {way}")
                if mark not in seen:
                    seen.add(mark)
                    try:
                        step = self._judge(tree, promise, random)
                    except AssertionError as error:
                        shutil.copytree(lay(tree, self.folder / "wrong").parent, self.evidence)
                        say("wrong", f"{self.session}, after call {call}: {what}", f"see {self.evidence}", str(error))
                        return
                    _count(toll, promise, step)
                    if step != ABSENT and random.random() < kept:
                        say("left", call.number, way, step)
        say("toll", asdict(toll))

    def _moments(self, points: list[int]) -> Iterator[tuple[Disk, Promise, Call]]:
        disk, promise, wanted = Disk(self.beginning), Promise(self.session), set(points)
        for call in self.log:
            disk.apply(call)
            promise.hear(call)
            if call.number in wanted:
                yield disk, promise, call

    def _states(self, disk: Disk, number: int, seed: float) -> Iterator[tuple[str, Tree]]:
        """Some states in which the disk may be left, and how."""
        random = Random(f"{seed} {number}")
        for outage in outages(disk, random, self.each):
            yield outage.what, outage.tree(disk, random, self.stale)

    def _judge(self, tree: Tree, promise: Promise, random: Random) -> int:
        folder = self.folder / str(os.getpid())
        try:
            return judged(lay(tree, folder), promise, random)
        finally:
            shutil.rmtree(folder)

    def again(self, left: "Left", seed: float) -> Tree:
        """One of the states that were left, once more."""
        disk, _, _ = next(self._moments([left.call]))
        return next(tree for way, (_, tree) in enumerate(self._states(disk, left.call, seed)) if way == left.way)


@dataclass(frozen=True)
class Left:
    """A state that was right: after which call, in which way, and the step after which it is."""

    call: int
    way: int
    step: int


def recorded(nursery: Nursery, session: Session, folder: Path, beginning: Tree | None = None) -> list[Call]:
    """The calls of a session, below a folder that holds this at the beginning."""
    watched, log = folder / "watched", folder / "log"
    path = lay(beginning or {}, watched)
    plan = Plan(str(watched), str(log))
    with nursery.child("tests.crash.sessions:live", path, session.given, plan) as child:
        assert list(child.all(PATIENCE)) == [["well"]]
        assert child.wait() == 0
    found = calls.read(log)
    shutil.rmtree(watched)
    log.unlink()
    return found


def recoveries(nursery: Nursery, hunt: Hunt, seed: float, lefts: list[Left], points: int) -> Iterator[Toll]:
    """Record how what was left is opened again, and lose the power in the middle of that."""
    for left in lefts:
        beginning = hunt.again(left, seed)
        session = replace(hunt.session, resumed=left.step)
        log = recorded(nursery, session, hunt.folder, beginning)
        second = replace(hunt, session=session, log=log, beginning=beginning)
        toll, _ = second.run(seed, second.points(Random(f"{seed} {left}"), points))
        toll.recoveries = 1
        yield toll


def stale_memory(session: Session, log: list[Call], folder: Path) -> bytes | None:
    """What SQLite had in `-shm` when its log was longest: true once, and not in any other state."""
    disk, longest, tree = Disk(), 0, None
    for call in log:
        disk.apply(call)
        if call.name == "fdatasync" and call.path == f"{STORE}/{CATALOG}-wal":
            size = max(len(file.content) for file in disk.files() if file.name == call.path)
            if size > longest:
                longest, tree = size, disk.tree(disk.changes, {})
    if tree is None:
        return None
    path, copy = lay(tree, folder / "stale"), folder / "shm"

    def read(_say: Say) -> None:
        session.prepare()
        with Store.open(path, "r"):
            # Another process copies it: closing a descriptor of ours would drop the locks of SQLite.
            subprocess.run(["cp", path / f"{CATALOG}-shm", copy], check=True)

    with Child(read) as child:
        assert not list(child.all())
    shutil.rmtree(folder / "stale")
    return copy.read_bytes()


def _counts(call: Call) -> bool:
    """Whether it makes a difference to lose the power before or after this call."""
    return call.name in _CHANGES or (call.name == "open" and bool(call.flags & (os.O_CREAT | os.O_TRUNC)))


def _count(toll: Toll, promise: Promise, step: int) -> None:
    toll.states += 1
    toll.in_doubt += promise.begun
    toll.came_through += promise.begun and step == promise.done
    toll.absent += step == ABSENT


def _digest(tree: Tree) -> int:
    """A checksum of all but what nobody believes."""
    found = 0
    for name, content in sorted(tree.items()):
        if not name.endswith("-shm"):
            found = zlib.crc32(content or b"", zlib.crc32(f"{name} {content is None} ".encode(), found))
    return found
