"""Soft lookup as a torch module."""

import copy
import importlib
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import softkv
from softkv import Heads, errors
from softkv.doors import taken, weighing
from softkv.doors import torch as door
from softkv.doors.torch import SoftKVLayer
from softkv.guard.judged import seen_of

from . import reference, test_guarding
from .scales import far_ring, weighted_mean
from .servers import served

HEADS = Heads.random(2, query_width=4, key_width=4, value_width=3, head_width=2, seed=0)
WITH_ZEROS = nn.MultiheadAttention(2, 1, add_zero_attn=True)
ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=ON_A_GPU)]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def store_of(path: Path, kind: str, compatibility: str = "cosine", items: int = 60, **more: Any) -> Any:
    """A store with keys of width 4, open."""
    rng = np.random.default_rng(1)
    values = {
        "number": rng.standard_normal(items) * 10,
        "vector": rng.standard_normal((items, 3)),
        "label": [f"label {i % 5}" for i in range(items)],
        "text": [f"a text about {i}" for i in range(items)],
    }[kind]
    db = softkv.open(path, value=kind, compatibility=compatibility, **more)
    db.add([f"key {i}" for i in range(items)], values, vectors=rng.standard_normal((items, 4)))
    return db


def cut(monkeypatch: pytest.MonkeyPatch, kept: int | None) -> list[int]:
    """How many queries were taken at a time, as they are; `kept` is how many numbers may be, None for the usual."""
    monkeypatch.setattr(door, "KEPT", kept or 1 << 26)
    asked: list[int] = []

    def watched(real: Any) -> Any:
        def ask(queries: Tensor, *given: Any, **options: Any) -> Any:
            asked.append(queries.shape[-2])
            return real(queries, *given, **options)

        return ask

    for name in ("soft_lookup", "weighed"):
        monkeypatch.setattr(door, name, watched(getattr(door, name)))
    return asked


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leading", [(), (3,), (2, 4)], ids=str)
def test_it_is_attention(leading: tuple[int, ...], device: str) -> None:
    """Outputs and gradients are those of torch's own attention, with batches, heads and masks."""
    keys, values = drawn(*leading, 30, 8, seed=1), drawn(*leading, 30, 5, seed=2)
    mask = drawn(*leading, 7, 30, seed=3) > -0.5
    mine, theirs = (drawn(*leading, 7, 8).to(device).requires_grad_() for _ in range(2))
    layer = SoftKVLayer(keys, values).to(device)
    found = layer(mine, mask.to(device))
    expected = functional.scaled_dot_product_attention(theirs, keys.to(device), values.to(device), mask.to(device))
    assert torch.allclose(found, expected, atol=1e-5)
    for one in (found, expected):
        one.square().sum().backward()
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-5)


def test_heads_of_a_module_are_the_module() -> None:
    """Outputs are equal, and so are the gradients of its parameters, which are parameters of the layer."""
    module = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True)
    queries, keys, values = drawn(2, 7, 8), drawn(2, 30, 6, seed=1), drawn(2, 30, 5, seed=2)
    layer = SoftKVLayer(keys, values, heads=copy.deepcopy(module), learn_temperature=False)
    found, expected = layer(queries), module(queries, keys, values, need_weights=False)[0]
    assert torch.allclose(found, expected, atol=1e-5)
    for one in (found, expected):
        one.square().sum().backward()
    wanted = {f"attention.{name}": parameter for name, parameter in module.named_parameters()}
    learning = {name: parameter for name, parameter in layer.named_parameters() if parameter.requires_grad}
    assert learning.keys() == wanted.keys()
    for name, parameter in learning.items():
        assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-4), name


@pytest.mark.parametrize("compatibility", ["dot", "scaled_dot", "cosine", "gaussian", "laplace"])
@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("learn_values", [False, True])
def test_gradients_are_right(compatibility: str, k: int | None, learn_values: bool) -> None:
    """Finite differences give the same: of queries, the temperature, and values where they learn."""
    keys, values = drawn(9, 4, seed=1, dtype=torch.float64), drawn(9, 2, seed=2, dtype=torch.float64)
    layer = SoftKVLayer(keys, values, compatibility=compatibility, temperature=0.7, k=k, learn_values=learn_values)
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["log_temperature", *(["memory.values"] if learn_values else [])]

    def asked(queries: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (queries,))

    given = (drawn(3, 4, dtype=torch.float64), *(one.detach().clone() for one in layer.parameters()))
    assert torch.autograd.gradcheck(asked, [one.requires_grad_() for one in given])


