"""Queries farther from all items than these are from each other, and that answers to them say so."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking.profile import Profile, Temperature
from softkv.database import import_from
from softkv.errors import StoreDamaged

from . import reference
from .commands import ran
from .databases import KINDS, count_as_large, filled, values_of, vectors_of

FAR = np.full(5, 100.0)
NEAR = vectors_of(1, seed=3)[0]


def lowest(db: Any, compatibility: str, temperature: float) -> float:
    """The lowest log mass of an item, each left out, by the reference."""
    keys = [item.vector.tolist() for item in db.select()]
    score = getattr(reference, compatibility)
    found = []
    for number, key in enumerate(keys):
        others = keys[:number] + keys[number + 1 :]
        found.append(
            reference.lookup(key, others, [[0.0]] * len(others), score=score, temperature=temperature).log_mass
        )
    return min(found)


def hills(path: Path, count: int = 40, **options: Any) -> softkv.SoftKV:
    """A store of numbers that is compared by distance."""
    return filled(path, "number", count, compatibility="gaussian", **options)


@pytest.mark.parametrize("tuned", [False, True], ids=["by rule", "tuned"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_far_from_everything_is_told_from_one_that_is_near(tmp_path: Path, kind: str, tuned: bool) -> None:
    """The floor is the lowest log mass of an item that the others are asked for, and the answer says who is below."""
    with filled(tmp_path / "s", kind, compatibility="gaussian") as db:
        if tuned:
            db.tune(hold_out=0)
        near, far = db.lookup(NEAR), db.lookup(FAR)
        assert far.log_mass_floor == pytest.approx(lowest(db, "gaussian", db.info().temperature), abs=1e-4)
        assert near.log_mass_floor == far.log_mass_floor
        assert (near.is_far, far.is_far) == (False, True)
        assert repr(far).splitlines()[-1].count("is below every item of the store (lowest left out") == 1
        assert "below" not in repr(near)
        assert "is below every item of the store" in far._repr_html_()
        assert (far.to_dict()["is_far"], near.to_dict()["is_far"]) == (True, False)
        assert json.loads(far.to_json())["log_mass_floor"] == far.log_mass_floor
        assert db.nearest(FAR).is_far
        assert db.compare(FAR).soft.is_far
        assert not db.lookup(db.item("item 7").vector).is_far


def test_all_answers_of_a_batch_know_the_floor(tmp_path: Path) -> None:
    """Each answer of a batch knows the floor, also one that travelled."""
    with hills(tmp_path / "s") as db:
        answers = db.lookup([NEAR, FAR, NEAR], show=2)
        for some in (answers, pickle.loads(pickle.dumps(answers))):
            assert [one.is_far for one in some] == [False, True, False]
            assert (some.log_mass < some.log_mass_floor).tolist() == [False, True, False]
        assert db.lookup(FAR, k=3).is_far


def test_what_the_floor_was_not_measured_for_says_nothing(tmp_path: Path) -> None:
    """Another temperature or comparison, some of the items only, or heads: no answer compares with the floor."""
    heads = softkv.Heads(w_q=np.ones((1, 2, 5)), w_k=np.ones((1, 2, 5)))
    with hills(tmp_path / "s") as db:
        usual = db.info().temperature
        others: list[dict[str, Any]] = [
            {"temperature": usual * 2}, {"temperature": [usual]}, {"compatibility": "laplace", "temperature": 1.0},
            {"compatibility": lambda queries, keys: queries @ keys.T}, {"where": {"even": True}},
            {"mask": np.arange(40) < 30}, {"heads": heads},
        ]  # fmt: skip
        for options in others:
            answer = db.lookup([FAR], **options)[0]
            assert answer.log_mass_floor is answer.is_far is None, options
            assert "below" not in repr(answer)
            assert not {"is_far", "log_mass_floor"} & set(answer.to_dict())
        assert db.self_attention()[0].is_far is None
        assert db.lookup(FAR, temperature=usual).is_far
        assert softkv.soft_lookup(FAR, np.eye(5), np.ones(5)).is_far is None
        db.set_temperature(usual)
        assert db.lookup(FAR).is_far is None


def test_another_comparison_has_a_floor_of_its_own(tmp_path: Path) -> None:
    """The rule finds a temperature for it, and the lowest log mass at that."""
    with hills(tmp_path / "s") as db:
        found = db.lookup(FAR, compatibility="laplace")
        assert found.log_mass_floor == pytest.approx(lowest(db, "laplace", found.temperature), abs=1e-4)
        assert found.is_far


def test_the_floor_is_kept_with_the_temperature(tmp_path: Path) -> None:
    """The floor is there for readers and snapshots of a closed store, after tuning, and in an export."""
    with hills(tmp_path / "s") as db:
        before = db.lookup(FAR).log_mass_floor
    with softkv.open(tmp_path / "s", "r") as reader:
        assert Profile.of(reader._store.settings).temperature == reader._view().temperature("gaussian")
        assert reader.lookup(FAR).log_mass_floor == before
        with reader.snapshot() as then:
            assert then.lookup(FAR).log_mass_floor == before
        for ending in ("jsonl", "npz", "parquet"):
            reader.export(tmp_path / f"s.{ending}")
            import_from(tmp_path / f"s.{ending}", tmp_path / ending)
            with softkv.open(tmp_path / ending, "r") as other:
                assert other.lookup(FAR).log_mass_floor == before
    with softkv.open(tmp_path / "s", "r", temperature=3.0) as reader:
        assert reader.lookup(FAR).is_far is None


def test_stores_without_a_floor_say_nothing(tmp_path: Path) -> None:
    """Those that were written when there was none say nothing, for example."""
    with hills(tmp_path / "s") as db:
        profile = Profile.of(db._store.settings)
        old = replace(profile, temperature=Temperature(1.0, "rule", 40)).settings()
        assert old["temperature"] == {"value": 1.0, "origin": "rule", "items": 40}
        db._store.configure(old)
    with softkv.open(tmp_path / "s") as db:
        assert db.lookup(FAR).log_mass_floor is None
        assert repr(db.lookup(FAR)).splitlines()[-1].startswith("log mass -")


def test_deletions_lower_the_floor_and_additions_leave_it(tmp_path: Path) -> None:
    """A tenth of the items have a tenth of the mass; more items only add to it; other items have another floor."""
    with hills(tmp_path / "s") as db:
        db.tune(hold_out=0)
        floor = db.lookup(FAR).log_mass_floor
        db.add([f"more {number}" for number in range(40)], values_of("number", 40), vectors=vectors_of(40, seed=5))
        assert db.lookup(FAR).log_mass_floor == floor
        db.delete([f"more {number}" for number in range(40)])
        db.delete([f"item {number}" for number in range(30)])
        assert db.lookup(FAR).log_mass_floor == pytest.approx(floor - np.log(4))
        db.clear()
        db.add([f"new {number}" for number in range(40)], values_of("number", 40), vectors=vectors_of(40) + 99)
        assert db.info().temperature_from == "tuned, from 40 items"
        assert db.lookup(NEAR).log_mass_floor is None


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["gaussian", "cosine", "dot"])
def test_small_stores_and_equal_items(tmp_path: Path, count: int, name: str) -> None:
    """One item has no other; two have each other; items may all be alike."""
    with softkv.open(tmp_path / "s", compatibility=name) as db:
        db.add(vectors=[[1.0, 0.0]] * count, values=[1.0] * count)
        assert db.lookup([1.0, 0.0]).is_far is (None if count == 1 else False)
        assert db.lookup([-50.0, 0.0]).is_far is (None if count == 1 else True)


def test_a_learned_comparison_has_a_floor_of_its_own(tmp_path: Path) -> None:
    """`fit` measures it as well; the floor without it is that of the temperature."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((300, 4)) * [1, 1, 4, 4]
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=points, values=points[:, 0] * points[:, 1])
        db.delete("#3")
        assert db.fit(rank=2, planes=False).kept
        learned, plain = db.lookup(np.full(4, 50.0)), db.lookup(np.full(4, 50.0), projection=False)
        assert (learned.is_far, plain.is_far) == (True, True)
        assert learned.log_mass_floor != plain.log_mass_floor
        rest = [item.vector for item in db.select()]
        left_out = []
        for number in range(0, 299, 10):
            mask = np.arange(299) != number
            left_out.append(db.lookup(rest[number], mask=mask).log_mass)
            assert not db.lookup(rest[number]).is_far
        assert learned.log_mass_floor <= min(left_out) + 1e-4
        assert learned.log_mass_floor > db.lookup(np.full(4, 50.0)).log_mass
        assert db.lookup(np.full(4, 50.0), temperature=2.0).is_far is None
        db.compact()
        assert db.lookup(np.full(4, 50.0)).log_mass_floor == learned.log_mass_floor
    with softkv.open(tmp_path / "s", "r") as reader:
        assert reader.lookup(np.full(4, 50.0)).log_mass_floor == learned.log_mass_floor


