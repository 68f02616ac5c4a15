"""A calibration is checked as items come and go, a little in every write, and withdrawn where it does not hold."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import indexed
from softkv.asking.indexed import CHECKED
from softkv.asking.lists import Asking
from softkv.database import rechecking
from softkv.errors import StorageFull
from softkv.index.verdict import Truth, Verdict
from softkv.maths.drift import Drift
from softkv.storage import Store

from . import reference
from .commands import ran
from .databases import count_as_large
from .scales import scaled

ITEMS, WIDTH = 1500, 6
KINDS = {"vector": "cosine", "label": "dot", "number": "gaussian"}
NO_LONGER = "the calibration of the index no longer holds"


def keys_of(seed: int, count: int) -> np.ndarray:
    """Keys in clusters."""
    centres, rng = np.random.default_rng(0).standard_normal((20, WIDTH)), np.random.default_rng(seed)
    return (centres[rng.integers(0, 20, count)] + 0.4 * rng.standard_normal((count, WIDTH))).astype(np.float32)


def values_of(kind: str, keys: np.ndarray) -> Any:
    """Values that follow from keys."""
    if kind == "label":
        return [f"label {int(3 * abs(key[0]))} {key[1] > 0}" for key in keys]
    return 50.0 + np.tanh(keys[:, 0]) if kind == "number" else np.tanh(keys[:, :2]) * [1.0, 100.0] + 1e3


def add(db: softkv.SoftKV, seed: int, count: int) -> None:
    """Add items that are like those there are."""
    keys = keys_of(seed, count)
    db.add([f"{seed} {n}" for n in range(count)], values_of(db.info().value_kind or "", keys), vectors=keys)


def made(path: Path, kind: str, seed: int = 1, *, learned: bool = False) -> softkv.SoftKV:
    """A store with an index."""
    db = softkv.open(path, value=kind, compatibility=KINDS[kind], temperature=0.1)
    keys = keys_of(seed, ITEMS)
    db.add([str(n) for n in range(ITEMS)], values_of(kind, keys), vectors=keys)
    if learned:
        assert db.fit(planes=False if kind == "number" else None).kept
    db.build_index()
    return db


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, and less is rehearsed and learned."""
    count_as_large(monkeypatch, rehearsed=480, steps=15)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, so that a check is done in one write."""
    monkeypatch.setattr(rechecking, "clock", lambda: 0.0)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """A store with an index of all its items."""
    with made(tmp_path / "s", "vector") as opened:
        yield opened
    with softkv.open(tmp_path / "s", "r") as reader:
        assert reader.check().ok


def checked(db: softkv.SoftKV) -> Verdict | None:
    """The verdict on the index as it is."""
    return db._view().verdict


def told(db: softkv.SoftKV) -> str:
    """What is told of it."""
    index = db.info().index
    assert index is not None
    return f"{index.checked}"


def ago(db: softkv.SoftKV) -> int:
    """How many items came or went since it was found."""
    found = checked(db)
    assert found is not None
    assert told(db).startswith(f"{db._view().changes - found.changes:,} change")
    return db._view().changes - found.changes


def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics follow late rows as if their keys lay elsewhere."""
    of = Drift.of

    def astray(*given: Any, **options: Any) -> Drift:
        found = of(*given, **options)
        return replace(found, keys=found.keys + 3.0 * found.counts[:, None])

    monkeypatch.setattr(Drift, "of", astray)


