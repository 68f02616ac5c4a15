"""What becomes of a workload when the system refuses a call: the part that runs in a recorded child.

Whatever is refused, and however long: an error of ours, of the right kind, or success; nothing half done; readers that
go on; and a next write that works once there is space again, with the same handle unless it says that it is done.
"""

import contextlib
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softkv.errors import HandleUnusable, SoftKVError, StoreError
from softkv.storage import Store
from tests.crash.canonical import (
    COPYING,
    Canon,
    act,
    agrees,
    copied_again,
    goes_on,
    opened,
    windows,
    write_more,
)
from tests.crash.children import Say
from tests.crash.recorder import mark, recording, relent
from tests.crash.workload import differences
from tests.limits import few_files, fill, open_files, short_files


def attempt(say: Say, path: str, plan: dict[str, Any], *given: Any) -> None:
    """Do the workload while the recorder refuses something; says what came of it, and whether the handle was done."""
    _endure(say, path, plan, Canon(*given), lambda: None, relent)


def attempt_with_short_files(say: Say, path: str, plan: dict[str, Any], size: int, *given: Any) -> None:
    """Do it while no file may have more bytes than this."""
    with contextlib.ExitStack() as limit:
        _endure(say, path, plan, Canon(*given), lambda: limit.enter_context(short_files(size)), limit.close)


def attempt_with_few_files(say: Say, path: str, plan: dict[str, Any], spare: int, *given: Any) -> None:
    """Do it while only so many more files can be opened."""
    with contextlib.ExitStack() as limit:
        _endure(say, path, plan, Canon(*given), lambda: limit.enter_context(few_files(spare)), limit.close)


def attempt_on_full_disk(say: Say, path: str, plan: dict[str, Any], spare: int, *given: Any) -> None:
    """Do it while the disk has only so many bytes to spare."""
    filler = Path(path).parent / "filler"
    _endure(say, path, plan, Canon(*given), lambda: fill(filler, spare), filler.unlink)


def _endure(
    say: Say, path: str, plan: dict[str, Any], canon: Canon, refuse: Callable[[], object], lift: Callable[[], object]
) -> None:
    with windows(canon):
        handle = opened(path, canon)
        with recording(plan):
            refuse()
            handle, outcome, reason = tried(handle, path, canon)
            done = None if outcome == "CommitUncertain" else outcome == "done"
            store = getattr(handle, "_store", handle)
            usable = _reads(path, store, canon, done=done)
            lift()
            say("outcome", outcome, reason)
            say("usable", usable)
            _goes_on_after(path, handle, canon, done=done)
        del handle, store
        gc.collect()
        left = open_files(Path(path))
        assert not left, f"{left} are still open"


def tried(handle: Any, path: str, canon: Canon) -> tuple[Any, str, str]:
    """Do it: the handle that is open then, if there is one, and "done" or what our error is called and says."""
    mark("begin")
    try:
        handle = act(handle, path, canon)
    except SoftKVError as error:
        mark("gave up")
        return handle, type(error).__name__, str(error)
    mark("done")
    return handle, "done", ""


def _reads(path: str, store: Store | None, canon: Canon, *, done: bool | None) -> bool:
    """Whether the handle can be used; what it, and a new reader, say must be right, if they can say anything."""
    usable = store is not None
    try:
        if store is not None:
            _, wrong = agrees(store, canon, done=done, copies=False)
            assert not wrong, f"the same handle says {wrong}"
    except HandleUnusable:
        usable = False
    except StoreError as error:
        if "open" not in str(error):  # files, of which no more can be opened
            raise
    try:
        with Store.open(path, "r") as reader:
            _, wrong = agrees(reader, canon, done=done, copies=False)
            assert not wrong, f"a new reader says {wrong}"
    except StoreError as error:
        # Nobody has the catalog open, so that a reader must make files beside it; or files cannot be opened at all.
        left = os.path.exists(os.path.join(path, "catalog.sqlite-shm"))
        shared = left and canon.name not in ("open", "migrate", "close", *COPYING)
        if shared and "open" not in str(error):
            raise
    return usable


def _goes_on_after(path: str, handle: Any, canon: Canon, *, done: bool | None) -> None:
    """Once nothing is refused any more: write with this handle, unless it is done, and with a new one."""
    store, expected = getattr(handle, "_store", handle), None
    if store is not None:
        try:
            if done is not None:
                if canon.name in COPYING:
                    _, wrong = agrees(store, canon, done=done)
                    assert not wrong, f"once nothing is refused, the copies say {wrong}"
                    copied_again(store, canon)
                expected = write_more(store, canon, done=done)
        except HandleUnusable:
            pass
        handle.close()
    if expected is None:
        with Store.open(path, "r") as reader:
            done, wrong = agrees(reader, canon, done=done)
        assert not wrong, f"once it is closed, a reader says {wrong}"
        goes_on(Store.open(path, "w"), canon, done)
        return
    with Store.open(path, "w") as again, again.snapshot() as snapshot:
        wrong = differences(snapshot, expected)
        report = again.check()
        assert not wrong, f"another handle says {wrong}"
        assert report.ok, report
        assert not report.notes, report
