"""Losses of leave-one-out answers and their gradients, with PyTorch as the judge."""

from typing import Any

import numpy as np
import pytest

from softkv.learning.gradients import by_labels, by_slopes, by_values, gradient, weights_of

torch = pytest.importorskip("torch", reason="PyTorch judges the gradients")

ITEMS, ASKED, WIDTH, RANK, RIDGE = 40, 7, 5, 4, 0.1
RNG = np.random.default_rng(1)
KEYS, FACTORS = RNG.standard_normal((ITEMS, WIDTH)), RNG.standard_normal((RANK, WIDTH))
VALUES, CODES = RNG.standard_normal((ITEMS, 3)), RNG.integers(0, 3, ITEMS)
OWN = np.arange(ASKED)


def weights_by_torch(factors: Any) -> Any:
    """Softmax of −½‖L(q − k)‖² without the item itself."""
    projected = torch.tensor(KEYS) @ factors.T
    logits = -0.5 * ((projected[:ASKED, None] - projected[None]) ** 2).sum(-1)
    return torch.softmax(logits.masked_fill(torch.eye(ASKED, ITEMS, dtype=torch.bool), -torch.inf), 1)


def planes_by_torch(weights: Any) -> Any:
    """The height of each ridge plane at its query, by weighted least squares."""
    keys, numbers, heights = torch.tensor(KEYS), torch.tensor(VALUES[:, 0]), []
    for weight, query in zip(weights, keys, strict=False):
        middle, height = weight @ keys, weight @ numbers
        spread = (weight[:, None] * (keys - middle)).T @ (keys - middle) + RIDGE * torch.eye(WIDTH, dtype=torch.float64)
        crossed = (weight * (numbers - height)) @ (keys - middle)
        heights.append(height + torch.linalg.solve(spread, crossed) @ (query - middle))
    return torch.stack(heights)


def loss_by_torch(kind: str, weights: Any) -> Any:
    """The loss in the plainest words."""
    if kind == "labels":
        same = torch.tensor(CODES[:ASKED, None] == CODES[None, :])
        return -torch.log((weights * same).sum(1)).mean()
    if kind == "values":
        return ((weights @ torch.tensor(VALUES) - torch.tensor(VALUES[:ASKED])) ** 2).sum(1).mean()
    return ((planes_by_torch(weights) - torch.tensor(VALUES[:ASKED, 0])) ** 2).mean()


@pytest.mark.parametrize("kind", ["labels", "values", "slopes"])
def test_losses_and_gradients_are_those_of_torch(kind: str) -> None:
    """They agree in float64 to the last digits."""
    asked = KEYS[:ASKED]
    weights = weights_of(asked @ FACTORS.T, KEYS @ FACTORS.T, OWN)
    found, pulls = {
        "labels": lambda: by_labels(weights, CODES[:ASKED, None] == CODES[None, :]),
        "values": lambda: by_values(weights, VALUES, VALUES[:ASKED]),
        "slopes": lambda: by_slopes(weights, asked, KEYS, VALUES[:, 0], VALUES[:ASKED, 0], RIDGE),
    }[kind]()
    factors = torch.tensor(FACTORS, requires_grad=True)
    loss = loss_by_torch(kind, weights_by_torch(factors))
    loss.backward()
    assert found == pytest.approx(loss.item(), rel=1e-12)
    assert gradient(FACTORS, asked, KEYS, pulls) == pytest.approx(factors.grad.numpy(), rel=1e-9, abs=1e-12)
    assert pulls.sum(1) == pytest.approx(np.zeros(ASKED), abs=1e-12)


def test_nobody_answers_himself() -> None:
    """An item's own weight is nothing, and those without a place of their own see all."""
    weights = weights_of(KEYS[:2], KEYS, np.array([0, -1]))
    assert weights[0, 0] == 0.0
    assert weights[1, 1] == weights[1].max() > 0.0
    assert weights.sum(1) == pytest.approx([1.0, 1.0])


def test_a_label_that_no_other_item_carries_is_no_infinite_loss() -> None:
    """What is lost for good pulls at nothing."""
    loss, pulls = by_labels(np.full((1, 4), 0.25), np.zeros((1, 4), np.bool_))
    assert 0 < loss < 100
    assert np.isfinite(pulls).all()
