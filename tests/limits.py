"""What a system can run out of: small disks that fill up, files that may not grow, files that can be opened."""

import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own that is soon full; skips the test where mounting is not permitted."""
    path.mkdir()
    if sys.platform != "linux" or not _mounts("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)):
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Mount a small disk so that nothing on it can be changed, for a while."""
    assert _mounts("-o", "remount,ro", str(disk))
    try:
        yield
    finally:
        assert _mounts("-o", "remount,rw", str(disk))


def _mounts(*options: str) -> bool:
    return not subprocess.run(["mount", *options], capture_output=True, check=False).returncode


def fill(path: Path, spare: int = 0) -> None:
    """Write a file until the disk is full, or has only so much to spare."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
        assert os.statvfs(path).f_bavail == 0
        file.truncate(file.tell() - spare)


@contextmanager
def short_files(size: int) -> Iterator[None]:
    """No file of this process may have more bytes than this, for a while."""
    with _limit(resource.RLIMIT_FSIZE, size):
        yield


@contextmanager
def few_files(spare: int) -> Iterator[None]:
    """This process can open only so many more files, for a while."""
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in itertools.count() if number not in used)
    with _limit(resource.RLIMIT_NOFILE, next(itertools.islice(free, spare, None))):
        yield


@contextmanager
def _limit(kind: int, most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def open_files(directory: Path) -> list[str]:
    """The files below a directory that this process has open, by descriptors or by maps."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(path for path in found if path.startswith(f"{directory}{os.sep}"))
