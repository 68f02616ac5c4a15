"""How rows lie within their lists: first those that are farthest from the mean, then the others in random order."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import softkv
from softkv.asking.indexed import with_heads
from softkv.asking.view import View
from softkv.database import begun, indexing
from softkv.index.lists import ListIndex
from softkv.index.shuffling import heads_first
from softkv.maths.drawing import drawer
from softkv.storage import Snapshot, Store
from tests.stores import as_format, closed_fruit, with_secret
from tests.test_begun import ITEMS as BEGUN
from tests.test_begun import filled as filled_to_begin
from tests.test_begun import killed_at

from .databases import count_as_large
from .scales import scaled

ITEMS, LATE, WIDTH = 1200, 600, 6
LEVEL = 1e-4  # of each test of randomness; secrets are fixed, so that none of them ever fails by chance
SECRET = bytes(range(32))
SHARE = 0.05  # of the rows of a list are in its head

Orders = list[np.ndarray]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, and few queries are rehearsed."""
    count_as_large(monkeypatch, rehearsed=100)


# What must hold


def apart(keys: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """How far each row is from the mean of its list, in float64."""
    lists = [keys[start:stop].astype(np.float64) for start, stop in pairwise(offsets)]
    found = [np.linalg.norm(one - one.mean(0), axis=1) for one in lists if len(one)]
    return np.concatenate([np.empty(0), *found])


def require_heads(distances: np.ndarray, offsets: np.ndarray, heads: np.ndarray | None) -> None:
    """Of each list the first rows are its farthest, a twentieth of it or the next more."""
    assert heads is not None
    assert heads.tolist() == [int(np.ceil(round(SHARE * size, 9))) for size in np.diff(offsets)]
    for start, stop, head in zip(offsets[:-1], offsets[1:], heads, strict=True):
        some = distances[start:stop]
        if len(some) > head:
            assert some[:head].min() >= some[head:].max() * (1 - 1e-5)


def bodies(figures: np.ndarray, offsets: np.ndarray, heads: np.ndarray) -> Orders:
    """Of each body the ranks that its rows have by some figure, in the order in which they lie."""
    parts = zip(offsets[:-1] + heads, offsets[1:], strict=True)
    return [np.argsort(np.argsort(figures[start:stop], kind="stable")) for start, stop in parts if stop - start > 2]


def doubts(orders: Orders) -> dict[str, float]:
    """How likely it is that random orders look no more random than these do."""
    positions = [np.corrcoef(order, np.arange(len(order)))[0, 1] for order in orders]
    spread = np.sqrt(sum(1 / (len(order) - 1) for order in orders))
    expected = sum(np.bincount(np.arange(len(order)) * 5 // len(order), minlength=5) / len(order) for order in orders)
    first = np.bincount([order[0] * 5 // len(order) for order in orders], minlength=5)
    steps = np.array([np.abs(np.diff(order)).mean() / ((len(order) + 1) / 3) for order in orders]) - 1.0
    strides = abs(steps.mean()) / (steps.std() / np.sqrt(len(steps)) + 1e-9)
    return {
        "where it lies says nothing of a row": 2 * float(stats.norm.sf(abs(sum(positions)) / spread)),
        "any row may be the first": float(stats.chisquare(first, expected).pvalue),
        "neighbours lie beside each other by chance": 2 * float(stats.norm.sf(strides)),
    }


def require_random(orders: Orders) -> None:
    """These orders look as if they were drawn."""
    assert len(orders) >= 40
    for what, likely in doubts(orders).items():
        assert likely > LEVEL, what


# The order of rows that are at hand


def lists_of(sizes: list[int], width: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys of lists of these sizes, and offsets."""
    keys = np.random.default_rng(seed).standard_normal((sum(sizes), width)).astype(np.float32)
    return keys, np.concatenate([[0], np.cumsum(sizes)])


def laid(keys: np.ndarray, offsets: np.ndarray, secret: bytes, generation: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The rows with each head first, and the heads."""
    draw = drawer(secret, "test", generation)
    return heads_first(lambda some: keys[some], np.arange(len(keys)), offsets, draw)


@pytest.mark.parametrize("sizes", [[0, 0], [1], [2, 1], [19, 20, 21], [0, 40, 0, 41, 0], [20_000, 3], [60, 140]])
@pytest.mark.parametrize("moved", [0.0, 1e3, 1e-8, 1e8])
def test_a_head_has_the_farthest_rows_of_its_list(sizes: list[int], moved: float) -> None:
    """Lists have all sizes, empty ones and those that are larger than a block included; keys lie anywhere."""
    keys, offsets = lists_of(sizes)
    keys = keys + np.float32(moved) if moved == 1e3 else keys * np.float32(moved or 1.0)
    order, heads = laid(keys, offsets, SECRET)
    assert all(set(order[start:stop]) == set(range(start, stop)) for start, stop in pairwise(offsets))
    require_heads(apart(keys[order], offsets), offsets, heads)


def test_keys_that_are_all_alike_have_a_head_all_the_same() -> None:
    """None is farther than another, so any may be in it."""
    order, heads = laid(np.ones((50, 3), np.float32), np.array([0, 30, 50]), SECRET)
    assert heads.tolist() == [2, 1]
    assert sorted(order[:30].tolist()) == list(range(30))


def test_a_row_beyond_all_numbers_is_the_farthest() -> None:
    """Its distance leaves float32, and nothing is warned of."""
    keys, offsets = lists_of([20])
    keys[7], keys[9] = 3e38, -3e38
    order, _ = laid(keys, offsets, SECRET)
    assert order[0] in (7, 9)


def test_bodies_lie_in_random_order_whatever_the_secret() -> None:
    """Two hundred secrets: a body lies neither by arrival nor by distance, and any of its rows may be the first."""
    keys, offsets = lists_of([31])
    found = [laid(keys, offsets, number.to_bytes(32, "little")) for number in range(200)]
    for figures in (np.arange(31), apart(keys, offsets), keys[:, 0]):
        require_random([bodies(figures[order], offsets, heads)[0] for order, heads in found])
    firsts = np.bincount([order[heads[0]] for order, heads in found], minlength=31)
    assert sorted(firsts)[:2] == [0, 0]  # of the head, which is the same for all
    assert stats.chisquare(firsts[firsts > 0]).pvalue > LEVEL


WRONG: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "in their own order": lambda order, _: np.sort(order),
    "in the other direction": lambda order, _: np.sort(order)[::-1],
    "beginning with the least": lambda order, _: np.concatenate([order[order == 0], order[order > 0]]),
    "beginning anywhere, in their own order": lambda order, rng: np.roll(np.sort(order), rng.integers(len(order))),
    "half in their own order": lambda order, _: np.concatenate([np.sort(order[: len(order) // 2]), order[15:]]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_order_that_is_not_random_is_noticed(wrong: str) -> None:
    """The judge of randomness lets pass what was drawn, and refuses what was not."""
    keys, offsets = lists_of([31] * 60)
    order, heads = laid(keys, offsets, SECRET)
    drawn = bodies(order, offsets, heads)
    require_random(drawn)
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError):
        require_random([WRONG[wrong](one, rng) for one in drawn])


def test_a_head_that_is_not_the_farthest_is_noticed() -> None:
    """The judge of heads refuses rows in the order of their arrival."""
    keys, offsets = lists_of([31] * 3)
    with pytest.raises(AssertionError):
        require_heads(apart(keys, offsets), offsets, np.full(3, 2))


def test_draws_follow_from_the_secret_the_purpose_and_the_numbers() -> None:
    """A secret, purpose and number give one sequence, others another; an empty secret, of older stores, is allowed."""
    given: list[tuple[bytes, str, tuple[int, ...]]] = [
        (SECRET, "a", (1,)),
        (SECRET[::-1], "a", (1,)),
        (b"", "a", (1,)),
        (SECRET, "b", (1,)),
        (SECRET, "a", (2,)),
        (SECRET, "a", (1, 1)),
        (SECRET, "a", ()),
    ]
    found = [drawer(secret, purpose, *numbers).integers(1 << 62) for secret, purpose, numbers in given]
    again = [drawer(secret, purpose, *numbers).integers(1 << 62) for secret, purpose, numbers in given]
    assert found == again
    assert len(set(found)) == len(given)


# Stores


def keys_of(count: int, seed: int) -> np.ndarray:
    """Vectors in clusters."""
    rng, centres = np.random.default_rng(seed), np.random.default_rng(0).standard_normal((20, WIDTH))
    return centres[rng.integers(0, 20, count)] + 0.2 * rng.standard_normal((count, WIDTH))


def added(db: softkv.SoftKV, names: list[str], keys: np.ndarray) -> None:
    """Add items of the kind of the store, whose values follow the keys."""
    values: dict[str, Any] = {"number": np.tanh(keys[:, 0]), "vector": keys[:, :3]}
    values["label"] = [f"label {x:.0f}" for x in keys[:, 0]]
    db.add(names, values[db.info().value_kind or "number"], vectors=keys)


def filled(path: Path, kind: str = "number", compatibility: str = "cosine", secret: bytes = SECRET) -> Path:
    """A closed store of vectors with keys "0", "1", ... and with this secret."""
    with softkv.open(path, value=kind, compatibility=compatibility) as db:
        added(db, [str(number) for number in range(ITEMS)], keys_of(ITEMS, 1))
    with_secret(path, secret)
    return path


def build(db: softkv.SoftKV, **options: Any) -> str:
    """Build an index; returns the first stage."""
    stages: list[str] = []
    db.build_index(progress=lambda at, _done, _total: stages.append(at), **options)
    return stages[0]


def index_of(db: softkv.SoftKV) -> tuple[View, ListIndex]:
    """What is seen now, and the index of it."""
    view = db._new_view()
    assert view.index is not None
    return view, view.index


def placed(index: ListIndex, snapshot: Snapshot) -> np.ndarray:
    """The keys of the rows in lists, as the oracle arranges them: in float64, but for what was learned."""
    keys = snapshot.vectors(np.arange(index.rows))
    if index.form.metric is not None:
        return index.form.metric.projected(keys)
    keys = keys.astype(np.float64)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True) if index.form.name == "cosine" else keys


def require_layout(db: softkv.SoftKV) -> None:
    """Heads are the farthest, bodies lie in random order by whatever is known of their rows, and the store is whole."""
    view, index = index_of(db)
    distances, values = apart(placed(index, view.snapshot), index.offsets), view.snapshot.values(np.arange(index.rows))
    require_heads(distances, index.offsets, index.heads)
    assert index.heads is not None
    arrived = view.places(np.arange(index.rows))
    for figures in (
        arrived,
        distances,
        view.snapshot.vectors(np.arange(index.rows))[:, 1],
        values.reshape(len(values), -1)[:, 0],
    ):
        jittered = figures + 1e-9 * np.random.default_rng(0).random(len(figures))  # labels are often the same
        require_random(bodies(jittered, index.offsets, index.heads))
    assert db.check().ok


@pytest.mark.parametrize(
    ("kind", "compatibility"),
    [("number", "cosine"), ("vector", "gaussian"), ("label", "dot"), ("label", "learned"), ("number", "learned")],
)
def test_built_compacted_and_refined_lists_have_heads_and_random_bodies(
    tmp_path: Path, kind: str, compatibility: str
) -> None:
    """Lists have heads and random bodies, also where items came and went, and where what was learned compares."""
    learned = compatibility == "learned"
    path = filled(tmp_path / "s", kind, "gaussian" if learned else compatibility)
    with softkv.open(path) as db:
        if learned:
            assert db.fit(planes=False if kind == "number" else None).kept
        assert build(db) == "finding centres"
        require_layout(db)
        assert index_of(db)[1].rows == ITEMS
        db.delete([str(number) for number in range(0, ITEMS, 7)])
        added(db, [f"late {number}" for number in range(LATE)], keys_of(LATE, 2))
        added_again = [str(number) for number in range(1, ITEMS, 49)]
        db.delete(added_again)
        added(db, added_again, keys_of(len(added_again), 3))
        db.compact()
        require_layout(db)
        assert len(db) - LATE + 500 < index_of(db)[1].rows < len(db)
        added(db, [f"later {number}" for number in range(LATE)], keys_of(LATE, 4))
        assert build(db) == "refining lists"
        require_layout(db)
        assert index_of(db)[1].rows == len(db)


def order_of(path: Path) -> list[str]:
    """The items of a closed store in the order in which they lie."""
    with Store.open(path) as store, store.snapshot() as snapshot:
        return snapshot.names(np.arange(snapshot.rows))


def test_the_order_follows_from_the_secret_and_the_generation(tmp_path: Path) -> None:
    """Copies of a store are laid out alike; another secret, or the next generation, gives another order."""
    first = filled(tmp_path / "first")
    for name in ("alike", "other"):
        shutil.copytree(first, tmp_path / name)
    with_secret(tmp_path / "other", SECRET[::-1])
    orders, indexes = [], []
    for name in ("first", "alike", "other"):
        with softkv.open(tmp_path / name) as db:
            build(db)
            indexes.append(index_of(db)[1])
        orders.append(order_of(tmp_path / name))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    for one in indexes[1:]:
        assert np.array_equal(one.offsets, indexes[0].offsets)
        assert np.array_equal(one.calibration.best, indexes[0].calibration.best)  # the same items were held out
    offsets, heads = indexes[0].offsets, indexes[0].heads
    assert heads is not None
    for start, stop, head in zip(offsets[:-1], offsets[1:], heads, strict=True):
        mine, theirs = (one[start:stop] for one in (orders[0], orders[2]))
        assert mine[:head] == theirs[:head]
        assert sorted(mine) == sorted(theirs)
    with softkv.open(first) as db:
        view, index = index_of(db)
        rows = np.arange(index.rows)
        again, _ = with_heads(view.snapshot, index.form, rows, index.offsets)
        twice, _ = with_heads(view.snapshot, index.form, rows, index.offsets)
        assert np.array_equal(again, twice)
        assert not np.array_equal(again, rows)  # of the second generation


def test_deaths_leave_heads_where_they_are(tmp_path: Path) -> None:
    """A head is the first rows of its list, dead or not, until a compaction chooses another."""
    with softkv.open(filled(tmp_path / "s")) as db:
        build(db)
        view, before = index_of(db)
        assert before.heads is not None
        doomed = view.snapshot.names(before.offsets[:-1])  # the farthest row of each list
        del view
        db.delete(doomed)
        _, after = index_of(db)
        assert (after.heads is before.heads) or np.array_equal(after.heads or [], before.heads)
        assert after.rows == before.rows
        db.compact()
        assert index_of(db)[1].rows == ITEMS - len(doomed)
        require_layout(db)


@pytest.mark.parametrize("stage", ["laying rows in order", "measuring lists", "rehearsing"])
def test_a_build_that_goes_on_keeps_its_heads(tmp_path: Path, stage: str) -> None:
    """It was killed after rows had been assigned, or laid; some of them have died meanwhile."""
    filled_to_begin(tmp_path / "s")
    with_secret(tmp_path / "s", SECRET)
    killed_at(tmp_path / "s", stage)
    with softkv.open(tmp_path / "s") as db:
        left = begun.found(view := db._new_view().snapshot, begun.wanted_of(form_of_store(db), None, None))
        assert left is not None
        assert left.heads is not None
        doomed = [str(number) for number in range(1, BEGUN, 50)]
        rows = left.order if len(left.order) else np.arange(left.rows)
        kept = ~np.isin(rows, [view.find(name) for name in doomed])
        del view
        db.delete(doomed)
        build(db)
        _, index = index_of(db)
        expected = left.laid(kept) if len(left.order) else left
        assert (len(left.order) > 0) == (stage == "laying rows in order")
        assert index.heads is not None
        assert expected.heads is not None
        assert index.heads.tolist() == expected.heads.tolist()
        assert index.heads.sum() < left.heads.sum() or stage != "laying rows in order"
        assert db.check().ok


def form_of_store(db: softkv.SoftKV) -> Any:
    """The form that an index of this store has."""
    return indexing.form_for(db._new_view(), None)


def test_rows_that_died_before_they_were_laid_leave_their_heads() -> None:
    """Offsets and heads count those that are kept."""
    offsets, heads = np.array([0, 4, 4, 9]), np.array([1, 0, 2])
    left = begun.HalfBuilt({}, 12, 9, 9, False, np.zeros(2), offsets, heads, np.arange(9))
    after = left.laid(np.array([0, 1, 1, 0, 0, 1, 1, 0, 1], bool))
    assert (after.offsets.tolist(), after.rows, len(after.order)) == ([0, 2, 2, 5], 5, 0)
    assert after.heads is not None
    assert after.heads.tolist() == [0, 0, 1]
    assert replace(left, heads=None).laid(np.ones(9, bool)).heads is None


# Files of before, and hostile ones


def rewritten(path: Path, change: Callable[[ListIndex], ListIndex]) -> None:
    """Put another index file in the place of that of a closed store."""
    with softkv.open(path) as db:
        written = index_of(db)[0].index_as_written
        assert written.index is not None
        db._store.put_index("lists", change(written.index).encoded())


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[Path]:
    """A closed store with an index."""
    with softkv.open(filled(tmp_path / "s")) as db:
        build(db)
    yield tmp_path / "s"
    with Store.open(tmp_path / "s") as store:
        assert store.check().ok


def test_an_index_without_heads_is_read_and_gets_some_when_rows_are_laid_anew(indexed: Path) -> None:
    """Lookups are answered by an index that an earlier version wrote."""
    rewritten(indexed, lambda index: replace(index, heads=None))
    with softkv.open(indexed) as db:
        assert index_of(db)[1].heads is None
        assert db.lookup(db.item("100").vector * np.linspace(0.95, 1.05, WIDTH), tolerance=0.5).route == "calibrated"
        assert "are not in random order" in str(db.info().index.again)
        db.delete("7")
        db.compact()
        assert db.info().index.again is None
        require_layout(db)


def test_late_rows_of_an_index_without_heads_are_noted_by_the_next_writer(
    indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lists go on, by the format of earlier versions, too; what building again brings is said."""
    monkeypatch.setattr("softkv.index.encoding.FORMAT", 2)
    rewritten(indexed, lambda index: replace(index, heads=None))
    monkeypatch.undo()
    count_as_large(monkeypatch)
    with softkv.open(indexed) as db, monkeypatch.context() as earlier:
        scaled(earlier, noted=1 << 30)
        added(db, [f"late {number}" for number in range(LATE)], keys_of(LATE, 2))
        assert db.info().index.waiting == LATE
    with softkv.open(indexed) as db:
        db.delete("7")
        found = db.info().index
        assert (found.added, found.waiting, found.strangers < LATE / 10) == (LATE, 0, True)
        assert "are not in random order" in found.again
        queries = keys_of(50, 5)
        answers, exact = (db.lookup(queries, tolerance=tolerance) for tolerance in (0.5, 0))
        assert "calibrated" in answers.route
        assert (np.abs(answers.value - exact.value) <= answers.error + exact.error).all()


HOSTILE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "larger than lists": lambda heads: heads + 1000,
    "larger than one list": lambda heads: np.append(heads[:-1], ITEMS),
    "less than nothing": lambda heads: heads - 5,
    "broken": lambda heads: heads + 0.5,
    "no numbers": lambda heads: np.full(len(heads), np.nan),
    "small numbers": lambda heads: heads.astype(np.int32),
    "too few": lambda heads: heads[:-1],
    "a matrix": lambda heads: np.stack([heads, heads]),
    "one number": lambda heads: heads[0],
    "none": lambda heads: heads[:0],
    "huge": lambda heads: heads * 0 + (1 << 62),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_heads_that_no_list_can_have_are_refused(indexed: Path, harm: str) -> None:
    """The index is none then, and says why; lookups scan."""
    rewritten(indexed, lambda index: replace(index, heads=np.asarray(HOSTILE[harm](np.asarray(index.heads)))))
    with softkv.open(indexed, "r") as db:
        found = db.info().index
        assert found is not None
        assert found.problem is not None
        assert "heads that are not of its lists" in found.problem
        assert db.lookup(db.item("100").vector, tolerance=0.5).route == "scan"


def test_lists_that_count_too_few_rows_are_compacted_without_harm(indexed: Path) -> None:
    """Where more died of a list than it counted, its index is none afterwards, and no item is lost."""
    few = np.arange(50) % 3.0
    rewritten(indexed, lambda index: replace(index, lists=replace(index.lists, counts=few[: len(index.lists.counts)])))
    with softkv.open(indexed) as db:
        db.delete([str(number) for number in range(0, ITEMS, 3)])
        db.compact()
        assert len(db) == ITEMS - ITEMS // 3
        assert "fewer rows than none" in db._new_view().index_as_written.problem


def test_a_store_without_a_secret_gets_one_before_it_is_laid_out(tmp_path: Path) -> None:
    """One of an earlier format is read with an empty one; whoever writes gives it a secret, by which lists are laid."""
    path = as_format(closed_fruit(tmp_path / "s"), 2)
    with Store.open(path) as store, store.snapshot() as snapshot:
        assert snapshot.secret == b""
    with softkv.open(path) as db:
        db.add(
            [str(number) for number in range(100)],
            np.arange(100.0),
            vectors=np.random.default_rng(0).standard_normal((100, 4)),
        )
        build(db)
        view, index = index_of(db)
        assert len(view.snapshot.secret) == 32
        require_heads(apart(placed(index, view.snapshot), index.offsets), index.offsets, index.heads)
