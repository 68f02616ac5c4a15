"""A check finds every kind of damage, names it, and changes nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from softkv.errors import NotAStore, StoreDamaged, StoreNotFound
from softkv.storage import Report, Store, check
from softkv.storage.catalog.batches import Stamp
from softkv.storage.catalog.tables import seal
from softkv.storage.disk.arena import HEADER
from softkv.storage.layout import GRANULE, WINDOW
from softkv.storage.protocol import checking
from tests.stores import CATALOG, GENERATION, bytes_of, closed_fruit, copied, flip, forge, fruit, sql, vectors, wide


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store of labels with a dead row, a payload, and items with and without keys."""
    path = tmp_path / "s.softkv"
    with Store.open(path, "c") as made:
        made.append(vectors(6), list("xyxyzz"), keys=["a", "b", None, "d", "e", None], payloads=[{"n": 1}] + [None] * 5)
        made.delete("d")
    return path


def lasting(path: Path) -> dict[str, bytes]:
    """The bytes of a store, but for what SQLite keeps only while it is open: an empty log and its index."""
    return {name: content for name, content in bytes_of(path).items() if not name.endswith(("-wal", "-shm"))}


def found(path: Path) -> Report:
    """A report that is not ok, got without changing a byte."""
    before = lasting(path)
    report = check(path)
    assert lasting(path) == before
    assert not report.ok
    return report


def test_a_sound_store_is_ok(store: Path) -> None:
    """Nothing is found, and the report says how much was looked at."""
    report = check(store)
    assert report.ok
    assert (report.commit, report.items, report.windows, report.notes) == (2, 5, 3, [])
    assert str(report).startswith(f"{store}: ok, commit 2, 5 items")


def test_an_empty_store_is_ok(tmp_path: Path) -> None:
    """A store without any generation has nothing that could disagree."""
    Store.open(tmp_path / "s.softkv", "c").close()
    assert check(tmp_path / "s.softkv").ok


def test_what_is_not_there_cannot_be_checked(tmp_path: Path) -> None:
    """A path without a store, and one with something else, are errors and not findings."""
    with pytest.raises(StoreNotFound):
        check(tmp_path / "none.softkv")
    (tmp_path / "file").write_text("text")
    with pytest.raises(NotAStore):
        check(tmp_path / "file")


@pytest.mark.parametrize("file", ["keys.f32", "values.label"])
def test_every_byte_of_the_arenas_counts(store: Path, file: str) -> None:
    """A flipped bit anywhere in header or rows is found, whichever it is."""
    path = store / GENERATION / file
    for offset in range(0, path.stat().st_size, 7 if file == "keys.f32" else 5):
        if 300 < offset < 4000:
            continue  # blanks of the header: sampled below
        flip(path, offset, offset % 8)
        assert not check(store).ok, offset
        flip(path, offset, offset % 8)
    flip(path, 2000)
    assert "damaged" in str(found(store))
    flip(path, 2000)
    assert check(store).ok


def test_a_damaged_window_is_named_by_file_and_bytes(tmp_path: Path) -> None:
    """Of many windows the finding names the one."""
    path = tmp_path / "s.softkv"
    wide(path).close()
    flip(path / GENERATION / "keys.f32", 4096 + 3 * (1 << 20) + 5)
    report = found(path)
    (finding,) = report.findings
    assert f"keys.f32: bytes {4096 + 3 * (1 << 20)} to {4096 + 3 * (1 << 20) + GRANULE} do not match" in finding
    assert report.items == 23  # one row lies in that window


def test_swapped_windows_are_found(tmp_path: Path) -> None:
    """Right bytes in the wrong place are damage too."""
    path = tmp_path / "s.softkv"
    wide(path).close()
    arena = path / GENERATION / "keys.f32"
    content = bytearray(arena.read_bytes())
    first, second = slice(4096, 4096 + (1 << 20)), slice(4096 + (1 << 20), 4096 + (2 << 20))
    content[first], content[second] = content[second], content[first]
    arena.write_bytes(content)
    (finding,) = found(path).findings  # neighbours are named together
    assert f"bytes 4096 to {4096 + (2 << 20)} do not match" in finding


