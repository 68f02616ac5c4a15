"""Run a piece of work in a fresh child whose calls of the operating system are written down, refused, or its end.

A `Nursery` is a process that is started once, with shim.c preloaded and everything imported that takes long, and with
no store open. It forks a child for each piece of work, one after the other:

    def work(say, path, plan):                      # a function of a module, with JSON as arguments
        with Store.open(path, "w") as store:
            with recording(plan):                   # from here on every call below plan.folder counts
                mark("begin add")                   # a line of its own in the log
                store.append([[1.0]], [1.0])
                mark("done add")
            say("well")                             # heard by the test

    with nursery.child("tests.crash.somewhere:work", path, Plan(folder, log)) as child:
        print(child.hear(), child.wait())           # ["well"] and the status of the process
    for call in calls.read(log): ...

`Plan(folder, log, fatal=7, moment=BEFORE)` kills it before its seventh call; `Plan(folder, log, failing=7,
error=errno.ENOSPC, sticky=True)` lets the seventh call fail, if it is one of KINDS[error], and all such calls after it
until `relent()`; with `error=SHORT` they write half of what they should. Calls are numbered from 1, marks included.

Syncs of its children are recorded and can fail, but only pretend: here processes die, and the power stays.

For 64-bit Linux with gcc; elsewhere the fixture `nursery` skips, with the reason.
"""

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.crash.calls import NAMES
from tests.crash.children import PATIENCE, Child

LIVES, BEFORE, AFTER, MIDWAY = range(4)  # when it dies: midway is after half of the bytes of a write
SHORT = -1  # instead of an errno: half of the bytes
SPACE = ("open", "write", "truncate", "fsync", "fdatasync", "mkdir", "rename")
KINDS = {  # what can fail in which way: an open only when it makes a file, a truncate for want of space when it grows
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EIO: (*SPACE, "unlink", "rmdir"),
    errno.EROFS: (*SPACE, "unlink", "rmdir"),
    SHORT: ("write",),
}


class _Plan(ctypes.Structure):
    """`struct plan` in shim.c."""

    _fields_ = (
        ("folder", ctypes.c_char_p), ("sqlite", ctypes.c_void_p), ("fatal", ctypes.c_int64),
        ("failing", ctypes.c_int64), ("log", ctypes.c_int32), ("moment", ctypes.c_int32), ("error", ctypes.c_int32),
        ("sticky", ctypes.c_int32), ("kinds", ctypes.c_uint32), ("bare", ctypes.c_int32),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is written down of a process, and what happens to it."""

    folder: str  # of which every call is written down
    log: str = ""  # the file to write to; none when empty
    fatal: int = 0  # the number of the call at which it dies
    moment: int = LIVES
    failing: int = 0  # the number of the call that fails
    error: int = 0  # an errno, or SHORT
    sticky: bool = False  # whether all such calls from that one on fail, until it relents
    bare: bool = False  # whether the log leaves out what was written

    @property
    def given(self) -> dict[str, Any]:
        """As it travels to the child."""
        return dataclasses.asdict(self)


# In the child


@contextlib.contextmanager
def recording(plan: "Plan | dict[str, Any] | None") -> Iterator[None]:
    """Inside, all calls below the folder of the plan are written down; without a plan nothing is."""
    if plan is None:
        yield
        return
    if isinstance(plan, dict):
        plan = Plan(**plan)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(plan.log, flags, 0o666) if plan.log else -1
    kinds = sum(1 << NAMES.index(name) for name in KINDS.get(plan.error, ()))
    armed = _Plan(
        os.fsencode(os.path.realpath(plan.folder)), _sqlite_address() if sqlite_is_told() else None, plan.fatal,
        plan.failing, log, plan.moment, plan.error, plan.sticky, kinds, plan.bare,
    )  # fmt: skip
    assert _shim().softkv_recorder_arm(ctypes.byref(armed)) == ctypes.sizeof(armed), "Plan and struct plan disagree"
    try:
        yield
    finally:
        _shim().softkv_recorder_disarm()
        if log >= 0:
            os.close(log)


def mark(text: str) -> None:
    """Say in the log what the workload is at; does nothing where nothing is recorded."""
    _shim().softkv_recorder_mark(text.encode())


def relent() -> None:
    """The space is back: nothing fails any more."""
    _shim().softkv_recorder_relent()


def counted() -> int:
    """How many calls there have been."""
    return int(_shim().softkv_recorder_count())


def pretend() -> None:
    """Let all syncs of this process and its children pretend: no power is lost here, only time."""
    _shim().softkv_recorder_pretend()


def _shim() -> Any:
    shim = ctypes.CDLL(None)  # preloaded, so its names are among those of the process
    shim.softkv_recorder_count.restype = ctypes.c_int64
    return shim


def _sqlite_address() -> int:
    import _sqlite3

    function = ctypes.CDLL(_sqlite3.__file__).sqlite3_libversion  # of the very library that _sqlite3 is linked with
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def sqlite_is_told() -> bool:
    """Whether SQLite's calls can be told from Python's: not where both are linked into one file."""
    try:
        interpreter = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0
        return _file_of(_sqlite_address()) != _file_of(interpreter)
    except (AttributeError, ImportError, OSError):  # built in, or its names are hidden
        return False


def _file_of(address: int) -> str:
    """The file that is mapped at an address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, _, high = line.split(maxsplit=1)[0].partition("-")
            if int(low, 16) <= address < int(high, 16):
                return line.split(maxsplit=5)[5].strip()
    raise OSError(f"nothing is mapped at {address:#x}")


# In the test


def why_not() -> str:
    """Why nothing can be recorded here; empty when it can."""
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return "calls are recorded on 64-bit Linux only"
    return "" if shutil.which("gcc") else "there is no gcc to build the recorder with"


def build(folder: Path) -> Path:
    """The preloadable library, built in this folder."""
    source, library = Path(__file__).with_name("shim.c"), folder / "shim.so"
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


class Nursery:
    """A process without a store that forks children which are recorded, one after the other."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **alone, "LD_PRELOAD": str(build(folder))}
        command = [sys.executable, "-m", "tests.crash.nursery", str(theirs.fileno())]
        root = Path(__file__).parents[2]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, cwd=root)
        ours.settimeout(PATIENCE)
        self._socket = ours
        assert self._receive() == "ready"

    def child(self, work: str, *arguments: Any) -> "RecordedChild":
        """Run `work` ("module:function") in a child; plans and paths among the arguments arrive as JSON."""
        reading, writing = os.pipe()
        given = [argument.given if isinstance(argument, Plan) else argument for argument in arguments]
        request = json.dumps([work, given], default=str).encode()
        try:
            socket.send_fds(self._socket, [request], [writing])
        finally:
            os.close(writing)
        return RecordedChild(self, int(self._receive()), reading)

    def status(self) -> int:
        """The status of the last child, which is waited for."""
        return int(self._receive())

    def _receive(self) -> Any:
        received = self._socket.recv(1 << 16)
        assert received, "the nursery has died"
        return json.loads(received)

    def close(self) -> None:
        """No more children."""
        self._socket.close()
        self._process.wait(PATIENCE)


class RecordedChild(Child):
    """A child of the nursery, heard like one of our own. The next one is born when this one has been waited for."""

    def __init__(self, nursery: Nursery, pid: int, reading: int) -> None:
        self._nursery, self.pid = nursery, pid
        self._pipe, self._heard, self.status = reading, b"", -1

    def kill(self) -> None:
        """End it the hard way, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):  # the nursery may have seen it go before
            self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait until it is gone; returns the status."""
        if self.status < 0:
            self.status = self._nursery.status()
        return self.status
