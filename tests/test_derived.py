"""Parts of what is derived come back as they were put, or not at all; no answer and no item depends on them."""

import logging
import os
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from softkv.errors import (
    AccessRefused,
    CommitUncertain,
    HandleClosed,
    HandlePoisoned,
    InputError,
    KindError,
    StorageFull,
    Unfinished,
)
from softkv.storage import Snapshot, Store, backup, check, repair, restore
from softkv.storage.catalog import derived
from softkv.storage.catalog.connection import Connection
from softkv.storage.catalog.tables import seal
from softkv.storage.disk import files
from tests.crash.children import Child, Say
from tests.stores import CATALOG, as_format, closed_fruit, contents, fruit, sql, vectors
from tests.test_compaction import generations
from tests.test_writer import Interrupt, interrupting

LONG = bytes(range(256)) * 100  # on pages of its own


def parts(store: Store | Snapshot, name: str = "lists", **how: int) -> list[tuple[int, bytes]]:
    """The parts of a name, which are numbered as is said."""
    snapshot = store.snapshot() if isinstance(store, Store) else store
    found = snapshot.derived(name, **how)
    after = how.get("after", 0)
    assert [number for number, _ in found] == [one for one in snapshot.derived_numbers(name) if one > after]
    return found


def numbers(store: Store) -> list[int]:
    """The numbers of the parts, sound or not."""
    return store.snapshot().derived_numbers("lists")


# Putting and reading

CONTENT: dict[str, tuple[Any, bytes]] = {
    "bytes": (LONG, LONG),
    "nothing": (b"", b""),
    "bytearray": (bytearray(b"abc"), b"abc"),
    "memoryview": (memoryview(LONG)[7:], LONG[7:]),
    "an array": (np.arange(6, dtype="<f4").reshape(2, 3), np.arange(6, dtype="<f4").tobytes()),
    "a view with gaps": (memoryview(LONG)[::2], LONG[::2]),
}


@pytest.mark.parametrize(("content", "expected"), CONTENT.values(), ids=CONTENT)
def test_what_was_put_comes_back(tmp_path: Path, content: Any, expected: bytes) -> None:
    """This handle gets it, another reader does, and whoever opens the store after it was closed."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        number = store.put_derived("lists", content)
        assert number == store.commit == 2
        assert parts(store) == parts(reader) == [(number, expected)]
        assert store.check().ok
    with Store.open(tmp_path / "s") as reader:
        assert parts(reader) == [(number, expected)]


def test_parts_are_numbered_by_their_commits(tmp_path: Path) -> None:
    """Each is a commit of its own; they come in the order in which they were put, all or the later ones."""
    with fruit(tmp_path / "s") as store:
        store.put_derived("lists", b"a")
        store.append(vectors(1), [1.0])
        store.put_derived("lists", b"b")
        store.put_derived("lists", b"c")
        assert parts(store) == [(2, b"a"), (4, b"b"), (5, b"c")]
        assert parts(store, after=2) == parts(store, after=3) == [(4, b"b"), (5, b"c")]
        assert parts(store, after=5) == parts(store, after=1 << 70) == []
        assert parts(store, after=-(1 << 70)) == parts(store)
        assert parts(store, "another") == []
        assert store.check().ok


def test_names_are_apart(tmp_path: Path) -> None:
    """Any name that an index file can have, whether there is one or not."""
    with fruit(tmp_path / "s") as store:
        for name in ("lists", "../../ä /", "x" * 255):
            store.put_derived(name, name.encode())
        assert [parts(store, name)[0][1] for name in ("lists", "../../ä /", "x" * 255)] == [
            b"lists",
            "../../ä /".encode(),
            b"x" * 255,
        ]
        assert store.check().ok


def test_a_part_takes_the_place_of_others_in_its_commit(tmp_path: Path) -> None:
    """Those that are numbered go, of this name alone; numbers that no part has are passed over."""
    with fruit(tmp_path / "s") as store:
        put = [store.put_derived("lists", bytes([place])) for place in range(4)]
        other = store.put_derived("another", b"x")
        number = store.put_derived("lists", b"both", instead_of=np.array([put[0], put[2]]))
        assert parts(store) == [(put[1], b"\1"), (put[3], b"\3"), (number, b"both")]
        assert number == store.commit == other + 1
        last = store.put_derived("lists", b"all", instead_of=(*put, number, other, 99, -1, 0, 1 << 70))
        assert parts(store) == [(last, b"all")]
        assert parts(store, "another") == [(other, b"x")]
        assert store.check().ok


def test_a_snapshot_sees_no_part_of_a_later_commit(tmp_path: Path) -> None:
    """Those that it could have used may be gone; then it is given fewer."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        before = [store.put_derived("lists", bytes([place])) for place in range(3)]
        with reader.snapshot() as snapshot:
            assert [number for number, _ in parts(snapshot)] == before
            later = store.put_derived("lists", b"both", instead_of=before[:2])
            assert parts(snapshot) == [(before[2], b"\2")]
            assert [number for number, _ in parts(reader)] == [before[2], later]
        with pytest.raises(HandleClosed):
            snapshot.derived("lists")
        with pytest.raises(HandleClosed):
            snapshot.derived_numbers("lists")
        assert store.check().ok


