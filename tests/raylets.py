"""Machines for tests: raylets on this one, each with the resource of a disk of its own."""

import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.doors.cluster.far import Unanswered
from softkv.doors.cluster.handle import Cluster, create
from softkv.doors.cluster.hosting import Message
from softkv.storage.disk import locks

from .crash import recorder
from .databases import values_of, vectors_of

os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))  # so that none is left in the user's folder
os.environ.setdefault("RAY_AUTH_MODE", "token")
MEMORY = 80 << 20


def eventually(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for something to become so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it has not become so in time"
        time.sleep(0.02)


@dataclass(frozen=True)
class Doing:
    """A message that does something where it is unpacked: in the process of a shard, in the thread that answers it."""

    message: Message
    work: Callable[..., Any]
    given: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.message, self.work, self.given)


def _unpacked(message: Message, work: Callable[..., Any], given: tuple[Any, ...]) -> Message:
    work(*given)
    return message


_armed: list[Any] = []  # as long as it is there, calls are counted


def arm(plan: dict[str, Any]) -> None:
    """Count the calls of this process, and end it at the one of the plan."""
    _armed.append(recorder.recording(plan))
    _armed[-1].__enter__()


def pause(begun: str, go: str) -> None:
    """Say that the thread which answers is held up, and wait until it may go on."""
    Path(begun).touch()
    eventually(Path(go).exists)


def turn_off_locks() -> None:
    """Let this process see no lock of others, as on machines that do not share a kernel."""
    locks.fcntl.flock = lambda *_given: None  # type: ignore[assignment]


def divert(db: Any, shard: int, send: Callable[..., Any]) -> None:
    """Have what is sent to a shard go by this; it is given the way that it would have gone, and the message."""
    sender = db._store._senders[shard]
    sender.send = partial(send, partial(type(sender).send, sender))


class Machines:
    """A head, and one raylet for each disk."""

    def __init__(self, folder: Path, count: int) -> None:
        from ray.cluster_utils import Cluster as Raylets

        self.disks = [folder / f"disk-{number}" for number in range(count)]
        for disk in self.disks:
            disk.mkdir(parents=True, exist_ok=True)
        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        self._raylets: Any = Raylets(initialize_head=True, head_node_args=head)
        self.address: str = self._raylets.address
        self.nodes: list[Any] = [self._node(disk) for disk in self.disks]

    def _node(self, disk: Path) -> Any:
        given = {"num_cpus": 4, "object_store_memory": MEMORY, "resources": {f"disk:{disk}": 1.0}}
        return self._raylets.add_node(wait=False, **given)

    def remove(self, number: int) -> None:
        """Pull the plug of a machine."""
        self._raylets.remove_node(self.nodes[number], allow_graceful=False)

    def bring_back(self, number: int) -> None:
        """A machine with the disk."""
        self.nodes[number] = self._node(self.disks[number])

    def lose(self) -> None:
        """Pull the plug of all of them, the head first."""
        for node in (self._raylets.head_node, *self.nodes):
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def close(self) -> None:
        """Stop them all."""
        import ray

        ray.shutdown()
        self._raylets.shutdown()


@contextmanager
def machines_in(folder: Path, count: int) -> Iterator[Machines]:
    """Some machines, for as long as they are asked for, where no other Ray of this one is found or finds them."""
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as own,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", own)  # a short one: names of sockets have to be
        if not recorder.why_not():
            patch.setenv("LD_PRELOAD", str(recorder.build(Path(own))))
            patch.setenv("RAY_LD_PRELOAD_ON_WORKERS", "1")
        found = Machines(folder, count)
        try:
            yield found
        finally:
            found.close()


def held(machines: Machines, path: Path, *, shards: int = 2, mode: str = "c", wait: float = 60.0) -> Cluster:
    """A cluster whose shards actors hold, made with forty items if it is not there."""
    made = path.exists()
    if not made:
        create(path, shards, machines.disks, value="number", temperature=0.5)
    db: Any = softkv.open(f"ray:{path}", mode, address=machines.address, wait=wait)
    if not made:
        fill(db)
    return db


def fill(db: Cluster) -> None:
    """Have it hold forty items, and no others."""
    db.delete(list(db))
    keys = [f"item {number}" for number in range(40)]
    payloads = [{"n": number, "even": number % 2 == 0} for number in range(40)]
    db.add(keys, values_of("number", 40), vectors=vectors_of(40), payloads=payloads)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pid_of(db: Any, shard: int) -> int:
    """The process of a shard."""
    sender = db._store._senders[shard]
    message = Message(db._store.shards[shard]._terms(), "process")
    for _ in range(600):
        try:
            return int(sender.send(message, 20.0, writes=False, revive=True)[1])
        except Unanswered:
            time.sleep(0.05)
    raise AssertionError("there is no process")


def numbers_of(count: int) -> np.ndarray:
    """Values that tell one from the other."""
    return np.arange(float(count))
