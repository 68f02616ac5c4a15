"""One writer, pinned readers, and where writing is refused."""

import os
import re
from pathlib import Path

import pytest

from softkv.errors import AccessRefused, NotAStore, StorageFull, StoreLocked, WriterFenced, WritingUnsupported
from softkv.storage import Store
from softkv.storage.disk import locks
from tests.limits import short_files
from tests.stores import GENERATION, closed_fruit, fruit, in_child, mode_of, vectors

MOUNTS = r"""
24 30 0:22 / /proc rw,nosuid shared:13 - proc proc rw
30 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
50 30 0:44 / /home/nfs rw,relatime shared:27 - nfs4 server:/home rw,vers=4.2
51 50 8:2 / /home/nfs/local rw,relatime shared:28 - xfs /dev/sdb1 rw
52 30 0:45 / /mnt/with\040blank rw,relatime - cifs //server/share rw
53 30 0:46 / /mnt/été rw,relatime - nfs server:/x rw
54 30 0:47 / /mnt/back\134slash rw,relatime - 9p host rw
55 30 0:48 / /mnt/ssh rw shared:3 master:4 propagate_from:2 - fuse.sshfs me@there:/ rw
56 30 0:49 / /mnt/ntfs rw - fuseblk /dev/sdc1 rw
57 30 0:50 / /over rw - ext4 /dev/sdd1 rw
58 57 0:51 / /over rw - nfs4 server:/over rw
a line that is not one
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/somewhere/else", "ext4"),
        ("/proc/self", "proc"),
        ("/home", "ext4"),
        ("/home/nfs", "nfs4"),
        ("/home/nfs/me/store.softkv", "nfs4"),
        ("/home/nfsx", "ext4"),
        ("/home/nfs/local/store", "xfs"),
        ("/mnt/with blank/store", "cifs"),
        ("/mnt/été/store", "nfs"),
        ("/mnt/back\\slash/store", "9p"),
        ("/mnt/ssh/store", "fuse.sshfs"),
        ("/mnt/ntfs/store", "fuseblk"),
        ("/over/store", "nfs4"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount_point(path: str, kind: str) -> None:
    """/proc/self/mountinfo is read with escapes, letters beyond ASCII, and mounts over mounts."""
    assert locks.filesystem_kind(path, MOUNTS) == kind


def test_the_file_system_is_unknown_where_nothing_is_told() -> None:
    """Nothing is refused there, on macOS for example."""
    assert locks.filesystem_kind("/tmp", "") == ""


@pytest.mark.skipif(not os.path.exists("/proc/self/mountinfo"), reason="no mountinfo here")
def test_the_mounts_of_this_machine_can_be_read() -> None:
    """The root has a kind, whatever it is."""
    assert locks.filesystem_kind("/", locks._mounts()) != ""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_writing_on_a_network_is_refused_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Every mode that writes is, with nothing made; reading is not refused."""
    closed_fruit(tmp_path / "s")
    (tmp_path / "empty").mkdir()
    mounts = f"30 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 30 0:2 / {tmp_path} rw - {kind} server:/ rw\n"
    monkeypatch.setattr(locks, "_mounts", lambda: mounts)
    for name, mode in (("s", "w"), ("s", "c"), ("s", "n"), ("new", "c"), ("new", "n"), ("empty", "c")):
        with pytest.raises(WritingUnsupported, match=rf"network file system \({re.escape(kind)}\).*force=True"):
            Store.open(tmp_path / name, mode)
    assert sorted(os.listdir(tmp_path)) == ["empty", "s"]
    assert len(Store.open(tmp_path / "s")) == 3
    with Store.open(tmp_path / "s", "w", force=True) as store, Store.open(tmp_path / "new", "c", force=True) as new:
        store.append(vectors(1), [1.0])
        assert store.check().ok
        assert new.check().ok


@pytest.mark.parametrize("platform", ["win32", "emscripten", "freebsd14"])
def test_writing_on_an_unknown_platform_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    """Writing on an unknown platform is refused, also when forced: what is missing there is the lock itself."""
    closed_fruit(tmp_path / "s")
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(WritingUnsupported, match=f"on {platform} it reads"):
        Store.open(tmp_path / "s", "w", force=True)
    with Store.open(tmp_path / "s") as store:
        assert len(store) == 3


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """It is refused at once, in every mode that writes, and the first one goes on."""
    with fruit(tmp_path / "s") as store:
        for mode in ("w", "c", "n"):
            with pytest.raises(StoreLocked, match=f"pid {os.getpid()} on ") as caught:
                Store.open(tmp_path / "s", mode)
            assert caught.value.pid == os.getpid()
        store.append(vectors(1), [1.0])
        assert store.check().ok