@pytest.mark.parametrize(("kind", "learned"), [(kind, False) for kind in KINDS] + [("number", True), ("label", True)])
def test_what_is_compared_with_is_exact(tmp_path: Path, kind: str, learned: bool) -> None:
    """It is what the reference has of all rows that are live and were not left out, at every temperature."""
    with made(tmp_path / "s", kind, learned=learned) as db:
        add(db, 5, 60)
        db.delete([str(n) for n in range(0, ITEMS, 3)])
        view = db._view()
        left_out = np.array([1, 500, ITEMS + 7])
        index = view.index
        counted = view.snapshot.live.copy()
        counted[left_out] = False
        temperatures = rechecking._temperatures(view, index)
        assert len(temperatures) == 3
        asked = [Asking(view, index, rechecking._question(view, index, left_out, one), counted) for one in temperatures]
        steps = rechecking._exactly(view, index, asked, counted)
        try:
            while next(steps) >= 0:
                pass
        except StopIteration as end:
            exact, ranking = end.value
        keys, values = view.snapshot.vectors(np.arange(view.snapshot.rows)).astype(np.float64), _values(view)
        if learned:
            keys = view.learned.metric.projected(keys.astype(np.float32)).astype(np.float64)
        for one, temperature in zip(exact, temperatures, strict=True):
            found = one.values if kind == "label" else one.values * index.units.size + index.units.middle
            for query, row in enumerate(left_out.tolist()):
                score = reference.gaussian if learned else getattr(reference, KINDS[kind])
                expected = reference.lookup(
                    keys[row], keys[counted], values[counted], score=score, temperature=temperature
                )
                assert found[query] == pytest.approx(expected.value, abs=1e-4 * max(1.0, view.snapshot.value_scale))
                assert one.log_masses[query] == pytest.approx(expected.log_mass, abs=1e-3)
                scores = [score(keys[row], key) if counted[at] else -np.inf for at, key in enumerate(keys)]
                assert ranking.rows[query, :5].tolist() == np.argsort(scores)[::-1][:5].tolist()


def _values(view: Any) -> np.ndarray:
    values = indexed.summable(view.snapshot.values(np.arange(view.snapshot.rows)), view.snapshot)
    return np.eye(len(view.labels))[values] if view.labels else values.astype(np.float64)


