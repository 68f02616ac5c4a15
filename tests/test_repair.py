"""Repair saves every row that can be believed, and never touches the old store."""

import errno
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.errors import BackupRefused, InputError, StoreDamaged, StoreExists, StoreNotFound
from softkv.storage import Store, check, repair
from softkv.storage.disk.arena import HEADER
from softkv.storage.layout import GRANULE, WINDOW
from tests import tiny
from tests.stores import CATALOG, GENERATION, closed_fruit, contents, flip, forge, sql, vectors, wide
from tests.test_checking import lasting


def make(path: Path, kind: str) -> dict[str, tuple[object, ...]]:
    """A closed store of one kind, with replaced, deleted and nameless items; returns what it holds, numbers aside."""
    values = {
        "number": [1.5, -2.0, 3.25, 0.0, 9.0],
        "vector": vectors(5, 2, 4),
        "label": ["x", "y", "x", "z", "y"],
        "text": ["one", "two", "three", "four", "five"],
    }[kind]
    with Store.open(path, "c") as store:
        store.append(
            vectors(5),
            values,
            keys=["a", "b", None, "d", "e"],
            payloads=[{"i": [1, None]}, None, "p", None, 3],
            texts=[None, "t", None, None, None],
            value_vectors=vectors(5, 3, 6) if kind == "text" else None,
        )
        one = vectors(1, 3, 8) if kind == "text" else None
        store.append(vectors(1, seed=2), values[4:], keys=["a"], value_vectors=one, on_conflict="replace")
        store.delete("b")
        store.configure({"kind": kind})
        return without_numbers(contents(store))


