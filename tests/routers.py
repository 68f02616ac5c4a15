"""Routers that come to harm, each a process of its own: `python -m tests.routers dying CLUSTER ADDRESS PLACE`."""

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import softkv
from softkv.doors.cluster.actors import packed
from softkv.errors import OutOfReach

from .databases import vectors_of
from .raylets import Machines, divert, eventually, held, numbers_of, pid_of

NEW: dict[str, Any] = {"values": numbers_of(12), "vectors": vectors_of(12, seed=4)}


def dying(path: str, address: str, place: str) -> None:
    """Add one batch, and die over another: while a message that writes is under way, or once it is answered."""
    left = itertools.count(int(place), -1)

    def send(way: Any, message: Any, *told: Any, **options: Any) -> Any:
        if options["writes"] and next(left) == 0:
            way.args[0]._found(revive=True).write.remote(packed(message))
            os.kill(os.getpid(), signal.SIGKILL)
        found = way(message, *told, **options)
        if options["writes"] and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    with softkv.open(f"ray:{path}", address=address, wait=60) as db:
        db.add([f"before {place} {number}" for number in range(12)], **NEW)
        print("before", flush=True)
        for shard in range(2):
            divert(db, shard, send)
        db.add([f"{place} {number}" for number in range(12)], **NEW, batch=f"in the middle {place}")
        print("after")


def beheaded(path: str, address: str, disks: str) -> None:
    """Lose Ray with its head under a handle that is open, and open the cluster with the Ray at the address."""
    first = Machines(Path(disks), 1)
    db = held(first, Path(path), shards=1, wait=3.0)
    pid = pid_of(db, 0)
    first.lose()
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    started = time.monotonic()
    try:
        db.lookup(vectors_of(1)[0])
    except OutOfReach:
        print("out of reach", time.monotonic() - started < 30.0, flush=True)
    with softkv.open(f"ray:{path}", address=address, wait=60) as again:
        print(len(again), again.add("new", 1.0, vectors=vectors_of(1)[0]).count, flush=True)


if __name__ == "__main__":
    {one.__name__: one for one in (dying, beheaded)}[sys.argv[1]](*sys.argv[2:])