def test_the_lock_goes_with_its_writer(tmp_path: Path) -> None:
    """It goes after closing, after a failed opening, and when the handle is simply forgotten."""
    closed_fruit(tmp_path / "s")
    (tmp_path / "s" / GENERATION / "PIN").rename(tmp_path / "PIN")
    with pytest.raises(Exception, match="pinned"):
        Store.open(tmp_path / "s", "w")
    (tmp_path / "PIN").rename(tmp_path / "s" / GENERATION / "PIN")
    store = Store.open(tmp_path / "s", "w")
    del store
    with Store.open(tmp_path / "s", "w") as store:
        assert store.check().ok


def test_what_stands_in_the_lock_file_is_only_information(tmp_path: Path) -> None:
    """Nonsense in it changes nothing; the pid is then unknown."""
    closed_fruit(tmp_path / "s")
    (tmp_path / "s" / "LOCK").write_bytes(b"\xff\0pid of nobody")
    lock = locks.lock_writer(str(tmp_path / "s"))
    os.ftruncate(lock.descriptor, 0)
    with pytest.raises(StoreLocked, match="another process") as caught:
        Store.open(tmp_path / "s", "w")
    assert caught.value.pid is None
    lock.release()
    (tmp_path / "s" / "LOCK").unlink()
    with Store.open(tmp_path / "s", "w") as store:
        assert store.check().ok


def test_a_disk_too_full_for_the_lock_file_is_full(tmp_path: Path) -> None:
    """The message says so once, and the lock is free again."""
    path = closed_fruit(tmp_path / "s")

    def open_without_room() -> None:
        with short_files(0), pytest.raises(StorageFull, match=r"^cannot write \S+LOCK: File too large\. Nothing"):
            Store.open(path, "w")
        Store.open(path, "w").close()

    in_child(open_without_room)
    with Store.open(path, "w") as store:
        assert store.check().ok


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_lock_file_that_is_not_the_one_that_was_locked_is_noticed(tmp_path: Path, how: str) -> None:
    """There may be a second writer, so the first must not write."""
    (tmp_path / "LOCK").touch()
    lock = locks.lock_writer(str(tmp_path))
    locks.require_held(lock)
    (tmp_path / "LOCK").unlink()
    if how == "replaced":
        (tmp_path / "LOCK").touch()
    with pytest.raises(WriterFenced, match="gone" if how == "removed" else "replaced"):
        locks.require_held(lock)
    lock.release()


def test_a_pinned_generation_is_not_removed(tmp_path: Path) -> None:
    """Readers share the pin; the writer gets it when all have let go, and then they do not."""
    (tmp_path / "PIN").touch()
    first, second = locks.pin_shared(str(tmp_path)), locks.pin_shared(str(tmp_path))
    assert first
    assert second
    first.release()
    assert locks.pin_exclusive(str(tmp_path)) is None
    second.release()
    held = locks.pin_exclusive(str(tmp_path))
    assert held
    assert locks.pin_shared(str(tmp_path)) is None
    held.release()
    held.release()  # twice is nothing, and closes nobody else's file


def test_a_generation_that_is_gone_cannot_be_pinned(tmp_path: Path) -> None:
    """The reader looks at the catalog again."""
    assert locks.pin_shared(str(tmp_path / "generation-000001")) is None


@pytest.mark.parametrize("name", ["LOCK", f"{GENERATION}/PIN"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_not_locked(tmp_path: Path, name: str, kind: str) -> None:
    """What a link leads to is not overwritten."""
    path = closed_fruit(tmp_path / "s") / name
    path.unlink()
    (tmp_path / "precious").write_text("precious")
    if kind == "link":
        path.symlink_to(tmp_path / "precious")
    else:
        os.mkfifo(path)
    with pytest.raises(NotAStore, match="not a regular file"):
        Store.open(tmp_path / "s", "w")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.skipif(os.getuid() == 0, reason="root may open everything; test_opening does this in a child")
def test_a_lock_file_that_may_not_be_opened_is_a_matter_of_permission(tmp_path: Path) -> None:
    """The message asks for permission."""
    closed_fruit(tmp_path / "s")
    with mode_of(tmp_path / "s" / "LOCK", 0o400), pytest.raises(AccessRefused, match="permission"):
        Store.open(tmp_path / "s", "w")
