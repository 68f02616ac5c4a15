"""All weights of a batch as a matrix, in the order of the rows, or of the items of a store."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softkv
from softkv.errors import ShapeError

from . import reference
from .databases import count_as_large, filled, vectors_of

RNG = np.random.default_rng(4)
QUERIES, KEYS, VALUES = RNG.standard_normal((3, 4)), RNG.standard_normal((12, 4)), RNG.standard_normal((12, 2))


def wanted(queries: Any, keys: Any, **options: Any) -> np.ndarray:
    """The matrix of softmax(QKᵀ/√d), by the reference."""
    nothing = [[0.0]] * len(keys)
    found = [reference.lookup(one, keys, nothing, **options) for one in np.asarray(queries).tolist()]
    return np.array([[np.exp(logit - one.log_mass) for logit in one.logits] for one in found])


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_weights_come_in_the_order_of_the_rows(library: Any) -> None:
    """`weights` has the heaviest first; these are not sorted."""
    answers = softkv.soft_lookup(library(QUERIES), library(KEYS), library(VALUES), show=12)
    found = answers.attention()
    assert type(found) is type(answers.weights)
    assert np.asarray(found) == pytest.approx(wanted(QUERIES, KEYS.tolist()))
    assert not np.allclose(answers.weights, found)
    assert np.asarray(found @ library(VALUES)) == pytest.approx(np.asarray(answers.value))


def test_rows_that_may_not_be_seen_weigh_nothing() -> None:
    """Whatever keeps them away, they weigh nothing, and need not be named."""
    mask = RNG.random((3, 12)) < 0.4
    mask[:, 5] = True
    bias = np.where(mask, 0.0, -np.inf)
    for options in ({"mask": mask}, {"bias": bias}):
        found = softkv.soft_lookup(QUERIES, KEYS, VALUES, show=int(mask.sum(1).max()), **options).attention()
        for number in range(3):
            assert found[number] == pytest.approx(wanted(QUERIES, KEYS, mask=mask[number])[number])
        assert (found[~mask] == 0).all()
    causal = softkv.soft_lookup(KEYS, KEYS, VALUES, causal=True, show=12).attention()
    assert causal[np.triu_indices(12, 1)].tolist() == [0.0] * 66
    assert causal[0, 0] == pytest.approx(1)
    one = softkv.soft_lookup(QUERIES, KEYS, VALUES, mask=np.arange(12) == 7, show=1).attention()
    assert one.tolist() == [[float(row == 7) for row in range(12)]] * 3


def test_what_is_not_named_is_missed() -> None:
    """A matrix with holes would be wrong, so `show=` is asked for."""
    with pytest.raises(ShapeError, match=r"named 10 of the 12 .* show=12"):
        softkv.soft_lookup(QUERIES, KEYS, VALUES).attention()
    with pytest.raises(ShapeError, match=r"show=12"):
        softkv.soft_lookup(QUERIES, KEYS, VALUES, k=3, show=3).attention()
    mask = np.arange(12) < np.array([1, 2, 3])[:, None]
    with pytest.raises(ShapeError, match=r"query 2 .*show=3"):
        softkv.soft_lookup(QUERIES, KEYS, VALUES, mask=mask, show=2).attention()
    assert softkv.soft_lookup(QUERIES[:0], KEYS, VALUES, show=12).attention().shape == (0, 12)
    assert softkv.soft_lookup(QUERIES[:0], KEYS, VALUES, show=0).attention().shape == (0, 12)


def test_weights_of_the_best_are_shares_of_all() -> None:
    """They are so with k as without, like `weights`."""
    found = softkv.soft_lookup(QUERIES, KEYS, VALUES, k=3, show=12).attention()
    assert found == pytest.approx(wanted(QUERIES, KEYS.tolist()))


def test_leading_axes_stay() -> None:
    """Each gets a matrix."""
    queries, keys = RNG.standard_normal((2, 3, 5, 4)), RNG.standard_normal((2, 1, 7, 4))
    found = softkv.soft_lookup(queries, keys, np.zeros((2, 1, 7)), show=7).attention()
    assert found.shape == (2, 3, 5, 7)
    exact = torch.softmax(torch.tensor(queries) @ torch.tensor(keys).mT / 2, -1)
    assert found == pytest.approx(exact.numpy())


def test_gradients_are_those_of_softmax() -> None:
    """They reach queries, keys and the temperature through every weight."""
    mask = torch.ones(3, 12, dtype=torch.bool).tril(4)
    leaves = [torch.tensor(x, requires_grad=True) for x in (QUERIES, KEYS, np.array(0.7))]
    others = [x.detach().clone().requires_grad_() for x in leaves]
    weight = torch.tensor(RNG.standard_normal((3, 12)))
    queries, keys, warm = leaves
    found = softkv.soft_lookup(queries, keys, torch.tensor(VALUES), temperature=warm, mask=mask, show=12).attention()
    scores = others[0] @ others[1].T / 2 / others[2]
    exact = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    assert torch.allclose(found, exact)
    (found * weight).sum().backward()
    (exact * weight).sum().backward()
    for one, other in zip(leaves, others, strict=True):
        assert torch.allclose(one.grad, other.grad)


@pytest.mark.parametrize("axes", [(), (2,)], ids=["plain", "batched"])
def test_heads_are_those_of_torch(axes: tuple[int, ...]) -> None:
    """Their mean is, and each one is."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().requires_grad_(False)
    x, y = torch.randn(*axes, 5, 8).double(), torch.randn(*axes, 7, 8).double()
    answers = softkv.soft_lookup(x, y, y, heads=softkv.Heads.from_torch(module), show=7)
    assert torch.allclose(answers.attention(), module(x, y, y)[1])
    each = module(x, y, y, average_attn_weights=False)[1]
    assert torch.allclose(answers.attention(by_head=True), each.movedim(-3, -2))
    with pytest.raises(ShapeError, match="heads"):
        softkv.soft_lookup(x, y, y, show=7).attention(by_head=True)


