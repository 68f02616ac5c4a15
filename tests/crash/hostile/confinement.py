"""Try something in a forked child that may not use much time or memory, and tell what became of it.

Memory is limited in two ways: the address space of the child ends 1 GiB above what it had when it was born, so that a
larger wish is refused by the system, and the peak of what it really held is read after every step.
"""

import faulthandler
import os
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from softkv.errors import SoftKVError
from tests.crash.children import Child, Say

MEMORY = 1 << 30  # bytes above what the child was born with
SECONDS = 5.0  # of the processor: others share the machine
PATIENCE = 40.0  # seconds without a word after which a child is stuck: it waits for a pipe, perhaps
_FILE = 1 << 30  # bytes that a file may grow to

Step = Callable[[str, Callable[[], Any]], Any]


@dataclass
class Outcome:
    """What became of the steps of one attempt: how each ended, what was wrong, and what they cost at most."""

    steps: dict[str, str] = field(default_factory=dict)  # "answered", or the name of the error that refused it
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    memory: int = 0

    @property
    def opened(self) -> bool:
        """Whether the first step worked."""
        return next(iter(self.steps.values()), "") == "answered"


def confined(work: Callable[[Step], object], *, files: int = _FILE) -> Outcome:
    """Do this in a child; it hands every step to the function that it is given. No file may grow beyond `files`."""
    found = Outcome()
    with Child(lambda say: _live(work, say, files)) as child:
        try:
            for name, ended, wrong, seconds, memory in child.all(PATIENCE):
                found.steps[name] = ended
                found.wrong += [f"{name}: {wrong}"] if wrong else []
                found.seconds, found.memory = max(found.seconds, seconds), max(found.memory, memory)
        except AssertionError as stuck:
            found.wrong.append(f"after {list(found.steps)}: {stuck}")
        child.kill()
        if os.WIFSIGNALED(child.status) and not found.wrong:
            found.wrong.append(f"after {list(found.steps)}: ended by {signal.Signals(os.WTERMSIG(child.status)).name}")
    return found


def _live(work: Callable[[Step], object], say: Say, files: int) -> None:
    faulthandler.disable()  # else every signal prints a page
    warnings.simplefilter("ignore", RuntimeWarning)  # of numbers at the end of their range
    _limit(files)
    work(lambda name, thing: _step(say, name, thing))


def _limit(files: int) -> None:
    import faiss

    faiss.omp_set_num_threads(1)  # the threads of the parent did not come along
    size = _status("VmSize:")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
    resource.setrlimit(resource.RLIMIT_FSIZE, (files, files))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _step(say: Say, name: str, thing: Callable[[], Any]) -> Any:
    """One step: its result, or None when it was refused or went wrong."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew
    before, started, result, wrong = _status("VmRSS:"), time.process_time(), None, ""
    try:
        result, ended = thing(), "answered"
    except SoftKVError as error:
        ended = type(error).__name__
        if not str(error).strip():
            wrong = f"{ended} says nothing"
    except BaseException as error:
        ended = type(error).__name__
        wrong = f"{ended} leaked: {str(error)[:300]}\n{traceback.format_exc(limit=-6)[-3000:]}"
    seconds, memory = time.process_time() - started, _status("VmHWM:") - before
    if seconds > SECONDS:
        wrong += f" took {seconds:.1f} s"
    if memory > MEMORY:
        wrong += f" took {memory >> 20} MiB"
    say(name, ended, wrong, seconds, memory)
    return result


def _status(name: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))
