"""What was acknowledged is noted in LOCK, so that a catalog that has lost it is not believed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from softkv.errors import StoreDamaged
from softkv.storage import Store, check
from softkv.storage.catalog.connection import Connection
from softkv.storage.disk import files, locks
from softkv.storage.protocol.acknowledged import Acknowledged
from tests.stores import CATALOG, GENERATION, closed_fruit, copied, forge, fruit, sql, vectors
from tests.test_writer import failing

LOG = f"{CATALOG}-wal"


def noted(path: Path) -> int | None:
    """The number of the commit in LOCK."""
    found = Acknowledged.read(str(path))
    return None if found is None else found.number


def grown(path: Path) -> Path:
    """A closed store of fruit with two commits more than the copy beside it."""
    copied(closed_fruit(path), path.with_name("older"))
    with Store.open(path, "w") as store:
        store.append(vectors(1, seed=3), [7.0], keys=["fig"])
        store.configure({"a": 1})
    return path


def test_every_commit_is_noted(tmp_path: Path) -> None:
    """A commit of any kind is, after it happened; and who holds the lock stands above."""
    work: list[Callable[[Store], object]] = [
        lambda store: store.append(vectors(1), [1.0]),
        lambda store: store.delete("pear"),
        lambda store: store.configure({"a": 1}),
        lambda store: store.compact(),
        lambda store: store.put_index("lists", b"bytes"),
        lambda store: store.drop_index(),
    ]
    with fruit(tmp_path / "s") as store:
        for number, change in enumerate(work, 2):
            change(store)
            assert noted(tmp_path / "s") == store.commit == number
        holder, _ = (tmp_path / "s" / "LOCK").read_text().splitlines()
        assert holder.startswith(f"pid {os.getpid()} on ")
        assert store.check().ok


def test_the_note_comes_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never ahead of it, even for a moment; it is synced when the writer closes, and only then."""
    steps, commit, put_note, sync = list[str](), Connection._commit, locks.FileLock.put_note, files.sync

    def watched_commit(connection: Connection) -> None:
        commit(connection)
        steps.append("commit")

    def watched_note(lock: locks.FileLock, note: bytes) -> None:
        steps.append("note")
        put_note(lock, note)

    def watched_sync(descriptor: int, path: str) -> None:
        steps.extend(["sync"] * path.endswith("LOCK"))
        sync(descriptor, path)

    with fruit(tmp_path / "s") as store:
        monkeypatch.setattr(Connection, "_commit", watched_commit)
        monkeypatch.setattr(locks.FileLock, "put_note", watched_note)
        monkeypatch.setattr(files, "sync", watched_sync)
        store.delete("pear")
        store.append(vectors(1), [1.0])
    assert steps == ["commit", "note"] * 2 + ["note", "sync", "commit"]
    assert check(tmp_path / "s").ok


def test_a_note_that_cannot_be_written_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit has happened, and the next one is noted again."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch, failing(patch, "pwrite", OSError(5, "an error")):
            store.configure({"a": 1})
        assert (store.commit, noted(tmp_path / "s")) == (2, 1)
        store.configure({"a": 2})
        assert noted(tmp_path / "s") == 3
        assert store.check().ok


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_catalog_that_lost_a_commit_is_refused(tmp_path: Path, mode: str) -> None:
    """An older one, in the place of the one that is there; a check says so too, and nothing is changed."""
    path = grown(tmp_path / "s")
    shutil.copy(tmp_path / "older" / CATALOG, path / CATALOG)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"at commit 1, but commit 3 was acknowledged.*--repair-to"):
            Store.open(path, mode)
    assert any("commit 3 was acknowledged" in finding for finding in check(path).findings)