def test_statistics_are_those_without_what_was_left_out(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked out a few lists at a time, they are what they are once these rows are dead."""
    monkeypatch.setattr(indexed, "SOME", 7)
    add(db, 5, 700)
    db.delete([str(n) for n in range(50)])
    view = db._view()
    rows = np.array([60, 61, 200, ITEMS + 3, ITEMS + 650])
    *_, index = view.followed.leaving(view.snapshot, rows)
    db.delete([item.name for item in view.snapshot.items(rows)])
    expected = db._view().index
    for name in ("counts", "means", "spreads", "outside", "values", "scatter", "noise"):
        assert np.allclose(getattr(index.quick, name), getattr(expected.quick, name), rtol=1e-4, atol=1e-4), name


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(7))
def test_a_store_that_grows_alike_keeps_its_calibration(tmp_path: Path, kind: str, seed: int) -> None:
    """It is checked after a tenth of changes, be they additions or deletions, and after another."""
    with made(tmp_path / "s", kind, 100 + seed) as db:
        add(db, 200 + seed, 149)
        assert checked(db) is None
        add(db, 300 + seed, 1)
        first = checked(db)
        assert first is not None
        assert (ago(db), first.items, first.withdrawn) == (0, ITEMS + 150, False)
        assert max(first.asked) > 200
        db.delete([str(n) for n in range(164)])
        assert ago(db) == 164
        assert told(db) == f"164 changes ago: {first}"
        db.delete("164")
        second = checked(db)
        assert second is not None
        assert (ago(db), second.items, second.withdrawn) == (0, ITEMS - 15, False)
        assert len(db._view().snapshot.derived_numbers(CHECKED)) == 1
        assert "calibrated" in db.lookup(keys_of(9, 20)).route


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", ["number", "label"])
def test_what_was_learned_is_checked_as_well(tmp_path: Path, kind: str) -> None:
    """The metric that lookups compare by is the one that is checked."""
    with made(tmp_path / "s", kind, learned=True) as db:
        add(db, 5, 200)
        found = checked(db)
        assert found is not None
        assert 1.0 in found.temperatures
        assert max(found.asked) > 200
        assert not found.withdrawn


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", KINDS)
def test_a_calibration_that_does_not_hold_is_withdrawn(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lookups scan and say why, in every process; bounds are told as before, and building again helps."""
    with made(tmp_path / "s", kind) as db:
        with monkeypatch.context() as planted, caplog.at_level(logging.WARNING, "softkv"):
            wrong(planted)
            add(db, 5, 800)
        assert "no longer holds, so answers are measured, or all items scanned" in caplog.text
        for handle in (db, softkv.open(tmp_path / "s", "r")):
            found = handle.lookup(keys_of(9, 1)[0])
            assert (found.route, found.error_kind) == ("scan", "exact")
            assert found.reason.startswith(NO_LONGER)
            assert "within what it states" in found.reason
            assert found.reason.endswith("; `softkv index build`")
            assert handle.lookup(keys_of(9, 1)[0], k=3).reason.startswith(NO_LONGER)
            assert "no longer" not in handle.lookup(keys_of(9, 1)[0], guarantee="bound", tolerance=0.5).reason
            index = handle.info().index
            assert index is not None
            assert index.share is None
            assert (
                "build it again: its calibration no longer holds, so answers are measured, or all items scanned"
                in str(index)
            )
        handle.close()
        add(db, 6, 400)  # nothing is checked any more
        assert ago(db) == 400
        db.build_index()
        assert checked(db) is None
        assert NO_LONGER not in db.lookup(keys_of(9, 1)[0]).reason
        db.build_index(whole=True)
        assert db.lookup(keys_of(9, 1)[0], tolerance=0.05).route == "calibrated"


@pytest.mark.usefixtures("at_once")
def test_items_of_another_kind_break_a_calibration(tmp_path: Path) -> None:
    """Values were noise, and now they rise and fall within each list: estimates are off, and it is noticed."""
    rng, steep = np.random.default_rng(0), 3.0 * np.random.default_rng(5).standard_normal(8)
    centres = rng.standard_normal((40, 8))

    def keys(count: int) -> np.ndarray:
        return (centres[rng.integers(0, 40, count)] + 0.5 * rng.standard_normal((count, 8))).astype(np.float32)

    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian", temperature=0.3) as db:
        db.add(vectors=keys(4000), values=rng.choice([-1.0, 1.0], 4000))
        db.build_index()
        for _ in range(4):
            more = keys(4000)
            db.add(vectors=more, values=np.sign(np.sin(more @ steep)))
        assert checked(db).withdrawn
        assert db.lookup(more[0]).reason.startswith(NO_LONGER)


class Work:
    """A clock that only work moves on, and how far it is when each write ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, of_row: float, of_query: float) -> None:
        self.now, self.largest = 0.0, 0.0
        self._count(monkeypatch, Truth, "add", lambda given: of_row / 3 * given[1].shape[1])  # at three temperatures
        self._count(monkeypatch, Asking, "answers", lambda given: of_query * (1 + len(given[1])))
        monkeypatch.setattr(rechecking, "clock", lambda: self.now)

    def _count(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, cost: Callable[[Any], float]) -> None:
        real = getattr(where, name)

        def counted(*given: Any) -> Any:
            self.now += cost(given)
            self.largest = max(self.largest, cost(given))
            return real(*given)

        monkeypatch.setattr(where, name, counted)


@pytest.mark.parametrize(("of_row", "of_query"), [(2e-6, 2e-4), (1e-4, 1e-3), (1e-7, 1e-3)])
def test_a_write_works_for_a_moment_only(
    db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch, of_row: float, of_query: float
) -> None:
    """Ten milliseconds, and no more than a slice beyond, by no thread; a slow machine takes more writes."""
    work, writes, threads = Work(monkeypatch, of_row=of_row, of_query=of_query), 0, threading.active_count()
    add(db, 5, 300)
    while checked(db) is None:
        before = work.now
        db.delete(str(writes))
        assert work.now - before <= rechecking.MOST + max(rechecking.ESTIMATED, 128 * of_row, 2 * of_query)
        assert threading.active_count() == threads
        writes += 1
    in_all = work.now / rechecking.MOST
    assert in_all / 2 < writes < 4 * in_all + 20
    assert not checked(db).withdrawn


def test_writes_go_on_with_a_check_about_the_rows_as_they_were(
    db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check is about the rows as they were, also where items that it left out, or others, are deleted meanwhile."""
    Work(monkeypatch, of_row=1e-5, of_query=1e-3)
    add(db, 5, 300)
    last = 0
    while checked(db) is None:
        db.delete([str(n) for n in range(last, last + 8)])
        last += 8
    assert 100 < last < ITEMS
    assert (ago(db), checked(db).items) == (last, ITEMS + 300)
    assert not checked(db).withdrawn


def test_a_check_begins_anew_in_another_process(tmp_path: Path) -> None:
    """One that was killed in the middle of it leaves nothing behind."""
    made(tmp_path / "s", "vector").close()
    script = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from tests import test_rechecking as t\n"
        "t.rechecking.is_cheap = lambda _: False\n"
        "t.rechecking.MOST = 0.0\n"
        "db = t.softkv.open(sys.argv[1])\n"
        "t.add(db, 5, 300)\n"
        "for n in range(5): db.delete(str(n))\n"
        "assert db._rechecking._steps is not None\n"
        "os._exit(9)\n"
    )
    folder = str(Path(__file__).parent.parent)
    died = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s"), folder], check=False)
    assert died.returncode == 9
    with softkv.open(tmp_path / "s") as db:
        assert len(db) == ITEMS + 295
        assert checked(db) is None
        rechecking.clock, real = lambda: 0.0, rechecking.clock
        try:
            db.delete("5")
        finally:
            rechecking.clock = real
        assert ago(db) == 0
        assert db.check().ok