def test_parts_change_no_answer(tmp_path: Path) -> None:
    """Items, rows, settings and the generation are as they were."""
    with fruit(tmp_path / "s") as store:
        before = contents(store), store.rows, store.settings, generations(tmp_path / "s")
        store.put_derived("lists", LONG)
        assert (contents(store), store.rows, store.settings, generations(tmp_path / "s")) == before
        assert os.listdir(tmp_path / "s" / "index") == []
        assert store.check().ok


def test_a_reader_elsewhere_sees_whole_parts_while_they_are_replaced(tmp_path: Path) -> None:
    """Parts prove themselves to another process, none is of a later commit, and those there say all that was put."""
    path = closed_fruit(tmp_path / "s")

    def put(say: Say) -> None:
        held: list[int] = []
        with Store.open(path, "w") as store:
            say("begun")
            for turn in range(150):
                told = held if turn % 10 == 9 else []
                content = b"%d " % turn * (turn % 7 * 500 + 1)
                held = [*([] if told else held), store.put_derived("lists", content, instead_of=told)]
            store.configure({"over": True})

    seen: set[int] = set()
    with Child(put) as child, Store.open(path) as reader:
        assert child.hear() == ["begun"]
        for _ in range(100_000):
            if reader.settings.get("over"):
                break
            with reader.snapshot() as snapshot:
                found = snapshot.derived("lists")
                assert all(number <= snapshot.commit for number, _ in found)
                for number, content in found:
                    assert content == b"%d " % (number - 2) * ((number - 2) % 7 * 500 + 1)
                seen.update(number for number, _ in found)
        assert child.wait() == 0
        assert reader.check().ok
    assert len(seen) > 5


# With index files and generations


@pytest.mark.parametrize("how", ["put", "instead", "drop", "drop all"])
def test_parts_go_with_the_index_file_of_their_name(tmp_path: Path, how: str) -> None:
    """They go in the commit in which it is replaced or dropped; those of other names stay."""
    with fruit(tmp_path / "s") as store:
        store.put_index("lists", b"old")
        store.put_derived("lists", LONG)
        kept = store.put_derived("another", b"x")
        with store.snapshot() as snapshot:
            commit = store.commit
            if how == "put":
                store.put_index("lists", b"new")
            elif how == "instead":
                store.put_index("graph", b"new", instead_of="lists")
            else:
                store.drop_index("lists" if how == "drop" else None)
            assert store.commit == commit + 1
            assert parts(store) == parts(snapshot) == []
            assert parts(store, "another") == ([] if how == "drop all" else [(kept, b"x")])
        assert store.check().ok


def test_parts_are_dropped_without_an_index_file(tmp_path: Path) -> None:
    """Dropping what is not there is no change."""
    with fruit(tmp_path / "s") as store:
        store.put_derived("lists", LONG)
        store.drop_index("another")
        assert store.commit == 2
        store.drop_index("lists")
        assert (store.commit, parts(store)) == (3, [])
        store.drop_index()
        assert store.commit == 3
        assert store.check().ok


