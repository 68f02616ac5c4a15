"""Where canonical workloads are played: a store prepared once for each, a copy of it for each run, and the counters."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from tests.crash import calls, rules
from tests.crash.calls import Call
from tests.crash.canonical import NAMES, Canon
from tests.crash.recorder import Nursery, Plan, sqlite_is_told
from tests.crash.rows import KINDS

One = TypeVar("One")


def canons(random: Random) -> list[Canon]:
    """The workloads, each on a store of some kind."""
    kinds = [random.choice(KINDS) for _ in NAMES]
    kinds[NAMES.index("build index")] = random.choice(["number", "vector", "label"])
    kinds[NAMES.index("note")] = random.choice(["vector", "label"])
    return [Canon(name, kind, random.random() < 0.5) for name, kind in zip(NAMES, kinds, strict=True)]


def share(these: Iterable[One], count: int, random: Random) -> list[One]:
    """About so many of them, evenly spread from a place by chance; all of them for 0."""
    everything = list(these)
    step = max(1.0, len(everything) / count) if count else 1.0
    start = random.random() * step
    return [everything[int(start + step * i)] for i in range(int((len(everything) - start - 1e-9) / step) + 1)]


@dataclass
class Stage:
    """One workload, played again and again."""

    nursery: Nursery
    folder: Path
    canon: Canon
    disk: Path | None = None  # where the store lies, when not in the folder
    counted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._prepared, self._log = self.folder / "prepared", self.folder / "log"
        self._prepared.mkdir(parents=True)
        with self.nursery.child("tests.crash.canonical:prepare", self._prepared / "s.softkv", *self.canon.given) as one:
            assert list(one.all()) == []
            assert killed(one.wait()) == (self.canon.name == "open")

    @property
    def path(self) -> Path:
        """The store of this run."""
        return (self.disk or self.folder) / "watched" / "s.softkv"

    def set(self) -> None:
        """Put a fresh copy of the prepared store in place."""
        shutil.rmtree(self.path.parent, ignore_errors=True)
        shutil.copytree(self._prepared, self.path.parent)

    def play(
        self, work: str, *arguments: Any, logged: bool = True, **plan: Any
    ) -> tuple[int, list[list[Any]], list[Call]]:
        """Do a piece of work under a plan: the status of the process, what it said, and its calls."""
        self._log.unlink(missing_ok=True)
        given = Plan(str(self.path.parent), str(self._log) if logged else "", **plan)
        with self.nursery.child(work, self.path, given, *arguments, *self.canon.given) as child:
            said = list(child.all())
            status = child.wait()
        log = calls.read(self._log) if self._log.exists() else []
        broken = rules.broken(log, told=sqlite_is_told())
        assert not broken, broken
        return status, said, log


def killed(status: int) -> bool:
    """Whether a process was killed, by itself in our case."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
