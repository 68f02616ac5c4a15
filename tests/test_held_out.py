"""Which items take no part in learning."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.asking.profile import Profile
from softkv.database import import_from, repair
from softkv.database.guarding import _left_out
from softkv.database.held_out import held_out
from softkv.errors import InputError

from .databases import KINDS, filled, values_of, vectors_of


def out_of(db: softkv.SoftKV, share: float) -> set[str]:
    """The names of the items that are held out."""
    with db.snapshot() as frozen:
        view = frozen._view()
        return set(view.snapshot.names(np.flatnonzero(held_out(view, share))))


def test_a_fifth_is_held_out_and_stays_so_whatever_happens_to_others(tmp_path: Path) -> None:
    """Added, deleted, compacted, exported; with keys and without; of a smaller share a part."""
    with filled(tmp_path / "s", "number", 1000) as db:
        db.add(vectors=vectors_of(1000, seed=4), values=values_of("number", 1000))
        held = out_of(db, 0.2)
        assert 340 < len(held) < 460
        assert out_of(db, 0.0) == set()
        assert out_of(db, 0.1) < held < out_of(db, 0.5)
        db.delete([f"item {number}" for number in range(0, 1000, 2)])
        assert out_of(db, 0.2) == held & set(db)
        db.compact()
        assert out_of(db, 0.2) == held & set(db)
    assert len({name.startswith("#") for name in held}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_out_takes_no_part_in_tuning(tmp_path: Path, kind: str) -> None:
    """The temperature is that of a store without these items; they go on answering."""
    with filled(tmp_path / "s", kind, 300, compatibility="gaussian") as db:
        held = out_of(db, 0.2)
        tuned = db.tune()
        assert Profile.of(db._store.settings).temperature.held == 0.2
        assert {one.key for one in db.lookup(vectors_of(1)[0], show=300).contributors} > held
        db.delete(list(held))
        again = db.tune(hold_out=0)
        assert Profile.of(db._store.settings).temperature.held == 0.0
    assert (tuned.items, again.items) == (300 - len(held),) * 2
    assert tuned.temperature == pytest.approx(again.temperature, rel=1e-5)
    assert tuned.floor == pytest.approx(again.floor, rel=1e-4)


def test_what_is_held_out_takes_no_part_in_fitting(tmp_path: Path) -> None:
    """A metric does not depend on their values."""
    metrics = []
    for value in (0.0, 1e6):
        with filled(tmp_path / str(value), "number", 200, compatibility="gaussian") as db:
            held = sorted(out_of(db, 0.2))
            db.set_values(list(set(db) - set(held)), [float(len(name)) for name in set(db) - set(held)])
            db.set_values(held, [value] * len(held))
            found = db.fit(planes=False)
            metrics.append((found.loss, found.before))
            assert found.items == 200 - len(held)
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("learn", ["tune", "fit"])
def test_items_without_keys_that_came_later_calibrate_nothing(tmp_path: Path, learn: str) -> None:
    """They may have been learned from, and cleared or deleted and added again; those with keys are known again."""
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        vectors = np.random.default_rng(3).standard_normal((600, 2))
        values = vectors[:, 0] ** 2
        for keys in ([f"item {number}" for number in range(300)], None):
            db.add(keys, values[:300], vectors=vectors[:300])
        getattr(db, learn)()
        before = db.guard(0.1).evidence.count
        db.add(vectors=vectors[300:], values=values[300:])
        assert db.guard(0.1).evidence.count == before
        db.export(tmp_path / "out.jsonl")
        import_from(tmp_path / "out.jsonl", tmp_path / "new")
        with softkv.open(tmp_path / "new") as other:
            assert other.guard(0.1).evidence.count == before
        db.clear()
        db.add(vectors=vectors[:300], values=values[:300])
        with pytest.raises(InputError, match="got 0"):
            db.guard(0.1)
        db.add([f"item {number}" for number in range(300)], values[:300], vectors=vectors[:300])
        assert 40 < db.guard(0.1).evidence.count < before


def test_a_number_that_was_used_before_an_export_calibrates_nothing_behind_it(tmp_path: Path) -> None:
    """An import counts on from its last item, where the store it came from had others."""
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        vectors = vectors_of(400)
        db.add(vectors=vectors, values=values_of("number", 400))
        db.tune()
        db.fit(planes=False)
        db.delete([f"#{number}" for number in range(301, 401)])
        db.export(tmp_path / "out.jsonl")
        before = db.guard(0.1).evidence.count
    import_from(tmp_path / "out.jsonl", tmp_path / "new")
    with softkv.open(tmp_path / "new") as db:
        db.add(vectors=vectors[300:], values=values_of("number", 400)[300:])
        assert db.guard(0.1).evidence.count == before


@pytest.mark.parametrize("share", [-0.1, 0.6, "0.2", True, float("nan")])
def test_what_is_no_share_to_hold_out_is_refused(tmp_path: Path, share: object) -> None:
    """Both that learn refuse it, before anything is learned."""
    with filled(tmp_path / "s", "number") as db:
        for learn in (db.tune, db.fit):
            with pytest.raises(InputError, match="hold_out"):
                learn(hold_out=share)


def test_items_that_are_renumbered_are_not_taken_for_others(tmp_path: Path) -> None:
    """An import numbers items without keys anew, so where numbers have gaps nobody knows who was held out."""
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        db.add(vectors=vectors_of(200), values=values_of("number", 200))
        db.tune()
        db.export(tmp_path / "whole.jsonl")
        db.delete(["#1"])
        db.export(tmp_path / "gap.jsonl")
    for name, held in (("whole", 0.2), ("gap", None)):
        import_from(tmp_path / f"{name}.jsonl", tmp_path / name)
        with softkv.open(tmp_path / name) as db:
            assert Profile.of(db._store.settings).temperature.held == held


def calibrating(path: Path) -> set[str]:
    """The names of the items that a guard would be calibrated on."""
    with softkv.open(path, "r") as db, db.snapshot() as frozen:
        view = frozen._view()
        return set(view.snapshot.names(np.flatnonzero(held_out(view, *_left_out(view)))))


@pytest.mark.parametrize("learn", ["tune", "fit"])
def test_items_that_a_repair_numbers_anew_calibrate_nothing(tmp_path: Path, learn: str) -> None:
    """Those that keep their numbers and those with keys do; numbers that are given again do not."""
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        vectors, more = vectors_of(300), {"vectors": vectors_of(50), "values": np.zeros(50)}
        for keys in (None, [f"item {number}" for number in range(300)], None):
            db.add(keys, vectors[:, 0] ** 2, vectors=vectors)
        getattr(db, learn)()
        db.set_values(["item 5"], [1.0])
        held = calibrating(tmp_path / "s")
        repair(tmp_path / "s", tmp_path / "whole")
        db.delete([f"#{number}" for number in range(851, 901)])
        repair(tmp_path / "s", tmp_path / "shorter")
        db.delete(["#100"])
        repair(tmp_path / "s", tmp_path / "gap")
    assert {name for name in held if name.startswith("#") and int(name[1:]) > 850}
    for name, last in (("whole", 900), ("shorter", 850), ("gap", 99)):
        with softkv.open(tmp_path / name) as db:
            db.add(**more)
        same = {name for name in held if not name.startswith("#") or int(name[1:]) <= last}
        assert calibrating(tmp_path / name) == same
    assert {name.startswith("#") for name in same} == {True, False}
