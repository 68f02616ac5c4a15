"""One lookup over one commit of a store, compared with the reference over its items."""

from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.errors import AllMasked, EmptyStore, InputError, KindError, ShapeError, ZeroVector

from .databases import KINDS, columns_of, distance, expected, filled, label_order, vectors_of
from .reference import Expected

QUERIES = vectors_of(3, seed=9)


def agree(answer: softkv.Answer, found: Expected, names: list[str], scored: int | None = None) -> None:
    """An answer says what the reference says, and is off by no more than it admits."""
    assert answer.error is not None
    assert distance(answer, found) <= answer.error
    assert answer.error < 1e-3
    assert answer.log_mass == pytest.approx(found.log_mass, abs=1e-4)
    assert answer.effective == pytest.approx(found.effective, rel=1e-4)
    assert answer.mass == pytest.approx(found.mass, rel=1e-5)
    assert answer.scored == (len(names) if scored is None else scored)
    assert answer.error_kind == "exact"
    shares = {name: np.exp(logit - found.log_mass) for name, logit in zip(names, found.logits, strict=True)}
    assert sum(shares.values()) == pytest.approx(1.0)
    heaviest = sorted(names, key=lambda name: -shares[name])[: len(answer.contributors)]
    assert [one.key for one in answer.contributors] == heaviest
    for one in answer.contributors:
        assert one.weight == pytest.approx(shares[str(one.key)], rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compatibility", [None, "dot", "scaled_dot", "gaussian", "laplace", "uniform"])
def test_a_lookup_is_the_softmax_over_all_items(tmp_path: Path, kind: str, compatibility: str | None) -> None:
    """Every kind of value and every way to compare gives the reference's answer."""
    with filled(tmp_path / "s", kind) as db:
        for query in QUERIES:
            options = {"compatibility": compatibility, "temperature": None if compatibility is None else 0.7}
            agree(db.lookup(query, **options), expected(db, query, **options), list(db))
        assert db.check().ok


@pytest.mark.parametrize("kind", KINDS)
def test_the_k_heaviest_are_blended_alone(tmp_path: Path, kind: str) -> None:
    """With k the value is that of the k heaviest, and mass says what they hold of all."""
    with filled(tmp_path / "s", kind) as db:
        for k in (1, 3, 39, 40, 1000):
            found = expected(db, QUERIES[0], k=k, temperature=0.5)
            agree(db.lookup(QUERIES[0], k=k, temperature=0.5), found, list(db), scored=min(k, 40))
        assert db.check().ok


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [3, 30])
def test_a_filtered_lookup_is_a_lookup_over_what_matches(tmp_path: Path, kind: str, last: int) -> None:
    """Few matching items, which are gathered, or many, which are a mask: the rest might as well not be there."""
    with filled(tmp_path / "s", kind) as db:
        names = [f"item {number}" for number in range(last)]
        answer = db.lookup(QUERIES[1], where={"n": {"$lt": last}}, temperature=0.5, show=40)
        agree(answer, expected(db, QUERIES[1], names=names, temperature=0.5), names)
        top = db.lookup(QUERIES[1], where={"n": {"$lt": last}}, k=10, temperature=0.5)
        assert top.scored == min(10, last)
        assert db.check().ok


def test_a_filter_that_nothing_matches_is_an_error(tmp_path: Path) -> None:
    """There is no average of nothing."""
    with filled(tmp_path / "s", "number") as db, pytest.raises(AllMasked, match="no item matches"):
        db.lookup(QUERIES[0], where={"n": -1})


@pytest.mark.parametrize("kind", KINDS)
def test_deleted_and_replaced_items_do_not_count(tmp_path: Path, kind: str) -> None:
    """What was deleted is gone from the answer at once, and after compaction as well; what was replaced counts anew."""
    with filled(tmp_path / "s", kind) as db:
        db.delete([f"item {number}" for number in range(0, 40, 3)])
        value = db["item 1"]
        db.add(["item 2"], [value], vectors=[QUERIES[0]], on_conflict="replace")
        for _ in range(2):
            agree(db.lookup(QUERIES[0], temperature=0.5), expected(db, QUERIES[0], temperature=0.5), list(db))
            db.compact()
        assert db.check().ok


def test_a_mask_is_over_the_items_in_their_order(tmp_path: Path) -> None:
    """A mask for all queries, or one for each, names items by their place in the store, whatever rows they lie in."""
    with filled(tmp_path / "s", "number") as db:
        db.delete(["item 0", "item 7"])
        db.add(["item 5"], [100.0], vectors=[QUERIES[2]], on_conflict="replace")
        names = list(db)
        mask = np.random.default_rng(0).random((3, len(names))) < 0.4
        answers = db.lookup(QUERIES, mask=mask, temperature=0.5)
        for query, row, answer in zip(QUERIES, mask, answers, strict=True):
            chosen = [name for name, seen in zip(names, row, strict=True) if seen]
            agree(answer, expected(db, query, names=chosen, temperature=0.5), chosen)
            alone = db.lookup(query, mask=row, temperature=0.5)
            assert alone.value == pytest.approx(answer.value, abs=1e-5)
        with pytest.raises(ShapeError, match="order of the store"):
            db.lookup(QUERIES[0], mask=[True] * 40)
        with pytest.raises(KindError, match="boolean"):
            db.lookup(QUERIES[0], mask=[1.0] * len(names))
        with pytest.raises(KindError, match="without a mask, got some that are masked"):
            db.lookup(QUERIES[0], mask=np.ma.array([True] * len(names), mask=[True] + [False] * (len(names) - 1)))
        with pytest.raises(ShapeError, match="rows of `mask` are ragged"):
            db.lookup(QUERIES[:2], mask=[[True], [True, False]])
        with pytest.raises(AllMasked):
            db.lookup(QUERIES, mask=np.zeros((3, len(names)), np.bool_))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_in_self_attention_every_item_asks_all(tmp_path: Path, kind: str, causal: bool) -> None:
    """Item i is answered like a lookup with its key vector; causally, over the items up to itself, in their order."""
    with filled(tmp_path / "s", kind, count=12) as db:
        db.delete("item 4")
        db.add(["item 2"], [db["item 1"]], vectors=[QUERIES[0]], on_conflict="replace")
        answers = db.self_attention(causal=causal, temperature=0.5)
        names = list(db)
        assert len(answers) == 11
        for position, (name, answer) in enumerate(zip(names, answers, strict=True)):
            seen = names[: position + 1] if causal else names
            agree(answer, expected(db, db.item(name).vector, names=seen, temperature=0.5), seen)


