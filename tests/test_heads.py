"""Several heads at once: equal to projecting everything, and to torch's own module; and what they refuse."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import softkv
from softkv import errors, soft_lookup
from softkv.asking.heads import of_least_sure, stretches
from softkv.errors import NotExpressible, NotFinite, ShapeError
from softkv.maths.blending import Labels, Vectors
from softkv.maths.compatibility import bilinear
from softkv.maths.heads import Heads
from softkv.maths.lookup import Found, lookup

from . import reference
from .backends import Backend, every_backend, exact
from .scales import scaled

GENERATOR = np.random.default_rng(12)
SHAPES = {
    "w_q": (2, 3, 4),
    "w_k": (2, 3, 5),
    "w_v": (2, 2, 6),
    "w_o": (7, 4),
    "b_q": (2, 3),
    "b_k": (2, 3),
    "b_v": (2, 2),
    "b_o": (7,),
}
ARRAYS = {name: GENERATOR.standard_normal(shape) for name, shape in SHAPES.items()}
QUERIES, KEYS, VALUES = (GENERATOR.standard_normal(shape) for shape in ((4, 4), (30, 5), (30, 6)))


def heads_of(backend: Backend) -> Heads:
    """The shared heads in a backend's arrays."""
    return Heads(**{name: backend.array(x) for name, x in ARRAYS.items()})


def found_by(backend: Backend, **options: Any) -> Found:
    """The lookup of the shared queries, keys and values by the shared heads."""
    inputs = backend.array(QUERIES), backend.array(KEYS), Vectors(backend.array(VALUES))
    return lookup(*inputs, heads=heads_of(backend), **options)


def expected_by(backend: Backend, query: int, **options: Any) -> tuple[list[float], list[reference.Expected]]:
    """What the reference says to one query."""
    held = {name: backend.rounded(x) for name, x in ARRAYS.items()}
    names = ("w_q", "b_q", "w_k", "b_k", "w_v", "b_v")
    heads = [reference.Head(*(held[name][head] for name in names)) for head in range(2)]
    return reference.multi_head(
        backend.rounded(QUERIES)[query],
        backend.rounded(KEYS),
        backend.rounded(VALUES),
        heads=heads,
        output_matrix=held["w_o"],
        output_offset=held["b_o"],
        **options,
    )