@pytest.mark.parametrize("how", ["compact", "order", "rebuild"])
def test_another_generation_leaves_them_behind(tmp_path: Path, how: str) -> None:
    """Its rows lie elsewhere. Who reads the old generation keeps its parts, and they go with it."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        number = store.put_derived("lists", LONG)
        snapshot = reader.snapshot()
        if how == "rebuild":
            work = store.rebuild(key_width=4, settings={})
            assert parts(store) == [(number, LONG)]
            with pytest.raises(Unfinished):
                store.put_derived("lists", b"x")
            work.write(vectors(len(work.waiting())))
            work.finish()
        else:
            store.delete("pear")
            store.compact([2, 0] if how == "order" else None, index={"lists": b"new"})
        assert parts(store) == parts(reader) == []
        assert parts(snapshot) == [(number, LONG)]
        later = store.put_derived("lists", b"new")
        assert parts(store) == [(later, b"new")]
        snapshot.close()
        store.configure({})
        assert generations(tmp_path / "s") == ["generation-000002"]
        report = store.check()
        assert report.ok
        assert not report.notes
    assert sql(tmp_path / "s", "SELECT generation, part FROM derived") == [(2, later)]


# Refusals


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 256, 7, None])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: Any) -> None:
    """It is refused before anything is written."""
    with fruit(tmp_path / "s") as store:
        for work in (
            lambda: store.put_derived(name, b""),
            lambda: store.snapshot().derived(name),
            lambda: store.snapshot().derived_numbers(name),
        ):
            with pytest.raises(InputError, match="name"):
                work()
        assert store.commit == 1


BAD: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a text": ("text", (), KindError, "holds bytes, not a str"),
    "a number": (7, (), KindError, "holds bytes, not a int"),
    "nothing": (None, (), KindError, "holds bytes, not a NoneType"),
    "pieces": ([b"a"], (), KindError, "holds bytes, not a list"),
    "too much": (b"x" * 101, (), InputError, "at most 100 bytes, not 101"),
    "one number": (b"", 7, InputError, "expected instead_of as numbers of parts, got int"),
    "a text for numbers": (b"", "12", InputError, "expected the number of a part, got str"),
    "half a number": (b"", [1.5], InputError, "expected the number of a part, got float"),
}


@pytest.mark.parametrize(("content", "instead_of", "error", "told"), BAD.values(), ids=BAD)
def test_what_cannot_be_put_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, instead_of: Any, error: type[Exception], told: str
) -> None:
    """The parts before stay, and the handle goes on."""
    monkeypatch.setattr("softkv.storage.protocol.publishing.LONGEST", 100)
    with fruit(tmp_path / "s") as store:
        first = store.put_derived("lists", b"x" * 100)
        with pytest.raises(error, match=told):
            store.put_derived("lists", content, instead_of=instead_of)
        assert (store.commit, parts(store)) == (first, [(first, b"x" * 100)])
        with pytest.raises(InputError, match="expected the number of a part, got str"):
            store.snapshot().derived("lists", after="x")  # type: ignore[arg-type]
        store.put_derived("lists", b"y")
        assert store.check().ok


def test_the_largest_part_can_be_read_again(tmp_path: Path) -> None:
    """A row of the catalog holds it, whatever limit the connection has."""
    content = bytes(derived.LONGEST)
    with fruit(tmp_path / "s") as store:
        number = store.put_derived("x" * 255, content)
        with pytest.raises(InputError, match="at most"):
            store.put_derived("lists", content + b"x")
    with Store.open(tmp_path / "s") as reader:
        assert reader.snapshot().derived("x" * 255) == [(number, content)]
        assert reader.check().ok


def test_there_must_be_rows_and_a_writer(tmp_path: Path) -> None:
    """An empty store, a reader, a closed handle: each is told why not. An empty store has no parts."""
    with Store.open(tmp_path / "s", "c") as store:
        with pytest.raises(InputError, match="no rows yet"):
            store.put_derived("lists", b"")
        assert (store.commit, parts(store)) == (0, [])
        store.append(vectors(1), [1.0])
        store.delete("#1")
        assert store.put_derived("lists", b"") == 3
    with Store.open(tmp_path / "s") as reader, pytest.raises(AccessRefused):
        reader.put_derived("lists", b"")
    with pytest.raises(HandleClosed):
        store.put_derived("lists", b"")


# Damage


def put_beside(path: Path) -> list[tuple[int, bytes]]:
    """A closed store with three parts."""
    with fruit(path) as store:
        for content in (b"first", LONG, b"last"):
            store.put_derived("lists", content)
        return parts(store)


DAMAGE: dict[str, tuple[str, object, bool]] = {  # what is another, its value, and whether it is asked for all the same
    "another checksum": ("seal", 7, True),
    "a checksum that is a text": ("seal", "x", True),
    "another byte": ("content", LONG[:-1] + b"x", True),
    "cut off": ("content", LONG[:-1], True),
    "another part's": ("content", b"first", True),
    "a text, sealed": ("content, seal", ("text", seal(1, "lists", 3, "text")), True),
    "a number, sealed": ("content, seal", (7, seal(1, "lists", 3, 7)), True),
    "a half number, sealed": ("part, seal", (3.5, seal(1, "lists", 3.5, LONG)), True),  # type: ignore[arg-type]
    "a number below zero, sealed": ("part, seal", (-3, seal(1, "lists", -3, LONG)), False),
    "the number zero, sealed": ("part, seal", (0, seal(1, "lists", 0, LONG)), False),
    "a text for a number, sealed": ("part, seal", ("x", seal(1, "lists", "x", LONG)), False),
    "a name that is bytes, sealed": ("name, seal", (b"lists", seal(1, b"lists", 3, LONG)), False),
}


@pytest.mark.parametrize(("columns", "given", "asked"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, columns: str, given: Any, asked: bool
) -> None:
    """The others come back; it is logged where it was asked for, and is a note of a check, not a finding."""
    expected = put_beside(tmp_path / "s")
    given = given if isinstance(given, tuple) else (given,)
    sql(tmp_path / "s", f"UPDATE derived SET ({columns}) = ({', '.join('?' * len(given))}) WHERE part = 3", *given)
    with Store.open(tmp_path / "s", "w") as store, caplog.at_level(logging.WARNING, "softkv"):
        assert store.snapshot().derived("lists") == [expected[0], expected[2]]
        assert bool(caplog.records) == asked
        assert contents(store).keys() == {"apple", "pear", "quince"}
        report = store.check()
        assert report.ok
        assert len(report.notes) == 1
        assert report.notes[0].endswith("1 derived parts are damaged: rows [2] of the table")
        last = store.put_derived("lists", b"all", instead_of=[2, 3, 4])
        assert store.snapshot().derived("lists") == [(last, b"all")]


def test_a_part_of_a_later_commit_is_not_believed_and_gives_way(tmp_path: Path) -> None:
    """Its checksum is right, and nobody reads it before its commit, which then puts its own."""
    expected = put_beside(tmp_path / "s")
    for number in (5, (1 << 63) - 1):
        row = (1, "lists", number, b"forged")
        sql(tmp_path / "s", "INSERT INTO derived VALUES (?, ?, ?, ?, ?)", *row, seal(*row))
    with Store.open(tmp_path / "s", "w") as store:
        assert parts(store) == expected
        store.put_derived("lists", b"new")
        assert parts(store) == [*expected, (5, b"new")]
        assert store.check().ok


def test_parts_of_what_nobody_knows_are_no_problem(tmp_path: Path) -> None:
    """Generations and names may be unknown; a name with a NUL cannot be asked for."""
    expected = put_beside(tmp_path / "s")
    for generation, name in ((7, "lists"), (0, "lists"), (-1, "lists"), (1, "nobody"), (1, "a\0b"), (1, "")):
        row = (generation, name, 1, b"x")
        sql(tmp_path / "s", "INSERT INTO derived VALUES (?, ?, ?, ?, ?)", *row, seal(*row))
    with Store.open(tmp_path / "s", "w") as store:
        assert parts(store) == expected
        report = store.check()
        assert (report.ok, report.notes) == (True, [])
        store.compact([2, 1, 0])
        assert store.check().ok


def test_a_damaged_page_costs_a_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every byte of the pages of a part altered: it comes back as it was, or is left out, and items are as before."""
    with fruit(tmp_path / "s") as store:
        before = contents(store)
        expected = [(store.put_derived("lists", content), content) for content in (b"first", LONG, b"last")]
    path = tmp_path / "s" / CATALOG
    whole, left_out = path.read_bytes(), 0
    places = [place for place in range(len(whole)) if whole[place : place + 8] == LONG[:8]]
    assert len(places) > 50
    random = Random(3)
    for place in [*random.sample(places, 10), *(place - 4 for place in random.sample(places, 10))]:
        path.write_bytes(whole[:place] + b"\xee" + whole[place + 1 :])
        with Store.open(tmp_path / "s") as store, caplog.at_level(logging.CRITICAL, "softkv"):
            found = store.snapshot().derived("lists")
            assert [one for one in found if one not in expected] == []
            left_out += len(found) < 3
            assert contents(store) == before
            assert store.check().notes or found == expected
    assert left_out >= 10