@pytest.mark.parametrize("file", ["keys.f32", "values.label"])
@pytest.mark.parametrize("size", [0, 100, 4096, 4097, 4100])
def test_a_file_that_was_cut_off_is_found(store: Path, file: str, size: int) -> None:
    """Any part of it may be left."""
    with open(store / GENERATION / file, "r+b") as arena:
        arena.truncate(size)
    assert file in str(found(store))


@pytest.mark.parametrize("name", ["keys.f32", "values.label", "PIN"])
def test_a_missing_file_is_found(store: Path, name: str) -> None:
    """Each file that a store needs is named when it is gone."""
    (store / GENERATION / name).unlink()
    assert name in str(found(store))


def test_a_missing_generation_is_found(store: Path) -> None:
    """All of its files are missed."""
    shutil.rmtree(store / GENERATION)
    assert "keys.f32" in str(found(store))


def test_damaged_norms_are_a_note(store: Path) -> None:
    """They can be worked out again, so the store is ok, and its answers are right."""
    flip(store / GENERATION / "norms.f32", 4096 + 2)
    report = check(store)
    assert report.ok
    assert "worked out again" in str(report)
    with Store.open(store) as reader:
        lengths = np.linalg.norm(vectors(6).astype(np.float64), axis=1)
        np.testing.assert_allclose(reader.snapshot().norms(0, 6), lengths, rtol=1e-6)


def test_leftovers_of_a_crash_are_a_note(store: Path) -> None:
    """A generation that the catalog does not name does no harm, and the next writer removes it."""
    (store / "generation-000009").mkdir()
    report = check(store)
    assert report.ok
    assert "generation-000009 is left over" in str(report)
    Store.open(store, "w").close()
    assert not check(store).notes


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE items_1 SET key = 'z' WHERE key = 'a'", "row 0 (1): damaged in the catalog"),
        ("UPDATE items_1 SET item = 77 WHERE row = 1", "damaged in the catalog"),
        ("UPDATE items_1 SET ordinal = ordinal + 1 WHERE row = 1", "damaged in the catalog"),
        ("UPDATE items_1 SET born = 2 WHERE row = 1", "damaged in the catalog"),
        ("UPDATE items_1 SET died = NULL WHERE row = 3", "damaged in the catalog"),
        ("UPDATE items_1 SET row = 60 WHERE row = 4", "missing from the catalog"),
        ("UPDATE items_1 SET born = 'x' WHERE row = 1", "damaged in the catalog"),
        ("DELETE FROM items_1 WHERE row = 2", "missing from the catalog"),
        ("UPDATE contents SET payload = '{\"n\":2}'", "damaged in the catalog"),
        ("DELETE FROM contents", "damaged in the catalog"),
        ("UPDATE labels SET label = 'w' WHERE code = 0", "label"),
        ("UPDATE labels SET count = 9 WHERE code = 0", "label"),
        ("DELETE FROM labels WHERE code = 2", "label"),
        ("DELETE FROM deaths", "dead in the other"),
        ("UPDATE deaths SET bitmap = zeroblob(8192)", "dead rows"),
        ("UPDATE deaths SET bitmap = zeroblob(3)", "dead rows"),
        ("UPDATE generations SET rows = 5", "generation 1 is missing or damaged"),
        ("UPDATE generations SET settings = '{\"a\":1}'", "generation 1 is missing or damaged"),
        ("DELETE FROM generations", "generation 1 is missing or damaged"),
        ("UPDATE state SET number = 1", "newest commit is damaged"),
        ("DELETE FROM state", "newest commit is damaged"),
    ],
)
def test_altered_rows_of_the_catalog_are_found(store: Path, statement: str, words: str) -> None:
    """What was changed behind the store's back does not match its checksum, or its neighbours."""
    sql(store, statement)
    assert words in str(found(store))


