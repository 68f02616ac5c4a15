"""Which rows count most: a running top-k, against sorting everything."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softkv.maths.arrays import library_of
from softkv.maths.ranking import Ranking, no_ranking

from .backends import Backend, every_backend, exact


def ranked(logits: object, k: int, step: int) -> Ranking:
    """The ranking after all blocks of `step` rows."""
    library = library_of(logits)
    ranking = no_ranking(logits, k)
    for start in range(0, logits.shape[-1], step):  # type: ignore[attr-defined]
        block = logits[..., start : start + step]  # type: ignore[index]
        ranking = ranking.offer(block, library.largest(block), start)
    return ranking.in_order()


def expected(logits: list[float], k: int) -> list[int]:
    """The first k rows by logit, the first of equals first, -1 where there is none."""
    order = [row for row in sorted(range(len(logits)), key=lambda row: -logits[row]) if logits[row] > -math.inf]
    return (order + [-1] * k)[:k]


@every_backend
@pytest.mark.parametrize(("k", "step"), [(1, 7), (3, 1), (5, 50), (60, 7)])
def test_the_ranking_is_that_of_a_sort(backend: Backend, k: int, step: int) -> None:
    """However the rows are cut into blocks, the k highest come out in order, with their rows."""
    logits = backend.array(np.random.default_rng(5).standard_normal((2, 4, 50)))
    ranking = ranked(logits, k, step)
    plain = exact(logits)
    for lead in range(2):
        for query in range(4):
            rows = expected(plain[lead, query].tolist(), k)
            assert exact(ranking.rows)[lead, query].tolist() == rows
            held = [plain[lead, query, row] if row >= 0 else -math.inf for row in rows]
            assert exact(ranking.logits)[lead, query].tolist() == held


@every_backend
@pytest.mark.parametrize("lucky", [[3], [0, 2], [0, 1, 3, 4], [0, 1, 2, 3, 4]])
def test_a_block_that_is_news_to_some_queries_changes_theirs_alone(backend: Backend, lucky: list[int]) -> None:
    """Whether few or most queries find a better row in a block, the others keep what they had, and so does the past."""
    logits = np.random.default_rng(8).random((5, 12)).round(2)
    logits[:, 8:] -= 2
    logits[lucky, 9] = 5
    array = backend.array(logits)
    before = ranked(array[:, :8], 3, 8)
    kept = exact(before.rows).tolist()
    after = before.offer(array[:, 8:], library_of(array).largest(array[:, 8:]), 8)
    assert exact(after.in_order().rows).tolist() == [expected(one, 3) for one in exact(array).tolist()]
    assert exact(before.rows).tolist() == kept


@given(
    st.lists(st.sampled_from([-math.inf, 0.0, 1.0, 2.0]), min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 9)
)
def test_equal_logits_keep_the_order_of_their_rows(logits: list[float], k: int, step: int) -> None:
    """Ties go to the earlier row, and masked rows are never ranked."""
    assert ranked(np.array([logits]), k, step).rows[0].tolist() == expected(logits, k)


def test_a_wide_block_is_ranked_without_sorting_it_all() -> None:
    """Blocks much wider than k give the same rows as a sort, ties included."""
    logits = np.random.default_rng(6).integers(0, 50, (3, 4000)).astype(np.float32)
    ranking = ranked(logits, 8, 4000)
    assert [rows.tolist() for rows in ranking.rows] == [expected(one.tolist(), 8) for one in logits]


def test_a_wide_block_of_equals_names_its_first_rows() -> None:
    """When all logits are alike, only as many of them are looked at as are asked for, and the first come first."""
    ranking = ranked(np.zeros((2, 4000), dtype=np.float32), 8, 4000)
    assert ranking.rows.tolist() == [list(range(8))] * 2


@pytest.mark.parametrize("k", [5, 300, 1000])
def test_many_of_several_blocks_are_ranked_as_by_a_sort(k: int) -> None:
    """There are ties within blocks and across them, masked rows, and blocks narrower and wider than k."""
    logits = np.random.default_rng(9).integers(0, 500, (4, 3000)).astype(np.float32)
    logits[1, ::2], logits[2, 40:] = -np.inf, -np.inf
    for step in (700, 1300, 3000):
        rows = ranked(logits, k, step).rows
        assert [one.tolist() for one in rows] == [expected(one.tolist(), k) for one in logits]


def test_nothing_is_ranked_when_nothing_is_asked_for() -> None:
    """A ranking of no rows stays empty."""
    assert ranked(np.zeros((2, 3)), 0, 2).rows.shape == (2, 0)
