"""Shards that do not answer: they are named, and answers of the others say how far they may be from those of all."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking.question import Question
from softkv.doors.cluster.handle import Cluster, create
from softkv.doors.cluster.merging import Sides
from softkv.doors.cluster.missing import bounded, widened
from softkv.errors import HandleClosed, InputError, OutOfReach, StorageFailed, StoreError

from .benchmarks.missing import tried
from .clusters import clustered, opened
from .databases import vectors_of

QUERIES = vectors_of(6, seed=5)


def lost(path: Path, *numbers: int) -> list[str]:
    """Let the disks of some shards go; returns where they were."""
    found = [path / f"shard-{number:03}" for number in numbers]
    for place in found:
        shutil.rmtree(place)
    return [str(place) for place in found]


def test_shards_that_do_not_answer_are_named(tmp_path: Path) -> None:
    """All may be asked anything."""
    clustered(tmp_path / "c", "number", 100, shards=9).close()
    gone = lost(tmp_path / "c", 2, 5)
    with opened(tmp_path / "c", mode="r") as db:
        asked: list[Callable[[], Any]] = [
            lambda: db.lookup(QUERIES),
            lambda: db.nearest(QUERIES),
            lambda: len(db),
            lambda: list(db),
            lambda: db.info(),
            lambda: db.snapshot(),
            lambda: db.columns(),
            lambda: db.evaluate(QUERIES, [1.0] * 6),
        ]
        for ask in asked:
            with pytest.raises(OutOfReach, match="partial=True") as error:
                ask()
            assert list(error.value.shards) == gone


def test_nothing_partial_is_written(tmp_path: Path) -> None:
    """A cluster of which a shard is missing is opened to read, or not at all."""
    clustered(tmp_path / "c", "number", 100, shards=9).close()
    lost(tmp_path / "c", 2)
    for mode in ("c", "w"):
        with pytest.raises(StoreError, match="shard-002"):
            opened(tmp_path / "c", mode=mode)
    with opened(tmp_path / "c", mode="r") as db:
        works: list[Callable[[], Any]] = [
            lambda: db.add("a", 1.0, vectors=QUERIES[0]),
            lambda: db.delete(["item 1"]),
            lambda: db.set_values(["item 1"], [1.0]),
            lambda: db.tune(),
            lambda: db.fit(),
            lambda: db.guard(),
            lambda: db.build_index(),
        ]
        for work in works:
            with pytest.raises(StoreError):
                work()


def test_what_partial_answers_saw_reaches_nothing_else(tmp_path: Path) -> None:
    """A shard that is lost while a cluster is open for writing is named by all that changes, learns or saves items."""
    works: list[Callable[[Cluster], Any]] = [
        lambda db: db.add("a", 1.0, vectors=QUERIES[0]),
        lambda db: db.delete(["item 1"]),
        lambda db: db.delete(where={"even": True}),
        lambda db: db.set_values(["item 1"], [1.0]),
        lambda db: db.set_values(where={"even": True}, values=1.0),
        lambda db: db.set_temperature(0.5),
        lambda db: db.tune(),
        lambda db: db.fit(),
        lambda db: db.guard(),
        lambda db: db.build_index(lists=1),
        lambda db: db.compact(),
        lambda db: db.export(tmp_path / "all.jsonl"),
        lambda db: db.backup(tmp_path / "backup"),
    ]

    def fails(*_given: Any, **_options: Any) -> Any:
        raise StorageFailed("cannot read")

    with clustered(tmp_path / "c", "number", 100, shards=9) as db:
        info = db.info()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(db._store.shards[4], "view", fails)
            for work in works:
                assert db.lookup(QUERIES, partial=True).out_of_reach is not None
                with pytest.raises(OutOfReach, match="shard-004"):
                    work(db)
        assert db.info() == info
        assert db.lookup(QUERIES, partial=True).out_of_reach is None
        assert db.check().ok
    assert {one.name for one in tmp_path.iterdir()} == {"c"}


def test_a_shard_that_is_back_answers_again(tmp_path: Path) -> None:
    """A handle that was opened without it finds it there, but takes no other store for it; its writer may follow."""
    with clustered(tmp_path / "c", "number", 100, temperature=0.5) as db:
        whole = db.lookup(QUERIES).to_json()
    place, away = tmp_path / "c" / "shard-001", tmp_path / "away"
    place.rename(away)
    with opened(tmp_path / "c", mode="r") as db:
        for other in (None, tmp_path / "c" / "shard-002"):
            if other is not None:
                shutil.copytree(other, place)
            with pytest.raises(OutOfReach, match="shard-001" if other is None else "Bring that back"):
                db.lookup(QUERIES)
            assert db.lookup(QUERIES, partial=True).out_of_reach is not None
            assert not db.check().ok
        shutil.rmtree(place)
        away.rename(place)
        assert db.lookup(QUERIES, partial=True).to_json() == db.lookup(QUERIES).to_json() == whole
        with opened(tmp_path / "c") as writer:
            writer.add("new", 1.0, vectors=QUERIES[0])
        assert len(db) == 101
        assert db.check().ok
    with pytest.raises(HandleClosed):
        db.lookup(QUERIES, partial=True)


def test_where_no_items_are_in_reach_what_is_not_is_named(tmp_path: Path) -> None:
    """Shards that answer are empty, and that is not said of the cluster."""
    create(tmp_path / "c", 2, value="number")
    with opened(tmp_path / "c") as db:
        key = next(f"item {n}" for n in range(99) if db._store.manifest.shard_of(f"item {n}") == 1)
        db.add(key, 3.0, vectors=QUERIES[0])
    gone = lost(tmp_path / "c", 1)
    with opened(tmp_path / "c", mode="r") as db, pytest.raises(OutOfReach, match="shard-001") as error:
        db.lookup(QUERIES, partial=True)
    assert list(error.value.shards) == gone


def test_a_partial_answer_says_how_much_is_out_of_reach(tmp_path: Path) -> None:
    """It tells the share of the keys that the missing shards have; who contributes is of the others."""
    with clustered(tmp_path / "c", "number", 400, shards=16) as db:
        whole = db.lookup(QUERIES, temperature=0.5, show=400)
        assert db.lookup(QUERIES, partial=True).to_json() == db.lookup(QUERIES).to_json()
        assert whole.out_of_reach is None
        named = [{one.key for one in answer.contributors} for answer in whole]
    lost(tmp_path / "c", 3, 4)
    with opened(tmp_path / "c", mode="r") as db:
        found = db.lookup(QUERIES, temperature=0.5, show=400, partial=True)
        np.testing.assert_allclose(found.out_of_reach, 2 / 16)
        assert found.error_kind == "measured"
        assert (np.abs(found.value - whole.value) <= found.error).all()
        assert (np.abs(found.log_mass - whole.log_mass) <= found.log_mass_error).all()
        for answer, before in zip(found, named, strict=True):
            assert {one.key for one in answer.contributors} < before
            assert "12.5% of it out of reach" in repr(answer)
            assert answer.to_dict()["out_of_reach"] == 0.125
        best = db.lookup(QUERIES, k=3, partial=True)
        assert (best.error, best.error_kind) == (None, "unknown")
        assert best.out_of_reach is not None
        for options in ({"mask": np.ones(400, bool)}, {"heads": softkv.Heads.identity(1, width=5, value_width=1)}):
            with pytest.raises(InputError, match="partial"):
                db.lookup(QUERIES, partial=True, **options)


def test_of_few_shards_nothing_is_stated(tmp_path: Path) -> None:
    """Where too few shards answer, no error is stated, and where none does there is no answer."""
    clustered(tmp_path / "c", "label", 60, shards=3).close()
    lost(tmp_path / "c", 1)
    with opened(tmp_path / "c", mode="r") as db:
        found = db.lookup(QUERIES, partial=True)
        assert (found.error, found.error_kind) == (None, "unknown")
        assert found.out_of_reach == pytest.approx(1 / 3, abs=0.01)
    lost(tmp_path / "c", 0, 2)
    with opened(tmp_path / "c", mode="r") as db, pytest.raises(OutOfReach):
        db.lookup(QUERIES, partial=True)


@pytest.mark.parametrize(
    ("stated", "bound", "jackknife"),
    [
        ("exact", "bound", "measured"),
        ("bound", "bound", "measured"),
        ("measured", "measured", "measured"),
        ("calibrated", "calibrated", "calibrated"),
        (("exact", "bound"), "bound", "measured"),
        (("exact", "calibrated"), ("bound", "calibrated"), ("measured", "calibrated")),
    ],
)
def test_an_error_is_no_surer_than_what_the_answering_shards_state(stated: Any, bound: Any, jackknife: Any) -> None:
    """The kind of error is the least sure of those of the answers and that of what is added for the missing shards."""
    lookup = partial(softkv.soft_lookup, QUERIES[:2], compatibility="dot", temperature=1.0)
    parts = [
        replace(lookup(keys, keys[:, 0]), error=np.zeros(2), error_kind=stated) for keys in np.split(vectors_of(80), 8)
    ]
    found = replace(Sides(tuple(parts)).merged(3), error_kind=stated)
    question = Question(QUERIES[:2], compatibility="dot", temperature=1.0)
    assert bounded(found, question, 0.2, []).error_kind == bound
    assert widened(found, parts, 0.2, 0.95).error_kind == jackknife


def test_a_shard_may_fail_while_it_answers(tmp_path: Path) -> None:
    """It is out of reach as well from then on; but a handle that was closed is closed."""
    with clustered(tmp_path / "c", "number", 100, shards=9) as db:
        shard = db._store.shards[4]

        def fails(*_given: Any, **_options: Any) -> Any:
            raise StorageFailed("cannot read")

        whole = db.lookup(QUERIES, temperature=0.5)
        view = shard.view()
        view.snapshot.blocks = view.snapshot.vectors = fails
        with pytest.raises(OutOfReach, match="cannot read"):
            db.lookup(QUERIES, temperature=0.5)
        found = db.lookup(QUERIES, temperature=0.5, partial=True)
        assert found.out_of_reach[0] == pytest.approx(1 / 9, abs=0.01)
        assert (np.abs(found.value - whole.value) <= found.error).all()
        del view.snapshot.blocks, view.snapshot.vectors
    with pytest.raises(HandleClosed):
        db.lookup(QUERIES, partial=True)


@pytest.mark.parametrize("gone", [1, 3])
@pytest.mark.parametrize("temperature", [0.02, 0.05, 0.3])
def test_what_is_stated_of_the_missing_holds_as_often_as_it_says(gone: int, temperature: float) -> None:
    """Over items shared out anew again and again, from a few that have nearly all of the mass to nearly all."""
    found = tried(gone, temperature, 150, 1)
    assert found.values.mean() >= 0.93, "values are off by more than is stated"
    assert found.masses.mean() >= 0.9, "masses are off by more than is stated"


def test_a_cluster_is_whole_again_when_its_shards_are_back(tmp_path: Path) -> None:
    """Nothing of their absence stays."""
    with clustered(tmp_path / "c", "number", 100, shards=9) as db:
        before = db.lookup(QUERIES).to_json()
    shutil.move(tmp_path / "c" / "shard-003", tmp_path / "aside")
    with opened(tmp_path / "c", mode="r") as db, pytest.raises(OutOfReach):
        db.lookup(QUERIES)
    shutil.move(tmp_path / "aside", tmp_path / "c" / "shard-003")
    with opened(tmp_path / "c") as db:
        assert isinstance(db, Cluster)
        assert db.lookup(QUERIES).to_json() == before
