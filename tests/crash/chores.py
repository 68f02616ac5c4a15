"""Small pieces of work for recorded children: what tests/crash/test_recorder.py knows how to judge."""

import os
import threading
from typing import Any

from softkv.errors import SoftKVError
from softkv.storage import Store
from tests.crash.canonical import Canon
from tests.crash.children import Say
from tests.crash.recorder import counted, mark, recording, relent
from tests.crash.rows import append


def four_bytes(say: Say, folder: str, plan: dict[str, Any]) -> None:
    """Make a file and write to it four times; says how many bytes each write wrote, or its errno."""
    with recording(plan):
        descriptor = os.open(os.path.join(folder, "file"), os.O_RDWR | os.O_CREAT)
        for number in range(4):
            say(_tried(lambda at=number: os.pwrite(descriptor, b"abcd", 4 * at)))
        os.close(descriptor)
    say("counted", counted())


def space_returns(say: Say, folder: str, plan: dict[str, Any]) -> None:
    """Run out of space and into it again."""
    with recording(plan):
        say(_tried(lambda: os.mkdir(os.path.join(folder, "one"))))
        relent()
        say(_tried(lambda: os.mkdir(os.path.join(folder, "two"))))


def every_way(say: Say, folder: str, plan: dict[str, Any]) -> None:
    """Change a folder in every way that is recorded."""
    os.chdir(folder)
    with recording(plan):
        os.mkdir("a")
        inner = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
        os.mkdir("b", dir_fd=inner)
        one = os.open("./a//b/../one", os.O_RDWR | os.O_CREAT)
        os.write(one, b"plain")
        os.writev(one, [b"in", b"", b" pieces"])
        os.pwritev(one, [b"P"], 0)
        os.ftruncate(one, 3)
        os.posix_fallocate(one, 0, 9)
        copy = os.dup(one)
        os.close(one)
        os.rename(os.path.join(folder, "a", "one"), "a/two")
        os.pwrite(copy, b"moved", 4)
        with open("a/two", "ab", buffering=0) as appended:
            appended.write(b"end")
        os.truncate("a/two", 10)
        with open("three", "wb") as buffered:
            buffered.write(b"x" * 10_000)
        os.unlink("three")
        os.rename("a/two", "two", src_dir_fd=None, dst_dir_fd=None)
        os.rmdir("b", dir_fd=inner)
        os.fsync(inner)
        os.fdatasync(copy)
        os.close(copy)
    say("well")


def threads(say: Say, folder: str, plan: dict[str, Any]) -> None:
    """Write the same file from several threads, each its own bytes in its own place and all in one."""

    def scribble(number: int) -> None:
        for turn in range(50):
            os.pwrite(descriptor, bytes([turn]), 1 + number)
            os.pwrite(descriptor, bytes([number]), 0)

    with recording(plan):
        descriptor = os.open(os.path.join(folder, "file"), os.O_RDWR | os.O_CREAT)
        started = [threading.Thread(target=scribble, args=(number,)) for number in range(4)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    say("well")


def whole_store(say: Say, path: str, plan: dict[str, Any]) -> None:
    """Make a store, change it in several ways, and close it; marks say what was acknowledged."""
    with recording(plan):
        mark("begin open")
        with Store.open(path, "c") as store:
            mark("done open")
            mark("begin add")
            store.append([[1.0, 2.0]] * 3, [1.0, 2.0, 3.0], keys=["a", "b", "c"])
            mark("done add")
            store.delete("a")
            store.put_index("names", b"b c")
            store.compact()
    say("well")


def bad_manners(say: Say, path: str, plan: dict[str, Any]) -> None:
    """Do to a store what nobody may: map it for writing, open the catalog, sync again, commit what is not synced."""
    import mmap

    from softkv.storage.disk import files

    with recording(plan), Store.open(path, "w") as store:
        keys = os.path.join(path, "generation-000002", "keys.f32")
        with open(keys, "r+b") as file:
            mmap.mmap(file.fileno(), 0)
        os.close(os.open(os.path.join(path, "catalog.sqlite"), os.O_RDONLY))
        files.sync = lambda _descriptor, _path: None
        store.append([[1.0, 2.0]], [4.0], keys=["d"])
    say("well")


def stubborn(say: Say, path: str, plan: dict[str, Any]) -> None:
    """Sync a file until it works."""
    with recording(plan):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        say(_tried(lambda: os.fdatasync(descriptor)))
        say(_tried(lambda: os.fdatasync(descriptor)))


def half_a_batch(say: Say, path: str, plan: dict[str, Any], *given: Any) -> None:
    """Write the first half of what a workload should write at once, and die."""
    canon = Canon(*given)
    operation, half = canon.operation, len(canon.operation.keys) // 2
    with Store.open(path, "w") as store, recording(plan):
        append(store, canon.kind, operation.keys[:half], operation.proofs[:half])
        os._exit(1)


def _tried(action: Any) -> Any:
    try:
        return action()
    except OSError as error:
        return ["errno", error.errno]
    except SoftKVError as error:
        return type(error).__name__
