"""Index files come back as they were put, or are said to be damaged or absent; the store does not depend on them."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.errors import (
    AccessRefused,
    FormatTooNew,
    HandleClosed,
    HandlePoisoned,
    IndexDamaged,
    InputError,
    KindError,
    NotAStore,
    StorageFailed,
    StorageFull,
    StoreDamaged,
    Unfinished,
)
from softkv.storage import IndexFile, Snapshot, Store, check
from softkv.storage.disk import files
from softkv.storage.layout import FORMAT
from tests.crash.children import Child, Say
from tests.stores import as_format, closed_fruit, contents, copied, flip, fruit, in_child, mode_of, sql, vectors
from tests.test_compaction import generations
from tests.test_writer import Interrupt, Steps, failing, interrupting

LISTS = bytes(range(256)) * 5000  # more than is read at a time


def read(store: Store | Snapshot, name: str = "lists") -> bytes | None:
    """The bytes of an index file, None when there is none."""
    snapshot = store.snapshot() if isinstance(store, Store) else store
    found = snapshot.index(name)
    return None if found is None else bytes(found.read())


def handed(store: Store, name: str = "lists") -> IndexFile:
    """An index file that is there."""
    found = store.snapshot().index(name)
    assert found is not None
    return found


def lying(path: Path) -> list[str]:
    """What lies in the directory of index files."""
    return sorted(one.name for one in (path / "index").iterdir())


def indexed(path: Path) -> Path:
    """A closed store with one index file; returns where that lies."""
    with fruit(path) as store:
        store.put_index("lists", LISTS)
        return Path(handed(store).path)


# Putting and reading


def pieces() -> Iterator[bytes]:
    """Content that is not there before it is asked for."""
    yield from (b"ab", b"", b"c" * 100_000)


CONTENT: dict[str, tuple[Any, bytes]] = {
    "bytes": (LISTS, LISTS),
    "nothing": (b"", b""),
    "bytearray": (bytearray(b"abc"), b"abc"),
    "memoryview": (memoryview(LISTS)[7:], LISTS[7:]),
    "an array": (np.arange(6, dtype="<f4").reshape(2, 3), np.arange(6, dtype="<f4").tobytes()),
    "an array of nothing": (np.empty((0, 3), np.float32), b""),
    "a list": ([b"ab", memoryview(b"cd"), np.ones(2, np.uint8)], b"abcd\x01\x01"),
    "no pieces": ([], b""),
    "a generator": (pieces(), b"ab" + b"c" * 100_000),
}


@pytest.mark.parametrize(("content", "expected"), CONTENT.values(), ids=CONTENT)
def test_what_was_put_comes_back(tmp_path: Path, content: Any, expected: bytes) -> None:
    """This handle gets it, another one, and one after reopening; whole or in pieces."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        store.put_index("lists", content)
        assert read(store) == read(reader) == expected
    with Store.open(tmp_path / "s") as reader:
        found = handed(reader)
        assert (found.size, Path(found.path).read_bytes()) == (len(expected), expected)
        assert found.read().readonly
        assert read(reader, "another") is None
        report = reader.check()
        assert report.ok
        assert not report.notes


def test_an_index_file_says_what_it_covers(tmp_path: Path) -> None:
    """The rows and the commit at which it was put; what comes later is not in it."""
    with fruit(tmp_path / "s") as store:
        store.put_index("lists", b"of three")
        store.append(vectors(2), [1.0, 2.0])
        store.put_index("far field", b"of five")
        store.delete("pear")
        first, second = handed(store), handed(store, "far field")
        assert (first.rows, first.commit, second.rows, second.commit) == (3, 2, 5, 4)
        assert (store.rows, store.commit) == (5, 5)
        assert [Path(one.path).parent for one in (first, second)] == [tmp_path / "s" / "index"] * 2
        assert store.check().ok


def test_an_index_file_changes_no_answer(tmp_path: Path) -> None:
    """Items, settings and rows are what they were, before and after it goes."""
    with fruit(tmp_path / "s") as store:
        store.configure({"a": 1})
        before = contents(store), store.settings, store.rows
        store.put_index("lists", LISTS)
        assert (contents(store), store.settings, store.rows) == before
        store.drop_index()
        assert (contents(store), store.settings, store.rows) == before
        assert store.check().ok


