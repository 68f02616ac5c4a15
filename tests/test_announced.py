"""The file SERVER in a served store: believed only while its process is the writer, and part of no copy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import softkv
from softkv.errors import AccessRefused
from softkv.storage import Store, repair
from softkv.storage.disk import locks
from softkv.storage.disk.announced import SERVER, Announcement, announce, announced, withdraw
from tests.limits import short_files
from tests.stores import closed_fruit

OURS = Announcement("http://127.0.0.1:7411/fruit", "t" * 43, os.getpid())


def test_a_server_is_found_while_it_is_the_writer(tmp_path: Path) -> None:
    """A file that its owner alone can read tells of the server."""
    path = str(closed_fruit(tmp_path / "s"))
    with Store.open(path, "w"):
        announce(path, OURS)
        assert announced(path) == OURS
        assert (Path(path) / SERVER).stat().st_mode & 0o777 == 0o600
        assert OURS.token not in repr(OURS)
    assert announced(path) is None, "the process lives, but is not the writer"
    with Store.open(path, "w"):
        announce(path, OURS)
        withdraw(path)
        assert announced(path) is None
    assert not (Path(path) / SERVER).exists()


def test_what_a_server_that_was_killed_left_behind_misleads_nobody(tmp_path: Path) -> None:
    """A dead server is not announced to readers, and the next process that writes removes its announcement."""
    path = str(closed_fruit(tmp_path / "s"))
    script = (
        "import os, sys, signal; from softkv.storage import Store; from softkv.storage.disk.announced import *\n"
        "store = Store.open(sys.argv[1], 'w'); announce(sys.argv[1], Announcement('http://h', 't', os.getpid()))\n"
        "assert announced(sys.argv[1]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -9
    assert (Path(path) / SERVER).exists()
    assert announced(path) is None
    with Store.open(path, "w") as store:
        assert announced(path) is None
        assert not (Path(path) / SERVER).exists()
        announce(path, OURS)
        assert announced(path) == OURS
        assert store.check().ok


def test_another_process_that_got_the_number_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """LOCK still names the number, and a process of that number lives, but it holds no lock."""
    path = str(closed_fruit(tmp_path / "s"))
    with Store.open(path, "w"):
        announce(path, OURS)
    assert locks.content(path).startswith(b"pid %d " % os.getpid())
    assert announced(path) is None
    Store.open(path, "w").close()  # looking has not kept anybody from writing


def test_a_writer_that_got_the_number_of_a_server_is_not_taken_for_it(tmp_path: Path) -> None:
    """The first process of each container has the same number, for example."""
    path = str(closed_fruit(tmp_path / "s"))
    announce(path, OURS)
    with Store.open(path, "w"):
        assert announced(path) is None


def test_a_process_of_another_machine_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """Containers that share a store count their processes each by themselves; LOCK names the node."""
    path = closed_fruit(tmp_path / "s")
    with Store.open(path, "w"):
        announce(str(path), OURS)
        said, node = locks.content(str(path)), os.uname().nodename
        elsewhere = node[:-1] + ("x" if node[-1] != "x" else "y")
        (path / locks.LOCK).write_bytes(said.replace(node.encode(), elsewhere.encode(), 1))
        assert announced(str(path)) is None
        (path / locks.LOCK).write_bytes(said)
        assert announced(str(path)) == OURS


def test_only_who_wrote_what_is_said_removes_it(tmp_path: Path) -> None:
    """Another process leaves it."""
    path = str(closed_fruit(tmp_path / "s"))
    with Store.open(path, "w"):
        announce(path, Announcement(OURS.url, OURS.token, os.getppid()))
        withdraw(path)
        assert (Path(path) / SERVER).exists()


@pytest.mark.parametrize(
    "said",
    [
        b"", b"{", b"[]", b"null", b"[" * 4000, b"\xff" * 100, b"\0" * 200, b"{}", b"1" * 4000,
        {"url": 1}, {"token": None}, {"pid": "1"}, {"pid": True}, {"pid": 1.0}, {"more": 1}, {"pid": 10**30},
        {"pid": -1}, {"url": "file:///etc/passwd"}, {"url": "http://é/"}, {"token": "t\u2028"}, {"token": "t" * 5000},
    ],
    ids=lambda said: str(said)[:20],
)  # fmt: skip
def test_what_no_server_wrote_counts_as_none(tmp_path: Path, said: bytes | dict[str, object]) -> None:
    """It may be wrong in any way, and nothing else minds it."""
    path = str(closed_fruit(tmp_path / "s"))
    with Store.open(path, "w") as store:
        announce(path, OURS)
        whole = json.loads((Path(path) / SERVER).read_bytes())
        (Path(path) / SERVER).write_bytes(said if isinstance(said, bytes) else json.dumps(whole | said).encode())
        assert announced(path) is None
        assert store.check().ok
        announce(path, OURS)
        assert announced(path) == OURS


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory", "loop", "socket"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    """A link is not followed, a pipe not waited for."""
    path = closed_fruit(tmp_path / "s")
    with Store.open(path, "w") as store:
        announce(str(path), OURS)
        os.rename(path / SERVER, tmp_path / "elsewhere")
        if kind == "pipe":
            os.mkfifo(path / SERVER)
        elif kind == "directory":
            (path / SERVER).mkdir()
        elif kind == "socket":
            os.mknod(path / SERVER, 0o140600)
        else:
            target = {"link": tmp_path / "elsewhere", "dangling": tmp_path / "nothing", "loop": path / SERVER}[kind]
            (path / SERVER).symlink_to(target)
        assert announced(str(path)) is None
        withdraw(str(path))
        assert os.path.lexists(path / SERVER)
        assert store.check().ok
        if kind == "directory":
            with pytest.raises(softkv.errors.StorageFailed, match="cannot write"):
                announce(str(path), OURS)
        else:
            announce(str(path), OURS)
            assert announced(str(path)) == OURS
    assert json.loads((tmp_path / "elsewhere").read_text())["pid"] == os.getpid(), "what the link named is as it was"


def test_a_file_that_others_can_read_or_write_is_not_believed(tmp_path: Path) -> None:
    """The token would be no secret, or the URL somebody else's."""
    path = str(closed_fruit(tmp_path / "s"))
    with Store.open(path, "w"):
        announce(path, OURS)
        for mode in (0o644, 0o620, 0o602):
            os.chmod(Path(path) / SERVER, mode)
            assert announced(path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    """A file of another user is not believed, even by root, who could read it."""
    path = str(closed_fruit(tmp_path / "s"))
    with Store.open(path, "w"):
        announce(path, OURS)
        os.chown(Path(path) / SERVER, 12345, 12345)
        assert announced(path) is None


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    """It is written whole or not at all, and an error says so."""
    path = str(closed_fruit(tmp_path / "s"))
    with Store.open(path, "w"):
        announce(path, OURS)
        with short_files(20), pytest.raises(softkv.errors.StoreError, match="cannot write"):
            announce(path, OURS)
        assert announced(path) == OURS
    os.rename(path, tmp_path / "gone")
    with pytest.raises((AccessRefused, softkv.errors.StorageFailed)):
        announce(path, OURS)
    assert announced(path) is None


def test_no_copy_takes_it_along(tmp_path: Path) -> None:
    """A backup does not, nor what is restored, repaired, exported, compacted or embedded anew."""
    path = str(tmp_path / "films.softkv")
    with softkv.open(path) as db:
        db.add(["a shepherd", "two boats"], ["The Alchemist", "Upstream"])
        announce(path, OURS)
        db.backup(tmp_path / "backup")
        db.backup(tmp_path / "backup")
        db.export(tmp_path / "films.jsonl")
        db.compact()
        assert db.check().ok
        assert announced(path) == OURS
    softkv.restore(tmp_path / "backup", tmp_path / "restored")
    repair(path, tmp_path / "repaired")
    for copy in ("backup", "restored", "repaired"):
        assert SERVER not in os.listdir(tmp_path / copy)
    assert OURS.token not in (tmp_path / "films.jsonl").read_text()
