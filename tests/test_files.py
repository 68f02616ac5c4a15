"""Durable primitives, and the translation of the operating system's errors."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from softkv.errors import AccessRefused, NotAStore, StorageFailed, StorageFull, StoreDamaged
from softkv.storage.disk import files


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_space_is_storage_full(number: int) -> None:
    """A full disk, a full quota and a file at its limit are one thing to the caller."""
    assert type(files.translated(OSError(number, ""), "writing")) is StorageFull


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_no_permission_is_access_refused(number: int) -> None:
    """A read-only disk is a matter of permission too."""
    assert type(files.translated(OSError(number, ""), "writing")) is AccessRefused


def test_any_other_error_is_storage_failed() -> None:
    """The message says what was being done, and what the system said."""
    found = files.translated(OSError(errno.EIO, ""), "cannot write x")
    assert type(found) is StorageFailed
    assert str(found) == f"cannot write x: {os.strerror(errno.EIO)}"


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that writes three bytes at a time writes them all, in their places."""
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: whole(descriptor, bytes(data[:3]), offset))
    descriptor = files.create_file(str(tmp_path / "file"))
    files.write_at(descriptor, memoryview(b"0123456789"), 5, "file")
    os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"0123456789"


def test_a_write_that_makes_no_progress_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Zero bytes written is an error, not an endless loop."""
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    descriptor = files.create_file(str(tmp_path / "file"))
    with pytest.raises(StorageFailed, match="0 of 2 bytes"):
        files.write_at(descriptor, memoryview(b"ab"), 0, "file")
    os.close(descriptor)


@pytest.mark.parametrize("placed", [True, False])
def test_reading_a_shorter_file_gives_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placed: bool
) -> None:
    """There are fewer bytes only when the file has fewer, also where a system cannot read at a place, as Windows."""
    if not placed:
        monkeypatch.delattr(os, "pread")
    (tmp_path / "file").write_bytes(b"abc")
    descriptor = files.open_regular(str(tmp_path / "file"))
    assert files.read_at(descriptor, 2, 0, "file") == b"ab"
    assert files.read_at(descriptor, 9, 1, "file") == b"bc"
    assert files.read_at(descriptor, 9, 0, "file") == b"abc"
    os.close(descriptor)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str, write: bool) -> None:
    """Links, pipes, directories and devices are refused, and opening a pipe does not wait for its other end."""
    path = tmp_path / "it"
    (tmp_path / "real").write_bytes(b"")
    match kind:
        case "link":
            path.symlink_to(tmp_path / "real")
        case "dangling":
            path.symlink_to(tmp_path / "nowhere")
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "device":
            path = Path("/dev/null")
    with pytest.raises(NotAStore, match="not a regular file"):
        files.open_regular(str(path), write=write, create=write)
    with pytest.raises(NotAStore, match="not a regular file"):
        files.require_regular(str(path))


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    """Whoever opens a file of a store expects it to be there."""
    with pytest.raises(StoreDamaged, match="is missing"):
        files.open_regular(str(tmp_path / "gone"))


def test_a_missing_file_is_no_irregular_one(tmp_path: Path) -> None:
    """What is not there cannot be a link."""
    files.require_regular(str(tmp_path / "gone"))
    assert not list(tmp_path.iterdir())


def test_a_new_file_replaces_nothing(tmp_path: Path) -> None:
    """What is there stays as it is."""
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(StorageFailed, match="exists"):
        files.create_file(str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_new_directory_replaces_nothing(tmp_path: Path) -> None:
    """Making what is there is an error of ours."""
    with pytest.raises(StorageFailed, match="exists"):
        files.make_directory(str(tmp_path))


def test_a_sync_that_fails_is_storage_failed(tmp_path: Path) -> None:
    """A pipe cannot be synced, as the system says."""
    read, write = os.pipe()
    with pytest.raises(StorageFailed, match="cannot make it durable"):
        files.sync(write, "it")
    os.close(read)
    os.close(write)


def test_syncing_a_directory_that_is_gone_is_storage_failed(tmp_path: Path) -> None:
    """No FileNotFoundError leaves the storage layer."""
    with pytest.raises(StorageFailed):
        files.sync_directory(str(tmp_path / "gone"))


def test_room_is_asked_for_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how much is needed."""
    with pytest.raises(StorageFull, match=r"compacting needs 1,000,000,000,000\.0 MB"):
        files.require_room(str(tmp_path), 10**18, "compacting")
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=99))
    with pytest.raises(StorageFull, match=r"needs 0\.1 MB and the disk has 0\.0 MB free"):
        files.require_room(str(tmp_path), 100, "compacting")


def test_enough_room_is_enough(tmp_path: Path) -> None:
    """One byte fits on the disk that the tests run on."""
    files.require_room(str(tmp_path), 1, "writing")
    with pytest.raises(StorageFull):
        files.require_room(str(tmp_path), 1 << 62, "writing")


def test_names_are_sorted(tmp_path: Path) -> None:
    """The file system may have them in any order."""
    for name in "cab":
        (tmp_path / name).touch()
    assert files.list_directory(str(tmp_path)) == ["a", "b", "c"]
    with pytest.raises(StorageFailed):
        files.list_directory(str(tmp_path / "gone"))


def test_removing_a_tree_follows_no_link(tmp_path: Path) -> None:
    """What a link leads to stays."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "doomed").mkdir()
    (tmp_path / "doomed" / "link").symlink_to(tmp_path / "mine")
    files.remove_tree(str(tmp_path / "doomed"))
    files.remove_tree(str(tmp_path / "doomed"))  # what is gone already is no error
    assert not (tmp_path / "doomed").exists()
    assert (tmp_path / "mine" / "file").exists()


def test_what_has_other_names_is_read_and_not_written(tmp_path: Path) -> None:
    """What is written under one name of a file would stand under the others as well."""
    (tmp_path / "a").write_bytes(b"precious")
    os.link(tmp_path / "a", tmp_path / "b")
    os.close(files.open_regular(str(tmp_path / "b")))
    with pytest.raises(AccessRefused, match="one of 2 names"):
        files.open_regular(str(tmp_path / "b"), write=True)
    with pytest.raises(AccessRefused, match="one of 2 names"):
        files.require_regular(str(tmp_path / "b"), write=True)
    assert (tmp_path / "a").read_bytes() == b"precious"


@pytest.mark.parametrize("what", ["pipe", "link", "file"])
def test_only_a_directory_is_removed_with_what_is_in_it(tmp_path: Path, what: str) -> None:
    """A link to one is left alone, and nobody waits for the other end of a pipe."""
    place = tmp_path / "place"
    (tmp_path / "real").mkdir()
    {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(tmp_path / "real"), "file": Path.touch}[what](place)
    files.remove_tree(str(place))
    assert place.exists()
    assert (tmp_path / "real").is_dir()
    assert not files.is_directory(str(place))
    assert files.is_directory(str(tmp_path / "real"))