@pytest.fixture(params=["whole", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in one block, or queries and rows in blocks of a few."""
    if request.param == "small blocks":
        scaled(monkeypatch, rows=4, queries=6)


@every_backend
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_heads_are_the_projection_of_everything(backend: Backend, temperature: float, blocks: None) -> None:
    """Queries, keys and values of different widths; log mass, effective number and shares per head."""
    found = found_by(backend, temperature=temperature)
    assert found.head_weights is not None
    for query in range(4):
        value, answers = expected_by(backend, query, temperature=temperature)
        near = 8 * backend.tolerance([logit for answer in answers for logit in answer.logits])
        assert exact(found.value)[query] == pytest.approx(value, abs=near)
        assert exact(found.log_mass)[query] == pytest.approx([answer.log_mass for answer in answers], abs=near)
        assert exact(found.effective)[query] == pytest.approx([answer.effective for answer in answers], rel=20 * near)
        assert exact(found.mass)[query].tolist() == [1.0, 1.0]
        mean = np.mean([answer.weights for answer in answers], axis=0)
        order = np.argsort(-mean, kind="stable")[:10]
        assert exact(found.rows)[query].tolist() == order.tolist()
        assert exact(found.weights)[query] == pytest.approx(mean[order], abs=near)
        shares = [[answer.weights[row] for row in order] for answer in answers]
        assert exact(found.head_weights)[query] == pytest.approx(np.array(shares), abs=near)
        scores = np.mean([[answer.logits[row] * temperature for row in order] for answer in answers], axis=0)
        assert exact(found.scores)[query] == pytest.approx(scores, abs=near)


@every_backend
def test_heads_may_compare_by_a_matrix(backend: Backend) -> None:
    """Under bilinear the projected query meets the projected key through W."""
    matrix = GENERATOR.standard_normal((3, 3))
    found = found_by(backend, compatibility=bilinear(matrix))
    for query in range(4):
        value, answers = expected_by(backend, query, score=reference.bilinear(matrix.tolist()))
        near = 16 * backend.tolerance([logit for answer in answers for logit in answer.logits])
        assert exact(found.value)[query] == pytest.approx(value, abs=near)
        assert exact(found.log_mass)[query] == pytest.approx([answer.log_mass for answer in answers], abs=near)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (5, 7)])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_lookups_equal_the_module_of_torch(
    library: str, bias: bool, kdim: int | None, vdim: int | None, count: int, causal: bool
) -> None:
    """Outputs, averaged and per-head weights of nn.MultiheadAttention, in a batch, and log mass per head."""
    torch.manual_seed(3)
    attention = torch.nn.MultiheadAttention(8, count, bias=bias, kdim=kdim, vdim=vdim, batch_first=True).eval()
    if bias:
        torch.nn.init.normal_(attention.in_proj_bias)
        torch.nn.init.normal_(attention.out_proj.bias)
    q, k, v = torch.randn(3, 6, 8), torch.randn(3, 9, kdim or 8), torch.randn(3, 9, vdim or 8)
    seen = torch.arange(9)[None, :] <= torch.arange(6)[:, None]
    options: dict[str, Any] = {"attn_mask": ~seen if causal else None}
    with torch.no_grad():
        expected, weights = attention(q, k, v, average_attn_weights=False, **options)
        given = [x.numpy() if library == "numpy" else x for x in (q, k, v)]
        heads = Heads.from_torch(attention)
        found = lookup(given[0], given[1], Vectors(given[2]), heads=heads, causal=causal, show=9)
    assert found.head_weights is not None
    assert exact(found.value) == pytest.approx(exact(expected), abs=1e-5)
    rows = np.maximum(exact(found.rows).astype(int), 0)
    for item in range(3):
        for query in range(6):
            held = exact(weights)[item, :, query][:, rows[item, query]] * (exact(found.rows)[item, query] >= 0)
            assert exact(found.head_weights)[item, query] == pytest.approx(held, abs=1e-5)
            assert exact(found.weights)[item, query] == pytest.approx(held.mean(axis=0), abs=1e-5)
    assert exact(found.log_mass) == pytest.approx(log_mass_of(attention, q, k, seen if causal else None), abs=1e-5)


def log_mass_of(attention: Any, q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor | None) -> Any:
    """The log mass per head, by projecting queries and keys with the module's own arrays: (b, queries, h)."""
    if attention.in_proj_weight is not None:
        w_q, w_k, _ = attention.in_proj_weight.chunk(3)
    else:
        w_q, w_k = attention.q_proj_weight, attention.k_proj_weight
    b_q, b_k, _ = [0, 0, 0] if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
    split = (-1, attention.num_heads, 8 // attention.num_heads)
    asked, stored = ((x @ w.T + b).unflatten(-1, split[1:]) for x, w, b in ((q, w_q, b_q), (k, w_k, b_k)))
    logits = torch.einsum("bqha,bkha->bqhk", asked, stored) / math.sqrt(split[2])
    if seen is not None:
        logits = logits.masked_fill(~seen[:, None, :], -math.inf)
    return exact(logits.logsumexp(-1))


def test_gradients_reach_the_module_of_torch() -> None:
    """Heads share the module's parameters, so a loss on an answer trains the module."""
    torch.manual_seed(4)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(6, 8)
    attention(x, x, x)[0].square().sum().backward()
    expected = attention.in_proj_weight.grad.clone()
    attention.zero_grad()
    lookup(x, x, Vectors(x), heads=Heads.from_torch(attention)).value.square().sum().backward()
    assert exact(attention.in_proj_weight.grad) == pytest.approx(exact(expected), abs=1e-5)


@every_backend
def test_one_identity_head_is_the_plain_lookup(backend: Backend) -> None:
    """It projects nothing: value, log mass and contributors are those without heads."""
    queries, keys, values = (backend.array(x) for x in (QUERIES, KEYS[:, :4], VALUES))
    plain = lookup(queries, keys, Vectors(values))
    found = lookup(queries, keys, Vectors(values), heads=Heads.identity(1, width=4, value_width=6))
    near = 16 * backend.epsilon
    assert exact(found.value) == pytest.approx(exact(plain.value), abs=near)
    assert exact(found.log_mass)[:, 0] == pytest.approx(exact(plain.log_mass), abs=near)
    assert exact(found.weights) == pytest.approx(exact(plain.weights), abs=near)
    assert exact(found.rows).tolist() == exact(plain.rows).tolist()


def test_identity_heads_see_a_slice_each() -> None:
    """Two identity heads are two lookups in halves of the keys, side by side."""
    keys, queries, values = KEYS[:, :4], QUERIES, VALUES
    found = lookup(queries, keys, Vectors(values), heads=Heads.identity(2, width=4, value_width=6))
    halves = [
        lookup(queries[:, 2 * i : 2 * i + 2], keys[:, 2 * i : 2 * i + 2], Vectors(values[:, 3 * i : 3 * i + 3]))
        for i in range(2)
    ]
    assert found.value == pytest.approx(np.concatenate([half.value for half in halves], axis=1), abs=1e-14)


def test_random_heads_are_those_of_their_seed() -> None:
    """One seed gives the same heads; widths are those asked for; another seed gives others."""
    widths = {"query_width": 4, "key_width": 5, "value_width": 6, "head_width": 3}
    first, second, third = (Heads.random(2, **widths, seed=seed) for seed in (1, 1, 2))
    assert {name: x.shape for name, x in first.arrays().items()} == {
        "w_q": (2, 3, 4),
        "w_k": (2, 3, 5),
        "w_v": (2, 3, 6),
        "w_o": (6, 6),
    }
    assert np.array_equal(first.w_q, second.w_q)
    assert not np.array_equal(first.w_q, third.w_q)
    assert Heads.random(2, **widths, output_width=9, seed=0).output_width(6) == 9
    assert lookup(QUERIES, KEYS, Vectors(VALUES), heads=first).value.shape == (4, 6)


def test_without_a_value_projection_raw_means_are_joined() -> None:
    """What is None is left out: the answer is h raw means side by side."""
    heads = Heads(ARRAYS["w_q"], ARRAYS["w_k"])
    found = lookup(QUERIES, KEYS, Vectors(VALUES), heads=heads)
    assert found.value.shape == (4, heads.output_width(6)) == (4, 12)
    one = lookup(QUERIES, KEYS, Vectors(VALUES), heads=Heads(ARRAYS["w_q"][1:], ARRAYS["w_k"][1:]))
    assert found.value[:, 6:] == pytest.approx(one.value, abs=1e-14)


@pytest.mark.parametrize("k", [3, None])
@pytest.mark.parametrize("leading", [(), (2,)])
def test_heads_take_masks_biases_temperatures_and_top_k(k: int | None, leading: tuple[int, ...]) -> None:
    """All options together, per head: equal to a lookup in each head's projected keys."""
    queries, keys, values = (np.broadcast_to(x, (*leading, *x.shape)) for x in (QUERIES, KEYS, VALUES))
    mask, temperature = GENERATOR.random((*leading, 4, 30)) < 0.8, GENERATOR.random((*leading, 4)) + 0.5
    bias = GENERATOR.standard_normal((*leading, 4, 30))
    options: dict[str, Any] = {"mask": mask, "bias": bias, "temperature": temperature, "k": k}
    heads = Heads(ARRAYS["w_q"], ARRAYS["w_k"], b_q=ARRAYS["b_q"], b_k=ARRAYS["b_k"])
    found = lookup(queries, keys, Vectors(values), heads=heads, **options)
    for head in range(2):
        asked = queries @ ARRAYS["w_q"][head].T + ARRAYS["b_q"][head]
        stored = keys @ ARRAYS["w_k"][head].T + ARRAYS["b_k"][head]
        alone = lookup(asked, stored, Vectors(values), **options)
        assert found.value[..., 6 * head : 6 * head + 6] == pytest.approx(alone.value, abs=1e-12)
        for name in ("log_mass", "effective", "mass"):
            assert getattr(found, name)[..., head] == pytest.approx(getattr(alone, name), abs=1e-11)
        assert np.array_equal(found.scored, alone.scored)


def test_contributors_of_heads_see_masks_and_may_be_left_out() -> None:
    """Masked rows are never named, missing ones are -1 with weight 0, and show=0 spares the second pass."""
    mask = np.arange(30) < 4
    found = lookup(QUERIES, KEYS, Vectors(VALUES), heads=Heads(ARRAYS["w_q"], ARRAYS["w_k"]), mask=mask)
    assert found.head_weights is not None
    assert sorted(found.rows[0][:4]) == [0, 1, 2, 3]
    assert (found.rows[:, 4:] == -1).all()
    assert (found.weights[:, 4:] == 0).all()
    assert found.weights.sum(axis=-1) == pytest.approx(np.ones(4))
    assert (found.scores[:, 4:] == -math.inf).all()
    none = lookup(QUERIES, KEYS, Vectors(VALUES), heads=Heads(ARRAYS["w_q"], ARRAYS["w_k"]), show=0)
    assert none.rows.shape == (4, 0)


@pytest.mark.parametrize("name", ["cosine", "gaussian", "laplace", "uniform", lambda q, k: q @ k.T])
def test_only_dot_products_take_heads(name: Any) -> None:
    """Other compatibilities cannot be folded into the query."""
    with pytest.raises(NotExpressible, match="only dot, scaled_dot and bilinear"):
        lookup(QUERIES, KEYS, Vectors(VALUES), heads=Heads(ARRAYS["w_q"], ARRAYS["w_k"]), compatibility=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_bias_kv": True}, "add_bias_kv appends a learned row"),
        ({"add_zero_attn": True}, "add_zero_attn appends a row of zeros"),
        ({"dropout": 0.1}, "training mode with dropout"),
    ],
)
def test_modules_that_cannot_be_expressed_are_refused(options: dict[str, Any], message: str) -> None:
    """What is not a projection is named, with what to do instead."""
    with pytest.raises(NotExpressible, match=message):
        Heads.from_torch(torch.nn.MultiheadAttention(8, 2, **options))


def test_other_modules_are_refused() -> None:
    """from_torch takes nn.MultiheadAttention and nothing else."""
    with pytest.raises(NotExpressible, match=r"expected a torch\.nn\.MultiheadAttention, got Linear"):
        Heads.from_torch(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w_q": np.ones((3, 4))}, r"expected w_q to be an array with 3 axes, got shape \(3, 4\)"),
        ({"w_k": np.ones((3, 3, 5))}, "expected the same number of heads"),
        ({"w_k": np.ones((2, 2, 5))}, "expected one head width"),
        ({"b_q": np.ones((2, 4))}, "expected one head width"),
        ({"b_v": np.ones((2, 3))}, "expected one value width"),
        ({"b_o": np.ones(6)}, "expected one output width"),
        ({"w_o": np.ones((7, 5))}, "expected w_o to take the joined heads"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Shapes are checked where the heads are made."""
    with pytest.raises(ShapeError, match=message):
        Heads(**{**ARRAYS, **changes})


@pytest.mark.parametrize("count", [0, 3])
def test_identity_heads_must_share_the_width(count: int) -> None:
    """The width is divided among the heads."""
    with pytest.raises(ShapeError, match="heads can share, got 4"):
        Heads.identity(count, width=4)


def test_inputs_that_do_not_fit_the_heads_are_refused() -> None:
    """Queries, keys and values have the widths that the heads take; labels have no projection."""
    heads = Heads(**ARRAYS)
    for given, message in (
        ((KEYS, KEYS, Vectors(VALUES)), "queries have width 5, but these heads take width 4"),
        ((QUERIES, VALUES, Vectors(VALUES)), "keys have width 6, but these heads take width 5"),
        ((QUERIES, KEYS, Vectors(KEYS)), "values have width 5, but these heads take width 6"),
    ):
        with pytest.raises(ShapeError, match=message):
            lookup(*given, heads=heads)
    with pytest.raises(NotExpressible, match="distribution over labels has no projection"):
        lookup(QUERIES, KEYS, Labels(np.zeros(30, dtype=int), 2), heads=heads)


def test_heads_that_are_not_finite_are_refused() -> None:
    """NaN in a projection is named by its array."""
    with pytest.raises(NotFinite, match="b_k of the heads holds NaN"):
        lookup(QUERIES, KEYS, Vectors(VALUES), heads=Heads(**{**ARRAYS, "b_k": np.full((2, 3), np.nan)}))
    with pytest.raises(NotFinite, match="w_k of the heads holds NaN"):
        lookup(QUERIES, KEYS, Vectors(VALUES), heads=Heads(**{**ARRAYS, "w_k": np.full((2, 3, 5), np.nan)}))


def test_heads_of_a_module_answer_numpy_and_pass_gradients_to_torch(tmp_path: Path) -> None:
    """Arrays, lists and stores are answered as the module answers; tensors beside them keep their gradients."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    heads, rng = Heads.from_torch(attention), np.random.default_rng(0)
    queries, keys, values = (rng.standard_normal((rows, 4)).astype(np.float32) for rows in (3, 10, 10))
    given = [torch.as_tensor(x)[None] for x in (queries, keys, values)]
    expected = attention(*given, need_weights=False)[0][0].detach().numpy()
    for asked in (queries, queries.tolist()):
        found = soft_lookup(asked, keys, values, heads=heads).value
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with softkv.open(tmp_path / "a") as db:
        db.add(vectors=keys, values=values)
        np.testing.assert_allclose(db.lookup(queries, heads=heads).value, expected, atol=1e-5)
        assert (db.lookup(queries, heads=heads).error > 0).all()
    soft_lookup(torch.as_tensor(queries), keys, values, heads=heads).value.sum().backward()
    assert attention.in_proj_weight.grad.abs().sum() > 0
    with pytest.raises(errors.KindError, match=r"expected an array of NumPy .* requires grad"):
        soft_lookup(queries, keys, values, bias=torch.zeros(10, requires_grad=True))


@pytest.mark.parametrize(("shape", "outer"), [((3, 5, 7), None), ((2, 8, 4), (6, 16)), (None, (5, 12)), (None, None)])
def test_what_heads_make_of_errors_is_bounded_by_their_singular_values(shape: Any, outer: Any) -> None:
    """No error of the means becomes larger than is said, and what is said is less than by the sums of squares."""
    rng, count = np.random.default_rng(5), 4 if shape is None else shape[0]
    width = 3 if shape is None else shape[2]
    w_v = None if shape is None else rng.normal(size=shape)
    w_o = None if outer is None else 1e150 * rng.normal(size=outer)
    heads = Heads(rng.normal(size=(count, 2, 6)), rng.normal(size=(count, 2, 6)), w_v, w_o)
    told = stretches(heads)
    inner = np.ones(count) if w_v is None else np.linalg.norm(w_v, 2, axis=(1, 2))
    exact = inner * (1.0 if w_o is None else np.linalg.norm(w_o, 2))
    assert (told >= 0.999999 * exact).all()
    if w_v is not None:
        squares = np.linalg.norm(w_v, axis=(1, 2)) * (1.0 if w_o is None else np.linalg.norm(w_o))
        assert (told < 0.95 * squares).all()
    wrong = rng.normal(size=(count, 50, width))
    lengths = np.linalg.norm(heads.project(wrong), axis=1)
    assert (lengths <= np.linalg.norm(told[:, None] * np.linalg.norm(wrong, axis=2), axis=0) * 1.000001).all()


def test_answers_of_heads_are_as_sure_as_the_least_sure_head() -> None:
    """The kind, route and reason of each query are those of its least sure head, whatever the order of the heads."""
    kinds = ("exact", "measured", "calibrated", "exact", "calibrated", "measured", "measured", "exact")
    reasons = tuple(f"{number}, {kind}" for number, kind in enumerate(kinds))
    found: Any = SimpleNamespace(error_kind=kinds, route=kinds, reason=reasons)
    told = ("calibrated", "measured", "calibrated", "exact")
    reasons = ("4, calibrated", "1, measured", "2, calibrated", "3, exact")
    assert of_least_sure(found, (2, 4)) == {"error_kind": told, "route": told, "reason": reasons}
    alike: Any = SimpleNamespace(error_kind="measured", route="measured", reason="why")
    assert of_least_sure(alike, (2, 4)) == vars(alike)


@pytest.mark.parametrize("compared", ["dot", "gaussian"])
def test_heads_compare_as_transformers_do_however_the_store_compares(tmp_path: Path, compared: str) -> None:
    """The scaled dot product at temperature 1, as the help of lookup says; another way and temperature may be given."""
    heads = Heads(**ARRAYS)
    with softkv.open(tmp_path / "a", compatibility=compared, temperature=0.1) as db:
        db.add(vectors=KEYS, values=VALUES)
        for options in ({}, {"compatibility": "dot", "temperature": 2.0}):
            expected = soft_lookup(QUERIES, KEYS, VALUES, heads=heads, **options).value
            np.testing.assert_allclose(db.lookup(QUERIES, heads=heads, **options).value, expected, atol=1e-4)
        assert "by scaled_dot at temperature 1 unless others are given" in str(db.lookup.__doc__)
