"""Building an index: what it needs, what goes on meanwhile, and what an interruption leaves."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv import errors
from softkv.index import encoding
from softkv.index.building import list_count, side_by_side
from softkv.storage import Store

from .databases import count_as_large

ITEMS, WIDTH = 1500, 8


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, and few queries are rehearsed."""
    count_as_large(monkeypatch, rehearsed=300)


def filled(path: Path, **options: Any) -> softkv.SoftKV:
    """A store of bare vectors in clusters, with keys "0", "1", ..."""
    rng = np.random.default_rng(1)
    keys = rng.standard_normal((20, WIDTH))[rng.integers(0, 20, ITEMS)] + 0.3 * rng.standard_normal((ITEMS, WIDTH))
    db = softkv.open(path, **options)
    db.add([str(number) for number in range(ITEMS)], np.tanh(keys[:, 0]), vectors=keys)
    return db


def likely(db: Any) -> np.ndarray:
    """A query like the items."""
    return db.item("100").vector * np.linspace(0.95, 1.05, WIDTH)


def vectors_of(db: Any) -> dict[str, list[float]]:
    """Every item with its key vector and value."""
    return {item.name: [*item.vector.tolist(), item.value] for item in db.select()}


def test_an_index_changes_no_item(tmp_path: Path) -> None:
    """Keys, vectors, values and their order stay; the rows lie in list order; info and check know."""
    with filled(tmp_path / "s") as db:
        before = list(vectors_of(db).items())
        info = db.build_index()
        assert list(vectors_of(db).items()) == before
        assert db.check().ok
        assert info.items == ITEMS
        index = db._view().index
        assert index is not None
        assert index.lists.counts.sum() == index.rows == ITEMS
        assert len(index.offsets) - 1 == list_count(ITEMS)
        keys = np.concatenate([block.vectors for block in db._view().snapshot.blocks()])
        keys = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        own = index.lists.means[index.owners(np.arange(ITEMS))]
        others = np.random.default_rng(2).permutation(own)
        assert (np.linalg.norm(keys - own, axis=1) < np.linalg.norm(keys - others, axis=1)).mean() > 0.85
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.lookup(likely(db), tolerance=0.5).error_kind == "calibrated"


def test_the_temperature_by_rule_stays_from_build_to_build(tmp_path: Path) -> None:
    """A temperature by rule stays from build to build, also after a compaction, and for handles that find it anew."""
    with filled(tmp_path / "s") as db:
        db.delete([str(number) for number in range(0, 200, 3)])
    found = []
    for upkeep in ("check", "build_index", "build_index", "compact", "build_index"):
        with softkv.open(tmp_path / "s") as db:
            getattr(db, upkeep)()
        with softkv.open(tmp_path / "s", "r") as reader:
            anew = reader._new_view().temperature_by_rule("cosine")
            found.append((reader.info().temperature, anew.value, anew.floor))
    kept, anew, floor = found[0]
    assert {one[0] for one in found} == {kept}
    assert [one[1:] for one in found] == [pytest.approx((anew, floor), rel=1e-6)] * len(found)


def test_a_reader_sees_an_index_as_soon_as_it_is_there(tmp_path: Path) -> None:
    """A handle that reads sees an index once it is built, and that it is gone once it is dropped."""
    with filled(tmp_path / "s") as db, softkv.open(tmp_path / "s", "r") as reader:
        query = likely(db)
        assert reader.lookup(query, tolerance=0.5).error_kind == "exact"
        db.build_index()
        assert reader.lookup(query, tolerance=0.5).error_kind == "calibrated"
        db.drop_index()
        assert reader.lookup(query, tolerance=0.5).error_kind == "exact"


def test_adds_and_lookups_go_on_while_an_index_is_built(tmp_path: Path) -> None:
    """What is added or deleted in between is in every lookup afterwards."""
    with filled(tmp_path / "s") as db, softkv.open(tmp_path / "s", "r") as reader:
        stages = []

        def meanwhile(stage: str, _done: int, _total: int) -> None:
            if stage in stages:
                return
            stages.append(stage)
            other = threading.Thread(target=change, args=(len(stages),))
            other.start()
            other.join()

        def change(number: int) -> None:
            if stages[-1] != "laying rows in order":
                db.add(f"new {number}", 0.5, vectors=np.full(WIDTH, float(number)))
                db.delete(str(number))
            assert reader.lookup(np.ones(WIDTH), tolerance=0).error_kind == "exact"

        db.build_index(progress=meanwhile)
        assert [stage for stage in stages if stage != "noting signs of rows"] == [
            "finding centres",
            "assigning rows",
            "laying rows in order",
            "measuring lists",
            "rehearsing",
        ]
        assert len(db) == ITEMS
        assert {"new 1", "new 2", "new 4", "new 5"} <= set(db)
        assert not {"1", "2", "4", "5"} & set(db)
        queries = np.array([item.vector for item in db.select(stop=200)]) * 1.01
        found, exact = db.lookup(queries, tolerance=0.3), db.lookup(queries, tolerance=0)
        assert (np.abs(found.value - exact.value) <= found.error + exact.error).mean() > 0.9
        assert db.check().ok


