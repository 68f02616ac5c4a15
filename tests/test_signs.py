"""Rows that are like a query are found wherever they lie: plans miss the middles of two items without them."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking.indexed import placed_by
from softkv.database.middles import signed
from softkv.errors import IndexDamaged
from softkv.index import measuring, planned, search, signs
from softkv.index.encoding import decoded, encoded
from softkv.index.lists import ListIndex
from softkv.index.signs import PLANES, Need, Signs
from softkv.maths.metric import Metric
from softkv.progress import untold
from softkv.storage import Snapshot

from .databases import count_as_large, measured_always
from .test_measured import values_of
from .test_screening import index_of, keys_of, rewritten

ITEMS, LATE, WIDTH, MIDDLES = 12_000, 600, 100, 120
CLUSTERED = 24_000
KINDS = {"cosine": "vector", "gaussian": "number"}


# Bits


def made(keys: np.ndarray) -> Signs:
    """The signs of some keys."""
    return Signs.of(lambda start, stop: keys[start:stop], len(keys))


def differing(keys: np.ndarray, point: np.ndarray, known: Signs) -> np.ndarray:
    """In how many places a key is on another side than a point, counted one by one."""
    sides, other = ((x.astype(np.float32) - known.middle) @ known.turn > 0 for x in (keys, point[None]))
    return (sides != other).sum(1)


def test_planes_separate_keys_as_often_as_their_angle_says() -> None:
    """Keys that scatter in all directions alike are stretched by nothing: the share of the planes is α/π."""
    keys = np.random.default_rng(0).standard_normal((4000, 256)).astype(np.float32)
    known = made(keys)
    for cosine in (0.0, 0.5, 0.7, 0.95):
        near = cosine * keys + np.sqrt(1 - cosine**2) * np.random.default_rng(1).standard_normal(keys.shape)
        one, other = known.coded(keys), known.coded(near.astype(np.float32))
        share = np.mean([bin(word & (2**64 - 1)).count("1") for word in (one ^ other).ravel().tolist()]) / 64
        assert abs(share - np.arccos(cosine) / np.pi) < 0.01


@pytest.mark.parametrize("width", [3, 64, 400])
@pytest.mark.parametrize("counted", [True, False])
def test_the_rows_that_differ_least_are_found(width: int, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bits are counted one by one beside it: with late rows and deleted ones, and by a NumPy that counts none."""
    monkeypatch.setattr(signs, "WORTH", 0.999)  # all rows are compared by all planes
    if not counted:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    rng = np.random.default_rng(2)
    keys = 5.0 + rng.standard_normal((3000, width)).astype(np.float32) / np.arange(1, width + 1)
    live = rng.random(3000) > 0.3
    known, ends = made(keys[:2500]), (np.array([0, 300]), np.array([300, 2500]))
    for some, late in ((slice(2500), None), (slice(3000), known.coded(keys[2500:]))):
        far = np.where(live[some], differing(keys[some], keys[7], known), PLANES + 1)
        found = known.with_late(late).found(keys[7], *ends, live[some])
        assert len(found) == len(set(found.tolist())) == signs.FOUND
        assert live[found].all()
        assert sorted(far[found]) == sorted(far)[: signs.FOUND]
    assert np.sort(known.found(keys[7], *ends, np.arange(3000) < 5)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15])
def test_keys_of_any_size_have_signs(scale: float) -> None:
    """Keys that are all alike have some, too."""
    keys = (scale * keys_of(1, 400)).astype(np.float32)
    known = made(keys)
    assert np.isfinite(known.turn).all()
    if scale:
        assert 9 in known.found(keys[9], np.zeros(1, np.int64), np.array([400]), None)


def test_rows_are_needed_for_any_tolerance_up_to_the_warmest_temperature() -> None:
    """A plan for 0.02 reads less than the one for 0.01 which was asked, so it is not known to miss as little."""
    everywhere = np.ones(1, np.float32)
    known = Need(np.array([0.1, 0.5, 0.0], np.float32), everywhere)
    asked = np.array([0.05, 0.3, 0.6])
    for tolerance, needed in ((0.001, 1), (0.01, 1), (0.0100001, 1), (0.02, 2), (0.05, 2), (0.5, 2)):
        assert known.of(asked, tolerance).sum() == needed
    assert not known.of(asked, None).any()
    assert known.of(asked, np.inf).sum() == 2
    best = Need(np.array([0.0, 0.0, np.inf], np.float32), everywhere)
    assert best.of(asked, None).all()
    assert best.of(asked, np.inf).all()
    assert not best.of(asked, 0.5).any()


