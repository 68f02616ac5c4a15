"""Rows that are drawn by an outline: answers are as near as they say, whatever happened to the store meanwhile."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import lists as asking_lists
from softkv.index import outline, planned, screening
from softkv.index.lists import ListIndex
from softkv.index.looks import scored as looks_scored
from softkv.index.outline import Outline
from softkv.index.search import both, read_lists
from softkv.maths.blending import Labels, Numbers, Vectors, merge
from softkv.maths.moments import measured
from softkv.maths.summaries import Lists
from tests.stores import with_secret

from .databases import count_as_large
from .test_measured import values_of

ITEMS, LATE, WIDTH, LEADING, DRAWS = 12_000, 600, 100, 32, 300
UNKNOWN = np.full(1, np.inf, np.float32)
KINDS = {"cosine": "vector", "dot": "number", "gaussian": "label"}
SCALES = 1 / np.sqrt(np.arange(1, WIDTH + 1))
TURN = np.linalg.qr(np.random.default_rng(4).standard_normal((WIDTH, WIDTH)))[0]


def keys_of(seed: int, count: int) -> np.ndarray:
    """Keys without clusters, along ever shorter axes."""
    plain = np.random.default_rng(seed).standard_normal((count, WIDTH)) * SCALES
    return (plain @ TURN).astype(np.float32)


@pytest.fixture(scope="module")
def large() -> Iterator[None]:
    """Stores count as large from the first item on, late rows are noted at once, and few lists are many."""
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=900, noted=1)
        patch.setattr(planned, "AHEAD", 8)
        patch.setattr(screening, "VARIED", 0.0)
        patch.setattr(asking_lists, "against_plan", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def paths(large: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A closed store for each way to compare, to which items were added and deleted after its index was built."""
    found = {}
    for compatibility, kind in KINDS.items():
        found[compatibility] = path = tmp_path_factory.mktemp("stores") / compatibility
        keys = keys_of(1, ITEMS + LATE)
        held = values_of(kind, keys)
        with softkv.open(path, value=kind, compatibility=compatibility) as db:
            db.add([str(number) for number in range(ITEMS)], held[:ITEMS], vectors=keys[:ITEMS])
        with_secret(path, compatibility.encode().ljust(32))
        with softkv.open(path) as db:
            db.build_index()
            db.add([str(number) for number in range(ITEMS, ITEMS + LATE)], held[ITEMS:], vectors=keys[ITEMS:])
            db.delete([str(number) for number in range(0, ITEMS, 50)])
    return found