def test_a_table_that_cannot_be_read_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its pages are blank: there are no parts, and the rest of the store is read."""
    put_beside(tmp_path / "s")
    path = tmp_path / "s" / CATALOG
    ((root,),) = sql(tmp_path / "s", "SELECT rootpage FROM sqlite_master WHERE name = 'derived'")
    ((keyed,),) = sql(tmp_path / "s", "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_derived_1'")
    whole = path.read_bytes()
    for page in (root, keyed):
        path.write_bytes(whole[: (page - 1) * 4096] + bytes(4096) + whole[page * 4096 :])
        with Store.open(tmp_path / "s") as store:
            caplog.clear()
            assert store.snapshot().derived("lists") == []
            assert caplog.records
            assert set(contents(store)) == {"apple", "pear", "quince"}
            assert "derived" in str(store.check()) or "malformed" in str(store.check())


def test_pages_that_parts_share_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Many rows that lead to the same pages: no more is read than the catalog has bytes."""
    with fruit(tmp_path / "s") as store:
        for _ in range(8):
            store.put_derived("lists", b"")
        store.put_derived("lists", LONG * 40)
    with Store.open(tmp_path / "s", "w") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "size", lambda _: len(LONG) * 60)
        patch.setattr(derived, "_sound_content", lambda *_: LONG * 40)
        assert len(store.snapshot().derived("lists")) == 1