def without_numbers(found: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Contents by key, or by place where there is none: repaired items are numbered anew."""
    return {f"place {i}" if one[1] is None else name: one[1:] for i, (name, one) in enumerate(found.items())}


@pytest.mark.parametrize("kind", ["number", "vector", "label", "text"])
def test_a_sound_store_is_saved_whole(tmp_path: Path, kind: str) -> None:
    """Items, order, payloads, texts and settings come over; the dead do not."""
    held = make(tmp_path / "old.softkv", kind)
    before = lasting(tmp_path / "old.softkv")
    done = repair(tmp_path / "old.softkv", tmp_path / "new.softkv")
    assert (done.saved, done.lost, done.report.ok) == (4, 0, True)
    assert lasting(tmp_path / "old.softkv") == before
    with Store.open(tmp_path / "new.softkv") as store:
        assert without_numbers(contents(store)) == held
        assert store.settings == {"kind": kind}
        assert store.check().ok


def test_only_rows_in_a_damaged_window_are_lost(tmp_path: Path) -> None:
    """Thirty-two windows to a row: one bad byte costs one row and no more."""
    wide(tmp_path / "old.softkv").close()
    flip(tmp_path / "old.softkv" / GENERATION / "keys.f32", 4096 + 3 * (1 << 20) + 5)
    done = repair(tmp_path / "old.softkv", tmp_path / "new.softkv")
    assert (done.saved, done.lost, done.missing) == (23, 1, ("key 6",))
    with Store.open(tmp_path / "new.softkv") as store:
        kept = [i for i in range(24) if i != 6]
        assert list(store.keys()) == [f"key {i}" for i in kept]
        assert np.array_equal(store.vectors(range(23)), vectors(24, 1 << 17)[kept])
        assert store.check().ok


def test_a_row_that_straddles_a_damaged_window_is_lost(tmp_path: Path) -> None:
    """A row with one doubtful byte is doubtful, also when most of it lies in a good window."""
    path = tmp_path / "old.softkv"
    with Store.open(path, "c") as store:
        store.append(vectors(6, 100_000), np.arange(6.0), keys=[str(i) for i in range(6)])  # 400,000 bytes a row
    flip(path / GENERATION / "keys.f32", 4096 + 24 * GRANULE + 5)  # window 24: row 0 (its end) and row 1 (its start)
    done = repair(path, tmp_path / "new.softkv")
    with Store.open(tmp_path / "new.softkv") as store:
        assert list(store.keys()) == ["2", "3", "4", "5"]
        assert (done.lost, done.missing) == (2, ("0", "1"))
        assert store.check().ok


def test_the_rows_before_a_cut_are_saved(tmp_path: Path) -> None:
    """Whole windows that are left of an arena that was cut off are saved."""
    wide(tmp_path / "old.softkv").close()
    with open(tmp_path / "old.softkv" / GENERATION / "keys.f32", "r+b") as arena:
        arena.truncate(4096 + 10 * (1 << 20) + 77)
    done = repair(tmp_path / "old.softkv", tmp_path / "new.softkv")
    assert (done.saved, done.lost) == (20, 4)
    assert done.missing == ("key 20", "key 21", "key 22", "key 23")


def test_a_damaged_header_does_not_cost_the_rows(tmp_path: Path) -> None:
    """The catalog knows what the header said, and the checksums vouch for the rows."""
    held = make(tmp_path / "old.softkv", "vector")
    flip(tmp_path / "old.softkv" / GENERATION / "keys.f32", 30)
    assert repair(tmp_path / "old.softkv", tmp_path / "new.softkv").saved == 4
    with Store.open(tmp_path / "new.softkv") as store:
        assert without_numbers(contents(store)) == held


@pytest.mark.parametrize(
    ("statement", "lost", "row"),
    [
        ("UPDATE items_1 SET key = 'z' WHERE key = 'd'", "d", 3),
        ("UPDATE contents SET payload = '4' WHERE payload = '3'", "e", 4),
        ("DELETE FROM items_1 WHERE key = 'd'", "d", 3),
    ],
)
def test_rows_that_are_damaged_in_the_catalog_are_lost_alone(
    tmp_path: Path, statement: str, lost: str, row: int
) -> None:
    """One bad row of the catalog costs one item, and is named by its number: its key may be the wrong one."""
    held = make(tmp_path / "old.softkv", "label")
    sql(tmp_path / "old.softkv", statement)
    done = repair(tmp_path / "old.softkv", tmp_path / "new.softkv")
    assert (done.lost, done.missing) == (1, (row,))
    with Store.open(tmp_path / "new.softkv") as store:
        assert set(held) - set(without_numbers(contents(store))) == {lost}
        assert store.check().ok


def test_a_damaged_label_costs_the_items_that_carry_it(tmp_path: Path) -> None:
    """A label that cannot be believed is not guessed."""
    make(tmp_path / "old.softkv", "label")
    sql(tmp_path / "old.softkv", "UPDATE labels SET label = 'w' WHERE label = 'z'")
    done = repair(tmp_path / "old.softkv", tmp_path / "new.softkv")
    with Store.open(tmp_path / "new.softkv") as store:
        assert (done.lost, done.missing) == (1, ("d",))
        assert "d" not in store
        assert {store.get(name).value for name in store.keys()} == {"x", "y"}  # noqa: SIM118 - not a mapping


def test_an_empty_store_is_repaired_to_an_empty_one(tmp_path: Path) -> None:
    """There is nothing to save, and that is no failure."""
    Store.open(tmp_path / "old.softkv", "c").close()
    assert repair(tmp_path / "old.softkv", tmp_path / "new.softkv").saved == 0
    with Store.open(tmp_path / "new.softkv") as store:
        assert len(store) == 0


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A target that is there, the store itself included, is refused and left alone."""
    path = closed_fruit(tmp_path / "old.softkv")
    before = lasting(path)
    with pytest.raises(StoreExists):
        repair(path, path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreExists):
        repair(path, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert lasting(path) == before


def test_nothing_is_written_into_the_old_store(tmp_path: Path) -> None:
    """A target in its directory is refused, also where a link leads there."""
    path = closed_fruit(tmp_path / "old.softkv")
    (tmp_path / "link").symlink_to(path)
    before = lasting(path)
    for target in (path / "new", tmp_path / "link" / "new"):
        with pytest.raises(BackupRefused, match="lies in it"):
            repair(path, target)
    assert lasting(path) == before


@pytest.mark.parametrize("given", ["", "a\0b"])
def test_what_is_no_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """An empty text, as from an unset variable, is not the working directory."""
    path = closed_fruit(tmp_path / "old.softkv")
    monkeypatch.chdir(path)
    for ask in (lambda: check(given), lambda: repair(given, tmp_path / "new"), lambda: repair(path, given)):
        with pytest.raises(InputError):
            ask()
    assert repair(os.fsencode(path), os.fsencode(tmp_path / "new")).saved == 3
    assert check(os.fsencode(tmp_path / "new")).ok


def test_a_store_whose_state_is_gone_cannot_be_repaired(tmp_path: Path) -> None:
    """Without the row of the newest commit nobody knows what was committed: an error, and no new store."""
    path = closed_fruit(tmp_path / "old.softkv")
    sql(path, "DELETE FROM state")
    with pytest.raises(StoreDamaged, match="nothing can be saved"):
        repair(path, tmp_path / "new.softkv")
    assert not (tmp_path / "new.softkv").exists()


def test_a_store_that_is_not_there_cannot_be_repaired(tmp_path: Path) -> None:
    """No empty new store is made for it."""
    with pytest.raises(StoreNotFound):
        repair(tmp_path / "none.softkv", tmp_path / "new.softkv")
    assert list(tmp_path.iterdir()) == []


def test_a_catalog_that_counts_too_many_rows_does_not_fill_the_memory(tmp_path: Path) -> None:
    """The files say how many there can be; what they hold is saved."""
    path = closed_fruit(tmp_path / "old")
    forge(path, "generations", rows=2**53)
    done = repair(path, tmp_path / "new")
    assert done.saved <= 3
    assert done.saved + len(done.missing) <= 3


def test_a_store_that_is_being_written_can_be_saved(tmp_path: Path) -> None:
    """Its newest commit is what is saved."""
    make(tmp_path / "old", "number")
    with Store.open(tmp_path / "old", "w") as store:
        store.append(vectors(1), [1.0], keys=["late"])
        assert repair(tmp_path / "old", tmp_path / "new").saved == 5
        assert store.check().ok
    with Store.open(tmp_path / "new") as saved:
        assert saved.get("late").value == 1.0


def test_many_items_are_saved_in_their_order(tmp_path: Path) -> None:
    """They fill more than one batch of writing; order survives replacement and compaction."""
    count = 12_000
    with Store.open(tmp_path / "old", "c") as store:
        store.append(vectors(count, 2), np.arange(float(count)), keys=[str(i) for i in range(count)])
        store.append(
            vectors(count // 2, 2),
            np.zeros(count // 2),
            keys=[str(i) for i in range(0, count, 2)],
            on_conflict="replace",
        )
        store.delete("7")
        store.compact()
        names = list(store.keys())
    sql(tmp_path / "old", "UPDATE items_2 SET born = 0 WHERE key = '11'")
    repaired = repair(tmp_path / "old", tmp_path / "new")
    assert (repaired.saved, repaired.lost, len(repaired.missing)) == (count - 2, 1, 1)
    with Store.open(tmp_path / "new") as store:
        assert list(store.keys()) == [name for name in names if name != "11"]
        assert store.check().ok


def test_what_was_lost_is_named_also_without_a_key(tmp_path: Path) -> None:
    """Its number names it; the dead are not missed, and a name needs nothing but the catalog."""
    make(tmp_path / "old", "vector")
    (tmp_path / "old" / GENERATION / "values.vector").unlink()
    done = repair(tmp_path / "old", tmp_path / "new")
    assert (done.saved, done.lost, sorted(map(str, done.missing))) == (0, 4, ["#3", "a", "d", "e"])


def test_many_that_are_lost_are_named_beside_records_that_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found apart, however they lie among each other."""
    monkeypatch.setattr(import_module("softkv.storage.repairing"), "_BATCH", 10)
    with Store.open(tmp_path / "old", "c") as store:
        store.append(vectors(100), np.arange(100.0), keys=[f"key {i}" for i in range(100)])
    (tmp_path / "old" / GENERATION / "keys.f32").unlink()
    sql(tmp_path / "old", "UPDATE items_1 SET ordinal = 7 WHERE row % 9 = 0")
    sql(tmp_path / "old", "DELETE FROM items_1 WHERE row BETWEEN 40 AND 43")
    done = repair(tmp_path / "old", tmp_path / "new")
    unknown = {*range(0, 100, 9), *range(40, 44)}
    assert list(done.missing) == [i if i in unknown else f"key {i}" for i in range(100)]
    assert (done.saved, done.lost) == (0, 100)


def blot(path: Path, role: bytes | None = None) -> None:
    """Make a page of a closed store's checksums unreadable: one that holds only this arena's, or that to all others."""
    ((root,),) = sql(path, "SELECT rootpage FROM sqlite_master WHERE name = 'windows'")
    content = bytearray((path / CATALOG).read_bytes())
    start = (root - 1) * 4096
    if role is not None:
        leaves = [
            at for at in range(0, len(content), 4096) if content[at] == 10 and content.count(role, at, at + 4096) > 99
        ]
        others = {b"keys", b"values", b"norms"} - {role}
        start = next(at for at in leaves if not any(other in content[at : at + 4096] for other in others))
    content[start : start + 4096] = b"\xff" * 4096
    (path / CATALOG).write_bytes(content)


def many_windows(path: Path) -> Path:
    """A closed store with some pages of checksums for every arena, each of 32 bytes; its first 100 items are dead."""
    with Store.open(path, "c") as store:
        store.append(np.arange(8000.0)[:, None], np.arange(8000.0), keys=[f"k{number}" for number in range(8000)])
        store.delete([f"k{number}" for number in range(100)])
    return path


def test_unreadable_checksums_that_no_row_needs_cost_nothing(tmp_path: Path) -> None:
    """The rows are fewer than one checksum covers, so it stands beside their number; the dead stay dead."""
    with Store.open(tmp_path / "old", "c") as store:
        store.append(vectors(20), np.arange(20.0), keys=[f"k{number}" for number in range(20)])
        store.delete(["k3", "k4"])
    blot(tmp_path / "old")
    done = repair(tmp_path / "old", tmp_path / "new")
    assert (done.saved, done.lost, done.report.ok) == (18, 0, False)
    with Store.open(tmp_path / "new") as store:
        assert list(store.keys()) == [f"k{number}" for number in range(20) if number not in (3, 4)]
        assert store.check().ok


def test_unreadable_checksums_of_norms_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms are derived; the dead stay dead."""
    tiny.shrink(monkeypatch)
    path = many_windows(tmp_path / "old")
    blot(path, b"norms")
    done = repair(path, tmp_path / "new")
    assert (done.saved, done.lost, done.report.ok) == (7900, 0, False)
    with Store.open(tmp_path / "new") as store:
        assert list(store.keys()) == [f"k{number}" for number in range(100, 8000)]


@pytest.mark.parametrize("role", [b"keys", b"values"])
def test_unreadable_checksums_cost_the_rows_that_they_cover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: bytes
) -> None:
    """One page of them holds some hundred of the checksums: no row outside of these is lost, and the dead stay dead."""
    tiny.shrink(monkeypatch)
    path = many_windows(tmp_path / "old")
    blot(path, role)
    done = repair(path, tmp_path / "new")
    lost = sorted(int(str(name)[1:]) for name in done.missing)
    assert 0 < len(lost) == done.lost < 4000
    assert lost == list(range(lost[0], lost[-1] + 1))
    with Store.open(tmp_path / "new") as store:
        assert list(store.keys()) == [f"k{number}" for number in range(100, 8000) if number not in lost]


def test_nothing_is_saved_where_no_checksum_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the checksums nor how many bytes each covers: all items are missed, and none is guessed."""
    tiny.shrink(monkeypatch)
    path = many_windows(tmp_path / "old")
    sql(path, "DELETE FROM granules")
    blot(path)
    done = repair(path, tmp_path / "new")
    assert (done.saved, done.lost, len(done.missing)) == (0, 7900, 7900)


def many_labels(path: Path) -> Path:
    """A closed store with a label of its own for each of 3,000 items, and some pages of items and of labels."""
    with Store.open(path, "c") as store:
        names = [f"{number:04d}" for number in range(3000)]
        store.append(vectors(3000), [f"label {name}" for name in names], keys=[f"key {name}" for name in names])
    return path


def blot_leaf(path: Path, held: bytes) -> list[int]:
    """Make the page of a table unreadable that holds these bytes; returns the numbers behind the same word in it."""
    content = bytearray((path / CATALOG).read_bytes())
    start = next(at for at in range(0, len(content), 4096) if content[at] == 13 and held in content[at : at + 4096])
    word = held.split()[0]
    found = re.findall(word + rb" (\d{4})", content[start : start + 4096])
    content[start : start + 4096] = b"\xff" * 4096
    (path / CATALOG).write_bytes(content)
    return sorted({int(number) for number in found})


def refuse_pages(patch: pytest.MonkeyPatch) -> None:
    """Let SQLite say of unreadable pages what it says where the disk cannot read them."""

    class Refusing(sqlite3.Cursor):
        """A cursor that meets the same pages, with another error."""

        def execute(self, statement: str, arguments: Any = ()) -> sqlite3.Cursor:
            """Begin a statement."""
            return self._told(lambda: super(Refusing, self).execute(statement, arguments))

        def fetchall(self) -> list[Any]:
            """End it."""
            return self._told(super().fetchall)

        def _told(self, work: Callable[[], Any]) -> Any:
            try:
                return work()
            except sqlite3.DatabaseError as error:
                if "malformed" in str(error):
                    raise sqlite3.OperationalError("disk I/O error") from error
                raise

    class Driver(sqlite3.Connection):
        """A connection of such cursors."""

        def execute(self, statement: str, arguments: Any = ()) -> sqlite3.Cursor:
            """Begin a statement."""
            return self.cursor(Refusing).execute(statement, arguments)

    real = sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *given, **named: real(*given, factory=Driver, **named))


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("held", [b"label 1500", b"key 1500"])
def test_an_unreadable_page_costs_what_stands_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bytes, refused: bool
) -> None:
    """Damaged, or on a sector that the disk cannot read: of the labels and of the items no other is lost."""
    lost = blot_leaf(many_labels(tmp_path / "old"), held)
    if refused:
        refuse_pages(monkeypatch)
    done = repair(tmp_path / "old", tmp_path / "new")
    monkeypatch.undo()
    assert 10 < len(lost) < 300
    assert (done.saved, done.lost) == (3000 - len(lost), len(lost))
    assert list(done.missing) == ([f"key {number:04d}" for number in lost] if b"label" in held else lost)
    with Store.open(tmp_path / "new") as store:
        assert store.check().ok
        left = [f"label {number:04d}" for number in range(3000) if number not in lost]
        assert [store.get(f"key {name.split()[1]}").value for name in left] == left


def test_rows_that_the_disk_cannot_read_are_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read and not mapped before they are believed, since touching such a map would end the process."""
    wide(tmp_path / "old").close()
    place, real = HEADER + 5 * WINDOW + 17, os.pread
    wanted = os.stat(tmp_path / "old" / GENERATION / "keys.f32").st_ino

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == wanted and offset <= place < offset + size:
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    done = repair(tmp_path / "old", tmp_path / "new")
    assert (done.saved, done.missing) == (23, ("key 10",))
    (finding,) = done.report.findings
    assert f"bytes {HEADER + 5 * WINDOW} to {HEADER + 5 * WINDOW + GRANULE} cannot be read" in finding


VALUES = {
    "number": [float(i) for i in range(8)],
    "vector": vectors(8, 3, 1),
    "label": list("xyzxyzxy"),
    "text": [f"text {i}" for i in range(8)],
}


def made(path: Path, kind: str) -> Path:
    """Eight items, many windows to a row; one without a key, one dead, one replaced."""
    with Store.open(path, "c") as store:
        store.configure({"colour": "red"})
        store.append(
            vectors(8, 1 << 17),
            VALUES[kind],
            keys=[f"key {i}" if i != 2 else None for i in range(8)],
            payloads=[{"i": i} if i % 2 else None for i in range(8)],
            texts=[f"embedded {i}" if i == 4 else None for i in range(8)],
            value_vectors=vectors(8, 3, 2) if kind == "text" else None,
        )
        store.delete("key 6")
        store.append(
            vectors(1, 1 << 17, 9),
            VALUES[kind][:1],
            keys=["key 1"],
            value_vectors=vectors(1, 3, 2) if kind == "text" else None,
            on_conflict="replace",
        )
    return path


def good(path: Path) -> dict[str, tuple[object, ...]]:
    """What the items say of themselves, apart from their numbers and without those that have no key."""
    with Store.open(path) as store:
        assert store.check().ok
        return {name: item[1:] for name, item in contents(store).items() if not name.startswith("#")}


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("UPDATE items_1 SET key = 'nobody' WHERE row = 3", "key 3"),
        ("UPDATE items_1 SET key = CAST(x'ff' AS TEXT) WHERE row = 3", "key 3"),
        ("DELETE FROM items_1 WHERE row = 3", "key 3"),
        ("UPDATE items_1 SET ordinal = 'x' WHERE row = 3", "key 3"),
        ("UPDATE contents SET payload = '9' WHERE item = 4", "key 3"),
        ("UPDATE contents SET payload = CAST(x'ff' AS TEXT) WHERE item = 4", "key 3"),
        ("UPDATE items_1 SET seal = seal - died, died = NULL WHERE row = 6", None),
        ("UPDATE labels SET label = 'q' WHERE code = 2", "key 5"),
        ("UPDATE labels SET label = CAST(x'ff' AS TEXT) WHERE code = 2", "key 5"),
        ("DELETE FROM labels WHERE code = 2", "key 5"),
        ("UPDATE labels SET count = 0", "all"),
        ("DELETE FROM deaths", None),
        ("UPDATE state SET writing = 1", "nothing"),
        ("UPDATE generations SET rows = 1", "nothing"),
    ],
)
def test_one_bad_row_of_the_catalog_does_not_cost_the_others(tmp_path: Path, statement: str, lost: str | None) -> None:
    """What was altered by SQL behind the back is left behind, no less and no more; the dead stay dead."""
    path = made(tmp_path / "old", "label")
    expected = good(path)
    sql(path, statement)
    if lost == "nothing":
        with pytest.raises(StoreDamaged, match="nothing can be saved"):
            repair(path, tmp_path / "new")
        assert not (tmp_path / "new").exists()
        return
    repaired = repair(path, tmp_path / "new")
    assert not repaired.report.ok
    assert len(repaired.missing) == repaired.lost
    if lost == "all":
        expected = {}
    assert good(tmp_path / "new") == {name: item for name, item in expected.items() if name != lost}


@pytest.mark.parametrize("file", ["values.label", "keys.f32"])
def test_what_was_cut_off_is_lost_and_the_rest_saved(tmp_path: Path, file: str) -> None:
    """An arena that ends in the middle of a window, and one whose header is gone."""
    path = made(tmp_path / "old", "label")
    expected = good(path)
    arena = path / GENERATION / file
    if file == "keys.f32":
        with open(arena, "r+b") as opened:
            opened.truncate(HEADER + 3 * WINDOW + 99)
            opened.write(bytes(100))  # over the header
    else:
        arena.unlink()
    repaired = repair(path, tmp_path / "new")
    kept = {"key 0", "key 3", "key 4", "key 5"} if file == "keys.f32" else set()
    assert good(tmp_path / "new") == {name: item for name, item in expected.items() if name in kept}
    assert repaired.saved == len(kept) + (file == "keys.f32")  # and the one without a key


def test_a_repair_that_fails_leaves_nothing_and_may_be_begun_again(tmp_path: Path) -> None:
    """Part of the items without their settings would look like a whole store."""
    path, new = closed_fruit(tmp_path / "old.softkv"), tmp_path / "new.softkv"

    def fail(*given: Any) -> None:
        assert len(given[3]) == 3
        assert not new.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(path, new, carry=fail)
    assert os.listdir(tmp_path) == ["old.softkv"]
    assert repair(path, new).saved == 3
    assert check(new).ok


def test_a_repair_that_is_killed_leaves_no_store(tmp_path: Path) -> None:
    """What it leaves beside the path goes with the next one, which takes an empty directory as well."""
    path, new = closed_fruit(tmp_path / "old.softkv"), tmp_path / "new.softkv"
    code = "import os, sys; from softkv.storage import repair; repair(*sys.argv[1:], carry=lambda *_: os._exit(9))"
    assert subprocess.run([sys.executable, "-c", code, path, new], timeout=60).returncode == 9
    assert not new.exists()
    (left,) = set(os.listdir(tmp_path)) - {"old.softkv"}
    assert left.startswith(".new.softkv.new-")
    new.mkdir()
    assert repair(path, new).saved == 3
    assert sorted(os.listdir(tmp_path)) == ["new.softkv", "old.softkv"]
    assert check(new).ok


def test_a_repair_that_is_killed_while_it_makes_the_store_leaves_nothing_for_long(tmp_path: Path) -> None:
    """What it leaves goes with the next one."""
    path, new = closed_fruit(tmp_path / "old.softkv"), tmp_path / "new.softkv"
    code = (
        "import os, sys; from softkv.storage import repair; from softkv.storage.protocol import opening;"
        "opening._fill = lambda *_: os._exit(9); repair(*sys.argv[1:])"
    )
    assert subprocess.run([sys.executable, "-c", code, path, new], timeout=60).returncode == 9
    assert len(os.listdir(tmp_path)) == 2
    assert repair(path, new).saved == 3
    assert sorted(os.listdir(tmp_path)) == ["new.softkv", "old.softkv"]


def test_a_new_store_needs_a_directory_to_be_made_in(tmp_path: Path) -> None:
    """It is named as it was given."""
    path = closed_fruit(tmp_path / "old.softkv")
    with pytest.raises(StoreNotFound, match=r"gone is not a directory, so new\.softkv cannot be made in it"):
        repair(path, tmp_path / "gone" / "new.softkv")