@pytest.mark.parametrize(
    ("compatibility", "values", "given", "options"),
    [
        ("gaussian", (9,), {}, {}),
        ("cosine", (9, 2), {"mask": drawn(3, 9, seed=3) > -1, "bias": drawn(9, seed=4)}, {}),
        ("laplace", (9, 2), {"bias": drawn(1, 9, seed=4)}, {}),
        ("dot", None, {"causal": True}, {"labels": 3}),
        ("dot", (9, 3), {"mask": drawn(9, seed=3) > -1}, {"heads": "two"}),
    ],
    ids=["numbers", "mask and bias", "bias", "labels", "heads"],
)
@pytest.mark.parametrize("leading", [(), (2,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_answers_with_gradients_are_those_without(
    compatibility: str, values: Any, given: Any, options: Any, leading: Any, dtype: torch.dtype
) -> None:
    """Those without are found in another way; both are of one type."""
    queries, keys = drawn(*leading, 3, 4), drawn(*leading, 9, 4, seed=1, dtype=torch.float64).to(dtype)
    held = torch.arange(9).expand(*leading, 9) % 3 if values is None else drawn(*leading, *values, seed=2).to(dtype)
    options = {name: HEADS if one == "two" else one for name, one in options.items()}
    layer = SoftKVLayer(keys, held, compatibility=compatibility, temperature=0.7, **options)
    learning = layer(queries.requires_grad_(), **given)
    with torch.no_grad():
        expected = layer(queries, **given)
    assert learning.dtype == expected.dtype
    assert torch.allclose(learning, expected, atol=1e-12 if dtype == torch.float64 else 1e-5)


def test_what_is_not_finite_is_named_while_learning_too() -> None:
    """A query, a row, and a query that may see no row."""
    layer = SoftKVLayer(drawn(5, 3), drawn(5, 2))
    queries = drawn(4, 3).requires_grad_()
    with pytest.raises(errors.AllMasked, match="query 2"):
        layer(queries, torch.tensor([[True], [True], [False], [True]]).expand(4, 5))
    with pytest.raises(errors.NotFinite, match=r"queries\[1\]"):
        layer(torch.where(torch.arange(4)[:, None] == 1, torch.nan, queries))
    with torch.no_grad():
        layer.memory.values[3] = torch.inf
    with pytest.raises(errors.NotFinite, match=r"values\[3\]"):
        layer(queries)


@pytest.mark.parametrize("options", [{}, {"k": 3}, {"labels": 3}], ids=["values", "k", "labels"])
@pytest.mark.parametrize("kept", [None, 30])
def test_a_bias_that_leaves_a_row_out_has_a_gradient(
    options: Any, kept: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient is that of a mask: of the temperature, the queries and the values."""
    cut(monkeypatch, kept)
    values = torch.arange(9) % 3 if "labels" in options else drawn(9, 2, seed=2)
    seen, found = torch.arange(9) != 4, []
    for given in ({"mask": seen}, {"bias": torch.where(seen, 0.0, -torch.inf)}):
        layer, queries = SoftKVLayer(drawn(9, 4, seed=1), values, **options), drawn(6, 4).requires_grad_()
        layer(queries, **given).square().sum().backward()
        found.append((layer.log_temperature.grad, queries.grad))
    for masked, biased in zip(*found, strict=True):
        assert torch.isfinite(biased).all()
        assert torch.allclose(masked, biased, atol=1e-6)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("given", ["mask", "bias"])
def test_a_row_that_is_left_out_is_not_the_best(given: str, learn: bool) -> None:
    """Gaussians of rows far below one that is left out are told by differences, also where values learn."""
    queries, keys, left = (torch.as_tensor(one) for one in far_ring())
    values, gradients = torch.arange(len(keys)) % 7.0, []
    for dtype in (torch.float64, torch.float32):
        layer = SoftKVLayer(
            keys.to(dtype), values.to(dtype), compatibility="gaussian", temperature=1.0, learn_values=learn
        )
        options = {"mask": left} if given == "mask" else {"bias": torch.where(left, 0.0, -torch.inf).to(dtype)}
        found = layer(queries.to(dtype), **options)
        assert found.item() == pytest.approx(
            weighted_mean(*(np.asarray(x) for x in (queries, keys, left, values))), rel=1e-3
        )
        found.sum().backward()
        gradients.append(layer.log_temperature.grad.item())
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-2)


def test_scores_that_overflow_are_refused_while_learning_too() -> None:
    """A row does not drop out of an answer without a word."""
    keys, queries = torch.tensor([[1.0, 0.0], [1e20, 0.0]]), torch.tensor([[-1e15, 0.0]])
    for layer in (
        SoftKVLayer(keys, torch.tensor([1.0, 2.0]), compatibility="dot", temperature=1e-5),
        SoftKVLayer(keys, torch.tensor([1.0, 2.0]), compatibility=lambda q, k: q @ k.T * torch.inf),
    ):
        for asked in (queries, queries.clone().requires_grad_()):
            with torch.set_grad_enabled(asked.requires_grad), pytest.raises(errors.NotFinite):
                layer(asked)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.ones(5), errors.ShapeError),
        (torch.ones(4, dtype=torch.bool), errors.ShapeError),
        (torch.ones(4, 1, dtype=torch.bool), errors.ShapeError),
    ],
    ids=["numbers", "width", "column"],
)
def test_masks_of_causal_lookups_are_looked_at(mask: Tensor, error: type) -> None:
    """They are with gradients and without."""
    layer, queries = SoftKVLayer(drawn(5, 3), drawn(5, 2)), drawn(4, 3)
    for learning in (True, False):
        with torch.set_grad_enabled(learning), pytest.raises((error, errors.KindError)):
            layer(queries, mask, None, True)


def test_gradients_of_projections_are_right() -> None:
    """Those of heads, with all their offsets, and twice over."""
    heads = Heads.random(2, query_width=3, key_width=4, value_width=2, head_width=2, output_width=3, seed=0)
    layer = SoftKVLayer(drawn(6, 4, seed=1, dtype=torch.float64), drawn(6, 2, seed=2, dtype=torch.float64), heads=heads)
    names = [name for name, _ in layer.named_parameters()]
    assert {"projections.w_q", "projections.w_k", "projections.w_v", "projections.w_o"} < set(names)

    def asked(queries: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (queries,))

    given = [drawn(2, 3, dtype=torch.float64), *(one.detach().clone() for one in layer.parameters())]
    given = [one.requires_grad_() for one in given]
    assert torch.autograd.gradcheck(asked, given)
    assert torch.autograd.gradgradcheck(asked, given)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compatibility", ["cosine", "dot", "gaussian", "laplace"])
@pytest.mark.parametrize("kind", ["number", "vector", "label", "text"])
def test_a_layer_answers_as_its_store_does(tmp_path: Path, kind: str, compatibility: str, device: str) -> None:
    """Values, evidence and contributors; with dead rows in between, from a path, a handle and a snapshot."""
    queries = drawn(6, 4)
    with store_of(tmp_path / "s", kind, compatibility, embedder="static" if kind == "text" else None) as db:
        db.delete(["key 3", "key 41"])
        expected = db.lookup(queries.numpy(), tolerance=0)
        with db.snapshot() as snapshot:
            layers = [SoftKVLayer.from_store(one, device=device) for one in (db, snapshot)]
        for layer in layers:
            answers = layer.lookup(queries.to(device), show=3)
            assert layer(queries.to(device)).detach().cpu().numpy() == pytest.approx(expected.value, abs=2e-4)
            assert answers.log_mass.detach().cpu().numpy() == pytest.approx(expected.log_mass, abs=1e-3)
            assert answers.labels == expected.labels
        assert db.check().ok
    again = SoftKVLayer.from_store(tmp_path / "s", device=device)
    assert torch.equal(again(queries.to(device)), layers[0](queries.to(device)))


@pytest.mark.parametrize("compatibility", ["cosine", "gaussian"])
def test_a_layer_begins_where_the_store_has_learned_to(tmp_path: Path, compatibility: str) -> None:
    """Queries are projected as `fit` has learned to, and that projection goes on learning."""
    queries = drawn(6, 4)
    with store_of(tmp_path / "s", "label", compatibility, items=200) as db:
        db.fit(rank=3)
        expected, plain = (db.lookup(queries.numpy(), projection=one, tolerance=0) for one in (True, False))
        layer = SoftKVLayer.from_store(db)
        unlearned = SoftKVLayer.from_store(db, projection=False)
    assert layer(queries).detach().numpy() == pytest.approx(expected.value, abs=1e-3)
    assert unlearned(queries).detach().numpy() == pytest.approx(plain.value, abs=1e-3)
    layer(queries).square().sum().backward()
    assert layer.query[0].linear.weight.grad.abs().sum() > 0
    assert layer.query[0].linear.weight.shape == (3, 4)


def test_planes_are_refused_and_can_be_left_out(tmp_path: Path) -> None:
    """A layer blends values; it does not answer otherwise than its store without a word."""
    with store_of(tmp_path / "s", "number", "gaussian", items=200) as db:
        db.fit(planes=True)
        with pytest.raises(errors.NotExpressible, match="planes"):
            SoftKVLayer.from_store(db)
        layer = SoftKVLayer.from_store(db, projection=False)
        expected = db.lookup(np.ones((1, 4)), projection=False).value
        assert layer(torch.ones(1, 4)).detach().numpy() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "close"), [(torch.bfloat16, 0.03), (torch.float16, 0.004), (torch.float32, 1e-5)])
def test_rows_may_be_half_as_long(tmp_path: Path, dtype: torch.dtype, close: float, device: str) -> None:
    """They are compared and blended in float32; only what they are is rounded."""
    queries = drawn(6, 4).to(device)
    with store_of(tmp_path / "s", "vector", "dot", items=300) as db:
        layer = SoftKVLayer.from_store(db, dtype=dtype, device=device, temperature=1.0)
        expected = db.lookup(queries.cpu().numpy(), temperature=1.0, tolerance=0).value
    assert layer.memory.keys.dtype == layer.memory.values.dtype == dtype
    found = layer(queries)
    assert found.dtype == torch.float32
    assert found.detach().cpu().numpy() == pytest.approx(expected, abs=close)
    keys, values = (x.double().cpu().numpy() for x in layer.memory.rows())
    exact = [reference.lookup(q, keys, values, score=reference.dot).value for q in queries.double().cpu().numpy()]
    assert found.detach().cpu().numpy() == pytest.approx(np.array(exact), abs=1e-5)


@pytest.mark.parametrize("change", [lambda one: one.half(), lambda one: one.to(torch.bfloat16)], ids=["half", "to"])
def test_a_layer_that_is_shortened_keeps_its_temperature(change: Any) -> None:
    """Whose logarithm has too few digits in half a float; a longer one is taken, and it goes on learning."""
    layer = SoftKVLayer(
        drawn(9, 4), drawn(9, 3), temperature=0.0123, compatibility="gaussian", query=torch.nn.Linear(4, 4)
    )
    before = layer.temperature.item()
    short = change(layer)
    assert short is layer
    assert layer.temperature.item() == before
    assert layer.memory.keys.dtype == layer.query.weight.dtype != torch.float32  # type: ignore[union-attr]
    layer(drawn(2, 4).to(layer.memory.keys.dtype)).sum().backward()
    assert torch.isfinite(layer.log_temperature.grad)  # type: ignore[arg-type]
    assert layer.double().log_temperature.dtype == torch.float64
    assert layer.half().log_temperature.dtype == torch.float64


@pytest.mark.parametrize("compatibility", ["scaled_dot", "dot", "cosine", "gaussian", "laplace", "student", "heads"])
@pytest.mark.parametrize("values", [(9,), (9, 3)], ids=str)
@pytest.mark.parametrize("leading", [(), (2,)], ids=str)
def test_gradients_of_short_rows_are_those_of_long_ones(
    monkeypatch: pytest.MonkeyPatch, compatibility: str, values: Any, leading: Any
) -> None:
    """Rows that are widened block by block, their weights worked out twice, have the gradients of long ones."""
    monkeypatch.setattr(weighing, "BLOCK", 4)
    keys, held = drawn(*leading, 9, 4, seed=1).bfloat16(), drawn(*leading, *values, seed=2).bfloat16()
    mask, found = drawn(3, 9, seed=3) > -1, []
    options: Any = {"heads": HEADS} if compatibility == "heads" else {"compatibility": compatibility}
    if compatibility == "heads" and len(values) == 1:
        pytest.skip("heads blend vectors")
    for rows in ((keys, held), (keys.float(), held.float())):
        layer = SoftKVLayer(*rows, temperature=0.7, **options)
        queries = drawn(2, 3, 4).requires_grad_()
        for some in (mask, None):
            answer = layer(queries, some)
            (answer.float() * drawn(*answer.shape, seed=4)).sum().backward()
        found.append([queries.grad, *(one.grad for one in layer.parameters())])
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


class Longest(TorchDispatchMode):
    """Notes how many numbers the longest tensor of float32 or float64 has that is made."""

    made = 0

    def __torch_dispatch__(self, what: Any, _types: Any, given: Any = (), named: Any = None) -> Any:
        found = what(*given, **(named or {}))
        if isinstance(found, Tensor) and found.dtype in (torch.float32, torch.float64):
            self.made = max(self.made, found.numel())
        return found


def test_short_rows_are_not_widened_whole_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some at a time, for the answer and for its gradients; long ones are there whole, and none is made of them."""
    monkeypatch.setattr(weighing, "BLOCK", 8)
    keys, values = drawn(400, 16, seed=1).bfloat16(), drawn(400, 16, seed=2).bfloat16()
    with Longest() as longest:
        SoftKVLayer(keys, values, compatibility="gaussian")(drawn(2, 16).requires_grad_()).sum().backward()
    assert 8 * 16 <= longest.made <= 2 * 400  # at most the weights of both queries, and not 400 x 16
    monkeypatch.setattr(weighing, "BLOCK", 400)
    with Longest() as longest:
        SoftKVLayer(keys, values, compatibility="gaussian")(drawn(2, 16).requires_grad_()).sum().backward()
    assert longest.made >= 400 * 16


def test_short_rows_that_are_not_finite_are_named_while_learning() -> None:
    """A score that overflows, and a query that may see no row; rows that changed meanwhile are an error too."""
    layer = SoftKVLayer(drawn(5, 3).bfloat16(), drawn(5, 2).bfloat16(), compatibility="dot")
    queries = drawn(4, 3).requires_grad_()
    with pytest.raises(errors.AllMasked, match="query 2"):
        layer(queries, torch.tensor([[True], [True], [False], [True]]).expand(4, 5))
    with pytest.raises(errors.NotFinite, match="overflows"):
        SoftKVLayer(torch.full((2, 1), 1e38).bfloat16(), torch.zeros(2), compatibility="dot")(
            torch.full((1, 1), -1e38, requires_grad=True)
        )
    answer = layer(queries).sum()
    with torch.no_grad():
        layer.memory.keys[0] = 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        answer.backward()


def test_what_a_short_float_cannot_hold_is_refused(tmp_path: Path) -> None:
    """The error names it; it does not become infinity."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=[[1.0], [2.0]], values=[1.0, 1e6])
        with pytest.raises(errors.NotFinite, match="float16"):
            SoftKVLayer.from_store(db, dtype=torch.float16)
        assert len(SoftKVLayer.from_store(db, dtype=torch.bfloat16)) == 2


@pytest.mark.parametrize(
    ("keys", "values", "queries", "given", "options"),
    [
        ((50, 4), (50, 3), (2, 20, 4), {"mask": drawn(2, 20, 50, seed=3) > -1, "bias": drawn(50, seed=4)}, {}),
        ((50, 4), (50,), (20, 4), {"mask": drawn(1, 50, seed=3) > -1, "bias": drawn(20, 50, seed=4)}, {}),
        ((2, 50, 4), (2, 50), (19, 4), {}, {}),
        ((3, 50, 4), (3, 50, 2), (19, 4), {"causal": True}, {}),
        ((50, 4), (50, 3), (20, 4), {"causal": True, "mask": drawn(50, seed=3) > -1}, {}),
        ((50, 4), (50, 3), (20, 4), {}, {"heads": HEADS}),
        ((50, 4), (50, 3), (20, 4), {}, {"heads": nn.MultiheadAttention(4, 2, vdim=3), "k": 5}),
        ((50, 4), (50, 3), (20, 4), {}, {"compatibility": "laplace", "k": 3}),
    ],
    ids=["mask and bias", "numbers", "batched keys", "causal", "causal and mask", "heads", "module", "laplace"],
)
def test_many_queries_learn_some_at_a_time(
    keys: Any, values: Any, queries: Any, given: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients are those of all at once."""
    found = []
    for kept in (None, 1_500):
        asked = cut(monkeypatch, kept)
        layer = SoftKVLayer(drawn(*keys, seed=1), drawn(*values, seed=2), learn_values=True, **copy.deepcopy(options))
        mine = drawn(*queries).requires_grad_()
        output = layer(mine, **given)
        output.square().sum().backward()
        found.append((output, mine.grad, *(one.grad for one in layer.parameters())))
        assert (max(asked) < queries[-2]) == (kept is not None)
        monkeypatch.undo()
    for whole, parts in zip(*found, strict=True):
        assert whole.shape == parts.shape
        assert torch.allclose(whole, parts, atol=1e-4, rtol=1e-4)


def test_what_learns_may_be_handed_over_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.func hands over has the gradients of the whole; a bias may be all that learns."""
    layer, queries, found = SoftKVLayer(drawn(50, 4, seed=1), drawn(50, 3, seed=2)), drawn(20, 4), []
    for kept in (None, 600):
        asked = cut(monkeypatch, kept)
        given = {"log_temperature": torch.tensor(0.7, requires_grad=True)}
        torch.func.functional_call(layer, given, (queries,)).square().sum().backward()
        bias = torch.zeros(50, requires_grad=True)
        layer.requires_grad_(False)
        layer(queries, None, bias).square().sum().backward()
        layer.requires_grad_(True)
        found.append((given["log_temperature"].grad, bias.grad))
        assert (min(asked) < 20) == (kept is not None)
        monkeypatch.undo()
    for whole, parts in zip(*found, strict=True):
        assert torch.allclose(whole, parts, atol=1e-5)


@pytest.mark.parametrize("kept", [None, 600])
@pytest.mark.parametrize("shape", [(30, 50), (20, 49), (3, 1, 50)], ids=str)
def test_masks_of_other_shapes_are_refused(shape: Any, kept: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or in parts; lists are as good as tensors."""
    cut(monkeypatch, kept)
    layer, queries = SoftKVLayer(drawn(50, 4), drawn(50, 3)), drawn(20, 4)
    with pytest.raises(errors.ShapeError):
        layer(queries, torch.ones(shape, dtype=torch.bool))
    assert torch.allclose(
        layer(queries, [True] * 49 + [False]), SoftKVLayer(drawn(50, 4)[:49], drawn(50, 3)[:49])(queries)
    )


def test_what_is_remembered_replaces_what_is_oldest() -> None:
    """However many rows come at once, those that answer are the last."""
    layer = SoftKVLayer(torch.zeros(0, 3), torch.zeros(0, 2), capacity=10, compatibility="dot")
    queries, seen = drawn(4, 3), (torch.zeros(0, 3), torch.zeros(0, 2))
    with pytest.raises(errors.EmptyStore):
        layer(queries)
    for step, count in enumerate([1, 3, 4, 5, 25, 2, 10, 1]):
        fresh = drawn(count, 3, seed=step), drawn(count, 2, seed=step + 100)
        layer.remember(*fresh)
        seen = tuple(torch.cat(pair)[-10:] for pair in zip(seen, fresh, strict=True))
        assert len(layer) == len(seen[0])
        expected = functional.softmax(queries @ seen[0].T, -1) @ seen[1]
        assert torch.allclose(layer(queries), expected, atol=1e-6)
    layer.forget()
    assert len(layer) == 0


def test_causal_goes_by_the_order_of_rows_or_is_refused() -> None:
    """Where the newest lie in the places of the oldest, a query would see what came later."""
    layer = SoftKVLayer(drawn(3, 3, seed=1), drawn(3, 2, seed=2), capacity=4)
    queries = drawn(4, 3)
    layer.remember(drawn(1, 3, seed=3), drawn(1, 2, seed=4))
    rows = torch.cat([drawn(3, 3, seed=1), drawn(1, 3, seed=3)]), torch.cat([drawn(3, 2, seed=2), drawn(1, 2, seed=4)])
    expected = functional.scaled_dot_product_attention(queries, *rows, is_causal=True)
    assert torch.allclose(layer(queries, causal=True), expected, atol=1e-6)
    layer.remember(drawn(1, 3, seed=5), drawn(1, 2, seed=6))
    for ask in (layer, layer.lookup, layer.evidence):
        with pytest.raises(errors.InputError, match="order in which they came"):
            ask(queries, causal=True)
    assert len(layer.lookup(queries)) == 4


def test_each_of_a_batch_has_its_own_memory() -> None:
    """Leading axes of keys go with those of queries, also when rows are remembered."""
    layer = SoftKVLayer(drawn(2, 5, 3), drawn(2, 5, seed=1), capacity=7, compatibility="dot")
    layer.remember(drawn(2, 1, 3, seed=2), drawn(2, 1, seed=3))
    keys, values = (
        torch.cat([drawn(2, 5, 3), drawn(2, 1, 3, seed=2)], 1),
        torch.cat([drawn(2, 5, seed=1), drawn(2, 1, seed=3)], 1),
    )
    queries = drawn(2, 4, 3, seed=4)
    expected = (functional.softmax(queries @ keys.mT, -1) @ values[..., None])[..., 0]
    assert torch.allclose(layer(queries), expected, atol=1e-6)


@pytest.mark.parametrize("kept", [None, 200])
@pytest.mark.parametrize("full", [False, True])
def test_remembering_before_gradients_is_an_error_and_not_a_wrong_gradient(
    kept: int | None, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows have changed that are needed, whether weights were kept or are worked out again."""
    cut(monkeypatch, kept)
    layer = SoftKVLayer(drawn(5, 3), drawn(5, 2), capacity=5 if full else 7)
    output = layer(drawn(40, 3).requires_grad_())
    layer.remember(drawn(3, 3), drawn(3, 2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("kept", [None, 200])
def test_a_temperature_that_changes_before_gradients_does_not_change_them(
    kept: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of what was asked."""
    cut(monkeypatch, kept)
    layer, grads = SoftKVLayer(drawn(5, 3), drawn(5, 2)), []
    for more in (0.0, 3.0):
        queries = drawn(40, 3, seed=1).requires_grad_()
        output = layer(queries)
        with torch.no_grad():
            layer.log_temperature += more
        output.square().sum().backward()
        grads.append(queries.grad)
    assert torch.allclose(*grads)


def saved_and_loaded(layer: nn.Module, other: nn.Module) -> Any:
    """Let another layer be what this one is, by a file."""
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    return other.load_state_dict(torch.load(file, weights_only=True))


def chronicle(layer: SoftKVLayer, *steps: int) -> tuple[Tensor, Tensor]:
    """Let a layer remember so many rows at a time; gives all of them back."""
    rows = [(drawn(count, 4, seed=10 + count), drawn(count, 2, seed=20 + count)) for count in steps]
    for keys, values in rows:
        layer.remember(keys, values)
    keys, values = zip(*rows, strict=True)
    return torch.cat(keys), torch.cat(values)


def memory_of(capacity: int | None, rows: int = 0, **options: Any) -> SoftKVLayer:
    """A layer over rows of width 4 with values of width 2."""
    return SoftKVLayer(drawn(rows, 4, seed=1), drawn(rows, 2, seed=2), capacity=capacity, **options)


@pytest.mark.parametrize("before", [None, 3, 8, 20])
@pytest.mark.parametrize("after", [None, 3, 8, 20])
def test_a_state_dict_carries_rows_that_were_given(before: int | None, after: int | None) -> None:
    """It carries the most recent that there is room for, in the order in which they will go."""
    queries = drawn(5, 4, seed=5)
    layer = memory_of(before, 0 if before else 7)
    rows = layer.memory.rows() if before is None else chronicle(layer, 2, 5)
    fresh = memory_of(after, 1 if after is None else 0)
    saved_and_loaded(layer, fresh)
    room = min(7, *(one for one in (before, after) if one)) if before or after else 7
    keys, values = (one[-room:] for one in rows)
    assert len(fresh) == room
    assert torch.allclose(fresh(queries), SoftKVLayer(keys, values)(queries), atol=1e-6)
    if after is not None:
        more = chronicle(fresh, 2)
        keys, values = (torch.cat(pair)[-after:] for pair in zip((keys, values), more, strict=True))
        assert torch.allclose(fresh(queries), SoftKVLayer(keys, values)(queries), atol=1e-6)


def test_a_state_dict_carries_what_was_learned() -> None:
    """The temperature, heads, and values that learn; a copy is the same too."""
    others = Heads.random(2, query_width=3, key_width=4, value_width=2, head_width=2, seed=5)
    heads = Heads.random(2, query_width=3, key_width=4, value_width=2, head_width=2, seed=0)
    layer = memory_of(None, 6, heads=heads, temperature=0.3, learn_values=True)
    fresh = memory_of(None, 3, heads=others, learn_values=True)
    fresh(drawn(5, 3)).sum().backward()
    saved_and_loaded(layer, fresh)
    assert torch.equal(fresh(drawn(5, 3)), layer(drawn(5, 3)))
    fresh(drawn(5, 3)).sum().backward()
    assert torch.equal(copy.deepcopy(layer)(drawn(5, 3)), layer(drawn(5, 3)))


def test_rows_are_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    """A state without rows, with half of them, or with those of another width leaves the rows that are there."""
    layer, queries = memory_of(None, 6), drawn(5, 4)
    expected = layer(queries)
    with store_of(tmp_path / "s", "vector", temperature=1.0, items=9) as db:
        layer.load_state_dict(SoftKVLayer.from_store(db).state_dict(), strict=False)
    assert torch.allclose(layer(queries), expected)
    whole = memory_of(None, 9).state_dict()
    halves = [{name: x for name, x in whole.items() if name != f"memory.{left}"} for left in ("keys", "values")]
    for state in (*halves, SoftKVLayer(drawn(9, 5), drawn(9, 2)).state_dict()):
        with pytest.raises(RuntimeError, match="size mismatch"):
            layer.load_state_dict(state, strict=False)
        assert torch.allclose(layer(queries), expected)


def test_a_state_dict_does_not_carry_a_store(tmp_path: Path) -> None:
    """What was learned beside it is carried, to be loaded into a layer over the store, however it has grown."""
    with store_of(tmp_path / "s", "vector") as db:
        layer = SoftKVLayer.from_store(db)
        db.add(["more"], [[1.0, 2.0, 3.0]], vectors=[[1.0, 0.0, 0.0, 0.0]])
        fresh = SoftKVLayer.from_store(db, temperature=5.0)
    with torch.no_grad():
        layer.log_temperature += 1
    assert {name for name, x in layer.state_dict().items() if isinstance(x, Tensor)} == {"log_temperature"}
    saved_and_loaded(layer, fresh)
    assert len(fresh) == 61
    assert fresh.temperature == layer.temperature


def test_values_that_learned_find_their_items(tmp_path: Path) -> None:
    """Names find them, since rows lie in another order when some were written; other items are refused."""
    with store_of(tmp_path / "s", "number", "dot", items=4) as db:
        layer = SoftKVLayer.from_store(db, learn_values=True)
        with torch.no_grad():
            layer.memory.values[0] = 77.0
        state = copy.deepcopy(layer.state_dict())
        assert layer.write_back(db) == 1
        again = SoftKVLayer.from_store(db, learn_values=True)
        assert again.names != layer.names
        again.load_state_dict(state)
        learned = dict(zip(again.names, again.memory.values.tolist(), strict=True))
        assert learned == pytest.approx(dict(db), rel=1e-6)
        assert again.write_back(db) == 0
        db.delete("key 2")
        fewer = SoftKVLayer.from_store(db, learn_values=True)
        with pytest.raises(errors.InputError, match="other items"):
            fewer.load_state_dict(state)
        db.add(["key 9"], [1.0], vectors=[[1.0, 0.0, 0.0, 0.0]])
        with pytest.raises(errors.InputError, match="other items"):
            SoftKVLayer.from_store(db, learn_values=True).load_state_dict(state)
        assert len(fewer(drawn(2, 4))) == 2


def test_values_learn_and_are_written_back(tmp_path: Path) -> None:
    """Those that changed are, in as many batches as it takes; keys, payloads and places stay."""
    with store_of(tmp_path / "s", "vector", "gaussian") as db:
        before, commit = [db.item(key) for key in db], db.info().commit
        layer = SoftKVLayer.from_store(db, learn_values=True, learn_temperature=False, k=1, temperature=0.1)
        assert layer.write_back(db) == 0
        assert db.info().commit == commit
        queries, targets = torch.from_numpy(np.stack([before[i].vector for i in (4, 7)])), torch.ones(2, 3) * 5
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.3)
        for _ in range(100):
            optimizer.zero_grad()
            (layer(queries) - targets).square().sum().backward()
            optimizer.step()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(door, "TOGETHER", 1)
            assert layer.write_back(db) == 2
        assert layer.write_back(db) == 0
        assert db.info().commit == commit + 2
        for was, now in zip(before, (db.item(key) for key in db), strict=True):
            assert (now.key, now.payload, now.text) == (was.key, was.payload, was.text)
            assert np.array_equal(now.vector, was.vector)
            changed = was.key in ("key 4", "key 7")
            assert now.value == pytest.approx(np.full(3, 5.0) if changed else was.value, abs=0.1 if changed else 0)
        assert db.check().ok


def test_values_that_learned_are_written_back_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handle and its URL take them, as they gave them."""
    store_of(tmp_path / "s", "number", items=5).close()
    with served(tmp_path / "s") as server:
        url = f"http://{server.host}:{server.port}/s"
        monkeypatch.setenv("SOFTKV_TOKEN", server.token)
        with softkv.open(url) as db:
            layer = SoftKVLayer.from_store(db, learn_values=True)
            before = dict(db)
            for store in (db, url):
                with torch.no_grad():
                    layer.memory.values += 1.0
                assert layer.write_back(store) == 5
            assert dict(db) == pytest.approx({key: value + 2.0 for key, value in before.items()})


def test_nothing_is_written_over_what_somebody_else_has_written(tmp_path: Path) -> None:
    """An item that has got another value meanwhile, or has gone, is named; nor is another store written to."""
    with store_of(tmp_path / "s", "number", items=5) as db, store_of(tmp_path / "other", "number", items=5) as other:
        layer = SoftKVLayer.from_store(db, learn_values=True)
        with torch.no_grad():
            layer.memory.values += 1
        db.set_values(["key 3"], [100.0])
        before = dict(db), dict(other)
        with pytest.raises(errors.StoreError, match="'key 3' is another by now"):
            layer.write_back(db)
        with pytest.raises(errors.InputError, match="not the store"):
            layer.write_back(other)
        db.delete("key 1")
        with pytest.raises(errors.KeyMissing, match="key 1"):
            layer.write_back(db)
        assert (dict(db), dict(other)) == ({k: v for k, v in before[0].items() if k != "key 1"}, before[1])
        assert db.check().ok


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_values_are_written_back_from_any_floating_type(tmp_path: Path, dtype: torch.dtype) -> None:
    """What only was rounded has not learned; values learn in float32 where rows are shorter. A path is as good."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(["a", "b"], [16777217.0, 0.1], vectors=np.eye(2))
        layer = (
            SoftKVLayer.from_store(db, dtype=dtype, learn_values=True)
            if dtype != torch.float16
            else (SoftKVLayer.from_store(db, learn_values=True).to(torch.float64))
        )
        assert layer.memory.values.dtype == (torch.float32 if dtype == torch.bfloat16 else torch.float64)
        assert layer.write_back(db) == 0
        with torch.no_grad():
            layer.memory.values[1] = 0.5
    assert layer.write_back(tmp_path / "s") == 1
    with softkv.open(tmp_path / "s") as db:
        assert dict(db) == {"a": 16777217.0, "b": 0.5}
    with softkv.open(tmp_path / "v", compatibility="dot") as db:
        db.add(["a"], [[1.0, 2.0]], vectors=np.eye(2)[:1])
        wide = SoftKVLayer.from_store(db, dtype=torch.float64, learn_values=True)
        with torch.no_grad():
            wide.memory.values += 1e-12
        assert wide.write_back(db) == 0
    with softkv.open(tmp_path / "s") as db:
        layer = SoftKVLayer.from_store(db, learn_values=True)
        with torch.no_grad():
            layer.memory.values[1] = torch.nan
        with pytest.raises(errors.NotFinite, match="'b' has become NaN"):
            layer.write_back(db)
        assert db.check().ok


def test_what_cannot_be_written_back_is_refused(tmp_path: Path) -> None:
    """Values that did not learn, and items that have no key; nothing is written."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=np.eye(3), values=[1.0, 2.0, 3.0])
        with pytest.raises(errors.InputError, match="learn_values=True"):
            SoftKVLayer.from_store(db).write_back(db)
        layer = SoftKVLayer.from_store(db, learn_values=True)
        with torch.no_grad():
            layer.memory.values += 1
        commit = db.info().commit
        with pytest.raises(errors.KindError, match="3 of the items to write have no key"):
            layer.write_back(db)
        assert db.info().commit == commit
    with store_of(tmp_path / "l", "label") as db, pytest.raises(errors.KindError, match="can learn"):
        SoftKVLayer.from_store(db, learn_values=True)


def test_it_learns_to_look_where_the_answer_is() -> None:
    """A projection and a temperature learn, from answers alone, by which two of eight features keys are told apart."""
    torch.manual_seed(0)
    angles = torch.rand(400) * 6.28
    clean = torch.stack([angles.cos(), angles.sin()], 1)
    keys, values = torch.cat([clean, torch.randn(400, 6)], 1), angles.sin() * 2 + 1

    def asked(count: int) -> tuple[Tensor, Tensor]:
        wanted = torch.rand(count) * 6.28
        features = torch.cat([torch.stack([wanted.cos(), wanted.sin()], 1), torch.randn(count, 6)], 1)
        return features, wanted.sin() * 2 + 1

    layer = SoftKVLayer(keys, values, compatibility="dot", query=nn.Linear(8, 8))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    queries, targets = asked(500)
    before = (layer(queries) - targets).square().mean().item()
    for _ in range(300):
        some, wanted = asked(64)
        optimizer.zero_grad()
        (layer(some) - wanted).square().mean().backward()
        optimizer.step()
    after = (layer(queries) - targets).square().mean().item()
    assert before > 1.5
    assert after < 0.05


def test_a_memory_of_recent_steps_makes_the_next_ones_easier() -> None:
    """Nearest-neighbour memory: each episode binds symbols to answers anew, so only what was remembered can help."""
    torch.manual_seed(0)
    symbols = torch.randn(12, 6)
    memory = SoftKVLayer(torch.zeros(0, 8), torch.zeros(0, 4), capacity=64, compatibility="dot")
    seeing = nn.Linear(12, 8)
    optimizer = torch.optim.Adam([*memory.parameters(), *seeing.parameters()], lr=0.01)

    def episode(steps: int = 40) -> list[bool]:
        answers, right = torch.randint(4, (12,)), []
        memory.forget()
        for step in range(steps):
            which = torch.randint(12, (8,))
            seen = seeing(torch.cat([symbols[which], torch.randn(8, 6)], 1))
            if len(memory):
                shares = memory(seen) + 1e-6
                loss = functional.nll_loss(shares.log(), answers[which])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += (shares.argmax(1) == answers[which]).tolist() if step >= steps // 2 else []
            memory.remember(seen.detach(), functional.one_hot(answers[which], 4).float())
        return right

    before = np.mean(episode())
    for _ in range(12):
        episode()
    after = np.mean([episode() for _ in range(3)])
    assert before < 0.8
    assert after > 0.95


@pytest.mark.parametrize(
    ("keys", "values", "given", "error"),
    [
        (torch.zeros(3), torch.zeros(3), {}, errors.ShapeError),
        (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3), {}, errors.ShapeError),
        (torch.zeros(3, 2), torch.zeros(4), {}, errors.ShapeError),
        (torch.full((3, 2), torch.nan), torch.zeros(3), {}, errors.NotFinite),
        (torch.zeros(3, 2), torch.zeros(3), {"temperature": 0}, errors.InputError),
        (torch.zeros(3, 2), torch.zeros(3), {"temperature": "auto"}, errors.InputError),
        (torch.zeros(3, 2), torch.zeros(3), {"capacity": 0}, errors.InputError),
        (torch.zeros(3, 2), torch.zeros(3), {"capacity": 5, "learn_values": True}, errors.InputError),
        (torch.zeros(3, 2), torch.zeros(3), {"labels": 2}, errors.KindError),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), {"labels": 2}, errors.KindError),
        (torch.zeros(3, 2), torch.zeros(3), {"k": 0}, errors.InputError),
        (torch.zeros(3, 2), torch.zeros(3), {"compatibility": "nearness"}, errors.InputError),
        (torch.zeros(3, 2), torch.zeros(3), {"compatibility": "cosine"}, errors.ZeroVector),
        (torch.ones(3, 2), torch.zeros(3), {"compatibility": "gaussian", "heads": HEADS}, errors.NotExpressible),
        (torch.ones(3, 2), torch.tensor([0, 1, 1]), {"labels": 2, "heads": HEADS}, errors.NotExpressible),
        (np.zeros((3, 2)), torch.zeros(3), {}, errors.KindError),
        (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int32), {"labels": 2, "learn_values": True}, errors.KindError),
        (
            torch.zeros(3, 2),
            torch.zeros(3),
            {"heads": WITH_ZEROS},
            errors.InputError,
        ),
    ],
    ids=str,
)
def test_what_cannot_be_a_layer_is_refused(keys: Tensor, values: Tensor, given: Any, error: type) -> None:
    """The error comes when it is made, and names it."""
    with pytest.raises(error):
        SoftKVLayer(keys, values, **given)


def test_queries_and_rows_of_other_shapes_are_refused() -> None:
    """A single query, queries of another width, and rows that do not go with those that are there."""
    layer = SoftKVLayer(drawn(3, 2), drawn(3), capacity=5)
    for queries in (drawn(2), drawn(4, 3)):
        with pytest.raises(errors.ShapeError):
            layer(queries)
    for keys, values in ((drawn(1, 3), drawn(1)), (drawn(1, 2), drawn(1, 2)), (drawn(2, 2), drawn(1))):
        with pytest.raises(errors.ShapeError):
            layer.remember(keys, values)
    with pytest.raises(errors.NotFinite):
        layer.remember(torch.full((1, 2), torch.inf), drawn(1))
    assert len(layer) == 3
    for queries in ([[1.0, 2.0]], np.ones((1, 2))):
        with pytest.raises(errors.KindError, match="as a tensor"):
            layer(queries)


def test_what_would_spoil_every_later_lookup_is_not_remembered() -> None:
    """Keys without a direction, what a shorter type cannot hold, and codes that no label has."""
    cosine = SoftKVLayer(drawn(3, 2), drawn(3), capacity=5, compatibility="cosine")
    short = SoftKVLayer(drawn(3, 2).half(), drawn(3).half(), capacity=5)
    labels = SoftKVLayer(drawn(3, 2), torch.tensor([0, 1, 2]), capacity=5, labels=3)
    for layer, keys, values, error in (
        (cosine, torch.zeros(1, 2), drawn(1), errors.ZeroVector),
        (short, torch.full((1, 2), 1e6), drawn(1), errors.NotFinite),
        (short, drawn(1, 2), torch.full((1,), 1e6), errors.NotFinite),
        (labels, drawn(1, 2), torch.tensor([1.9]), errors.KindError),
        (labels, drawn(1, 2), torch.tensor([3]), errors.KindError),
    ):
        with pytest.raises(error):
            layer.remember(keys, values)
        assert len(layer) == 3
        layer(drawn(2, 2))


def test_scores_stay_in_float32_under_autocast() -> None:
    """They do so whatever else is rounded."""
    layer, queries = SoftKVLayer(drawn(30, 8), drawn(30, 3)), drawn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(queries)
    assert torch.equal(found, layer(queries))


def test_queries_may_go_through_a_module_first(tmp_path: Path) -> None:
    """The module comes before what the store has learned, if it has."""
    turned = nn.Linear(6, 4)
    with store_of(tmp_path / "s", "label", "gaussian", items=200) as db:
        db.set_temperature(50.0)
        assert db.fit(rank=3, hold_out=0).kept
        expected = db.lookup(turned(drawn(5, 6)).detach().numpy(), tolerance=0).value
        found = SoftKVLayer.from_store(db, query=turned)(drawn(5, 6))
    assert found.detach().numpy() == pytest.approx(expected, abs=1e-3)
    found.square().sum().backward()
    assert turned.weight.grad.abs().sum() > 0


def test_values_that_learn_are_the_layers_own() -> None:
    """A tensor that was given stays as it is; a parameter is shared."""
    given, shared = drawn(3), nn.Parameter(drawn(3))
    for values in (given, shared):
        layer = SoftKVLayer(drawn(3, 2), values, learn_values=True)
        with torch.no_grad():
            layer.memory.values += 1
    assert torch.equal(given, drawn(3))
    assert torch.equal(shared, drawn(3) + 1)
    with pytest.raises(errors.InputError, match="capacity"):
        SoftKVLayer(drawn(3, 2), drawn(3)).remember(drawn(1, 2), drawn(1))


def test_a_store_is_taken_up_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have any number of items."""
    monkeypatch.setattr(taken, "TOGETHER", 7)
    with store_of(tmp_path / "s", "number") as db:
        layer = SoftKVLayer.from_store(db, learn_values=True)
        assert layer.names == list(db)
        assert layer.memory.values.tolist() == pytest.approx(list(db.values()), rel=1e-6)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the door says what to type."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "softkv.doors.torch")
    with pytest.raises(errors.MissingExtra, match=r"needs torch, .* pip install 'softkv\[torch\]'$"):
        importlib.import_module("softkv.doors.torch")


@pytest.mark.parametrize("size", [2.0**-100, 2.0**-50, 2.0**-43])
@pytest.mark.parametrize("name", ["gaussian", "dot", "laplace"])
def test_gradients_of_tiny_temperatures_are_those_at_one(name: str, size: float) -> None:
    """The layer's temperature, and one that is handed to soft_lookup, learn of tiny vectors as of ordinary ones."""
    torch.manual_seed(0)
    keys, values, queries = torch.randn(50, 3), torch.randn(50), torch.randn(9, 3)
    slopes = []
    for one in (1.0, size):
        squared = one if name == "laplace" else one**2
        layer = SoftKVLayer(keys * one, values, compatibility=name, temperature=0.5 * squared)
        asked = (queries * one).requires_grad_()
        layer(asked).square().sum().backward()
        slopes.append([layer.log_temperature.grad, asked.grad * one])
        for wide in (torch.float32, torch.float64):
            if squared < 1e-37 and wide == torch.float32:
                continue  # it cannot hold such a temperature
            temperature = torch.tensor(0.5 * squared, dtype=wide, requires_grad=True)
            found = softkv.soft_lookup(queries * one, keys * one, values, compatibility=name, temperature=temperature)
            found.value.square().sum().backward()
            slopes[-1].append(temperature.grad.double() * squared)
            assert temperature.grad.dtype == wide
    for usual, sized in zip(slopes[0], slopes[1], strict=False):
        torch.testing.assert_close(sized.double(), usual.double(), rtol=1e-4, atol=1e-6)


def test_a_query_that_is_taken_in_parts_is_named_by_its_number_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that may see no row, by a mask or a bias, and one that is not a number."""
    monkeypatch.setattr(door, "KEPT", 400)  # a few queries at a time
    layer = SoftKVLayer(torch.randn(20, 3), torch.randn(20))
    queries, mask = torch.randn(30, 3), torch.ones(30, 20, dtype=torch.bool)
    mask[25:] = False
    with pytest.raises(errors.AllMasked, match=r"query 25 may see no row"):
        layer(queries, mask=mask)
    with pytest.raises(errors.AllMasked, match=r"query 25 may see no row"):
        layer(queries, bias=torch.zeros(30, 20).masked_fill(~mask, -torch.inf))
    queries[26] = torch.nan
    with pytest.raises(errors.NotFinite, match=r"queries\[26\]"):
        layer(queries)


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("kept", [None, 20])
@pytest.mark.parametrize("labels", [None, 3])
def test_gradients_of_evidence_are_right(
    labels: int | None, k: int | None, kept: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite differences give the same: of queries and the temperature; of many queries some at a time, too."""
    values = drawn(9, dtype=torch.float64) if labels is None else torch.arange(9) % labels
    keys = drawn(9, 4, seed=1, dtype=torch.float64)
    layer = SoftKVLayer(keys, values, compatibility="gaussian", temperature=0.7, labels=labels, k=k)
    asked = cut(monkeypatch, kept)

    class Evidence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, queries: Tensor, bias: Tensor) -> Tensor:
            return self.layer.evidence(queries, bias=bias)

    def evidence(queries: Tensor, bias: Tensor, log_temperature: Tensor) -> Tensor:
        return torch.func.functional_call(Evidence(), {"layer.log_temperature": log_temperature}, (queries, bias))

    given = (drawn(3, 4, dtype=torch.float64), drawn(3, 9, dtype=torch.float64), layer.log_temperature.detach())
    assert torch.autograd.gradcheck(evidence, [one.clone().requires_grad_() for one in given])
    assert (max(asked) < 3) == (kept is not None)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("kind", ["number", "vector", "label", "text"])
def test_evidence_and_its_threshold_are_those_of_the_store(tmp_path: Path, kind: str, fitted: bool) -> None:
    """Values and comparison may be any; so queries are known or not as the store says."""
    queries = np.concatenate([test_guarding.spots(5, 60), test_guarding.spots(6, 20) * 3.0])
    with test_guarding.store_of(tmp_path / "s", kind) as db:
        if fitted and kind != "text":
            assert db.fit(rank=2, planes=False if kind == "number" else None).kept
        guard = db.guard(wrong_at_most=0.2)
        expected = db.lookup(queries)
        layer = SoftKVLayer.from_store(db)
    found = layer.evidence(torch.as_tensor(queries, dtype=torch.float32))
    wanted = expected.guard.evidence_of(seen_of(expected))
    assert found.detach().numpy() == pytest.approx(wanted, abs=2e-3, rel=1e-4)
    assert layer.threshold == guard.threshold
    assert 0 < expected.known.sum() < len(queries)
    assert ((found >= layer.threshold).numpy() == expected.known).all()


def test_evidence_learns_to_be_high() -> None:
    """A query is moved to where more is known."""
    layer = SoftKVLayer(drawn(50, 3), torch.arange(50) % 4, labels=4, compatibility="gaussian", temperature=0.5)
    query = torch.full((1, 3), 4.0, requires_grad=True)
    before = layer.evidence(query).item()
    for _ in range(20):
        (step,) = torch.autograd.grad(layer.evidence(query).sum(), query)
        query = (query + 0.05 * step / step.norm()).detach().requires_grad_()
    assert layer.evidence(query).item() > before + 1.0


def test_a_layer_that_asks_otherwise_than_the_guard_of_its_store_has_no_threshold(tmp_path: Path) -> None:
    """It has k, heads, a module for queries or another temperature; nor has one of a store without a guard."""
    with test_guarding.store_of(tmp_path / "s", "vector") as db:
        assert SoftKVLayer.from_store(db).threshold is None
        db.guard()
        usual = db.info().temperature
        assert SoftKVLayer.from_store(db, temperature=usual).threshold is not None
        heads = Heads.random(1, query_width=2, key_width=2, value_width=2, head_width=2, seed=0)
        for other in ({"k": 5}, {"heads": heads}, {"query": nn.Identity()}, {"temperature": 2 * usual}):
            assert SoftKVLayer.from_store(db, **other).threshold is None, other
        with pytest.raises(errors.NotExpressible, match="head"):
            SoftKVLayer.from_store(db, heads=heads).evidence(drawn(1, 2))
        db.set_temperature(3 * usual)
        assert SoftKVLayer.from_store(db).threshold is None