def test_cosine_refuses_only_zero_vectors_that_live(tmp_path: Path) -> None:
    """A store by dot product may hold them; asked by cosine it names the item, until it is deleted."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(["zero", "one"], [1.0, 2.0], vectors=[[0.0, 0.0], [1.0, 1.0]])
        with pytest.raises(ZeroVector, match="'zero'"):
            db.lookup([1.0, 0.0], compatibility="cosine", temperature=1.0)
        db.delete("zero")
        assert db.lookup([1.0, 0.0], compatibility="cosine", temperature=1.0).value == 2.0


def test_labels_blend_to_a_distribution(tmp_path: Path) -> None:
    """The value is a share for each label, in the order of `labels`; `label` is the largest."""
    with filled(tmp_path / "s", "label") as db:
        answer = db.lookup(QUERIES[0], temperature=0.5)
        assert answer.labels == tuple(label_order(db))
        assert sum(answer.value) == pytest.approx(1.0)
        assert answer.label == answer.labels[int(np.argmax(answer.value))]
        batch = db.lookup(QUERIES, temperature=0.5)
        assert batch.label == tuple(one.label for one in batch)


def test_texts_are_ranked_and_never_made_up(tmp_path: Path) -> None:
    """Equal texts join their weights; every text was stored; the value is the mean of their embeddings."""
    with filled(tmp_path / "s", "text") as db:
        answer = db.lookup(QUERIES[0], temperature=0.5, show=40)
        assert answer.texts is not None
        stored = [db[name] for name in db]
        assert {one.text for one in answer.texts} == set(stored)
        assert sum(one.weight for one in answer.texts) == pytest.approx(1.0)
        assert [one.weight for one in answer.texts] == sorted((one.weight for one in answer.texts), reverse=True)
        joined = {one.text: one.weight for one in answer.texts}
        alone = [one.weight for one in answer.contributors if one.value == stored[0]]
        assert joined[stored[0]] == pytest.approx(sum(alone))
        assert answer.value.shape == (len(columns_of(db, ["item 0"])[0]),)


def test_an_empty_store_has_no_average(tmp_path: Path) -> None:
    """It has none before the first item and after the last; a dict would be as empty."""
    with softkv.open(tmp_path / "s") as db:
        for ask in (lambda: db.lookup([1.0]), lambda: db.nearest("a"), lambda: db.compare([1.0]), db.self_attention):
            with pytest.raises(EmptyStore):
                ask()
        db.add(vectors=[[1.0, 2.0]], values=[3.0])
        db.clear()
        with pytest.raises(EmptyStore):
            db.lookup([1.0, 2.0])
        assert len(db) == 0


REFUSED: list[dict[str, object]] = [{"tolerance": -1}, {"tolerance": None}, {"guarantee": "hope"}]
REFUSED += [{"confidence": one} for one in (1.0, 0.0, -0.5, 1.5, float("nan"), None, True)]


@pytest.mark.parametrize("option", REFUSED)
def test_promises_that_nobody_could_keep_are_refused(tmp_path: Path, option: dict[str, object]) -> None:
    """A tolerance below 0, a certainty of 1 from a sample, an unknown guarantee."""
    with filled(tmp_path / "s", "number", count=3) as db:
        for ask in (db.lookup,) if "guarantee" in option else (db.lookup, db.compare):
            with pytest.raises(InputError, match=next(iter(option))):
                ask(QUERIES[0], **option)


def test_any_tolerance_is_met_exactly_by_a_scan(tmp_path: Path) -> None:
    """Every answer is exact where there is nothing to estimate."""
    with filled(tmp_path / "s", "number") as db:
        exact = db.lookup(QUERIES[0], tolerance=0)
        for options in ({"tolerance": 0.5}, {"guarantee": "bound"}, {"confidence": 0.5}):
            assert db.lookup(QUERIES[0], **options).value == exact.value


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("compatibility", ["dot", "cosine", "gaussian", "laplace"])
def test_the_rounding_that_is_admitted_covers_the_rounding_that_happens(
    tmp_path: Path, compatibility: str, scale: float
) -> None:
    """However long the keys and however low the temperature, the reference is within `error`."""
    with softkv.open(tmp_path / "s", compatibility=compatibility) as db:
        rng = np.random.default_rng(7)
        keys = rng.standard_normal((300, 48)) * scale
        db.add(vectors=keys, values=rng.standard_normal((300, 2)))
        for temperature in (db.info().temperature, db.info().temperature / 10):
            for query in keys[:3] + rng.standard_normal((3, 48)) * scale * 0.3:
                query = query.astype(np.float32)
                answer = db.lookup(query, temperature=temperature)
                assert distance(answer, expected(db, query, temperature=temperature)) <= answer.error
