"""What a benchmark compares with: the yardsticks themselves are right, and everybody has a turn."""

import numpy as np
import pytest
from softkv_cli import contest
from softkv_cli.contest import exact, plain, turns
from softkv_cli.mixtures import Mixture, mixture

from . import reference


def expected(made: Mixture, temperature: float) -> list[list[float]]:
    """The full softmax of every query, as the reference has it."""
    keys, values = made.keys.tolist(), made.values.tolist()
    return [
        list(reference.lookup(one, keys, values, score=reference.cosine, temperature=temperature).value)
        for one in made.queries.tolist()
    ]


@pytest.mark.parametrize("temperature", [0.02, 0.3])
def test_the_yardsticks_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """They do in float64 to all figures, over blocks; in float32 as one would write it, for one and many."""
    monkeypatch.setattr(contest, "BLOCK", 50)
    made = mixture(120, 6, 3, 4, seed=0)
    true = np.array(expected(made, temperature))
    assert exact(made, temperature) == pytest.approx(true, abs=1e-12)
    assert plain(made.queries, made, temperature) == pytest.approx(true, abs=1e-4)
    for query, value in zip(made.queries, true, strict=True):
        assert plain(query, made, temperature) == pytest.approx(value, abs=1e-4)
    assert plain(made.queries, made, temperature).dtype == np.float32


def test_everybody_is_asked_in_turn_back_and_forth() -> None:
    """The first round warms up, and each work is told which round it is."""
    seen: list[tuple[str, int]] = []
    works = {name: lambda number, name=name: seen.append((name, number)) for name in "abc"}
    found = turns(works, 2, 0.0)
    assert [name for name, _ in seen] == list("cbaabccba")
    assert [number for _, number in seen] == [0] * 3 + [1] * 3 + [2] * 3
    assert set(found) == set("abc")
    assert all(seconds >= 0 for seconds in found.values())
