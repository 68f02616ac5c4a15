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

import softkv
from softkv import Heads, errors
from softkv.doors import memory as doors_memory
from softkv.doors import torch as door
from softkv.doors.torch import SoftKVLayer

from . import reference

WITH_ZEROS = nn.MultiheadAttention(2, 1, add_zero_attn=True)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")),
]


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
    """The same outputs and the same gradients of its parameters, which are parameters of the layer."""
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
    """By finite differences: of queries, the temperature, and values where they learn."""
    keys, values = drawn(9, 4, seed=1, dtype=torch.float64), drawn(9, 2, seed=2, dtype=torch.float64)
    layer = SoftKVLayer(keys, values, compatibility=compatibility, temperature=0.7, k=k, learn_values=learn_values)
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["log_temperature", *(["memory.values"] if learn_values else [])]

    def asked(queries: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (queries,))

    given = (drawn(3, 4, dtype=torch.float64), *(one.detach().clone() for one in layer.parameters()))
    assert torch.autograd.gradcheck(asked, [one.requires_grad_() for one in given])


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
    assert layer.query.linear.weight.grad.abs().sum() > 0
    assert layer.query.linear.weight.shape == (3, 4)


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


def test_what_a_short_float_cannot_hold_is_refused(tmp_path: Path) -> None:
    """By name, and not as infinity."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=[[1.0], [2.0]], values=[1.0, 1e6])
        with pytest.raises(errors.NotFinite, match="float16"):
            SoftKVLayer.from_store(db, dtype=torch.float16)
        assert len(SoftKVLayer.from_store(db, dtype=torch.bfloat16)) == 2


def test_many_queries_learn_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same outputs and gradients, masks and biases included."""
    keys, values, queries = drawn(50, 4, seed=1), drawn(50, 3, seed=2), drawn(2, 20, 4)
    mask, bias = drawn(2, 20, 50, seed=3) > -1, drawn(50, seed=4)
    found = []
    for kept in (1 << 26, 700):
        monkeypatch.setattr(door, "KEPT", kept)
        layer, asked = SoftKVLayer(keys, values, learn_values=True), queries.clone().requires_grad_()
        calls = []
        layer._found = lambda *given, real=layer._found, calls=calls: (calls.append(1), real(*given))[1]
        output = layer(asked, mask, bias)
        output.square().sum().backward()
        found.append((len(calls) > 2, output, asked.grad, *(one.grad for one in layer.parameters())))
    assert [one[0] for one in found] == [False, True]
    for whole, parts in zip(found[0][1:], found[1][1:], strict=True):
        assert torch.allclose(whole, parts, atol=1e-5)


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


def test_remembering_before_gradients_is_an_error_and_not_a_wrong_gradient() -> None:
    """Torch notices that rows have changed."""
    layer = SoftKVLayer(drawn(5, 3), drawn(5, 2), capacity=7)
    output = layer(drawn(4, 3).requires_grad_())
    layer.remember(drawn(3, 3), drawn(3, 2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def saved_and_loaded(layer: nn.Module, other: nn.Module) -> Any:
    """Let another layer be what this one is, by a file."""
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    return other.load_state_dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize("capacity", [None, 8])
def test_a_state_dict_carries_rows_that_were_given(capacity: int | None) -> None:
    """As many as there were, with the temperature and the heads."""
    heads = Heads.random(2, query_width=3, key_width=4, value_width=2, head_width=2, seed=0)
    others = Heads.random(2, query_width=3, key_width=4, value_width=2, head_width=2, seed=5)
    layer = SoftKVLayer(drawn(6, 4), drawn(6, 2), heads=heads, temperature=0.3, capacity=capacity)
    if capacity:
        layer.remember(drawn(5, 4, seed=4), drawn(5, 2, seed=5))
    fresh = SoftKVLayer(drawn(3, 4, seed=9), drawn(3, 2, seed=9), heads=others, capacity=capacity)
    saved_and_loaded(layer, fresh)
    assert len(fresh) == (8 if capacity else 6)
    assert torch.equal(fresh(drawn(5, 3)), layer(drawn(5, 3)))
    if capacity:
        for one in (layer, fresh):
            one.remember(drawn(3, 4, seed=7), drawn(3, 2, seed=8))
        assert torch.equal(fresh(drawn(5, 3)), layer(drawn(5, 3)))
    assert torch.equal(copy.deepcopy(layer)(drawn(5, 3)), layer(drawn(5, 3)))


def test_a_state_dict_does_not_carry_a_store(tmp_path: Path) -> None:
    """What was learned beside it is carried, to be loaded into another layer over the same store."""
    with store_of(tmp_path / "s", "vector") as db:
        layer, fresh = SoftKVLayer.from_store(db), SoftKVLayer.from_store(db, temperature=5.0)
    with torch.no_grad():
        layer.log_temperature += 1
    assert {name for name, x in layer.state_dict().items() if isinstance(x, Tensor)} == {"log_temperature"}
    saved_and_loaded(layer, fresh)
    assert len(fresh) == 60
    assert torch.equal(fresh(drawn(3, 4)), layer(drawn(3, 4)))


def test_values_learn_and_are_written_back(tmp_path: Path) -> None:
    """Only those that changed, in as many batches as it takes; keys, payloads and places stay."""
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
    with store_of(tmp_path / "l", "label") as db, pytest.raises(errors.KindError, match="codes"):
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
    """When it is made, by name."""
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
    with pytest.raises(errors.InputError, match="capacity"):
        SoftKVLayer(drawn(3, 2), drawn(3)).remember(drawn(1, 2), drawn(1))


def test_a_store_is_taken_up_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are."""
    monkeypatch.setattr(doors_memory, "TOGETHER", 7)
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
