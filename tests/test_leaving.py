"""Leaving every item out: the losses are those of doing it one by one, whatever the blocks."""

from typing import Any

import numpy as np
import pytest

from softkv.learning import leaving
from softkv.learning.leaving import LEAST, left_out

from . import reference

ITEMS = 60
RNG = np.random.default_rng(3)
KEYS = RNG.standard_normal((ITEMS, 4))
LABELS, NUMBERS = RNG.integers(0, 4, ITEMS).astype(np.int32), RNG.standard_normal((ITEMS, 2)) * 10
TEMPERATURES = np.array([0.02, 0.3, 2.0, 50.0])


def scores(some: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Dot products."""
    return KEYS[some] @ KEYS[start:stop].T


def one_by_one(
    values: np.ndarray, temperature: float, k: int | None, asked: np.ndarray, shares: np.ndarray | None = None
) -> float:
    """The mean loss, with a loop over the items and nothing shared between them."""
    losses, heard = [], []
    shares = np.ones(ITEMS) if shares is None else shares
    for item in asked.tolist():
        others = [other for other in range(ITEMS) if other != item]
        if values.ndim == 1 and not any(values[other] == values[item] for other in others):
            continue
        others.sort(key=lambda other: -float(KEYS[item] @ KEYS[other]))
        logits = np.array([float(KEYS[item] @ KEYS[other]) / temperature for other in others[:k]], np.longdouble)
        weights = np.exp(logits - logits.max()) * shares[others[: len(logits)]]
        weights /= weights.sum()
        if values.ndim == 1:
            right = sum(w for w, other in zip(weights, others, strict=False) if values[other] == values[item])
            losses.append(-np.log(max(right, LEAST)))
        else:
            blended = sum(w * values[other] for w, other in zip(weights, others, strict=False))
            losses.append(((blended - values[item]) ** 2).sum())
        heard.append(shares[item])
    return float(np.average(losses, weights=heard))


def lowest(asked: np.ndarray) -> list[float]:
    """The lowest log mass of these items at each temperature, by the reference."""
    keys, found = KEYS.tolist(), []
    for temperature in TEMPERATURES:
        others = ((keys[item], keys[:item] + keys[item + 1 :]) for item in asked)
        asking = {"score": reference.dot, "temperature": temperature}
        found.append(min(reference.lookup(one, rest, [[0.0]] * len(rest), **asking).log_mass for one, rest in others))
    return found


@pytest.mark.parametrize("block", [7, 1000])
@pytest.mark.parametrize("values", [LABELS, NUMBERS], ids=["labels", "vectors"])
def test_losses_are_those_of_one_by_one(values: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temperatures are sharp and mild, with all rows and with the best, of all items or of some."""
    monkeypatch.setattr(leaving, "BLOCK", block)
    monkeypatch.setattr(leaving, "TOGETHER", 16)
    for asked in (np.arange(ITEMS), np.array([5, 3, 44])):
        found = left_out(scores, values, asked, TEMPERATURES, ks=[1, 5])
        assert found.asked == len(asked)
        assert found.lowest == pytest.approx(lowest(asked), rel=1e-9)
        for number, temperature in enumerate(TEMPERATURES):
            assert found.full[number] == pytest.approx(one_by_one(values, temperature, None, asked), rel=1e-9)
            for k in (1, 5):
                assert found.best[k][number] == pytest.approx(one_by_one(values, temperature, k, asked), rel=1e-9)


@pytest.mark.parametrize("values", [LABELS, NUMBERS], ids=["labels", "vectors"])
def test_whole_shares_are_counts(values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that counts three is three, of which one is left out."""
    monkeypatch.setattr(leaving, "BLOCK", 7)
    shares = np.random.default_rng(2).integers(1, 5, ITEMS)
    rows = np.repeat(np.arange(ITEMS), shares)
    matrix = scores(np.arange(ITEMS), 0, ITEMS)

    def repeated(some: Any, start: int, stop: int) -> Any:
        return matrix[rows[some]][:, rows[start:stop]]

    found = left_out(scores, values, np.arange(ITEMS), TEMPERATURES[1:], shares=shares.astype(float))
    expected = left_out(repeated, values[rows], np.arange(len(rows)), TEMPERATURES[1:])
    assert found.full == pytest.approx(expected.full, rel=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e-50, 1e50])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", [LABELS, NUMBERS], ids=["labels", "vectors"])
def test_items_count_as_much_as_their_shares(
    values: Any, dtype: Any, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count so when they answer and when they are asked; in proportion, however large all of them are."""
    monkeypatch.setattr(leaving, "BLOCK", 7)
    shares = np.random.default_rng(1).uniform(0.1, 5, ITEMS)
    found = left_out(
        lambda some, start, stop: scores(some, start, stop).astype(dtype),
        values,
        np.arange(ITEMS),
        TEMPERATURES[1:],
        shares=shares * scale,
    )
    for number, temperature in enumerate(TEMPERATURES[1:]):
        expected = one_by_one(values, temperature, None, np.arange(ITEMS), shares)
        assert found.full[number] == pytest.approx(expected, rel=1e-9 if dtype == np.float64 else 1e-4)


def test_no_label_is_more_than_certain() -> None:
    """Where items are told apart perfectly the loss is 0, not a rounding below it."""
    keys = np.repeat(np.eye(4) * 3, 10, axis=0).astype(np.float32)
    labels = np.repeat(np.arange(4), 10)
    found = left_out(lambda some, start, stop: keys[some] @ keys[start:stop].T, labels, np.arange(40), np.array([0.01]))
    assert 0 <= found.full[0] < 1e-6


def test_an_item_with_a_label_of_its_own_is_not_asked() -> None:
    """Nobody could know it."""
    labels = LABELS.copy()
    labels[17] = 99
    found = left_out(scores, labels, np.arange(ITEMS), TEMPERATURES)
    assert found.asked == ITEMS - 1
    assert found.full[1] == pytest.approx(one_by_one(labels, 0.3, None, np.arange(ITEMS)), rel=1e-9)


def test_rows_that_do_not_count_are_not_seen() -> None:
    """Their scores are −inf, in whole blocks as well."""
    gone = np.zeros(ITEMS, np.bool_)
    gone[:20] = gone[41] = True

    def some_scores(some: np.ndarray, start: int, stop: int) -> np.ndarray:
        return np.where(gone[start:stop], -np.inf, scores(some, start, stop))

    left, keys = np.flatnonzero(~gone), KEYS[~gone]
    found = left_out(some_scores, LABELS, left, TEMPERATURES)
    alone = left_out(
        lambda some, start, stop: keys[some] @ keys[start:stop].T,
        LABELS[~gone],
        np.arange(len(left)),
        TEMPERATURES,
    )
    assert found.full == pytest.approx(alone.full, rel=1e-9)


def test_all_rows_and_as_many_best_rows_lose_alike() -> None:
    """However cold, both count a right label of next to no weight alike, and no item decides all."""
    temperatures = np.geomspace(1e-6, 100, 30)
    losses = left_out(scores, LABELS, np.arange(ITEMS), temperatures, ks=[ITEMS - 1])
    np.testing.assert_allclose(losses.full, losses.best[ITEMS - 1], rtol=1e-5)
    assert 5 < losses.full.max() < 16


def test_scores_are_worked_out_once_for_all_temperatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many temperatures take as many blocks of scores as one, and none twice."""
    monkeypatch.setattr(leaving, "BLOCK", 25)
    monkeypatch.setattr(leaving, "TOGETHER", 16)

    def blocks(temperatures: np.ndarray) -> list[tuple[int, int]]:
        seen = list[tuple[int, int]]()

        def noted(some: np.ndarray, start: int, stop: int) -> np.ndarray:
            seen.append((some[0], start))
            return scores(some, start, stop)

        left_out(noted, LABELS, np.arange(ITEMS), temperatures)
        return seen

    found = blocks(np.geomspace(0.01, 100, 41))
    assert found == blocks(TEMPERATURES[:1])
    assert len(found) == len(set(found)) == 4 * 3