def test_a_compaction_ends_a_check_and_keeps_what_was_found(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing pins the old rows; changes are counted on, and so is a verdict that withdraws."""
    monkeypatch.setattr(rechecking, "MOST", 0.0)
    add(db, 5, 300)
    assert db._rechecking._steps is not None
    db.compact()
    assert db.info().freed_by_compact == 0
    assert checked(db) is None
    monkeypatch.setattr(rechecking, "MOST", 0.01)
    monkeypatch.setattr(rechecking, "clock", lambda: 0.0)
    db.delete("0")
    first = checked(db)
    assert (ago(db), first.items, first.withdrawn) == (1, ITEMS + 300, False)  # the compaction has begun it
    db.delete([str(n) for n in range(1, 101)])
    db.compact()
    assert checked(db) == first
    assert ago(db) == 101
    assert db._view().changes == 401
    wrong(monkeypatch)
    add(db, 6, 800)
    assert checked(db).withdrawn
    add(db, 7, 10)
    db.compact()
    assert (checked(db).withdrawn, ago(db)) == (True, 10)
    assert db.lookup(keys_of(9, 1)[0]).reason.startswith(NO_LONGER)


@pytest.mark.usefixtures("at_once")
def test_an_earlier_commit_knows_nothing_of_a_later_verdict(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was right then."""
    with db.snapshot() as then:
        with monkeypatch.context() as planted:
            wrong(planted)
            add(db, 5, 800)
        assert then.lookup(keys_of(9, 1)[0]).route == "calibrated"
        assert db.lookup(keys_of(9, 1)[0]).route == "scan"


@pytest.mark.usefixtures("at_once")
def test_a_lost_verdict_is_found_again(db: softkv.SoftKV) -> None:
    """It costs the work, and nothing else."""
    add(db, 5, 300)
    before = checked(db)
    (number,) = db._view().snapshot.derived_numbers(CHECKED)
    db._store.put_derived("another", b"", instead_of=[])
    db._store.put_derived(CHECKED, b"nothing", instead_of=[number])
    assert checked(db) is None
    path = db.path
    db.close()
    with softkv.open(path) as again:
        again.delete("0")
        lines = ran("index", "status", "--db", path, terminal=True).out.splitlines()
        assert f"checked     0 changes ago: {checked(again)}" in lines
        assert checked(again).items == before.items - 1
        assert len(again._view().snapshot.derived_numbers(CHECKED)) == 1


HOSTILE = Verdict(0, 0, 0, 0.95, (0.1,), (256,), (0,), (0,))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b'{"file": {}}', HOSTILE.encoded(), b"[" * 10**5, b"0" * 10**6]
)
def test_parts_that_are_no_verdict_on_this_index_are_left_out(db: softkv.SoftKV, content: bytes) -> None:
    """Lookups go on as if there were none, and so does a compaction."""
    db._store.put_derived(CHECKED, content)
    assert checked(db) is None
    assert db.lookup(keys_of(9, 1)[0]).route == "calibrated"
    db.delete("0")
    db.compact()
    assert checked(db) is None
    assert db.lookup(keys_of(9, 1)[0]).route == "calibrated"