@pytest.mark.parametrize(
    "stage", ["finding centres", "assigning rows", "laying rows in order", "measuring lists", "rehearsing"]
)
def test_an_interrupted_build_leaves_a_store_as_good_as_before(tmp_path: Path, stage: str) -> None:
    """Every item is there, lookups are exact, and the next build succeeds."""

    def interrupt(at: str, _done: int, _total: int) -> None:
        if at == stage:
            raise KeyboardInterrupt

    with filled(tmp_path / "s") as db:
        before = vectors_of(db)
        with pytest.raises(KeyboardInterrupt):
            db.build_index(progress=interrupt)
        assert vectors_of(db) == before
        assert db.lookup(np.ones(WIDTH)).error_kind == "exact"
        db.add("after", 1.0, vectors=np.ones(WIDTH))
        assert db.check().ok
        db.build_index()
        assert db.lookup(likely(db), tolerance=0.5).error_kind == "calibrated"


def test_a_build_that_was_overtaken_by_a_compaction_says_so(tmp_path: Path) -> None:
    """The rows lie elsewhere by then; nothing is lost."""
    with filled(tmp_path / "s") as db:

        def meanwhile(stage: str, done: int, _total: int) -> None:
            if stage == "assigning rows" and "7" in db:
                db.delete("7")
                db.compact()

        with pytest.raises(errors.StoreError, match="Build it again"):
            db.build_index(progress=meanwhile)
        assert len(db) == ITEMS - 1
        assert db.check().ok


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lists": 0}, errors.InputError),
        ({"lists": ITEMS + 1}, errors.InputError),
        ({"lists": 2.5}, errors.InputError),
        ({"lists": True}, errors.InputError),
        ({"temperatures": (0.0, 1.0)}, errors.InputError),
        ({"temperatures": (2.0, 1.0)}, errors.InputError),
        ({"temperatures": 1.0}, errors.InputError),
        ({"queries": np.ones((200, WIDTH + 1))}, errors.ShapeError),
        ({"queries": np.full((200, WIDTH), np.nan)}, errors.ShapeError),
        ({"queries": np.ones((99, WIDTH))}, errors.InputError),
        ({"backend": "tpu"}, errors.InputError),
    ],
)
def test_bad_wishes_are_refused_before_anything_is_done(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    """The error names them, and the store has the same commit as before."""
    with filled(tmp_path / "s") as db:
        commit = db.info().commit
        with pytest.raises(error):
            db.build_index(**options)
        assert db.info().commit == commit


@pytest.mark.parametrize(("compatibility", "expected"), [("laplace", "laplace"), ("uniform", "uniform")])
def test_what_no_index_can_help_is_refused(tmp_path: Path, compatibility: str, expected: str) -> None:
    """Its lookups scan."""
    with (
        filled(tmp_path / "s", compatibility=compatibility) as db,
        pytest.raises(errors.NotExpressible, match=expected),
    ):
        db.build_index()


def test_an_empty_store_has_nothing_to_index(tmp_path: Path) -> None:
    """An index of an empty store is refused, and so is one that a reader builds."""
    with softkv.open(tmp_path / "s") as db, pytest.raises(errors.EmptyStore):
        db.build_index()
    with softkv.open(tmp_path / "s", "r") as db, pytest.raises(errors.AccessRefused):
        db.build_index()


def test_queries_of_ones_own_are_calibrated_on(tmp_path: Path) -> None:
    """The facts say so, and a query like them is trusted."""
    with filled(tmp_path / "s") as db:
        queries = np.random.default_rng(4).standard_normal((400, WIDTH))
        usual = db.info().temperature
        db.build_index(queries=queries, temperatures=(usual, usual * 4))
        index = db._view().index
        assert index is not None
        assert index.facts["calibrated on"] == "queries"
        assert index.calibration.temperatures[[0, -1]] == pytest.approx([usual, usual * 4])
        assert db.lookup(queries[0], temperature=usual * 4, tolerance=0.5).error_kind == "calibrated"


def test_queries_that_cannot_be_calibrated_on_are_refused(tmp_path: Path) -> None:
    """Masked ones, texts, ones that are not finite and ones of another width."""
    queries = np.random.default_rng(4).standard_normal((400, WIDTH))
    with filled(tmp_path / "s") as db:
        with pytest.raises(errors.KindError, match="queries to calibrate on without a mask"):
            db.build_index(queries=np.ma.masked_greater(queries, 2.0))
        with pytest.raises(errors.KindError, match="vectors of numbers"):
            db.build_index(queries=["a text"] * 400)
        for odd in (queries[:, 1:], np.where(queries > 2.0, np.nan, queries)):
            with pytest.raises(errors.ShapeError, match=f"finite vectors of width {WIDTH}"):
                db.build_index(queries=odd)
        assert db.info().index is None


@pytest.mark.parametrize("lists", [1, 7, ITEMS])
def test_any_number_of_lists_will_do(tmp_path: Path, lists: int) -> None:
    """There may be one list, or one for each item."""
    with filled(tmp_path / "s") as db:
        db.build_index(lists=lists)
        query = likely(db)
        found, exact = db.lookup(query, tolerance=0.9), db.lookup(query, tolerance=0)
        assert abs(found.value - exact.value) <= found.error + exact.error


def damage(path: str, change: Callable[[bytearray], None]) -> None:
    """Change the bytes of the index file."""
    (file,) = (Path(path) / "index").iterdir()
    content = bytearray(file.read_bytes())
    change(content)
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("harm", ["flip", "cut", "lose", "swap", "empty"])
def test_a_damaged_index_is_none(tmp_path: Path, harm: str) -> None:
    """Lookups are exact, the reason is known, and another can be built."""
    with filled(tmp_path / "s") as db:
        db.build_index()
        path, exact = db.path, db.lookup(likely(db), tolerance=0).value
    (file,) = (Path(path) / "index").iterdir()
    if harm == "lose":
        file.unlink()
    elif harm == "flip":
        damage(path, lambda content: content.__setitem__(len(content) // 2, content[len(content) // 2] ^ 1))
    elif harm == "swap":
        damage(path, lambda content: content.reverse())
    else:
        damage(path, lambda content: content.__delitem__(slice(0 if harm == "empty" else 1000, None)))
    with softkv.open(path) as db:
        answer = db.lookup(likely(db), tolerance=0.5)
        assert (answer.error_kind, answer.value) == ("exact", pytest.approx(exact))
        assert "build the index again" in db._view().index_as_written.problem
        db.build_index()
        assert db.lookup(likely(db), tolerance=0.5).error_kind == "calibrated"
        assert db.check().ok


@pytest.mark.parametrize("other", ["wider", "fewer"])
def test_the_index_of_another_store_is_refused(tmp_path: Path, other: str) -> None:
    """Its bytes are whole, and it is refused all the same."""
    with filled(tmp_path / "s") as db:
        db.build_index()
        index = db._view().index
        assert index is not None
        content = b"".join(bytes(piece) for piece in index.encoded())
    rng = np.random.default_rng(5)
    with Store.open(tmp_path / "t", "c") as store:
        shape = (ITEMS, WIDTH + 1) if other == "wider" else (ITEMS - 1, WIDTH)
        store.append(rng.standard_normal(shape), rng.standard_normal(shape[0]))
        store.configure({"compatibility": "cosine"})
        store.put_index("lists", content)
    with softkv.open(tmp_path / "t", "r") as db:
        assert db.lookup(np.ones(shape[1]), tolerance=0.5).error_kind == "exact"
        assert "build the index again" in db._view().index_as_written.problem


def test_lists_grow_slower_than_stores() -> None:
    """Some 1,500 for 36,000 rows and 4,000 for a million; never more than rows allow."""
    assert [list_count(rows) for rows in (1, 23, 48, 36_783, 10**6)] == [1, 1, 2, 1499, 4038]


def test_neighbours_stand_side_by_side() -> None:
    """Centres on a line come out in the order of the line, or the other way round."""
    line = np.random.default_rng(6).permutation(64)
    centres = np.outer(line, np.ones(5)) + 0.01 * np.random.default_rng(7).standard_normal((64, 5))
    along = np.abs(np.diff(line[side_by_side(centres)]))
    assert np.median(along) == 1
    assert sorted(side_by_side(centres).tolist()) == list(range(64))


@pytest.mark.parametrize("kind", ["vector", "label"])
def test_an_index_of_an_earlier_format_is_asked_as_it_is(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of an earlier format is asked as it is; one of labels says that it has to be built again."""
    keys = np.random.default_rng(3).standard_normal((300, 4))
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(vectors=keys, values=keys if kind == "vector" else [f"{key[0] > 0}" for key in keys])
        db.build_index()
        index = db._view().index
        assert index is not None
        monkeypatch.setattr(encoding, "FORMAT", 2)
        if kind == "label":
            dense = np.eye(len(index.lists.counts)) @ index.lists.values
            index = replace(index, lists=replace(index.lists, values=dense))
        db._store.put_index("lists", index.encoded())
    with softkv.open(tmp_path / "s", "r") as db:
        found = db.info().index
        assert found is not None
        assert (found.problem is None) == (kind == "vector")
        assert "build" in (found.problem or "build")