def test_a_file_is_durable_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written, synced, its directory synced, and then one commit."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.put_index("lists", [b"a", b"b"])
        number = Path(handed(store).path).name
        assert [step[:2] for step in steps.taken] == [
            *[("write", number)] * 2,
            ("sync", number),
            ("sync", "index"),
            ("commit", ""),
        ]
        assert store.check().ok


def test_files_of_a_compaction_are_durable_before_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compaction writes is synced before the commit that names it, which is that of the new generation."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            store.compact([2, 1, 0], index={"lists": b"a", "far field": b"b"})
        numbers = [Path(handed(store, name).path).name for name in ("lists", "far field")]
        synced = [steps.place("sync", name) for name in (*numbers, "index", "generation-000002")]
        assert synced == sorted(synced)
        assert synced[-1] < steps.place("commit") < len(steps.taken)
        assert store.check().ok


# Replacing and dropping


def test_a_replaced_file_goes_and_who_holds_it_reads_on(tmp_path: Path) -> None:
    """The bytes of one that was handed out stay; a snapshot from before is told that there is none any more."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        store.put_index("lists", LISTS)
        held, snapshot = handed(reader), reader.snapshot()
        assert read(snapshot) == LISTS
        store.put_index("lists", b"new")
        assert (read(store), read(reader), read(snapshot)) == (b"new", b"new", None)
        assert lying(tmp_path / "s") == [Path(handed(store).path).name]
        assert held.read() == LISTS
        store.drop_index("lists")
        assert (read(reader), lying(tmp_path / "s")) == (None, [])
        assert held.read() == LISTS
        snapshot.close()
        assert store.check().ok


def test_one_is_dropped_or_all(tmp_path: Path) -> None:
    """Files of other names stay; dropping what is not there is no change."""
    with fruit(tmp_path / "s") as store:
        store.drop_index()
        for name in ("a", "b", "c"):
            store.put_index(name, name.encode())
        commit = store.commit
        store.drop_index("nobody")
        assert store.commit == commit
        store.drop_index("b")
        assert [read(store, name) for name in ("a", "b", "c")] == [b"a", None, b"c"]
        assert len(lying(tmp_path / "s")) == 2
        store.drop_index()
        assert [read(store, name) for name in ("a", "b", "c")] == [None] * 3
        assert lying(tmp_path / "s") == []
        assert store.commit == commit + 2
        assert store.check().ok
    with Store.open(tmp_path / "t", "c") as store:
        store.drop_index()
        store.drop_index("lists")
        assert store.commit == 0


def test_a_snapshot_sees_none_that_came_later(tmp_path: Path) -> None:
    """A file made from later rows is nothing for it."""
    with fruit(tmp_path / "s") as store:
        snapshot = store.snapshot()
        store.append(vectors(1), [1.0])
        store.put_index("lists", LISTS)
        assert read(snapshot) is None
        assert read(store) == LISTS
        snapshot.close()
        with pytest.raises(HandleClosed):
            snapshot.index("lists")
        assert store.check().ok


def test_a_file_that_is_replaced_while_it_is_looked_up_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the catalog and the file a writer may come; then the reader looks again."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        store.put_index("lists", b"old")
        snapshot, opened, done = reader.snapshot(), files.open_regular, list[str]()

        def overtaken(path: str, **how: bool) -> int:
            if not done:
                done.append(path)
                store.put_index("lists", b"new")
            return opened(path, **how)

        with monkeypatch.context() as patch:
            patch.setattr(files, "open_regular", overtaken)
            assert read(snapshot) is None
        assert len(done) == 1
        assert read(reader) == b"new"
        snapshot.close()
        assert store.check().ok


def test_a_reader_elsewhere_sees_whole_files_while_they_are_replaced(tmp_path: Path) -> None:
    """Dropped, replaced, and brought by new generations, by another process: never damage, never a mixture."""
    path = closed_fruit(tmp_path / "s")

    def replace(say: Say) -> None:
        with Store.open(path, "w") as store:
            say("begun")
            for turn in range(150):
                content = f"{turn} ".encode() * (turn % 7 * 100)
                if turn % 10 == 9:
                    store.drop_index()
                elif turn % 10 == 5:
                    store.compact(np.arange(3)[::-1], index={"lists": content})
                else:
                    store.put_index("lists", content)
            store.configure({"over": True})

    seen: set[bytes] = set()
    with Child(replace) as child, Store.open(path) as reader:
        assert child.hear() == ["begun"]
        for _ in range(100_000):
            if reader.settings.get("over"):
                break
            with reader.snapshot() as snapshot:
                content = read(snapshot) or b""
                assert content == content[: content.find(b" ") + 1] * content.count(b" ")
                seen.add(content)
        assert child.wait() == 0
        assert reader.check().ok
    assert len(seen) > 5


# With generations


def test_a_compaction_brings_its_files_in_one_commit(tmp_path: Path) -> None:
    """Those it was given, and none of the generation before, whose rows lay elsewhere."""
    with fruit(tmp_path / "s") as store:
        store.put_index("old", b"old")
        store.append(vectors(1), [7.0], keys=["pear"], on_conflict="replace")
        commit = store.commit
        store.compact([3, 2, 0], index={"lists": LISTS, "far field": iter([b"a", b"b"])})
        assert store.commit == commit + 1
        assert (read(store), read(store, "far field"), read(store, "old")) == (LISTS, b"ab", None)
        assert (handed(store).rows, handed(store).commit) == (3, commit + 1)
        assert len(lying(tmp_path / "s")) == 2
        store.compact(index={"lists": b"nothing was dead"})
        assert read(store) == b"nothing was dead"
        assert store.check().ok


@pytest.mark.parametrize("how", ["compact", "order", "rebuild"])
def test_another_generation_leaves_them_behind(tmp_path: Path, how: str) -> None:
    """Its rows lie elsewhere. Who reads the old generation keeps its files, and they go with it."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        store.put_index("lists", LISTS)
        snapshot = reader.snapshot()
        if how == "rebuild":
            work = store.rebuild(key_width=4, settings={})
            assert read(store) == LISTS
            work.write(vectors(len(work.waiting())))
            work.finish()
        else:
            store.delete("pear")
            store.compact([2, 0] if how == "order" else None)
        assert (read(store), read(reader)) == (None, None)
        assert read(snapshot) == LISTS
        assert snapshot.index("another") is None
        assert len(lying(tmp_path / "s")) == 1
        snapshot.close()
        store.configure({})
        assert (generations(tmp_path / "s"), lying(tmp_path / "s")) == (["generation-000002"], [])
        report = store.check()
        assert report.ok
        assert not report.notes
    assert sql(tmp_path / "s", "SELECT count(*) FROM indexes") == [(0,)]


