"""Compaction in a given order: rows lie where they were told to, and every answer stays what it was."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.errors import InputError, ShapeError, StorageFull, StoreDamaged, StoreError, Unfinished
from softkv.storage import Store
from softkv.storage.catalog.roster import COPIED
from softkv.storage.disk import files
from softkv.storage.disk.arena import HEADER
from softkv.storage.layout import WINDOW
from tests.stores import GENERATION, bytes_of, contents, flip, fruit, sql, vectors, wide
from tests.test_compaction import KINDS, generations, mixed
from tests.test_writer import Interrupt, interrupting
from tests.tiny import shrink


def shuffled(store: Store, seed: int = 0) -> np.ndarray:
    """The live rows in a random order."""
    return np.random.default_rng(seed).permutation(np.flatnonzero(store.live))


def by_row(store: Store, rows: Any) -> tuple[Any, ...]:
    """What lies in these rows: names, vectors, values."""
    return [item.name for item in store.items(rows)], store.vectors(rows).tolist(), store.values(rows).tolist()


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_lie_in_the_order_given_and_no_answer_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, tiny: bool
) -> None:
    """Row n of the new generation is row order[n] of the old; items, numbers and their order stay."""
    if tiny:
        shrink(monkeypatch)
    with mixed(tmp_path / "s", kind) as store:
        order, before, scale = shuffled(store), contents(store), store.value_scale
        rows, keys = by_row(store, order), list(store.keys())
        store.compact(order)
        assert by_row(store, range(store.rows)) == rows
        assert (contents(store), list(store.keys()), store.rows) == (before, keys, len(before))
        assert store.value_scale == pytest.approx(scale)
        lengths = np.linalg.norm(np.array(rows[1]), axis=1)
        np.testing.assert_allclose(store.snapshot().norms(0, store.rows), lengths, rtol=1e-6)
        assert store.check().ok
    with Store.open(tmp_path / "s", "w") as store:
        assert (contents(store), by_row(store, range(store.rows))) == (before, rows)
        assert store.check().ok


def test_an_order_is_kept_where_nothing_is_dead(tmp_path: Path) -> None:
    """Without an order there would be nothing to do; with one there is, and the next one starts from it."""
    with fruit(tmp_path / "s") as store:
        store.compact([2, 0, 1])
        assert [item.name for item in store.items([0, 1, 2])] == ["quince", "apple", "pear"]
        store.compact(np.array([2, 1, 0], np.uint8))
        assert [item.name for item in store.items([0, 1, 2])] == ["pear", "apple", "quince"]
        assert list(store.keys()) == ["apple", "pear", "quince"]
        assert generations(tmp_path / "s") == ["generation-000003"]
        assert store.check().ok


@pytest.mark.parametrize("kind", KINDS)
def test_work_goes_on_after_reordering(tmp_path: Path, kind: str) -> None:
    """Items are replaced, deleted, added, filtered, compacted, ordered and rebuilt, each time with the same answers."""
    with mixed(tmp_path / "s", kind) as store:
        store.compact(shuffled(store))
        text = kind == "text"
        value: Any = {"number": [7.0], "vector": vectors(1, 3), "label": ["new"], "text": ["new"]}[kind]
        embedded = vectors(1, 2) if text else None
        store.append(vectors(1, seed=8), value, keys=["key 3"], value_vectors=embedded, on_conflict="replace")
        store.delete(["key 4", "#6"])
        before = contents(store)
        assert list(before)[:2] == ["key 3", "key 6"]  # in its old place
        found = [store.items([row])[0].name for row in np.flatnonzero(store.matching({"i": {"$lt": 20}}))]
        assert sorted(found) == sorted(name for name, item in before.items() if item[4] and item[4]["i"] < 20)
        store.compact()
        assert contents(store) == before
        store.compact(shuffled(store, 1))
        work = store.rebuild(key_width=4, value_width=2 if text else None, settings={})
        while items := work.waiting(7):
            rows = [item.row for item in items]
            work.write(store.vectors(rows), store.values(rows) if text else None)
        work.finish()
        assert contents(store) == before
        assert store.check().ok


def test_a_snapshot_keeps_the_old_order(tmp_path: Path) -> None:
    """Rows that a snapshot or a reader has named stay where they were for it."""
    with mixed(tmp_path / "s", "number") as store, Store.open(tmp_path / "s") as reader:
        order, snapshot = shuffled(store), reader.snapshot()
        before, rows = contents(snapshot), snapshot.vectors(range(62))
        store.compact(order)
        assert np.array_equal(reader.vectors(range(len(order))), rows[order])
        assert np.array_equal(snapshot.vectors(range(62)), rows)
        assert contents(snapshot) == before == contents(reader)
        snapshot.close()
        assert store.check().ok


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ([0, 2], r"has 2 rows, but 3 are live"),
        ([0, 2, 3, 0], r"has 4 rows, but 3 are live"),
        ([0, 2, 2], r"does not name row 3, which is live"),
        ([0, 1, 2], r"does not name row 3, which is live: it names a dead row"),
        ([0, 2, 4], r"goes from row 0 to 4, but the store has 4 rows"),
        ([-1, 0, 2], r"goes from row -1 to 2"),
        ([0.0, 2.0, 3.0], r"list of row numbers, not float64"),
        ([True, False, True], r"list of row numbers, not bool"),
        ([[0, 2, 3]], r"of shape \(1, 3\)"),
        (0, r"of shape \(\)"),
        ([], r"not float64 of shape \(0,\)"),
        (np.array([0, 2, 2**63], np.uint64), r"goes from row 0 to 9223372036854775808"),
    ],
)
def test_what_is_no_order_of_all_live_rows_is_refused(tmp_path: Path, order: Any, told: str) -> None:
    """They are too few, too many, twice, dead, not there, or no numbers: said before anything is written."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(1), [7.0], keys=["pear"], on_conflict="replace")
        commit, before = store.commit, bytes_of(tmp_path / "s" / GENERATION)
        with pytest.raises(ShapeError, match=told):
            store.compact(order, index={"lists": b"never written"})
        assert (store.commit, generations(tmp_path / "s")) == (commit, [GENERATION])
        assert bytes_of(tmp_path / "s" / GENERATION) == before
        assert list((tmp_path / "s" / "index").iterdir()) == []
        store.compact([3, 2, 0])
        assert [item.name for item in store.items([0, 1, 2])] == ["pear", "quince", "apple"]
        assert store.check().ok


