"""The recorder sees every call, in order, SQLite's included; and stops, refuses and cuts short where it is told to."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import calls
from tests.crash.calls import Call
from tests.crash.recorder import AFTER, BEFORE, MIDWAY, SHORT, Nursery, Plan, sqlite_is_told
from tests.stores import bytes_of

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that is watched."""
    made = tmp_path / "watched"
    made.mkdir()
    return made


@pytest.fixture
def heard(nursery: Nursery, tmp_path: Path, folder: Path) -> Callable[..., tuple[int, list[list[object]], list[Call]]]:
    """Do a chore under a plan: its status, what it said, and its calls."""

    def run(chore: str, where: Path = folder, **plan: object) -> tuple[int, list[list[object]], list[Call]]:
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        with nursery.child(f"tests.crash.chores:{chore}", where, Plan(str(folder), str(log), **plan)) as child:
            said = list(child.all())
            status = child.wait()
        return status, said, calls.read(log)

    return run


def replayed(log: list[Call], folder: Path) -> None:
    """Do in this folder what the log says was done in the other, with other calls than those that were recorded."""
    for call in log:
        path = folder / call.path
        if call.error or call.path.endswith(" (deleted)"):
            continue
        if call.name == "mkdir":
            path.mkdir()
        elif call.name == "open" and call.flags & os.O_CREAT:
            path.touch()
        elif call.name == "write":
            with open(path, "r+b") as file:
                file.seek(call.offset)
                file.write(call.data)
        elif call.name == "truncate":
            os.truncate(path, call.length)
        elif call.name == "rename":
            path.rename(folder / call.target)
        elif call.name == "unlink":
            path.unlink()
        elif call.name == "rmdir":
            path.rmdir()
        if call.name == "open" and call.flags & os.O_TRUNC:
            os.truncate(path, 0)


def test_replaying_the_calls_gives_the_folder(heard: Callable[..., tuple], folder: Path, tmp_path: Path) -> None:
    """Every way to change a folder is seen, with its bytes, its place and its name at the time."""
    status, said, log = heard("every_way")
    assert (status, said) == (0, [["well"]])
    (tmp_path / "again").mkdir()
    replayed(log, tmp_path / "again")
    assert bytes_of(tmp_path / "again") == bytes_of(folder) == {"two": b"Pla\0movede"}
    assert {call.name for call in log} == set(calls.NAMES) - {"mark", "flock", "mmap", "sync_file_range"}


def test_replaying_the_calls_gives_the_store(heard: Callable[..., tuple], folder: Path, tmp_path: Path) -> None:
    """All that storage and SQLite do to a store is seen, and the marks between."""
    status, _, log = heard("whole_store", folder / "store.softkv")
    assert status == 0
    (tmp_path / "again").mkdir()
    replayed(log, tmp_path / "again")
    assert bytes_of(tmp_path / "again") == bytes_of(folder)
    assert [call.target for call in log if call.name == "mark"] == ["begin open", "done open", "begin add", "done add"]
    assert [call.number for call in log] == list(range(1, len(log) + 1))
    shm = {call.flags for call in log if call.name == "mmap" and call.path.endswith("-shm")}
    assert shm == {3 | 1 << 8}  # for reading and writing, shared


def test_the_calls_of_sqlite_are_told_from_ours(heard: Callable[..., tuple], folder: Path) -> None:
    """SQLite's are those on the catalog, and the syncs of the directory it lies in."""
    if not sqlite_is_told():
        pytest.skip("SQLite is linked into the interpreter here")
    _, _, log = heard("whole_store", folder / "store.softkv")
    for call in log:
        if "catalog.sqlite" in call.path:
            assert call.sqlite, call
        elif "/" in call.path:
            assert not call.sqlite, call
    assert sum(call.sqlite for call in log) > 100


@pytest.mark.parametrize(("moment", "written"), [(BEFORE, 8), (MIDWAY, 10), (AFTER, 12)])
def test_it_dies_at_the_call(heard: Callable[..., tuple], folder: Path, moment: int, written: int) -> None:
    """It dies before it, in the middle of its bytes, or after it and before anybody knows."""
    status, said, log = heard("four_bytes", fatal=4, moment=moment)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert said == [[4], [4]]
    assert (folder / "file").stat().st_size == written
    assert len(log) == 3 + (moment != BEFORE)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_call_fails_once_or_from_then_on(heard: Callable[..., tuple], folder: Path, error: int) -> None:
    """It has the errno of the plan, and does nothing."""
    refused = ["errno", error]
    _, said, log = heard("four_bytes", failing=3, error=error)
    assert said == [[4], [refused], [4], [4], ["counted", 6]]
    assert [call.error for call in log] == [0, 0, error, 0, 0, 0]
    assert (folder / "file").read_bytes() == b"abcd\0\0\0\0abcdabcd"
    _, said, _ = heard("four_bytes", failing=3, error=error, sticky=True)
    assert said == [[4], [refused], [refused], [refused], ["counted", 6]]


def test_a_write_is_cut_short(heard: Callable[..., tuple], folder: Path) -> None:
    """Half of its bytes are written, and the caller is told so."""
    _, said, log = heard("four_bytes", failing=3, error=SHORT)
    assert said == [[4], [2], [4], [4], ["counted", 6]]
    assert (log[2].length, log[2].data, log[2].error) == (2, b"ab", 0)
    assert (folder / "file").read_bytes() == b"abcdab\0\0abcdabcd"


def test_space_returns(heard: Callable[..., tuple]) -> None:
    """What failed until then works again."""
    _, said, _ = heard("space_returns", failing=1, error=errno.ENOSPC, sticky=True)
    assert said == [[["errno", errno.ENOSPC]], [None]]


def test_calls_of_threads_take_turns(heard: Callable[..., tuple], folder: Path, tmp_path: Path) -> None:
    """The last in the log is the last on the disk."""
    status, _, log = heard("threads")
    assert status == 0
    assert sum(call.name == "write" for call in log) == 400
    again = tmp_path / "again"
    again.mkdir()
    replayed(log, again)
    assert bytes_of(again) == bytes_of(folder)


def test_what_goes_wrong_in_a_child_is_raised(nursery: Nursery) -> None:
    """Its traceback is told; and the next child is as good as any."""
    with (
        nursery.child("tests.crash.chores:nothing_of_the_kind") as child,
        pytest.raises(AssertionError, match="no attribute 'nothing_of_the_kind'"),
    ):
        child.hear()