def test_a_compaction_with_nothing_to_do_leaves_them(tmp_path: Path) -> None:
    """No row has moved."""
    with fruit(tmp_path / "s") as store:
        store.put_index("lists", LISTS)
        store.compact()
        store.compact(index={})
        assert read(store) == LISTS
        assert store.check().ok


# Refusals


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 256, 7, None])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: Any) -> None:
    """It is before anything is written. A name is never a path, so all other texts will do."""
    with fruit(tmp_path / "s") as store:
        commit = store.commit
        for work in (
            lambda: store.put_index(name, b""),
            lambda: store.compact([2, 1, 0], index={name: b""}),
            lambda: store.snapshot().index(name),
        ):
            with pytest.raises(InputError, match="name"):
                work()
        assert (store.commit, lying(tmp_path / "s")) == (commit, [])
        store.put_index("../../ä /", b"a")
        assert read(store, "../../ä /") == b"a"
        assert store.check().ok


def broken() -> Iterator[bytes]:
    """Content whose making fails in the middle."""
    yield b"some"
    raise ZeroDivisionError


BAD: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "a text": (lambda: "text", KindError),
    "a number": (lambda: 7, KindError),
    "nothing": (lambda: None, KindError),
    "texts": (lambda: ["text"], KindError),
    "numbers": (lambda: [1, 2], KindError),
    "a view with gaps": (lambda: memoryview(LISTS)[::2], KindError),
    "what fails": (broken, ZeroDivisionError),
}


@pytest.mark.parametrize(("content", "error"), BAD.values(), ids=BAD)
def test_content_that_cannot_be_written_changes_nothing(
    tmp_path: Path, content: Callable[[], Any], error: type[Exception]
) -> None:
    """What was there stays, no file is left, and the same handle goes on; alone or with a compaction."""
    with fruit(tmp_path / "s") as store:
        store.put_index("lists", LISTS)
        before, commit = lying(tmp_path / "s"), store.commit
        with pytest.raises(error):
            store.put_index("lists", content())
        with pytest.raises(error):
            store.compact([2, 1, 0], index={"first": b"good", "lists": content()})
        assert (lying(tmp_path / "s"), store.commit, read(store)) == (before, commit, LISTS)
        assert generations(tmp_path / "s") == ["generation-000001"]
        store.put_index("lists", b"new")
        assert read(store) == b"new"
        assert store.check().ok