def test_the_order_of_nothing_is_empty(tmp_path: Path) -> None:
    """Before the first item there is nothing to do; when all are dead, they are left behind."""
    with Store.open(tmp_path / "s", "c") as store:
        store.compact([])
        with pytest.raises(ShapeError, match="1 rows, but 0 are live"):
            store.compact([0])
        assert store.commit == 0
        store.append(vectors(2), [1.0, 2.0], keys=["a", "b"])
        store.delete(["a", "b"])
        store.compact([])
        assert (store.rows, len(store)) == (0, 0)
        assert store.check().ok


def test_rows_wider_than_a_window_are_gathered_right(tmp_path: Path) -> None:
    """Rows keep their cells where the gathering jumps between many windows."""
    with wide(tmp_path / "s", rows=40, kind="vector") as store:
        store.delete([f"key {i}" for i in range(0, 40, 3)])
        order = shuffled(store)
        store.compact(order)
        assert np.array_equal(store.vectors(range(len(order))), vectors(40, 1 << 17)[order])
        assert np.array_equal(store.values(range(len(order))), vectors(40, 1 << 17, 1)[order])
        assert store.check().ok


def test_a_hundred_thousand_rows_find_their_places(tmp_path: Path) -> None:
    """More than the catalog is told at once, some dead, some without a key."""
    count = 100_000
    assert count > COPIED
    with Store.open(tmp_path / "s", "c") as store:
        cells = np.arange(count, dtype=np.float64)
        store.append(
            np.stack([cells, -cells], axis=1), cells, keys=[None if i % 7 == 0 else f"key {i}" for i in range(count)]
        )
        store.delete([f"key {i}" for i in range(1, count, 70)])
        order = shuffled(store)
        store.compact(order)
        assert np.array_equal(store.values(range(len(order))), order)
        assert np.array_equal(store.vectors(range(len(order)))[:, 1], -order.astype(np.float32))
        assert np.array_equal(store.values(store.in_order()), np.sort(order))
        named = [item.name for item in store.items(range(0, len(order), 997))]
        assert named == [f"#{i + 1}" if i % 7 == 0 else f"key {i}" for i in order[::997]]
        assert store.check().ok


# Damage, and disks


