"""Put a store down as damage left it, ask it, write to it, and say what came of it."""

import os
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import softkv
from softkv.errors import SoftKVError, StoreError
from softkv.storage import check
from tests.crash.children import Child, Say
from tests.crash.damage import Damage
from tests.crash.originals import Files, Original, alone
from tests.crash.questions import Error, Outcomes, crashes, differing, outcomes

MEMORY = 2 << 30  # bytes more than the child has when it begins
SECONDS = 5  # of computing, for one damage
VALUES: dict[str, Any] = {"number": 1.5, "vector": [1.0, 2.0, 3.0], "label": "colour 1", "text": "the sea"}


@dataclass
class Verdicts:
    """How many damages ended how; those that should not are told one by one."""

    counts: Counter[str] = field(default_factory=Counter)
    seen_by_check: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        told = [f"  only check sees: {what} ({count})" for what, count in self.seen_by_check.most_common()]
        return "\n".join(
            [f"{sum(self.counts.values())} damages: {counted}", *told, *(f"  WRONG: {one}" for one in self.wrong)]
        )


def judged(original: Original, damages: Sequence[Damage], folder: Path, *, writing: float = 1.0) -> Verdicts:
    """What came of each damage; of a share of them also when the store is written to."""
    verdicts, start = Verdicts(), 0
    while start < len(damages):
        start = _judge_from(original, damages, start, folder, writing, verdicts)
    return verdicts


def _judge_from(
    original: Original, damages: Sequence[Damage], start: int, folder: Path, writing: float, verdicts: Verdicts
) -> int:
    """Go on from a damage in a new child; returns where the next one has to go on."""
    at = start
    with Child(lambda say: _work(original, damages[start:], folder, writing, say)) as child:
        try:
            for said, *what in child.all():
                if said == "at":
                    at = start + what[0]
                elif said == "count":
                    verdicts.counts[what[0]] += 1
                    verdicts.seen_by_check.update(what[1])
                else:
                    verdicts.wrong.append(f"{damages[at]}: {what[0]}")
        except AssertionError as error:  # it failed, or has not been heard of for a long time
            verdicts.wrong.append(f"{damages[at]}: {error}")
            verdicts.counts["failed"] += 1
            return at + 1
        status = child.wait()
    if status:
        number = os.WTERMSIG(status)
        verdicts.wrong.append(f"{damages[at]}: {'hung' if number == signal.SIGPROF else f'died of signal {number}'}")
        verdicts.counts["died"] += 1
        return at + 1
    return len(damages)


def _work(original: Original, damages: Sequence[Damage], folder: Path, writing: float, say: Say) -> None:
    alone()
    asked = _Asked(original, folder)
    _limit_memory()
    for number, damage in enumerate(damages):
        say("at", number)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        asked.judge(damage, say, write=int(number * writing) != int((number + 1) * writing))
    signal.setitimer(signal.ITIMER_PROF, 0)
    shutil.rmtree(folder)


def _limit_memory() -> None:
    if os.path.exists("/proc/self/statm"):
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))


class _Asked:
    """The whole store's answers, before and after one item is added, and what a damaged one says beside them."""

    def __init__(self, original: Original, folder: Path) -> None:
        self.original, self.folder = original, folder
        laid(original.whole, folder)
        with softkv.open(folder, "r") as db:
            self.names = list(db)
        self.whole = outcomes(folder, self.names)
        assert not [one for one in self.whole.values() if isinstance(one, Error)], self.whole
        self.add()
        self.grown = outcomes(folder, [*self.names, "added"])
        assert differing(self.whole, self.grown)

    def add(self) -> None:
        """Add one item, as any writer would."""
        kind = self.original.recipe.kind
        with softkv.open(self.folder, "w") as db:
            db.add("added", VALUES[kind], vectors=[0.5, -0.5, 0.25, 1.0], payloads={"n": 45})

    def judge(self, damage: Damage, say: Say, *, write: bool) -> None:
        """Ask, and write."""
        laid(damage.change(self.original.whole), self.folder)
        found = outcomes(self.folder, self.names)
        ending, unseen = self.verdict(damage, self.whole, found, say)
        if write:
            try:
                self.add()
            except StoreError:
                ending += ", not written to"
            except SoftKVError as error:
                say("wrong", f"writing: {type(error).__name__}: {error}")
            else:
                then, more = self.verdict(damage, self.grown, outcomes(self.folder, [*self.names, "added"]), say)
                ending, unseen = f"{ending}, then {then}" if then != ending else ending, [*unseen, *more]
        say("count", ending, sorted(set(unseen)))

    def verdict(self, damage: Damage, whole: Outcomes, found: Outcomes, say: Say) -> tuple[str, list[str]]:
        """How it ended, and what was answered otherwise that only a check knows to be wrong."""
        try:
            report = check(self.folder)
            finding = not report.ok
        except StoreError:
            finding = True
        for crash in crashes(found):
            say("wrong", f"Traceback {crash}")
        wrong = differing(whole, found)
        if wrong and not finding:
            told = {name: (whole[name], found[name]) for name in wrong[:2]}
            say("wrong", f"believed, and a check is content: {wrong}, such as {told}"[:1500])
            return "BELIEVED", []
        if wrong:
            return "different and found by a check", [
                f"{damage.file.split('/')[0]} {'get' if name.startswith('get ') else name}" for name in wrong
            ]
        if "open" in found:
            return "refused", []
        errors = sum(isinstance(one, Error) for one in found.values())
        return "some refused" if errors else "as whole", []


def laid(files: Files, folder: Path) -> None:
    """Put these files down, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for part in {name.rpartition("/")[0] for name in files if "/" in name}:
        (folder / part).mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