def test_pieces_may_be_made_from_the_store_and_not_change_it(tmp_path: Path) -> None:
    """Who makes them may read; a change in the middle is refused, since they would not cover it."""

    def keys(store: Store) -> Iterator[bytes]:
        for key in store.keys():  # noqa: SIM118 - a store is not a mapping
            yield key.encode() + b" "

    def change(store: Store) -> Iterator[bytes]:
        yield b"x"
        store.delete("apple")

    with fruit(tmp_path / "s") as store:
        store.put_index("keys", keys(store))
        store.compact([2, 1, 0], index={"again": keys(store)})
        assert read(store, "again") == b"apple pear quince "
        for work in (
            lambda: store.put_index("keys", change(store)),
            lambda: store.compact([2, 1, 0], index={"keys": change(store)}),
        ):
            with pytest.raises(InputError, match="in the middle of a change"):
                work()
        assert (len(store), read(store, "keys")) == (3, None)
        assert store.check().ok


def test_there_must_be_rows_and_a_writer(tmp_path: Path) -> None:
    """An empty store, a reader, an unfinished rebuild, a closed handle: each is told why not."""
    with Store.open(tmp_path / "s", "c") as store:
        for work in (lambda: store.put_index("lists", b""), lambda: store.compact(index={"lists": b""})):
            with pytest.raises(InputError, match="no rows yet"):
                work()
        assert store.snapshot().index("lists") is None
        store.append(vectors(1), [1.0])
        with Store.open(tmp_path / "s") as reader:
            for change in (lambda: reader.put_index("lists", b""), reader.drop_index):
                with pytest.raises(AccessRefused):
                    change()
        store.rebuild(key_width=3, settings={})
        for change in (lambda: store.put_index("lists", b""), store.drop_index):
            with pytest.raises(Unfinished):
                change()
        store.abandon()
        assert (store.commit, lying(tmp_path / "s")) == (3, [])
        assert store.check().ok
    with pytest.raises(HandleClosed):
        store.put_index("lists", b"")


# Damage


def replaced_by(what: Callable[[Path], object]) -> Callable[[Path], object]:
    """Something else in the place of the file."""

    def put(path: Path) -> None:
        path.rename(path.parent.parent / "elsewhere")
        what(path)

    return put


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "the first bit": (lambda path: flip(path, 0), "does not match its checksum"),
    "the last bit": (lambda path: flip(path, len(LISTS) - 1, 7), "does not match its checksum"),
    "cut off": (lambda path: os.truncate(path, len(LISTS) - 1), f"has {len(LISTS) - 1} bytes instead"),
    "emptied": (lambda path: os.truncate(path, 0), "has 0 bytes instead"),
    "longer": (lambda path: os.truncate(path, len(LISTS) + 1), f"has {len(LISTS) + 1} bytes instead"),
    "removed": (Path.unlink, "is missing"),
    "all removed": (lambda path: shutil.rmtree(path.parent), "is missing"),
    "a link to itself": (replaced_by(lambda path: path.symlink_to("../elsewhere")), "not a regular file"),
    "a pipe": (replaced_by(os.mkfifo), "not a regular file"),
    "a directory": (replaced_by(Path.mkdir), "not a regular file"),
}


