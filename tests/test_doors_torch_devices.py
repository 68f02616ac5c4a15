"""A layer on a GPU answers and learns as one on the processor, and its blocks are as large as a GPU wants them.

Where torch sees no GPU, the processor is treated as one.
"""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import softkv
from softkv import Heads, soft_lookup
from softkv.doors.torch import SoftKVLayer

from . import test_doors_torch
from .test_doors_torch import ON_A_GPU

tensors = importlib.import_module("softkv.maths.tensors")

ROWS, WIDTH = 300, 6
HEADS = Heads.random(3, query_width=WIDTH, key_width=WIDTH, value_width=5, head_width=4, seed=0)
COMPARED = ("scaled_dot", "dot", "cosine", "gaussian", "laplace", "student", "uniform")
drawn = partial(test_doors_torch.drawn, dtype=torch.float64)


@pytest.fixture(params=["as a GPU", pytest.param("cuda", marks=ON_A_GPU)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the layer lies."""
    if request.param == "cuda":
        return "cuda"
    monkeypatch.setattr(tensors.Torch, "is_large_device", lambda _library, _x: True)
    return "cpu"


def held(kind: str) -> tuple[Tensor, dict[str, Any]]:
    """Values of a kind, and what a lookup has to be told of them."""
    if kind == "labels":
        return torch.arange(ROWS) % 4, {"labels": 4}
    return (drawn(ROWS, seed=2) * 10 + 3 if kind == "numbers" else drawn(ROWS, 5, seed=2)), {}


def ways() -> list[tuple[str, str, dict[str, Any]]]:
    """Ways to compare, kinds of values, and options of a layer."""
    plain = [
        (one, kind, {"compatibility": one, "k": k})
        for one in COMPARED
        for kind in ("numbers", "vectors", "labels")
        for k in (None, 7)
    ]
    return [*plain, ("heads", "vectors", {"heads": HEADS})]


@pytest.mark.parametrize("large", [pytest.param(1 << 25, marks=ON_A_GPU), 400], ids=["one block", "many blocks"])
@pytest.mark.parametrize(("compatibility", "kind", "how"), ways(), ids=str)
def test_answers_and_gradients_are_those_of_float64(
    monkeypatch: pytest.MonkeyPatch, device: str, compatibility: str, kind: str, how: dict[str, Any], large: int
) -> None:
    """With masks, biases and a causal order, and rows in float32 and in bfloat16."""
    monkeypatch.setattr(tensors, "room", lambda _device: large)
    values, told = held(kind)
    keys, queries, mask = drawn(ROWS, WIDTH, seed=1), drawn(9, WIDTH, seed=3), drawn(9, ROWS, seed=4) > 0
    mask[:, :20] = True
    bias = drawn(ROWS, seed=5)
    masked = {"mask": mask, "bias": bias}
    for dtype, extra in (
        (torch.float32, {}),
        (torch.float32, masked),
        (torch.float32, {"causal": True}),
        (torch.bfloat16, masked),
        (torch.bfloat16, {"mask": mask}),
    ):
        rows = keys.to(dtype), values.to(dtype) if values.is_floating_point() else values
        exact = rows[0].double(), rows[1].double() if values.is_floating_point() else values
        layer = SoftKVLayer(rows[0].to(device), rows[1].to(device), temperature=0.6, **how, **told)
        mine, theirs = queries.float().to(device).requires_grad_(), queries.clone().requires_grad_()
        moved: dict[str, Any] = {
            name: one.to(device) if isinstance(one, Tensor) else one for name, one in extra.items()
        }
        answer = layer(mine, **moved)
        with torch.no_grad():
            assert layer(mine, **moved).cpu().numpy() == pytest.approx(answer.detach().cpu().numpy(), abs=2e-4)
        expected = _plainly(theirs, exact, {**how, **told, **extra})
        assert answer.detach().double().cpu().numpy() == pytest.approx(expected.detach().numpy(), abs=3e-4)
        if compatibility == "uniform":  # which has no gradients
            continue
        slope = drawn(*expected.shape, seed=6)
        (answer.double().cpu() * slope).sum().backward()
        (expected * slope).sum().backward()
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.grad.cpu().numpy() == pytest.approx(theirs.grad.numpy(), abs=2e-3, rel=1e-3)


def _plainly(queries: Tensor, rows: tuple[Tensor, Tensor], how: dict[str, Any]) -> Tensor:
    """The value of the answers in float64, on the processor."""
    if isinstance(how.get("heads"), Heads):
        arrays = {name: torch.as_tensor(x).double() for name, x in how["heads"].arrays().items()}
        how["heads"] = Heads(**arrays)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tensors.Torch, "is_large_device", lambda _library, _x: False)
        found: Tensor = soft_lookup(queries, *rows, temperature=0.6, **how).value
    return found


def test_rows_are_remembered_saved_and_learned_there(tmp_path: Path, device: str) -> None:
    """Rows that come and go, a state_dict, autocast, evidence, and values that are written back to their store."""
    layer = SoftKVLayer(torch.zeros(0, 4, device=device), torch.zeros(0, 2, device=device), capacity=5)
    for seed in range(4):
        layer.remember(drawn(2, 4, seed=seed).float(), drawn(2, 2, seed=seed + 9).float().to(device))
    queries = drawn(3, 4, seed=20).float().to(device)
    last = [torch.cat([drawn(2, width, seed=s + more) for s in range(4)])[-5:] for width, more in ((4, 0), (2, 9))]
    expected = soft_lookup(queries.double().cpu().numpy(), *(one.numpy() for one in last), show=2)
    assert layer(queries).detach().cpu().numpy() == pytest.approx(expected.value, abs=1e-5)
    assert layer.evidence(queries).detach().cpu().numpy() == pytest.approx(expected.log_mass - np.log(5), abs=1e-5)
    again = SoftKVLayer(torch.zeros(0, 4), torch.zeros(0, 2), capacity=5)
    again.load_state_dict(layer.state_dict())
    assert torch.allclose(again(queries.cpu()), layer(queries).cpu(), atol=1e-6)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.allclose(layer(queries), again(queries.cpu()).to(device), atol=1e-6)

    path = tmp_path / "s"
    with softkv.open(path, value="number", compatibility="dot") as db:
        db.add([str(n) for n in range(40)], np.arange(40.0), vectors=drawn(40, 4, seed=1).numpy())
        learning = SoftKVLayer.from_store(db, device=device, learn_values=True, temperature=0.3)
        answer = learning(queries)
        (answer - 7).square().sum().backward()
        assert learning.memory.values.grad is not None
        with torch.no_grad():
            learning.memory.values -= 0.1 * learning.memory.values.grad
        assert learning.write_back(db) > 10
        stored = db.lookup(queries.cpu().numpy(), temperature=0.3, tolerance=0).value
        assert learning(queries).detach().cpu().numpy() == pytest.approx(stored, abs=1e-3)


@pytest.mark.parametrize("large", [1 << 25, 4096], ids=["one block", "many blocks"])
@pytest.mark.parametrize("offset", [0.0, 1e4], ids=["about nothing", "far from zero"])
def test_values_of_unlike_size_keep_their_digits(
    monkeypatch: pytest.MonkeyPatch, device: str, offset: float, large: int
) -> None:
    """Nearly constant columns, one huge value, and keys far from the origin are as right as on the processor."""
    monkeypatch.setattr(tensors, "room", lambda _device: large)
    keys, values = drawn(5000, 8, seed=1).float() + offset / 100, drawn(5000, 3, seed=2).float() * 1e-3 + offset
    values[17] = 1e6
    queries = drawn(4, 8, seed=3).float() + offset / 100
    for compatibility in ("gaussian", "cosine", "dot"):
        how: Any = {"compatibility": compatibility, "temperature": 2.0}
        expected = soft_lookup(*(one.double().numpy() for one in (queries, keys, values)), **how)
        found = SoftKVLayer(keys.to(device), values.to(device), **how).lookup(queries.to(device))
        assert found.value.detach().cpu().numpy() == pytest.approx(expected.value, rel=2e-4, abs=2e-4)
        assert found.log_mass.detach().cpu().numpy() == pytest.approx(expected.log_mass, rel=1e-5, abs=1e-3)
        assert found.effective.detach().cpu().numpy() == pytest.approx(expected.effective, rel=5e-3)