# Copies, formats


def test_a_backup_has_the_parts(tmp_path: Path) -> None:
    """The parts are in a backup, also an incremental one, and in what it restores; a damaged one is copied as it is."""
    with fruit(tmp_path / "s") as store:
        first = store.put_derived("lists", b"first")
        store.backup(tmp_path / "b")
        store.append(vectors(1), [1.0])
        second = store.put_derived("lists", LONG, instead_of=[first])
        store.backup(tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "r")
    for copy in ("b", "r"):
        with Store.open(tmp_path / copy) as store:
            assert parts(store) == [(second, LONG)]
            assert (store.check().ok, store.check().notes) == (True, [])
    sql(tmp_path / "s", "UPDATE derived SET seal = 0")
    backup(tmp_path / "s", tmp_path / "b2")
    with Store.open(tmp_path / "b2") as store:
        assert store.snapshot().derived("lists") == []
        assert store.check().ok


def test_a_repaired_store_has_none(tmp_path: Path) -> None:
    """Its rows lie elsewhere."""
    put_beside(tmp_path / "s")
    sql(tmp_path / "s", "UPDATE derived SET seal = 0 WHERE part = 2")
    assert repair(tmp_path / "s", tmp_path / "new").lost == 0
    with Store.open(tmp_path / "new") as store:
        assert parts(store) == []
        assert store.check().ok


@pytest.mark.parametrize("number", [1, 2])
def test_an_older_format_has_none_until_it_is_migrated(tmp_path: Path, number: int) -> None:
    """A reader says so, and stays open while a writer migrates and puts one."""
    path = as_format(closed_fruit(tmp_path / "s"), number)
    with Store.open(path) as reader:
        assert parts(reader) == []
        with Store.open(path, "w") as store:
            part = store.put_derived("lists", LONG)
            assert parts(reader) == parts(store) == [(part, LONG)]
            assert store.check().ok