@pytest.mark.parametrize(("damage", "told"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_never_believed(tmp_path: Path, damage: Callable[[Path], object], told: str) -> None:
    """Who reads it is told to make it again, every time; a check notes it; the store is as good as before."""
    path = indexed(tmp_path / "s")
    damage(path)
    with Store.open(tmp_path / "s") as reader:
        found = handed(reader)
        for _ in range(2):
            with pytest.raises(IndexDamaged, match=told):
                found.read()
        report = reader.check()
        assert report.ok
        assert any(told in note and "'lists'" in note for note in report.notes), report
    with Store.open(tmp_path / "s", "w") as store:
        assert list(store.keys()) == ["apple", "pear", "quince"]
        store.put_index("lists", b"made again")
        assert read(store) == b"made again"
        store.compact([2, 1, 0], index={"lists": b"and again"})
        assert read(store) == b"and again"
        assert store.check().ok
    assert isinstance(IndexDamaged(""), StoreDamaged)


def test_every_byte_of_an_index_file_counts(tmp_path: Path) -> None:
    """One bit turned around anywhere is noticed."""
    with fruit(tmp_path / "s") as store:
        store.put_index("lists", bytes(50))
        for offset in range(50):
            flip(Path(handed(store).path), offset, offset % 8)
            with pytest.raises(IndexDamaged):
                read(store)
            flip(Path(handed(store).path), offset, offset % 8)
        assert read(store) == bytes(50)
        assert store.check().ok


def test_every_field_of_the_record_counts(tmp_path: Path) -> None:
    """Altered in the catalog: never other bytes than were put; a check notes what it finds of the name."""
    indexed(tmp_path / "s")
    fields = ["name", "file", "rows", "number", "size", "sha256", "seal"]
    for field in fields:
        path = copied(tmp_path / "s", tmp_path / field)
        (value,) = sql(path, f"SELECT {field} FROM indexes")[0]
        other = bytes(32) if field == "sha256" else "another" if field == "name" else value + 1
        sql(path, f"UPDATE indexes SET {field} = ?", other)
        with Store.open(path) as reader:
            name = "another" if field == "name" else "lists"
            with pytest.raises(IndexDamaged, match="record"):
                read(reader, name)
            report = reader.check()
            assert report.ok
            assert any(repr(name) in note for note in report.notes), (field, report)
        with Store.open(path, "w") as store:
            store.drop_index()
            store.put_index("lists", LISTS)
            assert read(store) == LISTS
            assert not store.check().notes


def test_what_was_read_once_stays(tmp_path: Path) -> None:
    """A handle compares its bytes once and keeps them, whatever becomes of the file."""
    path = indexed(tmp_path / "s")
    with Store.open(tmp_path / "s") as reader:
        found = handed(reader)
        first = found.read()
        flip(path, 5)
        assert found.read() == first == LISTS
        with pytest.raises(TypeError):
            first[0] = 1
        first.release()
        found.close()
        assert found.read() == LISTS
        with pytest.raises(IndexDamaged):
            read(reader)
        unread = handed(reader)
        unread.close()
        with pytest.raises(IndexDamaged, match="closed before it was read"):
            unread.read()
        assert reader.check().ok


def test_a_file_that_cannot_be_read_is_the_systems_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it again would not help, so it is not called damage; the next try may succeed."""
    indexed(tmp_path / "s")
    with Store.open(tmp_path / "s") as reader:
        found = handed(reader)
        with failing(monkeypatch, "read", OSError(5, "Input/output error")), pytest.raises(StorageFailed):
            found.read()
        assert found.read() == LISTS
        assert reader.check().ok


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    """There is none of what was read, and none of what was thrown away."""
    indexed(tmp_path / "s")
    with Store.open(tmp_path / "s") as reader:
        snapshot = reader.snapshot()
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        found = [snapshot.index("lists") for _ in range(3)]
        for one in found[:2]:
            assert one is not None
            one.read()
        found.clear()
        one = None
        assert (len(os.listdir("/proc/self/fd")) if before else 0) == before
        snapshot.close()
        assert reader.check().ok


# What lies about


def test_the_next_writer_removes_what_nobody_names_and_nothing_else(tmp_path: Path) -> None:
    """Only under numbers, and never a directory; a check says so before, and a reader removes nothing."""
    kept = Path(indexed(tmp_path / "s")).name
    folder = tmp_path / "s" / "index"
    others = ["007", "0", "12.tmp", "lists", "-3", "٣", "1" * 30]
    for name in ("9", "77", "123456789012", *others):
        (folder / name).write_bytes(b"left over")
    (folder / "78").mkdir()
    (folder / "79").symlink_to("../LOCK")
    before = lying(tmp_path / "s")
    with Store.open(tmp_path / "s") as reader:
        report = reader.check()
        assert report.ok
        assert sum("left over" in note for note in report.notes) == 4
        assert lying(tmp_path / "s") == before
    with Store.open(tmp_path / "s", "w") as store:
        assert lying(tmp_path / "s") == sorted([kept, *others, "78"])
        assert (tmp_path / "s" / "LOCK").exists()
        assert read(store) == LISTS
        assert store.check().ok


def test_a_failure_removes_only_its_own(tmp_path: Path) -> None:
    """What lies there without a name may be that of a writer who has taken over; after a success it is nobody's."""
    with fruit(tmp_path / "s") as store:
        (tmp_path / "s" / "index" / "5").write_bytes(b"not named yet")
        with pytest.raises(ZeroDivisionError):
            store.put_index("lists", broken())
        assert lying(tmp_path / "s") == ["5"]
        store.put_index("lists", LISTS)
        assert lying(tmp_path / "s") == [Path(handed(store).path).name]
        assert store.check().ok


def test_a_read_that_comes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give fewer bytes than were asked for."""
    indexed(tmp_path / "s")
    real = os.read
    with Store.open(tmp_path / "s") as reader:
        found = handed(reader)
        monkeypatch.setattr(os, "read", lambda descriptor, length: real(descriptor, min(length, 100_001)))
        assert found.read() == LISTS
        monkeypatch.undo()
        assert reader.check().ok


def test_a_file_that_is_cut_off_while_it_is_read_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length was right a moment ago."""
    path, real = indexed(tmp_path / "s"), os.read

    def cutting(descriptor: int, length: int) -> bytes:
        os.truncate(path, 1000)
        return real(descriptor, length)

    with Store.open(tmp_path / "s") as reader:
        found = handed(reader)
        monkeypatch.setattr(os, "read", cutting)
        with pytest.raises(IndexDamaged):
            found.read()
        monkeypatch.undo()
        assert reader.check().ok


def test_no_number_is_given_twice(tmp_path: Path) -> None:
    """What lies there already is not written to, whatever it is."""
    with fruit(tmp_path / "s") as store:
        (tmp_path / "s" / "index" / "40").write_bytes(b"somebody's")
        os.chmod(tmp_path / "s" / "index" / "40", 0o400)
        for turn in range(3):
            store.put_index("lists", f"{turn}".encode())
            assert read(store) == f"{turn}".encode()
        assert int(Path(handed(store).path).name) > 40
        assert store.check().ok


def test_a_store_whose_index_directory_is_gone_is_whole(tmp_path: Path) -> None:
    """It opens, for reading and writing, and the directory is made again with the next file."""
    indexed(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "index")
    with Store.open(tmp_path / "s", "w") as store:
        with pytest.raises(IndexDamaged):
            read(store)
        store.put_index("lists", LISTS)
        assert read(store) == LISTS
        assert store.check().ok


def test_nothing_is_written_or_removed_through_a_link(tmp_path: Path) -> None:
    """Somebody else's directory in the place of ours stays as it is."""
    path = closed_fruit(tmp_path / "s")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "5").write_bytes(b"somebody's")
    (path / "index").rmdir()
    (path / "index").symlink_to(tmp_path / "elsewhere")
    with Store.open(path, "w") as store:
        with pytest.raises(NotAStore, match="is not a directory"):
            store.put_index("lists", LISTS)
        assert store.check().ok
    assert os.listdir(tmp_path / "elsewhere") == ["5"]


def test_a_reader_without_write_permission_reads_them(tmp_path: Path) -> None:
    """A user who may only read the directory reads the index while no process writes."""
    indexed(tmp_path / "s")
    for folder in [tmp_path, *tmp_path.parents][:4]:
        if (mode := folder.stat().st_mode) & 0o055 != 0o055:
            folder.chmod(mode | 0o055)

    def look() -> None:
        with Store.open(tmp_path / "s") as reader:
            assert read(reader) == LISTS
            assert reader.check().ok

    with mode_of(tmp_path / "s", 0o555):
        in_child(look, unprivileged=True)


# Failures


def test_a_file_that_does_not_fit_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of its size decides; what is there stays."""
    with fruit(tmp_path / "s") as store:
        store.put_index("lists", b"old")
        usage = files.shutil.disk_usage(tmp_path)._replace(free=100_000)
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(StorageFull, match=r"indexing .* needs .* MB and the disk has"):
            store.put_index("lists", LISTS)
        assert read(store) == b"old"
        assert len(lying(tmp_path / "s")) == 1
        assert store.check().ok


def test_a_failed_write_leaves_the_handle_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half-written file goes again."""
    with fruit(tmp_path / "s") as store:
        with failing(monkeypatch, "pwrite", OSError(28, "No space left on device")), pytest.raises(StorageFull):
            store.put_index("lists", LISTS)
        assert (lying(tmp_path / "s"), read(store)) == ([], None)
        store.put_index("lists", LISTS)
        assert read(store) == LISTS
        assert store.check().ok


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_failed_sync_poisons_the_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The sync is one of the file or of its directory; the next writer finds the store as it was."""
    store = fruit(tmp_path / "s")
    with failing(monkeypatch, call, OSError(5, "Input/output error")) as calls, pytest.raises(StorageFailed):
        store.put_index("lists", LISTS)
    assert calls
    with pytest.raises(HandlePoisoned):
        store.put_index("lists", LISTS)
    store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert (lying(tmp_path / "s"), read(store), len(store)) == ([], None, 3)
        assert store.check().ok


@interrupting
@pytest.mark.parametrize("drop", [False, True])
def test_an_interrupt_anywhere_leaves_the_old_file_or_the_new(tmp_path: Path, seed: int, drop: bool) -> None:
    """Wholly, and the same handle is right; what an interrupt of the tidying left goes with the next change."""

    def work(store: Store, turn: int) -> None:
        if drop:
            store.drop_index("lists")
        else:
            store.put_index("lists", [f"{turn}".encode(), b"."])

    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        interrupted, turn, done = True, 1 + seed % 3, 0
        while interrupted:
            store.put_index("lists", b"before")
            commit = store.commit
            interrupt = Interrupt(turn)
            interrupt.during(partial(work, store, turn))
            interrupted, told = bool(interrupt.where), f"at step {turn} in {interrupt.where}"
            happened = store.commit - commit
            assert happened in (0, 1), told
            after = None if drop else f"{turn}.".encode()
            assert read(store) == read(reader) == (after if happened else b"before"), told
            store.put_index("other", b"")
            assert len(lying(tmp_path / "s")) == 1 + (read(store) is not None), told
            turn, done = turn + 3, done + happened
        assert done >= 1
        assert turn > 50, "the work has many steps"
        report = store.check()
        assert report.ok
        assert not report.notes


# Format 1, which knew no index files


def of_format_1(path: Path) -> Path:
    """A store as it was before there were index files."""
    with fruit(path) as store:
        store.delete("pear")
    return as_format(path, 1)


def test_a_store_of_format_1_is_migrated_by_the_next_writer(tmp_path: Path) -> None:
    """All that is in it stays, and it takes index files."""
    path = of_format_1(tmp_path / "s")
    with Store.open(path) as reader:
        before = contents(reader)
    with Store.open(path, "w") as store:
        assert contents(store) == before
        assert store.snapshot().index("lists") is None
        store.compact([2, 0], index={"lists": LISTS})
        assert (contents(store), read(store)) == (before, LISTS)
        assert store.check().ok
    assert sql(path, "PRAGMA user_version") == [(FORMAT,)]
    assert sql(path, "SELECT name, size, sha256 FROM indexes") == [
        ("lists", len(LISTS), hashlib.sha256(LISTS).digest())
    ]


def test_a_store_of_format_1_is_read_as_it_is(tmp_path: Path) -> None:
    """A reader and a check change nothing; and the reader goes on when a writer brings the store to this format."""
    path = of_format_1(tmp_path / "s")
    with Store.open(path) as reader:
        assert (list(reader.keys()), reader.get("quince").value) == (["apple", "quince"], -1.25)
        assert reader.snapshot().index("lists") is None
        assert check(path).ok
        with Store.open(path, "w") as store:
            assert contents(reader) == contents(store)
            store.put_index("lists", LISTS)
            assert read(reader) == LISTS
            assert store.check().ok
    sql(path, f"PRAGMA user_version={FORMAT + 1}")
    with pytest.raises(FormatTooNew, match=f"has format {FORMAT + 1}"):
        Store.open(path)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_table_too_few_or_too_many_is_not_ours(tmp_path: Path, number: int) -> None:
    """A format has the tables that it has: one without its newest is damaged, and so is any stranger."""
    path = as_format(closed_fruit(tmp_path / "s"), number)
    newest = {1: (), 2: ("indexes",), 3: ("granules", "derived", "batches", "secret")}[number]
    sql(path, f"DROP TABLE {newest[0]}" if newest else "CREATE TABLE stranger (a)")
    for mode in ("r", "w"):
        with pytest.raises(StoreDamaged, match="does not have the tables of a store"):
            Store.open(path, mode)
    for table in newest[1:] or ("stranger",) * (number == 1):
        sql(path, f"DROP TABLE {table}")
    sql(path, f"PRAGMA user_version={max(1, number - 1)}")
    with Store.open(path, "w") as store:
        assert store.check().ok
