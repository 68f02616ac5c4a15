"""What came and died since an index was built is noted beside it, for every process; no answer depends on the notes."""

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from softkv_cli.mixtures import mixture

import softkv
from softkv.asking import indexed, route
from softkv.asking.indexed import NAME
from softkv.database import settling
from softkv.errors import StorageFull
from softkv.index import planned
from softkv.storage import Store

from .databases import count_as_large
from .scales import scaled

ITEMS, WIDTH = 3000, 10


def keys_of(seed: int, count: int) -> np.ndarray:
    """Keys in clusters."""
    centres, rng = np.random.default_rng(0).standard_normal((30, WIDTH)), np.random.default_rng(seed)
    return (centres[rng.integers(0, 30, count)] + 0.4 * rng.standard_normal((count, WIDTH))).astype(np.float32)


def values_of(keys: np.ndarray) -> np.ndarray:
    """A value that follows from each key."""
    return np.tanh(keys[:, :3]) * [1.0, 10.0, 0.1] + 100.0


def names(first: int, count: int) -> list[str]:
    """The keys of items."""
    return [str(number) for number in range(first, first + count)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, few queries are rehearsed, and hundred rows are noted."""
    count_as_large(monkeypatch, rehearsed=400, noted=100)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """A store with an index of all its items."""
    keys = keys_of(1, ITEMS)
    with softkv.open(tmp_path / "s", value="vector", compatibility="cosine", temperature=0.02) as opened:
        opened.add(names(0, ITEMS), values_of(keys), vectors=keys)
        opened.build_index()
        yield opened
    with softkv.open(tmp_path / "s", "r") as reader:
        assert reader.check().ok


def add(db: softkv.SoftKV, first: int, count: int, **options: Any) -> None:
    """Add items that are like those there are."""
    keys = keys_of(first, count)
    db.add(names(first, count), values_of(keys), vectors=keys, **options)


def told(db: softkv.SoftKV) -> tuple[int, int, int]:
    """How many items were added and deleted since the index was built, and how many are in no list yet."""
    found = db.info().index
    assert found is not None
    return found.added, found.deleted, found.waiting


def assert_right(path: str) -> None:
    """A new process answers within what it states, by the index for most queries."""
    queries = keys_of(99, 100)
    with softkv.open(path, "r") as reader:
        known = reader._view().index.known
        found, exact = reader.lookup(queries, tolerance=0.1), reader.lookup(queries, tolerance=0)
        assert reader._view().index.known == known  # nothing joins lists in the memory of a handle
        assert found.error_kind == "calibrated" or list(found.error_kind).count("calibrated") > 70
        assert (np.linalg.norm(found.value - exact.value, axis=1) <= found.error + exact.error).mean() > 0.92
        counts = reader._view().index.quick.counts
        loose = reader._view().index.strangers.tolist() + list(
            range(reader._view().index.known, reader._view().snapshot.rows)
        )
        assert counts.sum() == len(reader) - reader._view().snapshot.live[loose].sum()


def test_few_rows_wait_until_they_are_enough(db: softkv.SoftKV) -> None:
    """Every lookup reads them meanwhile; deaths count as well."""
    add(db, 10_000, 60)
    assert told(db) == (60, 0, 60)
    db.delete(names(0, 9))  # each takes as long to be read as four that came
    assert told(db) == (60, 9, 60)
    assert_right(db.path)
    db.delete(names(9, 1))
    assert told(db) == (60, 10, 0)
    assert_right(db.path)


def test_a_reader_goes_on_with_what_it_knows_while_that_is_nearly_all(
    db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the few rows that it does not know of, instead of all notes anew at every commit."""
    read = list[int]()
    followed = indexed.following

    def counted(*given: Any, **options: Any) -> Any:
        read.append(options["rows"])
        return followed(*given, **options)

    monkeypatch.setattr(indexed, "following", counted)
    queries = keys_of(99, 60)
    with softkv.open(db.path, "r") as reader:

        def assert_as_it_is() -> None:
            found, exact = reader.lookup(queries, tolerance=0.1), reader.lookup(queries, tolerance=0)
            assert list(found.error_kind).count("calibrated") > 40
            assert (np.linalg.norm(found.value - exact.value, axis=1) <= found.error + exact.error).mean() > 0.92

        add(db, 10_000, 100)
        assert_as_it_is()
        pinned = reader.snapshot()
        answer = pinned.lookup(queries, tolerance=0.1).value
        assert read == [ITEMS + 100]
        for first in (20_000, 30_000):  # the second replaces the note of the first, and that was not read
            scaled(monkeypatch, noted=50)
            add(db, first, 60)
            scaled(monkeypatch, noted=150)
            assert_as_it_is()
        assert len(db._view().snapshot.derived_numbers(NAME)) == 1
        assert read == [ITEMS + 100]
        assert told(reader) == (220, 0, 0)  # who asks is told how it is
        assert read == [ITEMS + 100, ITEMS + 220]
        db.delete(names(0, 40))
        assert_as_it_is()
        assert read[2:] == [ITEMS + 220]
        assert np.array_equal(pinned.lookup(queries, tolerance=0.1).value, answer)
        pinned.close()


def test_a_new_process_works_out_nothing_that_is_noted(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works out neither which lists late rows are in, nor what those that died took along."""
    add(db, 10_000, 300)
    db.delete(names(0, 100))
    assert told(db) == (300, 100, 0)
    of = indexed.Drift.of

    def of_none(lists: Any, owners: np.ndarray, *given: Any, **options: Any) -> Any:
        assert not len(owners)
        return of(lists, owners, *given, **options)

    monkeypatch.setattr(indexed, "Homes", None)
    monkeypatch.setattr(indexed.Drift, "of", of_none)
    assert_right(db.path)


def test_of_late_rows_those_in_lists_that_are_opened_are_read(
    db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late rows of other lists are not read, in a new process neither."""
    add(db, 10_000, 1500)
    read, plain = list[tuple[int, int]](), planned.read_lists

    def counted(index: Any, arena: Any, asked: Any, lists: Any, show: int) -> Any:
        near = plain(index, arena, asked, lists, show)
        owners = index.owners(np.arange(index.known))
        read.extend((int(np.isin(owners, some).sum()), int(one)) for some, one in zip(lists, near.scored, strict=True))
        return near

    monkeypatch.setattr(planned, "read_lists", counted)
    with softkv.open(db.path, "r") as reader:
        assert "calibrated" in reader.lookup(keys_of(99, 20), tolerance=0.1).route
    assert read
    assert all(members == scored for members, scored in read)
    assert max(scored for _, scored in read) < 1500


def test_no_index_is_built_unasked(tmp_path: Path) -> None:
    """None is, however many items come and go."""
    with softkv.open(tmp_path / "bare", value="vector", compatibility="cosine") as bare:
        add(bare, 0, ITEMS)
        bare.delete(names(0, 1000))
        bare.compact()
        add(bare, 10_000, 1000)
        assert bare.info().index is None
        assert bare.lookup(keys_of(1, 1)[0]).reason == "there is no index; `softkv index build`"


def test_items_that_are_replaced_leave_their_list_and_find_one(db: softkv.SoftKV) -> None:
    """The old row is in it no more, and the new one is."""
    keys = keys_of(5, 500)
    db.add(names(0, 500), values_of(keys), vectors=keys, on_conflict="replace")
    db.set_values(names(500, 200), values_of(keys[:200]))
    assert told(db) == (700, 700, 0)
    assert_right(db.path)


def test_many_rows_are_noted_in_steps(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write notes no more of them than is allowed for, and the next one goes on."""
    monkeypatch.setattr(settling, "TOGETHER", 150)
    monkeypatch.setattr(settling, "MOST", 450)
    add(db, 10_000, 700)
    assert told(db)[2] == 250
    add(db, 20_000, 1)
    assert told(db)[2] < 100
    assert_right(db.path)


@pytest.mark.parametrize("kind", [StorageFull, ValueError])
def test_a_note_that_cannot_be_written_costs_no_item(
    db: softkv.SoftKV, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was acknowledged is there; it is logged, and the next writer notes it."""

    def full(*_: Any, **__: Any) -> int:
        raise kind("no room")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "softkv"):
        patch.setattr(Store, "put_derived", full)
        add(db, 10_000, 300)
    assert "not in lists yet: no room" in caplog.text
    assert told(db) == (300, 0, 300)
    assert_right(db.path)
    db.delete(names(0, 1))
    assert told(db) == (300, 1, 0)
    assert_right(db.path)


def test_sums_that_are_too_large_are_not_noted(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """Very wide keys and values in many lists have such sums: their rows are read by every lookup."""
    monkeypatch.setattr(indexed, "LARGEST", 100)
    add(db, 10_000, 300)
    added, _, waiting = told(db)
    assert (added, 250 < waiting < 300) == (300, True)
    assert_right(db.path)


def test_lost_notes_cost_no_answer(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are read by every lookup, those after them as well, and the next writer notes them again."""
    scaled(monkeypatch, grown=0)  # each is kept
    for first in (10_000, 20_000, 30_000):
        add(db, first, 200)
        db.delete(names(first, 20))
    path = db.path
    assert told(db) == (540, 0, 0)
    db.close()
    with sqlite3.connect(Path(path) / "catalog.sqlite") as catalog:
        parts = [row[0] for row in catalog.execute("SELECT part FROM derived WHERE name = ? ORDER BY part", (NAME,))]
        assert len(parts) == 3
        catalog.execute("DELETE FROM derived WHERE part = ?", (parts[1],))
    catalog.close()
    assert_right(path)
    with softkv.open(path) as again:
        assert told(again) == (540, 0, 360)
        again.delete(names(0, 10))
        assert told(again) == (540, 10, 0)
        assert parts[2] not in again._view().snapshot.derived_numbers(NAME)
        assert_right(path)


def test_an_earlier_commit_keeps_its_notes(db: softkv.SoftKV) -> None:
    """An earlier commit keeps its notes, or reads what it cannot know when larger ones have replaced them."""
    add(db, 10_000, 300)
    queries = keys_of(7, 50)
    with db.snapshot() as then:
        expected = then.lookup(queries, tolerance=0)
        for first in (20_000, 30_000):
            add(db, first, 300)
            db.delete(names(first, 100))
        with softkv.open(db.path, "r") as reader:
            reader.lookup(queries, tolerance=0.1)
        found = then.lookup(queries, tolerance=0.1)
        apart = np.linalg.norm(found.value - expected.value, axis=1)
        assert (apart <= found.error + expected.error).mean() > 0.92
    assert_right(db.path)


def test_a_new_index_knows_nothing_of_the_notes_about_the_old_one(db: softkv.SoftKV) -> None:
    """They go with it, and all rows are in its lists."""
    add(db, 10_000, 300)
    db.build_index()
    assert told(db) == (0, 0, 0)
    add(db, 20_000, 200)
    assert told(db) == (200, 0, 0)
    assert_right(db.path)
    db.drop_index()
    assert db._view().snapshot.derived_numbers(NAME) == []


def stages(db: softkv.SoftKV, **options: Any) -> list[str]:
    """Build an index; returns the stages there were."""
    found: list[str] = []
    db.build_index(progress=lambda stage, _done, _total: None if stage in found else found.append(stage), **options)
    return found


def test_an_index_is_refined_while_items_have_not_outgrown_it(db: softkv.SoftKV) -> None:
    """Lists that doubled are divided, strangers get lists, and none is empty; later all lists are made anew."""
    before = db._view().index
    assert before is not None
    keys = np.concatenate([np.repeat(keys_of(1, 1), 300, axis=0), keys_of(6, 900)])
    keys[:300] += 0.01 * np.random.default_rng(0).standard_normal((300, WIDTH)).astype(np.float32)
    keys[-200:] = 8.0 * np.eye(WIDTH, dtype=np.float32)[np.arange(200) % WIDTH] - 4.0
    db.add(vectors=keys, values=values_of(keys))
    db.delete(names(0, 30))
    assert stages(db)[0] == "refining lists"
    index = db._view().index
    assert index is not None
    assert told(db) == (0, 0, 0)
    assert (index.whole, index.facts["items"], index.rows) == (ITEMS, ITEMS + 1170, ITEMS + 1170)
    assert len(index.lists.counts) > len(before.lists.counts)
    assert (np.diff(index.offsets) > 0).all()
    assert_right(db.path)
    db.add(vectors=keys_of(9, 2000), values=values_of(keys_of(9, 2000)))
    assert stages(db)[0] == "finding centres"
    assert stages(db, whole=True)[0] == "finding centres"
    assert stages(db, lists=40)[0] == "finding centres"
    assert_right(db.path)


def test_an_index_is_not_built_again_where_nothing_changed(db: softkv.SoftKV, caplog: pytest.LogCaptureFixture) -> None:
    """That is told and logged; other temperatures, queries or lists, one item, or `whole` are a build."""
    file, seconds = db._view().index_as_written.commit, db.forecast_index(whole=True).seconds
    with caplog.at_level(logging.INFO, "softkv"):
        assert stages(db) == ["nothing has changed since the index was built"]
    assert "nothing has changed" in caplog.text
    assert db._view().index_as_written.commit == file
    assert db.forecast_index().seconds == 0 < seconds
    for options in (
        {"temperatures": (0.01, 0.02)},
        {},
        {"queries": keys_of(8, 100)},
        {},
        {"lists": 40},
        {"whole": True},
    ):
        assert stages(db, **options)[-1] in ("rehearsing", "noting signs of rows"), options
    assert stages(db) == ["nothing has changed since the index was built"]
    db.add("1", np.zeros(3), vectors=keys_of(5, 1)[0], on_conflict="replace")
    db.compact()
    assert stages(db)[-1] in ("rehearsing", "noting signs of rows")
    assert_right(db.path)


def test_lists_that_emptied_join_others(db: softkv.SoftKV) -> None:
    """They do when the index is built again; those that were made of few rows stay."""
    before = db._view().index
    assert before is not None
    small, items = int((before.made_of < 4).sum()), db._view().snapshot.items(range(ITEMS))
    for number in np.flatnonzero(before.made_of >= 8)[::3].tolist():
        db.delete([item.key for item in items[before.offsets[number] + 1 : before.offsets[number + 1]]])
    assert stages(db)[0] == "refining lists"
    index = db._view().index
    assert index is not None
    assert (index.made_of < 4).sum() <= small
    assert (index.rows, told(db)) == (len(db), (0, 0, 0))
    assert_right(db.path)


def test_answers_are_as_close_as_they_say_while_a_store_grows(tmp_path: Path) -> None:
    """It grows to four times its size, and is compacted: what is wrong with a list does not fall when rows come."""
    made = mixture(16_000, 24, 8, 300, 0)
    with softkv.open(tmp_path / "growing", value="vector", temperature=0.07) as growing:
        for stop in (4000, 8000, 12_000, 16_000):
            part = slice(stop - 4000, stop)
            growing.add(vectors=made.keys[part], values=made.values[part])
            if stop == 4000:
                growing.build_index()
        for _ in range(2):
            found, exact = (growing.lookup(made.queries, tolerance=one) for one in (0.02, 0))
            sure = np.array(found.route) == "calibrated"
            assert sure.mean() > 0.8
            apart = np.linalg.norm(found.value - exact.value, axis=1)
            assert (apart <= found.error)[sure].mean() >= 0.93
            assert (np.abs(found.log_mass - exact.log_mass) <= found.log_mass_error)[sure].mean() >= 0.9
            growing.compact()
        assert growing._view().index.made_of.sum() == 4000
        best = growing.lookup(made.queries[0], k=5)
        assert best.route == "scan"
        assert best.reason == "the best of 4.0 times as many items were not rehearsed; `softkv index build` does"


def test_compaction_lays_late_rows_into_their_lists(db: softkv.SoftKV) -> None:
    """A compaction lays late rows into their lists, also where nothing has died; items keep their order."""
    add(db, 10_000, 400)
    before = list(db)
    db.compact()
    assert list(db) == before
    index = db._view().index
    assert index is not None
    assert index.rows + len(index.strangers) + told(db)[2] == ITEMS + 400
    assert index.rows > ITEMS + 300
    assert_right(db.path)
    keys = keys_of(3, 120)
    db.add(vectors=keys, values=values_of(keys) + 1e4)  # far from all lists, so there is nothing to lay
    generation = db._view().snapshot.generation
    db.compact()
    assert db._view().snapshot.generation == generation


def test_where_most_rows_are_in_no_list_a_scan_is_no_slower(db: softkv.SoftKV) -> None:
    """Where most rows are in no list lookups scan and say why, and `info` says that building again helps."""
    keys = keys_of(3, 3 * ITEMS)
    db.add(vectors=keys, values=values_of(keys) + 1e4)
    found = db.lookup(keys[0])
    assert found.route == "scan"
    assert "rows are in no list; `softkv index build` puts them into some" in found.reason
    index = db.info().index
    assert index is not None
    assert index.share is None
    assert "every lookup reads them" in str(index)


def test_info_says_what_share_a_lookup_reads(db: softkv.SoftKV) -> None:
    """About as much as lookups of the kind that was rehearsed do."""
    add(db, 10_000, 300)
    index = db.info().index
    assert index is not None
    assert index.share is not None
    read = db.lookup(keys_of(50, 200)).rows_read
    assert index.share == pytest.approx(np.mean(read) / len(db), rel=0.5)


def test_info_says_where_lists_take_as_long_as_a_scan(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where so much would be read that lookups scan, it names no share."""
    monkeypatch.setattr(route, "SCATTERED", 1e3)
    found, index = db.lookup(keys_of(50, 1)[0]), db.info().index
    assert (found.route, found.reason) == ("scan", route.MOST_READ)
    assert index is not None
    assert index.share is None
    assert "lookups at its temperature scan" in str(index)


def test_info_says_of_a_list_that_has_grown_by_far_to_build_again(db: softkv.SoftKV) -> None:
    """`info` asks for a build once a list has grown by far, and counts that list in the share that lookups read."""
    before = db.info().index
    keys = (keys_of(1, 1) + 0.02 * np.random.default_rng(0).standard_normal((1500, WIDTH))).astype(np.float32)
    db.add(vectors=keys, values=values_of(keys_of(1, 1)).repeat(1500, axis=0))
    index = db.info().index
    assert before is not None
    assert index is not None
    assert before.again is None
    assert index.again is not None
    assert "items are in one list, and lookups near it read them all" in index.again
    assert index.share is not None
    read = db.lookup(np.concatenate([keys_of(1, 200), keys[::15]])).rows_read
    assert index.share == pytest.approx(np.mean(read) / len(db), rel=0.5)
    db.build_index()
    assert db.info().index.again is None  # type: ignore[union-attr]
