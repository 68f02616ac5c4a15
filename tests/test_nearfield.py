"""Runs of rows that are read one by one, against a lookup over the same rows."""

import numpy as np
import pytest

from softkv.maths import nearfield
from softkv.maths.blending import Labels, Numbers, Values, Vectors
from softkv.maths.lookup import lookup
from softkv.maths.nearfield import Near, Run, read

ROWS, WIDTH, QUERIES = 300, 5, 3
RNG = np.random.default_rng(0)
KEYS = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
ASKED = RNG.standard_normal((QUERIES, WIDTH)).astype(np.float32)
VALUES: dict[str, Values] = {
    "vectors": Vectors(RNG.standard_normal((ROWS, 4)).astype(np.float32)),
    "numbers": Numbers(RNG.standard_normal((ROWS, 1)) + 1.7e9),
    "labels": Labels(RNG.integers(0, 6, ROWS).astype(np.int32), 6),
}


def score(queries: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """Plain dot products."""
    out[...] = ASKED[queries] @ KEYS[start:stop].T


def run(start: int, stop: int, *queries: int) -> Run:
    """A run that some queries ask."""
    return Run(start, stop, np.array(queries))


RUNS = [run(0, 40, 0, 2), run(50, 51, 1), run(60, 200, 0, 1, 2), run(290, 300, 0)]


def seen(live: np.ndarray | None = None) -> np.ndarray:
    """Which query meets which row."""
    mask = np.zeros((QUERIES, ROWS), np.bool_)
    for one in RUNS:
        mask[one.queries, one.start : one.stop] = True
    return mask if live is None else mask & live


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dead", [False, True])
def test_runs_are_blended_as_a_lookup_blends_them(kind: str, dead: bool) -> None:
    """Value, spread, mass, entropy, and who weighs most, for every query; rows that are dead do not count."""
    live = RNG.random(ROWS) < 0.6 if dead else None
    found = read(score, VALUES[kind], RUNS, live, count=QUERIES, show=7)
    expected = lookup(ASKED, KEYS, VALUES[kind], compatibility="dot", mask=seen(live), show=7)
    assert found.blend.value == pytest.approx(expected.value, rel=1e-5, abs=1e-5)
    assert found.blend.log_mass == pytest.approx(expected.log_mass, rel=1e-5)
    assert found.blend.effective == pytest.approx(expected.effective, rel=1e-5)
    assert (found.rows == expected.rows).all()
    assert found.logits == pytest.approx(expected.scores, rel=1e-5)
    assert (found.scored == seen(live).sum(1)).all()
    if kind == "numbers":
        assert found.blend.spread == pytest.approx(expected.spread, rel=1e-4)


def one_alone(number: int, show: int) -> Near:
    """What one query finds in its own runs."""
    runs = [run(one.start, one.stop, 0) for one in RUNS if number in one.queries]

    def of_one(_: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
        score(np.array([number]), start, stop, out)

    return read(of_one, VALUES["vectors"], runs, None, count=1, show=show)


def test_a_batch_is_the_single_queries_together() -> None:
    """No query knows of the others."""
    together = read(score, VALUES["vectors"], RUNS, None, count=QUERIES, show=200)
    for number in range(QUERIES):
        alone = one_alone(number, 200)
        assert together.blend.value[number] == pytest.approx(alone.blend.value[0], rel=1e-5, abs=1e-6)
        assert (together.rows[number] == alone.rows[0]).all()


@pytest.mark.parametrize("show", [1, 4, 299])
def test_the_heaviest_of_a_long_run_are_those_of_a_sort(show: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of several pieces, of which a query may read nothing else, and rows that weigh the same."""
    monkeypatch.setattr(nearfield, "PIECE", 16)
    logits = np.round(ASKED @ KEYS.T, 1)

    def rounded(queries: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
        out[...] = logits[queries, start:stop]

    runs = [run(0, 290, 0), run(0, 150, 1, 2), run(150, 155, 1), run(155, 290, 1)]
    live = RNG.random(ROWS) < 0.7
    found = read(rounded, VALUES["vectors"], runs, live, count=QUERIES, show=show)
    for number, end in enumerate((290, 290, 150)):
        there = np.flatnonzero(live[:end])
        order = there[np.lexsort((there, -logits[number, there]))][:show]
        assert found.rows[number, : len(order)].tolist() == order.tolist()
        assert (found.rows[number, len(order) :] == -1).all()


def test_who_reads_nothing_finds_nothing() -> None:
    """A query without runs, and a call without any, blend no rows."""
    for runs in ([run(3, 9, 1)], []):
        found = read(score, VALUES["vectors"], runs, None, count=QUERIES, show=2)
        assert found.blend.mass[0] == 0.0
        assert found.blend.peak[0] == -np.inf
        assert found.rows[0].tolist() == [-1, -1]
        assert found.scored[0] == 0


def test_runs_in_which_all_are_dead_weigh_nothing() -> None:
    """They count neither in the sums nor among the heaviest."""
    found = read(score, VALUES["vectors"], [run(0, 5, 0)], np.zeros(ROWS, np.bool_), count=1, show=3)
    assert (found.blend.mass[0], found.scored[0]) == (0.0, 0)
    assert found.rows[0].tolist() == [-1, -1, -1]


def test_long_runs_of_values_far_from_zero_keep_their_digits() -> None:
    """A float32 sum of 100,000 values near 1,000 would be off by several units."""
    values = np.full((100_000, 1), 1000.25, np.float32)

    def even(_: np.ndarray, _start: int, _stop: int, out: np.ndarray) -> None:
        out[...] = 0.0

    found = read(even, Vectors(values), [run(0, 100_000, 0)], None, count=1, show=0)
    assert found.blend.value[0, 0] == pytest.approx(1000.25, rel=1e-6)