def test_a_store_has_its_items_in_their_order(tmp_path: Path) -> None:
    """Iteration and mask= have that order, wherever items lie: after deletions, replacements and compaction."""
    with filled(tmp_path / "s", "vector", compatibility="scaled_dot") as db:
        db.delete([f"item {number}" for number in (0, 3, 17)])
        db.add(["item 5", "item 9"], [[1.0] * 3] * 2, vectors=vectors_of(2, seed=8), on_conflict="replace")
        for _ in range(2):
            keys = [item.vector.tolist() for item in db.select()]
            names, usual = list(db), db.info().temperature
            assert names[3] == "item 5"
            found = db.self_attention(show=len(db)).attention()
            assert found == pytest.approx(wanted(keys, keys, temperature=usual), abs=1e-6)
            found = db.self_attention(causal=True, show=len(db)).attention()
            assert found == pytest.approx(np.tril(found))
            assert found.sum(1) == pytest.approx(np.ones(37))
            answers = db.lookup(vectors_of(4, seed=9), show=len(db))
            found = answers.attention()
            assert found == pytest.approx(wanted(vectors_of(4, seed=9), keys, temperature=usual), abs=1e-6)
            assert pickle.loads(pickle.dumps(answers)).attention().tolist() == found.tolist()
            for number in range(4):
                assert names[found[number].argmax()] == answers[number].contributors[0].key
            mask = np.arange(37) % 9 == 4
            few = db.lookup(vectors_of(4, seed=9), mask=mask, show=4).attention()
            assert few[:, mask].sum(1) == pytest.approx(np.ones(4))
            assert (few[:, ~mask] == 0).all()
            db.compact()
        with pytest.raises(ShapeError, match="show=37"):
            db.self_attention().attention()
        assert len(pickle.loads(pickle.dumps(db.self_attention()))) == 37
        heads = softkv.Heads.random(2, query_width=5, key_width=5, value_width=3, head_width=2, seed=1)
        answers = db.lookup(vectors_of(4, seed=9), heads=heads, show=37)
        assert answers.attention(by_head=True).mean(1) == pytest.approx(answers.attention())
        again = pickle.loads(pickle.dumps(answers))
        assert again.attention(by_head=True).tolist() == answers.attention(by_head=True).tolist()


@pytest.mark.parametrize("index", ["lists", "hnsw"])
def test_estimates_are_not_all_weights(tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the heaviest of the rows read, and say so; a scan has the rest."""
    count_as_large(monkeypatch)
    keys = np.random.default_rng(1).standard_normal((3000, 12)).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=keys, values=keys[:, 0])
        db.build_index(index)
        k = None if index == "lists" else 5
        answers = db.lookup(keys[:20], k=k, tolerance=0.3, show=3000)
        kinds = answers.error_kind
        assert {"calibrated", "unknown"} & {kinds if isinstance(kinds, str) else kinds[0]}
        with pytest.raises(ShapeError, match=r"show=3000 and tolerance=0"):
            answers.attention()
        read, scanned = db.lookup(keys[0], k=k, tolerance=0.3), db.lookup(keys[0], k=k, tolerance=0, show=3)
        assert read.to_dict()["contributors_are"] == "the heaviest of the rows read"
        assert "shown: the heaviest of the rows read" in repr(read)
        assert "contributors_are" not in scanned.to_dict()
        assert "the heaviest of the rows read" not in repr(scanned)
        assert db.lookup(keys[:2], k=k, tolerance=0, show=3000).attention().sum(1) == pytest.approx(np.ones(2))