@pytest.mark.parametrize("file", ["keys.f32", "values.vector"])
@pytest.mark.parametrize("read_before", [False, True])
def test_damage_is_not_carried_into_another_order(tmp_path: Path, file: str, read_before: bool) -> None:
    """A window that does not match its checksum stops it, also one that was right when it was read before."""
    with wide(tmp_path / "s", 8, kind="vector") as store:
        if read_before:
            list(store.blocks())
        flip(tmp_path / "s" / GENERATION / file, HEADER + WINDOW + 5)
        with pytest.raises(StoreDamaged, match=file):
            store.compact(range(7, -1, -1), index={"lists": b"x"})
        assert generations(tmp_path / "s") == [GENERATION]
        assert list((tmp_path / "s" / "index").iterdir()) == []
        flip(tmp_path / "s" / GENERATION / file, HEADER + WINDOW + 5)
        store.compact(range(7, -1, -1))
        assert store.get("key 7").row == 0
        assert store.check().ok


def test_damaged_norms_are_worked_out_in_the_new_order(tmp_path: Path) -> None:
    """What is derived is never a reason to refuse."""
    with mixed(tmp_path / "s", "number"):
        pass
    flip(tmp_path / "s" / GENERATION / "norms.f32", HEADER + 40)
    with Store.open(tmp_path / "s", "w") as store:
        order = shuffled(store)
        store.compact(order)
        lengths = np.linalg.norm(store.vectors(range(store.rows)).astype(np.float64), axis=1)
        np.testing.assert_allclose(store.snapshot().norms(0, store.rows), lengths, rtol=1e-6)
        report = store.check()
        assert report.ok
        assert not report.notes


@pytest.mark.parametrize("ordered", [False, True])
def test_an_item_that_is_missing_shifts_no_other(tmp_path: Path, ordered: bool) -> None:
    """A row without its record in the catalog stops a compaction: the rows behind it would get each other's items."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(1), [7.0], keys=["pear"], on_conflict="replace")
    sql(tmp_path / "s", "DELETE FROM items_1 WHERE key = 'apple'")
    with Store.open(tmp_path / "s", "w") as store:
        with pytest.raises(StoreDamaged, match="3 items to copy, but 2 of them are live"):
            store.compact([3, 2, 0] if ordered else None)
        assert generations(tmp_path / "s") == [GENERATION]
        assert store.get("quince").value == -1.25
        assert not store.check().ok


def test_an_order_that_does_not_fit_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space is looked at first, for the files that go with it as well."""
    with mixed(tmp_path / "s", "vector") as store:
        before, order = contents(store), shuffled(store)
        usage = files.shutil.disk_usage(tmp_path)._replace(free=100_000)
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(StorageFull, match=r"compacting .* needs .* MB and the disk has"):
            store.compact(order, index={"lists": bytes(100_000)})
        assert generations(tmp_path / "s") == [GENERATION]
        store.compact(order, index={"lists": bytes(10_000)})
        assert contents(store) == before
        assert store.check().ok


def test_an_unfinished_rebuild_refuses_an_order(tmp_path: Path) -> None:
    """Its rows follow those of the present generation."""
    with fruit(tmp_path / "s") as store:
        store.rebuild(key_width=3, settings={})
        with pytest.raises(Unfinished):
            store.compact([2, 1, 0])
        store.abandon()
        store.compact([2, 1, 0])
        assert store.get("apple").row == 2
        assert store.check().ok


# Progress


@pytest.mark.parametrize("ordered", [False, True])
def test_progress_is_told_from_none_to_all(tmp_path: Path, ordered: bool) -> None:
    """The thread that called is told, never backwards, and the last is all of them."""
    told: list[tuple[int, int]] = []
    threads: set[int] = set()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.get_ident())

    with wide(tmp_path / "s", 24) as store:
        store.delete("key 3")
        store.compact(shuffled(store) if ordered else None, progress=progress)
        assert told == sorted(set(told))
        assert told[-1] == (23, 23)
        assert threads == {threading.get_ident()}
        told.clear()
        store.compact(progress=progress)
        assert told == []
        assert store.check().ok


def test_who_is_told_may_read_the_store_as_it_was(tmp_path: Path) -> None:
    """One handle, a snapshot and another handle may; and the order is not his to change."""
    with mixed(tmp_path / "s", "label") as store, Store.open(tmp_path / "s") as reader:
        before, commit, order = contents(store), store.commit, shuffled(store)
        rows, seen = by_row(store, order), list[Any]()

        def progress(done: int, total: int) -> None:
            order[:] = order[0]
            with store.snapshot() as snapshot:
                seen.append((contents(store), contents(snapshot), contents(reader), store.commit, store.find("key 3")))

        first = store.find("key 3")
        store.compact(order, progress=progress)
        assert seen == [(before, before, before, commit, first)] * len(seen)
        assert len(seen) > 1
        assert by_row(store, range(store.rows)) == rows
        assert store.check().ok


