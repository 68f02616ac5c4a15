"""Put one case on trial: make it, try everything with it, compare what lies around it with what lay there before."""

import hashlib
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.hostile.attempts import ATTEMPTS
from tests.crash.hostile.cases import Attempt, Case
from tests.crash.hostile.confinement import Outcome, confined

_HASHED = 1 << 24  # bytes; of larger files, which are sparse, only size and time are compared
WRITING = ("write", "changed")  # attempts that open a store for writing, and may change it
_OF_SQLITE = ("-shm", "-wal")


@dataclass
class Verdict:
    """What was wrong with a case, and what its attempts came to."""

    case: Case
    wrong: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of the slowest step."""
        return max((one.seconds for one in self.outcomes.values()), default=0.0)

    @property
    def memory(self) -> int:
        """Of the largest step."""
        return max((one.memory for one in self.outcomes.values()), default=0)

    @property
    def refused(self) -> bool:
        """Whether any step was refused."""
        return any(step != "answered" for one in self.outcomes.values() for step in one.steps.values())


def tried(case: Case, folder: Path, templates: Path) -> Verdict:
    """Try a case in a new folder, which is removed afterwards."""
    found = Verdict(case)
    folder.mkdir()
    try:
        _prepare(case, folder, templates)
        if made := confined(lambda step: step("make", lambda: case.make(folder)), files=-1).wrong:
            found.wrong += made
            return found
        for attempt in case.attempts:
            _attempt(found, attempt, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _prepare(case: Case, folder: Path, templates: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "out").mkdir()
    (folder / "elsewhere" / "victim").write_bytes(b"precious\n" * 1000)
    if case.template is not None:
        shutil.copytree(templates / "number", folder / "elsewhere" / "other")
        shutil.copytree(templates / case.template, folder / "s")


def _attempt(found: Verdict, attempt: str | Attempt, folder: Path) -> None:
    name = attempt if isinstance(attempt, str) else attempt.__name__
    trying = ATTEMPTS[attempt] if isinstance(attempt, str) else attempt
    before, inside = footprint(folder, but="s"), footprint(folder / "s")
    outcome = found.outcomes[name] = confined(lambda step: trying(folder, step))
    wrong = list(outcome.wrong)
    if footprint(folder, but="s") != before:
        wrong.append(f"something outside has changed: {difference(before, footprint(folder, but='s'))}")
    if (name not in WRITING or not outcome.opened) and footprint(folder / "s") != inside:
        wrong.append(f"something inside has changed: {difference(inside, footprint(folder / 's'))}")
    expected = found.case.refused
    if expected is not None and name in ("read", "write") and outcome.opened == expected:
        wrong.append(f"{'was opened' if outcome.opened else f'was refused: {outcome.steps}'}, which is not expected")
    found.wrong += [f"{name}: {one}" for one in wrong]


def footprint(folder: Path, but: str = "") -> dict[str, object]:
    """What lies in a folder: kind, size, and bytes of every name in it. LOCK says who came last, and is information."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split(os.sep)[0] in (but, "out") or name == "LOCK" or "/.out" in name:
            continue
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        if name.endswith(_OF_SQLITE) and (name.endswith("-shm") or not status.st_size):
            continue
        if not stat.S_ISREG(kind):
            found[name] = (kind, os.readlink(path) if stat.S_ISLNK(kind) else None)
        elif status.st_size > _HASHED:
            found[name] = (status.st_size, status.st_mtime_ns)
        else:
            found[name] = (status.st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def difference(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """The names that are new, gone or different."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