@pytest.mark.parametrize("harm", ["lost", "cut", "flipped"])
def test_a_log_that_was_lost_is_noticed(tmp_path: Path, harm: str) -> None:
    """SQLite takes no notice: what is in the log and does not check out was never committed, as far as it can know."""
    with fruit(tmp_path / "alive") as store:
        store.delete("pear")
        path = copied(tmp_path / "alive", tmp_path / "s")
    content = bytearray((path / LOG).read_bytes())
    content[-100] ^= 1
    (path / LOG).write_bytes(content if harm == "flipped" else content[: -len(content) // 2])
    if harm == "lost":
        (path / LOG).unlink()
    for mode in ("r", "w"):
        with pytest.raises(StoreDamaged):
            Store.open(path, mode)
    assert not check(path).ok


def test_settings_that_went_back_are_noticed(tmp_path: Path) -> None:
    """A page of the catalog whose write was lost, with a checksum that is right: the rows are all there."""
    path = closed_fruit(tmp_path / "s")
    before = (path / "LOCK").read_bytes()
    forge(path, "generations", settings='{"a":1}')
    assert check(path).ok
    (path / "LOCK").write_bytes(before)
    with pytest.raises(StoreDamaged, match="not what commit 1 said"):
        Store.open(path)
    assert any("not what commit 1 said" in finding for finding in check(path).findings)


def test_a_catalog_that_is_further_than_its_writer_is_not_written_to(tmp_path: Path) -> None:
    """Who closes leaves the note of the last commit; a check says that they differ, and no writer blurs it."""
    path = grown(tmp_path / "s")
    shutil.copy(tmp_path / "older" / "LOCK", path / "LOCK")
    assert any("closed at commit 1" in finding for finding in check(path).findings)
    with pytest.raises(StoreDamaged, match="closed at commit 1, but the catalog is at commit 3"):
        Store.open(path, "w")
    with Store.open(path) as reader:
        assert len(reader) == 4


def test_a_note_that_is_behind_after_a_crash_says_nothing(tmp_path: Path) -> None:
    """It is not synced with every commit, so the power may take it."""
    with fruit(tmp_path / "alive") as store:
        before = (tmp_path / "alive" / "LOCK").read_bytes()
        store.delete("pear")
        path = copied(tmp_path / "alive", tmp_path / "s")
    (path / "LOCK").write_bytes(before)
    assert check(path).ok
    with Store.open(path, "w") as store:
        assert list(store.keys()) == ["apple", "quince"]
        assert noted(path) == store.commit == 2
        assert store.check().ok


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda content: content.replace(b"commit 0", b"commit 9"),
        lambda content: content[:-3],
        lambda content: bytes(len(content)),
        lambda _: b"pid 1 on nowhere\n" + locks.note_of(99, "0123abcd" * 4, 0),
    ],
    ids=["nothing", "a digit", "cut", "blank", "of another store"],
)
def test_a_note_that_cannot_be_believed_is_none(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """The store is as good as without, and the next writer notes again."""
    path = closed_fruit(tmp_path / "s")
    (path / "LOCK").write_bytes(change((path / "LOCK").read_bytes()))
    with Store.open(path) as reader:
        assert len(reader) == 3
    assert check(path).ok
    with Store.open(path, "w") as store:
        assert noted(path) == store.commit == 1
        assert store.check().ok


def test_an_opening_that_fails_keeps_the_note(tmp_path: Path) -> None:
    """It is rewritten with the name of the one who tried, and must not go with him."""
    path = closed_fruit(tmp_path / "s")
    (path / GENERATION / "keys.f32").rename(tmp_path / "keys.f32")
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"keys\.f32 is missing"):
            Store.open(path, "w")
    assert noted(path) == 1
    (tmp_path / "keys.f32").rename(path / GENERATION / "keys.f32")
    with Store.open(path, "w") as store:
        assert store.check().ok


def test_a_store_from_before_there_were_notes_is_opened(tmp_path: Path) -> None:
    """Its LOCK names a holder and nothing else."""
    path = closed_fruit(tmp_path / "s")
    (path / "LOCK").write_text("pid 1 on somewhere since 2024-01-01T00:00:00+0000\n")
    assert sql(path, "SELECT number FROM state") == [(1,)]
    with Store.open(path, "w") as store:
        store.delete("pear")
        assert noted(path) == 2
        assert store.check().ok