CHANGES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append(vectors(1), [9.0], keys=["late"]),
    "delete": lambda store: store.delete("apple"),
    "configure": lambda store: store.configure({"late": True}),
    "compact": lambda store: store.compact([0, 1, 2]),
    "rebuild": lambda store: store.rebuild(key_width=3, settings={}),
    "put_index": lambda store: store.put_index("late", b"late"),
    "drop_index": lambda store: store.drop_index(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_who_is_told_may_not_change_the_store(tmp_path: Path, change: Callable[[Store], object]) -> None:
    """Rows that came in the middle would be lost in the new generation; the same handle goes on afterwards."""
    with fruit(tmp_path / "s") as store:
        before = contents(store)
        with pytest.raises(InputError, match="in the middle of a change"):
            store.compact([2, 1, 0], progress=lambda *_: change(store))
        assert (contents(store), generations(tmp_path / "s")) == (before, [GENERATION])
        store.compact([2, 1, 0])
        change(store)
        assert store.check().ok


@pytest.mark.parametrize("call", [1, 2, -1])
def test_an_error_of_who_is_told_leaves_the_store_as_it_was(tmp_path: Path, call: int) -> None:
    """An error or interrupt in the callback, at the first call or the last, leaves the old state, and no files."""
    with wide(tmp_path / "s", 24) as store:
        store.put_index("old", b"of the old order")
        before, commit, calls = contents(store), store.commit, list[int]()

        def progress(done: int, total: int) -> None:
            calls.append(done)
            if len(calls) == call or (call < 0 and done == total):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.compact(range(23, -1, -1), index={"new": b"of the new order"}, progress=progress)
        assert (contents(store), store.commit) == (before, commit)
        assert generations(tmp_path / "s") == [GENERATION]
        assert len(list((tmp_path / "s" / "index").iterdir())) == 1
        assert bytes(store.snapshot().index("old").read()) == b"of the old order"  # type: ignore[union-attr]
        store.compact(range(23, -1, -1), progress=lambda *_: None)
        assert contents(store) == before
        assert store.find("key 23") == 0
        assert store.check().ok


def test_a_store_that_is_closed_by_who_is_told_is_as_it_was(tmp_path: Path) -> None:
    """The change does not happen, and what it left lying is removed by the next writer."""
    store = fruit(tmp_path / "s")
    before = contents(store)
    with pytest.raises(StoreError):
        store.compact([2, 1, 0], index={"lists": b"x"}, progress=lambda *_: store.close())
    with Store.open(tmp_path / "s", "w") as store:
        assert (contents(store), generations(tmp_path / "s")) == (before, [GENERATION])
        assert list((tmp_path / "s" / "index").iterdir()) == []
        assert store.check().ok


@interrupting
def test_an_interrupt_anywhere_leaves_the_old_order_or_the_new(tmp_path: Path, seed: int) -> None:
    """Order and index file come together, or neither does; and the handle is right."""

    def work(store: Store, order: Any, turn: int) -> None:
        store.compact(order, index={"first": f"{order[0]} {turn}".encode()}, progress=lambda *_: None)

    with Store.open(tmp_path / "s", "c") as store, Store.open(tmp_path / "s") as reader:
        store.append(vectors(300), np.arange(300.0), keys=[f"key {i}" for i in range(300)])
        before = contents(store)
        interrupted, turn, done = True, 1 + seed % 23, 0
        while interrupted:
            commit, old, order = store.commit, store.values(range(300)), shuffled(store, turn)
            interrupt = Interrupt(turn)
            interrupt.during(partial(work, store, order, turn))
            interrupted, told = bool(interrupt.where), f"at step {turn} in {interrupt.where}"
            happened = store.commit - commit
            assert happened in (0, 1), told
            assert reader.commit == store.commit, told
            assert np.array_equal(store.values(range(300)), old[order] if happened else old), told
            found = reader.snapshot().index("first")
            assert (found is not None and bytes(found.read()) == f"{order[0]} {turn}".encode()) == happened, told
            turn, done = turn + 23, done + happened
        assert done >= 1
        assert turn > 100, "the work has many steps"
        assert contents(store) == before
        assert store.check().ok
    with Store.open(tmp_path / "s", "w") as store:  # an interrupt of the tidying leaves something to the next writer
        assert contents(store) == before
        report = store.check()
        assert report.ok
        assert not report.notes