# Stores


@pytest.fixture(scope="module")
def large() -> Iterator[None]:
    """Stores count as large from the first item on, and late rows are noted at once."""
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=900, noted=1)
        yield


@pytest.fixture(scope="module")
def paths(large: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A closed store for some ways to compare, to which items were added and deleted after its index was built."""
    found = {}
    for compatibility, kind in KINDS.items():
        found[compatibility] = path = tmp_path_factory.mktemp("stores") / compatibility
        keys = keys_of(1, ITEMS + LATE)
        held = values_of(kind, keys)
        with softkv.open(path, value=kind, compatibility=compatibility) as db:
            db.add([str(number) for number in range(ITEMS)], held[:ITEMS], vectors=keys[:ITEMS])
            db.build_index()
            db.add([str(number) for number in range(ITEMS, ITEMS + LATE)], held[ITEMS:], vectors=keys[ITEMS:])
            db.delete([str(number) for number in range(0, ITEMS, 50)])
    return found


@pytest.fixture(params=list(KINDS))
def path(request: pytest.FixtureRequest, paths: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of such a store."""
    shutil.copytree(paths[request.param], tmp_path / "s")
    return tmp_path / "s"


def signs_of(db: softkv.SoftKV) -> Signs:
    """The signs that lookups go by."""
    found = index_of(db).signs
    assert found is not None
    return found


def need_of(db: softkv.SoftKV) -> Need:
    """For which lookups they are looked at."""
    found = index_of(db).need
    assert found is not None
    return found


def middles(snapshot: Snapshot, rows: np.ndarray, compatibility: str) -> np.ndarray:
    """The middles between the keys of two rows each; where only directions count, those of keys of one length."""
    keys = snapshot.vectors(rows.ravel()).reshape(*rows.shape, -1).astype(np.float64)
    if compatibility == "cosine":
        keys /= np.linalg.norm(keys, axis=2, keepdims=True)
    return keys.mean(1).astype(np.float32)


def asked(db: softkv.SoftKV, first: int = 0, stop: int = ITEMS + LATE) -> tuple[np.ndarray, np.ndarray]:
    """Some pairs of live rows of these, and their middles."""
    snapshot = db._view().snapshot
    live = first + np.flatnonzero(snapshot.live[first:stop])
    rows = np.random.default_rng(5).choice(live, (MIDDLES, 2))
    return rows, middles(snapshot, rows, db.info().compatibility)


def off(db: softkv.SoftKV, queries: np.ndarray, **options: Any) -> tuple[int, int]:
    """How many are answered by plans, and how many of these values are off by more than they state, beside a scan."""
    found, exact = db.lookup(queries, **options), db.lookup(queries, **options | {"tolerance": 0})
    planned = np.broadcast_to(np.asarray(found.error_kind), len(queries)) == "calibrated"
    wrong = np.linalg.norm((found.value - exact.value).reshape(len(queries), -1), axis=1) > found.error
    return int(planned.sum()), int((wrong & planned).sum())


def unaided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no row be found by its signs."""
    for module in (planned, measuring, search):
        monkeypatch.setattr(module, "lists_alike", lambda *_, **__: None)


@pytest.mark.parametrize("compacted", [False, True])
def test_answers_to_middles_are_as_near_as_they_say(
    compacted: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two items, late ones included, in a fresh process; without signs most such answers are wrong."""
    if compacted:
        with softkv.open(path) as db:
            db.compact()
    with softkv.open(path, "r") as db:
        known, need, temperature = signs_of(db), need_of(db), 0.3 * db._view().usual_temperature
        options = {"temperature": temperature, "tolerance": 0.05}
        assert temperature <= need.warmest[1]
        assert (known.late is None) == compacted
        (_, queries), (_, late) = asked(db), asked(db, ITEMS)
        answered, wrong = off(db, queries, **options)
        late_ones = off(db, late, **options)
        unaided(monkeypatch)
        before = off(db, queries, **options)
    assert wrong <= 0.1 * answered > 0
    assert late_ones[1] <= 0.1 * late_ones[0]
    assert before[1] > 0.2 * before[0] > 0


def test_the_best_two_of_a_middle_are_found(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked by `k`, where the statistics of lists say where the best rows are: many are missed without signs."""
    with softkv.open(paths["cosine"], "r") as db:
        (_, queries), missed = asked(db, 0, ITEMS), list[float]()
        exact = db.lookup(queries, k=2, tolerance=0)
        for aided in (True, False):
            if not aided:
                unaided(monkeypatch)
            found = db.lookup(queries, k=2, tolerance=0.01)
            named = [
                {row.key for row in one.contributors} != {row.key for row in other.contributors[:2]}
                for one, other in zip(found, exact, strict=True)
            ]
            missed.append(float(np.mean(named)))
    assert missed[0] <= 0.12
    assert missed[1] > 0.2


def test_measured_answers_read_the_lists_of_rows_like_the_query(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask for all queries, at a temperature of which no plan was made."""
    measured_always(monkeypatch)
    given = list[np.ndarray | None]()
    alike = measuring.lists_alike
    monkeypatch.setattr(measuring, "lists_alike", lambda *some, **how: given.append(alike(*some, **how)) or given[-1])
    with softkv.open(path, "r") as db:
        (rows, queries), index, found = asked(db, 0, ITEMS), index_of(db), list[bool]()
        options = {"temperature": 0.5 * float(need_of(db).warmest[:2].max()), "tolerance": 0.05}
        for pair, query in zip(rows[:30], queries, strict=False):
            given.clear()
            db.lookup(query, mask=np.arange(len(db)) >= 0, **options)
            if given and given[0] is not None:
                found.append(np.isin(index.owners(pair), given[0]).all())
    assert len(found) > 20
    assert np.mean(found) > 0.5  # by chance, hardly any would be


def test_measured_answers_to_middles_are_as_near_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between clusters plans answer no such query, and a few drawn rows miss the two that matter."""
    measured_always(monkeypatch)
    rng = np.random.default_rng(3)
    keys = rng.standard_normal((50, 192))[rng.integers(0, 50, CLUSTERED)]
    keys = (keys + 0.7 * rng.standard_normal(keys.shape)).astype(np.float32)
    with softkv.open(tmp_path / "s", value="number") as db:
        db.add(vectors=keys, values=keys[:, 0])
        db.build_index()
        (_, queries), wrong = asked(db, 0, CLUSTERED), list[float]()
        options = {"temperature": 0.3 * db._view().usual_temperature}
        for aided in (True, False):
            if not aided:
                unaided(monkeypatch)
            found, exact = db.lookup(queries, **options), db.lookup(queries, tolerance=0, **options)
            drawn = np.broadcast_to(np.asarray(found.error_kind), MIDDLES) == "measured"
            assert drawn.sum() > 0.9 * MIDDLES
            wrong.append(float((np.abs(found.value - exact.value) > found.error)[drawn].mean()))
    assert wrong[0] <= 0.1
    assert wrong[1] > 0.2


def test_signs_are_those_of_the_rows_as_they_lie(path: Path) -> None:
    """In lists, behind them, and after a compaction laid all late rows into lists."""
    with softkv.open(path) as db:
        need = need_of(db).encoded()
        for compacted in (False, True):
            if compacted:
                db.compact()
            index, known, snapshot = index_of(db), signs_of(db), db._view().snapshot
            assert all(np.array_equal(need[name], some) for name, some in need_of(db).encoded().items())
            words = known.coded(placed_by(index.form, snapshot)(0, snapshot.rows))
            assert np.array_equal(known.first, words[: index.rows, 0])
            assert np.array_equal(known.rest, words[: index.rows, 1:].T)
            assert (known.late is None) == compacted
            if known.late is not None:
                assert np.array_equal(known.late[0], words[index.rows :, 0])
                assert np.array_equal(known.late[1], words[index.rows :, 1:].T)


def test_warm_queries_need_no_signs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no single row matters, none is looked for."""
    with softkv.open(path, "r") as db:
        warmest, queries, looked = float(need_of(db).warmest[:2].max()), keys_of(9, 30), list[Any]()
        found = Signs.found
        monkeypatch.setattr(Signs, "found", lambda *given: looked.append(given) or found(*given))
        db.lookup(queries, temperature=1.01 * warmest, tolerance=0.05)
        assert not looked
        db.lookup(queries, temperature=0.3 * warmest, tolerance=0.05)
        assert looked


def test_signs_that_do_not_help_are_not_kept(large: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows are not found by them, as in two dimensions."""
    monkeypatch.setattr(Signs, "found", lambda *_: np.empty(0, np.int64))
    with softkv.open(path) as db:
        db.compact()
        db.build_index()
        assert index_of(db).signs is None


def test_an_index_for_a_metric_that_was_forgotten_meanwhile_stays_as_it_is(paths: dict[str, Path]) -> None:
    """It cannot be asked any more: the build ends as it did before there were signs."""
    metric = Metric(np.eye(WIDTH, dtype=np.float32), np.zeros(WIDTH, np.float32))
    with softkv.open(paths["gaussian"], "r") as db:
        now, index = db._view(), index_of(db)
        learned = replace(index, form=replace(index.form, name="learned", compatibility="learned", metric=metric))
        assert signed(learned, now.snapshot, now, untold) is learned


@pytest.mark.parametrize("compatibility", ["dot", "gaussian"])
def test_middles_as_long_as_the_items_are_found(
    compatibility: str, large: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all keys and queries have one length, a middle that is shorter is no query like theirs."""
    keys = keys_of(1, ITEMS).astype(np.float64)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    with softkv.open(tmp_path / "s", value="vector", compatibility=compatibility) as db:
        db.add(vectors=keys, values=values_of("vector", keys.astype(np.float32)))
        db.build_index()
        queries, temperature = asked(db)[1].astype(np.float64), db._view().usual_temperature
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        aided = off(db, queries, temperature=0.3 * temperature, tolerance=0.05)
        unaided(monkeypatch)
        before = off(db, queries, temperature=0.3 * temperature, tolerance=0.05)
    assert aided[1] <= 0.1 * aided[0] > 0
    assert before[1] > 0.15 * before[0] > 0


def test_stores_that_need_none_have_none(tmp_path: Path, large: None) -> None:
    """Where keys have few dimensions, the lists nearest to a middle hold the rows that are like it."""
    keys = np.random.default_rng(0).standard_normal((6000, 3))
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        db.add(vectors=keys, values=keys[:, 0])
        db.build_index()
        assert index_of(db).signs is None
        assert index_of(db).facts["middles"] > 0


# Files


def test_an_index_of_before_is_asked_as_it_is_and_gets_signs_when_it_is_built_again(path: Path) -> None:
    """Building again does so though no item was added or deleted since."""

    def before(index: ListIndex) -> ListIndex:
        facts = {name: fact for name, fact in index.facts.items() if name != "middles"}
        return replace(index, signs=None, need=None, facts=facts)

    with softkv.open(path) as db:
        db.compact()
        db.build_index()
    rewritten(path, before)
    with softkv.open(path) as db:
        assert index_of(db).signs is None
        assert "calibrated" in np.atleast_1d(db.lookup(keys_of(9, 30), tolerance=0.05).route)
        db.build_index()
        signs_of(db)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("first", lambda x: x[:-1]),
        ("rest", lambda x: np.ascontiguousarray(x.T)),
        ("turn", lambda x: x[:-1]),
        ("middle", lambda x: x.astype(np.float64)),
        ("warmest", lambda x: x * np.nan),
        ("share", lambda x: x + 1),
        ("share", lambda x: -x),
    ],
)
def test_damaged_signs_are_noticed(path: Path, name: str, changed: Any) -> None:
    """The index is not used then."""
    with softkv.open(path, "r") as db:
        view = db._view()
        written = view.index_as_written.index
        assert written is not None
        facts, arrays = decoded(memoryview(b"".join(written.encoded())))
        arrays[f"signs.{name}"] = changed(arrays[f"signs.{name}"])
        content = memoryview(b"".join(encoded(facts, arrays)))
        with pytest.raises(IndexDamaged, match="signs"):
            ListIndex.decoded(content, rows=view.snapshot.rows, key_width=WIDTH, metric=lambda _: None)


def test_late_rows_without_signs_are_not_looked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version noted none of them; those in lists are found all the same."""
    monkeypatch.setattr("softkv.asking.indexed.whole_of", lambda *_: None)
    with softkv.open(path, "r") as db:
        assert signs_of(db).late is None
        answered, wrong = off(
            db, asked(db, 0, ITEMS)[1], temperature=0.3 * db._view().usual_temperature, tolerance=0.05
        )
    assert wrong <= 0.1 * answered > 0