def test_altered_checksums_of_windows_are_found(tmp_path: Path) -> None:
    """A checksum that is missing or wrong counts as damage of what it covers."""
    path = tmp_path / "s.softkv"
    wide(path).close()
    sql(path, "UPDATE windows SET checksum = checksum + 1 WHERE window = 2 AND role = 'keys'")
    sql(path, "DELETE FROM windows WHERE window IN (3, 5) AND role = 'keys'")
    wrong, *missing = found(path).findings
    assert f"bytes {4096 + 2 * GRANULE} to {4096 + 3 * GRANULE} do not match" in wrong
    assert [f"{4096 + window * GRANULE} to" in one for window, one in zip((3, 5), missing, strict=True)] == [True, True]
    assert all("have no checksum in the catalog" in one for one in missing)


def test_sums_that_disagree_with_the_values_are_found(tmp_path: Path) -> None:
    """The value scale rests on sums that are kept, so they are compared with the values."""
    path = closed_fruit(tmp_path / "s.softkv")
    sums = np.frombuffer(sql(path, "SELECT sums FROM generations")[0][0], "<f8").copy()
    sums[1] *= 1.01
    forge(path, "generations", sums=sums.tobytes())
    assert "value scale" in str(found(path))


def test_a_row_count_that_no_file_bears_out_is_found(tmp_path: Path) -> None:
    """A lie with a valid checksum sizes nothing."""
    path = closed_fruit(tmp_path / "s.softkv")
    forge(path, "generations", rows=2**53)
    assert "no file holds more than 3" in str(found(path))


