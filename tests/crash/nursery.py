"""The process that forks recorded children: `python -m tests.crash.nursery DESCRIPTOR`, started by recorder.Nursery.

Imports what takes long and opens no store. Runs no threads, so that its children are whole.
"""

import gc
import importlib
import json
import os
import socket
import sys
import tempfile
from functools import partial
from typing import Any

from tests.crash.children import Say, run
from tests.crash.recorder import pretend

WARM = (
    "sqlite3", "numpy", "numpy.random", "softkv", "softkv.database", "softkv.database.indexing", "softkv.storage",
    "softkv.storage.filters.worded", "softkv.storage.filters.searching", "softkv.index.engine", "faiss",
    "tests.crash.canonical", "tests.crash.refusals", "tests.crash.sessions",
)  # fmt: skip


def serve(ear: socket.socket) -> None:
    """Fork a child for each request: first its number goes back, then, when it is gone, its status."""
    for name in WARM:
        importlib.import_module(name)
    pretend()
    _exercise()
    os.environ.pop("LD_PRELOAD", None)  # for us alone
    gc.freeze()  # children share these pages
    ear.send(json.dumps("ready").encode())
    while True:
        request, pipes, _, _ = socket.recv_fds(ear, 1 << 20, 1)
        if not request:
            return
        work, arguments = json.loads(request)
        pid = os.fork()
        if not pid:
            ear.close()
            run(partial(_do, work, arguments), pipes[0])
        os.close(pipes[0])
        ear.send(json.dumps(pid).encode())
        ear.send(json.dumps(os.waitpid(pid, 0)[1]).encode())


def _exercise() -> None:
    """Use a store once, so that children find their statements compiled."""
    from tests.crash.chores import whole_store

    with tempfile.TemporaryDirectory() as folder:
        whole_store(lambda *_: None, os.path.join(folder, "store.softkv"), None)


def _do(work: str, arguments: list[Any], say: Say) -> None:
    """Call what "module:function" names."""
    module, _, function = work.partition(":")
    getattr(importlib.import_module(module), function)(say, *arguments)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