@pytest.fixture(params=list(KINDS))
def path(request: pytest.FixtureRequest, paths: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of such a store."""
    shutil.copytree(paths[request.param], tmp_path / "s")
    return tmp_path / "s"


def queries_of(count: int, seed: int = 9) -> np.ndarray:
    """Queries like the items."""
    return keys_of(seed, count)


def index_of(db: softkv.SoftKV) -> ListIndex:
    """The index that lookups go by."""
    index = db._view().index
    assert index is not None
    return index


@pytest.fixture
def screens(monkeypatch: pytest.MonkeyPatch) -> list[screening.Screened | None]:
    """What is read by an outline, query by query."""
    found = list[screening.Screened | None]()
    screened = planned.screened

    def noting(*given: Any, **options: Any) -> screening.Screened | None:
        found.append(screened(*given, **options))
        return found[-1]

    monkeypatch.setattr(planned, "screened", noting)
    return found


def apart(found: Any, exact: Any) -> np.ndarray:
    """How far answers are from each other, as shares of what the first are said to be off at most."""
    wrong = np.asarray(found.value) - np.asarray(exact.value)
    return np.linalg.norm(wrong.reshape(len(found.scored), -1), axis=1) / np.asarray(found.error)


# Outlines


def foretold(index: ListIndex, asked: np.ndarray, known: Outline, rows: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """How scores, (n, b), of rows of these lists are foretold: the mean and the variance."""
    lists, means, variances = index.lists, [], []
    for one in asked:
        turned = one @ lists.axes
        along, rests = known.of_some(rows, turned[: lists.leading])
        means.append(lists.means[owners] @ one + along)
        variances.append(rests * (np.square(turned[lists.leading :]) @ lists.profile))
    return np.stack([np.stack(means, 1), np.stack(variances, 1)])


def test_scores_are_as_an_outline_foretells(path: Path) -> None:
    """Of rows in lists and of late ones: off by nothing on average, and by as much as it says."""
    with softkv.open(path, "r") as db:
        index, snapshot = index_of(db), db._view().snapshot
        assert index.outline is not None
        assert index.late is not None
        asked = np.random.default_rng(2).standard_normal((20, index.lists.means.shape[1]))
        for known, first, count in ((index.outline, 0, index.rows), (index.late, index.rows, len(index.joined))):
            owners = index.owners(np.arange(first, first + count))
            inside = np.flatnonzero(owners >= 0)
            keys = index.form.keys(snapshot.vectors(first + inside)).astype(np.float64)
            mean, variance = foretold(index, asked, known, inside, owners[inside])
            away = (keys @ asked.T - mean) / np.sqrt(variance)
            assert abs(away.mean()) < 0.05
            assert 0.8 < np.sqrt(np.mean(np.square(away))) < 1.1
            assert np.mean(np.abs(away) > outline.LEAST_REACH) < 2e-4


def lists_of(keys: np.ndarray, offsets: np.ndarray) -> Lists:
    """The statistics of lists of these keys."""
    return measured(lambda start, stop: (keys[start:stop], keys[start:stop, :1]), offsets)


def test_what_codes_leave_is_never_longer_than_said() -> None:
    """The length that is told is hardly longer; one far row does not coarsen others, and counts as far."""
    keys, offsets = keys_of(1, 2000), np.array([0, 700, 700, 2000])
    keys[5] *= 1000.0
    lists = lists_of(keys, offsets)
    found = Outline.of(lambda start, stop: keys[start:stop], offsets, lists)
    assert found is not None
    assert found.codes.shape == (2000, LEADING)
    owners = np.repeat([0, 2], [700, 1300])
    moved = keys.astype(np.float64) - lists.means[owners]
    told = (found.codes * found.steps.astype(np.float64)) @ lists.axes[:, :LEADING].T
    left, said = np.square(moved - told).sum(1), found.lengths[found.rests]
    assert (said >= left * (1 - 1e-4)).all()
    others = np.arange(2000) != 5
    assert (said[others] <= outline.LONGER * left[others] * (1 + 1e-4)).all()
    assert np.median(left[others]) < np.median(np.square(moved[others]).sum(1))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (np.random.default_rng(0).standard_normal((9000, 300)), "as many directions as axes"),
        (keys_of(1, 900)[:, :90], "narrow"),
        (np.ones((900, 200)), "all alike"),
    ],
)
def test_no_outline_is_made_that_tells_little(keys: np.ndarray, why: str) -> None:
    """Where keys have no leading axes, are narrow, or all alike."""
    offsets = np.array([0, 400, len(keys)])
    lists = lists_of(keys, offsets)
    assert Outline.of(lambda start, stop: keys[start:stop], offsets, lists) is None, why
    assert not outline.is_worth_it(lists)


def test_a_run_of_rows_is_as_the_rows_are() -> None:
    """Neighbouring rows are read faster, and are the same."""
    keys, offsets = keys_of(1, 3000), np.array([0, 1000, 3000])
    found = Outline.of(lambda start, stop: keys[start:stop], offsets, lists_of(keys, offsets))
    assert found is not None
    asked = np.random.default_rng(1).standard_normal(LEADING)
    some = np.r_[7:90, 100:101, 2000:3000]
    for one, other in zip(
        found.of_runs([(7, 90), (100, 101), (2000, 3000)], asked), found.of_some(some, asked), strict=True
    ):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-6)


# Draws


def given_by(
    db: softkv.SoftKV, queries: np.ndarray, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], dict[str, Any]]:
    """What is given to `screened` for the first of the queries that is like the items."""
    given: list[tuple[list[Any], dict[str, Any]]] = []
    with monkeypatch.context() as patch:
        patch.setattr(planned, "screened", lambda *some, **options: given.append((list(some), options)))
        for query in queries:
            db.lookup(query, temperature=temperature, tolerance=0.05)
            if given:
                break
    return given[0]


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_draws_are_right_on_average_and_off_by_what_they_say(
    path: Path, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many draws: the sums of all rows of the lists, the entropy, and the variances of value and mass."""
    monkeypatch.setattr(screening, "MOST", 1.0)
    with softkv.open(path, "r") as db:
        given = given_by(db, queries_of(9), times * db._view().usual_temperature, monkeypatch)
        (index, _, arena, asked, _, lists, _, known), options = given
        exact, scale = both(known, read_lists(index, arena, asked, [lists], 3), 3).blend, arena.scale
        found, said = [], []
        for seed in range(DRAWS):
            one = screening.screened(*given[0], **options | {"random": np.random.default_rng(seed)})
            assert one is not None
            blend = merge(one.near.blend, one.unread)
            logs = blend.log_mass - exact.log_mass, np.log(blend.effective / exact.effective)
            found.append(np.concatenate([(blend.value - exact.value)[0], *logs]))
            said.append(one.deviations(exact))
    drawn, (of_value, of_mass) = np.array(found), np.sqrt(np.mean(np.square(said), axis=0))
    # Rows that hardly weigh are drawn once in 4,096 times, so 300 draws may miss a little.
    little = 0.02 * options["allowed"] * np.array([*[scale] * (drawn.shape[1] - 2), 1 / screening.CLOSEST, 20.0])
    assert (np.abs(drawn.mean(0)) <= 4.5 * drawn.std(0) / np.sqrt(DRAWS) + little).all()
    if of_value > 0.2 * options["allowed"] * scale:  # else a few rows of little weight tell of it
        assert 0.8 < np.sqrt(np.square(drawn[:, :-2]).mean(0).sum()) / of_value < 1.25
        assert 0.8 < np.sqrt(np.square(drawn[:, -2]).mean()) / of_mass < 1.25


def test_few_rows_are_read_and_more_for_a_smaller_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn has about the error that was allowed; where that would need most rows, nothing is drawn."""
    with softkv.open(path, "r") as db:
        some, options = given_by(db, queries_of(9), db._view().usual_temperature, monkeypatch)
        read = []
        for allowed in (0.03, 0.01, 0.003):
            one = screening.screened(*some, **options | {"allowed": allowed})
            assert one is not None
            of_value, _ = one.deviations(merge(one.near.blend, one.unread))
            assert of_value < 1.3 * allowed * db._view().snapshot.value_scale
            read.append(int(one.near.scored[0]))
        whole = both(some[7], read_lists(some[0], some[2], some[3], [some[5]], 3), 3).scored[0]
        assert read[0] <= read[1] <= read[2] < whole
        assert read[0] < read[2]
        for allowed in (0.0, -1.0):
            assert screening.screened(*some, **options | {"allowed": allowed}) is None


def test_rows_that_stand_out_are_always_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose outline tells nothing of them are read by every query, however little the others need."""
    monkeypatch.setattr(screening, "MOST", 1.0)
    with softkv.open(path, "r") as db:
        some, options = given_by(db, queries_of(9), db._view().usual_temperature, monkeypatch)
        index = index_of(db)
        assert index.outline is not None
        rows = np.arange(index.offsets[some[5][-1]], index.offsets[some[5][-1] + 1])
        rests = index.outline.rests.copy()
        rests[rows] = 255
        scored = []
        monkeypatch.setattr(screening, "scored", lambda asked, some: scored.append(some) or looks_scored(asked, some))
        given = [some[0], replace(index.outline, rests=rests), *some[2:]]
        with np.errstate(over="ignore"):
            assert screening.screened(*given, **options | {"allowed": 0.1}) is not None
        assert np.isin(rows[db._view().snapshot.live[rows]], np.concatenate(scored)).all()


def test_an_outline_reaches_as_far_as_the_best_rows_of_rehearsed_queries(tmp_path: Path, large: None) -> None:
    """Where items have others that are much like them, what is left of both points the same way."""
    reaches = []
    for near in (False, True):
        keys = keys_of(1, 6000)
        if near:
            keys[3000:] = keys[:3000] + 0.6 * keys_of(2, 3000)
        with softkv.open(tmp_path / f"{near}", value="number", compatibility="cosine") as db:
            db.add([str(number) for number in range(6000)], keys[:, 0], vectors=keys)
            db.build_index()
            index = index_of(db)
            assert index.outline is not None
            reaches.append(float(index.outline.reach[0]))
    assert outline.LEAST_REACH <= reaches[0] < reaches[1]


def test_what_is_not_known_to_reach_is_not_used(path: Path, screens: list[screening.Screened | None]) -> None:
    """An outline that was not rehearsed tells which rows matter, but not how surely."""
    rewritten(path, lambda index: replace(index, outline=index.outline and replace(index.outline, reach=UNKNOWN)))
    with softkv.open(path, "r") as db:
        for query in queries_of(9):
            db.lookup(query, tolerance=0.05)
    assert not screens


# Answers


@pytest.mark.parametrize("near", [0.0, 0.1, 0.3])
def test_an_item_like_the_query_is_found(
    path: Path, near: float, screens: list[screening.Screened | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outline foretells too little of it: the best rows that are named are those of the lists read whole."""
    with softkv.open(path, "r") as db:
        snapshot = db._view().snapshot
        rows = np.random.default_rng(5).choice(np.flatnonzero(snapshot.live), 80, replace=False)
        queries = snapshot.vectors(rows) + near * keys_of(6, 80)
        options = {"temperature": db._view().usual_temperature, "tolerance": 0.05}
        found = db.lookup(queries, **options)
        count = sum(one is not None for one in screens)
        monkeypatch.setattr(planned, "screened", lambda *_, **__: None)
        whole = db.lookup(queries, **options)
        both_kinds = (np.broadcast_to(np.asarray(one.error_kind), 80) == "calibrated" for one in (found, whole))
        calibrated = np.logical_and(*both_kinds)
        named = [one.contributors[0].key == other.contributors[0].key for one, other in zip(found, whole, strict=True)]
        assert count >= calibrated.sum() > 0
        assert np.mean(np.array(named)[calibrated]) >= 0.98


@pytest.mark.parametrize("times", [0.3, 1.0, 2.0])
def test_answers_are_as_near_as_they_say(path: Path, times: float, screens: list[screening.Screened | None]) -> None:
    """Beside a scan: value, mass and the rows that are named, with items added and deleted since the build."""
    with softkv.open(path, "r") as db:
        off, masses, named = [], [], []
        for query in queries_of(120):
            options = {"temperature": times * db._view().usual_temperature, "tolerance": 0.05}
            before = len(screens)
            found, exact = db.lookup(query[None], **options), db.lookup(query[None], **options | {"tolerance": 0})
            if len(screens) == before or screens[-1] is None or found.error_kind != "calibrated":
                continue
            off.append(apart(found, exact)[0])
            masses.append(abs(found.log_mass[0] - exact.log_mass[0]) / found.log_mass_error[0])
            named.append(found[0].contributors[0].key == exact[0].contributors[0].key)
            assert found.rows_read[0] < 0.5 * exact.rows_read[0]
        assert len(off) > 25
        assert np.mean(np.array(off) > 1) < 0.08
        assert np.mean(np.array(masses) > 1) < 0.12
        assert np.mean(named) > 0.9


def test_the_same_question_gets_the_same_answer(path: Path, screens: list[screening.Screened | None]) -> None:
    """From another handle and among other queries, too; another secret draws other rows."""
    queries = queries_of(6)
    with softkv.open(path, "r") as db, softkv.open(path, "r") as other:
        options = {"temperature": db._view().usual_temperature, "tolerance": 0.05}
        first, again, many = (
            db.lookup(queries[:1], **options),
            other.lookup(queries[:1], **options),
            db.lookup(queries, **options),
        )
        assert any(one is not None for one in screens)
        assert np.array_equal(first.value, again.value)
        assert np.allclose(first.value[0], many.value[0], rtol=1e-5, atol=1e-6)
        assert first.rows_read[0] == many.rows_read[0]
    if sum(0 if one is None else len(one.logits) for one in screens) < 60:  # hardly more than all rows that matter
        return
    with_secret(path, b"another secret".ljust(32))
    with softkv.open(path, "r") as db:
        assert not np.array_equal(db.lookup(queries, **options).value, many.value)


def test_deleted_items_are_not_read(path: Path, screens: list[screening.Screened | None]) -> None:
    """The best items of a query are deleted: then others are named, and the answer is right."""
    query = queries_of(1)
    with softkv.open(path) as db:
        options = {"temperature": db._view().usual_temperature, "tolerance": 0.05}
        best = [one.key for one in db.lookup(query[0], show=20, **options).contributors]
        db.delete(best)
        found, exact = db.lookup(query, show=20, **options), db.lookup(query, show=20, **options | {"tolerance": 0})
        assert screens[-1] is not None
        assert not set(best) & {one.key for one in found[0].contributors}
        assert apart(found, exact)[0] <= 1


def test_compaction_keeps_an_outline(path: Path) -> None:
    """Late rows are laid into their lists and deleted ones leave: the outline is that of the rows as they lie then."""
    with softkv.open(path) as db:
        db.compact()
        index, snapshot = index_of(db), db._view().snapshot
        assert (index.outline is not None, index.late is None, index.rows >= ITEMS) == (True, True, True)
        assert np.isfinite(index.outline.reach).all()
        again = Outline.of(
            lambda start, stop: index.form.keys(snapshot.vectors(np.arange(start, stop))), index.offsets, index.lists
        )
        assert again is not None
        assert np.array_equal(again.codes, index.outline.codes)
        assert np.array_equal(again.rests, index.outline.rests)


def test_late_rows_without_an_outline_are_drawn_by_their_lists(
    path: Path, screens: list[screening.Screened | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that an earlier version has noted have none."""
    monkeypatch.setattr("softkv.asking.indexed.whole_of", lambda *_: None)
    with softkv.open(path, "r") as db:
        assert index_of(db).late is None
        options = {"temperature": db._view().usual_temperature, "tolerance": 0.05}
        off = [
            apart(db.lookup(one[None], **options), db.lookup(one[None], **options | {"tolerance": 0}))[0]
            for one in queries_of(20)
        ]
        assert sum(one is not None for one in screens) > 10
        assert np.mean(np.array(off) > 1) < 0.2


# Files


def rewritten(path: Path, change: Callable[[ListIndex], ListIndex]) -> None:
    """Put another index file in the place of that of a closed store."""
    with softkv.open(path) as db:
        written = db._view().index_as_written.index
        assert written is not None
        db._store.put_index("lists", change(written).encoded())


def test_an_index_of_before_is_asked_as_it_is_and_gets_an_outline_when_it_is_built_again(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    """Building again then does something, though nothing was added."""
    path = tmp_path / "s"
    shutil.copytree(paths["cosine"], path)
    with softkv.open(path) as db:
        db.build_index()
    rewritten(path, lambda index: replace(index, outline=None))
    with softkv.open(path) as db:
        assert index_of(db).outline is None
        options = {"temperature": db._view().usual_temperature, "tolerance": 0.05}
        assert any(db.lookup(one, **options).error_kind == "calibrated" for one in queries_of(9))
        db.build_index()
        assert index_of(db).outline is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: replace(one, codes=one.codes[:-1]),
        lambda one: replace(one, codes=one.codes[:, :-1]),
        lambda one: replace(one, codes=one.codes.astype(np.int32)),
        lambda one: replace(one, rests=one.rests[:-1]),
        lambda one: replace(one, rests=one.rests.view(np.int8)),
        lambda one: replace(one, steps=one.steps[:-1]),
        lambda one: replace(one, steps=one.steps * np.float32(np.nan)),
        lambda one: replace(one, lengths=-one.lengths),
        lambda one: replace(one, lengths=one.lengths[:200]),
        lambda one: replace(one, lengths=one.lengths.astype(np.float64)),
        lambda one: replace(one, reach=one.reach[:0]),
        lambda one: replace(one, reach=-one.reach),
        lambda one: replace(one, reach=one.reach * np.float32(np.nan)),
    ],
)
def test_a_damaged_outline_is_refused(
    paths: dict[str, Path], tmp_path: Path, damage: Callable[[Outline], Outline]
) -> None:
    """The index is not used then, and the reason says so."""
    path = tmp_path / "s"
    shutil.copytree(paths["dot"], path)
    rewritten(path, lambda index: replace(index, outline=index.outline and damage(index.outline)))
    with softkv.open(path, "r") as db:
        found = db.lookup(queries_of(1)[0], tolerance=0.05)
        assert found.route == "scan"
        assert "the index holds an outline" in found.reason


# Distances of values


def test_squared_distances_are_those_in_float64() -> None:
    """Of vectors and numbers far from zero, and of labels in another order than that of their codes."""
    rng = np.random.default_rng(0)
    rows, centre = rng.standard_normal((50, 7)), rng.standard_normal(7)
    for far in (0.0, 1e5):
        given = (rows + far).astype(np.float32)
        exact = np.square(given.astype(np.float64) - (centre + far)).sum(1)
        assert np.allclose(Vectors(given).squares(centre + far), exact, rtol=1e-5)
        assert np.allclose(
            Numbers(given[:, :1]).squares(centre[:1] + far), np.square(given[:, 0] - (centre[0] + far)), rtol=1e-9
        )
    codes, order, shares = rng.integers(0, 7, 50), rng.permutation(7), rng.dirichlet(np.ones(7))
    dense = np.eye(7)[codes]
    assert np.allclose(Labels(codes, 7).squares(shares), np.square(dense - shares).sum(1))
    assert np.allclose(Labels(codes, 7, order).squares(shares), np.square(dense[:, order] - shares).sum(1))