def test_estimates_are_far_only_beyond_their_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index, bound and scan have one floor; a log mass without an error is not judged."""
    count_as_large(monkeypatch)
    keys = np.random.default_rng(1).standard_normal((3000, 12)).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=keys, values=keys[:, 0])
        db.build_index()
        queries = np.concatenate([keys[:50], keys[50:100] * 0.01])
        warm = db.info().temperature
        found = db.lookup(queries, tolerance=0.3)
        assert "calibrated" in found.error_kind
        assert found.log_mass_floor == db.lookup(queries, tolerance=0).log_mass_floor is not None
        for one, error in zip(found, found.log_mass_error, strict=True):
            assert one.is_far is bool(one.log_mass + error < one.log_mass_floor)
        few = db.lookup(keys[0], k=5, tolerance=0.3)
        assert few.error_kind == "calibrated"
        assert few.is_far is None
        assert db.lookup(queries, temperature=warm * 1.01, tolerance=0.3).log_mass_floor is None
        near = replace(found[0], error_kind="calibrated", log_mass=-5.0, log_mass_error=0.5, log_mass_floor=-4.6)
        assert (near.is_far, replace(near, log_mass_floor=-4.4).is_far) == (False, True)


@pytest.mark.parametrize("floor", ["low", float("nan"), float("inf"), True, [1.0]])
def test_a_floor_that_no_store_wrote_is_damage(floor: object) -> None:
    """It is checked like all the other settings."""
    with pytest.raises(StoreDamaged, match="softkv check"):
        Profile.of({"temperature": {"value": 1.0, "origin": "rule", "items": 1, "floor": floor}})


def test_the_command_says_so(tmp_path: Path) -> None:
    """The last line of the table says so, and JSON, where pipes can tell."""
    hills(tmp_path / "s").close()
    ask = ("query", "-d", tmp_path / "s", "--vector", "100,100,100,100,100")
    assert "is below every item of the store (lowest left out " in ran(*ask, terminal=True).out
    assert json.loads(ran(*ask).out)["is_far"] is True
    assert "is_far" not in json.loads(ran(*ask, "-T", "3").out)