@pytest.mark.parametrize("facts", [{"changed": "x", "checked": 7}, {"changed": -5, "checked": {}}, {"changed": 1.5}])
def test_facts_of_an_index_may_be_anything(db: softkv.SoftKV, facts: dict[str, Any]) -> None:
    """What cannot be a count or a verdict is none."""
    with db._store.snapshot() as snapshot:
        index = db._findings.indexes.of(snapshot)
    index.facts.update(facts)
    db._store.put_index(indexed.NAME, index.encoded())
    assert checked(db) is None
    assert db._view().changes == 0
    assert db.lookup(keys_of(9, 1)[0]).route == "calibrated"


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", [StorageFull, ValueError])
def test_a_check_that_fails_costs_no_item(
    db: softkv.SoftKV, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and tried again a hundred items later."""

    def full(self: Store, name: str, *given: Any, **options: Any) -> int:
        if name == CHECKED:
            raise kind("no room")
        return put(self, name, *given, **options)

    put = Store.put_derived
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "softkv"):
        patch.setattr(Store, "put_derived", full)
        add(db, 5, 300)
        assert "could not be checked: no room" in caplog.text
        caplog.clear()
        add(db, 6, 99)
        assert not caplog.text
    assert (len(db), checked(db)) == (ITEMS + 399, None)
    add(db, 7, 1)
    assert ago(db) == 0


@pytest.mark.usefixtures("at_once")
def test_nothing_is_checked_where_nothing_would_be_said(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may be small, have most rows in no list, or have calibrated on queries of its own."""
    scaled(monkeypatch, cheap=1 << 40)
    add(db, 5, 300)
    assert checked(db) is None
    scaled(monkeypatch, cheap=0)
    db.build_index(queries=keys_of(3, 300))
    add(db, 6, 600)
    assert checked(db) is None
    db.build_index()
    far = keys_of(7, 6000)
    db.add(vectors=far, values=values_of("vector", far) + 1e6)
    assert checked(db) is None
    assert db._rechecking._steps is None


@pytest.mark.usefixtures("at_once")
def test_many_labels_are_checked_a_few_items_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of their shares are held for as many as there is room for."""
    with made(tmp_path / "s", "label") as db:
        monkeypatch.setattr(rechecking, "HELD", 3 * 7 * len(db._view().labels))
        add(db, 5, 300)
        assert not checked(db).withdrawn
        assert max(checked(db).asked) > 200


def test_a_reader_checks_nothing(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks nothing, however much has changed."""
    scaled(monkeypatch, cheap=1 << 40)
    add(db, 5, 900)
    scaled(monkeypatch, cheap=0)
    with softkv.open(db.path, "r") as reader:
        commit = reader.info().commit
        reader.lookup(keys_of(9, 5))
        assert reader.info().commit == commit
        assert checked(reader) is None