# Failures


def test_a_part_that_does_not_fit_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there stays."""
    with fruit(tmp_path / "s") as store:
        first = store.put_derived("lists", b"old")
        usage = files.shutil.disk_usage(tmp_path)._replace(free=len(LONG))
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(StorageFull, match=r"adding a derived part to .* needs .* MB and the disk has"):
            store.put_derived("lists", LONG, instead_of=[first])
        assert parts(store) == [(first, b"old")]
        assert store.commit == first
        assert store.check().ok


def test_a_commit_that_fails_half_way_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that was to go is there, the new one is not; a commit of which nobody knows ends the handle."""
    store = fruit(tmp_path / "s")
    first = store.put_derived("lists", b"old")
    real = derived.insertion

    def failing(*_: Any, **__: Any) -> str:
        raise StorageFull("no space")

    monkeypatch.setattr(derived, "insertion", failing)
    with pytest.raises(StorageFull):
        store.put_derived("lists", LONG, instead_of=[first])
    monkeypatch.setattr(derived, "insertion", real)
    assert (store.commit, parts(store)) == (first, [(first, b"old")])
    second = store.put_derived("lists", LONG, instead_of=[first])
    assert second == first + 1
    assert parts(store) == [(second, LONG)]

    def uncertain(_: Connection) -> None:
        raise CommitUncertain("who knows")

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "_commit", uncertain)
        with pytest.raises(CommitUncertain):
            store.put_derived("lists", b"x")
        with pytest.raises(HandlePoisoned):
            store.put_derived("lists", b"x")
    store.close()
    with Store.open(tmp_path / "s") as reader:
        assert parts(reader) == [(second, LONG)]
    assert check(tmp_path / "s").ok


@interrupting
def test_an_interrupt_anywhere_leaves_the_old_parts_or_the_new(tmp_path: Path, seed: int) -> None:
    """Both are whole, and the handle is right."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        interrupted, turn, done = True, 1 + seed % 3, 0
        while interrupted:
            held = [store.put_derived("lists", content) for content in (b"a", b"b")]
            before = parts(store)
            interrupt = Interrupt(turn)
            interrupt.during(partial(store.put_derived, "lists", b"both", instead_of=held))
            interrupted, told = bool(interrupt.where), f"at step {turn} in {interrupt.where}"
            happened = store.commit - held[1]
            assert happened in (0, 1), told
            expected = [one for one in before if one[0] not in held]
            assert parts(store) == parts(reader) == ([*expected, (held[1] + 1, b"both")] if happened else before), told
            store.drop_index("lists")
            turn, done = turn + 3, done + happened
        assert done >= 1
        assert turn > 50, "the work has many steps"
        assert store.check().ok


# What it costs


def test_a_check_holds_one_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check holds one part at a time, and a reader that wants the numbers reads none."""
    asked, rows = list[int](), Connection.rows

    def watched(connection: Connection, *how: Any) -> list[tuple[Any, ...]]:
        found = rows(connection, *how)
        asked.append(sum(len(cell) for row in found for cell in row if isinstance(cell, bytes)))
        return found

    with fruit(tmp_path / "s") as store:
        for _ in range(9):
            store.put_derived("lists", LONG)
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "rows", watched)
            assert len(numbers(store)) == 9
            assert max(asked) < len(LONG)
            assert store.check().ok
        assert len(LONG) <= max(asked) < 2 * len(LONG)


def test_the_checksum_of_a_part_is_that_of_its_fields() -> None:
    """It is made like that of every row of the catalog: of fields by their types, whether bytes are copied or not."""
    fields: tuple[int | str | bytes | None, ...] = (1, "lists", 3, LONG, None, b"")
    pieces = [b"i1", b"slists", b"i3", b"b" + LONG, b"NNone", b"b"]
    assert seal(*fields) == crc32(b"\0".join(pieces))
    assert seal() == crc32(b"")