def test_damaged_pages_of_the_catalog_are_found(store: Path) -> None:
    """Garbage in the middle of the SQLite file does not go unnoticed, nor does it end in anything but a report."""
    path = store / CATALOG
    content = bytearray(path.read_bytes())
    missed = []
    for page in range(1, len(content) // 4096):
        damaged = content.copy()
        damaged[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
        path.write_bytes(damaged)
        if check(store).ok:
            missed.append(page)
    assert missed == []


def test_a_page_that_leads_to_other_rows_is_a_finding(tmp_path: Path) -> None:
    """A row that calls itself row 3 in the page where row 10,050 should be: for a check, and for a filter."""
    path = tmp_path / "s.softkv"
    rows = 10_100
    with Store.open(path, "c") as store:
        payloads = [{"n": number} for number in range(rows)]
        store.append([[1.0]] * rows, [1.0] * rows, keys=[f"key {number}" for number in range(rows)], payloads=payloads)
    content = bytearray((path / CATALOG).read_bytes())
    number, other = bytes([0x80 | 10_050 >> 7, 10_050 & 0x7F]), b"\x80\x03"  # as SQLite writes them
    altered, key = 0, content.find(b"key 10050")
    while key >= 0:
        place = content.find(number, key - 40, key)
        if place >= 0:
            content[place : place + 2] = other
            altered += 1
        key = content.find(b"key 10050", key + 1)
    assert altered
    (path / CATALOG).write_bytes(content)
    assert any("10050" in finding for finding in check(path).findings)
    with Store.open(path, "r") as store, pytest.raises(StoreDamaged):
        store.matching({"n": {"$gte": 10_000}})


def test_a_table_that_leads_back_to_earlier_rows_is_a_finding(tmp_path: Path) -> None:
    """One byte, the number of the last of three batches, is that of none before: the check ends, and says so."""
    path = tmp_path / "s.softkv"
    with Store.open(path, "c") as store:
        for number in range(3):
            store.append(vectors(1), [1.0], keys=[str(number)], stamp=Stamp(f"batch {number}", b"digest"))
        store.put_derived("lists", b"part")
    ((root,),) = sql(path, "SELECT rootpage FROM sqlite_master WHERE name = 'batches'")
    sql(path, "UPDATE derived SET content = x'00'")
    content = bytearray((path / CATALOG).read_bytes())
    page = (root - 1) * 4096
    place = page + int.from_bytes(content[page + 12 : page + 14], "big")  # of the last row: its length, its number
    assert content[place + 1] == 3
    content[place + 1] = 0
    (path / CATALOG).write_bytes(content)
    report = found(path)
    assert "the table of batches leads back to earlier rows" in str(report)
    assert "1 derived parts are damaged" in str(report)


def test_a_check_looks_at_one_commit_while_a_writer_works(tmp_path: Path) -> None:
    """Open for writing, with commits that are only in the log of the catalog yet, a store is checked all the same."""
    with Store.open(tmp_path / "s.softkv", "c") as store:
        for i in range(5):
            store.append(vectors(1), [float(i)], keys=[str(i)])
            report = check(store.path)
            assert report.ok
            assert (report.commit, report.items) == (i + 1, i + 1)


def test_a_reader_refuses_what_a_check_would_find(store: Path) -> None:
    """The damage that a check names is an error to who touches it, never another answer."""
    sql(store, "UPDATE items_1 SET key = 'z' WHERE key = 'a'")
    with Store.open(store) as reader:
        with pytest.raises(StoreDamaged, match="softkv check"):
            reader.get("z")
        assert reader.get("b").value == "y"


def test_counts_of_labels_that_disagree_are_found(store: Path) -> None:
    """The labels are good, their numbers are not."""
    sql(store, "UPDATE labels SET count = 9, seal = ? WHERE code = 0", seal(0, "x", 9))
    assert check(store).findings == ["the counts of labels disagree with the live items"]


def test_a_compaction_during_a_check_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files it was about to open are gone because nobody needs them; it looks again."""
    look = checking._look_for_leftovers

    with fruit(tmp_path / "s") as store:
        store.delete("apple")

        def meanwhile(*arguments: object) -> None:
            look(*arguments)  # type: ignore[arg-type]
            store.compact()

        monkeypatch.setattr(checking, "_look_for_leftovers", meanwhile)
        report = check(tmp_path / "s")
        assert report.ok, report
        assert report.commit == store.commit


def test_a_check_of_many_rows_goes_through_all_of_them(tmp_path: Path) -> None:
    """It reads the catalog beyond a stride: the last of 25,000 items is altered, and found."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(25_000, 1), [0.0] * 25_000)
        assert store.check().items == 25_000
    sql(tmp_path / "s", "UPDATE items_1 SET ordinal = 7 WHERE row = 24999")
    report = check(tmp_path / "s")
    assert report.findings == ["row 24999 (1): damaged in the catalog"]
    assert report.items == 24_999


def test_long_lists_of_rows_are_cut_short(tmp_path: Path) -> None:
    """A report is for people."""
    wide(tmp_path / "s", 20, 16).close()
    sql(tmp_path / "s", "UPDATE items_1 SET born = born + 1")
    assert check(tmp_path / "s").findings == ["rows 0, 1, 2, 3, 4 ... (20): damaged in the catalog"]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good store of four windows of keys, with a dead row, labels and payloads."""
    path = tmp_path_factory.mktemp("checking") / "s"
    with Store.open(path, "c") as store:
        store.append(
            vectors(8, 1 << 17),
            list("xyzxyzxy"),
            keys=[f"key {i}" for i in range(8)],
            payloads=[{"i": i} for i in range(8)],
        )
        store.delete("key 6")
    return path


def swap_windows(path: Path) -> None:
    """The first and the second window of the keys change places."""
    with open(path / GENERATION / "keys.f32", "r+b") as file:
        file.seek(HEADER)
        first, second = file.read(WINDOW), file.read(WINDOW)
        file.seek(HEADER)
        file.write(second + first)


def cut(path: Path) -> None:
    """The last byte of the values is missing."""
    arena = path / GENERATION / "values.label"
    arena.write_bytes(arena.read_bytes()[:-1])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of a key": (
        lambda path: flip(path / GENERATION / "keys.f32", HEADER + WINDOW + 7),
        "keys.f32: bytes 1052672",
    ),
    "a bit of a value": (lambda path: flip(path / GENERATION / "values.label", HEADER + 4), "values.label: bytes 4096"),
    "a bit of a header": (lambda path: flip(path / GENERATION / "keys.f32", 100), "the header is damaged"),
    "windows swapped": (swap_windows, "do not match their checksum"),
    "values cut off": (cut, "values.label: bytes 4096 to 4128 are missing"),
    "keys missing": (lambda path: (path / GENERATION / "keys.f32").unlink(), "keys.f32 is missing"),
    "PIN missing": (lambda path: (path / GENERATION / "PIN").unlink(), "PIN is missing"),
    "an item missing": (lambda path: sql(path, "DELETE FROM items_1 WHERE row = 3"), "row 3 (1): missing"),
    "an item altered": (lambda path: sql(path, "UPDATE items_1 SET key = 'x' WHERE row = 3"), "row 3 (1): damaged"),
    "a key that is no text": (
        lambda path: sql(path, "UPDATE items_1 SET key = CAST(x'ff' AS TEXT) WHERE row = 3"),
        "row 3 (1): damaged",
    ),
    "a payload altered": (lambda path: sql(path, "UPDATE contents SET payload = '1' WHERE item = 4"), "row 3 (1): dam"),
    "a dead row revived": (
        lambda path: sql(path, "UPDATE items_1 SET seal = seal - died, died = NULL WHERE row = 6"),
        "row 6 (1): live in one record and dead in the other",
    ),
    "a bitmap altered": (lambda path: sql(path, "UPDATE deaths SET bitmap = zeroblob(8192)"), "dead rows of block 0"),
    "a window missing": (
        lambda path: sql(path, "DELETE FROM windows WHERE window = 2"),
        "bytes 36864 to 53248 have no checksum",
    ),
    "a window altered": (lambda path: sql(path, "UPDATE windows SET checksum = 1 WHERE window = 2"), "bytes 36864"),
    "a label altered": (lambda path: sql(path, "UPDATE labels SET label = 'q' WHERE code = 1"), "label 1 is damaged"),
    "the head altered": (lambda path: sql(path, "UPDATE state SET number = 9"), "row of the newest commit"),
    "the record altered": (lambda path: sql(path, "UPDATE generations SET rows = 7"), "record of generation 1"),
    "a lie about the rows": (lambda path: forge(path, "generations", rows=2**53), "9007199254740992 rows"),
    "an index altered": (
        lambda path: flip(path / "catalog.sqlite", (path / "catalog.sqlite").read_bytes().rindex(b"key 5") + 4),
        "row 5 missing from index",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_every_damage_has_a_finding(origin: Path, tmp_path: Path, name: str) -> None:
    """It is named in a finding, nothing is raised, and nothing is changed."""
    path = copied(origin, tmp_path / "s")
    hurt, finding = DAMAGE[name]
    assert check(path).ok
    hurt(path)
    before = {name: found for name, found in bytes_of(path).items() if not name.endswith(("-shm", "-wal"))}
    report = check(path)
    assert not report.ok
    assert any(finding in one for one in report.findings) or name == "an index altered", report
    assert {name: found for name, found in bytes_of(path).items() if not name.endswith(("-shm", "-wal"))} == before


def test_all_damage_is_found_and_not_only_the_first(origin: Path, tmp_path: Path) -> None:
    """Five kinds at once, five findings at least; the items in good rows are counted."""
    path = copied(origin, tmp_path / "s")
    for name in ("a bit of a key", "an item missing", "a payload altered", "a label altered", "PIN missing"):
        DAMAGE[name][0](path)
    report = check(path)
    for part in ("keys.f32: bytes", "row 3 (1): missing", "label 1 is damaged", "PIN is missing"):
        assert any(part in finding for finding in report.findings), part
    assert report.items == 2  # rows 0 and 5: 1, 4 and 7 have the bad label, 2 and 3 the bad window, 6 is dead
